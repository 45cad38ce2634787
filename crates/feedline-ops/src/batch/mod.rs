//! Where samples meet: stacking, and what happens to those that are bad.

#[expect(clippy::module_inception, reason = "one file per step, named like the step")]
mod batch;
mod on_error;

pub use batch::Batch;
pub use on_error::OnError;

use crate::registry::{Row, read};

pub(crate) const STEPS: &[Row] = &[("batch", read::<Batch>), ("on_error", read::<OnError>)];
