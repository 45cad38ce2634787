//! The datasets that a worker has opened.

use feedline_cache::Allowed;
use feedline_core::{Blobs, Error, Result, Store};
use feedline_engine::machine_memory;
use feedline_ops::Pipeline;
use feedline_ops::order::{By, Shard};
use feedline_plan::Plan;
use feedline_wire::Part;
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
    pub blobs: Blobs,
}

/// A dataset, or a part of one.
type Key = (DatasetId, Option<Part>);

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
    /// What may be kept here from one epoch to the next.
    cache: Allowed,
    entries: Mutex<HashMap<Key, Entry>>,
    changed: Condvar,
}

impl Catalogue {
    pub(crate) fn new(control: Arc<dyn Control>, store: Arc<dyn Store>, cache: Allowed) -> Self {
        let (entries, changed) = (Mutex::default(), Condvar::new());
        Self { control, store, cache, entries, changed }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A dataset or a part of it, opened now if it was not.
    ///
    /// # Errors
    ///
    /// If the dispatcher does not know it, or it cannot be opened here.
    pub(crate) fn get(&self, id: &DatasetId, part: Option<Part>) -> Result<Arc<Opened>> {
        let key = (id.clone(), part);
        let mut entries = self.lock();
        loop {
            match entries.get(&key) {
                Some(Entry::Ready(opened)) => return Ok(Arc::clone(opened)),
                Some(Entry::Failed(error, at)) if at.elapsed() < PAUSE => return Err(error.clone()),
                Some(Entry::Opening) => {
                    entries = self.changed.wait(entries).unwrap_or_else(PoisonError::into_inner);
                }
                Some(Entry::Failed(..)) | None => break,
            }
        }
        entries.insert(key.clone(), Entry::Opening);
        drop(entries);
        let opened = match part {
            None => self.open(id),
            Some(part) => self.get(id, None).and_then(|whole| whole.part(part)),
        };
        let opened = opened.map(Arc::new);
        match &opened {
            Ok(_) => tracing::info!(dataset = %id.0, "opened a dataset"),
            Err(error) => tracing::warn!(dataset = %id.0, %error, "cannot open a dataset"),
        }
        let entry = match &opened {
            Ok(opened) => Entry::Ready(Arc::clone(opened)),
            Err(error) => Entry::Failed(error.clone(), Instant::now()),
        };
        self.lock().insert(key, entry);
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
        let pipeline = Arc::new(pipeline);
        feedline_cache::attach(&pipeline, &self.store, machine_memory(), &self.cache)?;
        Ok(Opened { pipeline, store: Arc::clone(&self.store), blobs })
    }

    /// Forgets all datasets but these.
    pub(crate) fn keep(&self, alive: &[(DatasetId, u32)]) {
        let known = |id: &DatasetId| alive.iter().any(|(alive, _)| alive == id);
        self.lock().retain(|(id, _), entry| known(id) || matches!(entry, Entry::Opening));
    }
}

impl Opened {
    fn part(&self, Part { index, of, files }: Part) -> Result<Self> {
        let by = if files { By::File } else { By::Sample };
        let pipeline = self.pipeline.shard(&Shard { index, of, by }, &self.blobs)?;
        let (store, blobs) = (Arc::clone(&self.store), self.blobs.clone());
        Ok(Self { pipeline: Arc::new(pipeline), store, blobs })
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
