//! Dealing: which places a rank's next group holds, by arithmetic.

use feedline_core::{Length, Position};
use feedline_ops::Pipeline;

/// How many steps a rank has left in an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steps {
    /// Exactly so many.
    Exactly(u64),
    /// Between these two, since bad samples may be left out.
    Between(u64, u64),
    /// It goes on for ever.
    Endless,
}

/// The stretch after the last one that rank's epoch holds.
pub(crate) fn end_stretch(pipeline: &Pipeline, position: &Position, world: u64) -> u64 {
    let size = pipeline.stretch() as u64;
    let length = pipeline.length().places();
    let all = position.stretches(size, length);
    match &pipeline.batch {
        // Whole rounds only: every rank has as many steps as every other.
        Some(batch) if pipeline.is_counted() && (batch.drop_last || batch.pad) => {
            let left = length.saturating_sub(position.tail);
            let round = size.saturating_mul(world);
            let rounds = if batch.pad { left.div_ceil(round) } else { left / round };
            rounds.saturating_mul(world)
        }
        _ => all,
    }
}

/// How many steps rank `rank` of `world` has left from `position` to the end of its epoch.
#[must_use]
pub fn steps_left(pipeline: &Pipeline, position: &Position, rank: u64, world: u64) -> Steps {
    if pipeline.length() == Length::Infinite {
        return Steps::Endless;
    }
    let world = world.max(1);
    let first = position.at.map_or(rank, |(stretch, _)| stretch);
    let end = end_stretch(pipeline, position, world);
    let groups = end.saturating_sub(first).div_ceil(world);
    if pipeline.is_counted() {
        return Steps::Exactly(groups);
    }
    let size = pipeline.stretch() as u64;
    let drops = pipeline.batch.as_ref().is_some_and(|batch| batch.drop_last);
    let length = pipeline.length().places();
    let old = position.old_stretches(size);
    let mut places: u64 = 0;
    for number in (first..end.min(old)).step_by(world as usize) {
        places += position.stretch(number, size, length).length();
    }
    // The first of this rank's stretches behind the left-over ones; all are full but the last.
    let next = first + old.saturating_sub(first).div_ceil(world) * world;
    if next < end {
        let count = (end - next).div_ceil(world);
        let last = position.stretch(next + (count - 1) * world, size, length);
        places += (count - 1) * size + last.length();
    }
    if let Some((stretch, place)) = position.at {
        let span = position.stretch(stretch, size, length);
        places = places.saturating_sub(place.clamp(span.start, span.end) - span.start);
    }
    let most = if drops { places / size } else { places.div_ceil(size) };
    Steps::Between(0, most)
}
