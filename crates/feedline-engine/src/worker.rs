//! A thread that prepares samples: all steps of one, and then the next.

use crate::counters::Tally;
use crate::fetch::{Fetched, Half, Parked, Reading, Stage, room_for, try_record};
use crate::group::{Chunk, Done};
use crate::lane::Lane;
use crate::predict::Features;
use crate::ready::Claim;
use crate::team::{Job, Shared, State};
use feedline_core::{
    Address, Attempt, Buffer, Cost, Cursor, Error, Fetch, Found, Result, Sample, SampleSeed,
    StepTime, Tensor, Value, Workspace, most_held,
};
use feedline_ops::{Progress, Task};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Instant;

/// Samples that cost less than this are timed one in [`TIMED_ONE_IN`].
const CHEAP_NANOS: u64 = 20_000;
const TIMED_ONE_IN: u64 = 256;

/// One thread that prepares samples.
pub(crate) struct Worker {
    shared: Arc<Shared>,
    /// What is kept for each run, by the run's number.
    desks: Vec<Option<Desk>>,
    changes: u64,
}

/// What a worker keeps for one run.
struct Desk {
    lane: Arc<Lane>,
    workspace: Workspace,
    cursor: Cursor,
    tally: Tally,
    seen: u64,
    /// What the current sample took before `since`, where samples are kept.
    cost: Cost,
    since: Instant,
}

/// What came of a job.
#[derive(Default)]
struct Outcome {
    group: u64,
    done: Vec<Done>,
    parked: Vec<Parked>,
    /// Whether the task goes on elsewhere, or is over.
    over: bool,
    features: Option<Features>,
    learnt: Option<(Vec<StepTime>, u64, usize)>,
}

impl Worker {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, desks: Vec::new(), changes: 0 }
    }

    pub(crate) fn work(mut self) {
        settle_in();
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        loop {
            if state.stopped() {
                return;
            }
            if self.changes != state.changes {
                self.changes = state.changes;
                let lanes = state.lanes();
                drop(state);
                self.keep_only(&lanes);
                state = shared.lock();
                continue;
            }
            let Some((number, job)) = state.next_job() else {
                let start = Instant::now();
                state = shared.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle(start);
                continue;
            };
            let Some(lane) = state.queue(number).map(|queue| Arc::clone(&queue.lane)) else {
                continue;
            };
            state.busy += 1;
            if state.busy < state.active.limit {
                // Others may find more to do.
                shared.work.notify_one();
            }
            drop(state);
            let desk = desk(&mut self.desks, number, &lane);
            let start = Instant::now();
            let outcome = desk.job(job);
            let nanos = start.elapsed().as_nanos() as u64;
            desk.tally.busy_nanos += nanos;
            state = report(&shared, desk, number, outcome, nanos);
            state.busy -= 1;
        }
    }

    /// Forgets what was kept for runs that have ended.
    fn keep_only(&mut self, lanes: &[Option<Arc<Lane>>]) {
        for (number, desk) in self.desks.iter_mut().enumerate() {
            let alive = lanes.get(number).and_then(Option::as_ref);
            if !matches!((&desk, alive), (Some(desk), Some(lane)) if Arc::ptr_eq(&desk.lane, lane))
            {
                *desk = None;
            }
        }
    }
}

