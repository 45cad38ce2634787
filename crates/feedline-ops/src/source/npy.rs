//! Arrays that NumPy saved: `.npy` files, or `.npz` archives of them.

use super::cases::{self, FileField, ends_with, inside};
use super::parts::{self, Found, PartList, read_piece, unusable};
use crate::codec::{npy, zip};
use crate::registry::step;
use crate::volume::{Packing, Part, can_hold, inflate_start};
use feedline_core::{Blobs, Entry, Error, Name, Result, Source, SourceRecipe, Spec, Store};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The arrays below a folder, or in one file. Each file is a sample with the field `data`; an archive
/// (`.npz`) is a sample with a field for each of its arrays. With `fields`, the files of a sample are
/// found by their names.
///
/// Only headers are read when the data is opened; of an array that is cropped, only the crop is read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Npy {
    /// The folder, searched at any depth, or the file; or a URL of either, or names with braces.
    #[serde(deserialize_with = "super::place")]
    pub path: PathBuf,
    /// The fields and the files they lie in: `{"image": "*_x.npy", "label": "*_y.npy"}`. What the `*`
    /// stands for is the sample's key, and samples come in byte order of their keys.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "cases::either")]
    pub fields: Option<Vec<FileField>>,
    /// Whether samples are the rows of the arrays (along their first axis) rather than files.
    #[serde(default)]
    pub rows: bool,
}

step!(Npy, "npy", Source, Npy::resolve);

/// Bytes of a file that are read to find its header.
const START: usize = 512;

impl Npy {
    /// Settles the fields and their types by a look at all files.
    fn resolve(self, store: &dyn Store) -> Result<Self> {
        if let Some(fields) = &self.fields {
            cases::check("npy", fields)?;
            if fields.iter().all(|field| field.dtype.is_some() && field.shape.is_some()) {
                return Ok(self);
            }
        }
        let (fields, found, _) = self.look(store)?;
        let fields = Some(parts::settle("npy", fields, &found, self.rows)?);
        Ok(Self { fields, ..self })
    }

    /// Finds all arrays of all samples.
    fn look(&self, store: &dyn Store) -> Result<(Vec<FileField>, Vec<Found>, Vec<Entry>)> {
        let entries = cases::list(store, &self.path, "arrays", [".npy", ".npz"])?;
        match cases::patterns(self.fields.as_deref()) {
            Some(patterns) => self.by_patterns(store, &entries, &patterns),
            None => self.by_files(store, &entries),
        }
    }

    fn by_patterns(
        &self,
        store: &dyn Store,
        entries: &[Entry],
        patterns: &[(Name, &str)],
    ) -> Result<(Vec<FileField>, Vec<Found>, Vec<Entry>)> {
        let cases = cases::cases("npy", &self.path, entries, patterns)?;
        let (mut all, mut used) = (Vec::new(), Vec::new());
        for case in cases {
            used.extend(case.files.iter().map(|file| entries[*file].clone()));
            let (mut parts, mut bad) = (Vec::new(), None);
            for ((name, _), file) in patterns.iter().zip(&case.files) {
                let entry = &entries[*file];
                match self.array(store, entry, name.as_str()) {
                    Ok(part) => parts.push(part),
                    Err(error) => bad = bad.or(Some((&entry.path, error))),
                }
            }
            all.push(match bad {
                None => Found::new(case.key, &entries[case.files[0]].path, parts),
                Some((path, error)) => Found::bad(case.key, path, error)?,
            });
        }
        Ok((self.fields.clone().unwrap_or_default(), all, used))
    }

    /// The array of a file: that of the field's name in an archive, or the only one there is.
    fn array(&self, store: &dyn Store, entry: &Entry, name: &str) -> Result<Part> {
        if is_npy(&entry.path) {
            return self.rowed(look_npy(store, entry)?);
        }
        let mut arrays = look_npz(store, entry)?;
        let found = arrays.iter().position(|(known, _)| *known == name);
        match found.or((arrays.len() == 1).then_some(0)) {
            Some(at) => self.rowed(arrays.swap_remove(at).1),
            None => {
                let names: Vec<&str> = arrays.iter().map(|(name, _)| &name[..]).collect();
                let reason = format!("it has no array {name:?}; there are {}", names.join(", "));
                Err(Error::record(reason))
            }
        }
    }

    fn rowed(&self, part: Part) -> Result<Part> {
        if self.rows && part.shape.is_empty() {
            return Err(unusable(&part.path, "it holds one number, without rows"));
        }
        Ok(part)
    }

    fn by_files(
        &self,
        store: &dyn Store,
        entries: &[Entry],
    ) -> Result<(Vec<FileField>, Vec<Found>, Vec<Entry>)> {
        let field =
            |name: &str| FileField { name: Name::new(name), files: None, dtype: None, shape: None };
        let mut fields: Option<Vec<FileField>> = self.fields.clone();
        let mut all = Vec::new();
        for entry in entries {
            let key = inside(&self.path, &entry.path).to_vec();
            let looked = match is_npy(&entry.path) {
                true => look_npy(store, entry).map(|part| vec![("data".to_owned(), part)]),
                false => look_npz(store, entry),
            };
            let mut arrays = match looked {
                Ok(arrays) => arrays,
                Err(error) => {
                    all.push(Found::bad(key, &entry.path, error)?);
                    continue;
                }
            };
            let fields =
                fields.get_or_insert_with(|| arrays.iter().map(|(name, _)| field(name)).collect());
            let mut parts = Vec::new();
            for field in fields.iter() {
                let Some(at) = arrays.iter().position(|(name, _)| field.name == name[..]) else {
                    let reason = format!(
                        "it has no array {:?}, which {} has; give fields to say which files belong \
                         together",
                        field.name.as_str(),
                        entries[0].path.display()
                    );
                    return Err(unusable(&entry.path, &reason));
                };
                parts.push(self.rowed(arrays.swap_remove(at).1)?);
            }
            all.push(Found::new(key, &entry.path, parts));
        }
        Ok((fields.unwrap_or_default(), all, entries.to_vec()))
    }
}

