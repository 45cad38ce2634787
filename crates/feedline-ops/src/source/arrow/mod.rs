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

mod blob;
mod held;
mod rows;

use super::cases::{ends_with, is_hidden};
use crate::registry::step;
use crate::sink::{TABLE, Table, shard_name};
use feedline_core::{
    Blobs, DType, Dim, Entry, Error, Field, Layout, Name, Result, Source, SourceRecipe, Spec, Store,
};
use rows::{Rows, read_footer};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The rows of Arrow files (IPC file format): those of a folder in byte order of their names, or of
/// one file. `feedline save` and `Dataset.save` write such folders, and so do others.
///
/// Columns are fields: numbers and truth values, lists and tensors of them, bytes and text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arrow {
    /// The folder, searched at any depth, or the file; or a URL of either, or names with braces.
    #[serde(deserialize_with = "crate::source::place")]
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