/// Tells the run what became of a job.
fn report<'a>(
    shared: &'a Arc<Shared>,
    desk: &mut Desk,
    number: usize,
    outcome: Outcome,
    nanos: u64,
) -> MutexGuard<'a, State> {
    let lane = Arc::clone(&desk.lane);
    let Outcome { group, done, parked, over, features, learnt } = outcome;
    let mut state = shared.lock();
    let Some(queue) = state.queue(number).filter(|queue| Arc::ptr_eq(&queue.lane, &lane)) else {
        return state;
    };
    if let (Some(features), Some((times, total, bytes))) = (&features, &learnt) {
        queue.predictor.learn(features, times, *total, *bytes);
    }
    queue.service = queue.service.saturating_add(nanos);
    queue.counters.add(&mut desk.tally, &mut desk.workspace.times);
    if over {
        // Rows that were parked are tasks of their own from here on.
        queue.running += parked.len();
        queue.ended(features.as_ref());
    }
    if lane.cancel.is_cancelled() {
        queue.running -= parked.len();
        shared.ended.notify_all();
        return state;
    }
    let (mut wakes, claims) = queue.finish(group, done);
    if queue.ready.is_some() {
        drop(state);
        let mut claims = claims;
        claims.iter_mut().for_each(Claim::copy);
        state = shared.lock();
        if let Some(queue) = state.queue(number).filter(|queue| Arc::ptr_eq(&queue.lane, &lane)) {
            queue.copied(&claims);
            wakes |= queue.waiting && queue.is_ready();
        } else {
            return state;
        }
    }
    if !parked.is_empty() {
        shared.park(&mut state, number, parked);
    }
    if wakes {
        lane.done.notify_one();
    }
    state
}

/// The desk for a run, made if there is none.
fn desk<'a>(desks: &'a mut Vec<Option<Desk>>, number: usize, lane: &Arc<Lane>) -> &'a mut Desk {
    if desks.len() <= number {
        desks.resize_with(number + 1, || None);
    }
    let desk = &mut desks[number];
    if desk.as_ref().is_some_and(|desk| !Arc::ptr_eq(&desk.lane, lane)) {
        *desk = None;
    }
    desk.get_or_insert_with(|| {
        let mut workspace = lane.pipeline.workspace(lane.pool.clone(), false);
        workspace.cancel = lane.cancel.clone();
        let (cursor, tally) = (Cursor::new(lane.seed(0)), Tally::default());
        let (cost, since) = (Cost::default(), Instant::now());
        Desk { lane: Arc::clone(lane), workspace, cursor, tally, seen: 0, cost, since }
    })
}

/// Tells the system what kind of thread this is. Nothing depends on it but time.
fn settle_in() {
    #[cfg(target_os = "linux")]
    {
        // Timed waits end when they should, not up to 50 µs later.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        // A batch thread does not push aside the thread that wakes it: that is the consumer, which
        // has a batch in its hands and should get on with its training step.
        let parameters = libc::sched_param { sched_priority: 0 };
        // SAFETY: the parameters outlive the call, which concerns the calling thread alone.
        unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameters) };
    }
}

impl Desk {
    fn job(&mut self, job: Job) -> Outcome {
        match job {
            Job::Start(chunk) => self.start(chunk),
            Job::Resume(parked) => self.resume(*parked),
        }
    }

    /// Prepares the rows of a chunk. Those whose bytes would have to be waited for are parked.
    fn start(&mut self, mut chunk: Chunk) -> Outcome {
        let lane = Arc::clone(&self.lane);
        self.at_epoch(chunk.epoch);
        let start = Instant::now();
        let features = chunk.features.take();
        let _ = most_held();
        let mut outcome = Outcome { group: chunk.group, over: true, ..Outcome::default() };
        self.workspace.gathers = chunk.count > 1;
        let mut gathered = Vec::new();
        let mut at = 0;
        while at < chunk.count && !lane.cancel.is_cancelled() {
            self.begin_sample();
            let place = chunk.place(at);
            let find = AssertUnwindSafe(|| lane.pipeline.address(place, &mut self.cursor));
            let address = match catch_unwind(find) {
                Ok(address) => address,
                Err(panic) => {
                    let error = format!("no sample for place {place}: {}", text_of(&panic));
                    let (row, result) = (chunk.first_row + at, Err(Error::Internal(error)));
                    outcome.done.push(Done { row, index: 0, result });
                    at += 1;
                    continue;
                }
            };
            match self.first_steps(&mut chunk, at, address) {
                Ok(done) => {
                    outcome.done.push(done);
                    at += 1;
                }
                Err(stage) => {
                    let mut single = chunk.split_off(at);
                    let rest = single.split_off(1);
                    self.leave(single, address, stage, &mut gathered, &mut outcome);
                    (chunk, at) = (rest, 0);
                }
            }
        }
        self.together(gathered, &mut outcome);
        self.workspace.gathers = false;
        let once = std::mem::take(&mut self.workspace.once_nanos);
        let nanos = (start.elapsed().as_nanos() as u64).saturating_sub(once);
        if let Some(each) = nanos.checked_div(outcome.done.len() as u64) {
            self.smooth_cost(each);
        }
        let held = most_held();
        match (outcome.parked.last_mut(), features) {
            // A row by itself is one task, wherever it goes on.
            (Some(parked), Some(features)) => {
                parked.times = self.workspace.times.clone();
                (parked.nanos, parked.held) = (nanos, held);
                parked.chunk.features = Some(features);
                outcome.over = false;
            }
            (_, features) => {
                if features.is_some() {
                    outcome.learnt = Some((self.workspace.times.clone(), nanos, held));
                }
                outcome.features = features;
            }
        }
        outcome
    }

