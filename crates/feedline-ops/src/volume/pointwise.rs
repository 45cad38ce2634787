//! Changes of every number of a volume by itself: the plain meaning, and the fast way.

use crate::kernel::{Level, noise::normal_into};
use crate::table::cast_bytes;
use feedline_core::DType;

/// A change of every number by itself.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Pointwise {
    /// Another dtype, scaled to its range or not.
    Cast(DType, bool),
    /// `(x - mean) / std` in `float32`.
    Normalize { mean: f32, std: f32 },
    /// No less than `low` and no more than `high`; what is no number stays so.
    Clip { low: f64, high: f64 },
    /// Times a factor, in the number's own dtype.
    Scale(f64),
    /// Plus noise, in the number's own dtype.
    Noise(Noise),
}

/// Normally distributed noise: a pure function of its key and the element's number.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Noise {
    /// The key of its numbers.
    pub key: [u32; 2],
    /// Mean.
    pub mean: f32,
    /// Standard deviation.
    pub sigma: f32,
    /// Which number belongs to the first element.
    pub first: i64,
    /// By how much the number grows from one element to the next along the axes; the last is 1 or -1.
    pub strides: [i64; 4],
}

impl Noise {
    /// The noise of `count` elements along the last axis, from the one with number `number` on.
    fn row<'a>(&self, level: Level, number: i64, count: usize, out: &'a mut Vec<f32>) -> &'a [f32] {
        out.resize(count, 0.0);
        // Rows that were mirrored since count downwards.
        let backwards = self.strides[3] < 0;
        let first = if backwards { number - (count as i64 - 1) } else { number };
        normal_into(level, self.key, first as u64, out);
        if backwards {
            out.reverse();
        }
        for value in out.iter_mut() {
            *value = self.mean + self.sigma * *value;
        }
        out
    }
}

impl Pointwise {
    /// The dtype after it.
    pub(crate) fn output(&self, input: DType) -> DType {
        match self {
            Self::Cast(dtype, _) => *dtype,
            Self::Normalize { .. } => DType::F32,
            Self::Clip { .. } | Self::Scale(_) | Self::Noise(_) => input,
        }
    }

    /// Applies it to numbers of `dtype`, giving bytes of its output dtype. `number` is that of the
    /// first element in its noise.
    pub(crate) fn apply(&self, dtype: DType, values: &[u8], number: i64, level: Level) -> Vec<u8> {
        let count = values.len() / dtype.size().unwrap_or(1);
        match self {
            Self::Cast(to, scale) => cast_bytes(dtype, *to, *scale, values),
            Self::Normalize { mean, std } => {
                let single = cast_bytes(dtype, DType::F32, false, values);
                each_f32(&single, |value, _| (value - mean) / std)
            }
            Self::Clip { low, high } if dtype.is_integer() => {
                clip_integers(dtype, values, *low, *high)
            }
            Self::Clip { low, high } => in_floats(
                dtype,
                values,
                |value, _| clip(value, *low as f32, *high as f32),
                |value, _| {
                    if value < *low {
                        *low
                    } else if value > *high {
                        *high
                    } else {
                        value
                    }
                },
            ),
            Self::Scale(factor) => in_floats(
                dtype,
                values,
                |value, _| value * *factor as f32,
                |value, _| value * factor,
            ),
            Self::Noise(noise) => {
                let mut row = Vec::new();
                let row = noise.row(level, number, count, &mut row);
                let plus = |value: f64, at: usize| value + f64::from(row[at]);
                in_floats(dtype, values, |value, at| value + row[at], plus)
            }
        }
    }

    /// Applies a change that leaves `float32` as it is.
    fn apply_in_place(&self, values: &mut [f32], number: i64, spare: &mut Vec<f32>) {
        match self {
            Self::Cast(..) => {}
            Self::Normalize { mean, std } => {
                for value in values {
                    *value = (*value - mean) / std;
                }
            }
            Self::Clip { low, high } => {
                let (low, high) = (*low as f32, *high as f32);
                for value in values {
                    *value = clip(*value, low, high);
                }
            }
            Self::Scale(factor) => {
                let factor = *factor as f32;
                for value in values {
                    *value *= factor;
                }
            }
            Self::Noise(noise) => {
                let row = noise.row(Level::best(), number, values.len(), spare);
                for (value, noise) in values.iter_mut().zip(row) {
                    *value += noise;
                }
            }
        }
    }
}

fn clip(value: f32, low: f32, high: f32) -> f32 {
    let value = if value < low { low } else { value };
    if value > high { high } else { value }
}

