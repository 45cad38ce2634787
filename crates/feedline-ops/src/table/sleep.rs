//! Waits: stands in for work of a known cost in measurements and in tests of order.

use crate::image::check_chance;
use crate::registry::step;
use crate::table::to_i64;
use feedline_core::{Context, Draws, Error, Map, Name, Needs, Result, Sample, Spec, Value};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Holds every sample up for `ms` milliseconds, and slow ones for `slow_ms` more. Slow are those
/// whose index in the source is a multiple of `every`, and those chosen with chance `p`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sleep {
    /// Milliseconds for every sample.
    #[serde(default)]
    pub ms: f64,
    /// Milliseconds more for slow ones.
    #[serde(default)]
    pub slow_ms: f64,
    /// Every so many samples of the source one is slow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<u64>,
    /// Chance that a sample is slow, between 0 and 1.
    #[serde(default)]
    pub p: f64,
    /// A field of whole numbers: so many milliseconds more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<Name>,
}

step!(Sleep, "sleep", Map);

impl Map for Sleep {
    fn prepare(&mut self, input: &Spec) -> Result<Spec> {
        check_chance("sleep", self.p)?;
        for (name, value) in [("ms", self.ms), ("slow_ms", self.slow_ms)] {
            if !(0.0..=1e12).contains(&value) {
                return Err(Error::pipeline(format!("sleep: {name}={value} is no time to wait")));
            }
        }
        if self.every == Some(0) {
            return Err(Error::pipeline("sleep: every=0; 1 makes every sample slow"));
        }
        if let Some(name) = self.field {
            let field = input.expect("sleep", name.as_str())?;
            if !field.dtype.is_integer() || !field.shape.is_empty() {
                return Err(Error::pipeline(format!("sleep: {field} is not one whole number")));
            }
        }
        Ok(input.clone())
    }

    fn map(&self, sample: Sample, context: &mut Context<'_>) -> Result<Sample> {
        let mut time = self.ms;
        let slow = self.every.is_some_and(|every| context.seed.index.is_multiple_of(every));
        if slow || self.way(context.draws()) == 1 {
            time += self.slow_ms;
        }
        if let Some(Value::Tensor(tensor)) = self.field.and_then(|name| sample.get(name)) {
            time += to_i64(tensor).and_then(|all| all.first().copied()).unwrap_or(0).max(0) as f64;
        }
        if context.workspace.reference || time == 0.0 {
            return Ok(sample);
        }
        let waited = context.workspace.cancel.wait(Duration::from_secs_f64(time / 1000.0));
        if waited { Ok(sample) } else { Err(Error::Cancelled) }
    }

    fn needs(&self, _: &Sample, _: &Context<'_>) -> Needs {
        self.field.map_or(Needs::Nothing, Needs::Field)
    }

    fn way(&self, mut draws: Draws) -> u8 {
        u8::from(self.p > 0.0 && draws.chance(self.p))
    }

    fn is_random(&self) -> bool {
        self.p > 0.0
    }
}
