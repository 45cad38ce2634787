//! Brings volumes to another distance between voxels.

use super::cube::times;
use super::{Volume, volumes};
use crate::registry::step;
use feedline_core::{Context, DType, Error, Map, Name, Needs, Pool, Result, Sample, Spec, Tensor};
use serde::{Deserialize, Serialize};

/// Resamples all volumes from the distances in the field `spacing` to these, and sets the field to
/// them. The new extent is `int(old distance / new distance · old extent)`. Floats are interpolated
/// linearly with corners aligned, whole numbers take the nearest voxel, both as torch's `interpolate`
/// does. A sample that has these distances already is left as it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resample {
    /// Distance of voxels along depth, height and width.
    pub spacing: [f64; 3],
    /// The volumes to resample; all there are if they are not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fields: Option<Vec<Name>>,
    #[serde(skip)]
    at: Vec<Name>,
    /// The name of the distances.
    #[serde(skip)]
    distances: Option<Name>,
}

step!(Resample, "resample", Map);

/// Sides beyond this are taken for a mistake.
const LONGEST: f64 = 65_535.0;
/// Volumes beyond this are taken for a mistake in the distances.
const MOST: u64 = 1 << 30;

impl Map for Resample {
    fn prepare(&mut self, input: &Spec) -> Result<Spec> {
        if let Some(odd) = self.spacing.iter().find(|step| !(**step > 0.0 && step.is_finite())) {
            return Err(Error::pipeline(format!("resample: {odd} is no distance of voxels")));
        }
        let spacing = input.expect("resample", "spacing")?;
        if !spacing.dtype.is_float() || spacing.shape != [Some(3)] {
            return Err(Error::pipeline(format!("resample: {spacing} is not three distances")));
        }
        self.distances = Some(spacing.name);
        let fields = volumes("resample", self.fields.as_deref(), input)?;
        self.at = fields.iter().map(|field| field.name).collect();
        let mut output = input.clone();
        for mut field in fields {
            if matches!(field.dtype, DType::F16 | DType::BF16 | DType::F64) {
                return Err(Error::pipeline(format!(
                    "resample: {field} holds neither float32 nor whole numbers; cast it first"
                )));
            }
            let begin = field.shape.len() - 3;
            field.shape[begin..].fill(None);
            output = output.replace(field);
        }
        Ok(output)
    }

    fn map(&self, mut sample: Sample, context: &mut Context<'_>) -> Result<Sample> {
        let mut old = [0.0; 3];
        let distances = self.distances.ok_or_else(|| Error::Internal("not prepared".into()))?;
        sample.update(distances, |value| {
            let tensor = Volume::from_value(value)?.into_tensor(context)?;
            let found = crate::table::to_f64(&tensor).unwrap_or_default();
            old = found
                .try_into()
                .map_err(|_| Error::record("spacing is not three distances of voxels"))?;
            let new = self.spacing.map(|step| step as f32);
            Ok(match tensor.dtype() {
                DType::F64 => Tensor::from_slice(&[3], &self.spacing).into(),
                _ => Tensor::from_slice(&[3], &new).into(),
            })
        })?;
        if old.iter().any(|step| !(*step > 0.0 && step.is_finite())) {
            return Err(Error::record(format!(
                "voxels at distances of {old:?} cannot be resampled"
            )));
        }
        let same = old.iter().zip(self.spacing).all(|(old, new)| *old as f32 == new as f32);
        for field in self.at.iter().filter(|_| !same) {
            sample.update(*field, |value| {
                let tensor = Volume::from_value(value)?.into_tensor(context)?;
                let begin = tensor.shape().len() - 3;
                let mut to = [0; 3];
                for axis in 0..3 {
                    let side = old[axis] / self.spacing[axis] * tensor.shape()[begin + axis] as f64;
                    if !(1.0..=LONGEST).contains(&side) {
                        return Err(Error::record(format!(
                            "{field} would get {side} voxels along axis {axis} by resampling from \
                             distances of {old:?}"
                        )));
                    }
                    to[axis] = side as usize;
                }
                let voxels = to.iter().map(|side| *side as u64).product::<u64>();
                if voxels > MOST {
                    return Err(Error::record(format!(
                        "{field} would get {} voxels by resampling from distances of {old:?}",
                        times(to)
                    )));
                }
                let pool = &context.workspace.pool;
                Ok(if tensor.dtype().is_float() {
                    linear(&tensor, to, pool)?
                } else {
                    nearest(&tensor, to, pool)?
                }
                .into())
            })?;
        }
        Ok(sample)
    }

