//! The threads: those that prepare samples, and those that wait for storage.
//!
//! ```text
//!  deal ──► worker ──(bytes in memory)──► sample task ──► row
//!              │                              ▲
//!              └──(would wait)──► reader ─────┘ ready, before anything new is dealt
//! ```

use crate::budget::Budget;
use crate::counters::{Counters, Tally};
use crate::deal::end_stretch;
use crate::group::{Chunk, Done, Group};
use feedline_core::{
    Address, Attempt, Buffer, Cursor, EpochSeed, Error, Extent, Pool, Position, Result, SampleSeed,
    Store, Workspace,
};
use feedline_ops::{Pipeline, Progress, Task};
use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// A task takes about this long, so that cheap samples are dealt many at a time.
const TASK_NANOS: u64 = 100_000;
/// Samples that cost less than this are timed one in [`TIMED_ONE_IN`].
const CHEAP_NANOS: u64 = 20_000;
const TIMED_ONE_IN: u64 = 256;

/// What all threads of a run share.
pub(crate) struct Shared {
    pub pipeline: Arc<Pipeline>,
    pub store: Arc<dyn Store>,
    pub options: crate::Options,
    pub budget: Budget,
    pub pool: Pool,
    pub stop: AtomicBool,
    /// Nanoseconds a sample takes, smoothed; 0 before the first.
    cost: AtomicU64,
    state: Mutex<State>,
    /// Something to do for a worker.
    pub work: Condvar,
    /// Something to read for a reader.
    pub reading: Condvar,
    /// Something to take for the consumer.
    pub done: Condvar,
}

/// A sample whose bytes had to be waited for.
struct Fetch {
    chunk: Chunk,
    address: Address,
    bytes: usize,
    result: Option<Result<Buffer>>,
}

pub(crate) struct State {
    /// Groups in the order of delivery, and the number of the first.
    pub open: VecDeque<Group>,
    pub first: u64,
    /// The epoch being dealt, from where, and the next stretch of this rank.
    position: Position,
    stretch: u64,
    epochs_left: Option<u64>,
    /// Which open group is being dealt.
    dealing: usize,
    to_read: VecDeque<Fetch>,
    have_read: VecDeque<Fetch>,
    /// Reads that are queued or under way.
    reads: usize,
    /// Threads that wait for storage, and how many of them have nothing to read.
    readers: Vec<JoinHandle<()>>,
    idle_readers: usize,
    /// Bytes that open groups hold, and bytes that were read for samples to come.
    open_bytes: usize,
    fetched_bytes: usize,
    pub counters: Counters,
}

