//! Writes rows to a file in Arrow's IPC format, each buffer at a multiple of 64 bytes.
//!
//! | field | column |
//! |---|---|
//! | number, truth value | the primitive type; `bfloat16` as `uint16` with a note |
//! | numbers of one shape | list of a fixed size, as Arrow's `fixed_shape_tensor` |
//! | numbers of one dimension, as many as there are | list |
//! | numbers of several dimensions, of any extent | Arrow's `variable_shape_tensor` |
//! | bytes, text | binary, utf8 |
//!
//! What is written depends on the rows and the notes alone: the same rows make the same file.

use crate::codec::arrow::{
    DTYPE, EXTENSION, EXTENSION_ARGUMENTS, FIXED_TENSOR, LAYOUT, MAGIC, VARIABLE_TENSOR,
    read_footer,
};
use arrow_ipc::convert::IpcSchemaEncoder;
use arrow_ipc::{
    Block, Buffer as BufferPlace, FieldNode, FooterBuilder, KeyValueBuilder, MessageBuilder,
    MessageHeader, MetadataVersion, RecordBatchBuilder,
};
use arrow_schema::{DataType, Field as Column, Schema};
use feedline_core::{DType, Error, Field, Result, Spec, Tensor};
use flatbuffers::FlatBufferBuilder;
use std::collections::HashMap;
use std::io::{self, IoSlice, Write};
use std::sync::Arc;

const ALIGNMENT: u64 = 64;
/// Elements of a list in one record batch: offsets have 31 bits.
const MOST_ELEMENTS: usize = i32::MAX as usize;

/// Pieces that are written by one call at most; the system takes no more.
const AT_ONCE: usize = 1024;

/// How a field is stored.
enum Form {
    /// All rows alike, so many elements each.
    Fixed(usize),
    List,
    Shaped(usize),
    Blob,
}

/// Writes one file.
pub struct ArrowWriter<W: Write> {
    out: W,
    /// What it is called in messages.
    what: String,
    /// Bytes written so far.
    at: u64,
    schema: Schema,
    fields: Vec<Stored>,
    blocks: Vec<Block>,
    rows: u64,
}

/// Whether samples of this kind can be written.
///
/// # Errors
///
/// Names the field that cannot.
pub fn check_savable(spec: &Spec) -> Result<()> {
    columns(spec).map(|_| ())
}

/// The notes of a file of `size` bytes, those of its end behind those of its schema; `read` fills a
/// buffer from an offset on.
///
/// # Errors
///
/// If it cannot be read, or is no Arrow file.
pub fn read_notes(
    size: u64,
    read: &mut dyn FnMut(u64, &mut [u8]) -> Result<()>,
) -> Result<Vec<(String, String)>> {
    read_footer(size, read)?.map(|footer| footer.notes).map_err(Error::Source)
}

/// A field, and how it is stored.
type Stored = (Field, Form);

fn columns(spec: &Spec) -> Result<(Vec<Column>, Vec<Stored>)> {
    if spec.fields.is_empty() {
        return Err(Error::pipeline("save: the samples have no fields"));
    }
    let mut columns = Vec::new();
    let mut forms = Vec::new();
    for field in &spec.fields {
        let (column, form) = column(field)?;
        columns.push(column);
        forms.push((field.clone(), form));
    }
    Ok((columns, forms))
}

fn element(dtype: DType) -> DataType {
    match dtype {
        DType::Bool => DataType::Boolean,
        DType::U8 => DataType::UInt8,
        DType::I8 => DataType::Int8,
        DType::U16 | DType::BF16 => DataType::UInt16,
        DType::I16 => DataType::Int16,
        DType::U32 => DataType::UInt32,
        DType::I32 => DataType::Int32,
        DType::U64 => DataType::UInt64,
        DType::I64 => DataType::Int64,
        DType::F16 => DataType::Float16,
        DType::F32 => DataType::Float32,
        DType::F64 => DataType::Float64,
        DType::Bytes => DataType::Binary,
        DType::Text => DataType::Utf8,
    }
}

