//! What is done now and then: tidying up, snapshots, and how many workers are wanted.

use super::{Shared, status};
use crate::scale::{Decided, Scaler, decide};
use feedline_journal::Disk;
use std::path::Path;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// How often it looks whether there is something to do.
const TICK: Duration = Duration::from_millis(100);

/// Works until the other end of `asleep` is dropped.
pub(crate) fn run(
    shared: &Shared,
    scaler: Option<&dyn Scaler>,
    disk: &dyn Disk,
    folder: &Path,
    asleep: &Receiver<()>,
) {
    for tick in 0u64.. {
        shared.workers.tidy();
        // Whoever serves finds out that the journal has failed.
        let mut failed = shared.desk.snapshot().is_err();
        if tick.is_multiple_of(10) {
            failed |= tidy(shared).is_err();
            scale(shared, scaler);
        }
        if tick.is_multiple_of(50) {
            shared.journal_bytes.store(folder_bytes(disk, folder), Ordering::Relaxed);
        }
        if failed || asleep.recv_timeout(TICK) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

fn tidy(shared: &Shared) -> Result<(), super::desk::Stopped> {
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
