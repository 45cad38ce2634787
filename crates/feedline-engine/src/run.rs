//! A run: what its consumer holds.

use crate::arrange::Arranger;
use crate::bucket::Piece;
use crate::counters::{Stats, Tuned, step_table};
use crate::group::Group;
use crate::lane::{Lane, Queue};
use crate::memory::machine_memory;
use crate::ready::Delivered;
use crate::team::{Crew, Team};
use crate::{Options, Steps};
use feedline_core::{Batch, Buffer, Error, Pool, Position, Result, Store};
use feedline_ops::Pipeline;
use std::any::Any;
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
    arranger: Arranger,
    failed: Option<Error>,
    over: bool,
    started: Instant,
    /// Keeps processes for functions; dropped after the threads that call them.
    _functions: Option<Box<dyn Any + Send + Sync>>,
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
    /// If the options make no sense, or its functions cannot be run here.
    pub fn start_in(
        team: &Team,
        pipeline: Arc<Pipeline>,
        store: Arc<dyn Store>,
        position: Position,
        options: Options,
    ) -> Result<Self> {
        // What the consumer holds comes back as well.
        let pool = Pool::new(options.memory.saturating_add(16 << 20));
        Self::start_with(team, pool, pipeline, store, position, options)
    }

    /// As [`Run::start_in`], with memory of a given pool.
    pub(crate) fn start_with(
        team: &Team,
        pool: Pool,
        pipeline: Arc<Pipeline>,
        store: Arc<dyn Store>,
        position: Position,
        options: Options,
    ) -> Result<Self> {
        let functions = pipeline.host()?.map(|host| host.hold(team.threads()));
        let lane = Arc::new(Lane::new(pipeline, store, options, pool, team.threads()));
        let (batch, most) = (lane.budget.batch_bytes, machine_memory());
        if let Some(bytes) = batch.filter(|bytes| *bytes as u64 > most) {
            return Err(Error::pipeline(format!(
                "one batch has {bytes} bytes, and this machine {most}; make batches or images smaller"
            )));
        }
        let (options, pool) = (lane.options.clone(), lane.pool.clone());
        let arranger = Arranger::new(Arc::clone(&lane.pipeline), options, pool, position.clone())?;
        let queue = Queue::new(Arc::clone(&lane), position);
        Ok(Self {
            number: team.crew.shared.add(queue),
            team: team.clone(),
            lane,
            arranger,
            failed: None,
            over: false,
            started: Instant::now(),
            _functions: functions,
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
        if matches!(result, Ok(None)) {
            return result;
        }
        if let Ok(Some(Next::Batch(batch))) = &result {
            for (_, tensor) in &batch.fields {
                // From here on it is the consumer's, not ours.
                tensor.buffer().into_iter().for_each(Buffer::hand_over);
            }
        }
        let mut state = self.team.crew.shared.lock();
        if let Some(queue) = state.queue(self.number) {
            queue.counters.skipped = self.arranger.left_out;
            match &result {
                Ok(Some(Next::Batch(batch))) => {
                    queue.counters.batches += 1;
                    queue.counters.rows += batch.rows as u64;
                    queue.counters.bytes_delivered += batch.bytes() as u64;
                }
                Ok(Some(Next::EpochEnd(_))) => queue.counters.epochs += 1,
                _ => {}
            }
        }
        drop(state);
        match &result {
            // Memory is free again.
            Ok(_) => self.team.crew.shared.work.notify_one(),
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
            if let Some(batch) = self.arranger.carried(false)? {
                return Ok(Some(Next::Batch(batch)));
            }
            let Some(head) = self.wait_for_head(deadline) else {
                return Ok(if self.over { Some(Next::End) } else { None });
            };
            let batch = match head {
                Head::Ready(Delivered::Failed(error)) => return Err(error),
                Head::Ready(Delivered::End(epoch)) => {
                    self.arranger.end_epoch(epoch)?;
                    return Ok(Some(Next::EpochEnd(epoch)));
                }
                Head::Ready(Delivered::Batch(filling)) => self.arranger.filled(*filling, false)?,
                Head::Ready(Delivered::Lost(filling)) => self.arranger.filled(*filling, true)?,
                Head::Group(group) => {
                    // What comes after all rows comes round again once they are delivered.
                    if group.is_empty()
                        && let Some(batch) = self.arranger.carried(true)?
                    {
                        let mut state = self.team.crew.shared.lock();
                        if let Some(queue) = state.queue(self.number) {
                            queue.put_back(*group);
                        }
                        return Ok(Some(Next::Batch(batch)));
                    }
                    if group.is_end {
                        self.arranger.end_epoch(group.epoch)?;
                        return Ok(Some(Next::EpochEnd(group.epoch)));
                    }
                    self.arranger.group(*group)?
                }
            };
            if let Some(batch) = batch {
                return Ok(Some(Next::Batch(batch)));
            }
        }
    }

    /// From here on gives the batches of all ranks of a round.
    pub(crate) fn give_every_rank(&mut self) {
        self.arranger.give_every_rank();
    }

    /// The next batch, or bad row, of rows that are sorted by their lengths: `Some(None)` at the end,
    /// `None` if there is nothing yet.
    pub(crate) fn next_piece(&mut self, patience: Duration) -> Result<Option<Option<Piece>>> {
        let deadline = Instant::now().checked_add(patience);
        let mut end = self.over;
        loop {
            if let Some(piece) = self.arranger.sorted(end)? {
                return Ok(Some(Some(piece)));
            }
            if end {
                return Ok(Some(None));
            }
            match self.wait_for_head(deadline) {
                Some(Head::Group(group)) if group.is_end => (end, self.over) = (true, true),
                Some(Head::Group(group)) => drop(self.arranger.group(*group)?),
                Some(Head::Ready(_)) => {
                    return Err(Error::Internal("a window out of order".into()));
                }
                None if self.over => end = true,
                None => return Ok(None),
            }
        }
    }

    /// Takes the head of the order as soon as it is ready.
    pub(crate) fn wait_for_head(&mut self, deadline: Option<Instant>) -> Option<Head> {
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

    /// Where the run stands after what it has delivered.
    #[must_use]
    pub fn position(&self) -> Position {
        self.arranger.position()
    }

    /// How many steps are left in this epoch.
    #[must_use]
    pub fn steps_left(&self) -> Steps {
        self.arranger.steps_left()
    }

    /// Whether all epochs were delivered.
    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// What is fixed about it.
    pub(crate) fn lane(&self) -> &Lane {
        &self.lane
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
        let cache = self.lane.cache.as_ref().map(|cache| cache.stats());
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
            cache,
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.team.crew.shared.remove(self.number);
    }
}

/// What a queue gives.
pub(crate) enum Head {
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
