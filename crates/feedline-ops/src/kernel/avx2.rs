//! The kernels with 256-bit vectors: the same bits as `scalar`, about twenty times sooner.
//!
//! ```text
//! two RGBX rows ──► horizontal: 8 columns a step, pixels k and k+4 in the two lanes,
//!                   │           taps in pairs (pmaddwd), mirrored by reversing the table
//!                   ▼
//! ring of row pairs: three planes, each column a dword (upper row, lower row) of 16-bit values
//!                   │
//!                   ▼
//! vertical: taps again in pairs, so a load is the operand of pmaddwd and nothing is shuffled;
//!           32-bit sums are shifted, converted, scaled and stored as f32, or packed to 8 bits
//! ```
//!
//! The ring holds a few rows and stays in the first-level cache. Grey pictures take the same way: four pairs of
//! rows are woven into two rows whose "channels" are rows.

use std::arch::x86_64::*;

use super::weights::{Axis, AxisKey};
use super::{Order, Pixels, Rect, Target, Tone, check_held, rows};

/// Columns are padded to this many, so that the vertical pass needs no tail.
const COLUMNS: usize = 32;
/// Bytes of one column of a plane in the ring: two rows of 16 bits.
const COLUMN: usize = 4;
/// Outputs of at least this many bytes are written past the caches.
const STREAMED: usize = 256 << 10;
/// Tables kept per axis: a validation pipeline repeats a few sizes, a random crop none.
const KEPT: usize = 4;

/// Reusable memory of this level.
#[derive(Debug, Default)]
pub(super) struct Avx2Scratch {
    axis: Axis,
    wide: Kept<Wide>,
    tall: Kept<Tall>,
    ring: Buffer,
    woven: [Buffer; 2],
    planes: Buffer,
}

/// Bytes that start on a cache line.
#[derive(Debug, Default)]
struct Buffer {
    lines: Vec<Line>,
}

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl Buffer {
    /// At least `len` bytes; what they hold is left over from before.
    fn at_least(&mut self, len: usize) -> &mut [u8] {
        let lines = len.div_ceil(64);
        if self.lines.len() < lines {
            self.lines.resize(lines, Line([0; 64]));
        }
        // SAFETY: a `Line` is 64 initialised bytes without padding, and bytes need no alignment.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.lines.as_mut_ptr().cast::<u8>(),
                self.lines.len() * 64,
            )
        }
    }
}

/// A few tables and what they were made for; the oldest makes room.
#[derive(Debug, Default)]
struct Kept<T> {
    tables: Vec<(AxisKey, bool, T)>,
    next: usize,
}

impl<T: Default> Kept<T> {
    fn find(&mut self, key: &AxisKey, flip: bool, fill: impl FnOnce(&mut T)) -> &T {
        if let Some(found) =
            self.tables.iter().position(|(kept, flipped, _)| kept == key && *flipped == flip)
        {
            return &self.tables[found].2;
        }
        let place = self.next;
        self.next = (place + 1) % KEPT;
        if self.tables.len() <= place {
            self.tables.push((*key, flip, T::default()));
        }
        let (kept, flipped, table) = &mut self.tables[place];
        (*kept, *flipped) = (*key, flip);
        fill(table);
        table
    }
}

/// Horizontal coefficients, spread out as the vectors need them.
#[derive(Debug, Default)]
struct Wide {
    precision: u32,
    clamps: bool,
    /// Pairs of taps per output; even if more than four.
    pairs: usize,
    /// Inputs that are needed, as a half-open range.
    inputs: (usize, usize),
    /// Bytes of an RGBX row that are read, from column `inputs.0` on: 16 at a time, so some beyond the last tap.
    reach: usize,
    /// Eight per block: where in the row, from column `inputs.0` on, the taps of each output start.
    offsets: Vec<u32>,
    /// Four times `pairs` vectors per block: the pair of output k in the lower lane, of k + 4 in the upper.
    weights: Vec<[u32; 8]>,
}

