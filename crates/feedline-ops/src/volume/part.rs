//! Where an array lies in a file, and how its bytes become numbers in their usual order.

use super::transpose::to_rows_last;
use crate::table::cast_bytes;
use feedline_core::{Buffer, BufferMut, DType, Error, Pool, Result, Shape};
use flate2::{Crc, Decompress, FlushDecompress, Status};
use std::path::Path;
use std::sync::Arc;

/// How the bytes of an array are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    /// Not at all.
    Plain,
    /// By deflate, as a member of an archive: `skip` bytes of header come first, and all unpacked
    /// bytes have this checksum.
    Deflate { skip: usize, crc: u32 },
    /// By gzip, in one member or several: `skip` bytes of header come first.
    Gzip { skip: usize },
    /// Truth values of one bit each, lowest first: `skip` bits of others come first.
    Bits { skip: usize },
}

/// An array as it lies in a file.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// The file.
    pub path: Arc<Path>,
    /// Bytes of the whole file when it was listed, and when it had last been changed.
    pub size: u64,
    pub modified: i64,
    /// First byte.
    pub offset: u64,
    /// Bytes as they are stored.
    pub stored: usize,
    /// How they are packed.
    pub packing: Packing,
    /// The type of the stored numbers.
    pub dtype: DType,
    /// Whether their bytes come the other way round than on this machine.
    pub swapped: bool,
    /// Whether the first axis runs fastest.
    pub fortran: bool,
    /// What stored numbers are multiplied by, and what is added then; the result is `float32`.
    pub rescale: Option<(f64, f64)>,
    /// The type that its numbers are brought to, where other files of the field have a wider one.
    pub widened: Option<DType>,
    /// The extent of all that is stored.
    pub shape: Shape,
    /// Which row along the first axis is meant, if it is not all.
    pub row: Option<usize>,
}

impl Part {
    /// The type of the numbers it gives.
    pub(crate) fn output(&self) -> DType {
        self.widened.unwrap_or(self.unpacked())
    }

    /// The type of its numbers before they are widened.
    pub(crate) fn unpacked(&self) -> DType {
        if self.rescale.is_some() { DType::F32 } else { self.dtype }
    }

    /// The shape of what it gives.
    pub(crate) fn output_shape(&self) -> &[usize] {
        &self.shape[usize::from(self.row.is_some())..]
    }

    /// Whether parts of it can be read by themselves.
    pub(crate) fn is_plain(&self) -> bool {
        self.packing == Packing::Plain && !self.fortran && self.rescale.is_none()
    }

    /// Row `index` along the first axis.
    pub(crate) fn row(&self, index: usize) -> Self {
        let mut part = self.clone();
        if self.is_plain() {
            let rows = self.shape.first().copied().unwrap_or(1).max(1);
            part.stored = self.stored / rows;
            part.offset += (index * part.stored) as u64;
            part.shape = Shape::from_slice(&self.shape[1..]);
        } else {
            part.row = Some(index);
        }
        part
    }

