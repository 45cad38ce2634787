//! What a sample looks like, known before the first one is read.

use crate::{DType, Error, Name, Result};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The extent of one dimension: known, or different from sample to sample.
pub type Dim = Option<usize>;

/// How an image lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Layout {
    /// Rows of pixels, channels together: height, width, channel.
    Hwc,
    /// One plane per channel: channel, height, width.
    Chw,
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hwc => "HWC",
            Self::Chw => "CHW",
        })
    }
}

/// One field of a sample: its name, dtype, shape, and layout if it is an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// The field's name.
    pub name: Name,
    /// The type of its elements.
    pub dtype: DType,
    /// Its shape; `None` where samples differ.
    pub shape: Vec<Dim>,
    /// How it lies in memory, if it is a decoded image.
    pub layout: Option<Layout>,
}

impl Field {
    /// A field that is no image.
    pub fn new(name: impl Into<Name>, dtype: DType, shape: &[Dim]) -> Self {
        Self { name: name.into(), dtype, shape: shape.to_vec(), layout: None }
    }

    /// An image field of `channels` channels.
    pub fn image(name: impl Into<Name>, dtype: DType, layout: Layout, size: [Dim; 3]) -> Self {
        let [height, width, channels] = size;
        let shape = match layout {
            Layout::Hwc => vec![height, width, channels],
            Layout::Chw => vec![channels, height, width],
        };
        Self { name: name.into(), dtype, shape, layout: Some(layout) }
    }

    /// Height, width and channels of an image field.
    #[must_use]
    pub fn image_size(&self) -> Option<[Dim; 3]> {
        match (self.layout?, &self.shape[..]) {
            (Layout::Hwc, &[height, width, channels]) => Some([height, width, channels]),
            (Layout::Chw, &[channels, height, width]) => Some([height, width, channels]),
            _ => None,
        }
    }

    /// Bytes of one value, if every sample has the same.
    #[must_use]
    pub fn bytes(&self) -> Option<usize> {
        let size = self.dtype.size()?;
        self.shape.iter().try_fold(size, |product, dim| product.checked_mul((*dim)?))
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<_> =
            self.shape.iter().map(|dim| dim.map_or("?".into(), |n| n.to_string())).collect();
        write!(f, "{} {}[{}]", self.name, self.dtype, dims.join(", "))?;
        self.layout.map_or(Ok(()), |layout| write!(f, " {layout}"))
    }
}

/// The fields of a sample, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spec {
    /// The fields.
    pub fields: Vec<Field>,
}

impl Spec {
    /// A spec of these fields.
    #[must_use]
    pub fn new(fields: Vec<Field>) -> Self {
        Self { fields }
    }

    /// The field of that name.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// The field a step was told to work on.
    ///
    /// # Errors
    ///
    /// Names the fields there are.
    pub fn expect(&self, step: &str, name: &str) -> Result<&Field> {
        self.field(name).ok_or_else(|| {
            Error::pipeline(format!("{step}: there is no field {name:?} here; there are: {self}"))
        })
    }

    /// The image field a step works on: the one named, or the only image.
    ///
    /// # Errors
    ///
    /// If there is none, or several and none was named.
    pub fn expect_image(&self, step: &str, name: Option<&str>) -> Result<&Field> {
        if let Some(name) = name {
            let field = self.expect(step, name)?;
            if field.layout.is_none() {
                return Err(Error::pipeline(format!(
                    "{step}: field {name:?} is {field}, not a decoded image{}",
                    hint(field)
                )));
            }
            return Ok(field);
        }
        let mut images = self.fields.iter().filter(|field| field.layout.is_some());
        match (images.next(), images.next()) {
            (Some(field), None) => Ok(field),
            (None, _) => {
                let hint = self.fields.iter().map(hint).find(|text| !text.is_empty());
                Err(Error::pipeline(format!(
                    "{step}: works on a decoded image, and there is none here (fields: {self}){}",
                    hint.unwrap_or_default()
                )))
            }
            (Some(first), Some(second)) => Err(Error::pipeline(format!(
                "{step}: which image? say field={} or field={}",
                first.name, second.name
            ))),
        }
    }

    /// The spec with the field of the same name replaced.
    #[must_use]
    pub fn replace(&self, field: Field) -> Self {
        let mut fields = self.fields.clone();
        match fields.iter_mut().find(|known| known.name == field.name) {
            Some(known) => *known = field,
            None => fields.push(field),
        }
        Self { fields }
    }

    /// Bytes of one sample, if every sample has the same.
    #[must_use]
    pub fn bytes(&self) -> Option<usize> {
        self.fields.iter().try_fold(0usize, |sum, field| sum.checked_add(field.bytes()?))
    }
}

fn hint(field: &Field) -> String {
    if field.dtype == DType::Bytes { "; add decode before it".into() } else { String::new() }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, field) in self.fields.iter().enumerate() {
            if index > 0 {
                f.write_str(", ")?;
            }
            field.fmt(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_image_says_what_there_is_and_what_would_help() {
        let spec = Spec::new(vec![Field::new("image", DType::Bytes, &[])]);
        let error = spec.expect_image("resize", None).unwrap_err().to_string();
        assert!(error.contains("resize") && error.contains("add decode before it"), "{error}");
    }

    #[test]
    fn bytes_are_known_only_for_fixed_shapes() {
        let fixed = Field::image("a", DType::F32, Layout::Chw, [Some(2), Some(3), Some(3)]);
        assert_eq!(fixed.bytes(), Some(72));
        assert_eq!(fixed.to_string(), "a float32[3, 2, 3] CHW");
        assert_eq!(Field::new("b", DType::U8, &[None]).bytes(), None);
        assert_eq!(Field::new("b", DType::Text, &[]).bytes(), None);
    }
}
