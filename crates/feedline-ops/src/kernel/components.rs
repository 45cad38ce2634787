//! The connected parts of each class in a mask, and the boxes around them.
//!
//! ```text
//!  row by row ──► runs of one class ──► joined with runs they touch in the row before,
//!                                       the plane before and the volume before
//! ```
//!
//! One pass over the mask: background is skipped a word at a time, a run is joined (union-find) as a
//! whole, and boxes grow with their component, so nothing is ever labelled voxel by voxel. All
//! classes are found at once.

use std::collections::BTreeMap;

/// The box of a component: first index and the one after the last, along volume, depth, height and
/// width.
pub type Bounds = [[usize; 2]; 4];

/// For each class above 0, the boxes of its two largest components (by the volume of the box), the
/// larger last; of equal ones the later counts as larger.
pub type Largest = BTreeMap<i64, Vec<Bounds>>;

/// A run of one class in a row.
#[derive(Clone, Copy, Debug)]
struct Run {
    start: u32,
    end: u32,
    class: i64,
    component: u32,
}

/// The component of a run that has not been found to touch one.
const NONE: u32 = u32::MAX;

/// A component, or what is now part of an earlier one.
#[derive(Clone, Copy, Debug)]
struct Component {
    parent: u32,
    class: i64,
    bounds: [[u32; 2]; 4],
}

/// A number that can name a class.
pub trait Class: Copy + PartialEq {
    /// The class as a number; 0 and less are background.
    fn class(self) -> i64;

    /// The first place from `at` on that holds something else than `same`.
    fn run_end(row: &[Self], at: usize, same: Self) -> usize {
        row[at..].iter().position(|value| *value != same).map_or(row.len(), |found| at + found)
    }
}

macro_rules! classes {
    ($($number:ty),*) => {$(
        impl Class for $number {
            fn class(self) -> i64 {
                self as i64
            }
        }
    )*};
}

classes!(i8, u16, i16, u32, i32, u64, i64);

impl Class for u8 {
    fn class(self) -> i64 {
        i64::from(self)
    }

    fn run_end(row: &[u8], mut at: usize, same: u8) -> usize {
        // Four words at a time, then one, then bytes: most of a mask is long runs.
        let pattern = u64::from_ne_bytes([same; 8]);
        let word = |at: usize| {
            u64::from_ne_bytes(row[at..at + 8].try_into().expect("eight bytes")) ^ pattern
        };
        while at + 32 <= row.len() && word(at) | word(at + 8) | word(at + 16) | word(at + 24) == 0 {
            at += 32;
        }
        while at + 8 <= row.len() {
            let odd = word(at);
            if odd != 0 {
                let first = if cfg!(target_endian = "little") {
                    odd.trailing_zeros()
                } else {
                    odd.leading_zeros()
                };
                return at + (first / 8) as usize;
            }
            at += 8;
        }
        row[at..].iter().position(|value| *value != same).map_or(row.len(), |found| at + found)
    }
}

