//! Where samples are kept from one epoch to the next.

mod cache;

pub use cache::{Admit, Cache};

use crate::registry::{Row, read};
use std::path::PathBuf;

pub(crate) const STEPS: &[Row] = &[("cache", read::<Cache>)];

/// Where Feedline keeps what it need not find out again: `FEEDLINE_CACHE_DIR`, or the user's cache folder.
#[must_use]
pub fn cache_folder() -> Option<PathBuf> {
    let set =
        |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = set("FEEDLINE_CACHE_DIR").or_else(|| set("XDG_CACHE_HOME"));
    Some(folder.or_else(|| Some(set("HOME")?.join(".cache")))?.join("feedline"))
}
