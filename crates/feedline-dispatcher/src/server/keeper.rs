//! What is done now and then: tidying up, snapshots, and how many workers are wanted.

use super::{Shared, status};
use crate::scale::{Scaler, decide};
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
    let view = status::view(shared);
    let mut decided = shared.scale.lock().unwrap_or_else(PoisonError::into_inner);
    let before = decided.wanted;
    *decided = decide(&shared.policy, &decided, shared.desk.now(), &view);
    let (wanted, reason) = (decided.wanted, decided.reason.clone());
    drop(decided);
    if wanted != before {
        tracing::info!(before, wanted, reason, "another number of workers is wanted");
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
