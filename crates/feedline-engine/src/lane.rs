//! A run as its threads see it: what is fixed about it, and the queue of its groups.
//!
//! ```text
//!  dealer ──► open groups ──► rows to start ──► tasks ──► finished rows ──► head of the order
//!             (as far ahead    (in order, or the             (their slots,     (delivered)
//!              as is allowed)   latest start first)           or ready)
//! ```

use crate::budget::Budget;
use crate::counters::Counters;
use crate::deal::{Dealer, Dealt};
use crate::fetch::Parked;
use crate::group::{Chunk, Done, Group};
use crate::predict::{Features, Predictor};
use crate::ready::{Claim, Ready};
use crate::tune::{Ahead, Reads};
use crate::{Delivery, Options};
use feedline_core::{Cache, Cancel, Cursor, EpochSeed, Pool, Position, Store};
use feedline_ops::Pipeline;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar};
use std::time::Instant;

/// A task takes about this long, so that cheap samples are dealt many at a time.
const TASK_NANOS: u64 = 100_000;

/// After so many samples their cost is known.
const MEASURED: u64 = 32;
/// Samples of this many bytes are large.
const LARGE: u64 = 1 << 20;

/// What is fixed about a run.
pub(crate) struct Lane {
    pub pipeline: Arc<Pipeline>,
    pub store: Arc<dyn Store>,
    /// Where samples are kept from one epoch to the next.
    pub cache: Option<Arc<dyn Cache>>,
    pub options: Options,
    pub budget: Budget,
    pub pool: Pool,
    pub cancel: Cancel,
    /// Nanoseconds a sample takes, smoothed; 0 before the first.
    pub cost: AtomicU64,
    /// Whether samples are large enough to be counted before the first was seen.
    large: bool,
    /// Nanoseconds of work that are handed to a thread at once. Where steps take several samples
    /// together, that is worth waiting for.
    task_nanos: u64,
    /// Something to take for the consumer.
    pub done: Condvar,
}

impl Lane {
    pub(crate) fn new(
        pipeline: Arc<Pipeline>,
        store: Arc<dyn Store>,
        options: Options,
        pool: Pool,
        threads: usize,
    ) -> Self {
        let budget = Budget::new(&pipeline, &options, threads);
        let length = pipeline.source.length().max(1);
        let large = pipeline.source.stored_bytes().unwrap_or(0) / length >= LARGE;
        let cache = pipeline.cache.as_ref().and_then(|point| point.attached.get().cloned());
        let task_nanos = if pipeline.gathers() { 8 * TASK_NANOS } else { TASK_NANOS };
        Self {
            large,
            task_nanos,
            cache,
            pipeline,
            store,
            options,
            budget,
            pool,
            cancel: Cancel::default(),
            cost: AtomicU64::new(0),
            done: Condvar::new(),
        }
    }

    /// Whether steps take several samples together.
    pub(crate) fn gathers(&self) -> bool {
        self.task_nanos > TASK_NANOS
    }

    pub(crate) fn seed(&self, epoch: u64) -> EpochSeed {
        EpochSeed { seed: self.options.seed, epoch }
    }
}

/// Rows that can be started one by one. Each has a key, the number of the batch before which it
/// should be started, in 256ths: the least comes first.
#[derive(Debug, Default)]
struct Starts {
    by_key: BTreeMap<(i64, u64, usize), Features>,
    by_row: BTreeMap<(u64, usize), i64>,
}

impl Starts {
    fn push(&mut self, key: i64, group: u64, row: usize, features: Features) {
        self.by_key.insert((key, group, row), features);
        self.by_row.insert((group, row), key);
    }

    /// Group and row that should be started first, and the bytes it is guessed to need.
    fn first(&self) -> Option<(u64, usize, usize)> {
        let ((_, group, row), features) = self.by_key.first_key_value()?;
        Some((*group, *row, features.bytes))
    }

    /// The same of the first row in the order of delivery.
    fn head(&self) -> Option<(u64, usize, usize)> {
        let ((group, row), key) = self.by_row.first_key_value()?;
        let features = self.by_key.get(&(*key, *group, *row))?;
        Some((*group, *row, features.bytes))
    }

    fn take(&mut self, group: u64, row: usize) -> Option<Features> {
        let key = self.by_row.remove(&(group, row))?;
        self.by_key.remove(&(key, group, row))
    }

