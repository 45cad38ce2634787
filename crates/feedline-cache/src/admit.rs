//! Which samples are kept, if there is no room for all.
//!
//! Each sample is used once an epoch, so it does not matter when one was last used, and none is ever
//! given up for another. What matters is that those that are kept lie anywhere in the epoch, so that
//! storage has the same work at all times:
//!
//! - where samples come in another order every epoch, the first to come are any;
//! - where they come in the same order, every n-th or so, however large the share that there is room for;
//! - by cost, those that save most time for each byte, as far as is known by then.

use feedline_core::Cost;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// After so many samples in a row that found no room, no more are looked at.
const PATIENCE: u32 = 64;
/// Costs are known well enough to choose by after so many samples.
const ENOUGH: u64 = 16;
/// While an epoch is seen for the first time, room is left for better ones to come.
const FIRST_EPOCH: f64 = 0.7;
/// Costs of so many samples are remembered one by one.
const REMEMBERED: usize = 1 << 22;

/// By what samples are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The first to come.
    First,
    /// Some of all neighbours.
    Even,
    /// Those that save most.
    Cost,
}

/// Decides which samples are kept.
#[derive(Debug)]
pub(crate) struct Gate {
    choice: Choice,
    /// Samples in the source, and bytes that there is room for.
    samples: u64,
    capacity: u64,
    /// Samples that were looked for, and whether nothing more is kept: asked for every sample.
    looked: AtomicU64,
    closed: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Samples that were shown, their bytes, and the smallest of them.
    shown: u64,
    bytes: u64,
    smallest: u64,
    /// Bytes that were admitted.
    admitted: u64,
    refused_in_a_row: u32,
    /// By how much more are admitted than there was room for by the first guess.
    relaxed: f64,
    /// What samples took so far: nanoseconds of work and of waiting.
    work: u128,
    wait: u128,
    /// By index: what was seen, once each.
    known: HashMap<u64, Seen>,
    /// From which saving on samples are admitted, how many were known when that was found, whether these
    /// were all, and whether work is what is saved, or reading.
    threshold: f64,
    known_then: usize,
    settled: bool,
    by_work: bool,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    bytes: u64,
    cost: Cost,
}

