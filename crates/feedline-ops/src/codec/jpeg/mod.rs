//! JPEG: our own scan of the header, and libjpeg-turbo behind a safe type.
//!
//! libjpeg goes on after damage and merely warns. Which warnings make a record bad is decided here, once:
//! all but junk between the segments of the header or before the end marker, which cost no pixel. libjpeg
//! reports only the first warning, so harmless causes in the header are mended in a copy, which is then decoded again.

use std::ffi::CStr;
use std::os::raw::c_int;
use std::ptr::NonNull;

use turbojpeg_sys as tj;

use super::{Buffer, CodecError, Decoded, Header, Mode};
use crate::kernel::{Pixels, Rect};

mod encode;
mod scan;

pub use encode::{Subsampling, encode_jpeg};
pub(super) use scan::probe;
use scan::{Scan, mended, scan};

/// Bytes that may be read, not used, beyond the last pixel: the kernels load vectors.
const PADDING: usize = 32;
/// Columns that are decoded at least: libjpeg upsamples very narrow pictures in another way.
const NARROW: usize = 32;
/// Scans of a progressive file; more are an attack on our time.
const MOST_SCANS: c_int = 500;

fn corrupt(what: &str) -> CodecError {
    CodecError::Corrupt(format!("jpeg: {what}"))
}

/// What to decode, and to what.
#[derive(Debug)]
pub(super) struct Task {
    pub mode: Mode,
    /// Four bytes per colour pixel instead of three.
    pub padded: bool,
    /// The part that is needed, if not all is.
    pub wanted: Option<Rect>,
    pub denominator: usize,
    /// Whether warnings are ignored.
    pub lenient: bool,
}

/// A decompressor of libjpeg-turbo.
#[derive(Debug)]
pub(super) struct Handle {
    raw: NonNull<std::ffi::c_void>,
}

// SAFETY: a decompressor belongs to no thread, and `&mut self` keeps two threads from using it at once.
unsafe impl Send for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: `raw` came from `tj3Init` and is destroyed only here.
        unsafe { tj::tj3Destroy(self.raw.as_ptr()) }
    }
}

/// How a call of libjpeg-turbo ended.
enum Outcome {
    Clean,
    Warned(String),
    Failed(String),
}

impl Handle {
    pub fn new() -> Result<Self, CodecError> {
        // SAFETY: no requirements; the result is checked.
        let raw = unsafe { tj::tj3Init(tj::TJINIT_TJINIT_DECOMPRESS as c_int) };
        let raw = NonNull::new(raw)
            .ok_or_else(|| CodecError::Limit("jpeg: no memory for a decompressor".into()))?;
        let mut handle = Self { raw };
        handle.set(tj::TJPARAM_TJPARAM_SCANLIMIT, MOST_SCANS);
        // Colour profiles are not used; reading them costs time and may warn.
        handle.set(tj::TJPARAM_TJPARAM_SAVEMARKERS, 0);
        Ok(handle)
    }

    fn set(&mut self, parameter: tj::TJPARAM, value: c_int) {
        // SAFETY: the handle is live.
        let result = unsafe { tj::tj3Set(self.raw.as_ptr(), parameter as c_int, value) };
        debug_assert_eq!(result, 0, "parameter {parameter} takes {value}");
    }

    fn get(&self, parameter: tj::TJPARAM) -> c_int {
        // SAFETY: the handle is live.
        unsafe { tj::tj3Get(self.raw.as_ptr(), parameter as c_int) }
    }

    fn outcome(&self, result: c_int) -> Outcome {
        if result == 0 {
            return Outcome::Clean;
        }
        // SAFETY: the handle is live; the text is a C string inside it, copied before the next call.
        let text =
            unsafe { CStr::from_ptr(tj::tj3GetErrorStr(self.raw.as_ptr())) }.to_string_lossy();
        let mut letters = text.trim_end_matches('.').chars();
        let first = letters.next().map(|letter| letter.to_ascii_lowercase());
        let text = first
            .into_iter()
            .chain(letters)
            .map(|letter| if letter == '\n' { ' ' } else { letter })
            .collect();
        // SAFETY: the handle is live.
        let code = unsafe { tj::tj3GetErrorCode(self.raw.as_ptr()) };
        if code == tj::TJERR_TJERR_WARNING as c_int {
            Outcome::Warned(text)
        } else {
            Outcome::Failed(text)
        }
    }

