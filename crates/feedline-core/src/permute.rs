//! Shuffles of any length in constant memory: place → index, computed, never stored.
//!
//! Up to 1,024 items the shuffle is a table, drawn uniformly from all permutations. Beyond that
//! it is a keyed Feistel network on the next power of two, walked along its cycles until it lands
//! inside: a bijection for every length and key by construction.

use crate::{Draws, mix};
use std::fmt;

/// Lengths up to this are shuffled by a table (4 kB at most).
const TABLE: u64 = 1024;
const ROUNDS: usize = 6;
/// The longest order there can be.
const LONGEST: u64 = 1 << 60;

/// A permutation of `0..length`, chosen by a key.
///
/// ```
/// use feedline_core::Permutation;
///
/// let order = Permutation::new(1_000_000_000, 42);
/// let index = order.index(0);
/// assert!(index < 1_000_000_000);
/// assert_eq!(order.place(index), 0);
/// ```
#[derive(Clone)]
pub struct Permutation {
    length: u64,
    kind: Kind,
}

#[derive(Clone)]
enum Kind {
    Table(Box<[u16]>),
    Feistel(Feistel),
}

/// An unbalanced Feistel network: the high and low part of a number take turns being changed by a
/// keyed function of the other.
#[derive(Clone)]
struct Feistel {
    low_bits: u32,
    low_mask: u64,
    high_mask: u64,
    keys: [u64; ROUNDS],
}

impl Feistel {
    fn new(length: u64, key: u64) -> Self {
        let bits = (64 - (length - 1).leading_zeros()).max(2);
        let low_bits = bits / 2;
        let keys = std::array::from_fn(|round| mix(key, round as u64 + 1));
        Self {
            low_bits,
            low_mask: (1 << low_bits) - 1,
            high_mask: (1 << (bits - low_bits)) - 1,
            keys,
        }
    }

    fn scramble(half: u64, key: u64) -> u64 {
        let mut z = half.wrapping_add(key).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        z ^= z >> 32;
        z = z.wrapping_mul(0xD6E8_FEB8_6659_FD93);
        z ^ (z >> 32)
    }

    fn forward(&self, value: u64) -> u64 {
        let (mut high, mut low) = (value >> self.low_bits, value & self.low_mask);
        for pair in self.keys.chunks_exact(2) {
            high ^= Self::scramble(low, pair[0]) & self.high_mask;
            low ^= Self::scramble(high, pair[1]) & self.low_mask;
        }
        high << self.low_bits | low
    }

    fn backward(&self, value: u64) -> u64 {
        let (mut high, mut low) = (value >> self.low_bits, value & self.low_mask);
        for pair in self.keys.chunks_exact(2).rev() {
            low ^= Self::scramble(high, pair[1]) & self.low_mask;
            high ^= Self::scramble(low, pair[0]) & self.high_mask;
        }
        high << self.low_bits | low
    }
}

impl Permutation {
    /// The permutation of `0..length` that `key` names.
    ///
    /// # Panics
    ///
    /// If `length` is 0 or above 2⁶⁰.
    #[must_use]
    pub fn new(length: u64, key: u64) -> Self {
        assert!((1..=LONGEST).contains(&length), "a permutation of {length} items");
        if length > TABLE {
            return Self { length, kind: Kind::Feistel(Feistel::new(length, key)) };
        }
        let mut table: Box<[u16]> = (0..length as u16).collect();
        let mut draws = Draws::from_key(key, 0);
        for last in (1..table.len()).rev() {
            table.swap(last, draws.below(last as u64 + 1) as usize);
        }
        Self { length, kind: Kind::Table(table) }
    }

    /// Number of items.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The index that comes at `place`.
    ///
    /// # Panics
    ///
    /// If `place` is not below the length.
    #[must_use]
    pub fn index(&self, place: u64) -> u64 {
        assert!(place < self.length, "place {place} of {}", self.length);
        match &self.kind {
            Kind::Table(table) => u64::from(table[place as usize]),
            Kind::Feistel(network) => {
                let mut value = network.forward(place);
                while value >= self.length {
                    value = network.forward(value);
                }
                value
            }
        }
    }

    /// The place at which `index` comes: the inverse of [`Permutation::index`].
    ///
    /// # Panics
    ///
    /// If `index` is not below the length.
    #[must_use]
    pub fn place(&self, index: u64) -> u64 {
        assert!(index < self.length, "index {index} of {}", self.length);
        match &self.kind {
            Kind::Table(table) => table
                .iter()
                .position(|item| u64::from(*item) == index)
                .expect("a permutation holds every index") as u64,
            Kind::Feistel(network) => {
                let mut value = network.backward(index);
                while value >= self.length {
                    value = network.backward(value);
                }
                value
            }
        }
    }
}

impl fmt::Debug for Permutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Permutation({})", self.length)
    }
}

