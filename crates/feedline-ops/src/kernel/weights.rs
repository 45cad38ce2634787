//! Coefficients of a separable resize along one axis, in the fixed point that PyTorch uses for 8-bit pictures.
//!
//! ```text
//! output i  ─►  start, count, w[0..count]      value = (2^(p-1) + Σ w[j]·input[start+j]) >> p, clamped to 0..=255
//! ```
//!
//! Every level of the kernels reads this one table, so levels can differ in speed and never in meaning.

use super::{Filter, Resize};

/// What determines the coefficients of one axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct AxisKey {
    /// Pixels of the picture along the axis.
    pub input: usize,
    /// Pixels of the resized picture along the axis.
    pub output: usize,
    /// First output position that is kept.
    pub first: usize,
    /// How many output positions are kept.
    pub count: usize,
    /// The filter, with or without antialiasing.
    pub filter: Filter,
    /// Whether the filter widens when the picture shrinks.
    pub antialias: bool,
}

impl AxisKey {
    /// The horizontal axis of a resize from `input` columns, keeping `count` columns from `first`.
    pub fn horizontal(input: usize, resize: &Resize, first: usize, count: usize) -> Self {
        let Resize { width, filter, antialias, height: _ } = *resize;
        Self { input, output: width, first, count, filter, antialias }
    }

    /// The vertical axis of a resize from `input` rows, keeping `count` rows from `first`.
    pub fn vertical(input: usize, resize: &Resize, first: usize, count: usize) -> Self {
        let Resize { height, filter, antialias, width: _ } = *resize;
        Self { input, output: height, first, count, filter, antialias }
    }
}

/// Outputs whose coefficients are computed together, so that the compiler uses vectors.
const LANES: usize = 8;

/// Quantised coefficients of the kept output positions of one axis.
#[derive(Debug, Default)]
pub(super) struct Axis {
    /// Bits after the binary point.
    pub precision: u32,
    /// Whether a result can leave 0..=255 before it is clamped.
    pub clamps: bool,
    /// Largest number of inputs of any kept output.
    pub taps: usize,
    /// First input of each output.
    pub starts: Vec<u32>,
    /// Number of inputs of each output, at least 1.
    pub counts: Vec<u32>,
    /// `stride` groups of eight per block of eight outputs; zero from an output's count on.
    weights: Vec<[i16; LANES]>,
    stride: usize,
    exact: Vec<[f64; LANES]>,
}

impl Axis {
    /// The inputs that the kept outputs depend on, as a half-open range.
    pub fn inputs(&self) -> (usize, usize) {
        let low = self.starts.iter().min().map_or(0, |&start| start as usize);
        let ends = self.starts.iter().zip(&self.counts).map(|(&start, &count)| start + count);
        (low, ends.max().map_or(low, |end| end as usize))
    }

