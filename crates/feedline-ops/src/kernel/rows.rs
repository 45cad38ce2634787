//! Rows of 8-bit planes on their way out: splitting interleaved pixels, and writing a row in any tone and order.
//!
//! The functions are inlined into their callers, so that each is compiled once for every instruction set.

use super::{Order, Pixels, Target, Tone};

/// Splits row `y` of `source` into planes, mirrored if `flip`.
#[inline(always)]
pub(super) fn split(source: &Pixels<'_>, y: usize, flip: bool, planes: &mut [Vec<u8>; 3]) {
    let row = source.row(y);
    let [first, second, third] = planes;
    match source.channels {
        1 => first.copy_from_slice(row),
        // The step is spelt out, because the compiler turns a known one into shuffles.
        3 => split_pixels::<3>(row, first, second, third),
        _ => split_pixels::<4>(row, first, second, third),
    }
    if flip {
        planes.iter_mut().for_each(|plane| plane.reverse());
    }
}

#[inline(always)]
fn split_pixels<const N: usize>(row: &[u8], r: &mut [u8], g: &mut [u8], b: &mut [u8]) {
    for (((pixel, r), g), b) in row.as_chunks::<N>().0.iter().zip(r).zip(g).zip(b) {
        (*r, *g, *b) = (pixel[0], pixel[1], pixel[2]);
    }
}

/// Writes row `y` of the output, given by its planes (one or three), each of the output's width.
#[inline(always)]
pub(super) fn emit(target: &mut Target<'_>, y: usize, height: usize, planes: &[&[u8]]) {
    let y = if target.flip_vertical { height - 1 - y } else { y };
    let width = planes[0].len();
    let element = target.tone.element();
    match target.order {
        Order::Hwc if planes.len() == 3 => {
            let bytes = width * 3 * element;
            let out = &mut target.out[y * bytes..][..bytes];
            let planes = [planes[0], planes[1], planes[2]];
            match target.tone {
                Tone::Identity => interleave_bytes(planes, out),
                Tone::Affine { scale, bias } => interleave_floats(planes, scale, bias, out),
                Tone::Table { element, table } => match element {
                    1 => interleave_entries::<1>(planes, table, out),
                    2 => interleave_entries::<2>(planes, table, out),
                    4 => interleave_entries::<4>(planes, table, out),
                    _ => interleave_entries::<8>(planes, table, out),
                },
            }
        }
        _ => {
            let bytes = width * element;
            for (channel, plane) in planes.iter().enumerate() {
                let out = &mut target.out[(channel * height + y) * bytes..][..bytes];
                match target.tone {
                    Tone::Identity => out.copy_from_slice(plane),
                    Tone::Affine { scale, bias } => {
                        floats(plane, scale[channel], bias[channel], out)
                    }
                    Tone::Table { element, table } => match element {
                        1 => entries::<1>(plane, channel, table, out),
                        2 => entries::<2>(plane, channel, table, out),
                        4 => entries::<4>(plane, channel, table, out),
                        _ => entries::<8>(plane, channel, table, out),
                    },
                }
            }
        }
    }
}

#[inline(always)]
fn floats(plane: &[u8], scale: f32, bias: f32, out: &mut [u8]) {
    for (&value, out) in plane.iter().zip(out.chunks_exact_mut(4)) {
        out.copy_from_slice(&(f32::from(value) * scale + bias).to_ne_bytes());
    }
}

#[inline(always)]
fn entries<const N: usize>(plane: &[u8], channel: usize, table: &[u8], out: &mut [u8]) {
    let (table, _) = table[channel * 256 * N..][..256 * N].as_chunks::<N>();
    for (&value, out) in plane.iter().zip(out.as_chunks_mut::<N>().0) {
        *out = table[usize::from(value)];
    }
}

#[inline(always)]
fn interleave_bytes([r, g, b]: [&[u8]; 3], out: &mut [u8]) {
    for (((out, &r), &g), &b) in out.as_chunks_mut::<3>().0.iter_mut().zip(r).zip(g).zip(b) {
        *out = [r, g, b];
    }
}

#[inline(always)]
fn interleave_entries<const N: usize>(planes: [&[u8]; 3], table: &[u8], out: &mut [u8]) {
    let (entries, _) = table.as_chunks::<N>();
    for (channel, plane) in planes.iter().enumerate() {
        let entries = &entries[channel * 256..][..256];
        let places = out.as_chunks_mut::<N>().0.iter_mut().skip(channel).step_by(3);
        for (&value, out) in plane.iter().zip(places) {
            *out = entries[usize::from(value)];
        }
    }
}

#[inline(always)]
fn interleave_floats([r, g, b]: [&[u8]; 3], scale: [f32; 3], bias: [f32; 3], out: &mut [u8]) {
    let toned = |value: u8, channel: usize| f32::from(value) * scale[channel] + bias[channel];
    for (((out, &r), &g), &b) in out.as_chunks_mut::<12>().0.iter_mut().zip(r).zip(g).zip(b) {
        let (places, _) = out.as_chunks_mut::<4>();
        places[0] = toned(r, 0).to_ne_bytes();
        places[1] = toned(g, 1).to_ne_bytes();
        places[2] = toned(b, 2).to_ne_bytes();
    }
}
