//! The workers that are alive. Forgotten when they fall silent, and when the dispatcher ends.

use super::meter::{Counts, Meter};
use feedline_wire::JobId;
use feedline_wire::control::{Beat, Roster, Worker, WorkerKey};
use feedline_wire::status::WorkerStatus;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// There are at most so many workers.
const MOST_WORKERS: usize = 10_000;
/// A worker has at most so many addresses, works for so many jobs, and its texts are at most so long.
const MOST_ADDRESSES: usize = 16;
const MOST_JOBS: usize = 10_000;
const LONGEST_TEXT: usize = 512;

/// The workers that are alive.
#[derive(Debug)]
pub(crate) struct Workers {
    known: Mutex<BTreeMap<WorkerKey, Known>>,
    version: AtomicU64,
    /// Wakes those who wait for another version, in the order in which they came.
    news: Notify,
    timeout: Duration,
}

#[derive(Debug)]
struct Known {
    /// What it said last, except that it also drains when an operator says so.
    beat: Beat,
    drain: bool,
    heard: Instant,
    meter: Meter,
    /// CPU time for each job since the beat before, in microseconds.
    shares: Vec<(JobId, f64)>,
}

impl Workers {
    /// Versions begin at `version`, which differs from start to start.
    pub(crate) fn new(version: u64, timeout: Duration) -> Self {
        let (known, version, news) = (Mutex::default(), AtomicU64::new(version), Notify::new());
        Self { known, version, news, timeout }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<WorkerKey, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.version.fetch_add(1, Ordering::SeqCst);
        self.news.notify_waiters();
    }

    /// A worker says that it is alive. Tells whether it is to end.
    ///
    /// # Errors
    ///
    /// If it says too much, or there are too many; says which.
    pub(crate) fn beat(&self, mut beat: Beat) -> Result<bool, String> {
        let Worker { name, addresses, version, .. } = &beat.worker;
        let texts = addresses.iter().chain([name, version]);
        if texts.into_iter().any(|text| text.len() > LONGEST_TEXT) {
            return Err(format!("a worker's texts are at most {LONGEST_TEXT} bytes long"));
        }
        if addresses.len() > MOST_ADDRESSES || beat.jobs.len() > MOST_JOBS {
            return Err(format!(
                "a worker has at most {MOST_ADDRESSES} addresses and {MOST_JOBS} jobs"
            ));
        }
        let now = Instant::now();
        let counts = counts(&beat);
        let key = beat.worker.key;
        let mut known = self.known();
        let Some(worker) = known.get_mut(&key) else {
            if known.len() >= MOST_WORKERS {
                return Err(format!("there are {MOST_WORKERS} workers already"));
            }
            tracing::info!(worker = %key, name = beat.worker.name, "a worker has come");
            let meter = Meter::new(now, counts);
            known.insert(key, Known { beat, drain: false, heard: now, meter, shares: vec![] });
            drop(known);
            self.changed();
            return Ok(false);
        };
        worker.meter.update(now, counts);
        worker.heard = now;
        worker.shares = shares(&worker.beat, &beat);
        beat.worker.draining |= worker.drain;
        let changed = worker.beat.worker != beat.worker;
        worker.beat = beat;
        let drain = worker.drain;
        drop(known);
        if changed {
            self.changed();
        }
        Ok(drain)
    }

    /// Asks a worker to end. False if there is none.
    pub(crate) fn drain(&self, key: WorkerKey) -> bool {
        let mut known = self.known();
        let Some(worker) = known.get_mut(&key) else { return false };
        worker.drain = true;
        worker.beat.worker.draining = true;
        drop(known);
        tracing::info!(worker = %key, "a worker was asked to end");
        self.changed();
        true
    }

    /// Forgets workers that have fallen silent.
    pub(crate) fn tidy(&self) {
        let now = Instant::now();
        let mut known = self.known();
        let before = known.len();
        known.retain(|key, worker| {
            let alive = now.saturating_duration_since(worker.heard) < self.timeout;
            if !alive {
                tracing::info!(worker = %key, name = worker.beat.worker.name, "a worker has gone");
            }
            alive
        });
        let gone = known.len() < before;
        drop(known);
        if gone {
            self.changed();
        }
    }

    /// The workers now.
    pub(crate) fn roster(&self) -> Roster {
        // First the version: a change in between shows as one more later.
        let version = self.version.load(Ordering::SeqCst);
        let known = self.known();
        Roster { version, workers: known.values().map(|known| known.beat.worker.clone()).collect() }
    }

