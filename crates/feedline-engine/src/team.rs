//! A team: the threads that work for one run or for several, and those that wait for storage.
//!
//! ```text
//!  run ─┐                    ┌─ worker ──(bytes in memory)──► sample task ──► row
//!  run ─┼─ queues ──slack──► ┤     │                              ▲
//!  run ─┘                    └─ …  └──(would wait)──► reader ─────┘ before anything new
//! ```
//!
//! Each run has a queue of its own, and a worker serves the run that can wait least: one consumer's
//! slow batch does not hold up another's.

use crate::budget;
use crate::fetch::Parked;
use crate::group::Chunk;
use crate::lane::{Lane, Queue};
use crate::tune::Active;
use crate::worker::{Worker, text_of};
use feedline_core::{Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A thread that does not come back from the store within this time is left behind.
const GRACE: Duration = Duration::from_secs(2);

/// Threads that prepare samples, for all runs that are started in it.
#[derive(Clone)]
pub struct Team {
    pub(crate) crew: Arc<Crew>,
}

impl Team {
    /// A team of `threads` threads; 0 for one per core this process may use.
    ///
    /// # Errors
    ///
    /// If no thread can be started.
    pub fn new(threads: usize) -> Result<Self> {
        let threads = budget::threads(threads);
        let shared = Arc::new(Shared::default());
        let mut workers = Vec::new();
        for number in 0..threads {
            let worker = Worker::new(Arc::clone(&shared));
            let thread = std::thread::Builder::new()
                .name(format!("feedline-{number}"))
                .spawn(move || worker.work());
            match thread {
                Ok(thread) => workers.push(thread),
                Err(_) if number > 0 => break,
                Err(error) => return Err(Error::unavailable("a thread", error)),
            }
        }
        shared.lock().active = Active::new(workers.len());
        Ok(Self { crew: Arc::new(Crew { shared, workers }) })
    }

    /// Number of threads that prepare samples.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.crew.threads()
    }
}

impl std::fmt::Debug for Team {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Team({} threads)", self.threads())
    }
}

