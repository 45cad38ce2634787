//! A run: what its consumer holds.

use crate::counters::{Stats, Tuned, step_table};
use crate::deal::{follows_rows, row_of};
use crate::group::Group;
use crate::lane::{Lane, Queue};
use crate::ready::{Delivered, Filling};
use crate::record::{MadeOf, Recorder};
use crate::team::{Crew, Team};
use crate::tracker::Tracker;
use crate::{Delivery, Options, Steps, steps_left};
use feedline_core::{Batch, Buffer, Error, Name, Policy, Position, Result, Store, Tensor};
use feedline_ops::{Pipeline, batch, plain};
use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

/// What a run delivers next.
#[derive(Debug)]
pub enum Next {
    /// A batch; or a sample, if the pipeline has no batch step.
    Batch(Batch),
    /// The end of an epoch; the next call begins the one after it.
    EpochEnd(u64),
    /// The end of the last epoch. A run that has ended stays ended.
    End,
}

/// A running pipeline. Dropping it ends its work, and its threads if they were its own.
pub struct Run {
    team: Team,
    lane: Arc<Lane>,
    number: usize,
    /// Where this epoch was begun, and which rows were delivered since, where rows flow together.
    start: Position,
    tracker: Tracker,
    /// Batches of this epoch that were delivered.
    delivered: u64,
    /// Good rows that wait for their batch, where rows flow together in order.
    carry: VecDeque<Row>,
    /// Bad samples of this epoch so far: as counted, and as delivered.
    skipped: u64,
    skipped_delivered: u64,
    /// Writes batches down, and how many came before those that are counted in `delivered`.
    recorder: Option<(Recorder, u64)>,
    failed: Option<Error>,
    over: bool,
    started: Instant,
}

/// A finished row that waits for its batch; its fields are absent if it was bad.
struct Row {
    index: u64,
    place: u64,
    number: u64,
    fields: Option<Vec<Tensor>>,
    skipped: u64,
}

impl Run {
    /// Starts running a pipeline from a position, with threads of its own.
    ///
    /// # Errors
    ///
    /// If the options make no sense, or no thread can be started.
    pub fn start(
        pipeline: Arc<Pipeline>,
        store: Arc<dyn Store>,
        position: Position,
        options: Options,
    ) -> Result<Self> {
        options.check(&pipeline)?;
        let team = Team::new(options.threads)?;
        Self::start_in(&team, pipeline, store, position, options)
    }

    /// Starts running a pipeline from a position, with the threads of a team that may serve other
    /// runs as well.
    ///
    /// # Errors
    ///
    /// If the options make no sense.
    pub fn start_in(
        team: &Team,
        pipeline: Arc<Pipeline>,
        store: Arc<dyn Store>,
        position: Position,
        options: Options,
    ) -> Result<Self> {
        options.check(&pipeline)?;
        if let Delivery::Replay(recording) = &options.delivery {
            recording.fits(&pipeline, &options)?;
        }
        let recorder = match &options.record {
            Some(path) => {
                let first = batches_before(&pipeline, &position, &options)?;
                Some((Recorder::open(path, &pipeline, &options)?, first))
            }
            None => None,
        };
        let lane = Arc::new(Lane::new(pipeline, store, options, team.threads()));
        let (batch, most) = (lane.budget.batch_bytes, physical_memory());
        if let Some(bytes) = batch.filter(|bytes| *bytes as u64 > most) {
            return Err(Error::pipeline(format!(
                "one batch has {bytes} bytes, and this machine {most}; make batches or images smaller"
            )));
        }
        let queue = Queue::new(Arc::clone(&lane), position.clone());
        Ok(Self {
            number: team.crew.shared.add(queue),
            team: team.clone(),
            lane,
            tracker: Tracker::new(&position),
            delivered: position.batches,
            carry: VecDeque::new(),
            skipped: position.skipped,
            skipped_delivered: position.skipped,
            start: position,
            recorder,
            failed: None,
            over: false,
            started: Instant::now(),
        })
    }

    /// Waits for the next batch, or the end of the epoch.
    ///
    /// # Errors
    ///
    /// The first error in the order of samples. After it the run is over, and says so again.
    #[expect(clippy::should_implement_trait, reason = "epochs end without ending the run")]
    pub fn next(&mut self) -> Result<Next> {
        loop {
            if let Some(next) = self.next_within(Duration::from_secs(3600))? {
                return Ok(next);
            }
        }
    }

