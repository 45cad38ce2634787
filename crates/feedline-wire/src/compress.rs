//! Making payloads smaller, where that pays.
//!
//! A worker that packs spends its own time to spare the link's. With [`Packing::Auto`] it compares
//! the two: how many bytes per second the link took while it was written to, and how many bytes per
//! second packing would save on a piece of what is being sent. It looks again now and then, because
//! links and data change. What does not get smaller is sent as it is.

use crate::bytes::malformed;
use std::io;
use std::time::{Duration, Instant};

/// How a payload is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Compression {
    /// Not at all.
    None = 0,
    /// One block of LZ4: fast.
    Lz4 = 1,
    /// One frame of Zstandard at level 1: smaller.
    Zstd = 2,
}

impl Compression {
    pub(crate) fn from_number(number: u8) -> Option<Self> {
        [Self::None, Self::Lz4, Self::Zstd].into_iter().find(|known| *known as u8 == number)
    }
}

/// What a sender does with its payloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Packing {
    /// Sends them as they are.
    None,
    /// Packs them with LZ4.
    Lz4,
    /// Packs them with Zstandard.
    Zstd,
    /// Measures what is fastest on this link.
    #[default]
    Auto,
}

/// Payloads below this are never packed.
const SMALLEST: usize = 4 << 10;
/// Payloads above this are never packed: a block of LZ4 has an end.
const LARGEST: usize = 1 << 30;
/// How much of a payload is packed to see what packing would bring.
const TRIAL: usize = 256 << 10;
/// Frames between two looks, at first and at most.
const FIRST_LOOK: u32 = 4;
const LAST_LOOK: u32 = 256;
/// How much faster it has to be to be worth the heat.
const WORTH: f64 = 1.2;
/// The time in which old measurements of the link fade, in bytes written.
const MEMORY: f64 = (8 << 20) as f64;

/// Packs the payloads of one connection.
pub struct Packer {
    packing: Packing,
    allowed: Vec<Compression>,
    /// What is used now.
    choice: Compression,
    /// Frames until the next look, and how many there were between the last two.
    next_look: u32,
    pause: u32,
    /// Bytes per second that the link took; infinite until it was measured.
    rate: f64,
    gathered: Vec<u8>,
    packed: Vec<u8>,
    zstd: Option<zstd::bulk::Compressor<'static>>,
}

impl Packer {
    /// A packer that uses only what the other side can unpack.
    #[must_use]
    pub fn new(packing: Packing, allowed: &[Compression]) -> Self {
        let only = |wanted: Compression| {
            if allowed.contains(&wanted) { wanted } else { Compression::None }
        };
        let choice = match packing {
            Packing::None | Packing::Auto => Compression::None,
            Packing::Lz4 => only(Compression::Lz4),
            Packing::Zstd => only(Compression::Zstd),
        };
        Self {
            packing,
            allowed: allowed.to_vec(),
            choice,
            next_look: if packing == Packing::Auto { FIRST_LOOK } else { 0 },
            pause: FIRST_LOOK,
            rate: f64::INFINITY,
            gathered: Vec::new(),
            packed: Vec::new(),
            zstd: None,
        }
    }

    /// Packs a payload of `length` bytes that lies in pieces, if that makes it smaller. The packed
    /// bytes are valid until the next call.
    ///
    /// # Errors
    ///
    /// If the packing library fails.
    pub fn pack(
        &mut self,
        parts: &[&[u8]],
        length: usize,
    ) -> io::Result<Option<(Compression, &[u8])>> {
        if self.packing == Packing::None || !(SMALLEST..=LARGEST).contains(&length) {
            return Ok(None);
        }
        let due = self.next_look == 0;
        self.next_look = self.next_look.saturating_sub(1);
        if self.packing == Packing::Auto && due {
            self.look(parts)?;
        } else if self.packing != Packing::Auto && !due {
            return Ok(None);
        }
        if self.choice == Compression::None {
            return Ok(None);
        }
        let mut gathered = std::mem::take(&mut self.gathered);
        let whole = gather(parts, length, &mut gathered);
        let done = self.run(self.choice, whole);
        self.gathered = gathered;
        let size = done?;
        if size > length - length / 16 {
            // Already packed, or noise: the next few frames will be alike.
            self.next_look = self.pause;
            self.pause = (self.pause * 2).min(LAST_LOOK);
            if self.packing == Packing::Auto {
                self.choice = Compression::None;
            }
            return Ok(None);
        }
        Ok(Some((self.choice, &self.packed[..size])))
    }

