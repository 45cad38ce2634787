//! Arranging: finished rows become batches, in order, and the place of the run moves on.
//!
//! ```text
//!  group whose rows are all good ────────────────────────────► batch
//!  group that may lack rows ──► rows that wait (carry) ──────► batch
//!  group of a stretch ──► rows sorted by length (bucket.rs) ──► batch
//!  batch that took what was ready ───────────────────────────► batch
//! ```
//!
//! It knows nothing of threads: what it is given may have been made here or elsewhere.

use crate::bucket::{ByLength, Piece};
use crate::deal::{follows_rows, row_of};
use crate::group::Group;
use crate::ready::Filling;
use crate::record::{MadeOf, Recorder};
use crate::tracker::Tracker;
use crate::{Delivery, Options, Steps, rounds_left, steps_left};
use feedline_core::{Batch, Error, Name, Policy, Pool, Position, Result, Tensor};
use feedline_ops::batch::stack;
use feedline_ops::{Pipeline, plain};
use std::collections::VecDeque;
use std::io::Write;
use std::sync::Arc;

/// Makes batches of what it is given, and knows where the run stands after each.
pub(crate) struct Arranger {
    pipeline: Arc<Pipeline>,
    options: Options,
    pool: Pool,
    /// Where this epoch was begun, and which rows were delivered since, where rows flow together.
    start: Position,
    tracker: Tracker,
    /// Batches of this epoch that were delivered.
    delivered: u64,
    /// Good rows that wait for their batch, where rows flow together in order.
    carry: VecDeque<Row>,
    /// Sorts rows by their lengths, where the plan says so.
    by_length: Option<ByLength>,
    /// Bad samples of this epoch so far: as counted, and as delivered.
    skipped: u64,
    skipped_delivered: u64,
    /// Bad samples left out since the start of the run.
    pub left_out: u64,
    /// Writes batches down, and how many came before those that are counted in `delivered`.
    recorder: Option<(Recorder, u64)>,
}

/// A row's place and number, and its index and fields, or why it is bad.
pub(crate) type Finished = (u64, u64, Result<(u64, Vec<Tensor>)>);

/// A finished row that waits for its batch; its fields are absent if it was bad.
struct Row {
    index: u64,
    place: u64,
    number: u64,
    fields: Option<Vec<Tensor>>,
    skipped: u64,
}

impl Arranger {
    /// Begins at a position.
    ///
    /// # Errors
    ///
    /// If the options make no sense, or what is to be replayed or recorded does not fit.
    pub(crate) fn new(
        pipeline: Arc<Pipeline>,
        options: Options,
        pool: Pool,
        position: Position,
    ) -> Result<Self> {
        options.check(&pipeline)?;
        if let Delivery::Replay(recording) = &options.delivery {
            recording.fits(&pipeline, &options)?;
        }
        let window = options.delivery == Delivery::Stretches;
        if options.rounds && position.at.is_some() && !window {
            return Err(Error::State(
                "it was saved without rounds, where ranks stand at different places: merge the states \
                 of all ranks first (merge_states)"
                    .into(),
            ));
        }
        let recorder = match &options.record {
            Some(path) => {
                let first = batches_before(&pipeline, &position, &options)?;
                let begins = (position.epoch, first + position.batches);
                Some((Recorder::open(path, &pipeline, &options, begins)?, first))
            }
            None => None,
        };
        Ok(Self {
            by_length: pipeline.bucket.as_ref().map(ByLength::new),
            pipeline,
            options,
            pool,
            tracker: Tracker::new(&position),
            delivered: position.batches,
            carry: VecDeque::new(),
            skipped: position.skipped,
            skipped_delivered: position.skipped,
            left_out: 0,
            start: position,
            recorder,
        })
    }

