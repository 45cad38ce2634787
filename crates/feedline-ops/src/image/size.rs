//! A height and a width.

use feedline_core::{Error, Result};
use serde::{Deserialize, Serialize};

/// One number for a square, or `[height, width]`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a size is a whole number of pixels, or two: [height, width]")]
pub enum Size {
    /// A square, or, for `resize`, the shorter side.
    One(usize),
    /// Height and width.
    Two([usize; 2]),
}

/// Sides beyond this are taken for a mistake.
const LONGEST: usize = 65_535;

impl Size {
    /// Height and width, a single number being a square.
    #[must_use]
    pub fn square(self) -> [usize; 2] {
        match self {
            Self::One(side) => [side, side],
            Self::Two(size) => size,
        }
    }

    pub(crate) fn check(self, step: &str) -> Result<()> {
        let [height, width] = self.square();
        if height == 0 || width == 0 {
            return Err(Error::pipeline(format!("{step}: size={height}×{width} has no pixels")));
        }
        if height > LONGEST || width > LONGEST {
            return Err(Error::pipeline(format!(
                "{step}: size={height}×{width} is above {LONGEST} pixels a side"
            )));
        }
        Ok(())
    }
}
