//! From encoded bytes to pixels, as late and as little as possible.

#[expect(clippy::module_inception, reason = "one file per step, named like the step")]
mod decode;
mod picture;

pub use decode::{Decode, Mode};
pub(crate) use picture::pixels_tensor;
pub use picture::{Affine, Picture, Pointwise};

use crate::registry::{Row, read};

pub(crate) const STEPS: &[Row] = &[("decode", read::<Decode>)];