    /// Forgets the rows of a group.
    fn forget(&mut self, group: u64) {
        let rows: Vec<_> = self.by_row.range((group, 0)..=(group, usize::MAX)).collect();
        let rows: Vec<usize> = rows.into_iter().map(|((_, row), _)| *row).collect();
        rows.into_iter().for_each(|row| drop(self.take(group, row)));
    }
}

/// What changes while a run goes on.
pub(crate) struct Queue {
    pub lane: Arc<Lane>,
    dealer: Dealer,
    /// Groups in the order of delivery, and the number of the first.
    pub open: VecDeque<Group>,
    first: u64,
    /// Which open group is dealt from the front, and how many of the first are ready.
    dealing: usize,
    ready_first: usize,
    /// All rows of the open groups before this one may be started.
    releasing: usize,
    /// Rows that are started in the order of their guessed costs.
    starts: Starts,
    cursor: Cursor,
    /// Batches being filled, where they take what is ready.
    pub ready: Option<Ready>,
    pub to_read: VecDeque<Parked>,
    pub have_read: Vec<Parked>,
    /// Reads under way.
    pub reading: usize,
    /// Tasks that were started and are not finished, and the bytes they are guessed to need.
    pub running: usize,
    running_bytes: usize,
    /// Bytes that open groups hold.
    open_bytes: usize,
    pub predictor: Predictor,
    pub ahead: Ahead,
    pub reads: Reads,
    /// Nanoseconds between two batches that the consumer took, smoothed, and when it last did.
    interval: u64,
    last_taken: Instant,
    /// When the run began.
    pub born: Instant,
    /// Whether the consumer waits.
    pub waiting: bool,
    /// Nanoseconds of work done for this run, to be fair between runs.
    pub service: u64,
    pub counters: Counters,
}

impl Queue {
    pub(crate) fn new(lane: Arc<Lane>, position: Position) -> Self {
        let (options, budget) = (&lane.options, &lane.budget);
        let dealer = Dealer::new(position, options);
        let cursor = Cursor::new(lane.seed(dealer.start().epoch));
        let ready = matches!(options.delivery, Delivery::Ready { .. }).then(Ready::default);
        let predictor = Predictor::new(&lane.pipeline);
        let ahead = Ahead::new(budget.groups, options.ahead > 0 || !options.tune);
        let reads = Reads::new(budget.reads, options.reads > 0 || !options.tune);
        Self {
            dealer,
            open: VecDeque::new(),
            first: 0,
            dealing: 0,
            ready_first: 0,
            releasing: 0,
            starts: Starts::default(),
            cursor,
            ready,
            to_read: VecDeque::new(),
            have_read: Vec::new(),
            reading: 0,
            running: 0,
            running_bytes: 0,
            open_bytes: 0,
            predictor,
            ahead,
            reads,
            interval: 0,
            last_taken: Instant::now(),
            born: Instant::now(),
            waiting: false,
            service: 0,
            counters: Counters::default(),
            lane,
        }
    }

    /// Whether all epochs were dealt and delivered.
    pub(crate) fn is_over(&self) -> bool {
        self.open.is_empty()
            && self.dealer.is_over()
            && self.ready.as_ref().is_none_or(Ready::is_empty)
    }

    /// Batches that could be delivered now.
    pub(crate) fn ready_batches(&self) -> usize {
        match &self.ready {
            Some(ready) => ready.full,
            None => self.ready_first,
        }
    }

    /// Counts on how many of the first groups are ready.
    fn count_ready(&mut self) {
        while self.open.get(self.ready_first).is_some_and(Group::is_ready) {
            self.ready_first += 1;
        }
    }

    // ------------------------------------------------------------------------------ opening

    /// Batches that are open or wait to be taken, and ends of epochs.
    fn batches_ahead(&self) -> usize {
        self.open.len() + self.ready.as_ref().map_or(0, |ready| ready.full + ready.ended())
    }