    /// Leaves a row where it waits: for bytes, or for others.
    fn leave(
        &mut self,
        chunk: Chunk,
        address: Address,
        stage: Stage,
        gathered: &mut Vec<(Chunk, Task, Cost)>,
        outcome: &mut Outcome,
    ) {
        let stage = match stage {
            Stage::Gathered(task) => return gathered.push((chunk, *task, self.cost_so_far())),
            stage => stage,
        };
        self.tally.reads_waited += 1;
        let (result, times, nanos, held) = (Ok(()), Vec::new(), 0, 0);
        let cost = self.cost_so_far();
        outcome.parked.push(Parked { chunk, address, stage, result, times, nanos, held, cost });
    }

    /// Takes rows through the steps that take several at once, and on from there.
    fn together(&mut self, mut gathered: Vec<(Chunk, Task, Cost)>, outcome: &mut Outcome) {
        let lane = Arc::clone(&self.lane);
        while let Some(step) = gathered.iter().map(|(_, task, _)| task.step()).min() {
            if lane.cancel.is_cancelled() {
                return;
            }
            let (now, later): (Vec<_>, Vec<_>) =
                gathered.into_iter().partition(|(_, task, _)| task.step() == step);
            gathered = later;
            let start = Instant::now();
            let (mut rows, mut tasks) = (Vec::new(), Vec::new());
            for (chunk, task, cost) in now {
                rows.push((chunk, task.address, cost));
                tasks.push(task);
            }
            let count = tasks.len().max(1) as u64;
            let workspace = &mut self.workspace;
            let call = AssertUnwindSafe(|| Task::map_many(&lane.pipeline, tasks, workspace));
            let results = catch_unwind(call).unwrap_or_else(|panic| {
                let error = Error::Internal(format!("a step panicked: {}", text_of(&panic)));
                rows.iter().map(|_| Err(error.clone())).collect()
            });
            let each = start.elapsed().as_nanos() as u64 / count;
            for ((mut chunk, address, cost), result) in rows.into_iter().zip(results) {
                self.cost = Cost { work: cost.work + each, ..cost };
                self.since = Instant::now();
                let went = match result {
                    Ok(task) => self.caught(address, |desk| desk.steps(&mut chunk, 0, task)),
                    Err(error) => Ok(Err(error)),
                };
                match went {
                    Ok(result) => {
                        let (row, index) = (chunk.first_row, address.index);
                        self.tally.samples += 1;
                        outcome.done.push(Done { row, index, result });
                    }
                    Err(stage) => self.leave(chunk, address, stage, &mut gathered, outcome),
                }
            }
        }
    }

