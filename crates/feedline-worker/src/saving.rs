//! Saving: a shard is computed and written to a folder that clients and workers share.
//!
//! What a shard holds follows from the folder's table and the plan, and it appears under its name only
//! when it is whole. So nothing has to be agreed upon: a shard that was asked of two workers is written
//! twice and there once.

use crate::catalogue::Opened;
use crate::serve::Shared;
use feedline_core::{Batch, Error, Name, Result, Rows, Stretch, Tensor};
use feedline_engine::Options;
use feedline_engine::save::{Folder, Shards};
use feedline_store::ConfinedStore;
use feedline_wire::SaveShard;
use feedline_wire::stream::Sender;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Whoever asked hears this often how far it is, and that anybody is there.
const TELL: Duration = Duration::from_millis(200);

/// Where a worker writes.
pub(crate) struct Saving {
    allowed: Vec<PathBuf>,
    below: ConfinedStore,
}

impl Saving {
    pub(crate) fn new(allowed: Vec<PathBuf>) -> Result<Self> {
        Ok(Self { below: ConfinedStore::new(&allowed)?, allowed })
    }

    /// A folder that may be written to. What is written through it lies in it, even if somebody
    /// exchanges parts of its name meanwhile.
    fn allow(&self, folder: &str) -> Result<OwnedFd> {
        let refused = |why: &str| {
            let roots: Vec<String> =
                self.allowed.iter().map(|root| root.display().to_string()).collect();
            let roots = match roots.is_empty() {
                true => "nothing; start it with --save-to DIR".to_owned(),
                false => format!("what lies below {}", roots.join(", ")),
            };
            Error::Source(format!("this worker does not write to {folder}{why}: it writes {roots}"))
        };
        if self.allowed.is_empty() || !Path::new(folder).is_absolute() {
            return Err(refused(""));
        }
        self.below.folder(Path::new(folder)).map_err(|error| refused(&format!(" ({error})")))
    }
}

impl Shared {
    /// Writes a shard, and tells how far it is.
    pub(crate) fn save(
        &self,
        opened: &Opened,
        SaveShard { folder, shard }: &SaveShard,
        out: &mut Sender<'_>,
    ) -> Result<()> {
        let name = folder;
        let folder = self.saving.allow(name)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()));
        self.write_shard(opened, &path, *shard, out).map_err(|error| named(error, &path, name))
    }

    fn write_shard(
        &self,
        opened: &Opened,
        path: &Path,
        shard: u64,
        out: &mut Sender<'_>,
    ) -> Result<()> {
        let store = Arc::clone(&opened.store);
        let shards = Shards::join(path, &opened.pipeline, store, &opened.blobs)?;
        if shard >= shards.table().shards {
            let shards = shards.table().shards;
            return Err(Error::Source(format!("shard {shard} of {shards} in {}", path.display())));
        }
        let folder = Folder::prepare(path)?;
        if shards.find(&folder, shard).is_some() {
            return Ok(());
        }
        let (mut done, mut told, mut step) = ((0, 0), Instant::now(), 0);
        let mut failed = None;
        let mut progress = |places: u64, bytes: u64| {
            done = (done.0 + places, done.1 + bytes);
            if told.elapsed() >= TELL {
                let number = |number: u64| Tensor::scalar(number as i64);
                let fields = vec![
                    (Name::new("places"), number(done.0)),
                    (Name::new("bytes"), number(done.1)),
                ];
                let rows = Rows::Batch(Batch { fields, rows: 1, indices: None });
                failed = out.send(&Stretch { step, rows }).err();
                (done, told, step) = ((0, 0), Instant::now(), step + 1);
            }
            failed.is_none() && !out.cancelled()
        };
        let options = Options { memory: self.memory, ..Options::default() };
        let written = shards.write(&folder, shard, &self.team, &self.pool, &options, &mut progress);
        match (written, failed) {
            (Ok(_), _) => Ok(()),
            (Err(_), Some(failed)) => Err(failed),
            (Err(error), None) => Err(error),
        }
    }
}

/// An error that calls a folder by its name.
fn named(error: Error, path: &Path, name: &str) -> Error {
    let name = |text: String| text.replace(&path.display().to_string(), name);
    match error {
        Error::Unavailable { what, source } => Error::Unavailable { what: name(what), source },
        Error::Source(text) => Error::Source(name(text)),
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_written_outside_the_folders_that_were_named() {
        let root = tempfile::tempdir().unwrap();
        let (inside, outside) = (root.path().join("in"), root.path().join("out"));
        for folder in [&inside, &outside] {
            std::fs::create_dir_all(folder.join("deep")).unwrap();
        }
        std::os::unix::fs::symlink(&outside, inside.join("link")).unwrap();
        let text = |path: PathBuf| path.to_str().unwrap().to_owned();
        let saving = Saving::new(vec![inside.clone()]).unwrap();
        assert!(saving.allow(&text(inside.join("deep"))).is_ok());
        assert!(saving.allow(&text(inside.clone())).is_ok());
        let no = [
            text(outside.clone()),
            text(inside.join("link")),
            text(inside.join("link/deep")),
            text(inside.join("../out")),
            text(root.path().to_owned()),
            text(root.path().join("input")),
            text(inside.join("missing")),
            "in/deep".into(),
            "".into(),
            "/".into(),
        ];
        for folder in no {
            let error = saving.allow(&folder).unwrap_err().to_string();
            assert!(error.contains(inside.to_str().unwrap()), "{folder}: {error}");
        }
        let nothing =
            Saving::new(Vec::new()).unwrap().allow(&text(inside)).unwrap_err().to_string();
        assert!(nothing.contains("--save-to"), "{nothing}");
    }
}
