//! Named by its field, typed by its dtype, shaped, and standing on shared memory.

use crate::{Buffer, BufferMut, DType, Element, Error, Pool, Result};
use smallvec::SmallVec;
use std::fmt;

/// The extent of a tensor in each dimension.
pub type Shape = SmallVec<[usize; 4]>;

/// Values of one dtype in row-major order.
///
/// Numbers lie one after another. `bytes` and `text` have a length each: a scalar is its whole
/// buffer, a vector carries offsets beside the values.
#[derive(Clone)]
pub struct Tensor {
    dtype: DType,
    shape: Shape,
    data: Data,
}

#[derive(Clone)]
enum Data {
    /// A scalar, kept here so that a sample of a few numbers needs no allocation.
    Inline([u8; 8]),
    Shared(Buffer),
    Ragged {
        values: Buffer,
        offsets: Buffer,
    },
}

impl Tensor {
    /// A tensor over existing bytes.
    ///
    /// # Errors
    ///
    /// If the buffer's length is not what dtype and shape ask for.
    pub fn new(dtype: DType, shape: &[usize], bytes: Buffer) -> Result<Self> {
        let wanted = match dtype.size() {
            Some(size) => shape.iter().try_fold(size, |product, side| product.checked_mul(*side)),
            None if shape.is_empty() => Some(bytes.len()),
            None => None,
        };
        if wanted != Some(bytes.len()) {
            return Err(Error::Internal(format!(
                "a {dtype} tensor of shape {shape:?} cannot stand on {} bytes",
                bytes.len()
            )));
        }
        Ok(Self { dtype, shape: Shape::from_slice(shape), data: Data::Shared(bytes) })
    }

