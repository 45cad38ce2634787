//! The core with its journal: decides, writes down, applies, and answers when it is durable.
//!
//! ```text
//!  lock ─ decide ─ append ─ apply ─ unlock ─ wait for the commit ─ answer
//!  └────── microseconds, no disk ────────┘   └── shared by all who wait ──┘
//! ```

use super::Simulated;
use crate::{Event, Limits, Presence, Record, State, VERSION, decide, tidy};
use feedline_journal::{Disk, Entry, Error, Journal, Position, Torn};
use feedline_wire::control::DatasetId;
use feedline_wire::mutant::{Mutant, planted};
use feedline_wire::{ConsumerIndex, JobId, Millis, Refusal, Reply, Request};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

/// A snapshot is taken when this many bytes, and twice the last snapshot, were appended since.
const SNAPSHOT_AFTER: u64 = 4 << 20;

/// On a full disk a snapshot is tried again after so long.
const SNAPSHOT_PAUSE: Duration = Duration::from_secs(5);

/// What the dispatcher remembers, and how.
#[derive(Debug)]
pub(crate) struct Desk {
    core: Mutex<Core>,
    journal: Journal,
    limits: Limits,
    started: Instant,
    /// Why the dispatcher has to stop, once it has.
    failed: watch::Sender<Option<String>>,
    snapshots: Mutex<Snapshots>,
    simulated: Option<Arc<Simulated>>,
}

#[derive(Debug)]
struct Snapshots {
    /// How much is appended at least before one is taken.
    after: u64,
    /// How large the last one was.
    bytes: u64,
    /// When the next may be tried: on a full disk, not at once.
    next: Instant,
}

#[derive(Debug)]
struct Core {
    state: State,
    presence: Presence,
}

/// The dispatcher cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the dispatcher has stopped: {0}")]
pub(crate) struct Stopped(pub String);

/// What became of a request in the core.
enum Step {
    /// Answer when all up to here is durable; or at once.
    Answer(Option<Position>, Reply),
    /// So much waits for the disk that there must be room first.
    NoRoom(Position),
}

