//! Files of this machine.
//!
//! A read first asks the kernel for what is in memory already (`RWF_NOWAIT`): a warm file is then
//! read on the thread that uses its bytes, while they are hot in its cache, and only a cold one is
//! left to a reader that may wait for the disk.

use feedline_core::{Attempt, Cut, Entry, Error, Extent, Result, Store};
use std::cmp::Ordering;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Folders nested deeper than this are taken for a loop of links.
const DEEPEST: usize = 64;

/// The local file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalStore;

impl Store for LocalStore {
    fn list(&self, root: &Path) -> Result<Vec<Entry>> {
        let meta = fs::metadata(root).map_err(|error| missing(root, &error))?;
        let mut entries = Vec::new();
        if meta.is_dir() {
            walk(root, 0, &mut entries)?;
        } else {
            entries.push(entry(root.to_owned(), &meta));
        }
        sort(&mut entries);
        Ok(entries)
    }

    fn stat(&self, path: &Path) -> Result<Entry> {
        let meta = fs::metadata(path).map_err(|error| missing(path, &error))?;
        if meta.is_dir() {
            return Err(Error::Source(format!("{} is a folder, not a file", path.display())));
        }
        Ok(entry(path.to_owned(), &meta))
    }

    fn read(&self, extent: Extent<'_>, out: &mut [u8]) -> Result<()> {
        read(&open(extent.path)?, extent, out)
    }

    fn try_read(&self, extent: Extent<'_>, out: &mut [u8]) -> Result<Attempt> {
        try_read(|| open(extent.path), extent, out)
    }

    fn read_cut(&self, cut: &Cut<'_>, done: &mut usize, out: &mut [u8]) -> Result<()> {
        read_cut(&open(cut.path)?, cut, done, out)
    }

    fn try_read_cut(&self, cut: &Cut<'_>, done: &mut usize, out: &mut [u8]) -> Result<Attempt> {
        try_read_cut(|| open(cut.path), cut, done, out)
    }
}

fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|error| unreadable(path, error))
}

/// As [`Store::read`], of a file that is open.
pub(crate) fn read(file: &File, extent: Extent<'_>, out: &mut [u8]) -> Result<()> {
    let mut done = 0;
    while done < out.len() {
        match file.read_at(&mut out[done..], extent.offset + done as u64) {
            Ok(0) => return Err(shorter(&extent, done)),
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(unreadable(extent.path, error)),
        }
    }
    if extent.whole {
        let more = file.read_at(&mut [0], extent.offset + done as u64);
        if more.map_err(|error| unreadable(extent.path, error))? > 0 {
            return Err(longer(&extent));
        }
    }
    Ok(())
}

/// As [`Store::try_read`], of a file that is opened if that makes sense.
#[cfg(target_os = "linux")]
pub(crate) fn try_read(
    open: impl FnOnce() -> Result<File>,
    extent: Extent<'_>,
    out: &mut [u8],
) -> Result<Attempt> {
    use rustix::io::{Errno, ReadWriteFlags, preadv2};
    use std::io::IoSliceMut;

    let file = open()?;
    let (mut done, wanted) = (0, out.len());
    loop {
        // One byte more than expected, in the same call, tells whether the file has grown.
        let mut beyond = [0u8; 1];
        let more = usize::from(extent.whole);
        let mut parts = [IoSliceMut::new(&mut out[done..]), IoSliceMut::new(&mut beyond[..more])];
        let offset = extent.offset + done as u64;
        match preadv2(&file, &mut parts, offset, ReadWriteFlags::NOWAIT) {
            Ok(count) if done + count > wanted => return Err(longer(&extent)),
            Ok(0) if done < wanted => return Err(shorter(&extent, done)),
            Ok(0) => return Ok(Attempt::Done),
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                return Ok(Attempt::WouldWait);
            }
            Err(error) => return Err(unreadable(extent.path, error.into())),
        }
        // A short read ends at a page that is not in memory or at the end of the file; a full
        // one ended where it should, since a byte beyond would have been read as well.
        if done == wanted {
            return Ok(Attempt::Done);
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn try_read(
    _: impl FnOnce() -> Result<File>,
    _: Extent<'_>,
    _: &mut [u8],
) -> Result<Attempt> {
    Ok(Attempt::WouldWait)
}

/// As [`Store::read_cut`], of a file that is open.
pub(crate) fn read_cut(file: &File, cut: &Cut<'_>, done: &mut usize, out: &mut [u8]) -> Result<()> {
    check_listed(file, cut)?;
    let reading = cut.read_planes(done, out, |offset, bytes| {
        file.read_exact_at(bytes, offset).map_err(|error| unreadable(cut.path, error))?;
        Ok(Attempt::Done)
    });
    reading.map(|_| ())
}

/// As [`Store::try_read_cut`], of a file that is opened if that makes sense.
#[cfg(target_os = "linux")]
pub(crate) fn try_read_cut(
    open: impl FnOnce() -> Result<File>,
    cut: &Cut<'_>,
    done: &mut usize,
    out: &mut [u8],
) -> Result<Attempt> {
    use rustix::io::{Errno, ReadWriteFlags, preadv2};
    use std::io::IoSliceMut;

    let file = open()?;
    check_listed(&file, cut)?;
    cut.read_planes(done, out, |offset, bytes| {
        let mut read = 0;
        while read < bytes.len() {
            let mut parts = [IoSliceMut::new(&mut bytes[read..])];
            let from = offset + read as u64;
            match preadv2(&file, &mut parts, from, ReadWriteFlags::NOWAIT) {
                Ok(0) => return Err(shorter(&listed(cut), from as usize)),
                Ok(count) => read += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                    return Ok(Attempt::WouldWait);
                }
                Err(error) => return Err(unreadable(cut.path, error.into())),
            }
        }
        Ok(Attempt::Done)
    })
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn try_read_cut(
    _: impl FnOnce() -> Result<File>,
    _: &Cut<'_>,
    _: &mut usize,
    _: &mut [u8],
) -> Result<Attempt> {
    Ok(Attempt::WouldWait)
}

fn listed<'a>(cut: &Cut<'a>) -> Extent<'a> {
    Extent { path: cut.path, offset: 0, length: cut.size, whole: true, modified: 0 }
}

