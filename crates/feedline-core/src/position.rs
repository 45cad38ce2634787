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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// Runs of places in rising order as a flat list: where the first starts, its length, the gap to
/// the next, its length, and so on. Short enough for hundreds of them in a state.
mod gaps {
    use super::Span;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(
        spans: &[Span],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let mut flat = Vec::with_capacity(spans.len() * 2);
        let mut end = 0;
        for span in spans {
            flat.extend([span.start.saturating_sub(end), span.length()]);
            end = span.end;
        }
        flat.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Span>, D::Error> {
        let flat = Vec::<u64>::deserialize(from)?;
        let (mut spans, mut end) = (Vec::new(), 0u64);
        for pair in flat.chunks(2) {
            let span = match pair {
                [gap, length] => end
                    .checked_add(*gap)
                    .and_then(|start| start.checked_add(*length).map(|end| Span { start, end })),
                _ => None,
            };
            let span = span.ok_or_else(|| D::Error::custom("left_over is damaged"))?;
            end = span.end;
            spans.push(span);
        }
        Ok(spans)
    }
}

/// Where the ranks of a run stand in an epoch.
///
/// What is left of the epoch is cut into stretches of one batch each: first the `left_over` spans,
/// then everything from `tail` on. Rank r of W takes every W-th of them. A counted plan
/// (one output per place) has nothing left over and all ranks at one `tail`; an uncounted plan,
/// resumed on another number of ranks, may have some.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The epoch, from 0.
    pub epoch: u64,
    /// Unfinished stretches of an earlier number of ranks.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "gaps")]
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

    /// Number of stretches that the left-over spans are cut into.
    #[must_use]
    pub fn old_stretches(&self, size: u64) -> u64 {
        self.left_over.iter().map(|span| span.length().div_ceil(size)).sum()
    }

    /// The places of stretch `number`, for stretches of `size` places out of `length`.
    #[must_use]
    pub fn stretch(&self, number: u64, size: u64, length: u64) -> Span {
        let mut number = number;
        for span in &self.left_over {
            let count = span.length().div_ceil(size);
            if number < count {
                let start = span.start + number * size;
                return Span { start, end: start.saturating_add(size).min(span.end) };
            }
            number -= count;
        }
        let start = self.tail.saturating_add(number.saturating_mul(size)).min(length);
        Span { start, end: start.saturating_add(size).min(length) }
    }

    /// Number of stretches left at the start of this position.
    #[must_use]
    pub fn stretches(&self, size: u64, length: u64) -> u64 {
        self.old_stretches(size) + length.saturating_sub(self.tail).div_ceil(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_cover_what_is_left() {
        let left_over = vec![Span { start: 3, end: 5 }, Span { start: 6, end: 11 }];
        let position = Position { left_over, tail: 12, ..Position::epoch(0) };
        assert_eq!(position.stretches(4, 21), 6);
        let spans: Vec<_> = (0..7).map(|number| position.stretch(number, 4, 21)).collect();
        let expected = [(3, 5), (6, 10), (10, 11), (12, 16), (16, 20), (20, 21), (21, 21)];
        assert_eq!(spans, expected.map(|(start, end)| Span { start, end }));
    }
}
