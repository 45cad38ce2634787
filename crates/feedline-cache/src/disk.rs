//! Samples on a disk, shared by all processes of a host and by later runs.
//!
//! ```text
//!  path/
//!    limit.lock            held while room is being counted
//!    <identity>/           one for each data set and steps
//!      about.json          what it is, for people
//!      lease               locked by everyone who uses it; its time says when that was last
//!      <name>.data, .index what one process after another has written
//! ```
//!
//! No file says how much is used: the files' own lengths do, and room is taken by making them longer while
//! the one lock is held. All locks are the system's, and end with the process that holds them.

use crate::entry;
use crate::segment::{Row, Segment, Writer, entry_sum};
use feedline_core::{Attempt, Cost, Error, Name, Pool, Result, Sample, Tensor};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

/// What others have written is looked for so often.
const LOOKS: Duration = Duration::from_millis(200);
/// Room is taken in pieces of at most this.
const PIECE: u64 = 64 << 20;

/// What is written about an identity, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// The release that wrote it.
    pub feedline: String,
    /// The steps that samples have been through.
    pub plan: String,
    /// Samples in the source.
    pub samples: u64,
}

/// Samples of one identity on a disk.
#[derive(Debug)]
pub(crate) struct Disk {
    root: PathBuf,
    folder: PathBuf,
    limit: u64,
    /// Held as long as this is used, so that nobody removes it.
    _lease: File,
    found: RwLock<Found>,
    looking: Mutex<Looking>,
    writer: Mutex<Pen>,
    /// Bytes of all that the folder holds, as far as is known.
    used: AtomicU64,
}

#[derive(Debug, Default)]
struct Found {
    segments: Vec<Arc<Segment>>,
    rows: HashMap<u64, (usize, Row)>,
    /// Entries that were found to be damaged: their rows are not believed again.
    damaged: HashSet<(usize, u64)>,
}

#[derive(Debug, Default)]
struct Looking {
    last: Option<Instant>,
    /// Segments by name: their number, and the rows that were read.
    segments: HashMap<String, (usize, u64)>,
}

/// What this process writes with.
#[derive(Debug, Default)]
struct Pen {
    writer: Option<Writer>,
    /// Why nothing is written any more.
    dry: Option<String>,
}

/// What came of keeping a sample.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Put {
    /// It is kept, by whomever.
    Kept,
    /// There is no room for it; so much there is.
    Full(u64),
    /// Nothing can be written.
    Broken,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unusable(path: &Path, error: impl std::fmt::Display) -> Error {
    Error::Source(format!(
        "cache: {} cannot be used: {error}; give path a folder that can be written, or leave disk out",
        path.display()
    ))
}

impl Disk {
    /// Opens what is kept of an identity below `root`.
    ///
    /// # Errors
    ///
    /// If the folder is not there and cannot be made, or cannot be read.
    pub(crate) fn open(root: &Path, identity: &str, about: &About, limit: u64) -> Result<Self> {
        let folder = root.join(identity);
        let failed = |error: io::Error| unusable(root, error);
        let mut lease = None;
        for _ in 0..16 {
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
            // A folder that is there and may only be read is good enough to read.
            if let (Err(error), false) = (made, folder.is_dir()) {
                return Err(failed(error));
            }
            let path = folder.join("lease");
            let opened = open_file(&path).or_else(|_| File::open(&path)).map_err(failed)?;
            flock(&opened, FlockOperation::LockShared).map_err(|error| failed(error.into()))?;
            // Somebody may have removed it between the two.
            let same = fs::metadata(&path).is_ok_and(|at| {
                opened.metadata().is_ok_and(|held| (at.dev(), at.ino()) == (held.dev(), held.ino()))
            });
            if same {
                lease = Some(opened);
                break;
            }
        }
        let Some(lease) = lease else {
            return Err(failed(io::Error::other("it is removed as soon as it is made")));
        };
        let _ = lease.set_modified(SystemTime::now());
        let text = serde_json::to_string_pretty(about).unwrap_or_default();
        if !folder.join("about.json").exists() {
            let _ = fs::write(folder.join("about.json"), text + "\n");
        }
        let disk = Self {
            root: root.to_owned(),
            folder,
            limit,
            _lease: lease,
            found: RwLock::default(),
            looking: Mutex::default(),
            writer: Mutex::default(),
            used: AtomicU64::new(0),
        };
        disk.look(true);
        disk.used.store(folder_bytes(root), Ordering::Relaxed);
        Ok(disk)
    }