/// The column of a field, and how it is stored.
fn column(field: &Field) -> Result<(Column, Form)> {
    let refuse = |why: &str| Err(Error::pipeline(format!("save: {field} cannot be saved: {why}")));
    if field.name.as_str().is_empty() {
        return refuse("it has no name");
    }
    let mut notes: HashMap<String, String> = HashMap::new();
    let item = |dtype: DType| Arc::new(Column::new("item", element(dtype), false));
    let fixed: Option<Vec<usize>> = field.shape.iter().copied().collect();
    let (kind, form) = match (field.dtype.size(), fixed) {
        (None, Some(shape)) if shape.is_empty() => (element(field.dtype), Form::Blob),
        (None, _) => return refuse("lists of bytes or texts have no column"),
        (Some(_), Some(shape)) if shape.is_empty() => (element(field.dtype), Form::Fixed(1)),
        (Some(_), Some(shape)) => {
            let all = shape.iter().try_fold(1usize, |all, side| all.checked_mul(*side));
            let Some(size) = all.and_then(|all| i32::try_from(all).ok()) else {
                return refuse("it has more than 2^31 elements");
            };
            notes.insert(EXTENSION.into(), FIXED_TENSOR.into());
            let arguments = serde_json::json!({ "shape": shape });
            notes.insert(EXTENSION_ARGUMENTS.into(), arguments.to_string());
            (DataType::FixedSizeList(item(field.dtype), size), Form::Fixed(size as usize))
        }
        (Some(_), None) if field.shape.len() == 1 => {
            (DataType::List(item(field.dtype)), Form::List)
        }
        (Some(_), None) => {
            let axes = field.shape.len();
            notes.insert(EXTENSION.into(), VARIABLE_TENSOR.into());
            let arguments = match field.shape.iter().any(Option::is_some) {
                true => serde_json::json!({ "uniform_shape": field.shape }),
                false => serde_json::json!({}),
            };
            notes.insert(EXTENSION_ARGUMENTS.into(), arguments.to_string());
            let data = Column::new("data", DataType::List(item(field.dtype)), false);
            let sides = DataType::FixedSizeList(item(DType::I32), axes as i32);
            let children = vec![data, Column::new("shape", sides, false)];
            (DataType::Struct(children.into()), Form::Shaped(axes))
        }
    };
    if field.dtype == DType::BF16 {
        notes.insert(DTYPE.into(), field.dtype.name().into());
    }
    if let Some(layout) = field.layout {
        notes.insert(LAYOUT.into(), layout.to_string());
    }
    Ok((Column::new(field.name.as_str(), kind, false).with_metadata(notes), form))
}

/// What of a record batch has been laid out.
#[derive(Default)]
struct Body<'a> {
    nodes: Vec<FieldNode>,
    places: Vec<BufferPlace>,
    /// What is written, in order; each begins at a multiple of 64 bytes.
    buffers: Vec<Vec<Piece<'a>>>,
    length: u64,
}

/// Bytes of a buffer: those of a value, or some that were made.
enum Piece<'a> {
    Value(&'a [u8]),
    Made(Vec<u8>),
}

impl Piece<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Value(bytes) => bytes,
            Self::Made(bytes) => bytes,
        }
    }
}

impl<'a> Body<'a> {
    /// A node of so many rows, none of which is missing: its bitmap is empty.
    fn node(&mut self, rows: usize) {
        self.nodes.push(FieldNode::new(rows as i64, 0));
        self.places.push(BufferPlace::new(self.length as i64, 0));
    }

    fn buffer(&mut self, pieces: Vec<Piece<'a>>) {
        let length: usize = pieces.iter().map(|piece| piece.bytes().len()).sum();
        self.places.push(BufferPlace::new(self.length as i64, length as i64));
        self.length += (length as u64).next_multiple_of(ALIGNMENT);
        self.buffers.push(pieces);
    }

    /// The elements of all rows, one after another.
    fn values(&mut self, dtype: DType, rows: impl Iterator<Item = &'a [u8]>) {
        if dtype == DType::Bool {
            let (mut bits, mut count) = (Vec::new(), 0usize);
            for value in rows.flatten() {
                if count.is_multiple_of(8) {
                    bits.push(0);
                }
                if let Some(last) = bits.last_mut() {
                    *last |= u8::from(*value != 0) << (count % 8);
                }
                count += 1;
            }
            return self.buffer(vec![Piece::Made(bits)]);
        }
        self.buffer(rows.map(Piece::Value).collect());
    }

    fn offsets(&mut self, lengths: impl Iterator<Item = usize>) {
        let mut bytes = 0i32.to_le_bytes().to_vec();
        let mut end = 0i32;
        for length in lengths {
            end += length as i32;
            bytes.extend(end.to_le_bytes());
        }
        self.buffer(vec![Piece::Made(bytes)]);
    }
}

/// A file that cannot be written.
pub(crate) fn unwritten(what: &str, error: io::Error) -> Error {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    let what = match error.kind() {
        StorageFull | QuotaExceeded | FileTooLarge => format!("room for {what}"),
        _ => format!("writing {what}"),
    };
    Error::unavailable(what, error)
}

