//! Numbers of any dtype, read and written as bytes: the definition that fast kernels equal.

use crate::decode::Affine;
use feedline_core::{DType, Tensor};
use half::{bf16, f16};

/// Numbers on their way from one dtype to another.
enum Wide {
    /// Integers; those of `uint64` as the same 64 bits.
    Integers(Vec<i64>),
    Floats(Vec<f64>),
}

fn read(dtype: DType, bytes: &[u8]) -> Wide {
    macro_rules! numbers {
        ($kind:ident, $wide:ty, $number:ty, $convert:expr) => {
            Wide::$kind(
                bytes
                    .chunks_exact(std::mem::size_of::<$number>())
                    .map(|chunk| {
                        let chunk = chunk.try_into().expect("chunks have the number's size");
                        let convert: fn($number) -> $wide = $convert;
                        convert(<$number>::from_ne_bytes(chunk))
                    })
                    .collect(),
            )
        };
    }
    match dtype {
        DType::Bool | DType::U8 => numbers!(Integers, i64, u8, i64::from),
        DType::I8 => numbers!(Integers, i64, i8, i64::from),
        DType::U16 => numbers!(Integers, i64, u16, i64::from),
        DType::I16 => numbers!(Integers, i64, i16, i64::from),
        DType::U32 => numbers!(Integers, i64, u32, i64::from),
        DType::I32 => numbers!(Integers, i64, i32, i64::from),
        DType::U64 => numbers!(Integers, i64, u64, |number| number as i64),
        DType::I64 => numbers!(Integers, i64, i64, |number| number),
        DType::F16 => numbers!(Floats, f64, f16, f64::from),
        DType::BF16 => numbers!(Floats, f64, bf16, f64::from),
        DType::F32 => numbers!(Floats, f64, f32, f64::from),
        DType::F64 => numbers!(Floats, f64, f64, |number| number),
        DType::Bytes | DType::Text => Wide::Integers(Vec::new()),
    }
}

fn write_integers(dtype: DType, numbers: &[i64]) -> Vec<u8> {
    let mut out = Vec::with_capacity(numbers.len() * dtype.size().unwrap_or(0));
    for number in numbers {
        let bytes = number.to_le_bytes();
        match dtype {
            DType::Bool => out.push(u8::from(*number != 0)),
            // Dropping the high bytes is what a narrowing cast of an integer does.
            _ if cfg!(target_endian = "little") => {
                out.extend_from_slice(&bytes[..dtype.size().unwrap_or(0)]);
            }
            _ => {
                let size = dtype.size().unwrap_or(0);
                out.extend(bytes[..size].iter().rev());
            }
        }
    }
    out
}

fn write_floats(dtype: DType, numbers: impl Iterator<Item = f64>) -> Vec<u8> {
    let mut out = Vec::new();
    for number in numbers {
        match dtype {
            DType::Bool => out.push(u8::from(number != 0.0)),
            DType::U8 => out.push(number as u8),
            DType::I8 => out.extend((number as i8).to_ne_bytes()),
            DType::U16 => out.extend((number as u16).to_ne_bytes()),
            DType::I16 => out.extend((number as i16).to_ne_bytes()),
            DType::U32 => out.extend((number as u32).to_ne_bytes()),
            DType::I32 => out.extend((number as i32).to_ne_bytes()),
            DType::U64 => out.extend((number as u64).to_ne_bytes()),
            DType::I64 => out.extend((number as i64).to_ne_bytes()),
            DType::F16 => out.extend(f16::from_f64(number).to_ne_bytes()),
            DType::BF16 => out.extend(bf16::from_f64(number).to_ne_bytes()),
            DType::F32 => out.extend((number as f32).to_ne_bytes()),
            DType::F64 => out.extend(number.to_ne_bytes()),
            DType::Bytes | DType::Text => {}
        }
    }
    out
}

