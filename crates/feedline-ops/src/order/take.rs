//! The first few.

use crate::registry::step;
use feedline_core::{Before, Blobs, Cursor, Length, Order, OrderRun, Result, Source, StepId};
use serde::{Deserialize, Serialize};

/// Keeps the first `count` samples of the order; all of them if there are fewer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Take {
    /// How many.
    pub count: u64,
}

step!(Take, "take", Order);

impl Order for Take {
    fn check(&self) -> Result<()> {
        Ok(())
    }

    fn is_fixed(&self) -> bool {
        true
    }

    fn bind(
        &self,
        _: &dyn Source,
        _: &Blobs,
        before: &Before<'_>,
        _: StepId,
    ) -> Result<Box<dyn OrderRun>> {
        Ok(Box::new(TakeRun { length: self.count.min(before.length.places()) }))
    }

    fn of_batches(&self, size: u64) -> Option<Box<dyn Order>> {
        Some(Box::new(Self { count: self.count.saturating_mul(size) }))
    }
}

struct TakeRun {
    length: u64,
}

impl OrderRun for TakeRun {
    fn length(&self) -> Length {
        Length::Finite(self.length)
    }

    fn at(&self, place: u64, visit: u64, _: &mut Cursor) -> (u64, u64) {
        (place, visit)
    }
}
