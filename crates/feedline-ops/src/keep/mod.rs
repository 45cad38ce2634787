//! Where samples are kept from one epoch to the next.

mod cache;

pub use cache::{Admit, Cache};

use crate::registry::{Row, read};

pub(crate) const STEPS: &[Row] = &[("cache", read::<Cache>)];