    /// Opens the next group, if there is one and it may be.
    fn open_group(&mut self) -> bool {
        if self.dealer.is_over() {
            return false;
        }
        let lane = Arc::clone(&self.lane);
        let size = lane.pipeline.stretch() as u64;
        if self.batches_ahead() >= self.ahead.limit.max(1) {
            return false;
        }
        let epoch = self.dealer.start().epoch;
        if let Some(ready) = &mut self.ready {
            if !ready.has(epoch) {
                ready.begin(self.dealer.start());
            }
            let window = lane.options.window(size).unwrap_or(size);
            if self.dealer.next_number() >= ready.first_owed(epoch) + window {
                return false;
            }
        }
        let group = match self.dealer.next(&lane.pipeline, &lane.options) {
            Ok(None) => return false,
            Ok(Some(Dealt::End { epoch })) => Group::end(epoch),
            Ok(Some(Dealt::Rows { epoch, places, numbers })) => {
                self.group_of(epoch, places, numbers, &lane)
            }
            Err(error) => {
                self.dealer.end();
                Group::broken(epoch, error)
            }
        };
        self.open_bytes += group.bytes;
        self.open.push_back(group);
        let at = self.open.len() - 1;
        self.release(at);
        self.retire();
        self.count_ready();
        true
    }

    fn group_of(&self, epoch: u64, places: Vec<u64>, numbers: Vec<u64>, lane: &Lane) -> Group {
        let (loose, rows) = (self.ready.is_some(), places.len());
        let mut group = Group::new(epoch, places, numbers, loose, if loose { 0 } else { rows });
        group.by_cost = self.goes_by_cost();
        // A group of padding alone is ready as it is.
        if rows == 0
            && !loose
            && let Err(error) = group.allocate(&lane.pipeline, &lane.pool, false)
        {
            return Group::broken(epoch, error);
        }
        group
    }

    /// Whether samples are worth being looked at one by one: they are costly, or large.
    fn goes_by_cost(&self) -> bool {
        // Rows that are started one by one cannot be taken together.
        let least = if self.lane.gathers() { 100 * TASK_NANOS } else { 2 * TASK_NANOS };
        let costly = self.lane.cost.load(Ordering::Relaxed) >= least;
        self.lane.large || costly && self.counters.tally.samples >= MEASURED
    }

    /// Lets those rows of group `at` be started that may be.
    fn release(&mut self, at: usize) {
        let Self { open, ready, lane, .. } = self;
        let Some(group) = open.get_mut(at) else { return };
        if let Some(ready) = ready {
            let size = lane.pipeline.stretch() as u64;
            let end = ready.first_owed(group.epoch) + lane.options.window(size).unwrap_or(size);
            group.released = group.numbers.partition_point(|number| *number < end);
        }
        if !group.by_cost {
            return;
        }
        let (epoch, places) = (group.epoch, Arc::clone(&group.places));
        let rows = group.queued..group.released;
        group.queued = group.released;
        for row in rows {
            self.make_start(self.first + at as u64, row, epoch, places[row]);
        }
    }

    fn make_start(&mut self, group: u64, row: usize, epoch: u64, place: u64) {
        let lane = Arc::clone(&self.lane);
        if self.cursor.seed.epoch != epoch {
            self.cursor = Cursor::new(lane.seed(epoch));
        }
        let address = lane.pipeline.address(place, &mut self.cursor);
        let features = self.predictor.features(&lane.pipeline, lane.seed(epoch), address);
        // A row is due when its batch is: one that takes longer than others has to be started as
        // many batches earlier.
        let longer = features.cost as i64 - self.predictor.usual() as i64;
        let key = group as i64 * 256 - longer * 256 / self.batch_nanos().max(1) as i64;
        self.starts.push(key, group, row, features);
    }

    /// Nanoseconds from one batch to the next: as the consumer takes them, or as they can be made.
    fn batch_nanos(&self) -> u64 {
        let work = self.predictor.usual() * self.lane.pipeline.group() as u64;
        self.interval.max(work / self.lane.budget.threads.max(1) as u64)
    }

    // ----------------------------------------------------------------------------- starting

    /// Whether a task of group `at` that needs so many bytes may start. Other groups leave the
    /// head some room; the head always gets on, if need be by itself.
    fn admits(&self, at: usize, bytes: usize) -> bool {
        let budget = &self.lane.budget;
        let unallocated = self.open.get(at).is_some_and(|group| !group.is_allocated());
        let room = if unallocated { budget.batch_bytes.unwrap_or(0) } else { 0 };
        let filling = self.ready.as_ref().map_or(0, |ready| ready.bytes);
        let known = self.open_bytes + self.running_bytes + filling;
        let used = known.max(self.lane.pool.used_bytes());
        let wanted = used.saturating_add(bytes).saturating_add(room);
        let stuck = || self.running == 0 && !self.is_ready();
        match at {
            0 => wanted <= budget.memory || stuck(),
            _ => wanted <= budget.memory - budget.memory / 8,
        }
    }

