//! Makes volumes brighter or darker.

use super::{Pointwise, edit, float_volume};
use crate::image::check_chance;
use crate::registry::step;
use feedline_core::{Context, Draws, Error, Map, Name, Result, Sample, Spec};
use serde::{Deserialize, Serialize};

/// Multiplies every voxel by `1 + u`, with u between `low` and `high`, with probability `p`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomBrightness {
    /// The least u.
    #[serde(default = "low")]
    pub low: f64,
    /// The greatest u, itself left out.
    #[serde(default = "high")]
    pub high: f64,
    /// Chance that a sample is changed, between 0 and 1.
    #[serde(default = "seldom")]
    pub p: f64,
    /// The volume of floats; the only one there is if it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<Name>,
    #[serde(skip)]
    at: Option<Name>,
}

fn low() -> f64 {
    0.7
}

fn high() -> f64 {
    1.3
}

fn seldom() -> f64 {
    0.1
}

step!(RandomBrightness, "random_brightness", Map);

impl Map for RandomBrightness {
    fn prepare(&mut self, input: &Spec) -> Result<Spec> {
        check_chance("random_brightness", self.p)?;
        let Self { low, high, .. } = *self;
        let finite = (low as f32).is_finite() && (high as f32).is_finite();
        if !finite || low > high {
            return Err(Error::pipeline(format!(
                "random_brightness: low={low} high={high} is no range"
            )));
        }
        self.at = Some(float_volume("random_brightness", self.field, input)?.name);
        Ok(input.clone())
    }

    fn map(&self, mut sample: Sample, context: &mut Context<'_>) -> Result<Sample> {
        let mut draws = context.draws();
        if let Some(name) = self.at.filter(|_| draws.chance(self.p)) {
            let factor = 1.0 + draws.between(self.low, self.high);
            edit(&mut sample, name, |volume| {
                volume.pointwise(Pointwise::Scale(factor), context);
                Ok(())
            })?;
        }
        Ok(sample)
    }

    fn way(&self, mut draws: Draws) -> u8 {
        u8::from(draws.chance(self.p))
    }

    fn is_random(&self) -> bool {
        self.p > 0.0
    }

    fn is_fused(&self) -> bool {
        true
    }
}