    /// Takes a group: the batch it is, or `None` if its rows wait for others.
    ///
    /// # Errors
    ///
    /// If a row is bad and may not be left out.
    pub(crate) fn group(&mut self, mut group: Group) -> Result<Option<Batch>> {
        let replays = matches!(self.options.delivery, Delivery::Replay(_));
        if group.numbers.is_empty() || replays {
            if let Some((_, error)) = group.first_bad() {
                return Err(error);
            }
            return self.assemble(group).map(Some);
        }
        self.sort(group)?;
        Ok(None)
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
        let (epoch, places) = (group.epoch, Arc::clone(&group.places));
        let numbers = group.numbers.clone();
        let batch = whole_batch(group, &self.pipeline, &self.pool, self.options.with_index)?;
        // A replay leaves out what its recording left out.
        if let Delivery::Replay(recording) = &self.options.delivery
            && let Some(made_of) = recording.batch(epoch, self.options.rank, self.delivered)
        {
            for place in &made_of.skipped {
                let row = row_of(&self.start, *place, &self.pipeline, &self.options)?;
                self.tracker.mark(row);
            }
            self.skipped += made_of.skipped.len() as u64;
            self.skipped_delivered = self.skipped;
        }
        self.note_batch(epoch, &places)?;
        numbers.into_iter().for_each(|number| self.tracker.mark(number));
        Ok(batch)
    }

    /// A batch that took what was ready; `None` if nothing is left of it.
    ///
    /// # Errors
    ///
    /// If one of its rows is bad and may not be left out.
    pub(crate) fn filled(&mut self, mut filling: Filling, lost: bool) -> Result<Option<Batch>> {
        let pipeline = Arc::clone(&self.pipeline);
        let epoch = self.start.epoch;
        let mut skipped = Vec::new();
        for (place, error) in std::mem::take(&mut filling.bad) {
            self.skip(epoch, error)?;
            skipped.push(place);
        }
        let rows = filling.rows();
        let numbers = std::mem::take(&mut filling.numbers);
        let places = std::mem::take(&mut filling.places);
        let mut batch = None;
        if !lost {
            let indices = self.options.with_index.then(|| filling.indices.clone());
            let fields = filling.into_fields(&pipeline, &self.pool)?;
            batch = Some(Batch { fields, rows, indices });
            self.note(epoch, || MadeOf { places, skipped })?;
        }
        numbers.into_iter().for_each(|number| self.tracker.mark(number));
        self.skipped_delivered = self.skipped;
        Ok(batch)
    }

    /// Sorts the rows of a group into good ones, which wait for their batch, and bad ones, which
    /// are counted and written down.
    fn sort(&mut self, mut group: Group) -> Result<()> {
        let (epoch, places) = (group.epoch, Arc::clone(&group.places));
        let numbers = std::mem::take(&mut group.numbers);
        let (good, bad) = group.into_good_rows(&self.pipeline)?;
        let good = good.into_iter().map(|(row, index, fields)| (row, Ok((index, fields))));
        let bad = bad.into_iter().map(|(row, error)| (row, Err(error)));
        let mut rows: Vec<_> = good.chain(bad).collect();
        rows.sort_unstable_by_key(|(row, _)| *row);
        let rows = rows.into_iter().map(|(row, result)| (places[row], numbers[row], result));
        self.rows(epoch, rows.collect())
    }

    /// Takes rows in their order, each with its place and its number: good ones wait for their
    /// batch, bad ones are counted and written down.
    ///
    /// # Errors
    ///
    /// If one is bad and may not be left out.
    pub(crate) fn rows(&mut self, epoch: u64, rows: Vec<Finished>) -> Result<()> {
        if let Some(mut sorter) = self.by_length.take() {
            self.sort_by_length(&mut sorter, epoch, rows);
            self.by_length = Some(sorter);
            return Ok(());
        }
        for (place, number, result) in rows {
            let (mut index, mut fields) = (0, None);
            match result {
                Ok(values) => (index, fields) = (values.0, Some(values.1)),
                Err(error) => self.skip(epoch, error)?,
            }
            let skipped = self.skipped;
            self.carry.push_back(Row { index, place, number, fields, skipped });
        }
        Ok(())
    }