impl Wide {
    fn fill(&mut self, axis: &Axis, flip: bool) {
        let count = axis.starts.len();
        let blocks = count.div_ceil(8);
        self.precision = axis.precision;
        self.clamps = axis.clamps;
        self.inputs = axis.inputs();
        self.pairs = axis.taps.div_ceil(2);
        if self.pairs > 4 {
            self.pairs = self.pairs.next_multiple_of(2);
        }
        let pairs = self.pairs;
        self.offsets.clear();
        self.offsets.resize(blocks * 8, 0);
        self.weights.clear();
        self.weights.resize(blocks * 4 * pairs, [0; 8]);
        let mut furthest = 0;
        for i in 0..count {
            let from = if flip { count - 1 - i } else { i };
            let offset = (axis.starts[from] as usize - self.inputs.0) * 4;
            furthest = furthest.max(offset);
            self.offsets[i] = offset as u32;
            let (block, place, half) = (i / 8, i % 4, i % 8 / 4);
            let into = &mut self.weights[(block * 4 + place) * pairs..][..pairs];
            let taps = axis.taps_of(from);
            for (pair, into) in into.iter_mut().enumerate() {
                let weights = pack_pair(taps.weight(pair * 2), taps.weight(pair * 2 + 1));
                into[half * 4..half * 4 + 4].fill(weights);
            }
        }
        self.reach = furthest + pairs.div_ceil(2) * 16;
    }
}

/// Vertical coefficients, in pairs of rows.
#[derive(Debug, Default)]
struct Tall {
    precision: u32,
    clamps: bool,
    /// Rows that are needed, as a half-open range; pairs are counted from its start.
    inputs: (usize, usize),
    /// Most pairs of any output.
    pairs: usize,
    /// First pair and number of pairs of each output.
    spans: Vec<(u32, u32)>,
    /// `pairs` per output.
    weights: Vec<u32>,
}

impl Tall {
    fn fill(&mut self, axis: &Axis) {
        let count = axis.starts.len();
        self.precision = axis.precision;
        self.clamps = axis.clamps;
        self.inputs = axis.inputs();
        // A first tap on an odd row costs half a pair.
        self.pairs = (axis.taps + 1).div_ceil(2);
        self.spans.clear();
        self.weights.clear();
        self.weights.resize(count * self.pairs, 0);
        for (i, into) in self.weights.chunks_exact_mut(self.pairs).enumerate() {
            let start = axis.starts[i] as usize - self.inputs.0;
            // Before an odd first row the pair has a row that weighs nothing.
            let odd = start % 2;
            let taps = axis.taps_of(i);
            for (pair, into) in into.iter_mut().enumerate() {
                let weight = |tap: usize| if tap < odd { 0 } else { taps.weight(tap - odd) };
                *into = pack_pair(weight(pair * 2), weight(pair * 2 + 1));
            }
            self.spans.push(((start / 2) as u32, (axis.counts[i] + odd as u32).div_ceil(2)));
        }
    }
}

/// One pair of rows in the vertical pass.
#[derive(Clone, Copy, Debug)]
struct Tap {
    /// Where the pair lies in the ring.
    at: usize,
    /// Both weights.
    weight: u32,
}

/// How the vertical pass ends.
#[derive(Clone, Copy, Debug)]
struct Finish {
    precision: u32,
    clamps: bool,
    scale: f32,
    bias: f32,
    /// Whether to write past the caches.
    stream: bool,
}

fn pack_pair(first: i16, second: i16) -> u32 {
    u32::from(first as u16) | u32::from(second as u16) << 16
}