impl Shared {
    pub(crate) fn new(
        pipeline: Arc<Pipeline>,
        store: Arc<dyn Store>,
        position: Position,
        options: crate::Options,
    ) -> Self {
        let budget = Budget::new(&pipeline, &options);
        let stretch = position.at.map_or(options.rank, |at| at.0);
        let state = State {
            open: VecDeque::new(),
            first: 0,
            position,
            stretch,
            epochs_left: options.epochs,
            dealing: 0,
            to_read: VecDeque::new(),
            have_read: VecDeque::new(),
            reads: 0,
            readers: Vec::new(),
            idle_readers: 0,
            open_bytes: 0,
            fetched_bytes: 0,
            counters: Counters::default(),
        };
        Self {
            pipeline,
            store,
            options,
            budget,
            pool: Pool::new(budget.pooled),
            stop: AtomicBool::new(false),
            cost: AtomicU64::new(0),
            state: Mutex::new(state),
            work: Condvar::new(),
            reading: Condvar::new(),
            done: Condvar::new(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks all threads to end after the sample they are at.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        drop(self.lock());
        self.work.notify_all();
        self.reading.notify_all();
        self.done.notify_all();
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl State {
    /// Opens the next group, if there is one and memory allows it. The head of the order is always
    /// admitted, however large, so that nothing can wait for itself.
    fn open_group(&mut self, shared: &Shared) -> bool {
        if self.epochs_left == Some(0) {
            return false;
        }
        if !self.open.is_empty() {
            let next = shared.budget.batch_bytes.unwrap_or(0);
            if self.open.len() >= shared.budget.groups
                || next.saturating_add(self.open_bytes + self.fetched_bytes) > shared.budget.memory
            {
                return false;
            }
        }
        let (pipeline, world) = (&shared.pipeline, shared.options.world);
        let (size, length) = (pipeline.stretch() as u64, pipeline.length().places());
        let end = end_stretch(pipeline, &self.position, world);
        loop {
            if self.stretch >= end {
                self.open.push_back(Group::end(self.position.epoch));
                self.position = Position::epoch(self.position.epoch.saturating_add(1));
                self.stretch = shared.options.rank;
                self.epochs_left = self.epochs_left.map(|left| left - 1);
                return true;
            }
            let mut span = self.position.stretch(self.stretch, size, length);
            if let Some((_, place)) = self.position.at.take_if(|at| at.0 == self.stretch) {
                span.start = place.max(span.start);
            }
            let number = self.stretch;
            self.stretch += world;
            let padded = pipeline.batch.as_ref().is_some_and(|batch| batch.pad);
            if span.length() == 0 && !(padded && pipeline.is_counted()) {
                continue;
            }
            let epoch = self.position.epoch;
            let group = Group::new(pipeline, &shared.pool, epoch, number, span)
                .unwrap_or_else(|error| Group::broken(epoch, error));
            self.open_bytes += group.bytes;
            self.open.push_back(group);
            return true;
        }
    }

    /// As [`State::next_chunk`]; a panic in it ends the run with an error instead of a thread.
    fn next_chunk_or_fail(&mut self, shared: &Shared) -> Option<Chunk> {
        let dealing = catch_unwind(AssertUnwindSafe(|| self.next_chunk(shared)));
        dealing.unwrap_or_else(|panic| {
            let error = Error::Internal(format!("dealing failed: {}", text_of(&panic)));
            self.open.push_back(Group::broken(self.position.epoch, error));
            self.epochs_left = Some(0);
            shared.done.notify_one();
            None
        })
    }

    /// The next rows to prepare.
    fn next_chunk(&mut self, shared: &Shared) -> Option<Chunk> {
        if self.reads >= shared.budget.reads {
            return None;
        }
        loop {
            while let Some(group) = self.open.get_mut(self.dealing) {
                if group.dealt < group.rows() {
                    let cost = shared.cost.load(Ordering::Relaxed);
                    let count = TASK_NANOS.checked_div(cost).unwrap_or(1).max(1) as usize;
                    return Some(group.deal(self.first + self.dealing as u64, count));
                }
                self.dealing += 1;
            }
            if !self.open_group(shared) {
                return None;
            }
            // An end of an epoch, or a group of padding alone, is ready as it is.
            if self.open.len() == 1 && self.open[0].is_ready() {
                shared.done.notify_one();
            }
        }
    }

    /// Takes the head off, once it is ready.
    pub(crate) fn pop(&mut self) -> Option<Group> {
        if !self.open.front()?.is_ready() {
            return None;
        }
        let group = self.open.pop_front()?;
        self.open_bytes -= group.bytes;
        self.first += 1;
        self.dealing = self.dealing.saturating_sub(1);
        Some(group)
    }

    /// Puts the head back.
    pub(crate) fn put_back(&mut self, group: Group) {
        self.open_bytes += group.bytes;
        self.open.push_front(group);
        self.first -= 1;
        self.dealing += 1;
    }

    /// Whether all epochs were dealt and delivered.
    pub(crate) fn is_over(&self) -> bool {
        self.open.is_empty() && self.epochs_left == Some(0)
    }

    fn finish(&mut self, group: u64, done: Vec<Done>) -> bool {
        let Some(at) = group.checked_sub(self.first) else { return false };
        let Some(group) = self.open.get_mut(at as usize) else { return false };
        let before = group.bytes;
        for row in done {
            group.finish_row(row);
        }
        self.open_bytes += group.bytes - before;
        at == 0 && group.is_ready()
    }
}

/// One thread that prepares samples.
pub(crate) struct Worker {
    shared: Arc<Shared>,
    workspace: Workspace,
    cursor: Cursor,
    tally: Tally,
    seen: u64,
}

impl Worker {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let workspace = shared.pipeline.workspace(shared.pool.clone(), false);
        let cursor = Cursor::new(EpochSeed { seed: shared.options.seed, epoch: 0 });
        Self { shared, workspace, cursor, tally: Tally::default(), seen: 0 }
    }

    pub(crate) fn work(mut self) {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        loop {
            if shared.stopped() {
                return;
            }
            if let Some(fetch) = state.have_read.pop_front() {
                drop(state);
                let (group, bytes) = (fetch.chunk.group, fetch.bytes);
                let start = Instant::now();
                let done = vec![self.fetched(fetch)];
                self.tally.busy_nanos += start.elapsed().as_nanos() as u64;
                state = shared.lock();
                state.fetched_bytes -= bytes;
                self.report(&mut state, group, done);
            } else if let Some(chunk) = state.next_chunk_or_fail(&shared) {
                // Others may find more to do: the group may hold more rows.
                shared.work.notify_one();
                drop(state);
                let group = chunk.group;
                let (done, fetches) = self.chunk(chunk);
                state = shared.lock();
                if !fetches.is_empty() {
                    self.hand_over(&mut state, fetches);
                }
                self.report(&mut state, group, done);
            } else {
                let start = Instant::now();
                state = shared.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.counters.idle_nanos += start.elapsed().as_nanos() as u64;
            }
        }
    }

    fn report(&mut self, state: &mut State, group: u64, done: Vec<Done>) {
        if state.finish(group, done) {
            self.shared.done.notify_one();
        }
        state.counters.add(&mut self.tally, &mut self.workspace.times);
    }

    /// Leaves samples to the readers, starting one more if all are busy.
    fn hand_over(&self, state: &mut State, fetches: Vec<Fetch>) {
        for fetch in fetches {
            state.fetched_bytes += fetch.bytes;
            state.reads += 1;
            state.to_read.push_back(fetch);
            if state.idle_readers < state.to_read.len()
                && state.readers.len() < self.shared.budget.reads
            {
                let shared = Arc::clone(&self.shared);
                let name = "feedline-read".to_owned();
                let thread = std::thread::Builder::new().name(name).spawn(move || read(&shared));
                state.readers.extend(thread);
            }
            self.shared.reading.notify_one();
        }
        if state.readers.is_empty() {
            // No thread could be started: do it here rather than never.
            while let Some(mut fetch) = state.to_read.pop_front() {
                fetch.result = Some(fetch_bytes(&self.shared, fetch.address));
                state.reads -= 1;
                state.have_read.push_back(fetch);
            }
        }
    }

    /// Prepares the rows of a chunk. Those whose bytes would have to be waited for come back.
    fn chunk(&mut self, mut chunk: Chunk) -> (Vec<Done>, Vec<Fetch>) {
        let shared = Arc::clone(&self.shared);
        if self.cursor.seed.epoch != chunk.epoch {
            self.cursor = Cursor::new(EpochSeed { seed: shared.options.seed, epoch: chunk.epoch });
        }
        let start = Instant::now();
        let (mut done, mut fetches) =
            (Vec::with_capacity(chunk.places.length() as usize), Vec::new());
        let mut at = 0;
        while at < chunk.places.length() as usize {
            if shared.stopped() {
                break;
            }
            self.begin_sample();
            let place = chunk.places.start + at as u64;
            let find = AssertUnwindSafe(|| shared.pipeline.address(place, &mut self.cursor));
            let address = match catch_unwind(find) {
                Ok(address) => address,
                Err(panic) => {
                    let error = format!("no sample for place {place}: {}", text_of(&panic));
                    let (row, result) = (chunk.first_row + at, Err(Error::Internal(error)));
                    done.push(Done { row, index: 0, result });
                    at += 1;
                    continue;
                }
            };
            match self.try_fetch(address) {
                Ok(Fetched::Bytes(bytes)) => {
                    let row = self.sample(&mut chunk, at, address, bytes);
                    done.push(row);
                    at += 1;
                }
                Ok(Fetched::WouldWait(bytes)) => {
                    let mut single = chunk.split_off(at);
                    let rest = single.split_off(1);
                    fetches.push(Fetch { chunk: single, address, bytes, result: None });
                    self.tally.reads_waited += 1;
                    (chunk, at) = (rest, 0);
                }
                Err(error) => {
                    let row = chunk.first_row + at;
                    done.push(Done { row, index: address.index, result: Err(error) });
                    at += 1;
                }
            }
        }
        let nanos = start.elapsed().as_nanos() as u64;
        self.tally.busy_nanos += nanos;
        if let Some(each) = nanos.checked_div(done.len() as u64) {
            let before = shared.cost.load(Ordering::Relaxed);
            let smoothed = if before == 0 { each } else { before - before / 8 + each / 8 };
            shared.cost.store(smoothed.max(1), Ordering::Relaxed);
        }
        (done, fetches)
    }

    /// Finishes a sample whose bytes were waited for.
    fn fetched(&mut self, mut fetch: Fetch) -> Done {
        self.begin_sample();
        if self.cursor.seed.epoch != fetch.chunk.epoch {
            let seed = self.shared.options.seed;
            self.cursor = Cursor::new(EpochSeed { seed, epoch: fetch.chunk.epoch });
        }
        let address = fetch.address;
        match fetch.result.take() {
            Some(Ok(bytes)) => {
                self.tally.reads += 1;
                self.tally.bytes_read += bytes.len() as u64;
                self.sample(&mut fetch.chunk, 0, address, Some(bytes))
            }
            Some(Err(error)) => {
                Done { row: fetch.chunk.first_row, index: address.index, result: Err(error) }
            }
            None => {
                let error = Error::Internal("a sample was handed back without its bytes".into());
                Done { row: fetch.chunk.first_row, index: address.index, result: Err(error) }
            }
        }
    }

    /// Decides whether the next sample is timed.
    fn begin_sample(&mut self) {
        self.seen += 1;
        let costly = self.shared.cost.load(Ordering::Relaxed) >= CHEAP_NANOS;
        self.workspace.timing =
            self.shared.options.counters && (costly || self.seen.is_multiple_of(TIMED_ONE_IN));
    }

    fn try_fetch(&mut self, address: Address) -> Result<Fetched> {
        let shared = &self.shared;
        let Some(extent) = shared.pipeline.source.locate(address.index) else {
            return Ok(Fetched::Bytes(None));
        };
        check_record(shared, address, extent)?;
        let start = self.workspace.timing.then(Instant::now);
        let mut buffer = shared.pool.take(extent.length as usize)?;
        let origin = || shared.pipeline.source.origin(address.index);
        let attempt = shared.store.try_read(extent, &mut buffer);
        let attempt = attempt.map_err(|error| error.at(origin, address.index, "read"))?;
        if attempt == Attempt::WouldWait {
            return Ok(Fetched::WouldWait(buffer.len()));
        }
        if let Some(start) = start {
            self.tally.read_time.nanos += start.elapsed().as_nanos() as u64;
            self.tally.read_time.samples += 1;
        }
        self.tally.reads += 1;
        self.tally.bytes_read += extent.length;
        Ok(Fetched::Bytes(Some(buffer.freeze())))
    }

    /// One sample through all steps and into its row. A panic in a step is an error of its sample.
    fn sample(
        &mut self,
        chunk: &mut Chunk,
        at: usize,
        address: Address,
        bytes: Option<Buffer>,
    ) -> Done {
        let (row, index) = (chunk.first_row + at, address.index);
        let work = AssertUnwindSafe(|| self.steps(chunk, at, address, bytes));
        let result = catch_unwind(work).unwrap_or_else(|panic| {
            let text = text_of(&panic);
            let origin = self.shared.pipeline.source.origin(index);
            Err(Error::Internal(format!("a step panicked on {origin} (index {index}): {text}")))
        });
        self.tally.samples += 1;
        Done { row, index, result }
    }

    fn steps(
        &mut self,
        chunk: &mut Chunk,
        at: usize,
        address: Address,
        bytes: Option<Buffer>,
    ) -> Result<Vec<(usize, feedline_core::Tensor)>> {
        let pipeline = &self.shared.pipeline;
        let Address { index, visit } = address;
        let seed = SampleSeed { epoch: self.cursor.seed, source: 0, index, visit, output: 0 };
        let mut task = Task::new(pipeline, address, bytes, seed)?;
        while let Progress::Reads(field) = task.advance(pipeline, &mut self.workspace)? {
            let cut = task.wants(field).expect("x");
            let mut buffer = self.shared.pool.take(cut.length())?;
            self.shared.store.read_cut(&cut, &mut 0, &mut buffer)?;
            task.supply(field, buffer.freeze());
        }
        let sample = task.into_sample();
        let start = self.workspace.timing.then(Instant::now);
        let last = pipeline.maps.len();
        let before = self.workspace.times[last].nanos;
        let mut context = pipeline.finish(seed, &mut self.workspace);
        let mut loose = Vec::new();
        for (number, (_, mut value)) in sample.into_fields().enumerate() {
            if let Some(cut) = value.wants() {
                let mut buffer = self.shared.pool.take(cut.length())?;
                self.shared.store.read_cut(&cut, &mut 0, &mut buffer)?;
                value.supply(buffer.freeze());
            }
            let written = match &mut chunk.columns[number] {
                Some(rows) => value.write(rows.row(at), &mut context),
                None => value.into_tensor(&mut context).map(|tensor| loose.push((number, tensor))),
            };
            written.map_err(|e| e.at(|| pipeline.source.origin(index), index, "batch"))?;
        }
        if let Some(start) = start {
            // Deferred work was charged to its own steps and taken off here.
            let charged = before.wrapping_sub(self.workspace.times[last].nanos);
            let nanos = (start.elapsed().as_nanos() as u64).saturating_sub(charged);
            self.workspace.times[last] = feedline_core::StepTime::default();
            self.tally.write_time.nanos += nanos;
            self.tally.write_time.samples += 1;
        }
        Ok(loose)
    }
}

/// Records beyond this are refused before memory is asked for.
const LARGEST_RECORD: u64 = 4 << 30;

fn check_record(shared: &Shared, address: Address, extent: Extent<'_>) -> Result<()> {
    if extent.length <= LARGEST_RECORD {
        return Ok(());
    }
    let reason = format!("{} bytes; a record has at most {LARGEST_RECORD}", extent.length);
    let origin = || shared.pipeline.source.origin(address.index);
    Err(Error::record(reason).at(origin, address.index, "read"))
}

/// What a panic said.
fn text_of(panic: &Box<dyn Any + Send>) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("unknown")
}

enum Fetched {
    Bytes(Option<Buffer>),
    WouldWait(usize),
}

fn fetch_bytes(shared: &Shared, address: Address) -> Result<Buffer> {
    let source = &shared.pipeline.source;
    let Some(extent) = source.locate(address.index) else {
        return Err(Error::Internal("nothing to read was left to a reader".into()));
    };
    let mut buffer = shared.pool.take(extent.length as usize)?;
    let read = shared.store.read(extent, &mut buffer);
    read.map_err(|error| error.at(|| source.origin(address.index), address.index, "read"))?;
    Ok(buffer.freeze())
}

/// A thread that waits for storage.
fn read(shared: &Shared) {
    let mut state = shared.lock();
    loop {
        if shared.stopped() {
            break;
        }
        if let Some(mut fetch) = state.to_read.pop_front() {
            drop(state);
            let read = AssertUnwindSafe(|| fetch_bytes(shared, fetch.address));
            fetch.result = Some(
                catch_unwind(read)
                    .unwrap_or_else(|_| Err(Error::Internal("the store panicked".into()))),
            );
            state = shared.lock();
            state.reads -= 1;
            state.have_read.push_back(fetch);
            shared.work.notify_one();
        } else {
            state.idle_readers += 1;
            state = shared.reading.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle_readers -= 1;
        }
    }
}

/// Waits until the last reader has ended; they were asked to.
pub(crate) fn join_readers(shared: &Shared) {
    let readers = std::mem::take(&mut shared.lock().readers);
    for reader in readers {
        // A reader cannot panic out of its loop; if it did, there is nothing left to do here.
        let _ = reader.join();
    }
}