    /// Sorts rows by their lengths. An error waits behind the batches that come before it.
    fn sort_by_length(&mut self, sorter: &mut ByLength, epoch: u64, rows: Vec<Finished>) {
        let names: Vec<Name> = self.pipeline.sample.fields.iter().map(|field| field.name).collect();
        for (_, number, result) in rows {
            if sorter.has_failed() {
                return;
            }
            let at = (number, self.skipped);
            match result {
                Ok((index, fields)) => {
                    let row = (index, names.iter().copied().zip(fields).collect());
                    sorter.row(&self.start, &self.options, at, Some(row));
                }
                Err(error) => {
                    sorter.row(&self.start, &self.options, at, None);
                    let elsewhere = self.options.delivery == Delivery::Stretches;
                    if elsewhere && self.pipeline.policy != Policy::Raise && error.is_record() {
                        sorter.bad(number, error);
                    } else if let Err(error) = self.skip(epoch, error) {
                        sorter.fail(error);
                    }
                }
            }
            sorter.taken(number);
        }
    }

    /// From here on gives the batches of all ranks of a round.
    pub(crate) fn give_every_rank(&mut self) {
        self.by_length.iter_mut().for_each(ByLength::give_every_rank);
    }

    /// The next batch, or bad row, of rows that are sorted by their lengths; at the end of a stretch,
    /// of what is left.
    ///
    /// # Errors
    ///
    /// If rows have shapes that do not go together, or one is bad and may not be left out.
    pub(crate) fn sorted(&mut self, end: bool) -> Result<Option<Piece>> {
        let Some(sorter) = &mut self.by_length else { return Ok(None) };
        if end {
            sorter.finish();
        }
        let Some((piece, skipped)) = sorter.next(&self.pipeline, &self.options, &self.pool)? else {
            return Ok(None);
        };
        if let Piece::Batch(_) = &piece {
            self.skipped_delivered = skipped;
            self.delivered += 1;
        }
        Ok(Some(piece))
    }

    /// Notes a batch that was made elsewhere, of a stretch whose samples are sorted by length.
    /// `skipped` bad ones were counted before it.
    pub(crate) fn note_sorted(&mut self, stretch: u64, skipped: u64) {
        if let Some(sorter) = &mut self.by_length {
            sorter.delivered(stretch);
        }
        self.skipped_delivered = skipped;
        self.delivered += 1;
    }

    /// Counts a bad row that was found elsewhere.
    ///
    /// # Errors
    ///
    /// If it may not be left out.
    pub(crate) fn note_bad(&mut self, epoch: u64, error: Error) -> Result<()> {
        self.skip(epoch, error)
    }

    /// Bad samples of this epoch that were counted so far.
    pub(crate) fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Notes a batch that was made elsewhere, of a whole stretch with these places.
    ///
    /// # Errors
    ///
    /// If it cannot be written down.
    pub(crate) fn note_batch(&mut self, epoch: u64, places: &[u64]) -> Result<()> {
        self.note(epoch, || MadeOf { places: places.to_vec(), skipped: Vec::new() })
    }

    fn skip(&mut self, epoch: u64, error: Error) -> Result<()> {
        let before = self.skipped;
        let left_out = leave_out(&self.pipeline, epoch, &mut self.skipped, error);
        self.left_out += self.skipped - before;
        left_out
    }

    /// A batch of rows that flow together, if enough wait; at the end of the epoch, of what is left.
    ///
    /// # Errors
    ///
    /// If rows have different shapes.
    pub(crate) fn carried(&mut self, end: bool) -> Result<Option<Batch>> {
        if self.by_length.is_some() {
            return Ok(match self.sorted(end)? {
                Some(Piece::Batch(batch)) => Some(batch),
                Some(Piece::Bad(_)) | None => None,
            });
        }
        let pipeline = Arc::clone(&self.pipeline);
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
        let with_index = self.options.with_index;
        let Some(recipe) = &pipeline.batch else {
            let (index, fields) = rows.into_iter().next().unwrap_or((0, Vec::new()));
            let indices = with_index.then(|| vec![index]);
            return Ok(Some(Batch { fields, rows: 1, indices }));
        };
        stack(&pipeline, &rows, recipe.room(), with_index, &self.pool).map(Some)
    }