    /// Tells how long it took to write so many bytes to the link.
    pub fn wrote(&mut self, bytes: usize, took: Duration) {
        let rate = bytes as f64 / took.as_secs_f64().max(1e-9);
        if !self.rate.is_finite() {
            self.rate = rate;
            return;
        }
        // Seconds per byte are what adds up, so they are what is averaged.
        let share = (bytes as f64 / MEMORY).min(1.0);
        self.rate = 1.0 / (share / rate + (1.0 - share) / self.rate);
    }

    /// What is used now.
    #[must_use]
    pub fn choice(&self) -> Compression {
        self.choice
    }

    /// Finds out what is fastest on this link for this payload.
    fn look(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        let mut piece = Vec::with_capacity(TRIAL);
        for part in parts {
            let room = TRIAL - piece.len();
            piece.extend_from_slice(&part[..part.len().min(room)]);
        }
        let mut best = (Compression::None, 1.0 / (self.rate * WORTH));
        for way in [Compression::Lz4, Compression::Zstd] {
            if !self.allowed.contains(&way) {
                continue;
            }
            let started = Instant::now();
            let size = self.run(way, &piece)?;
            let packing = started.elapsed().as_secs_f64();
            let seconds = (packing + size as f64 / self.rate) / piece.len() as f64;
            if seconds < best.1 {
                best = (way, seconds);
            }
        }
        self.choice = best.0;
        self.next_look = self.pause;
        self.pause = (self.pause * 2).min(LAST_LOOK);
        Ok(())
    }

    /// Packs into `packed`; how many bytes it became.
    fn run(&mut self, way: Compression, bytes: &[u8]) -> io::Result<usize> {
        let room = match way {
            Compression::None => 0,
            Compression::Lz4 => lz4_flex::block::get_maximum_output_size(bytes.len()),
            Compression::Zstd => zstd::zstd_safe::compress_bound(bytes.len()),
        };
        if self.packed.len() < room {
            self.packed.resize(room, 0);
        }
        match way {
            Compression::None => Ok(bytes.len()),
            Compression::Lz4 => lz4_flex::block::compress_into(bytes, &mut self.packed)
                .map_err(|error| io::Error::other(format!("LZ4: {error}"))),
            Compression::Zstd => {
                let zstd = match &mut self.zstd {
                    Some(zstd) => zstd,
                    none => none.insert(zstd::bulk::Compressor::new(1)?),
                };
                zstd.compress_to_buffer(bytes, &mut self.packed[..])
            }
        }
    }
}

/// All parts in one place; where there is only one, where it lies.
fn gather<'a>(parts: &[&'a [u8]], length: usize, into: &'a mut Vec<u8>) -> &'a [u8] {
    if let [only] = parts {
        return only;
    }
    into.clear();
    into.reserve(length);
    parts.iter().for_each(|part| into.extend_from_slice(part));
    into
}

/// Unpacks the payloads of one connection.
#[derive(Default)]
pub struct Unpacker {
    zstd: Option<zstd::bulk::Decompressor<'static>>,
}

