//! Saving with the workers of a service: each writes shards to a folder that all of them share.
//!
//! ```text
//!  folder: table ◄── cut here        shard 7 ──► worker a ══► shard-000007.arrow
//!                                    shard 8 ──► worker b ══► shard-000008.arrow
//! ```
//!
//! A shard is a pure function of its number, and there only when it is whole. So a worker that is lost
//! costs the shards it was at, which others write; whoever saves may be lost as well: the next call
//! goes on with what is missing.

use crate::remote::{dataset_of, unanswered};
use feedline_core::{Blobs, Error, Rows, Tensor};
use feedline_engine::save::{Folder, SaveOptions, Saved, Shards, Writer, Written, save_with};
use feedline_ops::Pipeline;
use feedline_wire::control::{Control, DatasetId, Roster, Worker, WorkerKey};
use feedline_wire::stream::{Address, Client, ClientOptions, Next};
use feedline_wire::{Ask, JobId, SaveShard};
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

type Result<T> = feedline_core::Result<T>;

/// The most shards that are asked for at a time, of all workers together.
const AT_ONCE: usize = 64;

/// How often whoever waits looks whether it is still wanted.
const LOOK_UP: Duration = Duration::from_millis(100);

/// A worker that failed is left alone for so long, and longer each time, up to `LONGEST`.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(2);

/// Workers that say for so long that they cannot write a shard are believed.
const UNABLE: Duration = Duration::from_secs(10);

/// A dataset is registered again this often, so that it is not forgotten while it is saved.
const REGISTER: Duration = Duration::from_secs(600);

/// Saves all shards that are missing in a folder with the workers of a service. They must see the
/// folder at the same place, and be allowed to write there.
///
/// # Errors
///
/// As [`feedline_engine::save::save`]; or if there is no dispatcher, no worker for as long as
/// `patience` says, or none that may write there.
pub fn save(
    control: &Arc<dyn Control>,
    (shards, pipeline): (Shards, &Pipeline),
    blobs: &Blobs,
    folder: &Path,
    options: &SaveOptions<'_>,
    (stream, patience): (&ClientOptions, Duration),
) -> Result<Saved> {
    let dataset = dataset_of(pipeline, blobs);
    let roster = control.workers(0, patience.min(Duration::from_secs(10))).map_err(unanswered)?;
    let id = control.register(&dataset, blobs).map_err(unanswered)?;
    let fleet = Fleet {
        dataset: id,
        stream: ClientOptions { shared_memory: 0, ..stream.clone() },
        patience,
        seats: Mutex::default(),
        changed: Condvar::new(),
        closing: AtomicBool::new(false),
    };
    fleet.meet(&roster);
    std::thread::scope(|scope| {
        let follow = || {
            let (mut version, mut registered) = (roster.version, Instant::now());
            while !fleet.closing.load(Ordering::SeqCst) {
                // While the dispatcher is away, those who are known go on.
                match control.workers(version, LOOK_UP * 5) {
                    Ok(roster) => {
                        version = roster.version;
                        fleet.meet(&roster);
                    }
                    Err(_) => std::thread::sleep(LOOK_UP),
                }
                if registered.elapsed() > REGISTER {
                    let _ = control.register(&dataset, blobs);
                    registered = Instant::now();
                }
            }
        };
        std::thread::Builder::new()
            .name("save-roster".into())
            .spawn_scoped(scope, follow)
            .map_err(|error| Error::unavailable("a thread", error))?;
        let saved = save_with(shards, folder, options, &fleet);
        fleet.closing.store(true, Ordering::SeqCst);
        saved
    })
}

/// The workers, and who is at what.
struct Fleet {
    dataset: DatasetId,
    stream: ClientOptions,
    patience: Duration,
    seats: Mutex<HashMap<WorkerKey, Seat>>,
    /// A worker came, or has finished something.
    changed: Condvar,
    closing: AtomicBool,
}

struct Seat {
    worker: Worker,
    /// Shards that it is at.
    busy: usize,
    /// Not before this is it asked again.
    until: Instant,
    failures: u32,
    /// Why it writes nothing.
    refuses: Option<Error>,
}

/// How asking a worker for a shard ended without one.
enum Failed {
    /// The worker is gone.
    Elsewhere,
    /// It could not write the shard now.
    Unable(Error),
    /// This worker does not do such things.
    Refused(Error),
    /// All would come to the same.
    Everywhere(Error),
}