impl<W: Write> ArrowWriter<W> {
    /// Begins a file of such samples, called `what` in messages, with notes (of the schema) that any reader shows.
    ///
    /// # Errors
    ///
    /// If they cannot be written, or `out` fails.
    pub fn new(out: W, what: &str, spec: &Spec, notes: &[(&str, String)]) -> Result<Self> {
        if cfg!(target_endian = "big") {
            return Err(Error::Internal(
                "Arrow files are written on little-endian machines".into(),
            ));
        }
        let (columns, fields) = columns(spec)?;
        let notes = notes.iter().map(|(key, value)| ((*key).to_owned(), value.clone()));
        let schema = Schema::new(columns).with_metadata(notes.collect());
        let what = what.to_owned();
        let mut this = Self { out, what, at: 0, schema, fields, blocks: Vec::new(), rows: 0 };
        this.put(MAGIC)?;
        this.put(&[0, 0])?;
        let mut builder = FlatBufferBuilder::new();
        let root = IpcSchemaEncoder::new().schema_to_fb_offset(&mut builder, &this.schema);
        let mut message = MessageBuilder::new(&mut builder);
        message.add_version(MetadataVersion::V5);
        message.add_header_type(MessageHeader::Schema);
        message.add_bodyLength(0);
        message.add_header(root.as_union_value());
        let message = message.finish();
        builder.finish(message, None);
        this.message(builder.finished_data())?;
        Ok(this)
    }