/// A shuffle that keeps neighbours near each other in time: blocks of `block` neighbours are
/// shuffled, then samples are shuffled within each group of `group` consecutive blocks.
///
/// ```text
///  indices   0 1 2 | 3 4 5 | 6 7 8 | 9 10        blocks of 3, the last one shorter
///  blocks    [9 10] [3 4 5] | [6 7 8] [0 1 2]    shuffled, in groups of 2
///  places    4 10 3 9 5     | 0 8 1 6 2 7        shuffled within each group
/// ```
#[derive(Clone, Debug)]
pub struct TwoLevel {
    length: u64,
    block: u64,
    group: u64,
    key: u64,
    blocks: Permutation,
    /// Where the last, shorter block stands in the shuffled order of blocks.
    short_at: u64,
    /// How many samples it lacks.
    lacking: u64,
}

impl TwoLevel {
    /// The order of `0..length` with blocks of `block` samples and `group` blocks to a group.
    ///
    /// # Panics
    ///
    /// If `length`, `block` or `group` is 0, or `length` is above 2⁶⁰.
    #[must_use]
    pub fn new(length: u64, block: u64, group: u64, key: u64) -> Self {
        assert!(block > 0 && group > 0, "blocks of {block}, groups of {group}");
        let count = length.div_ceil(block);
        let blocks = Permutation::new(count, mix(key, 0x626c_6f63_6b73));
        let short_at = blocks.place(count - 1);
        let lacking = count * block - length;
        let group = group.min(count);
        Self { length, block, group, key, blocks, short_at, lacking }
    }

    /// Number of groups.
    #[must_use]
    pub fn groups(&self) -> u64 {
        self.blocks.length().div_ceil(self.group)
    }

    /// First place of `group`, and the place after its last.
    fn bounds(&self, group: u64) -> (u64, u64) {
        let start = |group: u64| {
            let blocks = (group * self.group).min(self.blocks.length());
            blocks * self.block - if self.short_at < blocks { self.lacking } else { 0 }
        };
        (start(group), start(group + 1))
    }

    /// The group that `place` falls into.
    #[must_use]
    pub fn group_of(&self, place: u64) -> u64 {
        let span = self.group * self.block;
        let guess = place / span;
        // A group that contains the shorter block, and all after it, begin earlier than guessed.
        if place >= self.bounds(guess).1 { guess + 1 } else { guess }
    }

    /// The permutation of the samples of one group. Making it costs more than using it: keep it
    /// while places stay in the group.
    #[must_use]
    pub fn within(&self, group: u64) -> Permutation {
        let (start, end) = self.bounds(group);
        Permutation::new(end - start, mix(self.key, group))
    }

