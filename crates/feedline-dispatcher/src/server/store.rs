//! Datasets and their blobs: files named by what is in them, beside the journal.
//!
//! ```text
//!  datasets/<id>.json        a plan, its manifest, the names of its blobs
//!  blobs/<name>.blob         a large argument
//!  *.new                     not finished; removed at the next start
//!  *.damaged                 was not what its name says; left for whoever wants to know why
//! ```
//!
//! A file is made under another name, and gets its own when it is durable. Whatever is read is held
//! against its name.

use feedline_journal::{Disk, DiskFile};
use feedline_rpc::LONGEST_PLAN;
use feedline_rpc::blob::{self, Naming};
use feedline_wire::control::{Dataset, DatasetId};
use feedline_wire::status::DatasetStatus;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How much is kept, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreLimits {
    /// No blob is longer, in bytes.
    pub longest_blob: u64,
    /// All blobs together take no more, in bytes.
    pub most_bytes: u64,
    /// There are at most so many datasets.
    pub most_datasets: usize,
    /// A dataset that no job uses and nobody asked for is kept for so long.
    pub idle: Duration,
}

impl Default for StoreLimits {
    fn default() -> Self {
        Self {
            longest_blob: 1 << 30,
            most_bytes: 16 << 30,
            most_datasets: 10_000,
            idle: Duration::from_secs(24 * 3600),
        }
    }
}

/// Why something cannot be kept or found. There is one variant for each thing that a caller can do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StoreError {
    /// It is not there: register it.
    #[error("{0}")]
    Missing(String),
    /// It cannot be kept: send something else.
    #[error("{0}")]
    Invalid(String),
    /// There is no room: make some.
    #[error("{0}")]
    Full(String),
    /// It is in use.
    #[error("{0}")]
    InUse(String),
    /// The disk does not work.
    #[error("{0}")]
    Disk(String),
}

type Result<T> = std::result::Result<T, StoreError>;

/// Datasets and blobs.
#[derive(Debug)]
pub(crate) struct Store {
    disk: Arc<dyn Disk>,
    datasets: PathBuf,
    blobs: PathBuf,
    limits: StoreLimits,
    known: Mutex<Known>,
    /// Counts files that were begun.
    unfinished: AtomicU64,
}

#[derive(Debug, Default)]
struct Known {
    datasets: BTreeMap<DatasetId, Kept>,
    blobs: BTreeMap<String, Kept>,
    /// Bytes of all blobs, also of those that are coming.
    bytes: u64,
}

#[derive(Debug)]
struct Kept {
    bytes: u64,
    used: Instant,
    /// Of a dataset: its blobs, once they were looked up.
    blobs: Option<Vec<String>>,
}

