//! The cache: memory first, then the disk, then storage.
//!
//! ```text
//!  find ──► memory ──► disk ──► (made) ──► keep: gate ──► memory, else disk
//! ```

use crate::admit::{Choice, Gate};
use crate::disk::{About, Disk, OnDisk, Put};
use crate::ram::Ram;
use feedline_core::{
    Attempt, Cache, CacheStats, Cost, Fetch, Found, Name, Pool, Result, Sample, Stored, Tensor,
    Value,
};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How a cache is opened.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Names what is kept.
    pub identity: String,
    /// Says what that is, for people.
    pub about: About,
    /// Bytes of memory.
    pub ram: u64,
    /// Folder and bytes of disk.
    pub disk: Option<(PathBuf, u64)>,
    /// Which samples are kept if there is no room for all.
    pub choice: Choice,
}

/// Keeps samples in memory and on a disk.
pub struct TieredCache {
    identity: String,
    inner: Arc<Inner>,
}

struct Inner {
    ram: Ram,
    disk: Option<Disk>,
    gate: Gate,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    ram_hits: AtomicU64,
    disk_hits: AtomicU64,
    misses: AtomicU64,
    damaged: AtomicU64,
    bytes_saved: AtomicU64,
    nanos_saved: AtomicU64,
}

impl Counts {
    fn hit(&self, which: &AtomicU64, cost: Cost) {
        which.fetch_add(1, Ordering::Relaxed);
        self.bytes_saved.fetch_add(cost.bytes, Ordering::Relaxed);
        self.nanos_saved.fetch_add(cost.work + cost.wait, Ordering::Relaxed);
    }
}

impl TieredCache {
    /// Opens a cache.
    ///
    /// # Errors
    ///
    /// If the folder cannot be used.
    pub fn open(settings: &Settings) -> Result<Self> {
        let Settings { identity, about, ram, disk, choice } = settings;
        let disk = disk.as_ref().filter(|(_, bytes)| *bytes > 0);
        let capacity = ram.saturating_add(disk.map_or(0, |(_, bytes)| *bytes));
        let disk = disk.map(|(path, bytes)| Disk::open(path, identity, about, *bytes));
        let inner = Inner {
            ram: Ram::new(*ram),
            disk: disk.transpose()?,
            gate: Gate::new(*choice, about.samples, capacity),
            counts: Counts::default(),
        };
        Ok(Self { identity: identity.clone(), inner: Arc::new(inner) })
    }
}

impl Cache for TieredCache {
    fn find(&self, index: u64) -> Found {
        let inner = &self.inner;
        inner.gate.looked();
        if let Some((sample, cost)) = inner.ram.find(index) {
            inner.counts.hit(&inner.counts.ram_hits, cost);
            return Found::Here(sample);
        }
        if let Some(place) = inner.disk.as_ref().and_then(|disk| disk.find(index)) {
            return Found::Stored(Box::new(Reading { place, inner: Arc::clone(inner) }));
        }
        inner.counts.misses.fetch_add(1, Ordering::Relaxed);
        Found::Missing
    }

    fn wants(&self, index: u64) -> bool {
        self.inner.gate.wants(index)
    }

    fn keep(&self, index: u64, fields: &[(Name, Tensor)], cost: Cost) {
        let inner = &self.inner;
        let bytes = Ram::size_of(fields);
        if !inner.gate.admits(index, bytes, cost) {
            return;
        }
        if inner.ram.put(index, fields, cost) {
            inner.gate.kept(bytes);
            return;
        }
        match inner.disk.as_ref().map(|disk| disk.put(index, fields, cost)) {
            Some(Put::Kept) => inner.gate.kept(bytes),
            Some(Put::Full(room)) => inner.gate.refused(room.max(inner.ram.room())),
            Some(Put::Broken) | None => inner.gate.refused(inner.ram.room()),
        }
    }

    fn stats(&self) -> CacheStats {
        let Inner { ram, disk, gate, counts } = &*self.inner;
        let Counts { ram_hits, disk_hits, misses, damaged, bytes_saved, nanos_saved } = counts;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (disk_samples, disk_bytes, disk_limit) = disk.as_ref().map_or((0, 0, 0), Disk::counts);
        let full = gate.is_closed().then(|| "it is full".to_owned());
        CacheStats {
            identity: self.identity.clone(),
            ram_hits: count(ram_hits),
            disk_hits: count(disk_hits),
            peer_hits: 0,
            misses: count(misses),
            ram_samples: ram.count(),
            ram_bytes: ram.used(),
            ram_limit: ram.limit(),
            disk_samples,
            disk_bytes,
            disk_limit,
            bytes_saved: count(bytes_saved),
            seconds_saved: count(nanos_saved) as f64 / 1e9,
            damaged: count(damaged),
            peer_failures: 0,
            note: disk.as_ref().and_then(Disk::note).or(full).unwrap_or_default(),
        }
    }
}

impl std::fmt::Debug for TieredCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TieredCache({})", self.identity)
    }
}

/// A sample that is being got from the disk.
struct Reading {
    place: OnDisk,
    inner: Arc<Inner>,
}

impl Stored for Reading {
    fn fetch(&mut self, pool: &Pool, wait: bool) -> Fetch {
        let Inner { ram, disk, counts, .. } = &*self.inner;
        let (cost, index) = (self.place.row.cost, self.place.row.index);
        match self.place.read(pool, wait) {
            (Attempt::WouldWait, _) => Fetch::WouldWait,
            (Attempt::Done, Some(sample)) => {
                counts.hit(&counts.disk_hits, cost);
                if ram.room() > self.place.row.length {
                    let tensors: Vec<_> = tensors(&sample).collect();
                    ram.put(index, &tensors, cost);
                }
                Fetch::Sample(sample)
            }
            (Attempt::Done, None) => {
                counts.damaged.fetch_add(1, Ordering::Relaxed);
                counts.misses.fetch_add(1, Ordering::Relaxed);
                if let Some(disk) = disk {
                    disk.forget(&self.place);
                }
                Fetch::Gone
            }
        }
    }

    fn bytes(&self) -> usize {
        self.place.row.length as usize
    }
}

/// The fields of a sample that was kept: tensors, all of them.
fn tensors(sample: &Sample) -> impl Iterator<Item = (Name, Tensor)> {
    sample.fields().filter_map(|(name, value)| match value {
        Value::Tensor(tensor) => Some((*name, tensor.clone())),
        Value::Deferred(_) => None,
    })
}
