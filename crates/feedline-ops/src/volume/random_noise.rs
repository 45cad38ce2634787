//! Adds normally distributed noise to volumes.

use super::{edit, float_volume};
use crate::image::check_chance;
use crate::registry::step;
use feedline_core::{Context, Draws, Error, Map, Name, Result, Sample, Spec};
use serde::{Deserialize, Serialize};

/// Adds noise to every voxel, with probability `p`: normally distributed around `mean`, with a standard
/// deviation that is drawn for each sample between 0 and `std`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomNoise {
    /// Mean of the noise.
    #[serde(default)]
    pub mean: f64,
    /// The greatest standard deviation.
    #[serde(default = "tenth")]
    pub std: f64,
    /// Chance that a sample is changed, between 0 and 1.
    #[serde(default = "tenth")]
    pub p: f64,
    /// The volume of floats; the only one there is if it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<Name>,
    #[serde(skip)]
    at: Option<Name>,
}

fn tenth() -> f64 {
    0.1
}

step!(RandomNoise, "random_noise", Map);

impl Map for RandomNoise {
    fn prepare(&mut self, input: &Spec) -> Result<Spec> {
        check_chance("random_noise", self.p)?;
        let Self { mean, std, .. } = *self;
        if !(mean as f32).is_finite() || !(std as f32).is_finite() || std < 0.0 {
            return Err(Error::pipeline(format!(
                "random_noise: mean={mean} std={std} is no noise; std is 0 or more"
            )));
        }
        self.at = Some(float_volume("random_noise", self.field, input)?.name);
        Ok(input.clone())
    }

    fn map(&self, mut sample: Sample, context: &mut Context<'_>) -> Result<Sample> {
        let mut draws = context.draws();
        if let Some(name) = self.at.filter(|_| draws.chance(self.p)) {
            let sigma = draws.between(0.0, self.std);
            let key = draws.next_u64();
            edit(&mut sample, name, |volume| {
                volume.noise(key, self.mean, sigma, context);
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