/// Finds the components of a mask of `shape` (volumes, depth, height, width) that are joined by
/// faces, and keeps the boxes of the two largest of each class. `None` if there are more than
/// `most` classes.
///
/// # Panics
///
/// If the mask has another number of voxels.
pub fn largest<T: Class>(mask: &[T], shape: [usize; 4], most: usize) -> Option<Largest> {
    assert_eq!(mask.len(), shape.iter().product::<usize>(), "a mask of {shape:?}");
    let [volumes, depth, height, width] = shape;
    let mut components: Vec<Component> = Vec::new();
    // Runs of the plane before and of this one, and where each of their rows begins among them.
    let (mut before, mut now) = (Rows::default(), Rows::default());
    // Runs of the volume before, plane by plane, where there is more than one volume.
    let mut planes_before: Vec<Rows> = Vec::new();
    let mut planes_now: Vec<Rows> = Vec::new();
    if mask.is_empty() {
        return Some(Largest::new());
    }
    let mut rows = mask.chunks_exact(width);
    for volume in 0..volumes {
        before.clear();
        for plane in 0..depth {
            now.clear();
            for line in 0..height {
                let row = rows.next().expect("as many rows as the shape says");
                let begin = now.runs.len();
                now.starts.push(begin);
                let mut at = 0;
                while at < width {
                    let value = row[at];
                    let end = T::run_end(row, at + 1, value);
                    let class = value.class();
                    if class > 0 {
                        let (start, end) = (at as u32, end as u32);
                        now.runs.push(Run { start, end, class, component: NONE });
                    }
                    at = end;
                }
                if now.runs.len() == begin {
                    continue;
                }
                let (earlier, these) = now.runs.split_at_mut(begin);
                if line > 0 {
                    join(&mut components, these, &earlier[now.starts[line - 1]..]);
                }
                join(&mut components, these, before.row(line));
                if let Some(rows) = planes_before.get(plane) {
                    join(&mut components, these, rows.row(line));
                }
                settle(&mut components, these, [volume, plane, line]);
            }
            if volumes > 1 {
                planes_now.push(now.clone());
            }
            std::mem::swap(&mut before, &mut now);
        }
        planes_before = std::mem::take(&mut planes_now);
    }
    collect(&components, most)
}

/// The runs of a plane.
#[derive(Clone, Debug, Default)]
struct Rows {
    runs: Vec<Run>,
    starts: Vec<usize>,
}

impl Rows {
    fn clear(&mut self) {
        self.runs.clear();
        self.starts.clear();
    }

    fn row(&self, line: usize) -> &[Run] {
        let Some(start) = self.starts.get(line) else { return &[] };
        let end = self.starts.get(line + 1).copied().unwrap_or(self.runs.len());
        &self.runs[*start..end]
    }
}

/// Joins the runs of a row with those of a neighbouring row that they touch.
fn join(components: &mut [Component], these: &mut [Run], others: &[Run]) {
    let mut others = others.iter().peekable();
    for this in these {
        while let Some(other) = others.peek() {
            if other.start >= this.end {
                break;
            }
            if other.end > this.start && other.class == this.class {
                this.component = match this.component {
                    NONE => root(components, other.component),
                    component => unite(components, component, other.component),
                };
            }
            if other.end > this.end {
                break;
            }
            others.next();
        }
    }
}

/// Counts runs to the components that they touch; those that touch none begin new ones.
fn settle(components: &mut Vec<Component>, runs: &mut [Run], place: [usize; 3]) {
    let [volume, plane, line] = place.map(|at| [at as u32, at as u32 + 1]);
    for run in runs {
        let bounds = [volume, plane, line, [run.start, run.end]];
        if run.component == NONE {
            run.component = components.len() as u32;
            components.push(Component { parent: run.component, class: run.class, bounds });
        } else {
            // A later run of this row may have made it part of an earlier component.
            let component = root(components, run.component);
            grow(&mut components[component as usize].bounds, bounds);
        }
    }
}

fn grow(bounds: &mut [[u32; 2]; 4], more: [[u32; 2]; 4]) {
    for (side, more) in bounds.iter_mut().zip(more) {
        *side = [side[0].min(more[0]), side[1].max(more[1])];
    }
}

fn root(components: &mut [Component], mut at: u32) -> u32 {
    while components[at as usize].parent != at {
        let parent = components[at as usize].parent;
        let above = components[parent as usize].parent;
        components[at as usize].parent = above;
        at = above;
    }
    at
}

/// Makes two components one. The one whose first voxel came first stands for both.
fn unite(components: &mut [Component], a: u32, b: u32) -> u32 {
    let (a, b) = (root(components, a), root(components, b));
    if a == b {
        return a;
    }
    let (first, second) = (a.min(b), a.max(b));
    components[second as usize].parent = first;
    let other = components[second as usize].bounds;
    grow(&mut components[first as usize].bounds, other);
    first
}

