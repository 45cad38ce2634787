//! Everything counts itself: what the run did, and where its time went.

use feedline_core::{CacheStats, StepTime};
use serde::Serialize;

/// What one thread counted since it last reported.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub samples: u64,
    pub busy_nanos: u64,
    pub bytes_read: u64,
    pub reads: u64,
    pub reads_waited: u64,
    pub read_time: StepTime,
    pub write_time: StepTime,
}

/// The run's counters, added up.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    pub tally: Tally,
    pub steps: Vec<StepTime>,
    pub idle_nanos: u64,
    pub wait_nanos: u64,
    pub batches: u64,
    pub rows: u64,
    pub epochs: u64,
    pub skipped: u64,
    pub bytes_delivered: u64,
    /// Bytes of reads that had to wait.
    pub waited_bytes: u64,
}

impl Counters {
    /// Adds what a thread counted, and clears it there.
    pub(crate) fn add(&mut self, tally: &mut Tally, times: &mut [StepTime]) {
        let Tally { samples, busy_nanos, bytes_read, reads, reads_waited, read_time, write_time } =
            std::mem::take(tally);
        let sum = &mut self.tally;
        sum.samples += samples;
        sum.busy_nanos += busy_nanos;
        sum.bytes_read += bytes_read;
        sum.reads += reads;
        sum.reads_waited += reads_waited;
        add_time(&mut sum.read_time, read_time);
        add_time(&mut sum.write_time, write_time);
        self.steps.resize(times.len().max(self.steps.len()), StepTime::default());
        for (sum, time) in self.steps.iter_mut().zip(times) {
            add_time(sum, std::mem::take(time));
        }
    }
}

fn add_time(sum: &mut StepTime, time: StepTime) {
    sum.nanos = sum.nanos.wrapping_add(time.nanos);
    sum.samples += time.samples;
}

/// Where the time of a run went.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Stats {
    /// Batches delivered.
    pub batches: u64,
    /// Samples delivered.
    pub samples: u64,
    /// Samples prepared, delivered or not yet.
    pub prepared: u64,
    /// Bad samples left out.
    pub skipped: u64,
    /// Epochs that were delivered to their end.
    pub epochs: u64,
    /// Bytes delivered.
    pub bytes_delivered: u64,
    /// Bytes read from storage.
    pub bytes_read: u64,
    /// Reads, and how many of them had to wait for storage.
    pub reads: u64,
    /// Reads that had to wait for storage.
    pub reads_waited: u64,
    /// Seconds since the start of the run.
    pub seconds: f64,
    /// Seconds the consumer waited for a batch.
    pub waited_seconds: f64,
    /// Share of the run's time that the consumer waited.
    pub waited_share: f64,
    /// Seconds of work on all threads.
    pub busy_seconds: f64,
    /// Seconds in which threads had nothing to do.
    pub idle_seconds: f64,
    /// Batches that are ready to be taken now.
    pub ready: usize,
    /// Batches that are being prepared now.
    pub open: usize,
    /// Threads that prepare samples.
    pub threads: usize,
    /// What the tuner has chosen by now.
    pub tuned: Tuned,
    /// Bytes in flight.
    pub memory_used: usize,
    /// Time of each step, source first.
    pub steps: Vec<StepStats>,
    /// What is kept from one epoch to the next, if anything is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheStats>,
}

/// What the tuner has chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tuned {
    /// Threads that work; the others rest.
    pub threads: usize,
    /// Batches prepared ahead.
    pub ahead: usize,
    /// Reads that wait for storage at once.
    pub reads: usize,
}

/// Time of one step.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StepStats {
    /// The step's name; `read` and `write` stand for fetching bytes and filling the batch.
    pub name: String,
    /// Microseconds a sample.
    pub micros_per_sample: f64,
    /// Share of all time spent on samples.
    pub share: f64,
    /// Samples this was measured on.
    pub timed: u64,
}

/// Builds the table of steps from their times.
pub(crate) fn step_table(names: &[&str], counters: &Counters) -> Vec<StepStats> {
    let mut rows = vec![("read", counters.tally.read_time)];
    let times = counters.steps.iter().copied().chain(std::iter::repeat(StepTime::default()));
    rows.extend(names.iter().copied().zip(times));
    let write = counters.tally.write_time;
    rows.push(("write", write));
    let micros = |time: StepTime| {
        let nanos = (time.nanos as i64).max(0) as f64;
        if time.samples == 0 { 0.0 } else { nanos / time.samples as f64 / 1000.0 }
    };
    let total: f64 = rows.iter().map(|(_, time)| micros(*time)).sum();
    rows.into_iter()
        .filter(|(name, time)| time.samples > 0 || *name != "read")
        .map(|(name, time)| StepStats {
            name: name.to_owned(),
            micros_per_sample: micros(time),
            share: if total > 0.0 { micros(time) / total } else { 0.0 },
            timed: time.samples,
        })
        .collect()
}
