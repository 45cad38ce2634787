//! A cursor: what one client's trainer has used of an epoch. Never what was fetched ahead.
//!
//! ```text
//!  windows   0 ─────────── used.from ────────── floor ──────────────────── top ─────►
//!            all used,                all used,        one bit each for    untouched
//!            by whomever              own ones marked  own windows used;   by this client
//!                                                      `open` lists those
//!                                                      held and how far
//! ```
//!
//! The floor is what the dispatcher told last. Below it everything was used at that time, so a
//! client needs to remember nothing. Own windows are nevertheless marked for a stretch below it:
//! other clients' cursors may know of a lower floor, and only what all of them know can be merged.

use crate::{ConsumerIndex, Epoch, Incarnation, JobId, Offset, Order, Seat, Stamp, Window};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A set of windows that starts somewhere: one bit each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Windows below are not listed.
    from: u64,
    /// Bit i of word k stands for window `(from / 64 + k) * 64 + i`.
    words: Vec<u64>,
}

impl Used {
    /// No windows, of those from `from` on.
    #[must_use]
    pub fn new(from: Window) -> Self {
        Self { from: from.0, words: Vec::new() }
    }

    /// The first window that could be listed.
    #[must_use]
    pub fn from(&self) -> Window {
        Window(self.from)
    }

    /// The window after the last that is listed.
    #[must_use]
    pub fn top(&self) -> Window {
        let last = self.words.iter().rposition(|word| *word != 0);
        Window(last.map_or(self.from, |at| {
            (self.from / 64 + at as u64 + 1) * 64 - u64::from(self.words[at].leading_zeros())
        }))
    }

    /// One bit for each window, as the network carries them.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// The set of these bits, unless it is no cursor's.
    #[must_use]
    pub fn from_words(from: Window, mut words: Vec<u64>) -> Option<Self> {
        let length = (words.len() as u64).checked_mul(64).filter(|length| *length <= FURTHEST)?;
        from.0.checked_add(length + 64)?;
        if let Some(first) = words.first_mut() {
            *first &= u64::MAX << (from.0 % 64);
        }
        while words.last() == Some(&0) {
            words.pop();
        }
        Some(Self { from: from.0, words })
    }

    /// Whether a window is listed.
    #[must_use]
    pub fn contains(&self, window: Window) -> bool {
        let word = (window.0 / 64).checked_sub(self.from / 64);
        let word = word.and_then(|at| self.words.get(usize::try_from(at).ok()?));
        word.is_some_and(|word| word >> (window.0 % 64) & 1 == 1)
    }

    /// Lists a window, unless it is below the first.
    pub fn insert(&mut self, window: Window) {
        if window.0 < self.from {
            return;
        }
        let at = (window.0 / 64 - self.from / 64) as usize;
        if at >= self.words.len() {
            self.words.resize(at + 1, 0);
        }
        self.words[at] |= 1 << (window.0 % 64);
    }

    /// Forgets windows below `from`.
    pub fn forget_below(&mut self, from: Window) {
        if from.0 <= self.from {
            return;
        }
        let words = usize::try_from(from.0 / 64 - self.from / 64).unwrap_or(usize::MAX);
        self.words.drain(..words.min(self.words.len()));
        self.from = from.0;
        if let Some(first) = self.words.first_mut() {
            *first &= u64::MAX << (from.0 % 64);
        }
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }

    /// The windows listed, rising.
    pub fn iter(&self) -> impl Iterator<Item = Window> {
        let first = self.from / 64;
        self.words.iter().enumerate().flat_map(move |(at, word)| {
            let mut rest = *word;
            std::iter::from_fn(move || {
                let bit = rest.trailing_zeros();
                (bit < 64).then(|| {
                    rest &= rest - 1;
                    Window((first + at as u64) * 64 + u64::from(bit))
                })
            })
        })
    }

    /// Lists the other's windows too. What is known reaches as far down as the lower of the two.
    pub fn join(&mut self, other: &Self) {
        if other.from < self.from {
            let mut lower = other.clone();
            self.iter().for_each(|window| lower.insert(window));
            *self = lower;
        } else {
            other.iter().for_each(|window| self.insert(window));
        }
    }
}

/// Used windows as `[first, letters, gaps]`, of which one is empty. Where many are listed, a letter
/// stands for six of them, so that 1,536 fit 256 letters; where few are, the gaps between them are
/// shorter.
impl Serialize for Used {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut next = self.from;
        let gaps: Vec<u64> = self
            .iter()
            .map(|window| {
                let gap = window.0 - next;
                next = window.0 + 1;
                gap
            })
            .collect();
        let letters = (self.top().0 - self.from).div_ceil(6);
        // A gap takes about four characters.
        if gaps.len() as u64 * 4 < letters {
            return (self.from, "", gaps).serialize(to);
        }
        let letter = |at: u64| {
            let bit = |bit: u64| usize::from(self.contains(Window(self.from + at * 6 + bit)));
            char::from(ALPHABET[(0..6).map(|number| bit(number) << number).sum::<usize>()])
        };
        let letters: String = (0..letters).map(letter).collect();
        (self.from, letters, [0u64; 0].as_slice()).serialize(to)
    }
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
/// No cursor lists windows further than this from its first: one that does is damaged.
const FURTHEST: u64 = 1 << 23;

