//! Cuts out a box at a random place, often around something that the mask marks.

use super::boxes::Boxes;
use super::cube::{Cube, times};
use super::volume::{Region, Volume};
use super::{edit, shape_of, volumes};
use crate::image::check_chance;
use crate::kernel::components::{Largest, largest};
use crate::registry::step;
use feedline_core::{
    Context, DType, Draws, Element, Error, Map, Name, Needs, Result, Sample, Spec, Tensor,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Cuts the same box out of all volumes. With probability `p` it lies around a part of the mask: a
/// class among those present, one of its two largest connected parts (by the box around it), and that
/// box moved, grown or shrunk to `size` by a random amount on either side. Otherwise, and where the
/// mask is empty, it lies anywhere. The meaning is that of the reference of MLPerf's 3D U-Net.
///
/// The boxes of each sample are found once and kept, so that a crop reads only what it returns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomBalancedCrop {
    /// Size of the box: one number, or `[depth, height, width]`.
    pub size: Cube,
    /// Chance that the box lies around a part of the mask, between 0 and 1.
    #[serde(default = "often")]
    pub p: f64,
    /// The mask: whole numbers, of which those above 0 are classes.
    #[serde(default = "label")]
    pub label: Name,
    /// The volumes to cut; all there are if they are not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fields: Option<Vec<Name>>,
    #[serde(skip)]
    at: Vec<Name>,
    #[serde(skip)]
    boxes: Boxes,
}

fn often() -> f64 {
    0.4
}

fn label() -> Name {
    Name::new("label")
}

step!(RandomBalancedCrop, "random_balanced_crop", Map);

/// A mask with more classes than this is taken for something else.
const MOST_CLASSES: usize = 4096;

impl RandomBalancedCrop {
    fn is_foreground(&self, draws: &mut Draws) -> bool {
        draws.chance(self.p)
    }

    /// Number of volumes and extent of the mask.
    fn mask_shape(&self, sample: &Sample) -> Result<[usize; 4]> {
        let value = sample.get(self.label);
        let value = value.ok_or_else(|| Error::Internal("a sample without its mask".into()))?;
        Ok(four(&shape_of(value)))
    }

    /// The boxes of the mask, known or found now.
    fn largest(&self, sample: &mut Sample, context: &mut Context<'_>) -> Result<Arc<Largest>> {
        let (index, shape) = (context.seed.index, self.mask_shape(sample)?);
        let reference = context.workspace.reference;
        if let Some(boxes) = self.boxes.get(index, shape).filter(|_| !reference) {
            return Ok(boxes);
        }
        let mut found = None;
        sample.update(self.label, |value| {
            let mask = Volume::from_value(value)?.into_tensor(context)?;
            found = Some(Arc::new(find(&mask, shape)?));
            Ok(mask.into())
        })?;
        let found = found.unwrap_or_default();
        if !reference {
            self.boxes.keep(index, shape, &found);
        }
        Ok(found)
    }
}

/// The shape with exactly four axes.
fn four(shape: &[usize]) -> [usize; 4] {
    match *shape {
        [a, b, c, d] => [a, b, c, d],
        [b, c, d] => [1, b, c, d],
        _ => [0; 4],
    }
}

fn find(mask: &Tensor, shape: [usize; 4]) -> Result<Largest> {
    fn of<T: Element + crate::kernel::components::Class>(
        mask: &Tensor,
        shape: [usize; 4],
    ) -> Option<Option<Largest>> {
        Some(largest(mask.as_slice::<T>()?, shape, MOST_CLASSES))
    }
    let found = match mask.dtype() {
        DType::U8 => of::<u8>(mask, shape),
        DType::I8 => of::<i8>(mask, shape),
        DType::U16 => of::<u16>(mask, shape),
        DType::I16 => of::<i16>(mask, shape),
        DType::U32 => of::<u32>(mask, shape),
        DType::I32 => of::<i32>(mask, shape),
        DType::U64 => of::<u64>(mask, shape),
        DType::I64 => of::<i64>(mask, shape),
        // Truth values are bytes.
        DType::Bool => Some(largest(mask.data(), shape, MOST_CLASSES)),
        _ => None,
    };
    let found = found.ok_or_else(|| Error::Internal(format!("a mask of {mask:?}")))?;
    found.ok_or_else(|| Error::record(format!("the mask has more than {MOST_CLASSES} classes")))
}

/// Where a box of `size` begins that is made of the part `[start, stop)` of an axis of `extent`.
fn adjust([start, stop]: [usize; 2], size: usize, extent: usize, draws: &mut Draws) -> usize {
    let part = stop - start;
    let slack = size.abs_diff(part);
    let before = if slack == 0 { 0 } else { draws.below(slack as u64) as usize };
    if part > size {
        return start + before;
    }
    let low = start.saturating_sub(before);
    let high = extent.min(stop + (slack - before));
    // Where the axis ends too early, the rest is taken from the other side.
    if low == 0 { 0 } else { low - (size - (high - low)) }
}