impl Store {
    /// Opens the store beside a journal, and removes what was not finished.
    pub(crate) fn open(disk: Arc<dyn Disk>, folder: &Path, limits: StoreLimits) -> Result<Self> {
        let (datasets, blobs) = (folder.join("datasets"), folder.join("blobs"));
        let mut known = Known::default();
        let now = Instant::now();
        for (folder, suffix) in [(&datasets, ".json"), (&blobs, ".blob")] {
            let failed = |error| disk_error("open", folder, &error);
            disk.create_folder(folder).map_err(failed)?;
            for file in disk.list(folder).map_err(failed)? {
                let path = folder.join(&file);
                if file.ends_with(".new") {
                    // What cannot be removed now is in nobody's way.
                    let _ = disk.remove(&path);
                }
                let Some(name) = file.strip_suffix(suffix).filter(|name| blob::is_name(name))
                else {
                    continue;
                };
                let bytes = disk.open(&path).and_then(|file| file.length());
                let bytes = bytes.map_err(|error| disk_error("open", &path, &error))?;
                let kept = Kept { bytes, used: now, blobs: None };
                if suffix == ".json" {
                    known.datasets.insert(DatasetId(name.to_owned()), kept);
                } else {
                    known.bytes += bytes;
                    known.blobs.insert(name.to_owned(), kept);
                }
            }
        }
        let (known, unfinished) = (Mutex::new(known), AtomicU64::new(0));
        Ok(Self { disk, datasets, blobs, limits, known, unfinished })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dataset_path(&self, id: &DatasetId) -> PathBuf {
        self.datasets.join(format!("{id}.json"))
    }

    fn blob_path(&self, name: &str) -> PathBuf {
        self.blobs.join(format!("{name}.blob"))
    }

    /// Keeps a dataset if all of its blobs are there; otherwise says which are not.
    pub(crate) fn register(&self, dataset: &Dataset) -> Result<(DatasetId, Vec<String>)> {
        let invalid = |what: String| Err(StoreError::Invalid(what));
        if dataset.plan.len() > LONGEST_PLAN {
            let bytes = dataset.plan.len();
            return invalid(format!(
                "the plan has {bytes} bytes, and may have {LONGEST_PLAN}: large arguments are blobs"
            ));
        }
        if serde_json::from_str::<serde::de::IgnoredAny>(&dataset.plan).is_err() {
            return invalid("the plan is not JSON".into());
        }
        if let Some(name) = dataset.blobs.iter().find(|name| !blob::is_name(name)) {
            return invalid(format!("{name:?} is no name of a blob"));
        }
        if !dataset.blobs.is_sorted_by(|one, two| one < two) {
            return invalid("the blobs of a dataset are listed rising, and each once".into());
        }
        let id = dataset.id();
        let now = Instant::now();
        {
            let mut known = self.known();
            let missing: Vec<String> = dataset
                .blobs
                .iter()
                .filter(|name| match known.blobs.get_mut(*name) {
                    Some(kept) => {
                        kept.used = now;
                        false
                    }
                    None => true,
                })
                .cloned()
                .collect();
            if !missing.is_empty() {
                return Ok((id, missing));
            }
            if let Some(kept) = known.datasets.get_mut(&id) {
                kept.used = now;
                return Ok((id, vec![]));
            }
            if known.datasets.len() >= self.limits.most_datasets {
                let most = self.limits.most_datasets;
                return Err(StoreError::Full(format!(
                    "there are {most} datasets already: remove some"
                )));
            }
        }
        let bytes = serde_json::to_vec(dataset).expect("texts can be written as JSON");
        let path = self.dataset_path(&id);
        let mut file = self.create(&path)?;
        file.write_all(0, &bytes)?;
        file.finish(&self.datasets, &path)?;
        let kept =
            Kept { bytes: bytes.len() as u64, used: now, blobs: Some(dataset.blobs.clone()) };
        self.known().datasets.insert(id.clone(), kept);
        tracing::info!(dataset = %id, bytes = bytes.len(), "a dataset was registered");
        Ok((id, vec![]))
    }

    /// Notes that a dataset is used. False if it is not there.
    pub(crate) fn touch(&self, id: &DatasetId) -> bool {
        let mut known = self.known();
        let kept = known.datasets.get_mut(id);
        kept.map(|kept| kept.used = Instant::now()).is_some()
    }

    /// A dataset.
    pub(crate) fn dataset(&self, id: &DatasetId) -> Result<Dataset> {
        if !self.touch(id) {
            return Err(StoreError::Missing(format!("there is no dataset {id}: register it")));
        }
        let path = self.dataset_path(id);
        let bytes = self.disk.read(&path).map_err(|error| disk_error("read", &path, &error))?;
        let dataset = serde_json::from_slice::<Dataset>(&bytes).ok();
        dataset.filter(|dataset| dataset.id() == *id).ok_or_else(|| {
            self.known().datasets.remove(id);
            self.set_aside(&path)
        })
    }

    /// Moves a file aside that is not what its name says.
    fn set_aside(&self, path: &Path) -> StoreError {
        let mut aside = path.as_os_str().to_owned();
        aside.push(".damaged");
        // If it cannot be moved, it will be found damaged again.
        let _ = self.disk.rename(path, Path::new(&aside));
        tracing::error!(file = %path.display(), "a file is not what its name says");
        StoreError::Missing(format!(
            "{} was damaged and moved aside: register it again",
            path.display()
        ))
    }

    /// Forgets a dataset. Its blobs go when no other names them.
    pub(crate) fn remove(&self, id: &DatasetId, jobs: u32) -> Result<()> {
        if jobs > 0 {
            return Err(StoreError::InUse(format!("dataset {id} is used by {jobs} jobs")));
        }
        if self.known().datasets.remove(id).is_none() {
            return Err(StoreError::Missing(format!("there is no dataset {id}")));
        }
        let path = self.dataset_path(id);
        let removed = self.disk.remove(&path).and_then(|()| self.disk.sync_folder(&self.datasets));
        removed.map_err(|error| disk_error("remove", &path, &error))?;
        tracing::info!(dataset = %id, "a dataset was removed");
        Ok(())
    }

    /// Begins to take a blob.
    pub(crate) fn upload(self: &Arc<Self>, name: &str) -> Result<Upload> {
        if !blob::is_name(name) {
            return Err(StoreError::Invalid(format!("{name:?} is no name of a blob")));
        }
        let file = self.create(&self.blob_path(name))?;
        let naming = Naming::default();
        Ok(Upload { store: Arc::clone(self), name: name.to_owned(), file, naming, bytes: 0 })
    }

    /// A blob, to be read piece by piece.
    pub(crate) fn download(self: &Arc<Self>, name: &str) -> Result<Download> {
        let bytes = {
            let mut known = self.known();
            let kept = known.blobs.get_mut(name);
            let kept =
                kept.ok_or_else(|| StoreError::Missing(format!("there is no blob {name:?}")))?;
            kept.used = Instant::now();
            kept.bytes
        };
        let path = self.blob_path(name);
        let file = self.disk.open(&path).map_err(|error| disk_error("open", &path, &error))?;
        let naming = Some(Naming::default());
        Ok(Download { store: Arc::clone(self), name: name.to_owned(), file, naming, bytes, at: 0 })
    }

    fn create(&self, path: &Path) -> Result<Unfinished> {
        // The same may come from two at once.
        let number = self.unfinished.fetch_add(1, Ordering::Relaxed);
        let mut new = path.as_os_str().to_owned();
        new.push(format!(".{number}.new"));
        let new = PathBuf::from(new);
        let file = self.disk.create(&new).map_err(|error| disk_error("create", &new, &error))?;
        Ok(Unfinished { file: Some(file), disk: Arc::clone(&self.disk), name: new })
    }

    /// Removes what no job uses and nobody asked for. Blocks.
    pub(crate) fn tidy(&self, jobs: &BTreeMap<DatasetId, u32>) {
        let now = Instant::now();
        let idle = |kept: &Kept| now.saturating_duration_since(kept.used) >= self.limits.idle;
        let unused: Vec<DatasetId> = {
            let mut known = self.known();
            for id in jobs.keys() {
                if let Some(kept) = known.datasets.get_mut(id) {
                    kept.used = now;
                }
            }
            let unused = known.datasets.iter().filter(|(_, kept)| idle(kept));
            unused.map(|(id, _)| id.clone()).collect()
        };
        for id in unused {
            if let Err(error) = self.remove(&id, 0) {
                tracing::warn!(dataset = %id, %error, "cannot remove a dataset");
            }
        }
        if !self.known().blobs.values().any(idle) {
            return;
        }
        let Some(named) = self.named_blobs() else { return };
        let gone: Vec<String> = {
            let mut known = self.known();
            let gone =
                known.blobs.iter().filter(|(name, kept)| idle(kept) && !named.contains(*name));
            let gone: Vec<String> = gone.map(|(name, _)| name.clone()).collect();
            for name in &gone {
                let bytes = known.blobs.remove(name).map_or(0, |kept| kept.bytes);
                known.bytes = known.bytes.saturating_sub(bytes);
            }
            gone
        };
        for name in gone {
            // What cannot be removed is there again after a restart, and is tried again then.
            let _ = self.disk.remove(&self.blob_path(&name));
        }
    }

    /// The blobs that datasets name, unless that cannot be told.
    fn named_blobs(&self) -> Option<BTreeSet<String>> {
        let ids: Vec<DatasetId> = self.known().datasets.keys().cloned().collect();
        let mut named = BTreeSet::new();
        for id in ids {
            let blobs = self.known().datasets.get(&id).map(|kept| kept.blobs.clone());
            match blobs {
                None => {}
                Some(Some(blobs)) => named.extend(blobs),
                Some(None) => {
                    let bytes = self.disk.read(&self.dataset_path(&id)).ok()?;
                    let dataset: Dataset = serde_json::from_slice(&bytes).ok()?;
                    if let Some(kept) = self.known().datasets.get_mut(&id) {
                        kept.blobs = Some(dataset.blobs.clone());
                    }
                    named.extend(dataset.blobs);
                }
            }
        }
        Some(named)
    }

    /// How the datasets stand.
    pub(crate) fn status(&self, jobs: &BTreeMap<DatasetId, u32>) -> Vec<DatasetStatus> {
        let now = Instant::now();
        let known = self.known();
        let status = |(id, kept): (&DatasetId, &Kept)| {
            let blobs = kept.blobs.as_deref().unwrap_or_default();
            let size = |name: &String| known.blobs.get(name).map_or(0, |blob| blob.bytes);
            let idle = now.saturating_duration_since(kept.used).as_millis();
            DatasetStatus {
                id: id.clone(),
                jobs: jobs.get(id).copied().unwrap_or(0),
                bytes: kept.bytes + blobs.iter().map(size).sum::<u64>(),
                blobs: u32::try_from(blobs.len()).unwrap_or(u32::MAX),
                idle_ms: u64::try_from(idle).unwrap_or(u64::MAX),
            }
        };
        known.datasets.iter().map(status).collect()
    }
}

fn disk_error(verb: &str, path: &Path, error: &io::Error) -> StoreError {
    let what = format!("cannot {verb} {}: {error}", path.display());
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::Full(what),
        _ => StoreError::Disk(what),
    }
}