    /// Decodes what `task` says into `buffer`, and judges.
    pub fn decode<'a>(
        &mut self,
        bytes: &[u8],
        header: &Header,
        task: &Task,
        buffer: &'a mut Buffer,
    ) -> Result<Decoded<'a>, CodecError> {
        let scan = scan(bytes)?;
        if (scan.width, scan.height) != (header.width, header.height) {
            return Err(corrupt("the header is not that of these bytes"));
        }
        if !scan.complete {
            *self = Self::new()?;
        }
        let (layout, outcome) = self.decompress(bytes, &scan, task, buffer)?;
        match outcome {
            Outcome::Clean => {}
            Outcome::Failed(text) => return Err(corrupt(&text)),
            Outcome::Warned(_) if task.lenient => {}
            Outcome::Warned(text) if harmless_at_end(&text) => {}
            Outcome::Warned(text) if scan.junk || harmless_in_header(&text) => {
                // Something worse may hide behind the first warning.
                let copy = mended(bytes)?;
                let scan = self::scan(&copy)?;
                match self.decompress(&copy, &scan, task, buffer)?.1 {
                    Outcome::Clean => {}
                    Outcome::Warned(text) if harmless_at_end(&text) => {}
                    Outcome::Warned(text) | Outcome::Failed(text) => return Err(corrupt(&text)),
                }
            }
            Outcome::Warned(text) => return Err(corrupt(&text)),
        }
        Ok(layout.decoded(buffer, task))
    }

    /// One run of libjpeg. An error is one of ours: what libjpeg says is the outcome.
    fn decompress(
        &mut self,
        bytes: &[u8],
        scan: &Scan,
        task: &Task,
        buffer: &mut Buffer,
    ) -> Result<(Layout, Outcome), CodecError> {
        let raw = self.raw.as_ptr();
        let none = tj::tjregion { x: 0, y: 0, w: 0, h: 0 };
        let scale = tj::tjscalingfactor { num: 1, denom: task.denominator as c_int };
        // Region and scale outlive a picture: they are set for each.
        // SAFETY: the handle is live; `bytes` is readable for its length during the call.
        let result = unsafe {
            tj::tj3SetCroppingRegion(raw, none);
            tj::tj3SetScalingFactor(raw, scale);
            tj::tj3DecompressHeader(raw, bytes.as_ptr(), bytes.len() as _)
        };
        if let Outcome::Failed(text) = self.outcome(result) {
            return Err(corrupt(&text));
        }
        let size =
            (self.get(tj::TJPARAM_TJPARAM_JPEGWIDTH), self.get(tj::TJPARAM_TJPARAM_JPEGHEIGHT));
        if size != (scan.width as c_int, scan.height as c_int) {
            return Err(corrupt(&format!("libjpeg reads another size, {}x{}", size.0, size.1)));
        }
        let precision = self.get(tj::TJPARAM_TJPARAM_PRECISION);
        if precision > 8 {
            return Err(CodecError::Unsupported(format!(
                "jpeg: {precision} bits per value are not read"
            )));
        }
        let space = self.get(tj::TJPARAM_TJPARAM_COLORSPACE);
        let ink = space == tj::TJCS_TJCS_CMYK as c_int || space == tj::TJCS_TJCS_YCCK as c_int;

        let layout =
            Layout::new(scan, task, ink, task.wanted.filter(|_| self.croppable(scan, ink)));
        let (whole_width, whole_height) =
            (scan.width.div_ceil(task.denominator), scan.height.div_ceil(task.denominator));
        if layout.region != Rect::whole(whole_width, whole_height) {
            let Rect { x, y, width, height } = layout.region;
            let region = tj::tjregion {
                x: x as c_int,
                y: y as c_int,
                w: width as c_int,
                h: height as c_int,
            };
            // SAFETY: the handle is live and has read a header.
            let result = unsafe { tj::tj3SetCroppingRegion(raw, region) };
            if let Outcome::Failed(text) = self.outcome(result) {
                return Err(corrupt(&text));
            }
        }
        let out = buffer.sized(layout.bytes());
        // SAFETY: the handle is live; `bytes` is the stream whose header was just read, so that libjpeg writes the
        // rows of `layout.region`, each of `stride` bytes, of which `out` has as many.
        let result = unsafe {
            tj::tj3Decompress8(
                raw,
                bytes.as_ptr(),
                bytes.len() as _,
                out.as_mut_ptr(),
                layout.stride as c_int,
                layout.format as c_int,
            )
        };
        let outcome = self.outcome(result);
        if ink {
            layout.dissolve_ink(out, task);
        }
        Ok((layout, outcome))
    }

    /// Whether libjpeg can decode a region of the picture whose header it has read.
    fn croppable(&self, scan: &Scan, ink: bool) -> bool {
        let unit = match self.get(tj::TJPARAM_TJPARAM_SUBSAMP) {
            tj::TJSAMP_TJSAMP_444
            | tj::TJSAMP_TJSAMP_GRAY
            | tj::TJSAMP_TJSAMP_440
            | tj::TJSAMP_TJSAMP_441 => 8,
            tj::TJSAMP_TJSAMP_422 | tj::TJSAMP_TJSAMP_420 => 16,
            tj::TJSAMP_TJSAMP_411 => 32,
            _ => return false,
        };
        // All of a progressive file is read anyhow; an odd way to write the sampling makes libjpeg refuse.
        !scan.progressive
            && !ink
            && self.get(tj::TJPARAM_TJPARAM_LOSSLESS) == 0
            && unit == scan.unit
    }
}

