//! From encoded bytes to 8-bit pixels: JPEG through libjpeg-turbo, decoding only what is needed; the rest through `image`.
//!
//! ```text
//! bytes ──probe──► Header (format, size, orientation)      nothing is decoded, nothing large is allocated
//!   └──Decoder::decode_region(wanted)──► Pixels that hold at least `wanted`, bit-equal to a full decode
//! ```
//!
//! A record is bad exactly if [`Decoder::decode_region`] says so for the region that is needed, in every place alike.

pub(crate) mod arrow;
mod jpeg;
pub(crate) mod nifti;
pub(crate) mod npy;
mod other;
pub(crate) mod zip;

pub use jpeg::{Subsampling, encode_jpeg};

use crate::kernel::{Pixels, Rect};

/// Why bytes did not become pixels.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// This record is damaged, or no picture at all.
    #[error("{0}")]
    Corrupt(String),
    /// The picture is larger than is allowed.
    #[error("{0}")]
    Limit(String),
    /// The picture may be sound, but is of a kind that is not read here.
    #[error("{0}")]
    Unsupported(String),
}

/// A picture format that is recognised by its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// JPEG, baseline or progressive.
    Jpeg,
    /// Portable network graphics.
    Png,
    /// WebP, lossy or lossless; the first frame if it moves.
    WebP,
    /// Windows bitmap.
    Bmp,
    /// GIF; the first frame if it moves.
    Gif,
    /// TIFF; the first page.
    Tiff,
}

impl Format {
    /// What the first bytes say.
    fn of(bytes: &[u8]) -> Option<Format> {
        match bytes {
            [0xFF, 0xD8, 0xFF, ..] => Some(Format::Jpeg),
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1A, b'\n', ..] => Some(Format::Png),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Format::WebP),
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some(Format::Gif),
            [b'I', b'I', 42, 0, ..] | [b'M', b'M', 0, 42, ..] => Some(Format::Tiff),
            // Two letters are weak evidence: the four reserved bytes of the header must be zero, too.
            [b'B', b'M', _, _, _, _, 0, 0, 0, 0, ..] => Some(Format::Bmp),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Format::Jpeg => "jpeg",
            Format::Png => "png",
            Format::WebP => "webp",
            Format::Bmp => "bmp",
            Format::Gif => "gif",
            Format::Tiff => "tiff",
        }
    }
}

/// What is known of a picture before it is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// How it is encoded.
    pub format: Format,
    /// Columns as stored, before the orientation is applied.
    pub width: usize,
    /// Rows as stored, before the orientation is applied.
    pub height: usize,
    /// EXIF orientation, 1 to 8; 1 if there is none or it is nonsense.
    pub orientation: u8,
    /// Whether it is a progressive JPEG, which must be read to its end whatever is needed of it.
    pub progressive: bool,
}

impl Header {
    /// Width and height after the orientation is applied.
    pub fn oriented_size(&self) -> (usize, usize) {
        if self.orientation >= 5 { (self.height, self.width) } else { (self.width, self.height) }
    }
}

/// The largest picture that is decoded, so that a few hostile bytes cannot claim all memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most columns, and most rows.
    pub max_side: usize,
    /// Most pixels.
    pub max_pixels: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_side: 16_384, max_pixels: 64 << 20 }
    }
}

/// Recognises the format by content and reads the size without decoding.
///
/// # Errors
///
/// [`CodecError::Corrupt`] if the bytes are no picture or their header is damaged, [`CodecError::Limit`] if the
/// picture is larger than `limits`, [`CodecError::Unsupported`] for a kind that is not read.
pub fn probe(bytes: &[u8], limits: &Limits) -> Result<Header, CodecError> {
    if bytes.is_empty() {
        return Err(CodecError::Corrupt("the record is empty".into()));
    }
    let format = Format::of(bytes).ok_or_else(|| {
        let start: Vec<String> = bytes.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        CodecError::Corrupt(format!(
            "not a picture of a known format: it starts with {}",
            start.join(" ")
        ))
    })?;
    let header = match format {
        Format::Jpeg => jpeg::probe(bytes)?,
        _ => other::probe(bytes, format)?,
    };
    let Header { width, height, .. } = header;
    if width == 0 || height == 0 {
        return Err(CodecError::Corrupt(format!(
            "{}: a picture of {width}x{height} has no pixels",
            format.name()
        )));
    }
    if width > limits.max_side || height > limits.max_side {
        let side = limits.max_side;
        return Err(CodecError::Limit(format!(
            "{}: {width}x{height} is more than {side} pixels to a side",
            format.name()
        )));
    }
    if width.saturating_mul(height) > limits.max_pixels {
        let most = limits.max_pixels;
        return Err(CodecError::Limit(format!(
            "{}: {width}x{height} is more than {most} pixels",
            format.name()
        )));
    }
    Ok(header)
}

