//! Batches that take what is ready: rows are put into them in the order in which they are finished.
//!
//! ```text
//!  rows finished, in any order ──claim──► row of the batch being filled ──copied──► delivered
//! ```
//!
//! No row moves further than the window allows: rows are started only within the window's length of
//! the first that has no batch yet, so when that one is `max_slip` batches late, nothing else is
//! left to take.

use crate::group::{Column, columns, split_columns, stack_columns};
use crate::lane::Lane;
use crate::tracker::Tracker;
use feedline_core::{Error, Name, Pool, Position, Result, RowsMut, Tensor};
use feedline_ops::Pipeline;
use std::collections::VecDeque;

/// A batch that is being filled, or waits to be delivered.
pub(crate) struct Filling {
    columns: Vec<Column>,
    claimed: usize,
    copied: usize,
    bytes: usize,
    pub indices: Vec<u64>,
    pub places: Vec<u64>,
    /// Numbers of all rows it accounts for, bad ones included.
    pub numbers: Vec<u64>,
    /// Places of rows it accounts for and why they are bad.
    pub bad: Vec<(u64, Error)>,
}

impl Filling {
    fn new(lane: &Lane) -> Result<Self> {
        let size = lane.pipeline.stretch();
        let (columns, bytes) = columns(&lane.pipeline, &lane.pool, size, false)?;
        Ok(Self {
            columns,
            claimed: 0,
            copied: 0,
            bytes,
            indices: Vec::with_capacity(size),
            places: Vec::with_capacity(size),
            numbers: Vec::with_capacity(size),
            bad: Vec::new(),
        })
    }

    pub(crate) fn rows(&self) -> usize {
        self.claimed
    }

    /// The fields: stacked, or those of the one sample if the plan has no batches.
    ///
    /// # Errors
    ///
    /// If rows have different shapes.
    pub(crate) fn into_fields(
        self,
        pipeline: &Pipeline,
        pool: &Pool,
    ) -> Result<Vec<(Name, Tensor)>> {
        if pipeline.batch.is_none() {
            let rows = split_columns(self.columns, 1, vec![0], pipeline)?;
            let names = pipeline.sample.fields.iter().map(|field| field.name);
            return Ok(names.zip(rows.into_iter().flat_map(|(_, fields)| fields)).collect());
        }
        stack_columns(self.columns, self.claimed, &self.indices, pipeline, pool)
    }
}

/// A row that was given its place in a batch and has to be copied there.
pub(crate) struct Claim {
    epoch: u64,
    batch: u64,
    copies: Vec<(RowsMut, Tensor)>,
}

impl Claim {
    /// Copies the row to its place.
    pub(crate) fn copy(&mut self) {
        for (mut row, tensor) in self.copies.drain(..) {
            row.row(0).copy_from_slice(tensor.data());
        }
    }
}

/// The batches of one epoch.
struct Epoch {
    epoch: u64,
    /// Rows that have a batch.
    placed: Tracker,
    batches: VecDeque<Filling>,
    /// Number of the first of them.
    first: u64,
    /// Batches of padding alone, at the end.
    padding: usize,
    /// Whether every row has a batch.
    ended: bool,
    failed: Option<Error>,
}

/// What can be delivered.
pub(crate) enum Delivered {
    Batch(Box<Filling>),
    /// What is left of an epoch and dropped, or bad altogether.
    Lost(Box<Filling>),
    End(u64),
    Failed(Error),
}

/// All batches that are being filled.
#[derive(Default)]
pub(crate) struct Ready {
    epochs: VecDeque<Epoch>,
    /// Batches that are full, and bytes of all batches.
    pub full: usize,
    pub bytes: usize,
}

impl Ready {
    /// Begins an epoch.
    pub(crate) fn begin(&mut self, start: &Position) {
        self.epochs.push_back(Epoch {
            epoch: start.epoch,
            placed: Tracker::new(start),
            batches: VecDeque::new(),
            first: start.batches,
            padding: 0,
            ended: false,
            failed: None,
        });
    }

    fn epoch(&mut self, epoch: u64) -> Option<&mut Epoch> {
        self.epochs.iter_mut().find(|known| known.epoch == epoch)
    }

    pub(crate) fn has(&self, epoch: u64) -> bool {
        self.epochs.iter().any(|known| known.epoch == epoch)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.epochs.is_empty()
    }

    /// The first row of an epoch that has no batch yet.
    pub(crate) fn first_owed(&self, epoch: u64) -> u64 {
        let known = self.epochs.iter().find(|known| known.epoch == epoch);
        known.map_or(0, |known| known.placed.first())
    }

