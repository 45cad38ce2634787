//! Arranging by length: finished rows of a stretch become rounds of batches, and of each round this
//! rank's batch is stacked.
//!
//! ```text
//!  rows, in order ──► classes of the stretch ──► rounds ──► this rank's part ──► batch
//! ```
//!
//! A position names the stretch of the last batch and how many of it were delivered, so it depends
//! on what was delivered alone, and resuming makes that stretch again.

use crate::{Options, Steps};
use feedline_core::{BadRow, Batch, Error, Pool, Position, Result};
use feedline_ops::Pipeline;
use feedline_ops::batch::{BucketRun, Buckets, Finished, Room, Round, stack};
use std::collections::VecDeque;

/// What comes out, in order.
enum Out {
    /// A round of the stretch with this number; bad samples that were counted before that stretch.
    Round { stretch: u64, round: Round<Finished>, skipped: u64 },
    /// A bad row, where someone else counts them.
    Bad(BadRow),
    /// What ends the run.
    Failed(Error),
}

/// What a stretch gives, one at a time.
pub(crate) enum Piece {
    Batch(Batch),
    Bad(BadRow),
}

/// Sorts rows by their lengths.
pub(crate) struct ByLength {
    buckets: Buckets,
    /// The stretch that is being sorted, and the bad samples that were counted before it.
    run: Option<(u64, BucketRun<Finished>, u64)>,
    out: VecDeque<Out>,
    failed: bool,
    /// Whether the batches of all ranks are given, and those of the round that are left.
    every_rank: bool,
    parts: VecDeque<(Vec<Finished>, Room)>,
    /// The stretch of the last batch, and how many of its batches were delivered since the start.
    last: Option<(u64, u64)>,
}

impl ByLength {
    pub(crate) fn new(buckets: &Buckets) -> Self {
        let (out, parts, buckets) = (VecDeque::new(), VecDeque::new(), buckets.clone());
        Self { buckets, run: None, out, failed: false, every_rank: false, parts, last: None }
    }

    /// From here on gives the batches of all ranks, one after the other.
    pub(crate) fn give_every_rank(&mut self) {
        self.every_rank = true;
    }

    /// Takes a row of a stretch. `skipped` is how many bad ones were counted before it.
    pub(crate) fn row(
        &mut self,
        start: &Position,
        options: &Options,
        (number, skipped): (u64, u64),
        row: Option<Finished>,
    ) {
        let stretch = number / self.buckets.stretch as u64;
        if self.run.as_ref().is_some_and(|(known, ..)| *known != stretch) {
            self.finish();
        }
        let Self { buckets, run, out, .. } = self;
        let (_, run, skipped) = run.get_or_insert_with(|| {
            let done = start.at.filter(|at| at.0 == stretch).map_or(0, |at| at.1);
            let world = ranks_of_rounds(options);
            (stretch, BucketRun::new(buckets, start.begun(stretch), world, done), skipped)
        });
        let Some(row) = row else { return };
        let length = Buckets::length(&row.1[buckets.field].1);
        let mut rounds = VecDeque::new();
        run.push(length, row, &mut rounds);
        let skipped = *skipped;
        out.extend(rounds.into_iter().map(|round| Out::Round { stretch, round, skipped }));
    }

    /// Notes that all rows up to this one were taken.
    pub(crate) fn taken(&mut self, number: u64) {
        if (number + 1).is_multiple_of(self.buckets.stretch as u64) {
            self.finish();
        }
    }

    /// Notes a bad row that someone else counts.
    pub(crate) fn bad(&mut self, number: u64, error: Error) {
        let row = (number % self.buckets.stretch as u64) as usize;
        self.out.push_back(Out::Bad((row, error)));
    }

