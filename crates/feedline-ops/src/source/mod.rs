//! Where samples come from: each source is a fixed list, so that index i means the same everywhere.

mod arrays;
mod files;
mod images;
mod range;

pub(crate) use files::missing as missing_blob;

pub use arrays::{Array, Arrays};
pub use files::Files;
pub use images::Images;
pub use range::Range;

use crate::registry::{Row, read};

pub(crate) const STEPS: &[Row] = &[
    ("images", read::<Images>),
    ("files", read::<Files>),
    ("arrays", read::<Arrays>),
    ("range", read::<Range>),
];