impl Unpacker {
    /// Unpacks `from` into `to`, which must have exactly the size it had.
    ///
    /// # Errors
    ///
    /// If it is damaged or of another size.
    pub fn unpack(&mut self, way: Compression, from: &[u8], to: &mut [u8]) -> io::Result<()> {
        let wanted = to.len();
        let size = match way {
            Compression::None => {
                if from.len() == wanted {
                    to.copy_from_slice(from);
                }
                from.len()
            }
            Compression::Lz4 => lz4_flex::block::decompress_into(from, to)
                .map_err(|error| malformed(format!("a payload that LZ4 cannot unpack: {error}")))?,
            Compression::Zstd => {
                let zstd = match &mut self.zstd {
                    Some(zstd) => zstd,
                    none => none.insert(zstd::bulk::Decompressor::new()?),
                };
                zstd.decompress_to_buffer(from, to).map_err(|error| {
                    malformed(format!("a payload that Zstandard cannot unpack: {error}"))
                })?
            }
        };
        if size == wanted {
            return Ok(());
        }
        Err(malformed(format!("a payload that unpacks to {size} bytes instead of {wanted}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn smooth(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at / 64) as u8).collect()
    }

    fn noise(length: usize) -> Vec<u8> {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        (0..length).map(|_| next()).collect()
    }

    const BOTH: [Compression; 2] = [Compression::Lz4, Compression::Zstd];

    #[test]
    fn what_is_packed_unpacks_to_the_same() {
        let bytes = smooth(100_000);
        for packing in [Packing::Lz4, Packing::Zstd] {
            let mut packer = Packer::new(packing, &BOTH);
            let parts = [&bytes[..10], &bytes[10..]];
            let (way, packed) = packer.pack(&parts, bytes.len()).unwrap().unwrap();
            assert!(packed.len() < bytes.len() / 2);
            let mut out = vec![0; bytes.len()];
            let mut unpacker = Unpacker::default();
            unpacker.unpack(way, packed, &mut out).unwrap();
            assert_eq!(out, bytes);
            assert!(unpacker.unpack(way, packed, &mut out[1..]).is_err());
            assert!(unpacker.unpack(way, packed, &mut vec![0; bytes.len() + 1]).is_err());
            assert!(unpacker.unpack(way, &packed[1..], &mut out).is_err());
        }
    }

    #[test]
    fn what_does_not_get_smaller_is_sent_as_it_is() {
        let bytes = noise(100_000);
        for packing in [Packing::Lz4, Packing::Zstd, Packing::Auto] {
            let mut packer = Packer::new(packing, &BOTH);
            packer.wrote(1000, Duration::from_secs(1));
            for _ in 0..40 {
                assert!(packer.pack(&[&bytes], bytes.len()).unwrap().is_none());
            }
        }
        let mut packer = Packer::new(Packing::Lz4, &BOTH);
        assert!(packer.pack(&[&[0; 64]], 64).unwrap().is_none());
    }

    #[test]
    fn packing_begins_again_when_payloads_become_packable() {
        let (noise, smooth) = (noise(100_000), smooth(100_000));
        let mut packer = Packer::new(Packing::Lz4, &BOTH);
        (0..20).for_each(|_| assert!(packer.pack(&[&noise], 100_000).unwrap().is_none()));
        let again = (0..64).any(|_| packer.pack(&[&smooth], 100_000).unwrap().is_some());
        assert!(again);
    }

    #[test]
    fn a_slow_link_is_packed_for_and_a_fast_one_is_not() {
        let bytes = smooth(1 << 20);
        let choose = |rate: f64| {
            let mut packer = Packer::new(Packing::Auto, &BOTH);
            for _ in 0..FIRST_LOOK + 1 {
                let sent = packer.pack(&[&bytes], bytes.len()).unwrap();
                let size = sent.map_or(bytes.len(), |(_, packed)| packed.len());
                packer.wrote(size, Duration::from_secs_f64(size as f64 / rate));
            }
            packer.choice()
        };
        assert_ne!(choose(1e6), Compression::None);
        assert_eq!(choose(1e12), Compression::None);
    }

    #[test]
    fn a_link_that_becomes_slow_is_noticed() {
        let bytes = smooth(1 << 20);
        let mut packer = Packer::new(Packing::Auto, &BOTH);
        let mut run = |rate: f64, frames: usize| {
            for _ in 0..frames {
                let sent = packer.pack(&[&bytes], bytes.len()).unwrap();
                let size = sent.map_or(bytes.len(), |(_, packed)| packed.len());
                packer.wrote(size, Duration::from_secs_f64(size as f64 / rate));
            }
            packer.choice()
        };
        assert_eq!(run(1e12, 20), Compression::None);
        assert_ne!(run(1e6, 600), Compression::None);
    }

    #[test]
    fn only_what_the_other_side_knows_is_used() {
        let bytes = smooth(100_000);
        let mut packer = Packer::new(Packing::Zstd, &[Compression::Lz4]);
        assert!(packer.pack(&[&bytes], bytes.len()).unwrap().is_none());
    }
}