    /// A tensor of the given numbers.
    ///
    /// # Panics
    ///
    /// If the number of values is not the product of the shape.
    #[must_use]
    pub fn from_slice<T: Element>(shape: &[usize], values: &[T]) -> Self {
        assert_eq!(shape.iter().product::<usize>(), values.len(), "shape {shape:?}");
        let length = std::mem::size_of_val(values);
        let mut buffer = BufferMut::new(length);
        // SAFETY: every element type is plain numbers without padding, `length` bytes long.
        buffer.copy_from_slice(unsafe {
            std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), length)
        });
        let data = Data::Shared(buffer.freeze());
        Self { dtype: T::DTYPE, shape: Shape::from_slice(shape), data }
    }

    /// One number.
    #[must_use]
    pub fn scalar<T: Element>(value: T) -> Self {
        let mut inline = [0; 8];
        // SAFETY: an element is at most 8 bytes of plain numbers without padding.
        unsafe { inline.as_mut_ptr().cast::<T>().write_unaligned(value) };
        Self { dtype: T::DTYPE, shape: Shape::new(), data: Data::Inline(inline) }
    }

    /// One run of bytes.
    #[must_use]
    pub fn bytes(value: Buffer) -> Self {
        Self { dtype: DType::Bytes, shape: Shape::new(), data: Data::Shared(value) }
    }

    /// One text.
    #[must_use]
    pub fn text(value: &str) -> Self {
        let data = Data::Shared(Buffer::from(value.as_bytes()));
        Self { dtype: DType::Text, shape: Shape::new(), data }
    }

    /// A vector of values with a length each: item `i` is `values[offsets[i]..offsets[i + 1]]`.
    ///
    /// # Errors
    ///
    /// If `dtype` is a number, or the offsets do not rise from 0 to the number of bytes.
    pub fn ragged(dtype: DType, values: Buffer, offsets: &[u64]) -> Result<Self> {
        let rises = offsets.windows(2).all(|pair| pair[0] <= pair[1]);
        let ends = offsets.first() == Some(&0) && offsets.last() == Some(&(values.len() as u64));
        if dtype.size().is_some() || !rises || !ends {
            return Err(Error::Internal(format!("a ragged {dtype} tensor with wrong offsets")));
        }
        let count = offsets.len() - 1;
        let mut buffer = BufferMut::new(offsets.len() * 8);
        for (to, offset) in buffer.chunks_exact_mut(8).zip(offsets) {
            to.copy_from_slice(&offset.to_ne_bytes());
        }
        let data = Data::Ragged { values, offsets: buffer.freeze() };
        Ok(Self { dtype, shape: Shape::from_slice(&[count]), data })
    }

    /// The type of the elements.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The extent in each dimension; a scalar has none.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The bytes: numbers in row-major order, or the values of `bytes` and `text` end to end.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        match &self.data {
            Data::Inline(bytes) => &bytes[..self.dtype.size().unwrap_or(0)],
            Data::Shared(buffer) | Data::Ragged { values: buffer, .. } => buffer,
        }
    }

    /// The numbers, if they are of type `T`.
    #[must_use]
    pub fn as_slice<T: Element>(&self) -> Option<&[T]> {
        let bytes = self.data();
        let aligned = (bytes.as_ptr() as usize).is_multiple_of(std::mem::align_of::<T>());
        if T::DTYPE != self.dtype || !aligned {
            return None;
        }
        let count = bytes.len() / std::mem::size_of::<T>();
        // SAFETY: the dtype says that these bytes are numbers of type T; alignment was checked.
        Some(unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast::<T>(), count) })
    }

    /// The one number, if this is a scalar of type `T`.
    #[must_use]
    pub fn value<T: Element>(&self) -> Option<T> {
        if T::DTYPE != self.dtype || self.elements() != 1 {
            return None;
        }
        // SAFETY: the dtype says that the first bytes are one number of type T.
        Some(unsafe { self.data().as_ptr().cast::<T>().read_unaligned() })
    }

    /// Item `index` of a ragged vector, or the whole of a `bytes` or `text` scalar.
    #[must_use]
    pub fn item(&self, index: usize) -> Option<&[u8]> {
        match &self.data {
            Data::Ragged { values, .. } => {
                let (from, to) = (self.offset(index)?, self.offset(index + 1)?);
                values.get(from..to)
            }
            Data::Shared(buffer) if self.dtype.size().is_none() && index == 0 => Some(buffer),
            _ => None,
        }
    }

    /// Where item `index` of a ragged vector starts, in bytes; the last offset is the end.
    #[must_use]
    pub fn offset(&self, index: usize) -> Option<usize> {
        let Data::Ragged { offsets, .. } = &self.data else { return None };
        let bytes = offsets.get(index * 8..index * 8 + 8)?;
        Some(u64::from_ne_bytes(bytes.try_into().ok()?) as usize)
    }

    /// The shared buffer below, if there is one.
    #[must_use]
    pub fn buffer(&self) -> Option<&Buffer> {
        match &self.data {
            Data::Shared(buffer) => Some(buffer),
            _ => None,
        }
    }

    /// The buffer below, moved out; scalars are copied into one.
    #[must_use]
    pub fn into_buffer(self) -> Buffer {
        match self.data {
            Data::Inline(_) => Buffer::from(self.data()),
            Data::Shared(buffer) | Data::Ragged { values: buffer, .. } => buffer,
        }
    }

    /// The same bytes under another shape and dtype of equal size.
    ///
    /// # Errors
    ///
    /// If the sizes differ.
    pub fn reinterpret(self, dtype: DType, shape: &[usize]) -> Result<Self> {
        Self::new(dtype, shape, self.into_buffer())
    }

    /// Row `index` along the first dimension, sharing memory.
    ///
    /// # Panics
    ///
    /// If there is no such row, or the tensor is a scalar.
    #[must_use]
    pub fn row(&self, index: usize) -> Self {
        let rows = self.shape[0];
        assert!(index < rows, "row {index} of {rows}");
        let buffer = match &self.data {
            Data::Shared(buffer) => buffer,
            Data::Ragged { values, .. } => {
                let at = |item| self.offset(item).expect("one more offset than items");
                let item = values.slice(at(index)..at(index + 1));
                return Self { dtype: self.dtype, shape: Shape::new(), data: Data::Shared(item) };
            }
            Data::Inline(_) => panic!("row of a scalar"),
        };
        let bytes = buffer.len() / rows;
        let (from, shape) = (index * bytes, Shape::from_slice(&self.shape[1..]));
        if shape.is_empty() {
            let mut inline = [0; 8];
            inline[..bytes].copy_from_slice(&buffer[from..from + bytes]);
            return Self { dtype: self.dtype, shape, data: Data::Inline(inline) };
        }
        Self { dtype: self.dtype, shape, data: Data::Shared(buffer.slice(from..from + bytes)) }
    }

    /// Stacks tensors of one dtype and shape along a new first dimension; `bytes` and `text`
    /// scalars become a ragged vector.
    ///
    /// # Errors
    ///
    /// If there are none, there is not so much memory, or one differs from the first: `odd` is then
    /// asked what to say of it.
    pub fn stack(parts: &[Self], pool: &Pool, odd: impl FnOnce(usize) -> Error) -> Result<Self> {
        let Some(first) = parts.first() else {
            return Err(Error::Internal("a stack of nothing".into()));
        };
        let differs = |part: &Self| part.dtype != first.dtype || part.shape != first.shape;
        if let Some(at) = parts.iter().position(differs) {
            return Err(odd(at));
        }
        let total = parts.iter().map(|part| part.data().len()).sum();
        let mut buffer = pool.take(total)?;
        let mut offsets = vec![0u64];
        let mut at = 0;
        for part in parts {
            let data = part.data();
            buffer[at..at + data.len()].copy_from_slice(data);
            at += data.len();
            offsets.push(at as u64);
        }
        let bytes = buffer.freeze();
        if first.dtype.size().is_none() {
            return Self::ragged(first.dtype, bytes, &offsets);
        }
        let mut shape = Shape::from_slice(&[parts.len()]);
        shape.extend_from_slice(&first.shape);
        Ok(Self { dtype: first.dtype, shape, data: Data::Shared(bytes) })
    }
}

