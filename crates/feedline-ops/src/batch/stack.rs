//! Stacking: finished rows become the fields of a batch, filled up where they differ in length.
//!
//! ```text
//!  rows of one shape ──────────► one tensor
//!  rows of several lengths ────► one tensor as long as the longest, and their lengths
//!  fewer rows than room ───────► rows of filling, and a mask
//! ```

use super::Batch as Recipe;
use crate::Pipeline;
use crate::table::cast_bytes;
use feedline_core::{Batch, Buffer, DType, Error, Field, Name, Pool, Result, Shape, Spec, Tensor};

/// A field whose length differs from sample to sample, and is filled up in a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Padded {
    /// Which of the sample's fields.
    pub field: usize,
    /// The name of the field with the lengths.
    pub lengths: Name,
    /// One element of what it is filled up with.
    fill: Vec<u8>,
}

impl Padded {
    /// All fields of numbers that differ in their first dimension.
    ///
    /// # Errors
    ///
    /// If a field cannot hold `value`, or the name for its lengths is taken.
    pub(crate) fn all(step: &str, input: &Spec, value: f64) -> Result<Vec<Self>> {
        let mut padded = Vec::new();
        for (number, field) in input.fields.iter().enumerate() {
            if field.dtype.size().is_none() || field.shape.first() != Some(&None) {
                continue;
            }
            let name = format!("{}_length", field.name);
            if input.field(&name).is_some() {
                return Err(Error::pipeline(format!(
                    "{step}: the lengths of {} go into a field {name}, and there is one already; \
                     rename it",
                    field.name
                )));
            }
            let Some(fill) = element(field.dtype, value) else {
                return Err(Error::pipeline(format!(
                    "{step}: value={value} is no number that {field} can hold"
                )));
            };
            padded.push(Self { field: number, lengths: Name::new(&name), fill });
        }
        Ok(padded)
    }

    /// What a batch looks like: the fields with room for `rows`, the lengths, and the mask.
    pub(crate) fn output(all: &[Self], input: &Spec, rows: Option<usize>, mask: bool) -> Spec {
        let mut fields: Vec<Field> = input.fields.clone();
        for field in &mut fields {
            field.shape.insert(0, rows);
            field.layout = None;
        }
        fields.extend(all.iter().map(|own| Field::new(own.lengths, DType::I64, &[rows])));
        fields.extend(mask.then(|| Field::new(Recipe::MASK, DType::Bool, &[rows])));
        Spec::new(fields)
    }
}

/// One element of a dtype, if it can hold the number.
fn element(dtype: DType, value: f64) -> Option<Vec<u8>> {
    let bytes = cast_bytes(DType::F64, dtype, false, &value.to_ne_bytes());
    let back = cast_bytes(dtype, DType::F64, false, &bytes);
    let back = f64::from_ne_bytes(back.try_into().ok()?);
    let exact = dtype.is_float() || back.to_bits() == value.to_bits() || back == value;
    (exact && back.is_finite()).then_some(bytes)
}

/// A finished row: its sample's index, and its fields.
pub type Finished = (u64, Vec<(Name, Tensor)>);

/// How much room rows are given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Rows in all; those beyond the samples are padding. 0 for as many as there are samples.
    pub rows: usize,
    /// A field, and the length it is given at least.
    pub length: Option<(usize, usize)>,
    /// Whether a mask says which rows hold samples.
    pub mask: bool,
}

/// Stacks finished rows into a batch.
///
/// # Errors
///
/// If rows have shapes that do not go together.
pub fn stack(
    pipeline: &Pipeline,
    rows: &[Finished],
    room: Room,
    with_index: bool,
    pool: &Pool,
) -> Result<Batch> {
    let indices: Vec<u64> = rows.iter().map(|row| row.0).collect();
    let (mut fields, mut lengths) = (Vec::new(), Vec::new());
    for (number, field) in pipeline.sample.fields.iter().enumerate() {
        let parts: Vec<Tensor> = rows.iter().map(|(_, row)| row[number].1.clone()).collect();
        let (tensor, own) = column(pipeline, number, parts, room, &indices, pool)?;
        fields.push((field.name, tensor));
        lengths.extend(own);
    }
    fields.extend(lengths);
    if room.mask {
        let all = room.rows.max(rows.len());
        fields.push((Name::new(Recipe::MASK), mask(rows.len(), all)?));
    }
    Ok(Batch { fields, rows: rows.len(), indices: with_index.then_some(indices) })
}

