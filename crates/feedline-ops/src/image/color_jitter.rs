//! Changes brightness, contrast, saturation and hue at random.

use super::ImageField;
use crate::decode::Picture;
use crate::kernel::color;
use crate::registry::step;
use feedline_core::{
    Context, Draws, Error, Layout, Map, Name, Result, Sample, Spec, Tensor, Value,
};
use serde::{Deserialize, Serialize};

/// Changes brightness, contrast, saturation and hue, in random order and by random factors; equals
/// torchvision's `v2.ColorJitter`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColorJitter {
    /// A number b for factors from max(0, 1 - b) to 1 + b, or the two factors.
    #[serde(default)]
    pub brightness: Jitter,
    /// As for brightness.
    #[serde(default)]
    pub contrast: Jitter,
    /// As for brightness.
    #[serde(default)]
    pub saturation: Jitter,
    /// A number h, at most 0.5, for a shift of -h to h of the colour circle, or the two shifts.
    #[serde(default)]
    pub hue: Jitter,
    /// The image; the only one there is if it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<Name>,
    #[serde(skip)]
    at: Option<ImageField>,
}

/// How far something may change.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a number, or two numbers [least, greatest]")]
pub enum Jitter {
    /// By so much in both directions.
    By(f64),
    /// Between these two.
    Between([f64; 2]),
}

impl Default for Jitter {
    fn default() -> Self {
        Self::By(0.0)
    }
}

impl Jitter {
    /// The range around `center`; `None` if nothing changes.
    fn range(self, center: f64) -> Option<[f64; 2]> {
        let range = match self {
            Self::By(by) if center == 1.0 => [(1.0 - by).max(0.0), 1.0 + by],
            Self::By(by) => [center - by, center + by],
            Self::Between(range) => range,
        };
        (range != [center, center]).then_some(range)
    }

    fn check(self, what: &str, center: f64) -> Result<()> {
        let (low, high) = if center == 1.0 { (0.0, f64::MAX) } else { (-0.5, 0.5) };
        if let Self::By(by) = self
            && (!by.is_finite() || by < 0.0)
        {
            return Err(Error::pipeline(format!("color_jitter: {what}={by} is below 0")));
        }
        let Some([from, to]) = self.range(center) else { return Ok(()) };
        if !(low <= from && from <= to && to <= high) {
            return Err(Error::pipeline(format!(
                "color_jitter: {what} between {from} and {to} is out of range"
            )));
        }
        Ok(())
    }
}

step!(ColorJitter, "color_jitter", Map);

impl ColorJitter {
    fn ranges(&self) -> [Option<[f64; 2]>; 4] {
        [
            self.brightness.range(1.0),
            self.contrast.range(1.0),
            self.saturation.range(1.0),
            self.hue.range(0.0),
        ]
    }
}

impl Map for ColorJitter {
    fn prepare(&mut self, input: &Spec) -> Result<Spec> {
        self.brightness.check("brightness", 1.0)?;
        self.contrast.check("contrast", 1.0)?;
        self.saturation.check("saturation", 1.0)?;
        self.hue.check("hue", 0.0)?;
        let (at, field) = ImageField::find_pixels("color_jitter", self.field, input)?;
        if field.image_size().and_then(|size| size[2]) != Some(3) {
            return Err(Error::pipeline(format!("color_jitter: {field} has not three channels")));
        }
        self.at = Some(at);
        Ok(input.clone())
    }

    fn map(&self, mut sample: Sample, context: &mut Context<'_>) -> Result<Sample> {
        let ranges = self.ranges();
        let mut draws = context.draws();
        let order = order(&mut draws);
        let factors = ranges.map(|range| range.map(|[low, high]| draws.between(low, high)));
        ImageField::edit(self.at, &mut sample, context, |picture, context| {
            let layout = picture.described_layout();
            let tensor = picture.into_pixels(context)?;
            let shape: Vec<usize> = tensor.shape().to_vec();
            let mut pixels = match tensor.into_buffer().try_mut() {
                Ok(pixels) => pixels,
                Err(shared) => {
                    let mut copy = context.workspace.pool.take(shared.len())?;
                    copy.copy_from_slice(&shared);
                    copy
                }
            };
            for which in order {
                let Some(factor) = factors[which] else { continue };
                let change = [
                    color::adjust_brightness,
                    color::adjust_contrast,
                    color::adjust_saturation,
                    color::adjust_hue,
                ][which];
                change(&mut pixels, factor);
            }
            let tensor = Tensor::new(feedline_core::DType::U8, &shape, pixels.freeze())?;
            let mut picture = Picture::from_value(Value::Tensor(tensor), Layout::Hwc, context)?;
            picture.layout(layout);
            Ok(picture)
        })?;
        Ok(sample)
    }

    fn is_random(&self) -> bool {
        self.ranges().iter().any(Option::is_some)
    }
}

/// The four changes in random order.
fn order(draws: &mut Draws) -> [usize; 4] {
    let mut order = [0, 1, 2, 3];
    for last in (1..4).rev() {
        order.swap(last, draws.below(last as u64 + 1) as usize);
    }
    order
}