    /// Begins the epoch after `epoch`.
    ///
    /// # Errors
    ///
    /// If its end cannot be written down.
    pub(crate) fn end_epoch(&mut self, epoch: u64) -> Result<()> {
        if let Some((recorder, before)) = &mut self.recorder {
            recorder.end(epoch, self.delivered + *before)?;
        }
        self.carry.clear();
        self.by_length = self.pipeline.bucket.as_ref().map(ByLength::new);
        self.start = Position::epoch(epoch.saturating_add(1));
        self.tracker = Tracker::new(&self.start);
        (self.delivered, self.skipped, self.skipped_delivered) = (0, 0, 0);
        self.recorder.iter_mut().for_each(|(_, before)| *before = 0);
        Ok(())
    }

    /// Where the run stands after what it has delivered.
    pub(crate) fn position(&self) -> Position {
        let Options { rank, world, delivery, .. } = &self.options;
        if let Some(sorter) = &self.by_length {
            let position = sorter.position(&self.start, &self.options);
            return Position { skipped: self.skipped_delivered, ..position };
        }
        let size = self.pipeline.stretch() as u64;
        if !follows_rows(&self.pipeline, &self.options, &self.start) {
            let places = (self.delivered - self.start.batches).saturating_mul(*world);
            return self.start.after(places.saturating_mul(size));
        }
        let exact = *delivery == Delivery::Exact && self.start.batches == 0;
        let batches = if exact { 0 } else { self.delivered };
        let position = self.tracker.position(&self.start, size, *rank, *world);
        Position { batches, skipped: self.skipped_delivered, ..position }
    }

    /// How many steps are left in this epoch.
    pub(crate) fn steps_left(&self) -> Steps {
        let Options { rank, world, rounds, .. } = self.options;
        match rounds {
            true => rounds_left(&self.pipeline, &self.position(), world),
            false => steps_left(&self.pipeline, &self.position(), rank, world),
        }
    }
}

/// The batch, or the sample, that a group without bad rows is.
///
/// # Errors
///
/// If rows have different shapes.
pub(crate) fn whole_batch(
    group: Group,
    pipeline: &Pipeline,
    pool: &Pool,
    with_index: bool,
) -> Result<Batch> {
    let rows = group.rows();
    if pipeline.batch.is_none() {
        let names = pipeline.sample.fields.iter().map(|field| field.name);
        let (mut good, _) = group.into_good_rows(pipeline)?;
        let (_, index, fields) =
            good.pop().ok_or_else(|| Error::Internal("a sample without a row".into()))?;
        let indices = with_index.then(|| vec![index]);
        return Ok(Batch { fields: names.zip(fields).collect(), rows: 1, indices });
    }
    let (fields, indices) = group.into_columns(pipeline, pool)?;
    Ok(Batch { fields, rows, indices: with_index.then_some(indices) })
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

/// Leaves a bad sample out, if the pipeline allows that: counts it and writes it down. One that a
/// filter left out is not counted.
///
/// # Errors
///
/// If it does not.
pub(crate) fn leave_out(
    pipeline: &Pipeline,
    epoch: u64,
    skipped: &mut u64,
    error: Error,
) -> Result<()> {
    if error.is_filtered() {
        return Ok(());
    }
    let Policy::Skip { count, share, file } = &pipeline.policy else { return Err(error) };
    if !error.is_record() {
        return Err(error);
    }
    *skipped += 1;
    if let Some(path) = file {
        quarantine(path, epoch, &error)?;
    }
    plain::check_budget(*skipped, *count, *share, pipeline.length(), &error)
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
