//! The client on real threads: its core, the dispatcher's answers, and a stream for each window.
//!
//! ```text
//!  trainer ── next_within ──► ┌──────┐ ◄── control: requests, reports ──► dispatcher
//!                             │ core │ ◄── roster: who is there ────────► dispatcher
//!                             │      │ ◄── fetching: one thread a stream ► workers
//!                             └──────┘ ◄── ticking: time
//! ```
//!
//! The core decides, under one lock; threads only carry. A window's stream goes on for as long as
//! the core asks the same worker for what comes next, and waits while it does not ask.

mod carrying;
mod fetching;

use crate::{Action, Begin, Checkpoint, Client, Config, Error as CoreError};
use carrying::{meet, speak, tick};
use feedline_core::{Error, Pool, Result, Rows};
use feedline_wire::control::{Control, DatasetId, Report, Worker, WorkerKey};
use feedline_wire::stream::ClientOptions;
use feedline_wire::{
    Ask, Epoch, Fetch, JobId, Millis, Offset, Order, Refusal, Request, Streams, Window, WorkerId,
};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The most windows that are fetched together.
const MOST_JOINED: usize = 256;

/// The most windows that are held: the dispatcher grants no more.
const MOST_HELD: usize = 256;

/// How long the dispatcher takes to answer, at most, nearly always.
const SOON: Duration = Duration::from_millis(50);

/// The most steps that are handed over together, and how many bytes of them.
const TOGETHER: u64 = 64;
const SMALL: usize = 64 << 10;

/// What is fetched, and with how much memory.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What workers compute.
    pub dataset: DatasetId,
    /// The seed of all random choices.
    pub seed: u64,
    /// What an epoch consists of, if it is not the data once.
    pub streams: Option<Streams>,
    /// Whether batches carry the indices of their samples.
    pub with_index: bool,
    /// Whether a window is one stretch, whose batches are counted as they come.
    pub sorted: bool,
    /// Whether those batches are dealt to the clients in rounds.
    pub rounds: bool,
    /// Whether steps that other jobs are past may come empty.
    pub relaxed: bool,
    /// Bytes that may be received and not used.
    pub memory: usize,
    /// How connections to workers behave.
    pub stream: ClientOptions,
    /// What is done with a step as soon as it is here.
    pub finish: Option<Finisher>,
}

/// What is done with what a worker was asked for: the step's number, and its rows.
pub type Finishing = dyn Fn(&Ask, u64, Rows) -> Result<Rows> + Send + Sync;

/// Takes what workers send the rest of its way, on the thread that receives it.
#[derive(Clone)]
pub struct Finisher(pub Arc<Finishing>);

impl fmt::Debug for Finisher {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("Finisher")
    }
}

impl Settings {
    /// Whether windows that follow each other are steps that follow each other.
    fn joins(&self) -> bool {
        !self.sorted && self.streams.is_none()
    }
}

/// What one of the threads does until the client ends.
type Carrier = fn(&Arc<Shared>);

/// What the trainer gets.
#[derive(Debug)]
pub enum Next {
    /// One more step.
    Step(Step),
    /// The epoch has ended; asking again begins the next.
    EndOfEpoch(Epoch),
}

/// A step of an epoch.
#[derive(Debug)]
pub struct Step {
    /// The epoch.
    pub epoch: Epoch,
    /// The window.
    pub window: Window,
    /// Its place in the window.
    pub offset: Offset,
    /// What it holds.
    pub rows: Rows,
}

/// What a client has done since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Steps handed over.
    pub steps: u64,
    /// Samples in them.
    pub samples: u64,
    /// Their bytes.
    pub bytes: u64,
    /// For how long the trainer has waited.
    pub waited: Duration,
    /// Steps that are here and were not handed over.
    pub buffered: u64,
    /// Workers that can be reached.
    pub workers: usize,
    /// Streams that broke and were begun again elsewhere.
    pub failures: u64,
}