/// Junk before the end marker: every pixel has been decoded.
fn harmless_at_end(warning: &str) -> bool {
    warning.contains("extraneous bytes before marker") && warning.ends_with("0xd9")
}

/// Oddities of the header that change no pixel.
fn harmless_in_header(warning: &str) -> bool {
    warning.contains("unknown JFIF revision") || warning.contains("nknown Adobe color transform")
}

/// Where decoded pixels lie.
#[derive(Debug)]
struct Layout {
    region: Rect,
    /// Bytes of a row as libjpeg writes it.
    stride: usize,
    format: tj::TJPF,
}

impl Layout {
    fn new(scan: &Scan, task: &Task, ink: bool, wanted: Option<Rect>) -> Self {
        let (format, size) = match (task.mode, ink, task.padded) {
            (_, true, _) => (tj::TJPF_TJPF_CMYK, 4),
            (Mode::Gray, ..) => (tj::TJPF_TJPF_GRAY, 1),
            (Mode::Rgb, _, true) => (tj::TJPF_TJPF_RGBX, 4),
            (Mode::Rgb, _, false) => (tj::TJPF_TJPF_RGB, 3),
        };
        let region = match wanted {
            Some(wanted) => region(scan, wanted),
            None => Rect::whole(
                scan.width.div_ceil(task.denominator),
                scan.height.div_ceil(task.denominator),
            ),
        };
        Self { region, stride: region.width * size, format }
    }

    fn bytes(&self) -> usize {
        self.region.height * self.stride + PADDING
    }

    /// Turns CMYK, inverted as Adobe writes it, into what the task asks for, with torchvision's roundings.
    fn dissolve_ink(&self, out: &mut [u8], task: &Task) {
        let inked = |ink: u8, key: u8| {
            let product = i32::from(key) * i32::from(255 - ink) + 128;
            (i32::from(key) - (((product >> 8) + product) >> 8)).clamp(0, 255)
        };
        let size = self.decoded_size(task);
        // A result is never longer than its source and is written after it was read: in place is safe.
        for i in 0..self.region.width * self.region.height {
            let [c, m, y, k] = [0, 1, 2, 3].map(|channel| out[i * 4 + channel]);
            let (r, g, b) = (inked(c, k), inked(m, k), inked(y, k));
            match task.mode {
                Mode::Gray => out[i] = ((r * 19_595 + g * 38_470 + b * 7_471 + 0x8000) >> 16) as u8,
                Mode::Rgb => out[i * size..][..3].copy_from_slice(&[r as u8, g as u8, b as u8]),
            }
        }
    }

    /// Bytes of a pixel in the end.
    fn decoded_size(&self, task: &Task) -> usize {
        match task.mode {
            Mode::Gray => 1,
            Mode::Rgb if task.padded => 4,
            Mode::Rgb => 3,
        }
    }

    fn decoded<'a>(&self, buffer: &'a Buffer, task: &Task) -> Decoded<'a> {
        let Rect { width, height, .. } = self.region;
        let channels = self.decoded_size(task);
        // Tightly packed pixels end with the last one; the kernels like to read beyond the others.
        let len = width * height * channels + if task.padded { PADDING } else { 0 };
        let pixels = Pixels {
            data: &buffer.bytes[..len],
            width,
            height,
            stride: width * channels,
            channels,
        };
        Decoded { pixels, region: self.region }
    }
}

