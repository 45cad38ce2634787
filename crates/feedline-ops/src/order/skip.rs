//! All but the first few.

use crate::registry::step;
use feedline_core::{
    Before, Blobs, Cursor, Error, Length, Order, OrderRun, Result, Source, StepId,
};
use serde::{Deserialize, Serialize};

/// Leaves out the first `count` samples of the order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Skip {
    /// How many.
    pub count: u64,
}

step!(Skip, "skip", Order);

impl Order for Skip {
    fn check(&self) -> Result<()> {
        if self.count > 1 << 60 {
            return Err(Error::pipeline(format!("skip: count={} is above 2^60", self.count)));
        }
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
        let length = match before.length {
            Length::Finite(length) => Length::Finite(length.saturating_sub(self.count)),
            Length::Infinite => Length::Infinite,
        };
        Ok(Box::new(SkipRun { count: self.count, length }))
    }

    fn of_batches(&self, size: u64) -> Option<Box<dyn Order>> {
        Some(Box::new(Self { count: self.count.saturating_mul(size) }))
    }
}

struct SkipRun {
    count: u64,
    length: Length,
}

impl OrderRun for SkipRun {
    fn length(&self) -> Length {
        self.length
    }

    fn at(&self, place: u64, visit: u64, _: &mut Cursor) -> (u64, u64) {
        (place + self.count, visit)
    }
}
