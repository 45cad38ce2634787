//! Files below some folders, and no others, whatever a path says and wherever its links lead.
//!
//! ```text
//!  path ──► the folder that it begins with ──► openat2(that folder, the rest, RESOLVE_BENEATH)
//! ```
//!
//! The kernel resolves the rest and refuses to leave the folder: by `..`, by links, by `/proc`, and
//! while somebody exchanges parts of the path. There is no check before the opening that could be
//! true no more afterwards. All reading, listing and looking goes through [`ConfinedStore::open`].

use crate::local::{self, check_depth, entry, missing, sort, unreadable};
use feedline_core::{Attempt, Cut, Entry, Error, Extent, Result, Store};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, openat2, statat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// How often the kernel may say that a path changed while it looked.
const ATTEMPTS: usize = 64;

/// Local files below some folders.
#[derive(Debug)]
pub struct ConfinedStore {
    roots: Vec<Root>,
}

/// A folder below which files may be read.
#[derive(Debug)]
struct Root {
    /// As it was given, and as it is without links: paths may begin with either.
    names: [PathBuf; 2],
    folder: OwnedFd,
}

/// Why something was not opened.
enum Refused {
    /// It lies elsewhere, or leads there.
    Outside,
    Failed(io::Error),
}

impl ConfinedStore {
    /// A store of what lies below these folders.
    ///
    /// # Errors
    ///
    /// If one cannot be opened, or this system cannot confine reads.
    pub fn new(folders: &[PathBuf]) -> Result<Self> {
        let open = |path: &PathBuf| {
            let failed = |error: io::Error| missing(path, &error);
            let names = [std::path::absolute(path), path.canonicalize()];
            let [given, real] = names.map(|name| name.map_err(failed));
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let folder = rustix::fs::open(path, flags, Mode::empty());
            let folder = folder.map_err(|error| failed(error.into()))?;
            let root = Root { names: [given?, real?], folder };
            match root.open(Path::new("."), OFlags::PATH) {
                Err(Errno::NOSYS | Errno::PERM) => Err(Error::Source(
                    "this system cannot confine reads to folders: it lacks openat2, of Linux 5.6"
                        .into(),
                )),
                Err(error) => Err(failed(error.into())),
                Ok(_) => Ok(root),
            }
        };
        Ok(Self { roots: folders.iter().map(open).collect::<Result<_>>()? })
    }

    /// Opens whatever a path names. The one way to any file.
    fn open(&self, path: &Path, flags: OFlags) -> Result<File, Refused> {
        let absolute = std::path::absolute(path).map_err(Refused::Failed)?;
        let mut refused = Refused::Outside;
        for root in &self.roots {
            let Some(rest) = root.rest(&absolute) else { continue };
            match root.open(rest, flags) {
                Ok(file) => return Ok(file.into()),
                // Another folder may hold it.
                Err(Errno::XDEV | Errno::LOOP) => {}
                Err(error) => refused = Refused::Failed(error.into()),
            }
        }
        Err(refused)
    }

