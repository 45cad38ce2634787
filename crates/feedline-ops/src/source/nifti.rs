//! Medical scans in NIfTI files: `.nii`, or `.nii.gz`.

use super::cases::{self, FileField, ends_with, inside};
use super::parts::{self, Found, PartList, read_piece};
use crate::codec::nifti;
use crate::registry::step;
use crate::volume::{Packing, Part, can_hold, gunzip_start};
use feedline_core::{
    Blobs, DType, Entry, Error, Field, Name, Result, Shape, Source, SourceRecipe, Spec, Store,
    Tensor,
};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;

/// The scans below a folder, or in one file. Each file is a sample with the field `image`; with
/// `fields`, the files of a sample are found by their names.
///
/// Axes are in the file's own order (the first is the one that NIfTI calls x), as nibabel gives them.
/// Where the header says how stored numbers are to be scaled, they are, and become `float32`.
/// The field `spacing` has the distance of voxels along the last three axes, of the first field.
/// A field whose files have several types of whole numbers gets one that holds them all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nifti {
    /// The folder, searched at any depth, or the file; or a URL of either, or names with braces.
    #[serde(deserialize_with = "super::place")]
    pub path: PathBuf,
    /// The fields and the files they lie in: `{"image": "*/imaging.nii.gz", "label": …}`. What the `*`
    /// stands for is the sample's key, and samples come in byte order of their keys.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "cases::either")]
    pub fields: Option<Vec<FileField>>,
    /// Whether scans get a leading axis of one channel.
    #[serde(default)]
    pub channel: bool,
}

step!(Nifti, "nifti", Source, Nifti::resolve);

/// The field of distances between voxels.
const SPACING: &str = "spacing";
/// Bytes of a compressed file that are read to find its header.
const START: u64 = 4096;

impl Nifti {
    /// Settles the fields and their types by a look at all files.
    fn resolve(self, store: &dyn Store) -> Result<Self> {
        if let Some(fields) = &self.fields {
            check(fields)?;
            if fields.iter().all(|field| field.dtype.is_some() && field.shape.is_some()) {
                return Ok(self);
            }
        }
        let (fields, found, _) = self.look(store)?;
        let fields = Some(parts::settle("nifti", fields, &found, false)?);
        Ok(Self { fields, ..self })
    }

    /// Finds all scans of all samples.
    fn look(&self, store: &dyn Store) -> Result<(Vec<FileField>, Vec<Found>, Vec<Entry>)> {
        let entries = cases::list(store, &self.path, "scans", [".nii", ".nii.gz"])?;
        let (mut all, mut used) = (Vec::new(), Vec::new());
        let Some(patterns) = cases::patterns(self.fields.as_deref()) else {
            for entry in &entries {
                let key = inside(&self.path, &entry.path).to_vec();
                all.push(self.case(store, key, &[entry])?);
            }
            let field =
                FileField { name: Name::new("image"), files: None, dtype: None, shape: None };
            return Ok((self.fields.clone().unwrap_or_else(|| vec![field]), all, entries));
        };
        for case in cases::cases("nifti", &self.path, &entries, &patterns)? {
            let files: Vec<&Entry> = case.files.iter().map(|file| &entries[*file]).collect();
            used.extend(files.iter().map(|entry| (*entry).clone()));
            all.push(self.case(store, case.key, &files)?);
        }
        Ok((self.fields.clone().unwrap_or_default(), all, used))
    }

    fn case(&self, store: &dyn Store, key: Vec<u8>, files: &[&Entry]) -> Result<Found> {
        let mut found = Found::new(key, &files[0].path, Vec::new());
        for entry in files {
            let (part, spacing) = match look_nii(store, entry, self.channel) {
                Ok(looked) => looked,
                Err(error) => return Found::bad(found.key, &entry.path, error),
            };
            found.parts.push(part);
            if found.more.is_empty() {
                found.more.push((Name::new(SPACING), Tensor::from_slice(&[3], &spacing)));
            }
        }
        Ok(found)
    }
}

fn check(fields: &[FileField]) -> Result<()> {
    if fields.iter().any(|field| field.name == SPACING) {
        return Err(Error::pipeline(
            "nifti: spacing is the field of distances between voxels; choose another name",
        ));
    }
    cases::check("nifti", fields)
}

impl SourceRecipe for Nifti {
    fn spec(&self) -> Result<Spec> {
        if let Some(fields) = &self.fields {
            check(fields)?;
        }
        let mut spec = parts::spec("nifti", self.fields.as_deref())?;
        spec.fields.push(Field::new(SPACING, DType::F32, &[Some(3)]));
        Ok(spec)
    }

    fn open(&self, store: &dyn Store, _: &Blobs) -> Result<Arc<dyn Source>> {
        let (_, found, entries) = self.look(store)?;
        let fields = self.fields.as_deref().unwrap_or_default();
        Ok(Arc::new(PartList::new("nifti", &self.path, fields, found, &entries, false)?))
    }
}

/// Reads the header of a scan: where it lies, and the distances of its voxels.
fn look_nii(store: &dyn Store, entry: &Entry, channel: bool) -> Result<(Part, [f32; 3])> {
    let bad = |reason: String| Error::record(reason);
    let packed = ends_with(&entry.path, ".gz");
    let start = if packed {
        let start = read_piece(store, &entry.path, 0, entry.size.min(START) as usize)?;
        gunzip_start(&start, nifti::LENGTH).map_err(bad)?
    } else {
        read_piece(store, &entry.path, 0, entry.size.min(nifti::LENGTH as u64) as usize)?
    };
    let header = nifti::header(&start).map_err(bad)?;
    // The header was checked: the product is below the largest number.
    let bytes = header.shape.iter().product::<usize>() * header.dtype.size().unwrap_or(1);
    let (offset, stored, packing) = if packed {
        can_hold(entry.size, header.offset, bytes).map_err(bad)?;
        (0, entry.size as usize, Packing::Gzip { skip: header.offset })
    } else {
        let there = entry.size.saturating_sub(header.offset as u64);
        if there != bytes as u64 {
            let how = if there < bytes as u64 { "shorter" } else { "longer" };
            return Err(bad(format!(
                "it is {how} than its header says: {there} bytes where {}{:?} has {bytes}",
                header.dtype,
                &header.shape[..]
            )));
        }
        (header.offset as u64, bytes, Packing::Plain)
    };
    let mut shape = header.shape;
    if channel {
        shape.insert(0, 1);
    }
    let part = Part {
        path: Arc::from(&*entry.path),
        size: entry.size,
        modified: entry.modified,
        offset,
        stored,
        packing,
        dtype: header.dtype,
        swapped: header.swapped,
        fortran: shape.iter().filter(|side| **side > 1).count() > 1,
        rescale: header.rescale,
        widened: None,
        shape: Shape::from_slice(&shape),
        row: None,
    };
    Ok((part, header.spacing))
}