    /// Looks for what others have written, unless that was done a moment ago.
    fn look(&self, now: bool) {
        let mut looking = if now {
            lock(&self.looking)
        } else {
            match self.looking.try_lock() {
                Ok(looking) => looking,
                Err(_) => return,
            }
        };
        if !now && looking.last.is_some_and(|last| last.elapsed() < LOOKS) {
            return;
        }
        looking.last = Some(Instant::now());
        let Ok(files) = fs::read_dir(&self.folder) else { return };
        for file in files.flatten() {
            let name = file.file_name();
            let Some(name) = name.to_str().and_then(|name| name.strip_suffix(".index")) else {
                continue;
            };
            if !looking.segments.contains_key(name) {
                let Ok(segment) = Segment::open(&self.folder, name) else { continue };
                let number = self.add(Arc::new(segment));
                looking.segments.insert(name.to_owned(), (number, 0));
            }
            let Some((number, read)) = looking.segments.get_mut(name) else { continue };
            let segment = {
                let found = self.found.read().unwrap_or_else(PoisonError::into_inner);
                Arc::clone(&found.segments[*number])
            };
            let Ok((rows, next)) = segment.rows(*read) else { continue };
            *read = next;
            let mut found = self.found.write().unwrap_or_else(PoisonError::into_inner);
            for row in rows {
                if !found.damaged.contains(&(*number, row.offset)) {
                    found.rows.entry(row.index).or_insert((*number, row));
                }
            }
        }
    }

    fn add(&self, segment: Arc<Segment>) -> usize {
        let mut found = self.found.write().unwrap_or_else(PoisonError::into_inner);
        found.segments.push(segment);
        found.segments.len() - 1
    }

    /// Where a sample lies, if it is kept.
    pub(crate) fn find(&self, index: u64) -> Option<OnDisk> {
        let find = || {
            let found = self.found.read().unwrap_or_else(PoisonError::into_inner);
            let (number, row) = *found.rows.get(&index)?;
            Some(OnDisk { number, row, segment: Arc::clone(&found.segments[number]) })
        };
        find().or_else(|| {
            self.look(false);
            find()
        })
    }

    /// Forgets an entry that was found to be damaged.
    pub(crate) fn forget(&self, place: &OnDisk) {
        let mut found = self.found.write().unwrap_or_else(PoisonError::into_inner);
        found.damaged.insert((place.number, place.row.offset));
        let same = found
            .rows
            .get(&place.row.index)
            .is_some_and(|(number, row)| (*number, row.offset) == (place.number, place.row.offset));
        if same {
            found.rows.remove(&place.row.index);
        }
    }

    /// Keeps a sample.
    pub(crate) fn put(&self, index: u64, fields: &[(Name, Tensor)], cost: Cost) -> Put {
        let mut pen = lock(&self.writer);
        if pen.dry.is_some() {
            return Put::Broken;
        }
        self.look(false);
        if self.found.read().unwrap_or_else(PoisonError::into_inner).rows.contains_key(&index) {
            return Put::Kept;
        }
        let put = entry::with_parts(fields, |parts, length| {
            self.write(&mut pen, index, parts, length, cost)
        });
        put.unwrap_or_else(|error| {
            let full = matches!(error.raw_os_error(), Some(code) if [
                rustix::io::Errno::NOSPC.raw_os_error(),
                rustix::io::Errno::DQUOT.raw_os_error(),
            ].contains(&code));
            let what = if full { "the disk is full".to_owned() } else { error.to_string() };
            let note = format!("nothing more is written to {}: {what}", self.root.display());
            tracing::warn!(path = %self.root.display(), %error, "the cache writes no more");
            pen.dry = Some(note);
            Put::Broken
        })
    }

