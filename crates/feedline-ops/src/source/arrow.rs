//! Arrow files: a folder of shards in the IPC file format, or one of them.
//!
//! ```text
//!  index ──► file, record batch, row ──► ranges of the file ──► the batch's row
//! ```
//!
//! What says where a row lies (offsets), and columns of a few bytes a row, are read when the data is
//! opened. Larger values are read straight to where they are needed, and only if they are. Files are
//! not mapped: one that is cut short while it is mapped would end the process, and values that go
//! into a batch are copied once either way.

use super::cases::{ends_with, inside, is_hidden};
use super::parts::{read_piece, unusable};
use crate::codec::arrow::{self, Batch, Column, Footer, Kind, Spread, Stored};
use crate::registry::step;
use crate::sink::{TABLE, Table, shard_name};
use crate::volume::{Packing, Part, Volume, bit};
use feedline_core::{
    Blobs, Buffer, BufferMut, Context, Cut, DType, Deferred, Dim, Entry, Error, Extent, Field,
    Layout, Name, Pool, Result, Sample, Shape, Source, SourceRecipe, Spec, Store, Tensor, Value,
};
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The rows of Arrow files (IPC file format): those of a folder in byte order of their names, or of
/// one file. `feedline save` and `Dataset.save` write such folders, and so do others.
///
/// Columns are fields: numbers and truth values, lists and tensors of them, bytes and text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arrow {
    /// The folder, searched at any depth, or the file.
    pub path: PathBuf,
    /// The fields, as found in the files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fields: Option<Vec<ArrowField>>,
}

/// A field, as found in the files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArrowField {
    /// The column's name.
    pub name: Name,
    /// The type of its elements.
    pub dtype: DType,
    /// Its shape; null where rows differ.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shape: Vec<Dim>,
    /// How it lies in memory, if it is an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<Layout>,
}

step!(Arrow, "arrow", Source, Arrow::resolve);

/// Columns of at most so many bytes a row are held in memory …
const SMALL_ROW: u64 = 256;
/// … as long as they have no more bytes together than this.
const HELD: u64 = 256 << 20;

impl ArrowField {
    fn of(field: &Field) -> Self {
        let Field { name, dtype, shape, layout } = field.clone();
        Self { name, dtype, shape, layout }
    }

    fn field(&self) -> Field {
        let Self { name, dtype, shape, layout } = self.clone();
        Field { name, dtype, shape, layout }
    }
}

impl Arrow {
    /// Settles the fields by a look at the first file.
    fn resolve(self, store: &dyn Store) -> Result<Self> {
        if self.fields.is_some() {
            return Ok(self);
        }
        let entries = self.files(store)?;
        let footer = read_footer(store, &entries[0])?;
        let fields = footer.columns.iter().map(|column| ArrowField::of(&column.field()));
        Ok(Self { fields: Some(fields.collect()), ..self })
    }

    /// The files, in their order.
    fn files(&self, store: &dyn Store) -> Result<Vec<Entry>> {
        let listed = store.list(&self.path)?;
        if let [only] = &listed[..]
            && only.path == self.path
        {
            return Ok(listed);
        }
        let table = self.path.join(TABLE);
        if listed.iter().any(|entry| entry.path == table) {
            return self.shards(&Table::of_folder(store, &self.path)?, listed);
        }
        let total = listed.len();
        let is_arrow = |path: &Path| ends_with(path, ".arrow") || ends_with(path, ".feather");
        let fits = |entry: &Entry| is_arrow(&entry.path) && !is_hidden(&self.path, &entry.path);
        let entries: Vec<Entry> = listed.into_iter().filter(fits).collect();
        if entries.is_empty() {
            let found = match total {
                0 => "it is empty".to_owned(),
                _ => format!("none of its {total} files is called *.arrow or *.feather"),
            };
            return Err(Error::Source(format!(
                "no Arrow files in {}: {found}",
                self.path.display()
            )));
        }
        Ok(entries)
    }

