//! The arithmetic on pixels: crop, resize, flip, change of type and layout, fused into one pass over a picture.
//!
//! ```text
//! source rows ──horizontal──► u8 rows ──vertical──► u8 values ──tone──► out (HWC or CHW)
//!  (u8, 1/3/4 channels)       (a few, in cache)     (never stored as f32 picture)
//! ```
//!
//! The meaning is that of PyTorch's 8-bit resize, which torchvision uses: the horizontal pass rounds to 8 bits,
//! then the vertical pass does. `scalar` is the definition; `avx2` yields the same bits sooner. This module knows
//! no other part of Feedline.

pub mod color;
pub mod components;
pub mod noise;

#[cfg(target_arch = "x86_64")]
mod avx2;
mod rows;
mod scalar;
mod weights;

use std::sync::OnceLock;

use weights::{Axis, AxisKey};

/// An instruction set that the kernels can use. All levels yield the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Plain Rust: the definition, on any machine.
    Scalar,
    /// 256-bit integer and float vectors of x86-64.
    Avx2,
}

impl Level {
    /// The fastest level of this machine; asked for once.
    pub fn best() -> Level {
        *Self::available().last().expect("scalar is always available")
    }

    /// All levels that this machine can run, slowest first.
    pub fn available() -> &'static [Level] {
        static FOUND: OnceLock<&'static [Level]> = OnceLock::new();
        FOUND.get_or_init(|| {
            #[cfg(target_arch = "x86_64")]
            if std::arch::is_x86_feature_detected!("avx2") {
                return &[Level::Scalar, Level::Avx2];
            }
            &[Level::Scalar]
        })
    }

    /// This level if the machine has it; otherwise the definition.
    fn supported(self) -> Level {
        if Self::available().contains(&self) { self } else { Level::Scalar }
    }
}

/// How a resized pixel is made from its neighbours; the names and meanings of torchvision on tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// The pixel at `floor(i * input / output)`.
    Nearest,
    /// A triangle over two pixels, or over more when antialiasing.
    Bilinear,
    /// A cubic over four pixels, or over more when antialiasing.
    Bicubic,
}

/// A rectangle of pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rect {
    /// Leftmost column.
    pub x: usize,
    /// Topmost row.
    pub y: usize,
    /// Columns.
    pub width: usize,
    /// Rows.
    pub height: usize,
}

impl Rect {
    /// The rectangle of a whole picture.
    pub fn whole(width: usize, height: usize) -> Self {
        Self { x: 0, y: 0, width, height }
    }

    /// Whether `other` lies inside this rectangle.
    pub fn contains(&self, other: &Rect) -> bool {
        let inside = |low: usize, length: usize, at: usize, size: usize| {
            at >= low && at.checked_add(size).is_some_and(|end| end <= low + length)
        };
        inside(self.x, self.width, other.x, other.width)
            && inside(self.y, self.height, other.y, other.height)
    }
}

/// Borrowed 8-bit pixels, interleaved.
#[derive(Clone, Copy, Debug)]
pub struct Pixels<'a> {
    /// The bytes; row `y` starts at `y * stride`, and the last row may end with its last pixel.
    pub data: &'a [u8],
    /// Columns.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Bytes from one row to the next.
    pub stride: usize,
    /// 1 (grey), 3 (RGB) or 4 (RGBX: the fourth byte is ignored padding).
    pub channels: usize,
}

impl<'a> Pixels<'a> {
    /// Pixels without gaps between the rows.
    pub fn packed(data: &'a [u8], width: usize, height: usize, channels: usize) -> Self {
        Self { data, width, height, stride: width * channels, channels }
    }

    /// Channels that a kernel writes for these pixels: 1 or 3.
    pub fn channels_out(&self) -> usize {
        if self.channels == 1 { 1 } else { 3 }
    }