/// A client that runs.
pub struct Live {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    settings: Settings,
    control: Arc<dyn Control>,
    begun: Instant,
    closing: AtomicBool,
    inner: Mutex<Inner>,
    /// Something is there for the trainer.
    arrived: Condvar,
    /// Something changed for a stream.
    changed: Condvar,
    /// There is another stream to be served.
    work: Condvar,
    /// There is something to say to the dispatcher.
    speak: Condvar,
    /// Where payloads are received.
    pool: Pool,
}

struct Inner {
    client: Client<Result<Rows>>,
    order: Order,
    consumers: u32,
    /// Whether the core knows that the trainer waits.
    asked: bool,
    /// What the trainer is to get.
    outbox: VecDeque<Action<Result<Rows>>>,
    /// What the dispatcher is to be asked.
    request: Option<(u64, Request)>,
    workers: BTreeMap<WorkerId, Reachable>,
    numbers: HashMap<WorkerKey, WorkerId>,
    /// What is streamed, by epoch and window.
    streams: HashMap<(Epoch, Window), Stream>,
    opened: u64,
    /// Why workers that answered did not deliver.
    refusals: BTreeMap<WorkerId, Error>,
    /// The last trouble with any worker, for whoever waits in vain.
    trouble: Option<String>,
    /// What nobody can mend by waiting.
    failed: Option<Error>,
    totals: Totals,
    /// Bytes and steps that came, to tell how large a step is.
    came: (u64, u64),
    /// Since when, from how many steps on, and how many steps a second the trainer uses.
    pace: (Instant, u64, f64),
    /// How long a step takes that is waited for, at most, nearly always.
    slow: f64,
    fetchers: Vec<JoinHandle<()>>,
}

/// A worker, and what it is still to be asked for.
struct Reachable {
    worker: Worker,
    queue: VecDeque<Fetching>,
    idle: usize,
}

/// Windows that follow each other and are fetched together, each with the number of its stream.
struct Fetching {
    epoch: Epoch,
    windows: Vec<(Window, u64)>,
    /// Whether all of each is wanted, so that another can follow.
    whole: bool,
}

/// What became of a fetch.
enum Fetched {
    /// A stream goes on.
    GoesOn,
    /// It comes with others.
    Joined,
    /// Somebody has to serve it.
    Begins,
    /// Somebody has to serve it, and whoever did no longer does.
    BeginsAnew,
}

/// A window that is being fetched.
struct Stream {
    number: u64,
    worker: WorkerId,
    fetch: Fetch,
    /// The next offset that comes, and the one before which to stop.
    next: u64,
    until: u64,
    since: Instant,
}

impl Live {
    /// Begins.
    ///
    /// # Errors
    ///
    /// If no thread can be started.
    pub fn start(
        control: Arc<dyn Control>,
        settings: Settings,
        config: Config,
        begin: Begin,
    ) -> Result<Self> {
        let (order, consumers) = (config.description.order, config.consumers);
        let inner = Inner {
            client: Client::new(config, begin, 0),
            order,
            consumers,
            asked: false,
            outbox: VecDeque::new(),
            request: None,
            workers: BTreeMap::new(),
            numbers: HashMap::new(),
            streams: HashMap::new(),
            opened: 0,
            refusals: BTreeMap::new(),
            trouble: None,
            failed: None,
            totals: Totals::default(),
            came: (0, 0),
            pace: (Instant::now(), 0, 0.0),
            slow: 0.0,
            fetchers: Vec::new(),
        };
        let pool = Pool::new(settings.memory);
        let shared = Arc::new(Shared {
            settings,
            control,
            begun: Instant::now(),
            closing: AtomicBool::new(false),
            inner: Mutex::new(inner),
            arrived: Condvar::new(),
            changed: Condvar::new(),
            work: Condvar::new(),
            speak: Condvar::new(),
            pool,
        });
        let mut live = Self { shared, threads: Vec::new() };
        let carriers: [(&str, Carrier); 3] =
            [("client-control", speak), ("client-roster", meet), ("client-tick", tick)];
        for (name, carry) in carriers {
            let shared = Arc::clone(&live.shared);
            let thread = std::thread::Builder::new().name(name.into());
            let thread = thread.spawn(move || carry(&shared));
            live.threads.push(thread.map_err(|error| Error::unavailable("a thread", error))?);
        }
        let mut inner = live.shared.lock();
        live.shared.pump(&mut inner);
        drop(inner);
        Ok(live)
    }

