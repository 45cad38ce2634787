//! What the elements of a tensor are.

use half::{bf16, f16};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The type of a tensor's elements.
///
/// Names are NumPy's (`float32`), with the short forms Rust uses (`f32`) accepted as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DType {
    /// Truth value, one byte, 0 or 1.
    Bool,
    /// 8-bit unsigned integer.
    U8,
    /// 8-bit signed integer.
    I8,
    /// 16-bit unsigned integer.
    U16,
    /// 16-bit signed integer.
    I16,
    /// 32-bit unsigned integer.
    U32,
    /// 32-bit signed integer.
    I32,
    /// 64-bit unsigned integer.
    U64,
    /// 64-bit signed integer.
    I64,
    /// 16-bit IEEE float.
    F16,
    /// 16-bit brain float.
    BF16,
    /// 32-bit IEEE float.
    F32,
    /// 64-bit IEEE float.
    F64,
    /// A run of bytes of any length.
    Bytes,
    /// UTF-8 text of any length.
    Text,
}

const NAMES: [(DType, &str, &str); 15] = [
    (DType::Bool, "bool", "bool"),
    (DType::U8, "uint8", "u8"),
    (DType::I8, "int8", "i8"),
    (DType::U16, "uint16", "u16"),
    (DType::I16, "int16", "i16"),
    (DType::U32, "uint32", "u32"),
    (DType::I32, "int32", "i32"),
    (DType::U64, "uint64", "u64"),
    (DType::I64, "int64", "i64"),
    (DType::F16, "float16", "f16"),
    (DType::BF16, "bfloat16", "bf16"),
    (DType::F32, "float32", "f32"),
    (DType::F64, "float64", "f64"),
    (DType::Bytes, "bytes", "bytes"),
    (DType::Text, "text", "str"),
];

impl DType {
    /// The type of a number, by which types are told apart in bytes: `dtype as u8` gives it.
    #[must_use]
    pub fn numbered(number: u8) -> Option<Self> {
        NAMES.get(usize::from(number)).map(|row| row.0)
    }

    /// The type that holds the numbers of both: the same, or the least of whole numbers.
    #[must_use]
    pub fn common(self, other: Self) -> Option<Self> {
        use DType::{I8, I16, I32, I64, U8, U16, U32, U64};
        if self == other {
            return Some(self);
        }
        // Each holds those before it in its list.
        let unsigned = [U8, U16, U32, U64];
        let signed = [I8, I16, I32, I64];
        let place = |list: &[Self], dtype| list.iter().position(|known| *known == dtype);
        match (place(&unsigned, self), place(&unsigned, other)) {
            (Some(a), Some(b)) => return Some(unsigned[a.max(b)]),
            // A signed type holds the unsigned ones of half its size.
            (Some(a), None) => return signed.get((a + 1).max(place(&signed, other)?)).copied(),
            (None, Some(b)) => return signed.get((b + 1).max(place(&signed, self)?)).copied(),
            (None, None) => {}
        }
        Some(signed[place(&signed, self)?.max(place(&signed, other)?)])
    }

    /// Bytes per element, or `None` where every element has a length of its own.
    #[must_use]
    pub const fn size(self) -> Option<usize> {
        Some(match self {
            Self::Bool | Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 | Self::F16 | Self::BF16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
            Self::Bytes | Self::Text => return None,
        })
    }

    /// NumPy's name of the type.
    #[must_use]
    pub fn name(self) -> &'static str {
        NAMES[self as usize].1
    }

    /// Whether elements are floating-point numbers.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::BF16 | Self::F32 | Self::F64)
    }

    /// Whether elements are integers (truth values are not).
    #[must_use]
    pub const fn is_integer(self) -> bool {
        matches!(
            self,
            Self::U8
                | Self::I8
                | Self::U16
                | Self::I16
                | Self::U32
                | Self::I32
                | Self::U64
                | Self::I64
        )
    }

    /// The greatest value of an integer type, as a scale for pixel values (255 for `uint8`).
    #[must_use]
    pub const fn max_value(self) -> Option<f64> {
        Some(match self {
            Self::U8 => 255.0,
            Self::I8 => 127.0,
            Self::U16 => 65_535.0,
            Self::I16 => 32_767.0,
            Self::U32 => 4_294_967_295.0,
            Self::I32 => 2_147_483_647.0,
            Self::U64 => u64::MAX as f64,
            Self::I64 => i64::MAX as f64,
            _ => return None,
        })
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        NAMES
            .iter()
            .find(|(_, long, short)| text == *long || text == *short)
            .map(|row| row.0)
            .ok_or_else(|| {
                let known: Vec<_> = NAMES.iter().map(|row| row.1).collect();
                format!("unknown dtype {text:?}; known are {}", known.join(", "))
            })
    }
}

impl TryFrom<String> for DType {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<DType> for String {
    fn from(dtype: DType) -> Self {
        dtype.name().to_owned()
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that can be the element of a tensor.
pub trait Element: Copy + Send + Sync + sealed::Sealed + 'static {
    /// The dtype of this element.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),* $(,)?) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust { const DTYPE: DType = DType::$dtype; }
    )*};
}

elements! {
    u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64,
    f16 => F16, bf16 => BF16, f32 => F32, f64 => F64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_have_a_common_type() {
        use DType::{Bool, F32, I8, I16, I32, I64, U8, U16, U32, U64};
        assert_eq!(U8.common(U16), Some(U16));
        assert_eq!(U8.common(I8), Some(I16));
        assert_eq!(I16.common(U8), Some(I16));
        assert_eq!(U32.common(I32), Some(I64));
        assert_eq!(I8.common(I64), Some(I64));
        assert_eq!(F32.common(F32), Some(F32));
        for (one, other) in [(U64, I8), (F32, U8), (Bool, U8)] {
            assert_eq!((one.common(other), other.common(one)), (None, None));
        }
    }

    #[test]
    fn every_name_reads_back() {
        for (dtype, long, short) in NAMES {
            assert_eq!(long.parse(), Ok(dtype));
            assert_eq!(short.parse(), Ok(dtype));
            assert_eq!(dtype.name(), long);
        }
        assert!("float33".parse::<DType>().unwrap_err().contains("float32"));
    }
}