    fn write(
        &self,
        pen: &mut Pen,
        index: u64,
        parts: &[&[u8]],
        length: u64,
        cost: Cost,
    ) -> io::Result<Put> {
        if pen.writer.as_ref().is_none_or(|writer| writer.process != std::process::id()) {
            // That of a parent is its parent's to close.
            std::mem::forget(pen.writer.take());
            pen.writer = Some(self.begin()?);
        }
        let Some(writer) = &mut pen.writer else { return Ok(Put::Broken) };
        let needs = writer.needs(length);
        if needs > 0
            && let Some(room) = self.reserve(writer, needs, length)?
        {
            return Ok(Put::Full(room));
        }
        let row = writer.append(index, parts, length, cost)?;
        let segment = Arc::clone(&writer.segment);
        let mut found = self.found.write().unwrap_or_else(PoisonError::into_inner);
        let number = found.segments.iter().position(|other| Arc::ptr_eq(other, &segment));
        if let Some(number) = number {
            found.rows.insert(index, (number, row));
        }
        Ok(Put::Kept)
    }

    /// A segment to append to: one that nobody appends to any more, or a new one.
    fn begin(&self) -> io::Result<Writer> {
        let segments = {
            let found = self.found.read().unwrap_or_else(PoisonError::into_inner);
            found.segments.clone()
        };
        for segment in segments {
            if let Some(writer) = Writer::take(segment)? {
                return Ok(writer);
            }
        }
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let name = format!("{:016x}", u64::from_le_bytes(random));
        let mut looking = lock(&self.looking);
        let segment = Arc::new(Segment::create(&self.folder, &name)?);
        let writer = Writer::take(Arc::clone(&segment))?;
        let number = self.add(segment);
        // Its rows are added as they are written.
        looking.segments.insert(name, (number, 0));
        writer.ok_or_else(|| io::Error::other("a new file is locked by somebody else"))
    }

    /// Takes room for `needs` bytes and more. Says how much there is if that is not enough.
    fn reserve(&self, writer: &mut Writer, needs: u64, length: u64) -> io::Result<Option<u64>> {
        let guard = open_file(&self.root.join("limit.lock"))?;
        flock(&guard, FlockOperation::LockExclusive)?;
        let mut used = folder_bytes(&self.root);
        if used.saturating_add(needs) > self.limit {
            remove_idle(&self.root, used.saturating_add(needs) - self.limit);
            used = folder_bytes(&self.root);
        }
        let room = self.limit.saturating_sub(used);
        if room < needs {
            self.used.store(used, Ordering::Relaxed);
            return Ok(Some(room));
        }
        let piece = (self.limit / 64).clamp(1 << 16, PIECE);
        let bytes = needs.max(piece).min(room);
        writer.reserve(bytes, length)?;
        self.used.store(used + bytes, Ordering::Relaxed);
        Ok(None)
    }

    /// Number of samples that are kept, bytes of all that the folder holds, and how many are allowed.
    pub(crate) fn counts(&self) -> (u64, u64, u64) {
        let found = self.found.read().unwrap_or_else(PoisonError::into_inner);
        (found.rows.len() as u64, self.used.load(Ordering::Relaxed), self.limit)
    }

    /// Why nothing is written any more, if so.
    pub(crate) fn note(&self) -> Option<String> {
        lock(&self.writer).dry.clone()
    }
}

/// A sample that lies on the disk.
#[derive(Debug)]
pub(crate) struct OnDisk {
    number: usize,
    segment: Arc<Segment>,
    pub row: Row,
}

impl OnDisk {
    /// Reads it; `None` if it is damaged. Without `wait`, only what is in memory.
    pub(crate) fn read(&self, pool: &Pool, wait: bool) -> (Attempt, Option<Sample>) {
        let nothing = (Attempt::Done, None);
        let Ok(mut buffer) = pool.take(self.row.length as usize) else { return nothing };
        let mut read = 0;
        while read < buffer.len() {
            let at = self.row.offset + read as u64;
            match read_at(&self.segment.data, &mut buffer[read..], at, wait) {
                Ok(0) => return nothing,
                Ok(count) => read += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return (Attempt::WouldWait, None);
                }
                Err(_) => return nothing,
            }
        }
        if entry_sum(&[&buffer]) != self.row.sum {
            return nothing;
        }
        (Attempt::Done, entry::read(&buffer.freeze()))
    }
}

