//! Samples made of arrays that lie in files, read as late and as little as possible.

use super::cases::{FileField, inside};
use crate::volume::{Part, Volume};
use feedline_core::{
    Buffer, Dim, Entry, Error, Extent, Field, Name, Result, Sample, Source, Spec, Store, Tensor,
    Value,
};
use std::path::{Path, PathBuf};

/// One sample, or the rows of several, as found in files.
pub(crate) struct Found {
    /// What names it when others are added.
    pub key: Vec<u8>,
    /// The file to name in messages.
    pub origin: PathBuf,
    /// The array of each field; none if it is bad.
    pub parts: Vec<Part>,
    /// More fields, known from headers alone.
    pub more: Vec<(Name, Tensor)>,
    /// Why it cannot be used.
    bad: Option<Error>,
}

impl Found {
    pub(crate) fn new(key: Vec<u8>, origin: &Path, parts: Vec<Part>) -> Self {
        Self { key, origin: origin.to_owned(), parts, more: Vec::new(), bad: None }
    }

    /// A sample whose file cannot be used.
    ///
    /// # Errors
    ///
    /// If that is not the file's fault.
    pub(crate) fn bad(key: Vec<u8>, origin: &Path, error: Error) -> Result<Self> {
        match error.is_record() {
            true => Ok(Self { bad: Some(error), ..Self::new(key, origin, Vec::new()) }),
            false => Err(error),
        }
    }

    /// The same as an error of the whole source.
    fn unusable(&self) -> Option<Error> {
        let Some(Error::Record { reason, .. }) = &self.bad else { return None };
        Some(unusable(&self.origin, reason))
    }
}

/// What a source found in its files.
pub(crate) struct PartList {
    root: PathBuf,
    names: Vec<Name>,
    found: Vec<Found>,
    /// Where the rows of each begin, and the number of all, where samples are rows.
    starts: Option<Vec<u64>>,
    manifest: String,
}

/// Reads a piece of a file while a source is opened.
pub(crate) fn read_piece(
    store: &dyn Store,
    path: &Path,
    offset: u64,
    length: usize,
) -> Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    let extent = Extent { path, offset, length: length as u64, whole: false, modified: 0 };
    store.read(extent, &mut bytes)?;
    Ok(bytes)
}

/// A file that cannot be part of the data.
pub(crate) fn unusable(path: &Path, reason: &str) -> Error {
    Error::Source(format!("cannot use {}: {reason}", path.display()))
}

/// The type of a part, in words.
fn describe(part: &Part, rows: bool) -> String {
    format!("{}{:?}", part.output(), &part.output_shape()[usize::from(rows)..])
}

/// Settles dtype and shape of each field from the files; `None` for extents in which they differ.
pub(crate) fn settle(
    step: &str,
    mut fields: Vec<FileField>,
    found: &[Found],
    rows: bool,
) -> Result<Vec<FileField>> {
    let good = || found.iter().filter(|case| case.bad.is_none());
    if let (None, Some(error)) = (good().next(), found.iter().find_map(Found::unusable)) {
        return Err(error);
    }
    for (at, field) in fields.iter_mut().enumerate() {
        let Some(first) = good().next().map(|case| &case.parts[at]) else { continue };
        let skip = usize::from(rows);
        let mut shape: Vec<Dim> =
            first.output_shape()[skip..].iter().map(|side| Some(*side)).collect();
        let mut dtype = first.output();
        for case in good() {
            let part = &case.parts[at];
            let sides = &part.output_shape()[skip..];
            let both = dtype.common(part.output()).filter(|_| sides.len() == shape.len());
            if let Some(both) = both {
                dtype = both;
            } else {
                return Err(Error::Source(format!(
                    "{step}: {} is {} in {}, and {} in {}; a field has one number of dimensions and \
                     one dtype, or whole numbers of several",
                    field.name,
                    describe(first, rows),
                    first.path.display(),
                    describe(part, rows),
                    part.path.display()
                )));
            }
            for (known, side) in shape.iter_mut().zip(sides) {
                *known = known.filter(|known| known == side);
            }
        }
        (field.dtype, field.shape) = (Some(dtype), Some(shape));
    }
    Ok(fields)
}

/// The spec that settled fields make.
pub(crate) fn spec(step: &str, fields: Option<&[FileField]>) -> Result<Spec> {
    let unsettled = || {
        Error::pipeline(format!(
            "{step}: the types of its fields are not in the plan; check it where its files are"
        ))
    };
    let field = |field: &FileField| {
        let (dtype, shape) = field.dtype.zip(field.shape.as_ref()).ok_or_else(unsettled)?;
        Ok(Field::new(field.name, dtype, shape))
    };
    Ok(Spec::new(fields.ok_or_else(unsettled)?.iter().map(field).collect::<Result<_>>()?))
}

