//! A plan and the calls it is made of.

use crate::Fingerprint;
use feedline_core::{Error, Result};
use serde::Serialize;
use serde_json::{Map, Value};

/// One step of a plan: its name and its arguments, sorted by name.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The step's name.
    pub step: String,
    /// Its arguments. Large ones are not here but in blobs, named by their hash.
    pub args: Map<String, Value>,
}

impl Call {
    /// The call that a recipe stands for, all arguments spelt out.
    ///
    /// # Errors
    ///
    /// If an argument has no JSON form.
    pub fn of<R: Recipe>(recipe: &R) -> Result<Self> {
        match serde_json::to_value(recipe) {
            Ok(Value::Object(args)) => Ok(Self { step: R::NAME.to_owned(), args }),
            Ok(Value::Null) => Ok(Self { step: R::NAME.to_owned(), args: Map::new() }),
            Ok(other) => Err(Error::Internal(format!("recipe {} is {other}", R::NAME))),
            Err(error) => Err(Error::pipeline(format!("{}: {error}", R::NAME))),
        }
    }

    /// The call without the arguments that do not decide what comes out: those of [`ASIDE`].
    #[must_use]
    pub fn identity(&self) -> Self {
        let mut args = self.args.clone();
        args.retain(|name, _| !ASIDE.contains(&name.as_str()));
        Self { step: self.step.clone(), args }
    }
}

/// Arguments that are no part of what a plan is called. `code` names the bytes in which a function
/// travels, which differ from one process to the next although the function is the same (the
/// arguments beside it say which function it is). `timeout` says when to give up.
pub const ASIDE: [&str; 2] = ["code", "timeout"];

/// The inert description of a step: what is written into a plan.
pub trait Recipe: Serialize {
    /// The step's one name, everywhere.
    const NAME: &'static str;
}

/// Knows the steps there are.
pub trait Catalog {
    /// Their names.
    fn names(&self) -> Vec<&'static str>;

    /// The call with arguments checked, in one spelling, and those that say nothing new left out.
    ///
    /// # Errors
    ///
    /// If there is no such step or an argument is wrong.
    fn canonical(&self, call: &Call) -> Result<Call>;
}

/// A pipeline as data: a source and the steps after it.
///
/// ```
/// use feedline_plan::Plan;
///
/// let plan: Plan = "range count=10 | shuffle seed=7 | batch size=4".parse()?;
/// assert_eq!(plan.calls().len(), 3);
/// assert_eq!(Plan::from_json(&plan.to_json())?, plan);
/// # Ok::<(), feedline_core::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    calls: Vec<Call>,
}

impl Plan {
    /// A plan of these calls.
    #[must_use]
    pub fn new(calls: Vec<Call>) -> Self {
        Self { calls }
    }

    /// A plan that begins with a source, typed.
    ///
    /// # Errors
    ///
    /// If an argument has no JSON form.
    pub fn of<R: Recipe>(source: &R) -> Result<Self> {
        Ok(Self { calls: vec![Call::of(source)?] })
    }

    /// The plan with one more step, typed.
    ///
    /// # Errors
    ///
    /// If an argument has no JSON form.
    pub fn then<R: Recipe>(mut self, step: &R) -> Result<Self> {
        self.calls.push(Call::of(step)?);
        Ok(self)
    }

    /// The calls, source first.
    #[must_use]
    pub fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// The same plan in its one canonical spelling.
    ///
    /// # Errors
    ///
    /// If a step is unknown or an argument is wrong.
    pub fn canonical(&self, catalog: &dyn Catalog) -> Result<Self> {
        if self.calls.is_empty() {
            return Err(Error::pipeline(
                "it is empty; begin with a source, such as images or range",
            ));
        }
        let calls = self.calls.iter().map(|call| catalog.canonical(call));
        Ok(Self { calls: calls.collect::<Result<_>>()? })
    }

    /// The plan without the arguments that do not decide what comes out.
    #[must_use]
    pub fn identity(&self) -> Self {
        Self { calls: self.calls.iter().map(Call::identity).collect() }
    }

    /// What this plan is called wherever equal plans should meet. Call it on a canonical plan.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(self.identity().to_json().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_a_function_travels_is_no_part_of_the_fingerprint() {
        let plan = |text: &str| text.parse::<Plan>().unwrap().fingerprint();
        let one = plan("range count=3 | map function=f source=1 code=aa");
        assert_eq!(one, plan("range count=3 | map function=f source=1 code=bb timeout=9"));
        assert_ne!(one, plan("range count=3 | map function=f source=2 code=aa"));
        assert_ne!(one, plan("range count=3 | map function=g source=1 code=aa"));
    }
}
