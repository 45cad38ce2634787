//! The table of all steps: from a name and arguments to a recipe that can run.

use feedline_core::{Error, Map, Order, Policy, Result, SourceRecipe, Store};
use feedline_plan::{Call, Catalog, Recipe, did_you_mean};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A recipe, sorted by what it does to samples.
pub enum Step {
    /// Gives samples.
    Source(Box<dyn SourceRecipe>),
    /// Chooses or orders them.
    Order(Box<dyn Order>),
    /// Turns one into another.
    Map(Box<dyn Map>),
    /// Stacks them.
    Batch(crate::batch::Batch),
    /// Stacks those of about the same length.
    Bucket(crate::batch::Bucket),
    /// Keeps them from one epoch to the next.
    Cache(crate::keep::Cache),
    /// Says what happens to bad ones.
    Policy(Policy),
}

/// A row of a stage's table: a step's name, and how its arguments are read.
pub(crate) type Row = (&'static str, Reader);
/// Reads a call's arguments into a recipe, settles what they leave to the data if there is a store
/// to look into, and spells them in the canonical way.
pub(crate) type Reader = fn(&Call, Option<&dyn Store>) -> Result<(Step, Call)>;

/// A recipe that can take its place in a pipeline.
pub(crate) trait IntoStep: Recipe + DeserializeOwned + PartialEq {
    /// The recipe as a step.
    fn into_step(self) -> Step;

    /// The recipe with everything settled that only the data can say (the types of its fields), so
    /// that the plan can be checked from then on without the data.
    ///
    /// # Errors
    ///
    /// If the data is missing or cannot be read.
    fn resolve(self, _store: &dyn Store) -> Result<Self> {
        Ok(self)
    }
}

/// The reader of recipe `R`, for the tables.
pub(crate) fn read<R: IntoStep>(call: &Call, store: Option<&dyn Store>) -> Result<(Step, Call)> {
    let mut recipe: R = parse(call)?;
    if let Some(store) = store {
        recipe = recipe.resolve(store)?;
    }
    let canonical = canonical(&recipe)?;
    Ok((recipe.into_step(), canonical))
}

fn parse<R: Recipe + DeserializeOwned>(call: &Call) -> Result<R> {
    serde_json::from_value(Value::Object(call.args.clone()))
        .map_err(|error| Error::pipeline(in_words(R::NAME, call, &error.to_string())))
}

/// Leaves out every argument that would be the same if it were not given, so that an argument
/// added in a later release does not change the fingerprint of plans that do not use it.
fn canonical<R: IntoStep>(recipe: &R) -> Result<Call> {
    let mut call = Call::of(recipe)?;
    for name in call.args.keys().cloned().collect::<Vec<_>>() {
        let mut shorter = call.clone();
        shorter.args.remove(&name);
        if parse::<R>(&shorter).is_ok_and(|other| other == *recipe) {
            call = shorter;
        }
    }
    Ok(call)
}

/// Turns the deserialiser's complaint into a sentence for the author of the plan.
fn in_words(step: &str, call: &Call, complaint: &str) -> String {
    let quoted: Vec<&str> = complaint.split('`').skip(1).step_by(2).collect();
    if complaint.starts_with("unknown field") {
        let (wrong, known) = (quoted[0], &quoted[1..]);
        if known.is_empty() {
            return format!("{step}: takes no arguments, and {wrong} was given");
        }
        let hint = did_you_mean(wrong, known.iter().copied());
        let hint = hint.map_or(String::new(), |word| format!(" (did you mean {word}?)"));
        return format!(
            "{step}: there is no argument {wrong}{hint}; it takes {}",
            known.join(", ")
        );
    }
    if complaint.starts_with("missing field") {
        return format!("{step}: argument {} is missing", quoted[0]);
    }
    // A URL with a password in it is refused, and the refusal must not repeat it.
    let shown = |value: &Value| match value.as_str() {
        Some(text) => Value::from(feedline_core::redacted(text)).to_string(),
        None => value.to_string(),
    };
    let given: Vec<String> =
        call.args.iter().map(|(name, value)| format!("{name}={}", shown(value))).collect();
    format!("{step}: {complaint} (given: {})", given.join(" "))
}

/// All steps that come with Feedline.
#[derive(Clone, Copy, Debug, Default)]
pub struct Builtin;

impl Builtin {
    fn rows() -> impl Iterator<Item = Row> {
        let tables: [&'static [Row]; 9] = [
            crate::source::STEPS,
            crate::order::STEPS,
            crate::decode::STEPS,
            crate::image::STEPS,
            crate::volume::STEPS,
            crate::table::STEPS,
            crate::keep::STEPS,
            crate::function::STEPS,
            crate::batch::STEPS,
        ];
        tables.into_iter().flatten().copied()
    }

    /// The step that a call names. With a store, what the arguments leave to the data is settled.
    ///
    /// # Errors
    ///
    /// If there is none of that name, or an argument is wrong.
    pub fn step(&self, call: &Call, store: Option<&dyn Store>) -> Result<(Step, Call)> {
        match Self::rows().find(|(name, _)| *name == call.step) {
            Some((_, read)) => read(call, store),
            None => {
                let hint = did_you_mean(&call.step, Self::rows().map(|row| row.0));
                let hint = match hint {
                    Some(word) => format!("did you mean {word}?"),
                    None => "`feedline steps` lists those there are".to_owned(),
                };
                Err(Error::pipeline(format!("there is no step called {:?}; {hint}", call.step)))
            }
        }
    }
}

impl Catalog for Builtin {
    fn names(&self) -> Vec<&'static str> {
        Self::rows().map(|row| row.0).collect()
    }

    fn canonical(&self, call: &Call) -> Result<Call> {
        Ok(self.step(call, None)?.1)
    }
}

