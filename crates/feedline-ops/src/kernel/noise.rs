//! Normally distributed numbers, each a pure function of a key and its own number.
//!
//! ```text
//!  key, number / 4 ──Philox──► four words ──Box–Muller──► four numbers of N(0, 1)
//! ```
//!
//! Eight counters go side by side through plain multiplications and additions of single precision,
//! never fused, so the bits are the same on every machine: with AVX2 the compiler puts the eight into
//! one register, without it they are done one after another.

use super::Level;
use std::f32::consts::{FRAC_PI_2, LN_2, SQRT_2};

/// Counters that are done side by side.
const LANES: usize = 8;
/// Numbers that come out of one go.
const GROUP: usize = 4 * LANES;

/// Writes numbers `first`, `first + 1`, … of the sequence under `key` to `out`.
pub fn normal_into(level: Level, key: [u32; 2], first: u64, out: &mut [f32]) {
    match level.supported() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => {
            // SAFETY: `supported` returned this level, so the machine has AVX2.
            unsafe { fill_avx2(key, first, out) }
        }
        _ => fill(first, out, |block| philox(key, block)),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn fill_avx2(key: [u32; 2], first: u64, out: &mut [f32]) {
    fill(first, out, |block| philox_avx2(key, block));
}

/// The words of eight counters, four of each.
type Words = [[u32; LANES]; 4];

#[inline(always)]
fn fill(first: u64, out: &mut [f32], words: impl Fn(u64) -> Words) {
    let group = GROUP as u64;
    let mut number = first - first % group;
    let mut skip = (first - number) as usize;
    let mut rest = out;
    let mut values = [0f32; GROUP];
    while !rest.is_empty() {
        normals(&words(number / 4), &mut values);
        let count = rest.len().min(GROUP - skip);
        let (now, later) = rest.split_at_mut(count);
        now.copy_from_slice(&values[skip..skip + count]);
        (rest, skip) = (later, 0);
        number += group;
    }
}

/// The numbers of eight counters: four of each, one counter after another.
#[inline(always)]
fn normals(words: &Words, out: &mut [f32; GROUP]) {
    let mut columns = [[0f32; LANES]; 4];
    for pair in 0..2 {
        let (mut cosines, mut sines) = ([0f32; LANES], [0f32; LANES]);
        for lane in 0..LANES {
            let radius = radius(words[2 * pair][lane]);
            let (cosine, sine) = direction(words[2 * pair + 1][lane]);
            (cosines[lane], sines[lane]) = (radius * cosine, radius * sine);
        }
        (columns[2 * pair], columns[2 * pair + 1]) = (cosines, sines);
    }
    for lane in 0..LANES {
        for column in 0..4 {
            out[lane * 4 + column] = columns[column][lane];
        }
    }
}

/// `philox4x32` of eight counters.
#[inline(always)]
fn philox(key: [u32; 2], block: u64) -> Words {
    let mut counter = [[0u32; LANES]; 4];
    let [first, second, ..] = &mut counter;
    for (lane, (low, high)) in first.iter_mut().zip(second).enumerate() {
        let block = block.wrapping_add(lane as u64);
        (*low, *high) = (block as u32, (block >> 32) as u32);
    }
    let [mut low, mut high] = key;
    for _ in 0..10 {
        let mut next = [[0u32; LANES]; 4];
        for lane in 0..LANES {
            let first = u64::from(counter[0][lane]) * 0xD251_1F53;
            let second = u64::from(counter[2][lane]) * 0xCD9E_8D57;
            next[0][lane] = (second >> 32) as u32 ^ counter[1][lane] ^ low;
            next[1][lane] = second as u32;
            next[2][lane] = (first >> 32) as u32 ^ counter[3][lane] ^ high;
            next[3][lane] = first as u32;
        }
        counter = next;
        low = low.wrapping_add(0x9E37_79B9);
        high = high.wrapping_add(0xBB67_AE85);
    }
    counter
}

/// The same, with both halves of a product kept in vectors: the compiler does not find that by itself.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn philox_avx2(key: [u32; 2], block: u64) -> Words {
    use std::arch::x86_64::{
        __m256i, _mm256_add_epi32, _mm256_blend_epi32, _mm256_mul_epu32, _mm256_set1_epi32,
        _mm256_setzero_si256, _mm256_slli_epi64, _mm256_srli_epi64, _mm256_storeu_si256,
        _mm256_xor_si256,
    };
    let all = |value: u32| _mm256_set1_epi32(value as i32);
    let product = |a: __m256i, factor: __m256i| {
        let even = _mm256_mul_epu32(a, factor);
        let odd = _mm256_mul_epu32(_mm256_srli_epi64::<32>(a), factor);
        let low = _mm256_blend_epi32::<0b1010_1010>(even, _mm256_slli_epi64::<32>(odd));
        let high = _mm256_blend_epi32::<0b1010_1010>(_mm256_srli_epi64::<32>(even), odd);
        (low, high)
    };
    let mut start = [[0u32; LANES]; 2];
    let [lows, highs] = &mut start;
    for (lane, (low, high)) in lows.iter_mut().zip(highs).enumerate() {
        let block = block.wrapping_add(lane as u64);
        (*low, *high) = (block as u32, (block >> 32) as u32);
    }
    // SAFETY: both are 32 bytes of plain numbers.
    let [mut a, mut b]: [__m256i; 2] = unsafe { std::mem::transmute(start) };
    let (mut c, mut d) = (_mm256_setzero_si256(), _mm256_setzero_si256());
    let (mut low, mut high) = (all(key[0]), all(key[1]));
    for _ in 0..10 {
        let (first_low, first_high) = product(a, all(0xD251_1F53));
        let (second_low, second_high) = product(c, all(0xCD9E_8D57));
        a = _mm256_xor_si256(_mm256_xor_si256(second_high, b), low);
        b = second_low;
        c = _mm256_xor_si256(_mm256_xor_si256(first_high, d), high);
        d = first_low;
        low = _mm256_add_epi32(low, all(0x9E37_79B9));
        high = _mm256_add_epi32(high, all(0xBB67_AE85));
    }
    let mut words = [[0; LANES]; 4];
    for (to, from) in words.iter_mut().zip([a, b, c, d]) {
        // SAFETY: a row has room for eight numbers, and need not be aligned.
        unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), from) };
    }
    words
}