    /// The numbers in row-major order and in the machine's own byte order, out of the stored bytes.
    ///
    /// # Errors
    ///
    /// If the stored bytes are damaged.
    pub(crate) fn unpack(&self, stored: &Buffer, pool: &Pool) -> Result<Buffer> {
        let element = self.dtype.size().unwrap_or(1);
        // The header was checked: the product is below the largest number.
        let length = self.shape.iter().product::<usize>() * element;
        let mut bytes = match self.packing {
            Packing::Plain => stored.clone(),
            Packing::Deflate { skip, crc } => {
                inflate(stored, skip, length, Some(crc), pool).map_err(Error::record)?
            }
            Packing::Gzip { skip } => gunzip(stored, skip, length, pool).map_err(Error::record)?,
            Packing::Bits { skip } => {
                if stored.len() * 8 < skip + length {
                    return Err(Error::Internal(format!("{} bytes of bits", stored.len())));
                }
                let mut out = pool.take(length)?;
                for (at, value) in out.iter_mut().enumerate() {
                    *value = bit(stored, skip + at);
                }
                out.freeze()
            }
        };
        if bytes.len() != length {
            return Err(Error::Internal(format!("{} bytes for {length}", bytes.len())));
        }
        if self.fortran {
            let mut out = pool.take(length)?;
            to_rows_last(&bytes, &mut out, &self.shape, element);
            bytes = out.freeze();
        }
        if let Some(row) = self.row {
            let row_bytes = length / self.shape[0].max(1);
            bytes = bytes.slice(row * row_bytes..(row + 1) * row_bytes);
        }
        if self.swapped {
            let mut out = pool.take(bytes.len())?;
            out.copy_from_slice(&bytes);
            swap(&mut out, element);
            bytes = out.freeze();
        }
        if let Some((slope, inter)) = self.rescale {
            let wide = cast_bytes(self.dtype, DType::F64, false, &bytes);
            let mut out = pool.take(wide.len() / 2)?;
            for (to, from) in out.chunks_exact_mut(4).zip(wide.chunks_exact(8)) {
                let value = f64::from_ne_bytes(from.try_into().expect("chunks of eight"));
                to.copy_from_slice(&((value * slope + inter) as f32).to_ne_bytes());
            }
            bytes = out.freeze();
        }
        Ok(bytes)
    }
}

/// Bit number `at`, counted from the lowest of the first byte.
pub(crate) fn bit(bytes: &[u8], at: usize) -> u8 {
    bytes[at / 8] >> (at % 8) & 1
}

/// Turns the bytes of each element round.
pub(crate) fn swap(bytes: &mut [u8], element: usize) {
    macro_rules! swap {
        ($number:ty) => {
            for chunk in bytes.chunks_exact_mut(element) {
                let number = <$number>::from_ne_bytes((&*chunk).try_into().expect("its size"));
                chunk.copy_from_slice(&number.swap_bytes().to_ne_bytes());
            }
        };
    }
    match element {
        2 => swap!(u16),
        4 => swap!(u32),
        8 => swap!(u64),
        _ => {}
    }
}

/// Unpacks `packed` into exactly `out`; `Ok` tells how many bytes it took.
fn inflate_into(packed: &[u8], out: &mut [u8], what: &str) -> Result<(usize, usize), String> {
    let mut state = Decompress::new(false);
    let status = state.decompress(packed, out, FlushDecompress::Finish);
    let (took, gave) = (state.total_in() as usize, state.total_out() as usize);
    match status {
        Ok(Status::StreamEnd) => Ok((took, gave)),
        Ok(_) if took == packed.len() => Err(format!("the {what} data ends too early")),
        Ok(_) => Err(format!("the {what} data is longer than its header says")),
        Err(_) => Err(format!("the {what} data is damaged")),
    }
}

/// Unpacks deflated bytes: `skip` bytes that are dropped and `length` that are kept.
fn inflate(
    packed: &[u8],
    skip: usize,
    length: usize,
    crc: Option<u32>,
    pool: &Pool,
) -> Result<Buffer, String> {
    let mut out = take(pool, packed, skip, length)?;
    let (_, gave) = inflate_into(packed, &mut out, "compressed")?;
    if gave != skip + length {
        return Err(format!("the compressed data unpacks to {gave} bytes, not {}", skip + length));
    }
    if let Some(wanted) = crc {
        let mut found = Crc::new();
        found.update(&out);
        if found.sum() != wanted {
            return Err("the compressed data is damaged: its checksum is another".into());
        }
    }
    Ok(out.freeze().slice(skip..skip + length))
}

/// No deflated byte stands for more bytes than this.
const TIGHTEST: usize = 1032;

/// Refuses packed bytes that can never unpack to so many.
pub(crate) fn can_hold(packed: u64, skip: usize, length: usize) -> Result<usize, String> {
    let all = skip.checked_add(length).ok_or("an array larger than all memory")?;
    if (all / TIGHTEST) as u64 > packed {
        return Err(format!("its {packed} compressed bytes cannot hold {all}"));
    }
    Ok(all)
}