    fn check(&self) {
        let Self { data, width, height, stride, channels } = *self;
        assert!(matches!(channels, 1 | 3 | 4), "pixels have 1, 3 or 4 channels, not {channels}");
        assert!(width > 0 && height > 0, "a picture has at least one pixel, not {width}x{height}");
        let row = width.checked_mul(channels).expect("a row fits in memory");
        assert!(stride >= row, "rows of {row} bytes cannot start every {stride} bytes");
        let needed = (height - 1).checked_mul(stride).and_then(|bytes| bytes.checked_add(row));
        assert!(
            needed.is_some_and(|bytes| bytes <= data.len()),
            "the pixels are longer than their {} bytes",
            data.len()
        );
    }

    /// The bytes of row `y`.
    fn row(&self, y: usize) -> &'a [u8] {
        &self.data[y * self.stride..][..self.width * self.channels]
    }

    /// The same pixels, less what lies outside `region`.
    fn crop(&self, region: Rect) -> Self {
        assert!(
            region.width > 0
                && region.height > 0
                && Rect::whole(self.width, self.height).contains(&region),
            "{region:?} is not a part of a picture of {}x{}",
            self.width,
            self.height
        );
        let data = &self.data[region.y * self.stride + region.x * self.channels..];
        Self { data, width: region.width, height: region.height, ..*self }
    }
}

/// How an 8-bit value becomes an output element.
#[derive(Clone, Copy, Debug)]
pub enum Tone<'a> {
    /// It stays as it is.
    Identity,
    /// `value as f32 * scale + bias`, rounded after the multiplication and after the addition, by channel.
    Affine {
        /// Factor by channel.
        scale: [f32; 3],
        /// Term by channel.
        bias: [f32; 3],
    },
    /// It is looked up.
    Table {
        /// Bytes of an output element: 1, 2, 4 or 8.
        element: usize,
        /// `channels * 256` elements: those of the first channel, then those of the next.
        table: &'a [u8],
    },
}

impl Tone<'_> {
    /// Bytes of an output element.
    pub fn element(&self) -> usize {
        match *self {
            Tone::Identity => 1,
            Tone::Affine { .. } => 4,
            Tone::Table { element, .. } => element,
        }
    }
}

/// Which index of the output runs fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Row, column, channel.
    Hwc,
    /// Channel, row, column.
    Chw,
}

/// Where and how the result is written.
#[derive(Debug)]
pub struct Target<'a> {
    /// Exactly `height * width * channels_out * element` bytes, written in full.
    pub out: &'a mut [u8],
    /// Layout of `out`.
    pub order: Order,
    /// From 8-bit value to element.
    pub tone: Tone<'a>,
    /// Mirror left to right.
    pub flip_horizontal: bool,
    /// Mirror top to bottom.
    pub flip_vertical: bool,
}

impl<'a> Target<'a> {
    /// 8-bit pixels as they are, channels together.
    pub fn plain(out: &'a mut [u8]) -> Self {
        let (order, tone) = (Order::Hwc, Tone::Identity);
        Self { out, order, tone, flip_horizontal: false, flip_vertical: false }
    }

    fn check(&self, width: usize, height: usize, channels: usize) {
        let element = self.tone.element();
        if let Tone::Table { table, .. } = self.tone {
            assert!(
                matches!(element, 1 | 2 | 4 | 8),
                "an element has 1, 2, 4 or 8 bytes, not {element}"
            );
            assert_eq!(
                table.len(),
                channels * 256 * element,
                "a table has 256 elements for each channel"
            );
        }
        assert_eq!(
            self.out.len(),
            width * height * channels * element,
            "the output is {width}x{height}x{channels} elements"
        );
    }
}

/// The size a picture is resized to, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resize {
    /// Rows of the resized picture.
    pub height: usize,
    /// Columns of the resized picture.
    pub width: usize,
    /// How pixels are weighed.
    pub filter: Filter,
    /// Whether the filter widens when the picture shrinks (not for nearest).
    pub antialias: bool,
}

/// Intermediate buffers and recently used coefficients, to be reused from picture to picture by one thread.
#[derive(Debug, Default)]
pub struct Scratch {
    columns: Axis,
    lines: Axis,
    pass: Vec<u8>,
    #[cfg(target_arch = "x86_64")]
    avx2: avx2::Avx2Scratch,
}

