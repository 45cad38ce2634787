//! Makes small volumes larger.

use super::cube::{Cube, times};
use super::{Volume, volumes};
use crate::registry::step;
use feedline_core::{Context, Error, Map, Name, Needs, Pool, Result, Sample, Spec, Tensor, Value};
use serde::{Deserialize, Serialize};

/// Pads each axis that is shorter than `size` to it, evenly on both sides and one more at the end
/// where that does not come out even. The border repeats the outermost voxels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PadTo {
    /// The least size: one number, or `[depth, height, width]`.
    pub size: Cube,
    /// The volumes to pad; all there are if they are not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fields: Option<Vec<Name>>,
    #[serde(skip)]
    at: Vec<Name>,
}

step!(PadTo, "pad_to", Map);

impl Map for PadTo {
    fn prepare(&mut self, input: &Spec) -> Result<Spec> {
        self.size.check("pad_to")?;
        let fields = volumes("pad_to", self.fields.as_deref(), input)?;
        self.at = fields.iter().map(|field| field.name).collect();
        let mut output = input.clone();
        for mut field in fields {
            let begin = field.shape.len() - 3;
            for (known, least) in field.shape[begin..].iter_mut().zip(self.size.sides()) {
                *known = known.map(|known| known.max(least));
            }
            output = output.replace(field);
        }
        Ok(output)
    }

    fn map(&self, mut sample: Sample, context: &mut Context<'_>) -> Result<Sample> {
        for name in &self.at {
            sample.update(*name, |value| {
                let volume = Volume::from_value(value)?;
                let old = volume.size();
                let new = self.padded(old);
                if new == old {
                    return Ok(Value::Deferred(volume));
                }
                if old.contains(&0) {
                    let old = times(old);
                    return Err(Error::record(format!("{old} voxels have no edge to repeat")));
                }
                if context.workspace.reference {
                    let tensor = volume.into_tensor(context)?;
                    return Ok(pad(&tensor, old, new, &context.workspace.pool)?.into());
                }
                Ok(Value::Deferred(volume.pad(new, context)?))
            })?;
        }
        Ok(sample)
    }

    fn needs(&self, sample: &Sample, _: &Context<'_>) -> Needs {
        // What is large enough need not be read.
        let small = |name: &Name| {
            sample.get(*name).is_some_and(|value| {
                let size = super::extent(value);
                self.padded(size) != size && value.wants().is_some()
            })
        };
        self.at.iter().find(|name| small(name)).map_or(Needs::Nothing, |name| Needs::Field(*name))
    }
}

impl PadTo {
    fn padded(&self, size: [usize; 3]) -> [usize; 3] {
        let least = self.size.sides();
        std::array::from_fn(|axis| size[axis].max(least[axis]))
    }
}

/// The meaning: the whole volume, row by row.
fn pad(tensor: &Tensor, old: [usize; 3], new: [usize; 3], pool: &Pool) -> Result<Tensor> {
    let (begin, element) = (tensor.shape().len() - 3, tensor.dtype().size().unwrap_or(1));
    let before: [usize; 3] = std::array::from_fn(|axis| (new[axis] - old[axis]) / 2);
    // Which old index comes at a new one: the nearest there is.
    let place = |axis: usize, at: usize| at.saturating_sub(before[axis]).min(old[axis] - 1);
    let mut shape = tensor.shape().to_vec();
    shape[begin..].copy_from_slice(&new);
    let mut out = pool.take(shape.iter().product::<usize>() * element)?;
    let data = tensor.data();
    let (line, padded) = (old[2] * element, new[2] * element);
    let (left, right) = (before[2] * element, (before[2] + old[2]) * element);
    for (row, to) in out.chunks_exact_mut(padded).enumerate() {
        let (volume, plane, at) = (row / (new[0] * new[1]), row / new[1] % new[0], row % new[1]);
        let from = ((volume * old[0] + place(0, plane)) * old[1] + place(1, at)) * line;
        let from = &data[from..from + line];
        to[left..right].copy_from_slice(from);
        to[..left].chunks_exact_mut(element).for_each(|to| to.copy_from_slice(&from[..element]));
        let last = &from[line - element..];
        to[right..].chunks_exact_mut(element).for_each(|to| to.copy_from_slice(last));
    }
    Tensor::new(tensor.dtype(), &shape, out.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_border_repeats_the_edge_and_the_odd_voxel_comes_last() {
        let tensor = Tensor::from_slice(&[1, 1, 2], &[7i16, 9]);
        let padded = pad(&tensor, [1, 1, 2], [1, 2, 5], &Pool::new(0)).unwrap();
        assert_eq!(padded.shape(), [1, 2, 5]);
        assert_eq!(padded.as_slice::<i16>().unwrap(), [7, 7, 9, 9, 9, 7, 7, 9, 9, 9]);
    }
}