    /// Rows written so far.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Bytes written so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.at
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(|error| unwritten(&self.what, error))?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    /// Writes many pieces, in as few calls as can be and without putting them together first.
    fn put_all(&mut self, pieces: &[Piece<'_>]) -> Result<()> {
        for pieces in pieces.chunks(AT_ONCE) {
            let mut slices: Vec<IoSlice<'_>> =
                pieces.iter().map(|piece| IoSlice::new(piece.bytes())).collect();
            let mut left = &mut slices[..];
            // Empty ones at the front would look like an end.
            IoSlice::advance_slices(&mut left, 0);
            while !left.is_empty() {
                match self.out.write_vectored(left) {
                    Ok(0) => {
                        let error = io::Error::from(io::ErrorKind::WriteZero);
                        return Err(unwritten(&self.what, error));
                    }
                    Ok(count) => {
                        self.at += count as u64;
                        IoSlice::advance_slices(&mut left, count);
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(unwritten(&self.what, error)),
                }
            }
        }
        Ok(())
    }

    /// Fills up to the next multiple of 64 bytes.
    fn pad(&mut self) -> Result<()> {
        let missing = self.at.next_multiple_of(ALIGNMENT) - self.at;
        self.put(&[0; ALIGNMENT as usize][..missing as usize])
    }

    /// Writes a message's metadata with its length, up to a multiple of 64 bytes of the file.
    fn message(&mut self, metadata: &[u8]) -> Result<u64> {
        let length = (self.at + 8 + metadata.len() as u64).next_multiple_of(ALIGNMENT) - self.at;
        self.put(&[0xFF; 4])?;
        self.put(&((length - 8) as i32).to_le_bytes())?;
        self.put(metadata)?;
        self.pad()?;
        Ok(length)
    }

    /// Writes rows, each with its fields in order, as one record batch (or several, where lists
    /// would have more elements than a batch can count).
    ///
    /// # Errors
    ///
    /// If a value is not of its field's type, or `out` fails.
    pub fn write(&mut self, rows: &[&[Tensor]]) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        for row in rows {
            self.check(row)?;
        }
        let counted = |row: &[Tensor]| {
            let lists = row
                .iter()
                .zip(&self.fields)
                .filter(|(_, (_, form))| !matches!(form, Form::Fixed(_)));
            lists.map(|(tensor, _)| tensor.data().len()).max().unwrap_or(0)
        };
        let (mut first, mut elements) = (0, 0usize);
        let mut ends = Vec::new();
        for (at, row) in rows.iter().enumerate() {
            let more = counted(row);
            if more > MOST_ELEMENTS {
                return Err(Error::record(format!(
                    "a value of {more} bytes; a row has 2^31 at most"
                )));
            }
            if elements + more > MOST_ELEMENTS {
                ends.push((first, at));
                (first, elements) = (at, 0);
            }
            elements += more;
        }
        ends.push((first, rows.len()));
        for (first, end) in ends {
            self.batch(&rows[first..end])?;
        }
        Ok(())
    }

    /// Whether a row is what the fields say.
    fn check(&self, row: &[Tensor]) -> Result<()> {
        if row.len() != self.fields.len() {
            return Err(Error::Internal(format!("a row of {} fields", row.len())));
        }
        for (tensor, (field, _)) in row.iter().zip(&self.fields) {
            let shape = tensor.shape();
            let fits = tensor.dtype() == field.dtype
                && shape.len() == field.shape.len()
                && shape
                    .iter()
                    .zip(&field.shape)
                    .all(|(side, dim)| dim.is_none_or(|dim| dim == *side));
            if !fits {
                return Err(Error::record(format!("{tensor:?} where {field} was expected")));
            }
        }
        Ok(())
    }

    fn batch(&mut self, rows: &[&[Tensor]]) -> Result<()> {
        let mut body = Body::default();
        for (at, (field, form)) in self.fields.iter().enumerate() {
            let data = || rows.iter().map(move |row| row[at].data());
            let elements = || rows.iter().map(move |row| row[at].elements());
            body.node(rows.len());
            match form {
                Form::Fixed(each) => {
                    if !field.shape.is_empty() {
                        body.node(rows.len() * each);
                    }
                    body.values(field.dtype, data());
                }
                Form::Blob => {
                    body.offsets(data().map(<[u8]>::len));
                    body.values(field.dtype, data());
                }
                Form::List => {
                    body.offsets(elements());
                    body.node(elements().sum());
                    body.values(field.dtype, data());
                }
                Form::Shaped(axes) => {
                    body.node(rows.len());
                    body.offsets(elements());
                    body.node(elements().sum());
                    body.values(field.dtype, data());
                    body.node(rows.len());
                    body.node(rows.len() * axes);
                    let mut sides = Vec::new();
                    for row in rows {
                        for side in row[at].shape() {
                            let side = i32::try_from(*side).map_err(|_| {
                                Error::record(format!("{:?} has more than 2^31 elements", row[at]))
                            })?;
                            sides.extend(side.to_le_bytes());
                        }
                    }
                    body.buffer(vec![Piece::Made(sides)]);
                }
            }
        }
        let mut builder = FlatBufferBuilder::new();
        let nodes = builder.create_vector(&body.nodes);
        let places = builder.create_vector(&body.places);
        let mut batch = RecordBatchBuilder::new(&mut builder);
        batch.add_length(rows.len() as i64);
        batch.add_nodes(nodes);
        batch.add_buffers(places);
        let batch = batch.finish();
        let mut message = MessageBuilder::new(&mut builder);
        message.add_version(MetadataVersion::V5);
        message.add_header_type(MessageHeader::RecordBatch);
        message.add_bodyLength(body.length as i64);
        message.add_header(batch.as_union_value());
        let message = message.finish();
        builder.finish(message, None);
        let start = self.at;
        let metadata = self.message(builder.finished_data())?;
        self.blocks.push(Block::new(start as i64, metadata as i32, body.length as i64));
        for buffer in &body.buffers {
            self.put_all(buffer)?;
            self.pad()?;
        }
        self.rows += rows.len() as u64;
        Ok(())
    }

    /// Ends the file, with notes that are known only now, and gives back what it was written to.
    ///
    /// # Errors
    ///
    /// If `out` fails.
    pub fn finish(mut self, notes: &[(&str, String)]) -> Result<W> {
        // The end of the stream, for those who read it as one.
        self.put(&[0xFF; 4])?;
        self.put(&[0; 4])?;
        let mut builder = FlatBufferBuilder::new();
        let dictionaries = builder.create_vector::<Block>(&[]);
        let blocks = builder.create_vector(&self.blocks);
        let schema = IpcSchemaEncoder::new().schema_to_fb_offset(&mut builder, &self.schema);
        let mut pairs = Vec::new();
        for (key, value) in notes {
            let (key, value) = (builder.create_string(key), builder.create_string(value));
            let mut pair = KeyValueBuilder::new(&mut builder);
            pair.add_key(key);
            pair.add_value(value);
            pairs.push(pair.finish());
        }
        let pairs = builder.create_vector(&pairs);
        let mut footer = FooterBuilder::new(&mut builder);
        footer.add_version(MetadataVersion::V5);
        footer.add_schema(schema);
        footer.add_dictionaries(dictionaries);
        footer.add_recordBatches(blocks);
        footer.add_custom_metadata(pairs);
        let footer = footer.finish();
        builder.finish(footer, None);
        let bytes = builder.finished_data();
        self.put(bytes)?;
        self.put(&(bytes.len() as i32).to_le_bytes())?;
        self.put(MAGIC)?;
        self.out.flush().map_err(|error| unwritten(&self.what, error))?;
        Ok(self.out)
    }
}
