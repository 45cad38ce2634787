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
use serde::{Deserialize, Deserializer};
use std::path::PathBuf;

/// Reads where data lies: a path, or a URL in its plain spelling.
pub(crate) fn place<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    feedline_core::place(PathBuf::deserialize(deserializer)?).map_err(in_words)
}

/// As [`place`], where there may be none.
pub(crate) fn maybe_place<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<PathBuf>, D::Error> {
    let path = Option::<PathBuf>::deserialize(deserializer)?;
    path.map(feedline_core::place).transpose().map_err(in_words)
}

/// Why it is no place; that the pipeline is wrong is said by whoever reads it.
fn in_words<E: serde::de::Error>(error: feedline_core::Error) -> E {
    match error {
        feedline_core::Error::Pipeline(why) => E::custom(why),
        error => E::custom(error),
    }
}

pub(crate) const STEPS: &[Row] = &[
    ("images", read::<Images>),
    ("files", read::<Files>),
    ("arrays", read::<Arrays>),
    ("npy", read::<Npy>),
    ("arrow", read::<Arrow>),
    ("nifti", read::<Nifti>),
    ("range", read::<Range>),
];