    /// The workers, as soon as their version is another, or when patience ends.
    pub(crate) async fn after(&self, known: u64, patience: Duration) -> Roster {
        let another = async {
            loop {
                let mut news = pin!(self.news.notified());
                // From here on no change is missed.
                news.as_mut().enable();
                if self.version.load(Ordering::SeqCst) != known {
                    return;
                }
                news.await;
            }
        };
        // Neither outcome matters: what is there is told.
        let _ = tokio::time::timeout(patience, another).await;
        self.roster()
    }

    /// How the workers stand, and how each one's time goes to jobs.
    pub(crate) fn status(&self) -> Vec<(WorkerStatus, Vec<(JobId, f64)>)> {
        let now = Instant::now();
        let status = |known: &Known| {
            let Beat { worker, busy, memory, connections, jobs } = known.beat.clone();
            let silent = now.saturating_duration_since(known.heard).as_millis();
            let silent_ms = u64::try_from(silent).unwrap_or(u64::MAX);
            let rates = known.meter.rates();
            let status = WorkerStatus { worker, silent_ms, busy, memory, connections, rates, jobs };
            (status, known.shares.clone())
        };
        self.known().values().map(status).collect()
    }
}

fn counts(beat: &Beat) -> Counts {
    beat.jobs.iter().fold(Counts::default(), |sum, job| Counts {
        steps: sum.steps.saturating_add(job.steps),
        samples: sum.samples.saturating_add(job.samples),
        bytes: sum.bytes.saturating_add(job.bytes),
    })
}

fn shares(before: &Beat, after: &Beat) -> Vec<(JobId, f64)> {
    let earlier: BTreeMap<JobId, u64> =
        before.jobs.iter().map(|done| (done.job, done.busy)).collect();
    let spent = |job, busy: u64| busy.saturating_sub(earlier.get(&job).copied().unwrap_or(0));
    after.jobs.iter().map(|done| (done.job, spent(done.job, done.busy) as f64)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use feedline_wire::control::Done;

    fn beat(key: u64, busy: u64) -> Beat {
        let worker = Worker {
            key: WorkerKey(key),
            name: format!("worker {key}"),
            addresses: vec!["10.0.0.1:7".into()],
            version: "1".into(),
            cores: 4,
            draining: false,
        };
        let job = JobId(7);
        let jobs = vec![Done { job, steps: busy, samples: busy, bytes: busy, shared: 0, busy }];
        Beat { worker, busy: 0.5, memory: 1, connections: 1, jobs }
    }

    #[test]
    fn versions_change_with_the_workers_and_not_with_what_they_do() {
        let workers = Workers::new(5, Duration::from_secs(60));
        let version = || workers.roster().version;
        assert_eq!(version(), 5);
        assert_eq!(workers.beat(beat(1, 0)), Ok(false));
        assert_eq!(version(), 6);
        assert_eq!(workers.beat(beat(1, 100)), Ok(false));
        assert_eq!(version(), 6);
        assert_eq!(workers.status()[0].1, [(JobId(7), 100.0)]);
        assert!(!workers.drain(WorkerKey(2)));
        assert!(workers.drain(WorkerKey(1)));
        assert!(workers.roster().workers[0].draining);
        assert_eq!(version(), 7);
        assert_eq!(workers.beat(beat(1, 200)), Ok(true), "it is told to end");
        assert_eq!(version(), 7, "which is known");
    }

    #[test]
    fn silent_workers_are_gone() {
        let workers = Workers::new(0, Duration::ZERO);
        workers.beat(beat(1, 0)).unwrap();
        workers.tidy();
        assert_eq!(workers.roster(), Roster { version: 2, workers: vec![] });
    }

    #[test]
    fn workers_that_say_too_much_are_refused() {
        let workers = Workers::new(0, Duration::from_secs(60));
        let mut long = beat(1, 0);
        long.worker.name = "n".repeat(LONGEST_TEXT + 1);
        assert!(workers.beat(long).unwrap_err().contains("at most 512"));
        let mut many = beat(1, 0);
        many.worker.addresses = vec!["a".into(); MOST_ADDRESSES + 1];
        assert!(workers.beat(many).unwrap_err().contains("16 addresses"));
        assert_eq!(workers.roster().workers, []);
    }
}
