//! An array that is described but not read or computed yet.
//!
//! Steps extend the description; only what is left in the end is read, and computed in one pass:
//!
//! ```text
//!  file, bytes, tensor, ─► box (of the last three axes) ─► flips ─► pointwise changes
//!  or made of a tensor      (read or make only this)                (row by row, in the cache)
//! ```
//!
//! Crops and flips may come in any order, and before or after pointwise changes: a change of every
//! number by itself does not care where the number lies, and noise remembers which number of it
//! belongs to which place.
//!
//! In a plain run ([`Workspace::reference`](feedline_core::Workspace)) the volume keeps the list of
//! its changes as they were written, reads the whole array, and does one after the other to it. That is
//! what it means; the form above must equal it bit for bit.

use super::made::{Made, Way};
use super::part::{Part, swap};
use super::pointwise::{Noise, Pointwise, Spare, apply_all, apply_singles};
use crate::kernel::Level;
use feedline_core::{Buffer, Context, Cut, DType, Deferred, Error, Result, Shape, Tensor, Value};
use std::any::Any;

/// A box over the last three axes: where it begins, and its extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// First index along depth, height and width.
    pub start: [usize; 3],
    /// Number of indices along each.
    pub size: [usize; 3],
}

/// One change, as a step asked for it.
enum Change {
    Crop(Region),
    Flip(usize),
    Pointwise(Pointwise),
}

enum Origin {
    /// Nothing is read yet.
    File,
    /// All that is stored, as it is stored.
    Stored(Buffer),
    /// Numbers in their usual order; their bytes may come the other way round.
    Whole { bytes: Buffer, swapped: bool },
    /// Of another extent than what it is made of.
    Made(Made),
}

/// A deferred array.
pub struct Volume {
    origin: Origin,
    part: Option<Part>,
    dtype: DType,
    /// The extent of the whole array.
    full: Shape,
    region: Region,
    flips: [bool; 3],
    pointwise: Vec<Pointwise>,
    /// The changes in their order, where the volume is to be computed by them.
    changes: Option<Vec<Change>>,
    /// The step that the work is charged to.
    slot: Option<usize>,
}

/// Elements that are computed at a time where rows do not matter.
const CHUNK: usize = 4096;

/// The extent along the last three axes, and the number of volumes before them. Axes that are not
/// there have an extent of one.
pub(super) fn spatial(shape: &[usize]) -> (usize, [usize; 3]) {
    let mut sides = [1; 3];
    let kept = shape.len().min(3);
    sides[3 - kept..].copy_from_slice(&shape[shape.len() - kept..]);
    (shape[..shape.len() - kept].iter().product(), sides)
}

impl Volume {
    /// An array that lies in a file.
    pub(crate) fn new(part: Part) -> Self {
        let (dtype, full) = (part.unpacked(), Shape::from_slice(part.output_shape()));
        let widened = part.widened.map(|dtype| Pointwise::Cast(dtype, false));
        let volume = Self::over(Origin::File, Some(part), dtype, full);
        Self { pointwise: widened.into_iter().collect(), ..volume }
    }

    fn over(origin: Origin, part: Option<Part>, dtype: DType, full: Shape) -> Self {
        let region = whole(&full);
        Self {
            origin,
            part,
            dtype,
            full,
            region,
            flips: [false; 3],
            pointwise: Vec::new(),
            changes: None,
            slot: None,
        }
    }

    /// The volume in a value: the description itself, or a new one over a tensor.
    ///
    /// # Errors
    ///
    /// If the value is a deferred one of another kind.
    pub fn from_value(value: Value) -> Result<Box<Self>> {
        match value {
            Value::Deferred(deferred) => deferred
                .into_any()
                .downcast::<Self>()
                .map_err(|_| Error::Internal("an array of another kind".into())),
            Value::Tensor(tensor) => {
                let (dtype, full) = (tensor.dtype(), Shape::from_slice(tensor.shape()));
                let origin = Origin::Whole { bytes: tensor.into_buffer(), swapped: false };
                Ok(Box::new(Self::over(origin, None, dtype, full)))
            }
        }
    }

