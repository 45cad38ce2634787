//! A class number as a vector with a single 1.

use super::numbers::{cast_bytes, to_i64};
use crate::registry::step;
use feedline_core::{
    Buffer, Context, DType, Error, Field, Map, Name, Needs, Result, Sample, Spec, Tensor,
};
use serde::{Deserialize, Serialize};

/// Turns the integer in a field into a vector of `classes` numbers, 1 at that place and 0
/// elsewhere.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OneHot {
    /// How many classes there are.
    pub classes: usize,
    /// The field with the class number.
    #[serde(default = "label")]
    pub field: Name,
    /// The dtype of the vector.
    #[serde(default = "float32")]
    pub dtype: DType,
}

fn label() -> Name {
    Name::new("label")
}

fn float32() -> DType {
    DType::F32
}

step!(OneHot, "one_hot", Map);

impl Map for OneHot {
    fn prepare(&mut self, input: &Spec) -> Result<Spec> {
        let field = input.expect("one_hot", self.field.as_str())?;
        if !field.dtype.is_integer() || !field.shape.is_empty() {
            return Err(Error::pipeline(format!("one_hot: {field} is not one integer a sample")));
        }
        if self.dtype.size().is_none() {
            return Err(Error::pipeline(format!("one_hot: dtype={} holds no numbers", self.dtype)));
        }
        if !(1..=1 << 24).contains(&self.classes) {
            return Err(Error::pipeline(format!(
                "one_hot: classes={} is not between 1 and 2^24",
                self.classes
            )));
        }
        Ok(input.replace(Field::new(self.field, self.dtype, &[Some(self.classes)])))
    }

    fn map(&self, mut sample: Sample, context: &mut Context<'_>) -> Result<Sample> {
        sample.update(self.field, |value| {
            let tensor = value.into_tensor(context)?;
            let class = to_i64(&tensor).and_then(|numbers| numbers.first().copied()).unwrap_or(-1);
            if class < 0 || class >= self.classes as i64 {
                return Err(Error::record(format!(
                    "{} is {class}, and there are {} classes, from 0",
                    self.field, self.classes
                )));
            }
            let mut vector = vec![0u8; self.classes];
            vector[class as usize] = 1;
            let bytes = cast_bytes(DType::U8, self.dtype, false, &vector);
            Ok(Tensor::new(self.dtype, &[self.classes], Buffer::from(&bytes[..]))?.into())
        })?;
        Ok(sample)
    }

    fn needs(&self, _: &Sample, _: &Context<'_>) -> Needs {
        Needs::Field(self.field)
    }
}
