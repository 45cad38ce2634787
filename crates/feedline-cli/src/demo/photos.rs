//! A small set of made-up photos, for machines that have none at hand: smooth light, shapes and
//! grain, so that JPEG files of them are as large, and as dear to decode, as those of a camera.

use anyhow::{Context, Result};
use feedline_core::mix;
use feedline_ops::codec::{Subsampling, encode_jpeg};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Columns of a photo.
pub(super) const WIDTH: usize = 500;
/// Rows of a photo.
pub(super) const HEIGHT: usize = 375;
/// What the photos show; each class is a folder.
pub(super) const CLASSES: [&str; 5] = ["city", "coast", "hills", "marble", "meadow"];

/// Writes `count` photos below `folder` on `threads` threads and returns their size in bytes.
pub(super) fn make(
    folder: &Path,
    count: usize,
    threads: usize,
    done: impl Fn() + Sync,
) -> Result<u64> {
    for class in CLASSES {
        let path = folder.join(class);
        fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
    }
    let next = AtomicUsize::new(0);
    let work = || -> Result<u64> {
        let (mut pixels, mut bytes) = (vec![0; WIDTH * HEIGHT * 3], 0);
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return Ok(bytes);
            }
            let class = number % CLASSES.len();
            draw(class, number as u64, &mut pixels);
            let jpeg = encode_jpeg(&pixels, WIDTH, HEIGHT, 91, Subsampling::S420)?;
            let path = folder.join(CLASSES[class]).join(format!("{number:04}.jpg"));
            fs::write(&path, &jpeg).with_context(|| path.display().to_string())?;
            bytes += jpeg.len() as u64;
            done();
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_fold(0, |sum, thread| {
            let bytes = thread.join().map_err(|_| anyhow::anyhow!("a thread that draws failed"))?;
            Ok(sum + bytes?)
        })
    })
}

type Colour = [f32; 3];

fn blend(from: Colour, to: Colour, share: f32) -> Colour {
    let share = share.clamp(0.0, 1.0);
    [0, 1, 2].map(|at| from[at] + (to[at] - from[at]) * share)
}

/// A number in 0..1 for a point of a lattice.
fn chance(seed: u64, x: i32, y: i32) -> f32 {
    let point = (x as u32 as u64) << 32 | u64::from(y as u32);
    (mix(seed, point) >> 40) as f32 / (1u64 << 24) as f32
}

/// Smooth noise in 0..1: chances on a lattice, and curves between them.
fn noise(seed: u64, x: f32, y: f32) -> f32 {
    let (left, top) = (x.floor(), y.floor());
    let ease = |t: f32| t * t * (3.0 - 2.0 * t);
    let (across, down) = (ease(x - left), ease(y - top));
    let (left, top) = (left as i32, top as i32);
    let row = |y: i32| {
        let (a, b) = (chance(seed, left, y), chance(seed, left + 1, y));
        a + (b - a) * across
    };
    let (upper, lower) = (row(top), row(top + 1));
    upper + (lower - upper) * down
}

/// Noise of several sizes on top of each other.
fn clouds(seed: u64, x: f32, y: f32) -> f32 {
    let octaves = [(1.0, 0.5), (2.1, 0.28), (4.3, 0.15), (8.9, 0.07)];
    octaves.iter().map(|(scale, weight)| noise(seed, x * scale, y * scale) * weight).sum()
}

