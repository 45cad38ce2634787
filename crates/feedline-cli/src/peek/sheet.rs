//! A contact sheet: images side by side in one PNG.

use super::{numbers, range};
use anyhow::Result;
use feedline_core::{DType, Layout, Tensor};
use image::imageops::{self, FilterType};
use image::{Rgb, RgbImage};
use std::path::Path;

/// Images are shrunk to this side.
const LARGEST: u32 = 256;
/// Images are enlarged, by a whole factor, towards this side.
const SMALLEST: u32 = 96;
/// Pixels between tiles, and around them.
const GAP: u32 = 6;

/// A picture of an image tensor: 8-bit values as they are, others stretched from black to white.
/// `None` if it has not 1 or 3 channels.
pub(super) fn tile(tensor: &Tensor, layout: Layout) -> Option<RgbImage> {
    let &[first, second, third] = tensor.shape() else { return None };
    let (height, width, channels) = match layout {
        Layout::Hwc => (first, second, third),
        Layout::Chw => (second, third, first),
    };
    if !matches!(channels, 1 | 3) || width == 0 || height == 0 {
        return None;
    }
    let mut values = numbers(tensor);
    if tensor.dtype() != DType::U8 {
        let (low, high) = range(&values);
        let scale = if high > low { 255.0 / (high - low) } else { 0.0 };
        for value in &mut values {
            *value = (*value - low) * scale;
        }
    }
    let at = |x: usize, y: usize, channel: usize| {
        let channel = channel.min(channels - 1);
        let index = match layout {
            Layout::Hwc => (y * width + x) * channels + channel,
            Layout::Chw => (channel * height + y) * width + x,
        };
        // What is not a number becomes black.
        values[index].round() as u8
    };
    let picture =
        RgbImage::from_fn(u32::try_from(width).ok()?, u32::try_from(height).ok()?, |x, y| {
            let (x, y) = (x as usize, y as usize);
            Rgb([at(x, y, 0), at(x, y, 1), at(x, y, 2)])
        });
    Some(fitted(picture))
}

fn fitted(picture: RgbImage) -> RgbImage {
    let (width, height) = picture.dimensions();
    let side = width.max(height);
    if side > LARGEST {
        let to =
            |length: u32| (u64::from(length) * u64::from(LARGEST) / u64::from(side)).max(1) as u32;
        return imageops::thumbnail(&picture, to(width), to(height));
    }
    match SMALLEST / side {
        0 | 1 => picture,
        factor => imageops::resize(&picture, width * factor, height * factor, FilterType::Nearest),
    }
}

/// Tiles on a grid that is about as high as wide.
pub(super) struct Sheet(RgbImage);

impl Sheet {
    pub(super) fn of(tiles: &[RgbImage]) -> Self {
        let largest = |side: fn(&RgbImage) -> u32| tiles.iter().map(side).max().unwrap_or(1);
        let (width, height) = (largest(RgbImage::width), largest(RgbImage::height));
        let count = tiles.len().max(1) as u32;
        let columns = (f64::from(count).sqrt().ceil() as u32).max(1);
        let lines = count.div_ceil(columns);
        let mut sheet = RgbImage::from_pixel(
            GAP + columns * (width + GAP),
            GAP + lines * (height + GAP),
            Rgb([24, 26, 30]),
        );
        for (tile, number) in tiles.iter().zip(0u32..) {
            let (column, line) = (number % columns, number / columns);
            let x = GAP + column * (width + GAP) + (width - tile.width()) / 2;
            let y = GAP + line * (height + GAP) + (height - tile.height()) / 2;
            imageops::replace(&mut sheet, tile, x.into(), y.into());
        }
        Self(sheet)
    }

    pub(super) fn size(&self) -> (u32, u32) {
        self.0.dimensions()
    }

    /// Writes the sheet as PNG, whatever the file is called.
    pub(super) fn save(&self, path: &Path) -> Result<()> {
        Ok(self.0.save_with_format(path, image::ImageFormat::Png)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_and_types_give_the_same_tile() {
        let hwc: Vec<u8> = (0..4 * 5 * 3).map(|v| v * 4).collect();
        let chw: Vec<f32> =
            (0..3).flat_map(|c| (0..20).map(move |pixel| (pixel * 3 + c) as f32 * 4.0)).collect();
        let bytes = tile(&Tensor::from_slice(&[4, 5, 3], &hwc), Layout::Hwc).unwrap();
        let floats = tile(&Tensor::from_slice(&[3, 4, 5], &chw), Layout::Chw).unwrap();
        assert_eq!((bytes.width(), bytes.height()), (5 * 19, 4 * 19));
        assert_eq!(bytes.get_pixel(0, 0), &Rgb([0, 4, 8]));
        // Floats are stretched: 0 to 236 becomes 0 to 255.
        assert_eq!(floats.get_pixel(94, 75), &Rgb([246, 251, 255]));
    }

    #[test]
    fn what_cannot_be_drawn_is_left_out() {
        assert!(tile(&Tensor::from_slice(&[1, 1, 2], &[1u8, 2]), Layout::Hwc).is_none());
        assert!(tile(&Tensor::from_slice(&[2], &[1u8, 2]), Layout::Hwc).is_none());
        let odd = Tensor::from_slice(&[1, 1, 3], &[f32::NAN, f32::INFINITY, 1.0]);
        assert!(tile(&odd, Layout::Hwc).is_some());
    }

    #[test]
    fn large_images_are_shrunk_and_tiles_lie_on_a_grid() {
        let large = Tensor::from_slice(&[512, 1024, 1], &vec![200u8; 512 * 1024]);
        let tiles = vec![tile(&large, Layout::Hwc).unwrap(); 5];
        assert_eq!(tiles[0].dimensions(), (256, 128));
        assert_eq!(Sheet::of(&tiles).size(), (6 + 3 * 262, 6 + 2 * 134));
    }
}
