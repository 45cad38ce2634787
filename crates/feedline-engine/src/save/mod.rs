//! Saving an epoch to files, so that it can be read instead of being computed again.
//!
//! ```text
//!  places of the epoch ──table──► shard 0 │ shard 1 │ …        each a file, each written by anyone
//!                                    │
//!                WindowRun ──rows──► .shard….tmp ──sync, rename──► shard-000000.arrow
//! ```
//!
//! What a shard holds is a pure function of (plan, seed, epoch, its places), and a file appears under
//! its name only when it is whole. So whoever sees the folder can write any shard, twice does no
//! harm, and going on after a crash is to write the shards that are missing. The table, which
//! says how places are cut into shards, is written before the first shard and never changed but for
//! the note that all of them are there.

mod folder;
mod shard;
mod shards;

pub use folder::Folder;
pub use shard::Written;
pub use shards::{ShardSize, Shards};

use crate::{Options, Team};
use feedline_core::{Cancel, Error, Policy, Pool, Result};
use feedline_ops::plain::check_budget;
use feedline_ops::sink::Table;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Parameters of saving. None of them changes what is saved.
#[derive(Clone, Default)]
pub struct SaveOptions<'a> {
    /// Threads, memory and reads; other options do not matter here.
    pub run: Options,
    /// Ends the work.
    pub cancel: Cancel,
    /// Told of progress now and then, from any thread.
    pub progress: Option<&'a (dyn Fn(&SaveProgress) + Sync)>,
}

/// How far saving has come, with what earlier calls and other processes did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SaveProgress {
    /// Shards that are there.
    pub shards_done: u64,
    /// Shards in all.
    pub shards: u64,
    /// Places that are done.
    pub places_done: u64,
    /// Places in all.
    pub places: u64,
    /// Bytes that were written by this call.
    pub bytes: u64,
}

/// What was saved.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Saved {
    /// Rows of all shards.
    pub rows: u64,
    /// Bytes of all shards.
    pub bytes: u64,
    /// Number of shards.
    pub shards: u64,
    /// Shards that this call wrote; the others were there, or another process wrote them.
    pub written: u64,
    /// Bad samples that were left out.
    pub skipped: u64,
    /// How long it took.
    pub seconds: f64,
}

/// Whoever computes shards and puts them in place.
pub trait Writer: Sync {
    /// How many shards are written at a time, at most.
    fn at_once(&self) -> usize;

    /// Writes a shard. `progress` is told of places and bytes, and says whether to go on.
    ///
    /// # Errors
    ///
    /// As [`Shards::write`].
    fn write(
        &self,
        shards: &Shards,
        folder: &Folder,
        shard: u64,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Written>;
}

/// Writes shards with threads of this process.
struct Here<'a> {
    run: &'a Options,
    team: Team,
    pool: Pool,
}

impl Writer for Here<'_> {
    fn at_once(&self) -> usize {
        (self.team.threads() / 4).clamp(2, 8)
    }

    fn write(
        &self,
        shards: &Shards,
        folder: &Folder,
        shard: u64,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Written> {
        shards.write(folder, shard, &self.team, &self.pool, self.run, progress)
    }
}

/// Saves all shards that are missing in a folder, which is made if there is none.
///
/// The folder's own table counts, if it has one of the same pipeline: its shards stay as they were
/// cut.
///
/// # Errors
///
/// If the folder belongs to something else or cannot be written, a sample is bad and the plan does
/// not leave it out, or it was cancelled. Whatever is whole stays, and the next call goes on.
pub fn save(shards: Shards, folder: &Path, options: &SaveOptions<'_>) -> Result<Saved> {
    let team = Team::new(options.run.threads)?;
    let pool = Pool::new(options.run.memory.saturating_add(16 << 20));
    save_with(shards, folder, options, &Here { run: &options.run, team, pool })
}

/// As [`save`], with somebody else who writes the shards.
///
/// # Errors
///
/// As [`save`].
pub fn save_with(
    shards: Shards,
    folder: &Path,
    options: &SaveOptions<'_>,
    writer: &dyn Writer,
) -> Result<Saved> {
    let started = Instant::now();
    let folder = Folder::prepare(folder)?;
    let shards = shards.settle(&folder)?;
    folder.remove_leftovers();
    let job = Saving {
        shards: &shards,
        folder: &folder,
        options,
        writer,
        left: Mutex::default(),
        failed: Mutex::default(),
        stop: AtomicBool::new(false),
        done: AtomicU64::new(0),
        places: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
        skipped: AtomicU64::new(0),
        written: AtomicU64::new(0),
    };
    job.all()?;
    let table = complete(&shards, &folder)?;
    Ok(Saved {
        rows: table.rows.unwrap_or(0),
        bytes: table.bytes.unwrap_or(0),
        shards: table.shards,
        written: job.written.load(Ordering::Relaxed),
        skipped: table.skipped.map_or(0, |skipped| skipped.len() as u64),
        seconds: started.elapsed().as_secs_f64(),
    })
}