/// A file under a name that is not its own yet. Removed, unless it is finished.
#[derive(Debug)]
struct Unfinished {
    /// Gone when it is finished.
    file: Option<Box<dyn DiskFile>>,
    disk: Arc<dyn Disk>,
    name: PathBuf,
}

impl Unfinished {
    fn file(&self) -> io::Result<&dyn DiskFile> {
        self.file.as_deref().ok_or_else(|| io::Error::other("it is finished"))
    }

    fn write_all(&self, mut offset: u64, mut bytes: &[u8]) -> Result<()> {
        let mut write = || {
            while !bytes.is_empty() {
                let written = self.file()?.write_at(offset, bytes)?;
                if written == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                offset += written as u64;
                bytes = &bytes[written..];
            }
            Ok(())
        };
        write().map_err(|error| disk_error("write", &self.name, &error))
    }

    /// Makes it durable and gives it its own name.
    fn finish(&mut self, folder: &Path, path: &Path) -> Result<()> {
        let Self { disk, name, .. } = &*self;
        let finished = self
            .file()
            .and_then(|file| file.sync())
            .and_then(|()| disk.rename(name, path))
            .and_then(|()| disk.sync_folder(folder));
        finished.map_err(|error| disk_error("write", path, &error))?;
        self.file = None;
        Ok(())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            // The next start removes it otherwise.
            let _ = self.disk.remove(&self.name);
        }
    }
}