/// The object of a cut must have the size that it was listed with.
fn check_listed(file: &File, cut: &Cut<'_>) -> Result<()> {
    let meta = file.metadata().map_err(|error| unreadable(cut.path, error))?;
    match meta.len().cmp(&cut.size) {
        Ordering::Less => Err(shorter(&listed(cut), meta.len() as usize)),
        Ordering::Greater => Err(longer(&listed(cut))),
        Ordering::Equal if cut.modified != 0 && modified(&meta) != cut.modified => {
            Err(Error::record("it has changed since it was opened"))
        }
        Ordering::Equal => Ok(()),
    }
}

/// Entries in byte order of their names.
pub(crate) fn sort(entries: &mut [Entry]) {
    entries.sort_by(|a, b| a.path.as_os_str().as_bytes().cmp(b.path.as_os_str().as_bytes()));
}

/// Folders that are nested too deeply are a loop.
pub(crate) fn check_depth(folder: &Path, depth: usize) -> Result<()> {
    if depth > DEEPEST {
        return Err(Error::Source(format!(
            "{} is nested more than {DEEPEST} folders deep; is there a loop of links?",
            folder.display()
        )));
    }
    Ok(())
}

fn walk(folder: &Path, depth: usize, entries: &mut Vec<Entry>) -> Result<()> {
    check_depth(folder, depth)?;
    for item in fs::read_dir(folder).map_err(|error| missing(folder, &error))? {
        let item = item.map_err(|error| missing(folder, &error))?;
        let path = item.path();
        // A link is followed. One that leads nowhere, and what has just vanished, is listed all the
        // same: reading it says so.
        let Ok(meta) = fs::metadata(&path) else {
            entries.push(Entry { path, size: 0, modified: 0 });
            continue;
        };
        if meta.is_dir() {
            walk(&path, depth + 1, entries)?;
        } else if meta.is_file() {
            entries.push(entry(path, &meta));
        }
    }
    Ok(())
}

pub(crate) fn entry(path: PathBuf, meta: &fs::Metadata) -> Entry {
    Entry { path, size: meta.len(), modified: modified(meta) }
}

fn modified(meta: &fs::Metadata) -> i64 {
    let modified = meta.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    modified.map_or(0, |time| time.as_nanos() as i64)
}

pub(crate) fn missing(path: &Path, error: &io::Error) -> Error {
    let what = match error.kind() {
        io::ErrorKind::NotFound => "there is no such file or folder".to_owned(),
        io::ErrorKind::PermissionDenied => "it may not be read by this user".to_owned(),
        _ => error.to_string(),
    };
    Error::Source(format!("cannot open {}: {what}", path.display()))
}

/// A file that is gone or forbidden stays so: the policy for bad records applies. Anything else
/// may pass.
pub(crate) fn unreadable(path: &Path, error: io::Error) -> Error {
    use io::ErrorKind::{IsADirectory, NotFound, PermissionDenied};
    match error.kind() {
        NotFound => bad(path, "the file has vanished since it was listed".to_owned()),
        PermissionDenied => bad(path, "the file may not be read by this user".to_owned()),
        IsADirectory => bad(path, "it is a folder, not a file".to_owned()),
        _ => Error::unavailable(path.display().to_string(), error),
    }
}

fn shorter(extent: &Extent<'_>, done: usize) -> Error {
    let reason = format!(
        "the file has changed: it ends after {} bytes, {} were there when it was listed",
        extent.offset + done as u64,
        extent.offset + extent.length
    );
    bad(extent.path, reason)
}

fn longer(extent: &Extent<'_>) -> Error {
    let reason =
        format!("the file has changed: it is longer than the {} bytes listed", extent.length);
    bad(extent.path, reason)
}