    /// The files of a folder that Feedline wrote: exactly those that its table names.
    fn shards(&self, table: &Table, listed: Vec<Entry>) -> Result<Vec<Entry>> {
        let folder = self.path.display();
        let mut listed: std::collections::HashMap<PathBuf, Entry> =
            listed.into_iter().map(|entry| (entry.path.clone(), entry)).collect();
        let mut entries = Vec::new();
        for number in 0..table.shards {
            entries.extend(listed.remove(&self.path.join(shard_name(number))));
        }
        let missing = table.shards - entries.len() as u64;
        if missing > 0 || !table.complete {
            let what = match missing {
                0 => {
                    "is not complete: its last shard was written, its end was not noted".to_owned()
                }
                _ => {
                    format!("is not complete: {missing} of its {} shards are missing", table.shards)
                }
            };
            return Err(Error::Source(format!(
                "{folder} {what}; go on by saving the same pipeline there again"
            )));
        }
        Ok(entries)
    }
}

impl SourceRecipe for Arrow {
    fn spec(&self) -> Result<Spec> {
        let fields = self.fields.as_ref().ok_or_else(|| {
            Error::pipeline(
                "arrow: the types of its fields are not in the plan; check it where its files are",
            )
        })?;
        if fields.is_empty() {
            return Err(Error::pipeline("arrow: fields is empty; leave it out"));
        }
        for (at, field) in fields.iter().enumerate() {
            if fields[..at].iter().any(|other| other.name == field.name) {
                return Err(Error::pipeline(format!("arrow: {} is given twice", field.name)));
            }
            let image = field.shape.len() == 3 && field.dtype.size().is_some();
            if field.layout.is_some() && !image {
                return Err(Error::pipeline(format!("arrow: {} is no image", field.field())));
            }
        }
        Ok(Spec::new(fields.iter().map(ArrowField::field).collect()))
    }

    fn open(&self, store: &dyn Store, _: &Blobs) -> Result<Arc<dyn Source>> {
        let spec = self.spec()?;
        Ok(Arc::new(Rows::open(store, &self.path, self.files(store)?, spec)?))
    }
}

// ------------------------------------------------------------------------------------- opening

fn aligned(length: u64) -> Result<BufferMut> {
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    Pool::new(0).take(length)
}

fn read(store: &dyn Store, path: &Path, range: std::ops::Range<u64>) -> Result<Buffer> {
    let length = range.end - range.start;
    let mut bytes = aligned(length)?;
    store.read(Extent { path, offset: range.start, length, whole: false }, &mut bytes)?;
    Ok(bytes.freeze())
}

/// Reads what a file says of itself.
fn read_footer(store: &dyn Store, entry: &Entry) -> Result<Footer> {
    let path = &*entry.path;
    let footer = arrow::read_footer(entry.size, &mut |offset, out| {
        store.read(Extent { path, offset, length: out.len() as u64, whole: false }, out)
    });
    footer?.map_err(|reason| unusable(path, &reason))
}

/// Reads where the columns of a record batch lie.
fn read_batch(store: &dyn Store, entry: &Entry, footer: &Footer, block: usize) -> Result<Batch> {
    let path = &*entry.path;
    let (offset, metadata, body) = footer.blocks[block];
    let bad = |reason: String| unusable(path, &format!("record batch {block}: {reason}"));
    let head = read_piece(store, path, offset, metadata as usize)?;
    // A length precedes the metadata, and since 2019 a mark precedes the length.
    let skip = if head[..4] == [0xFF; 4] { 8 } else { 4 };
    let mut bytes = aligned(metadata - skip)?;
    bytes.copy_from_slice(&head[skip as usize..]);
    let start = offset + metadata;
    arrow::record_batch(&bytes, start..start + body, &footer.columns).map_err(bad)
}

/// Where rows begin and end among the elements of their column.
struct Offsets {
    bytes: Buffer,
    large: bool,
}

