//! The datasets that a worker has opened.

use feedline_core::{Error, Result, Store};
use feedline_ops::Pipeline;
use feedline_plan::Plan;
use feedline_wire::control::{Control, Dataset, DatasetId, Failure};
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What could not be opened is not tried again for so long.
const PAUSE: Duration = Duration::from_secs(1);

/// A dataset that can be computed.
pub(crate) struct Opened {
    pub pipeline: Arc<Pipeline>,
    pub store: Arc<dyn Store>,
}

enum Entry {
    /// Somebody opens it at this moment.
    Opening,
    Ready(Arc<Opened>),
    Failed(Error, Instant),
}

/// Opens datasets when they are asked for first, each once.
pub(crate) struct Catalogue {
    control: Arc<dyn Control>,
    store: Arc<dyn Store>,
    entries: Mutex<HashMap<DatasetId, Entry>>,
    changed: Condvar,
}

impl Catalogue {
    pub(crate) fn new(control: Arc<dyn Control>, store: Arc<dyn Store>) -> Self {
        Self { control, store, entries: Mutex::default(), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<DatasetId, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A dataset, opened now if it was not.
    ///
    /// # Errors
    ///
    /// If the dispatcher does not know it, or it cannot be opened here.
    pub(crate) fn get(&self, id: &DatasetId) -> Result<Arc<Opened>> {
        let mut entries = self.lock();
        loop {
            match entries.get(id) {
                Some(Entry::Ready(opened)) => return Ok(Arc::clone(opened)),
                Some(Entry::Failed(error, at)) if at.elapsed() < PAUSE => return Err(error.clone()),
                Some(Entry::Opening) => {
                    entries = self.changed.wait(entries).unwrap_or_else(PoisonError::into_inner);
                }
                Some(Entry::Failed(..)) | None => break,
            }
        }
        entries.insert(id.clone(), Entry::Opening);
        drop(entries);
        let opened = self.open(id).map(Arc::new);
        match &opened {
            Ok(_) => tracing::info!(dataset = %id.0, "opened a dataset"),
            Err(error) => tracing::warn!(dataset = %id.0, %error, "cannot open a dataset"),
        }
        let entry = match &opened {
            Ok(opened) => Entry::Ready(Arc::clone(opened)),
            Err(error) => Entry::Failed(error.clone(), Instant::now()),
        };
        self.lock().insert(id.clone(), entry);
        self.changed.notify_all();
        opened
    }

    fn open(&self, id: &DatasetId) -> Result<Opened> {
        let (dataset, blobs) = self.control.dataset(id).map_err(unanswered)?;
        let Dataset { plan, manifest, .. } = &dataset;
        let plan = Plan::read(plan)?;
        let pipeline = Pipeline::open(&plan, &*self.store, &blobs)?;
        let found = pipeline.source.manifest();
        if found != *manifest {
            return Err(Error::Source(format!(
                "this worker finds other data than the client did ({found} instead of {manifest}): \
                 files were added, removed or modified, or another folder is mounted here"
            )));
        }
        Ok(Opened { pipeline: Arc::new(pipeline), store: Arc::clone(&self.store) })
    }

    /// Forgets all datasets but these.
    pub(crate) fn keep(&self, alive: &[(DatasetId, u32)]) {
        let known = |id: &DatasetId| alive.iter().any(|(alive, _)| alive == id);
        self.lock().retain(|id, entry| known(id) || matches!(entry, Entry::Opening));
    }
}

/// What a worker's client is told if the dispatcher gives no answer.
fn unanswered(failure: Failure) -> Error {
    match failure {
        Failure::Unavailable(reason) => Error::unavailable(
            "the dispatcher",
            io::Error::new(io::ErrorKind::NotConnected, reason),
        ),
        other => Error::Source(other.to_string()),
    }
}
