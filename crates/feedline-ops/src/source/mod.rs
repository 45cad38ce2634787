//! Where samples come from: each source is a fixed list, so that index i means the same everywhere.

mod arrays;
mod cases;
mod files;
mod images;
mod nifti;
mod npy;
mod parts;
mod range;

pub(crate) use files::missing as missing_blob;

pub use arrays::{Array, Arrays};
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
    ("nifti", read::<Nifti>),
    ("range", read::<Range>),
];
