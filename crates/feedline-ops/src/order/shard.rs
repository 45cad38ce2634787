//! One of several parts that are read apart from each other.

use crate::registry::step;
use feedline_core::{
    Before, Blobs, Cursor, Error, Length, Order, OrderRun, Result, Source, StepId,
};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// What is dealt to the parts in turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// Single samples.
    #[default]
    Sample,
    /// Whole files, with all samples that they hold.
    File,
}

/// Keeps part `index` of `of` equal parts: every `of`-th sample, or every `of`-th file with all its
/// samples. All parts together are everything, each sample once. It stands before steps whose order
/// changes from epoch to epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shard {
    /// Which part, from 0 on.
    pub index: u64,
    /// How many parts there are.
    pub of: u64,
    /// What is dealt to them.
    #[serde(default)]
    pub by: By,
}

step!(Shard, "shard", Order);

impl Order for Shard {
    fn check(&self) -> Result<()> {
        if self.index >= self.of {
            let Self { index, of, .. } = self;
            return Err(Error::pipeline(format!("shard: part {index} of {of}; they count from 0")));
        }
        Ok(())
    }

    fn is_fixed(&self) -> bool {
        true
    }

    fn bind(
        &self,
        source: &dyn Source,
        _: &Blobs,
        before: &Before<'_>,
        _: StepId,
    ) -> Result<Box<dyn OrderRun>> {
        self.check()?;
        let Self { index, of, by } = *self;
        let Some(places) = before.fixed_length() else {
            return Err(Error::pipeline(
                "shard: it parts data once and for all; put it before shuffle, sample and repeat",
            ));
        };
        if by == By::Sample {
            let length = places.saturating_sub(index).div_ceil(of);
            return Ok(Box::new(EveryRun { index, of, length }));
        }
        let mut numbers: HashMap<u64, u64> = HashMap::new();
        let mut run = FilesRun { runs: Vec::new(), length: 0 };
        let mut follows = false;
        for place in 0..places {
            let Some(file) = source.file(before.index(place)) else {
                return Err(Error::pipeline(
                    "shard: the source's samples do not come from files; by=\"sample\" parts them",
                ));
            };
            let next = numbers.len() as u64;
            let number = *numbers.entry(file).or_insert(next);
            let is_ours = number % of == index;
            if is_ours && !follows {
                run.runs.push((run.length, place));
            }
            run.length += u64::from(is_ours);
            follows = is_ours;
        }
        Ok(Box::new(run))
    }
}

struct EveryRun {
    index: u64,
    of: u64,
    length: u64,
}

impl OrderRun for EveryRun {
    fn length(&self) -> Length {
        Length::Finite(self.length)
    }

    fn at(&self, place: u64, visit: u64, _: &mut Cursor) -> (u64, u64) {
        (place * self.of + self.index, visit)
    }
}

struct FilesRun {
    /// Where places stand together before the step: the first of them here, and there.
    runs: Vec<(u64, u64)>,
    length: u64,
}

impl OrderRun for FilesRun {
    fn length(&self) -> Length {
        Length::Finite(self.length)
    }

    fn at(&self, place: u64, visit: u64, _: &mut Cursor) -> (u64, u64) {
        let run = self.runs.partition_point(|(here, _)| *here <= place);
        let (here, there) = self.runs[run.saturating_sub(1)];
        (there + (place - here), visit)
    }
}
