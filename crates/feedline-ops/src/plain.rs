//! The plain run: one thread, no buffers, one sample after another. It defines what a pipeline
//! means; whatever runs faster must yield the same.

use crate::Pipeline;
use crate::batch::{BucketRun, Buckets, Finished, Round, stack};
use feedline_core::{
    Address, Batch, Cursor, EpochSeed, Error, Length, Policy, Pool, Position, Result, SampleSeed,
    Seed, Span, Store, Workspace,
};
use std::collections::VecDeque;
use std::sync::Arc;

/// Who runs, and from where.
#[derive(Clone, Debug)]
pub struct Part {
    /// The seed of the run.
    pub seed: Seed,
    /// Which rank this is.
    pub rank: u64,
    /// How many ranks there are.
    pub world: u64,
    /// Where to start.
    pub position: Position,
    /// Whether ranks take batches of samples of one class in rounds.
    pub rounds: bool,
    /// Whether batches carry the indices of their samples.
    pub with_index: bool,
}

impl Default for Part {
    fn default() -> Self {
        let position = Position::default();
        Self { seed: Seed(0), rank: 0, world: 1, position, rounds: false, with_index: false }
    }
}

/// The rest of one epoch, batch by batch.
pub struct Plain {
    pipeline: Arc<Pipeline>,
    store: Arc<dyn Store>,
    part: Part,
    cursor: Cursor,
    workspace: Workspace,
    /// The next row: its stretch, and its number in it.
    stretch: u64,
    row: u64,
    ready: VecDeque<Finished>,
    /// The stretch of samples that are sorted by their lengths, and what came of it.
    bucket: Option<BucketRun<Finished>>,
    rounds: VecDeque<Round<Finished>>,
    skipped: u64,
    ended: bool,
}

impl Plain {
    /// The rest of the epoch that `part` stands in.
    #[must_use]
    pub fn new(pipeline: Arc<Pipeline>, store: Arc<dyn Store>, part: Part) -> Self {
        let epoch = EpochSeed { seed: part.seed, epoch: part.position.epoch };
        let workspace = pipeline.workspace(Pool::new(0), true);
        let first = if part.rounds { 0 } else { part.rank };
        let (stretch, row) = part.position.at.unwrap_or((first, 0));
        // Of a stretch that is sorted by lengths all samples are looked at again.
        let row = if pipeline.bucket.is_some() { 0 } else { row };
        let skipped = part.position.skipped;
        let cursor = Cursor::new(epoch);
        let (ready, rounds) = (VecDeque::new(), VecDeque::new());
        Self {
            pipeline,
            store,
            part,
            cursor,
            workspace,
            stretch,
            row,
            ready,
            bucket: None,
            rounds,
            skipped,
            ended: false,
        }
    }

    fn size(&self) -> usize {
        self.pipeline.stretch()
    }

    /// One sample through all steps.
    fn sample(&mut self, place: u64) -> Result<Finished> {
        let address = self.pipeline.address(place, &mut self.cursor);
        let Address { index, visit } = address;
        let seed = SampleSeed { epoch: self.cursor.seed, source: 0, index, visit, output: 0 };
        let row = self.pipeline.sample(address, seed, &*self.store, &mut self.workspace)?;
        Ok((index, row))
    }

    /// Computes the next sample of this rank, if there is one.
    fn advance(&mut self) -> Result<bool> {
        let (size, length) = (self.size() as u64, self.pipeline.length().places());
        let position = &self.part.position;
        while self.stretch < position.left(length).div_ceil(size) {
            let numbers = position.stretch(self.stretch, size, length);
            let number = numbers.start + self.row;
            if number >= numbers.end {
                self.stretch += self.part.world;
                self.row = 0;
                continue;
            }
            self.row += 1;
            let place = position.spans(Span { start: number, end: number + 1 })[0].start;
            match self.sample(place) {
                Ok(row) => self.ready.push_back(row),
                Err(error) => self.skip(error)?,
            }
            return Ok(true);
        }
        Ok(false)
    }

    fn skip(&mut self, error: Error) -> Result<()> {
        if error.is_filtered() {
            return Ok(());
        }
        let Policy::Skip { count, share, .. } = &self.pipeline.policy else { return Err(error) };
        if !error.is_record() {
            return Err(error);
        }
        self.skipped += 1;
        let places = self.pipeline.length();
        check_budget(self.skipped, *count, *share, places, &error)
    }

