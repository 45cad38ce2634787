//! Brightness instead of colours.

use super::ImageField;
use crate::decode::Picture;
use crate::kernel::color;
use crate::registry::step;
use feedline_core::{Context, Error, Field, Layout, Map, Name, Result, Sample, Spec, Value};
use serde::{Deserialize, Serialize};

/// Turns colours into brightness, in one channel or in three equal ones; equals torchvision's
/// `v2.Grayscale`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grayscale {
    /// 1 or 3.
    #[serde(default = "one")]
    pub channels: usize,
    /// The image; the only one there is if it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<Name>,
    #[serde(skip)]
    at: Option<ImageField>,
}

fn one() -> usize {
    1
}

impl Grayscale {
    /// Brightness in `channels` channels.
    #[must_use]
    pub fn new(channels: usize) -> Self {
        Self { channels, field: None, at: None }
    }
}

step!(Grayscale, "grayscale", Map);

impl Map for Grayscale {
    fn prepare(&mut self, input: &Spec) -> Result<Spec> {
        if !matches!(self.channels, 1 | 3) {
            return Err(Error::pipeline(format!(
                "grayscale: channels={}; it gives 1 or 3",
                self.channels
            )));
        }
        let (at, field) = ImageField::find_pixels("grayscale", self.field, input)?;
        self.at = Some(at);
        let Some([height, width, Some(1 | 3)]) = field.image_size() else {
            return Err(Error::pipeline(format!("grayscale: {field} has not 1 or 3 channels")));
        };
        let layout = field.layout.unwrap_or(Layout::Hwc);
        let size = [height, width, Some(self.channels)];
        Ok(input.replace(Field::image(field.name, field.dtype, layout, size)))
    }

    fn map(&self, mut sample: Sample, context: &mut Context<'_>) -> Result<Sample> {
        ImageField::edit(self.at, &mut sample, context, |picture, context| {
            if picture.channels() == self.channels && self.channels == 1 {
                return Ok(picture);
            }
            let (size, layout) = (picture.size(), picture.described_layout());
            let pixels = picture.into_pixels(context)?;
            let mut gray = context.workspace.pool.take(size.0 * size.1)?;
            match pixels.data().len() == gray.len() {
                true => gray.copy_from_slice(pixels.data()),
                false => color::grayscale(pixels.data(), &mut gray),
            }
            let tensor = crate::decode::pixels_tensor(
                &context.workspace.pool,
                size,
                self.channels,
                |out| {
                    for (to, value) in out.chunks_exact_mut(self.channels).zip(gray.iter()) {
                        to.fill(*value);
                    }
                },
            )?;
            let mut picture = Picture::from_value(Value::Tensor(tensor), Layout::Hwc, context)?;
            picture.layout(layout);
            Ok(picture)
        })?;
        Ok(sample)
    }
}
