//! Changes of colour on 8-bit RGB, interleaved and in place, as torchvision's v2 functions define them on tensors.
//!
//! Arithmetic is in f32 with PyTorch's roundings, which fuse `a + alpha * b`; the fused step is done in f64, where
//! it is exact for 8-bit inputs, so that every machine yields the same bits whether it has such an instruction or not.

/// Pixels that are worked on together, so that the compiler uses vectors.
const BLOCK: usize = 16;

/// Multiplies every value by `factor`, clamps and truncates.
pub fn adjust_brightness(rgb: &mut [u8], factor: f64) {
    let factor = factor as f32;
    map_values(rgb, |value| truncate(value * factor));
}

/// Blends with the mean of the grey picture: 0 yields grey, 1 the picture.
///
/// # Panics
///
/// If the length of `rgb` is not a multiple of three.
pub fn adjust_contrast(rgb: &mut [u8], factor: f64) {
    assert_eq!(rgb.len() % 3, 0, "pixels have three bytes");
    if rgb.is_empty() {
        return;
    }
    let mut sum = 0u64;
    // The sum of whole numbers is exact, whatever the order.
    for_each_block(rgb, |block| {
        let grey = block.grey();
        sum += grey[..block.count].iter().map(|&grey| grey as u64).sum::<u64>();
    });
    let mean = (sum as f64 / (rgb.len() / 3) as f64) as f32;
    let (factor, rest) = (factor as f32, (1.0 - factor) as f32);
    map_values(rgb, |value| truncate(fused(value * factor, mean, rest)));
}

/// Blends with the grey picture: 0 yields grey, 1 the picture.
///
/// # Panics
///
/// If the length of `rgb` is not a multiple of three.
pub fn adjust_saturation(rgb: &mut [u8], factor: f64) {
    let (factor, rest) = (factor as f32, (1.0 - factor) as f32);
    map_blocks(
        rgb,
        #[inline(always)]
        |block| {
            let grey = block.grey();
            for channel in &mut block.channels {
                for (value, &grey) in channel.iter_mut().zip(&grey) {
                    *value = fused(*value * factor, grey.floor(), rest).clamp(0.0, 255.0);
                }
            }
        },
    );
}

/// Turns the hue by `factor` of a full circle, -0.5 to 0.5.
///
/// # Panics
///
/// If the length of `rgb` is not a multiple of three.
pub fn adjust_hue(rgb: &mut [u8], factor: f64) {
    let factor = factor as f32;
    map_blocks(
        rgb,
        #[inline(always)]
        |block| {
            let [red, green, blue] = &mut block.channels;
            for ((red, green), blue) in red.iter_mut().zip(green).zip(blue) {
                let turned = turn_hue([*red, *green, *blue], factor);
                (*red, *green, *blue) = (turned[0], turned[1], turned[2]);
            }
        },
    );
}

/// The grey picture: 0.2989 red + 0.587 green + 0.114 blue, truncated.
///
/// # Panics
///
/// If `out` has not one byte for every three of `rgb`.
pub fn grayscale(rgb: &[u8], out: &mut [u8]) {
    assert_eq!(rgb.len(), out.len() * 3, "one byte out for three in");
    let mut done = 0;
    for_each_block(rgb, |block| {
        for (out, grey) in out[done..done + block.count].iter_mut().zip(block.grey()) {
            *out = grey as u8;
        }
        done += block.count;
    });
}

/// A block of pixels as planes of floats; what lies beyond `count` is zero.
struct Block {
    channels: [[f32; BLOCK]; 3],
    count: usize,
}

impl Block {
    #[inline(always)]
    fn load(bytes: &[u8]) -> Self {
        let mut channels = [[0.0; BLOCK]; 3];
        let [red, green, blue] = &mut channels;
        let count = bytes.len() / 3;
        for (i, pixel) in bytes.chunks_exact(3).enumerate().take(BLOCK) {
            (red[i], green[i], blue[i]) =
                (f32::from(pixel[0]), f32::from(pixel[1]), f32::from(pixel[2]));
        }
        Self { channels, count }
    }

    #[inline(always)]
    fn store(&self, bytes: &mut [u8]) {
        let [red, green, blue] = &self.channels;
        for (i, pixel) in bytes.chunks_exact_mut(3).enumerate().take(BLOCK) {
            (pixel[0], pixel[1], pixel[2]) = (cut(red[i]), cut(green[i]), cut(blue[i]));
        }
    }

    /// Not yet truncated.
    #[inline(always)]
    fn grey(&self) -> [f32; BLOCK] {
        let [red, green, blue] = &self.channels;
        std::array::from_fn(
            #[inline(always)]
            |i| fused(fused(red[i] * 0.2989, green[i], 0.587), blue[i], 0.114),
        )
    }
}

/// `base + value * factor`, rounded once.
#[inline(always)]
fn fused(base: f32, value: f32, factor: f32) -> f32 {
    (f64::from(base) + f64::from(value) * f64::from(factor)) as f32
}

/// To 8 bits, for values of 0 to below 256.
#[inline(always)]
fn cut(value: f32) -> u8 {
    value as i32 as u8
}

fn truncate(value: f32) -> u8 {
    cut(value.clamp(0.0, 255.0))
}

/// Replaces every byte by what `f` makes of it: 256 calls at most.
fn map_values(bytes: &mut [u8], f: impl Fn(f32) -> u8) {
    let table: [u8; 256] = std::array::from_fn(|value| f(value as f32));
    for byte in bytes {
        *byte = table[usize::from(*byte)];
    }
}

fn for_each_block(rgb: &[u8], mut f: impl FnMut(&Block)) {
    for bytes in rgb.chunks(BLOCK * 3) {
        f(&Block::load(bytes));
    }
}