    /// Brings it to another extent.
    ///
    /// # Errors
    ///
    /// If the record is bad.
    pub(crate) fn resample(
        self: Box<Self>,
        way: Way,
        extent: [usize; 3],
        context: &mut Context<'_>,
    ) -> Result<Box<Self>> {
        let slot = context.slot;
        let tensor = self.into_tensor(context)?;
        Ok(Box::new(Self::made(Made::new(tensor.clone(), way, extent), &tensor, extent, slot)))
    }

    /// Puts more voxels around it, up to the given extent, by repeating the outermost.
    ///
    /// # Errors
    ///
    /// If the record is bad.
    pub(crate) fn pad(
        mut self: Box<Self>,
        extent: [usize; 3],
        context: &mut Context<'_>,
    ) -> Result<Box<Self>> {
        let old = self.region.size;
        let before = std::array::from_fn(|axis| (extent[axis] - old[axis]) / 2);
        let whole = old == spatial(&self.full).1 && self.flips == [false; 3];
        // What is done to each number by itself can as well be done after it was repeated.
        let plain = self.changes.is_none() && noises_of(&self.pointwise).next().is_none();
        if let Origin::Made(made) = &mut self.origin
            && whole
            && plain
        {
            made.pad(before);
            let begin = self.full.len() - 3;
            self.full[begin..].copy_from_slice(&extent);
            self.region.size = extent;
            return Ok(self);
        }
        let slot = context.slot;
        let tensor = self.into_tensor(context)?;
        let mut made = Made::new(tensor.clone(), Way::Same, old);
        made.pad(before);
        Ok(Box::new(Self::made(made, &tensor, extent, slot)))
    }

    fn made(made: Made, from: &Tensor, extent: [usize; 3], slot: usize) -> Self {
        let mut full = Shape::from_slice(from.shape());
        let begin = full.len() - 3;
        full[begin..].copy_from_slice(&extent);
        let volume = Self::over(Origin::Made(made), None, from.dtype(), full);
        Self { slot: Some(slot), ..volume }
    }

    /// Depth, height and width as described so far.
    #[must_use]
    pub fn size(&self) -> [usize; 3] {
        self.region.size
    }

    fn note(&mut self, context: &Context<'_>, change: impl FnOnce() -> Change) {
        if context.workspace.reference {
            let before = || self.pointwise.iter().cloned().map(Change::Pointwise).collect();
            self.changes.get_or_insert_with(before).push(change());
        }
    }

    /// Cuts out a box, given in the volume as it is now.
    ///
    /// # Panics
    ///
    /// If the box does not lie in the volume.
    pub fn crop(&mut self, region: Region, context: &Context<'_>) {
        self.note(context, || Change::Crop(region));
        for axis in 0..3 {
            let (start, size) = (region.start[axis], region.size[axis]);
            let old = self.region.size[axis];
            assert!(start.checked_add(size).is_some_and(|end| end <= old), "{region:?} in {old}");
            for noise in noises(&mut self.pointwise) {
                noise.first += start as i64 * noise.strides[axis + 1];
            }
            let start = if self.flips[axis] { old - start - size } else { start };
            self.region.start[axis] += start;
            self.region.size[axis] = size;
        }
    }

    /// Mirrors along one of the last three axes.
    pub fn flip(&mut self, axis: usize, context: &Context<'_>) {
        self.note(context, || Change::Flip(axis));
        self.flips[axis] = !self.flips[axis];
        let last = self.region.size[axis] as i64 - 1;
        for noise in noises(&mut self.pointwise) {
            noise.first += last * noise.strides[axis + 1];
            noise.strides[axis + 1] = -noise.strides[axis + 1];
        }
    }

