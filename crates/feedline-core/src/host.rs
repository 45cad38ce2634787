//! Functions that users wrote: what a step knows of them, and who runs them.
//!
//! A function is bytes that this process never looks into. A [`Host`] has it run elsewhere, in a
//! process of its own, and hands samples over and back.

use crate::{Context, Name, Result, Sample, SampleSeed, Tensor};
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

/// A function as a step hands it to a host.
#[derive(Clone, Debug)]
pub struct Function {
    /// What people call it: module and qualified name.
    pub name: Arc<str>,
    /// The name of its code, the same for the same bytes.
    pub code: Arc<str>,
    /// The code, in a form that the host understands.
    pub bytes: Tensor,
    /// What it makes of a sample.
    pub makes: Makes,
    /// Whether it is handed random numbers.
    pub random: bool,
    /// How long one call may take.
    pub timeout: Duration,
}

/// What a function makes of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Makes {
    /// Another sample.
    Sample,
    /// A decision whether it stays.
    Decision,
}

/// What a function made of a sample.
#[derive(Debug)]
pub enum Made {
    /// Another sample: its fields, as the function named them.
    Sample(Vec<(Name, Tensor)>),
    /// Whether the sample stays.
    Decision(bool),
}

/// Runs functions outside this process.
pub trait Host: Send + Sync {
    /// Calls a function with a sample, whose values are computed now if they were deferred. Random
    /// numbers for it come from [`Context::draws`].
    ///
    /// # Errors
    ///
    /// An error of the record if the function fails on it: it raises, hangs, ends its process again
    /// and again, or gives something else than it should. Another error if no function can be run
    /// here, or this one cannot be loaded.
    fn call(&self, function: &Function, sample: Sample, context: &mut Context<'_>) -> Result<Made>;

    /// Calls a function with several samples, which costs less than one after another where they are
    /// cheap. What becomes of each is as if it had been called alone.
    fn call_many(
        &self,
        function: &Function,
        samples: Vec<(SampleSeed, Sample)>,
        context: &mut Context<'_>,
    ) -> Vec<Result<Made>> {
        let call = |(seed, sample)| {
            context.seed = seed;
            self.call(function, sample, context)
        };
        samples.into_iter().map(call).collect()
    }

    /// Has processes ready for so many calls at once, until what is returned is dropped.
    fn hold(&self, calls: usize) -> Box<dyn Any + Send + Sync>;
}
