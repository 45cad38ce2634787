//! The rows of all files, each with an address.

use super::held::{File, Held, Values, aligned, hold};
use crate::codec::arrow::{self, Batch, Column, Footer};
use crate::source::cases::inside;
use crate::source::parts::{read_piece, unusable};
use feedline_core::{
    Buffer, DType, Entry, Extent, Field, Result, Sample, Source, Spec, Store, Tensor,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Columns of at most so many bytes a row are held in memory …
const SMALL_ROW: u64 = 256;
/// … as long as they have no more bytes together than this.
const HELD: u64 = 256 << 20;

/// A record batch.
struct Piece {
    file: usize,
    /// Rows before it in its file.
    before: u64,
    columns: Vec<Held>,
}

/// The opened source.
pub(super) struct Rows {
    root: PathBuf,
    fields: Vec<Field>,
    files: Vec<File>,
    pieces: Vec<Piece>,
    /// Where the rows of each piece begin, and the number of all.
    starts: Vec<u64>,
    bytes: u64,
    manifest: String,
}

/// Reads what a file says of itself.
pub(super) fn read_footer(store: &dyn Store, entry: &Entry) -> Result<Footer> {
    let path = &*entry.path;
    let footer = arrow::read_footer(entry.size, &mut |offset, out| {
        let length = out.len() as u64;
        store.read(Extent { path, offset, length, whole: false, modified: entry.modified }, out)
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

impl Rows {
    pub(super) fn open(
        store: &dyn Store,
        root: &Path,
        entries: Vec<Entry>,
        spec: Spec,
    ) -> Result<Self> {
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

    fn file(&self, index: u64) -> Option<u64> {
        Some(self.place(index).0.file as u64)
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