/// Resizes what the keys say of a picture of which `source` holds `held`.
///
/// # Safety
///
/// The machine must have AVX2.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn resize(
    source: Pixels<'_>,
    held: Rect,
    columns: &AxisKey,
    lines: &AxisKey,
    mut target: Target<'_>,
    scratch: &mut Avx2Scratch,
) {
    let Avx2Scratch { axis, wide, tall, ring, woven, planes } = scratch;
    let wide = wide.find(columns, target.flip_horizontal, |table| {
        axis.fill(columns);
        table.fill(axis, target.flip_horizontal);
    });
    let tall = tall.find(lines, false, |table| {
        axis.fill(lines);
        table.fill(axis);
    });
    check_held(held, wide.inputs, tall.inputs);

    let (width, height) = (columns.count, lines.count);
    let channels = source.channels_out();
    let plane_bytes = width.next_multiple_of(COLUMNS) * COLUMN;
    let pair_bytes = plane_bytes * channels;
    // Up to three pairs are computed ahead when four are woven together.
    let slots = (tall.pairs + 3).next_power_of_two();
    let ring = ring.at_least(slots * pair_bytes);
    let planes = planes.at_least(channels * width.next_multiple_of(COLUMNS));
    let mut feeder = Feeder {
        source,
        left: wide.inputs.0 - held.x,
        columns: wide.inputs.1 - wide.inputs.0,
        top: tall.inputs.0 - held.y,
        bottom: tall.inputs.1 - held.y,
        wide,
        woven,
    };

    let fused = match target.tone {
        Tone::Affine { scale, bias } if target.order == Order::Chw || channels == 1 => {
            Some((scale, bias))
        }
        _ => None,
    };
    // A large output goes to a batch that is read much later, if at all by this core: past the caches, which stay free
    // for decoding. Measured into 64 slots of 224x224: 0.070 ms instead of 0.091 (367x275, EPYC Milan).
    let stream = target.out.len() >= STREAMED
        && target.out.as_ptr().addr().is_multiple_of(32)
        && width.is_multiple_of(8);
    let mut ready = 0;
    let mut taps: Vec<Tap> = Vec::with_capacity(tall.pairs);
    for y in 0..height {
        let (first, count) = (tall.spans[y].0 as usize, tall.spans[y].1 as usize);
        ready = ready.max(first);
        while ready < first + count {
            let slot = |pair: usize| (pair & (slots - 1)) * pair_bytes;
            if channels == 3 {
                let at = slot(ready);
                let pair = &mut ring[at..at + pair_bytes];
                let base = pair.as_mut_ptr();
                // SAFETY: `pair` has three planes of `plane_bytes`, and AVX2 is there.
                unsafe {
                    feeder.color(ready, [base, base.add(plane_bytes), base.add(2 * plane_bytes)])
                };
                ready += 1;
            } else {
                let base = ring.as_mut_ptr();
                assert!(slots * pair_bytes <= ring.len(), "the ring has all its slots");
                // SAFETY: there are at least four slots, each inside the ring, and four pairs in a row have different slots.
                let dest = unsafe { [0, 1, 2, 3].map(|i| base.add(slot(ready + i))) };
                // SAFETY: each destination has `plane_bytes`, and AVX2 is there.
                unsafe { feeder.grey(ready, dest) };
                ready += 4;
            }
        }
        let weights = &tall.weights[y * tall.pairs..][..count];
        taps.clear();
        for (i, &weight) in weights.iter().enumerate() {
            taps.push(Tap { at: ((first + i) & (slots - 1)) * pair_bytes, weight });
        }
        for channel in 0..channels {
            let plane = &ring[channel * plane_bytes..];
            if let Some((scale, bias)) = fused {
                let to = if target.flip_vertical { height - 1 - y } else { y };
                let out = &mut target.out[(channel * height + to) * width * 4..][..width * 4];
                let (scale, bias) = (scale[channel], bias[channel]);
                let finish =
                    Finish { precision: tall.precision, clamps: tall.clamps, scale, bias, stream };
                // SAFETY: every tap is the place of a pair in the ring, whose plane has `width` columns, rounded up to 32.
                unsafe { vertical_floats(plane, &taps, &finish, out) };
            } else {
                let padded = width.next_multiple_of(COLUMNS);
                let out = &mut planes[channel * padded..][..padded];
                // SAFETY: every tap is the place of a pair in the ring, whose plane has `padded` columns.
                unsafe { vertical_bytes(plane, &taps, tall.precision, out) };
            }
        }
        if fused.is_none() {
            let padded = width.next_multiple_of(COLUMNS);
            let mut views: [&[u8]; 3] = [&[]; 3];
            for (view, plane) in views.iter_mut().zip(planes.chunks_exact(padded)) {
                *view = &plane[..width];
            }
            // SAFETY: AVX2 is there.
            unsafe { emit(&mut target, y, height, &views[..channels]) };
        }
    }
    if stream {
        // Streamed stores are weakly ordered: whoever is told that the output is there must find it there.
        _mm_sfence();
    }
}