    /// Adds a pointwise change.
    pub(crate) fn pointwise(&mut self, change: Pointwise, context: &Context<'_>) {
        if matches!(change, Pointwise::Cast(dtype, _) if dtype == self.output()) {
            return;
        }
        self.note(context, || Change::Pointwise(change.clone()));
        let noisy = self.pointwise.iter().any(|change| matches!(change, Pointwise::Noise(_)));
        if !noisy && !matches!(self.origin, Origin::Made(_)) {
            // Noise, or making it, costs more than all the rest together.
            self.slot = Some(context.slot);
        }
        self.pointwise.push(change);
    }

    /// Adds noise under a key.
    pub(crate) fn noise(&mut self, key: u64, mean: f64, sigma: f64, context: &Context<'_>) {
        let strides = strides(self.region.size);
        let noise = Noise {
            key: [key as u32, (key >> 32) as u32],
            mean: mean as f32,
            sigma: sigma as f32,
            first: 0,
            strides,
        };
        self.slot = Some(context.slot);
        self.note(context, || Change::Pointwise(Pointwise::Noise(noise.clone())));
        self.pointwise.push(Pointwise::Noise(noise));
    }

    /// Whether only a part of the file can be read, rather than all of it.
    fn reads_a_part(&self) -> bool {
        self.changes.is_none() && self.part.as_ref().is_some_and(Part::is_plain)
    }

    /// The fast way: one pass, row by row or in larger pieces where rows do not matter.
    fn compute(&self, out: &mut [u8], context: &mut Context<'_>) -> Result<()> {
        let pool = context.workspace.pool.clone();
        let mut tools = context.workspace.take::<Tools>();
        let (start, full) = (self.region.start, spatial(&self.full).1);
        let result = match &self.origin {
            Origin::File => {
                let swapped = self.part.as_ref().is_some_and(|part| part.swapped);
                self.pass(None, (start, full), swapped, out, &mut tools);
                Ok(())
            }
            Origin::Whole { bytes, swapped } => {
                self.pass(Some(bytes), (start, full), *swapped, out, &mut tools);
                Ok(())
            }
            Origin::Stored(bytes) => self
                .unpack(bytes, &pool)
                .map(|whole| self.pass(Some(&whole), (start, full), false, out, &mut tools)),
            Origin::Made(made) => made.region(&self.region, &pool).map(|part| {
                self.pass(Some(&part), ([0; 3], self.region.size), false, out, &mut tools);
            }),
        };
        context.workspace.keep(tools);
        result
    }

    fn unpack(&self, stored: &Buffer, pool: &feedline_core::Pool) -> Result<Buffer> {
        let part = self.part.as_ref();
        part.ok_or_else(|| Error::Internal("stored bytes of no file".into()))?.unpack(stored, pool)
    }

    /// Computes the region, which begins at `start` in an array of extent `full`, out of that array,
    /// or out of itself where it is to be written.
    fn pass(
        &self,
        whole: Option<&[u8]>,
        (start, full): ([usize; 3], [usize; 3]),
        swapped: bool,
        out: &mut [u8],
        tools: &mut Tools,
    ) {
        let volumes = spatial(&self.full).0;
        let (size, element) = (self.region.size, self.dtype.size().unwrap_or(1));
        let to_element = self.output().size().unwrap_or(1);
        let total = volumes * size.iter().product::<usize>();
        if total == 0 {
            return;
        }
        let job = Job { volume: self, element, to_element, swapped };
        let straight = strides(size);
        let packed = whole.is_none() || size == full && !self.flips[0] && !self.flips[1];
        let in_order = !self.flips[2]
            && noises_of(&self.pointwise)
                .all(|noise| noise.first == 0 && noise.strides == straight);
        if packed && in_order {
            for first in (0..total).step_by(CHUNK) {
                let count = CHUNK.min(total - first);
                let source = whole.map(|all| &all[first * element..(first + count) * element]);
                let out = &mut out[first * to_element..(first + count) * to_element];
                job.run(source, out, count, first as i64, None, tools);
            }
            return;
        }
        let [depth, height, width] = size;
        for row in 0..volumes * depth * height {
            let (volume, plane, line) =
                (row / (depth * height), row / height % depth, row % height);
            let source = whole.map(|all| {
                let place = |axis: usize, at: usize| {
                    let at = if self.flips[axis] { size[axis] - 1 - at } else { at };
                    start[axis] + at
                };
                let line = (volume * full[0] + place(0, plane)) * full[1] + place(1, line);
                let from = (line * full[2] + start[2]) * element;
                &all[from..from + width * element]
            });
            let at = [volume as i64, plane as i64, line as i64];
            let out = &mut out[row * width * to_element..(row + 1) * width * to_element];
            job.run(source, out, width, 0, Some(at), tools);
        }
    }

