//! Stacks samples into batches.

use crate::Step;
use crate::registry::IntoStep;
use feedline_core::{DType, Error, Field, Result, Spec};
use feedline_plan::Recipe;
use serde::{Deserialize, Serialize};

/// Stacks `size` samples along a new first dimension.
///
/// At the end of an epoch fewer may be left: they make a smaller batch, or are dropped, or are
/// padded with zeros to a full one, with a field `mask` that is true for real rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// Samples in a batch, on each rank.
    pub size: usize,
    /// Whether an incomplete last batch is left out, on all ranks alike.
    #[serde(default)]
    pub drop_last: bool,
    /// Whether an incomplete last batch is filled up with zeros; adds `mask`.
    #[serde(default)]
    pub pad: bool,
}

impl Recipe for Batch {
    const NAME: &'static str = "batch";
}

impl IntoStep for Batch {
    fn into_step(self) -> Step {
        Step::Batch(self)
    }
}

impl Batch {
    /// The name of the field that tells real rows from padding.
    pub const MASK: &'static str = "mask";

    /// Checks the recipe and says what a batch looks like.
    ///
    /// # Errors
    ///
    /// If the size is 0, `drop_last` and `pad` are both given, or a field cannot be padded.
    pub fn output(&self, input: &Spec) -> Result<Spec> {
        if self.size == 0 {
            return Err(Error::pipeline("batch: size=0; a batch holds at least one sample"));
        }
        if self.size > 1 << 24 {
            return Err(Error::pipeline(format!("batch: size={} is above 2^24", self.size)));
        }
        if self.drop_last && self.pad {
            return Err(Error::pipeline("batch: drop_last and pad exclude each other; choose one"));
        }
        if self.pad {
            if input.field(Self::MASK).is_some() {
                return Err(Error::pipeline(
                    "batch: pad adds a field mask, and there is one already",
                ));
            }
            if let Some(field) = input.fields.iter().find(|field| field.bytes().is_none()) {
                return Err(Error::pipeline(format!(
                    "batch: pad needs samples of one shape, and {field} differs from sample to sample"
                )));
            }
        }
        let fixed = self.pad || self.drop_last;
        let mut fields: Vec<Field> = input.fields.clone();
        for field in &mut fields {
            field.shape.insert(0, fixed.then_some(self.size));
            field.layout = None;
        }
        if self.pad {
            fields.push(Field::new(Self::MASK, DType::Bool, &[Some(self.size)]));
        }
        Ok(Spec::new(fields))
    }
}
