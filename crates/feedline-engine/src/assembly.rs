//! Makes of stretches that were computed anywhere what a run here would have delivered: the same
//! batches, the same positions, the same errors.
//!
//! ```text
//!  wants() ──► which step ──► (someone computes it) ──► give() ──► next() ──► batch, or the end
//! ```
//!
//! Where samples are sorted by their lengths (`bucket`), what is wanted is a stretch from a batch on,
//! its batches are given one by one, and [`Assembly::end`] says that there are no more.

use crate::arrange::Arranger;
use crate::deal::{Dealer, Dealt, first_stretch};
use crate::group::Group;
use crate::{Next, Options, Steps};
use feedline_core::{Batch, Cursor, EpochSeed, Error, Pool, Position, Result, Rows, Tensor};
use feedline_ops::Pipeline;
use std::sync::Arc;

/// A stretch that is needed next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Where its epoch was begun.
    pub start: Position,
    /// Which of the rank's steps it is; with `bucket`, which of the rank's stretches.
    pub step: u64,
    /// With `bucket`, the first batch of the stretch that is needed.
    pub from: u64,
}

/// Puts stretches together.
pub struct Assembly {
    pipeline: Arc<Pipeline>,
    options: Options,
    pool: Pool,
    dealer: Dealer,
    arranger: Arranger,
    cursor: Cursor,
    /// What was dealt and is not arranged yet.
    dealt: Option<Dealt>,
    /// A batch that can be delivered.
    batch: Option<Batch>,
    /// Of the stretch that is wanted, where it gives several batches.
    part: Part,
    failed: Option<Error>,
    over: bool,
}

/// How far a stretch has come of which batches are given one by one.
#[derive(Debug, Default)]
struct Part {
    /// Batches that this run has taken of it, or had when it was left.
    taken: u64,
    /// Bad rows up to here were counted.
    bad: usize,
    /// Bad rows of the epoch that were counted before it.
    skipped: u64,
}

impl Assembly {
    /// Begins at a position.
    ///
    /// # Errors
    ///
    /// If the options make no sense.
    pub fn new(pipeline: Arc<Pipeline>, position: Position, options: Options) -> Result<Self> {
        let pool = Pool::new(options.memory);
        let dealer = Dealer::whole(position.clone(), &options);
        let cursor = Cursor::new(EpochSeed { seed: options.seed, epoch: position.epoch });
        let arranger =
            Arranger::new(Arc::clone(&pipeline), options.clone(), pool.clone(), position)?;
        let (dealt, batch, failed) = (None, None, None);
        Ok(Self {
            pipeline,
            options,
            pool,
            dealer,
            arranger,
            cursor,
            dealt,
            batch,
            part: Part::default(),
            failed,
            over: false,
        })
    }

