//! The same again.

use crate::registry::step;
use feedline_core::{
    Before, Blobs, Cursor, Error, Length, Order, OrderRun, Result, Source, StepId,
};
use serde::{Deserialize, Serialize};

/// Goes through the order `count` times in one epoch, or for ever. A shuffle before it is a new one
/// each time round, and so are the random choices of every step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Repeat {
    /// How many times; for ever if it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
}

step!(Repeat, "repeat", Order);

impl Order for Repeat {
    fn check(&self) -> Result<()> {
        if self.count == Some(0) {
            return Err(Error::pipeline("repeat: count=0 leaves nothing; take count=0 says so"));
        }
        Ok(())
    }

    fn bind(
        &self,
        _: &dyn Source,
        _: &Blobs,
        before: &Before<'_>,
        _: StepId,
    ) -> Result<Box<dyn OrderRun>> {
        let Length::Finite(once) = before.length else {
            return Err(Error::pipeline("repeat: the order before it goes round for ever already"));
        };
        let length = match self.count {
            _ if once == 0 => Length::Finite(0),
            None => Length::Infinite,
            Some(count) => match once.checked_mul(count).filter(|length| *length <= 1 << 60) {
                Some(length) => Length::Finite(length),
                None => {
                    return Err(Error::pipeline(format!(
                        "repeat: count={count} makes an order of more than 2^60 places"
                    )));
                }
            },
        };
        Ok(Box::new(RepeatRun { once, length, count: self.count.unwrap_or(0) }))
    }
}

struct RepeatRun {
    once: u64,
    length: Length,
    count: u64,
}

impl OrderRun for RepeatRun {
    fn length(&self) -> Length {
        self.length
    }

    fn at(&self, place: u64, visit: u64, _: &mut Cursor) -> (u64, u64) {
        let round = place / self.once;
        (place % self.once, visit.wrapping_mul(self.count).wrapping_add(round))
    }
}