impl Tensor {
    /// The first `count` items along the first dimension, sharing memory.
    ///
    /// # Panics
    ///
    /// If there are fewer, or the tensor has no dimension of numbers.
    #[must_use]
    pub fn first(&self, count: usize) -> Self {
        let rows = self.shape[0];
        assert!(count <= rows, "{count} of {rows} items");
        let Data::Shared(buffer) = &self.data else { panic!("the first items of {self:?}") };
        let bytes = buffer.len().checked_div(rows).unwrap_or(0) * count;
        let mut shape = self.shape.clone();
        shape[0] = count;
        Self { dtype: self.dtype, shape, data: Data::Shared(buffer.slice(0..bytes)) }
    }

    /// Stacks tensors of numbers that differ in their first dimension alone, filling each up to
    /// the length of `room`, the shape of a row. A batch of `rows` has rows of filling alone after
    /// the last of them. Every byte is written once.
    ///
    /// # Errors
    ///
    /// If there is not so much memory, or a part does not fit into the room: `odd` is then asked
    /// what to say of it.
    pub fn stack_padded(
        parts: &[Self],
        rows: usize,
        (dtype, room): (DType, &[usize]),
        fill: &[u8],
        pool: &Pool,
        odd: impl FnOnce(usize) -> Error,
    ) -> Result<Self> {
        let length = room.first().copied().unwrap_or(0);
        let differs = |part: &Self| {
            part.dtype != dtype
                || part.shape.len() != room.len()
                || part.shape.get(1..) != room.get(1..)
                || part.shape.first().is_none_or(|own| *own > length)
        };
        if let Some(at) = parts.iter().position(differs) {
            return Err(odd(at));
        }
        let bytes = dtype.size().filter(|size| *size == fill.len() && parts.len() <= rows);
        let bytes =
            bytes.and_then(|size| room.iter().try_fold(size, |a, side| a.checked_mul(*side)));
        let Some((row, total)) = bytes.and_then(|row| Some((row, row.checked_mul(rows)?))) else {
            return Err(Error::Internal(format!("{rows} rows of {dtype}{room:?} to fill up")));
        };
        let mut buffer = pool.take(total)?;
        for (part, to) in parts.iter().zip(buffer.chunks_exact_mut(row.max(1))) {
            let data = part.data();
            to[..data.len()].copy_from_slice(data);
            fill_up(&mut to[data.len()..], fill);
        }
        fill_up(&mut buffer[parts.len() * row..], fill);
        let mut shape = Shape::from_slice(&[rows]);
        shape.extend_from_slice(room);
        Ok(Self { dtype, shape, data: Data::Shared(buffer.freeze()) })
    }
}

/// Writes one element over and over.
fn fill_up(to: &mut [u8], element: &[u8]) {
    let Some(first) = element.first() else { return };
    if element.iter().all(|byte| byte == first) {
        to.fill(*first);
    } else {
        to.chunks_exact_mut(element.len()).for_each(|item| item.copy_from_slice(element));
    }
}