impl<'de> Deserialize<'de> for Used {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        let damaged = |what: &str| D::Error::custom(format!("the cursor is damaged: {what}"));
        let (from, letters, gaps) = <(u64, String, Vec<u64>)>::deserialize(from)?;
        let gap = gaps.iter().try_fold(gaps.len() as u64, |sum, gap| sum.checked_add(*gap));
        let length = gap.map(|gap| gap.max(letters.len() as u64 * 6));
        let length = length.filter(|length| *length <= FURTHEST);
        if length.and_then(|length| from.checked_add(length + 64)).is_none() {
            return Err(damaged("it lists windows that are too far away"));
        }
        let mut used = Self::new(Window(from));
        for (at, letter) in letters.bytes().enumerate() {
            let number = ALPHABET.iter().position(|known| *known == letter);
            let number = number.ok_or_else(|| damaged("no such letter"))?;
            for bit in (0..6).filter(|bit| number >> bit & 1 == 1) {
                used.insert(Window(from + at as u64 * 6 + bit));
            }
        }
        let mut next = from;
        for gap in gaps {
            used.insert(Window(next + gap));
            next += gap + 1;
        }
        Ok(used)
    }
}

/// Held windows as a flat list: the gap to each window from the one before, and its offset.
mod gaps {
    use super::{BTreeMap, Offset, Window};
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(
        open: &BTreeMap<Window, Offset>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let mut flat = Vec::with_capacity(open.len() * 2);
        let mut before = 0;
        for (window, offset) in open {
            flat.extend([window.0 - before, offset.0]);
            before = window.0;
        }
        flat.serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<Window, Offset>, D::Error> {
        let flat = Vec::<u64>::deserialize(from)?;
        let (mut open, mut window) = (BTreeMap::new(), 0u64);
        for pair in flat.chunks(2) {
            let [gap, offset] = pair else {
                return Err(D::Error::custom("the cursor is damaged: half a window is held"));
            };
            let next = window.checked_add(*gap);
            window =
                next.ok_or_else(|| D::Error::custom("the cursor is damaged: no such window"))?;
            open.insert(Window(window), Offset(*offset));
        }
        Ok(open)
    }
}

/// What one client's trainer has used of an epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cursor {
    /// The job.
    pub job: JobId,
    /// The incarnation whose windows are meant.
    pub incarnation: Incarnation,
    /// How many clients it has.
    pub consumers: u32,
    /// The client.
    pub consumer: ConsumerIndex,
    /// How windows are dealt.
    pub order: Order,
    /// The epoch that the trainer is in.
    pub epoch: Epoch,
    /// The client has heard of all grants up to this one.
    pub seen: Stamp,
    /// How often clients had gone back when the floor was told.
    pub rewinds: u64,
    /// With order `Any`: all windows below were used when the dispatcher said so, by whomever. With
    /// order `Exact`: all own windows below are used.
    pub floor: Window,
    /// How many windows of the epoch this client has used up.
    pub used_up: u64,
    /// Own windows that are used, from somewhat below the floor on.
    pub used: Used,
    /// Windows that the client holds and has not used up, and how many of their steps it has used.
    #[serde(with = "gaps")]
    pub open: BTreeMap<Window, Offset>,
}

impl Cursor {
    /// Nothing used yet.
    #[must_use]
    pub fn new(seat: &Seat, consumers: u32, order: Order, epoch: Epoch) -> Self {
        Self {
            job: seat.job,
            incarnation: seat.incarnation,
            consumers,
            consumer: seat.consumer,
            order,
            epoch,
            seen: Stamp(0),
            rewinds: 0,
            floor: match order {
                Order::Any => Window(0),
                Order::Exact => Window(u64::from(seat.consumer.0)),
            },
            used_up: 0,
            used: Used::default(),
            open: BTreeMap::new(),
        }
    }

    /// Whether a window of this client is used up.
    #[must_use]
    pub fn is_used(&self, window: Window) -> bool {
        window < self.floor && !self.open.contains_key(&window) || self.used.contains(window)
    }

    /// Whether nothing of its epoch was used.
    #[must_use]
    pub fn is_untouched(&self) -> bool {
        let listed = self.used.iter().next();
        self.used_up == 0 && listed.is_none() && self.open.values().all(|used| used.0 == 0)
    }

    /// The same cursor at the start of the next epoch.
    pub fn next_epoch(&mut self) {
        let fresh = Self::new(
            &Seat {
                job: self.job,
                incarnation: self.incarnation,
                consumer: self.consumer,
                ticket: crate::Ticket(0),
            },
            self.consumers,
            self.order,
            Epoch(self.epoch.0 + 1),
        );
        *self = Self { seen: self.seen, rewinds: self.rewinds, ..fresh };
    }

