//! Leaves some fields out.

use crate::registry::step;
use feedline_core::{Context, Error, Map, Name, Needs, Result, Sample, Spec};
use serde::{Deserialize, Serialize};

/// Leaves these fields out. An image that is dropped before its pixels are used is never decoded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drop {
    /// Their names.
    pub fields: Vec<Name>,
}

step!(Drop, "drop", Map);

impl Map for Drop {
    fn prepare(&mut self, input: &Spec) -> Result<Spec> {
        for name in &self.fields {
            input.expect("drop", name.as_str())?;
        }
        let mut kept = input.clone();
        kept.fields.retain(|field| !self.fields.contains(&field.name));
        if kept.fields.is_empty() {
            return Err(Error::pipeline("drop: leaves no field"));
        }
        Ok(kept)
    }

    fn map(&self, mut sample: Sample, _: &mut Context<'_>) -> Result<Sample> {
        for name in &self.fields {
            sample.take(*name);
        }
        Ok(sample)
    }

    fn needs(&self, _: &Sample, _: &Context<'_>) -> Needs {
        Needs::Nothing
    }
}
