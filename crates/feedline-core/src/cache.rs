//! What keeps samples from one epoch to the next, as the engine sees it; the implementations live
//! elsewhere.

use crate::{Name, Pool, Sample, Tensor};
use serde::Serialize;

/// Keeps samples as they are after the first steps of a pipeline, by their index in the source.
///
/// It may always say that it has nothing: a sample that is not found is made, and what is found is what
/// would be made, bit for bit.
pub trait Cache: Send + Sync {
    /// Looks for a sample, without waiting.
    fn find(&self, index: u64) -> Found;

    /// Whether a sample that was not found should be shown once it is made. What is not wanted need
    /// not be made whole.
    fn wants(&self, index: u64) -> bool;

    /// Shows a sample that was made, to be kept if that is worth the room.
    fn keep(&self, index: u64, fields: &[(Name, Tensor)], cost: Cost);

    /// What it holds and what it was good for.
    fn stats(&self) -> CacheStats;
}

/// What came of looking for a sample.
#[expect(clippy::large_enum_variant, reason = "a box would be an allocation for each sample")]
pub enum Found {
    /// It is in memory.
    Here(Sample),
    /// It lies where it may have to be waited for.
    Stored(Box<dyn Stored>),
    /// It has to be made.
    Missing,
}

/// A sample that lies on a disk, or at another host.
pub trait Stored: Send {
    /// Gets it. Without `wait`, only if it need not be waited for.
    fn fetch(&mut self, pool: &Pool, wait: bool) -> Fetch;

    /// Bytes that it has, as far as that is known before it is there.
    fn bytes(&self) -> usize;
}

/// What came of getting a stored sample.
#[expect(clippy::large_enum_variant, reason = "a box would be an allocation for each sample")]
pub enum Fetch {
    /// Here it is.
    Sample(Sample),
    /// It has to be waited for.
    WouldWait,
    /// It is damaged, or cannot be had any more: it has to be made.
    Gone,
}

/// What it took to make a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Nanoseconds of work.
    pub work: u64,
    /// Nanoseconds that reads were waited for.
    pub wait: u64,
    /// Bytes read from storage.
    pub bytes: u64,
}

/// What a cache holds, and what it was good for since it was opened here.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CacheStats {
    /// Names what is kept: the data and the steps it has been through.
    pub identity: String,
    /// Samples found in memory.
    pub ram_hits: u64,
    /// Samples found on the disk.
    pub disk_hits: u64,
    /// Samples got from other hosts.
    pub peer_hits: u64,
    /// Samples that had to be made.
    pub misses: u64,
    /// Samples that are kept in memory, and their bytes with all that it takes to keep them.
    pub ram_samples: u64,
    /// Bytes of them.
    pub ram_bytes: u64,
    /// So many are allowed.
    pub ram_limit: u64,
    /// Samples that are kept on the disk by all processes.
    pub disk_samples: u64,
    /// Bytes of them, with all that it takes to keep them.
    pub disk_bytes: u64,
    /// So many are allowed for all that the folder holds.
    pub disk_limit: u64,
    /// Bytes that did not have to be read from storage.
    pub bytes_saved: u64,
    /// Seconds of work and of waiting that did not have to be spent.
    pub seconds_saved: f64,
    /// Entries on the disk, or from other hosts, that were found to be damaged.
    pub damaged: u64,
    /// Samples that were given to other hosts.
    pub served: u64,
    /// Bytes read from storage to make those of them that were not kept yet.
    pub bytes_read_for_peers: u64,
    /// Other hosts that did not answer in time, or not at all.
    pub peer_failures: u64,
    /// What keeps it from doing more, in words; empty if nothing does.
    pub note: String,
}

impl CacheStats {
    /// Share of samples that were found, of those that were looked for; 0 if none was.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        let hits = self.ram_hits + self.disk_hits + self.peer_hits;
        let all = hits + self.misses;
        if all == 0 { 0.0 } else { hits as f64 / all as f64 }
    }
}
