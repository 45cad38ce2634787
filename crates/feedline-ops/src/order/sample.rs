//! Draws with replacement, by weight or evenly over classes.

use crate::registry::step;
use feedline_core::{
    Before, Blobs, Cursor, Draws, Error, Length, Order, OrderRun, Result, Source, StepId,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Draws `count` samples an epoch, with replacement, each with a probability in proportion to its
/// weight. Weights are given, or follow from a field: with `balance`, every class is drawn equally
/// often. It stands before shuffle and repeat; after split, take and skip it draws from what
/// they left.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// How many to draw; as many as there are samples if it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The weights, one for each sample: the hash of an array handed over with the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
    /// The field whose classes are to come equally often.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub balance: Option<String>,
    /// Names the draws; every seed gives others.
    #[serde(default)]
    pub seed: u64,
}

step!(Sample, "sample", Order);

impl Order for Sample {
    fn check(&self) -> Result<()> {
        match (&self.weights, &self.balance) {
            (Some(_), None) | (None, Some(_)) => Ok(()),
            _ => Err(Error::pipeline("sample: give either weights or balance")),
        }
    }

    fn bind(
        &self,
        source: &dyn Source,
        blobs: &Blobs,
        before: &Before<'_>,
        step: StepId,
    ) -> Result<Box<dyn OrderRun>> {
        self.check()?;
        let rows = source.length();
        let Some(places) = before.fixed_length() else {
            return Err(Error::pipeline(
                "sample: weights belong to samples; put it before shuffle and repeat",
            ));
        };
        if self.count.is_some_and(|count| count > 1 << 60) {
            return Err(Error::pipeline("sample: count is above 2^60"));
        }
        let weights = match (&self.weights, &self.balance) {
            (Some(blob), _) => {
                let tensor = blobs.get(blob).ok_or_else(|| crate::source::missing_blob(blob))?;
                crate::table::to_f64(tensor)
                    .ok_or_else(|| Error::pipeline("sample: weights must be numbers"))?
            }
            (None, balance) => {
                let field = balance.as_deref().unwrap_or("label");
                let labels = source.column(field).ok_or_else(|| {
                    Error::pipeline(format!(
                        "sample: balance={field}: this source does not know that field before \
                         reading; give weights instead"
                    ))
                })?;
                // Classes are balanced over what earlier steps (split, take, skip) have left.
                let mut counts: BTreeMap<i64, f64> = BTreeMap::new();
                for place in 0..places {
                    *counts.entry(labels[before.index(place) as usize]).or_default() += 1.0;
                }
                labels
                    .iter()
                    .map(|label| counts.get(label).map_or(0.0, |count| 1.0 / count))
                    .collect()
            }
        };
        if weights.len() as u64 != rows {
            return Err(Error::pipeline(format!(
                "sample: {} weights for {rows} samples",
                weights.len()
            )));
        }
        if let Some(at) = weights.iter().position(|weight| !weight.is_finite() || *weight < 0.0) {
            return Err(Error::pipeline(format!(
                "sample: weight {at} is {}; weights are finite and not below 0",
                weights[at]
            )));
        }
        let weights: Vec<f64> =
            (0..places).map(|place| weights[before.index(place) as usize]).collect();
        if places > 0 && weights.iter().all(|weight| *weight == 0.0) {
            return Err(Error::pipeline("sample: all weights are 0"));
        }
        let length = if places == 0 { 0 } else { self.count.unwrap_or(places) };
        let table = Arc::new(Alias::new(&weights));
        Ok(Box::new(SampleRun { length, seed: self.seed, step, table }))
    }
}

struct SampleRun {
    length: u64,
    seed: u64,
    step: StepId,
    table: Arc<Alias>,
}

impl OrderRun for SampleRun {
    fn length(&self) -> Length {
        Length::Finite(self.length)
    }

    fn at(&self, place: u64, visit: u64, cursor: &mut Cursor) -> (u64, u64) {
        let key = cursor.seed.order_key(self.step, self.seed, visit);
        let index = self.table.draw(&mut Draws::from_key(key, place));
        // Each draw is a visit of its own, so that a sample drawn twice is augmented twice.
        (index, visit.wrapping_mul(self.length).wrapping_add(place))
    }
}

/// Walker's alias table: a weighted draw in constant time. Each column holds its own item up to
/// `keep` and another item above.
struct Alias {
    columns: Vec<(f64, u32)>,
}

impl Alias {
    fn new(weights: &[f64]) -> Self {
        let mean = weights.iter().sum::<f64>() / weights.len().max(1) as f64;
        let mut columns: Vec<(f64, u32)> =
            weights.iter().enumerate().map(|(at, w)| (w / mean, at as u32)).collect();
        let (mut small, mut large): (Vec<usize>, Vec<usize>) =
            (0..columns.len()).partition(|at| columns[*at].0 < 1.0);
        while let (Some(less), Some(&more)) = (small.pop(), large.last()) {
            columns[less].1 = more as u32;
            columns[more].0 -= 1.0 - columns[less].0;
            if columns[more].0 < 1.0 {
                large.pop();
                small.push(more);
            }
        }
        Self { columns }
    }

    fn draw(&self, draws: &mut Draws) -> u64 {
        let column = draws.below(self.columns.len() as u64);
        let (keep, other) = self.columns[column as usize];
        if keep >= 1.0 || draws.uniform() < keep { column } else { u64::from(other) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_follow_the_weights() {
        let weights = [1.0, 0.0, 3.0, 6.0];
        let table = Alias::new(&weights);
        let mut counts = [0u32; 4];
        for at in 0..100_000 {
            counts[table.draw(&mut Draws::from_key(5, at)) as usize] += 1;
        }
        assert_eq!(counts[1], 0);
        for (count, weight) in counts.iter().zip(weights) {
            assert!((f64::from(*count) - weight * 10_000.0).abs() < 600.0, "{counts:?}");
        }
    }
}
