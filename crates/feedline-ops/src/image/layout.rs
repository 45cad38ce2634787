//! Channels last or channels first.

use super::ImageField;
use crate::registry::step;
use feedline_core::{Context, Error, Field, Layout, Map, Name, Needs, Result, Sample, Spec};
use serde::{Deserialize, Serialize};

/// Lays the image out as rows of pixels (`HWC`) or as one plane per channel (`CHW`, what PyTorch
/// expects).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetLayout {
    /// `HWC` or `CHW`.
    pub to: Layout,
    /// The image; the only one there is if it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<Name>,
    #[serde(skip)]
    at: Option<ImageField>,
}

impl SetLayout {
    /// Lays the image out as `to`.
    #[must_use]
    pub fn new(to: Layout) -> Self {
        Self { to, field: None, at: None }
    }
}

step!(SetLayout, "layout", Map);

impl Map for SetLayout {
    fn prepare(&mut self, input: &Spec) -> Result<Spec> {
        let (at, field) = ImageField::find("layout", self.field, input)?;
        self.at = Some(at);
        let size = field
            .image_size()
            .ok_or_else(|| Error::pipeline(format!("layout: {field} has not three dimensions")))?;
        Ok(input.replace(Field::image(field.name, field.dtype, self.to, size)))
    }

    fn map(&self, mut sample: Sample, context: &mut Context<'_>) -> Result<Sample> {
        ImageField::edit(self.at, &mut sample, context, |mut picture, _| {
            picture.layout(self.to);
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
