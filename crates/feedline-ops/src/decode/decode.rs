//! Decodes an image: JPEG, PNG, WebP, BMP, GIF or TIFF, told apart by their content.

use super::Picture;
use crate::codec;
use crate::registry::step;
use feedline_core::{
    Context, DType, Error, Field, Layout, Map, Name, Needs, Result, Sample, Spec, Value,
};
use serde::{Deserialize, Serialize};

/// Decodes the encoded image in a field to 8-bit pixels, height × width × channels.
///
/// Nothing is decoded before its pixels are needed, and then only the region that later crops
/// leave of it. Grey, palette, CMYK and 16-bit images become RGB; transparency is dropped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decode {
    /// The field with the encoded bytes; the only bytes there are if it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<Name>,
    /// What the decoded image is called.
    #[serde(default = "image")]
    pub to: Name,
    /// `rgb`, or `gray` for one channel.
    #[serde(default)]
    pub mode: Mode,
    /// Whether the orientation that the camera noted (EXIF) is applied.
    #[serde(default = "yes")]
    pub exif: bool,
    /// Whether a JPEG that is shrunk to half or less afterwards may be decoded at a half, quarter or
    /// eighth of its size. Faster for large photos, and it changes pixels.
    #[serde(default)]
    pub dct_scale: bool,
    /// Images with more pixels than this are bad samples.
    #[serde(default = "max_pixels")]
    pub max_pixels: usize,
}

/// The colours of a decoded image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Red, green and blue.
    #[default]
    Rgb,
    /// Brightness alone.
    Gray,
}

fn image() -> Name {
    Name::new("image")
}

fn yes() -> bool {
    true
}

fn max_pixels() -> usize {
    codec::Limits::default().max_pixels
}

impl Default for Decode {
    fn default() -> Self {
        Self {
            field: None,
            to: image(),
            mode: Mode::Rgb,
            exif: true,
            dct_scale: false,
            max_pixels: max_pixels(),
        }
    }
}

step!(Decode, "decode", Map);

impl Map for Decode {
    fn prepare(&mut self, input: &Spec) -> Result<Spec> {
        let encoded = |field: &&Field| field.dtype == DType::Bytes && field.shape.is_empty();
        let field = match self.field {
            Some(name) => {
                let field = input.expect("decode", name.as_str())?;
                if !encoded(&field) {
                    return Err(Error::pipeline(format!("decode: {field} holds no encoded bytes")));
                }
                field.clone()
            }
            None => {
                let mut found = input.fields.iter().filter(encoded);
                match (found.next(), found.next()) {
                    (Some(field), None) => field.clone(),
                    (None, _) => {
                        let decoded = input.fields.iter().any(|field| field.layout.is_some());
                        let hint = if decoded { "; it is decoded already" } else { "" };
                        return Err(Error::pipeline(format!(
                            "decode: there are no encoded bytes here (fields: {input}){hint}"
                        )));
                    }
                    (Some(first), Some(second)) => {
                        return Err(Error::pipeline(format!(
                            "decode: which bytes? say field={} or field={}",
                            first.name, second.name
                        )));
                    }
                }
            }
        };
        if self.max_pixels == 0 {
            return Err(Error::pipeline("decode: max_pixels=0 allows no image"));
        }
        if field.name != self.to && input.field(self.to.as_str()).is_some() {
            return Err(Error::pipeline(format!(
                "decode: there is a field {} already; say to=… for the decoded image",
                self.to
            )));
        }
        self.field = Some(field.name);
        let channels = if self.mode == Mode::Rgb { 3 } else { 1 };
        let decoded = Field::image(self.to, DType::U8, Layout::Hwc, [None, None, Some(channels)]);
        let mut fields = input.fields.clone();
        for known in &mut fields {
            if known.name == field.name {
                *known = decoded.clone();
            }
        }
        Ok(Spec::new(fields))
    }

    fn map(&self, mut sample: Sample, context: &mut Context<'_>) -> Result<Sample> {
        let field = self.field.ok_or_else(|| Error::Internal("decode was not prepared".into()))?;
        sample.update(field, |value| {
            let bytes = value.into_tensor(context)?.into_buffer();
            let limits = codec::Limits {
                max_side: codec::Limits::default().max_side.max(self.max_pixels.isqrt()),
                max_pixels: self.max_pixels,
            };
            let header =
                codec::probe(&bytes, &limits).map_err(|error| Error::record(error.to_string()))?;
            Ok(Value::Deferred(Box::new(Picture::encoded(bytes, header, self, context))))
        })?;
        if field != self.to {
            sample.rename(field, self.to);
        }
        Ok(sample)
    }

    fn needs(&self, _: &Sample, _: &Context<'_>) -> Needs {
        self.field.map_or(Needs::Nothing, Needs::Field)
    }

    fn is_fused(&self) -> bool {
        true
    }

    fn is_open(&self) -> bool {
        self.dct_scale
    }
}
