//! Keeps numbers between two bounds.

use crate::registry::step;
use crate::volume::{Pointwise, change, float_volume};
use feedline_core::{Context, Error, Map, Name, Needs, Result, Sample, Spec};
use serde::{Deserialize, Serialize};

/// Replaces numbers below `min` by it and those above `max` by that; what is no number stays so.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clip {
    /// The least number; none if it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    /// The greatest number; none if it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
    /// The field; the only one, or the only volume of floats, if it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<Name>,
    #[serde(skip)]
    at: Option<Name>,
    #[serde(skip)]
    lazy: bool,
}

step!(Clip, "clip", Map);

impl Map for Clip {
    fn prepare(&mut self, input: &Spec) -> Result<Spec> {
        let field = match self.field {
            Some(name) => input.expect("clip", name.as_str())?.clone(),
            None if input.fields.len() == 1 => input.fields[0].clone(),
            None => float_volume("clip", None, input)?,
        };
        if field.layout.is_some() || !(field.dtype.is_integer() || field.dtype.is_float()) {
            return Err(Error::pipeline(format!(
                "clip: works on arrays of numbers, and {field} is none"
            )));
        }
        let (low, high) = (self.min.unwrap_or(f64::MIN), self.max.unwrap_or(f64::MAX));
        if self.min.is_none() && self.max.is_none() {
            return Err(Error::pipeline("clip: give min, max or both"));
        }
        if low > high || low.is_nan() || high.is_nan() {
            return Err(Error::pipeline(format!("clip: min={low} is above max={high}")));
        }
        let given = [self.min, self.max];
        let fraction = given.into_iter().flatten().find(|bound| bound.fract() != 0.0);
        if let Some(bound) = fraction.filter(|_| field.dtype.is_integer()) {
            return Err(Error::pipeline(format!(
                "clip: {bound} is no whole number, and {field} holds only such"
            )));
        }
        (self.at, self.lazy) = (Some(field.name), field.shape.len() > 2);
        Ok(input.clone())
    }

    fn map(&self, mut sample: Sample, context: &mut Context<'_>) -> Result<Sample> {
        let name = self.at.ok_or_else(|| Error::Internal("clip was not prepared".into()))?;
        let low = self.min.unwrap_or(f64::NEG_INFINITY);
        let high = self.max.unwrap_or(f64::INFINITY);
        let clip = Pointwise::Clip { low, high };
        sample.update(name, |value| change(value, clip, context))?;
        Ok(sample)
    }

    fn needs(&self, _: &Sample, _: &Context<'_>) -> Needs {
        Needs::Nothing
    }

    fn is_fused(&self) -> bool {
        self.lazy
    }
}
