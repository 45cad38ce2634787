//! A disk in memory that fails when it is told to, for tests.
//!
//! ```text
//!   written ──► pending ──sync──► durable          names: the same, by sync_folder
//!                  │                 │
//!                  └── any part ──►  └──► what a crash leaves
//! ```
//!
//! What was written is seen at once. What a crash leaves of it is what was synced, and of the rest
//! any part: each piece of each write, and each name, is kept or lost by a coin.

use crate::disk::{Disk, DiskFile};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A write is kept or lost in pieces of so many bytes.
const PIECE: usize = 64;

/// A disk in memory. Clones are the same disk.
#[derive(Clone, Debug, Default)]
pub struct SimulatedDisk {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    files: Vec<Content>,
    names: BTreeMap<PathBuf, usize>,
    durable_names: BTreeMap<PathBuf, usize>,
    pending_names: Vec<Naming>,
    locked: BTreeSet<PathBuf>,
    operations: u64,
    stop_at: Option<u64>,
    fail_at: Option<(u64, io::ErrorKind)>,
    capacity: Option<u64>,
    deny_reads: bool,
    deny_writes: bool,
}

#[derive(Clone, Debug, Default)]
struct Content {
    seen: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<Change>,
    allocated: u64,
}

#[derive(Clone, Debug)]
enum Change {
    Write(u64, Vec<u8>),
    Length(u64),
}

#[derive(Clone, Debug)]
enum Naming {
    Is(PathBuf, usize),
    Was(PathBuf, PathBuf, usize),
    Gone(PathBuf),
}

impl Content {
    fn size(&self) -> u64 {
        self.allocated.max(self.seen.len() as u64)
    }

    fn write(bytes: &mut Vec<u8>, offset: u64, new: &[u8]) {
        let (begin, end) = (offset as usize, offset as usize + new.len());
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[begin..end].copy_from_slice(new);
    }

    fn after_crash(&self, coins: &mut Coins) -> Self {
        let mut bytes = self.durable.clone();
        for change in &self.pending {
            match change {
                Change::Write(offset, new) => {
                    // All, nothing, a beginning, or any pieces.
                    let kind = coins.below(4);
                    let cut = coins.below(new.len() as u64 + 1) as usize;
                    for (index, piece) in new.chunks(PIECE).enumerate() {
                        let begin = index * PIECE;
                        let kept = match kind {
                            0 => piece.len(),
                            1 => 0,
                            2 => cut.saturating_sub(begin).min(piece.len()),
                            _ => piece.len() * coins.below(2) as usize,
                        };
                        if kept > 0 {
                            Self::write(&mut bytes, offset + begin as u64, &piece[..kept]);
                        }
                    }
                }
                Change::Length(length) => {
                    if coins.below(2) == 0 {
                        bytes.resize(*length as usize, 0);
                    }
                }
            }
        }
        Self { seen: bytes.clone(), durable: bytes, pending: Vec::new(), allocated: 0 }
    }
}

/// Numbers by chance that are the same for the same seed (SplitMix64).
#[derive(Clone, Debug)]
pub struct Coins(u64);

impl Coins {
    /// The numbers of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `limit`, or 0 if that is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((u128::from(mixed ^ (mixed >> 31)) * u128::from(limit)) >> 64) as u64
    }
}

