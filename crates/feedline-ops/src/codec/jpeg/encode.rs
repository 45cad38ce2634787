//! Making JPEGs.

use super::Handle;
use crate::codec::CodecError;
use std::os::raw::c_int;
use std::ptr::NonNull;
use turbojpeg_sys as tj;

/// How a JPEG stores colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subsampling {
    /// Colour at full size.
    S444,
    /// Colour at half the width.
    S422,
    /// Colour at half the width and half the height.
    S420,
    /// Colour at half the height.
    S440,
    /// Colour at a quarter of the width.
    S411,
    /// No colour.
    Gray,
}

/// Encodes RGB pixels without gaps as a baseline JPEG: for tests, demonstrations and fixtures.
///
/// # Errors
///
/// [`CodecError::Limit`] if a side is zero or more than a JPEG can hold, or memory is short.
///
/// # Panics
///
/// If `rgb` is not `width * height * 3` bytes long.
pub fn encode_jpeg(
    rgb: &[u8],
    width: usize,
    height: usize,
    quality: u8,
    subsampling: Subsampling,
) -> Result<Vec<u8>, CodecError> {
    encode(rgb, width, height, quality, subsampling, &[])
}

pub(super) fn encode(
    rgb: &[u8],
    width: usize,
    height: usize,
    quality: u8,
    subsampling: Subsampling,
    more: &[(tj::TJPARAM, c_int)],
) -> Result<Vec<u8>, CodecError> {
    if !(1..=65_500).contains(&width) || !(1..=65_500).contains(&height) {
        return Err(CodecError::Limit(format!("jpeg: cannot hold {width}x{height} pixels")));
    }
    assert_eq!(rgb.len(), width * height * 3, "a picture of {width}x{height} in RGB");
    let failed = || CodecError::Limit("jpeg: no memory to encode".into());
    // SAFETY: no requirements; the result is checked.
    let raw = NonNull::new(unsafe { tj::tj3Init(tj::TJINIT_TJINIT_COMPRESS as c_int) })
        .ok_or_else(failed)?;
    let mut handle = Handle { raw };
    handle.set(tj::TJPARAM_TJPARAM_QUALITY, c_int::from(quality.clamp(1, 100)));
    let sampling = match subsampling {
        Subsampling::S444 => tj::TJSAMP_TJSAMP_444,
        Subsampling::S422 => tj::TJSAMP_TJSAMP_422,
        Subsampling::S420 => tj::TJSAMP_TJSAMP_420,
        Subsampling::S440 => tj::TJSAMP_TJSAMP_440,
        Subsampling::S411 => tj::TJSAMP_TJSAMP_411,
        Subsampling::Gray => tj::TJSAMP_TJSAMP_GRAY,
    };
    handle.set(tj::TJPARAM_TJPARAM_SUBSAMP, sampling);
    for &(parameter, value) in more {
        handle.set(parameter, value);
    }
    let (mut out, mut len) = (std::ptr::null_mut(), 0);
    // SAFETY: the handle is live; `rgb` has `height` rows of `width` pixels without gaps; `out` and `len` are ours.
    let result = unsafe {
        let format = tj::TJPF_TJPF_RGB as c_int;
        tj::tj3Compress8(
            raw.as_ptr(),
            rgb.as_ptr(),
            width as c_int,
            0,
            height as c_int,
            format,
            &mut out,
            &mut len,
        )
    };
    let encoded = if result == 0 && !out.is_null() {
        // SAFETY: on success `out` points to `len` bytes.
        Ok(unsafe { std::slice::from_raw_parts(out, len as usize) }.to_vec())
    } else {
        Err(failed())
    };
    // SAFETY: `out` is null or was allocated by libjpeg-turbo, and is not used again.
    unsafe { tj::tj3Free(out.cast()) };
    encoded
}
