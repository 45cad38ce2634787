//! Bytes by name and range, as the engine sees them; the implementations live elsewhere.

use crate::{BufferMut, Result};
use std::path::{Path, PathBuf};

/// One object of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name. Bytes, not text: names need not be UTF-8.
    pub path: PathBuf,
    /// Its length in bytes.
    pub size: u64,
    /// When it was last changed, in nanoseconds since 1970; 0 if unknown.
    pub modified: i64,
}

/// A range of bytes of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent<'a> {
    /// The object.
    pub path: &'a Path,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// Whether this is all of the object, so that a different length means that it was changed.
    pub whole: bool,
}

/// What came of trying to read without waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// All bytes are there.
    Done,
    /// The bytes are not in memory: whoever asked should let a reader wait for them.
    WouldWait,
}

/// Where bytes come from.
pub trait Store: Send + Sync {
    /// All files below `root`, in byte order of their names; `root` itself if it is a file.
    ///
    /// # Errors
    ///
    /// If `root` does not exist or cannot be read.
    fn list(&self, root: &Path) -> Result<Vec<Entry>>;

    /// One file.
    ///
    /// # Errors
    ///
    /// If it does not exist.
    fn stat(&self, path: &Path) -> Result<Entry>;

    /// Fills `out` (of the extent's length) with the extent's bytes, waiting as long as it takes.
    ///
    /// # Errors
    ///
    /// `Record` if the bytes are not there and will not be; `Unavailable` if they may be later.
    fn read(&self, extent: Extent<'_>, out: &mut BufferMut) -> Result<()>;

    /// As [`Store::read`], if that needs no waiting; what `out` holds otherwise is unspecified.
    ///
    /// # Errors
    ///
    /// As [`Store::read`].
    fn try_read(&self, extent: Extent<'_>, out: &mut BufferMut) -> Result<Attempt>;
}
