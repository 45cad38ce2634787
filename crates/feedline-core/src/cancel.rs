//! Ends waiting: whoever waits long, waits on this.

use std::cell::Cell;
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

    /// Waits for `time`, as exactly as the system can. False if the work was cancelled before it was
    /// over.
    ///
    /// The system wakes a thread some time after it asked to be woken. How late this thread usually
    /// is, is learnt, and it asks to be woken so much earlier: some waits are then a little short and
    /// some a little long, and together they take the time they should.
    #[must_use]
    pub fn wait(&self, time: Duration) -> bool {
        let end = Instant::now().checked_add(time);
        if time <= LATE.get() {
            // Too short to be slept.
            while end.is_some_and(|end| Instant::now() < end) && !self.is_cancelled() {
                std::thread::yield_now();
            }
            return !self.is_cancelled();
        }
        let mut lock = self.state.lock.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if self.is_cancelled() {
                return false;
            }
            let now = Instant::now();
            let left = end.map_or(LONG, |end| end.saturating_duration_since(now));
            let late = LATE.get();
            let Some(asleep) = left.checked_sub(late).filter(|asleep| !asleep.is_zero()) else {
                return true;
            };
            let woken = self.state.wake.wait_timeout(lock, asleep);
            lock = woken.unwrap_or_else(PoisonError::into_inner).0;
            if let Some(new) = now.elapsed().checked_sub(asleep) {
                LATE.set(((late * 15 + new) / 16).min(MOST_LATE));
            }
        }
    }
}

/// Longer waits are asked for again.
const LONG: Duration = Duration::from_secs(3600);
/// A thread that is later than this is not so by habit.
const MOST_LATE: Duration = Duration::from_micros(200);

thread_local! {
    /// How late this thread usually wakes.
    static LATE: Cell<Duration> = const { Cell::new(Duration::ZERO) };
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
