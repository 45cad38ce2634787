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

/// A list of truth values as text: six to a letter, so that 4,096 of them fit 700 letters.
mod letters {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

    pub(super) fn serialize<S: Serializer>(bits: &[bool], to: S) -> Result<S::Ok, S::Error> {
        let letter = |six: &[bool]| {
            let number = six.iter().rev().fold(0, |number, bit| number << 1 | usize::from(*bit));
            char::from(ALPHABET[number])
        };
        to.serialize_str(&bits.chunks(6).map(letter).collect::<String>())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<bool>, D::Error> {
        let text = String::deserialize(from)?;
        let mut bits = Vec::with_capacity(text.len() * 6);
        for letter in text.bytes() {
            let number = ALPHABET.iter().position(|known| *known == letter);
            let number = number.ok_or_else(|| D::Error::custom("taken is damaged"))?;
            bits.extend((0..6).map(|bit| number >> bit & 1 == 1));
        }
        // What follows the last row that was taken says nothing.
        bits.truncate(bits.iter().rposition(|bit| *bit).map_or(0, |last| last + 1));
        Ok(bits)
    }
}

/// Where a rank of a run stands in an epoch.
///
/// What was left of the epoch when the run started is a list of places: those of the `left_over`
/// spans, then everything from `tail` on. It is cut into stretches of one batch each, and rank r of
/// W takes every W-th of them. The rows of its stretches, one after another, are the rank's rows.
///
/// Where samples are sorted by their lengths, a stretch gives several batches, and `at` names the
/// stretch of the rank's last batch and how many of its batches this run has delivered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The epoch, from 0.
    pub epoch: u64,
    /// What an earlier run left of the places before `tail`.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "gaps")]
    pub left_over: Vec<Span>,
    /// The first place from which on nothing was delivered when this run started.
    pub tail: u64,
    /// The stretch of the rank's first row that was not delivered, and the row's number in it;
    /// absent at the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<(u64, u64)>,
    /// Bad records skipped so far in this epoch.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub skipped: u64,
    /// Batches delivered so far, where batches take what is ready.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub batches: u64,
    /// Which of the rank's rows from `at` on were delivered out of turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "letters")]
    pub taken: Vec<bool>,
    /// What earlier runs delivered of each of the first stretches, where a stretch gives several
    /// batches: how many ranks took their batches in rounds (0 if there were no rounds), and how
    /// many rounds, or batches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub begun: Vec<Vec<(u64, u64)>>,
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

    /// Where this run stood when it started: what it has delivered since is forgotten.
    #[must_use]
    pub fn beginning(&self) -> Self {
        let Self { epoch, left_over, tail, begun, .. } = self.clone();
        Self { epoch, left_over, tail, begun, ..Self::default() }
    }

    /// What earlier runs have delivered of stretch `number`.
    #[must_use]
    pub fn begun(&self, number: u64) -> &[(u64, u64)] {
        usize::try_from(number).ok().and_then(|at| self.begun.get(at)).map_or(&[], |all| all)
    }

    /// How many places were left when this run started, of an epoch of `length`.
    #[must_use]
    pub fn left(&self, length: u64) -> u64 {
        let old: u64 = self.left_over.iter().map(|span| span.length()).sum();
        old.saturating_add(length.saturating_sub(self.tail))
    }

    /// The numbers, in the list of places left, of stretch `number`.
    #[must_use]
    pub fn stretch(&self, number: u64, size: u64, length: u64) -> Span {
        let left = self.left(length);
        let start = number.saturating_mul(size).min(left);
        Span { start, end: start.saturating_add(size).min(left) }
    }

    /// The places that bear these numbers in the list of places left, as spans.
    #[must_use]
    pub fn spans(&self, numbers: Span) -> Vec<Span> {
        let mut spans = Vec::new();
        let Span { mut start, mut end } = numbers;
        for old in &self.left_over {
            let length = old.length();
            if start < length && start < end {
                let end = end.min(length);
                spans.push(Span { start: old.start + start, end: old.start + end });
            }
            (start, end) = (start.saturating_sub(length), end.saturating_sub(length));
        }
        if start < end {
            let place = |number: u64| self.tail.saturating_add(number);
            spans.push(Span { start: place(start), end: place(end) });
        }
        spans
    }

