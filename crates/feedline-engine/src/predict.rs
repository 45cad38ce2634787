//! Guesses what a sample will cost, from what is known before any work is done: its size, the ways
//! its random steps will take, and what it cost in earlier epochs. A wrong guess costs time and
//! never changes what is delivered.

use feedline_core::{Address, EpochSeed, SampleSeed, StepTime};
use feedline_ops::Pipeline;
use smallvec::SmallVec;

/// Ways of a step that are told apart.
const WAYS: usize = 4;
/// Sources with more samples than this are not remembered sample by sample.
const MOST_REMEMBERED: u64 = 1 << 22;

/// What is known of a sample before work begins.
#[derive(Clone, Debug, Default)]
pub(crate) struct Features {
    pub index: u64,
    /// Bytes, as far as the source knows.
    pub weight: u64,
    /// The way each step will take.
    ways: SmallVec<[u8; 8]>,
    /// What it was guessed to cost, in nanoseconds.
    pub cost: u64,
    /// Bytes it was guessed to need beside its row.
    pub bytes: usize,
}

/// A line through costs by weight, which forgets slowly.
#[derive(Clone, Copy, Debug, Default)]
struct Fit {
    count: f64,
    weight: f64,
    cost: f64,
    weight_squared: f64,
    product: f64,
}

impl Fit {
    fn add(&mut self, weight: f64, cost: f64) {
        const KEEP: f64 = 0.995;
        self.count = self.count * KEEP + 1.0;
        self.weight = self.weight * KEEP + weight;
        self.cost = self.cost * KEEP + cost;
        self.weight_squared = self.weight_squared * KEEP + weight * weight;
        self.product = self.product * KEEP + weight * cost;
    }

    /// The cost at `weight`; without measurements 0, with too few or too similar ones their mean.
    fn at(&self, weight: f64) -> f64 {
        if self.count < 0.5 {
            return 0.0;
        }
        let (mean_weight, mean_cost) = (self.weight / self.count, self.cost / self.count);
        let spread = self.weight_squared / self.count - mean_weight * mean_weight;
        if self.count < 8.0 || spread <= 1e-6 * mean_weight * mean_weight {
            return mean_cost;
        }
        let slope = (self.product / self.count - mean_weight * mean_cost) / spread;
        (mean_cost + slope * (weight - mean_weight)).max(0.0)
    }
}

/// Learns costs while a run goes on.
#[derive(Debug)]
pub(crate) struct Predictor {
    /// A line for each way of each step, and one for the rest of the work.
    steps: Vec<[Fit; WAYS]>,
    /// Bytes needed beside the row.
    bytes: Fit,
    /// What a sample costs on average, in nanoseconds.
    usual: f64,
    /// How much more or less than guessed each sample cost, as eighths of a doubling; 0 unknown.
    past: Vec<i8>,
}

impl Predictor {
    pub(crate) fn new(pipeline: &Pipeline) -> Self {
        let steps = vec![Default::default(); pipeline.maps.len() + 1];
        let length = pipeline.source.length();
        let past = vec![0; if length <= MOST_REMEMBERED { length as usize } else { 0 }];
        Self { steps, bytes: Fit::default(), usual: 0.0, past }
    }

    /// What can be said of a sample beforehand.
    pub(crate) fn features(
        &self,
        pipeline: &Pipeline,
        epoch: EpochSeed,
        address: Address,
    ) -> Features {
        let Address { index, visit } = address;
        let weight = pipeline.source.weight(index);
        let seed = SampleSeed { epoch, source: 0, index, visit, output: 0 };
        let ways = pipeline.maps.iter().map(|step| {
            let draws = feedline_core::Draws::new(&seed, step.id);
            step.map.way(draws).min(WAYS as u8 - 1)
        });
        let mut features = Features { index, weight, ways: ways.collect(), cost: 0, bytes: 0 };
        let past = self.past.get(index as usize).copied().unwrap_or(0);
        let factor = (f64::from(past) / 8.0).exp2();
        features.cost = (self.base(&features) * factor) as u64;
        features.bytes = if self.bytes.count < 3.0 {
            weight as usize
        } else {
            self.bytes.at(weight as f64) as usize
        };
        features
    }