    /// As [`Run::next`], giving up with `None` after `patience`.
    ///
    /// # Errors
    ///
    /// As [`Run::next`].
    pub fn next_within(&mut self, patience: Duration) -> Result<Option<Next>> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let result = self.advance(patience);
        match &result {
            Ok(Some(Next::Batch(batch))) => {
                for (_, tensor) in &batch.fields {
                    // From here on it is the consumer's, not ours.
                    tensor.buffer().into_iter().for_each(Buffer::hand_over);
                }
                let mut state = self.team.crew.shared.lock();
                if let Some(queue) = state.queue(self.number) {
                    queue.counters.batches += 1;
                    queue.counters.rows += batch.rows as u64;
                    queue.counters.bytes_delivered += batch.bytes() as u64;
                }
                // Memory is free again.
                self.team.crew.shared.work.notify_one();
            }
            Ok(Some(Next::EpochEnd(_))) => {
                let mut state = self.team.crew.shared.lock();
                state.queue(self.number).into_iter().for_each(|queue| queue.counters.epochs += 1);
            }
            Ok(_) => {}
            Err(error) => {
                self.failed = Some(error.clone());
                self.lane.cancel.cancel();
            }
        }
        result
    }

    fn advance(&mut self, patience: Duration) -> Result<Option<Next>> {
        let deadline = Instant::now().checked_add(patience);
        loop {
            if self.over {
                return Ok(Some(Next::End));
            }
            if let Some(batch) = self.take_carried(false)? {
                return Ok(Some(Next::Batch(batch)));
            }
            let Some(head) = self.wait_for_head(deadline) else {
                return Ok(if self.over { Some(Next::End) } else { None });
            };
            match head {
                Head::Ready(Delivered::Failed(error)) => return Err(error),
                Head::Ready(Delivered::End(epoch)) => return Ok(Some(self.end_epoch(epoch))),
                Head::Ready(Delivered::Batch(filling)) => {
                    if let Some(batch) = self.take_filled(*filling, false)? {
                        return Ok(Some(Next::Batch(batch)));
                    }
                }
                Head::Ready(Delivered::Lost(filling)) => drop(self.take_filled(*filling, true)?),
                Head::Group(group) if group.rows() == 0 && group.bad.is_empty() => {
                    // What comes after all rows comes round again once they are delivered.
                    if let Some(batch) = self.take_carried(true)? {
                        let mut state = self.team.crew.shared.lock();
                        if let Some(queue) = state.queue(self.number) {
                            queue.put_back(*group);
                        }
                        return Ok(Some(Next::Batch(batch)));
                    }
                    if group.is_end {
                        return Ok(Some(self.end_epoch(group.epoch)));
                    }
                    return self.assemble(*group).map(|batch| Some(Next::Batch(batch)));
                }
                Head::Group(mut group) => {
                    let replays = matches!(self.lane.options.delivery, Delivery::Replay(_));
                    if group.numbers.is_empty() || replays {
                        if let Some((_, error)) = group.first_bad() {
                            return Err(error);
                        }
                        return self.assemble(*group).map(|batch| Some(Next::Batch(batch)));
                    }
                    self.arrange(*group)?;
                }
            }
        }
    }

    fn end_epoch(&mut self, epoch: u64) -> Next {
        self.carry.clear();
        self.start = Position::epoch(epoch.saturating_add(1));
        self.tracker = Tracker::new(&self.start);
        (self.delivered, self.skipped, self.skipped_delivered) = (0, 0, 0);
        self.recorder.iter_mut().for_each(|(_, before)| *before = 0);
        Next::EpochEnd(epoch)
    }

    /// Takes the head of the order as soon as it is ready.
    fn wait_for_head(&mut self, deadline: Option<Instant>) -> Option<Head> {
        let shared = Arc::clone(&self.team.crew.shared);
        let mut state = shared.lock();
        loop {
            let queue = state.queue(self.number)?;
            let ready = queue.ready_batches();
            let head = match &mut queue.ready {
                Some(ready) => ready.pop(&self.lane).map(Head::Ready),
                None => queue.pop().map(|group| Head::Group(Box::new(group))),
            };
            let now = Instant::now();
            if let Some(head) = head {
                let window = queue.ahead.limit;
                let waited = std::mem::take(&mut queue.waiting);
                if !waited && !head.is_end() && !state.anyone_waits() {
                    state.active.observe(now, ready, window);
                }
                if let Some(queue) = state.queue(self.number)
                    && !head.is_end()
                {
                    queue.taken(now);
                }
                shared.work.notify_one();
                return Some(head);
            }
            if queue.is_over() {
                self.over = true;
                return None;
            }
            let left = match deadline {
                Some(deadline) => deadline.checked_duration_since(now)?,
                None => Duration::from_secs(3600),
            };
            if !queue.waiting {
                queue.waiting = true;
                state.active.observe(now, 0, 1);
                // Whoever found nothing to do may look further ahead now.
                shared.work.notify_all();
            }
            (state, _) =
                self.lane.done.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
            if let Some(queue) = state.queue(self.number) {
                queue.counters.wait_nanos += now.elapsed().as_nanos() as u64;
            }
        }
    }

    /// Writes a batch's composition down, and counts it.
    fn note(&mut self, epoch: u64, made_of: impl FnOnce() -> MadeOf) -> Result<()> {
        let batch = self.delivered;
        self.delivered += 1;
        match &mut self.recorder {
            Some((recorder, before)) => recorder.batch(epoch, batch + *before, made_of()),
            None => Ok(()),
        }
    }

    /// The batch that a whole group is.
    fn assemble(&mut self, group: Group) -> Result<Batch> {
        let lane = Arc::clone(&self.lane);
        let pipeline = &lane.pipeline;
        let rows = group.rows();
        let names = pipeline.sample.fields.iter().map(|field| field.name);
        let (epoch, places) = (group.epoch, Arc::clone(&group.places));
        let numbers = group.numbers.clone();
        let with_index = lane.options.with_index;
        let batch = if let Some(recipe) = &pipeline.batch {
            let (columns, indices) = group.into_columns(pipeline, &lane.pool)?;
            let mut fields: Vec<(Name, Tensor)> = names.zip(columns).collect();
            if recipe.pad {
                fields.push((Name::new(batch::Batch::MASK), plain::mask(rows, recipe.size)?));
            }
            Batch { fields, rows, indices: with_index.then_some(indices) }
        } else {
            let mut row = group.into_rows(pipeline)?;
            let (_, index, fields) =
                row.pop().ok_or_else(|| Error::Internal("a sample without a row".into()))?;
            let indices = with_index.then(|| vec![index]);
            Batch { fields: names.zip(fields).collect(), rows: 1, indices }
        };
        // A replay leaves out what its recording left out.
        if let Delivery::Replay(recording) = &lane.options.delivery
            && let Some(made_of) = recording.batch(epoch, lane.options.rank, self.delivered)
        {
            for place in &made_of.skipped {
                self.tracker.mark(row_of(&self.start, *place, pipeline, &lane.options)?);
            }
            self.skipped += made_of.skipped.len() as u64;
            self.skipped_delivered = self.skipped;
        }
        self.note(epoch, || MadeOf { places: places.to_vec(), skipped: Vec::new() })?;
        numbers.into_iter().for_each(|number| self.tracker.mark(number));
        Ok(batch)
    }

    /// A batch that took what was ready; `None` if nothing is left of it.
    fn take_filled(&mut self, mut filling: Filling, lost: bool) -> Result<Option<Batch>> {
        let lane = Arc::clone(&self.lane);
        let pipeline = &lane.pipeline;
        let epoch = self.start.epoch;
        let mut skipped = Vec::new();
        for (place, error) in std::mem::take(&mut filling.bad) {
            self.skip(epoch, error)?;
            skipped.push(place);
        }
        let rows = filling.rows();
        let numbers = std::mem::take(&mut filling.numbers);
        let places = std::mem::take(&mut filling.places);
        let pads = pipeline.batch.as_ref().filter(|batch| batch.pad);
        let mut batch = None;
        if !lost {
            let indices = lane.options.with_index.then(|| filling.indices.clone());
            let names = pipeline.sample.fields.iter().map(|field| field.name);
            let mut fields: Vec<_> = names.zip(filling.into_fields(&lane)?).collect();
            if let Some(recipe) = pads {
                fields.push((Name::new(batch::Batch::MASK), plain::mask(rows, recipe.size)?));
            }
            batch = Some(Batch { fields, rows, indices });
            self.note(epoch, || MadeOf { places, skipped })?;
        }
        numbers.into_iter().for_each(|number| self.tracker.mark(number));
        self.skipped_delivered = self.skipped;
        Ok(batch)
    }

    /// Sorts the rows of a group into good ones, which wait for their batch, and bad ones, which
    /// are counted and written down.
    fn arrange(&mut self, mut group: Group) -> Result<()> {
        let lane = Arc::clone(&self.lane);
        let (epoch, places) = (group.epoch, Arc::clone(&group.places));
        let numbers = std::mem::take(&mut group.numbers);
        group.bad.sort_by_key(|(row, _)| *row);
        let mut bad = std::mem::take(&mut group.bad).into_iter().peekable();
        let bad_rows: Vec<usize> = bad.clone().map(|(row, _)| row).collect();
        let mut good = group.into_good_rows(&bad_rows, &lane.pipeline)?.into_iter().peekable();
        for (row, (place, number)) in places.iter().zip(numbers).enumerate() {
            let (place, mut index, mut fields) = (*place, 0, None);
            if let Some((_, error)) = bad.next_if(|(bad, _)| *bad == row) {
                self.skip(epoch, error)?;
            } else if let Some((_, found, values)) = good.next_if(|(good, ..)| *good == row) {
                (index, fields) = (found, Some(values));
            }
            let skipped = self.skipped;
            self.carry.push_back(Row { index, place, number, fields, skipped });
        }
        Ok(())
    }

    fn skip(&mut self, epoch: u64, error: Error) -> Result<()> {
        let pipeline = &self.lane.pipeline;
        let Policy::Skip { count, share, file } = &pipeline.policy else { return Err(error) };
        if !error.is_record() {
            return Err(error);
        }
        self.skipped += 1;
        let mut state = self.team.crew.shared.lock();
        state.queue(self.number).into_iter().for_each(|queue| queue.counters.skipped += 1);
        drop(state);
        if let Some(path) = file {
            quarantine(path, epoch, &error)?;
        }
        plain::check_budget(self.skipped, *count, *share, pipeline.length(), &error)
    }

    /// A batch of rows that flow together, if enough wait; at the end of the epoch, of what is left.
    fn take_carried(&mut self, end: bool) -> Result<Option<Batch>> {
        let lane = Arc::clone(&self.lane);
        let pipeline = &lane.pipeline;
        let size = pipeline.stretch();
        let count = self.carry.iter().filter(|row| row.fields.is_some()).count().min(size);
        let drops = pipeline.batch.as_ref().is_some_and(|batch| batch.drop_last);
        if count == 0 || count < size && (!end || drops) {
            return Ok(None);
        }
        let names: Vec<Name> = pipeline.sample.fields.iter().map(|field| field.name).collect();
        let mut rows = Vec::with_capacity(count);
        let mut made_of = MadeOf::default();
        while rows.len() < count {
            let Some(row) = self.carry.pop_front() else { break };
            self.tracker.mark(row.number);
            self.skipped_delivered = row.skipped;
            if let Some(fields) = row.fields {
                made_of.places.push(row.place);
                rows.push((row.index, names.iter().copied().zip(fields).collect::<Vec<_>>()));
            } else {
                made_of.skipped.push(row.place);
            }
        }
        self.note(self.start.epoch, || made_of)?;
        let with_index = lane.options.with_index;
        let Some(recipe) = &pipeline.batch else {
            let (index, fields) = rows.into_iter().next().unwrap_or((0, Vec::new()));
            let indices = with_index.then(|| vec![index]);
            return Ok(Some(Batch { fields, rows: 1, indices }));
        };
        plain::stack(pipeline, &rows, size, recipe.pad, with_index, &lane.pool).map(Some)
    }

    /// Where the run stands after what it has delivered.
    #[must_use]
    pub fn position(&self) -> Position {
        let Options { rank, world, delivery, .. } = &self.lane.options;
        let size = self.lane.pipeline.stretch() as u64;
        if !follows_rows(&self.lane.pipeline, &self.lane.options, &self.start) {
            let places = (self.delivered - self.start.batches).saturating_mul(*world);
            return self.start.after(places.saturating_mul(size));
        }
        let exact = *delivery == Delivery::Exact && self.start.batches == 0;
        let batches = if exact { 0 } else { self.delivered };
        let position = self.tracker.position(&self.start, size, *rank, *world);
        Position { batches, skipped: self.skipped_delivered, ..position }
    }

    /// How many steps are left in this epoch.
    #[must_use]
    pub fn steps_left(&self) -> Steps {
        let options = &self.lane.options;
        steps_left(&self.lane.pipeline, &self.position(), options.rank, options.world)
    }

    /// The run's options.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.lane.options
    }

    /// What the run did so far, and where its time went.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.watch().stats()
    }

    /// Something that can tell what the run does while another thread takes its batches.
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch {
            crew: Arc::downgrade(&self.team.crew),
            lane: Arc::clone(&self.lane),
            number: self.number,
            started: self.started,
        }
    }
}

