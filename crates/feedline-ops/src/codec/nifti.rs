//! The header of NIfTI files, versions 1 and 2: type, shape, scale and spacing of a scan.

use feedline_core::{DType, Shape};

/// How a scan lies in its file. Its first axis runs fastest.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Header {
    /// The type of its numbers.
    pub dtype: DType,
    /// Whether their bytes come the other way round than on this machine.
    pub swapped: bool,
    /// Its extent along each axis.
    pub shape: Shape,
    /// Where its numbers begin.
    pub offset: usize,
    /// What numbers are multiplied by and what is added then, if that changes them.
    pub rescale: Option<(f64, f64)>,
    /// Distance of voxels along the first three axes.
    pub spacing: [f32; 3],
}

/// Bytes that hold a header of either version.
pub(crate) const LENGTH: usize = 540;
/// Headers and extensions beyond this are refused.
const LONGEST: u64 = 16 << 20;

/// The numbers of a header, in whichever byte order.
struct Fields<'a> {
    bytes: &'a [u8],
    big: bool,
}

impl Fields<'_> {
    fn take<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        // Callers have checked that the whole header is there.
        bytes.copy_from_slice(&self.bytes[at..at + N]);
        if self.big {
            bytes.reverse();
        }
        bytes
    }

    fn i16(&self, at: usize) -> i64 {
        i64::from(i16::from_le_bytes(self.take(at)))
    }

    fn i64(&self, at: usize) -> i64 {
        i64::from_le_bytes(self.take(at))
    }

    fn f32(&self, at: usize) -> f64 {
        f64::from(f32::from_le_bytes(self.take(at)))
    }

    fn f64(&self, at: usize) -> f64 {
        f64::from_le_bytes(self.take(at))
    }
}

/// Reads the header out of the first bytes of a file.
///
/// # Errors
///
/// If it is damaged, or of a kind that is not read here.
pub(crate) fn header(start: &[u8]) -> Result<Header, String> {
    let first = start.get(..4).ok_or("it is empty, or ends within its header")?;
    let (wide, big) = match first {
        [0x5C, 1, 0, 0] => (false, false),
        [0, 0, 1, 0x5C] => (false, true),
        [0x1C, 2, 0, 0] => (true, false),
        [0, 0, 2, 0x1C] => (true, true),
        _ => {
            return Err("it is no NIfTI file: it does not begin with the length of a header".into());
        }
    };
    if start.len() < if wide { 540 } else { 348 } {
        return Err("it ends within its header".into());
    }
    let fields = Fields { bytes: start, big };
    let magic = if wide { &start[4..8] } else { &start[344..348] };
    match magic {
        b"n+1\0" | b"n+2\0" => {}
        b"ni1\0" | b"ni2\0" => {
            return Err("its numbers lie in another file (.hdr and .img); only .nii is read".into());
        }
        _ => return Err("it is no NIfTI file: the letters n+1 or n+2 are missing".into()),
    }
    let dims: Vec<i64> = (0..8)
        .map(|at| if wide { fields.i64(16 + 8 * at) } else { fields.i16(40 + 2 * at) })
        .collect();
    if !(1..=7).contains(&dims[0]) {
        return Err(format!("its header is damaged: {} dimensions", dims[0]));
    }
    let mut shape = Shape::new();
    for side in &dims[1..=dims[0] as usize] {
        let side = usize::try_from(*side)
            .map_err(|_| format!("its header is damaged: an extent of {side}"))?;
        shape.push(side);
    }
    let code = if wide { fields.i16(12) } else { fields.i16(70) };
    let dtype = dtype(code)?;
    let element = dtype.size().unwrap_or(1);
    let sides = shape.iter().map(|side| (*side).max(1));
    if sides.clone().try_fold(element, usize::checked_mul).is_none() {
        return Err(format!("a scan of shape {:?} is larger than all memory", &shape[..]));
    }
    let offset = if wide { fields.i64(168) as f64 } else { fields.f32(108) };
    let least = if wide { 540.0 } else { 348.0 };
    // Files that say 0 have their numbers right after the header and its four bytes of extension.
    let offset = if offset == 0.0 { least + 4.0 } else { offset };
    if !(least..=LONGEST as f64).contains(&offset) || offset.fract() != 0.0 {
        return Err(format!("its header is damaged: its numbers begin at {offset}"));
    }
    let (slope, inter) =
        if wide { (fields.f64(176), fields.f64(184)) } else { (fields.f32(112), fields.f32(116)) };
    let rescale = rescale(slope, inter)?;
    // Of the last three axes, which are a volume's.
    let before = shape.len().saturating_sub(3);
    let spacing = std::array::from_fn(|at| {
        let at = before + at + 1;
        (if wide { fields.f64(104 + 8 * at) } else { fields.f32(76 + 4 * at) }) as f32
    });
    let swapped = big != cfg!(target_endian = "big") && element > 1;
    Ok(Header { dtype, swapped, shape, offset: offset as usize, rescale, spacing })
}

