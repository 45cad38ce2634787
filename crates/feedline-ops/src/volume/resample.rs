//! Brings volumes to another distance between voxels.

use super::cube::times;
use super::made::{self, Between, Way};
use super::{Volume, volumes};
use crate::registry::step;
use feedline_core::{
    Context, DType, Error, Map, Name, Needs, Pool, Result, Sample, Spec, Tensor, Value,
};
use serde::{Deserialize, Serialize};

/// Resamples volumes from the distances in the field `spacing` to these, and sets the field to them.
/// The new extent is `int(old distance / new distance · old extent)`. Voxels are interpolated linearly
/// with corners aligned; those of masks are the nearest; both as torch's `interpolate` does. A sample
/// that has these distances already is left as it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resample {
    /// Distance of voxels along depth, height and width.
    pub spacing: [f64; 3],
    /// The volumes to resample; all there are if they are not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fields: Option<Vec<Name>>,
    /// The masks among them; `label` if they are not given and there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nearest: Option<Vec<Name>>,
    /// The volumes, and whether each is a mask.
    #[serde(skip)]
    at: Vec<(Name, Way)>,
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
        let label = [Name::new("label")];
        let masks = self.nearest.as_deref().unwrap_or(&label);
        if let Some(odd) = self
            .nearest
            .iter()
            .flatten()
            .find(|name| !fields.iter().any(|field| field.name == **name))
        {
            return Err(Error::pipeline(format!(
                "resample: {odd} is none of the volumes it resamples"
            )));
        }
        self.at.clear();
        let mut output = input.clone();
        for mut field in fields {
            let mask = masks.contains(&field.name);
            if !mask && field.dtype != DType::F32 {
                let name = field.name;
                return Err(Error::pipeline(format!(
                    "resample: {field} is not float32; cast it first, or say nearest=[\"{name}\"] if \
                     it is a mask"
                )));
            }
            self.at.push((field.name, if mask { Way::Nearest } else { Way::Linear }));
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
        if self.is_same(&old) {
            return Ok(sample);
        }
        for (field, way) in &self.at {
            sample.update(*field, |value| {
                let volume = Volume::from_value(value)?;
                let mut to = [0; 3];
                for axis in 0..3 {
                    let side = old[axis] / self.spacing[axis] * volume.size()[axis] as f64;
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
                if !context.workspace.reference {
                    return Ok(Value::Deferred(volume.resample(*way, to, context)?));
                }
                let tensor = volume.into_tensor(context)?;
                let pool = &context.workspace.pool;
                Ok(match way {
                    Way::Linear => linear(&tensor, to, pool)?,
                    _ => nearest(&tensor, to, pool)?,
                }
                .into())
            })?;
        }
        Ok(sample)
    }

    fn needs(&self, sample: &Sample, _: &Context<'_>) -> Needs {
        let spacing = self.distances.and_then(|name| sample.get(name));
        if let Some(Value::Tensor(tensor)) = spacing
            && crate::table::to_f64(tensor).is_some_and(|old| self.is_same(&old))
        {
            return Needs::Nothing;
        }
        let mut names = self.distances.into_iter().chain(self.at.iter().map(|(name, _)| *name));
        let wants = |name: &Name| sample.get(*name).is_some_and(|value| value.wants().is_some());
        names.find(wants).map_or(Needs::Nothing, Needs::Field)
    }
}

impl Resample {
    fn is_same(&self, old: &[f64]) -> bool {
        old.iter().zip(self.spacing).all(|(old, new)| *old as f32 == new as f32)
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
        (0..to[axis]).map(|at| made::nearest(at, old[axis], to[axis])).collect()
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

/// Weighted means of the eight neighbours, with the first and the last voxel of each axis staying
/// where they are: along depth, then along height, then along width.
fn linear(tensor: &Tensor, to: [usize; 3], pool: &Pool) -> Result<Tensor> {
    let (volumes, old, shape) = shapes(tensor, to);
    let data = tensor.as_slice::<f32>().ok_or_else(|| Error::Internal("floats askew".into()))?;
    let [planes, lines, columns]: [Vec<Between>; 3] = std::array::from_fn(|axis| {
        (0..to[axis]).map(|at| Between::new(at, old[axis], to[axis])).collect()
    });
    let mean = |at: &Between, of: &dyn Fn(usize) -> f32| {
        (1.0 - at.weight) * of(at.low) + at.weight * of(at.high)
    };
    let mut out = pool.take(shape.iter().product::<usize>() * 4)?;
    let mut voxels = out.as_chunks_mut::<4>().0.iter_mut();
    for volume in 0..volumes {
        let old_voxel =
            |z: usize, y: usize, x: usize| data[((volume * old[0] + z) * old[1] + y) * old[2] + x];
        for plane in &planes {
            for line in &lines {
                for column in &columns {
                    let along_depth = |y: usize, x: usize| mean(plane, &|z| old_voxel(z, y, x));
                    let along_height = |x: usize| mean(line, &|y| along_depth(y, x));
                    let value = mean(column, &along_height);
                    *voxels.next().expect("one for each") = value.to_ne_bytes();
                }
            }
        }
    }
    Tensor::new(DType::F32, &shape, out.freeze())
}