/// Draws photo `number` of a class.
fn draw(class: usize, number: u64, pixels: &mut [u8]) {
    let seed = mix(2024, number);
    let pick = |what: i32| chance(seed, what, -1);
    let tint: Colour = [pick(1) * 50.0 - 25.0, pick(2) * 30.0 - 15.0, pick(3) * 50.0 - 25.0];
    let scene: Box<dyn Fn(f32, f32) -> Colour> = match class {
        0 => city(seed),
        1 => coast(seed),
        2 => hills(seed),
        3 => marble(seed),
        _ => meadow(seed),
    };
    // Lenses are softer than sensors: the scene is computed at half the size.
    let (columns, lines) = (WIDTH / 2 + 2, HEIGHT / 2 + 2);
    let at = |cell: usize| 2.0 * cell as f32 / HEIGHT as f32;
    let coarse: Vec<Colour> =
        (0..lines * columns).map(|cell| scene(at(cell % columns), at(cell / columns))).collect();
    let grain = 15.0 + 12.0 * pick(4);
    for (y, row) in pixels.chunks_exact_mut(WIDTH * 3).enumerate() {
        for (x, pixel) in row.as_chunks_mut::<3>().0.iter_mut().enumerate() {
            let corner = y / 2 * columns + x / 2;
            let (right, below) = (corner + x % 2, corner + y % 2 * columns);
            let across = right + y % 2 * columns;
            let cells = [coarse[corner], coarse[right], coarse[below], coarse[across]];
            // Light falls off to the corners, and the sensor adds grain.
            let (dx, dy) = (x as f32 / WIDTH as f32 - 0.5, y as f32 / HEIGHT as f32 - 0.5);
            let light = 1.05 - 0.5 * (dx * dx + dy * dy);
            let bits = mix(seed ^ 77, (y * WIDTH + x) as u64);
            let speck = (((bits & 0xFFFF) + (bits >> 16 & 0xFFFF)) as f32 / 65_536.0 - 1.0) * grain;
            for (at, value) in pixel.iter_mut().enumerate() {
                let own = (bits >> (32 + 8 * at) & 0xFF) as f32 / 256.0 - 0.5;
                let colour = cells.iter().map(|cell| cell[at]).sum::<f32>() / 4.0 + tint[at];
                *value = (colour * light + speck + own * grain * 0.5) as u8;
            }
        }
    }
}

fn coast(seed: u64) -> Box<dyn Fn(f32, f32) -> Colour> {
    let horizon = 0.45 + 0.2 * chance(seed, 5, 0);
    let (sun_x, sun_y) =
        (0.25 + 0.8 * chance(seed, 6, 0), horizon * (0.35 + 0.5 * chance(seed, 7, 0)));
    Box::new(move |x, y| {
        if y < horizon {
            let sky = blend([70.0, 120.0, 190.0], [250.0, 190.0, 130.0], (y / horizon).powi(2));
            let sky =
                blend(sky, [245.0, 240.0, 235.0], clouds(seed, x * 3.0, y * 7.0) * 1.6 - 0.75);
            let distance = ((x - sun_x).powi(2) + (y - sun_y).powi(2)).sqrt();
            return blend([255.0, 244.0, 205.0], sky, (distance - 0.05) * 9.0);
        }
        let near = (y - horizon) / (1.0 - horizon);
        let waves = noise(seed ^ 1, x * 9.0 / (near + 0.15), 30.0 * near.sqrt());
        let sea = blend([40.0, 80.0, 110.0], [150.0, 175.0, 185.0], waves * 0.8 - 0.1);
        let glitter = (1.0 - (x - sun_x).abs() * 5.0).max(0.0) * waves;
        blend(sea, [255.0, 225.0, 170.0], glitter)
    })
}

fn hills(seed: u64) -> Box<dyn Fn(f32, f32) -> Colour> {
    let near = [40.0 + 40.0 * chance(seed, 5, 0), 70.0, 45.0];
    Box::new(move |x, y| {
        let mut colour = blend([120.0, 165.0, 215.0], [235.0, 225.0, 215.0], y * 1.6);
        colour = blend(colour, [250.0; 3], clouds(seed, x * 2.5, y * 5.0) * 1.8 - 0.9);
        for ridge in 0..4u8 {
            let depth = f32::from(ridge) / 3.0;
            let top = 0.38 + 0.17 * f32::from(ridge)
                - 0.3 * (1.0 - 0.4 * depth) * (clouds(seed ^ u64::from(ridge), x * 2.2, 0.5) - 0.4);
            if y > top {
                let ground = blend([165.0, 180.0, 195.0], near, depth);
                let texture = noise(seed ^ 9, x * 60.0, y * 60.0) * 40.0 * depth - 20.0 * depth;
                colour = ground.map(|value| value + texture - (y - top) * 60.0);
            }
        }
        colour
    })
}