    /// Ends with an error, after what came before it. Later rows are not looked at.
    pub(crate) fn fail(&mut self, error: Error) {
        self.failed = true;
        self.out.push_back(Out::Failed(error));
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Ends the stretch.
    pub(crate) fn finish(&mut self) {
        let Some((stretch, run, skipped)) = self.run.take() else { return };
        if self.failed {
            return;
        }
        let mut rounds = VecDeque::new();
        run.finish(&mut rounds);
        self.out.extend(rounds.into_iter().map(|round| Out::Round { stretch, round, skipped }));
    }

    /// What comes next, if it is there, and the bad samples that were counted before its stretch.
    pub(crate) fn next(
        &mut self,
        pipeline: &Pipeline,
        options: &Options,
        pool: &Pool,
    ) -> Result<Option<(Piece, u64)>> {
        let make = |rows: &[Finished], room| stack(pipeline, rows, room, options.with_index, pool);
        if let Some((rows, room)) = self.parts.pop_front() {
            return Ok(Some((Piece::Batch(make(&rows, room)?), 0)));
        }
        let (stretch, round, skipped) = match self.out.pop_front() {
            None => return Ok(None),
            Some(Out::Round { stretch, round, skipped }) => (stretch, round, skipped),
            Some(Out::Bad(row)) => return Ok(Some((Piece::Bad(row), 0))),
            Some(Out::Failed(error)) => return Err(error),
        };
        let room = self.buckets.room(&round);
        let rows = match (self.every_rank, options.rounds) {
            (true, _) => {
                self.parts.extend(round.parts().map(|rows| (rows, room)));
                self.parts.pop_front().map_or(Vec::new(), |(rows, _)| rows)
            }
            (false, true) => round.part(options.rank),
            (false, false) => round.rows,
        };
        let batch = make(&rows, room)?;
        self.delivered(stretch);
        Ok(Some((Piece::Batch(batch), skipped)))
    }

    /// Notes that one more batch of a stretch was delivered.
    pub(crate) fn delivered(&mut self, stretch: u64) {
        let before = self.last.filter(|last| last.0 == stretch).map_or(0, |last| last.1);
        self.last = Some((stretch, before + 1));
    }

    /// Where a run stands that began at `start`.
    pub(crate) fn position(&self, start: &Position, options: &Options) -> Position {
        let before = |stretch: u64| start.at.filter(|at| at.0 == stretch).map_or(0, |at| at.1);
        if !options.rounds {
            // What was begun in rounds goes on without: from here on ranks stand where they are.
            let first = (!start.begun.is_empty()).then_some((options.rank, 0));
            let last = self.last.map(|(stretch, done)| (stretch, done + before(stretch)));
            return Position { at: last.or(start.at).or(first), ..start.clone() };
        }
        // In rounds all ranks stand at the same place.
        let Some((stretch, done)) = self.last else { return start.clone() };
        let places = stretch.saturating_mul(self.buckets.stretch as u64);
        let mut position = Position { at: None, ..start.after(places) };
        let gone = (stretch as usize).min(position.begun.len());
        position.begun.drain(..gone);
        if position.begun.is_empty() {
            position.begun.push(Vec::new());
        }
        add_begun(&mut position.begun[0], (options.world, done + before(stretch)));
        position
    }
}

/// How many ranks take their batches in rounds; 0 if there are no rounds.
pub(crate) fn ranks_of_rounds(options: &Options) -> u64 {
    if options.rounds { options.world } else { 0 }
}

/// Adds what one more run has delivered of a stretch.
pub(crate) fn add_begun(begun: &mut Vec<(u64, u64)>, (world, done): (u64, u64)) {
    match begun.last_mut() {
        Some((known, before)) if *known == world => *before = before.saturating_add(done),
        _ if done > 0 => begun.push((world, done)),
        _ => {}
    }
}

/// How many steps are left from a position on to the end of its epoch.
pub(crate) fn steps_between(
    pipeline: &Pipeline,
    buckets: &Buckets,
    position: &Position,
    (rank, world): (u64, u64),
    rounds: bool,
) -> Steps {
    let (size, length) = (buckets.stretch as u64, pipeline.length().places());
    let (first, stride, ranks) = if rounds { (0, 1, world) } else { (rank, world, 0) };
    let (first, done) = position.at.unwrap_or((first, 0));
    let all = position.left(length).div_ceil(size);
    let count = all.saturating_sub(first).div_ceil(stride);
    if count == 0 {
        return Steps::Between(0, 0);
    }
    // Stretches that were begun are looked at one by one; all others are full but the last of all.
    let looked_at = count.min(position.begun.len() as u64 + 1);
    let (mut least, mut most) = (0u64, 0u64);
    let mut add = |samples: u64, times: u64, done: u64, begun: &[(u64, u64)]| {
        let (low, high) = buckets.bounds(samples, ranks);
        let done = match begun {
            [] => Some(done),
            [(world, before)] if *world == ranks => Some(before.saturating_add(done)),
            _ => None,
        };
        let low = done.map_or(0, |done| low.saturating_sub(done));
        least = least.saturating_add(low.saturating_mul(times));
        let high = high.saturating_sub(done.unwrap_or(0));
        most = most.saturating_add(high.saturating_mul(times));
    };
    for number in 0..looked_at {
        let stretch = first + number * stride;
        let samples = position.stretch(stretch, size, length).length();
        add(samples, 1, if number == 0 { done } else { 0 }, position.begun(stretch));
    }
    if looked_at < count {
        let last = position.stretch(first + (count - 1) * stride, size, length).length();
        add(size, count - looked_at - 1, 0, &[]);
        add(last, 1, 0, &[]);
    }
    let skips = pipeline.leaves_out();
    Steps::Between(if skips { 0 } else { least }, most)
}
