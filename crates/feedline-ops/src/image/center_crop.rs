//! Cuts out the middle.

use super::pad::{self, Padding, PaddingMode};
use super::{ImageField, Size, resized};
use crate::kernel::Rect;
use crate::registry::step;
use feedline_core::{Context, Map, Name, Needs, Result, Sample, Spec};
use serde::{Deserialize, Serialize};

/// Cuts a rectangle out of the middle. An image that is smaller is padded with zeros, as
/// torchvision's `v2.CenterCrop` does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CenterCrop {
    /// A square's side, or `[height, width]`.
    pub size: Size,
    /// The image; the only one there is if it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<Name>,
    #[serde(skip)]
    at: Option<ImageField>,
}

impl CenterCrop {
    /// Cuts out the middle `size`.
    #[must_use]
    pub fn new(size: Size) -> Self {
        Self { size, field: None, at: None }
    }
}

step!(CenterCrop, "center_crop", Map);

impl Map for CenterCrop {
    fn prepare(&mut self, input: &Spec) -> Result<Spec> {
        self.size.check("center_crop")?;
        let (at, field) = ImageField::find("center_crop", self.field, input)?;
        self.at = Some(at);
        Ok(input.replace(resized(&field, self.size.square().map(Some))))
    }

    fn map(&self, mut sample: Sample, context: &mut Context<'_>) -> Result<Sample> {
        let [height, width] = self.size.square();
        ImageField::edit(self.at, &mut sample, context, |mut picture, context| {
            let (w, h) = picture.size();
            if width > w || height > h {
                let (extra_w, extra_h) = (width.saturating_sub(w), height.saturating_sub(h));
                let padding = Padding {
                    left: extra_w / 2,
                    top: extra_h / 2,
                    right: extra_w.div_ceil(2),
                    bottom: extra_h.div_ceil(2),
                };
                picture = pad::pad(picture, padding, PaddingMode::Constant, 0, context)?;
            }
            let (w, h) = picture.size();
            // Halves are rounded to the even number, as Python rounds.
            let middle = |more: usize| (more as f64 / 2.0).round_ties_even() as usize;
            picture.crop(Rect { x: middle(w - width), y: middle(h - height), width, height });
            Ok(picture)
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
