//! Where random choices come from: a key of (seed, epoch, source, index, visit, output, step).
//!
//! Nothing here knows a thread, a process or a worker, so the same sample comes out the same
//! wherever it is prepared.

use crate::philox4x32;
use serde::{Deserialize, Serialize};

/// The seed of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seed(pub u64);

/// Folds a number into a key. A bijection of `value` for a fixed `key`, and the other way round.
#[must_use]
pub fn mix(key: u64, value: u64) -> u64 {
    let mut z = key.rotate_left(23) ^ value.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Names a step of a pipeline in the key of its draws: its name and how many of that name came
/// before it. Adding or moving *other* steps therefore changes none of its choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepId(u64);

impl StepId {
    /// The `occurrence`-th step called `name`, counted from 0.
    #[must_use]
    pub fn new(name: &str, occurrence: usize) -> Self {
        let hash = name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
        });
        Self(mix(hash, occurrence as u64))
    }
}

/// Seed and epoch: all that an order of samples depends on besides the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochSeed {
    /// The run's seed.
    pub seed: Seed,
    /// The epoch, from 0.
    pub epoch: u64,
}

impl EpochSeed {
    /// A key for a step that orders samples, with the step's own seed and the visit folded in.
    #[must_use]
    pub fn order_key(self, step: StepId, step_seed: u64, visit: u64) -> u64 {
        let key = mix(mix(self.seed.0, self.epoch), step.0);
        mix(mix(key, step_seed), visit)
    }
}

/// Everything that names one output of one sample of one epoch of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleSeed {
    /// Seed and epoch.
    pub epoch: EpochSeed,
    /// Which of the plan's sources.
    pub source: u32,
    /// The sample's index in it.
    pub index: u64,
    /// How often the order came by this index before.
    pub visit: u64,
    /// Which of the sample's outputs.
    pub output: u32,
}

/// The random numbers of one step for one sample.
///
/// ```
/// use feedline_core::{Draws, EpochSeed, SampleSeed, Seed, StepId};
///
/// let epoch = EpochSeed { seed: Seed(0), epoch: 3 };
/// let sample = SampleSeed { epoch, source: 0, index: 41, visit: 0, output: 0 };
/// let step = StepId::new("flip_horizontal", 0);
/// assert_eq!(Draws::new(&sample, step).uniform(), Draws::new(&sample, step).uniform());
/// ```
#[derive(Clone, Debug)]
pub struct Draws {
    key: [u32; 2],
    counter: [u32; 4],
    block: [u32; 4],
    used: usize,
}

impl Draws {
    /// The draws of `step` for `sample`.
    #[must_use]
    pub fn new(sample: &SampleSeed, step: StepId) -> Self {
        let key = mix(mix(sample.epoch.seed.0, sample.epoch.epoch), step.0);
        let key = mix(key, u64::from(sample.source) << 32 | u64::from(sample.output));
        Self::from_key(mix(key, sample.visit), sample.index)
    }

    /// The draws under a key, for the item `index` of whatever the key stands for.
    #[must_use]
    pub fn from_key(key: u64, index: u64) -> Self {
        Self {
            key: [key as u32, (key >> 32) as u32],
            counter: [0, 0, index as u32, (index >> 32) as u32],
            block: [0; 4],
            used: 4,
        }
    }

    /// Any 32 bits.
    pub fn next_u32(&mut self) -> u32 {
        if self.used == 4 {
            self.block = philox4x32(self.counter, self.key);
            self.counter[0] += 1;
            self.used = 0;
        }
        self.used += 1;
        self.block[self.used - 1]
    }

    /// Any 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let low = u64::from(self.next_u32());
        u64::from(self.next_u32()) << 32 | low
    }

    /// A number in `0.0..1.0` with 53 random bits.
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// A number between `low` and `high`.
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.uniform()
    }

    /// True with probability `p`.
    pub fn chance(&mut self, p: f64) -> bool {
        self.uniform() < p
    }

    /// A whole number below `bound`, each as likely as any other.
    ///
    /// # Panics
    ///
    /// If `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "a draw from nothing");
        loop {
            // Lemire's method: the high half is the result, a low half below the remainder of
            // 2^64 is one of the values that would make some results likelier, so draw again.
            let wide = u128::from(self.next_u64()) * u128::from(bound);
            if (wide as u64) >= bound.wrapping_neg() % bound {
                return (wide >> 64) as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(index: u64) -> Draws {
        let epoch = EpochSeed { seed: Seed(1), epoch: 2 };
        let sample = SampleSeed { epoch, source: 0, index, visit: 0, output: 0 };
        Draws::new(&sample, StepId::new("crop", 0))
    }

    #[test]
    fn draws_are_stable_across_releases() {
        let mut some = draws(7);
        let numbers = [some.next_u64(), some.next_u64(), some.below(1000)];
        assert_eq!(numbers, [12211169240419444273, 14350644105260591187, 280]);
        assert_eq!(StepId::new("shuffle", 1), StepId(3492402787912151285));
    }

    #[test]
    fn every_part_of_the_key_matters() {
        let epoch = EpochSeed { seed: Seed(1), epoch: 2 };
        let base = SampleSeed { epoch, source: 0, index: 5, visit: 0, output: 0 };
        let others = [
            SampleSeed { epoch: EpochSeed { seed: Seed(2), ..epoch }, ..base },
            SampleSeed { epoch: EpochSeed { epoch: 3, ..epoch }, ..base },
            SampleSeed { source: 1, ..base },
            SampleSeed { index: 6, ..base },
            SampleSeed { visit: 1, ..base },
            SampleSeed { output: 1, ..base },
        ];
        let step = StepId::new("crop", 0);
        let first = Draws::new(&base, step).next_u64();
        for other in others {
            assert_ne!(Draws::new(&other, step).next_u64(), first, "{other:?}");
        }
        assert_ne!(Draws::new(&base, StepId::new("crop", 1)).next_u64(), first);
        assert_ne!(Draws::new(&base, StepId::new("flip", 0)).next_u64(), first);
    }

    #[test]
    fn neighbouring_samples_draw_independently() {
        // Mean, and correlation of consecutive indices, of 100,000 uniform draws.
        let values: Vec<f64> = (0..100_000).map(|index| draws(index).uniform()).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let product: f64 = values.windows(2).map(|pair| (pair[0] - 0.5) * (pair[1] - 0.5)).sum();
        let correlation = product / values.len() as f64 * 12.0;
        assert!((mean - 0.5).abs() < 0.005, "{mean}");
        assert!(correlation.abs() < 0.015, "{correlation}");
    }

    #[test]
    fn below_is_even() {
        let mut counts = [0u32; 7];
        for index in 0..70_000 {
            counts[draws(index).below(7) as usize] += 1;
        }
        let chi: f64 = counts.iter().map(|n| (f64::from(*n) - 1e4).powi(2) / 1e4).sum();
        assert!(chi < 22.5, "chi-square {chi} with 6 degrees of freedom");
    }
}
