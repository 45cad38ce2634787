//! Other names for fields.

use crate::registry::step;
use feedline_core::{Context, Error, Map, Name, Needs, Result, Sample, Spec};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Gives fields other names, in their places.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rename {
    /// Old name to new name.
    pub fields: BTreeMap<String, Name>,
    #[serde(skip)]
    pairs: Vec<(Name, Name)>,
}

impl Rename {
    /// Renames these fields, old name to new name.
    #[must_use]
    pub fn new(fields: BTreeMap<String, Name>) -> Self {
        Self { fields, pairs: Vec::new() }
    }
}

step!(Rename, "rename", Map);

impl Map for Rename {
    fn prepare(&mut self, input: &Spec) -> Result<Spec> {
        for old in self.fields.keys() {
            input.expect("rename", old)?;
        }
        let mut output = input.clone();
        for field in &mut output.fields {
            if let Some(new) = self.fields.get(field.name.as_str()) {
                field.name = *new;
            }
        }
        for (at, field) in output.fields.iter().enumerate() {
            if output.fields[..at].iter().any(|other| other.name == field.name) {
                return Err(Error::pipeline(format!(
                    "rename: two fields would be called {}",
                    field.name
                )));
            }
        }
        self.pairs = self.fields.iter().map(|(old, new)| (Name::new(old), *new)).collect();
        Ok(output)
    }

    fn map(&self, mut sample: Sample, _: &mut Context<'_>) -> Result<Sample> {
        for (name, _) in sample.fields_mut() {
            // By the old names only, so that two fields can trade theirs.
            if let Some((_, new)) = self.pairs.iter().find(|(old, _)| old == name) {
                *name = *new;
            }
        }
        Ok(sample)
    }

    fn needs(&self, _: &Sample, _: &Context<'_>) -> Needs {
        Needs::Nothing
    }
}