    /// The index that comes at `place`, given its group and that group's permutation.
    ///
    /// # Panics
    ///
    /// If `place` is not below the length.
    #[must_use]
    pub fn index(&self, place: u64, group: u64, within: &Permutation) -> u64 {
        assert!(place < self.length, "place {place} of {}", self.length);
        let (start, _) = self.bounds(group);
        let mut item = within.index(place - start);
        let first = group * self.group;
        if (first..first + self.group).contains(&self.short_at) {
            let after_short = (self.short_at - first + 1) * self.block - self.lacking;
            if item >= after_short {
                item += self.lacking;
            }
        }
        self.blocks.index(first + item / self.block) * self.block + item % self.block
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn is_bijection(length: u64, index: impl Fn(u64) -> u64) -> bool {
        let mut seen = vec![false; length as usize];
        (0..length).all(|place| !std::mem::replace(&mut seen[index(place) as usize], true))
    }

    #[test]
    fn every_short_length_is_a_bijection() {
        for length in (1..=600).chain(1000..1100).chain([4095, 4096, 4097, 65_537]) {
            let order = Permutation::new(length, length ^ 0xabc);
            assert!(is_bijection(length, |place| order.index(place)), "{length}");
        }
    }

    proptest! {
        #[test]
        fn any_length_goes_there_and_back(
            bits in 0u32..60, offset in 0u64..1000, key: u64, places: [u64; 16],
        ) {
            let length = ((1u64 << bits) + offset).min(LONGEST);
            let order = Permutation::new(length, key);
            for place in places {
                let place = place % length;
                let index = order.index(place);
                prop_assert!(index < length);
                prop_assert_eq!(order.place(index), place);
            }
        }

        #[test]
        fn two_levels_are_a_bijection(
            length in 1u64..3000, block in 1u64..70, group in 1u64..40, key: u64,
        ) {
            let order = TwoLevel::new(length, block, group, key);
            let index = |place| {
                let group = order.group_of(place);
                order.index(place, group, &order.within(group))
            };
            prop_assert!(is_bijection(length, index));
        }

        #[test]
        fn two_levels_read_whole_blocks_group_by_group(
            length in 100u64..3000, block in 1u64..70, group in 1u64..10, key: u64,
        ) {
            let order = TwoLevel::new(length, block, group, key);
            let mut touched = std::collections::HashMap::new();
            for place in 0..length {
                let at = order.group_of(place);
                let index = order.index(place, at, &order.within(at));
                prop_assert_eq!(*touched.entry(index / block).or_insert(at), at);
            }
            for at in 0..order.groups() {
                let blocks = touched.values().filter(|group| **group == at).count() as u64;
                prop_assert!(blocks <= group && blocks > 0);
            }
        }
    }

    #[test]
    fn the_longest_order_works() {
        let order = Permutation::new(LONGEST, 1);
        for place in [0, 1, 12_345, LONGEST - 1] {
            assert_eq!(order.place(order.index(place)), place);
        }
    }

    #[test]
    fn orders_are_stable_across_releases() {
        let first = |length, key| {
            let order = Permutation::new(length, key);
            [0, 1, 2, 3].map(|place| order.index(place))
        };
        assert_eq!(first(10, 0), [6, 7, 3, 4]);
        assert_eq!(first(5000, 7), [2435, 4408, 410, 3792]);
        assert_eq!(first(1_000_000_000, 7), [308664650, 828194215, 154899874, 130330956]);
    }

    /// Chi-square of counts against equal expectation, as a number of standard deviations.
    fn excess(counts: &[u64]) -> f64 {
        let (sum, cells) = (counts.iter().sum::<u64>() as f64, counts.len() as f64);
        let expected = sum / cells;
        let chi: f64 = counts.iter().map(|n| (*n as f64 - expected).powi(2) / expected).sum();
        (chi - (cells - 1.0)) / (2.0 * (cells - 1.0)).sqrt()
    }

    #[test]
    fn all_orders_of_few_items_are_equally_likely() {
        let mut counts = vec![0u64; 120];
        for key in 0..60_000 {
            let order = Permutation::new(5, mix(9, key));
            let items: Vec<u64> = (0..5).map(|place| order.index(place)).collect();
            let rank = (0..5).fold(0, |rank, at| {
                let smaller = items[at + 1..].iter().filter(|item| **item < items[at]).count();
                rank * (5 - at) + smaller
            });
            counts[rank] += 1;
        }
        assert!(excess(&counts) < 5.0, "{}", excess(&counts));
    }

    #[test]
    fn every_index_is_as_likely_at_every_place() {
        // Lengths just above the table and just above a power of two are the hardest cases.
        for length in [1025u64, 1500, 2048, 4097, 1 << 20, (1 << 20) + 1] {
            let cell = |at: u64| (at * 64 / length) as usize;
            let mut widths = [0.0; 64];
            (0..length).for_each(|index| widths[cell(index)] += 1.0 / length as f64);
            let (mut counts, mut rows) = (vec![0u64; 64 * 64], [0u64; 64]);
            for key in 0..400 {
                let order = Permutation::new(length, mix(3, key));
                for place in (0..length).step_by((length / 256) as usize) {
                    counts[cell(place) * 64 + cell(order.index(place))] += 1;
                    rows[cell(place)] += 1;
                }
            }
            let chi: f64 = (0..64 * 64)
                .map(|at| {
                    let expected = rows[at / 64] as f64 * widths[at % 64];
                    (counts[at] as f64 - expected).powi(2) / expected
                })
                .sum();
            let freedom = 63.0 * 64.0;
            let excess = (chi - freedom) / (2.0f64 * freedom).sqrt();
            assert!(excess < 5.0, "{length}: {excess}");
        }
    }

    #[test]
    fn no_order_is_left_between_neighbours() {
        // Distances between the indices at neighbouring places, in 64 classes, and the share of
        // neighbours that stayed neighbours.
        for length in [1025u64, 5000, 1_000_003, 1 << 24] {
            let mut counts = vec![0u64; 64];
            let (mut rising, mut adjacent, mut total) = (0u64, 0u64, 0u64);
            for key in 0..40 {
                let order = Permutation::new(length, mix(11, key));
                let stride = (length / 5000).max(1) as usize;
                for place in (0..length - 1).step_by(stride) {
                    let (here, next) = (order.index(place), order.index(place + 1));
                    let distance = (next + length - here) % length;
                    counts[(distance * 64 / length) as usize] += 1;
                    rising += u64::from(next > here);
                    adjacent += u64::from(distance == 1);
                    total += 1;
                }
            }
            let share = rising as f64 / total as f64;
            assert!(excess(&counts) < 5.0, "{length}: {}", excess(&counts));
            assert!((share - 0.5).abs() < 0.01, "{length}: {share}");
            let expected = total as f64 / length as f64;
            assert!((adjacent as f64) < expected + 6.0 * expected.sqrt() + 3.0, "{adjacent}");
        }
    }

    #[test]
    fn keys_give_unrelated_orders() {
        let length = 100_000;
        let mut counts = vec![0u64; 64 * 64];
        for key in 0..20 {
            let (one, two) = (Permutation::new(length, key), Permutation::new(length, key + 1));
            for place in 0..5000 {
                let cell = |at: u64| (at * 64 / length) as usize;
                counts[cell(one.index(place)) * 64 + cell(two.index(place))] += 1;
            }
        }
        assert!(excess(&counts) < 5.0, "{}", excess(&counts));
    }
}
