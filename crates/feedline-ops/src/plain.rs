//! The plain run: one thread, no buffers, one sample after another. It defines what a pipeline
//! means; whatever runs faster must yield the same.

use crate::Pipeline;
use feedline_core::{
    Address, Batch, Cursor, EpochSeed, Error, Field, Length, Name, Policy, Pool, Position, Result,
    SampleSeed, Seed, Span, Store, Tensor, Workspace,
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
    /// Whether batches carry the indices of their samples.
    pub with_index: bool,
}

impl Default for Part {
    fn default() -> Self {
        let position = Position::default();
        Self { seed: Seed(0), rank: 0, world: 1, position, with_index: false }
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
    ready: VecDeque<(u64, Vec<(Name, Tensor)>)>,
    skipped: u64,
    ended: bool,
}

impl Plain {
    /// The rest of the epoch that `part` stands in.
    #[must_use]
    pub fn new(pipeline: Arc<Pipeline>, store: Arc<dyn Store>, part: Part) -> Self {
        let epoch = EpochSeed { seed: part.seed, epoch: part.position.epoch };
        let workspace = pipeline.workspace(Pool::new(0), true);
        let (stretch, row) = part.position.at.unwrap_or((part.rank, 0));
        let skipped = part.position.skipped;
        let cursor = Cursor::new(epoch);
        let ready = VecDeque::new();
        Self {
            pipeline,
            store,
            part,
            cursor,
            workspace,
            stretch,
            row,
            ready,
            skipped,
            ended: false,
        }
    }

    fn size(&self) -> usize {
        self.pipeline.stretch()
    }

    /// One sample through all steps.
    fn sample(&mut self, place: u64) -> Result<(u64, Vec<(Name, Tensor)>)> {
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
        let Policy::Skip { count, share, .. } = &self.pipeline.policy else { return Err(error) };
        if !error.is_record() {
            return Err(error);
        }
        self.skipped += 1;
        let places = self.pipeline.length();
        check_budget(self.skipped, *count, *share, places, &error)
    }

    fn next_batch(&mut self) -> Result<Option<Batch>> {
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
        self.stack(&rows, recipe.size, recipe.pad).map(Some)
    }

    fn stretch_left(&self) -> bool {
        let (size, length) = (self.size() as u64, self.pipeline.length().places());
        self.row < self.part.position.stretch(self.stretch, size, length).length()
    }

    fn stack(&self, rows: &[(u64, Vec<(Name, Tensor)>)], size: usize, pad: bool) -> Result<Batch> {
        stack(&self.pipeline, rows, size, pad, self.part.with_index, &self.workspace.pool)
    }
}

/// Stacks finished rows into a batch, padding it if asked to.
///
/// # Errors
///
/// If rows have different shapes.
pub fn stack(
    pipeline: &Pipeline,
    rows: &[(u64, Vec<(Name, Tensor)>)],
    size: usize,
    pad: bool,
    with_index: bool,
    pool: &Pool,
) -> Result<Batch> {
    let mut fields = Vec::new();
    for (at, field) in pipeline.sample.fields.iter().enumerate() {
        let mut parts: Vec<Tensor> = rows.iter().map(|(_, row)| row[at].1.clone()).collect();
        if pad {
            let shape: Vec<usize> = field.shape.iter().map(|dim| dim.unwrap_or(0)).collect();
            let bytes = vec![0; field.bytes().unwrap_or(0)];
            let zeros = Tensor::new(field.dtype, &shape, feedline_core::Buffer::from(&bytes[..]))?;
            parts.resize(size, zeros);
        }
        let indices: Vec<u64> = rows.iter().map(|row| row.0).collect();
        let odd = |at: usize| odd_one(pipeline, field, &parts, at, &indices);
        let stacked = Tensor::stack(&parts, pool, odd)?;
        fields.push((field.name, stacked));
    }
    if pad {
        fields.push((Name::new(crate::batch::Batch::MASK), mask(rows.len(), size)?));
    }
    let indices = with_index.then(|| rows.iter().map(|row| row.0).collect());
    Ok(Batch { fields, rows: rows.len(), indices })
}

/// Says which rows of a padded batch hold a sample.
///
/// # Errors
///
/// Never, as long as the mask has one byte a row.
pub fn mask(rows: usize, size: usize) -> Result<Tensor> {
    let mask: Vec<u8> = (0..size).map(|row| u8::from(row < rows)).collect();
    Tensor::new(feedline_core::DType::Bool, &[size], feedline_core::Buffer::from(&mask[..]))
}

/// What to say of a row whose field has another shape than those before it in its batch.
#[must_use]
pub fn odd_one(
    pipeline: &Pipeline,
    field: &Field,
    parts: &[Tensor],
    at: usize,
    indices: &[u64],
) -> Error {
    let index = indices.get(at).copied().unwrap_or(0);
    let error = Error::record(format!(
        "field {} is {:?}, where the batch begins with {:?}; samples of a batch have one shape: add \
         resize or a crop before batch",
        field.name, parts[at], parts[0]
    ));
    pipeline.at(error, index, "batch")
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
