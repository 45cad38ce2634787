//! Where samples meet: stacking, by order or by length, and what happens to those that are bad.

#[expect(clippy::module_inception, reason = "one file per step, named like the step")]
mod batch;
mod bucket;
mod on_error;
mod stack;

pub use batch::Batch;
pub use bucket::{Bucket, BucketRun, Buckets, PadTo, Round};
pub use on_error::OnError;
pub use stack::{Finished, Padded, Room, column, mask, stack};

use crate::registry::{Row, read};

pub(crate) const STEPS: &[Row] =
    &[("batch", read::<Batch>), ("bucket", read::<Bucket>), ("on_error", read::<OnError>)];