impl Offsets {
    fn at(&self, row: usize) -> u64 {
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
enum Values {
    /// In memory, so many bytes a row; or one bit.
    Here(Buffer),
    /// In the file, from this byte on.
    There(u64),
    /// In the file, from this byte on; rows have lengths of their own, and maybe shapes.
    Spans { offsets: Option<Offsets>, start: u64, shapes: Option<Buffer> },
}

/// A column of a record batch.
struct Held {
    values: Values,
    /// A bit for each row that lacks something.
    missing: Option<Vec<u8>>,
}

/// A record batch.
struct Piece {
    file: usize,
    /// Rows before it in its file.
    before: u64,
    columns: Vec<Held>,
}

struct File {
    path: Arc<Path>,
    size: u64,
    modified: i64,
    columns: Arc<[Column]>,
}

/// The opened source.
struct Rows {
    root: PathBuf,
    fields: Vec<Field>,
    files: Vec<File>,
    pieces: Vec<Piece>,
    /// Where the rows of each piece begin, and the number of all.
    starts: Vec<u64>,
    bytes: u64,
    manifest: String,
}

impl Rows {
    fn open(store: &dyn Store, root: &Path, entries: Vec<Entry>, spec: Spec) -> Result<Self> {
        let mut hash = blake3::Hasher::new();
        hash.update(b"arrow").update(spec.to_string().as_bytes());
        let (mut files, mut found) = (Vec::new(), Vec::new());
        let mut total = 0u64;
        for (file, entry) in entries.iter().enumerate() {
            let mut footer = read_footer(store, entry)?;
            check(entry, &footer.columns, &spec)?;
            let name = inside(root, &entry.path);
            hash.update(&(name.len() as u64).to_le_bytes()).update(name);
            hash.update(&entry.size.to_le_bytes()).update(&entry.modified.to_le_bytes());
            let mut before = 0u64;
            for block in 0..footer.blocks.len() {
                let batch = read_batch(store, entry, &footer, block)?;
                hash.update(&batch.rows.to_le_bytes());
                let rows = batch.rows;
                total = total
                    .checked_add(rows)
                    .filter(|total| *total < 1 << 60)
                    .ok_or_else(|| unusable(&entry.path, "it has too many rows"))?;
                found.push((file, before, batch));
                before += rows;
            }
            let columns = std::mem::take(&mut footer.columns).into();
            let (path, size, modified) = (Arc::from(&*entry.path), entry.size, entry.modified);
            files.push(File { path, size, modified, columns });
        }
        let held = small_columns(&spec, total);
        let (mut pieces, mut starts, mut end) = (Vec::new(), vec![0], 0);
        for (file, before, batch) in found {
            if batch.rows == 0 {
                continue;
            }
            let mut columns = Vec::new();
            for (at, stored) in batch.columns.iter().enumerate() {
                columns.push(hold(store, &files[file], at, stored, batch.rows, held[at])?);
            }
            pieces.push(Piece { file, before, columns });
            end += batch.rows;
            starts.push(end);
        }
        let manifest = hash.finalize().to_hex()[..32].to_owned();
        let bytes = entries.iter().map(|entry| entry.size).sum();
        Ok(Self {
            root: root.to_owned(),
            fields: spec.fields,
            files,
            pieces,
            starts,
            bytes,
            manifest,
        })
    }

    /// The piece that sample `index` lies in, and its row there.
    fn place(&self, index: u64) -> (&Piece, u64) {
        let at = self.starts.partition_point(|start| *start <= index) - 1;
        (&self.pieces[at], index - self.starts[at])
    }
}

/// Whether a file has the columns that the plan says.
fn check(entry: &Entry, columns: &[Column], spec: &Spec) -> Result<()> {
    let found = Spec::new(columns.iter().map(Column::field).collect());
    if found == *spec {
        return Ok(());
    }
    let reason = format!("it holds {found}, where the plan says {spec}");
    Err(unusable(&entry.path, &reason))
}

/// Which columns are held in memory: small ones, as long as there is room.
fn small_columns(spec: &Spec, rows: u64) -> Vec<bool> {
    let mut room = HELD;
    let small = |field: &Field| {
        let bytes = field.bytes().map(|bytes| bytes as u64).filter(|bytes| *bytes <= SMALL_ROW)?;
        // Truth values are one bit each; only single ones are worth the trouble.
        let bytes = match (field.dtype, field.shape.is_empty()) {
            (DType::Bool, false) => return None,
            (DType::Bool, true) => rows.div_ceil(8),
            _ => rows.checked_mul(bytes)?,
        };
        room = room.checked_sub(bytes)?;
        Some(())
    };
    let mut small = small;
    spec.fields.iter().map(|field| small(field).is_some()).collect()
}

/// Takes in what of a column belongs into memory.
fn hold(
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

// ------------------------------------------------------------------------------------- reading

impl Held {
    fn value(&self, column: &Column, file: &File, row: usize) -> Result<Value> {
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

/// Bytes or text that lie in a file.
struct Blob {
    path: Arc<Path>,
    size: u64,
    modified: i64,
    offset: u64,
    length: usize,
    dtype: DType,
    /// What was read.
    bytes: Option<Buffer>,
}

impl Blob {
    fn check(dtype: DType, bytes: &[u8]) -> Result<()> {
        match dtype {
            DType::Text => std::str::from_utf8(bytes)
                .map(|_| ())
                .map_err(|error| Error::record(format!("it is not UTF-8: {error}"))),
            _ => Ok(()),
        }
    }
}

impl Deferred for Blob {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn shape(&self) -> Shape {
        Shape::new()
    }

    fn bytes(&self) -> usize {
        self.length
    }

    fn write(self: Box<Self>, out: &mut [u8], _: &mut Context<'_>) -> Result<()> {
        if let Some(bytes) = &self.bytes {
            out.copy_from_slice(bytes);
        }
        Self::check(self.dtype, out)
    }

    fn wants(&self) -> Option<Cut<'_>> {
        let cut = Cut::range(&self.path, self.size, self.offset, self.length);
        self.bytes.is_none().then_some(Cut { modified: self.modified, ..cut })
    }

    fn in_place(&self) -> bool {
        true
    }

    fn supply(&mut self, bytes: Buffer) {
        self.bytes = Some(bytes);
    }

    fn as_supplied(&mut self) -> Result<Option<Tensor>> {
        let Some(bytes) = self.bytes.take() else { return Ok(None) };
        Self::check(self.dtype, &bytes)?;
        Tensor::new(self.dtype, &[], bytes).map(Some)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

impl Source for Rows {
    fn length(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    fn locate(&self, _: u64) -> Option<Extent<'_>> {
        None
    }

    fn parse(&self, index: u64, _: Option<Buffer>) -> Result<Sample> {
        let (piece, row) = self.place(index);
        let file = &self.files[piece.file];
        let mut sample = Sample::new();
        for (column, held) in file.columns.iter().zip(&piece.columns) {
            sample.set(column.name, held.value(column, file, row as usize)?);
        }
        Ok(sample)
    }

    fn origin(&self, index: u64) -> String {
        let (piece, row) = self.place(index);
        format!("{}[{}]", self.files[piece.file].path.display(), piece.before + row)
    }

    fn manifest(&self) -> String {
        self.manifest.clone()
    }

    fn weight(&self, index: u64) -> u64 {
        let (piece, row) = self.place(index);
        let columns = self.files[piece.file].columns.iter();
        let bytes = |(column, held): (&Column, &Held)| match &held.values {
            Values::Here(_) => 0,
            Values::There(_) => column.field().bytes().unwrap_or(0) as u64,
            Values::Spans { offsets, .. } => {
                let row = row as usize;
                let length = offsets.as_ref().map_or(0, |all| all.at(row + 1) - all.at(row));
                length * column.element_bits() / 8
            }
        };
        columns.zip(&piece.columns).map(bytes).sum()
    }

    fn column(&self, field: &str) -> Option<Vec<i64>> {
        let at = self.fields.iter().position(|known| known.name == field)?;
        let known = &self.fields[at];
        if !known.shape.is_empty() || !known.dtype.is_integer() {
            return None;
        }
        let mut all = Vec::new();
        for piece in &self.pieces {
            let held = &piece.columns[at];
            let Values::Here(bytes) = &held.values else { return None };
            if held.missing.is_some() {
                return None;
            }
            let rows = bytes.len() / known.dtype.size()?;
            let tensor = Tensor::new(known.dtype, &[rows], bytes.clone()).ok()?;
            all.extend(crate::table::to_i64(&tensor)?);
        }
        Some(all)
    }

    fn key(&self, index: u64) -> Option<Vec<u8>> {
        let (piece, row) = self.place(index);
        let mut key = inside(&self.root, &self.files[piece.file].path).to_vec();
        key.extend(format!("[{}]", piece.before + row).bytes());
        Some(key)
    }

    fn stored_bytes(&self) -> Option<u64> {
        Some(self.bytes)
    }
}
