//! Local files at the speed of a slower disk: what a run would do there, measured here.

use crate::LocalStore;
use feedline_core::{Attempt, Cut, Entry, Extent, Result, Store};
use std::fs::File;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Local files of which so many bytes a second are read, by all readers together, and never from
/// memory: what was read is dropped from the system's cache.
#[derive(Debug)]
pub struct ThrottledStore {
    bytes_per_second: f64,
    /// When what was asked for so far will have been read.
    free: Mutex<Instant>,
}

impl ThrottledStore {
    /// A store that reads so many bytes a second.
    ///
    /// # Panics
    ///
    /// If that is not more than none.
    #[must_use]
    pub fn new(bytes_per_second: f64) -> Self {
        assert!(bytes_per_second > 0.0, "{bytes_per_second} bytes a second");
        Self { bytes_per_second, free: Mutex::new(Instant::now()) }
    }

    /// Waits until `bytes` more can have been read.
    fn wait(&self, bytes: usize) {
        let time = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second);
        let until = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            *free = (*free).max(Instant::now()) + time;
            *free
        };
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
    }
}

/// Drops a file's pages from the system's cache.
fn forget(path: &Path) {
    #[cfg(target_os = "linux")]
    if let Ok(file) = File::open(path) {
        // Without it the next read may be faster than asked for, and no less right.
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = File::open(path);
}

impl Store for ThrottledStore {
    fn list(&self, root: &Path) -> Result<Vec<Entry>> {
        LocalStore.list(root)
    }

    fn stat(&self, path: &Path) -> Result<Entry> {
        LocalStore.stat(path)
    }

    fn read(&self, extent: Extent<'_>, out: &mut [u8]) -> Result<()> {
        self.wait(out.len());
        let read = LocalStore.read(extent, out);
        forget(extent.path);
        read
    }

    fn try_read(&self, _: Extent<'_>, _: &mut [u8]) -> Result<Attempt> {
        Ok(Attempt::WouldWait)
    }

    fn read_cut(&self, cut: &Cut<'_>, done: &mut usize, out: &mut [u8]) -> Result<()> {
        self.wait(out.len());
        let read = LocalStore.read_cut(cut, done, out);
        forget(cut.path);
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_share_what_can_be_read_in_a_second() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, vec![7; 1000]).unwrap();
        let store = ThrottledStore::new(50_000.0);
        let start = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut out = vec![0; 1000];
                    let extent =
                        Extent { path: &path, offset: 0, length: 1000, whole: true, modified: 0 };
                    assert_eq!(store.try_read(extent, &mut out).unwrap(), Attempt::WouldWait);
                    store.read(extent, &mut out).unwrap();
                    assert_eq!(out, vec![7; 1000]);
                });
            }
        });
        assert!(start.elapsed() >= Duration::from_millis(79), "{:?}", start.elapsed());
    }
}
