//! Another dtype.

use crate::decode::{Picture, Pointwise};
use crate::registry::step;
use crate::volume;
use feedline_core::{Context, DType, Error, Layout, Map, Name, Needs, Result, Sample, Spec, Value};
use serde::{Deserialize, Serialize};

/// Gives a field another dtype. Without `scale`, values are kept as they are (floats lose their
/// fraction when they become integers); with it, the ranges 0…max and 0…1 are mapped to each other,
/// as torchvision's `v2.ToDtype(scale=True)` does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cast {
    /// The dtype.
    pub dtype: DType,
    /// Whether integers stand for the range 0…1.
    #[serde(default)]
    pub scale: bool,
    /// The field; the only image there is if it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<Name>,
    #[serde(skip)]
    at: Option<(Name, Option<Layout>)>,
    #[serde(skip)]
    lazy: bool,
}

impl Cast {
    /// Casts the only image, or the given field, to `dtype`.
    #[must_use]
    pub fn new(dtype: DType, scale: bool, field: Option<Name>) -> Self {
        Self { dtype, scale, field, at: None, lazy: false }
    }
}

step!(Cast, "cast", Map);

impl Map for Cast {
    fn prepare(&mut self, input: &Spec) -> Result<Spec> {
        let field = match self.field {
            Some(name) => input.expect("cast", name.as_str())?.clone(),
            None if input.fields.len() == 1 => input.fields[0].clone(),
            None => input.expect_image("cast", None)?.clone(),
        };
        if field.dtype.size().is_none() || self.dtype.size().is_none() {
            return Err(Error::pipeline(format!(
                "cast: {field} cannot become {}; only numbers can be cast",
                self.dtype
            )));
        }
        if self.scale
            && field.dtype.is_float() == self.dtype.is_float()
            && field.dtype != self.dtype
        {
            return Err(Error::pipeline(format!(
                "cast: scale=true maps between integers and floats, not {} to {}",
                field.dtype, self.dtype
            )));
        }
        self.at = Some((field.name, field.layout));
        self.lazy = field.layout.is_some() || field.shape.len() > 2;
        let mut field = field;
        field.dtype = self.dtype;
        Ok(input.replace(field))
    }

    fn map(&self, mut sample: Sample, context: &mut Context<'_>) -> Result<Sample> {
        let (name, layout) =
            self.at.ok_or_else(|| Error::Internal("cast was not prepared".into()))?;
        sample.update(name, |value| {
            if let Some(layout) = layout {
                let mut picture = Picture::from_value(value, layout, context)?;
                picture.pointwise(Pointwise::Cast(self.dtype, self.scale));
                return Ok(Value::Deferred(picture));
            }
            volume::change(value, volume::Pointwise::Cast(self.dtype, self.scale), context)
        })?;
        Ok(sample)
    }

    fn needs(&self, _: &Sample, _: &Context<'_>) -> Needs {
        match self.at {
            Some((name, Some(_))) => Needs::Field(name),
            _ => Needs::Nothing,
        }
    }

    fn is_fused(&self) -> bool {
        self.lazy
    }
}