fn meadow(seed: u64) -> Box<dyn Fn(f32, f32) -> Colour> {
    let petals =
        [[235.0, 70.0, 80.0], [245.0, 200.0, 60.0], [235.0, 235.0, 245.0], [150.0, 90.0, 200.0]];
    Box::new(move |x, y| {
        let grass = clouds(seed, x * 14.0, y * 5.0);
        let mut colour = blend([35.0, 75.0, 25.0], [150.0, 185.0, 80.0], grass * 1.3 - 0.15);
        let size = 0.07 + 0.05 * y;
        let (column, line) = ((x / size).floor() as i32, (y / size).floor() as i32);
        if chance(seed ^ 3, column, line) < 0.45 {
            let middle = |cell: i32, what: u64| {
                (cell as f32 + 0.35 + 0.3 * chance(seed ^ what, column, line)) * size
            };
            let (dx, dy) = (x - middle(column, 4), y - middle(line, 5));
            let petal = 1.0 + 0.3 * (dy.atan2(dx) * 5.0).cos();
            let distance = (dx * dx + dy * dy).sqrt() / (size * 0.3 * petal);
            let kind = (chance(seed ^ 6, column, line) * 4.0) as usize;
            if distance < 1.0 {
                colour = petals[kind.min(3)].map(|value: f32| value * (1.05 - 0.35 * distance));
            }
            if distance < 0.3 {
                colour = [215.0, 165.0, 40.0];
            }
        }
        colour
    })
}

fn city(seed: u64) -> Box<dyn Fn(f32, f32) -> Colour> {
    let dusk = chance(seed, 5, 0);
    Box::new(move |x, y| {
        let low = blend([240.0, 200.0, 160.0], [90.0, 70.0, 110.0], dusk);
        let mut colour =
            blend(blend([110.0, 160.0, 220.0], [20.0, 25.0, 60.0], dusk), low, y * 1.3);
        for row in 0..3u8 {
            let width = 0.11 + 0.03 * f32::from(row);
            let shifted = x + 0.37 * f32::from(row);
            let tower = (shifted / width).floor();
            let number = tower as i32 + 100 * i32::from(row);
            let top = 0.25 + 0.17 * f32::from(row) + 0.3 * chance(seed, number, 8);
            if y > top {
                let wall = 60.0 + 90.0 * chance(seed, number, 9) * (1.1 - dusk);
                let inside = shifted - tower * width;
                colour = [wall, wall * 0.96, wall * (0.9 + 0.15 * dusk)]
                    .map(|v| v - 40.0 * inside / width);
                let (window_x, window_y) = (inside / 0.022, (y - top) / 0.03);
                if window_x.fract() > 0.35 && window_y.fract() > 0.45 {
                    let pane = (window_x as i32) * 64 + window_y as i32;
                    let lit = chance(seed ^ 2, number, pane) < 0.25 + 0.4 * dusk;
                    colour = if lit { [250.0, 215.0, 140.0] } else { colour.map(|v| v * 0.6) };
                }
            }
        }
        colour
    })
}

fn marble(seed: u64) -> Box<dyn Fn(f32, f32) -> Colour> {
    let base: Colour = [0, 1, 2].map(|at| 120.0 + 110.0 * chance(seed, at, 5));
    let (along, across) = (2.0 + 5.0 * chance(seed, 6, 0), 2.0 + 5.0 * chance(seed, 7, 0));
    Box::new(move |x, y| {
        let bend = clouds(seed, x * 4.0, y * 4.0);
        let vein = ((x * along + y * across + bend * 6.0) * 2.0).sin().abs().powf(0.35);
        let stone = blend([50.0, 45.0, 60.0], base, vein);
        blend(stone, [240.0, 238.0, 232.0], clouds(seed ^ 4, x * 11.0, y * 11.0) - 0.2)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn photos_are_as_large_as_photos() {
        let folder = tempfile::tempdir().unwrap();
        let bytes = make(folder.path(), 10, 2, || {}).unwrap();
        assert!((60_000..140_000).contains(&(bytes / 10)), "{} bytes each", bytes / 10);
        assert_eq!(fs::read_dir(folder.path().join("city")).unwrap().count(), 2);
    }
}
