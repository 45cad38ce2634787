//! The datasets that a worker has opened.

use feedline_cache::Allowed;
use feedline_core::{Blobs, Error, Host, Result, Store};
use feedline_engine::host::{HostCommand, Hosts};
use feedline_engine::machine_memory;
use feedline_ops::Pipeline;
use feedline_ops::order::{By, Shard};
use feedline_plan::Plan;
use feedline_wire::Part;
use feedline_wire::control::{Control, Dataset, DatasetId, Failure};
use std::any::Any;
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
    /// Keeps processes for its functions.
    _functions: Option<Box<dyn Any + Send + Sync>>,
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
    /// Runs functions, for so many threads, if the operator allowed them.
    host: Option<Arc<dyn Host>>,
    threads: usize,
}

impl Catalogue {
    pub(crate) fn new(
        control: Arc<dyn Control>,
        store: Arc<dyn Store>,
        cache: Allowed,
        functions: Option<HostCommand>,
        threads: usize,
    ) -> Self {
        let host = functions.map(|command| Arc::new(Hosts::new(command)) as Arc<dyn Host>);
        let (entries, changed) = (Mutex::default(), Condvar::new());
        Self { control, store, cache, entries, changed, host, threads }
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
        let pipeline = Pipeline::open_with(&plan, &*self.store, &blobs, self.host.clone())?;
        let host = pipeline.host().map_err(|_| {
            Error::Service(
                "this worker runs no functions, and the plan has some (map, filter): its operator can \
                 allow them with --functions \"python -m feedline.host\""
                    .into(),
            )
        })?;
        let functions = host.map(|host| host.hold(self.threads));
        let found = pipeline.source.manifest();
        if found != *manifest {
            return Err(Error::Source(format!(
                "this worker finds other data than the client did ({found} instead of {manifest}): \
                 files were added, removed or modified, or another folder is mounted here"
            )));
        }
        let (pipeline, store) = (Arc::new(pipeline), Arc::clone(&self.store));
        feedline_cache::attach(&pipeline, &store, machine_memory(), &self.cache)?;
        Ok(Opened { pipeline, store, blobs, _functions: functions })
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
        // The whole dataset stays in the catalogue, with the processes for its functions.
        Ok(Self { pipeline: Arc::new(pipeline), store, blobs, _functions: None })
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
