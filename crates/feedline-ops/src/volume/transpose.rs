//! From the order in which the first axis runs fastest to the one in which the last does.

/// Elements along the side of a tile: one of these fits into the first cache.
const TILE: usize = 32;

/// Copies an array whose first axis runs fastest (Fortran's order) into row-major order.
///
/// The first and the last axis change places tile by tile, so that both reads and writes are runs of
/// neighbours; the axes between are gone through one by one.
///
/// # Panics
///
/// If the lengths are not those of the shape.
pub(crate) fn to_rows_last(from: &[u8], to: &mut [u8], shape: &[usize], element: usize) {
    let length = shape.iter().product::<usize>() * element;
    assert!(from.len() == length && to.len() == length, "bytes of {shape:?}");
    if length == 0 {
        return;
    }
    // Axes of one element move nothing.
    let sides: Vec<usize> = shape.iter().copied().filter(|side| *side > 1).collect();
    match &sides[..] {
        [] | [_] => to.copy_from_slice(from),
        [first, middle @ .., last] => match element {
            1 => axes::<1>(from, to, *first, middle, *last),
            2 => axes::<2>(from, to, *first, middle, *last),
            4 => axes::<4>(from, to, *first, middle, *last),
            _ => axes::<8>(from, to, *first, middle, *last),
        },
    }
}

fn axes<const N: usize>(from: &[u8], to: &mut [u8], first: usize, middle: &[usize], last: usize) {
    let inner: usize = middle.iter().product();
    // Number of the place among the middle axes, counted with the first of them fastest, and where
    // that place lies when the last of them is.
    let place = |mut number: usize| {
        let (mut at, mut stride) = (0, inner);
        for side in middle {
            stride /= side;
            at += number % side * stride;
            number /= side;
        }
        at
    };
    let (from, to) = (from.as_chunks::<N>().0, to.as_chunks_mut::<N>().0);
    let mut tile = [[[0u8; N]; TILE]; TILE];
    for number in 0..inner {
        let base = place(number) * last;
        for row in (0..last).step_by(TILE) {
            let rows = TILE.min(last - row);
            for column in (0..first).step_by(TILE) {
                let columns = TILE.min(first - column);
                for (x, line) in tile[..rows].iter_mut().enumerate() {
                    let start = ((row + x) * inner + number) * first + column;
                    line[..columns].copy_from_slice(&from[start..start + columns]);
                }
                for y in 0..columns {
                    let start = (column + y) * inner * last + base + row;
                    let line = to[start..start + rows].iter_mut();
                    line.zip(&tile).for_each(|(to, from)| *to = from[y]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_goes_where_its_indices_say() {
        for shape in [vec![5], vec![3, 4], vec![40, 3, 37], vec![2, 3, 4, 5], vec![1, 7, 1, 2, 3]] {
            let count: usize = shape.iter().product();
            let from: Vec<u8> = (0..count as u16).flat_map(u16::to_le_bytes).collect();
            let mut to = vec![0; from.len()];
            to_rows_last(&from, &mut to, &shape, 2);
            for number in 0..count {
                let (mut rest, mut index) = (number, vec![0; shape.len()]);
                for axis in (0..shape.len()).rev() {
                    index[axis] = rest % shape[axis];
                    rest /= shape[axis];
                }
                let mut wanted = 0;
                for axis in (0..shape.len()).rev() {
                    wanted = wanted * shape[axis] + index[axis];
                }
                let found = u16::from_le_bytes([to[number * 2], to[number * 2 + 1]]);
                assert_eq!(usize::from(found), wanted, "{shape:?} {index:?}");
            }
        }
    }
}
