//! Makes images larger or smaller.

use super::{ImageField, Size, resized};
use crate::kernel;
use crate::registry::step;
use feedline_core::{Context, Error, Map, Name, Needs, Result, Sample, Spec};
use serde::{Deserialize, Serialize};

/// Resizes to `[height, width]`; or, with one number, so that the shorter side has that length.
///
/// Equals torchvision's `v2.Resize` on `uint8` tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resize {
    /// `[height, width]`, or the length of the shorter side.
    pub size: Size,
    /// How pixels in between are computed.
    #[serde(default)]
    pub interpolation: Interpolation,
    /// With one number for `size`: the longer side gets no longer than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_size: Option<usize>,
    /// Whether shrinking averages over all pixels it leaves out.
    #[serde(default = "yes")]
    pub antialias: bool,
    /// The image; the only one there is if it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<Name>,
    #[serde(skip)]
    at: Option<ImageField>,
}

/// How pixels in between are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Interpolation {
    /// The nearest pixel.
    Nearest,
    /// A line between neighbours.
    #[default]
    Bilinear,
    /// A cubic curve through four neighbours.
    Bicubic,
}

impl Interpolation {
    pub(crate) fn to(self, [height, width]: [usize; 2], antialias: bool) -> kernel::Resize {
        let filter = match self {
            Self::Nearest => kernel::Filter::Nearest,
            Self::Bilinear => kernel::Filter::Bilinear,
            Self::Bicubic => kernel::Filter::Bicubic,
        };
        kernel::Resize { height, width, filter, antialias }
    }
}

pub(super) fn yes() -> bool {
    true
}

impl Resize {
    /// Resizes to `size`, bilinear with antialias.
    #[must_use]
    pub fn new(size: Size) -> Self {
        let interpolation = Interpolation::Bilinear;
        Self { size, interpolation, max_size: None, antialias: true, field: None, at: None }
    }

    /// Height and width that an image of this size gets.
    fn target(&self, width: usize, height: usize) -> [usize; 2] {
        let Size::One(side) = self.size else { return self.size.square() };
        let (short, long) = if width <= height { (width, height) } else { (height, width) };
        let mut new_short = side;
        let mut new_long = (side as f64 * long as f64 / short as f64) as usize;
        if let Some(longest) = self.max_size.filter(|longest| new_long > *longest) {
            new_short = (longest as f64 * new_short as f64 / new_long as f64) as usize;
            new_long = longest;
        }
        let (short, long) = (new_short.max(1), new_long.max(1));
        if width <= height { [long, short] } else { [short, long] }
    }
}

step!(Resize, "resize", Map);

impl Map for Resize {
    fn prepare(&mut self, input: &Spec) -> Result<Spec> {
        self.size.check("resize")?;
        match (self.size, self.max_size) {
            (Size::Two(_), Some(_)) => {
                return Err(Error::pipeline("resize: max_size goes with one number for size"));
            }
            (Size::One(side), Some(longest)) if longest <= side => {
                return Err(Error::pipeline(format!(
                    "resize: max_size={longest} must be above size={side}"
                )));
            }
            _ => {}
        }
        let (at, field) = ImageField::find_pixels("resize", self.field, input)?;
        self.at = Some(at);
        let size = match (self.size, field.image_size()) {
            (Size::Two([height, width]), _) => [Some(height), Some(width)],
            (Size::One(_), Some([Some(height), Some(width), _])) => {
                self.target(width, height).map(Some)
            }
            _ => [None, None],
        };
        Ok(input.replace(resized(&field, size)))
    }

    fn map(&self, mut sample: Sample, context: &mut Context<'_>) -> Result<Sample> {
        ImageField::edit(self.at, &mut sample, context, |picture, context| {
            let (width, height) = picture.size();
            let size = self.target(width, height);
            if size[0].max(size[1]) > 65_535 {
                return Err(Error::record(format!(
                    "{width}×{height} pixels would become {}×{}",
                    size[1], size[0]
                )));
            }
            picture.resize(self.interpolation.to(size, self.antialias), context)
        })?;
        Ok(sample)
    }

    fn needs(&self, _: &Sample, _: &Context<'_>) -> Needs {
        ImageField::needs(self.at)
    }

    fn is_fused(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shorter_side_gets_the_length() {
        let mut resize = Resize::new(Size::One(256));
        assert_eq!(resize.target(500, 375), [256, 341]);
        assert_eq!(resize.target(375, 500), [341, 256]);
        assert_eq!(resize.target(10_000, 1), [256, 2_560_000]);
        resize.max_size = Some(300);
        assert_eq!(resize.target(500, 375), [225, 300]);
    }
}
