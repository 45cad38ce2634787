//! Ends waiting: whoever waits long, waits on this.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Says whether work is still wanted. Clones stand for the same work.
#[derive(Clone, Debug, Default)]
pub struct Cancel {
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    cancelled: AtomicBool,
    lock: Mutex<()>,
    wake: Condvar,
}

impl Cancel {
    /// Ends the work: everyone who waits here wakes.
    pub fn cancel(&self) {
        self.state.cancelled.store(true, Ordering::Release);
        drop(self.state.lock.lock());
        self.state.wake.notify_all();
    }

    /// Whether the work was ended.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.state.cancelled.load(Ordering::Acquire)
    }

    /// Waits for `time`. False if the work was cancelled before it was over.
    #[must_use]
    pub fn wait(&self, time: Duration) -> bool {
        let end = Instant::now().checked_add(time);
        let mut lock = self.state.lock.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if self.is_cancelled() {
                return false;
            }
            let left = match end {
                Some(end) => end.saturating_duration_since(Instant::now()),
                None => Duration::from_secs(3600),
            };
            if left.is_zero() {
                return true;
            }
            let woken = self.state.wake.wait_timeout(lock, left);
            lock = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_ends_by_time_or_by_cancelling() {
        let cancel = Cancel::default();
        assert!(cancel.wait(Duration::from_millis(1)));
        let other = cancel.clone();
        let thread = std::thread::spawn(move || other.wait(Duration::MAX));
        cancel.cancel();
        assert!(!thread.join().unwrap());
        assert!(!cancel.wait(Duration::ZERO));
    }
}