    /// The next rows to prepare.
    pub(crate) fn next_chunk(&mut self) -> Option<Chunk> {
        if self.to_read.len() + self.reading >= self.most_parked() {
            return None;
        }
        // Slow rows can only be started early if they are known.
        while self.goes_by_cost() && self.open_group() {}
        loop {
            let first = self.first;
            while self.open.get(self.dealing).is_some_and(|g| g.by_cost || g.dealt == g.rows()) {
                self.dealing += 1;
            }
            let in_order = self.open.get(self.dealing).filter(|group| group.dealt < group.released);
            let in_order = in_order.map(|_| self.dealing);
            let by_cost = self.starts.first().map(|(group, ..)| (group - first) as usize);
            match (in_order, by_cost) {
                (Some(at), other) if other.is_none_or(|other| at <= other) => {
                    let chunk = self.deal_in_order(at);
                    // Where memory is short, the head of the order may be among the others.
                    return chunk.or_else(|| other.and_then(|other| self.deal_by_cost(other)));
                }
                (_, Some(at)) => return self.deal_by_cost(at),
                _ => {}
            }
            if !self.open_group() {
                return None;
            }
        }
    }

    /// Samples that may wait for their bytes, so that those whose bytes are in memory need not.
    fn most_parked(&self) -> usize {
        self.reads.limit.saturating_mul(2).saturating_add(self.lane.budget.threads)
    }

    fn deal_in_order(&mut self, at: usize) -> Option<Chunk> {
        if !self.admits(at, 0) {
            return None;
        }
        self.allocate(at);
        let cost = self.lane.cost.load(Ordering::Relaxed);
        let count = self.lane.task_nanos.checked_div(cost).unwrap_or(1).max(1) as usize;
        let group = self.open.get_mut(at)?;
        let chunk = group.deal(self.first + at as u64, count.min(group.released - group.dealt));
        self.running += 1;
        Some(chunk)
    }

    fn deal_by_cost(&mut self, at: usize) -> Option<Chunk> {
        let (mut group, mut row, bytes) = self.starts.first()?;
        if !self.admits(at, bytes) {
            // Memory is short: the head of the order comes first.
            let (first, first_row, bytes) = self.starts.head()?;
            if first != self.first || !self.admits(0, bytes) {
                return None;
            }
            (group, row) = (first, first_row);
        }
        let features = self.starts.take(group, row)?;
        let at = (group - self.first) as usize;
        self.allocate(at);
        let mut chunk = self.open.get_mut(at)?.deal_row(group, row)?;
        self.running += 1;
        self.running_bytes += features.bytes;
        chunk.features = Some(features);
        Some(chunk)
    }

    /// Takes the memory of a group; without it, the group fails when its turn comes.
    fn allocate(&mut self, at: usize) {
        let lane = Arc::clone(&self.lane);
        let Some(group) = self.open.get_mut(at) else { return };
        if group.is_allocated() {
            return;
        }
        let passed_on = lane.options.delivery == Delivery::Stretches;
        match group.allocate(&lane.pipeline, &lane.pool, passed_on) {
            Ok(()) => self.open_bytes += group.bytes,
            Err(error) => {
                *group = Group::broken(group.epoch, error);
                let number = self.first + at as u64;
                self.starts.forget(number);
                self.count_ready();
            }
        }
    }

    // ---------------------------------------------------------------------------- finishing

    /// Notes that a task is no longer running.
    pub(crate) fn ended(&mut self, features: Option<&Features>) {
        self.running -= 1;
        self.running_bytes -= features.map_or(0, |features| features.bytes);
    }

    /// Notes what became of rows. True if the consumer may find something; the claims have to be
    /// copied and given to [`Queue::copied`].
    pub(crate) fn finish(&mut self, number: u64, done: Vec<Done>) -> (bool, Vec<Claim>) {
        let mut claims = Vec::new();
        let Some(at) = number.checked_sub(self.first).map(|at| at as usize) else {
            return (false, claims);
        };
        let lane = Arc::clone(&self.lane);
        let Self { open, ready, open_bytes, .. } = self;
        let Some(group) = open.get_mut(at).filter(|group| group.pending > 0) else {
            return (false, claims);
        };
        let Some(ready) = ready else {
            let before = group.bytes;
            done.into_iter().for_each(|row| group.finish_row(row));
            *open_bytes += group.bytes - before;
            let wakes = at == 0 && group.is_ready();
            self.count_ready();
            return (wakes, claims);
        };
        let mut wakes = false;
        for Done { row, index, result } in done {
            group.pending -= 1;
            let what = (group.places[row], group.numbers[row], index);
            wakes |= result.is_err();
            claims.extend(ready.claim(&lane, group.epoch, what, result));
        }
        self.retire();
        (wakes, claims)
    }

