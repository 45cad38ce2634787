//! Brings values to mean 0 and standard deviation 1.

use super::ImageField;
use crate::decode::{Affine, Pointwise};
use crate::registry::step;
use crate::volume;
use feedline_core::{Context, DType, Error, Field, Map, Name, Needs, Result, Sample, Spec};
use serde::{Deserialize, Deserializer, Serialize};
use std::sync::Arc;

/// Computes `(x - mean) / std` per channel, in `float32`. Images of integers are scaled to 0…1
/// first, so mean and std are those of torchvision's `v2.Normalize` after `ToDtype(scale=True)`.
/// Arrays that are no images take one mean and one std, and are not scaled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Normalize {
    /// Mean of each channel, or of all.
    #[serde(deserialize_with = "one_or_more")]
    pub mean: Vec<f64>,
    /// Standard deviation of each channel, or of all.
    #[serde(deserialize_with = "one_or_more")]
    pub std: Vec<f64>,
    /// The image or array; the only image there is, or else the only volume of floats, if it is not
    /// given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<Name>,
    #[serde(skip)]
    at: Option<At>,
}

/// What a prepared step works on.
#[derive(Clone, Debug, PartialEq)]
enum At {
    Image(ImageField, Arc<Affine>),
    Array { name: Name, mean: f32, std: f32 },
}

fn one_or_more<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<f64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "mean and std are a number each, or a list of numbers")]
    enum Either {
        One(f64),
        More(Vec<f64>),
    }
    Ok(match Either::deserialize(deserializer)? {
        Either::One(value) => vec![value],
        Either::More(values) => values,
    })
}

impl Normalize {
    /// Normalises by mean and standard deviation per channel.
    #[must_use]
    pub fn new(mean: &[f64], std: &[f64]) -> Self {
        Self { mean: mean.to_vec(), std: std.to_vec(), field: None, at: None }
    }
}

step!(Normalize, "normalize", Map);

impl Normalize {
    /// The field, if it is an array of numbers and no image.
    fn array(&self, input: &Spec) -> Result<Option<Field>> {
        let images = input.fields.iter().any(|field| field.layout.is_some());
        let field = match self.field {
            Some(name) => Some(input.expect("normalize", name.as_str())?.clone()),
            None if images => None,
            None => volume::float_volume("normalize", None, input).ok(),
        };
        let is_array = |field: &Field| field.layout.is_none() && field.dtype.size().is_some();
        Ok(field.filter(is_array))
    }

    fn prepare_array(&mut self, mut field: Field, input: &Spec) -> Result<Spec> {
        for (what, values) in [("mean", &self.mean), ("std", &self.std)] {
            if values.len() != 1 {
                return Err(Error::pipeline(format!(
                    "normalize: {what} has {} values; {field} is no image and takes one",
                    values.len()
                )));
            }
        }
        self.check_values()?;
        let (mean, std) = (self.mean[0] as f32, self.std[0] as f32);
        self.at = Some(At::Array { name: field.name, mean, std });
        field.dtype = DType::F32;
        Ok(input.replace(field))
    }

    fn check_values(&self) -> Result<()> {
        for (what, values) in [("mean", &self.mean), ("std", &self.std)] {
            if values.iter().any(|value| !(*value as f32).is_finite()) {
                return Err(Error::pipeline(format!("normalize: {what}={values:?} is not finite")));
            }
        }
        if self.std.iter().any(|value| *value as f32 == 0.0) {
            return Err(Error::pipeline("normalize: std=0 would divide by zero"));
        }
        Ok(())
    }
}

impl Map for Normalize {
    fn prepare(&mut self, input: &Spec) -> Result<Spec> {
        if let Some(field) = self.array(input)? {
            return self.prepare_array(field, input);
        }
        let (at, field) = ImageField::find("normalize", self.field, input)?;
        let channels = field.image_size().and_then(|size| size[2]).unwrap_or(3);
        if !matches!(field.dtype, DType::U8 | DType::F32) {
            return Err(Error::pipeline(format!(
                "normalize: works on uint8 and float32 images, and {field} is neither; cast it first"
            )));
        }
        let Self { mean, std, .. } = self;
        for (what, values) in [("mean", &*mean), ("std", &*std)] {
            if values.len() != channels && values.len() != 1 {
                return Err(Error::pipeline(format!(
                    "normalize: {what} has {} values for {channels} channels",
                    values.len()
                )));
            }
        }
        self.check_values()?;
        let Self { mean, std, .. } = &*self;
        let all = |values: &[f64]| -> Vec<f64> {
            (0..channels).map(|at| values[at % values.len()]).collect()
        };
        let (mean, std) = (all(mean), all(std));
        let (mut scale, mut bias) = (vec![0.0; channels], vec![0.0; channels]);
        for at in 0..channels {
            scale[at] = (1.0 / (255.0 * std[at])) as f32;
            bias[at] = (-mean[at] / std[at]) as f32;
        }
        let single = |values: Vec<f64>| values.into_iter().map(|value| value as f32).collect();
        let (mean, std) = (single(mean), single(std));
        self.at = Some(At::Image(at, Arc::new(Affine { mean, std, scale, bias })));
        let mut field = field;
        field.dtype = DType::F32;
        Ok(input.replace(field))
    }

    fn map(&self, mut sample: Sample, context: &mut Context<'_>) -> Result<Sample> {
        match &self.at {
            None => return Err(Error::Internal("normalize was not prepared".into())),
            Some(At::Image(at, affine)) => {
                ImageField::edit(Some(*at), &mut sample, context, |mut picture, _| {
                    picture.pointwise(Pointwise::Normalize(Arc::clone(affine)));
                    Ok(picture)
                })?;
            }
            Some(At::Array { name, mean, std }) => {
                let normalize = volume::Pointwise::Normalize { mean: *mean, std: *std };
                sample.update(*name, |value| volume::change(value, normalize, context))?;
            }
        }
        Ok(sample)
    }

    fn needs(&self, _: &Sample, _: &Context<'_>) -> Needs {
        match &self.at {
            Some(At::Image(at, _)) => ImageField::needs(Some(*at)),
            _ => Needs::Nothing,
        }
    }

    fn is_fused(&self) -> bool {
        true
    }
}