    fn next_batch(&mut self) -> Result<Option<Batch>> {
        if self.pipeline.bucket.is_some() {
            return self.next_of_class();
        }
        let Some(recipe) = self.pipeline.batch.clone() else {
            while self.ready.is_empty() {
                if !self.advance()? {
                    return Ok(None);
                }
            }
            let (index, fields) = self.ready.pop_front().expect("a sample is ready");
            let indices = self.part.with_index.then(|| vec![index]);
            return Ok(Some(Batch { fields, rows: 1, indices }));
        };
        if self.pipeline.is_counted() && (recipe.drop_last || recipe.pad) {
            // Whole rounds only: every rank has as many steps as every other.
            let (size, world) = (recipe.size as u64, self.part.world);
            let left = self.part.position.left(self.pipeline.length().places());
            let round = size * world;
            let rounds = if recipe.pad { left.div_ceil(round) } else { left / round };
            if self.stretch >= rounds * world {
                return Ok(None);
            }
            while self.ready.len() < recipe.size && self.stretch_left() {
                self.advance()?;
            }
            self.stretch += world;
            self.row = 0;
        } else {
            while self.ready.len() < recipe.size && self.advance()? {}
            if self.ready.is_empty() || recipe.drop_last && self.ready.len() < recipe.size {
                return Ok(None);
            }
        }
        let rows = self.ready.len().min(recipe.size);
        let rows: Vec<_> = self.ready.drain(..rows).collect();
        let room = recipe.room();
        stack(&self.pipeline, &rows, room, self.part.with_index, &self.workspace.pool).map(Some)
    }

    fn stretch_left(&self) -> bool {
        let (size, length) = (self.size() as u64, self.pipeline.length().places());
        self.row < self.part.position.stretch(self.stretch, size, length).length()
    }

    /// The next batch of samples of one class, stretch by stretch.
    fn next_of_class(&mut self) -> Result<Option<Batch>> {
        let pipeline = Arc::clone(&self.pipeline);
        let Some(buckets) = &pipeline.bucket else { return Ok(None) };
        let Part { rank, world, rounds, with_index, .. } = self.part;
        let position = self.part.position.clone();
        let length = pipeline.length().places();
        loop {
            if let Some(round) = self.rounds.pop_front() {
                let part = if rounds { rank } else { 0 };
                let room = buckets.room(&round);
                let (rows, pool) = (round.part(part), &self.workspace.pool);
                return stack(&pipeline, &rows, room, with_index, pool).map(Some);
            }
            let numbers = position.stretch(self.stretch, buckets.stretch as u64, length);
            if numbers.length() == 0 {
                return Ok(None);
            }
            let stretch = self.stretch;
            self.bucket.get_or_insert_with(|| {
                let done = position.at.filter(|at| at.0 == stretch).map_or(0, |at| at.1);
                BucketRun::new(
                    buckets,
                    position.begun(stretch),
                    if rounds { world } else { 0 },
                    done,
                )
            });
            if self.row < numbers.length() {
                let number = numbers.start + self.row;
                self.row += 1;
                let place = position.spans(Span { start: number, end: number + 1 })[0].start;
                match self.sample(place) {
                    Ok(row) => {
                        let length = Buckets::length(&row.1[buckets.field].1);
                        if let Some(run) = &mut self.bucket {
                            run.push(length, row, &mut self.rounds);
                        }
                    }
                    Err(error) => self.skip(error)?,
                }
                continue;
            }
            if let Some(run) = self.bucket.take() {
                run.finish(&mut self.rounds);
            }
            (self.stretch, self.row) = (stretch + if rounds { 1 } else { world }, 0);
        }
    }
}

/// Whether one more bad sample is still within what the plan allows.
///
/// # Errors
///
/// Says how many there were and names the last one.
pub fn check_budget(
    skipped: u64,
    count: Option<u64>,
    share: Option<f64>,
    places: Length,
    error: &Error,
) -> Result<()> {
    let over_share =
        |share: f64| places.finite().is_some_and(|places| skipped as f64 > share * places as f64);
    let limit = match (count, share) {
        (Some(count), _) if skipped > count => format!("{count}"),
        (_, Some(share)) if over_share(share) => {
            format!("{share} of {}", places.places())
        }
        _ => return Ok(()),
    };
    Err(Error::Budget(format!(
        "{skipped} bad samples in this epoch, and on_error allows {limit}; the last: {error}"
    )))
}

impl Iterator for Plain {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Result<Batch>> {
        if self.ended {
            return None;
        }
        let next = self.next_batch().transpose();
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}
