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

/// How many reads wait for storage at once. While threads wait for bytes it tries twice as many, and
/// keeps them if they bring more bytes a second; later half as many, and keeps those if they bring
/// as much.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reads {
    pub limit: usize,
    frozen: bool,
    /// The limit before the last try, and the rate it gave.
    before: Option<(usize, f64)>,
    since: Option<(Instant, u64)>,
    next_try: Option<Instant>,
    /// Whether more were tried last, in vain.
    try_fewer: bool,
}

impl Reads {
    const LEAST: usize = 4;
    const MOST: usize = 256;
    /// What counts as more, and as less, than before.
    const MORE: f64 = 1.1;
    const LESS: f64 = 0.97;
    const SPAN: Duration = Duration::from_millis(150);
    const PAUSE: Duration = Duration::from_secs(5);

    pub(crate) fn new(limit: usize, frozen: bool) -> Self {
        Self { limit, frozen, before: None, since: None, next_try: None, try_fewer: false }
    }

    /// Told after each read: bytes read so far, and whether threads are waiting for reads. True if
    /// there may be more reads from now on.
    pub(crate) fn observe(&mut self, now: Instant, bytes: u64, starving: bool) -> bool {
        let before = self.limit;
        if !self.frozen {
            self.consider(now, bytes, starving);
        }
        self.limit > before
    }

    fn consider(&mut self, now: Instant, bytes: u64, starving: bool) {
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
        if let Some((limit, old_rate)) = self.before.take() {
            let more = self.limit > limit;
            if rate < old_rate * if more { Self::MORE } else { Self::LESS } {
                self.limit = limit;
                self.next_try = Some(now + Self::PAUSE);
                self.try_fewer = more;
                return;
            }
        }
        // Without threads that wait for it, the rate says nothing about the store.
        if !starving || self.next_try.is_some_and(|next| now < next) {
            return;
        }
        self.before = Some((self.limit, rate));
        let fewer = self.limit >= Self::MOST || self.try_fewer && self.limit > Self::LEAST;
        self.limit = match fewer {
            true => (self.limit / 2).max(Self::LEAST),
            false => (self.limit * 2).min(Self::MOST),
        };
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

impl Default for Active {
    fn default() -> Self {
        Self::new(1)
    }
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
            if self.limit < self.all {
                // So few were too few: for a while there will be at least one more.
                self.floor = self.limit + 1;
                self.floor_until = Some(now + Self::MEMORY);
            }
            self.limit = self.all;
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

    /// A store that gives every read the same latency, up to a total of bytes a second, which goes
    /// up and down by `noise`.
    fn settle(first: usize, seconds: u64, latency: f64, most: f64, noise: f64) -> usize {
        let (mut reads, mut now, mut bytes) = (Reads::new(first, false), Instant::now(), 0.0);
        for step in 0..seconds * 100 {
            let swing = 1.0 + noise * (step as f64 / 7.0).sin();
            let rate = (reads.limit as f64 * 1e5 / latency).min(most) * swing;
            now += Duration::from_millis(10);
            bytes += rate * 0.01;
            reads.observe(now, bytes as u64, true);
        }
        reads.limit
    }

    #[test]
    fn distant_stores_get_many_reads_and_near_ones_few() {
        for noise in [0.0, 0.1] {
            let distant = settle(8, 4, 0.1, 1e9, noise);
            assert!(distant >= 128, "{distant}");
            let near = settle(8, 4, 0.001, 4e8, noise);
            assert!(near <= 16, "{near}");
        }
    }

    #[test]
    fn more_reads_than_help_are_given_up() {
        let near = settle(256, 120, 0.001, 4e8, 0.1);
        assert!(near <= 32, "{near}");
        let distant = settle(128, 120, 0.1, 1e9, 0.1);
        assert!(distant >= 128, "{distant}");
    }

    #[test]
    fn threads_rest_when_batches_wait_and_come_back_when_the_consumer_does() {
        let (mut active, mut now) = (Active::new(4), Instant::now());
        // Everyone waits at the start, and that says nothing.
        active.observe(now, 0, 8);
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
