//! A border around an image.

use crate::decode::Picture;
use feedline_core::{Context, Error, Layout, Result, Tensor, Value};
use serde::{Deserialize, Serialize};

/// Pixels to add on each side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Padding {
    /// On the left.
    pub left: usize,
    /// Above.
    pub top: usize,
    /// On the right.
    pub right: usize,
    /// Below.
    pub bottom: usize,
}

/// What a border is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PaddingMode {
    /// One value.
    #[default]
    Constant,
    /// The outermost pixel, again and again.
    Edge,
    /// The image mirrored, the outermost pixel not repeated.
    Reflect,
    /// The image mirrored, the outermost pixel repeated.
    Symmetric,
}

impl PaddingMode {
    /// Which of `size` pixels stands at `at`, which may lie outside; `None` for the fill value.
    fn source(self, at: isize, size: usize) -> Option<usize> {
        let last = size as isize - 1;
        let inside = match self {
            Self::Constant => return (0..=last).contains(&at).then_some(at as usize),
            Self::Edge => at.clamp(0, last),
            Self::Reflect if at < 0 => -at,
            Self::Reflect if at > last => 2 * last - at,
            Self::Symmetric if at < 0 => -at - 1,
            Self::Symmetric if at > last => 2 * last + 1 - at,
            _ => at,
        };
        Some(inside as usize)
    }

    /// The widest border that can be made of `size` pixels.
    fn widest(self, size: usize) -> usize {
        match self {
            Self::Constant | Self::Edge => usize::MAX,
            Self::Reflect => size - 1,
            Self::Symmetric => size,
        }
    }
}

/// Computes the picture and puts a border around it.
pub(crate) fn pad(
    picture: Box<Picture>,
    padding: Padding,
    mode: PaddingMode,
    fill: u8,
    context: &mut Context<'_>,
) -> Result<Box<Picture>> {
    let Padding { left, top, right, bottom } = padding;
    let (width, height) = picture.size();
    if left.max(right) > mode.widest(width) || top.max(bottom) > mode.widest(height) {
        return Err(Error::record(format!(
            "a border of {left}, {top}, {right}, {bottom} pixels (left, top, right, bottom) \
             cannot be mirrored from {width}×{height} pixels"
        )));
    }
    let layout = picture.described_layout();
    let tensor = picture.into_pixels(context)?;
    let pixel = tensor.data().len() / (width * height).max(1);
    let (new_width, new_height) = (width + left + right, height + top + bottom);
    let bytes = new_width.saturating_mul(new_height).saturating_mul(pixel);
    if bytes > 4 << 30 {
        return Err(Error::record(format!(
            "{width}×{height} pixels would be padded to {new_width}×{new_height}"
        )));
    }
    let mut buffer = context.workspace.pool.take(bytes)?;
    for (y, row) in buffer.chunks_exact_mut(new_width * pixel).enumerate() {
        let from_y = mode.source(y as isize - top as isize, height);
        for (x, to) in row.chunks_exact_mut(pixel).enumerate() {
            match (from_y, mode.source(x as isize - left as isize, width)) {
                (Some(y), Some(x)) => {
                    let start = (y * width + x) * pixel;
                    to.copy_from_slice(&tensor.data()[start..start + pixel]);
                }
                _ => to.fill(fill),
            }
        }
    }
    let shape = [new_height, new_width, tensor.shape()[2]];
    let padded = Tensor::new(tensor.dtype(), &shape, buffer.freeze())?;
    let mut picture = Picture::from_value(Value::Tensor(padded), Layout::Hwc, context)?;
    picture.layout(layout);
    Ok(picture)
}
