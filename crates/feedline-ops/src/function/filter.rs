//! Keeps the samples that a function wants.

use super::call::{Attached, Said, usual_timeout};
use crate::registry::step;
use feedline_core::{
    Blobs, Context, Error, Host, Made, Makes, Name, Needs, Result, Sample, SampleSeed, Spec,
    Tensor, Value,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Leaves a sample out unless a function, in a process of its own, says that it stays. How many stay
/// is not known before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Filter {
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
    /// The fields that it looks at; others are not computed for it. All, if none are named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<Name>,
    /// Whether it is handed random numbers: those of the sample, wherever it is prepared.
    #[serde(default)]
    pub random: bool,
    /// Seconds that one call may take. No part of what the plan is called.
    #[serde(default = "usual_timeout")]
    pub timeout: f64,
    #[serde(skip)]
    attached: Attached,
}

step!(Filter, "filter", Map);

impl Filter {
    fn said(&self) -> Said<'_> {
        Said {
            step: "filter",
            function: &self.function,
            source: self.source.as_deref(),
            version: self.version.as_deref(),
            code: &self.code,
            timeout: self.timeout,
        }
    }

    fn looks_at(&self, name: Name) -> bool {
        self.fields.is_empty() || self.fields.contains(&name)
    }

    /// What the function is shown of a sample, computed now, in the sample as well.
    fn shown(&self, sample: &mut Sample, context: &mut Context<'_>) -> Result<Sample> {
        let mut shown = Sample::new();
        for (name, value) in sample.fields_mut().filter(|(name, _)| self.looks_at(*name)) {
            let placeholder = Value::Tensor(Tensor::scalar(0u8));
            let tensor = std::mem::replace(value, placeholder).into_tensor(context)?;
            shown.set(*name, tensor.clone());
            *value = Value::Tensor(tensor);
        }
        Ok(shown)
    }
}

/// The sample, if the function said that it stays.
fn decided(sample: Sample, made: Result<Made>) -> Result<Sample> {
    match made? {
        Made::Decision(true) => Ok(sample),
        Made::Decision(false) => Err(Error::Filtered),
        Made::Sample(_) => Err(Error::Internal("a sample where a decision was due".into())),
    }
}

impl feedline_core::Map for Filter {
    fn prepare(&mut self, input: &Spec) -> Result<Spec> {
        self.said().check()?;
        for (at, name) in self.fields.iter().enumerate() {
            input.expect("filter", name.as_str())?;
            if self.fields[..at].contains(name) {
                return Err(Error::pipeline(format!("filter: fields names {name} twice")));
            }
        }
        Ok(input.clone())
    }

    fn attach(&mut self, blobs: &Blobs, host: Option<&Arc<dyn Host>>) -> Result<()> {
        self.attached = self.said().attach(blobs, host, Makes::Decision, self.random)?;
        Ok(())
    }

    fn function(&self) -> Option<&str> {
        Some(&self.function)
    }

    fn is_filter(&self) -> bool {
        true
    }

    fn map(&self, mut sample: Sample, context: &mut Context<'_>) -> Result<Sample> {
        let shown = self.shown(&mut sample, context)?;
        decided(sample, self.attached.call(shown, context))
    }

    fn gathers(&self) -> bool {
        true
    }

    fn map_many(
        &self,
        samples: Vec<(SampleSeed, Sample)>,
        context: &mut Context<'_>,
    ) -> Vec<Result<Sample>> {
        let (mut results, mut shown) = (Vec::with_capacity(samples.len()), Vec::new());
        for (seed, mut sample) in samples {
            context.seed = seed;
            results.push(match self.shown(&mut sample, context) {
                Ok(look) => {
                    shown.push((seed, look));
                    Ok(sample)
                }
                Err(error) => Err(error),
            });
        }
        let mut made = self.attached.call_many(shown, context).into_iter();
        let decide = |result: Result<Sample>| {
            let none = || Err(Error::Internal("a sample without a decision".into()));
            result.and_then(|sample| decided(sample, made.next().unwrap_or_else(none)))
        };
        results.into_iter().map(decide).collect()
    }

    fn needs(&self, _: &Sample, _: &Context<'_>) -> Needs {
        match self.fields.as_slice() {
            [field] => Needs::Field(*field),
            _ => Needs::Everything,
        }
    }

    fn is_random(&self) -> bool {
        self.random
    }
}