/// What a picture is decoded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Red, green, blue; grey is replicated, alpha dropped.
    Rgb,
    /// One channel.
    Gray,
}

/// Pixels, and which part of the picture they are.
#[derive(Clone, Copy, Debug)]
pub struct Decoded<'a> {
    /// The pixels.
    pub pixels: Pixels<'a>,
    /// What of the stored picture they hold: at least what was wanted.
    pub region: Rect,
}

/// Decodes one picture after the other into memory that it keeps; one per thread.
#[derive(Debug, Default)]
pub struct Decoder {
    jpeg: Option<jpeg::Handle>,
    buffer: Buffer,
    raw: Vec<u8>,
}

impl Decoder {
    /// A decoder that has allocated nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Decodes at least `wanted` of the stored picture, which is not turned upright.
    ///
    /// A baseline JPEG is decoded only where needed, to RGBX (four bytes) or one channel, and the pixels of `wanted` equal
    /// those of a full decode. Other pictures are decoded in full: JPEG to RGBX, the rest to three channels, or to one.
    ///
    /// # Errors
    ///
    /// [`CodecError::Corrupt`] if what is needed is damaged, even where a lenient decoder could guess.
    ///
    /// # Panics
    ///
    /// If `wanted` is empty or not inside the picture.
    pub fn decode_region(
        &mut self,
        bytes: &[u8],
        header: &Header,
        mode: Mode,
        wanted: Rect,
    ) -> Result<Decoded<'_>, CodecError> {
        assert!(
            wanted.width > 0
                && wanted.height > 0
                && Rect::whole(header.width, header.height).contains(&wanted),
            "{wanted:?} is not a part of a picture of {}x{}",
            header.width,
            header.height
        );
        if header.format != Format::Jpeg {
            return self.decode_other(bytes, header, mode);
        }
        let task =
            jpeg::Task { mode, padded: true, wanted: Some(wanted), denominator: 1, lenient: false };
        self.decode_jpeg(bytes, header, &task)
    }

    /// Decodes the whole picture without gaps between rows, to three channels or one; it is not turned upright.
    ///
    /// `lenient` accepts the pixels that libjpeg made up for damaged ones: for a caller who took the verdict of
    /// [`decode_region`](Self::decode_region) and knows that nothing damaged is needed.
    ///
    /// # Errors
    ///
    /// [`CodecError::Corrupt`] if the picture is damaged or, if `lenient`, beyond decoding.
    pub fn decode_full(
        &mut self,
        bytes: &[u8],
        header: &Header,
        mode: Mode,
        lenient: bool,
    ) -> Result<Decoded<'_>, CodecError> {
        if header.format != Format::Jpeg {
            return self.decode_other(bytes, header, mode);
        }
        let task = jpeg::Task { mode, padded: false, wanted: None, denominator: 1, lenient };
        self.decode_jpeg(bytes, header, &task)
    }

    /// Decodes the whole of a JPEG at a half, a quarter or an eighth of its size, rounded up; RGBX or one channel.
    ///
    /// The pixels are those of a smaller inverse transform: quicker than decoding and resizing, and not as exact.
    ///
    /// # Errors
    ///
    /// As [`decode_region`](Self::decode_region); [`CodecError::Unsupported`] if the picture is no JPEG.
    ///
    /// # Panics
    ///
    /// If `denominator` is not 1, 2, 4 or 8.
    pub fn decode_scaled(
        &mut self,
        bytes: &[u8],
        header: &Header,
        mode: Mode,
        denominator: usize,
    ) -> Result<Decoded<'_>, CodecError> {
        assert!(
            matches!(denominator, 1 | 2 | 4 | 8),
            "a scale is 1/1, 1/2, 1/4 or 1/8, not 1/{denominator}"
        );
        if header.format != Format::Jpeg {
            return Err(CodecError::Unsupported(format!(
                "{}: only jpeg is decoded at a smaller scale",
                header.format.name()
            )));
        }
        let task = jpeg::Task { mode, padded: true, wanted: None, denominator, lenient: false };
        self.decode_jpeg(bytes, header, &task)
    }

    fn decode_jpeg(
        &mut self,
        bytes: &[u8],
        header: &Header,
        task: &jpeg::Task,
    ) -> Result<Decoded<'_>, CodecError> {
        // An error leaves the decompressor in the middle of its file, and later ones would suffer
        // from it: it is kept only if all went well.
        let mut handle = match self.jpeg.take() {
            Some(handle) => handle,
            None => jpeg::Handle::new()?,
        };
        let decoded = handle.decode(bytes, header, task, &mut self.buffer)?;
        self.jpeg = Some(handle);
        Ok(decoded)
    }

    fn decode_other(
        &mut self,
        bytes: &[u8],
        header: &Header,
        mode: Mode,
    ) -> Result<Decoded<'_>, CodecError> {
        let out = other::decode(bytes, header, mode, &mut self.raw, &mut self.buffer)?;
        let channels = if mode == Mode::Rgb { 3 } else { 1 };
        let pixels = Pixels::packed(out, header.width, header.height, channels);
        Ok(Decoded { pixels, region: Rect::whole(header.width, header.height) })
    }
}