    /// The meaning: one change after another, each to the whole array, by the simplest code.
    fn simply(&self, changes: &[Change], out: &mut [u8], context: &Context<'_>) -> Result<()> {
        let mut values = match &self.origin {
            Origin::Whole { bytes, swapped } => {
                let mut values = bytes.to_vec();
                if *swapped {
                    swap(&mut values, self.dtype.size().unwrap_or(1));
                }
                values
            }
            Origin::Stored(bytes) => self.unpack(bytes, &context.workspace.pool)?.to_vec(),
            Origin::Made(made) => {
                made.region(&whole(&self.full), &context.workspace.pool)?.to_vec()
            }
            Origin::File if self.full.contains(&0) => Vec::new(),
            Origin::File => {
                return Err(Error::Internal("an array that was not read whole".into()));
            }
        };
        let (volumes, mut size) = spatial(&self.full);
        let mut dtype = self.dtype;
        for change in changes {
            let element = dtype.size().unwrap_or(1);
            match change {
                Change::Crop(region) => {
                    values = rearrange(&values, volumes, size, element, *region, None);
                    size = region.size;
                }
                Change::Flip(axis) => {
                    let whole = Region { start: [0; 3], size };
                    values = rearrange(&values, volumes, size, element, whole, Some(*axis));
                }
                Change::Pointwise(change) => {
                    values = change.apply(dtype, &values, 0, Level::Scalar);
                    dtype = change.output(dtype);
                }
            }
        }
        out.copy_from_slice(&values);
        Ok(())
    }

    fn output(&self) -> DType {
        self.pointwise.iter().fold(self.dtype, |dtype, change| change.output(dtype))
    }

    /// Computes the volume now, if it is not a tensor anyhow.
    ///
    /// # Errors
    ///
    /// If the record is bad.
    pub fn into_tensor(self: Box<Self>, context: &mut Context<'_>) -> Result<Tensor> {
        let untouched = self.pointwise.is_empty()
            && self.changes.is_none()
            && self.flips == [false; 3]
            && self.region.size == spatial(&self.full).1;
        match &self.origin {
            Origin::File if self.wants().is_some() => {
                Err(Error::Internal("an array that was not read before its step".into()))
            }
            // Memory of others need not lie so that its numbers can be used as they are.
            Origin::Whole { bytes, swapped: false }
                if untouched && bytes.as_ptr().addr().is_multiple_of(8) =>
            {
                Tensor::new(self.dtype, &self.full, bytes.clone())
            }
            _ => Value::Deferred(self).into_tensor(context),
        }
    }
}

/// Elements from one index to the next along volumes, depth, height and width.
fn strides([depth, height, width]: [usize; 3]) -> [i64; 4] {
    [(depth * height * width) as i64, (height * width) as i64, width as i64, 1]
}

/// All of an array.
fn whole(shape: &[usize]) -> Region {
    Region { start: [0; 3], size: spatial(shape).1 }
}

fn noises(changes: &mut [Pointwise]) -> impl Iterator<Item = &mut Noise> {
    changes.iter_mut().filter_map(|change| match change {
        Pointwise::Noise(noise) => Some(noise),
        _ => None,
    })
}

