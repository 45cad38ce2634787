//! Which process this is, without asking the system for it at every batch.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many forks lie between the first process and this one.
static FORKS: AtomicU64 = AtomicU64::new(0);

static WATCHING: Once = Once::new();

/// The process in which a value was made. Its threads live there; a fork has a copy of the value and
/// none of the threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Home(u64);

impl Home {
    /// This process.
    pub(crate) fn new() -> Self {
        // SAFETY: the handler adds to a number, which is allowed right after a fork.
        WATCHING.call_once(|| unsafe {
            libc::pthread_atfork(None, None, Some(count));
        });
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether that is this process.
    pub(crate) fn is_here(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}

extern "C" fn count() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}