/// Flips, tones and lays out all of `source`.
///
/// # Safety
///
/// The machine must have AVX2.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn convert(source: Pixels<'_>, mut target: Target<'_>) {
    let channels = source.channels_out();
    let mut planes: [Vec<u8>; 3] = Default::default();
    planes[..channels].iter_mut().for_each(|plane| plane.resize(source.width, 0));
    for y in 0..source.height {
        rows::split(&source, y, target.flip_horizontal, &mut planes);
        let views: [&[u8]; 3] = [&planes[0], &planes[1], &planes[2]];
        // SAFETY: AVX2 is there.
        unsafe { emit(&mut target, y, source.height, &views[..channels]) };
    }
}

/// As `rows::emit`, and quicker for interleaved floats.
///
/// # Safety
///
/// The machine must have AVX2.
#[target_feature(enable = "avx2")]
unsafe fn emit(target: &mut Target<'_>, y: usize, height: usize, planes: &[&[u8]]) {
    match (target.order, target.tone, planes) {
        (Order::Hwc, Tone::Affine { scale, bias }, &[r, g, b]) => {
            let y = if target.flip_vertical { height - 1 - y } else { y };
            let bytes = r.len() * 12;
            // SAFETY: AVX2 is there.
            unsafe {
                interleave_floats(r, g, b, scale, bias, &mut target.out[y * bytes..][..bytes])
            };
        }
        _ => rows::emit(target, y, height, planes),
    }
}

/// Writes three planes as interleaved floats, eight pixels at a time.
///
/// # Safety
///
/// The machine must have AVX2.
#[target_feature(enable = "avx2")]
unsafe fn interleave_floats(
    r: &[u8],
    g: &[u8],
    b: &[u8],
    scale: [f32; 3],
    bias: [f32; 3],
    out: &mut [u8],
) {
    // Where each of 24 interleaved bytes comes from: red is bytes 0 to 7 of one register, green 8 to 15, blue in another.
    let red_green_low = _mm_setr_epi8(0, 8, -1, 1, 9, -1, 2, 10, -1, 3, 11, -1, 4, 12, -1, 5);
    let blue_low = _mm_setr_epi8(-1, -1, 0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1);
    let red_green_high =
        _mm_setr_epi8(13, -1, 6, 14, -1, 7, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    let blue_high = _mm_setr_epi8(-1, 5, -1, -1, 6, -1, -1, 7, -1, -1, -1, -1, -1, -1, -1, -1);
    let cycle = |values: [f32; 3], from: usize| {
        let at = |i: usize| values[(from + i) % 3];
        _mm256_setr_ps(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7))
    };
    let scales = [cycle(scale, 0), cycle(scale, 8), cycle(scale, 16)];
    let biases = [cycle(bias, 0), cycle(bias, 8), cycle(bias, 16)];
    let blocks = r.len() / 8;
    assert!(
        g.len() == r.len() && b.len() == r.len() && out.len() == r.len() * 12,
        "planes and output agree"
    );
    for block in 0..blocks {
        // SAFETY: each plane has eight bytes and `out` 24 floats for every block.
        unsafe {
            let eight = |plane: &[u8]| _mm_loadl_epi64(plane.as_ptr().add(block * 8).cast());
            let (red_green, blue) = (_mm_unpacklo_epi64(eight(r), eight(g)), eight(b));
            let low = _mm_or_si128(
                _mm_shuffle_epi8(red_green, red_green_low),
                _mm_shuffle_epi8(blue, blue_low),
            );
            let high = _mm_or_si128(
                _mm_shuffle_epi8(red_green, red_green_high),
                _mm_shuffle_epi8(blue, blue_high),
            );
            let to = out.as_mut_ptr().add(block * 96).cast::<f32>();
            for (i, bytes) in [low, _mm_srli_si128::<8>(low), high].into_iter().enumerate() {
                let values = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
                _mm256_storeu_ps(
                    to.add(i * 8),
                    _mm256_add_ps(_mm256_mul_ps(values, scales[i]), biases[i]),
                );
            }
        }
    }
    for x in blocks * 8..r.len() {
        for (channel, plane) in [r, g, b].into_iter().enumerate() {
            let value = f32::from(plane[x]) * scale[channel] + bias[channel];
            out[(x * 3 + channel) * 4..][..4].copy_from_slice(&value.to_ne_bytes());
        }
    }
}