/// `sqrt(-2 ln u)` for u in (0, 1] made of 31 bits: up to 6.5 standard deviations.
#[inline(always)]
fn radius(word: u32) -> f32 {
    let u = ((word >> 1) as i32 as f32 + 1.0) * (1.0 / 2_147_483_648.0);
    // u = m · 2^e with m between sqrt(1/2) and sqrt(2).
    let bits = u.to_bits();
    let mut exponent = (bits >> 23) as i32 - 127;
    let mut mantissa = f32::from_bits((bits & 0x007F_FFFF) | 0x3F80_0000);
    let large = mantissa > SQRT_2;
    mantissa = if large { mantissa * 0.5 } else { mantissa };
    exponent = if large { exponent + 1 } else { exponent };
    // ln m = 2 artanh((m - 1) / (m + 1)), by its series.
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let q = s * s;
    let series = ((q * (2.0 / 9.0) + 2.0 / 7.0) * q + 2.0 / 5.0) * q + 2.0 / 3.0;
    let log = exponent as f32 * LN_2 + (series * q * s + (s + s));
    // Rounding could make it a little more than 0 next to u = 1.
    let square = -2.0 * log;
    (if square > 0.0 { square } else { 0.0 }).sqrt()
}

/// Cosine and sine of a whole turn's `word / 2^32`, less an eighth of a turn.
#[inline(always)]
fn direction(word: u32) -> (f32, f32) {
    // The upper two bits are the quadrant, the rest an angle between -π/4 and π/4 in it.
    let quadrant = word >> 30;
    let inside = (word & 0x3FFF_FFFF) as i32 - (1 << 29);
    let t = inside as f32 * (FRAC_PI_2 / 1_073_741_824.0);
    let q = t * t;
    let sine =
        (((q * (1.0 / 362_880.0) - 1.0 / 5040.0) * q + 1.0 / 120.0) * q - 1.0 / 6.0) * q * t + t;
    let cosine = (((q * (1.0 / 40_320.0) - 1.0 / 720.0) * q + 1.0 / 24.0) * q - 0.5) * q + 1.0;
    let turned = quadrant & 1 != 0;
    let (x, y) = if turned { (sine, cosine) } else { (cosine, sine) };
    let flip_x = (quadrant ^ (quadrant >> 1)) << 31;
    let flip_y = (quadrant >> 1) << 31;
    (f32::from_bits(x.to_bits() ^ flip_x), f32::from_bits(y.to_bits() ^ flip_y))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize) -> Vec<f32> {
        let mut out = vec![0.0; count];
        normal_into(Level::Scalar, [11, 22], 0, &mut out);
        out
    }

    #[test]
    fn all_levels_and_all_cuts_give_the_same_bits() {
        let whole = numbers(1000);
        for &level in Level::available() {
            for (first, count) in [(0, 1000), (1, 999), (3, 5), (31, 2), (32, 64), (517, 100)] {
                let mut out = vec![0.0; count];
                normal_into(level, [11, 22], first as u64, &mut out);
                let bits =
                    |values: &[f32]| -> Vec<u32> { values.iter().map(|v| v.to_bits()).collect() };
                assert_eq!(bits(&out), bits(&whole[first..first + count]), "{level:?} {first}");
            }
        }
    }

    #[test]
    fn the_words_are_those_of_the_generator() {
        let words = philox([5, 6], 0xFFFF_FFFE);
        for lane in 0..LANES {
            let block = 0xFFFF_FFFEu64 + lane as u64;
            let wanted =
                feedline_core::philox4x32([block as u32, (block >> 32) as u32, 0, 0], [5, 6]);
            assert_eq!(words.map(|word| word[lane]), wanted);
        }
    }

    #[test]
    fn radius_and_direction_are_exact_enough() {
        for word in (0..u32::MAX - 99_991).step_by(99_991).chain([0, 1, 2, u32::MAX]) {
            let u = (f64::from(word >> 1) + 1.0) / 2_147_483_648.0;
            let wanted = (-2.0 * u.min(1.0).ln()).sqrt();
            assert!(
                (f64::from(radius(word)) - wanted).abs() < 4e-4 * (1.0 - u).max(1e-3) + 2e-6,
                "{word}"
            );
            let angle = (f64::from(word) / 4_294_967_296.0 - 0.125) * std::f64::consts::TAU;
            let (cosine, sine) = direction(word);
            assert!((f64::from(cosine) - angle.cos()).abs() < 3e-7, "{word}");
            assert!((f64::from(sine) - angle.sin()).abs() < 3e-7, "{word}");
        }
    }

    /// The share of N(0, 1) below `x`, by a continued fraction and a series.
    fn below(x: f64) -> f64 {
        let density = (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt();
        if x.abs() > 5.0 {
            let tail = density / (x.abs() + 1.0 / (x.abs() + 2.0 / x.abs()));
            return if x > 0.0 { 1.0 - tail } else { tail };
        }
        let (mut term, mut sum, mut odd) = (x, x, 1.0);
        while term.abs() > 1e-17 {
            odd += 2.0;
            term *= x * x / odd;
            sum += term;
        }
        0.5 + density * sum
    }

    #[test]
    fn the_numbers_are_normal() {
        let mut values: Vec<f64> = numbers(400_000).into_iter().map(f64::from).collect();
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let moment =
            |power: i32| values.iter().map(|v| (v - mean).powi(power)).sum::<f64>() / count;
        let variance = moment(2);
        assert!(mean.abs() < 5.0 / count.sqrt(), "{mean}");
        assert!((variance - 1.0).abs() < 5.0 * (2.0 / count).sqrt(), "{variance}");
        let skew = moment(3) / variance.powf(1.5);
        assert!(skew.abs() < 5.0 * (6.0 / count).sqrt(), "{skew}");
        let kurtosis = moment(4) / variance.powi(2);
        assert!((kurtosis - 3.0).abs() < 5.0 * (24.0 / count).sqrt(), "{kurtosis}");
        // Neighbours know nothing of each other.
        for lag in [1, 2, 3, 4, 32] {
            let product: f64 = values.iter().zip(&values[lag..]).map(|(a, b)| a * b).sum();
            assert!((product / count).abs() < 5.0 / count.sqrt(), "lag {lag}: {product}");
        }
        // Kolmogorov and Smirnov: the distance to the true distribution, at a chance of 1e-6.
        values.sort_by(f64::total_cmp);
        let distance = values.iter().enumerate().fold(0f64, |most, (at, value)| {
            let share = below(*value);
            most.max((share - at as f64 / count).abs()).max(((at + 1) as f64 / count - share).abs())
        });
        assert!(distance < 2.7 / count.sqrt(), "{distance}");
        // As many far out as there should be: 63 in a million beyond four.
        let far = values.iter().filter(|value| value.abs() > 4.0).count();
        assert!((8..=50).contains(&far), "{far}");
    }
}
