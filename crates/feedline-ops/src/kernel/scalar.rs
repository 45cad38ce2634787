//! The definition of the kernels: plain loops, one thing after the other. Other levels yield the same bits.

use super::weights::{Axis, Taps};
use super::{Order, Pixels, Rect, Target, Tone};

/// Resizes what `columns` and `lines` say of a picture of which `source` holds `held`.
pub(super) fn resize(
    source: Pixels<'_>,
    held: Rect,
    columns: &Axis,
    lines: &Axis,
    target: Target<'_>,
    pass: &mut Vec<u8>,
) {
    let channels = source.channels_out();
    let (width, height) = (columns.starts.len(), lines.starts.len());
    let (top, bottom) = lines.inputs();
    pass.clear();
    for y in top..bottom {
        let row = source.row(y - held.y);
        for x in 0..width {
            let start = columns.starts[x] as usize - held.x;
            for channel in 0..channels {
                let inputs =
                    row[start * source.channels + channel..].iter().step_by(source.channels);
                pass.push(weigh(inputs, columns.taps_of(x), columns.precision));
            }
        }
    }
    let mut writer = Writer { target, width, height, channels };
    for y in 0..height {
        let start = lines.starts[y] as usize - top;
        for x in 0..width {
            for channel in 0..channels {
                let inputs = pass[(start * width + x) * channels + channel..]
                    .iter()
                    .step_by(width * channels);
                writer.put(x, y, channel, weigh(inputs, lines.taps_of(y), lines.precision));
            }
        }
    }
}

/// Crops nothing more, resizes nothing: flips, tones and lays out all of `source`.
pub(super) fn convert(source: Pixels<'_>, target: Target<'_>) {
    let channels = source.channels_out();
    let mut writer = Writer { target, width: source.width, height: source.height, channels };
    for y in 0..source.height {
        for (x, pixel) in source.row(y).chunks_exact(source.channels).enumerate() {
            for (channel, &value) in pixel[..channels].iter().enumerate() {
                writer.put(x, y, channel, value);
            }
        }
    }
}

/// One output of one axis.
fn weigh<'a>(inputs: impl Iterator<Item = &'a u8>, taps: Taps<'_>, precision: u32) -> u8 {
    let half = (1i32 << precision) >> 1;
    let sum = inputs
        .zip(taps.iter())
        .fold(half, |sum, (&input, weight)| sum + i32::from(input) * i32::from(weight));
    (sum >> precision).clamp(0, 255) as u8
}

/// Puts values where flips, tone and order want them.
struct Writer<'a> {
    target: Target<'a>,
    width: usize,
    height: usize,
    channels: usize,
}

impl Writer<'_> {
    fn put(&mut self, x: usize, y: usize, channel: usize, value: u8) {
        let x = if self.target.flip_horizontal { self.width - 1 - x } else { x };
        let y = if self.target.flip_vertical { self.height - 1 - y } else { y };
        let index = match self.target.order {
            Order::Hwc => (y * self.width + x) * self.channels + channel,
            Order::Chw => (channel * self.height + y) * self.width + x,
        };
        match self.target.tone {
            Tone::Identity => self.target.out[index] = value,
            Tone::Affine { scale, bias } => {
                let toned = f32::from(value) * scale[channel] + bias[channel];
                self.target.out[index * 4..][..4].copy_from_slice(&toned.to_ne_bytes());
            }
            Tone::Table { element, table } => {
                let entry = &table[(channel * 256 + usize::from(value)) * element..][..element];
                self.target.out[index * element..][..element].copy_from_slice(entry);
            }
        }
    }
}