    /// The weights of kept output `i`.
    #[inline(always)]
    pub fn taps_of(&self, i: usize) -> Taps<'_> {
        let block = i / LANES * self.stride;
        Taps {
            lanes: &self.weights[block..block + self.stride],
            lane: i % LANES,
            count: self.counts[i] as usize,
        }
    }

    /// Computes the table that `key` determines.
    pub fn fill(&mut self, key: &AxisKey) {
        #[cfg(target_arch = "x86_64")]
        if super::Level::best() == super::Level::Avx2 {
            // SAFETY: the machine has AVX2, as the level says.
            unsafe { self.fill_avx2(key) };
            return;
        }
        self.fill_plain(key);
    }

    /// The same operations in the same order, compiled for wider vectors.
    ///
    /// # Safety
    ///
    /// The machine must have AVX2.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    unsafe fn fill_avx2(&mut self, key: &AxisKey) {
        self.fill_plain(key);
    }

    #[inline(always)]
    fn fill_plain(&mut self, key: &AxisKey) {
        self.starts.clear();
        self.counts.clear();
        self.weights.clear();
        self.exact.clear();
        self.clamps = false;
        if key.filter == Filter::Nearest || key.input == key.output {
            self.fill_copies(key);
            return;
        }
        let shape = Shape::new(key);
        self.stride = shape.most;
        // The precision follows from the greatest weight of *all* outputs, kept or not.
        let greatest = match (key.antialias, key.filter) {
            (true, Filter::Bicubic) => self.fill_widened(key, &shape, |x| cubic(x, -0.5)),
            (true, _) => self.fill_widened(key, &shape, triangle),
            (false, Filter::Bicubic) => self.fill_narrow(key, &shape, |x| cubic(x, -0.75)),
            (false, _) => self.fill_narrow(key, &shape, triangle),
        };
        self.quantise(greatest);
    }

    /// Nearest neighbour, and an axis whose size does not change: every output is one input.
    fn fill_copies(&mut self, key: &AxisKey) {
        self.starts.extend((key.first..key.first + key.count).map(|i| copied(i, key) as u32));
        self.counts.resize(key.count, 1);
        self.weights.resize(key.count.div_ceil(LANES), [1 << 14; LANES]);
        self.precision = 14;
        self.stride = 1;
        self.taps = 1;
    }

    /// With antialiasing: the filter stretches with the scale and never reaches outside the picture.
    #[inline(always)]
    fn fill_widened(&mut self, key: &AxisKey, shape: &Shape, filter: impl Fn(f64) -> f64) -> f64 {
        self.exact.resize(key.count.div_ceil(LANES) * self.stride, [0.0; LANES]);
        let squeeze = if shape.scale >= 1.0 { 1.0 / shape.scale } else { 1.0 };
        let (mut greatest, mut unused) = ([0.0f64; LANES], Vec::new());
        let last = key.first + key.count;
        // Blocks are aligned to the first kept output. Those outside the kept ones only count for the greatest weight;
        // places before the first and after the last output repeat those, which does no harm.
        let mut at = key.first as i64 - key.first.next_multiple_of(LANES) as i64;
        while at < key.output as i64 {
            let kept = at >= key.first as i64 && at < last as i64;
            let into: &mut [[f64; LANES]] = if kept {
                &mut self.exact[(at as usize - key.first) / LANES * self.stride..][..self.stride]
            } else {
                unused.resize(self.stride, [0.0; LANES]);
                &mut unused
            };
            let mut center = [0.0; LANES];
            let (mut start, mut count) = ([0.0; LANES], [0.0; LANES]);
            for lane in 0..LANES {
                let i = (at + lane as i64).clamp(0, key.output as i64 - 1) as f64;
                center[lane] = shape.scale * (i + 0.5);
                (start[lane], count[lane]) = shape.widened(center[lane]);
            }
            let mut total = [0.0; LANES];
            for (tap, weights) in into.iter_mut().enumerate() {
                for lane in 0..LANES {
                    let tap = tap as f64;
                    let weight = filter((tap + start[lane] - center[lane] + 0.5) * squeeze);
                    weights[lane] = if tap < count[lane] { weight } else { 0.0 };
                    total[lane] += weights[lane];
                }
            }
            for weights in into.iter_mut() {
                for lane in 0..LANES {
                    weights[lane] /= total[lane];
                    greatest[lane] =
                        if weights[lane] > greatest[lane] { weights[lane] } else { greatest[lane] };
                }
            }
            if kept {
                let lanes = LANES.min(last - at as usize);
                self.starts.extend(start[..lanes].iter().map(|&start| start as u32));
                self.counts.extend(count[..lanes].iter().map(|&count| count as u32));
            }
            at += LANES as i64;
        }
        greatest.into_iter().fold(0.0, f64::max)
    }

    /// Without antialiasing: the filter keeps its width, and what falls outside the picture is added to the pixel
    /// at the edge.
    fn fill_narrow(&mut self, key: &AxisKey, shape: &Shape, filter: impl Fn(f64) -> f64) -> f64 {
        self.exact.resize(key.count.div_ceil(LANES) * self.stride, [0.0; LANES]);
        let reach = shape.radius as i64;
        let mut greatest = 0.0f64;
        for i in 0..key.output {
            let ((start, count), (base, offset)) = shape.narrow(i);
            let mut weights = [0.0; 4];
            for step in 1 - reach..=reach {
                let place = (base + step).clamp(start as i64, (start + count) as i64 - 1) as usize;
                weights[place - start] += filter(step as f64 - offset);
            }
            greatest = weights.iter().fold(greatest, |most, &weight| most.max(weight));
            if (key.first..key.first + key.count).contains(&i) {
                let place = i - key.first;
                self.starts.push(start as u32);
                self.counts.push(count as u32);
                let block = &mut self.exact[place / LANES * self.stride..][..self.stride];
                block
                    .iter_mut()
                    .zip(weights)
                    .for_each(|(lanes, weight)| lanes[place % LANES] = weight);
            }
        }
        greatest
    }

    #[inline(always)]
    fn quantise(&mut self, greatest: f64) {
        let mut precision = 0u32;
        while precision < 22 {
            let next = (0.5 + greatest * f64::from(1u32 << (precision + 1))) as i64;
            if next >= 1 << 15 {
                break;
            }
            precision += 1;
        }
        self.precision = precision;
        self.taps = self.counts.iter().max().map_or(1, |&count| count as usize);
        let unit = f64::from(1u32 << precision);
        let limit = 256i32 << precision;
        let half = (1i32 << precision) >> 1;
        self.weights.resize(self.exact.len(), [0; LANES]);
        for (into, exact) in
            self.weights.chunks_exact_mut(self.stride).zip(self.exact.chunks_exact(self.stride))
        {
            let (mut sum, mut least) = ([0i32; LANES], [0i32; LANES]);
            for (into, exact) in into.iter_mut().zip(exact) {
                for lane in 0..LANES {
                    // Adding ±0.5 and cutting is how PyTorch rounds.
                    let scaled = exact[lane] * unit;
                    let weight = (scaled + 0.5f64.copysign(scaled)) as i32;
                    into[lane] = weight as i16;
                    sum[lane] += weight;
                    least[lane] = least[lane].min(weight);
                }
            }
            for lane in 0..LANES {
                // A sum of weights is about 2^precision, at most 2^22: the product stays far below 2^31.
                self.clamps |= least[lane] < 0 || sum[lane] * 255 + half >= limit;
            }
        }
    }
}

