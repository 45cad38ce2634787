//! Mirrors images top to bottom.

use super::{ImageField, check_chance};
use crate::registry::step;
use feedline_core::{Context, Map, Name, Needs, Result, Sample, Spec};
use serde::{Deserialize, Serialize};

/// Mirrors the image top to bottom, with probability `p`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlipVertical {
    /// Chance that a sample is mirrored, between 0 and 1.
    #[serde(default = "half")]
    pub p: f64,
    /// The image; the only one there is if it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<Name>,
    #[serde(skip)]
    at: Option<ImageField>,
}

fn half() -> f64 {
    0.5
}

impl FlipVertical {
    /// Mirrors with probability `p`.
    #[must_use]
    pub fn new(p: f64) -> Self {
        Self { p, field: None, at: None }
    }
}

step!(FlipVertical, "flip_vertical", Map);

impl Map for FlipVertical {
    fn prepare(&mut self, input: &Spec) -> Result<Spec> {
        check_chance("flip_vertical", self.p)?;
        self.at = Some(ImageField::find("flip_vertical", self.field, input)?.0);
        Ok(input.clone())
    }

    fn map(&self, mut sample: Sample, context: &mut Context<'_>) -> Result<Sample> {
        if context.draws().chance(self.p) {
            ImageField::edit(self.at, &mut sample, context, |mut picture, _| {
                picture.flip_vertical();
                Ok(picture)
            })?;
        }
        Ok(sample)
    }

    fn is_random(&self) -> bool {
        self.p > 0.0 && self.p < 1.0
    }

    fn needs(&self, _: &Sample, _: &Context<'_>) -> Needs {
        ImageField::needs(self.at)
    }

    fn is_fused(&self) -> bool {
        true
    }
}