/// Crops `region` of `source`, resizes it, keeps `window` of the resized picture, flips, tones and lays out.
///
/// The region is cropped first: pixels outside it have no influence. Only the rows and columns that `window`
/// needs are computed. The bits do not depend on `level`; a level that the machine lacks is replaced by the definition.
///
/// # Panics
///
/// If `region` is not inside `source`, `window` not inside the resized picture, either is empty, or `target.out` has another size.
pub fn resize_into(
    level: Level,
    source: Pixels<'_>,
    region: Rect,
    resize: &Resize,
    window: Rect,
    target: Target<'_>,
    scratch: &mut Scratch,
) {
    source.check();
    let held = Rect::whole(region.width, region.height);
    resize_part_into(
        level,
        source.crop(region),
        held,
        region.width,
        region.height,
        resize,
        window,
        target,
        scratch,
    );
}

/// As [`resize_into`], for a picture of `region_width` by `region_height` of which `source` holds only the part `held`.
///
/// `held` must contain [`source_window`] of the same resize and window; a decoder need not decode more.
///
/// # Panics
///
/// If the sizes do not agree, or `held` lacks a pixel that `window` needs.
#[expect(clippy::too_many_arguments, reason = "the fused step is all of these at once")]
pub fn resize_part_into(
    level: Level,
    source: Pixels<'_>,
    held: Rect,
    region_width: usize,
    region_height: usize,
    resize: &Resize,
    window: Rect,
    target: Target<'_>,
    scratch: &mut Scratch,
) {
    source.check();
    let Rect { width, height, .. } = window;
    assert!(width > 0 && height > 0, "the window has at least one pixel");
    assert!(
        Rect::whole(resize.width, resize.height).contains(&window),
        "{window:?} is not a part of {resize:?}"
    );
    assert!(
        source.width == held.width && source.height == held.height,
        "the source is what is held"
    );
    assert!(
        Rect::whole(region_width, region_height).contains(&held),
        "what is held is a part of the region"
    );
    target.check(width, height, source.channels_out());
    let columns = AxisKey::horizontal(region_width, resize, window.x, width);
    let lines = AxisKey::vertical(region_height, resize, window.y, height);
    match level.supported() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => {
            // SAFETY: `supported` returned this level, so the machine has AVX2.
            unsafe { avx2::resize(source, held, &columns, &lines, target, &mut scratch.avx2) }
        }
        _ => {
            scratch.columns.fill(&columns);
            scratch.lines.fill(&lines);
            check_held(held, scratch.columns.inputs(), scratch.lines.inputs());
            scalar::resize(
                source,
                held,
                &scratch.columns,
                &scratch.lines,
                target,
                &mut scratch.pass,
            );
        }
    }
}

/// Crops `region` of `source`, flips, tones and lays out.
///
/// # Panics
///
/// If `region` is empty or not inside `source`, or `target.out` has another size.
pub fn convert_into(level: Level, source: Pixels<'_>, region: Rect, target: Target<'_>) {
    source.check();
    let source = source.crop(region);
    target.check(region.width, region.height, source.channels_out());
    match level.supported() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => {
            // SAFETY: `supported` returned this level, so the machine has AVX2.
            unsafe { avx2::convert(source, target) }
        }
        _ => scalar::convert(source, target),
    }
}

/// The part of a picture of `in_width` by `in_height` that `window` of the resized picture depends on.
///
/// # Panics
///
/// If a size is zero or `window` is empty or not inside the resized picture.
pub fn source_window(in_width: usize, in_height: usize, resize: &Resize, window: Rect) -> Rect {
    assert!(
        in_width > 0 && in_height > 0 && window.width > 0 && window.height > 0,
        "nothing is empty"
    );
    assert!(
        Rect::whole(resize.width, resize.height).contains(&window),
        "{window:?} is not a part of {resize:?}"
    );
    let (left, right) =
        weights::reach(&AxisKey::horizontal(in_width, resize, window.x, window.width));
    let (top, bottom) =
        weights::reach(&AxisKey::vertical(in_height, resize, window.y, window.height));
    Rect { x: left, y: top, width: right - left, height: bottom - top }
}

