//! What a run cost: time, CPU, memory; the same figures for `run` and `bench`.

use crate::output::{Output, Table, bytes, count, number, seconds, share};
use feedline_core::CacheStats;
use feedline_engine::{Stats, StepStats};
use serde::Serialize;

/// CPU seconds of this process so far, on all its threads, in user space and in the kernel.
pub(crate) fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The most memory this process ever held, where the system says.
pub(crate) fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

/// The figures of a run, or of the measured part of it.
#[derive(Debug, Serialize)]
pub(crate) struct Figures {
    pub(crate) epochs: u64,
    pub(crate) batches: u64,
    pub(crate) samples: u64,
    pub(crate) skipped: u64,
    pub(crate) seconds: f64,
    pub(crate) samples_per_second: f64,
    pub(crate) bytes_delivered: u64,
    pub(crate) bytes_per_second: f64,
    pub(crate) bytes_read: u64,
    pub(crate) cpu_seconds: f64,
    pub(crate) cpu_seconds_per_1000_samples: f64,
    pub(crate) first_batch_seconds: Option<f64>,
    pub(crate) waited_seconds: f64,
    pub(crate) waited_share: f64,
    pub(crate) threads: usize,
    pub(crate) threads_busy_share: f64,
    pub(crate) peak_memory_bytes: Option<u64>,
    pub(crate) steps: Vec<StepStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cache: Option<CacheStats>,
}

impl Figures {
    /// What happened between two readings of a run's counters.
    pub(crate) fn between(
        before: &Stats,
        after: &Stats,
        cpu_seconds: f64,
        first_batch_seconds: Option<f64>,
    ) -> Self {
        let seconds = after.seconds - before.seconds;
        let per_second = |amount: f64| if seconds > 0.0 { amount / seconds } else { 0.0 };
        let samples = after.samples - before.samples;
        let bytes_delivered = after.bytes_delivered - before.bytes_delivered;
        let waited_seconds = after.waited_seconds - before.waited_seconds;
        let busy = after.busy_seconds - before.busy_seconds;
        Self {
            epochs: after.epochs - before.epochs,
            batches: after.batches - before.batches,
            samples,
            skipped: after.skipped - before.skipped,
            seconds,
            samples_per_second: per_second(samples as f64),
            bytes_delivered,
            bytes_per_second: per_second(bytes_delivered as f64),
            bytes_read: after.bytes_read - before.bytes_read,
            cpu_seconds,
            cpu_seconds_per_1000_samples: cpu_seconds * 1000.0 / samples.max(1) as f64,
            first_batch_seconds,
            waited_seconds,
            waited_share: per_second(waited_seconds).min(1.0),
            threads: after.threads,
            threads_busy_share: (per_second(busy) / after.threads.max(1) as f64).min(1.0),
            peak_memory_bytes: peak_memory(),
            steps: steps_between(&before.steps, &after.steps),
            cache: after.cache.clone(),
        }
    }

    /// The figures for people: a table of the whole and one of the steps.
    pub(crate) fn render(&self, output: &Output) -> String {
        let mut table = Table::new(&["", ">", ""]);
        let mut row = |what: &str, value: String, unit: &str| {
            table.row(vec![what.into(), value, unit.into()]);
        };
        row("epochs", count(self.epochs), "ended");
        row("batches", count(self.batches), "");
        row("samples", count(self.samples), &format!("in {}", seconds(self.seconds)));
        row("throughput", number(self.samples_per_second), "samples/s");
        row(
            "delivered",
            bytes(self.bytes_delivered as f64),
            &format!("{}/s", bytes(self.bytes_per_second)),
        );
        if self.bytes_read > 0 {
            row("read", bytes(self.bytes_read as f64), "");
        }
        if let Some(cache) = &self.cache {
            let kept = cache.ram_bytes + cache.disk_bytes;
            let saved = format!(
                "of samples since the start; {} kept, {} of work and waiting saved",
                bytes(kept as f64),
                seconds(cache.seconds_saved)
            );
            row("found", share(cache.hit_rate()), &saved);
        }
        row("CPU", seconds(self.cpu_seconds_per_1000_samples), "per 1,000 samples");
        if let Some(first) = self.first_batch_seconds {
            row("first batch", seconds(first), "after the start");
        }
        row("waiting", share(self.waited_share), "of the time, the consumer waited for a batch");
        row(
            "threads",
            self.threads.to_string(),
            &format!("busy {} of the time", share(self.threads_busy_share)),
        );
        if let Some(peak) = self.peak_memory_bytes {
            row("memory", bytes(peak as f64), "at most, the whole process");
        }
        row("skipped", count(self.skipped), "bad samples");
        let mut text = table.render(output.paint);
        let mut steps = Table::new(&["step", ">µs/sample", ">share", ""]);
        for step in &self.steps {
            let bar = "█".repeat((step.share * 24.0).round() as usize);
            let cells = [step.name.clone(), number(step.micros_per_sample), share(step.share), bar];
            steps.row(cells.to_vec());
        }
        if self.steps.iter().any(|step| step.timed > 0) {
            text += &format!("\n{}", steps.render(output.paint));
        }
        text
    }
}

/// The steps' times in between: sums are taken apart and means made again.
fn steps_between(before: &[StepStats], after: &[StepStats]) -> Vec<StepStats> {
    let sum = |step: &StepStats| step.micros_per_sample * step.timed as f64;
    // A step's name may occur more than once, but the order stays.
    let mut earlier = before.iter().peekable();
    let mut steps: Vec<StepStats> = after
        .iter()
        .map(|step| {
            let old = earlier.next_if(|old| old.name == step.name);
            let timed = step.timed - old.map_or(0, |old| old.timed);
            let micros = (sum(step) - old.map_or(0.0, sum)).max(0.0);
            let micros_per_sample = if timed > 0 { micros / timed as f64 } else { 0.0 };
            StepStats { name: step.name.clone(), micros_per_sample, share: 0.0, timed }
        })
        .collect();
    let total: f64 = steps.iter().map(|step| step.micros_per_sample).sum();
    for step in &mut steps {
        step.share = if total > 0.0 { step.micros_per_sample / total } else { 0.0 };
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &str, micros_per_sample: f64, timed: u64) -> StepStats {
        StepStats { name: name.into(), micros_per_sample, share: 0.0, timed }
    }

    #[test]
    fn times_before_the_measurement_do_not_count() {
        let before = [step("decode", 100.0, 10), step("write", 1.0, 10)];
        let after = [step("decode", 60.0, 20), step("write", 10.0, 20)];
        let between = steps_between(&before, &after);
        assert_eq!(between[0].micros_per_sample, 20.0);
        assert_eq!(between[1].micros_per_sample, 19.0);
        assert!((between[0].share + between[1].share - 1.0).abs() < 1e-9);
        assert_eq!(steps_between(&[], &after)[0].micros_per_sample, 60.0);
    }

    #[test]
    fn the_process_has_used_cpu_and_memory() {
        assert!(cpu_seconds() > 0.0);
        if cfg!(target_os = "linux") {
            assert!(peak_memory().unwrap() > 1 << 20);
        }
    }
}
