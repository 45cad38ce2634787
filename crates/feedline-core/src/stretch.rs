//! The rows of one batch's places, as whoever computes them hands them over.

use crate::{Batch, Buffer, Error, Tensor};

/// What became of the places of one batch.
#[derive(Clone, Debug)]
pub struct Stretch {
    /// Which of the rank's steps it is.
    pub step: u64,
    /// Its rows.
    pub rows: Rows,
}

/// The rows of a stretch.
#[derive(Clone, Debug)]
pub enum Rows {
    /// All of them as a batch, padded if the plan says so.
    Batch(Batch),
    /// Some of them may be bad, and others may come into their batch.
    Some {
        /// Those that are good.
        good: Vec<GoodRow>,
        /// Those that are not.
        bad: Vec<BadRow>,
    },
}

impl Rows {
    /// Number of rows that hold a sample.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Self::Batch(batch) => batch.rows,
            Self::Some { good, .. } => good.len(),
        }
    }

    /// Bytes of all values.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let mut bytes = 0;
        self.each_value(|tensor| bytes += tensor.data().len());
        bytes
    }

    /// Hands all values over to somebody else's budget: their pool no longer counts them as in use.
    pub fn hand_over(&self) {
        self.each_value(|tensor| tensor.buffer().into_iter().for_each(Buffer::hand_over));
    }

    fn each_value(&self, mut see: impl FnMut(&Tensor)) {
        match self {
            Self::Batch(batch) => batch.fields.iter().for_each(|(_, tensor)| see(tensor)),
            Self::Some { good, .. } => {
                good.iter().flat_map(|(_, _, fields)| fields).for_each(see);
            }
        }
    }
}

/// A row's number in its stretch, its sample's index, and its fields.
pub type GoodRow = (usize, u64, Vec<Tensor>);

/// A row's number in its stretch, and why it is bad.
pub type BadRow = (usize, Error);