fn noises_of(changes: &[Pointwise]) -> impl Iterator<Item = &Noise> {
    changes.iter().filter_map(|change| match change {
        Pointwise::Noise(noise) => Some(noise),
        _ => None,
    })
}

/// The reusable things of one thread.
#[derive(Default)]
struct Tools {
    spare: Spare,
    row: Vec<u8>,
    numbers: Vec<i64>,
}

struct Job<'a> {
    volume: &'a Volume,
    element: usize,
    to_element: usize,
    swapped: bool,
}

impl Job<'_> {
    /// One run of `count` elements, from `source` or in place. `at` is the row's place; without it,
    /// the run is elements `start` and on of the whole.
    fn run(
        &self,
        source: Option<&[u8]>,
        out: &mut [u8],
        count: usize,
        start: i64,
        at: Option<[i64; 3]>,
        tools: &mut Tools,
    ) {
        let Tools { spare, row, numbers } = tools;
        let volume = self.volume;
        let flipped = at.is_some() && volume.flips[2];
        numbers.clear();
        numbers.extend(volume.pointwise.iter().map(|change| match (change, at) {
            (Pointwise::Noise(noise), Some(at)) => {
                noise.first + (0..3).map(|axis| at[axis] * noise.strides[axis]).sum::<i64>()
            }
            _ => start,
        }));
        let singles = volume.dtype == DType::F32
            && volume.pointwise.iter().all(|change| change.output(DType::F32) == DType::F32);
        if volume.pointwise.is_empty() || singles {
            if let Some(source) = source {
                out.copy_from_slice(source);
            }
            self.arrange(out, flipped);
            if volume.pointwise.is_empty() {
                return;
            }
            if let Some(values) = as_singles(out) {
                apply_singles(&volume.pointwise, values, numbers, spare);
                return;
            }
        }
        row.clear();
        row.extend_from_slice(source.unwrap_or_else(|| &out[..count * self.element]));
        if singles {
            row.clear();
            row.extend_from_slice(out);
        } else {
            self.arrange(row, flipped);
        }
        let out = &mut out[..count * self.to_element];
        apply_all(&volume.pointwise, volume.dtype, row, numbers, out, spare);
    }

    /// Turns a row round, and the bytes of its elements, as needed.
    fn arrange(&self, row: &mut [u8], flipped: bool) {
        if flipped {
            match self.element {
                1 => row.reverse(),
                2 => reverse::<2>(row),
                4 => reverse::<4>(row),
                _ => reverse::<8>(row),
            }
        }
        if self.swapped {
            swap(row, self.element);
        }
    }
}

fn reverse<const N: usize>(row: &mut [u8]) {
    row.as_chunks_mut::<N>().0.reverse();
}

/// The bytes as `float32` numbers, if they lie as such.
fn as_singles(bytes: &mut [u8]) -> Option<&mut [f32]> {
    // SAFETY: any four bytes are a float, and `align_to_mut` gives only aligned ones.
    let (before, values, after) = unsafe { bytes.align_to_mut::<f32>() };
    (before.is_empty() && after.is_empty()).then_some(values)
}

/// A box of an array, mirrored along one axis or not, element by element.
fn rearrange(
    values: &[u8],
    volumes: usize,
    full: [usize; 3],
    element: usize,
    region: Region,
    flip: Option<usize>,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(volumes * region.size.iter().product::<usize>() * element);
    for volume in 0..volumes {
        for depth in 0..region.size[0] {
            for height in 0..region.size[1] {
                for width in 0..region.size[2] {
                    let mut at = [depth, height, width];
                    if let Some(axis) = flip {
                        at[axis] = region.size[axis] - 1 - at[axis];
                    }
                    let [depth, height, width] =
                        std::array::from_fn(|axis| region.start[axis] + at[axis]);
                    let place = ((volume * full[0] + depth) * full[1] + height) * full[2] + width;
                    out.extend_from_slice(&values[place * element..(place + 1) * element]);
                }
            }
        }
    }
    out
}

