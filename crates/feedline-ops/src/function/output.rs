//! What a function gives: declared, or learnt from samples.

use feedline_core::{DType, Dim, Error, Field, Layout, Name, Result, Spec, Tensor};
use serde::{Deserialize, Serialize};

/// No value has more dimensions.
const MOST_DIMENSIONS: usize = 16;

/// One field of what a function gives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// The field's name.
    pub name: Name,
    /// The type of its elements.
    pub dtype: DType,
    /// Its shape; null where samples differ.
    #[serde(default)]
    pub shape: Vec<Dim>,
    /// How it lies in memory, if it is an image that later steps shall know as one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<Layout>,
}

impl Output {
    fn field(&self) -> Field {
        let Self { name, dtype, shape, layout } = self;
        Field { name: *name, dtype: *dtype, shape: shape.clone(), layout: *layout }
    }

    fn check(&self) -> Result<()> {
        let wrong = |what: &str| Err(Error::pipeline(format!("map: {} {what}", self.field())));
        if self.shape.len() > MOST_DIMENSIONS {
            return wrong(&format!("has more than {MOST_DIMENSIONS} dimensions"));
        }
        if self.dtype.size().is_none() && !self.shape.is_empty() {
            return wrong("is a list; a field of bytes or text is one value, of shape []");
        }
        if self.layout.is_some() && self.shape.len() != 3 {
            return wrong("is no image; those have three dimensions");
        }
        if self.layout.is_some() && self.shape.contains(&Some(0)) {
            return wrong("is an image without pixels");
        }
        let known = self.shape.iter().flatten();
        if known.copied().try_fold(16usize, usize::checked_mul).is_none() {
            return wrong("is larger than all memory");
        }
        Ok(())
    }
}

/// The spec that outputs stand for.
pub(super) fn spec_of(outputs: &[Output]) -> Result<Spec> {
    if outputs.is_empty() {
        return Err(Error::pipeline("map: output names no field; a sample has at least one"));
    }
    for (at, output) in outputs.iter().enumerate() {
        output.check()?;
        if outputs[..at].iter().any(|other| other.name == output.name) {
            return Err(Error::pipeline(format!("map: output names {} twice", output.name)));
        }
    }
    Ok(Spec::new(outputs.iter().map(Output::field).collect()))
}

/// What several samples that a function gave have in common: sides that differ are left open. A field
/// that was an image before stays one if it has as many dimensions and channels.
///
/// # Errors
///
/// If they have different fields or types.
pub fn common_output(input: &Spec, samples: &[Vec<(Name, Tensor)>]) -> Result<Vec<Output>> {
    let Some((first, others)) = samples.split_first() else {
        return Err(Error::pipeline(
            "map: there is no sample to learn from what the function gives; say it with output=",
        ));
    };
    let shape = |tensor: &Tensor| tensor.shape().iter().copied().map(Some).collect::<Vec<Dim>>();
    let mut outputs = Vec::new();
    for (name, tensor) in first {
        let (name, dtype) = (*name, tensor.dtype());
        outputs.push(Output { name, dtype, shape: shape(tensor), layout: None });
    }
    for other in others {
        let same = other.len() == outputs.len()
            && outputs.iter().zip(other).all(|(output, (name, tensor))| {
                let same = output.name == *name && output.dtype == tensor.dtype();
                same && output.shape.len() == tensor.shape().len()
            });
        if !same {
            return Err(Error::pipeline(format!(
                "map: the function gives samples that differ, {} and {}; fields, types and numbers of \
                 dimensions have to be the same",
                said(first),
                said(other)
            )));
        }
        for (output, (_, tensor)) in outputs.iter_mut().zip(other) {
            for (side, found) in output.shape.iter_mut().zip(tensor.shape()) {
                *side = side.filter(|side| side == found);
            }
        }
    }
    for output in &mut outputs {
        let before = input.field(output.name.as_str());
        let Some((before, layout)) = before.and_then(|field| Some((field, field.layout?))) else {
            continue;
        };
        let image = Field { layout: Some(layout), ..output.field() };
        let channels = image.image_size().and_then(|size| size[2]);
        let same =
            before.image_size().is_some_and(|size| size[2].is_none_or(|n| channels == Some(n)));
        if same && matches!(channels, Some(1..=4)) {
            output.layout = Some(layout);
        }
    }
    Ok(outputs)
}

