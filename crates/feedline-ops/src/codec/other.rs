//! PNG, WebP, BMP, GIF and TIFF through the `image` crate, always in full.

use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};

use image::{ColorType, ImageDecoder, ImageError, ImageFormat, ImageReader};

use super::{Buffer, CodecError, Format, Header, Mode};

/// Reads size and orientation.
pub(super) fn probe(bytes: &[u8], format: Format) -> Result<Header, CodecError> {
    guarded(format, || {
        // Nothing but headers and tables is allocated here.
        let mut decoder = decoder(bytes, format, 16 << 20)?;
        let (width, height) = decoder.dimensions();
        let orientation = decoder.orientation().map_or(1, image::metadata::Orientation::to_exif);
        Ok(Header {
            format,
            width: width as usize,
            height: height as usize,
            orientation,
            progressive: false,
        })
    })
}

/// Decodes the whole picture to three channels or one.
pub(super) fn decode<'a>(
    bytes: &[u8],
    header: &Header,
    mode: Mode,
    raw: &mut Vec<u8>,
    buffer: &'a mut Buffer,
) -> Result<&'a [u8], CodecError> {
    let format = header.format;
    let pixels = header.width * header.height;
    let out = buffer.sized(pixels * if mode == Mode::Rgb { 3 } else { 1 });
    guarded(format, || {
        // The widest pixel has 16 bytes, and decoders keep a copy or two.
        let decoder = decoder(bytes, format, 64 * pixels as u64 + (64 << 20))?;
        let (width, height) = decoder.dimensions();
        if (width as usize, height as usize) != (header.width, header.height) {
            return Err(CodecError::Corrupt(format!(
                "{}: the header is not that of these bytes",
                format.name()
            )));
        }
        let color = decoder.color_type();
        if color == ColorType::Rgb8 && mode == Mode::Rgb {
            return decoder.read_image(out).map_err(|error| explain(format, &error));
        }
        raw.clear();
        raw.resize(decoder.total_bytes() as usize, 0);
        decoder.read_image(raw).map_err(|error| explain(format, &error))?;
        match color {
            ColorType::L8 => spread::<1, 1>(raw, false, mode, out),
            ColorType::La8 => spread::<2, 1>(raw, false, mode, out),
            ColorType::Rgb8 => spread::<3, 1>(raw, true, mode, out),
            ColorType::Rgba8 => spread::<4, 1>(raw, true, mode, out),
            ColorType::L16 => spread::<2, 2>(raw, false, mode, out),
            ColorType::La16 => spread::<4, 2>(raw, false, mode, out),
            ColorType::Rgb16 => spread::<6, 2>(raw, true, mode, out),
            ColorType::Rgba16 => spread::<8, 2>(raw, true, mode, out),
            other => {
                return Err(CodecError::Unsupported(format!(
                    "{}: pixels of {other:?} are not read",
                    format.name()
                )));
            }
        }
        Ok(())
    })?;
    Ok(out)
}

/// Turns pixels of `SIZE` bytes, `WIDE` bytes to a value, into 8-bit colour or grey; alpha is dropped.
fn spread<const SIZE: usize, const WIDE: usize>(
    raw: &[u8],
    color: bool,
    mode: Mode,
    out: &mut [u8],
) {
    // Of 16 bits in the machine's order the upper eight are kept.
    let upper = if cfg!(target_endian = "little") { WIDE - 1 } else { 0 };
    let pixels = raw.as_chunks::<SIZE>().0.iter();
    let value = |pixel: &[u8; SIZE], channel: usize| {
        pixel[if color { channel * WIDE + upper } else { upper }]
    };
    match mode {
        Mode::Rgb => {
            for (pixel, out) in pixels.zip(out.as_chunks_mut::<3>().0) {
                *out = [value(pixel, 0), value(pixel, 1), value(pixel, 2)];
            }
        }
        Mode::Gray if !color => {
            for (pixel, out) in pixels.zip(out) {
                *out = value(pixel, 0);
            }
        }
        Mode::Gray => {
            for (pixel, out) in pixels.zip(out) {
                *out = grey([value(pixel, 0), value(pixel, 1), value(pixel, 2)]);
            }
        }
    }
}

/// libpng's grey with torchvision's weights, 0.2989 and 0.587, in 15 bits, cut.
fn grey([r, g, b]: [u8; 3]) -> u8 {
    let (red, green) = (29_890 * 32_768 / 100_000, 58_700 * 32_768 / 100_000);
    let blue = 32_768 - red - green;
    ((red * u32::from(r) + green * u32::from(g) + blue * u32::from(b)) >> 15) as u8
}

fn decoder(
    bytes: &[u8],
    format: Format,
    memory: u64,
) -> Result<impl ImageDecoder + '_, CodecError> {
    let kind = match format {
        Format::Png => ImageFormat::Png,
        Format::WebP => ImageFormat::WebP,
        Format::Bmp => ImageFormat::Bmp,
        Format::Gif => ImageFormat::Gif,
        Format::Tiff => ImageFormat::Tiff,
        Format::Jpeg => {
            return Err(CodecError::Unsupported("jpeg: is read by another decoder".into()));
        }
    };
    let mut reader = ImageReader::with_format(Cursor::new(bytes), kind);
    let mut limits = image::Limits::no_limits();
    limits.max_alloc = Some(memory);
    reader.limits(limits);
    reader.into_decoder().map_err(|error| explain(format, &error))
}

