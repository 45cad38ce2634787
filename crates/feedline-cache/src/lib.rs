//! Keeps samples from one epoch to the next, as they are after the first steps of a pipeline.
//!
//! ```text
//!             memory of this process ─┐
//!             disk of this host      ─┤
//!  find ──►   cache of another host  ─┼──► sample          (what is not found is made, and shown)
//!                                     └──► missing ──► keep, if there is room and it is worth it
//! ```
//!
//! Each sample is used once an epoch, so no sample is ever worth giving up for another: it admits until it
//! is full, and keeps. [`attach`] opens the cache that a plan asks for and ties it to the pipeline; from
//! then on the engine looks there first.

mod admit;
mod disk;
mod entry;
mod peers;
mod ram;
mod segment;
mod tiers;

pub use admit::Choice;
pub use disk::{About, Held, list, remove};
pub use entry::{read_unchecked, written};
pub use peers::{Hub, PeerOptions};
pub use tiers::{Settings, TieredCache};

use feedline_core::{Error, Result, Store};
use feedline_ops::Pipeline;
use feedline_ops::keep::{Admit, cache_folder};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Where and how much a process may keep, whatever plans say.
#[derive(Clone, Debug, Default)]
pub struct Allowed {
    /// At most so many bytes of memory for each cache.
    pub ram: Option<u64>,
    /// The folder that is used in place of the plan's, and at most so many bytes of it. `None` takes the
    /// plan's own.
    pub disk: Option<Option<(PathBuf, u64)>>,
    /// Whether nothing is shared with other hosts.
    pub alone: bool,
}

/// Those that are open, so that runs of one process share what they keep.
static OPEN: Mutex<Option<HashMap<String, Weak<TieredCache>>>> = Mutex::new(None);

/// Opens the cache that a pipeline's plan asks for, if it does, and ties it to the pipeline, on a machine of
/// so much memory. Runs of this process that keep the same share it, as long as one of them lasts.
///
/// # Errors
///
/// If its folder cannot be used.
pub fn attach(
    pipeline: &Arc<Pipeline>,
    store: &Arc<dyn Store>,
    memory: u64,
    allowed: &Allowed,
) -> Result<()> {
    let Some(point) = pipeline.cache.as_ref().filter(|point| point.attached.get().is_none()) else {
        return Ok(());
    };
    let (ram, disk) = (point.recipe.ram_bytes()?, point.recipe.disk_bytes()?);
    let default = if disk.is_none() { memory / 4 } else { 0 };
    let ram = ram.unwrap_or(default).min(allowed.ram.unwrap_or(u64::MAX));
    let disk = match (disk, &allowed.disk) {
        (None | Some(0), _) | (_, Some(None)) => None,
        (Some(bytes), Some(Some((path, most)))) => Some((path.clone(), bytes.min(*most))),
        (Some(bytes), None) => Some((path_or_default(point.recipe.path.clone())?, bytes)),
    };
    let version = env!("CARGO_PKG_VERSION");
    let choice = match (point.recipe.admit, point.shuffled) {
        (Admit::Cost, _) => Choice::Cost,
        (Admit::Uniform, true) => Choice::First,
        (Admit::Uniform, false) => Choice::Even,
    };
    let (plan, samples) = (prefix(pipeline), pipeline.source.length());
    let about = About { feedline: version.to_owned(), plan, samples };
    let identity = point.identity.clone();
    let names = &point.recipe.peers;
    let peers = (!names.is_empty() && !allowed.alone).then(|| Hub::shared(names)).transpose()?;
    let settings = Settings { identity, about, ram, disk, choice, peers };
    let cache = open_shared(&settings)?;
    cache.make_by(pipeline, store);
    // If another thread was faster, it has opened the same.
    let _ = point.attached.set(cache);
    Ok(())
}

fn open_shared(settings: &Settings) -> Result<Arc<TieredCache>> {
    let key = format!(
        "{}:{:?}:{}:{:?}:{:?}",
        settings.identity, settings.disk, settings.ram, settings.choice, settings.peers
    );
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let open = open.get_or_insert_default();
    open.retain(|_, cache| cache.strong_count() > 0);
    if let Some(cache) = open.get(&key).and_then(Weak::upgrade) {
        return Ok(cache);
    }
    let cache = Arc::new(TieredCache::open(settings)?);
    open.insert(key, Arc::downgrade(&cache));
    Ok(cache)
}

/// The folder for what is kept on a disk: the given one, or one in the user's cache folder.
///
/// # Errors
///
/// If none is given and the user has no home.
pub fn path_or_default(path: Option<PathBuf>) -> Result<PathBuf> {
    let default = || cache_folder().map(|folder| folder.join("samples"));
    path.or_else(default).ok_or_else(|| {
        Error::Source(
            "cache: there is no home folder to keep samples in; give path a folder".into(),
        )
    })
}

/// The steps that samples have been through where they are kept, as text.
fn prefix(pipeline: &Pipeline) -> String {
    let after = pipeline.cache.as_ref().map_or(0, |point| point.after);
    let source = pipeline.plan.calls().first().map(ToString::to_string);
    let steps = pipeline.maps.iter().take(after).map(|step| step.call.clone());
    source.into_iter().chain(steps).collect::<Vec<_>>().join(" | ")
}