/// Changes all blocks of a picture, with the widest vectors that this machine has.
fn map_blocks(rgb: &mut [u8], f: impl Fn(&mut Block)) {
    assert_eq!(rgb.len() % 3, 0, "pixels have three bytes");
    #[cfg(target_arch = "x86_64")]
    if super::Level::best() == super::Level::Avx2 {
        // SAFETY: the machine has AVX2, as the level says.
        unsafe { map_blocks_avx2(rgb, f) };
        return;
    }
    map_blocks_plain(rgb, f);
}

/// # Safety
///
/// The machine must have AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn map_blocks_avx2(rgb: &mut [u8], f: impl Fn(&mut Block)) {
    map_blocks_plain(rgb, f);
}

#[inline(always)]
fn map_blocks_plain(rgb: &mut [u8], f: impl Fn(&mut Block)) {
    for bytes in rgb.chunks_mut(BLOCK * 3) {
        let mut block = Block::load(bytes);
        f(&mut block);
        block.store(bytes);
    }
}

/// To hue, saturation and value, around the circle, and back, in torchvision's order of operations.
#[inline(always)]
fn turn_hue(rgb: [f32; 3], turn: f32) -> [f32; 3] {
    let [red, green, blue] = rgb.map(|value| value * (1.0 / 255.0) as f32);
    let most = red.max(green).max(blue);
    let least = red.min(green).min(blue);
    let range = most - least;
    let equal = most == least;
    let saturation = range / if equal { 1.0 } else { most };
    let divisor = if equal { 1.0 } else { range };
    let (from_red, from_green, from_blue) =
        ((most - red) / divisor, (most - green) / divisor, (most - blue) / divisor);
    let sixth = if most == red {
        from_blue - from_green
    } else if most == green {
        from_red + 2.0 - from_blue
    } else {
        from_green + 4.0 - from_red
    };
    let hue = sixth * (1.0f64 / 6.0) as f32 + 1.0;
    let hue = hue - hue.floor() + turn;
    let hue = if hue < 0.0 { hue + 1.0 } else { hue - hue.floor() };

    let hue = hue * 6.0;
    let sector = hue.floor();
    let part = hue - sector;
    let scaled = saturation * part;
    let rest = 1.0 - saturation;
    let falling = ((1.0 - scaled) * most).clamp(0.0, 1.0);
    let rising = ((scaled + rest) * most).clamp(0.0, 1.0);
    let low = (rest * most).clamp(0.0, 1.0);
    // A turn that rounds to a whole circle lands in sector 6, which is sector 0.
    let sector = if sector >= 6.0 { sector - 6.0 } else { sector } as i32;
    let choose = |at_most: [i32; 2], at_low: [i32; 2], at_falling: i32| {
        let high_or = if sector == at_falling { falling } else { rising };
        let low_or = if sector == at_low[0] || sector == at_low[1] { low } else { high_or };
        if sector == at_most[0] || sector == at_most[1] { most } else { low_or }
    };
    let turned = [choose([0, 5], [2, 3], 1), choose([1, 2], [4, 5], 3), choose([3, 4], [0, 1], 5)];
    turned.map(|value| value * (255.0 + 1.0 - 1e-3) as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture() -> Vec<u8> {
        let mut state = 7u32;
        (0..3 * 1001)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            })
            .collect()
    }

    #[test]
    fn a_factor_of_one_changes_nothing() {
        for adjust in [adjust_brightness, adjust_contrast, adjust_saturation] {
            let mut rgb = picture();
            adjust(&mut rgb, 1.0);
            assert_eq!(rgb, picture());
        }
    }

    #[test]
    fn brightness_multiplies_clamps_and_truncates() {
        let mut rgb = vec![0, 10, 101, 200, 255, 1];
        adjust_brightness(&mut rgb, 1.5);
        assert_eq!(rgb, [0, 15, 151, 255, 255, 1]);
    }

    #[test]
    fn no_contrast_is_one_grey() {
        let mut rgb = picture();
        let mut grey = vec![0; 1001];
        grayscale(&rgb, &mut grey);
        let mean = grey.iter().map(|&grey| f64::from(grey)).sum::<f64>() / 1001.0;
        adjust_contrast(&mut rgb, 0.0);
        assert!(rgb.iter().all(|&value| value == mean as u8));
    }

    #[test]
    fn no_saturation_is_grey() {
        let mut rgb = picture();
        let mut grey = vec![0; 1001];
        grayscale(&rgb, &mut grey);
        adjust_saturation(&mut rgb, 0.0);
        assert!(rgb.chunks(3).zip(&grey).all(|(pixel, &grey)| pixel == [grey; 3]));
    }

    #[test]
    fn a_third_of_a_circle_turns_red_into_green() {
        let mut rgb = vec![255, 0, 0, 90, 90, 90];
        adjust_hue(&mut rgb, 1.0 / 3.0);
        assert!(rgb[0] <= 1 && rgb[1] == 255 && rgb[2] == 0, "{rgb:?}");
        assert_eq!(rgb[3..], [90, 90, 90]);
    }

    #[test]
    fn vectors_and_plain_code_yield_the_same_bits() {
        for factor in [-0.5, -0.31, -0.01, 0.0, 0.2, 0.5] {
            let mut fast = picture();
            adjust_hue(&mut fast, factor);
            let slow: Vec<u8> = picture()
                .chunks(3)
                .flat_map(|pixel| {
                    turn_hue([pixel[0], pixel[1], pixel[2]].map(f32::from), factor as f32).map(cut)
                })
                .collect();
            assert_eq!(fast, slow);
        }
    }
}
