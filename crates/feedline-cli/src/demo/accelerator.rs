//! An accelerator that only pretends: it takes a batch, is busy for the time of a training step, and
//! meanwhile asks for the next. How long it had to wait is what a data loader is judged by.

use crate::bench::{countdown, tell};
use crate::output::share;
use anyhow::Result;
use serde::Serialize;
use std::ops::Range;
use std::time::{Duration, Instant};

/// How a loader served the accelerator, from its first batch on.
#[derive(Debug, Serialize)]
pub(super) struct Shift {
    pub(super) images: u64,
    pub(super) seconds: f64,
    pub(super) images_per_second: f64,
    /// Share of the time in which the accelerator computed.
    pub(super) busy_share: f64,
    /// Share of the time in which it waited for data.
    pub(super) stall_share: f64,
    /// Seconds from the loader's start to its first batch, which the shares leave out.
    pub(super) first_batch_seconds: f64,
    /// The busy share in equal parts of the time, in order.
    pub(super) timeline: Vec<f64>,
}

/// Parts that the timeline is cut into.
const CELLS: usize = 60;

/// Feeds the accelerator for `length` with what `next` gives: a batch, and how many images are in it.
pub(super) fn feed<B>(
    what: &'static str,
    step: Duration,
    length: Duration,
    mut next: impl FnMut() -> Result<(B, usize)>,
) -> Result<Shift> {
    let asked = Instant::now();
    let mut batch = next()?;
    let start = Instant::now();
    let bar = countdown(what, length);
    let (mut images, mut busy) = (0, Vec::new());
    // When the accelerator is done with all that it has, counted from the start.
    let mut free = Duration::ZERO;
    loop {
        let begin = free.max(start.elapsed());
        free = begin + step;
        busy.push(begin.as_secs_f64()..free.as_secs_f64());
        images += batch.1 as u64;
        if free >= length {
            break;
        }
        // It has begun with one batch before it asks for another.
        std::thread::sleep(begin.saturating_sub(start.elapsed()));
        tell(&bar, free, || {
            let computed = step.as_secs_f64() * busy.len() as f64;
            format!("{} busy", share(computed / free.as_secs_f64()))
        });
        batch = next()?;
    }
    std::thread::sleep(free.saturating_sub(start.elapsed()));
    let seconds = free.as_secs_f64();
    let busy_share = (step.as_secs_f64() * busy.len() as f64 / seconds).min(1.0);
    Ok(Shift {
        images,
        seconds,
        images_per_second: images as f64 / seconds,
        busy_share,
        stall_share: 1.0 - busy_share,
        first_batch_seconds: (start - asked).as_secs_f64(),
        timeline: timeline(&busy, seconds, CELLS),
    })
}

/// The share of each of `cells` equal parts of the time that lies in one of the spans.
fn timeline(busy: &[Range<f64>], seconds: f64, cells: usize) -> Vec<f64> {
    let width = seconds / cells as f64;
    let covered = |cell: usize| {
        let (from, to) = (cell as f64 * width, (cell + 1) as f64 * width);
        let within = |span: &Range<f64>| (span.end.min(to) - span.start.max(from)).max(0.0);
        (busy.iter().map(within).sum::<f64>() / width).min(1.0)
    };
    (0..cells).map(covered).collect()
}

/// A bar that is full as far as the accelerator was busy.
pub(super) fn bar(share: f64, width: usize) -> (String, String) {
    let full = ((share * width as f64).round() as usize).min(width);
    ("█".repeat(full), "░".repeat(width - full))
}

/// A timeline as one line: the higher, the busier.
pub(super) fn strip(timeline: &[f64]) -> String {
    const HEIGHTS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let cell = |share: &f64| HEIGHTS[(share * 8.0).round().clamp(0.0, 8.0) as usize];
    timeline.iter().map(cell).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline_says_when_it_was_busy() {
        let line = timeline(&[0.0..1.0, 1.5..2.0], 4.0, 4);
        assert_eq!(line, [1.0, 0.5, 0.0, 0.0]);
        assert_eq!(strip(&line), "█▄  ");
        assert_eq!(bar(0.5, 4), ("██".into(), "░░".into()));
    }

    #[test]
    fn busy_is_what_its_steps_took_and_the_rest_is_waiting() {
        let (step, mut calls) = (Duration::from_millis(10), 0);
        let shift = feed("test", step, Duration::from_millis(200), || {
            calls += 1;
            std::thread::sleep(Duration::from_millis(15));
            Ok(((), 3))
        });
        let shift = shift.unwrap();
        assert_eq!(shift.images, 3 * calls);
        assert!((shift.busy_share + shift.stall_share - 1.0).abs() < 1e-9, "{shift:?}");
        let busy = (calls as f64 * step.as_secs_f64() / shift.seconds).min(1.0);
        assert!((busy - shift.busy_share).abs() < 1e-9, "{shift:?}");
    }
}
