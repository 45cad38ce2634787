//! The folder that shards are saved to: files appear in it whole, or not at all.

use feedline_core::{Error, Result};
use feedline_ops::sink::{TABLE, Table};
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// What a file that is being written is called at its end.
const TEMPORARY: &str = ".tmp";
/// A name that was taken is tried again so often.
const TRIES: usize = 100;

/// A folder of shards.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
}

/// A file that is being written. Dropping it removes it, unless it was put in place.
#[derive(Debug)]
pub(super) struct Temporary {
    pub(super) file: File,
    path: PathBuf,
    placed: bool,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.placed {
            // If it cannot be removed now, the next one who saves here does.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A file or folder that cannot be used.
pub(super) fn failed(what: &str, path: &Path, error: io::Error) -> Error {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    let what = match error.kind() {
        StorageFull | QuotaExceeded | FileTooLarge => "room for",
        _ => what,
    };
    Error::unavailable(format!("{what} {}", path.display()), error)
}

impl Folder {
    /// The folder, made if there is none.
    ///
    /// # Errors
    ///
    /// If it cannot be made or read, or holds files of others.
    pub fn prepare(path: &Path) -> Result<Self> {
        if path.exists() && !path.is_dir() {
            return Err(Error::Source(format!(
                "{} is a file; save to a folder of its own",
                path.display()
            )));
        }
        fs::create_dir_all(path).map_err(|error| failed("making", path, error))?;
        let this = Self { path: path.to_owned() };
        if path.join(TABLE).exists() {
            return Ok(this);
        }
        let others: Vec<String> =
            this.names()?.into_iter().filter(|name| !is_temporary(name)).take(4).collect();
        // Another process may have begun to save here meanwhile.
        if others.is_empty() || path.join(TABLE).exists() {
            return Ok(this);
        }
        let more = if others.len() > 3 { ", …" } else { "" };
        Err(Error::Source(format!(
            "{} holds other files ({}{more}) and no {TABLE}; save to an empty folder",
            path.display(),
            others[..others.len().min(3)].join(", ")
        )))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn names(&self) -> Result<Vec<String>> {
        let unread = |error| failed("reading", &self.path, error);
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(unread)? {
            names.push(entry.map_err(unread)?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }

    /// A new file of a name that nobody else uses, to become `name`.
    ///
    /// Its writer holds a lock on it, which ends with the process: a file without one was left
    /// behind.
    pub(super) fn temporary(&self, name: &str) -> Result<Temporary> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        for _ in 0..TRIES {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let time = std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos() as u64);
            let unique = format!("{:x}-{number:x}-{time:x}", std::process::id());
            let path = self.path.join(format!(".{name}.{unique}{TEMPORARY}"));
            let file = match File::options().write(true).create_new(true).open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(failed("writing to", &self.path, error)),
            };
            let temporary = Temporary { file, path, placed: false };
            // Where there are no locks, nothing that is left behind is ever removed.
            let locked = temporary.file.try_lock();
            // Whoever clears up may have come between: then it is gone, or about to be.
            if !matches!(locked, Err(TryLockError::WouldBlock)) && temporary.path.exists() {
                return Ok(temporary);
            }
        }
        Err(Error::Internal(format!("no name for a file in {}", self.path.display())))
    }

    /// Puts a file in place: on the disk first, then under its name. A file that is there already
    /// stays unless it is to be replaced.
    pub(super) fn place(&self, mut from: Temporary, name: &str, replace: bool) -> Result<()> {
        let to = self.path.join(name);
        from.file.sync_all().map_err(|error| failed("writing", &to, error))?;
        let placed = match replace {
            true => fs::rename(&from.path, &to).map(|()| true),
            false => rename_new(&from.path, &to),
        };
        from.placed = placed.map_err(|error| failed("writing", &to, error))?;
        self.sync()
    }

    /// Makes names last.
    fn sync(&self) -> Result<()> {
        let synced = File::open(&self.path).and_then(|folder| folder.sync_all());
        match synced {
            // Some file systems cannot sync folders, and need not.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            synced => synced.map_err(|error| failed("writing to", &self.path, error)),
        }
    }

    /// Removes what processes left behind that ended while they wrote.
    pub fn remove_leftovers(&self) {
        for name in self.names().unwrap_or_default().into_iter().filter(|name| is_temporary(name)) {
            let path = self.path.join(name);
            if let Ok(file) = File::options().write(true).open(&path)
                && file.try_lock().is_ok()
            {
                let _ = fs::remove_file(&path);
            }
        }
    }

    /// The folder's table, if there is one.
    ///
    /// # Errors
    ///
    /// If it cannot be read or is none.
    pub fn table(&self) -> Result<Option<Table>> {
        let path = self.path.join(TABLE);
        match fs::read_to_string(&path) {
            Ok(text) => Table::from_json(&text, &path.display().to_string()).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("reading", &path, error)),
        }
    }

    /// Writes the table, or leaves it as it is if there is one that is not to be replaced.
    pub(super) fn write_table(&self, table: &Table, replace: bool) -> Result<()> {
        let mut temporary = self.temporary(TABLE)?;
        temporary
            .file
            .write_all(table.to_json()?.as_bytes())
            .map_err(|error| failed("writing", &self.path.join(TABLE), error))?;
        self.place(temporary, TABLE, replace)
    }
}

/// Whether a file is one that was or is being written here.
fn is_temporary(name: &str) -> bool {
    let ours = name.starts_with(".shard-") || name.starts_with(&format!(".{TABLE}."));
    ours && name.ends_with(TEMPORARY)
}

/// Gives a file its name unless that is taken; says whether it got it.
fn rename_new(from: &Path, to: &Path) -> io::Result<bool> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use rustix::io::Errno;
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => return Ok(true),
        Err(Errno::EXIST) => return Ok(false),
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {}
        Err(error) => return Err(error.into()),
    }
    match fs::hard_link(from, to) {
        Ok(()) => fs::remove_file(from).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        // Neither is to be had here. What is there by now holds the same.
        Err(_) => fs::rename(from, to).map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Folder, name: &str, text: &str, replace: bool) {
        let mut temporary = folder.temporary(name).unwrap();
        temporary.file.write_all(text.as_bytes()).unwrap();
        folder.place(temporary, name, replace).unwrap();
    }

    #[test]
    fn files_appear_whole_and_stay_unless_replaced() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::prepare(&root.path().join("a/b")).unwrap();
        let name = "shard-000000.arrow";
        let read = || fs::read_to_string(folder.path().join(name)).unwrap();
        write(&folder, name, "first", false);
        write(&folder, name, "second", false);
        assert_eq!(read(), "first");
        write(&folder, name, "third", true);
        assert_eq!(read(), "third");
        assert_eq!(folder.names().unwrap(), [name]);
    }

    #[test]
    fn what_was_given_up_is_removed_and_what_is_being_written_is_not() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::prepare(root.path()).unwrap();
        drop(folder.temporary("shard-000001.arrow").unwrap());
        assert!(folder.names().unwrap().is_empty());
        let alive = folder.temporary("shard-000001.arrow").unwrap();
        fs::write(root.path().join(".shard-000002.arrow.1-2-3.tmp"), "left behind").unwrap();
        fs::write(root.path().join(".other.tmp"), "of somebody else").unwrap();
        folder.remove_leftovers();
        let left = folder.names().unwrap();
        assert_eq!(left.len(), 2, "{left:?}");
        assert!(left[1].starts_with(".shard-000001.arrow"), "{left:?}");
        drop(alive);
    }

    #[test]
    fn folders_of_others_are_refused() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("notes.txt"), "mine").unwrap();
        let error = Folder::prepare(root.path()).unwrap_err().to_string();
        assert!(error.contains("other files (notes.txt)"), "{error}");
        let error = Folder::prepare(&root.path().join("notes.txt")).unwrap_err().to_string();
        assert!(error.contains("is a file"), "{error}");
        // A process that was killed before it wrote its table leaves no more than this.
        fs::remove_file(root.path().join("notes.txt")).unwrap();
        fs::write(root.path().join(".feedline.json.1-2-3.tmp"), "").unwrap();
        assert!(Folder::prepare(root.path()).unwrap().table().unwrap().is_none());
    }
}