impl Gate {
    pub(crate) fn new(choice: Choice, samples: u64, capacity: u64) -> Self {
        let state = State { smallest: u64::MAX, relaxed: 1.0, ..State::default() };
        let (looked, closed) = (AtomicU64::new(0), AtomicBool::new(false));
        let state = Mutex::new(state);
        Self { choice, samples: samples.max(1), capacity, looked, closed, state }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a sample was looked for.
    pub(crate) fn looked(&self) {
        let looked = self.looked.fetch_add(1, Ordering::Relaxed) + 1;
        if !looked.is_multiple_of(self.samples) {
            return;
        }
        let mut state = self.lock();
        if state.admitted > 0 {
            // An epoch is over: where room is left, the share was guessed too small.
            let left = self.capacity as f64 / state.admitted as f64;
            if left > 1.01 {
                state.relaxed = (state.relaxed * left).min(1e6);
            }
        }
    }

    /// Whether a sample should be made whole and shown.
    pub(crate) fn wants(&self, index: u64) -> bool {
        if self.is_closed() {
            return false;
        }
        let mut state = self.lock();
        match self.choice {
            Choice::First => true,
            Choice::Even => state.shown < ENOUGH || turn(index) < self.share(&state),
            Choice::Cost => match state.known.get(&index).copied() {
                None => true,
                Some(seen) => {
                    let threshold = self.threshold(&mut state);
                    state.saving(seen) >= threshold
                }
            },
        }
    }

    /// Whether a sample that was made is to be kept.
    pub(crate) fn admits(&self, index: u64, bytes: u64, cost: Cost) -> bool {
        let mut state = self.lock();
        let bytes = bytes.max(1);
        state.shown += 1;
        state.bytes += bytes;
        state.smallest = state.smallest.min(bytes);
        match self.choice {
            Choice::First => true,
            Choice::Even => turn(index) < self.share(&state),
            Choice::Cost => {
                let mut seen = Seen { bytes, cost };
                match state.known.get(&index) {
                    // What was found out first stays, so that a sample is judged alike each time.
                    Some(known) => seen = *known,
                    None if state.known.len() < REMEMBERED => {
                        state.known.insert(index, seen);
                        state.work += u128::from(cost.work);
                        state.wait += u128::from(cost.wait);
                    }
                    None => {}
                }
                if (state.known.len() as u64) < ENOUGH.min(self.samples) {
                    return false;
                }
                let threshold = self.threshold(&mut state);
                state.saving(seen) >= threshold
            }
        }
    }

    /// Notes that a sample of so many bytes was kept.
    pub(crate) fn kept(&self, bytes: u64) {
        let mut state = self.lock();
        state.admitted += bytes;
        state.refused_in_a_row = 0;
    }

    /// Notes that there was no room for a sample, and how much there is.
    pub(crate) fn refused(&self, room: u64) {
        let mut state = self.lock();
        state.refused_in_a_row += 1;
        if room < state.smallest || state.refused_in_a_row >= PATIENCE {
            self.closed.store(true, Ordering::Relaxed);
        }
    }

    /// Whether nothing more is kept.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// The share of all samples that there is room for, by what was seen of them.
    fn share(&self, state: &State) -> f64 {
        if state.shown == 0 {
            return 1.0;
        }
        let all = state.bytes as f64 / state.shown as f64 * self.samples as f64;
        self.capacity as f64 / all * state.relaxed
    }

    /// From which saving on samples are admitted: so that those above fill the room.
    fn threshold(&self, state: &mut State) -> f64 {
        let known = state.known.len();
        // Finding it takes a look at all: again whenever an eighth more is known, and when all are.
        let all = known as u64 >= self.samples;
        let more = known - state.known_then > state.known_then / 8;
        if !state.settled && (more || all || state.known_then == 0) {
            state.by_work = state.work >= state.wait;
            let mut seen: Vec<(f64, u64)> =
                state.known.values().map(|seen| (state.saving(*seen), seen.bytes)).collect();
            seen.sort_by(|a, b| b.0.total_cmp(&a.0));
            let share = if all { 1.0 } else { known as f64 / self.samples as f64 * FIRST_EPOCH };
            let (mut room, mut threshold) = (self.capacity as f64 * share, f64::INFINITY);
            for (saving, bytes) in seen {
                room -= bytes as f64;
                if room < 0.0 {
                    break;
                }
                threshold = saving;
            }
            (state.threshold, state.known_then, state.settled) = (threshold, known, all);
        }
        state.threshold
    }
}

impl State {
    /// What keeping a sample saves for each byte: work if that is what takes time, else reading.
    fn saving(&self, seen: Seen) -> f64 {
        let saved = if self.by_work { seen.cost.work } else { seen.cost.bytes };
        saved as f64 / seen.bytes as f64
    }
}

/// A number from 0 to 1 that a sample always has. Those of neighbours lie as far apart as can be, so that of
/// each stretch of samples the same share lies below any number.
fn turn(index: u64) -> f64 {
    // Multiples of the golden ratio, of which only what is behind the point counts.
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    index.wrapping_mul(GOLDEN) as f64 / u64::MAX as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows all samples of an epoch, and gives those that were kept.
    fn epoch(
        gate: &Gate,
        order: impl Iterator<Item = u64>,
        sample: impl Fn(u64) -> (u64, Cost),
        kept: &mut Vec<u64>,
    ) {
        for index in order {
            gate.looked();
            if kept.contains(&index) || !gate.wants(index) {
                continue;
            }
            let (bytes, cost) = sample(index);
            if !gate.admits(index, bytes, cost) {
                continue;
            }
            let used: u64 = kept.iter().map(|index| sample(*index).0).sum();
            if used + bytes <= gate.capacity {
                kept.push(index);
                gate.kept(bytes);
            } else {
                gate.refused(gate.capacity - used);
            }
        }
    }

    #[test]
    fn the_first_to_come_fill_the_room() {
        let gate = Gate::new(Choice::First, 1000, 35_000);
        let mut kept = Vec::new();
        epoch(&gate, 0..1000, |_| (100, Cost::default()), &mut kept);
        assert_eq!(kept, (0..350).collect::<Vec<_>>());
        assert!(gate.is_closed());
    }

    #[test]
    fn in_a_fixed_order_those_kept_lie_everywhere() {
        let gate = Gate::new(Choice::Even, 10_000, 350_000);
        let size = |index| (50 + index * 7919 % 101, Cost::default());
        let mut kept = Vec::new();
        for _ in 0..3 {
            epoch(&gate, 0..10_000, size, &mut kept);
        }
        let bytes: u64 = kept.iter().map(|index| size(*index).0).sum();
        assert!((345_000..=350_000).contains(&bytes), "{bytes}");
        for tenth in 0..10u64 {
            let inside = kept.iter().filter(|index| **index / 1000 == tenth).count();
            assert!((340..=360).contains(&inside), "tenth {tenth} has {inside} of {}", kept.len());
        }
    }

    #[test]
    fn by_cost_those_that_save_most_are_kept() {
        // A third of the samples take ten times as long as others of their size.
        let sample = |index: u64| {
            let work = if index.is_multiple_of(3) { 10_000 } else { 1_000 };
            (100, Cost { work, wait: 0, bytes: 100 })
        };
        let gate = Gate::new(Choice::Cost, 900, 30_000);
        let mut kept = Vec::new();
        for round in 0..3 {
            epoch(&gate, (0..900).map(|at| (at * 7 + round * 13) % 900), sample, &mut kept);
        }
        let costly = kept.iter().filter(|index| index.is_multiple_of(3)).count();
        assert!(kept.len() >= 297, "{} of 300", kept.len());
        assert!(costly * 100 >= kept.len() * 95, "{costly} of {}", kept.len());
    }

    #[test]
    fn by_cost_the_room_is_filled_once_all_are_known_however_few_there_are() {
        for samples in [5, 17, 42, 43, 100] {
            let sample = |index: u64| (1000, Cost { work: 1000 + index * 10, wait: 0, bytes: 1 });
            let gate = Gate::new(Choice::Cost, samples, samples * 1000 / 2);
            let mut kept = Vec::new();
            for _ in 0..3 {
                epoch(&gate, 0..samples, sample, &mut kept);
            }
            let room = samples as usize / 2;
            assert!(kept.len() + 1 >= room, "{} of {room} of {samples}", kept.len());
        }
    }

    #[test]
    fn where_only_reading_takes_time_cost_is_what_is_read() {
        // Equal for each byte: any will do, and the room is filled.
        let sample = |index: u64| {
            let bytes = 50 + index * 7919 % 101;
            (bytes, Cost { work: 10, wait: 1_000 + index, bytes })
        };
        let gate = Gate::new(Choice::Cost, 1000, 40_000);
        let mut kept = Vec::new();
        for _ in 0..3 {
            epoch(&gate, 0..1000, sample, &mut kept);
        }
        let bytes: u64 = kept.iter().map(|index| sample(*index).0).sum();
        assert!(bytes > 39_000, "{bytes}");
    }
}