/// The region to decode so that the pixels of `wanted` come out as in a full decode.
///
/// Upsampled colour at a region's edge lacks its neighbour: one more column on either side makes up for it. The left
/// edge is moved to an iMCU. Rows need no margin: libjpeg decodes the context it needs.
fn region(scan: &Scan, wanted: Rect) -> Rect {
    let right = (wanted.x + wanted.width + 1).max(NARROW).min(scan.width);
    let left = wanted.x.saturating_sub(1).min(right.saturating_sub(NARROW)) / scan.unit * scan.unit;
    Rect { x: left, y: wanted.y, width: right - left, height: wanted.height }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::{Decoder, Limits, probe as probe_any};
    use super::encode::encode;
    use super::*;

    pub(in super::super) struct Random(pub u64);

    impl Random {
        pub fn below(&mut self, limit: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 11) as usize % limit
        }

        fn part(&mut self, width: usize, height: usize) -> Rect {
            let (w, h) = if self.below(3) == 0 {
                (1 + self.below(width.min(4)), 1 + self.below(height.min(4)))
            } else {
                (1 + self.below(width), 1 + self.below(height))
            };
            Rect {
                x: self.below(width - w + 1),
                y: self.below(height - h + 1),
                width: w,
                height: h,
            }
        }
    }

    /// Gradients, edges and noise.
    pub(in super::super) fn picture(width: usize, height: usize) -> Vec<u8> {
        let mut random = Random(99);
        let mut rgb = Vec::with_capacity(width * height * 3);
        for y in 0..height {
            for x in 0..width {
                let noise = random.below(60);
                let edge = if (x / 13 + y / 9) % 2 == 0 { 90 } else { 0 };
                rgb.extend([
                    (x * 3 + noise) as u8,
                    (y * 2 + edge + noise) as u8,
                    ((x + y) * 2 + edge) as u8,
                ]);
            }
        }
        rgb
    }

    const ALL: [Subsampling; 6] = [
        Subsampling::S444,
        Subsampling::S422,
        Subsampling::S420,
        Subsampling::S440,
        Subsampling::S411,
        Subsampling::Gray,
    ];

    fn crop(decoded: &Decoded<'_>, part: Rect) -> Vec<u8> {
        let Decoded { pixels, region } = decoded;
        let mut out = Vec::new();
        for y in part.y..part.y + part.height {
            for x in part.x..part.x + part.width {
                let at = (y - region.y) * pixels.stride + (x - region.x) * pixels.channels;
                out.extend_from_slice(&pixels.data[at..at + pixels.channels_out()]);
            }
        }
        out
    }

    #[test]
    fn a_region_equals_that_part_of_a_full_decode() {
        let mut random = Random(1);
        let (mut full, mut part) = (Decoder::new(), Decoder::new());
        for subsampling in ALL {
            for (width, height) in [(1, 1), (7, 5), (33, 17), (40, 90), (131, 77), (250, 180)] {
                let rgb = picture(width, height);
                for more in [
                    &[][..],
                    &[(tj::TJPARAM_TJPARAM_RESTARTBLOCKS, 3)],
                    &[(tj::TJPARAM_TJPARAM_PROGRESSIVE, 1)],
                ] {
                    let bytes = encode(&rgb, width, height, 85, subsampling, more).unwrap();
                    let header = probe_any(&bytes, &Limits::default()).unwrap();
                    assert_eq!((header.width, header.height), (width, height));
                    for mode in [Mode::Rgb, Mode::Gray] {
                        let expected = full.decode_full(&bytes, &header, mode, false).unwrap();
                        for _ in 0..40 {
                            let wanted = random.part(width, height);
                            let decoded =
                                part.decode_region(&bytes, &header, mode, wanted).unwrap();
                            assert!(decoded.region.contains(&wanted));
                            let equal = crop(&decoded, wanted) == crop(&expected, wanted);
                            assert!(
                                equal,
                                "{subsampling:?} {width}x{height} {mode:?} {more:?} {wanted:?} {:?}",
                                decoded.region
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_small_region_is_all_that_is_decoded() {
        let bytes = encode_jpeg(&picture(400, 300), 400, 300, 90, Subsampling::S420).unwrap();
        let header = probe_any(&bytes, &Limits::default()).unwrap();
        let wanted = Rect { x: 100, y: 50, width: 60, height: 40 };
        let region =
            Decoder::new().decode_region(&bytes, &header, Mode::Rgb, wanted).unwrap().region;
        assert_eq!(region, Rect { x: 96, y: 50, width: 65, height: 40 });
    }

    #[test]
    fn a_decoder_forgets_region_and_scale() {
        let bytes = encode_jpeg(&picture(100, 80), 100, 80, 90, Subsampling::S420).unwrap();
        let header = probe_any(&bytes, &Limits::default()).unwrap();
        let mut decoder = Decoder::new();
        let expected =
            decoder.decode_full(&bytes, &header, Mode::Rgb, false).unwrap().pixels.data.to_vec();
        let small = decoder.decode_scaled(&bytes, &header, Mode::Rgb, 8).unwrap();
        assert_eq!((small.pixels.width, small.pixels.height), (13, 10));
        let wanted = Rect { x: 50, y: 50, width: 9, height: 9 };
        decoder.decode_region(&bytes, &header, Mode::Gray, wanted).unwrap();
        assert_eq!(
            decoder.decode_full(&bytes, &header, Mode::Rgb, false).unwrap().pixels.data,
            expected
        );
    }

    #[test]
    fn a_file_cut_anywhere_never_panics_and_is_bad_where_pixels_are_missing() {
        let bytes = encode_jpeg(&picture(40, 30), 40, 30, 80, Subsampling::S420).unwrap();
        let header = probe_any(&bytes, &Limits::default()).unwrap();
        let mut decoder = Decoder::new();
        for length in 0..bytes.len() {
            let cut = &bytes[..length];
            let Ok(found) = probe_any(cut, &Limits::default()) else { continue };
            assert_eq!(found, header);
            let whole = Rect::whole(40, 30);
            assert!(
                decoder.decode_region(cut, &found, Mode::Rgb, whole).is_err(),
                "cut at {length}"
            );
            let _ = decoder.decode_full(cut, &found, Mode::Gray, true);
        }
    }

    #[test]
    fn damage_below_the_region_is_not_seen() {
        let bytes = encode_jpeg(&picture(200, 200), 200, 200, 80, Subsampling::S444).unwrap();
        let header = probe_any(&bytes, &Limits::default()).unwrap();
        let cut = &bytes[..bytes.len() / 2];
        let mut decoder = Decoder::new();
        let top = Rect { x: 0, y: 0, width: 200, height: 20 };
        let bottom = Rect { x: 0, y: 180, width: 200, height: 20 };
        decoder.decode_region(cut, &header, Mode::Rgb, top).unwrap();
        let error = decoder.decode_region(cut, &header, Mode::Rgb, bottom).unwrap_err();
        assert_eq!(error, CodecError::Corrupt("jpeg: premature end of JPEG file".into()));
        assert!(decoder.decode_full(cut, &header, Mode::Rgb, false).is_err());
        decoder.decode_full(cut, &header, Mode::Rgb, true).unwrap();
        decoder.decode_region(&bytes, &header, Mode::Rgb, bottom).unwrap();
    }

    #[test]
    fn junk_in_the_header_is_harmless_and_hides_nothing() {
        let rgb = picture(90, 70);
        let bytes = encode_jpeg(&rgb, 90, 70, 80, Subsampling::S420).unwrap();
        let header = probe_any(&bytes, &Limits::default()).unwrap();
        let mut decoder = Decoder::new();
        let whole = Rect::whole(90, 70);
        let expected =
            decoder.decode_region(&bytes, &header, Mode::Rgb, whole).unwrap().pixels.data.to_vec();
        let first = 4 + (usize::from(bytes[4]) << 8 | usize::from(bytes[5]));
        let junky = [&bytes[..first], b"junk", &bytes[first..]].concat();
        assert_eq!(probe_any(&junky, &Limits::default()).unwrap(), header);
        assert_eq!(
            decoder.decode_region(&junky, &header, Mode::Rgb, whole).unwrap().pixels.data,
            expected
        );
        let cut = &junky[..junky.len() * 3 / 4];
        assert!(decoder.decode_region(cut, &header, Mode::Rgb, whole).is_err());
        let mut late = bytes.clone();
        let end = late.len() - 2;
        late.splice(end..end, *b"abc");
        assert_eq!(
            decoder.decode_region(&late, &header, Mode::Rgb, whole).unwrap().pixels.data,
            expected
        );
    }

    #[test]
    fn an_unknown_revision_of_jfif_is_harmless() {
        let mut bytes = encode_jpeg(&picture(30, 30), 30, 30, 80, Subsampling::S420).unwrap();
        let at = bytes.windows(5).position(|window| window == b"JFIF\0").unwrap();
        bytes[at + 5] = 7;
        let header = probe_any(&bytes, &Limits::default()).unwrap();
        Decoder::new().decode_region(&bytes, &header, Mode::Rgb, Rect::whole(30, 30)).unwrap();
    }

    #[test]
    fn damaged_entropy_data_is_bad_or_decodes_but_never_panics() {
        let bytes = encode_jpeg(&picture(64, 64), 64, 64, 90, Subsampling::S422).unwrap();
        let mut random = Random(5);
        let mut decoder = Decoder::new();
        let mut bad = 0;
        for _ in 0..500 {
            let mut damaged = bytes.clone();
            for _ in 0..1 + random.below(4) {
                let at = 2 + random.below(damaged.len() - 2);
                damaged[at] = random.below(256) as u8;
            }
            let Ok(header) = probe_any(&damaged, &Limits::default()) else { continue };
            let whole = Rect::whole(header.width, header.height);
            bad += usize::from(decoder.decode_region(&damaged, &header, Mode::Rgb, whole).is_err());
            let _ = decoder.decode_full(&damaged, &header, Mode::Rgb, true);
        }
        assert!(bad > 20, "only {bad} of 500 were found bad");
    }

    fn with_exif(bytes: &[u8], exif: &[u8]) -> Vec<u8> {
        let length = (exif.len() + 8) as u16;
        [&bytes[..2], &[0xFF, 0xE1], &length.to_be_bytes(), b"Exif\0\0", exif, &bytes[2..]].concat()
    }

    pub(in super::super) fn exif(value: u16, little: bool) -> Vec<u8> {
        let short = |value: u16| if little { value.to_le_bytes() } else { value.to_be_bytes() };
        let long = |value: u32| if little { value.to_le_bytes() } else { value.to_be_bytes() };
        let start: &[u8] = if little { b"II\x2A\0" } else { b"MM\0\x2A" };
        // Two entries, of which the second is the orientation.
        let mut exif = [start, &long(8), &short(2)].concat();
        exif.extend([short(0x0100), short(3)].concat());
        exif.extend([long(1).as_slice(), &short(5), &short(0)].concat());
        exif.extend([short(0x0112), short(3)].concat());
        exif.extend([long(1).as_slice(), &short(value), &short(0)].concat());
        exif
    }

    #[test]
    fn orientation_is_read_in_both_byte_orders_and_nonsense_is_one() {
        let bytes = encode_jpeg(&picture(20, 10), 20, 10, 80, Subsampling::S444).unwrap();
        for little in [false, true] {
            for value in 0..12 {
                let header =
                    probe_any(&with_exif(&bytes, &exif(value, little)), &Limits::default())
                        .unwrap();
                let sound = if (1..=8).contains(&value) { value as u8 } else { 1 };
                assert_eq!(header.orientation, sound);
                assert_eq!(header.oriented_size(), if sound >= 5 { (10, 20) } else { (20, 10) });
            }
        }
    }

    #[test]
    fn hostile_exif_is_ignored() {
        let bytes = encode_jpeg(&picture(20, 10), 20, 10, 80, Subsampling::S444).unwrap();
        let sound = exif(6, true);
        let mut random = Random(8);
        for length in 0..sound.len() {
            probe_any(&with_exif(&bytes, &sound[..length]), &Limits::default()).unwrap();
        }
        for _ in 0..2000 {
            let mut hostile = sound.clone();
            for _ in 0..3 {
                let at = random.below(hostile.len());
                hostile[at] = [0, 255, random.below(256) as u8][random.below(3)];
            }
            let header = probe_any(&with_exif(&bytes, &hostile), &Limits::default()).unwrap();
            assert!((1..=8).contains(&header.orientation));
        }
    }

    #[test]
    fn grey_becomes_three_equal_channels() {
        let bytes = encode_jpeg(&picture(50, 40), 50, 40, 80, Subsampling::Gray).unwrap();
        let header = probe_any(&bytes, &Limits::default()).unwrap();
        let mut decoder = Decoder::new();
        let grey =
            decoder.decode_full(&bytes, &header, Mode::Gray, false).unwrap().pixels.data.to_vec();
        let rgb = decoder.decode_full(&bytes, &header, Mode::Rgb, false).unwrap();
        assert!(rgb.pixels.data.chunks(3).zip(&grey).all(|(pixel, &grey)| pixel == [grey; 3]));
    }
}