/// Slope and intercept, if they change anything. A slope of 0, or none, means neither.
fn rescale(slope: f64, inter: f64) -> Result<Option<(f64, f64)>, String> {
    if slope == 0.0 || !slope.is_finite() {
        return Ok(None);
    }
    if !inter.is_finite() {
        return Err(format!("its header is damaged: {inter} is to be added to its numbers"));
    }
    Ok((slope != 1.0 || inter != 0.0).then_some((slope, inter)))
}

fn dtype(code: i64) -> Result<DType, String> {
    Ok(match code {
        2 => DType::U8,
        4 => DType::I16,
        8 => DType::I32,
        16 => DType::F32,
        64 => DType::F64,
        256 => DType::I8,
        512 => DType::U16,
        768 => DType::U32,
        1024 => DType::I64,
        1280 => DType::U64,
        other => {
            let what = match other {
                1 => "single bits",
                32 | 1792 | 2048 => "complex numbers",
                128 | 2304 => "colours",
                1536 => "float128 numbers",
                _ => return Err(format!("its header is damaged: there is no datatype {other}")),
            };
            return Err(format!(
                "it holds {what} (datatype {other}); only whole and floating-point numbers are read"
            ));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one() -> Vec<u8> {
        let mut bytes = vec![0; 352];
        bytes[..4].copy_from_slice(&348i32.to_le_bytes());
        for (at, side) in [3i16, 4, 5, 6].into_iter().enumerate() {
            bytes[40 + 2 * at..42 + 2 * at].copy_from_slice(&side.to_le_bytes());
        }
        bytes[70..72].copy_from_slice(&4i16.to_le_bytes());
        for (at, step) in [1f32, 0.5, 0.75, 3.0].into_iter().enumerate() {
            bytes[76 + 4 * at..80 + 4 * at].copy_from_slice(&step.to_le_bytes());
        }
        bytes[108..112].copy_from_slice(&352f32.to_le_bytes());
        bytes[344..348].copy_from_slice(b"n+1\0");
        bytes
    }

    #[test]
    fn a_header_says_type_shape_and_spacing() {
        let found = header(&one()).unwrap();
        assert_eq!(
            (found.dtype, &found.shape[..], found.offset),
            (DType::I16, &[4, 5, 6][..], 352)
        );
        assert_eq!((found.spacing, found.rescale), ([0.5, 0.75, 3.0], None));
        let mut scaled = one();
        scaled[112..116].copy_from_slice(&2f32.to_le_bytes());
        scaled[116..120].copy_from_slice(&(-1f32).to_le_bytes());
        assert_eq!(header(&scaled).unwrap().rescale, Some((2.0, -1.0)));
    }

    #[test]
    fn damage_never_panics_and_is_named() {
        let whole = one();
        for cut in 0..348 {
            assert!(header(&whole[..cut]).is_err(), "{cut}");
        }
        let with = |at: usize, bytes: &[u8]| {
            let mut file = one();
            file[at..at + bytes.len()].copy_from_slice(bytes);
            header(&file).unwrap_err()
        };
        assert!(with(70, &32i16.to_le_bytes()).contains("complex"));
        assert!(with(70, &128i16.to_le_bytes()).contains("colours"));
        assert!(with(40, &9i16.to_le_bytes()).contains("9 dimensions"));
        assert!(with(42, &(-2i16).to_le_bytes()).contains("extent"));
        assert!(with(344, b"ni1\0").contains("another file"));
        assert!(with(108, &1e20f32.to_le_bytes()).contains("begin at"));
        let mut state = 5u32;
        for _ in 0..20_000 {
            let mut bytes = whole.clone();
            for _ in 0..3 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let at = (state >> 8) as usize % bytes.len();
                bytes[at] = (state >> 24) as u8;
            }
            let _ = header(&bytes);
        }
    }
}
