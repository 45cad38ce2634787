//! The numbers from 0 to `count`: the smallest source, for trying orders and measuring overhead.

use crate::registry::step;
use feedline_core::{
    Blobs, Buffer, DType, Error, Extent, Field, Name, Result, Sample, Source, SourceRecipe, Spec,
    Store, Tensor,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The numbers `0..count`, in a field called `index`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// How many numbers.
    pub count: u64,
}

step!(Range, "range", Source);

impl SourceRecipe for Range {
    fn spec(&self) -> Result<Spec> {
        if self.count > 1 << 60 {
            return Err(Error::pipeline(format!("range: count={} is above 2^60", self.count)));
        }
        Ok(Spec::new(vec![Field::new("index", DType::I64, &[])]))
    }

    fn open(&self, _: &dyn Store, _: &Blobs) -> Result<Arc<dyn Source>> {
        Ok(Arc::new(OpenRange { count: self.count, name: Name::new("index") }))
    }
}

struct OpenRange {
    count: u64,
    name: Name,
}

impl Source for OpenRange {
    fn length(&self) -> u64 {
        self.count
    }

    fn locate(&self, _: u64) -> Option<Extent<'_>> {
        None
    }

    fn parse(&self, index: u64, _: Option<Buffer>) -> Result<Sample> {
        Ok(Sample::new().with(self.name, Tensor::scalar(index as i64)))
    }

    fn origin(&self, index: u64) -> String {
        format!("range[{index}]")
    }

    fn manifest(&self) -> String {
        format!("range:{}", self.count)
    }
}