/// Runs the horizontal pass over the rows of a source.
struct Feeder<'a> {
    source: Pixels<'a>,
    /// First needed column, their number, first needed row and the row after the last, all within `source`.
    left: usize,
    columns: usize,
    top: usize,
    bottom: usize,
    wide: &'a Wide,
    woven: &'a mut [Buffer; 2],
}

impl Feeder<'_> {
    /// Computes pair `pair` of a colour picture.
    ///
    /// # Safety
    ///
    /// Each of `dest` must have room for all columns, rounded up to eight, and the machine must have AVX2.
    #[target_feature(enable = "avx2")]
    unsafe fn color(&mut self, pair: usize, dest: [*mut u8; 3]) {
        let Self { source, left, columns, top, bottom, wide, .. } = *self;
        let mut ends: [*const u8; 2] = [std::ptr::null(); 2];
        for (i, end) in ends.iter_mut().enumerate() {
            // The last pair may lack its second row, which then weighs nothing: any row will do.
            let y = (top + pair * 2 + i).min(bottom - 1);
            let from = y * source.stride + left * source.channels;
            *end = if source.channels == 4 && from + wide.reach <= source.data.len() {
                source.data[from..].as_ptr()
            } else {
                let row = &source.data[from..][..columns * source.channels];
                let woven = self.woven[i].at_least((columns * 4).max(wide.reach));
                if source.channels == 4 {
                    woven[..row.len()].copy_from_slice(row);
                } else {
                    // SAFETY: `woven` has four bytes for each of the pixels of `row`, and AVX2 is there.
                    unsafe { pad_pixels(row, woven) };
                }
                woven.as_ptr()
            };
        }
        let [r, g, b] = dest;
        // SAFETY: both rows offer `reach` bytes, the destinations are the caller's promise, the fourth is unused.
        unsafe { horizontal::<false>(ends, wide, [r, g, b, b]) };
    }

    /// Computes pairs `pair` to `pair + 3` of a grey picture.
    ///
    /// # Safety
    ///
    /// As for `color`.
    #[target_feature(enable = "avx2")]
    unsafe fn grey(&mut self, pair: usize, dest: [*mut u8; 4]) {
        let Self { source, left, columns, top, bottom, wide, .. } = *self;
        for (i, woven) in self.woven.iter_mut().enumerate() {
            let woven = woven.at_least((columns * 4).max(wide.reach));
            let row = |j: usize| {
                let y = (top + (pair + j) * 2 + i).min(bottom - 1);
                &source.data[y * source.stride + left..][..columns]
            };
            let (a, b, c, d) = (row(0), row(1), row(2), row(3));
            for ((((out, &a), &b), &c), &d) in
                woven.as_chunks_mut::<4>().0.iter_mut().zip(a).zip(b).zip(c).zip(d)
            {
                *out = [a, b, c, d];
            }
        }
        let ends = [self.woven[0].at_least(0).as_ptr(), self.woven[1].at_least(0).as_ptr()];
        // SAFETY: both rows offer `reach` bytes, and the destinations are the caller's promise.
        unsafe { horizontal::<true>(ends, wide, dest) };
    }
}

/// Copies RGB pixels to RGBX.
///
/// # Safety
///
/// `out` must have four bytes for every three of `row`, and the machine must have AVX2.
#[target_feature(enable = "avx2")]
unsafe fn pad_pixels(row: &[u8], out: &mut [u8]) {
    let spread = _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1);
    let pixels = row.len() / 3;
    assert!(out.len() >= pixels * 4);
    let mut x = 0;
    while x * 3 + 16 <= row.len() {
        // SAFETY: 16 bytes from `3x` are inside `row`, and four pixels from `4x` inside `out`, as `x + 4 < pixels`.
        unsafe {
            let four = _mm_loadu_si128(row.as_ptr().add(x * 3).cast());
            _mm_storeu_si128(out.as_mut_ptr().add(x * 4).cast(), _mm_shuffle_epi8(four, spread));
        }
        x += 4;
    }
    for x in x..pixels {
        out[x * 4..x * 4 + 3].copy_from_slice(&row[x * 3..x * 3 + 3]);
    }
}