/// Panics if `held` lacks one of these columns or rows: reading on would touch bytes that are not there.
fn check_held(held: Rect, columns: (usize, usize), lines: (usize, usize)) {
    assert!(
        held.x <= columns.0
            && columns.1 <= held.x + held.width
            && held.y <= lines.0
            && lines.1 <= held.y + held.height,
        "{held:?} lacks a pixel of columns {columns:?} and rows {lines:?}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 11) as usize % limit
        }

        fn size(&mut self, most: usize) -> usize {
            1 + if self.below(3) == 0 { self.below(9.min(most)) } else { self.below(most) }
        }

        fn part(&mut self, width: usize, height: usize) -> Rect {
            let (w, h) = (self.size(width), self.size(height));
            Rect {
                x: self.below(width - w + 1),
                y: self.below(height - h + 1),
                width: w,
                height: h,
            }
        }
    }

    struct Picture {
        data: Vec<u8>,
        width: usize,
        height: usize,
        stride: usize,
        channels: usize,
    }

    impl Picture {
        fn random(random: &mut Random, most: usize) -> Self {
            let (width, height, channels) =
                (random.size(most), random.size(most), [1, 3, 4][random.below(3)]);
            Self::sized(random, width, height, channels)
        }

        fn sized(random: &mut Random, width: usize, height: usize, channels: usize) -> Self {
            let stride = width * channels + random.below(3) * random.below(40);
            let len = (height - 1) * stride + width * channels;
            // Extremes are common, so that clamping is put to use.
            let data = (0..len)
                .map(|i| [0, 255, i as u8, random.below(256) as u8][random.below(4)])
                .collect();
            Self { data, width, height, stride, channels }
        }

        fn pixels(&self) -> Pixels<'_> {
            let Self { data, width, height, stride, channels } = self;
            Pixels { data, width: *width, height: *height, stride: *stride, channels: *channels }
        }
    }

    #[derive(Debug)]
    struct Way {
        order: Order,
        tone: usize,
        flip_horizontal: bool,
        flip_vertical: bool,
    }

    impl Way {
        fn random(random: &mut Random) -> Self {
            Self {
                order: [Order::Hwc, Order::Chw][random.below(2)],
                tone: random.below(6),
                flip_horizontal: random.below(2) == 1,
                flip_vertical: random.below(2) == 1,
            }
        }

        /// Runs `f` with an output of `values` elements in this way and returns the output.
        fn run(&self, values: usize, channels: usize, f: impl FnOnce(Target<'_>)) -> Vec<u8> {
            let table: Vec<u8> = (0..channels * 256 * 8).map(|i| (i * 31 / 7) as u8).collect();
            let tone = match self.tone {
                0 => Tone::Identity,
                1 => Tone::Affine {
                    scale: [0.017_1, 0.017_5, 0.017_4],
                    bias: [-2.117_9, -2.035_7, -1.804_4],
                },
                other => Tone::Table {
                    element: 1 << (other - 2),
                    table: &table[..(channels * 256) << (other - 2)],
                },
            };
            let mut out = vec![0xAA; values * tone.element()];
            f(Target {
                out: &mut out,
                order: self.order,
                tone,
                flip_horizontal: self.flip_horizontal,
                flip_vertical: self.flip_vertical,
            });
            out
        }
    }

    fn random_resize(random: &mut Random, most: usize) -> Resize {
        Resize {
            height: random.size(most),
            width: random.size(most),
            filter: [Filter::Nearest, Filter::Bilinear, Filter::Bicubic][random.below(3)],
            antialias: random.below(3) > 0,
        }
    }

    fn assert_levels_agree(
        random: &mut Random,
        picture: &Picture,
        resize: &Resize,
        scratch: &mut Scratch,
    ) {
        let region = random.part(picture.width, picture.height);
        let window = if random.below(2) == 0 {
            Rect::whole(resize.width, resize.height)
        } else {
            random.part(resize.width, resize.height)
        };
        let way = Way::random(random);
        let channels = picture.pixels().channels_out();
        let run = |level, scratch: &mut Scratch| {
            way.run(window.width * window.height * channels, channels, |target| {
                resize_into(level, picture.pixels(), region, resize, window, target, scratch);
            })
        };
        let expected = run(Level::Scalar, scratch);
        for &level in Level::available() {
            assert!(
                run(level, scratch) == expected,
                "{level:?}: {}x{}x{} {region:?} {resize:?} {window:?} {way:?}",
                picture.width,
                picture.height,
                picture.channels
            );
        }
    }

    #[test]
    fn every_level_yields_the_same_bits_for_any_resize() {
        let (mut random, mut scratch) = (Random(1), Scratch::default());
        for _ in 0..3000 {
            let picture = Picture::random(&mut random, 90);
            let resize = random_resize(&mut random, 100);
            assert_levels_agree(&mut random, &picture, &resize, &mut scratch);
        }
    }

    #[test]
    fn every_level_yields_the_same_bits_with_very_many_taps() {
        let (mut random, mut scratch) = (Random(2), Scratch::default());
        for channels in [1, 3, 4] {
            let picture = Picture::sized(&mut random, 1203, 907, channels);
            for _ in 0..12 {
                let resize = random_resize(&mut random, 40);
                assert_levels_agree(&mut random, &picture, &resize, &mut scratch);
            }
        }
    }

    #[test]
    fn every_level_converts_to_the_same_bits() {
        let mut random = Random(3);
        for _ in 0..1000 {
            let picture = Picture::random(&mut random, 70);
            let region = random.part(picture.width, picture.height);
            let way = Way::random(&mut random);
            let channels = picture.pixels().channels_out();
            let run = |level| {
                way.run(region.width * region.height * channels, channels, |target| {
                    convert_into(level, picture.pixels(), region, target);
                })
            };
            let expected = run(Level::Scalar);
            for &level in Level::available() {
                assert!(run(level) == expected, "{level:?} {region:?} {way:?}");
            }
        }
    }

    #[test]
    fn a_part_that_holds_the_source_window_is_as_good_as_the_whole() {
        let (mut random, mut scratch) = (Random(4), Scratch::default());
        for _ in 0..1000 {
            let picture = Picture::random(&mut random, 80);
            let resize = random_resize(&mut random, 80);
            let window = random.part(resize.width, resize.height);
            let way = Way::random(&mut random);
            let channels = picture.pixels().channels_out();
            let values = window.width * window.height * channels;
            let whole = Rect::whole(picture.width, picture.height);
            let held = source_window(picture.width, picture.height, &resize, window);
            assert!(whole.contains(&held), "{held:?} in {whole:?}");
            for &level in Level::available() {
                let expected = way.run(values, channels, |target| {
                    resize_into(
                        level,
                        picture.pixels(),
                        whole,
                        &resize,
                        window,
                        target,
                        &mut scratch,
                    );
                });
                let part = picture.pixels().crop(held);
                let yielded = way.run(values, channels, |target| {
                    let (width, height) = (picture.width, picture.height);
                    resize_part_into(
                        level,
                        part,
                        held,
                        width,
                        height,
                        &resize,
                        window,
                        target,
                        &mut scratch,
                    );
                });
                assert!(yielded == expected, "{level:?} {held:?} {resize:?} {window:?} {way:?}");
            }
        }
    }

    #[test]
    fn a_resize_to_the_same_size_is_a_conversion() {
        let (mut random, mut scratch) = (Random(5), Scratch::default());
        for _ in 0..200 {
            let picture = Picture::random(&mut random, 50);
            let (width, height) = (picture.width, picture.height);
            let resize = Resize { width, height, ..random_resize(&mut random, 9) };
            let way = Way::random(&mut random);
            let channels = picture.pixels().channels_out();
            let whole = Rect::whole(width, height);
            for &level in Level::available() {
                let resized = way.run(width * height * channels, channels, |target| {
                    resize_into(
                        level,
                        picture.pixels(),
                        whole,
                        &resize,
                        whole,
                        target,
                        &mut scratch,
                    );
                });
                let converted = way.run(width * height * channels, channels, |target| {
                    convert_into(level, picture.pixels(), whole, target);
                });
                assert!(resized == converted, "{level:?} {resize:?} {way:?}");
            }
        }
    }

    #[test]
    fn a_large_output_on_an_aligned_address_has_the_same_bits() {
        let (mut random, mut scratch) = (Random(7), Scratch::default());
        let picture = Picture::sized(&mut random, 300, 211, 4);
        let (region, window) = (Rect::whole(300, 211), Rect::whole(224, 200));
        let resize = Resize { width: 224, height: 200, filter: Filter::Bilinear, antialias: true };
        let tone = Tone::Affine { scale: [0.1, 0.2, 0.3], bias: [1.0, 2.0, 3.0] };
        let bytes = 224 * 200 * 3 * 4;
        let mut buffer = vec![0u8; bytes + 64];
        let aligned = buffer.as_ptr().align_offset(32);
        let mut run = |level, offset: usize| {
            let out = &mut buffer[offset..][..bytes];
            let target =
                Target { out, order: Order::Chw, tone, flip_horizontal: true, flip_vertical: true };
            resize_into(level, picture.pixels(), region, &resize, window, target, &mut scratch);
            buffer[offset..][..bytes].to_vec()
        };
        let expected = run(Level::Scalar, 0);
        for &level in Level::available() {
            for offset in [aligned, aligned + 1, aligned + 4] {
                assert!(run(level, offset) == expected, "{level:?} {offset}");
            }
        }
    }

    #[test]
    fn pixels_outside_the_region_have_no_influence() {
        let (mut random, mut scratch) = (Random(6), Scratch::default());
        let mut picture = Picture::sized(&mut random, 60, 50, 4);
        let region = Rect { x: 13, y: 9, width: 30, height: 20 };
        let resize = Resize { width: 24, height: 24, filter: Filter::Bicubic, antialias: true };
        let way = Way { order: Order::Chw, tone: 0, flip_horizontal: false, flip_vertical: false };
        let mut run = |picture: &Picture| {
            way.run(24 * 24 * 3, 3, |target| {
                resize_into(
                    Level::best(),
                    picture.pixels(),
                    region,
                    &resize,
                    Rect::whole(24, 24),
                    target,
                    &mut scratch,
                );
            })
        };
        let before = run(&picture);
        for y in 0..50 {
            for x in 0..60 {
                if !region.contains(&Rect { x, y, width: 1, height: 1 }) {
                    picture.data[y * picture.stride + x * 4..][..4].fill(77);
                }
            }
        }
        assert!(run(&picture) == before);
    }

    #[test]
    fn a_flat_picture_stays_flat() {
        let mut scratch = Scratch::default();
        let data = vec![201; 300 * 200 * 3];
        let pixels = Pixels::packed(&data, 300, 200, 3);
        let way = Way { order: Order::Hwc, tone: 0, flip_horizontal: true, flip_vertical: false };
        for filter in [Filter::Nearest, Filter::Bilinear, Filter::Bicubic] {
            for antialias in [false, true] {
                let resize = Resize { width: 77, height: 91, filter, antialias };
                let out = way.run(77 * 91 * 3, 3, |target| {
                    let (region, window) = (Rect::whole(300, 200), Rect::whole(77, 91));
                    resize_into(
                        Level::best(),
                        pixels,
                        region,
                        &resize,
                        window,
                        target,
                        &mut scratch,
                    );
                });
                assert!(out.iter().all(|&value| value == 201), "{filter:?} {antialias}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "lacks a pixel")]
    fn a_part_that_lacks_pixels_is_refused() {
        let data = vec![0; 10 * 10 * 4];
        let held = Rect { x: 2, y: 0, width: 8, height: 10 };
        let resize = Resize { width: 5, height: 5, filter: Filter::Bilinear, antialias: true };
        let pixels = Pixels { width: 8, ..Pixels::packed(&data, 10, 10, 4) };
        let way = Way { order: Order::Chw, tone: 0, flip_horizontal: false, flip_vertical: false };
        way.run(75, 3, |target| {
            resize_part_into(
                Level::best(),
                pixels,
                held,
                10,
                10,
                &resize,
                Rect::whole(5, 5),
                target,
                &mut Scratch::default(),
            );
        });
    }
}
