//! The pipeline as data: inert, serialisable, checked before anything runs.
//!
//! A [`Plan`] is a list of [`Call`]s, a step's name with its arguments. It has two forms that say
//! the same:
//!
//! ```text
//!  text   images path=train/ | shuffle seed=0 | decode | batch size=64
//!  JSON   {"feedline": 1, "steps": [{"step": "images", "path": "train/"}, …]}
//! ```
//!
//! This crate names steps and holds none: what a step means is the business of a [`Catalog`],
//! which others provide.

mod call;
mod fingerprint;
mod json;
mod suggest;
mod text;

pub use call::{ASIDE, Call, Catalog, Plan, Recipe};
pub use fingerprint::Fingerprint;
pub use suggest::did_you_mean;

/// The version of the plan's form that this release writes.
pub const VERSION: u64 = 1;

/// Plans longer than this are refused: they are no plans.
pub const MAX_BYTES: usize = 4 << 20;