impl SimulatedDisk {
    /// An empty disk.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many operations that change the disk, or make it durable, were begun.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.inner().operations
    }

    /// The power fails at operation `number`, counted from 0: a write or a new name may still
    /// happen, a sync does not, and nothing happens from then on.
    pub fn stop_at(&self, number: u64) {
        self.inner().stop_at = Some(number);
    }

    /// Operation `number`, counted from 0, fails with this error, once. If it is a sync, what was to
    /// become durable never does, as on a real disk, whatever is synced later.
    pub fn fail_at(&self, number: u64, error: io::ErrorKind) {
        self.inner().fail_at = Some((number, error));
    }

    /// From now on the disk holds so many bytes, or any number.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.inner().capacity = bytes;
    }

    /// How many bytes the files take.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.inner().used()
    }

    /// From now on nothing can be read.
    pub fn deny_reads(&self) {
        self.inner().deny_reads = true;
    }

    /// From now on nothing can be changed.
    pub fn deny_writes(&self) {
        self.inner().deny_writes = true;
    }

    /// The disk after the process was killed: all that was written is seen, and no more durable
    /// than before.
    #[must_use]
    pub fn after_kill(&self) -> Self {
        let inner = self.inner();
        let next = Inner {
            files: inner.files.clone(),
            names: inner.names.clone(),
            durable_names: inner.durable_names.clone(),
            pending_names: inner.pending_names.clone(),
            capacity: inner.capacity,
            ..Inner::default()
        };
        Self { inner: Arc::new(Mutex::new(next)) }
    }

    /// The disk after the power failed: what was durable, and any part of the rest.
    #[must_use]
    pub fn after_crash(&self, seed: u64) -> Self {
        let (inner, mut coins) = (self.inner(), Coins::new(seed));
        let files = inner.files.iter().map(|file| file.after_crash(&mut coins)).collect();
        let mut names = inner.durable_names.clone();
        for naming in &inner.pending_names {
            if coins.below(2) == 0 {
                naming.apply(&mut names);
            }
        }
        let durable_names = names.clone();
        let next =
            Inner { files, names, durable_names, capacity: inner.capacity, ..Inner::default() };
        Self { inner: Arc::new(Mutex::new(next)) }
    }

    /// The bytes of a file, if it is there.
    #[must_use]
    pub fn bytes(&self, file: &Path) -> Option<Vec<u8>> {
        let inner = self.inner();
        inner.names.get(file).map(|index| inner.files[*index].seen.clone())
    }

    /// Puts a durable file there.
    pub fn put(&self, file: &Path, bytes: Vec<u8>) {
        let mut inner = self.inner();
        let index = inner.files.len();
        inner.files.push(Content { seen: bytes.clone(), durable: bytes, ..Content::default() });
        inner.names.insert(file.to_owned(), index);
        inner.durable_names.insert(file.to_owned(), index);
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self, index: usize, locked: Option<PathBuf>) -> Box<dyn DiskFile> {
        Box::new(SimulatedFile { disk: self.clone(), index, locked })
    }
}

impl Naming {
    fn apply(&self, names: &mut BTreeMap<PathBuf, usize>) {
        match self {
            Self::Is(name, file) => {
                names.insert(name.clone(), *file);
            }
            Self::Was(from, to, file) => {
                if names.get(from) == Some(file) {
                    names.remove(from);
                }
                names.insert(to.clone(), *file);
            }
            Self::Gone(name) => {
                names.remove(name);
            }
        }
    }
}

fn power_failed() -> io::Error {
    io::Error::other("the simulated power has failed")
}

/// How an operation ends that was begun.
enum Fate {
    Happens,
    /// The power fails while it happens.
    IsCutOff,
    Fails(io::Error),
    /// It is not even tried.
    Refused(io::Error),
}

impl Inner {
    fn used(&self) -> u64 {
        self.names.values().map(|file| self.files[*file].size()).sum()
    }

    /// How many more bytes the file may grow to.
    fn limit_of(&self, file: usize) -> u64 {
        let size = self.files[file].size();
        self.capacity.map_or(u64::MAX, |capacity| size + capacity.saturating_sub(self.used()))
    }

    fn begin(&mut self) -> Fate {
        let number = self.operations;
        self.operations += 1;
        if self.stop_at.is_some_and(|stop| number > stop) {
            return Fate::Refused(power_failed());
        }
        if self.deny_writes {
            return Fate::Refused(io::ErrorKind::PermissionDenied.into());
        }
        match self.fail_at {
            Some((at, error)) if at == number => Fate::Fails(error.into()),
            _ if self.stop_at == Some(number) => Fate::IsCutOff,
            _ => Fate::Happens,
        }
    }