fn collect(components: &[Component], most: usize) -> Option<Largest> {
    let volume =
        |bounds: &Bounds| -> usize { bounds.iter().map(|side| side[1] - side[0]).product() };
    let mut largest = Largest::new();
    for (at, component) in components.iter().enumerate() {
        if component.parent as usize != at {
            continue;
        }
        if largest.len() == most && !largest.contains_key(&component.class) {
            return None;
        }
        let bounds = component.bounds.map(|side| side.map(|at| at as usize));
        let kept = largest.entry(component.class).or_default();
        let place = kept.partition_point(|other| volume(other) <= volume(&bounds));
        kept.insert(place, bounds);
        if kept.len() > 2 {
            kept.remove(0);
        }
    }
    Some(largest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The same, by flooding each component voxel by voxel.
    fn flooded(mask: &[u8], shape: [usize; 4]) -> Largest {
        let strides = [shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1];
        let place = |at: usize| -> [usize; 4] {
            std::array::from_fn(|axis| at / strides[axis] % shape[axis])
        };
        let mut seen = vec![false; mask.len()];
        let mut found: BTreeMap<i64, Vec<(usize, Bounds)>> = BTreeMap::new();
        for start in 0..mask.len() {
            if seen[start] || mask[start] == 0 {
                continue;
            }
            let mut bounds = place(start).map(|at| [at, at + 1]);
            let mut open = vec![start];
            seen[start] = true;
            while let Some(at) = open.pop() {
                for axis in 0..4 {
                    let index = place(at)[axis];
                    bounds[axis] = [bounds[axis][0].min(index), bounds[axis][1].max(index + 1)];
                    let mut visit = |next: usize| {
                        if !seen[next] && mask[next] == mask[start] {
                            seen[next] = true;
                            open.push(next);
                        }
                    };
                    if index > 0 {
                        visit(at - strides[axis]);
                    }
                    if index + 1 < shape[axis] {
                        visit(at + strides[axis]);
                    }
                }
            }
            let volume = bounds.iter().map(|side| side[1] - side[0]).product();
            found.entry(i64::from(mask[start])).or_default().push((volume, bounds));
        }
        let two = |mut all: Vec<(usize, Bounds)>| {
            all.sort_by_key(|(volume, _)| *volume);
            all.into_iter().rev().take(2).rev().map(|(_, bounds)| bounds).collect()
        };
        found.into_iter().map(|(class, all)| (class, two(all))).collect()
    }

    proptest! {
        #[test]
        fn the_fast_way_finds_what_flooding_finds(
            shape in (1usize..3, 1usize..5, 1usize..6, 1usize..70),
            classes in 1u8..4,
            share in 1u32..10,
            seed in any::<u32>(),
        ) {
            let shape = [shape.0, shape.1, shape.2, shape.3];
            let mut state = seed;
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                state >> 16
            };
            let mut value = 0;
            let mask: Vec<u8> = (0..shape.iter().product::<usize>())
                .map(|_| {
                    if next() % 4 == 0 {
                        value = if next() % 10 < share { 1 + (next() % u32::from(classes)) as u8 } else { 0 };
                    }
                    value
                })
                .collect();
            let wanted = flooded(&mask, shape);
            prop_assert_eq!(largest(&mask, shape, 10).unwrap(), wanted.clone());
            let wide: Vec<i16> = mask.iter().map(|value| i16::from(*value)).collect();
            prop_assert_eq!(largest(&wide, shape, 10).unwrap(), wanted);
        }
    }

    #[test]
    fn background_is_zero_and_below() {
        assert!(largest(&[0i16, -1, -5, 0], [1, 1, 2, 2], 10).unwrap().is_empty());
        assert!(largest::<u8>(&[], [1, 0, 2, 2], 10).unwrap().is_empty());
        assert!(largest(&[1u8, 2, 3, 4], [1, 1, 2, 2], 3).is_none());
    }
}
