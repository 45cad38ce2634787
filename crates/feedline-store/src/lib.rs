//! Bytes by name and range: local files, those below some folders alone, local files at the speed of a
//! slower disk, and objects by URL.

mod anywhere;
#[cfg(target_os = "linux")]
mod confined;
mod local;
mod throttled;
mod url;

pub use anywhere::AnyStore;
#[cfg(target_os = "linux")]
pub use confined::ConfinedStore;
pub use local::LocalStore;
pub use throttled::ThrottledStore;
pub use url::{Allowed, Patience, UrlStore};

use feedline_core::{Error, Result, Store};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The store of this machine, of which only what lies below these folders and URLs may be read.
///
/// # Errors
///
/// If a folder cannot be opened, a URL is none, or this system cannot confine reads.
pub fn confined_store(folders: &[PathBuf], urls: &[String]) -> Result<Arc<dyn Store>> {
    let objects = UrlStore::confined(Allowed::new(urls)?, patience()?);
    if std::env::var_os("FEEDLINE_READ_MBPS").is_some() {
        return Err(Error::Source(
            "FEEDLINE_READ_MBPS is for measuring: reads cannot be confined to folders with it"
                .into(),
        ));
    }
    #[cfg(target_os = "linux")]
    return Ok(Arc::new(AnyStore::new(Arc::new(ConfinedStore::new(folders)?), objects)));
    #[cfg(not(target_os = "linux"))]
    return Err(Error::Source(format!(
        "reads can be confined to {folders:?} on Linux only, not {objects:?} either"
    )));
}

/// The store of this machine: its files, throttled if `FEEDLINE_READ_MBPS` says how many megabytes a
/// second may be read, and objects by URL.
///
/// # Errors
///
/// If that is not a number above 0, or `FEEDLINE_URL_TIMEOUT` is none.
pub fn machine_store() -> Result<Arc<dyn Store>> {
    let files: Arc<dyn Store> = match positive("FEEDLINE_READ_MBPS", "megabytes a second", 200)? {
        Some(rate) => Arc::new(ThrottledStore::new(rate * 1e6)),
        None => Arc::new(LocalStore),
    };
    Ok(Arc::new(AnyStore::new(files, UrlStore::new(patience()?))))
}

/// How long objects are tried, which `FEEDLINE_URL_TIMEOUT` may say in seconds.
fn patience() -> Result<Patience> {
    let usual = Patience::default();
    Ok(match positive("FEEDLINE_URL_TIMEOUT", "seconds", 60)? {
        Some(seconds) => {
            let reading = Duration::from_secs_f64(seconds.min(86_400.0));
            let opening = usual.opening.min(reading);
            Patience { reading, opening, silence: usual.silence.min(reading), ..usual }
        }
        None => usual,
    })
}

/// A number above 0 that a variable of the environment says.
fn positive(name: &str, unit: &str, example: u32) -> Result<Option<f64>> {
    let Some(text) = std::env::var_os(name) else { return Ok(None) };
    let number = text.to_str().and_then(|text| text.parse::<f64>().ok());
    match number.filter(|number| number.is_finite() && *number > 0.0) {
        Some(number) => Ok(Some(number)),
        None => Err(Error::Source(format!(
            "{name}={} is no number of {unit}, such as {example}",
            text.display()
        ))),
    }
}