/// The weights of one output.
#[derive(Clone, Copy)]
pub(super) struct Taps<'a> {
    lanes: &'a [[i16; LANES]],
    lane: usize,
    count: usize,
}

impl Taps<'_> {
    /// Weight `tap`; zero from the output's count on.
    #[inline(always)]
    pub fn weight(&self, tap: usize) -> i16 {
        self.lanes.get(tap).map_or(0, |lanes| lanes[self.lane])
    }

    /// All weights.
    pub fn iter(&self) -> impl Iterator<Item = i16> + '_ {
        (0..self.count).map(|tap| self.weight(tap))
    }
}

/// The inputs that the kept outputs depend on, as a half-open range, without computing coefficients.
pub(super) fn reach(key: &AxisKey) -> (usize, usize) {
    // Starts and ends grow with the output, so the first and the last output say it all.
    let (first, last) = (key.first, key.first + key.count - 1);
    if key.filter == Filter::Nearest || key.input == key.output {
        return (copied(first, key), copied(last, key) + 1);
    }
    let shape = Shape::new(key);
    let span = |i: usize| {
        if key.antialias {
            let (start, count) = shape.widened(shape.scale * (i as f64 + 0.5));
            (start as usize, count as usize)
        } else {
            shape.narrow(i).0
        }
    };
    let ((start, _), (end, count)) = (span(first), span(last));
    (start, end + count)
}

/// The one input of output `i` where nothing is weighed.
fn copied(i: usize, key: &AxisKey) -> usize {
    if key.input == key.output {
        return i;
    }
    // PyTorch computes the index in f32; so do we, to pick the same pixel.
    let scale = key.input as f32 / key.output as f32;
    ((i as f32 * scale).floor() as usize).min(key.input - 1)
}

