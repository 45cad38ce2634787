//! Brings values to mean 0 and standard deviation 1.

use super::ImageField;
use crate::decode::{Affine, Pointwise};
use crate::registry::step;
use feedline_core::{Context, DType, Error, Map, Name, Result, Sample, Spec};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Computes `(x - mean) / std` per channel, in `float32`. Images of integers are scaled to 0…1
/// first, so mean and std are those of torchvision's `v2.Normalize` after `ToDtype(scale=True)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Normalize {
    /// Mean of each channel.
    pub mean: Vec<f64>,
    /// Standard deviation of each channel.
    pub std: Vec<f64>,
    /// The image; the only one there is if it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<Name>,
    #[serde(skip)]
    at: Option<(ImageField, Arc<Affine>)>,
}

impl Normalize {
    /// Normalises by mean and standard deviation per channel.
    #[must_use]
    pub fn new(mean: &[f64], std: &[f64]) -> Self {
        Self { mean: mean.to_vec(), std: std.to_vec(), field: None, at: None }
    }
}

step!(Normalize, "normalize", Map);

impl Map for Normalize {
    fn prepare(&mut self, input: &Spec) -> Result<Spec> {
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
            if values.iter().any(|value| !(*value as f32).is_finite()) {
                return Err(Error::pipeline(format!("normalize: {what}={values:?} is not finite")));
            }
        }
        if std.iter().any(|value| *value as f32 == 0.0) {
            return Err(Error::pipeline("normalize: std=0 would divide by zero"));
        }
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
        self.at = Some((at, Arc::new(Affine { mean, std, scale, bias })));
        let mut field = field;
        field.dtype = DType::F32;
        Ok(input.replace(field))
    }

    fn map(&self, mut sample: Sample, context: &mut Context<'_>) -> Result<Sample> {
        let at = self.at.as_ref();
        ImageField::edit(at.map(|at| at.0), &mut sample, context, |mut picture, _| {
            if let Some((_, affine)) = at {
                picture.pointwise(Pointwise::Normalize(Arc::clone(affine)));
            }
            Ok(picture)
        })?;
        Ok(sample)
    }

    fn is_fused(&self) -> bool {
        true
    }
}
