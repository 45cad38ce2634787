//! A volume of another extent, resampled or padded or both, of which any box can be computed by
//! itself.
//!
//! ```text
//!  index ─(minus the padding before, kept inside)─► index of the resampled volume ─► old voxels
//! ```

use super::volume::{Region, spatial};
use feedline_core::{Buffer, Error, Pool, Result, Tensor};

/// How voxels are made of old ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// They are the same.
    Same,
    /// The nearest.
    Nearest,
    /// Weighted means of the eight around, in `float32`.
    Linear,
}

/// A volume that is described by the one it is made of.
pub(crate) struct Made {
    from: Tensor,
    way: Way,
    /// The extent after resampling.
    inner: [usize; 3],
    /// Voxels that padding puts before them along each axis.
    before: [usize; 3],
}

/// Where an index lies between two old ones, and the weight of the second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Between {
    pub low: usize,
    pub high: usize,
    pub weight: f32,
}

impl Between {
    /// Index `at` of `new` that cover the same as `old`, with the first and the last voxel staying where
    /// they are.
    pub(super) fn new(at: usize, old: usize, new: usize) -> Self {
        let scale = if new > 1 { (old - 1) as f32 / (new - 1) as f32 } else { 0.0 };
        let place = at as f32 * scale;
        let low = (place as usize).min(old - 1);
        Self { low, high: (low + 1).min(old - 1), weight: place - low as f32 }
    }
}

/// The old index at `floor(at · old / new)`, in single precision.
pub(super) fn nearest(at: usize, old: usize, new: usize) -> usize {
    ((at as f32 * (old as f32 / new as f32)) as usize).min(old - 1)
}

impl Made {
    /// What becomes of `from` at another extent.
    pub(crate) fn new(from: Tensor, way: Way, extent: [usize; 3]) -> Self {
        Self { from, way, inner: extent, before: [0; 3] }
    }

    /// Puts so many voxels more before it along each axis; how many come after it is up to whoever
    /// asks for them. The border repeats the outermost.
    pub(crate) fn pad(&mut self, before: [usize; 3]) {
        for (all, more) in self.before.iter_mut().zip(before) {
            *all += more;
        }
    }

    /// Indices of the resampled volume for those of a box along an axis.
    fn inner(&self, region: &Region, axis: usize) -> impl Iterator<Item = usize> {
        let (before, last) = (self.before[axis], self.inner[axis] - 1);
        let start = region.start[axis];
        (start..start + region.size[axis]).map(move |at| at.saturating_sub(before).min(last))
    }

    /// Computes a box of it.
    ///
    /// # Errors
    ///
    /// If there is no memory for it.
    pub(crate) fn region(&self, region: &Region, pool: &Pool) -> Result<Buffer> {
        let (volumes, old) = spatial(self.from.shape());
        let element = self.from.dtype().size().unwrap_or(1);
        let mut out = pool.take(volumes * region.size.iter().product::<usize>() * element)?;
        if !out.is_empty() {
            match self.way {
                Way::Linear => self.blend(region, volumes, old, &mut out)?,
                Way::Nearest | Way::Same => match element {
                    1 => self.pick::<1>(region, volumes, old, &mut out),
                    2 => self.pick::<2>(region, volumes, old, &mut out),
                    4 => self.pick::<4>(region, volumes, old, &mut out),
                    _ => self.pick::<8>(region, volumes, old, &mut out),
                },
            }
        }
        Ok(out.freeze())
    }

    fn pick<const N: usize>(
        &self,
        region: &Region,
        volumes: usize,
        old: [usize; 3],
        out: &mut [u8],
    ) {
        let [planes, lines, columns]: [Vec<usize>; 3] = std::array::from_fn(|axis| {
            let place = |at| match self.way {
                Way::Nearest => nearest(at, old[axis], self.inner[axis]),
                _ => at,
            };
            self.inner(region, axis).map(place).collect()
        });
        let straight = columns.windows(2).all(|pair| pair[1] == pair[0] + 1);
        let data = self.from.data().as_chunks::<N>().0;
        let mut rows = out.as_chunks_mut::<N>().0.chunks_exact_mut(columns.len());
        for volume in 0..volumes {
            for plane in &planes {
                for line in &lines {
                    let from = ((volume * old[0] + plane) * old[1] + line) * old[2];
                    let (from, to) = (&data[from..from + old[2]], rows.next());
                    let Some(to) = to else { return };
                    if straight {
                        to.copy_from_slice(&from[columns[0]..columns[0] + columns.len()]);
                        continue;
                    }
                    for (to, at) in to.iter_mut().zip(&columns) {
                        *to = from[*at];
                    }
                }
            }
        }
    }

