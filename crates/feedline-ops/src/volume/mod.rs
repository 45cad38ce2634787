//! Volumes: scans and other arrays whose last three axes are depth, height and width.
//!
//! Most steps only extend the description of a [`Volume`]; what they describe is read and computed
//! in one pass when it reaches its batch.

mod boxes;
mod cube;
mod made;
mod pad_to;
mod part;
mod pointwise;
mod random_balanced_crop;
mod random_brightness;
mod random_flip;
mod random_noise;
mod resample;
mod transpose;
#[expect(clippy::module_inception, reason = "the thing itself, beside the steps that extend it")]
mod volume;

pub use cube::Cube;
pub use pad_to::PadTo;
pub use random_balanced_crop::RandomBalancedCrop;
pub use random_brightness::RandomBrightness;
pub use random_flip::RandomFlip;
pub use random_noise::RandomNoise;
pub use resample::Resample;
pub use volume::{Region, Volume};

pub(crate) use part::{Packing, Part, bit, can_hold, gunzip_start, inflate_start};
pub(crate) use pointwise::Pointwise;

use crate::kernel::Level;
use crate::registry::{Row, read};
use feedline_core::{
    Buffer, Context, Error, Field, Name, Result, Sample, Shape, Spec, Tensor, Value,
};

pub(crate) const STEPS: &[Row] = &[
    ("resample", read::<Resample>),
    ("pad_to", read::<PadTo>),
    ("random_balanced_crop", read::<RandomBalancedCrop>),
    ("random_flip", read::<RandomFlip>),
    ("random_brightness", read::<RandomBrightness>),
    ("random_noise", read::<RandomNoise>),
];

/// Whether a field is a volume: numbers of three or four dimensions, and no image.
fn is_volume(field: &Field) -> bool {
    field.dtype.size().is_some() && field.layout.is_none() && matches!(field.shape.len(), 3 | 4)
}

fn no_volume(step: &str, field: &Field) -> Error {
    Error::pipeline(format!("{step}: {field} is no volume; those have three or four dimensions"))
}

/// The volumes a step works on: those named, or all there are.
pub(crate) fn volumes(step: &str, names: Option<&[Name]>, input: &Spec) -> Result<Vec<Field>> {
    let fields: Vec<Field> = match names {
        Some(names) => names
            .iter()
            .map(|name| input.expect(step, name.as_str()).cloned())
            .collect::<Result<_>>()?,
        None => input.fields.iter().filter(|field| is_volume(field)).cloned().collect(),
    };
    if let Some(field) = fields.iter().find(|field| !is_volume(field)) {
        return Err(no_volume(step, field));
    }
    if fields.is_empty() {
        return Err(Error::pipeline(format!(
            "{step}: works on volumes (three or four dimensions), and there is none here (fields: \
             {input})"
        )));
    }
    Ok(fields)
}

/// The volume of floats a step works on: the one named, or the only one.
pub(crate) fn float_volume(step: &str, name: Option<Name>, input: &Spec) -> Result<Field> {
    if let Some(name) = name {
        let field = input.expect(step, name.as_str())?;
        if !is_volume(field) {
            return Err(no_volume(step, field));
        }
        if !field.dtype.is_float() {
            return Err(Error::pipeline(format!(
                "{step}: works on floating-point numbers, and {field} has none; cast it first"
            )));
        }
        return Ok(field.clone());
    }
    let mut floats = input.fields.iter().filter(|field| is_volume(field) && field.dtype.is_float());
    match (floats.next(), floats.next()) {
        (Some(field), None) => Ok(field.clone()),
        (None, _) => Err(Error::pipeline(format!(
            "{step}: works on a volume of floating-point numbers, and there is none here (fields: \
             {input})"
        ))),
        (Some(first), Some(second)) => Err(Error::pipeline(format!(
            "{step}: which volume? say field={} or field={}",
            first.name, second.name
        ))),
    }
}

/// The shape of an array, computed or not.
fn shape_of(value: &Value) -> Shape {
    match value {
        Value::Tensor(tensor) => Shape::from_slice(tensor.shape()),
        Value::Deferred(value) => value.shape(),
    }
}

/// Depth, height and width of a volume.
fn extent(value: &Value) -> [usize; 3] {
    volume::spatial(&shape_of(value)).1
}

/// Replaces the volume in a field by what `change` makes of it.
pub(crate) fn edit(
    sample: &mut Sample,
    name: Name,
    change: impl FnOnce(&mut Volume) -> Result<()>,
) -> Result<()> {
    sample.update(name, |value| {
        let mut volume = Volume::from_value(value)?;
        change(&mut volume)?;
        Ok(Value::Deferred(volume))
    })
}

/// Adds a pointwise change to an array, or computes it at once if it is small and at hand.
pub(crate) fn change(value: Value, change: Pointwise, context: &mut Context<'_>) -> Result<Value> {
    if let Value::Tensor(tensor) = &value
        && tensor.shape().len() < 3
    {
        let dtype = change.output(tensor.dtype());
        let bytes = change.apply(tensor.dtype(), tensor.data(), 0, Level::Scalar);
        return Ok(Tensor::new(dtype, tensor.shape(), Buffer::from(&bytes[..]))?.into());
    }
    let mut volume = Volume::from_value(value)?;
    volume.pointwise(change, context);
    Ok(Value::Deferred(volume))
}
