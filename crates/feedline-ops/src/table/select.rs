//! Keeps some fields.

use crate::registry::step;
use feedline_core::{Context, Error, Map, Name, Needs, Result, Sample, Spec};
use serde::{Deserialize, Serialize};

/// Keeps these fields, in this order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Select {
    /// Their names.
    pub fields: Vec<Name>,
}

step!(Select, "select", Map);

impl Map for Select {
    fn prepare(&mut self, input: &Spec) -> Result<Spec> {
        if self.fields.is_empty() {
            return Err(Error::pipeline("select: keeps nothing; name at least one field"));
        }
        let mut kept = Spec::default();
        for name in &self.fields {
            let field = input.expect("select", name.as_str())?.clone();
            if kept.field(name.as_str()).is_some() {
                return Err(Error::pipeline(format!("select: {name} is named twice")));
            }
            kept.fields.push(field);
        }
        Ok(kept)
    }

    fn map(&self, mut sample: Sample, _: &mut Context<'_>) -> Result<Sample> {
        let mut kept = Sample::new();
        for name in &self.fields {
            if let Some(value) = sample.take(*name) {
                kept.set(*name, value);
            }
        }
        Ok(kept)
    }

    fn needs(&self, _: &Sample, _: &Context<'_>) -> Needs {
        Needs::Nothing
    }
}
