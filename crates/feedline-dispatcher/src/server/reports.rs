//! What clients say about their trainers. Forgotten when they fall silent.

use super::meter::{Counts, Meter};
use feedline_wire::control::Report;
use feedline_wire::status::Rates;
use feedline_wire::{ConsumerIndex, JobId};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// A report counts for so long.
const LASTING: Duration = Duration::from_secs(10);
/// More clients than these are not kept account of.
const MOST_REPORTS: usize = 100_000;

/// What clients say about their trainers.
#[derive(Debug, Default)]
pub(crate) struct Reports(Mutex<BTreeMap<(JobId, ConsumerIndex), Known>>);

#[derive(Debug)]
struct Known {
    last: Report,
    heard: Instant,
    meter: Meter,
    waiting: f64,
}

/// How a trainer fares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Fare {
    pub epoch: u64,
    pub buffered: u64,
    pub rates: Rates,
    /// Share of its time that it waits.
    pub waiting: f64,
    /// How long ago it was told.
    pub silent: Duration,
}

impl Reports {
    fn known(&self) -> MutexGuard<'_, BTreeMap<(JobId, ConsumerIndex), Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note(&self, report: &Report) {
        self.note_at(Instant::now(), report);
    }

    fn note_at(&self, now: Instant, report: &Report) {
        let Report { steps, samples, bytes, .. } = *report;
        let counts = Counts { steps, samples, bytes };
        let mut known = self.known();
        let key = (report.job, report.consumer);
        let Some(client) = known.get_mut(&key) else {
            if known.len() < MOST_REPORTS {
                let meter = Meter::new(now, counts);
                let waiting = share(report.waited, report.elapsed).unwrap_or(0.0);
                known.insert(key, Known { last: *report, heard: now, meter, waiting });
            }
            return;
        };
        client.meter.update(now, counts);
        let waited = report.waited.checked_sub(client.last.waited);
        let elapsed = report.elapsed.checked_sub(client.last.elapsed);
        if let Some(waiting) = waited.zip(elapsed).and_then(|(part, whole)| share(part, whole)) {
            client.waiting += (waiting - client.waiting) * 0.5;
        }
        (client.last, client.heard) = (*report, now);
    }

    /// Forgets clients that have fallen silent.
    pub(crate) fn tidy(&self) {
        let now = Instant::now();
        self.known().retain(|_, known| now.saturating_duration_since(known.heard) < LASTING);
    }

    /// Forgets a job.
    pub(crate) fn forget(&self, job: JobId) {
        self.known().retain(|(known, _), _| *known != job);
    }

    /// How trainers fare.
    pub(crate) fn fares(&self) -> BTreeMap<(JobId, ConsumerIndex), Fare> {
        let now = Instant::now();
        let fare = |known: &Known| Fare {
            epoch: known.last.epoch,
            buffered: known.last.buffered,
            rates: known.meter.rates(),
            waiting: known.waiting,
            silent: now.saturating_duration_since(known.heard),
        };
        self.known().iter().map(|(key, known)| (*key, fare(known))).collect()
    }
}

fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| (part as f64 / whole as f64).clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_trainers_wait_is_what_they_waited_lately() {
        let reports = Reports::default();
        let start = Instant::now();
        let report = |steps: u64, waited, elapsed| Report {
            job: JobId(1),
            consumer: ConsumerIndex(0),
            epoch: 3,
            steps,
            samples: steps * 8,
            bytes: steps * 100,
            waited,
            elapsed,
            buffered: 2,
        };
        reports.note_at(start, &report(0, 0, 0));
        for second in 1..10u64 {
            let waited = second * 250_000;
            let now = start + Duration::from_secs(second);
            reports.note_at(now, &report(second * 40, waited, second * 1_000_000));
        }
        let fares = reports.fares();
        let fare = fares[&(JobId(1), ConsumerIndex(0))];
        assert!((fare.waiting - 0.25).abs() < 0.01, "{fare:?}");
        assert!((fare.rates.samples - 320.0).abs() < 1.0, "{fare:?}");
        // The client was started again.
        reports.note_at(start + Duration::from_secs(11), &report(1, 0, 10));
        assert!(reports.fares()[&(JobId(1), ConsumerIndex(0))].waiting <= 0.25);
        reports.forget(JobId(1));
        assert!(reports.fares().is_empty());
    }
}