/// Casts numbers. With `scale`, integers that become floats are divided by the greatest value of
/// their type, and floats that become integers are multiplied by it, as torchvision's `to_dtype`.
pub(crate) fn cast_bytes(from: DType, to: DType, scale: bool, values: &[u8]) -> Vec<u8> {
    if from == to {
        return values.to_vec();
    }
    match read(from, values) {
        Wide::Integers(numbers) if to.is_float() => {
            let float = |number: i64| {
                if from == DType::U64 { number as u64 as f64 } else { number as f64 }
            };
            match from.max_value().filter(|_| scale) {
                // The product is rounded to single precision, where torchvision computes it.
                Some(max) if to != DType::F64 => {
                    let factor = (1.0 / max) as f32;
                    let scaled = |n: i64| f64::from(float(n) as f32 * factor);
                    write_floats(to, numbers.into_iter().map(scaled))
                }
                Some(max) => write_floats(to, numbers.into_iter().map(|n| float(n) * (1.0 / max))),
                None => write_floats(to, numbers.into_iter().map(float)),
            }
        }
        Wide::Integers(numbers) => write_integers(to, &numbers),
        Wide::Floats(numbers) => match to.max_value().filter(|_| scale) {
            // A little less than the next integer, so that 1.0 becomes the greatest value.
            Some(max) => {
                let factor = (max + 1.0 - 1e-3) as f32;
                write_floats(to, numbers.into_iter().map(|n| f64::from(n as f32 * factor)))
            }
            None => write_floats(to, numbers.into_iter()),
        },
    }
}

/// Normalises interleaved channels; 8-bit values in one multiplication and one addition.
pub(crate) fn normalize_bytes(
    dtype: DType,
    values: &[u8],
    affine: &Affine,
    channels: usize,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(values.len() * 4);
    if dtype == DType::U8 {
        for (at, value) in values.iter().enumerate() {
            let channel = at % channels;
            let result = f32::from(*value) * affine.scale[channel] + affine.bias[channel];
            out.extend(result.to_ne_bytes());
        }
        return out;
    }
    for (at, chunk) in values.chunks_exact(4).enumerate() {
        let value = f32::from_ne_bytes(chunk.try_into().expect("chunks of four"));
        let channel = at % channels;
        out.extend(((value - affine.mean[channel]) / affine.std[channel]).to_ne_bytes());
    }
    out
}

/// The integers of a tensor; `None` if it has others.
pub(crate) fn to_i64(tensor: &Tensor) -> Option<Vec<i64>> {
    match read(tensor.dtype(), tensor.data()) {
        Wide::Integers(numbers) if tensor.dtype().size().is_some() => Some(numbers),
        _ => None,
    }
}

/// The numbers of a tensor as floats; `None` if it holds none.
pub(crate) fn to_f64(tensor: &Tensor) -> Option<Vec<f64>> {
    tensor.dtype().size()?;
    match read(tensor.dtype(), tensor.data()) {
        Wide::Integers(numbers) => Some(numbers.into_iter().map(|number| number as f64).collect()),
        Wide::Floats(numbers) => Some(numbers),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cast<A: feedline_core::Element, B: feedline_core::Element>(
        values: &[A],
        scale: bool,
    ) -> Vec<B> {
        let tensor = Tensor::from_slice(&[values.len()], values);
        let bytes = cast_bytes(A::DTYPE, B::DTYPE, scale, tensor.data());
        let result =
            Tensor::new(B::DTYPE, &[values.len()], feedline_core::Buffer::from(&bytes[..]))
                .unwrap();
        result.as_slice::<B>().unwrap().to_vec()
    }

    #[test]
    fn casts_follow_the_usual_rules() {
        assert_eq!(cast::<u8, f32>(&[0, 255, 51], true), [0.0, 1.0, 51.0 * (1.0 / 255.0)]);
        assert_eq!(cast::<u8, i64>(&[200], false), [200]);
        assert_eq!(cast::<i64, u8>(&[300, -1], false), [44, 255]);
        assert_eq!(cast::<f32, i32>(&[-1.7, 2.9, f32::NAN], false), [-1, 2, 0]);
        assert_eq!(cast::<f32, u8>(&[0.0, 0.5, 1.0], true), [0, 127, 255]);
        assert_eq!(cast::<u64, f64>(&[u64::MAX], false), [u64::MAX as f64]);
        assert_eq!(cast::<i64, u64>(&[-1], false), [u64::MAX]);
        assert_eq!(cast::<f32, f16>(&[1.0009765], false), [f16::from_f32(1.0009765)]);
    }
}
