//! Stretches in any order, each delivered by itself: what a job takes whose batches may come as they
//! are finished.

use crate::arrange::leave_out;
use feedline_core::{Batch, Name, Pool, Result, Rows};
use feedline_ops::Pipeline;
use feedline_ops::batch::stack;
use std::sync::Arc;

/// Makes a batch of each stretch. Where bad samples are left out, a batch is shorter by them.
pub struct Loose {
    pipeline: Arc<Pipeline>,
    pool: Pool,
    with_index: bool,
    epoch: u64,
    /// Bad samples of this epoch.
    skipped: u64,
    /// Bad samples left out in all.
    left_out: u64,
}

impl Loose {
    /// Takes stretches of this pipeline.
    #[must_use]
    pub fn new(pipeline: Arc<Pipeline>, pool: Pool, with_index: bool) -> Self {
        Self { pipeline, pool, with_index, epoch: 0, skipped: 0, left_out: 0 }
    }

    /// The batch that a stretch is; `None` if nothing of it is good.
    ///
    /// # Errors
    ///
    /// If a sample is bad and may not be left out, or rows have different shapes.
    pub fn give(&mut self, epoch: u64, rows: Rows) -> Result<Option<Batch>> {
        let (good, bad) = match rows {
            Rows::Batch(batch) => return Ok(Some(batch)),
            Rows::Some { good, bad } => (good, bad),
        };
        if self.epoch != epoch {
            (self.epoch, self.skipped) = (epoch, 0);
        }
        for (_, error) in bad {
            let before = self.skipped;
            leave_out(&self.pipeline, epoch, &mut self.skipped, error)?;
            self.left_out += self.skipped - before;
        }
        if good.is_empty() {
            return Ok(None);
        }
        let names: Vec<Name> = self.pipeline.sample.fields.iter().map(|field| field.name).collect();
        let row = |(_, index, fields): (usize, u64, Vec<_>)| {
            (index, names.iter().copied().zip(fields).collect::<Vec<_>>())
        };
        let rows: Vec<_> = good.into_iter().map(row).collect();
        let Some(recipe) = &self.pipeline.batch else {
            let (index, fields) = rows.into_iter().next().unwrap_or((0, Vec::new()));
            let indices = self.with_index.then(|| vec![index]);
            return Ok(Some(Batch { fields, rows: 1, indices }));
        };
        stack(&self.pipeline, &rows, recipe.room(), self.with_index, &self.pool).map(Some)
    }

    /// Bad samples that were left out.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }
}
