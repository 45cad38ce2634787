//! Bytes by name and range: local files, those below some folders alone, and local files at the speed
//! of a slower disk.

#[cfg(target_os = "linux")]
mod confined;
mod local;
mod throttled;

#[cfg(target_os = "linux")]
pub use confined::ConfinedStore;
pub use local::LocalStore;
pub use throttled::ThrottledStore;

use feedline_core::{Error, Result, Store};
use std::path::PathBuf;
use std::sync::Arc;

/// The store of this machine, of which only what lies below these folders may be read.
///
/// # Errors
///
/// If a folder cannot be opened, or this system cannot confine reads.
pub fn confined_store(folders: &[PathBuf]) -> Result<Arc<dyn Store>> {
    if std::env::var_os("FEEDLINE_READ_MBPS").is_some() {
        return Err(Error::Source(
            "FEEDLINE_READ_MBPS is for measuring: reads cannot be confined to folders with it"
                .into(),
        ));
    }
    #[cfg(target_os = "linux")]
    return Ok(Arc::new(ConfinedStore::new(folders)?));
    #[cfg(not(target_os = "linux"))]
    return Err(Error::Source(format!("reads can be confined to {folders:?} on Linux only")));
}

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
