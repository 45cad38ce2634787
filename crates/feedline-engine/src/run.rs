//! A run: what its consumer holds.

use crate::counters::{Stats, step_table};
use crate::group::Group;
use crate::worker::{Shared, Worker, join_readers};
use crate::{Options, Steps, steps_left};
use feedline_core::{Batch, Error, Name, Policy, Pool, Position, Result, Store, Tensor};
use feedline_ops::{Pipeline, batch, plain};
use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
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

/// A running pipeline. Dropping it ends its threads.
pub struct Run {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    position: Position,
    /// Stretches of this epoch that were delivered whole, for counted plans.
    delivered: u64,
    /// Good rows of an uncounted plan that wait for their batch.
    carry: VecDeque<Row>,
    /// Bad samples of this epoch so far, in order.
    skipped: u64,
    failed: Option<Error>,
    over: bool,
    started: Instant,
}

/// A finished row of an uncounted plan.
struct Row {
    index: u64,
    fields: Vec<Tensor>,
    /// Where the run stands once this row is delivered.
    after: (u64, u64),
    skipped: u64,
}

impl Run {
    /// Starts running a pipeline from a position.
    ///
    /// # Errors
    ///
    /// If rank and world make no sense, or no thread can be started.
    pub fn start(
        pipeline: Arc<Pipeline>,
        store: Arc<dyn Store>,
        position: Position,
        options: Options,
    ) -> Result<Self> {
        if options.world == 0 || options.rank >= options.world {
            return Err(Error::pipeline(format!(
                "rank {} of {} ranks; ranks count from 0",
                options.rank, options.world
            )));
        }
        let shared = Arc::new(Shared::new(pipeline, store, position.clone(), options));
        let (batch, most) = (shared.budget.batch_bytes, physical_memory());
        if let Some(bytes) = batch.filter(|bytes| *bytes as u64 > most) {
            return Err(Error::pipeline(format!(
                "one batch has {bytes} bytes, and this machine {most}; make batches or images smaller"
            )));
        }
        let skipped = position.skipped;
        let mut run = Self {
            shared: Arc::clone(&shared),
            threads: Vec::new(),
            position,
            delivered: 0,
            carry: VecDeque::new(),
            skipped,
            failed: None,
            over: false,
            started: Instant::now(),
        };
        for number in 0..shared.budget.threads {
            let worker = Worker::new(Arc::clone(&shared));
            let thread = std::thread::Builder::new()
                .name(format!("feedline-{number}"))
                .spawn(move || worker.work());
            match thread {
                Ok(thread) => run.threads.push(thread),
                Err(_) if number > 0 => break,
                Err(error) => return Err(Error::unavailable("a thread", error)),
            }
        }
        Ok(run)
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
                let mut state = self.shared.lock();
                state.counters.batches += 1;
                state.counters.rows += batch.rows as u64;
                state.counters.bytes_delivered += batch.bytes() as u64;
            }
            Ok(Some(Next::EpochEnd(_))) => self.shared.lock().counters.epochs += 1,
            Ok(_) => {}
            Err(error) => {
                self.failed = Some(error.clone());
                self.shared.stop();
            }
        }
        result
    }

    fn advance(&mut self, patience: Duration) -> Result<Option<Next>> {
        let counted = self.shared.pipeline.is_counted();
        let deadline = Instant::now().checked_add(patience);
        loop {
            if self.over {
                return Ok(Some(Next::End));
            }
            if !counted && let Some(batch) = self.take_carried(false)? {
                return Ok(Some(Next::Batch(batch)));
            }
            let Some(mut group) = self.wait_for_group(deadline) else {
                return Ok(if self.over { Some(Next::End) } else { None });
            };
            if group.is_end {
                if let Some(batch) = self.take_carried(true)? {
                    // The end comes round again once the rest is delivered.
                    self.shared.lock().put_back(group);
                    return Ok(Some(Next::Batch(batch)));
                }
                self.carry.clear();
                self.position = Position::epoch(group.epoch.saturating_add(1));
                (self.delivered, self.skipped) = (0, 0);
                return Ok(Some(Next::EpochEnd(group.epoch)));
            }
            if counted {
                if let Some((_, error)) = group.first_bad() {
                    return Err(error);
                }
                let batch = self.assemble(group)?;
                self.delivered += 1;
                return Ok(Some(Next::Batch(batch)));
            }
            self.arrange(group)?;
        }
    }

    /// Takes the head of the order as soon as it is ready.
    fn wait_for_group(&mut self, deadline: Option<Instant>) -> Option<Group> {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        loop {
            if let Some(group) = state.pop() {
                shared.work.notify_one();
                return Some(group);
            }
            if state.is_over() {
                self.over = true;
                return None;
            }
            let start = Instant::now();
            let left = match deadline {
                Some(deadline) => deadline.checked_duration_since(start)?,
                None => Duration::from_secs(3600),
            };
            (state, _) =
                shared.done.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
            state.counters.wait_nanos += start.elapsed().as_nanos() as u64;
        }
    }

    /// The batch that a whole group is.
    fn assemble(&self, group: Group) -> Result<Batch> {
        let pipeline = &self.shared.pipeline;
        let rows = group.rows();
        let names = pipeline.sample.fields.iter().map(|field| field.name);
        let Some(recipe) = &pipeline.batch else {
            let mut row = group.into_rows(pipeline)?;
            let (_, index, fields) =
                row.pop().ok_or_else(|| Error::Internal("a sample without a row".into()))?;
            let indices = self.shared.options.with_index.then(|| vec![index]);
            return Ok(Batch { fields: names.zip(fields).collect(), rows: 1, indices });
        };
        let (columns, indices) = group.into_columns(pipeline, &self.shared.pool)?;
        let mut fields: Vec<(Name, Tensor)> = names.zip(columns).collect();
        if recipe.pad {
            fields.push((Name::new(batch::Batch::MASK), mask(rows, recipe.size)?));
        }
        let indices = self.shared.options.with_index.then_some(indices);
        Ok(Batch { fields, rows, indices })
    }

    /// Sorts the rows of a group into good ones, which wait for their batch, and bad ones, which
    /// are counted and written down.
    fn arrange(&mut self, mut group: Group) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let pipeline = &shared.pipeline;
        let (stretch, start) = (group.stretch, group.span.start);
        group.bad.sort_by_key(|(row, _)| *row);
        let bad = group.bad.clone();
        let epoch = group.epoch;
        let mut good = group.into_rows(pipeline)?.into_iter().peekable();
        let mut bad = bad.into_iter().peekable();
        loop {
            let next_good = good.peek().map_or(usize::MAX, |row| row.0);
            let next_bad = bad.peek().map_or(usize::MAX, |row| row.0);
            if next_good == usize::MAX && next_bad == usize::MAX {
                return Ok(());
            }
            if next_bad < next_good {
                let Some((_, error)) = bad.next() else { return Ok(()) };
                self.skip(epoch, error)?;
            } else if let Some((row, index, fields)) = good.next() {
                let after = (stretch, start + row as u64 + 1);
                self.carry.push_back(Row { index, fields, after, skipped: self.skipped });
            }
        }
    }

    fn skip(&mut self, epoch: u64, error: Error) -> Result<()> {
        let pipeline = &self.shared.pipeline;
        let Policy::Skip { count, share, file } = &pipeline.policy else { return Err(error) };
        if !error.is_record() {
            return Err(error);
        }
        self.skipped += 1;
        self.shared.lock().counters.skipped += 1;
        if let Some(path) = file {
            quarantine(path, epoch, &error)?;
        }
        plain::check_budget(self.skipped, *count, *share, pipeline.length(), &error)
    }

    /// A batch of an uncounted plan, if enough rows wait; at the end of the epoch, of what is left.
    fn take_carried(&mut self, end: bool) -> Result<Option<Batch>> {
        let pipeline = Arc::clone(&self.shared.pipeline);
        let size = pipeline.stretch();
        let count = self.carry.len().min(size);
        let drops = pipeline.batch.as_ref().is_some_and(|batch| batch.drop_last);
        if count == 0 || count < size && (!end || drops) {
            return Ok(None);
        }
        let rows: Vec<Row> = self.carry.drain(..count).collect();
        if let Some(last) = rows.last() {
            self.position.at = Some(last.after);
            self.position.skipped = last.skipped;
        }
        let names: Vec<Name> = pipeline.sample.fields.iter().map(|field| field.name).collect();
        let named =
            |row: Row| (row.index, names.iter().copied().zip(row.fields).collect::<Vec<_>>());
        let with_index = self.shared.options.with_index;
        let Some(recipe) = &pipeline.batch else {
            let (index, fields) = rows.into_iter().map(named).next().unwrap_or((0, Vec::new()));
            let indices = with_index.then(|| vec![index]);
            return Ok(Some(Batch { fields, rows: 1, indices }));
        };
        let rows: Vec<_> = rows.into_iter().map(named).collect();
        let pool: &Pool = &self.shared.pool;
        plain::stack(&pipeline, &rows, size, recipe.pad, with_index, pool).map(Some)
    }

    /// Where the run stands after what it has delivered.
    #[must_use]
    pub fn position(&self) -> Position {
        if !self.shared.pipeline.is_counted() {
            return self.position.clone();
        }
        let options = &self.shared.options;
        let round = options.world.saturating_mul(self.shared.pipeline.stretch() as u64);
        let places = self.delivered.saturating_mul(round);
        Position { tail: self.position.tail.saturating_add(places), ..self.position.clone() }
    }

    /// How many steps are left in this epoch.
    #[must_use]
    pub fn steps_left(&self) -> Steps {
        let options = &self.shared.options;
        steps_left(&self.shared.pipeline, &self.position(), options.rank, options.world)
    }

    /// The run's options.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.shared.options
    }

    /// What the run did so far, and where its time went.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let state = self.shared.lock();
        let counters = &state.counters;
        let names: Vec<&str> = self.shared.pipeline.maps.iter().map(|step| step.name).collect();
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
            ready: state.open.iter().take_while(|group| group.is_ready()).count(),
            open: state.open.len(),
            threads: self.shared.budget.threads,
            steps: step_table(&names, counters),
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.shared.stop();
        for thread in self.threads.drain(..) {
            // A worker cannot panic out of its loop; if it did, there is nothing left to do here.
            let _ = thread.join();
        }
        join_readers(&self.shared);
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

fn mask(rows: usize, size: usize) -> Result<Tensor> {
    let mask: Vec<u8> = (0..size).map(|row| u8::from(row < rows)).collect();
    Tensor::new(feedline_core::DType::Bool, &[size], feedline_core::Buffer::from(&mask[..]))
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