fn each_f32(bytes: &[u8], change: impl Fn(f32, usize) -> f32) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    for (at, chunk) in bytes.chunks_exact(4).enumerate() {
        let value = f32::from_ne_bytes(chunk.try_into().expect("chunks of four"));
        out.extend(change(value, at).to_ne_bytes());
    }
    out
}

/// Changes floats: those of double precision as they are, all others in single precision.
fn in_floats(
    dtype: DType,
    values: &[u8],
    single: impl Fn(f32, usize) -> f32,
    double: impl Fn(f64, usize) -> f64,
) -> Vec<u8> {
    if dtype != DType::F64 {
        let wide = cast_bytes(dtype, DType::F32, false, values);
        return cast_bytes(DType::F32, dtype, false, &each_f32(&wide, single));
    }
    let mut out = Vec::with_capacity(values.len());
    for (at, chunk) in values.chunks_exact(8).enumerate() {
        let value = f64::from_ne_bytes(chunk.try_into().expect("chunks of eight"));
        out.extend(double(value, at).to_ne_bytes());
    }
    out
}

fn clip_integers(dtype: DType, values: &[u8], low: f64, high: f64) -> Vec<u8> {
    // Bounds outside of the type's range are its own.
    let most = dtype.max_value().unwrap_or(0.0);
    let signed = matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64);
    let least = if signed { -most - 1.0 } else { 0.0 };
    let (low, high) = (low.clamp(least, most), high.clamp(least, most));
    if dtype == DType::U64 {
        let (low, high) = (low as u64, high as u64);
        let numbers = values.chunks_exact(8).map(|chunk| {
            u64::from_ne_bytes(chunk.try_into().expect("chunks of eight")).max(low).min(high)
        });
        return numbers.flat_map(u64::to_ne_bytes).collect();
    }
    let (low, high) = (low as i64, high as i64);
    let wide = cast_bytes(dtype, DType::I64, false, values);
    let numbers = wide.chunks_exact(8).map(|chunk| {
        i64::from_ne_bytes(chunk.try_into().expect("chunks of eight")).max(low).min(high)
    });
    let wide: Vec<u8> = numbers.flat_map(i64::to_ne_bytes).collect();
    cast_bytes(DType::I64, dtype, false, &wide)
}

/// What the fast way reuses from row to row.
#[derive(Default)]
pub(crate) struct Spare {
    singles: Vec<f32>,
    noise: Vec<f32>,
}

/// Applies all changes, one after another, to one run of numbers while it lies in the cache.
///
/// `numbers` are those of the first element in the noise of each change.
pub(crate) fn apply_all(
    changes: &[Pointwise],
    dtype: DType,
    values: &[u8],
    numbers: &[i64],
    out: &mut [u8],
    spare: &mut Spare,
) {
    let Spare { singles, noise } = spare;
    let mut rest = changes.iter().zip(numbers.iter().copied()).peekable();
    let (mut dtype, mut bytes) = (dtype, std::borrow::Cow::Borrowed(values));
    while let Some((change, number)) = rest.peek().copied() {
        let widens =
            matches!(change, Pointwise::Cast(DType::F32, false) | Pointwise::Normalize { .. });
        if (dtype == DType::F32 || widens) && change.output(dtype) == DType::F32 {
            // From here on in single precision, as far as the changes stay there.
            to_singles(dtype, &bytes, singles);
            while let Some((change, number)) =
                rest.next_if(|(change, _)| change.output(DType::F32) == DType::F32)
            {
                change.apply_in_place(singles, number, noise);
            }
            if rest.peek().is_none() {
                from_singles(singles, out);
                return;
            }
            let mut next = vec![0; singles.len() * 4];
            from_singles(singles, &mut next);
            (dtype, bytes) = (DType::F32, next.into());
            continue;
        }
        if change.output(dtype) != dtype || !matches!(change, Pointwise::Cast(..)) {
            bytes = change.apply(dtype, &bytes, number, Level::best()).into();
            dtype = change.output(dtype);
        }
        rest.next();
    }
    out.copy_from_slice(&bytes);
}

/// Applies changes to `float32` numbers where they lie, if they all leave them `float32`.
pub(crate) fn apply_singles(
    changes: &[Pointwise],
    values: &mut [f32],
    numbers: &[i64],
    spare: &mut Spare,
) {
    for (change, number) in changes.iter().zip(numbers) {
        change.apply_in_place(values, *number, &mut spare.noise);
    }
}

