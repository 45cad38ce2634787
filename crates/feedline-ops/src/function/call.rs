//! What `map` and `filter` have in common: which function, and who runs it.

use feedline_core::{
    Blobs, Context, Error, Function, Host, Made, Makes, Result, Sample, SampleSeed,
};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Seconds that a call may take, unless the plan says otherwise.
pub(super) const TIMEOUT: f64 = 60.0;
/// No call is waited for longer.
const LONGEST: f64 = 1e6;

pub(super) fn usual_timeout() -> f64 {
    TIMEOUT
}

/// What a plan says of a function.
pub(super) struct Said<'a> {
    pub step: &'static str,
    pub function: &'a str,
    pub source: Option<&'a str>,
    pub version: Option<&'a str>,
    pub code: &'a str,
    pub timeout: f64,
}

impl Said<'_> {
    /// Checks what can be known before the function is there.
    pub(super) fn check(&self) -> Result<()> {
        let Self { step, function, source, version, timeout, .. } = self;
        if function.is_empty() {
            return Err(Error::pipeline(format!("{step}: the function has no name")));
        }
        if source.is_some() == version.is_some() {
            return Err(Error::pipeline(format!(
                "{step}: {function} is told from others of its name by the hash of its source or by \
                 a version; give one of the two"
            )));
        }
        if !(0.001..=LONGEST).contains(timeout) {
            return Err(Error::pipeline(format!(
                "{step}: timeout={timeout}; give seconds, from 0.001 to {LONGEST}"
            )));
        }
        Ok(())
    }

    /// Finds the function's code among the plan's blobs.
    pub(super) fn attach(
        &self,
        blobs: &Blobs,
        host: Option<&Arc<dyn Host>>,
        makes: Makes,
        random: bool,
    ) -> Result<Attached> {
        let Self { step, function, code, timeout, .. } = self;
        let Some(bytes) = blobs.get(*code) else {
            return Err(Error::Source(format!(
                "{step}: the code of {function} was not handed over with the plan (blob {}); open the \
                 plan with the program that made it, or save it with its blobs",
                code.get(..12).unwrap_or(code)
            )));
        };
        let function = Function {
            name: Arc::from(*function),
            code: Arc::from(*code),
            bytes: bytes.clone(),
            makes,
            random,
            timeout: Duration::from_secs_f64(*timeout),
        };
        Ok(Attached(Some(Box::new(Bound { function, host: host.cloned() }))))
    }
}

/// A function and its host, once the data is opened. No part of the recipe.
#[derive(Clone, Default)]
pub(super) struct Attached(Option<Box<Bound>>);

#[derive(Clone)]
struct Bound {
    function: Function,
    host: Option<Arc<dyn Host>>,
}

impl Attached {
    pub(super) fn call(&self, sample: Sample, context: &mut Context<'_>) -> Result<Made> {
        match self.0.as_deref() {
            Some(Bound { function, host: Some(host) }) => host.call(function, sample, context),
            Some(Bound { function, host: None }) => Err(Error::pipeline(format!(
                "the function {} is to be run, and no host for functions was named here",
                function.name
            ))),
            None => Err(Error::Internal("a function that was not attached".into())),
        }
    }
}

impl Attached {
    pub(super) fn call_many(
        &self,
        samples: Vec<(SampleSeed, Sample)>,
        context: &mut Context<'_>,
    ) -> Vec<Result<Made>> {
        match self.0.as_deref() {
            Some(Bound { function, host: Some(host) }) => {
                host.call_many(function, samples, context)
            }
            _ => samples.into_iter().map(|(_, sample)| self.call(sample, context)).collect(),
        }
    }
}

impl PartialEq for Attached {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl fmt::Debug for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Attached")
    }
}
