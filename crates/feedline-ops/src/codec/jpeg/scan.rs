//! What the header of a JPEG says, by a walk over its segments.

use super::corrupt;
use crate::codec::{CodecError, Format, Header};

/// What the header of a JPEG says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Scan {
    pub width: usize,
    pub height: usize,
    pub progressive: bool,
    pub orientation: u8,
    /// Columns of an iMCU: where regions may start.
    pub unit: usize,
    /// Where the first start-of-scan marker is.
    pub scan_at: usize,
    /// Whether bytes lie between the segments.
    pub junk: bool,
    /// Whether the header brings every table that the only scan uses. A decompressor remembers the
    /// tables of earlier files: one that lacks some would borrow them.
    pub complete: bool,
}

/// Which tables were defined, a bit for each.
#[derive(Default)]
struct Tables {
    quantization: u32,
    /// Direct-current tables in bits 0 to 3, alternating-current ones in bits 4 to 7.
    huffman: u32,
    /// Quantization tables that components use, and how many components there are.
    used: u32,
    components: usize,
    sequential: bool,
}

impl Tables {
    fn quantization(&mut self, mut body: &[u8]) {
        while let [kind, rest @ ..] = body {
            let size = if kind >> 4 == 0 { 64 } else { 128 };
            let Some(after) = rest.get(size..) else { return };
            self.quantization |= 1 << (kind & 3);
            body = after;
        }
    }

    fn huffman(&mut self, mut body: &[u8]) {
        while let Some((head, rest)) = body.split_at_checked(17) {
            let symbols: usize = head[1..].iter().map(|count| usize::from(*count)).sum();
            let Some(after) = rest.get(symbols..) else { return };
            self.huffman |= 1 << ((head[0] & 3) + 4 * (head[0] >> 4 & 1));
            body = after;
        }
    }

    fn frame(&mut self, marker: u8, body: &[u8]) {
        self.sequential = matches!(marker, 0xC0 | 0xC1);
        let components = body.get(6..).unwrap_or_default().chunks_exact(3);
        self.components = components.len();
        self.used = components.fold(0, |used, component| used | 1 << (component[2] & 3));
    }

    /// Whether the scan with this header has all it needs, and is the only one.
    fn suffice(&self, scan: &[u8]) -> bool {
        let [count, rest @ ..] = scan else { return false };
        let selectors: Vec<u8> = rest.chunks_exact(2).map(|pair| pair[1]).collect();
        let count = usize::from(*count);
        let bits = |selector: &u8| 1 << (selector >> 4 & 3) | 1 << (4 + (selector & 3));
        let needed = selectors.iter().take(count).fold(0, |all, selector| all | bits(selector));
        self.sequential
            && count == self.components
            && selectors.len() >= count
            && self.used & !self.quantization == 0
            && needed & !self.huffman == 0
    }
}

/// Reads format, size and orientation.
pub(in super::super) fn probe(bytes: &[u8]) -> Result<Header, CodecError> {
    let Scan { width, height, progressive, orientation, .. } = scan(bytes)?;
    Ok(Header { format: Format::Jpeg, width, height, orientation, progressive })
}

pub(super) fn scan(bytes: &[u8]) -> Result<Scan, CodecError> {
    walk(bytes, |_, _| ())
}