fn explain(format: Format, error: &ImageError) -> CodecError {
    let text = error.to_string();
    let mut letters = text.trim_end_matches('.').chars();
    let first = letters.next().map(|letter| letter.to_ascii_lowercase());
    let text: String = first.into_iter().chain(letters).collect();
    let text = format!("{}: {}", format.name(), text.replace('\n', " "));
    match error {
        ImageError::Unsupported(_) => CodecError::Unsupported(text),
        ImageError::Limits(_) => CodecError::Limit(text),
        _ => CodecError::Corrupt(text),
    }
}

/// A decoder that panics on hostile bytes has found a bad record; it must not end the run.
fn guarded<T>(format: Format, f: impl FnOnce() -> Result<T, CodecError>) -> Result<T, CodecError> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|_| {
        Err(CodecError::Corrupt(format!("{}: the decoder gave up in the middle", format.name())))
    })
}

#[cfg(test)]
mod tests {
    use super::super::jpeg::tests::picture;
    use super::super::{Decoder, Limits, probe as probe_any};
    use super::*;
    use crate::kernel::Rect;
    use image::{DynamicImage, ImageBuffer};

    fn encode(picture: &DynamicImage, format: ImageFormat) -> Vec<u8> {
        let mut bytes = Vec::new();
        picture.write_to(&mut Cursor::new(&mut bytes), format).unwrap();
        bytes
    }

    fn rgb() -> DynamicImage {
        DynamicImage::ImageRgb8(ImageBuffer::from_raw(37, 23, picture(37, 23)).unwrap())
    }

    const LOSSLESS: [(ImageFormat, Format); 4] = [
        (ImageFormat::Png, Format::Png),
        (ImageFormat::WebP, Format::WebP),
        (ImageFormat::Bmp, Format::Bmp),
        (ImageFormat::Tiff, Format::Tiff),
    ];

    #[test]
    fn lossless_formats_give_back_what_was_put_in() {
        let mut decoder = Decoder::new();
        for (kind, format) in LOSSLESS {
            let bytes = encode(&rgb(), kind);
            let header = probe_any(&bytes, &Limits::default()).unwrap();
            assert_eq!(
                header,
                Header { format, width: 37, height: 23, orientation: 1, progressive: false }
            );
            let wanted = Rect { x: 3, y: 4, width: 5, height: 6 };
            let decoded = decoder.decode_region(&bytes, &header, Mode::Rgb, wanted).unwrap();
            assert_eq!(decoded.region, Rect::whole(37, 23));
            assert_eq!(decoded.pixels.data, picture(37, 23), "{format:?}");
        }
    }

    #[test]
    fn a_gif_is_read() {
        let bytes = encode(&rgb(), ImageFormat::Gif);
        let header = probe_any(&bytes, &Limits::default()).unwrap();
        assert_eq!((header.format, header.width, header.height), (Format::Gif, 37, 23));
        let decoded = Decoder::new();
        let mut decoder = decoded;
        assert_eq!(
            decoder.decode_full(&bytes, &header, Mode::Rgb, false).unwrap().pixels.channels,
            3
        );
    }

    #[test]
    fn alpha_is_dropped_and_sixteen_bits_keep_the_upper_eight() {
        let mut decoder = Decoder::new();
        let rgba: Vec<u8> = (0..4 * 15).map(|i| (i * 17) as u8).collect();
        let wide: Vec<u16> = (0..3 * 15).map(|i| i * 1401).collect();
        let narrow: Vec<u8> = wide.iter().map(|&value| (value >> 8) as u8).collect();
        let pictures = [
            (DynamicImage::ImageRgba8(ImageBuffer::from_raw(5, 3, rgba.clone()).unwrap()), {
                rgba.chunks(4).flat_map(|pixel| pixel[..3].to_vec()).collect::<Vec<u8>>()
            }),
            (
                DynamicImage::ImageRgb16(ImageBuffer::from_raw(5, 3, wide.clone()).unwrap()),
                narrow.clone(),
            ),
            (
                DynamicImage::ImageLuma16(
                    ImageBuffer::from_raw(5, 3, wide[..15].to_vec()).unwrap(),
                ),
                { narrow[..15].iter().flat_map(|&value| [value; 3]).collect() },
            ),
        ];
        for (picture, expected) in pictures {
            let bytes = encode(&picture, ImageFormat::Png);
            let header = probe_any(&bytes, &Limits::default()).unwrap();
            let decoded = decoder.decode_full(&bytes, &header, Mode::Rgb, false).unwrap();
            assert_eq!(decoded.pixels.data, expected);
        }
    }

    #[test]
    fn grey_of_colour_is_about_the_luminance() {
        assert_eq!(grey([255, 255, 255]), 255);
        assert_eq!(grey([0, 0, 0]), 0);
        assert_eq!(grey([100, 100, 100]), 100);
        assert_eq!(grey([255, 0, 0]), 76);
    }

    #[test]
    fn a_file_cut_anywhere_never_panics() {
        let mut decoder = Decoder::new();
        for kind in [
            ImageFormat::Png,
            ImageFormat::WebP,
            ImageFormat::Bmp,
            ImageFormat::Gif,
            ImageFormat::Tiff,
        ] {
            let bytes = encode(&rgb(), kind);
            for length in 0..bytes.len() {
                let cut = &bytes[..length];
                let Ok(header) = probe_any(cut, &Limits::default()) else { continue };
                let _ = decoder.decode_full(cut, &header, Mode::Rgb, false);
            }
        }
    }
}