/// Memory for decoded pixels that is kept, but not for ever at the size of the largest picture.
#[derive(Debug, Default)]
struct Buffer {
    bytes: Vec<u8>,
}

impl Buffer {
    /// A buffer above this many bytes is given back once a far smaller one would do.
    const GENEROUS: usize = 32 << 20;

    /// `len` bytes; what they hold is left over from before.
    fn sized(&mut self, len: usize) -> &mut [u8] {
        let wasteful = self.bytes.len() > Self::GENEROUS && len < self.bytes.len() / 8;
        if self.bytes.len() < len || wasteful {
            // Freed first, so that old and new are never held together.
            self.bytes = Vec::new();
            self.bytes = vec![0; len];
        }
        &mut self.bytes[..len]
    }
}

/// Turns stored pixels upright as EXIF orientation `orientation` says; returns the new width and height.
///
/// `out` is replaced by the upright pixels without gaps; RGBX becomes RGB. Any orientation outside 2 to 8 copies.
pub fn orient(pixels: Pixels<'_>, orientation: u8, out: &mut Vec<u8>) -> (usize, usize) {
    let channels = pixels.channels_out();
    out.clear();
    out.resize(pixels.width * pixels.height * channels, 0);
    match channels {
        1 => turn::<1>(pixels, orientation, out),
        _ => turn::<3>(pixels, orientation, out),
    }
}

fn turn<const N: usize>(pixels: Pixels<'_>, orientation: u8, out: &mut [u8]) -> (usize, usize) {
    let Pixels { data, width, height, stride, channels } = pixels;
    let (out_width, out_height) =
        if (5..=8).contains(&orientation) { (height, width) } else { (width, height) };
    let (right, bottom) = (width - 1, height - 1);
    let out = out.as_chunks_mut::<N>().0;
    for (y, row) in out.chunks_exact_mut(out_width).enumerate() {
        for (x, pixel) in row.iter_mut().enumerate() {
            // Where in the stored picture the upright pixel (x, y) comes from.
            let (from_x, from_y) = match orientation {
                2 => (right - x, y),
                3 => (right - x, bottom - y),
                4 => (x, bottom - y),
                5 => (y, x),
                6 => (y, bottom - x),
                7 => (right - y, bottom - x),
                8 => (right - y, x),
                _ => (x, y),
            };
            pixel.copy_from_slice(&data[from_y * stride + from_x * channels..][..N]);
        }
    }
    (out_width, out_height)
}

#[cfg(test)]
mod tests {
    use super::jpeg::tests::{Random, picture};
    use super::*;

