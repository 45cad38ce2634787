//! Cuts out a rectangle somewhere.

use super::pad::{self, Padding, PaddingMode};
use super::{ImageField, Size, resized};
use crate::kernel::Rect;
use crate::registry::step;
use feedline_core::{Context, DType, Error, Map, Name, Needs, Result, Sample, Spec};
use serde::{Deserialize, Serialize};

/// Cuts a rectangle out at a random place, after padding if asked to; equals torchvision's
/// `v2.RandomCrop`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomCrop {
    /// A square's side, or `[height, width]`.
    pub size: Size,
    /// Border added first: one number, `[left and right, top and bottom]`, or
    /// `[left, top, right, bottom]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub padding: Option<Border>,
    /// Whether an image that is too small is padded until it fits; otherwise it is a bad sample.
    #[serde(default)]
    pub pad_if_needed: bool,
    /// The value of a constant border.
    #[serde(default)]
    pub fill: u8,
    /// What the border is made of.
    #[serde(default)]
    pub padding_mode: PaddingMode,
    /// The image; the only one there is if it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<Name>,
    #[serde(skip)]
    at: Option<ImageField>,
}

/// A border's width, in one of three forms.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "padding is a whole number of pixels, or [left and right, top and bottom], or \
                 [left, top, right, bottom]"
)]
pub enum Border {
    /// The same on all sides.
    All(usize),
    /// Left and right, top and bottom.
    Two([usize; 2]),
    /// Left, top, right, bottom.
    Four([usize; 4]),
}

impl Border {
    fn padding(self) -> Padding {
        let [left, top, right, bottom] = match self {
            Self::All(all) => [all; 4],
            Self::Two([x, y]) => [x, y, x, y],
            Self::Four(sides) => sides,
        };
        Padding { left, top, right, bottom }
    }
}

impl RandomCrop {
    /// Cuts out `size` without padding.
    #[must_use]
    pub fn new(size: Size) -> Self {
        Self {
            size,
            padding: None,
            pad_if_needed: false,
            fill: 0,
            padding_mode: PaddingMode::Constant,
            field: None,
            at: None,
        }
    }
}

step!(RandomCrop, "random_crop", Map);

impl Map for RandomCrop {
    fn prepare(&mut self, input: &Spec) -> Result<Spec> {
        self.size.check("random_crop")?;
        let (at, field) = ImageField::find("random_crop", self.field, input)?;
        if let Some(border) = self.padding {
            let Padding { left, top, right, bottom } = border.padding();
            if left.max(top).max(right).max(bottom) > 65_535 {
                return Err(Error::pipeline("random_crop: padding is above 65535 pixels"));
            }
        }
        if self.fill != 0 && field.dtype != DType::U8 {
            return Err(Error::pipeline("random_crop: fill is a value of uint8 images"));
        }
        self.at = Some(at);
        Ok(input.replace(resized(&field, self.size.square().map(Some))))
    }

    fn map(&self, mut sample: Sample, context: &mut Context<'_>) -> Result<Sample> {
        let [height, width] = self.size.square();
        let mut draws = context.draws();
        ImageField::edit(self.at, &mut sample, context, |mut picture, context| {
            let (w, h) = picture.size();
            let mut border = self.padding.map(Border::padding).unwrap_or_default();
            let (padded_w, padded_h) =
                (w + border.left + border.right, h + border.top + border.bottom);
            if self.pad_if_needed {
                // Both sides get all that is missing, as in torchvision.
                let (missing_w, missing_h) =
                    (width.saturating_sub(padded_w), height.saturating_sub(padded_h));
                border.left += missing_w;
                border.right += missing_w;
                border.top += missing_h;
                border.bottom += missing_h;
            } else if padded_w < width || padded_h < height {
                return Err(Error::record(format!(
                    "a crop of {width}×{height} pixels does not fit into {padded_w}×{padded_h}; \
                     pad_if_needed=true would pad it"
                )));
            }
            if border != Padding::default() {
                picture = pad::pad(picture, border, self.padding_mode, self.fill, context)?;
            }
            let (w, h) = picture.size();
            let y = draws.below((h - height) as u64 + 1) as usize;
            let x = draws.below((w - width) as u64 + 1) as usize;
            picture.crop(Rect { x, y, width, height });
            Ok(picture)
        })?;
        Ok(sample)
    }

    fn is_random(&self) -> bool {
        true
    }

    fn needs(&self, _: &Sample, _: &Context<'_>) -> Needs {
        ImageField::needs(self.at)
    }

    fn is_fused(&self) -> bool {
        self.padding.is_none()
    }
}
