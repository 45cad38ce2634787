//! Bytes by name and range: local files, and local files at the speed of a slower disk.

mod local;
mod throttled;

pub use local::LocalStore;
pub use throttled::ThrottledStore;

use feedline_core::{Error, Result, Store};
use std::sync::Arc;

/// The store of this machine: its files, throttled if `FEEDLINE_READ_MBPS` says how many megabytes a
/// second may be read.
///
/// # Errors
///
/// If that is not a number above 0.
pub fn machine_store() -> Result<Arc<dyn Store>> {
    let Some(text) = std::env::var_os("FEEDLINE_READ_MBPS") else {
        return Ok(Arc::new(LocalStore));
    };
    let rate = text.to_str().and_then(|text| text.parse::<f64>().ok());
    match rate.filter(|rate| rate.is_finite() && *rate > 0.0) {
        Some(rate) => Ok(Arc::new(ThrottledStore::new(rate * 1e6))),
        None => Err(Error::Source(format!(
            "FEEDLINE_READ_MBPS={} is no number of megabytes a second, such as 200",
            text.display()
        ))),
    }
}
