//! Cuts out a random part of random shape and resizes it: the crop that ImageNet is trained with.

use super::resize::yes;
use super::{ImageField, Interpolation, Size, resized};
use crate::kernel::Rect;
use crate::registry::step;
use feedline_core::{Context, Draws, Error, Map, Name, Needs, Result, Sample, Spec};
use serde::{Deserialize, Serialize};

/// Cuts out a part of random area and aspect ratio and resizes it; equals torchvision's
/// `v2.RandomResizedCrop`. A JPEG before it is decoded only where it is needed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomResizedCrop {
    /// A square's side, or `[height, width]`.
    pub size: Size,
    /// Least and greatest share of the image's area.
    #[serde(default = "scale")]
    pub scale: [f64; 2],
    /// Least and greatest width over height.
    #[serde(default = "ratio")]
    pub ratio: [f64; 2],
    /// How pixels in between are computed.
    #[serde(default)]
    pub interpolation: Interpolation,
    /// Whether shrinking averages over all pixels it leaves out.
    #[serde(default = "yes")]
    pub antialias: bool,
    /// The image; the only one there is if it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<Name>,
    #[serde(skip)]
    at: Option<ImageField>,
}

fn scale() -> [f64; 2] {
    [0.08, 1.0]
}

fn ratio() -> [f64; 2] {
    [3.0 / 4.0, 4.0 / 3.0]
}

impl RandomResizedCrop {
    /// The usual ranges, to `size`.
    #[must_use]
    pub fn new(size: Size) -> Self {
        Self {
            size,
            scale: scale(),
            ratio: ratio(),
            interpolation: Interpolation::Bilinear,
            antialias: true,
            field: None,
            at: None,
        }
    }

    /// The rectangle to cut out of an image of this size.
    pub(crate) fn choose(&self, width: usize, height: usize, draws: &mut Draws) -> Rect {
        let (w, h) = (width as f64, height as f64);
        let log_ratio = self.ratio.map(f64::ln);
        for _ in 0..10 {
            let area = w * h * draws.between(self.scale[0], self.scale[1]);
            let ratio = draws.between(log_ratio[0], log_ratio[1]).exp();
            let part_w = (area * ratio).sqrt().round_ties_even() as usize;
            let part_h = (area / ratio).sqrt().round_ties_even() as usize;
            if (1..=width).contains(&part_w) && (1..=height).contains(&part_h) {
                let y = draws.below((height - part_h) as u64 + 1) as usize;
                let x = draws.below((width - part_w) as u64 + 1) as usize;
                return Rect { x, y, width: part_w, height: part_h };
            }
        }
        // Ten draws that did not fit: the middle, as near to the allowed shapes as it can be.
        let (mut part_w, mut part_h) = (width, height);
        if w / h < self.ratio[0] {
            part_h = ((w / self.ratio[0]).round_ties_even() as usize).clamp(1, height);
        } else if w / h > self.ratio[1] {
            part_w = ((h * self.ratio[1]).round_ties_even() as usize).clamp(1, width);
        }
        let (x, y) = ((width - part_w) / 2, (height - part_h) / 2);
        Rect { x, y, width: part_w, height: part_h }
    }
}

step!(RandomResizedCrop, "random_resized_crop", Map);

impl Map for RandomResizedCrop {
    fn prepare(&mut self, input: &Spec) -> Result<Spec> {
        const STEP: &str = "random_resized_crop";
        self.size.check(STEP)?;
        let rises = |pair: [f64; 2]| pair[0] > 0.0 && pair[0] <= pair[1] && pair[1].is_finite();
        if !rises(self.scale) || !rises(self.ratio) {
            return Err(Error::pipeline(format!(
                "{STEP}: scale={:?} and ratio={:?} must rise and be above 0",
                self.scale, self.ratio
            )));
        }
        let (at, field) = ImageField::find_pixels(STEP, self.field, input)?;
        self.at = Some(at);
        Ok(input.replace(resized(&field, self.size.square().map(Some))))
    }

    fn map(&self, mut sample: Sample, context: &mut Context<'_>) -> Result<Sample> {
        let mut draws = context.draws();
        ImageField::edit(self.at, &mut sample, context, |mut picture, context| {
            let (width, height) = picture.size();
            picture.crop(self.choose(width, height, &mut draws));
            picture.resize(self.interpolation.to(self.size.square(), self.antialias), context)
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
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crops_keep_to_their_ranges() {
        let step = RandomResizedCrop::new(Size::One(224));
        let (mut areas, mut ratios) = (Vec::new(), Vec::new());
        for key in 0..5000 {
            let rect = step.choose(500, 375, &mut Draws::from_key(key, 0));
            assert!(rect.x + rect.width <= 500 && rect.y + rect.height <= 375);
            areas.push((rect.width * rect.height) as f64 / (500.0 * 375.0));
            ratios.push(rect.width as f64 / rect.height as f64);
        }
        let range = |values: &[f64]| {
            values.iter().fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(*v), high.max(*v)))
        };
        assert!(range(&areas).0 > 0.075 && range(&areas).1 <= 1.0);
        assert!(range(&ratios).0 > 0.74 && range(&ratios).1 < 1.36);
        let mean = areas.iter().sum::<f64>() / areas.len() as f64;
        // Large parts of extreme shape do not fit and are drawn again, so less than (0.08 + 1) / 2.
        assert!((0.42..0.445).contains(&mean), "{mean}");
    }

    #[test]
    fn an_extreme_image_gives_its_middle() {
        let step = RandomResizedCrop { scale: [1.0, 1.0], ..RandomResizedCrop::new(Size::One(8)) };
        let rect = step.choose(1000, 10, &mut Draws::from_key(1, 0));
        assert_eq!(rect, Rect { x: 493, y: 0, width: 13, height: 10 });
        assert_eq!(
            step.choose(1, 1, &mut Draws::from_key(1, 0)),
            Rect { x: 0, y: 0, width: 1, height: 1 }
        );
    }
}
