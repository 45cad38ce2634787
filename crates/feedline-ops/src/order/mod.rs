//! Which sample comes next: arithmetic on places, without looking into samples.
//!
//! Each step maps a place of its own order to a place of the order before it; the first maps to
//! the index in the source. Nothing is stored but what a few of them need to answer at once.

mod repeat;
mod sample;
mod shard;
mod shuffle;
mod skip;
mod split;
mod take;

pub use repeat::Repeat;
pub use sample::Sample;
pub use shard::{By, Shard};
pub use shuffle::{Shuffle, Within, parse_bytes};
pub use skip::Skip;
pub use split::Split;
pub use take::Take;

use crate::registry::{Row, read};

pub(crate) const STEPS: &[Row] = &[
    ("shuffle", read::<Shuffle>),
    ("sample", read::<Sample>),
    ("split", read::<Split>),
    ("shard", read::<Shard>),
    ("take", read::<Take>),
    ("skip", read::<Skip>),
    ("repeat", read::<Repeat>),
];
