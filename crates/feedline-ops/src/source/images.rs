//! A folder of images, one class per subfolder.

use crate::registry::step;
use feedline_core::{
    Blobs, Buffer, DType, Entry, Error, Extent, Field, Name, Result, Sample, Source, SourceRecipe,
    Spec, Store, Tensor,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// File names that are taken for images, whatever their content turns out to be.
pub(crate) const EXTENSIONS: [&str; 9] =
    ["jpg", "jpeg", "jpe", "png", "webp", "bmp", "gif", "tif", "tiff"];

/// The images below a folder. The first level of subfolders names the classes, numbered in byte
/// order of their names; images may lie deeper. Images directly in the folder are allowed only if
/// there are no classes; they all get label 0.
///
/// Fields: `image` (the encoded bytes) and `label`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Images {
    /// The folder; or the URL of one.
    #[serde(deserialize_with = "super::place")]
    pub path: PathBuf,
}

step!(Images, "images", Source);

impl SourceRecipe for Images {
    fn spec(&self) -> Result<Spec> {
        Ok(Spec::new(vec![
            Field::new("image", DType::Bytes, &[]),
            Field::new("label", DType::I64, &[]),
        ]))
    }

    fn open(&self, store: &dyn Store, _: &Blobs) -> Result<Arc<dyn Source>> {
        let listed = store.list(&self.path)?;
        let others = listed.len();
        let entries: Vec<Entry> = listed.into_iter().filter(|e| is_image(&e.path)).collect();
        if entries.is_empty() {
            let found = if others == 0 {
                "it is empty".to_owned()
            } else {
                format!(
                    "none of its {others} files is called {}",
                    EXTENSIONS.map(|e| format!("*.{e}")).join(", ")
                )
            };
            return Err(Error::Source(format!("no images in {}: {found}", self.path.display())));
        }
        let class = |entry: &Entry| {
            let inside = entry.path.strip_prefix(&self.path).unwrap_or(&entry.path);
            let mut parts = inside.components();
            let first = parts.next()?;
            parts.next().map(|_| first.as_os_str().as_bytes().to_vec())
        };
        let names: BTreeSet<Vec<u8>> = entries.iter().filter_map(&class).collect();
        let mut labels = Vec::with_capacity(entries.len());
        for entry in &entries {
            labels.push(match class(entry) {
                Some(name) => names.iter().position(|known| *known == name).unwrap_or(0) as i64,
                None if names.is_empty() => 0,
                None => {
                    return Err(Error::Source(format!(
                        "{} lies beside the class folders of {} and belongs to none; move it into \
                         one, or name the files in a list (files)",
                        entry.path.display(),
                        self.path.display()
                    )));
                }
            });
        }
        let classes = names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
        Ok(Arc::new(FileList::new(&self.path, entries, Some(labels), classes, "image")))
    }
}

fn is_image(path: &Path) -> bool {
    let name = path.file_name().map_or(&b""[..], |name| name.as_bytes());
    if name.starts_with(b".") {
        return false;
    }
    let extension = path.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|e| EXTENSIONS.contains(&e.to_ascii_lowercase().as_str()))
}

/// A fixed list of whole files, with labels or without.
pub(crate) struct FileList {
    root: PathBuf,
    entries: Vec<Entry>,
    labels: Option<Vec<i64>>,
    classes: Vec<String>,
    field: Name,
    label: Name,
    manifest: String,
}

impl FileList {
    pub(crate) fn new(
        root: &Path,
        entries: Vec<Entry>,
        labels: Option<Vec<i64>>,
        classes: Vec<String>,
        field: &str,
    ) -> Self {
        let mut hash = blake3::Hasher::new();
        hash.update(b"files");
        for (at, entry) in entries.iter().enumerate() {
            // The folder itself may be mounted elsewhere: only what lies below it counts.
            let inside = entry.path.strip_prefix(root).unwrap_or(&entry.path);
            let name = inside.as_os_str().as_bytes();
            hash.update(&(name.len() as u64).to_le_bytes()).update(name);
            hash.update(&entry.size.to_le_bytes()).update(&entry.modified.to_le_bytes());
            hash.update(&labels.as_ref().map_or(-1, |labels| labels[at]).to_le_bytes());
        }
        let manifest = hash.finalize().to_hex()[..32].to_owned();
        let (field, label) = (Name::new(field), Name::new("label"));
        Self { root: root.to_owned(), entries, labels, classes, field, label, manifest }
    }
}

impl Source for FileList {
    fn length(&self) -> u64 {
        self.entries.len() as u64
    }

    fn locate(&self, index: u64) -> Option<Extent<'_>> {
        let entry = &self.entries[index as usize];
        let Entry { path, size, modified } = entry;
        Some(Extent { path, offset: 0, length: *size, whole: true, modified: *modified })
    }

    fn parse(&self, index: u64, bytes: Option<Buffer>) -> Result<Sample> {
        let bytes = bytes.ok_or_else(|| Error::Internal("a file without its bytes".into()))?;
        let sample = Sample::new().with(self.field, Tensor::bytes(bytes));
        Ok(match &self.labels {
            Some(labels) => sample.with(self.label, Tensor::scalar(labels[index as usize])),
            None => sample,
        })
    }

    fn origin(&self, index: u64) -> String {
        self.entries[index as usize].path.display().to_string()
    }

    fn manifest(&self) -> String {
        self.manifest.clone()
    }

    fn column(&self, field: &str) -> Option<Vec<i64>> {
        if self.label == field { self.labels.clone() } else { None }
    }

    fn key(&self, index: u64) -> Option<Vec<u8>> {
        let path = &self.entries[index as usize].path;
        Some(path.strip_prefix(&self.root).unwrap_or(path).as_os_str().as_bytes().to_vec())
    }

    fn stored_bytes(&self) -> Option<u64> {
        Some(self.entries.iter().map(|entry| entry.size).sum())
    }

    fn classes(&self) -> Option<&[String]> {
        (!self.classes.is_empty()).then_some(&self.classes)
    }
}