fn said(sample: &[(Name, Tensor)]) -> String {
    let fields = sample.iter().map(|(name, tensor)| format!("{name} {tensor:?}"));
    format!("({})", fields.collect::<Vec<_>>().join(", "))
}

/// Puts what a function gave into the order of the spec, if it is what the spec says.
///
/// # Errors
///
/// Says what is different.
pub(super) fn arranged(spec: &Spec, mut found: Vec<(Name, Tensor)>) -> Result<Vec<(Name, Tensor)>> {
    let mut fields = Vec::with_capacity(spec.fields.len());
    for field in &spec.fields {
        let Some(at) = found.iter().position(|(name, _)| *name == field.name) else {
            return Err(Error::record(format!(
                "the function gave no field {}, which it is to give: {spec}",
                field.name
            )));
        };
        let (name, tensor) = found.swap_remove(at);
        let fits = tensor.dtype() == field.dtype
            && tensor.shape().len() == field.shape.len()
            && tensor.shape().iter().zip(&field.shape).all(|(n, dim)| dim.is_none_or(|d| d == *n));
        if !fits {
            let hint = match tensor.dtype() == field.dtype {
                true => "; where sides differ from sample to sample, say None in output=",
                false => "",
            };
            return Err(Error::record(format!(
                "the function gave {name} as {tensor:?} where {field} was expected{hint}"
            )));
        }
        fields.push((name, tensor));
    }
    match found.first() {
        Some((name, _)) => Err(Error::record(format!(
            "the function gave a field {name}, and it is to give {spec}"
        ))),
        None => Ok(fields),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str, tensor: Tensor) -> (Name, Tensor) {
        (Name::new(name), tensor)
    }

    #[test]
    fn sides_that_differ_are_left_open_and_images_stay_images() {
        let input =
            Spec::new(vec![Field::image("image", DType::U8, Layout::Hwc, [None, None, Some(3)])]);
        let sample = |height: usize, length: usize| {
            vec![
                named("image", Tensor::from_slice(&[height, 2, 3], &vec![0u8; height * 6])),
                named("tokens", Tensor::from_slice(&[length], &vec![1i64; length])),
            ]
        };
        let learnt = common_output(&input, &[sample(4, 1), sample(4, 2)]).unwrap();
        assert_eq!(learnt[0].shape, [Some(4), Some(2), Some(3)]);
        assert_eq!(learnt[0].layout, Some(Layout::Hwc));
        assert_eq!(learnt[1].shape, [None]);
        assert!(common_output(&input, &[]).is_err());
        let other = vec![named("tokens", Tensor::scalar(1i64))];
        assert!(common_output(&input, &[sample(4, 1), other]).is_err());
    }

    #[test]
    fn fields_come_in_the_order_that_was_said() {
        let fields = vec![Field::new("a", DType::I64, &[]), Field::new("b", DType::F32, &[None])];
        let spec = Spec::new(fields);
        let (a, b) = (Tensor::scalar(1i64), Tensor::from_slice(&[2], &[1f32, 2.0]));
        let found = vec![named("b", b.clone()), named("a", a.clone())];
        let fields = arranged(&spec, found).unwrap();
        assert_eq!(fields, [named("a", a.clone()), named("b", b.clone())]);
        for wrong in [
            vec![named("a", a.clone())],
            vec![named("a", b.clone()), named("b", b.clone())],
            vec![named("a", a.clone()), named("b", Tensor::scalar(1f32))],
            vec![named("a", a.clone()), named("b", b.clone()), named("c", a.clone())],
        ] {
            assert!(arranged(&spec, wrong).unwrap_err().is_record());
        }
    }
}