    /// A folder below one of these, as it is at this moment: whatever is opened through it lies in it,
    /// wherever its name leads later.
    ///
    /// # Errors
    ///
    /// If it lies elsewhere, or is no folder.
    pub fn folder(&self, path: &Path) -> Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        self.open(path, flags).map(OwnedFd::from).map_err(|refused| match refused {
            Refused::Outside => self.refused(path),
            Refused::Failed(error) => missing(path, &error),
        })
    }

    fn refused(&self, path: &Path) -> Error {
        let names: Vec<_> =
            self.roots.iter().map(|root| root.names[0].display().to_string()).collect();
        Error::Source(format!(
            "{} may not be read here: only files below {} may be, and links must stay there",
            path.display(),
            names.join(", ")
        ))
    }

    /// What a path names, which need not be a file.
    fn metadata(&self, path: &Path) -> Result<std::fs::Metadata> {
        let file = self.open(path, OFlags::PATH).map_err(|refused| match refused {
            Refused::Outside => self.refused(path),
            Refused::Failed(error) => missing(path, &error),
        })?;
        file.metadata().map_err(|error| missing(path, &error))
    }

    /// Opens a file for reading. Pipes and devices, whose reading might never end, are none.
    fn file(&self, path: &Path) -> Result<File> {
        let file =
            self.open(path, OFlags::RDONLY | OFlags::NONBLOCK).map_err(
                |refused| match refused {
                    Refused::Outside => self.refused(path),
                    Refused::Failed(error) => unreadable(path, error),
                },
            )?;
        let kind = file.metadata().map_err(|error| unreadable(path, error))?.file_type();
        match kind.is_file() {
            true => Ok(file),
            false => Err(Error::Source(format!("{} is no file", path.display()))),
        }
    }

    fn walk(&self, folder: &Path, depth: usize, entries: &mut Vec<Entry>) -> Result<()> {
        check_depth(folder, depth)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let open = self.open(folder, flags).map_err(|refused| match refused {
            Refused::Outside => self.refused(folder),
            Refused::Failed(error) => missing(folder, &error),
        })?;
        let failed = |error: Errno| missing(folder, &error.into());
        for item in Dir::read_from(&open).map_err(failed)? {
            let item = item.map_err(failed)?;
            let name = item.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let path = folder.join(OsStr::from_bytes(name.to_bytes()));
            let kind = item.file_type();
            if kind == FileType::RegularFile {
                // What it is by now does not matter: nothing is followed.
                let (size, modified) = match statat(&open, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => (stat.st_size as u64, nanoseconds(&stat)),
                    Err(_) => (0, 0),
                };
                entries.push(Entry { path, size, modified });
                continue;
            }
            match self.open(&path, OFlags::PATH) {
                Err(Refused::Outside) => return Err(self.refused(&path)),
                // As everywhere, a link that leads nowhere is listed: reading it says so.
                Err(Refused::Failed(_)) => entries.push(Entry { path, size: 0, modified: 0 }),
                Ok(file) => {
                    let meta = file.metadata().map_err(|error| missing(&path, &error))?;
                    if meta.is_dir() {
                        self.walk(&path, depth + 1, entries)?;
                    } else if meta.is_file() {
                        entries.push(entry(path, &meta));
                    }
                }
            }
        }
        Ok(())
    }
}

fn nanoseconds(stat: &rustix::fs::Stat) -> i64 {
    let whole: i64 = stat.st_mtime;
    // Times before 1970 count as none, as they do elsewhere.
    if whole < 0 { 0 } else { whole.wrapping_mul(1_000_000_000) + stat.st_mtime_nsec as i64 }
}

impl Root {
    /// What a path says beyond this folder, if it begins with it.
    fn rest<'a>(&self, path: &'a Path) -> Option<&'a Path> {
        let rest = self.names.iter().find_map(|name| path.strip_prefix(name).ok())?;
        Some(if rest.as_os_str().is_empty() { Path::new(".") } else { rest })
    }

    fn open(&self, rest: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let flags = flags | OFlags::CLOEXEC;
        for _ in 0..ATTEMPTS {
            match openat2(&self.folder, rest, flags, Mode::empty(), resolve) {
                // Something was moved while the kernel looked.
                Err(Errno::AGAIN | Errno::INTR) => {}
                opened => return opened,
            }
        }
        Err(Errno::AGAIN)
    }
}

impl Store for ConfinedStore {
    fn list(&self, root: &Path) -> Result<Vec<Entry>> {
        let meta = self.metadata(root)?;
        let mut entries = Vec::new();
        if meta.is_dir() {
            self.walk(root, 0, &mut entries)?;
        } else {
            entries.push(entry(root.to_owned(), &meta));
        }
        sort(&mut entries);
        Ok(entries)
    }

    fn stat(&self, path: &Path) -> Result<Entry> {
        let meta = self.metadata(path)?;
        if meta.is_dir() {
            return Err(Error::Source(format!("{} is a folder, not a file", path.display())));
        }
        Ok(entry(path.to_owned(), &meta))
    }

    fn read(&self, extent: Extent<'_>, out: &mut [u8]) -> Result<()> {
        local::read(&self.file(extent.path)?, extent, out)
    }

    fn try_read(&self, extent: Extent<'_>, out: &mut [u8]) -> Result<Attempt> {
        local::try_read(|| self.file(extent.path), extent, out)
    }

    fn read_cut(&self, cut: &Cut<'_>, done: &mut usize, out: &mut [u8]) -> Result<()> {
        local::read_cut(&self.file(cut.path)?, cut, done, out)
    }

