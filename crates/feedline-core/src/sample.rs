//! One record on its way: an ordered set of named values.

use crate::{Buffer, Context, Cut, DType, Error, Name, Needs, Result, Shape, Tensor};
use smallvec::SmallVec;
use std::any::Any;
use std::fmt;

/// A value that is described but not computed yet.
///
/// Steps that understand the description extend it instead of computing (decode, then crop, then
/// normalise); whoever needs the numbers calls [`Deferred::write`], and only then, in one pass and
/// straight into its destination, is the work done.
pub trait Deferred: Any + Send {
    /// The dtype of the value.
    fn dtype(&self) -> DType;
    /// The shape of the value.
    fn shape(&self) -> Shape;
    /// Computes the value into `out`, which has exactly its size.
    ///
    /// # Errors
    ///
    /// If the record turns out to be bad.
    fn write(self: Box<Self>, out: &mut [u8], context: &mut Context<'_>) -> Result<()>;
    /// What has to be read out of the store before the value can be computed, if anything. Steps
    /// that narrow the value (a crop) make this less.
    fn wants(&self) -> Option<Cut<'_>> {
        None
    }
    /// Whether what it wants may be read straight to where the value is to be written; `write` then
    /// finds it there. Only if the cut's length is that of the value.
    fn in_place(&self) -> bool {
        false
    }
    /// Takes what it wanted; from now on it wants nothing.
    fn supply(&mut self, _bytes: Buffer) {}
    /// Bytes of the value. Bytes and text have no shape that tells: they have to say it.
    fn bytes(&self) -> usize {
        self.shape().iter().product::<usize>() * self.dtype().size().unwrap_or(1)
    }
    /// The value as it is, if what was supplied is the value and need not be copied.
    ///
    /// # Errors
    ///
    /// If the record turns out to be bad.
    fn as_supplied(&mut self) -> Result<Option<Tensor>> {
        Ok(None)
    }
    /// The value itself, for steps that know its type.
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

/// Values beyond this are refused before memory is asked for: a plan's typing error must not end
/// the process.
const LARGEST: usize = 4 << 30;

/// What a field of a sample holds.
pub enum Value {
    /// Numbers, bytes or text.
    Tensor(Tensor),
    /// A description of a tensor.
    Deferred(Box<dyn Deferred>),
}

impl Value {
    /// Bytes the value has once it is computed.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Tensor(tensor) => tensor.data().len(),
            Self::Deferred(value) => value.bytes(),
        }
    }

    /// What has to be read before it can be computed, if anything.
    #[must_use]
    pub fn wants(&self) -> Option<Cut<'_>> {
        match self {
            Self::Tensor(_) => None,
            Self::Deferred(value) => value.wants(),
        }
    }

    /// Whether what it wants may be read straight to where it is to be written.
    #[must_use]
    pub fn in_place(&self) -> bool {
        matches!(self, Self::Deferred(value) if value.in_place())
    }

    /// Hands over what it wanted.
    pub fn supply(&mut self, bytes: Buffer) {
        if let Self::Deferred(value) = self {
            value.supply(bytes);
        }
    }

    /// The tensor, computed now if it was deferred.
    ///
    /// # Errors
    ///
    /// If computing it fails.
    pub fn into_tensor(self, context: &mut Context<'_>) -> Result<Tensor> {
        match self {
            Self::Tensor(tensor) => Ok(tensor),
            Self::Deferred(mut value) => {
                if let Some(tensor) = value.as_supplied()? {
                    return Ok(tensor);
                }
                let (dtype, shape) = (value.dtype(), value.shape());
                let size = match dtype.size() {
                    Some(size) => shape.iter().try_fold(size, |all, side| all.checked_mul(*side)),
                    None => Some(value.bytes()),
                };
                let Some(size) = size.filter(|size| *size <= LARGEST) else {
                    return Err(Error::record(format!(
                        "a value of {dtype}{:?} is larger than {LARGEST} bytes",
                        &shape[..]
                    )));
                };
                let mut buffer = context.workspace.pool.take(size)?;
                value.write(&mut buffer, context)?;
                Tensor::new(dtype, &shape, buffer.freeze())
            }
        }
    }

    /// Writes the value's bytes into `out`, which must have exactly its size.
    ///
    /// # Errors
    ///
    /// If computing it fails, or the size is another one.
    pub fn write(self, out: &mut [u8], context: &mut Context<'_>) -> Result<()> {
        if self.bytes() != out.len() {
            return Err(Error::record(format!(
                "a value of {} bytes where the batch has room for {}",
                self.bytes(),
                out.len()
            )));
        }
        match self {
            Self::Tensor(tensor) => out.copy_from_slice(tensor.data()),
            Self::Deferred(value) => value.write(out, context)?,
        }
        Ok(())
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tensor(tensor) => tensor.fmt(f),
            Self::Deferred(value) => write!(f, "deferred {}{:?}", value.dtype(), value.shape()),
        }
    }
}