/// Room for what is unpacked, unless the packed bytes can never fill it.
fn take(pool: &Pool, packed: &[u8], skip: usize, length: usize) -> Result<BufferMut, String> {
    let all = can_hold(packed.len() as u64, skip, length)?;
    pool.take(all).map_err(|error| error.to_string())
}

/// Unpacks gzip members one after another: `skip` bytes that are dropped and `length` that are kept.
fn gunzip(packed: &[u8], skip: usize, length: usize, pool: &Pool) -> Result<Buffer, String> {
    let mut out = take(pool, packed, skip, length)?;
    let (mut rest, mut done) = (packed, 0);
    while !rest.is_empty() {
        let begin = gzip_header(rest)?;
        let (took, gave) = inflate_into(&rest[begin..], &mut out[done..], "gzip")?;
        let end = begin + took;
        let tail = rest.get(end..end + 8).ok_or("the gzip data ends too early")?;
        let mut found = Crc::new();
        found.update(&out[done..done + gave]);
        let word = |at: usize| u32::from_le_bytes(tail[at..at + 4].try_into().expect("four bytes"));
        if found.sum() != word(0) || gave as u32 != word(4) {
            return Err("the gzip data is damaged: its checksum is another".into());
        }
        done += gave;
        rest = &rest[end + 8..];
    }
    if done != skip + length {
        return Err(format!("the gzip data unpacks to {done} bytes, not {}", skip + length));
    }
    Ok(out.freeze().slice(skip..skip + length))
}

/// The first bytes that gzip data unpacks to, `most` at most; it may be cut short.
pub(crate) fn gunzip_start(packed: &[u8], most: usize) -> Result<Vec<u8>, String> {
    let (mut out, mut rest) = (Vec::new(), packed);
    loop {
        let begin = gzip_header(rest)?;
        let (bytes, took, ended) = start(&rest[begin..], most - out.len())?;
        out.extend(bytes);
        rest = rest.get(begin + took + 8..).unwrap_or_default();
        if out.len() == most || !ended || rest.is_empty() {
            return Ok(out);
        }
    }
}

/// The first bytes that deflated data unpacks to, `most` at most; it may be cut short.
pub(crate) fn inflate_start(packed: &[u8], most: usize) -> Result<Vec<u8>, String> {
    Ok(start(packed, most)?.0)
}

/// The first bytes, how many packed ones they took, and whether they were all.
fn start(packed: &[u8], most: usize) -> Result<(Vec<u8>, usize, bool), String> {
    let mut out = vec![0; most];
    let mut state = Decompress::new(false);
    let status = state.decompress(packed, &mut out, FlushDecompress::None);
    out.truncate(state.total_out() as usize);
    match status {
        Err(_) if out.is_empty() => Err("the compressed data is damaged".into()),
        status => Ok((out, state.total_in() as usize, matches!(status, Ok(Status::StreamEnd)))),
    }
}

/// Length of the header of a gzip member.
fn gzip_header(bytes: &[u8]) -> Result<usize, String> {
    let cut = "the gzip data ends too early";
    if bytes.len() >= 2 && bytes[..2] != [0x1F, 0x8B] {
        return Err("it is no gzip file, or something else follows it".into());
    }
    let flags = *bytes.get(3).ok_or(cut)?;
    if bytes[2] != 8 || flags & 0xE0 != 0 {
        return Err("it is gzip of an unknown kind".into());
    }
    let mut at = 10;
    if flags & 4 != 0 {
        let length = bytes.get(at..at + 2).ok_or(cut)?;
        at += 2 + usize::from(u16::from_le_bytes([length[0], length[1]]));
    }
    for flag in [8, 16] {
        if flags & flag != 0 {
            let text = bytes.get(at..).ok_or(cut)?;
            at += text.iter().position(|byte| *byte == 0).ok_or(cut)? + 1;
        }
    }
    if flags & 2 != 0 {
        at += 2;
    }
    if at > bytes.len() { Err(cut.into()) } else { Ok(at) }
}