    fn try_read_cut(&self, cut: &Cut<'_>, done: &mut usize, out: &mut [u8]) -> Result<Attempt> {
        local::try_read_cut(|| self.file(cut.path), cut, done, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LocalStore;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    const SECRET: &[u8] = b"secret!";
    const OPEN: &[u8] = b"allowed";

    /// A folder that may be read, beside one that may not.
    struct Place {
        folder: tempfile::TempDir,
        store: ConfinedStore,
    }

    impl Place {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            for (name, bytes) in [
                ("open/a", OPEN),
                ("open/deep/er/b", OPEN),
                ("open/c", OPEN),
                ("closed/secret", SECRET),
                ("opening/secret", SECRET),
            ] {
                let path = folder.path().join(name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, bytes).unwrap();
            }
            let store = ConfinedStore::new(&[folder.path().join("open")]).unwrap();
            Self { folder, store }
        }

        fn at(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }

        /// What can be had of a path in any way. Nothing that fails gives bytes.
        fn read(&self, path: &Path) -> Vec<Result<Vec<u8>>> {
            let extent = Extent { path, offset: 0, length: 7, whole: true, modified: 0 };
            let strides = [0; 3];
            let cut = Cut {
                path,
                size: 7,
                modified: 0,
                offset: 0,
                run: 7,
                counts: [1; 3],
                strides,
                reversed: [false; 3],
            };
            let tried = |attempt, out: Vec<u8>| match attempt {
                Attempt::Done => Ok(out),
                Attempt::WouldWait => Err(Error::Cancelled),
            };
            let [mut one, mut two, mut three, mut four] = [(); 4].map(|()| vec![0; 7]);
            vec![
                self.store.read(extent, &mut one).map(|()| one),
                self.store.try_read(extent, &mut two).and_then(|attempt| tried(attempt, two)),
                self.store.read_cut(&cut, &mut 0, &mut three).map(|()| three),
                self.store
                    .try_read_cut(&cut, &mut 0, &mut four)
                    .and_then(|attempt| tried(attempt, four)),
            ]
        }
    }

    #[test]
    fn what_lies_below_is_read_and_listed_as_without_limits() {
        let place = Place::new();
        symlink("a", place.at("open/link")).unwrap();
        symlink("nowhere", place.at("open/dangling")).unwrap();
        symlink("deep/er", place.at("open/folder")).unwrap();
        fs::write(place.at("open").join(OsStr::from_bytes(b"\xff")), OPEN).unwrap();
        let root = place.at("open");
        assert_eq!(place.store.list(&root).unwrap(), LocalStore.list(&root).unwrap());
        for name in ["open/a", "open/link", "open/deep/../a", "open/deep/er/b", "open/folder/b"] {
            let path = place.at(name);
            assert_eq!(place.store.stat(&path).unwrap(), LocalStore.stat(&path).unwrap());
            assert_eq!(place.store.list(&path).unwrap(), LocalStore.list(&path).unwrap());
            for read in place.read(&path) {
                assert_eq!(read.unwrap(), OPEN, "{name}");
            }
        }
        for (name, word) in
            [("open/none", "vanished"), ("open/deep", "folder"), ("open/dangling", "van")]
        {
            let error = place.read(&place.at(name)).remove(0).unwrap_err().to_string();
            assert!(error.contains(word) || error.contains("no file"), "{name}: {error}");
        }
        assert!(place.store.stat(&place.at("open/none")).is_err());
    }

    /// Paths that lead to the secret, or would if they were believed.
    fn hostile(place: &Place) -> Vec<PathBuf> {
        let (open, secret) = (place.at("open"), place.at("closed/secret"));
        symlink(&secret, open.join("absolute")).unwrap();
        symlink("../closed/secret", open.join("relative")).unwrap();
        symlink("../closed", open.join("folder")).unwrap();
        symlink("/", open.join("root")).unwrap();
        symlink("relative", open.join("chain")).unwrap();
        symlink("/proc/self/cwd", open.join("magic")).unwrap();
        let text = secret.display().to_string();
        let mut paths: Vec<PathBuf> = vec![
            secret.clone(),
            place.at("opening/secret"),
            "/etc/passwd".into(),
            "/proc/self/environ".into(),
            "/proc/self/root/etc/passwd".into(),
            open.join("absolute"),
            open.join("relative"),
            open.join("folder/secret"),
            open.join("chain"),
            open.join(format!("root{text}")),
            open.join(format!("magic{text}")),
            open.join("deep/er/../../../closed/secret"),
            "secret".into(),
            "".into(),
        ];
        let joins = ["", "/", "//", "/./", "/deep/../", "/deep/er/../../", "/nowhere/../"];
        let ups = ["..", "../", "./../", ".././", "..//", "deep/../../", "deep/er/../../../"];
        for join in joins {
            for up in ups {
                for times in [1, 2, 5, 20] {
                    for end in ["closed/secret", "opening/secret", "/closed/secret"] {
                        let text = format!("{}{join}{}{end}", open.display(), up.repeat(times));
                        paths.push(text.into());
                    }
                }
            }
        }
        paths
    }

    #[test]
    fn hundreds_of_hostile_paths_lead_nowhere() {
        let place = Place::new();
        let paths = hostile(&place);
        assert!(paths.len() > 500, "{}", paths.len());
        let mut told = 0;
        for path in &paths {
            for read in place.read(path) {
                let error = read.expect_err(&path.display().to_string());
                told += usize::from(error.to_string().contains("may not be read here"));
            }
            assert!(place.store.stat(path).is_err(), "{}", path.display());
            assert!(place.store.list(path).is_err(), "{}", path.display());
        }
        assert!(told > paths.len() * 2, "{told} say why");
        let error = place.store.stat(&place.at("closed/secret")).unwrap_err().to_string();
        assert!(error.contains(&format!("below {}", place.at("open").display())), "{error}");
        let error = place.store.list(&place.at("open")).unwrap_err().to_string();
        assert!(error.contains("links must stay there"), "{error}");
        let nul = Path::new(OsStr::from_bytes(b"/open/\0/secret"));
        assert!(place.store.stat(nul).is_err());
    }

    #[test]
    fn links_that_are_swapped_all_the_time_never_show_what_is_outside() {
        let place = Place::new();
        let (open, done) = (place.at("open"), AtomicBool::new(false));
        fs::create_dir(open.join("inside")).unwrap();
        fs::write(open.join("inside/secret"), OPEN).unwrap();
        symlink("inside", open.join("way")).unwrap();
        let mut reads = 0;
        std::thread::scope(|scope| {
            let swapping = scope.spawn(|| {
                let mut swaps = 0;
                for target in ["inside", "../closed"].iter().cycle() {
                    symlink(target, open.join("next")).unwrap();
                    fs::rename(open.join("next"), open.join("way")).unwrap();
                    swaps += 1;
                    if done.load(Ordering::SeqCst) {
                        return swaps;
                    }
                }
                swaps
            });
            for _ in 0..5_000 {
                for bytes in place.read(&open.join("way/secret")).into_iter().flatten() {
                    assert_eq!(bytes, OPEN);
                    reads += 1;
                }
                if let Ok(entries) = place.store.list(&open.join("way")) {
                    assert!(entries.len() <= 1);
                }
            }
            done.store(true, Ordering::SeqCst);
            assert!(swapping.join().unwrap() > 100);
        });
        assert!(reads > 100, "{reads}");
    }

    #[test]
    fn pipes_and_devices_are_no_files() {
        let place = Place::new();
        let pipe = place.at("open/pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, Mode::RUSR | Mode::WUSR).unwrap();
        for read in place.read(&pipe) {
            assert!(read.unwrap_err().to_string().contains("is no file"));
        }
        assert_eq!(place.store.list(&place.at("open")).unwrap().len(), 3);
    }

    #[test]
    fn several_folders_may_be_allowed_and_each_must_be_there() {
        let place = Place::new();
        let both = [place.at("open"), place.at("closed")];
        let store = ConfinedStore::new(&both).unwrap();
        assert!(store.stat(&place.at("closed/secret")).is_ok());
        let error = store.stat(&place.at("opening/secret")).unwrap_err().to_string();
        let listed = format!("{}, {}", both[0].display(), both[1].display());
        assert!(error.contains(&listed), "{error}");
        let error = ConfinedStore::new(&[place.at("nowhere")]).unwrap_err().to_string();
        assert!(error.contains("nowhere"), "{error}");
        assert!(ConfinedStore::new(&[place.at("open/a")]).is_err(), "a file is no folder");
        let nothing = ConfinedStore::new(&[]).unwrap();
        assert!(nothing.stat(&place.at("open/a")).is_err());
        // A folder may be called by a link to it, and then goes by both names.
        symlink(place.at("open"), place.at("alias")).unwrap();
        let store = ConfinedStore::new(&[place.at("alias")]).unwrap();
        assert!(
            store.stat(&place.at("alias/a")).is_ok() && store.stat(&place.at("open/a")).is_ok()
        );
    }
}