    /// Goes on with a sample whose bytes were waited for.
    fn resume(&mut self, parked: Parked) -> Outcome {
        let Parked { mut chunk, address, stage, result, times, nanos, held, cost } = parked;
        self.at_epoch(chunk.epoch);
        self.begin_sample();
        self.cost = cost;
        let start = Instant::now();
        let _ = most_held();
        let features = chunk.features.take();
        let mut outcome = Outcome { group: chunk.group, over: true, ..Outcome::default() };
        let lane = Arc::clone(&self.lane);
        let read = result.map_err(|error| lane.pipeline.at(error, address.index, "read"));
        let went = match read {
            Ok(()) => self.caught(address, |desk| desk.go_on(&mut chunk, 0, address, stage)),
            Err(error) if stage.is_shown() => {
                self.caught(address, |desk| desk.make_in_part(&mut chunk, 0, address, error))
            }
            Err(error) => Ok(Err(error)),
        };
        let once = std::mem::take(&mut self.workspace.once_nanos);
        let spent = (start.elapsed().as_nanos() as u64).saturating_sub(once) + nanos;
        let held = held.max(most_held());
        let mut all = self.workspace.times.clone();
        for (sum, time) in all.iter_mut().zip(&times) {
            sum.nanos = sum.nanos.wrapping_add(time.nanos);
        }
        match went {
            Ok(result) => {
                let (row, index) = (chunk.first_row, address.index);
                self.tally.samples += 1;
                outcome.done.push(Done { row, index, result });
                self.smooth_cost(spent);
                outcome.learnt = features.as_ref().map(|_| (all, spent, held));
                outcome.features = features;
            }
            Err(stage) => {
                self.tally.reads_waited += 1;
                chunk.features = features;
                let (result, times, nanos, cost) = (Ok(()), all, spent, self.cost_so_far());
                let parked = Parked { chunk, address, stage, result, times, nanos, held, cost };
                outcome.parked.push(parked);
                outcome.over = false;
            }
        }
        outcome
    }

    fn at_epoch(&mut self, epoch: u64) {
        if self.cursor.seed.epoch != epoch {
            self.cursor = Cursor::new(self.lane.seed(epoch));
        }
    }

    fn smooth_cost(&self, nanos: u64) {
        let before = self.lane.cost.load(Ordering::Relaxed);
        // One that was interrupted does not count for many.
        let nanos = if before == 0 { nanos } else { nanos.min(before * 8) };
        let smoothed = match before {
            0 => nanos,
            // The first calls of a function may import what it needs: that is soon forgotten.
            _ if self.lane.gathers() && nanos < before / 4 => before / 2,
            _ => before - before / 8 + nanos / 8,
        };
        self.lane.cost.store(smoothed.max(1), Ordering::Relaxed);
    }

    /// Decides whether the next sample is timed.
    fn begin_sample(&mut self) {
        self.seen += 1;
        let costly = self.lane.cost.load(Ordering::Relaxed) >= CHEAP_NANOS;
        self.workspace.timing =
            self.lane.options.counters && (costly || self.seen.is_multiple_of(TIMED_ONE_IN));
        if self.lane.cache.is_some() {
            (self.cost, self.since) = (Cost::default(), Instant::now());
        }
    }

    /// What the current sample has taken by now, where samples are kept.
    fn cost_so_far(&self) -> Cost {
        let work = self.cost.work + self.since.elapsed().as_nanos() as u64;
        Cost { work, ..self.cost }
    }

    /// A sample from its start: finished, bad, or left where it waits.
    fn first_steps(
        &mut self,
        chunk: &mut Chunk,
        at: usize,
        address: Address,
    ) -> Result<Done, Stage> {
        let (row, index) = (chunk.first_row + at, address.index);
        let went = self.caught(address, |desk| {
            let found = desk.lane.cache.as_ref().map(|cache| cache.find(index));
            match found.unwrap_or(Found::Missing) {
                Found::Here(sample) => desk.go_on_with(chunk, at, address, sample),
                Found::Stored(mut stored) => match stored.fetch(&desk.lane.pool, false) {
                    Fetch::Sample(sample) => desk.go_on_with(chunk, at, address, sample),
                    Fetch::WouldWait => Err(Stage::Stored { stored, found: None }),
                    Fetch::Gone => desk.make(chunk, at, address, true),
                },
                Found::Missing => desk.make(chunk, at, address, true),
            }
        });
        let result = went?;
        self.tally.samples += 1;
        Ok(Done { row, index, result })
    }