fn read_at(file: &File, out: &mut [u8], at: u64, wait: bool) -> io::Result<usize> {
    #[cfg(target_os = "linux")]
    if !wait {
        use rustix::io::{Errno, ReadWriteFlags, preadv2};
        let mut parts = [io::IoSliceMut::new(out)];
        return preadv2(file, &mut parts, at, ReadWriteFlags::NOWAIT).map_err(
            |error| match error {
                Errno::AGAIN | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL => {
                    io::ErrorKind::WouldBlock.into()
                }
                other => other.into(),
            },
        );
    }
    #[cfg(not(target_os = "linux"))]
    if !wait {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    std::os::unix::fs::FileExt::read_at(file, out, at)
}

fn open_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// One identity that a folder holds.
#[derive(Clone, Debug, Serialize)]
pub struct Held {
    /// Its name.
    pub identity: String,
    /// What it is.
    pub about: Option<About>,
    /// Samples that are kept, and bytes of all its files.
    pub samples: u64,
    /// Bytes of all its files.
    pub bytes: u64,
    /// When somebody last began to use it, in seconds since 1970.
    pub used: u64,
    /// Whether somebody uses it now.
    pub in_use: bool,
}

/// Whether a folder's name is that of an identity: nothing else is ever touched.
fn is_identity(name: &str) -> bool {
    name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn identities(root: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_str().is_some_and(is_identity))
        .map(|entry| entry.path())
        .filter(|path| path.join("lease").is_file())
        .collect();
    found.sort();
    found
}

/// Bytes of all files of all identities.
fn folder_bytes(root: &Path) -> u64 {
    identities(root).iter().map(|folder| identity_bytes(folder)).sum()
}

fn identity_bytes(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).map(|meta| meta.len()).sum()
}

/// The lease of an identity, if nobody uses it.
fn idle_lease(folder: &Path) -> Option<File> {
    let lease = File::open(folder.join("lease")).ok()?;
    flock(&lease, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(lease)
}

/// Removes identities that nobody uses, those first that were not used for longest, until so many bytes
/// are free.
fn remove_idle(root: &Path, bytes: u64) {
    let last_used = |folder: &PathBuf| {
        fs::metadata(folder.join("lease"))
            .and_then(|meta| meta.modified())
            .unwrap_or(SystemTime::UNIX_EPOCH)
    };
    let mut folders = identities(root);
    folders.sort_by_key(last_used);
    let mut freed = 0;
    for folder in folders {
        if freed >= bytes {
            return;
        }
        let Some(lease) = idle_lease(&folder) else { continue };
        let held = identity_bytes(&folder);
        if fs::remove_dir_all(&folder).is_ok() {
            tracing::info!(folder = %folder.display(), bytes = held, "removed what nobody used");
            freed += held;
        }
        drop(lease);
    }
}

/// What a folder holds.
///
/// # Errors
///
/// If it cannot be read.
pub fn list(root: &Path) -> Result<Vec<Held>> {
    fs::read_dir(root).map_err(|error| {
        Error::Source(format!("cache: {} cannot be read: {error}", root.display()))
    })?;
    let held = |folder: PathBuf| {
        let about = fs::read(folder.join("about.json")).ok();
        let mut indices = HashSet::new();
        for file in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let name = file.file_name();
            let name = name.to_str().and_then(|name| name.strip_suffix(".index"));
            let rows = name.and_then(|name| Segment::open(&folder, name).ok());
            let rows = rows.and_then(|segment| segment.rows(0).ok());
            indices.extend(rows.into_iter().flat_map(|(rows, _)| rows).map(|row| row.index));
        }
        let used = fs::metadata(folder.join("lease")).and_then(|meta| meta.modified()).ok();
        let used = used.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
        Held {
            identity: folder.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            about: about.and_then(|text| serde_json::from_slice(&text).ok()),
            samples: indices.len() as u64,
            bytes: identity_bytes(&folder),
            used: used.map_or(0, |time| time.as_secs()),
            in_use: idle_lease(&folder).is_none(),
        }
    };
    Ok(identities(root).into_iter().map(held).collect())
}

/// Removes identities whose names begin with `prefix`, and says which. Those in use stay.
///
/// # Errors
///
/// If one is in use, or cannot be removed; those before it are gone.
pub fn remove(root: &Path, prefix: &str) -> Result<Vec<String>> {
    let mut removed = Vec::new();
    for folder in identities(root) {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !name.starts_with(prefix) {
            continue;
        }
        let Some(lease) = idle_lease(&folder) else {
            return Err(Error::Source(format!(
                "cache: {name} is in use; end the runs that use it first"
            )));
        };
        fs::remove_dir_all(&folder).map_err(|error| {
            Error::Source(format!("cache: {} cannot be removed: {error}", folder.display()))
        })?;
        drop(lease);
        removed.push(name);
    }
    Ok(removed)
}
