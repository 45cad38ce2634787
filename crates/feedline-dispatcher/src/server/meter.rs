//! Rates, from counts that grow.

use feedline_wire::status::Rates;
use std::time::Duration;
use tokio::time::Instant;

/// What was counted since something started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub steps: u64,
    pub samples: u64,
    pub bytes: u64,
}

/// Rates over about the last five seconds.
#[derive(Clone, Debug)]
pub(crate) struct Meter {
    last: (Instant, Counts),
    rates: Rates,
    measured: bool,
}

/// For so long what was measured counts about two thirds.
const MEMORY: f64 = 5.0;
/// Counts that come faster are taken together.
const SHORTEST: Duration = Duration::from_millis(200);

impl Meter {
    pub(crate) fn new(now: Instant, counts: Counts) -> Self {
        Self { last: (now, counts), rates: Rates::default(), measured: false }
    }

    pub(crate) fn update(&mut self, now: Instant, counts: Counts) {
        let (then, before) = self.last;
        let time = now.saturating_duration_since(then);
        if time < SHORTEST {
            return;
        }
        self.last = (now, counts);
        // It was started again.
        if counts.steps < before.steps || counts.bytes < before.bytes {
            return;
        }
        let seconds = time.as_secs_f64();
        let weight = if self.measured { 1.0 - (-seconds / MEMORY).exp() } else { 1.0 };
        let mix = |rate: &mut f64, before: u64, after: u64| {
            *rate += (after.saturating_sub(before) as f64 / seconds - *rate) * weight;
        };
        mix(&mut self.rates.steps, before.steps, counts.steps);
        mix(&mut self.rates.samples, before.samples, counts.samples);
        mix(&mut self.rates.bytes, before.bytes, counts.bytes);
        self.measured = true;
    }

    pub(crate) fn rates(&self) -> Rates {
        self.rates
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(steps: u64) -> Counts {
        Counts { steps, samples: steps * 2, bytes: steps * 10 }
    }

    #[test]
    fn rates_follow_what_is_counted() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut meter = Meter::new(start, counts(0));
        meter.update(at(1), counts(100));
        assert_eq!(meter.rates(), Rates { steps: 100.0, samples: 200.0, bytes: 1000.0 });
        for second in 2..60 {
            meter.update(at(second), counts(100 + (second - 1) * 10));
        }
        assert!((meter.rates().steps - 10.0).abs() < 0.1, "{:?}", meter.rates());
        meter.update(at(61), counts(0));
        assert!((meter.rates().steps - 10.0).abs() < 0.1, "started again");
        meter.update(at(61), counts(1 << 40));
        assert!(meter.rates().steps < 11.0, "no time has passed");
    }
}