impl PartList {
    /// Takes what was found, after checking that it is what the plan says.
    pub(crate) fn new(
        step: &str,
        root: &Path,
        fields: &[FileField],
        mut found: Vec<Found>,
        entries: &[Entry],
        rows: bool,
    ) -> Result<Self> {
        let mut hash = blake3::Hasher::new();
        hash.update(step.as_bytes());
        for entry in entries {
            let name = inside(root, &entry.path);
            hash.update(&(name.len() as u64).to_le_bytes()).update(name);
            hash.update(&entry.size.to_le_bytes()).update(&entry.modified.to_le_bytes());
        }
        let (mut starts, mut end) = (vec![0], 0);
        for case in &mut found {
            for (field, part) in fields.iter().zip(&mut case.parts) {
                let wider =
                    field.dtype.filter(|dtype| part.output().common(*dtype) == Some(*dtype));
                part.widened = wider.filter(|dtype| *dtype != part.output());
            }
            // How many rows it would have had is not known.
            if let Some(error) = case.unusable().filter(|_| rows) {
                return Err(error);
            }
            for (field, part) in fields.iter().zip(&case.parts) {
                check(field, part, rows)?;
                hash.update(describe(part, false).as_bytes());
            }
            let mut counts = case.parts.iter().map(|part| part.shape.first().copied().unwrap_or(0));
            let count = counts.next().unwrap_or(0);
            if rows && counts.any(|other| other != count) {
                let counts: Vec<String> = fields
                    .iter()
                    .zip(&case.parts)
                    .map(|(field, part)| format!("{} of {}", part.shape[0], field.name))
                    .collect();
                let reason = format!("rows must be equal in number: {}", counts.join(", "));
                return Err(unusable(&case.origin, &reason));
            }
            end += count as u64;
            starts.push(end);
        }
        if rows && end == 0 {
            return Err(Error::Source(format!("the arrays in {} have no rows", root.display())));
        }
        let manifest = hash.finalize().to_hex()[..32].to_owned();
        let names = fields.iter().map(|field| field.name).collect();
        let starts = rows.then_some(starts);
        Ok(Self { root: root.to_owned(), names, found, starts, manifest })
    }

    /// Which case sample `index` belongs to, and which row of it it is.
    fn place(&self, index: u64) -> (&Found, Option<usize>) {
        let Some(starts) = &self.starts else { return (&self.found[index as usize], None) };
        let case = starts.partition_point(|start| *start <= index) - 1;
        (&self.found[case], Some((index - starts[case]) as usize))
    }
}

/// Whether a part is what the plan says of its field.
fn check(field: &FileField, part: &Part, rows: bool) -> Result<()> {
    let sides = &part.output_shape()[usize::from(rows)..];
    let shape = field.shape.as_deref().unwrap_or_default();
    let fits = sides.len() == shape.len()
        && sides.iter().zip(shape).all(|(side, known)| known.is_none_or(|known| known == *side));
    if fits && field.dtype == Some(part.output()) {
        return Ok(());
    }
    let planned = Field::new(field.name, field.dtype.unwrap_or(part.output()), shape);
    Err(unusable(
        &part.path,
        &format!("it holds {}, where the plan says {planned}", describe(part, rows)),
    ))
}

impl Source for PartList {
    fn length(&self) -> u64 {
        match &self.starts {
            Some(starts) => starts.last().copied().unwrap_or(0),
            None => self.found.len() as u64,
        }
    }

    fn locate(&self, _: u64) -> Option<Extent<'_>> {
        None
    }

    fn parse(&self, index: u64, _: Option<Buffer>) -> Result<Sample> {
        let (case, row) = self.place(index);
        if let Some(error) = &case.bad {
            return Err(error.clone());
        }
        let mut sample = Sample::new();
        for (name, part) in self.names.iter().zip(&case.parts) {
            let part = row.map_or_else(|| part.clone(), |row| part.row(row));
            sample.set(*name, Value::Deferred(Box::new(Volume::new(part))));
        }
        for (name, tensor) in &case.more {
            sample.set(*name, tensor.clone());
        }
        Ok(sample)
    }

    fn origin(&self, index: u64) -> String {
        let (case, row) = self.place(index);
        match row {
            Some(row) => format!("{}[{row}]", case.origin.display()),
            None => case.origin.display().to_string(),
        }
    }

    fn manifest(&self) -> String {
        self.manifest.clone()
    }

    fn key(&self, index: u64) -> Option<Vec<u8>> {
        let (case, row) = self.place(index);
        let mut key = case.key.clone();
        if let Some(row) = row {
            key.extend(format!("[{row}]").bytes());
        }
        Some(key)
    }

    fn file(&self, index: u64) -> Option<u64> {
        let Some(starts) = &self.starts else { return Some(index) };
        Some(starts.partition_point(|start| *start <= index) as u64 - 1)
    }

    fn weight(&self, index: u64) -> u64 {
        let (case, _) = self.place(index);
        let bytes: u64 = case.parts.iter().map(|part| part.stored as u64).sum();
        // Rows of one file share it.
        let rows = case.parts.first().and_then(|part| part.shape.first()).copied().unwrap_or(1);
        bytes / if self.starts.is_some() { rows.max(1) as u64 } else { 1 }
    }

    fn known_bad(&self) -> Option<Error> {
        self.found.iter().find_map(Found::unusable)
    }

    fn stored_bytes(&self) -> Option<u64> {
        let parts = self.found.iter().flat_map(|case| &case.parts);
        Some(parts.map(|part| part.stored as u64).sum())
    }
}

impl std::fmt::Debug for PartList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PartList({} in {})", self.found.len(), self.root.display())
    }
}
