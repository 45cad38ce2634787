//! Arrow's IPC file format: what the columns of a file are, and where their bytes lie.
//!
//! ```text
//!  ARROW1 │ schema │ record batch │ record batch │ … │ footer │ its length │ ARROW1
//!                    └ metadata, then buffers ◄───────── blocks
//! ```
//!
//! Only metadata is read here, never a value. It comes from outside: whatever it says is checked
//! against the length of the file before anyone goes by it.

use arrow_ipc::{
    Block, CompressionType, Endianness, Field as FieldTable, KeyValue, MessageHeader,
    MetadataVersion, Precision, Type, root_as_footer, root_as_message,
};
use feedline_core::{DType, Dim, Field, Layout, Name, Pool};
use flatbuffers::{ForwardsUOffset, Vector};
use std::ops::Range;

/// What a file begins and ends with.
pub(crate) const MAGIC: &[u8; 6] = b"ARROW1";
/// Bytes after the footer: its length, and the magic.
const TAIL: u64 = 10;
/// Metadata beyond this is taken for damage.
const LARGEST_METADATA: u64 = 256 << 20;
/// Lists within lists beyond this are taken for a mistake.
const DEEPEST: usize = 8;
/// More rows than this are taken for damage.
const MOST_ROWS: u64 = 1 << 48;

/// Names of extensions and of their arguments, as Arrow's documents have them.
pub(crate) const EXTENSION: &str = "ARROW:extension:name";
pub(crate) const EXTENSION_ARGUMENTS: &str = "ARROW:extension:metadata";
pub(crate) const FIXED_TENSOR: &str = "arrow.fixed_shape_tensor";
pub(crate) const VARIABLE_TENSOR: &str = "arrow.variable_shape_tensor";
/// Our own notes on a field: a dtype that Arrow lacks, and how an image lies in memory.
pub(crate) const DTYPE: &str = "feedline:dtype";
pub(crate) const LAYOUT: &str = "feedline:layout";

/// How the values of a column are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One after another, all of one shape; a number has none. So many lists of a fixed size lie
    /// around it.
    Fixed { shape: Vec<usize>, lists: usize },
    /// Numbers, as many as the row's offsets say; offsets have 64 bits if it is large.
    List { large: bool },
    /// The same with a shape beside it; extents that all rows share are known.
    Shaped { large: bool, shape: Vec<Dim> },
    /// Bytes or text.
    Blob { large: bool },
}

/// A column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    pub name: Name,
    pub dtype: DType,
    pub kind: Kind,
    pub layout: Option<Layout>,
}

impl Column {
    /// The field that it makes.
    pub(crate) fn field(&self) -> Field {
        let shape = match &self.kind {
            Kind::Fixed { shape, .. } => shape.iter().map(|side| Some(*side)).collect(),
            Kind::List { .. } => vec![None],
            Kind::Shaped { shape, .. } => shape.clone(),
            Kind::Blob { .. } => Vec::new(),
        };
        Field { name: self.name, dtype: self.dtype, shape, layout: self.layout }
    }

    /// Bits of one element.
    pub(crate) fn element_bits(&self) -> u64 {
        match self.dtype {
            DType::Bool => 1,
            dtype => dtype.size().unwrap_or(1) as u64 * 8,
        }
    }
}

/// What a footer says.
#[derive(Debug)]
pub(crate) struct Footer {
    pub columns: Vec<Column>,
    /// Metadata of the schema, and of the file.
    pub notes: Vec<(String, String)>,
    /// Where the record batches lie: first byte, bytes of metadata, bytes of buffers.
    pub blocks: Vec<(u64, u64, u64)>,
}

/// Where the bytes of a column lie in a record batch, counted from the start of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    /// Bits that say which rows, or which of their elements, are there; with how many bits belong
    /// to each row of the column. None if nothing is missing.
    pub missing: Vec<(Range<u64>, Spread)>,
    pub offsets: Option<Range<u64>>,
    pub values: Range<u64>,
    /// The elements that `values` has room for.
    pub room: u64,
    /// The extents of rows that have a shape of their own.
    pub shapes: Option<Range<u64>>,
}

/// Which bits of a bitmap belong to a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spread {
    /// So many each.
    Each(u64),
    /// As many as its offsets say.
    Offsets,
}