/// Tells what a run does, from any thread.
pub struct Watch {
    /// It keeps no thread alive.
    crew: Weak<Crew>,
    lane: Arc<Lane>,
    number: usize,
    started: Instant,
}

impl Watch {
    /// What the run did so far, and where its time went; nothing once it is gone.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let Some(crew) = self.crew.upgrade() else { return Stats::default() };
        let mut state = crew.shared.lock();
        let active = state.active.limit;
        let queue = state.queue(self.number).filter(|q| Arc::ptr_eq(&q.lane, &self.lane));
        let Some(queue) = queue else { return Stats::default() };
        let counters = &queue.counters;
        let names: Vec<&str> = self.lane.pipeline.maps.iter().map(|step| step.name).collect();
        let seconds = self.started.elapsed().as_secs_f64();
        let waited = counters.wait_nanos as f64 / 1e9;
        Stats {
            batches: counters.batches,
            samples: counters.rows,
            prepared: counters.tally.samples,
            skipped: counters.skipped,
            epochs: counters.epochs,
            bytes_delivered: counters.bytes_delivered,
            bytes_read: counters.tally.bytes_read,
            reads: counters.tally.reads,
            reads_waited: counters.tally.reads_waited,
            seconds,
            waited_seconds: waited,
            waited_share: if seconds > 0.0 { waited / seconds } else { 0.0 },
            busy_seconds: counters.tally.busy_nanos as f64 / 1e9,
            idle_seconds: counters.idle_nanos as f64 / 1e9,
            ready: queue.ready_batches(),
            open: queue.open.len(),
            threads: crew.threads(),
            tuned: Tuned { threads: active, ahead: queue.ahead.limit, reads: queue.reads.limit },
            memory_used: self.lane.pool.used_bytes(),
            steps: step_table(&names, counters),
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.team.crew.shared.remove(self.number);
    }
}