    /// The number of a place in the list of places left, if it is in it.
    #[must_use]
    pub fn number(&self, place: u64) -> Option<u64> {
        let mut before = 0;
        for old in &self.left_over {
            if (old.start..old.end).contains(&place) {
                return Some(before + place - old.start);
            }
            before += old.length();
        }
        place.checked_sub(self.tail).map(|more| before + more)
    }

    /// The places of stretch `number`.
    #[must_use]
    pub fn places(&self, number: u64, size: u64, length: u64) -> Vec<u64> {
        let numbers = self.stretch(number, size, length);
        self.spans(numbers).into_iter().flat_map(|span| span.start..span.end).collect()
    }

    /// The same run with the first `count` places of its list delivered, by all ranks together.
    #[must_use]
    pub fn after(&self, count: u64) -> Self {
        let old: u64 = self.left_over.iter().map(|span| span.length()).sum();
        let left_over =
            if count < old { self.spans(Span { start: count, end: old }) } else { Vec::new() };
        let tail = self.tail.saturating_add(count.saturating_sub(old));
        Self { left_over, tail, ..self.clone() }
    }

    /// Stretch and number in it of the rank's row that comes `count` rows after where it stands.
    #[must_use]
    pub fn row(&self, count: u64, size: u64, rank: u64, world: u64) -> (u64, u64) {
        let (stretch, row) = self.at.unwrap_or((rank, 0));
        let row = row.saturating_add(count);
        (stretch.saturating_add(world.saturating_mul(row / size)), row % size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resumed() -> Position {
        let left_over = vec![Span { start: 3, end: 5 }, Span { start: 6, end: 11 }];
        Position { left_over, tail: 12, ..Position::epoch(0) }
    }

    #[test]
    fn stretches_cover_what_is_left() {
        let position = resumed();
        assert_eq!(position.left(21), 16);
        let places: Vec<_> = (0..5).map(|number| position.places(number, 4, 21)).collect();
        let wanted: [&[u64]; 5] =
            [&[3, 4, 6, 7], &[8, 9, 10, 12], &[13, 14, 15, 16], &[17, 18, 19, 20], &[]];
        assert_eq!(places, wanted);
    }

    #[test]
    fn what_is_delivered_is_taken_off_the_front() {
        let position = resumed();
        let all = |position: &Position| position.places(0, 100, 21);
        for (number, place) in all(&position).into_iter().enumerate() {
            assert_eq!(position.number(place), Some(number as u64));
        }
        assert_eq!((position.number(5), position.number(11)), (None, None));
        for count in 0..=16 {
            assert_eq!(all(&position.after(count)), all(&position)[count as usize..], "{count}");
        }
    }

    #[test]
    fn rows_of_a_rank_run_through_its_stretches() {
        let position = Position { at: Some((4, 1)), ..Position::epoch(0) };
        let rows: Vec<_> = (0..5).map(|count| position.row(count, 3, 1, 3)).collect();
        assert_eq!(rows, [(4, 1), (4, 2), (7, 0), (7, 1), (7, 2)]);
        assert_eq!(Position::epoch(0).row(0, 3, 1, 3), (1, 0));
    }

    #[test]
    fn a_position_survives_its_text() {
        let mut taken: Vec<bool> = (0..4096).map(|row| row % 3 == 1 || row % 7 == 2).collect();
        for length in [1, 5, 6, 7, 100, 4096] {
            taken.truncate(4096);
            let mut taken = taken[..length].to_vec();
            taken[length - 1] = true;
            let position = Position { taken, batches: 3, ..resumed() };
            let text = serde_json::to_string(&position).unwrap();
            assert!(text.len() < 800, "{text}");
            assert_eq!(serde_json::from_str::<Position>(&text).unwrap(), position);
        }
    }
}