/// Stacks one field of some rows, and says how long each was if the field is filled up.
///
/// # Errors
///
/// If rows have shapes that do not go together.
pub fn column(
    pipeline: &Pipeline,
    number: usize,
    mut parts: Vec<Tensor>,
    room: Room,
    indices: &[u64],
    pool: &Pool,
) -> Result<(Tensor, Option<(Name, Tensor)>)> {
    let field = &pipeline.sample.fields[number];
    let rows = room.rows.max(parts.len());
    let inner = || field.shape.iter().map(|dim| dim.unwrap_or(0));
    let Some(padded) = pipeline.padded.iter().find(|padded| padded.field == number) else {
        if parts.len() < rows {
            let shape: Shape = inner().collect();
            let zeros = vec![0; field.bytes().unwrap_or(0)];
            parts.resize(rows, Tensor::new(field.dtype, &shape, Buffer::from(&zeros[..]))?);
        }
        let odd = |at: usize| odd_one(pipeline, field, &parts, at, indices);
        return Ok((Tensor::stack(&parts, pool, odd)?, None));
    };
    let own = |part: &Tensor| part.shape().first().copied().unwrap_or(0);
    let least = room.length.filter(|(at, _)| *at == number).map(|(_, length)| length);
    // A batch of padding alone is as long as it is told to be, and never empty.
    let least = least.unwrap_or(usize::from(parts.is_empty()));
    let longest = parts.iter().map(own).max().unwrap_or(0).max(least);
    let mut shape: Shape = match parts.first() {
        Some(first) => Shape::from_slice(first.shape()),
        None => inner().collect(),
    };
    shape.iter_mut().take(1).for_each(|side| *side = longest);
    let mut lengths: Vec<i64> = parts.iter().map(|part| own(part) as i64).collect();
    lengths.resize(rows, 0);
    let odd = |at: usize| odd_one(pipeline, field, &parts, at, indices);
    let room = (field.dtype, &shape[..]);
    let tensor = Tensor::stack_padded(&parts, rows, room, &padded.fill, pool, odd)?;
    Ok((tensor, Some((padded.lengths, Tensor::from_slice(&[rows], &lengths)))))
}

/// Says which rows of a padded batch hold a sample.
///
/// # Errors
///
/// Never, as long as the mask has one byte a row.
pub fn mask(rows: usize, size: usize) -> Result<Tensor> {
    let mask: Vec<u8> = (0..size).map(|row| u8::from(row < rows)).collect();
    Tensor::new(DType::Bool, &[size], Buffer::from(&mask[..]))
}

/// What to say of a row whose field has another shape than those before it in its batch.
#[must_use]
fn odd_one(
    pipeline: &Pipeline,
    field: &Field,
    parts: &[Tensor],
    at: usize,
    indices: &[u64],
) -> Error {
    let index = indices.get(at).copied().unwrap_or(0);
    let ragged = pipeline.padded.iter().any(|p| pipeline.sample.fields[p.field] == *field);
    let advice = match (ragged, field.layout.is_some()) {
        (true, _) => "only the first dimension is filled up: make the others equal before",
        (false, true) => "samples of a batch have one shape: add resize or a crop before batch",
        (false, false) => {
            "samples of a batch have one shape: make them equal before, or let batch fill them up \
             (pad_ragged)"
        }
    };
    let error = Error::record(format!(
        "field {} is {:?}, where the batch begins with {:?}; {advice}",
        field.name, parts[at], parts[0]
    ));
    pipeline.at(error, index, "batch")
}
