//! How long to try again, and how long to wait between tries.

use feedline_core::Error;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::time::{Duration, Instant};

/// How long reads of distant objects are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// How long a listing or a look at an object is tried.
    pub opening: Duration,
    /// How long a read is tried, beside the time that its bytes take at the slowest rate.
    pub reading: Duration,
    /// The first pause between tries; each is about twice as long as the one before.
    pub first: Duration,
    /// The longest pause.
    pub longest: Duration,
    /// How long a server may be silent in the middle of an answer.
    pub silence: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            opening: Duration::from_secs(30),
            reading: Duration::from_secs(120),
            first: Duration::from_millis(100),
            longest: Duration::from_secs(10),
            silence: Duration::from_secs(20),
        }
    }
}

/// Bytes a second below which a read is given up.
const SLOWEST: u64 = 64 << 10;
/// Tries of what hardly ever mends itself: a name that nobody knows, credentials that are not there.
const FEW: u32 = 3;

/// Why a try failed.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// Another try may help, after this pause if the server named one.
    Later { why: String, pause: Option<Duration> },
    /// Another try may help, and probably will not.
    Hardly { why: Error },
    /// It will fail again.
    Never(Error),
}

impl Trouble {
    pub(crate) fn later(why: impl Into<String>) -> Self {
        Self::Later { why: why.into(), pause: None }
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Never(error)
    }
}

/// The tries of one piece of work.
pub(crate) struct Tries {
    patience: Patience,
    begun: Instant,
    limit: Duration,
    failed: u32,
    /// Tries in a row that brought nothing, which the pause goes by.
    in_vain: u32,
}

impl Tries {
    pub(crate) fn opening(patience: Patience) -> Self {
        Self { patience, begun: Instant::now(), limit: patience.opening, failed: 0, in_vain: 0 }
    }

    pub(crate) fn reading(patience: Patience, bytes: u64) -> Self {
        let limit = patience.reading + Duration::from_secs(bytes / SLOWEST);
        Self { limit, ..Self::opening(patience) }
    }

    /// What is left of the time.
    pub(crate) fn left(&self) -> Duration {
        self.limit.saturating_sub(self.begun.elapsed())
    }

    /// Told when something arrived: the next pause is a short one again.
    pub(crate) fn brought_something(&mut self) {
        self.in_vain = 0;
    }

    /// Waits for the next try.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub(crate) async fn again(&mut self, what: &str, trouble: Trouble) -> Result<(), Error> {
        self.failed += 1;
        self.in_vain += 1;
        let (why, named) = match trouble {
            Trouble::Never(error) => return Err(error),
            Trouble::Hardly { why } if self.failed >= FEW => return Err(why),
            Trouble::Hardly { why } => (why.to_string(), None),
            Trouble::Later { why, pause } => (why, pause),
        };
        let pause = named.unwrap_or_else(|| self.pause(chance())).min(self.patience.longest * 3);
        if pause >= self.left() {
            let (tries, seconds) = (self.failed, self.begun.elapsed().as_secs_f64());
            let told = format!("{why} ({tries} tries in {seconds:.1} s)");
            return Err(Error::unavailable(what, io::Error::new(io::ErrorKind::TimedOut, told)));
        }
        tokio::time::sleep(pause).await;
        Ok(())
    }

    /// The next pause, of which chance takes up to a half: clients that failed together do not come
    /// back together.
    fn pause(&self, chance: f64) -> Duration {
        let doubled = self.patience.first.saturating_mul(1 << (self.in_vain - 1).min(16));
        doubled.min(self.patience.longest).mul_f64(0.5 + chance / 2.0)
    }
}

/// A number from 0 to 1. Nothing that is delivered depends on it.
fn chance() -> f64 {
    RandomState::new().build_hasher().finish() as f64 / u64::MAX as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_chance_takes_half() {
        let mut tries = Tries::opening(Patience::default());
        let mut pauses = Vec::new();
        for in_vain in 1..=12 {
            tries.in_vain = in_vain;
            pauses.push((tries.pause(0.0).as_millis(), tries.pause(1.0).as_millis()));
        }
        assert_eq!(pauses[0], (50, 100));
        assert_eq!(pauses[3], (400, 800));
        assert_eq!(pauses[11], (5000, 10_000));
    }

    #[test]
    fn large_reads_get_more_time() {
        let tries = Tries::reading(Patience::default(), 64 << 20);
        assert_eq!(tries.limit, Duration::from_secs(120 + 1024));
    }

    #[test]
    fn tries_end_with_their_reason() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let short = Duration::from_millis(20);
        let patience = Patience {
            opening: short,
            first: short / 10,
            longest: short / 4,
            ..Patience::default()
        };
        let mut tries = Tries::opening(patience);
        let error = runtime.block_on(async {
            loop {
                if let Err(error) = tries.again("s3://b/x", Trouble::later("503 SlowDown")).await {
                    return error;
                }
            }
        });
        let text = error.to_string();
        assert!(text.starts_with("s3://b/x is unavailable: 503 SlowDown ("), "{text}");
        assert!(!error.is_record());
    }
}