impl Desk {
    /// Opens the journal and replays it.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        folder: &Path,
        options: feedline_journal::Options,
        limits: Limits,
        simulated: Option<Arc<Simulated>>,
    ) -> feedline_journal::Result<(Self, Option<Torn>)> {
        let mut state = State::default();
        let mut snapshot_bytes = 0;
        let own_thread = options.own_thread && simulated.is_none();
        let options = feedline_journal::Options { version: VERSION, own_thread, ..options };
        let (journal, torn) = Journal::open_on(disk, folder, options, |entry| {
            match entry {
                Entry::Snapshot(snapshot) => {
                    state = postcard::from_bytes(snapshot.bytes)?;
                    snapshot_bytes = snapshot.bytes.len() as u64;
                }
                Entry::Record(record) => {
                    let record: Record = postcard::from_bytes(record.bytes)?;
                    state.apply(&record.into_event()?);
                }
            }
            Ok(())
        })?;
        let core = Core { state, presence: Presence::new(0) };
        let after = simulated.as_ref().map_or(SNAPSHOT_AFTER, |one| one.snapshot_after);
        let snapshots = Snapshots { after, bytes: snapshot_bytes, next: Instant::now() };
        let desk = Self {
            core: Mutex::new(core),
            journal,
            limits,
            started: Instant::now(),
            failed: watch::Sender::new(None),
            snapshots: Mutex::new(snapshots),
            simulated,
        };
        Ok((desk, torn))
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Milliseconds since the journal was opened.
    pub(crate) fn now(&self) -> Millis {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Looks at what is remembered.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&State, &Presence, Millis) -> T) -> T {
        let core = self.core();
        look(&core.state, &core.presence, self.now())
    }

    /// The journal.
    pub(crate) fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Whether there are no threads that could wait for the disk.
    pub(crate) fn is_simulated(&self) -> bool {
        self.simulated.is_some()
    }

    /// Tells when the dispatcher has to stop, and why.
    pub(crate) fn failed(&self) -> watch::Receiver<Option<String>> {
        self.failed.subscribe()
    }

    fn fail(&self, error: &Error) -> Stopped {
        self.stop(&error.to_string())
    }

    /// The dispatcher cannot go on. The first reason counts.
    pub(crate) fn stop(&self, reason: &str) -> Stopped {
        self.failed.send_if_modified(|failed| {
            let first = failed.is_none();
            if first {
                tracing::error!(reason, "the dispatcher cannot go on");
                *failed = Some(reason.to_owned());
            }
            first
        });
        Stopped(reason.to_owned())
    }

    /// Answers a request, when nothing that the answer tells can be lost.
    pub(crate) async fn ask(&self, request: &Request) -> Result<Reply, Stopped> {
        loop {
            let (position, reply) = match self.step(request)? {
                Step::Answer(None, reply) => return Ok(reply),
                Step::Answer(Some(position), reply) => (position, Some(reply)),
                Step::NoRoom(position) => (position, None),
            };
            match (self.durable(position).await, reply) {
                (Ok(()), Some(reply)) => return Ok(reply),
                (Ok(()), None) => {}
                (Err(error @ Error::Full { .. }), _) => return Ok(exhausted(&error)),
                (Err(error), _) => return Err(self.fail(&error)),
            }
        }
    }

    fn step(&self, request: &Request) -> Result<Step, Stopped> {
        let now = self.now();
        let mut core = self.core();
        let decision = decide(&core.state, &core.presence, &self.limits, now, request);
        let needs_sync = decision.needs_sync() && !planted(Mutant::ReplyBeforeJournal);
        let records: Vec<Vec<u8>> = decision.events.iter().map(encode).collect();
        let bytes = records.iter().map(Vec::len).sum();
        if let (Some(last), false) = (self.last(), self.journal.has_room(records.len(), bytes)) {
            return Ok(Step::NoRoom(last));
        }
        if let Some((job, consumer)) = decision.heard {
            core.presence.heard(job, consumer, now);
        }
        let mut reply = decision.reply;
        for (event, record) in decision.events.iter().zip(&records) {
            match self.record(&mut core, event, record) {
                Ok(()) => {}
                // What came before stays done; it is as if only that had been asked for.
                Err(error @ Error::Full { .. }) => {
                    reply = exhausted(&error);
                    break;
                }
                Err(error) => return Err(self.fail(&error)),
            }
        }
        Ok(Step::Answer(self.last().filter(|_| needs_sync), reply))
    }

    /// The newest record.
    fn last(&self) -> Option<Position> {
        self.journal.next().0.checked_sub(1).map(Position)
    }

    fn record(
        &self,
        core: &mut Core,
        event: &Event,
        record: &[u8],
    ) -> feedline_journal::Result<()> {
        match event.is_essential() {
            true => self.journal.append_essential(record)?,
            false => self.journal.append(record)?,
        };
        log(event);
        if let Some(simulated) = &self.simulated {
            (simulated.witness)(&core.state, event);
        }
        core.state.apply(event);
        if let Event::JobClosed { job, .. } = event {
            core.presence.forget(*job);
        }
        Ok(())
    }

    async fn durable(&self, position: Position) -> feedline_journal::Result<()> {
        if position < self.journal.durable() {
            return Ok(());
        }
        if let Some(simulated) = &self.simulated {
            // A simulated disk answers at once, so what it would take passes before.
            tokio::time::sleep((simulated.sync)()).await;
        }
        let (notice, noticed) = oneshot::channel();
        self.journal.when_durable(position, move |outcome| {
            // Whoever asked may be gone.
            let _ = notice.send(outcome);
        });
        noticed.await.unwrap_or_else(|_| {
            Err(Error::Invalid("the journal was closed before it could say".into()))
        })
    }

    /// Closes jobs of which nobody was heard for long. Says which.
    pub(crate) fn tidy(&self) -> Result<Vec<JobId>, Stopped> {
        let mut core = self.core();
        let events = tidy(&core.state, &core.presence, &self.limits, self.now());
        let mut closed = Vec::new();
        for event in &events {
            let record = encode(event);
            if !self.journal.has_room(1, record.len()) {
                // The next time is soon enough.
                break;
            }
            match self.record(&mut core, event, &record) {
                Ok(()) => {}
                Err(Error::Full { .. }) => break,
                Err(error) => return Err(self.fail(&error)),
            }
            if let Event::JobClosed { job, .. } = event {
                closed.push(*job);
            }
        }
        Ok(closed)
    }

    /// Somebody spoke for a job, beside the protocol. False if there is no such job or client.
    pub(crate) fn heard(&self, job: JobId, consumer: ConsumerIndex) -> bool {
        let now = self.now();
        let mut core = self.core();
        let known = core.state.job(job).is_some_and(|job| consumer.0 < job.consumers());
        if known {
            core.presence.heard(job, None, now);
        }
        known
    }

    /// Datasets that have jobs, and how many.
    pub(crate) fn datasets(&self) -> BTreeMap<DatasetId, u32> {
        let core = self.core();
        let mut datasets = BTreeMap::new();
        for (_, job) in core.state.jobs() {
            *datasets.entry(DatasetId::of(job.description())).or_insert(0) += 1;
        }
        datasets
    }

    /// Takes a snapshot if enough has changed, so that a restart has little to replay. Blocks.
    pub(crate) fn snapshot(&self) -> Result<(), Stopped> {
        let mut snapshots = self.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = Instant::now();
        let enough = snapshots.after.max(snapshots.bytes * 2);
        if self.journal.bytes_since_snapshot() < enough || begun < snapshots.next {
            return Ok(());
        }
        let (state, position) = {
            let core = self.core();
            (core.state.clone(), self.journal.next())
        };
        let bytes = postcard::to_stdvec(&state).expect("states can be written");
        match self.journal.snapshot(position, &bytes) {
            Ok(()) => {
                snapshots.bytes = bytes.len() as u64;
                tracing::debug!(bytes = bytes.len(), took = ?begun.elapsed(), "took a snapshot");
                Ok(())
            }
            // The old one is still there.
            Err(Error::Full { .. }) => {
                snapshots.next = begun + SNAPSHOT_PAUSE;
                Ok(())
            }
            Err(error) => Err(self.fail(&error)),
        }
    }
}