    /// Planes are blended, then their rows, then the numbers of a row, so that most of the work is
    /// on runs of neighbours; only on those that the box needs.
    fn blend(
        &self,
        region: &Region,
        volumes: usize,
        old: [usize; 3],
        out: &mut [u8],
    ) -> Result<()> {
        let data = self.from.as_slice::<f32>();
        let data = data.ok_or_else(|| Error::Internal("floats askew".into()))?;
        let [planes, mut lines, mut columns]: [Vec<Between>; 3] = std::array::from_fn(|axis| {
            let place = |at| Between::new(at, old[axis], self.inner[axis]);
            self.inner(region, axis).map(place).collect()
        });
        let (first_line, height) = part(&mut lines);
        let (first_column, width) = part(&mut columns);
        let (mut plane, mut row) = (vec![0.0; height * width], vec![0.0; width]);
        let mut rows = out.as_chunks_mut::<4>().0.chunks_exact_mut(columns.len());
        for volume in 0..volumes {
            for at in &planes {
                for (line, to) in plane.chunks_exact_mut(width).enumerate() {
                    let of = |plane: usize| {
                        let line = (volume * old[0] + plane) * old[1] + first_line + line;
                        &data[line * old[2] + first_column..][..width]
                    };
                    mean(of(at.low), of(at.high), at.weight, to);
                }
                for at in &lines {
                    let of = |line: usize| &plane[line * width..][..width];
                    mean(of(at.low), of(at.high), at.weight, &mut row);
                    let Some(to) = rows.next() else { return Ok(()) };
                    for (to, at) in to.iter_mut().zip(&columns) {
                        let value = (1.0 - at.weight) * row[at.low] + at.weight * row[at.high];
                        *to = value.to_ne_bytes();
                    }
                }
            }
        }
        Ok(())
    }
}

/// Which old indices are needed, as the first of them and their number; the places then count from
/// the first.
fn part(places: &mut [Between]) -> (usize, usize) {
    let first = places.iter().map(|place| place.low).min().unwrap_or(0);
    let last = places.iter().map(|place| place.high).max().unwrap_or(0);
    for place in places {
        place.low -= first;
        place.high -= first;
    }
    (first, last + 1 - first)
}

/// The weighted means of two equal runs of numbers.
pub(super) fn mean(low: &[f32], high: &[f32], weight: f32, out: &mut [f32]) {
    for ((to, low), high) in out.iter_mut().zip(low).zip(high) {
        *to = (1.0 - weight) * low + weight * high;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_box_is_that_part_of_the_whole() {
        let pool = Pool::new(0);
        let numbers: Vec<f32> = (0..2 * 4 * 5 * 6).map(|n| (n * 37 % 101) as f32).collect();
        let tensor = Tensor::from_slice(&[2, 4, 5, 6], &numbers);
        for way in [Way::Same, Way::Nearest, Way::Linear] {
            let extent = if way == Way::Same { [4, 5, 6] } else { [7, 3, 9] };
            let mut made = Made::new(tensor.clone(), way, extent);
            made.pad([2, 0, 1]);
            let size = [extent[0] + 5, extent[1], extent[2] + 2];
            let all = made.region(&Region { start: [0; 3], size }, &pool).unwrap();
            let all = all.as_chunks::<4>().0;
            for region in [
                Region { start: [0, 0, 0], size: [1, 1, 1] },
                Region { start: [1, 1, 2], size: [6, 2, 4] },
                Region { start: [size[0] - 2, 0, size[2] - 3], size: [2, 3, 3] },
            ] {
                let found = made.region(&region, &pool).unwrap();
                let mut found = found.as_chunks::<4>().0.iter();
                for volume in 0..2 {
                    for plane in 0..region.size[0] {
                        for line in 0..region.size[1] {
                            for column in 0..region.size[2] {
                                let at = [plane, line, column];
                                let [z, y, x] =
                                    std::array::from_fn(|axis| region.start[axis] + at[axis]);
                                let at = ((volume * size[0] + z) * size[1] + y) * size[2] + x;
                                assert_eq!(found.next(), Some(&all[at]), "{way:?} {region:?}");
                            }
                        }
                    }
                }
            }
        }
    }
}
