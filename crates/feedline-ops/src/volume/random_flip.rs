//! Mirrors volumes along their axes.

use super::{edit, volumes};
use crate::image::check_chance;
use crate::registry::step;
use feedline_core::{Context, Draws, Error, Map, Name, Result, Sample, Spec};
use serde::{Deserialize, Serialize};

/// Mirrors all volumes along each of the `axes`, by itself with probability `p`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomFlip {
    /// The axes: 0 is depth, 1 is height, 2 is width.
    #[serde(default = "all")]
    pub axes: Vec<usize>,
    /// Chance that an axis is mirrored, between 0 and 1.
    #[serde(default = "third")]
    pub p: f64,
    /// The volumes to mirror; all there are if they are not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fields: Option<Vec<Name>>,
    #[serde(skip)]
    at: Vec<Name>,
}

fn all() -> Vec<usize> {
    vec![0, 1, 2]
}

fn third() -> f64 {
    1.0 / 3.0
}

step!(RandomFlip, "random_flip", Map);

impl RandomFlip {
    /// Which axes are mirrored. All are drawn for, so that leaving one out changes no other.
    fn chosen(&self, mut draws: Draws) -> [bool; 3] {
        std::array::from_fn(|axis| draws.chance(self.p) && self.axes.contains(&axis))
    }
}

impl Map for RandomFlip {
    fn prepare(&mut self, input: &Spec) -> Result<Spec> {
        check_chance("random_flip", self.p)?;
        if let Some(axis) = self.axes.iter().find(|axis| **axis > 2) {
            return Err(Error::pipeline(format!(
                "random_flip: there is no axis {axis}; 0 is depth, 1 is height, 2 is width"
            )));
        }
        let fields = volumes("random_flip", self.fields.as_deref(), input)?;
        self.at = fields.iter().map(|field| field.name).collect();
        Ok(input.clone())
    }

    fn map(&self, mut sample: Sample, context: &mut Context<'_>) -> Result<Sample> {
        let chosen = self.chosen(context.draws());
        for name in self.at.iter().filter(|_| chosen.contains(&true)) {
            edit(&mut sample, *name, |volume| {
                (0..3).filter(|axis| chosen[*axis]).for_each(|axis| volume.flip(axis, context));
                Ok(())
            })?;
        }
        Ok(sample)
    }

    fn way(&self, draws: Draws) -> u8 {
        // Only width moves numbers one by one.
        u8::from(self.chosen(draws)[2])
    }

    fn is_random(&self) -> bool {
        self.p > 0.0 && self.p < 1.0 && !self.axes.is_empty()
    }

    fn is_fused(&self) -> bool {
        true
    }
}