    #[test]
    fn what_is_no_picture_is_said_to_be_none() {
        let limits = Limits::default();
        assert_eq!(probe(b"", &limits), Err(CodecError::Corrupt("the record is empty".into())));
        let text = probe(b"hello, world", &limits).unwrap_err().to_string();
        assert_eq!(text, "not a picture of a known format: it starts with 68 65 6c 6c 6f 2c 20 77");
        let starts: [&[u8]; 9] = [
            b"",
            b"BM",
            b"\xFF\xD8\xFF",
            b"\x89PNG\r\n\x1A\n",
            b"RIFF\0\0\0\0WEBP",
            b"GIF89a",
            b"II*\0",
            b"MM\0*",
            b"BM\0\0\0\0\0\0\0\0",
        ];
        let mut random = Random(3);
        for _ in 0..5000 {
            let mut garbage = starts[random.below(starts.len())].to_vec();
            garbage.extend(
                (0..random.below(200))
                    .map(|_| [0, 255, 216, random.below(256) as u8][random.below(4)]),
            );
            if let Ok(header) = probe(&garbage, &limits) {
                let _ = Decoder::new().decode_full(&garbage, &header, Mode::Rgb, true);
            }
        }
    }

    #[test]
    fn a_picture_that_is_too_large_is_refused_before_it_is_decoded() {
        let mut bytes = encode_jpeg(&picture(16, 16), 16, 16, 80, Subsampling::S444).unwrap();
        let frame = bytes.windows(2).position(|window| window == [0xFF, 0xC0]).unwrap();
        let mut sized = |height: u16, width: u16| {
            bytes[frame + 5..frame + 7].copy_from_slice(&height.to_be_bytes());
            bytes[frame + 7..frame + 9].copy_from_slice(&width.to_be_bytes());
            probe(&bytes, &Limits::default())
        };
        assert!(matches!(sized(60_000, 60_000), Err(CodecError::Limit(_))));
        assert!(matches!(sized(16_000, 16_000), Err(CodecError::Limit(_))));
        assert!(matches!(sized(0, 16), Err(CodecError::Corrupt(_))));
        assert!(matches!(sized(16, 0), Err(CodecError::Corrupt(_))));
        assert!(sized(16, 16).is_ok());
        let small = Limits { max_side: 15, max_pixels: 1 << 20 };
        assert!(matches!(probe(&bytes, &small), Err(CodecError::Limit(_))));
    }

    #[test]
    fn every_orientation_is_turned_upright() {
        // Stored: two rows of three.   0 1 2
        //                              3 4 5
        let data = [0, 1, 2, 3, 4, 5];
        let expected: [(u8, (usize, usize), [u8; 6]); 8] = [
            (1, (3, 2), [0, 1, 2, 3, 4, 5]),
            (2, (3, 2), [2, 1, 0, 5, 4, 3]),
            (3, (3, 2), [5, 4, 3, 2, 1, 0]),
            (4, (3, 2), [3, 4, 5, 0, 1, 2]),
            (5, (2, 3), [0, 3, 1, 4, 2, 5]),
            (6, (2, 3), [3, 0, 4, 1, 5, 2]),
            (7, (2, 3), [5, 2, 4, 1, 3, 0]),
            (8, (2, 3), [2, 5, 1, 4, 0, 3]),
        ];
        for (orientation, size, upright) in expected {
            let mut out = Vec::new();
            assert_eq!(orient(Pixels::packed(&data, 3, 2, 1), orientation, &mut out), size);
            assert_eq!(out, upright, "orientation {orientation}");
            let rgbx: Vec<u8> =
                data.iter().flat_map(|&value| [value, value + 10, value + 20, 99]).collect();
            assert_eq!(orient(Pixels::packed(&rgbx, 3, 2, 4), orientation, &mut out), size);
            let colour: Vec<u8> =
                upright.iter().flat_map(|&value| [value, value + 10, value + 20]).collect();
            assert_eq!(out, colour, "orientation {orientation}");
        }
    }

    #[test]
    fn a_decoder_can_move_to_another_thread() {
        fn assert_send<T: Send>() {}
        assert_send::<Decoder>();
    }
}