/// One call of [`save`].
struct Saving<'a> {
    shards: &'a Shards,
    folder: &'a Folder,
    options: &'a SaveOptions<'a>,
    writer: &'a dyn Writer,
    left: Mutex<VecDeque<u64>>,
    /// The failure of the lowest shard.
    failed: Mutex<Option<(u64, Error)>>,
    stop: AtomicBool,
    done: AtomicU64,
    places: AtomicU64,
    bytes: AtomicU64,
    skipped: AtomicU64,
    written: AtomicU64,
}

impl Saving<'_> {
    fn all(&self) -> Result<()> {
        let table = self.shards.table();
        let mut left = VecDeque::new();
        for number in 0..table.shards {
            match self.shards.find(self.folder, number) {
                Some(there) => self.count(number, &there, 0),
                None => left.push_back(number),
            }
        }
        // Processes that save the same at once begin at different ends.
        let first = u64::from(std::process::id()).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        if !left.is_empty() {
            let length = left.len();
            left.rotate_left(first as usize % length);
        }
        let writers = self.writer.at_once().min(left.len());
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) = left;
        self.tell(0);
        std::thread::scope(|scope| {
            for _ in 1..writers.max(1) {
                let spawned = std::thread::Builder::new()
                    .name("feedline-save".into())
                    .spawn_scoped(scope, || self.work());
                if spawned.is_err() {
                    break;
                }
            }
            self.work();
        });
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner).take();
        match failed {
            Some((_, error)) => Err(error),
            None if self.options.cancel.is_cancelled() => Err(Error::Cancelled),
            None => Ok(()),
        }
    }

    /// Writes shards until none is left.
    fn work(&self) {
        while !self.ended() {
            let next = self.left.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(number) = next else { return };
            match self.shard(number) {
                // Somebody has said why.
                Ok(()) | Err(Error::Cancelled) => {}
                Err(error) => {
                    let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
                    if failed.as_ref().is_none_or(|(first, _)| number < *first) {
                        *failed = Some((number, error));
                    }
                    self.stop.store(true, Ordering::Relaxed);
                }
            }
        }
    }

    fn ended(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.options.cancel.is_cancelled()
    }

    fn shard(&self, number: u64) -> Result<()> {
        // Another process may have been here.
        if let Some(there) = self.shards.find(self.folder, number) {
            self.count(number, &there, 0);
            return Ok(());
        }
        let mut told = 0;
        let mut progress = |places: u64, bytes: u64| {
            told += places;
            self.places.fetch_add(places, Ordering::Relaxed);
            self.tell(bytes);
            !self.ended()
        };
        let written = self.writer.write(self.shards, self.folder, number, &mut progress)?;
        self.written.fetch_add(1, Ordering::Relaxed);
        self.count(number, &written, told);
        self.tell(0);
        check_skipped(self.shards, self.skipped.load(Ordering::Relaxed), &written)
    }

    /// Counts a shard that is there; `told` of its places were counted before.
    fn count(&self, number: u64, written: &Written, told: u64) {
        let places = self.shards.places_of(number);
        self.places.fetch_add(places.saturating_sub(told), Ordering::Relaxed);
        self.skipped.fetch_add(written.skipped.len() as u64, Ordering::Relaxed);
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    fn tell(&self, bytes: u64) {
        let bytes = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let Some(tell) = self.options.progress else { return };
        let table = self.shards.table();
        tell(&SaveProgress {
            shards_done: self.done.load(Ordering::Relaxed),
            shards: table.shards,
            places_done: self.places.load(Ordering::Relaxed).min(table.places),
            places: table.places,
            bytes,
        });
    }
}

/// Whether so many bad samples are still within what the plan allows.
fn check_skipped(shards: &Shards, skipped: u64, last: &Written) -> Result<()> {
    let (Policy::Skip { count, share, .. }, Some(bad)) = (shards.policy(), last.skipped.last())
    else {
        return Ok(());
    };
    let error = Error::record(&bad.reason).at(|| bad.origin.clone(), bad.index, "save");
    let places = feedline_core::Length::Finite(shards.table().places);
    check_budget(skipped, *count, *share, places, &error)
}

/// Notes that all shards are there, and what they hold together.
fn complete(shards: &Shards, folder: &Folder) -> Result<Table> {
    let mut table = shards.table().clone();
    let (mut rows, mut bytes, mut skipped) = (0, 0, Vec::new());
    for number in 0..table.shards {
        let Some(written) = shards.find(folder, number) else {
            return Err(Error::Source(format!(
                "shard {number} of {} was written and is gone or damaged; save it again",
                folder.path().display()
            )));
        };
        rows += written.rows;
        bytes += written.bytes;
        skipped.extend(written.skipped);
    }
    // Shards that were there before count as well.
    let all = Written { skipped, ..Written::default() };
    check_skipped(shards, all.skipped.len() as u64, &all)?;
    let skipped = all.skipped;
    shards.quarantine(&skipped)?;
    table.complete = true;
    (table.rows, table.bytes, table.skipped) = (Some(rows), Some(bytes), Some(skipped));
    if folder.table()?.as_ref() != Some(&table) {
        folder.write_table(&table, true)?;
    }
    Ok(table)
}