fn bad(path: &Path, reason: String) -> Error {
    Error::Record { origin: path.display().to_string(), index: 0, step: "read".into(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use feedline_core::Pool;

    #[test]
    fn cuts_are_read_from_where_they_were_left_in_any_direction() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("array");
        // An array of 2 × 5 × 6 rows of 8 bytes, whose numbers say where they lie.
        let bytes: Vec<u8> = (0..60u8).flat_map(|row| (0..8).map(move |at| row * 4 + at)).collect();
        fs::write(&path, &bytes).unwrap();
        let cut = Cut {
            path: &path,
            size: 480,
            modified: 0,
            offset: 240 + 48 + 16 + 2,
            run: 3,
            counts: [1, 3, 4],
            strides: [240, 48, 8],
            reversed: [false; 3],
        };
        for flips in 0..8 {
            let reversed = [flips & 1 > 0, flips & 2 > 0, flips & 4 > 0];
            let cut = Cut { reversed, ..cut };
            let mut wanted = Vec::new();
            for plane in 0..3 {
                let plane = if reversed[1] { 2 - plane } else { plane };
                for row in 0..4 {
                    let row = if reversed[2] { 3 - row } else { row };
                    let from = 306 + plane * 48 + row * 8;
                    wanted.extend_from_slice(&bytes[from..from + 3]);
                }
            }
            for done in 0..3 {
                let (mut first, mut found) = (0, vec![0; cut.length()]);
                assert_eq!(
                    LocalStore.try_read_cut(&cut, &mut first, &mut found).unwrap(),
                    Attempt::Done
                );
                assert_eq!((first, &found), (3, &wanted), "{reversed:?}");
                // What was done before stays as it is.
                let mut rest = vec![0xEE; cut.length()];
                LocalStore.read_cut(&cut, &mut done.clone(), &mut rest).unwrap();
                let same = rest.iter().zip(&wanted).filter(|(a, b)| a == b).count();
                assert!(same >= (3 - done) * 12, "{done}: {rest:?}");
            }
        }
        let mut found = vec![0; cut.length()];
        for size in [479, 481] {
            let error = LocalStore.read_cut(&Cut { size, ..cut }, &mut 0, &mut found).unwrap_err();
            assert!(error.to_string().contains("changed"), "{error}");
        }
    }
    use std::ffi::OsStr;

    fn both(path: &Path, length: u64, whole: bool) -> [Result<Vec<u8>>; 2] {
        let pool = Pool::new(0);
        let extent = Extent { path, offset: 0, length, whole, modified: 0 };
        let mut first = pool.take(length as usize).unwrap();
        let waited = LocalStore.read(extent, &mut first).map(|()| first.to_vec());
        let mut second = pool.take(length as usize).unwrap();
        let tried = match LocalStore.try_read(extent, &mut second) {
            Ok(Attempt::WouldWait) => waited.clone(),
            Ok(Attempt::Done) => Ok(second.to_vec()),
            Err(error) => Err(error),
        };
        [waited, tried]
    }

    #[test]
    fn lists_in_byte_order_at_any_depth() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b/2", "a", "b/10", "c/d/e", "B"] {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, name).unwrap();
        }
        let odd = OsStr::from_bytes(b"b/\xff");
        fs::write(folder.path().join(odd), b"").unwrap();
        std::os::unix::fs::symlink("nowhere", folder.path().join("dangling")).unwrap();
        let entries = LocalStore.list(folder.path()).unwrap();
        let names: Vec<_> = entries
            .iter()
            .map(|e| e.path.strip_prefix(folder.path()).unwrap().as_os_str())
            .collect();
        assert_eq!(
            names,
            ["B", "a", "b/10", "b/2"]
                .map(OsStr::new)
                .into_iter()
                .chain([odd, OsStr::new("c/d/e"), OsStr::new("dangling")])
                .collect::<Vec<_>>()
        );
        assert_eq!(entries[2].size, 4);
    }

    #[test]
    fn a_loop_of_links_ends() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(folder.path(), folder.path().join("again")).unwrap();
        // The kernel itself gives up following after some forty links; either way there is an end.
        let _ = LocalStore.list(folder.path());
    }

    #[test]
    fn files_that_changed_or_vanished_are_bad_records() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        fs::write(&path, b"12345").unwrap();
        for result in both(&path, 5, true) {
            assert_eq!(result.unwrap(), b"12345");
        }
        for result in both(&path, 3, false) {
            assert_eq!(result.unwrap(), b"123");
        }
        for (length, word) in [(4, "longer"), (9, "ends after 5 bytes")] {
            for result in both(&path, length, true) {
                let error = result.unwrap_err();
                assert!(error.is_record() && error.to_string().contains(word), "{error}");
            }
        }
        for result in both(&folder.path().join("gone"), 4, true) {
            let error = result.unwrap_err();
            assert!(error.is_record() && error.to_string().contains("vanished"), "{error}");
        }
    }

    #[test]
    fn a_missing_root_is_named() {
        let error = LocalStore.list(Path::new("no/such/folder")).unwrap_err();
        assert!(error.to_string().contains("no/such/folder"));
    }

    #[test]
    fn an_empty_file_reads_as_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("empty");
        fs::write(&path, b"").unwrap();
        for result in both(&path, 0, true) {
            assert!(result.unwrap().is_empty());
        }
    }
}
