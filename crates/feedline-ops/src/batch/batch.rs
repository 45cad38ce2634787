//! Stacks samples into batches.

use super::{Padded, Room};
use crate::Step;
use crate::registry::IntoStep;
use feedline_core::{Error, Result, Spec};
use feedline_plan::Recipe;
use serde::{Deserialize, Serialize};

/// Stacks `size` samples along a new first dimension.
///
/// At the end of an epoch fewer may be left: they make a smaller batch, or are dropped, or are
/// padded with zeros to a full one, with a field `mask` that is true for real rows.
///
/// Fields that differ in length can be filled up to the longest of their batch (`pad_ragged`); how
/// long each row of `tokens` was is then in the field `tokens_length`.
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
    /// Whether fields whose first dimension differs from sample to sample are filled up to the
    /// longest of the batch; adds a field with their lengths.
    #[serde(default)]
    pub pad_ragged: bool,
    /// What they are filled up with.
    #[serde(default)]
    pub value: f64,
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

    /// Checks the recipe, and says what a batch looks like and which fields are filled up.
    ///
    /// # Errors
    ///
    /// If the size is 0, `drop_last` and `pad` are both given, or a field cannot be padded.
    pub fn output(&self, input: &Spec) -> Result<(Spec, Vec<Padded>)> {
        check_size("batch", self.size)?;
        if self.drop_last && self.pad {
            return Err(Error::pipeline("batch: drop_last and pad exclude each other; choose one"));
        }
        if self.value != 0.0 && !self.pad_ragged {
            return Err(Error::pipeline("batch: value goes with pad_ragged=true"));
        }
        let padded = match self.pad_ragged {
            true => Padded::all("batch", input, self.value)?,
            false => Vec::new(),
        };
        if self.pad {
            check_mask("batch", input)?;
            for (number, field) in input.fields.iter().enumerate() {
                let filled_up = padded.iter().any(|padded| padded.field == number)
                    && field.shape.iter().skip(1).all(Option::is_some);
                if field.bytes().is_none() && !filled_up {
                    return Err(Error::pipeline(format!(
                        "batch: pad needs samples of one shape, and {field} differs from sample to \
                         sample"
                    )));
                }
            }
        }
        let rows = (self.pad || self.drop_last).then_some(self.size);
        Ok((Padded::output(&padded, input, rows, self.pad), padded))
    }

    /// The room that its rows are given.
    #[must_use]
    pub fn room(&self) -> Room {
        Room { rows: if self.pad { self.size } else { 0 }, length: None, mask: self.pad }
    }
}

/// Checks the number of samples in a batch.
pub(super) fn check_size(step: &str, size: usize) -> Result<()> {
    if size == 0 {
        return Err(Error::pipeline(format!("{step}: size=0; a batch holds at least one sample")));
    }
    if size > 1 << 24 {
        return Err(Error::pipeline(format!("{step}: size={size} is above 2^24")));
    }
    Ok(())
}

/// Checks that a mask can be added.
pub(super) fn check_mask(step: &str, input: &Spec) -> Result<()> {
    if input.field(Batch::MASK).is_none() {
        return Ok(());
    }
    let why = if step == "batch" { "pad" } else { "without drop_last it" };
    Err(Error::pipeline(format!("{step}: {why} adds a field mask, and there is one already")))
}