    /// What a sample costs on average, in nanoseconds.
    pub(crate) fn usual(&self) -> u64 {
        self.usual as u64
    }

    fn base(&self, features: &Features) -> f64 {
        let weight = features.weight as f64;
        let ways = features.ways.iter().map(|way| usize::from(*way)).chain([0]);
        self.steps.iter().zip(ways).map(|(step, way)| step[way].at(weight)).sum()
    }

    /// Learns from a sample that is done: what each step took, what all took, and the bytes that
    /// were held.
    pub(crate) fn learn(
        &mut self,
        features: &Features,
        times: &[StepTime],
        total: u64,
        bytes: usize,
    ) {
        let keep = if self.usual == 0.0 { 0.0 } else { 0.99 };
        self.usual = self.usual * keep + total as f64 * (1.0 - keep);
        let weight = features.weight as f64;
        let guessed = self.base(features);
        let mut rest = total as f64;
        for (number, way) in features.ways.iter().enumerate() {
            let nanos = times.get(number).map_or(0, |time| (time.nanos as i64).max(0)) as f64;
            self.steps[number][usize::from(*way)].add(weight, nanos);
            rest -= nanos;
        }
        if let Some(last) = self.steps.last_mut() {
            last[0].add(weight, rest.max(0.0));
        }
        self.bytes.add(weight, bytes as f64);
        if let Some(past) = self.past.get_mut(features.index as usize)
            && guessed > 0.0
        {
            let doublings = (total.max(1) as f64 / guessed).log2() * 8.0;
            *past = doublings.clamp(-127.0, 127.0) as i8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_learnt_through_noise_and_a_change_is_followed() {
        let mut fit = Fit::default();
        for n in 0..500u32 {
            let weight = f64::from(n % 17) * 1000.0;
            fit.add(weight, 5000.0 + 3.0 * weight + f64::from(n % 3) - 1.0);
        }
        assert!((fit.at(8000.0) - 29_000.0).abs() < 50.0, "{}", fit.at(8000.0));
        for n in 0..3000u32 {
            fit.add(f64::from(n % 17) * 1000.0, 100.0);
        }
        assert!((fit.at(8000.0) - 100.0).abs() < 10.0, "{}", fit.at(8000.0));
    }

    #[test]
    fn slow_ways_and_slow_samples_are_told_apart_before_the_work() {
        let plan = "range count=64 | sleep p=0.3 slow_ms=9 | cast dtype=int32";
        let pipeline = Pipeline::open(
            &plan.parse().unwrap(),
            &feedline_store::LocalStore,
            &Default::default(),
        );
        let pipeline = pipeline.unwrap();
        let mut predictor = Predictor::new(&pipeline);
        let mut slow = Vec::new();
        for epoch in 0..3 {
            let seed = EpochSeed { seed: feedline_core::Seed(5), epoch };
            for index in 0..64 {
                let features = predictor.features(&pipeline, seed, Address { index, visit: 0 });
                let fires = features.ways[0] == 1;
                // Sample 7 is slow for a reason of its own.
                let nanos =
                    1_000_000 + 9_000_000 * u64::from(fires) + 70_000_000 * u64::from(index == 7);
                if epoch == 2 {
                    slow.push((features.cost, nanos));
                }
                let times = [StepTime { nanos, samples: 1 }, StepTime::default()];
                predictor.learn(&features, &times, nanos, 0);
            }
        }
        let order = |key: fn(&(u64, u64)) -> u64| {
            let mut all: Vec<_> = (0..slow.len()).collect();
            all.sort_by_key(|at| key(&slow[*at]));
            all.into_iter().map(|at| slow[at].1).collect::<Vec<_>>()
        };
        assert_eq!(order(|pair| pair.0), order(|pair| pair.1));
    }

    #[test]
    fn equal_weights_give_the_mean() {
        let mut fit = Fit::default();
        assert_eq!(fit.at(5.0), 0.0);
        (0..20).for_each(|n| fit.add(4.0, f64::from(n % 2) * 10.0));
        assert!((fit.at(9.0) - 5.0).abs() < 0.2);
    }
}
