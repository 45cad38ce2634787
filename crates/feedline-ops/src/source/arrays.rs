//! Arrays in memory: row i of each is sample i.

use crate::registry::step;
use feedline_core::{
    Blobs, Buffer, DType, Error, Extent, Field, Layout, Name, Result, Sample, Source, SourceRecipe,
    Spec, Store, Tensor,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Arrays of equal length, handed over with the plan and never copied.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arrays {
    /// The arrays, in the order of the sample's fields.
    pub fields: Vec<Array>,
}

/// One array.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Array {
    /// The field's name.
    pub name: Name,
    /// The hash of its content.
    pub blob: String,
    /// The type of its elements.
    pub dtype: DType,
    /// Its shape, rows first.
    pub shape: Vec<usize>,
    /// How its rows lie in memory, if they are images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<Layout>,
}

step!(Arrays, "arrays", Source);

impl SourceRecipe for Arrays {
    fn spec(&self) -> Result<Spec> {
        let Some(first) = self.fields.first() else {
            return Err(Error::pipeline("arrays: there are none"));
        };
        let rows = first.shape.first().copied();
        for (at, array) in self.fields.iter().enumerate() {
            let name = array.name;
            if array.shape.is_empty() {
                return Err(Error::pipeline(format!("arrays: {name} is one number, without rows")));
            }
            if array.shape.first().copied() != rows {
                return Err(Error::pipeline(format!(
                    "arrays: {} has {} rows and {name} has {}; they must be equal",
                    first.name,
                    rows.unwrap_or(0),
                    array.shape[0]
                )));
            }
            if self.fields[..at].iter().any(|other| other.name == name) {
                return Err(Error::pipeline(format!("arrays: {name} is given twice")));
            }
            let bytes = array.shape.iter().try_fold(16usize, |all, side| all.checked_mul(*side));
            if bytes.is_none() {
                return Err(Error::pipeline(format!(
                    "arrays: {name} of shape {:?} is larger than all memory",
                    array.shape
                )));
            }
            if array.layout.is_some() && array.shape[1..].contains(&0) {
                return Err(Error::pipeline(format!(
                    "arrays: images of shape {:?} in {name} have no pixels",
                    &array.shape[1..]
                )));
            }
            if array.layout.is_some() && array.shape.len() != 4 {
                return Err(Error::pipeline(format!(
                    "arrays: {name} has {} dimensions; rows of images need 4",
                    array.shape.len()
                )));
            }
        }
        let field = |array: &Array| Field {
            name: array.name,
            dtype: array.dtype,
            shape: array.shape[1..].iter().map(|side| Some(*side)).collect(),
            layout: array.layout,
        };
        Ok(Spec::new(self.fields.iter().map(field).collect()))
    }

    fn open(&self, _: &dyn Store, blobs: &Blobs) -> Result<Arc<dyn Source>> {
        let mut hash = blake3::Hasher::new();
        hash.update(b"arrays");
        let mut fields = Vec::new();
        for array in &self.fields {
            let tensor =
                blobs.get(&array.blob).ok_or_else(|| super::files::missing(&array.blob))?;
            let fits = match array.dtype.size() {
                Some(_) => {
                    tensor.data().len()
                        == array.shape.iter().product::<usize>() * array.dtype.size().unwrap_or(1)
                }
                None => tensor.shape() == array.shape,
            };
            if !fits {
                return Err(Error::Source(format!("array {} is not of its shape", array.name)));
            }
            let tensor = match array.dtype.size() {
                Some(_) => tensor.clone().reinterpret(array.dtype, &array.shape)?,
                None => tensor.clone(),
            };
            hash.update(array.name.as_str().as_bytes()).update(array.blob.as_bytes());
            fields.push((array.name, tensor));
        }
        let rows = self.fields.first().map_or(0, |array| array.shape[0] as u64);
        let manifest = hash.finalize().to_hex()[..32].to_owned();
        Ok(Arc::new(OpenArrays { fields, rows, manifest }))
    }
}

struct OpenArrays {
    fields: Vec<(Name, Tensor)>,
    rows: u64,
    manifest: String,
}

impl Source for OpenArrays {
    fn length(&self) -> u64 {
        self.rows
    }

    fn locate(&self, _: u64) -> Option<Extent<'_>> {
        None
    }

    fn parse(&self, index: u64, _: Option<Buffer>) -> Result<Sample> {
        let mut sample = Sample::new();
        for (name, tensor) in &self.fields {
            let row = match tensor.item(index as usize) {
                Some(item) if tensor.dtype() == DType::Text => {
                    let text = std::str::from_utf8(item)
                        .map_err(|error| Error::record(format!("{name} is not UTF-8: {error}")))?;
                    Tensor::text(text)
                }
                Some(item) => Tensor::bytes(Buffer::from(item)),
                None => tensor.row(index as usize),
            };
            sample.set(*name, row);
        }
        Ok(sample)
    }

    fn origin(&self, index: u64) -> String {
        format!("arrays[{index}]")
    }

    fn manifest(&self) -> String {
        self.manifest.clone()
    }

    fn column(&self, field: &str) -> Option<Vec<i64>> {
        let (_, tensor) = self.fields.iter().find(|(name, _)| *name == field)?;
        if tensor.shape().len() != 1 || !tensor.dtype().is_integer() {
            return None;
        }
        crate::table::to_i64(tensor)
    }
}