/// Says what has changed. What comes with every request is only traced.
fn log(event: &Event) {
    match event {
        Event::JobOpened { job, name, consumers, .. } => {
            tracing::info!(%job, %name, consumers, "a job was opened");
        }
        Event::TicketIssued { job, consumer, ticket, .. } => {
            tracing::debug!(%job, %consumer, %ticket, "a client asked for a seat");
        }
        Event::Restored { job, incarnation, consumer, consumers, start, .. } => {
            let epoch = start.epoch;
            tracing::info!(%job, %incarnation, %consumer, consumers, %epoch, "a job was restored");
        }
        Event::Attached { job, consumer, ticket, .. } => {
            tracing::info!(%job, %consumer, %ticket, "a client took its seat");
        }
        Event::Granted { job, consumer, windows, .. } => {
            tracing::trace!(%job, %consumer, windows = windows.len(), "granted windows");
        }
        Event::Used { job, consumer, windows } => {
            tracing::trace!(%job, %consumer, windows = windows.len(), "windows were used");
        }
        Event::Sealed { job, epoch } => tracing::info!(%job, %epoch, "an epoch has ended"),
        Event::Released { job, consumer } => {
            tracing::info!(%job, %consumer, "a client was released");
        }
        Event::JobClosed { job, reason } => tracing::info!(%job, ?reason, "a job has ended"),
    }
}

fn encode(event: &Event) -> Vec<u8> {
    postcard::to_stdvec(&Record::new(event.clone())).expect("events can be written")
}

fn exhausted(error: &Error) -> Reply {
    Reply::Refused(Refusal::Exhausted(error.to_string()))
}
