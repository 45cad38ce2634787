//! What the journal asks of a disk, and the real one.
//!
//! Every touch of the disk goes through here, so that tests can stop it at any of them: see
//! [`SimulatedDisk`](crate::SimulatedDisk).

use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use rustix::io::{Errno, retry_on_intr};
use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Files in folders, and when they are safe.
///
/// Names and bytes are two things: [`DiskFile::sync`] makes a file's bytes durable,
/// [`Disk::sync_folder`] the names in a folder.
pub trait Disk: Debug + Send + Sync + 'static {
    /// Makes a folder, and those above it, unless it is there; its own name is durable then.
    ///
    /// # Errors
    ///
    /// If it cannot be made, or is a file.
    fn create_folder(&self, folder: &Path) -> io::Result<()>;

    /// The names in a folder, in any order.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    fn list(&self, folder: &Path) -> io::Result<Vec<String>>;

    /// The bytes of a whole file.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    fn read(&self, file: &Path) -> io::Result<Vec<u8>>;

    /// Makes a file, or empties the one that is there.
    ///
    /// # Errors
    ///
    /// If it cannot be made.
    fn create(&self, file: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// Opens a file that is there, for reading and writing.
    ///
    /// # Errors
    ///
    /// If it cannot be opened.
    fn open(&self, file: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// Gives a file another name at once; a file that had it is gone.
    ///
    /// # Errors
    ///
    /// If it cannot be renamed.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    ///
    /// If it cannot be removed.
    fn remove(&self, file: &Path) -> io::Result<()>;

    /// Makes the names in a folder durable.
    ///
    /// # Errors
    ///
    /// If that failed. Nothing is known of them then.
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;

    /// Opens a file, made if need be, that nobody else may lock until it is dropped. `None` if
    /// somebody else has.
    ///
    /// # Errors
    ///
    /// If it cannot be opened.
    fn lock(&self, file: &Path) -> io::Result<Option<Box<dyn DiskFile>>>;
}

/// A file that is open for reading and writing.
pub trait DiskFile: Debug + Send + Sync {
    /// How many bytes it has.
    ///
    /// # Errors
    ///
    /// If that cannot be told.
    fn length(&self) -> io::Result<u64>;

    /// Reads some bytes, as many as it says; none at the end of the file.
    ///
    /// # Errors
    ///
    /// If not even one could be read.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// Writes some of the bytes, as many as it says.
    ///
    /// # Errors
    ///
    /// If not even one could be written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize>;

    /// Makes all that was written durable.
    ///
    /// # Errors
    ///
    /// If that failed. Nothing is known of what was written then, and asking again does not help.
    fn sync(&self) -> io::Result<()>;

    /// Cuts the file, or extends it with zeros.
    ///
    /// # Errors
    ///
    /// If that failed.
    fn set_length(&self, length: u64) -> io::Result<()>;

    /// Takes space for this many bytes.
    ///
    /// # Errors
    ///
    /// If there is not as much; some may have been taken.
    fn allocate(&self, length: u64) -> io::Result<()>;
}

/// Writes all of the bytes.
///
/// # Errors
///
/// As [`DiskFile::write_at`]; some of the bytes may have been written.
pub(crate) fn write_all(file: &dyn DiskFile, mut offset: u64, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write_at(offset, bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                offset += written as u64;
                bytes = &bytes[written..];
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The disk of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn create_folder(&self, folder: &Path) -> io::Result<()> {
        if std::fs::metadata(folder).is_ok_and(|data| data.is_dir()) {
            return Ok(());
        }
        let parent = match folder.parent() {
            Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
            Some(parent) => parent,
            None => Path::new("/"),
        };
        self.create_folder(parent)?;
        match std::fs::create_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => {}
            other => other?,
        }
        self.sync_folder(parent)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<String>> {
        std::fs::read_dir(folder)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    }

    fn read(&self, file: &Path) -> io::Result<Vec<u8>> {
        std::fs::read(file)
    }

    fn create(&self, file: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(File::options().read(true).write(true).create(true).truncate(true).open(file)?))
    }

    fn open(&self, file: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(File::options().read(true).write(true).open(file)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove(&self, file: &Path) -> io::Result<()> {
        std::fs::remove_file(file)
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        File::open(folder)?.sync_all()
    }

    fn lock(&self, file: &Path) -> io::Result<Option<Box<dyn DiskFile>>> {
        let file =
            File::options().read(true).write(true).create(true).truncate(false).open(file)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Box::new(file))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl DiskFile for File {
    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        FileExt::read_at(self, buffer, offset)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        FileExt::write_at(self, bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        match retry_on_intr(|| fallocate(self, FallocateFlags::empty(), 0, length)) {
            // File systems without it are given zeros.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                let zeros = [0; 1 << 16];
                let mut at = 0;
                while at < length {
                    let some = (length - at).min(zeros.len() as u64);
                    write_all(self, at, &zeros[..some as usize])?;
                    at += some;
                }
                Ok(())
            }
            other => Ok(other?),
        }
    }
}
