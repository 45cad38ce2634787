//! Fields: choosing, naming and retyping them.

mod cast;
mod clip;
mod drop;
mod numbers;
mod one_hot;
mod rename;
mod select;
mod sleep;

pub use cast::Cast;
pub use clip::Clip;
pub use drop::Drop;
pub use one_hot::OneHot;
pub use rename::Rename;
pub use select::Select;
pub use sleep::Sleep;

pub(crate) use numbers::{cast_bytes, normalize_bytes, to_f64, to_i64};

use crate::registry::{Row, read};

pub(crate) const STEPS: &[Row] = &[
    ("cast", read::<Cast>),
    ("clip", read::<Clip>),
    ("select", read::<Select>),
    ("rename", read::<Rename>),
    ("drop", read::<Drop>),
    ("one_hot", read::<OneHot>),
    ("sleep", read::<Sleep>),
];