fn to_singles(dtype: DType, bytes: &[u8], out: &mut Vec<f32>) {
    macro_rules! widen {
        ($number:ty) => {
            out.extend(
                bytes.chunks_exact(std::mem::size_of::<$number>()).map(|chunk| {
                    <$number>::from_ne_bytes(chunk.try_into().expect("its size")) as f32
                }),
            )
        };
    }
    out.clear();
    match dtype {
        DType::Bool | DType::U8 => widen!(u8),
        DType::I8 => widen!(i8),
        DType::U16 => widen!(u16),
        DType::I16 => widen!(i16),
        DType::U32 => widen!(u32),
        DType::I32 => widen!(i32),
        DType::F32 => widen!(f32),
        DType::F64 => widen!(f64),
        _ => {
            let wide = cast_bytes(dtype, DType::F32, false, bytes);
            to_singles(DType::F32, &wide, out);
        }
    }
}

fn from_singles(values: &[f32], out: &mut [u8]) {
    for (to, value) in out.chunks_exact_mut(4).zip(values) {
        to.copy_from_slice(&value.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fast_way_gives_the_bits_of_the_plain_one() {
        use DType::{Bool, F16, F32, F64, I16, I64, U8, U64};
        let noise = |back: bool| {
            let strides = [100, 100, 20, if back { -1 } else { 1 }];
            Pointwise::Noise(Noise { key: [3, 4], mean: 0.5, sigma: 0.25, first: 0, strides })
        };
        let normalize = Pointwise::Normalize { mean: 101.0, std: 76.9 };
        let clip = Pointwise::Clip { low: -79.0, high: 30.0 };
        let cast = |dtype| Pointwise::Cast(dtype, false);
        let chains = [
            vec![normalize.clone(), noise(false)],
            vec![clip.clone(), normalize.clone(), Pointwise::Scale(1.7), noise(true), cast(F16)],
            vec![cast(F32), clip.clone(), cast(I16), clip.clone(), normalize],
            vec![cast(F64), Pointwise::Scale(1.9), noise(false), clip.clone(), cast(F32)],
            vec![cast(F16), Pointwise::Scale(1.9), noise(true), clip],
            vec![cast(Bool), cast(I64), cast(U8), cast(U8)],
        ];
        let bytes: Vec<u8> = (0..8 * 37u32).map(|at| (at * 151 % 256) as u8).collect();
        for chain in &chains {
            for start in [U8, I16, F32, F64, U64, F16] {
                let values = &bytes[..start.size().unwrap() * 37];
                let (mut dtype, mut wanted) = (start, values.to_vec());
                for change in chain {
                    if matches!(change, Pointwise::Scale(_) | Pointwise::Noise(_))
                        && !dtype.is_float()
                    {
                        continue;
                    }
                    wanted = change.apply(dtype, &wanted, 50, Level::Scalar);
                    dtype = change.output(dtype);
                }
                let mut floats = start;
                let fits: Vec<Pointwise> = chain
                    .iter()
                    .filter(|change| {
                        let fits = !matches!(change, Pointwise::Scale(_) | Pointwise::Noise(_))
                            || floats.is_float();
                        floats = change.output(floats);
                        fits
                    })
                    .cloned()
                    .collect();
                let mut out = vec![0; wanted.len()];
                let numbers = vec![50; fits.len()];
                apply_all(&fits, start, values, &numbers, &mut out, &mut Spare::default());
                let same = out == wanted || dtype == F32 && nan_equal(&out, &wanted);
                assert!(same, "{start} {fits:?}");
            }
        }
    }

    /// Bits of what is no number may differ.
    fn nan_equal(a: &[u8], b: &[u8]) -> bool {
        let number = |chunk: &[u8]| f32::from_ne_bytes(chunk.try_into().unwrap());
        a.chunks(4)
            .zip(b.chunks(4))
            .all(|(a, b)| a == b || number(a).is_nan() && number(b).is_nan())
    }

    #[test]
    fn clipping_keeps_what_is_no_number_and_knows_the_range_of_integers() {
        let clip = Pointwise::Clip { low: -1.0, high: 300.0 };
        let floats = [f32::NAN, -5.0, 0.5, 1e9].map(f32::to_ne_bytes).concat();
        let out = clip.apply(DType::F32, &floats, 0, Level::Scalar);
        assert!(f32::from_ne_bytes(out[..4].try_into().unwrap()).is_nan());
        assert_eq!(out[4..], [-1.0f32, 0.5, 300.0].map(f32::to_ne_bytes).concat());
        assert_eq!(clip.apply(DType::U8, &[0, 255], 0, Level::Scalar), [0, 255]);
        let wide = [-7i16, 299, 301].map(i16::to_ne_bytes).concat();
        let wanted = [-1i16, 299, 300].map(i16::to_ne_bytes).concat();
        assert_eq!(clip.apply(DType::I16, &wide, 0, Level::Scalar), wanted);
    }
}