impl Deferred for Volume {
    fn dtype(&self) -> DType {
        self.output()
    }

    fn shape(&self) -> Shape {
        let mut shape = self.full.clone();
        let kept = shape.len().min(3);
        let begin = shape.len() - kept;
        shape[begin..].copy_from_slice(&self.region.size[3 - kept..]);
        shape
    }

    fn write(mut self: Box<Self>, out: &mut [u8], context: &mut Context<'_>) -> Result<()> {
        let changes = self.changes.take();
        let slot = self.slot.filter(|slot| *slot != context.slot);
        let mut work = |context: &mut Context<'_>| match &changes {
            Some(changes) => self.simply(changes, out, context),
            None => self.compute(out, context),
        };
        match slot {
            Some(slot) => context.charge(slot, work),
            None => work(context),
        }
    }

    fn wants(&self) -> Option<Cut<'_>> {
        let (Origin::File, Some(part)) = (&self.origin, &self.part) else { return None };
        let Part { path, size, modified, offset, stored, .. } = part;
        if !self.reads_a_part() {
            let range = Cut::range(path, *size, *offset, *stored);
            return (*stored > 0).then_some(Cut { modified: *modified, ..range });
        }
        let (volumes, full) = spatial(&self.full);
        let Region { start, size: [depth, height, width] } = self.region;
        let element = self.dtype.size().unwrap_or(1);
        if volumes * depth * height * width == 0 {
            return None;
        }
        let line = full[2] * element;
        let plane = full[1] * line;
        let first = start[0] * plane + start[1] * line + start[2] * element;
        let strides = [full[0] * plane, plane, line].map(|stride| stride as u64);
        let mut cut = Cut {
            path,
            size: *size,
            modified: *modified,
            offset: offset + first as u64,
            run: width * element,
            counts: [volumes, depth, height],
            strides,
            reversed: [false, self.flips[0], self.flips[1]],
        };
        if width == full[2] && !self.flips[1] {
            // Lines that follow each other are one run.
            (cut.run, cut.counts[2], cut.strides[2]) = (height * line, 1, 0);
            // So are planes, and volumes.
            if height == full[1] && !self.flips[0] {
                (cut.run, cut.counts[1], cut.strides[1]) = (depth * plane, 1, 0);
                if depth == full[0] {
                    (cut.run, cut.counts[0], cut.strides[0]) = (volumes * depth * plane, 1, 0);
                }
            }
        }
        Some(cut)
    }

    fn in_place(&self) -> bool {
        let same = self.dtype.size() == self.output().size();
        matches!(self.origin, Origin::File) && self.reads_a_part() && same
    }

    fn supply(&mut self, bytes: Buffer) {
        let Some(part) = &self.part else { return };
        if !part.is_plain() {
            self.origin = Origin::Stored(bytes);
            return;
        }
        self.origin = Origin::Whole { bytes, swapped: part.swapped };
        if self.changes.is_none() {
            // What was read is the region, mirrored along depth and height already.
            self.full = self.shape();
            self.region.start = [0; 3];
            self.flips = [false, false, self.flips[2]];
        }
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::super::part::Packing;
    use super::*;
    use feedline_core::{EpochSeed, Pool, SampleSeed, Seed, StepId, Workspace};
    use proptest::prelude::*;
    use std::path::Path;
    use std::sync::Arc;

    fn context(workspace: &mut Workspace) -> Context<'_> {
        let epoch = EpochSeed { seed: Seed(1), epoch: 0 };
        let seed = SampleSeed { epoch, source: 0, index: 0, visit: 0, output: 0 };
        Context { workspace, seed, step: StepId::new("test", 0), slot: 0 }
    }

    /// Reads a cut out of a file that lies in memory.
    fn read(file: &[u8], cut: &Cut<'_>) -> Vec<u8> {
        let mut out = vec![0xAA; cut.length()];
        let copy = |offset: u64, bytes: &mut [u8]| {
            bytes.copy_from_slice(&file[offset as usize..offset as usize + bytes.len()]);
            Ok(feedline_core::Attempt::Done)
        };
        cut.read_planes(&mut 0, &mut out, copy).unwrap();
        out
    }

    /// A change by number.
    fn edit(volume: &mut Volume, number: u32, context: &Context<'_>) {
        let (kind, rest) = (number % 8, number / 8);
        match kind {
            0 | 1 => {
                let size = volume.size();
                let start = std::array::from_fn(|axis| rest as usize % 3 % size[axis]);
                let size = std::array::from_fn(|axis| {
                    1 + (rest as usize >> (4 * axis)) % (size[axis] - start[axis])
                });
                volume.crop(Region { start, size }, context);
            }
            2 | 3 => volume.flip(rest as usize % 3, context),
            4 if volume.output().is_float() => volume.noise(u64::from(rest), 0.5, 2.0, context),
            5 => volume.pointwise(Pointwise::Clip { low: 3.0, high: 90.0 }, context),
            6 => volume.pointwise(Pointwise::Normalize { mean: 4.0, std: 3.0 }, context),
            7 => {
                let dtypes = [DType::F32, DType::I16, DType::F16, DType::U8, DType::I32];
                let dtype = dtypes[rest as usize % dtypes.len()];
                volume.pointwise(Pointwise::Cast(dtype, false), context);
            }
            _ => {}
        }
    }

    proptest! {
        #[test]
        fn in_place_supplied_early_and_late_equal_the_plain_run(
            shape in (1usize..3, 1usize..5, 1usize..5, 1usize..7),
            dtype in 0usize..4,
            swapped in any::<bool>(),
            fortran in any::<bool>(),
            edits in proptest::collection::vec(any::<u32>(), 0..7),
            early in 0usize..7,
        ) {
            let dtype = [DType::F32, DType::U8, DType::I16, DType::F16][dtype];
            let shape = Shape::from_slice(&[shape.0, shape.1, shape.2, shape.3]);
            let element = dtype.size().unwrap();
            let stored = shape.iter().product::<usize>() * element;
            // Small numbers in any byte order, so that no float is odd.
            let mut file: Vec<u8> = vec![9; 16];
            file.extend((0..stored).map(|at| (at * 37 % 60) as u8));
            let part = Part {
                path: Arc::from(Path::new("memory")),
                size: file.len() as u64,
                modified: 0,
                offset: 16,
                stored,
                packing: Packing::Plain,
                dtype,
                swapped: swapped && element > 1,
                fortran,
                rescale: None,
                widened: None,
                shape,
                row: None,
            };
            let finish = |reference: bool, early: Option<usize>, in_place: bool| {
                let mut workspace = Workspace::new(Pool::new(0), 1, reference);
                let mut context = context(&mut workspace);
                let mut volume = Volume::new(part.clone());
                for (at, number) in edits.iter().enumerate() {
                    if early == Some(at) && let Some(cut) = volume.wants() {
                        let bytes = read(&file, &cut);
                        volume.supply(Buffer::from(&bytes[..]));
                    }
                    edit(&mut volume, *number, &context);
                }
                let length = volume.shape().iter().product::<usize>()
                    * volume.output().size().unwrap();
                let mut out = vec![0x55; length];
                let cut = volume.wants().map(|cut| read(&file, &cut));
                match cut {
                    Some(bytes) if in_place && volume.in_place() => out.copy_from_slice(&bytes),
                    Some(bytes) => volume.supply(Buffer::from(&bytes[..])),
                    None => {}
                }
                Box::new(volume).write(&mut out, &mut context).unwrap();
                out
            };
            let wanted = finish(true, None, false);
            prop_assert_eq!(&finish(false, None, false), &wanted);
            prop_assert_eq!(&finish(false, None, true), &wanted);
            prop_assert_eq!(&finish(false, Some(early), true), &wanted);
            prop_assert_eq!(&finish(true, Some(early), false), &wanted);
        }
    }
}
