//! Where samples come from: each source is a fixed list, so that index i means the same everywhere.

mod arrays;
mod arrow;
mod cases;
mod files;
mod images;
mod nifti;
mod npy;
mod parts;
mod range;

pub(crate) use files::missing as missing_blob;
pub(crate) use parts::read_piece;

pub use arrays::{Array, Arrays};
pub use arrow::{Arrow, ArrowField};
pub use cases::FileField;
pub use files::Files;
pub use images::Images;
pub use nifti::Nifti;
pub use npy::Npy;
pub use range::Range;

use crate::registry::{Row, read};

pub(crate) const STEPS: &[Row] = &[
    ("images", read::<Images>),
    ("files", read::<Files>),
    ("arrays", read::<Arrays>),
    ("npy", read::<Npy>),
    ("arrow", read::<Arrow>),
    ("nifti", read::<Nifti>),
    ("range", read::<Range>),
];