/// Walks the segments up to the first scan, and names where each begins, with its marker, and ends.
fn walk(bytes: &[u8], mut segment: impl FnMut(usize, usize)) -> Result<Scan, CodecError> {
    let cut = || corrupt("the file ends within its header");
    let mut found = Scan { orientation: 1, ..Scan::default() };
    let (mut framed, mut at) = (false, 2);
    let mut tables = Tables::default();
    loop {
        let start = at;
        // Up to the next marker: 0xFF, perhaps repeated, then neither 0 nor 0xFF.
        let marker = loop {
            match bytes.get(at..).ok_or_else(cut)? {
                [0xFF, 0xFF, ..] => at += 1,
                [0xFF, 0, ..] => at += 2,
                [0xFF, marker, ..] => break *marker,
                [_, _, ..] => at += 1,
                _ => return Err(cut()),
            }
        };
        found.junk |= bytes[start..at].iter().any(|&byte| byte != 0xFF);
        let begin = at;
        at += 2;
        match marker {
            0xD0..=0xD7 | 0x01 => {
                segment(begin, at);
                continue;
            }
            0xD8 => return Err(corrupt("a second picture starts within the header")),
            0xD9 => return Err(corrupt("the file ends before a picture starts")),
            0xDA if framed => {
                found.scan_at = begin;
                let length =
                    bytes.get(at..at + 2).map_or(0, |b| usize::from(b[0]) << 8 | usize::from(b[1]));
                let body = bytes.get(at + 2..at + length).unwrap_or_default();
                found.complete = tables.suffice(body);
                return Ok(found);
            }
            0xDA => return Err(corrupt("a scan starts before the size is known")),
            _ => {}
        }
        let length = match bytes.get(at..at + 2) {
            Some(&[high, low]) => usize::from(high) << 8 | usize::from(low),
            _ => return Err(cut()),
        };
        if length < 2 {
            return Err(corrupt(&format!("the segment at byte {begin} has length {length}")));
        }
        let body = bytes.get(at + 2..at + length).ok_or_else(cut)?;
        at += length;
        segment(begin, at);
        match marker {
            0xC0..=0xC3 | 0xC5..=0xC7 | 0xC9..=0xCB | 0xCD..=0xCF if framed => {
                return Err(corrupt("the size is given twice"));
            }
            0xC0..=0xC3 | 0xC5..=0xC7 | 0xC9..=0xCB | 0xCD..=0xCF => {
                framed = true;
                tables.frame(marker, body);
                read_frame(body, &mut found)?;
                found.progressive = matches!(marker, 0xC2 | 0xC6 | 0xCA | 0xCE);
            }
            0xDB => tables.quantization(body),
            0xC4 => tables.huffman(body),
            0xE1 if found.orientation == 1 => found.orientation = orientation(body),
            _ => {}
        }
    }
}

fn read_frame(body: &[u8], found: &mut Scan) -> Result<(), CodecError> {
    let &[_precision, h1, h0, w1, w0, count, ref components @ ..] = body else {
        return Err(corrupt("the frame header is too short"));
    };
    found.height = usize::from(h1) << 8 | usize::from(h0);
    found.width = usize::from(w1) << 8 | usize::from(w0);
    if components.len() != usize::from(count) * 3 || count == 0 {
        return Err(corrupt("the frame header does not have the length of its components"));
    }
    let widest = components.chunks_exact(3).map(|component| usize::from(component[1] >> 4)).max();
    found.unit = if count == 1 { 8 } else { 8 * widest.unwrap_or(1) };
    Ok(())
}

/// EXIF orientation of an APP1 segment, 1 if it says nothing that makes sense.
fn orientation(body: &[u8]) -> u8 {
    fn read(body: &[u8]) -> Option<u8> {
        let tiff = body.strip_prefix(b"Exif\0\0")?;
        let little = match tiff.get(..4)? {
            [b'I', b'I', 42, 0] => true,
            [b'M', b'M', 0, 42] => false,
            _ => return None,
        };
        let short = |at: usize| {
            let pair: [u8; 2] = tiff.get(at..at.checked_add(2)?)?.try_into().ok()?;
            Some(if little { u16::from_le_bytes(pair) } else { u16::from_be_bytes(pair) })
        };
        let long = |at: usize| {
            let four: [u8; 4] = tiff.get(at..at.checked_add(4)?)?.try_into().ok()?;
            Some(if little { u32::from_le_bytes(four) } else { u32::from_be_bytes(four) })
        };
        let directory = long(4)? as usize;
        for entry in 0..usize::from(short(directory)?) {
            let at = directory.checked_add(2 + entry * 12)?;
            // Tag 0x0112 of type 3, a 16-bit number, of which there is one.
            if short(at)? == 0x0112 {
                let sound = short(at + 2)? == 3 && long(at + 4)? == 1;
                return short(at + 8)
                    .filter(|value| sound && (1..=8).contains(value))
                    .map(|value| value as u8);
            }
        }
        None
    }
    read(body).unwrap_or(1)
}

/// A copy whose header gives libjpeg nothing to warn about that is harmless.
pub(super) fn mended(bytes: &[u8]) -> Result<Vec<u8>, CodecError> {
    let mut copy = Vec::with_capacity(bytes.len());
    copy.extend_from_slice(&bytes[..2]);
    let scan = walk(bytes, |begin, end| {
        let at = copy.len();
        copy.extend_from_slice(&bytes[begin..end]);
        let segment = &mut copy[at..];
        // The revision of JFIF changes nothing; an unknown colour transform is taken for the usual one.
        match segment {
            [0xFF, 0xE0, _, _, b'J', b'F', b'I', b'F', 0, major, ..] => *major = 1,
            [0xFF, 0xEE, _, _, b'A', b'd', b'o', b'b', b'e', _, _, _, _, _, _, transform, ..]
                if *transform > 2 =>
            {
                *transform = 1
            }
            _ => {}
        }
    })?;
    copy.extend_from_slice(&bytes[scan.scan_at..]);
    Ok(copy)
}