/// The horizontal pass over two rows, for any number of taps.
///
/// # Safety
///
/// Both rows must offer `wide.reach` bytes; three destinations, or four if `ALL`, must each have room for a dword for
/// every offset of `wide`; the machine must have AVX2.
#[target_feature(enable = "avx2")]
unsafe fn horizontal<const ALL: bool>(ends: [*const u8; 2], wide: &Wide, dest: [*mut u8; 4]) {
    // SAFETY: the caller's promise, unchanged.
    unsafe {
        match (wide.pairs, wide.clamps) {
            (1, false) => horizontal_taps::<1, false, ALL>(ends, wide, dest),
            (2, false) => horizontal_taps::<2, false, ALL>(ends, wide, dest),
            (3, false) => horizontal_taps::<3, false, ALL>(ends, wide, dest),
            (4, false) => horizontal_taps::<4, false, ALL>(ends, wide, dest),
            (1, true) => horizontal_taps::<1, true, ALL>(ends, wide, dest),
            (2, true) => horizontal_taps::<2, true, ALL>(ends, wide, dest),
            (3, true) => horizontal_taps::<3, true, ALL>(ends, wide, dest),
            (4, true) => horizontal_taps::<4, true, ALL>(ends, wide, dest),
            (_, false) => horizontal_taps::<0, false, ALL>(ends, wide, dest),
            (_, true) => horizontal_taps::<0, true, ALL>(ends, wide, dest),
        }
    }
}

/// As `horizontal`, for `PAIRS` pairs of taps; 0 stands for the table's number.
///
/// # Safety
///
/// As for `horizontal`.
#[target_feature(enable = "avx2")]
#[inline(never)]
unsafe fn horizontal_taps<const PAIRS: usize, const CLAMP: bool, const ALL: bool>(
    ends: [*const u8; 2],
    wide: &Wide,
    dest: [*mut u8; 4],
) {
    let pairs = if PAIRS == 0 { wide.pairs } else { PAIRS };
    let low = _mm256_broadcastsi128_si256(_mm_setr_epi8(
        0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1,
    ));
    let high = _mm256_broadcastsi128_si256(_mm_setr_epi8(
        8, -1, 12, -1, 9, -1, 13, -1, 10, -1, 14, -1, 11, -1, 15, -1,
    ));
    let half = _mm256_set1_epi32((1 << wide.precision) >> 1);
    let shift = _mm_cvtsi32_si128(wide.precision as i32);
    let (zero, most) = (_mm256_setzero_si256(), _mm256_set1_epi32(255));
    let [upper, lower] = ends;
    let blocks = wide.offsets.len() / 8;
    let mut offset = wide.offsets.as_ptr();
    let mut weight = wide.weights.as_ptr().cast::<__m256i>();
    for block in 0..blocks {
        let mut merged = [zero; 4];
        // SAFETY: there are eight offsets and four times `pairs` vectors per block; an offset plus 16 bytes for every
        // two pairs is at most `reach`, which both rows offer; each destination has 32 bytes per block.
        unsafe {
            for merged in &mut merged {
                let (near, far) = (*offset as usize, *offset.add(4) as usize);
                let (mut sum_upper, mut sum_lower) = (half, half);
                let mut pair = 0;
                while pair < pairs {
                    let at = |row: *const u8| {
                        let near = _mm_loadu_si128(row.add(near + pair * 8).cast());
                        let far = _mm_loadu_si128(row.add(far + pair * 8).cast());
                        _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(near), far)
                    };
                    let (four_upper, four_lower) = (at(upper), at(lower));
                    let first = _mm256_loadu_si256(weight.add(pair));
                    sum_upper = _mm256_add_epi32(
                        sum_upper,
                        _mm256_madd_epi16(_mm256_shuffle_epi8(four_upper, low), first),
                    );
                    sum_lower = _mm256_add_epi32(
                        sum_lower,
                        _mm256_madd_epi16(_mm256_shuffle_epi8(four_lower, low), first),
                    );
                    if PAIRS == 0 || pair + 1 < PAIRS {
                        let second = _mm256_loadu_si256(weight.add(pair + 1));
                        sum_upper = _mm256_add_epi32(
                            sum_upper,
                            _mm256_madd_epi16(_mm256_shuffle_epi8(four_upper, high), second),
                        );
                        sum_lower = _mm256_add_epi32(
                            sum_lower,
                            _mm256_madd_epi16(_mm256_shuffle_epi8(four_lower, high), second),
                        );
                    }
                    pair += 2;
                }
                let shifted = |sum| {
                    if CLAMP {
                        _mm256_min_epi32(_mm256_max_epi32(_mm256_sra_epi32(sum, shift), zero), most)
                    } else {
                        _mm256_srl_epi32(sum, shift)
                    }
                };
                *merged = _mm256_or_si256(
                    shifted(sum_upper),
                    _mm256_slli_epi32::<16>(shifted(sum_lower)),
                );
                offset = offset.add(1);
                weight = weight.add(pairs);
            }
            offset = offset.add(4);
            let [a, b, c, d] = merged;
            let (ab_low, ab_high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
            let (cd_low, cd_high) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
            let store = |plane: usize, value| {
                _mm256_storeu_si256(dest[plane].add(block * 32).cast(), value)
            };
            store(0, _mm256_unpacklo_epi64(ab_low, cd_low));
            store(1, _mm256_unpackhi_epi64(ab_low, cd_low));
            store(2, _mm256_unpacklo_epi64(ab_high, cd_high));
            if ALL {
                store(3, _mm256_unpackhi_epi64(ab_high, cd_high));
            }
        }
    }
}