/// Declares that a recipe is a step of a kind: `steps! { Take as Order, "take" }`.
macro_rules! step {
    ($recipe:ty, $name:literal, Map) => {
        step!(@ $recipe, $name, |recipe| $crate::Step::Map(Box::new(recipe)));
    };
    ($recipe:ty, $name:literal, Order) => {
        step!(@ $recipe, $name, |recipe| $crate::Step::Order(Box::new(recipe)));
    };
    ($recipe:ty, $name:literal, Source) => {
        step!(@ $recipe, $name, |recipe| $crate::Step::Source(Box::new(recipe)));
    };
    ($recipe:ty, $name:literal, Source, $resolve:path) => {
        step!(@ $recipe, $name, |recipe| $crate::Step::Source(Box::new(recipe)), $resolve);
    };
    (@ $recipe:ty, $name:literal, $make:expr $(, $resolve:path)?) => {
        impl feedline_plan::Recipe for $recipe {
            const NAME: &'static str = $name;
        }
        impl $crate::registry::IntoStep for $recipe {
            fn into_step(self) -> $crate::Step {
                let make: fn(Self) -> $crate::Step = $make;
                make(self)
            }

            $(fn resolve(self, store: &dyn feedline_core::Store) -> feedline_core::Result<Self> {
                $resolve(self, store)
            })?
        }
    };
}
pub(crate) use step;

#[cfg(test)]
mod tests {
    use super::*;
    use feedline_plan::Plan;

    fn error(text: &str) -> String {
        text.parse::<Plan>().unwrap().canonical(&Builtin).unwrap_err().to_string()
    }

    #[test]
    fn misspelt_steps_and_arguments_get_a_hint() {
        assert!(error("rnage count=3").contains("did you mean range?"));
        assert!(error("range coutn=3").contains("did you mean count?"));
        assert!(error("range").contains("argument count is missing"));
        assert!(error("range count=three").contains("three"));
        assert!(error("quux").contains("feedline steps"));
    }

    #[test]
    fn arguments_that_say_nothing_new_are_left_out() {
        let canonical =
            |text: &str| text.parse::<Plan>().unwrap().canonical(&Builtin).unwrap().to_string();
        assert_eq!(canonical("range count=3 | shuffle seed=0"), "range count=3 | shuffle");
        assert_eq!(
            canonical("range count=3 | batch size=2 drop_last=false"),
            "range count=3 | batch size=2"
        );
        assert_eq!(
            canonical("range count=3 | flip_horizontal p=1"),
            "range count=3 | flip_horizontal p=1.0"
        );
        assert_eq!(
            canonical("range count=3 | resize size=[224,224]"),
            "range count=3 | resize size=[224,224]"
        );
    }

    #[test]
    fn no_name_is_taken_twice() {
        let mut names = Builtin.names();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
