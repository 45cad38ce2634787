//! Functions that users wrote, called for each sample in a process of their own.
//!
//! These steps know a function's name and the bytes in which it travels, never what is in them. A
//! [`Host`](feedline_core::Host) has it run.

mod call;
mod filter;
mod map;
mod output;

pub use filter::Filter;
pub use map::Map;
pub use output::{Output, common_output};

use crate::registry::{Row, read};

pub(crate) const STEPS: &[Row] = &[("map", read::<Map>), ("filter", read::<Filter>)];