/// The threads themselves, which end when nobody holds the team any more.
pub(crate) struct Crew {
    pub shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Crew {
    pub(crate) fn threads(&self) -> usize {
        self.workers.len()
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.shared.stop();
        for worker in self.workers.drain(..) {
            // A worker cannot panic out of its loop; if it did, there is nothing left to do here.
            let _ = worker.join();
        }
        let deadline = Instant::now() + GRACE;
        let mut state = self.shared.lock();
        while state.readers > state.stranded {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { break };
            let waited = self.shared.ended.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// What all threads of a team share.
#[derive(Default)]
pub(crate) struct Shared {
    state: Mutex<State>,
    /// Something to do for a worker.
    pub work: Condvar,
    /// Something to read for a reader.
    reading: Condvar,
    /// A task or a reader has ended, for whoever ends a run.
    pub ended: Condvar,
}

#[derive(Default)]
pub(crate) struct State {
    stop: bool,
    /// The runs' queues, with gaps where runs have ended.
    queues: Vec<Option<Box<Queue>>>,
    pub active: Active,
    /// Workers that have something to do.
    pub busy: usize,
    /// Threads that wait for storage, and how many of them have nothing to read.
    readers: usize,
    idle_readers: usize,
    /// Those of them that did not come back from the store before their run was ended.
    stranded: usize,
    /// Changes whenever a run begins or ends.
    pub changes: u64,
    /// Runs by urgency, made anew for each job.
    urgency: Vec<(u64, u64, usize)>,
}

/// Something to do for a worker.
pub(crate) enum Job {
    Start(Chunk),
    Resume(Box<Parked>),
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stop(&self) {
        self.lock().stop = true;
        self.work.notify_all();
        self.reading.notify_all();
    }

    /// Adds a run, and says by which number it is called.
    pub(crate) fn add(&self, queue: Queue) -> usize {
        let mut state = self.lock();
        let mut queue = queue;
        // It begins on a par with the others, not with a claim to what they were given before.
        queue.service = state.queues.iter().flatten().map(|q| q.service).min().unwrap_or(0);
        if !queue.lane.options.tune || queue.lane.options.threads > 0 {
            state.active.freeze();
        }
        state.changes += 1;
        let free = state.queues.iter().position(Option::is_none);
        let number = free.unwrap_or(state.queues.len());
        if free.is_none() {
            state.queues.push(None);
        }
        state.queues[number] = Some(Box::new(queue));
        drop(state);
        self.work.notify_all();
        number
    }

    /// Ends a run: what was not started is forgotten, what was is waited for.
    pub(crate) fn remove(&self, number: usize) {
        let deadline = Instant::now() + GRACE;
        let mut state = self.lock();
        if let Some(queue) = state.queue(number) {
            queue.lane.cancel.cancel();
            queue.clear();
        }
        while state.queue(number).is_some_and(|queue| queue.running > 0) {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { break };
            let waited = self.ended.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let queue = state.queues.get_mut(number).and_then(Option::take);
        state.stranded += queue.as_ref().map_or(0, |queue| queue.reading);
        state.changes += 1;
        // Workers forget what they kept for it; buffers are freed outside the lock.
        drop(state);
        drop(queue);
        self.work.notify_all();
    }

    /// Leaves samples to the readers, starting one more if all are busy.
    pub(crate) fn park(self: &Arc<Self>, state: &mut State, number: usize, parked: Vec<Parked>) {
        for parked in parked {
            let Some(queue) = state.queue(number) else { return };
            queue.to_read.push_back(parked);
            let wanted = |queue: &Queue| queue.reads.limit.min(queue.to_read.len() + queue.reading);
            let wanted: usize = state.queues.iter().flatten().map(|queue| wanted(queue)).sum();
            if state.idle_readers == 0 && state.readers - state.stranded < wanted {
                let shared = Arc::clone(self);
                let name = "feedline-read".to_owned();
                let thread = std::thread::Builder::new().name(name).spawn(move || shared.read());
                state.readers += usize::from(thread.is_ok());
            }
            self.reading.notify_one();
        }
        if state.readers == 0 {
            // No thread could be started: do it here rather than never.
            while let Some(queue) = state.queue(number)
                && let Some(mut parked) = queue.to_read.pop_front()
            {
                parked.read(&Arc::clone(&queue.lane));
                queue.have_read.push(parked);
            }
        }
    }

    /// A thread that waits for storage.
    fn read(self: Arc<Self>) {
        let mut state = self.lock();
        loop {
            if state.stop {
                break;
            }
            if let Some((number, mut parked, lane)) = state.next_read() {
                drop(state);
                let reading = catch_unwind(AssertUnwindSafe(|| parked.read(&lane)));
                if reading.is_err() {
                    parked.result = Err(Error::Internal("the store panicked".into()));
                }
                let bytes = parked.bytes() as u64;
                state = self.lock();
                let resting = state.busy < state.active.limit;
                if let Some(queue) = state.queue(number).filter(|q| Arc::ptr_eq(&q.lane, &lane)) {
                    queue.reading -= 1;
                    queue.counters.waited_bytes += bytes;
                    let starving = resting && queue.have_read.is_empty();
                    let read = queue.counters.waited_bytes;
                    if queue.reads.observe(Instant::now(), read, starving) {
                        self.reading.notify_all();
                    }
                    if lane.cancel.is_cancelled() {
                        queue.running -= 1;
                        self.ended.notify_all();
                    } else {
                        queue.have_read.push(parked);
                        self.work.notify_one();
                    }
                } else {
                    state.stranded -= 1;
                }
            } else {
                state.idle_readers += 1;
                state = self.reading.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle_readers -= 1;
            }
        }
        state.readers -= 1;
        self.ended.notify_all();
    }
}

impl State {
    pub(crate) fn stopped(&self) -> bool {
        self.stop
    }

    pub(crate) fn queue(&mut self, number: usize) -> Option<&mut Queue> {
        self.queues.get_mut(number).and_then(Option::as_deref_mut)
    }

    /// Whether any consumer waits.
    pub(crate) fn anyone_waits(&self) -> bool {
        self.queues.iter().flatten().any(|queue| queue.waiting)
    }

    /// Counts the time since `start`, in which a worker had nothing to do.
    pub(crate) fn idle(&mut self, start: Instant) {
        for queue in self.queues.iter_mut().flatten() {
            queue.counters.idle_nanos += start.max(queue.born).elapsed().as_nanos() as u64;
        }
    }

    /// The lanes that are alive, by number.
    pub(crate) fn lanes(&self) -> Vec<Option<Arc<Lane>>> {
        let lane = |queue: &Option<Box<Queue>>| queue.as_ref().map(|queue| Arc::clone(&queue.lane));
        self.queues.iter().map(lane).collect()
    }

    fn next_read(&mut self) -> Option<(usize, Parked, Arc<Lane>)> {
        for (number, queue) in self.queues.iter_mut().enumerate() {
            let Some(queue) = queue else { continue };
            if queue.reading < queue.reads.limit
                && let Some(parked) = queue.to_read.pop_front()
            {
                queue.reading += 1;
                return Some((number, parked, Arc::clone(&queue.lane)));
            }
        }
        None
    }

    /// Something to do, of the run that can wait least.
    pub(crate) fn next_job(&mut self) -> Option<(usize, Job)> {
        let mut order = std::mem::take(&mut self.urgency);
        order.clear();
        let alive = self.queues.iter().flatten().count();
        let now = (alive > 1).then(Instant::now);
        for (number, queue) in self.queues.iter().enumerate() {
            let Some(queue) = queue.as_ref().filter(|queue| !queue.lane.cancel.is_cancelled())
            else {
                continue;
            };
            let slack = now.map_or(0, |now| queue.slack(now));
            order.push((slack, queue.service, number));
        }
        order.sort_unstable();
        let job = self.first_job(&order);
        self.urgency = order;
        job
    }

    fn first_job(&mut self, order: &[(u64, u64, usize)]) -> Option<(usize, Job)> {
        for (_, _, number) in order {
            if let Some(queue) = self.queue(*number)
                && let Some(parked) = next_resumed(queue)
            {
                return Some((*number, Job::Resume(Box::new(parked))));
            }
        }
        if self.busy >= self.active.limit {
            return None;
        }
        for (_, _, number) in order.iter().copied() {
            let Some(queue) = self.queue(number) else { continue };
            let chunk = next_chunk(queue);
            if queue.waiting && queue.is_ready() {
                // An end of an epoch, or a group of padding alone, is ready as it is.
                queue.lane.done.notify_one();
            }
            if let Some(chunk) = chunk {
                return Some((number, Job::Start(chunk)));
            }
        }
        None
    }
}

/// The sample that was read and is needed first.
fn next_resumed(queue: &mut Queue) -> Option<Parked> {
    let parked = queue.have_read.iter().enumerate();
    let (at, _) = parked.min_by_key(|(_, parked)| (parked.chunk.group, parked.chunk.first_row))?;
    Some(queue.have_read.swap_remove(at))
}

/// The next rows of a run. A panic in dealing ends the run with an error instead of a thread.
fn next_chunk(queue: &mut Queue) -> Option<Chunk> {
    let dealing = catch_unwind(AssertUnwindSafe(|| {
        let mut chunk = queue.next_chunk();
        // The consumer waits and there is nothing to do: look further ahead.
        while chunk.is_none() && queue.waiting && queue.wants_more() && queue.ahead.grow() {
            chunk = queue.next_chunk();
        }
        chunk
    }));
    dealing.unwrap_or_else(|panic| {
        queue.fail(Error::Internal(format!("dealing failed: {}", text_of(&panic))));
        None
    })
}
