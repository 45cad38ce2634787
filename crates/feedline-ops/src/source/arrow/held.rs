//! A column of a record batch: what of it is in memory, and where the rest lies.

use super::blob::Blob;
use crate::codec::arrow::{Column, Kind, Spread, Stored};
use crate::source::parts::{read_piece, unusable};
use crate::volume::{Packing, Part, Volume, bit};
use feedline_core::{
    Buffer, BufferMut, DType, Dim, Error, Extent, Pool, Result, Shape, Store, Tensor, Value,
};
use std::path::Path;
use std::sync::Arc;

pub(super) struct File {
    pub path: Arc<Path>,
    pub size: u64,
    pub modified: i64,
    pub columns: Arc<[Column]>,
}

/// Where rows begin and end among the elements of their column.
pub(super) struct Offsets {
    bytes: Buffer,
    large: bool,
}

impl Offsets {
    pub(super) fn at(&self, row: usize) -> u64 {
        let number = |bytes: &[u8]| {
            bytes.iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte))
        };
        let width = if self.large { 8 } else { 4 };
        number(&self.bytes[row * width..(row + 1) * width])
    }

    /// Whether they rise, within `room` elements. A negative one is a very large one here.
    fn are_right(&self, rows: usize, room: u64) -> bool {
        let limit = if self.large { u64::MAX / 2 } else { u64::from(u32::MAX) / 2 };
        let rises = (0..rows).all(|row| self.at(row) <= self.at(row + 1));
        rises && self.at(rows) <= room.min(limit)
    }

    /// The row that element `at` belongs to, if any.
    fn row_of(&self, at: u64, rows: usize) -> Option<usize> {
        let (mut low, mut high) = (0, rows);
        while low < high {
            let middle = usize::midpoint(low, high);
            if self.at(middle + 1) <= at { low = middle + 1 } else { high = middle }
        }
        (low < rows && self.at(low) <= at).then_some(low)
    }
}

/// Where the values of a column are.
pub(super) enum Values {
    /// In memory, so many bytes a row; or one bit.
    Here(Buffer),
    /// In the file, from this byte on.
    There(u64),
    /// In the file, from this byte on; rows have lengths of their own, and maybe shapes.
    Spans { offsets: Option<Offsets>, start: u64, shapes: Option<Buffer> },
}

/// A column of a record batch.
pub(super) struct Held {
    pub values: Values,
    /// A bit for each row that lacks something.
    pub missing: Option<Vec<u8>>,
}

pub(super) fn aligned(length: u64) -> Result<BufferMut> {
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    Pool::new(0).take(length)
}

fn read(store: &dyn Store, path: &Path, range: std::ops::Range<u64>) -> Result<Buffer> {
    let length = range.end - range.start;
    let mut bytes = aligned(length)?;
    let extent = Extent { path, offset: range.start, length, whole: false, modified: 0 };
    store.read(extent, &mut bytes)?;
    Ok(bytes.freeze())
}

/// Takes in what of a column belongs into memory.
pub(super) fn hold(
    store: &dyn Store,
    file: &File,
    at: usize,
    stored: &Stored,
    rows: u64,
    small: bool,
) -> Result<Held> {
    let column = &file.columns[at];
    let bad = |reason: &str| unusable(&file.path, &format!("column {}: {reason}", column.name));
    let count = usize::try_from(rows).map_err(|_| bad("it has too many rows"))?;
    let values = match &column.kind {
        Kind::Fixed { .. } if small => {
            let bytes = (stored.room * column.element_bits()).div_ceil(8);
            let start = stored.values.start;
            Values::Here(read(store, &file.path, start..start + bytes)?)
        }
        Kind::Fixed { .. } => Values::There(stored.values.start),
        Kind::List { large } | Kind::Shaped { large, .. } | Kind::Blob { large } => {
            let offsets = match &stored.offsets {
                Some(range) => {
                    let bytes = read(store, &file.path, range.clone())?;
                    Some(Offsets { bytes, large: *large })
                }
                None => None,
            };
            if offsets.as_ref().is_some_and(|offsets| !offsets.are_right(count, stored.room)) {
                return Err(bad("it is damaged: its offsets do not rise within its values"));
            }
            let shapes = stored.shapes.clone().map(|range| read(store, &file.path, range));
            Values::Spans { offsets, start: stored.values.start, shapes: shapes.transpose()? }
        }
    };
    let missing = missing_rows(store, &file.path, stored, &values, count)?;
    Ok(Held { values, missing })
}

/// Bytes of a bitmap that are looked at together.
const BITS_AT_ONCE: u64 = 1 << 20;