    /// A short number that tells two cursors apart.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let Self {
            job,
            incarnation,
            consumers,
            consumer,
            order,
            epoch,
            seen,
            rewinds,
            floor,
            used_up,
            used,
            open,
        } = self;
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut mix = |number: u64| {
            hash = (hash ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        };
        [job.0, incarnation.0, u64::from(*consumers), u64::from(consumer.0), *order as u64]
            .into_iter()
            .for_each(&mut mix);
        [epoch.0, seen.0, *rewinds, floor.0, *used_up, used.from, used.top().0]
            .into_iter()
            .for_each(&mut mix);
        used.iter().for_each(|window| mix(window.0));
        for (window, offset) in open {
            mix(window.0);
            mix(offset.0);
        }
        hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn used(from: u64, windows: &BTreeSet<u64>) -> Used {
        let mut used = Used::new(Window(from));
        windows.iter().for_each(|window| used.insert(Window(*window)));
        used
    }

    proptest! {
        #[test]
        fn a_set_of_windows_is_a_set(
            from in 0..200u64,
            windows in proptest::collection::btree_set(0..500u64, 0..60),
            cut in 0..600u64,
        ) {
            let mut set = used(from, &windows);
            let mut wanted: BTreeSet<u64> = windows.range(from..).copied().collect();
            prop_assert_eq!(set.iter().map(|window| window.0).collect::<BTreeSet<_>>(), wanted.clone());
            prop_assert_eq!(set.top().0, wanted.last().map_or(from, |last| last + 1));
            for window in 0..600 {
                prop_assert_eq!(set.contains(Window(window)), wanted.contains(&window));
            }
            let text = serde_json::to_string(&set).unwrap();
            prop_assert_eq!(serde_json::from_str::<Used>(&text).unwrap(), set.clone());
            set.forget_below(Window(cut));
            wanted = wanted.split_off(&cut);
            prop_assert_eq!(set.iter().map(|window| window.0).collect::<BTreeSet<_>>(), wanted);
        }

        #[test]
        fn joined_sets_list_what_either_lists(
            (first, second) in (0..200u64, 0..200u64),
            left in proptest::collection::btree_set(0..400u64, 0..40),
            right in proptest::collection::btree_set(0..400u64, 0..40),
        ) {
            let (mut set, other) = (used(first, &left), used(second, &right));
            let wanted: BTreeSet<_> = set.iter().chain(other.iter()).collect();
            set.join(&other);
            prop_assert_eq!(set.iter().collect::<BTreeSet<_>>(), wanted);
            prop_assert_eq!(set.from().0, first.min(second));
        }
    }

    fn seat() -> Seat {
        Seat {
            job: JobId(u64::MAX),
            incarnation: Incarnation(12),
            consumer: ConsumerIndex(511),
            ticket: crate::Ticket(3),
        }
    }

    #[test]
    fn the_largest_ordinary_cursor_stays_under_a_kilobyte() {
        let mut cursor = Cursor::new(&seat(), 512, Order::Any, Epoch(99));
        (cursor.seen, cursor.floor) = (Stamp(1_234_567), Window(900_000));
        cursor.used = Used::new(Window(900_000 - 512));
        for window in (900_000 - 512..901_024).step_by(3) {
            cursor.used.insert(Window(window));
        }
        cursor.open = (0..64).map(|at| (Window(900_000 + at), Offset(at % 4))).collect();
        let text = serde_json::to_string(&cursor).unwrap();
        assert!(text.len() < 1_000, "{}: {text}", text.len());
        assert_eq!(serde_json::from_str::<Cursor>(&text).unwrap(), cursor);
        // One of many clients has few of the windows, over a long stretch.
        cursor.used = Used::new(Window(900_000 - 2048));
        (0..20).for_each(|at| cursor.used.insert(Window(899_000 + at * 512)));
        let text = serde_json::to_string(&cursor).unwrap();
        assert!(text.len() < 700, "{}: {text}", text.len());
        assert_eq!(serde_json::from_str::<Cursor>(&text).unwrap(), cursor);
    }

    #[test]
    fn damaged_cursors_are_refused() {
        let text = serde_json::to_string(&Cursor::new(&seat(), 2, Order::Any, Epoch(0))).unwrap();
        assert!(
            serde_json::from_str::<Cursor>(&text.replace("[0,\"\",[]]", "[0,\"*\",[]]")).is_err()
        );
        let far = format!("[{},\"BB\",[]]", u64::MAX);
        assert!(serde_json::from_str::<Cursor>(&text.replace("[0,\"\",[]]", &far)).is_err());
        let huge = format!("[0,\"\",[{}]]", 1u64 << 40);
        assert!(serde_json::from_str::<Cursor>(&text.replace("[0,\"\",[]]", &huge)).is_err());
        assert!(serde_json::from_str::<Cursor>(&text.replace("\"epoch\"", "\"epoc\"")).is_err());
    }

    #[test]
    fn digests_tell_cursors_apart() {
        let cursor = Cursor::new(&seat(), 2, Order::Any, Epoch(0));
        let mut other = cursor.clone();
        other.open.insert(Window(3), Offset(1));
        assert_ne!(cursor.digest(), other.digest());
        assert_eq!(cursor.digest(), cursor.clone().digest());
    }
}