    fn needs(&self, sample: &Sample, _: &Context<'_>) -> Needs {
        match super::first_wanting(sample, self.distances.as_slice()) {
            Needs::Nothing => super::first_wanting(sample, &self.at),
            spacing => spacing,
        }
    }
}

/// Old and new shape: volumes, and extents.
fn shapes(tensor: &Tensor, to: [usize; 3]) -> (usize, [usize; 3], Vec<usize>) {
    let begin = tensor.shape().len() - 3;
    let mut shape = tensor.shape().to_vec();
    let old = std::array::from_fn(|axis| shape[begin + axis]);
    shape[begin..].copy_from_slice(&to);
    (shape[..begin].iter().product(), old, shape)
}

/// The voxel at `floor(index · old / new)` in single precision, along each axis.
fn nearest(tensor: &Tensor, to: [usize; 3], pool: &Pool) -> Result<Tensor> {
    let (volumes, old, shape) = shapes(tensor, to);
    let element = tensor.dtype().size().unwrap_or(1);
    let places: [Vec<usize>; 3] = std::array::from_fn(|axis| {
        let scale = old[axis] as f32 / to[axis] as f32;
        (0..to[axis]).map(|at| ((at as f32 * scale) as usize).min(old[axis] - 1)).collect()
    });
    let mut out = pool.take(shape.iter().product::<usize>() * element)?;
    let (data, line) = (tensor.data(), old[2] * element);
    let mut rows = out.chunks_exact_mut(to[2] * element);
    for volume in 0..volumes {
        for plane in &places[0] {
            for at in &places[1] {
                let from = ((volume * old[0] + plane) * old[1] + at) * line;
                let (from, to) = (&data[from..from + line], rows.next().expect("a row for each"));
                for (to, at) in to.chunks_exact_mut(element).zip(&places[2]) {
                    to.copy_from_slice(&from[at * element..(at + 1) * element]);
                }
            }
        }
    }
    Tensor::new(tensor.dtype(), &shape, out.freeze())
}

/// Where an output index lies between two inputs: their indices and the weight of the second.
#[derive(Clone, Copy)]
struct Between {
    low: usize,
    high: usize,
    weight: f32,
}

fn between(old: usize, new: usize) -> Vec<Between> {
    let scale = if new > 1 { (old - 1) as f32 / (new - 1) as f32 } else { 0.0 };
    (0..new)
        .map(|at| {
            let place = at as f32 * scale;
            let low = (place as usize).min(old - 1);
            Between { low, high: (low + 1).min(old - 1), weight: place - low as f32 }
        })
        .collect()
}

/// The weighted means of two equal runs of numbers.
fn blend(low: &[f32], high: &[f32], weight: f32, out: &mut [f32]) {
    for ((to, low), high) in out.iter_mut().zip(low).zip(high) {
        *to = (1.0 - weight) * low + weight * high;
    }
}

/// Weighted means of the eight neighbours, with the first and the last voxel of each axis staying
/// where they are: planes are blended, then their rows, then the numbers of a row, so that most of
/// the work is on runs of neighbours.
fn linear(tensor: &Tensor, to: [usize; 3], pool: &Pool) -> Result<Tensor> {
    let (volumes, old, shape) = shapes(tensor, to);
    let data = tensor.as_slice::<f32>().ok_or_else(|| Error::Internal("floats askew".into()))?;
    let [planes, lines, columns]: [Vec<Between>; 3] =
        std::array::from_fn(|axis| between(old[axis], to[axis]));
    let mut out = pool.take(shape.iter().product::<usize>() * 4)?;
    let mut rows = out.chunks_exact_mut(to[2] * 4);
    let size = old[1] * old[2];
    let (mut plane, mut row) = (vec![0.0; size], vec![0.0; old[2]]);
    for volume in 0..volumes {
        for at in &planes {
            let of = |number: usize| &data[(volume * old[0] + number) * size..][..size];
            blend(of(at.low), of(at.high), at.weight, &mut plane);
            for at in &lines {
                let of = |number: usize| &plane[number * old[2]..][..old[2]];
                blend(of(at.low), of(at.high), at.weight, &mut row);
                let to = rows.next().expect("a row for each");
                for (to, at) in to.as_chunks_mut::<4>().0.iter_mut().zip(&columns) {
                    let value = (1.0 - at.weight) * row[at.low] + at.weight * row[at.high];
                    *to = value.to_ne_bytes();
                }
            }
        }
    }
    Tensor::new(DType::F32, &shape, out.freeze())
}