/// The vertical pass of one row of one plane, to floats.
///
/// # Safety
///
/// From every tap on, `plane` must have as many columns as `out` has floats, rounded up to 32, and be aligned to 32
/// bytes; `out` must be aligned to 32 bytes if it is to be streamed; the machine must have AVX2.
#[target_feature(enable = "avx2")]
unsafe fn vertical_floats(plane: &[u8], taps: &[Tap], finish: &Finish, out: &mut [u8]) {
    // SAFETY: the caller's promise, unchanged.
    unsafe {
        match (taps.len(), finish.clamps) {
            (1, false) => vertical_floats_taps::<1, false>(plane, taps, finish, out),
            (2, false) => vertical_floats_taps::<2, false>(plane, taps, finish, out),
            (3, false) => vertical_floats_taps::<3, false>(plane, taps, finish, out),
            (4, false) => vertical_floats_taps::<4, false>(plane, taps, finish, out),
            (_, false) => vertical_floats_taps::<0, false>(plane, taps, finish, out),
            (_, true) => vertical_floats_taps::<0, true>(plane, taps, finish, out),
        }
    }
}

/// As `vertical_floats`, for `PAIRS` taps; 0 stands for any number.
///
/// # Safety
///
/// As for `vertical_floats`.
#[target_feature(enable = "avx2")]
#[inline(never)]
unsafe fn vertical_floats_taps<const PAIRS: usize, const CLAMP: bool>(
    plane: &[u8],
    taps: &[Tap],
    finish: &Finish,
    out: &mut [u8],
) {
    let Finish { precision, scale, bias, stream, clamps: _ } = *finish;
    let taps = if PAIRS == 0 { taps } else { &taps[..PAIRS] };
    let half = _mm256_set1_epi32((1 << precision) >> 1);
    let shift = _mm_cvtsi32_si128(precision as i32);
    let (zero, most) = (_mm256_setzero_si256(), _mm256_set1_epi32(255));
    let (scale, bias) = (_mm256_set1_ps(scale), _mm256_set1_ps(bias));
    let finish = |sum: __m256i| {
        let value = if CLAMP {
            _mm256_min_epi32(_mm256_max_epi32(_mm256_sra_epi32(sum, shift), zero), most)
        } else {
            _mm256_srl_epi32(sum, shift)
        };
        // Multiplied, then added: a fused operation would round once and yield other bits.
        _mm256_add_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(value), scale), bias)
    };
    let width = out.len() / 4;
    let to = out.as_mut_ptr().cast::<f32>();
    let mut x = 0;
    while x + 32 <= width {
        let mut sums = [half; 4];
        for &Tap { at, weight } in taps {
            let weight = _mm256_set1_epi32(weight as i32);
            for (i, sum) in sums.iter_mut().enumerate() {
                // SAFETY: columns up to `x + 32` are inside the row by the caller's promise.
                let pairs = unsafe {
                    _mm256_load_si256(plane.as_ptr().add(at + (x + i * 8) * COLUMN).cast())
                };
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, weight));
            }
        }
        for (i, sum) in sums.into_iter().enumerate() {
            // SAFETY: floats up to `x + 32` are inside `out`, which is aligned if it is to be streamed.
            unsafe {
                if stream {
                    _mm256_stream_ps(to.add(x + i * 8), finish(sum));
                } else {
                    _mm256_storeu_ps(to.add(x + i * 8), finish(sum));
                }
            }
        }
        x += 32;
    }
    while x < width {
        let mut sum = half;
        for &Tap { at, weight } in taps {
            // SAFETY: rows have a multiple of 32 columns, and `x` is a multiple of 8.
            let pairs = unsafe { _mm256_load_si256(plane.as_ptr().add(at + x * COLUMN).cast()) };
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi32(weight as i32)));
        }
        if x + 8 <= width {
            // SAFETY: eight floats from `x` are inside `out`.
            unsafe { _mm256_storeu_ps(to.add(x), finish(sum)) };
        } else {
            let rest = _mm256_cmpgt_epi32(
                _mm256_set1_epi32((width - x) as i32),
                _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
            );
            // SAFETY: the mask keeps the store to the `width - x` floats that are left.
            unsafe { _mm256_maskstore_ps(to.add(x), rest, finish(sum)) };
        }
        x += 8;
    }
}

