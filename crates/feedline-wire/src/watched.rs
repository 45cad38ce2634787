//! Small files that are read again when they change.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A file is looked at no more often than this.
const INTERVAL: Duration = Duration::from_millis(200);

/// How files are read.
type Read<T> = Box<dyn Fn() -> Result<T, String> + Send + Sync>;

/// What a file says, or several together, read again when one changes. If they cannot be read then,
/// or do not fit each other yet, what they said before stays.
pub struct Watched<T> {
    paths: Vec<PathBuf>,
    read: Read<T>,
    known: Mutex<Known<T>>,
}

struct Known<T> {
    value: Arc<T>,
    marks: Vec<Option<Mark>>,
    looked: Instant,
}

/// Tells a file from what it was.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Mark(u64, u64, i64, i64);

impl Mark {
    fn of(path: &Path) -> Option<Self> {
        let data = std::fs::metadata(path).ok()?;
        Some(Self(data.ino(), data.size(), data.mtime(), data.mtime_nsec()))
    }
}

fn marks(paths: &[PathBuf]) -> Vec<Option<Mark>> {
    paths.iter().map(|path| Mark::of(path)).collect()
}

impl<T: 'static> Watched<T> {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// What `read` says.
    pub fn new(
        path: impl Into<PathBuf>,
        read: fn(&Path) -> Result<T, String>,
    ) -> Result<Self, String> {
        let path = path.into();
        Self::together(vec![path.clone()], move || read(&path))
    }

    /// Reads files that belong together.
    ///
    /// # Errors
    ///
    /// What `read` says.
    pub fn together(
        paths: Vec<PathBuf>,
        read: impl Fn() -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Self, String> {
        // First the marks: what is written in between is read again.
        let marks = marks(&paths);
        let value = Arc::new(read()?);
        let known = Mutex::new(Known { value, marks, looked: Instant::now() });
        Ok(Self { paths, read: Box::new(read), known })
    }

    /// What the files say now.
    #[must_use]
    pub fn get(&self) -> Arc<T> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.looked.elapsed() >= INTERVAL {
            known.looked = Instant::now();
            let marks = marks(&self.paths);
            if marks != known.marks {
                match (self.read)() {
                    Ok(value) => (known.value, known.marks) = (Arc::new(value), marks),
                    Err(error) => tracing::warn!(error, "a file cannot be read again"),
                }
            }
        }
        Arc::clone(&known.value)
    }
}

impl<T> fmt::Debug for Watched<T> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Watched").field("paths", &self.paths).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(path: &Path) -> Result<String, String> {
        let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
        if text.is_empty() { Err("it is empty".into()) } else { Ok(text) }
    }

    fn until(file: &Watched<String>, wanted: &str) {
        let end = Instant::now() + Duration::from_secs(20);
        while *file.get() != wanted {
            assert!(Instant::now() < end, "{wanted} was never read");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn a_file_is_read_again_when_it_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        assert!(Watched::new(&path, text).is_err());
        std::fs::write(&path, "one").unwrap();
        let file = Watched::new(&path, text).unwrap();
        assert_eq!(*file.get(), "one");
        // Replaced, as careful programs do, and written over.
        std::fs::write(folder.path().join("new"), "two").unwrap();
        std::fs::rename(folder.path().join("new"), &path).unwrap();
        until(&file, "two");
        std::fs::write(&path, "three").unwrap();
        until(&file, "three");
        std::fs::write(&path, "").unwrap();
        std::thread::sleep(INTERVAL * 2);
        assert_eq!(*file.get(), "three", "what cannot be read is not believed");
        std::fs::write(&path, "four").unwrap();
        until(&file, "four");
    }
}