/// Which inputs an output is made of.
struct Shape {
    input: usize,
    scale: f64,
    radius: usize,
    support: f64,
    most: usize,
}

impl Shape {
    fn new(key: &AxisKey) -> Self {
        let scale = key.input as f64 / key.output as f64;
        let radius = if key.filter == Filter::Bicubic { 2 } else { 1 };
        let support =
            if key.antialias && scale > 1.0 { radius as f64 * scale } else { radius as f64 };
        let most = if key.antialias { support.ceil() as usize * 2 + 1 } else { radius * 2 };
        Self { input: key.input, scale, radius, support, most }
    }

    /// First input and number of inputs of the output around `center` with antialiasing.
    #[inline(always)]
    fn widened(&self, center: f64) -> (f64, f64) {
        let start = (center - self.support + 0.5).floor().max(0.0);
        let end = (center + self.support + 0.5).floor().min(self.input as f64);
        (start, (end - start).clamp(1.0, self.most as f64))
    }

    /// The same without, and where output `i` lies: an input, and the way to the next one.
    fn narrow(&self, i: usize) -> ((usize, usize), (i64, f64)) {
        let mut place = self.scale * (i as f64 + 0.5) - 0.5;
        if self.radius == 1 {
            place = place.max(0.0);
        }
        let (reach, input) = (self.radius as i64, self.input as i64);
        let base = (place.floor() as i64).min(input - 1);
        let start = (base - reach + 1).max(0);
        let end = (base + reach + 1).min(input);
        ((start as usize, (end - start) as usize), (base, (place - base as f64).clamp(0.0, 1.0)))
    }
}

#[inline(always)]
fn triangle(x: f64) -> f64 {
    let rest = 1.0 - x.abs();
    if rest > 0.0 { rest } else { 0.0 }
}

/// The cubic of PyTorch: `a` is -0.5 with antialiasing (Keys'), -0.75 without.
#[inline(always)]
fn cubic(x: f64, a: f64) -> f64 {
    let x = x.abs();
    if x < 1.0 {
        ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(input: usize, output: usize, filter: Filter, antialias: bool) -> Axis {
        let mut axis = Axis::default();
        axis.fill(&AxisKey { input, output, first: 0, count: output, filter, antialias });
        axis
    }

    #[test]
    fn weights_sum_to_about_one_and_stay_inside_the_picture() {
        for filter in [Filter::Nearest, Filter::Bilinear, Filter::Bicubic] {
            for antialias in [false, true] {
                for (input, output) in
                    [(1, 1), (1, 7), (7, 1), (375, 224), (224, 224), (100, 224), (5000, 32), (2, 3)]
                {
                    let axis = axis(input, output, filter, antialias);
                    for i in 0..output {
                        assert!(axis.starts[i] as usize + axis.counts[i] as usize <= input);
                        let sum: i64 = axis.taps_of(i).iter().map(i64::from).sum();
                        let error = (sum - (1 << axis.precision)).abs();
                        assert!(
                            error <= axis.taps as i64,
                            "{filter:?} {input}->{output} at {i}: off by {error}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_window_has_the_coefficients_of_the_whole() {
        let whole = axis(375, 224, Filter::Bicubic, true);
        let mut part = Axis::default();
        part.fill(&AxisKey {
            input: 375,
            output: 224,
            first: 17,
            count: 100,
            filter: Filter::Bicubic,
            antialias: true,
        });
        assert_eq!(part.precision, whole.precision);
        for i in 0..100 {
            assert_eq!(part.starts[i], whole.starts[i + 17]);
            assert!(part.taps_of(i).iter().eq(whole.taps_of(i + 17).iter()));
        }
    }

    #[test]
    fn bilinear_never_needs_clamping() {
        for (input, output) in [(3, 224), (375, 224), (225, 224), (4000, 224), (500, 7)] {
            assert!(!axis(input, output, Filter::Bilinear, true).clamps, "{input}->{output}");
            assert!(!axis(input, output, Filter::Bilinear, false).clamps, "{input}->{output}");
        }
    }
}