    /// A sample that has to be made, from its record on, and perhaps shown to be kept.
    fn make(
        &mut self,
        chunk: &mut Chunk,
        at: usize,
        address: Address,
        show: bool,
    ) -> Result<Row, Stage> {
        match self.record(address) {
            Ok(Fetched::Bytes(bytes)) => self.begin(chunk, at, address, bytes, show),
            Ok(Fetched::WouldWait(buffer)) => Err(Stage::Record { buffer, show }),
            Err(error) => Ok(Err(error)),
        }
    }

    /// A sample that cannot be made whole to be kept. What later steps need of it may be good all the
    /// same: whether a sample is bad must not depend on whether it is to be kept.
    fn make_in_part(
        &mut self,
        chunk: &mut Chunk,
        at: usize,
        address: Address,
        error: Error,
    ) -> Result<Row, Stage> {
        if error.is_record() { self.make(chunk, at, address, false) } else { Ok(Err(error)) }
    }

    /// A sample that was kept, from there on.
    fn go_on_with(
        &mut self,
        chunk: &mut Chunk,
        at: usize,
        address: Address,
        sample: Sample,
    ) -> Result<Row, Stage> {
        let after = self.lane.pipeline.cache.as_ref().map_or(0, |point| point.after);
        let task = Task::resume(address, self.seed_of(address), sample, after);
        self.steps(chunk, at, task)
    }

    fn seed_of(&self, address: Address) -> SampleSeed {
        let Address { index, visit } = address;
        SampleSeed { epoch: self.cursor.seed, source: 0, index, visit, output: 0 }
    }

    /// A panic in a step is an error of its sample.
    fn caught<T>(
        &mut self,
        address: Address,
        work: impl FnOnce(&mut Self) -> Result<Result<T>, Stage>,
    ) -> Result<Result<T>, Stage> {
        catch_unwind(AssertUnwindSafe(|| work(self))).unwrap_or_else(|panic| {
            let text = text_of(&panic);
            let index = address.index;
            let origin = self.lane.pipeline.source.origin(index);
            let error = format!("a step panicked on {origin} (index {index}): {text}");
            Ok(Err(Error::Internal(error)))
        })
    }

    fn record(&mut self, address: Address) -> Result<Fetched> {
        let start = self.workspace.timing.then(Instant::now);
        let fetched = try_record(&self.lane, address)?;
        if let Fetched::Bytes(Some(bytes)) = &fetched {
            self.count_read(start, bytes.len());
        }
        Ok(fetched)
    }

    fn count_read(&mut self, start: Option<Instant>, bytes: usize) {
        if let Some(start) = start {
            self.tally.read_time.nanos += start.elapsed().as_nanos() as u64;
            self.tally.read_time.samples += 1;
        }
        self.tally.reads += 1;
        self.tally.bytes_read += bytes as u64;
        self.cost.bytes += bytes as u64;
    }

    fn begin(
        &mut self,
        chunk: &mut Chunk,
        at: usize,
        address: Address,
        bytes: Option<Buffer>,
        show: bool,
    ) -> Result<Row, Stage> {
        match Task::new(&self.lane.pipeline, address, bytes, self.seed_of(address)) {
            Ok(mut task) => {
                let cache = self.lane.cache.as_ref().filter(|_| show);
                if cache.is_some_and(|cache| cache.wants(address.index)) {
                    task.show();
                }
                self.steps(chunk, at, task)
            }
            Err(error) => Ok(Err(error)),
        }
    }