/// A record batch: its rows, and where its columns lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    pub rows: u64,
    pub columns: Vec<Stored>,
}

/// Bytes of the footer of a file of `size` bytes, out of the last ten.
///
/// # Errors
///
/// If it is no Arrow file, or was cut short.
fn footer_length(tail: &[u8], size: u64) -> Result<u64, String> {
    if tail.len() < TAIL as usize || size < 8 + TAIL {
        return Err("it is too short for an Arrow file".into());
    }
    let end = &tail[tail.len() - TAIL as usize..];
    if &end[4..] != MAGIC {
        return Err(
            "it does not end like an Arrow file: it was cut short, or is of the stream format"
                .into(),
        );
    }
    let length = i32::from_le_bytes([end[0], end[1], end[2], end[3]]);
    match u64::try_from(length) {
        Ok(length) if length > 0 && length <= (size - 8 - TAIL).min(LARGEST_METADATA) => Ok(length),
        _ => Err(format!("it is damaged: a footer of {length} bytes in a file of {size}")),
    }
}

/// Bytes at the end of a file that are read first; most footers are shorter.
const END: u64 = 64 << 10;

/// Reads the footer of a file of `size` bytes; `read` fills a buffer from an offset on.
///
/// # Errors
///
/// What `read` fails with, or why it is no file that can be read here.
pub(crate) fn read_footer(
    size: u64,
    read: &mut dyn FnMut(u64, &mut [u8]) -> feedline_core::Result<()>,
) -> feedline_core::Result<Result<Footer, String>> {
    let mut tail = vec![0; size.min(END) as usize];
    read(size - tail.len() as u64, &mut tail)?;
    let length = match footer_length(&tail, size) {
        Ok(length) => length,
        Err(reason) => return Ok(Err(reason)),
    };
    let start = size - TAIL - length;
    // Metadata is read where it lies at a multiple of eight bytes.
    let mut bytes = Pool::new(0).take(length as usize)?;
    match tail.len().checked_sub((length + TAIL) as usize) {
        Some(begin) => bytes.copy_from_slice(&tail[begin..begin + length as usize]),
        None => read(start, &mut bytes)?,
    }
    Ok(footer(&bytes, start))
}

type Notes<'a> = Option<Vector<'a, ForwardsUOffset<KeyValue<'a>>>>;

fn notes(pairs: Notes<'_>) -> Vec<(String, String)> {
    let pair = |pair: KeyValue<'_>| {
        (pair.key().unwrap_or("").to_owned(), pair.value().unwrap_or("").to_owned())
    };
    pairs.into_iter().flatten().map(pair).collect()
}

fn note<'a>(notes: &'a [(String, String)], key: &str) -> Option<&'a str> {
    notes.iter().find(|(known, _)| known == key).map(|(_, value)| &**value)
}

fn damaged(what: impl std::fmt::Display) -> String {
    format!("it is damaged: {what}")
}

/// Reads a footer, whose bytes begin at a multiple of eight. `end` is where it begins in the file.
///
/// # Errors
///
/// If it is damaged, or says what is not read here.
fn footer(bytes: &[u8], end: u64) -> Result<Footer, String> {
    let footer = root_as_footer(bytes).map_err(|error| damaged(summary(&error)))?;
    if footer.version() < MetadataVersion::V4 || footer.version() > MetadataVersion::V5 {
        return Err(format!(
            "it is of version {:?} of the format; V4 and V5 are read",
            footer.version()
        ));
    }
    let schema = footer.schema().ok_or_else(|| damaged("it has no schema"))?;
    if schema.endianness() != Endianness::Little || cfg!(target_endian = "big") {
        return Err(
            "its numbers are big-endian, or this machine is; only little-endian ones are read"
                .into(),
        );
    }
    let mut columns: Vec<Column> = Vec::new();
    for field in schema.fields().into_iter().flatten() {
        let column = column(field)?;
        if columns.iter().any(|known| known.name == column.name) {
            return Err(format!("it has two columns called {}", column.name));
        }
        columns.push(column);
    }
    if columns.is_empty() {
        return Err("it has no columns".into());
    }
    let mut blocks = Vec::new();
    for block in footer.recordBatches().into_iter().flatten() {
        blocks.push(place(block, end)?);
    }
    let mut all = notes(schema.custom_metadata());
    all.extend(notes(footer.custom_metadata()));
    Ok(Footer { columns, notes: all, blocks })
}