    /// Waits for the next step or the end of the epoch, at most for so long. The step before counts
    /// as used from now on.
    ///
    /// # Errors
    ///
    /// If the pipeline fails, or the service cannot go on.
    pub fn next_within(&self, patience: Duration) -> Result<Option<Next>> {
        Ok(self.first_within(patience)?.map(|(_, next)| next))
    }

    /// As [`Live::next_within`], and takes along what else is here and small, but no more than `most`
    /// together. All of it but the last counts as used at once, so this is for who keeps account itself.
    /// False if nothing came.
    ///
    /// # Errors
    ///
    /// As [`Live::next_within`].
    pub fn some_within(
        &self,
        patience: Duration,
        most: u64,
        into: &mut VecDeque<Next>,
    ) -> Result<bool> {
        let Some((mut inner, mut next)) = self.first_within(patience)? else { return Ok(false) };
        let mut bytes = 0;
        for _ in 1..most.min(TOGETHER) {
            bytes += match &next {
                Next::Step(step) => step.rows.bytes(),
                Next::EndOfEpoch(_) => SMALL,
            };
            into.push_back(next);
            if bytes >= SMALL {
                return Ok(true);
            }
            self.shared.ask_for_next(&mut inner);
            // What went wrong is told when nothing else is left.
            let good = |out: &mut Action<_>| {
                matches!(out, Action::Deliver { batch: Ok(_), .. } | Action::EndOfEpoch(_))
            };
            let Some(out) = inner.outbox.pop_front_if(good) else { return Ok(true) };
            next = inner.hand_over(out)?;
        }
        into.push_back(next);
        Ok(true)
    }