/// What a queue gives.
enum Head {
    Group(Box<Group>),
    Ready(Delivered),
}

impl Head {
    fn is_end(&self) -> bool {
        match self {
            Self::Group(group) => group.is_end,
            Self::Ready(delivered) => !matches!(delivered, Delivered::Batch(_)),
        }
    }
}

/// How many batches the rank delivered in this epoch before a position that does not count them.
///
/// # Errors
///
/// If that cannot be told, and so what is recorded could not be replayed.
fn batches_before(pipeline: &Pipeline, position: &Position, options: &Options) -> Result<u64> {
    let round = options.world.saturating_mul(pipeline.stretch() as u64);
    let even = position.left_over.is_empty() && position.tail.is_multiple_of(round);
    match (position.at, position.tail) {
        _ if position.batches > 0 && even => Ok(0),
        (None, 0) => Ok(0),
        (None, tail) if even && pipeline.is_counted() => Ok(tail / round),
        _ => Err(Error::State(
            "a recording cannot go on from this state, which was merged or does not count its \
             batches: leave record out until the next epoch"
                .into(),
        )),
    }
}

/// Bytes of memory this machine has; without an answer, as much as can be addressed.
fn physical_memory() -> u64 {
    let total = std::fs::read_to_string("/proc/meminfo").ok();
    let line =
        total.as_ref().and_then(|text| text.lines().find(|line| line.starts_with("MemTotal")));
    let kilobytes = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kilobytes.map_or(1 << 46, |kilobytes| kilobytes * 1024)
}

/// Appends one line about a bad sample.
fn quarantine(path: &std::path::Path, epoch: u64, error: &Error) -> Result<()> {
    let Error::Record { origin, index, step, reason } = error else { return Ok(()) };
    let line = serde_json::json!({
        "epoch": epoch, "index": index, "origin": origin, "step": step, "reason": reason,
    });
    let open = std::fs::OpenOptions::new().create(true).append(true).open(path);
    open.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()))
        .map_err(|error| Error::unavailable(format!("quarantine file {}", path.display()), error))
}
