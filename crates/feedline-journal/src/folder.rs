//! The files of one journal: their names, how they are made, and the lock on them.

use crate::disk::{Disk, DiskFile, write_all};
use crate::error::{Error, Result};
use crate::format::Header;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The folder of a journal.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    pub disk: Arc<dyn Disk>,
    pub path: PathBuf,
}

/// What a name in the folder stands for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Named {
    /// A segment whose first record has this position.
    Segment(u64),
    /// A snapshot of all records before this position.
    Snapshot(u64),
    /// A file that was not finished.
    Unfinished,
    /// A name like a segment's or a snapshot's that is none.
    Foreign,
    /// Something else, which is left alone.
    Other,
}

impl Named {
    pub(crate) fn read(name: &str) -> Self {
        let (name, unfinished) = match name.strip_suffix(".new") {
            Some(name) => (name, true),
            None => (name, false),
        };
        let between = |begin, end| name.strip_prefix(begin)?.strip_suffix(end);
        let (text, make): (&str, fn(u64) -> Self) =
            match (between("journal-", ".log"), between("snapshot-", ".snap")) {
                (Some(text), _) => (text, Self::Segment),
                (_, Some(text)) => (text, Self::Snapshot),
                _ => return Self::Other,
            };
        let digits = text.len() == 20 && text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse() {
            Ok(_) if digits && unfinished => Self::Unfinished,
            Ok(position) if digits => make(position),
            _ => Self::Foreign,
        }
    }
}

impl Folder {
    pub(crate) fn new(disk: Arc<dyn Disk>, path: &Path) -> Self {
        Self { disk, path: path.to_owned() }
    }

    pub(crate) fn segment(&self, first: u64) -> PathBuf {
        self.path.join(format!("journal-{first:020}.log"))
    }

    pub(crate) fn snapshot(&self, position: u64) -> PathBuf {
        self.path.join(format!("snapshot-{position:020}.snap"))
    }

    fn reserve(&self) -> PathBuf {
        self.path.join("journal.reserve")
    }

    /// Makes the segment that a header describes. Nothing, or all of it, is there after a crash.
    pub(crate) fn create_segment(&self, header: &Header) -> io::Result<Box<dyn DiskFile>> {
        self.create_whole(&self.segment(header.position), &[&header.encode()])
    }

    /// Makes a file of these parts under another name, and gives it its own when it is durable.
    pub(crate) fn create_whole(
        &self,
        path: &Path,
        parts: &[&[u8]],
    ) -> io::Result<Box<dyn DiskFile>> {
        let mut unfinished = path.as_os_str().to_owned();
        unfinished.push(".new");
        let unfinished = Path::new(&unfinished);
        let written = self.disk.create(unfinished).and_then(|file| {
            let mut offset = 0;
            for part in parts {
                write_all(&*file, offset, part)?;
                offset += part.len() as u64;
            }
            Ok(file)
        });
        let file = match written {
            Ok(file) => file,
            Err(error) => {
                // Best done now, as the disk may be full; the next opening does it otherwise.
                let _ = self.disk.remove(unfinished);
                return Err(error);
            }
        };
        sync(&*file)?;
        self.disk.rename(unfinished, path)?;
        self.sync_names()?;
        Ok(file)
    }

    pub(crate) fn sync_names(&self) -> io::Result<()> {
        self.disk.sync_folder(&self.path).map_err(not_synced)
    }

    /// Takes space aside for when the disk is full, if there is that much and `spare` more.
    pub(crate) fn make_reserve(&self, bytes: u64, spare: u64) -> io::Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let path = self.reserve();
        let made = match self.disk.open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.disk.create(&path),
            other => other,
        }
        .and_then(|file| {
            file.allocate(bytes + spare)?;
            file.set_length(bytes)
        });
        made.inspect_err(|_| self.release_reserve())
    }

    /// Gives the space that was taken aside back to the disk.
    pub(crate) fn release_reserve(&self) {
        // If it cannot be removed there is nothing to be had from it.
        let _ = self.disk.remove(&self.reserve());
    }

    /// Takes the lock, in a folder that is made if need be.
    ///
    /// # Errors
    ///
    /// [`Error::Held`] if another journal has it.
    pub(crate) fn lock(&self) -> Result<Lock> {
        let path = self.path.join("journal.lock");
        let failed = |verb, error| Error::disk(verb, &path, error);
        let created = self.disk.create_folder(&self.path);
        created.map_err(|error| Error::disk("create", &self.path, error))?;
        let file = self.disk.lock(&path).map_err(|error| failed("lock", error))?;
        let text = self.disk.read(&path).map_err(|error| failed("read", error))?;
        let text = String::from_utf8_lossy(&text);
        let text = text.lines().next().unwrap_or_default();
        let Some(file) = file else {
            let holder = if text.is_empty() { "another process" } else { text };
            return Err(Error::Held { folder: self.path.clone(), holder: holder.to_owned() });
        };
        let number = text.strip_prefix("generation ").and_then(|text| text.split(',').next());
        let generation = number.and_then(|number| number.parse().ok()).unwrap_or(0);
        Ok(Lock { file, path, generation })
    }
}

/// Held as long as this value lives.
#[derive(Debug)]
pub(crate) struct Lock {
    file: Box<dyn DiskFile>,
    path: PathBuf,
    /// The generation of the last holder, 0 if there was none.
    pub generation: u64,
}

impl Lock {
    /// Writes down who holds the lock now.
    ///
    /// It is not made durable: the next opening learns the generation from the segments too.
    pub(crate) fn sign(&self, generation: u64) -> Result<()> {
        let host = rustix::system::uname();
        let host = host.nodename().to_string_lossy();
        let text = format!("generation {generation}, process {} on {host}\n", std::process::id());
        write_all(&*self.file, 0, text.as_bytes())
            .and_then(|()| self.file.set_length(text.len() as u64))
            .map_err(|error| Error::disk("write", &self.path, error))
    }

    /// Makes durable what was written down.
    pub(crate) fn sync(&self) -> Result<()> {
        sync(&*self.file).map_err(|error| Error::disk("sync", &self.path, error))
    }
}

/// Syncs a file. A failure is never taken for a full disk, after which one may go on.
pub(crate) fn sync(file: &dyn DiskFile) -> io::Result<()> {
    file.sync().map_err(not_synced)
}

fn not_synced(error: io::Error) -> io::Error {
    io::Error::other(format!("the disk could not make it durable: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_made() {
        let folder = Folder::new(Arc::new(crate::RealDisk), Path::new("f"));
        let name = |path: PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
        assert_eq!(Named::read(&name(folder.segment(12))), Named::Segment(12));
        assert_eq!(Named::read(&name(folder.snapshot(u64::MAX))), Named::Snapshot(u64::MAX));
        let new = name(folder.segment(12)) + ".new";
        assert_eq!(Named::read(&new), Named::Unfinished);
        assert_eq!(Named::read("journal-12.log"), Named::Foreign);
        assert_eq!(Named::read("journal-99999999999999999999.log"), Named::Foreign);
        for other in ["journal.lock", "journal.reserve", "journal-1.log.damaged", "notes.txt"] {
            assert_eq!(Named::read(other), Named::Other);
        }
    }
}