    /// The next step or the end of the epoch, and what it was found in.
    fn first_within(&self, patience: Duration) -> Result<Option<(MutexGuard<'_, Inner>, Next)>> {
        let shared = &self.shared;
        let started = Instant::now();
        let mut inner = shared.lock();
        shared.ask_for_next(&mut inner);
        loop {
            if let Some(error) = &inner.failed {
                return Err(error.clone());
            }
            if let Some(out) = inner.outbox.pop_front() {
                inner.totals.waited += started.elapsed();
                let next = inner.hand_over(out)?;
                return Ok(Some((inner, next)));
            }
            let left = patience.saturating_sub(started.elapsed());
            if left.is_zero() {
                inner.totals.waited += started.elapsed();
                return Ok(None);
            }
            let waited = shared.arrived.wait_timeout(inner, left);
            inner = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Where the trainer stands, of which its last step is a part; `None` before the dispatcher has
    /// answered.
    #[must_use]
    pub fn checkpoint(&self) -> Option<Checkpoint> {
        self.shared.lock().client.checkpoint()
    }

    /// What was done so far.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let inner = self.shared.lock();
        Totals { buffered: inner.client.buffered(), workers: inner.workers.len(), ..inner.totals }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        self.shared.control.close();
        // Whoever is about to wait looks at `closing` under this lock.
        let fetchers = std::mem::take(&mut self.shared.lock().fetchers);
        self.shared.changed.notify_all();
        self.shared.work.notify_all();
        self.shared.speak.notify_all();
        for thread in self.threads.drain(..).chain(fetchers) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Millis {
        self.begun.elapsed().as_millis() as Millis
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// Wants one more step, unless one is wanted already.
    fn ask_for_next(self: &Arc<Self>, inner: &mut Inner) {
        if !inner.asked {
            inner.asked = true;
            let now = self.now();
            inner.client.next(now);
            self.pump(inner);
        }
    }

    /// Does what the core wants done.
    fn pump(self: &Arc<Self>, inner: &mut Inner) {
        while let Some(action) = inner.client.action() {
            match action {
                Action::Send { sequence, request } => {
                    inner.request = Some((sequence, request));
                    self.speak.notify_one();
                }
                Action::Fetch { worker, fetch } => {
                    match inner.fetch(worker, fetch, self.settings.joins()) {
                        Fetched::GoesOn => self.changed.notify_all(),
                        Fetched::Joined => {}
                        Fetched::Begins => self.work.notify_all(),
                        Fetched::BeginsAnew => {
                            self.work.notify_all();
                            self.changed.notify_all();
                        }
                    }
                }
                out @ (Action::Deliver { .. } | Action::EndOfEpoch(_) | Action::Fail(_)) => {
                    inner.outbox.push_back(out);
                    self.arrived.notify_one();
                }
            }
        }
        fetching::staff(self, inner);
    }

    fn report(&self, inner: &Inner) -> Option<Report> {
        let job = inner.client.job();
        let Totals { steps, samples, bytes, waited, .. } = inner.totals;
        (job != JobId(0)).then(|| Report {
            job,
            consumer: inner.client.consumer(),
            epoch: inner.client.epoch().0,
            steps,
            samples,
            bytes,
            waited: waited.as_micros() as u64,
            elapsed: self.begun.elapsed().as_micros() as u64,
            buffered: inner.client.buffered(),
        })
    }

    /// What a worker is asked for so that a window comes from an offset on, and those that follow it
    /// up to `last`.
    fn ask(&self, inner: &Inner, fetch: &Fetch, last: Window) -> Ask {
        let (start, windows) = inner.client.cut_of(fetch.epoch);
        let (window, from) = (fetch.window.0, fetch.from.0);
        let streams = self.settings.streams.map(|streams| (streams, streams.of(fetch.window)));
        // Where a rank or a stream has fewer steps, the worker ends the window earlier.
        let before = (last.0 - window).saturating_mul(windows.steps);
        let (rank, world, block, steps) = match inner.order {
            Order::Any => match streams {
                None => (0, 1, window, before.saturating_add(windows.steps_of(last))),
                Some((_, (_, own))) => (0, 1, own, windows.steps),
            },
            Order::Exact => {
                let world = u64::from(inner.consumers);
                (window % world, world, window / world, before.saturating_add(windows.steps))
            }
        };
        let (first, steps, from) = match self.settings.sorted {
            true => (block, 1, from),
            false => {
                let first = block.saturating_mul(windows.steps).saturating_add(from);
                (first, steps.saturating_sub(from), 0)
            }
        };
        Ask {
            job: fetch.job,
            dataset: self.settings.dataset.clone(),
            part: streams.and_then(|(streams, (stream, _))| streams.part(stream)),
            seed: match streams {
                None => self.settings.seed,
                Some((streams, (stream, _))) => streams.seed(self.settings.seed, stream),
            },
            epoch: fetch.epoch.0,
            start: match streams {
                None => start.to_owned(),
                Some((_, (stream, _))) => Streams::start_of(start, stream),
            },
            rank,
            world,
            first,
            steps,
            from,
            rounds: self.settings.rounds,
            with_index: self.settings.with_index,
            rows: self.settings.finish.is_some(),
            relaxed: self.settings.relaxed,
            save: None,
        }
    }
}

impl Inner {
    /// Takes up a fetch: lets the stream go on that stands there, or begins another.
    fn fetch(&mut self, worker: WorkerId, fetch: Fetch, joins: bool) -> Fetched {
        let until = fetch.from.0.saturating_add(fetch.most);
        let key = (fetch.epoch, fetch.window);
        if let Some(stream) = self.streams.get_mut(&key)
            && stream.worker == worker
            && stream.fetch.incarnation == fetch.incarnation
            && stream.next == fetch.from.0
        {
            (stream.until, stream.since) = (until, Instant::now());
            return Fetched::GoesOn;
        }
        self.opened += 1;
        let (number, next, since) = (self.opened, fetch.from.0, Instant::now());
        let stream = Stream { number, worker, fetch, next, until, since };
        let anew = self.streams.insert(key, stream).is_some();
        self.totals.failures += u64::from(anew);
        let begins = if anew { Fetched::BeginsAnew } else { Fetched::Begins };
        let Some(reachable) = self.workers.get_mut(&worker) else { return begins };
        let (_, windows) = self.client.cut_of(fetch.epoch);
        let whole = joins && until >= windows.steps_of(fetch.window);
        let follows = |last: &&mut Fetching| {
            let next = last.windows.last().map(|(window, _)| Window(window.0 + 1));
            last.whole && last.epoch == fetch.epoch && next == Some(fetch.window)
        };
        let last = reachable.queue.back_mut().filter(|_| fetch.from.0 == 0).filter(follows);
        match last.filter(|last| last.windows.len() < MOST_JOINED && !anew) {
            Some(last) => {
                last.windows.push((fetch.window, number));
                last.whole = whole;
                Fetched::Joined
            }
            None => {
                let windows = vec![(fetch.window, number)];
                reachable.queue.push_back(Fetching { epoch: fetch.epoch, windows, whole });
                begins
            }
        }
    }

    /// How much may be held ahead, by what steps have turned out to weigh.
    fn settle_ahead(&mut self, memory: usize) {
        let (bytes, steps) = self.came;
        let each = bytes.checked_div(steps).unwrap_or(1 << 20).max(64);
        let ahead = (memory as u64 / each).clamp(2, 1 << 16);
        let (since, from, rate) = &mut self.pace;
        let seconds = since.elapsed().as_secs_f64();
        if seconds > 0.02 {
            *rate = (self.totals.steps - *from) as f64 / seconds;
            (*since, *from) = (Instant::now(), self.totals.steps);
        }
        // Two for each worker, or as many as are used while the dispatcher answers.
        let (_, windows) = self.client.cut_of(self.client.epoch());
        let soon = (*rate * SOON.as_secs_f64()) as usize / windows.steps.max(1) as usize;
        self.client.set_ahead(ahead, soon.clamp(self.streams_ahead(), MOST_HELD));
    }

    /// How many streams there may be at a time.
    fn streams_ahead(&self) -> usize {
        (self.workers.len() * 2).clamp(2, 48)
    }

    fn hand_over(&mut self, out: Action<Result<Rows>>) -> Result<Next> {
        self.asked = false;
        match out {
            Action::Deliver { batch, epoch, window, offset } => {
                let rows = match batch {
                    Ok(rows) => rows,
                    Err(error) => {
                        self.failed = Some(error.clone());
                        return Err(error);
                    }
                };
                self.totals.steps += 1;
                self.totals.samples += rows.count() as u64;
                self.totals.bytes += rows.bytes() as u64;
                Ok(Next::Step(Step { epoch, window, offset, rows }))
            }
            Action::EndOfEpoch(epoch) => Ok(Next::EndOfEpoch(epoch)),
            Action::Fail(error) => {
                let last = error.is_final();
                let error = explained(error, self.trouble.as_deref());
                if last {
                    self.failed = Some(error.clone());
                }
                Err(error)
            }
            Action::Send { .. } | Action::Fetch { .. } => {
                Err(Error::Internal("the trainer was given what is not its".into()))
            }
        }
    }
}

/// What the trainer is told.
fn explained(error: CoreError, trouble: Option<&str>) -> Error {
    match error {
        CoreError::NoAnswer { what, waited } => {
            let last = trouble.map_or(String::new(), |trouble| format!("; last: {trouble}"));
            let message = format!("no batch for {} s{last}", waited / 1000);
            Error::unavailable(what, io::Error::new(io::ErrorKind::TimedOut, message))
        }
        CoreError::Refused(refusal @ (Refusal::Mismatch(_) | Refusal::RewoundTooFar { .. }))
        | CoreError::Refused(refusal @ Refusal::NotYours { .. }) => {
            Error::State(refusal.to_string())
        }
        other => Error::Service(other.to_string()),
    }
}
