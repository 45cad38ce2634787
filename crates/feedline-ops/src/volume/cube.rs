//! A depth, a height and a width.

use feedline_core::{Error, Result};
use serde::{Deserialize, Serialize};

/// One number for a cube, or `[depth, height, width]`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "a size is a whole number of voxels, or three: [depth, height, width]"
)]
pub enum Cube {
    /// The same along all axes.
    One(usize),
    /// Depth, height and width.
    Three([usize; 3]),
}

/// Sides beyond this are taken for a mistake.
const LONGEST: usize = 65_535;

impl Cube {
    /// Depth, height and width.
    #[must_use]
    pub fn sides(self) -> [usize; 3] {
        match self {
            Self::One(side) => [side; 3],
            Self::Three(sides) => sides,
        }
    }

    pub(crate) fn check(self, step: &str) -> Result<()> {
        let sides = self.sides();
        if sides.contains(&0) {
            return Err(Error::pipeline(format!("{step}: size={} has no voxels", times(sides))));
        }
        if sides.iter().any(|side| *side > LONGEST) {
            return Err(Error::pipeline(format!(
                "{step}: size={} is above {LONGEST} voxels a side",
                times(sides)
            )));
        }
        Ok(())
    }
}

/// A size in words: `128×128×64`.
pub(crate) fn times(sides: [usize; 3]) -> String {
    sides.map(|side| side.to_string()).join("×")
}