impl Map for RandomBalancedCrop {
    fn prepare(&mut self, input: &Spec) -> Result<Spec> {
        const STEP: &str = "random_balanced_crop";
        check_chance(STEP, self.p)?;
        self.size.check(STEP)?;
        let fields = volumes(STEP, self.fields.as_deref(), input)?;
        if input.field(self.label.as_str()).is_none() {
            return Err(Error::pipeline(format!(
                "{STEP}: there is no mask called {:?} here; say label=FIELD (fields: {input})",
                self.label.as_str()
            )));
        }
        let mask = &volumes(STEP, Some(&[self.label]), input)?[0];
        if mask.dtype.is_float() {
            return Err(Error::pipeline(format!(
                "{STEP}: the mask {mask} holds no whole numbers; cast it first"
            )));
        }
        let mut output = input.clone();
        for field in &fields {
            let mut field = field.clone();
            let begin = field.shape.len() - 3;
            for (known, side) in field.shape[begin..].iter_mut().zip(self.size.sides()) {
                if known.is_some_and(|known| known < side) {
                    return Err(Error::pipeline(format!(
                        "{STEP}: a box of {} voxels does not fit into {field}; add pad_to before it",
                        times(self.size.sides())
                    )));
                }
                *known = Some(side);
            }
            output = output.replace(field);
        }
        self.at = fields.iter().map(|field| field.name).collect();
        Ok(output)
    }

    fn bind(&mut self, identity: Option<&str>) {
        self.boxes = Boxes::of(identity.filter(|_| self.p > 0.0));
    }

    fn map(&self, mut sample: Sample, context: &mut Context<'_>) -> Result<Sample> {
        let size = self.size.sides();
        let [_, depth, height, width] = self.mask_shape(&sample)?;
        let extent = [depth, height, width];
        for name in &self.at {
            let [_, depth, height, width] =
                sample.get(*name).map_or([0; 4], |v| four(&shape_of(v)));
            if [depth, height, width] != extent {
                return Err(Error::record(format!(
                    "{name} has {} voxels and the mask {} has {}; they must be equal",
                    times([depth, height, width]),
                    self.label,
                    times(extent)
                )));
            }
        }
        if (0..3).any(|axis| extent[axis] < size[axis]) {
            return Err(Error::record(format!(
                "a box of {} voxels does not fit into {}; add pad_to before it",
                times(size),
                times(extent)
            )));
        }
        let mut draws = context.draws();
        let mut part = None;
        if self.is_foreground(&mut draws) {
            let boxes = self.largest(&mut sample, context)?;
            if !boxes.is_empty() {
                let class = draws.below(boxes.len() as u64) as usize;
                let of_class = boxes.values().nth(class).expect("below their number");
                part = Some(of_class[draws.below(of_class.len() as u64) as usize]);
            }
        }
        let start = std::array::from_fn(|axis| match part {
            Some(part) => adjust(part[axis + 1], size[axis], extent[axis], &mut draws),
            // The last place is left out, as the reference does.
            None => match extent[axis] - size[axis] {
                0 => 0,
                room => draws.below(room as u64) as usize,
            },
        });
        for name in &self.at {
            edit(&mut sample, *name, |volume| {
                volume.crop(Region { start, size }, context);
                Ok(())
            })?;
        }
        Ok(sample)
    }

    fn needs(&self, sample: &Sample, context: &Context<'_>) -> Needs {
        let known = || {
            let shape = self.mask_shape(sample).unwrap_or_default();
            !context.workspace.reference && self.boxes.get(context.seed.index, shape).is_some()
        };
        if self.is_foreground(&mut context.draws()) && !known() {
            Needs::Field(self.label)
        } else {
            Needs::Nothing
        }
    }

    fn way(&self, mut draws: Draws) -> u8 {
        u8::from(self.is_foreground(&mut draws))
    }

    fn is_random(&self) -> bool {
        true
    }

    fn is_fused(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reference's arithmetic, with the draw given.
    fn reference(part: [i64; 2], size: i64, extent: i64, before: i64) -> (i64, i64) {
        let slack = size - (part[1] - part[0]);
        let (sign, slack) = if slack < 0 { (-1, -slack) } else { (1, slack) };
        let mut low = (part[0] - sign * before).max(0);
        let mut high = (part[1] + sign * (slack - before)).min(extent);
        let short = size - (high - low);
        if short > 0 && low == 0 {
            high += short;
        } else if short > 0 {
            low -= short;
        }
        (low, high)
    }

    #[test]
    fn a_box_is_adjusted_as_the_reference_does() {
        for extent in 4..9usize {
            for size in 1..=extent {
                for start in 0..extent {
                    for stop in start + 1..=extent {
                        for key in 0..6 {
                            let mut draws = Draws::from_key(key, 0);
                            let slack = size.abs_diff(stop - start) as u64;
                            let before =
                                if slack == 0 { 0 } else { draws.clone().below(slack) as i64 };
                            let found = adjust([start, stop], size, extent, &mut draws);
                            let (low, high) = reference(
                                [start as i64, stop as i64],
                                size as i64,
                                extent as i64,
                                before,
                            );
                            assert_eq!((found as i64, found + size), (low, high as usize));
                            assert!(found + size <= extent);
                        }
                    }
                }
            }
        }
    }
}