impl SourceRecipe for Npy {
    fn spec(&self) -> Result<Spec> {
        if let Some(fields) = &self.fields {
            cases::check("npy", fields)?;
        }
        parts::spec("npy", self.fields.as_deref())
    }

    fn open(&self, store: &dyn Store, _: &Blobs) -> Result<Arc<dyn Source>> {
        let (_, found, entries) = self.look(store)?;
        let fields = self.fields.as_deref().unwrap_or_default();
        Ok(Arc::new(PartList::new("npy", &self.path, fields, found, &entries, self.rows)?))
    }
}

fn is_npy(path: &Path) -> bool {
    ends_with(path, ".npy")
}

/// Reads the header of a `.npy` file.
fn look_npy(store: &dyn Store, entry: &Entry) -> Result<Part> {
    let bad = |reason: String| Error::record(reason);
    let first = (entry.size as usize).min(START);
    let mut start = read_piece(store, &entry.path, 0, first)?;
    let needed = npy::header_length(&start).map_err(bad)?;
    if needed > start.len() && needed as u64 <= entry.size {
        start = read_piece(store, &entry.path, 0, needed)?;
    }
    let header = npy::header(&start).map_err(bad)?;
    let there = entry.size - header.offset as u64;
    let stored = header.bytes().unwrap_or(usize::MAX);
    if there != stored as u64 {
        return Err(bad(differs(&header, there)));
    }
    let offset = header.offset as u64;
    Ok(part(entry, header, offset, stored, Packing::Plain))
}

fn differs(header: &npy::Header, there: u64) -> String {
    let stored = header.bytes().unwrap_or(usize::MAX) as u64;
    let how = if there < stored { "shorter" } else { "longer" };
    format!(
        "it is {how} than its header says: {there} bytes where {}{:?} has {stored}",
        header.dtype,
        &header.shape[..]
    )
}

fn part(entry: &Entry, header: npy::Header, offset: u64, stored: usize, packing: Packing) -> Part {
    Part {
        path: Arc::from(&*entry.path),
        size: entry.size,
        modified: entry.modified,
        offset,
        stored,
        packing,
        dtype: header.dtype,
        swapped: header.swapped,
        fortran: header.fortran,
        rescale: None,
        widened: None,
        shape: header.shape,
        row: None,
    }
}

/// Reads the list of contents of a `.npz` archive and the header of each array, in its order.
fn look_npz(store: &dyn Store, entry: &Entry) -> Result<Vec<(String, Part)>> {
    let path = &*entry.path;
    let bad = |reason: String| Error::record(reason);
    // Most archives are small or have no comment: the list is in the last bytes.
    let tail = entry.size.min(zip::TAIL) as usize;
    let tail = read_piece(store, path, entry.size - tail as u64, tail)?;
    let directory = zip::directory(&tail, entry.size).map_err(bad)?;
    let rows = read_piece(store, path, directory.offset, directory.length as usize)?;
    let members = zip::members(&rows, directory).map_err(bad)?;
    let mut arrays: Vec<(String, Part)> = Vec::new();
    for member in members {
        let Some(name) = member.name.strip_suffix(".npy") else { continue };
        if arrays.iter().any(|(known, _)| known == name) {
            return Err(bad(format!("{} is there twice", member.name)));
        }
        arrays.push((name.to_owned(), look_member(store, entry, &member)?));
    }
    if arrays.is_empty() {
        return Err(bad("there are no arrays in it".into()));
    }
    Ok(arrays)
}

fn look_member(store: &dyn Store, entry: &Entry, member: &zip::Member) -> Result<Part> {
    let bad = |reason: String| Error::record(format!("{}: {reason}", member.name));
    let read = |most: usize| {
        let length = (most as u64).min(entry.size - member.start) as usize;
        read_piece(store, &entry.path, member.start, length)
    };
    let mut head = read(zip::LOCAL + member.name.len() + 64 + START)?;
    let data = zip::data_start(member, &head).map_err(bad)?;
    if data.checked_add(member.stored).is_none_or(|end| end > entry.size) {
        return Err(bad("it does not lie within the file".into()));
    }
    let skip = (data - member.start) as usize;
    let unpacked = |head: &[u8], most: usize| {
        let stored = head.get(skip..).unwrap_or_default();
        let stored = &stored[..stored.len().min(member.stored as usize)];
        if member.deflated {
            return inflate_start(stored, most);
        }
        Ok(stored[..stored.len().min(most)].to_vec())
    };
    if head.len() < skip + 12 {
        head = read(skip + START)?;
    }
    let mut start = unpacked(&head, START).map_err(bad)?;
    let needed = npy::header_length(&start).map_err(bad)?;
    if needed > start.len() {
        head = read(skip + needed + START)?;
        start = unpacked(&head, needed).map_err(bad)?;
    }
    let header = npy::header(&start).map_err(bad)?;
    let there = member.length.saturating_sub(header.offset as u64);
    if header.bytes().map(|bytes| bytes as u64) != Some(there) {
        return Err(bad(differs(&header, there)));
    }
    let begin = header.offset;
    Ok(match member.deflated {
        false => part(entry, header, data + begin as u64, there as usize, Packing::Plain),
        true => {
            can_hold(member.stored, begin, there as usize).map_err(bad)?;
            let packing = Packing::Deflate { skip: begin, crc: member.crc };
            part(entry, header, data, member.stored as usize, packing)
        }
    })
}