impl Fleet {
    fn lock(&self) -> MutexGuard<'_, HashMap<WorkerKey, Seat>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn meet(&self, roster: &Roster) {
        let mut seats = self.lock();
        let here = |key: &WorkerKey| roster.workers.iter().any(|one| one.key == *key);
        seats.retain(|key, _| here(key));
        for worker in roster.workers.iter().filter(|worker| !worker.draining) {
            seats.entry(worker.key).or_insert_with(|| Seat {
                worker: worker.clone(),
                busy: 0,
                until: Instant::now(),
                failures: 0,
                refuses: None,
            });
        }
        for worker in roster.workers.iter().filter(|worker| worker.draining) {
            seats.remove(&worker.key);
        }
        drop(seats);
        self.changed.notify_all();
    }

    /// Waits for a worker that has room. One shard keeps all cores of a worker busy, but for its
    /// beginning and its end.
    fn take(&self, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<Worker> {
        let started = Instant::now();
        let mut seats = self.lock();
        loop {
            let now = Instant::now();
            let room = |seat: &&mut Seat| {
                let most = (seat.worker.cores as usize / 4).clamp(2, 8);
                seat.refuses.is_none() && seat.until <= now && seat.busy < most
            };
            if let Some(seat) = seats.values_mut().filter(room).min_by_key(|seat| seat.busy) {
                seat.busy += 1;
                return Ok(seat.worker.clone());
            }
            let mut refusals = seats.values().map(|seat| seat.refuses.as_ref());
            if !seats.is_empty() && refusals.all(|refusal| refusal.is_some()) {
                let first = seats.values().find_map(|seat| seat.refuses.clone());
                return Err(first.unwrap_or(Error::Cancelled));
            }
            if seats.is_empty() && started.elapsed() > self.patience {
                let nobody = io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("none has come for {} s", self.patience.as_secs()),
                );
                return Err(Error::unavailable("a worker of the service", nobody));
            }
            let waited = self.changed.wait_timeout(seats, LOOK_UP);
            seats = waited.unwrap_or_else(PoisonError::into_inner).0;
            // Nobody else has to wait for what is told.
            drop(seats);
            if !progress(0, 0) {
                return Err(Error::Cancelled);
            }
            seats = self.lock();
        }
    }

    fn give_back(&self, worker: &Worker, failed: Option<&Failed>) {
        let mut seats = self.lock();
        if let Some(seat) = seats.get_mut(&worker.key) {
            seat.busy = seat.busy.saturating_sub(1);
            match failed {
                None => seat.failures = 0,
                Some(Failed::Everywhere(_)) => {}
                Some(Failed::Elsewhere | Failed::Unable(_)) => {
                    let pause = (PAUSE * (1 << seat.failures.min(8))).min(LONGEST);
                    (seat.until, seat.failures) = (Instant::now() + pause, seat.failures + 1);
                }
                Some(Failed::Refused(error)) => seat.refuses = Some(error.clone()),
            }
        }
        drop(seats);
        self.changed.notify_all();
    }

    fn ask(
        &self,
        worker: &Worker,
        folder: &str,
        shard: u64,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> std::result::Result<(), Failed> {
        let connect = |address: &String| {
            let address: Address = address.parse().ok()?;
            Client::connect(&address, self.stream.clone()).ok()
        };
        let Some(mut connection) = worker.addresses.iter().find_map(connect) else {
            return Err(Failed::Elsewhere);
        };
        let ask = Ask {
            job: JobId(0),
            dataset: self.dataset.clone(),
            part: None,
            seed: 0,
            epoch: 0,
            start: String::new(),
            rank: 0,
            world: 1,
            first: 0,
            steps: 0,
            from: 0,
            rounds: false,
            with_index: false,
            rows: false,
            relaxed: false,
            save: Some(SaveShard { folder: folder.to_owned(), shard }),
        };
        connection.request(&ask.encode()).map_err(|_| Failed::Elsewhere)?;
        loop {
            let (places, bytes) = match connection.next_within(LOOK_UP) {
                Ok(Next::End) => return Ok(()),
                Ok(Next::NotYet) => (0, 0),
                Ok(Next::Stretch(stretch)) => told(&stretch.rows),
                Err(_) if !connection.is_connected() => return Err(Failed::Elsewhere),
                Err(error @ (Error::Record { .. } | Error::Budget(_) | Error::Internal(_))) => {
                    return Err(Failed::Everywhere(error));
                }
                Err(error @ (Error::Unavailable { .. } | Error::Cancelled)) => {
                    return Err(Failed::Unable(error));
                }
                Err(error) => return Err(Failed::Refused(error)),
            };
            if !progress(places, bytes) {
                return Err(Failed::Everywhere(Error::Cancelled));
            }
        }
    }
}

/// Places and bytes that a worker says it has done.
fn told(rows: &Rows) -> (u64, u64) {
    let Rows::Batch(batch) = rows else { return (0, 0) };
    let number = |name: &str| {
        let bytes = batch.field(name).map(Tensor::data).and_then(|bytes| bytes.first_chunk());
        bytes.map_or(0, |bytes| u64::try_from(i64::from_le_bytes(*bytes)).unwrap_or(0))
    };
    (number("places"), number("bytes"))
}

impl Writer for Fleet {
    fn at_once(&self) -> usize {
        AT_ONCE
    }

    fn write(
        &self,
        shards: &Shards,
        folder: &Folder,
        shard: u64,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Written> {
        // Without links, which might lead elsewhere on another host.
        let path = std::fs::canonicalize(folder.path())
            .map_err(|error| Error::unavailable(folder.path().display().to_string(), error))?;
        let Some(text) = path.to_str() else {
            return Err(Error::Source(format!(
                "{} is no UTF-8, and cannot be named to workers",
                path.display()
            )));
        };
        let mut since: Option<Instant> = None;
        loop {
            let worker = self.take(progress)?;
            let asked = self.ask(&worker, text, shard, progress);
            self.give_back(&worker, asked.as_ref().err());
            match asked {
                Ok(()) => {
                    return shards.find(folder, shard).ok_or_else(|| {
                        Error::Source(format!(
                            "worker {} has written shard {shard}, and it is not in {text}: the folder \
                             must be the same place for workers and for whoever saves",
                            worker.name
                        ))
                    });
                }
                Err(Failed::Everywhere(error)) => return Err(error),
                // The disk may be full for all of them.
                Err(Failed::Unable(error)) => {
                    if since.get_or_insert_with(Instant::now).elapsed() > UNABLE {
                        return Err(error);
                    }
                }
                Err(Failed::Elsewhere | Failed::Refused(_)) => {}
            }
        }
    }
}
