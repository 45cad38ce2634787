//! Several samples stacked: what a training step takes.

use crate::{Name, Tensor};

/// Named tensors with a leading dimension of one row per sample.
///
/// A pipeline without a batch step delivers the same type with the samples' own shapes and
/// `rows` 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// The fields, in the pipeline's order.
    pub fields: Vec<(Name, Tensor)>,
    /// Rows that hold a sample; rows past them are padding.
    pub rows: usize,
    /// Source indices of the rows, where the run was asked for them.
    pub indices: Option<Vec<u64>>,
}

impl Batch {
    /// The field of that name.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Tensor> {
        self.fields.iter().find(|(known, _)| *known == name).map(|(_, tensor)| tensor)
    }

    /// Bytes of all fields.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.fields.iter().map(|(_, tensor)| tensor.data().len()).sum()
    }
}