/// A blob that is coming.
#[derive(Debug)]
pub(crate) struct Upload {
    store: Arc<Store>,
    name: String,
    file: Unfinished,
    naming: Naming,
    bytes: u64,
}

impl Upload {
    /// More bytes have come. Blocks.
    pub(crate) fn add(&mut self, bytes: &[u8]) -> Result<()> {
        let Self { store, name, file, naming, bytes: length } = self;
        let more = bytes.len() as u64;
        let StoreLimits { longest_blob, most_bytes, .. } = store.limits;
        if *length + more > longest_blob {
            return Err(StoreError::Invalid(format!(
                "blob {name} is longer than {longest_blob} bytes"
            )));
        }
        {
            let mut known = store.known();
            if known.bytes + more > most_bytes {
                return Err(StoreError::Full(format!(
                    "blobs take more than {most_bytes} bytes together: remove datasets"
                )));
            }
            known.bytes += more;
        }
        *length += more;
        naming.add(bytes).map_err(StoreError::Invalid)?;
        file.write_all(*length - more, bytes)
    }

    /// All has come. Blocks.
    pub(crate) fn finish(mut self) -> Result<()> {
        let naming = std::mem::take(&mut self.naming);
        let found = naming.finish().map_err(StoreError::Invalid)?;
        if found != self.name {
            return Err(StoreError::Invalid(format!(
                "what came as blob {} is blob {found}",
                self.name
            )));
        }
        let store = Arc::clone(&self.store);
        self.file.finish(&store.blobs, &store.blob_path(&self.name))?;
        let kept = Kept { bytes: self.bytes, used: Instant::now(), blobs: None };
        let twice = store.known().blobs.insert(self.name.clone(), kept).is_some();
        if !twice {
            // It is kept, so its bytes stay counted.
            self.bytes = 0;
        }
        Ok(())
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let mut known = self.store.known();
        known.bytes = known.bytes.saturating_sub(self.bytes);
    }
}

/// A blob that is being read.
#[derive(Debug)]
pub(crate) struct Download {
    store: Arc<Store>,
    name: String,
    file: Box<dyn DiskFile>,
    naming: Option<Naming>,
    bytes: u64,
    at: u64,
}

impl Download {
    /// The next piece; nothing at the end. Blocks.
    pub(crate) fn next(&mut self, most: usize) -> Result<Option<Vec<u8>>> {
        let left = usize::try_from(self.bytes - self.at).unwrap_or(usize::MAX);
        if left == 0 {
            let found = self.naming.take().map(Naming::finish);
            return match found {
                Some(found) if found.as_deref() != Ok(self.name.as_str()) => Err(self.damaged()),
                _ => Ok(None),
            };
        }
        let mut piece = vec![0; left.min(most)];
        let read = self.file.read_at(self.at, &mut piece);
        let read =
            read.map_err(|error| disk_error("read", &self.store.blob_path(&self.name), &error))?;
        piece.truncate(read);
        let named = self.naming.as_mut().map(|naming| naming.add(&piece));
        if read == 0 || named.is_some_and(|named| named.is_err()) {
            return Err(self.damaged());
        }
        self.at += read as u64;
        Ok(Some(piece))
    }

    fn damaged(&self) -> StoreError {
        {
            let mut known = self.store.known();
            let bytes = known.blobs.remove(&self.name).map_or(0, |kept| kept.bytes);
            known.bytes = known.bytes.saturating_sub(bytes);
        }
        self.store.set_aside(&self.store.blob_path(&self.name))
    }
}

#[cfg(test)]
mod tests;
