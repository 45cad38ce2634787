//! What is done now and then: tidying up, snapshots, and how many workers are wanted.

use super::desk::Stopped;
use super::{Shared, status};
use crate::scale::{Decided, Scaler, decide};
use feedline_journal::Disk;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// How often it looks whether there is something to do.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// What is done now and then. Whoever holds it says when.
pub(crate) struct Keeper {
    pub(crate) shared: Arc<Shared>,
    pub(crate) scaler: Option<Arc<dyn Scaler>>,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) folder: PathBuf,
    /// How often it has looked.
    pub(crate) ticks: u64,
}

impl Keeper {
    /// Works until the other end of `asleep` is dropped.
    pub(crate) fn run(mut self, asleep: &Receiver<()>) {
        while self.tick().is_ok() {
            if asleep.recv_timeout(TICK) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }

    /// Does what is due, once in each [`TICK`]. Blocks while the disk is waited for.
    ///
    /// # Errors
    ///
    /// If the journal has failed. Whoever serves finds that out too.
    pub(crate) fn tick(&mut self) -> Result<(), Stopped> {
        let (shared, tick) = (&*self.shared, self.ticks);
        self.ticks += 1;
        shared.workers.tidy();
        shared.desk.snapshot()?;
        if tick.is_multiple_of(10) {
            tidy(shared)?;
            scale(shared, self.scaler.as_deref());
        }
        if tick.is_multiple_of(50) {
            let bytes = folder_bytes(&*self.disk, &self.folder);
            shared.journal_bytes.store(bytes, Ordering::Relaxed);
        }
        Ok(())
    }
}

fn tidy(shared: &Shared) -> Result<(), Stopped> {
    for job in shared.desk.tidy()? {
        shared.reports.forget(job);
    }
    shared.reports.tidy();
    shared.store.tidy(&shared.desk.datasets());
    Ok(())
}

fn scale(shared: &Shared, scaler: Option<&dyn Scaler>) {
    let now = shared.desk.now();
    if now < shared.policy.up_after {
        // After a restart, workers and clients have to be heard first.
        return;
    }
    let view = status::view(shared);
    let mut scale = shared.scale.lock().unwrap_or_else(PoisonError::into_inner);
    let first = scale.is_none();
    let before = scale.take().unwrap_or_else(|| Decided::begin(&view));
    let decided = decide(&shared.policy, &before, now, &view);
    let (before, wanted, reason) = (before.wanted, decided.wanted, decided.reason.clone());
    *scale = Some(decided);
    drop(scale);
    if first || wanted != before {
        tracing::info!(before, wanted, reason, "so many workers are wanted");
        if let Some(scaler) = scaler {
            scaler.set(wanted);
        }
    }
}

/// Bytes of the journal's own files.
fn folder_bytes(disk: &dyn Disk, folder: &Path) -> u64 {
    let names = disk.list(folder).unwrap_or_default();
    let own = names.iter().filter(|name| name.contains('.'));
    own.filter_map(|name| disk.open(&folder.join(name)).and_then(|file| file.length()).ok()).sum()
}