impl PartialEq for Tensor {
    fn eq(&self, other: &Self) -> bool {
        let ragged = |tensor: &Self| match &tensor.data {
            Data::Ragged { offsets, .. } => Some(offsets.to_vec()),
            _ => None,
        };
        self.dtype == other.dtype
            && self.shape == other.shape
            && self.data() == other.data()
            && ragged(self) == ragged(other)
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.shape())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_need_no_allocation_and_read_back() {
        let tensor = Tensor::scalar(-7i64);
        assert_eq!(tensor.value::<i64>(), Some(-7));
        assert_eq!(tensor.value::<u64>(), None);
        assert!(tensor.buffer().is_none());
        assert_eq!(Tensor::scalar(1.5f32).data().len(), 4);
    }

    #[test]
    fn a_wrong_length_is_refused() {
        let four = Buffer::from(&[0u8; 4][..]);
        assert!(Tensor::new(DType::F32, &[2], four.clone()).is_err());
        assert!(Tensor::new(DType::F32, &[usize::MAX, 4], four.clone()).is_err());
        assert!(Tensor::new(DType::Bytes, &[2], four).is_err());
    }

    #[test]
    fn stacking_adds_a_dimension_or_offsets() {
        let pool = Pool::new(0);
        let rows = [Tensor::from_slice(&[2], &[1i32, 2]), Tensor::from_slice(&[2], &[3i32, 4])];
        let odd = |at: usize| Error::record(format!("number {at}"));
        let stacked = Tensor::stack(&rows, &pool, odd).unwrap();
        assert_eq!(stacked.shape(), [2, 2]);
        assert_eq!(stacked.as_slice::<i32>().unwrap(), [1, 2, 3, 4]);
        assert_eq!(stacked.row(1), rows[1]);
        let texts = [Tensor::text("a"), Tensor::text(""), Tensor::text("ccc")];
        let ragged = Tensor::stack(&texts, &pool, odd).unwrap();
        assert_eq!(ragged.item(2), Some(&b"ccc"[..]));
        assert_eq!(ragged.item(1), Some(&b""[..]));
        assert_eq!(ragged.item(3), None);
        assert_eq!(ragged.row(2), texts[2]);
        let others = [Tensor::scalar(1i32), Tensor::scalar(1i64)];
        let error = Tensor::stack(&others, &pool, odd).unwrap_err().to_string();
        assert!(error.contains("number 1"), "{error}");
        assert!(Tensor::stack(&[], &pool, odd).is_err());
    }

    #[test]
    fn shorter_ones_are_filled_up_and_read_back() {
        let pool = Pool::new(0);
        let odd = |at: usize| Error::record(format!("number {at}"));
        let rows = [Tensor::from_slice(&[1], &[1i16]), Tensor::from_slice(&[3], &[2i16, 3, 4])];
        let fill = (-1i16).to_ne_bytes();
        let i16s = (DType::I16, &[4][..]);
        let stacked = Tensor::stack_padded(&rows, 3, i16s, &fill, &pool, odd).unwrap();
        assert_eq!(stacked.shape(), [3, 4]);
        let wanted = [1, -1, -1, -1, 2, 3, 4, -1, -1, -1, -1, -1];
        assert_eq!(stacked.as_slice::<i16>().unwrap(), wanted);
        assert_eq!(stacked.row(1).first(3), rows[1]);
        assert_eq!(stacked.row(0).first(0).shape(), [0]);
        let zeros = Tensor::stack_padded(&rows[..1], 1, (DType::I16, &[2]), &[0, 0], &pool, odd);
        assert_eq!(zeros.unwrap().as_slice::<i16>().unwrap(), [1, 0]);
        for (dtype, room) in [(DType::I16, &[2][..]), (DType::I32, &[4]), (DType::I16, &[4, 1])] {
            let fill = vec![0; dtype.size().unwrap()];
            let error = Tensor::stack_padded(&rows, 2, (dtype, room), &fill, &pool, odd);
            assert!(error.unwrap_err().to_string().contains("number"), "{dtype} {room:?}");
        }
        let none = Tensor::stack_padded(&[], 2, (DType::F32, &[0, 3]), &[0; 4], &pool, odd);
        assert_eq!(none.unwrap().shape(), [2, 0, 3]);
        assert!(
            Tensor::stack_padded(&[], 2, (DType::F32, &[usize::MAX]), &[0; 4], &pool, odd).is_err()
        );
    }
}