/// The first line of what the verifier says.
fn summary(error: &impl std::fmt::Display) -> String {
    error.to_string().lines().next().unwrap_or_default().trim_end_matches('.').to_owned()
}

/// Where a record batch lies, if that is before the footer.
fn place(block: &Block, end: u64) -> Result<(u64, u64, u64), String> {
    let numbers = (
        u64::try_from(block.offset()),
        u64::try_from(block.metaDataLength()),
        u64::try_from(block.bodyLength()),
    );
    if let (Ok(offset), Ok(metadata), Ok(body)) = numbers
        && (8..=LARGEST_METADATA).contains(&metadata)
        && offset >= 8
        && offset
            .checked_add(metadata)
            .and_then(|sum| sum.checked_add(body))
            .is_some_and(|sum| sum <= end)
    {
        return Ok((offset, metadata, body));
    }
    Err(damaged("a record batch lies outside the file"))
}

// ------------------------------------------------------------------------------------- schema

/// What a field of the schema is to us.
fn column(field: FieldTable<'_>) -> Result<Column, String> {
    let name = field.name().unwrap_or("");
    let refused = |what: String| format!("column {name:?} {what}");
    if name.is_empty() {
        return Err("it has a column without a name".into());
    }
    if field.dictionary().is_some() {
        return Err(refused(
            "is dictionary-encoded, which is not read; decode it before it is written (pyarrow: \
             column.cast(column.type.value_type))"
                .into(),
        ));
    }
    let all = notes(field.custom_metadata());
    let extension = note(&all, EXTENSION);
    let arguments = note(&all, EXTENSION_ARGUMENTS);
    let (dtype, kind) = match extension {
        Some(VARIABLE_TENSOR) => variable_tensor(field, arguments).map_err(refused)?,
        Some(FIXED_TENSOR) => fixed_tensor(field, arguments).map_err(refused)?,
        _ => plain(field, 0).map_err(refused)?,
    };
    let dtype = match note(&all, DTYPE) {
        Some("bfloat16") if dtype == DType::U16 => DType::BF16,
        _ => dtype,
    };
    let layout = match note(&all, LAYOUT) {
        Some("HWC") => Some(Layout::Hwc),
        Some("CHW") => Some(Layout::Chw),
        _ => None,
    };
    let mut column = Column { name: Name::new(name), dtype, kind, layout };
    // Only what has three dimensions, and pixels, can be an image.
    if column.field().shape.len() != 3 || column.field().shape.contains(&Some(0)) {
        column.layout = None;
    }
    Ok(column)
}