    /// A change that may still happen when the power fails.
    fn begin_change(&mut self) -> io::Result<()> {
        match self.begin() {
            Fate::Happens | Fate::IsCutOff => Ok(()),
            Fate::Fails(error) | Fate::Refused(error) => Err(error),
        }
    }

    fn name(&mut self, naming: Naming) {
        naming.apply(&mut self.names);
        self.pending_names.push(naming);
    }

    fn find(&self, file: &Path) -> io::Result<usize> {
        if self.deny_reads {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        self.names.get(file).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Disk for SimulatedDisk {
    fn create_folder(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<String>> {
        let inner = self.inner();
        if inner.deny_reads {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let inside = inner.names.keys().filter(|name| name.parent() == Some(folder));
        Ok(inside.filter_map(|name| Some(name.file_name()?.to_str()?.to_owned())).collect())
    }

    fn read(&self, file: &Path) -> io::Result<Vec<u8>> {
        let inner = self.inner();
        Ok(inner.files[inner.find(file)?].seen.clone())
    }

    fn create(&self, file: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut inner = self.inner();
        inner.begin_change()?;
        let index = inner.files.len();
        inner.files.push(Content::default());
        inner.name(Naming::Is(file.to_owned(), index));
        Ok(self.handle(index, None))
    }

    fn open(&self, file: &Path) -> io::Result<Box<dyn DiskFile>> {
        let index = self.inner().find(file)?;
        Ok(self.handle(index, None))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut inner = self.inner();
        inner.begin_change()?;
        let index = inner.find(from)?;
        inner.name(Naming::Was(from.to_owned(), to.to_owned(), index));
        Ok(())
    }

    fn remove(&self, file: &Path) -> io::Result<()> {
        let mut inner = self.inner();
        inner.begin_change()?;
        inner.find(file)?;
        inner.name(Naming::Gone(file.to_owned()));
        Ok(())
    }

    fn sync_folder(&self, _: &Path) -> io::Result<()> {
        let mut inner = self.inner();
        match inner.begin() {
            Fate::Happens => {
                inner.durable_names = inner.names.clone();
                inner.pending_names.clear();
                Ok(())
            }
            Fate::IsCutOff => Err(power_failed()),
            Fate::Fails(error) | Fate::Refused(error) => Err(error),
        }
    }

    fn lock(&self, file: &Path) -> io::Result<Option<Box<dyn DiskFile>>> {
        let mut inner = self.inner();
        if inner.locked.contains(file) {
            return Ok(None);
        }
        let index = match inner.names.get(file) {
            Some(index) => *index,
            None => {
                inner.begin_change()?;
                let index = inner.files.len();
                inner.files.push(Content::default());
                inner.name(Naming::Is(file.to_owned(), index));
                index
            }
        };
        inner.locked.insert(file.to_owned());
        Ok(Some(self.handle(index, Some(file.to_owned()))))
    }
}

#[derive(Debug)]
struct SimulatedFile {
    disk: SimulatedDisk,
    index: usize,
    locked: Option<PathBuf>,
}

impl DiskFile for SimulatedFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.disk.inner().files[self.index].seen.len() as u64)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let inner = self.disk.inner();
        let bytes = &inner.files[self.index].seen;
        let bytes = bytes.get(offset as usize..).unwrap_or_default();
        let some = bytes.len().min(buffer.len());
        buffer[..some].copy_from_slice(&bytes[..some]);
        Ok(some)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        let mut inner = self.disk.inner();
        inner.begin_change()?;
        let room = inner.limit_of(self.index).saturating_sub(offset);
        let written = bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        if written == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let file = &mut inner.files[self.index];
        Content::write(&mut file.seen, offset, &bytes[..written]);
        file.pending.push(Change::Write(offset, bytes[..written].to_vec()));
        Ok(written)
    }

    fn sync(&self) -> io::Result<()> {
        let mut inner = self.disk.inner();
        let fate = inner.begin();
        let file = &mut inner.files[self.index];
        match fate {
            Fate::Happens => {
                for change in std::mem::take(&mut file.pending) {
                    match change {
                        Change::Write(offset, new) => {
                            Content::write(&mut file.durable, offset, &new);
                        }
                        Change::Length(length) => file.durable.resize(length as usize, 0),
                    }
                }
                Ok(())
            }
            // Nobody is there to hear how the sync ended.
            Fate::IsCutOff => Err(power_failed()),
            Fate::Fails(error) => {
                file.pending.clear();
                Err(error)
            }
            Fate::Refused(error) => Err(error),
        }
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        let mut inner = self.disk.inner();
        inner.begin_change()?;
        let file = &mut inner.files[self.index];
        file.allocated = file.allocated.min(length);
        file.seen.resize(length as usize, 0);
        file.pending.push(Change::Length(length));
        Ok(())
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        let mut inner = self.disk.inner();
        inner.begin_change()?;
        let limit = inner.limit_of(self.index);
        let file = &mut inner.files[self.index];
        file.allocated = file.allocated.max(length.min(limit));
        if length <= limit { Ok(()) } else { Err(io::ErrorKind::StorageFull.into()) }
    }
}

impl Drop for SimulatedFile {
    fn drop(&mut self) {
        if let Some(file) = &self.locked {
            self.disk.inner().locked.remove(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::write_all;

    #[test]
    fn a_crash_keeps_what_was_synced_and_any_part_of_the_rest() {
        let disk = SimulatedDisk::new();
        let (folder, path) = (Path::new("f"), Path::new("f/a"));
        let file = disk.create(path).unwrap();
        file.write_at(0, b"safe").unwrap();
        file.sync().unwrap();
        disk.sync_folder(folder).unwrap();
        file.write_at(4, &[7; 200]).unwrap();
        let lengths: BTreeSet<usize> = (0..100)
            .map(|seed| {
                let bytes = disk.after_crash(seed).bytes(path).unwrap();
                assert!(bytes.starts_with(b"safe"));
                bytes.len()
            })
            .collect();
        assert!(lengths.len() > 10 && lengths.contains(&4) && lengths.contains(&204));
    }

    #[test]
    fn a_name_that_was_not_synced_may_be_lost() {
        let disk = SimulatedDisk::new();
        disk.create(Path::new("f/a")).unwrap();
        let there =
            (0..100).filter(|seed| disk.after_crash(*seed).bytes(Path::new("f/a")).is_some());
        assert!((20..80).contains(&there.count()));
    }

    #[test]
    fn a_full_disk_takes_what_fits_and_then_nothing() {
        let disk = SimulatedDisk::new();
        disk.set_capacity(Some(10));
        let file = disk.create(Path::new("f/a")).unwrap();
        assert_eq!(file.write_at(0, &[1; 16]).unwrap(), 10);
        let error = write_all(&*file, 10, &[1]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        disk.remove(Path::new("f/a")).unwrap();
        assert_eq!(disk.used(), 0);
    }

    #[test]
    fn what_a_failed_sync_was_to_save_is_lost_whatever_is_synced_later() {
        let disk = SimulatedDisk::new();
        let file = disk.create(Path::new("f/a")).unwrap();
        disk.sync_folder(Path::new("f")).unwrap();
        file.write_at(0, b"lost").unwrap();
        disk.fail_at(disk.operations(), io::ErrorKind::Other);
        assert!(file.sync().is_err());
        file.sync().unwrap();
        assert_eq!(disk.after_crash(1).bytes(Path::new("f/a")).unwrap(), b"");
        assert_eq!(disk.bytes(Path::new("f/a")).unwrap(), b"lost");
    }
}