    /// Gives a finished row the next place in a batch.
    pub(crate) fn claim(
        &mut self,
        lane: &Lane,
        epoch: u64,
        (place, number, index): (u64, u64, u64),
        result: Result<Vec<(usize, Tensor)>>,
    ) -> Option<Claim> {
        let size = lane.pipeline.stretch();
        let counted = lane.pipeline.is_counted();
        let odd = |values: &Vec<(usize, Tensor)>| {
            let sizes = lane.pipeline.sample.fields.iter().map(feedline_core::Field::bytes);
            let mut pairs = sizes.zip(values);
            pairs
                .find(|(size, (_, value))| size.is_some_and(|size| size != value.data().len()))
                .map(|(size, (_, value))| {
                    let (have, room) = (value.data().len(), size.unwrap_or(0));
                    let what =
                        format!("a value of {have} bytes where the batch has room for {room}");
                    lane.pipeline.at(Error::record(what), index, "batch")
                })
        };
        let result = result.and_then(|values| odd(&values).map_or(Ok(values), Err));
        let Self { epochs, bytes, .. } = self;
        let epoch = epochs.iter_mut().find(|known| known.epoch == epoch)?;
        if epoch.batches.back().is_none_or(|batch| batch.claimed == size) {
            match Filling::new(lane) {
                Ok(batch) => {
                    *bytes += batch.bytes;
                    epoch.batches.push_back(batch);
                }
                Err(error) => {
                    epoch.failed.get_or_insert(error);
                    return None;
                }
            }
        }
        let at = epoch.first + epoch.batches.len() as u64 - 1;
        let batch = epoch.batches.back_mut()?;
        let values = match result {
            Ok(values) => values,
            Err(error) if !counted && error.is_of_one_sample() => {
                epoch.placed.mark(number);
                batch.numbers.push(number);
                batch.bad.push((place, error));
                return None;
            }
            // It stays owed, so the window runs dry and the error's turn comes.
            Err(error) => {
                epoch.failed.get_or_insert(error);
                return None;
            }
        };
        epoch.placed.mark(number);
        let row = batch.claimed;
        batch.claimed += 1;
        batch.indices.push(index);
        batch.places.push(place);
        batch.numbers.push(number);
        let mut copies = Vec::with_capacity(values.len());
        for (column, (_, tensor)) in batch.columns.iter_mut().zip(values) {
            match column {
                Column::Slots(slots) => copies.push((slots.next_rows(1), tensor)),
                Column::Rows(rows) => {
                    batch.bytes += tensor.data().len();
                    *bytes += tensor.data().len();
                    rows[row] = Some(tensor);
                }
            }
        }
        Some(Claim { epoch: epoch.epoch, batch: at, copies })
    }

    /// Notes that a row was copied to its place in a batch of `size`.
    pub(crate) fn copied(&mut self, claim: &Claim, size: usize) {
        let Some(epoch) = self.epoch(claim.epoch) else { return };
        let at = claim.batch.checked_sub(epoch.first);
        if let Some(batch) = at.and_then(|at| epoch.batches.get_mut(at as usize)) {
            batch.copied += 1;
            self.full += usize::from(batch.copied == size);
        }
    }

    /// Ends the epoch with an error, after the batches that are full.
    pub(crate) fn fail(&mut self, epoch: u64, error: Error) {
        match self.epoch(epoch) {
            Some(epoch) => drop(epoch.failed.get_or_insert(error)),
            None => {
                self.begin(&Position::epoch(epoch));
                self.fail(epoch, error);
            }
        }
    }

    /// One more batch of padding alone comes at the end of the epoch.
    pub(crate) fn pad(&mut self, epoch: u64) {
        self.epoch(epoch).into_iter().for_each(|epoch| epoch.padding += 1);
    }

    /// Every row of the epoch has a batch now.
    pub(crate) fn end(&mut self, epoch: u64, lane: &Lane) {
        let Self { epochs, bytes, .. } = self;
        let Some(epoch) = epochs.iter_mut().find(|known| known.epoch == epoch) else { return };
        epoch.ended = true;
        for _ in 0..epoch.padding {
            match Filling::new(lane) {
                Ok(batch) => {
                    *bytes += batch.bytes;
                    epoch.batches.push_back(batch);
                }
                Err(error) => {
                    epoch.failed.get_or_insert(error);
                    return;
                }
            }
        }
    }

    /// Epochs whose end waits to be delivered.
    pub(crate) fn ended(&self) -> usize {
        self.epochs.iter().filter(|epoch| epoch.ended).count()
    }

    /// Whether there is something to deliver.
    pub(crate) fn is_ready(&self, lane: &Lane) -> bool {
        let Some(front) = self.epochs.front() else { return false };
        let ends = front.ended || front.failed.is_some();
        match front.batches.front() {
            Some(batch) => {
                let full = batch.claimed == lane.pipeline.stretch();
                (full || ends) && batch.copied == batch.claimed
            }
            None => ends,
        }
    }

    /// What comes next, if it is there.
    pub(crate) fn pop(&mut self, lane: &Lane) -> Option<Delivered> {
        let size = lane.pipeline.stretch();
        let recipe = lane.pipeline.batch.as_ref();
        let front = self.epochs.front_mut()?;
        if let Some(batch) = front.batches.front() {
            let (full, whole) = (batch.claimed == size, batch.copied == batch.claimed);
            let last = front.ended && front.failed.is_none();
            if (full || last) && whole {
                let batch = front.batches.pop_front()?;
                front.first += 1;
                self.full -= usize::from(full);
                self.bytes -= batch.bytes;
                let dropped = !full && recipe.is_some_and(|recipe| recipe.drop_last);
                let pads = recipe.is_some_and(|recipe| recipe.pad) && lane.pipeline.is_counted();
                let empty = batch.claimed == 0 && !pads;
                if dropped || empty {
                    // Bad rows are still accounted for.
                    return Some(Delivered::Lost(Box::new(batch)));
                }
                return Some(Delivered::Batch(Box::new(batch)));
            }
            if full || !whole || front.failed.is_none() {
                return None;
            }
        }
        if let Some(error) = &front.failed {
            return Some(Delivered::Failed(error.clone()));
        }
        if front.ended {
            let ended = self.epochs.pop_front()?;
            return Some(Delivered::End(ended.epoch));
        }
        None
    }
}
