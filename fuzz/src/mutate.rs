//! Changes bytes by chance, the same for the same seed: as damage, as malice, and as other texts.

use feedline_journal::Coins;

/// Numbers at which programs tend to go wrong.
const EDGES: [u64; 16] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x100,
    0x7fff,
    0xffff,
    0x1_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX,
];

/// Bytes that mean something to parsers of text.
const SIGNS: &[u8] = b"\"'{}[](),:|=\\/ \n\t-+.eE0123456789null\0\x80\xff";

/// Changes inputs.
#[derive(Debug)]
pub struct Mutator {
    coins: Coins,
    longest: usize,
}

impl Mutator {
    /// Inputs of at most `longest` bytes, chosen by `seed`.
    #[must_use]
    pub fn new(seed: u64, longest: usize) -> Self {
        Self { coins: Coins::new(seed), longest }
    }

    /// A number below `limit`, which is not 0.
    pub fn below(&mut self, limit: usize) -> usize {
        self.coins.below(limit.max(1) as u64) as usize
    }

    /// Changes an input in one to a few ways; `other` is an input to take parts from.
    pub fn change(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        for _ in 0..1 << self.below(4) {
            self.change_once(bytes, other);
            bytes.truncate(self.longest);
        }
    }

    fn change_once(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        if bytes.is_empty() {
            bytes.extend_from_slice(other);
            return;
        }
        let at = self.below(bytes.len());
        match self.below(12) {
            0 => bytes[at] ^= 1 << self.below(8),
            1 => bytes[at] = self.below(256) as u8,
            2 => bytes[at] = bytes[at].wrapping_add([1, 0xff, 0x10, 0x80][self.below(4)]),
            3 => bytes[at] = SIGNS[self.below(SIGNS.len())],
            4 => bytes.truncate(at),
            5 => {
                let end = (at + 1 + self.below(16)).min(bytes.len());
                bytes.drain(at..end);
            }
            6 => self.put_edge(bytes, at),
            7 => self.put_decimal(bytes, at),
            8 => self.part_of(other, |part| insert(bytes, at, part)),
            9 => self.part_of(other, |part| {
                let end = (at + part.len()).min(bytes.len());
                bytes[at..end].copy_from_slice(&part[..end - at]);
            }),
            10 => {
                let own = bytes.clone();
                self.part_of(&own, |part| insert(bytes, at, part));
            }
            _ => {
                let (count, byte) = (1 + self.below(8), self.below(256) as u8);
                insert(bytes, at, &vec![byte; count]);
            }
        }
    }

    /// Overwrites a number of 1, 2, 4 or 8 bytes, in either order of bytes.
    fn put_edge(&mut self, bytes: &mut [u8], at: usize) {
        let number = EDGES[self.below(EDGES.len())].to_le_bytes();
        let width = (1 << self.below(4)).min(bytes.len() - at);
        let mut number = number[..width].to_vec();
        if self.below(2) == 0 {
            number.reverse();
        }
        bytes[at..at + width].copy_from_slice(&number);
    }

    /// Replaces the decimal number at or after a place by another.
    fn put_decimal(&mut self, bytes: &mut Vec<u8>, at: usize) {
        let is_digit = |byte: &u8| byte.is_ascii_digit();
        let Some(start) = bytes[at..].iter().position(is_digit).map(|found| at + found) else {
            return;
        };
        let end = start + bytes[start..].iter().take_while(|byte| is_digit(byte)).count();
        let number = EDGES[self.below(EDGES.len())].wrapping_add(self.below(3) as u64);
        bytes.splice(start..end, number.to_string().into_bytes());
    }

    fn part_of(&mut self, other: &[u8], put: impl FnOnce(&[u8])) {
        if !other.is_empty() {
            let start = self.below(other.len());
            let end = (start + 1 + self.below(64)).min(other.len());
            put(&other[start..end]);
        }
    }
}

fn insert(bytes: &mut Vec<u8>, at: usize, part: &[u8]) {
    bytes.splice(at..at, part.iter().copied());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_changes_and_another_seed_others() {
        let changed = |seed| {
            let mut mutator = Mutator::new(seed, 100);
            let mut bytes = b"{\"count\": 17}".to_vec();
            for _ in 0..50 {
                mutator.change(&mut bytes, b"other bytes");
                assert!(bytes.len() <= 100);
            }
            bytes
        };
        assert_eq!(changed(1), changed(1));
        assert_ne!(changed(1), changed(2));
    }
}