    /// Goes on where a sample was left.
    fn go_on(
        &mut self,
        chunk: &mut Chunk,
        at: usize,
        address: Address,
        stage: Stage,
    ) -> Result<Row, Stage> {
        match stage {
            Stage::Stored { found: Some(sample), .. } => {
                self.go_on_with(chunk, at, address, *sample)
            }
            Stage::Stored { found: None, .. } => self.make(chunk, at, address, true),
            Stage::Record { buffer, show } => {
                self.count_read(None, buffer.len());
                self.begin(chunk, at, address, Some(buffer.freeze()), show)
            }
            Stage::Field { mut task, field, reading } => {
                if let Some(buffer) = reading.buffer {
                    self.count_read(None, buffer.len());
                    task.supply(field, buffer.freeze());
                }
                self.steps(chunk, at, *task)
            }
            Stage::Gathered(task) => self.steps(chunk, at, *task),
            Stage::Value { mut sample, reading } => {
                let read = sample.current.as_ref().and_then(Value::wants).map(|cut| cut.length());
                self.count_read(None, read.unwrap_or(0));
                if let (Some(value), Some(buffer)) = (&mut sample.current, reading.buffer) {
                    if value.in_place() {
                        sample.filled = Some(buffer);
                    } else {
                        value.supply(buffer.freeze());
                    }
                }
                sample.read = true;
                self.values(chunk, at, *sample)
            }
        }
    }

    /// The steps of a sample, from where it is.
    fn steps(&mut self, chunk: &mut Chunk, at: usize, mut task: Task) -> Result<Row, Stage> {
        let lane = Arc::clone(&self.lane);
        loop {
            let field = match task.advance(&lane.pipeline, &mut self.workspace) {
                Ok(Progress::Finished) => break,
                Ok(Progress::Reads(field)) => field,
                Ok(Progress::Keeps) => match task.settle(&lane.pipeline, &mut self.workspace) {
                    Ok(fields) => {
                        let cost = self.cost_so_far();
                        if let Some(cache) = &lane.cache {
                            cache.keep(task.address.index, &fields, cost);
                        }
                        continue;
                    }
                    Err(error) => return self.make_in_part(chunk, at, task.address, error),
                },
                Ok(Progress::Gathers) => return Err(Stage::Gathered(Box::new(task))),
                Err(error) => return Ok(Err(error)),
            };
            let index = task.address.index;
            let bad = |error: Error| Ok(Err(lane.pipeline.at(error, index, "read")));
            let start = self.workspace.timing.then(Instant::now);
            let Some(cut) = task.wants(field) else {
                return bad(Error::Internal("a step needs what is there already".into()));
            };
            let (mut buffer, mut done) = match room_for(&lane, &cut) {
                Ok(buffer) => (buffer, 0),
                Err(error) => return bad(error),
            };
            match lane.store.try_read_cut(&cut, &mut done, &mut buffer) {
                Ok(Attempt::Done) => {
                    self.count_read(start, buffer.len());
                    task.supply(field, buffer.freeze());
                }
                Ok(Attempt::WouldWait) => {
                    let reading = Reading { buffer: Some(buffer), done };
                    return Err(Stage::Field { task: Box::new(task), field, reading });
                }
                Err(error) if task.is_shown() => {
                    return self.make_in_part(chunk, at, task.address, error);
                }
                Err(error) => return bad(error),
            }
        }
        let seed = task.seed;
        self.values(chunk, at, Half::new(seed, task.into_sample()))
    }

    /// Writes the values of a finished sample to its row, from where it is.
    fn values(&mut self, chunk: &mut Chunk, at: usize, mut sample: Half) -> Result<Row, Stage> {
        let lane = Arc::clone(&self.lane);
        let start = self.workspace.timing.then(Instant::now);
        let last = lane.pipeline.maps.len();
        let before = self.workspace.times[last].nanos;
        let (mut reads, mut bytes) = (0, 0);
        let result = loop {
            let Some(value) =
                sample.current.take().or_else(|| sample.values.next().map(|(_, value)| value))
            else {
                break Ok(Ok(std::mem::take(&mut sample.loose)));
            };
            let row = chunk.columns.get_mut(sample.number).and_then(Option::as_mut);
            let row = row.map(|rows| rows.row(at));
            match self.value(value, row, &mut sample, (&mut reads, &mut bytes)) {
                Ok(Ok(())) => sample.number += 1,
                Ok(Err(error)) => {
                    let index = sample.seed.index;
                    break Ok(Err(lane.pipeline.at(error, index, "batch")));
                }
                Err(left) => {
                    let (value, reading) = *left;
                    sample.current = Some(value);
                    break Err(Stage::Value { sample: Box::new(sample), reading });
                }
            }
        };
        self.tally.reads += reads;
        self.tally.bytes_read += bytes;
        if let Some(start) = start {
            // Deferred work was charged to its own steps and taken off here.
            let charged = before.wrapping_sub(self.workspace.times[last].nanos);
            let nanos = (start.elapsed().as_nanos() as u64).saturating_sub(charged);
            self.workspace.times[last] = StepTime::default();
            self.tally.write_time.nanos += nanos;
            self.tally.write_time.samples += 1;
        }
        result
    }