    /// Delivers what can be delivered; `None` if the stretch that [`Assembly::wants`] names has to
    /// be given first.
    ///
    /// # Errors
    ///
    /// The first error in the order of samples. After it the run is over, and says so again.
    #[expect(clippy::should_implement_trait, reason = "epochs end without ending the run")]
    pub fn next(&mut self) -> Result<Option<Next>> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let next = self.advance();
        if let Err(error) = &next {
            self.failed = Some(error.clone());
        }
        next
    }

    fn advance(&mut self) -> Result<Option<Next>> {
        loop {
            if self.over {
                return Ok(Some(Next::End));
            }
            if let Some(batch) = self.batch.take() {
                return Ok(Some(Next::Batch(batch)));
            }
            if let Some(batch) = self.arranger.carried(false)? {
                return Ok(Some(Next::Batch(batch)));
            }
            if self.dealt.is_none() {
                self.dealt = self.dealer.next(&self.pipeline, &self.options)?;
                let at = self.dealer.start().at;
                let at = at.filter(|at| at.0 == self.dealer.dealt_stretch());
                let (taken, skipped) = (at.map_or(0, |at| at.1), self.arranger.skipped());
                self.part = Part { taken, bad: 0, skipped };
            }
            match &self.dealt {
                None => self.over = true,
                Some(Dealt::Rows { places, .. }) if !places.is_empty() => return Ok(None),
                Some(dealt) => {
                    // What comes after all rows comes once they are delivered.
                    if let Some(batch) = self.arranger.carried(true)? {
                        return Ok(Some(Next::Batch(batch)));
                    }
                    if let Dealt::End { epoch } = *dealt {
                        self.dealt = None;
                        self.arranger.end_epoch(epoch)?;
                        return Ok(Some(Next::EpochEnd(epoch)));
                    }
                    self.dealt = None;
                    let epoch = self.dealer.start().epoch;
                    let mut padding = Group::new(epoch, Vec::new(), Vec::new(), false, 0);
                    padding.allocate(&self.pipeline, &self.pool, false)?;
                    self.batch = self.arranger.group(padding)?;
                }
            }
        }
    }

    /// Which stretch has to be given before anything else can be delivered, if one has to.
    #[must_use]
    pub fn wants(&self) -> Option<Wanted> {
        let Some(Dealt::Rows { places, .. }) = &self.dealt else { return None };
        let (first, stride) = first_stretch(&self.options);
        let step = (self.dealer.dealt_stretch() - first) / stride;
        let from = if self.pipeline.bucket.is_some() { self.part.taken } else { 0 };
        (!places.is_empty()).then(|| Wanted { start: self.dealer.start().beginning(), step, from })
    }

    /// Takes the next batch, or bad rows, of a stretch that gives several.
    fn give_one(&mut self, rows: Rows) -> Result<()> {
        let Some(Dealt::Rows { epoch, .. }) = self.dealt else {
            return Err(Error::Internal("a batch that was not wanted".into()));
        };
        match rows {
            Rows::Batch(mut batch) => {
                let counted = batch.indices.as_ref().is_none_or(|all| all.len() == batch.rows);
                if batch.rows > self.pipeline.group() || !counted {
                    return Err(Error::Internal(format!("a batch of {} rows", batch.rows)));
                }
                if !self.options.with_index {
                    batch.indices = None;
                }
                self.arranger.note_sorted(self.dealer.dealt_stretch(), self.part.skipped);
                self.part.taken += 1;
                self.batch = Some(batch);
            }
            Rows::Some { bad, .. } => {
                for (row, error) in bad {
                    // A stretch that was computed once more names them again.
                    if row >= self.part.bad {
                        self.part.bad = row + 1;
                        self.arranger.note_bad(epoch, error)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Says that the stretch that is wanted gives no more batches.
    ///
    /// # Errors
    ///
    /// If the plan's stretches are batches.
    pub fn end(&mut self) -> Result<()> {
        if self.pipeline.bucket.is_none() || self.dealt.take().is_none() {
            return Err(Error::Internal("the end of a stretch that was not wanted".into()));
        }
        Ok(())
    }

    /// Takes the stretch that is wanted.
    ///
    /// # Errors
    ///
    /// If none is wanted, or it does not have the rows it should have.
    pub fn give(&mut self, rows: Rows) -> Result<()> {
        if self.pipeline.bucket.is_some() {
            let given = self.give_one(rows);
            self.failed = given.as_ref().err().cloned();
            return given;
        }
        let Some(Dealt::Rows { epoch, places, numbers }) = self.dealt.take() else {
            return Err(Error::Internal("a stretch that was not wanted".into()));
        };
        let wrong = || Error::Internal("a stretch with other rows than it should have".into());
        let indices: Vec<u64> = places.iter().map(|place| self.index(epoch, *place)).collect();
        let (good, bad) = match rows {
            Rows::Batch(mut batch) if numbers.is_empty() => {
                if batch.rows != places.len() {
                    return Err(wrong());
                }
                batch.indices = self.options.with_index.then_some(indices);
                self.arranger.note_batch(epoch, &places)?;
                self.batch = Some(batch);
                return Ok(());
            }
            Rows::Batch(batch) => (self.split(&batch), Vec::new()),
            Rows::Some { good, bad } => {
                (good.into_iter().map(|(row, _, fields)| (row, fields)).collect(), bad)
            }
        };
        // Of a stretch that was delivered in part, only the rest is dealt.
        let size = self.pipeline.stretch() as u64;
        let length = self.pipeline.length().places();
        let all = self.dealer.start().places(self.dealer.dealt_stretch(), size, length);
        let (mut good, mut bad) = (good.into_iter().peekable(), bad.into_iter().peekable());
        let mut wanted = places.iter().copied().zip(numbers).zip(indices).peekable();
        let mut rows = Vec::with_capacity(places.len());
        for (row, place) in all.into_iter().enumerate() {
            let values = good.next_if(|(good, _)| *good == row).map(|(_, fields)| fields);
            let error = bad.next_if(|(bad, _)| *bad == row).map(|(_, error)| error);
            let Some(((_, number), index)) = wanted.next_if(|((wanted, _), _)| *wanted == place)
            else {
                continue;
            };
            let result = match (values, error) {
                (Some(fields), None) => Ok((index, fields)),
                (None, Some(error)) => Err(error),
                _ => return Err(wrong()),
            };
            rows.push((place, number, result));
        }
        self.arranger.rows(epoch, rows)
    }

    /// The rows of a batch, each by itself and as long as it was.
    fn split(&self, batch: &Batch) -> Vec<(usize, Vec<Tensor>)> {
        let stacked = self.pipeline.batch.is_some();
        let fields = batch.fields.iter().take(self.pipeline.sample.fields.len());
        let lengths = |number: usize| {
            let padded = self.pipeline.padded.iter().find(|padded| padded.field == number);
            padded.and_then(|padded| batch.field(padded.lengths.as_str())?.as_slice::<i64>())
        };
        let columns: Vec<_> =
            fields.enumerate().map(|(number, (_, tensor))| (tensor, lengths(number))).collect();
        let row = |row: usize| {
            let value = |(tensor, lengths): &(&Tensor, Option<&[i64]>)| {
                let value = if stacked { tensor.row(row) } else { (*tensor).clone() };
                match lengths.and_then(|lengths| lengths.get(row)) {
                    Some(length) => {
                        let most = value.shape().first().copied().unwrap_or(0);
                        value.first(usize::try_from(*length).unwrap_or(0).min(most))
                    }
                    None => value,
                }
            };
            (row, columns.iter().map(value).collect())
        };
        (0..batch.rows).map(row).collect()
    }

    fn index(&mut self, epoch: u64, place: u64) -> u64 {
        if self.cursor.seed.epoch != epoch {
            self.cursor = Cursor::new(EpochSeed { seed: self.options.seed, epoch });
        }
        self.pipeline.address(place, &mut self.cursor).index
    }

    /// Where it stands after what it has delivered.
    #[must_use]
    pub fn position(&self) -> Position {
        self.arranger.position()
    }

    /// How many steps are left in this epoch.
    #[must_use]
    pub fn steps_left(&self) -> Steps {
        self.arranger.steps_left()
    }
}
