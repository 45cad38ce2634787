//! Files and objects by one kind of name: a path is a file of this machine, a URL lies elsewhere.

use crate::UrlStore;
use crate::local::sort;
use feedline_core::{Attempt, Cut, Entry, Error, Extent, Result, Store, expand, is_url, place};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Files of one store, and objects of another. Names with braces (`x-{000..127}.bin`) stand for many.
pub struct AnyStore {
    files: Arc<dyn Store>,
    objects: Arc<dyn Store>,
}

impl AnyStore {
    /// A store of these files, and of objects by URL.
    #[must_use]
    pub fn new(files: Arc<dyn Store>, objects: UrlStore) -> Self {
        Self { files, objects: Arc::new(objects) }
    }

    fn of(&self, path: &Path) -> &dyn Store {
        if is_url(path) { &*self.objects } else { &*self.files }
    }

    /// All that a name with braces stands for; none if it stands for itself.
    fn written_out(&self, root: &Path) -> Result<Option<Vec<PathBuf>>> {
        let Some(text) = root.to_str().filter(|text| text.contains('{')) else { return Ok(None) };
        // A folder may be called so.
        if !is_url(root) && self.files.list(root).is_ok() {
            return Ok(None);
        }
        let names = expand(text)?;
        if let [only] = &names[..]
            && only == text
        {
            return Ok(None);
        }
        names.into_iter().map(|name| place(PathBuf::from(name))).collect::<Result<_>>().map(Some)
    }
}

/// Whether a URL looks like that of one object: on a web server it is, elsewhere its name has an ending.
fn is_single(url: &Path) -> bool {
    let text = url.as_os_str().as_encoded_bytes();
    let last = text.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    text.starts_with(b"http") || last.contains(&b'.')
}

impl Store for AnyStore {
    fn list(&self, root: &Path) -> Result<Vec<Entry>> {
        let Some(names) = self.written_out(root)? else { return self.of(root).list(root) };
        let mut entries = Vec::with_capacity(names.len());
        // What looks like single objects is looked at together; folders are listed.
        if names.iter().all(|name| is_url(name) && is_single(name)) {
            for entry in self.objects.stat_all(&names) {
                entries.push(entry?);
            }
        } else {
            for name in &names {
                entries.extend(self.of(name).list(name)?);
            }
        }
        sort(&mut entries);
        match entries.windows(2).find(|pair| pair[0].path == pair[1].path) {
            Some(pair) => Err(Error::Source(format!(
                "{} stands for {} twice",
                root.display(),
                pair[0].path.display()
            ))),
            None => Ok(entries),
        }
    }

    fn stat(&self, path: &Path) -> Result<Entry> {
        self.of(path).stat(path)
    }

    fn stat_all(&self, paths: &[PathBuf]) -> Vec<Result<Entry>> {
        if paths.iter().all(|path| is_url(path)) {
            return self.objects.stat_all(paths);
        }
        paths.iter().map(|path| self.stat(path)).collect()
    }

    fn read(&self, extent: Extent<'_>, out: &mut [u8]) -> Result<()> {
        self.of(extent.path).read(extent, out)
    }

    fn try_read(&self, extent: Extent<'_>, out: &mut [u8]) -> Result<Attempt> {
        self.of(extent.path).try_read(extent, out)
    }

    fn read_cut(&self, cut: &Cut<'_>, done: &mut usize, out: &mut [u8]) -> Result<()> {
        self.of(cut.path).read_cut(cut, done, out)
    }

    fn try_read_cut(&self, cut: &Cut<'_>, done: &mut usize, out: &mut [u8]) -> Result<Attempt> {
        self.of(cut.path).try_read_cut(cut, done, out)
    }
}

impl std::fmt::Debug for AnyStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AnyStore")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LocalStore;

    #[test]
    fn braces_stand_for_files_and_folders() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["x-08", "x-09", "x-10", "a/1", "b/2", "c/3", "{0..1}/odd"] {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, name).unwrap();
        }
        let store = AnyStore::new(Arc::new(LocalStore), UrlStore::default());
        let list = |name: &str| {
            let entries = store.list(&folder.path().join(name))?;
            let name = |entry: &Entry| {
                let inside = entry.path.strip_prefix(folder.path()).unwrap();
                inside.to_str().unwrap().to_owned()
            };
            Ok::<_, Error>(entries.iter().map(name).collect::<Vec<_>>())
        };
        assert_eq!(list("x-{08..10}").unwrap(), ["x-08", "x-09", "x-10"]);
        assert_eq!(list("{b,a}").unwrap(), ["a/1", "b/2"]);
        assert_eq!(list("{0..1}").unwrap(), ["{0..1}/odd"], "a folder may be called so");
        assert!(list("x-{08..11}").unwrap_err().to_string().contains("x-11"));
        assert!(list("{a,a}").unwrap_err().to_string().contains("twice"));
        assert!(list("x-{9..8}").unwrap_err().to_string().contains("backwards"));
    }

    #[test]
    fn no_connection_is_made_for_what_is_no_url() {
        let store = AnyStore::new(Arc::new(LocalStore), UrlStore::default());
        for (name, words) in [
            ("ftp://host/x", "none of the schemes"),
            ("s3://", "no bucket"),
            ("https://user:canary@host/x", "before @"),
            ("http://example.invalid/x", "FEEDLINE_ALLOW_HTTP"),
            ("http://169.254.169.254/latest/meta-data/", "provider"),
            ("http://[fd00:ec2::254]/latest", "provider"),
            ("https://host/folder/", "name its objects"),
        ] {
            let error = store.list(Path::new(name)).unwrap_err().to_string();
            assert!(error.contains(words) && !error.contains("canary"), "{name}: {error}");
        }
    }
}
