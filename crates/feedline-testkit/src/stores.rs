//! Stores that are slow, that fail, or that count.

use feedline_core::{Attempt, Entry, Error, Extent, Result, Store};
use feedline_store::{AnyStore, LocalStore, UrlStore};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What a program reads from: local files, and objects by URL.
#[must_use]
pub fn any_store() -> Arc<dyn Store> {
    Arc::new(AnyStore::new(Arc::new(LocalStore), UrlStore::default()))
}

/// Local files that are never in memory: every read has to wait.
#[derive(Debug)]
pub struct SlowStore {
    /// How long a read takes.
    pub delay: Duration,
}

impl Store for SlowStore {
    fn list(&self, root: &Path) -> Result<Vec<Entry>> {
        LocalStore.list(root)
    }

    fn stat(&self, path: &Path) -> Result<Entry> {
        LocalStore.stat(path)
    }

    fn read(&self, extent: Extent<'_>, out: &mut [u8]) -> Result<()> {
        std::thread::sleep(self.delay);
        LocalStore.read(extent, out)
    }

    fn try_read(&self, _: Extent<'_>, out: &mut [u8]) -> Result<Attempt> {
        // What the buffer holds is unspecified: nothing may rely on it.
        out.fill(0xA5);
        Ok(Attempt::WouldWait)
    }
}

/// Local files, some of which storage does not give.
#[derive(Debug)]
pub struct FailingStore {
    /// Files whose names end so cannot be read.
    pub ending: &'static str,
    /// Whether the failure shows only after waiting.
    pub late: bool,
}

impl FailingStore {
    fn check(&self, extent: &Extent<'_>) -> Result<()> {
        if extent.path.to_string_lossy().ends_with(self.ending) {
            let error = io::Error::new(io::ErrorKind::TimedOut, "no answer");
            return Err(Error::unavailable(extent.path.display().to_string(), error));
        }
        Ok(())
    }
}

impl Store for FailingStore {
    fn list(&self, root: &Path) -> Result<Vec<Entry>> {
        LocalStore.list(root)
    }

    fn stat(&self, path: &Path) -> Result<Entry> {
        LocalStore.stat(path)
    }

    fn read(&self, extent: Extent<'_>, out: &mut [u8]) -> Result<()> {
        self.check(&extent)?;
        LocalStore.read(extent, out)
    }

    fn try_read(&self, extent: Extent<'_>, out: &mut [u8]) -> Result<Attempt> {
        if self.late {
            return Ok(Attempt::WouldWait);
        }
        self.check(&extent)?;
        LocalStore.try_read(extent, out)
    }
}

/// Local files that count how often they are read.
#[derive(Debug, Default)]
pub struct CountingStore {
    reads: AtomicU64,
}

impl CountingStore {
    /// Reads so far.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }
}

impl Store for CountingStore {
    fn list(&self, root: &Path) -> Result<Vec<Entry>> {
        LocalStore.list(root)
    }

    fn stat(&self, path: &Path) -> Result<Entry> {
        LocalStore.stat(path)
    }

    fn read(&self, extent: Extent<'_>, out: &mut [u8]) -> Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        LocalStore.read(extent, out)
    }

    fn try_read(&self, extent: Extent<'_>, out: &mut [u8]) -> Result<Attempt> {
        let attempt = LocalStore.try_read(extent, out)?;
        if attempt == Attempt::Done {
            self.reads.fetch_add(1, Ordering::Relaxed);
        }
        Ok(attempt)
    }
}