/// A bit for each row that lacks something; none if nothing is missing.
fn missing_rows(
    store: &dyn Store,
    path: &Path,
    stored: &Stored,
    values: &Values,
    rows: usize,
) -> Result<Option<Vec<u8>>> {
    let mut found: Option<Vec<u8>> = None;
    for (bitmap, spread) in &stored.missing {
        let mut start = bitmap.start;
        while start < bitmap.end {
            let end = bitmap.end.min(start + BITS_AT_ONCE);
            let bytes = read_piece(store, path, start, (end - start) as usize)?;
            for (at, byte) in bytes.iter().enumerate().filter(|(_, byte)| **byte != 0xFF) {
                let first = (start - bitmap.start + at as u64) * 8;
                for one in (0..8).filter(|one| byte >> one & 1 == 0) {
                    let row = match (spread, values) {
                        (Spread::Each(0), _) => None,
                        (Spread::Each(each), _) => usize::try_from((first + one) / each).ok(),
                        (Spread::Offsets, Values::Spans { offsets: Some(offsets), .. }) => {
                            offsets.row_of(first + one, rows)
                        }
                        (Spread::Offsets, _) => None,
                    };
                    if let Some(row) = row.filter(|row| *row < rows) {
                        let marks = found.get_or_insert_with(|| vec![0; rows.div_ceil(8)]);
                        marks[row / 8] |= 1 << (row % 8);
                    }
                }
            }
            start = end;
        }
    }
    Ok(found)
}

impl Held {
    pub(super) fn value(&self, column: &Column, file: &File, row: usize) -> Result<Value> {
        if self.missing.as_ref().is_some_and(|missing| bit(missing, row) == 1) {
            return Err(Error::record(format!("column {} has no value here (null)", column.name)));
        }
        match (&self.values, &column.kind) {
            (Values::Here(bytes), Kind::Fixed { .. }) if column.dtype == DType::Bool => {
                let value = Buffer::from(&[bit(bytes, row)][..]);
                Ok(Tensor::new(DType::Bool, &[], value)?.into())
            }
            (Values::Here(bytes), Kind::Fixed { shape, .. }) => {
                let each = shape.iter().product::<usize>() * column.dtype.size().unwrap_or(1);
                let value = bytes.slice(row * each..(row + 1) * each);
                if shape.is_empty() {
                    // A scalar is kept in the tensor itself.
                    return Ok(Tensor::new(column.dtype, &[1], value)?.row(0).into());
                }
                Ok(Tensor::new(column.dtype, shape, value)?.into())
            }
            (Values::There(start), Kind::Fixed { shape, .. }) => {
                let each = shape.iter().product::<usize>() as u64;
                array(column, file, *start, row as u64 * each, Shape::from_slice(shape))
            }
            (Values::Spans { offsets, start, shapes }, kind) => {
                let span =
                    offsets.as_ref().map_or(0..0, |offsets| offsets.at(row)..offsets.at(row + 1));
                let length = (span.end - span.start) as usize;
                match kind {
                    Kind::Blob { .. } => Ok(Value::Deferred(Box::new(Blob {
                        path: Arc::clone(&file.path),
                        size: file.size,
                        modified: file.modified,
                        offset: start + span.start,
                        length,
                        dtype: column.dtype,
                        bytes: (length == 0).then(|| Buffer::from(&[][..])),
                    }))),
                    Kind::Shaped { shape, .. } => {
                        let sides = sides(shapes.as_ref(), row, shape, length)?;
                        array(column, file, *start, span.start, sides)
                    }
                    _ => array(column, file, *start, span.start, Shape::from_slice(&[length])),
                }
            }
            _ => Err(Error::Internal("a column that is held as another kind".into())),
        }
    }
}

/// The extents of a row that has its own.
fn sides(shapes: Option<&Buffer>, row: usize, known: &[Dim], elements: usize) -> Result<Shape> {
    let axes = known.len();
    let bytes = shapes.and_then(|all| all.get(row * axes * 4..(row + 1) * axes * 4));
    let bytes = bytes.ok_or_else(|| Error::Internal("a row without its shape".into()))?;
    let side = |chunk: &[u8]| {
        let number = i32::from_le_bytes(chunk.try_into().unwrap_or_default());
        usize::try_from(number).ok()
    };
    let sides: Option<Shape> = bytes.chunks_exact(4).map(side).collect();
    let product = |sides: &Shape| sides.iter().try_fold(1usize, |all, side| all.checked_mul(*side));
    let fits = |sides: &Shape| {
        product(sides) == Some(elements)
            && sides.iter().zip(known).all(|(side, known)| known.is_none_or(|known| known == *side))
    };
    sides.filter(fits).ok_or_else(|| {
        let found: Vec<i32> = bytes
            .chunks_exact(4)
            .map(|chunk| i32::from_le_bytes(chunk.try_into().unwrap_or_default()))
            .collect();
        Error::record(format!("a tensor of shape {found:?} with {elements} elements"))
    })
}

/// An array of a file: `first` elements come before it in the values of its column.
fn array(column: &Column, file: &File, start: u64, first: u64, shape: Shape) -> Result<Value> {
    let elements = shape.iter().product::<usize>();
    if elements == 0 {
        return Ok(Tensor::new(column.dtype, &shape, Buffer::from(&[][..]))?.into());
    }
    let (offset, stored, packing) = match column.dtype.size() {
        Some(_) if column.dtype == DType::Bool => {
            let skip = (first % 8) as usize;
            (start + first / 8, (skip + elements).div_ceil(8), Packing::Bits { skip })
        }
        size => {
            let size = size.unwrap_or(1);
            (start + first * size as u64, elements * size, Packing::Plain)
        }
    };
    Ok(Value::Deferred(Box::new(Volume::new(Part {
        path: Arc::clone(&file.path),
        size: file.size,
        modified: file.modified,
        offset,
        stored,
        packing,
        dtype: column.dtype,
        swapped: false,
        fortran: false,
        rescale: None,
        widened: None,
        shape,
        row: None,
    }))))
}
