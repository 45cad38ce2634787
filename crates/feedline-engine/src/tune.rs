//! The tuner: how far ahead, how many reads at once, how many threads. It goes by what it sees.

use std::time::{Duration, Instant};

/// How many batches are prepared ahead. It grows whenever a thread has nothing to do while the
/// consumer waits: then more look-ahead is what was missing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ahead {
    pub limit: usize,
    frozen: bool,
}

impl Ahead {
    const MOST: usize = 4096;

    pub(crate) fn new(limit: usize, frozen: bool) -> Self {
        Self { limit, frozen }
    }

    /// One more, if that is allowed.
    pub(crate) fn grow(&mut self) -> bool {
        if self.frozen || self.limit >= Self::MOST {
            return false;
        }
        self.limit += 1;
        true
    }
}

/// How many reads wait for storage at once. It climbs while that brings more bytes a second, and
/// goes back when it does not; now and then it tries again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reads {
    pub limit: usize,
    frozen: bool,
    /// The limit before the last step, and the rate it gave.
    before: Option<(usize, f64)>,
    since: Option<(Instant, u64)>,
    next_try: Option<Instant>,
}

impl Reads {
    const MOST: usize = 256;
    const SPAN: Duration = Duration::from_millis(150);
    const PAUSE: Duration = Duration::from_secs(5);

    pub(crate) fn new(limit: usize, frozen: bool) -> Self {
        Self { limit, frozen, before: None, since: None, next_try: None }
    }

    /// Told after each read: bytes read so far, and whether threads are waiting for reads.
    pub(crate) fn observe(&mut self, now: Instant, bytes: u64, starving: bool) {
        if self.frozen {
            return;
        }
        let Some((start, bytes_then)) = self.since else {
            self.since = Some((now, bytes));
            return;
        };
        let elapsed = now.saturating_duration_since(start);
        // Too short a span says more about single reads than about all of them.
        if elapsed < Self::SPAN {
            return;
        }
        let rate = (bytes - bytes_then) as f64 / elapsed.as_secs_f64();
        self.since = Some((now, bytes));
        match self.before.take() {
            Some((limit, old_rate)) if rate < old_rate * 1.1 => {
                // More reads at once brought nothing.
                self.limit = limit;
                self.next_try = Some(now + Self::PAUSE);
            }
            _ if !starving || self.next_try.is_some_and(|next| now < next) => {}
            _ if self.limit < Self::MOST => {
                self.before = Some((self.limit, rate));
                self.limit = (self.limit * 2).min(Self::MOST);
            }
            _ => {}
        }
    }
}

/// How many threads work. All of them while a consumer waits; one fewer for every half second in which
/// all consumers found plenty ready.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Active {
    pub limit: usize,
    all: usize,
    frozen: bool,
    calm_since: Option<Instant>,
    /// One more than were too few, and until when that is remembered.
    floor: usize,
    floor_until: Option<Instant>,
}

impl Active {
    const CALM: Duration = Duration::from_millis(500);
    const MEMORY: Duration = Duration::from_secs(30);

    pub(crate) fn new(all: usize) -> Self {
        Self { limit: all, all, frozen: false, calm_since: None, floor: 1, floor_until: None }
    }

    /// Leaves all threads at work.
    pub(crate) fn freeze(&mut self) {
        (self.limit, self.frozen) = (self.all, true);
    }

    /// Told when a batch is taken: how many of `window` batches were ready.
    pub(crate) fn observe(&mut self, now: Instant, ready: usize, window: usize) {
        if self.frozen {
            return;
        }
        if ready == 0 {
            // So few were too few: for a while there will be at least one more.
            self.floor = (self.limit + 1).min(self.all);
            (self.floor_until, self.limit) = (Some(now + Self::MEMORY), self.all);
            self.calm_since = None;
        } else if ready <= 1.max(window / 4) {
            self.limit = (self.limit + 1).min(self.all);
            self.calm_since = None;
        } else if ready + 1 >= window || ready * 2 > window && window > 4 {
            let since = *self.calm_since.get_or_insert(now);
            let remembers = self.floor_until.is_some_and(|until| now < until);
            let least = if remembers { self.floor } else { 1 };
            if now.saturating_duration_since(since) >= Self::CALM && self.limit > least {
                self.limit -= 1;
                self.calm_since = Some(now);
            }
        } else {
            self.calm_since = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A store that gives every read the same latency, up to a total of bytes a second.
    fn settle(latency: f64, most: f64) -> usize {
        let (mut reads, mut now, mut bytes) = (Reads::new(8, false), Instant::now(), 0.0);
        for _ in 0..400 {
            let rate = (reads.limit as f64 * 1e5 / latency).min(most);
            now += Duration::from_millis(10);
            bytes += rate * 0.01;
            reads.observe(now, bytes as u64, true);
        }
        reads.limit
    }

    #[test]
    fn distant_stores_get_many_reads_and_near_ones_few() {
        assert!(settle(0.1, 1e9) >= 128, "{}", settle(0.1, 1e9));
        assert!(settle(0.001, 4e8) <= 16, "{}", settle(0.001, 4e8));
    }

    #[test]
    fn threads_rest_when_batches_wait_and_come_back_when_the_consumer_does() {
        let (mut active, mut now) = (Active::new(4), Instant::now());
        for _ in 0..40 {
            now += Duration::from_millis(100);
            active.observe(now, 8, 8);
        }
        assert_eq!(active.limit, 1);
        active.observe(now, 2, 8);
        assert_eq!(active.limit, 2);
        active.observe(now, 0, 8);
        assert_eq!(active.limit, 4);
        // Two were too few: for a while it does not go below three.
        for _ in 0..100 {
            now += Duration::from_millis(100);
            active.observe(now, 8, 8);
        }
        assert_eq!(active.limit, 3);
    }
}