    /// Writes one value to its row, or makes it a tensor by itself if it has none.
    fn value(
        &mut self,
        mut value: Value,
        row: Option<&mut [u8]>,
        sample: &mut Half,
        (reads, bytes): (&mut u64, &mut u64),
    ) -> Result<Result<()>, Box<(Value, Reading)>> {
        let lane = Arc::clone(&self.lane);
        let mut row = row;
        let mut filled = sample.filled.take();
        if !std::mem::take(&mut sample.read)
            && let Some(cut) = value.wants()
        {
            let (length, in_place) = (cut.length(), value.in_place());
            if let Some(room) =
                row.as_ref().map(|row| row.len()).filter(|r| in_place && *r != length)
            {
                return Ok(Err(Error::record(format!(
                    "a value of {length} bytes where the batch has room for {room}"
                ))));
            }
            let buffer = if in_place && row.is_some() { None } else { Some(room_for(&lane, &cut)) };
            let mut reading = match buffer.transpose() {
                Ok(buffer) => Reading { buffer, done: 0 },
                Err(error) => return Ok(Err(error)),
            };
            let to = match (&mut reading.buffer, &mut row) {
                (Some(buffer), _) => &mut buffer[..],
                (None, Some(row)) => row,
                (None, None) => return Ok(Err(Error::Internal("a value without a place".into()))),
            };
            match lane.store.try_read_cut(&cut, &mut reading.done, to) {
                Ok(Attempt::Done) => {}
                Ok(Attempt::WouldWait) => return Err(Box::new((value, reading))),
                Err(error) => return Ok(Err(error)),
            }
            *reads += 1;
            *bytes += length as u64;
            match reading.buffer {
                Some(buffer) if in_place => filled = Some(buffer),
                Some(buffer) => value.supply(buffer.freeze()),
                None => {}
            }
        }
        let mut context = lane.pipeline.finish(sample.seed, &mut self.workspace);
        Ok(finish_value(value, row, filled, sample, &mut context))
    }
}

/// The fields of a row that have no slot, or why it is bad.
type Row = Result<Vec<(usize, Tensor)>>;

/// Computes a value that has all it needs: into its row, or into a tensor of its own. `filled` holds
/// what it wanted, where that is read in place and there is no row.
fn finish_value(
    value: Value,
    row: Option<&mut [u8]>,
    filled: Option<feedline_core::BufferMut>,
    sample: &mut Half,
    context: &mut feedline_core::Context<'_>,
) -> Result<()> {
    match (row, filled) {
        (Some(row), _) => value.write(row, context),
        (None, Some(mut buffer)) => {
            let Value::Deferred(value) = value else {
                return Err(Error::Internal("a tensor was read in place".into()));
            };
            let (dtype, shape) = (value.dtype(), value.shape());
            value.write(&mut buffer, context)?;
            sample.loose.push((sample.number, Tensor::new(dtype, &shape, buffer.freeze())?));
            Ok(())
        }
        (None, None) => {
            let tensor = value.into_tensor(context)?;
            sample.loose.push((sample.number, tensor));
            Ok(())
        }
    }
}

/// What a panic said.
pub(crate) fn text_of(panic: &Box<dyn Any + Send>) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("unknown")
}
