//! Whatever a function makes of a sample.

use super::call::{Attached, Said, usual_timeout};
use super::output::{Output, arranged, spec_of};
use crate::registry::step;
use feedline_core::{Blobs, Context, Error, Host, Made, Makes, Result, Sample, SampleSeed, Spec};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Has a function make another sample of each, in a process of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Map {
    /// What the function is called: module and qualified name.
    pub function: String,
    /// A hash of its source and of what it refers to: the same function, the same hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// What tells it from others of its name, in the place of `source`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The blob in which it travels. No part of what the plan is called.
    pub code: String,
    /// The fields that it gives.
    pub output: Vec<Output>,
    /// Whether it is handed random numbers: those of the sample, wherever it is prepared.
    #[serde(default)]
    pub random: bool,
    /// Seconds that one call may take. No part of what the plan is called.
    #[serde(default = "usual_timeout")]
    pub timeout: f64,
    #[serde(skip)]
    spec: Spec,
    #[serde(skip)]
    attached: Attached,
}

step!(Map, "map", Map);

impl Map {
    fn said(&self) -> Said<'_> {
        Said {
            step: "map",
            function: &self.function,
            source: self.source.as_deref(),
            version: self.version.as_deref(),
            code: &self.code,
            timeout: self.timeout,
        }
    }

    /// What the function made, if it is what it should be.
    fn sample(&self, made: Result<Made>) -> Result<Sample> {
        match made? {
            Made::Sample(fields) => Ok(Sample::of(arranged(&self.spec, fields)?)),
            Made::Decision(_) => Err(Error::Internal("a decision where a sample was due".into())),
        }
    }
}

impl feedline_core::Map for Map {
    fn prepare(&mut self, _: &Spec) -> Result<Spec> {
        self.said().check()?;
        self.spec = spec_of(&self.output)?;
        Ok(self.spec.clone())
    }

    fn attach(&mut self, blobs: &Blobs, host: Option<&Arc<dyn Host>>) -> Result<()> {
        self.attached = self.said().attach(blobs, host, Makes::Sample, self.random)?;
        Ok(())
    }

    fn function(&self) -> Option<&str> {
        Some(&self.function)
    }

    fn map(&self, sample: Sample, context: &mut Context<'_>) -> Result<Sample> {
        self.sample(self.attached.call(sample, context))
    }

    fn gathers(&self) -> bool {
        true
    }

    fn map_many(
        &self,
        samples: Vec<(SampleSeed, Sample)>,
        context: &mut Context<'_>,
    ) -> Vec<Result<Sample>> {
        let made = self.attached.call_many(samples, context);
        made.into_iter().map(|made| self.sample(made)).collect()
    }

    fn is_random(&self) -> bool {
        self.random
    }
}