/// The only child of a list.
fn child(field: FieldTable<'_>) -> Result<FieldTable<'_>, String> {
    match field.children() {
        Some(children) if children.len() == 1 => Ok(children.get(0)),
        _ => Err("is a list of nothing".into()),
    }
}

/// The dtype of numbers, if they are of a type that is read.
fn numbers(field: FieldTable<'_>) -> Option<DType> {
    if field.dictionary().is_some() {
        return None;
    }
    Some(match field.type_type() {
        Type::Bool => DType::Bool,
        Type::Int => {
            let int = field.type_as_int()?;
            match (int.bitWidth(), int.is_signed()) {
                (8, false) => DType::U8,
                (8, true) => DType::I8,
                (16, false) => DType::U16,
                (16, true) => DType::I16,
                (32, false) => DType::U32,
                (32, true) => DType::I32,
                (64, false) => DType::U64,
                (64, true) => DType::I64,
                _ => return None,
            }
        }
        Type::FloatingPoint => match field.type_as_floating_point()?.precision() {
            Precision::HALF => DType::F16,
            Precision::SINGLE => DType::F32,
            Precision::DOUBLE => DType::F64,
            _ => return None,
        },
        _ => return None,
    })
}

fn unread(field: FieldTable<'_>) -> String {
    let kind = field.type_type().variant_name().unwrap_or("a type from the future");
    let dictionary = if field.dictionary().is_some() { " of a dictionary" } else { "" };
    format!(
        "is {kind}{dictionary}, which is not read; read are bool, whole and floating-point numbers, \
         lists of them (fixed in size or not), tensors, bytes and text"
    )
}

fn plain(field: FieldTable<'_>, depth: usize) -> Result<(DType, Kind), String> {
    if let Some(dtype) = numbers(field) {
        return Ok((dtype, Kind::Fixed { shape: Vec::new(), lists: 0 }));
    }
    if depth >= DEEPEST {
        return Err(format!("has lists within lists, more than {DEEPEST} deep"));
    }
    match field.type_type() {
        Type::FixedSizeList => {
            let size = field.type_as_fixed_size_list().map_or(-1, |list| list.listSize());
            let size = usize::try_from(size).map_err(|_| damaged("a list of negative size"))?;
            match plain(child(field)?, depth + 1)? {
                (dtype, Kind::Fixed { mut shape, lists }) => {
                    shape.insert(0, size);
                    elements(&shape)?;
                    Ok((dtype, Kind::Fixed { shape, lists: lists + 1 }))
                }
                _ => Err(unread(child(field)?)),
            }
        }
        kind @ (Type::List | Type::LargeList) => match numbers(child(field)?) {
            Some(dtype) => Ok((dtype, Kind::List { large: kind == Type::LargeList })),
            None => Err(format!("is a list, and its element {}", unread(child(field)?))),
        },
        Type::Binary => Ok((DType::Bytes, Kind::Blob { large: false })),
        Type::LargeBinary => Ok((DType::Bytes, Kind::Blob { large: true })),
        Type::Utf8 => Ok((DType::Text, Kind::Blob { large: false })),
        Type::LargeUtf8 => Ok((DType::Text, Kind::Blob { large: true })),
        _ => Err(unread(field)),
    }
}

/// The number of elements of a shape, which must be below 2^40.
fn elements(shape: &[usize]) -> Result<usize, String> {
    let product = shape.iter().try_fold(1usize, |all, side| all.checked_mul(*side));
    product.filter(|all| *all < 1 << 40).ok_or_else(|| damaged(format!("a shape of {shape:?}")))
}

fn arguments_of(text: Option<&str>) -> Result<serde_json::Value, String> {
    serde_json::from_str(text.unwrap_or("{}"))
        .map_err(|error| format!("is a tensor whose metadata is no JSON: {error}"))
}

/// Whether a permutation changes nothing.
fn is_straight(arguments: &serde_json::Value) -> bool {
    match arguments.get("permutation") {
        None | Some(serde_json::Value::Null) => true,
        Some(list) => list.as_array().is_some_and(|list| {
            list.iter().enumerate().all(|(at, axis)| axis.as_u64() == Some(at as u64))
        }),
    }
}

fn fixed_tensor(field: FieldTable<'_>, text: Option<&str>) -> Result<(DType, Kind), String> {
    let (dtype, kind) = plain(field, 0)?;
    let arguments = arguments_of(text)?;
    if !is_straight(&arguments) {
        return Err("is a tensor whose axes are permuted, which is not read".into());
    }
    let sides = arguments.get("shape").and_then(|shape| shape.as_array());
    let shape: Option<Vec<usize>> = sides
        .and_then(|sides| sides.iter().map(|side| usize::try_from(side.as_u64()?).ok()).collect());
    match (kind, shape) {
        (Kind::Fixed { shape: stored, lists }, Some(shape))
            if shape.len() <= 32 && elements(&shape)? == elements(&stored)? =>
        {
            Ok((dtype, Kind::Fixed { shape, lists }))
        }
        _ => Err(damaged("a tensor whose shape is not that of what is stored")),
    }
}

fn variable_tensor(field: FieldTable<'_>, text: Option<&str>) -> Result<(DType, Kind), String> {
    let wrong = || damaged("a tensor that is not stored as data and shape");
    let children = field.children().filter(|children| children.len() == 2).ok_or_else(wrong)?;
    let (data, sides) = (children.get(0), children.get(1));
    if field.type_type() != Type::Struct_
        || data.name() != Some("data")
        || sides.name() != Some("shape")
    {
        return Err(wrong());
    }
    let (dtype, Kind::List { large }) = plain(data, 1)? else { return Err(wrong()) };
    let (DType::I32, Kind::Fixed { shape: axes, lists: 1 }) = plain(sides, 1)? else {
        return Err(wrong());
    };
    let axes = axes.first().copied().filter(|axes| *axes <= 32).ok_or_else(wrong)?;
    let arguments = arguments_of(text)?;
    if !is_straight(&arguments) {
        return Err("is a tensor whose axes are permuted, which is not read".into());
    }
    let known = arguments.get("uniform_shape").and_then(|shape| shape.as_array());
    let side =
        |at: usize| known.and_then(|known| known.get(at)?.as_u64()).map(|side| side as usize);
    Ok((dtype, Kind::Shaped { large, shape: (0..axes).map(side).collect() }))
}

// -------------------------------------------------------------------------------- record batches

/// Reads the metadata of a record batch, whose bytes begin at a multiple of eight (after the length
/// that precedes them). `body` is where its buffers lie in the file.
///
/// # Errors
///
/// If it is damaged, compressed, or lies outside its place.
pub(crate) fn record_batch(
    metadata: &[u8],
    body: Range<u64>,
    columns: &[Column],
) -> Result<Batch, String> {
    let message = root_as_message(metadata).map_err(|error| damaged(summary(&error)))?;
    let batch = match message.header_type() {
        MessageHeader::RecordBatch => message.header_as_record_batch(),
        _ => None,
    };
    let batch = batch.ok_or_else(|| damaged("a block that is no record batch"))?;
    if let Some(compression) = batch.compression() {
        let how = match compression.codec() {
            CompressionType::LZ4_FRAME => "lz4",
            CompressionType::ZSTD => "zstd",
            _ => "an unknown method",
        };
        return Err(format!(
            "it is compressed by {how}, and rows of compressed batches cannot be read by themselves; \
             write it without compression (pyarrow: IpcWriteOptions(compression=None), \
             write_feather(compression=\"uncompressed\"))"
        ));
    }
    let rows = u64::try_from(batch.length()).ok().filter(|rows| *rows <= MOST_ROWS);
    let rows = rows.ok_or_else(|| damaged(format!("a batch of {} rows", batch.length())))?;
    let mut cursor = Cursor {
        nodes: batch.nodes().into_iter().flatten().map(|n| (n.length(), n.null_count())).collect(),
        buffers: batch.buffers().into_iter().flatten().map(|b| (b.offset(), b.length())).collect(),
        body,
        node: 0,
        buffer: 0,
    };
    let stored = |column: &Column| {
        cursor.column(column, rows).map_err(|error| format!("column {}: {error}", column.name))
    };
    let columns = columns.iter().map(stored).collect::<Result<_, _>>()?;
    if cursor.node != cursor.nodes.len() || cursor.buffer != cursor.buffers.len() {
        return Err(damaged("a record batch with more buffers than columns"));
    }
    Ok(Batch { rows, columns })
}

/// Goes through the nodes and buffers of a batch in the order of its columns.
struct Cursor {
    nodes: Vec<(i64, i64)>,
    buffers: Vec<(i64, i64)>,
    body: Range<u64>,
    node: usize,
    buffer: usize,
}

impl Cursor {
    /// The next node, which has at least `rows` rows: how many, and whether some are missing.
    fn node(&mut self, rows: u64) -> Result<(u64, bool), String> {
        let next = self.nodes.get(self.node).copied();
        self.node += 1;
        let (length, missing) = next.ok_or_else(|| damaged("fewer columns than in the schema"))?;
        match (u64::try_from(length), u64::try_from(missing)) {
            (Ok(length), Ok(missing)) if length >= rows && missing <= length => {
                Ok((length, missing > 0))
            }
            _ => {
                Err(damaged(format!("{length} values, {missing} of them missing, in {rows} rows")))
            }
        }
    }

    /// The next buffer, which has at least `needed` bytes.
    fn buffer(&mut self, needed: Option<u64>) -> Result<Range<u64>, String> {
        let next = self.buffers.get(self.buffer).copied();
        self.buffer += 1;
        let (offset, length) = next.ok_or_else(|| damaged("fewer buffers than in the schema"))?;
        let space = self.body.end - self.body.start;
        if let (Ok(offset), Ok(length), Some(needed)) =
            (u64::try_from(offset), u64::try_from(length), needed)
            && offset.checked_add(length).is_some_and(|end| end <= space)
            && length >= needed
        {
            let start = self.body.start + offset;
            return Ok(start..start + length);
        }
        Err(damaged(format!("a buffer of {length} bytes at {offset} where it cannot be")))
    }

    /// The next bitmap, if anything of its column is missing.
    fn bitmap(&mut self, length: u64, missing: bool) -> Result<Option<Range<u64>>, String> {
        let buffer = self.buffer(Some(if missing { length.div_ceil(8) } else { 0 }))?;
        Ok(missing.then(|| buffer.start..buffer.start + length.div_ceil(8)))
    }

    fn column(&mut self, column: &Column, rows: u64) -> Result<Stored, String> {
        let mut missing = Vec::new();
        let bits = column.element_bits();
        match &column.kind {
            Kind::Fixed { shape, lists } => {
                // Nested lists multiply; how they are nested makes no difference to the bytes.
                let each = elements(shape)? as u64;
                let (mut level, mut left) = (rows, *lists);
                loop {
                    let (length, some) = self.node(level)?;
                    if let Some(bitmap) = self.bitmap(length, some)? {
                        let spread = if level == rows { 1 } else { each };
                        missing.push((bitmap, Spread::Each(spread)));
                    }
                    if left == 0 {
                        break;
                    }
                    left -= 1;
                    // Only the innermost level has to hold everything.
                    level = if left == 0 {
                        rows.checked_mul(each).ok_or_else(|| damaged("too many elements"))?
                    } else {
                        0
                    };
                }
                if *lists > 1 && !missing.is_empty() {
                    return Err(
                        "has missing values within lists of lists, which is not read".into()
                    );
                }
                let room = rows.checked_mul(each);
                let needed =
                    room.and_then(|room| room.checked_mul(bits)).map(|all| all.div_ceil(8));
                let values = self.buffer(needed)?;
                Ok(Stored { missing, offsets: None, values, room: room.unwrap_or(0), shapes: None })
            }
            Kind::List { large } => self.list(rows, *large, bits),
            Kind::Shaped { large, shape } => {
                let (length, some) = self.node(rows)?;
                let outer = self.bitmap(length, some)?;
                let mut stored = self.list(rows, *large, bits)?;
                stored.missing.extend(outer.map(|bitmap| (bitmap, Spread::Each(1))));
                let (length, some) = self.node(rows)?;
                let sides = self.bitmap(length, some)?;
                stored.missing.extend(sides.map(|bitmap| (bitmap, Spread::Each(1))));
                let axes = shape.len() as u64;
                let all = rows.checked_mul(axes).ok_or_else(|| damaged("too many shapes"))?;
                let (length, some) = self.node(all)?;
                let each = self.bitmap(length, some)?;
                stored.missing.extend(each.map(|bitmap| (bitmap, Spread::Each(axes))));
                stored.shapes = Some(self.buffer(all.checked_mul(4))?);
                Ok(stored)
            }
            Kind::Blob { large } => {
                let (length, some) = self.node(rows)?;
                let bitmap = self.bitmap(length, some)?;
                missing.extend(bitmap.map(|bitmap| (bitmap, Spread::Each(1))));
                let offsets = self.offsets(rows, *large)?;
                let values = self.buffer(Some(0))?;
                let room = values.end - values.start;
                Ok(Stored { missing, offsets, values, room, shapes: None })
            }
        }
    }

    fn list(&mut self, rows: u64, large: bool, bits: u64) -> Result<Stored, String> {
        let (length, some) = self.node(rows)?;
        let bitmap = self.bitmap(length, some)?;
        let mut missing: Vec<_> =
            bitmap.map(|bitmap| (bitmap, Spread::Each(1))).into_iter().collect();
        let offsets = self.offsets(rows, large)?;
        let (inner, some) = self.node(0)?;
        let bitmap = self.bitmap(inner, some)?;
        missing.extend(bitmap.map(|bitmap| (bitmap, Spread::Offsets)));
        let needed = inner.checked_mul(bits).map(|all| all.div_ceil(8));
        let values = self.buffer(needed)?;
        Ok(Stored { missing, offsets, values, room: inner, shapes: None })
    }

    /// The next buffer, which holds one offset more than rows; of no rows it may be empty.
    fn offsets(&mut self, rows: u64, large: bool) -> Result<Option<Range<u64>>, String> {
        let width = if large { 8 } else { 4 };
        let needed = if rows == 0 { Some(0) } else { (rows + 1).checked_mul(width) };
        let buffer = self.buffer(needed)?;
        Ok((rows > 0).then(|| buffer.start..buffer.start + (rows + 1) * width))
    }
}