    /// Notes that rows were copied to where they belong.
    pub(crate) fn copied(&mut self, claims: &[Claim]) {
        if let Some(ready) = &mut self.ready {
            let size = self.lane.pipeline.stretch();
            claims.iter().for_each(|claim| ready.copied(claim, size));
        }
        // Only the last group of each epoch can be cut by the window.
        while self.open.get(self.releasing).is_some_and(|group| group.released == group.rows()) {
            self.releasing += 1;
        }
        (self.releasing..self.open.len()).for_each(|at| self.release(at));
    }

    /// Where batches take what is ready: groups whose rows all have a batch are gone.
    fn retire(&mut self) {
        let lane = Arc::clone(&self.lane);
        let Some(ready) = &mut self.ready else { return };
        while self.open.front().is_some_and(|group| group.pending == 0) {
            let Some(mut group) = self.open.pop_front() else { break };
            self.first += 1;
            self.dealing = self.dealing.saturating_sub(1);
            self.releasing = self.releasing.saturating_sub(1);
            if group.is_end {
                ready.end(group.epoch, &lane);
            } else if group.rows() == 0 && group.bad.is_empty() {
                ready.pad(group.epoch);
            } else if let Some((_, error)) = group.first_bad() {
                ready.fail(group.epoch, error);
            }
        }
    }

    /// Whether opening another group could give a thread something to do.
    pub(crate) fn wants_more(&self) -> bool {
        let full = self.batches_ahead() >= self.ahead.limit.max(1);
        let reads = self.to_read.len() + self.reading < self.most_parked();
        let none = self.starts.first().is_none();
        full && reads && none && !self.dealer.is_over() && !self.is_ready()
    }

    /// Whether the consumer finds something.
    pub(crate) fn is_ready(&self) -> bool {
        match &self.ready {
            Some(ready) => ready.is_ready(&self.lane),
            None => self.open.front().is_some_and(Group::is_ready),
        }
    }

    // --------------------------------------------------------------------------- delivering

    /// Takes the head of the order off, once it is ready.
    pub(crate) fn pop(&mut self) -> Option<Group> {
        if !self.open.front()?.is_ready() {
            return None;
        }
        let group = self.open.pop_front()?;
        self.open_bytes -= group.bytes;
        self.ready_first = self.ready_first.saturating_sub(1);
        self.first += 1;
        self.dealing = self.dealing.saturating_sub(1);
        Some(group)
    }

    /// Puts the head back.
    pub(crate) fn put_back(&mut self, group: Group) {
        self.open_bytes += group.bytes;
        self.open.push_front(group);
        self.ready_first += 1;
        self.first -= 1;
        self.dealing += 1;
    }

    /// Notes that the consumer took a batch.
    pub(crate) fn taken(&mut self, now: Instant) {
        let nanos = now.saturating_duration_since(self.last_taken).as_nanos() as u64;
        self.last_taken = now;
        self.interval =
            if self.interval == 0 { nanos } else { self.interval - self.interval / 8 + nanos / 8 };
    }

    /// How long the next row of this run can wait, in nanoseconds: the run with the least is served
    /// first. A consumer that waits already cannot wait longer, whatever it waits for.
    pub(crate) fn slack(&self, now: Instant) -> u64 {
        if self.waiting {
            return 0;
        }
        let since = now.saturating_duration_since(self.last_taken).as_nanos() as u64;
        let ready = self.ready_batches() as u64;
        (ready + 1).saturating_mul(self.batch_nanos()).saturating_sub(since)
    }

    /// Ends dealing with an error in the order of samples.
    pub(crate) fn fail(&mut self, error: feedline_core::Error) {
        self.dealer.end();
        let epoch = self.dealer.start().epoch;
        self.open.push_back(Group::broken(epoch, error));
        self.retire();
        self.count_ready();
    }

    /// Forgets everything that was not started.
    pub(crate) fn clear(&mut self) {
        self.dealer.end();
        self.starts = Starts::default();
        let parked = self.to_read.len() + self.have_read.len();
        self.running -= parked;
        self.to_read.clear();
        self.have_read.clear();
        self.open.clear();
        self.ready = None;
    }
}
