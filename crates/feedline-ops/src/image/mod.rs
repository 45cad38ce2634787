//! Pixels to pixels. Parameters and meaning are those of torchvision's transforms v2.
//!
//! Most steps only extend the description of a [`Picture`]; what they
//! describe runs in one pass when the image reaches its batch.

mod center_crop;
mod color_jitter;
mod flip_horizontal;
mod flip_vertical;
mod grayscale;
mod layout;
mod normalize;
mod pad;
mod random_crop;
mod random_resized_crop;
mod resize;
mod size;

pub use center_crop::CenterCrop;
pub use color_jitter::{ColorJitter, Jitter};
pub use flip_horizontal::FlipHorizontal;
pub use flip_vertical::FlipVertical;
pub use grayscale::Grayscale;
pub use layout::SetLayout;
pub use normalize::Normalize;
pub use pad::{Padding, PaddingMode};
pub use random_crop::RandomCrop;
pub use random_resized_crop::RandomResizedCrop;
pub use resize::{Interpolation, Resize};
pub use size::Size;

use crate::decode::Picture;
use crate::registry::{Row, read};
use feedline_core::{
    Context, DType, Error, Field, Layout, Name, Needs, Result, Sample, Spec, Value,
};

pub(crate) const STEPS: &[Row] = &[
    ("resize", read::<Resize>),
    ("center_crop", read::<CenterCrop>),
    ("random_crop", read::<RandomCrop>),
    ("random_resized_crop", read::<RandomResizedCrop>),
    ("flip_horizontal", read::<FlipHorizontal>),
    ("flip_vertical", read::<FlipVertical>),
    ("color_jitter", read::<ColorJitter>),
    ("grayscale", read::<Grayscale>),
    ("normalize", read::<Normalize>),
    ("layout", read::<SetLayout>),
];

/// The field a prepared image step works on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ImageField {
    name: Name,
    layout: Layout,
}

impl ImageField {
    /// Settles which field of `input` the step works on.
    pub(crate) fn find(step: &str, name: Option<Name>, input: &Spec) -> Result<(Self, Field)> {
        let field = input.expect_image(step, name.map(Name::as_str))?;
        let layout = field.layout.unwrap_or(Layout::Hwc);
        Ok((Self { name: field.name, layout }, field.clone()))
    }

    /// As [`ImageField::find`], for steps that compute with 8-bit pixels.
    pub(crate) fn find_pixels(
        step: &str,
        name: Option<Name>,
        input: &Spec,
    ) -> Result<(Self, Field)> {
        let (at, field) = Self::find(step, name, input)?;
        if field.dtype != DType::U8 {
            return Err(Error::pipeline(format!(
                "{step}: works on uint8 images, and {field} is not; put {step} before normalize \
                 and cast"
            )));
        }
        if !matches!(field.image_size(), Some([_, _, Some(1 | 3)])) {
            return Err(Error::pipeline(format!(
                "{step}: works on images of 1 or 3 channels, and {field} has others"
            )));
        }
        Ok((at, field))
    }

    /// What a prepared step needs: its image, where that still lies in a file as pixels.
    pub(crate) fn needs(this: Option<Self>) -> Needs {
        this.map_or(Needs::Nothing, |this| Needs::Field(this.name))
    }

    /// Replaces the picture in the field by what `change` makes of it.
    pub(crate) fn edit(
        this: Option<Self>,
        sample: &mut Sample,
        context: &mut Context<'_>,
        change: impl FnOnce(Box<Picture>, &mut Context<'_>) -> Result<Box<Picture>>,
    ) -> Result<()> {
        let Self { name, layout } =
            this.ok_or_else(|| Error::Internal("an image step was not prepared".into()))?;
        sample.update(name, |value| {
            let picture = Picture::from_value(value, layout, context)?;
            Ok(Value::Deferred(change(picture, context)?))
        })
    }
}

/// The field with another size.
pub(crate) fn resized(field: &Field, size: [Option<usize>; 2]) -> Field {
    let channels = field.image_size().and_then(|size| size[2]);
    let layout = field.layout.unwrap_or(Layout::Hwc);
    Field::image(field.name, field.dtype, layout, [size[0], size[1], channels])
}

/// A probability.
pub(crate) fn check_chance(step: &str, p: f64) -> Result<()> {
    if (0.0..=1.0).contains(&p) {
        return Ok(());
    }
    Err(Error::pipeline(format!("{step}: p={p} is no probability; it lies between 0 and 1")))
}