impl From<Tensor> for Value {
    fn from(tensor: Tensor) -> Self {
        Self::Tensor(tensor)
    }
}

/// The fields of a sample, one after another.
pub type Fields = smallvec::IntoIter<[(Name, Value); 3]>;

/// An ordered set of named values.
#[derive(Debug, Default)]
pub struct Sample {
    fields: SmallVec<[(Name, Value); 3]>,
}

impl Sample {
    /// A sample without fields.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A sample of these fields.
    #[must_use]
    pub fn of<V: Into<Value>>(fields: impl IntoIterator<Item = (Name, V)>) -> Self {
        fields.into_iter().fold(Self::new(), |sample, (name, value)| sample.with(name, value))
    }

    /// Adds a field, or replaces the one of that name where it stands.
    pub fn set(&mut self, name: Name, value: impl Into<Value>) {
        let value = value.into();
        match self.fields.iter_mut().find(|(known, _)| *known == name) {
            Some(field) => field.1 = value,
            None => self.fields.push((name, value)),
        }
    }

    /// The sample with one more field.
    #[must_use]
    pub fn with(mut self, name: Name, value: impl Into<Value>) -> Self {
        self.set(name, value);
        self
    }

    /// The fields in order.
    pub fn fields(&self) -> impl Iterator<Item = &(Name, Value)> {
        self.fields.iter()
    }

    /// The first field, by number, of those that are needed and have yet to be read.
    #[must_use]
    pub fn wanting(&self, needs: Needs) -> Option<usize> {
        let needed = |name: Name| match needs {
            Needs::Nothing => false,
            Needs::Field(field) => field == name,
            Needs::Everything => true,
        };
        self.fields.iter().position(|(name, value)| needed(*name) && value.wants().is_some())
    }

    /// Field `number`.
    ///
    /// # Panics
    ///
    /// If there are not so many.
    pub fn field_mut(&mut self, number: usize) -> &mut Value {
        &mut self.fields[number].1
    }

    /// The fields, to be changed in place.
    pub fn fields_mut(&mut self) -> impl Iterator<Item = &mut (Name, Value)> {
        self.fields.iter_mut()
    }

    /// The fields, moved out in order.
    pub fn into_fields(self) -> Fields {
        self.fields.into_iter()
    }

    /// The field of that name.
    #[must_use]
    pub fn get(&self, name: Name) -> Option<&Value> {
        self.fields.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// Replaces a field by what `change` makes of it.
    ///
    /// # Errors
    ///
    /// What `change` fails with, or an internal error if there is no such field, which the checks
    /// before the run rule out.
    pub fn update(
        &mut self,
        name: Name,
        change: impl FnOnce(Value) -> Result<Value>,
    ) -> Result<()> {
        let Some(field) = self.fields.iter_mut().find(|(known, _)| *known == name) else {
            return Err(Error::Internal(format!("a sample without its field {name:?}")));
        };
        let placeholder = Value::Tensor(Tensor::scalar(0u8));
        field.1 = change(std::mem::replace(&mut field.1, placeholder))?;
        Ok(())
    }

    /// Removes a field.
    pub fn take(&mut self, name: Name) -> Option<Value> {
        let at = self.fields.iter().position(|(known, _)| *known == name)?;
        Some(self.fields.remove(at).1)
    }

    /// Gives a field another name, in its place.
    pub fn rename(&mut self, from: Name, to: Name) {
        if let Some(field) = self.fields.iter_mut().find(|(known, _)| *known == from) {
            field.0 = to;
        }
    }
}