/// The vertical pass of one row of one plane, to bytes.
///
/// # Safety
///
/// `out` must have a multiple of 32 bytes; from every tap on, `plane` must have as many columns, and be aligned to 32
/// bytes; the machine must have AVX2.
#[target_feature(enable = "avx2")]
unsafe fn vertical_bytes(plane: &[u8], taps: &[Tap], precision: u32, out: &mut [u8]) {
    // SAFETY: the caller's promise, unchanged.
    unsafe {
        match taps.len() {
            1 => vertical_bytes_taps::<1>(plane, taps, precision, out),
            2 => vertical_bytes_taps::<2>(plane, taps, precision, out),
            3 => vertical_bytes_taps::<3>(plane, taps, precision, out),
            _ => vertical_bytes_taps::<0>(plane, taps, precision, out),
        }
    }
}

/// As `vertical_bytes`, for `PAIRS` taps; 0 stands for any number.
///
/// # Safety
///
/// As for `vertical_bytes`.
#[target_feature(enable = "avx2")]
#[inline(never)]
unsafe fn vertical_bytes_taps<const PAIRS: usize>(
    plane: &[u8],
    taps: &[Tap],
    precision: u32,
    out: &mut [u8],
) {
    let taps = if PAIRS == 0 { taps } else { &taps[..PAIRS] };
    let half = _mm256_set1_epi32((1 << precision) >> 1);
    let shift = _mm_cvtsi32_si128(precision as i32);
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (block, out) in out.chunks_exact_mut(32).enumerate() {
        let mut sums = [half; 4];
        for &Tap { at, weight } in taps {
            let weight = _mm256_set1_epi32(weight as i32);
            for (i, sum) in sums.iter_mut().enumerate() {
                // SAFETY: 32 columns from `block * 32` are inside the row by the caller's promise.
                let pairs = unsafe {
                    _mm256_load_si256(plane.as_ptr().add(at + (block * 32 + i * 8) * COLUMN).cast())
                };
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, weight));
            }
        }
        // Packing saturates, which is the clamp.
        let [a, b, c, d] = sums.map(|sum| _mm256_sra_epi32(sum, shift));
        let packed = _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d));
        let ordered = _mm256_permutevar8x32_epi32(packed, order);
        // SAFETY: `out` is 32 bytes.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), ordered) };
    }
}
