//! Where a run stands: a few integers, from which everything else follows by arithmetic.

use serde::{Deserialize, Serialize};

/// How many places an order has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// So many.
    Finite(u64),
    /// It goes round for ever.
    Infinite,
}

impl Length {
    /// The number of places, if there is an end.
    #[must_use]
    pub fn finite(self) -> Option<u64> {
        match self {
            Self::Finite(length) => Some(length),
            Self::Infinite => None,
        }
    }

    /// The number of places, with "for ever" as more than anyone can reach.
    #[must_use]
    pub fn places(self) -> u64 {
        self.finite().unwrap_or(u64::MAX / 4)
    }
}

/// What the order says of one place: which sample, and for which time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The sample's index in the source.
    pub index: u64,
    /// Tells apart several visits to one index in one epoch.
    pub visit: u64,
}

/// A run of places, `start` included and `end` not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u64, u64)", into = "(u64, u64)")]
pub struct Span {
    /// First place.
    pub start: u64,
    /// The place after the last.
    pub end: u64,
}

impl Span {
    /// Number of places.
    #[must_use]
    pub fn length(self) -> u64 {
        self.end.saturating_sub(self.start)
    }
}

impl From<(u64, u64)> for Span {
    fn from((start, end): (u64, u64)) -> Self {
        Self { start, end }
    }
}

impl From<Span> for (u64, u64) {
    fn from(span: Span) -> Self {
        (span.start, span.end)
    }
}

/// Where the ranks of a run stand in an epoch.
///
/// What is left of the epoch is cut into stretches: first the `left_over` spans, then, from
/// `tail` on, stretches of one batch each. Rank r of W takes every W-th of them. A counted plan
/// (one output per place) has nothing left over and all ranks at one `tail`; an uncounted plan,
/// resumed on another number of ranks, may have some.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The epoch, from 0.
    pub epoch: u64,
    /// Unfinished stretches of an earlier number of ranks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_over: Vec<Span>,
    /// First place that was not dealt when this run started.
    pub tail: u64,
    /// This rank's stretch, counted from the start of the run, and the first place in it that was
    /// not delivered; absent at the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<(u64, u64)>,
    /// Bad records skipped so far in this epoch.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub skipped: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Position {
    /// The start of an epoch.
    #[must_use]
    pub fn epoch(epoch: u64) -> Self {
        Self { epoch, ..Self::default() }
    }

    /// The places of stretch `number`, for stretches of `size` places out of `length`.
    #[must_use]
    pub fn stretch(&self, number: u64, size: u64, length: u64) -> Span {
        if let Some(span) = self.left_over.get(number as usize) {
            return *span;
        }
        let after = (number - self.left_over.len() as u64).saturating_mul(size);
        let start = self.tail.saturating_add(after).min(length);
        Span { start, end: start.saturating_add(size).min(length) }
    }

    /// Number of stretches left at the start of this position.
    #[must_use]
    pub fn stretches(&self, size: u64, length: u64) -> u64 {
        self.left_over.len() as u64 + length.saturating_sub(self.tail).div_ceil(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_cover_what_is_left() {
        let position =
            Position { left_over: vec![Span { start: 3, end: 5 }], tail: 10, ..Position::epoch(0) };
        assert_eq!(position.stretches(4, 21), 4);
        let spans: Vec<_> =
            (0..5).map(|v| position.stretch(v, 4, 21)).map(<(u64, u64)>::from).collect();
        assert_eq!(spans, [(3, 5), (10, 14), (14, 18), (18, 21), (21, 21)]);
    }
}
