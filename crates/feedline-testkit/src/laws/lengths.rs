//! The laws of batches by length: every row is its sample, filled up; a batch is of one class, and
//! ranks that go in rounds have equally many.

use super::{Laws, Outcome, SEED};
use feedline_core::{Address, Batch, EpochSeed, Pool, Position, SampleSeed, Tensor};
use feedline_engine::{Run, merge_states};
use std::collections::HashSet;
use std::sync::Arc;

impl Laws<'_> {
    /// Samples that may be dropped, where batches go by length.
    pub(super) fn most_dropped(&self, world: u64, samples: usize) -> Option<usize> {
        let buckets = self.pipeline.bucket.as_ref()?;
        let stretches = samples.div_ceil(buckets.stretch).max(1);
        let largest = buckets.sizes().1;
        Some(stretches * largest * (world as usize).max(buckets.classes()))
    }

    /// What each batch is made of, looked at without the code that made it.
    pub(super) fn batches_by_length(&self, worlds: &[u64]) {
        let Some(buckets) = &self.pipeline.bucket else { return };
        for &world in worlds {
            let all: Vec<Outcome> = (0..world)
                .map(|rank| self.plain(Position::default(), rank, world, self.most()))
                .collect();
            for batch in all.iter().flat_map(|outcome| &outcome.batches) {
                assert!(batch.rows <= buckets.sizes().1, "{}: {} rows", self.plan, batch.rows);
                let indices = batch.indices.as_ref().expect("they were asked for");
                let classes: HashSet<usize> =
                    indices.iter().map(|index| self.row_is_its_sample(batch, *index)).collect();
                assert!(self.rounds || classes.len() == 1, "{}: {classes:?}", self.plan);
            }
            let steps: HashSet<usize> = all.iter().map(|outcome| outcome.batches.len()).collect();
            assert!(!self.rounds || steps.len() == 1, "{}: ranks have {steps:?}", self.plan);
        }
    }

    /// A row begins with its sample's values and is filled up after them. Returns its class.
    fn row_is_its_sample(&self, batch: &Batch, index: u64) -> usize {
        let (pipeline, plan) = (&self.pipeline, self.plan);
        let buckets = pipeline.bucket.as_ref().expect("a plan with bucket");
        let indices = batch.indices.as_ref().expect("they were asked for");
        let row = indices.iter().position(|known| *known == index).expect("an index of the batch");
        let epoch = EpochSeed { seed: SEED, epoch: 0 };
        let seed = SampleSeed { epoch, source: 0, index, visit: 0, output: 0 };
        let mut workspace = pipeline.workspace(Pool::new(0), true);
        let address = Address { index, visit: 0 };
        let sample = pipeline.sample(address, seed, &*self.store, &mut workspace);
        let sample = sample.expect("a sample that was delivered");
        for (name, value) in &sample {
            let found = batch.field(name.as_str()).expect("a field of the sample").row(row);
            let Some(lengths) = batch.field(&format!("{name}_length")) else {
                assert_eq!(&found, value, "{plan}: {name} of sample {index}");
                continue;
            };
            let length = lengths.as_slice::<i64>().expect("lengths")[row] as usize;
            assert_eq!(&found.first(length), value, "{plan}: {name} of sample {index}");
            let size = value.dtype().size().expect("numbers");
            let rest: HashSet<&[u8]> = found.data()[value.data().len()..].chunks(size).collect();
            assert!(rest.len() <= 1, "{plan}: {name} of sample {index} is filled up with {rest:?}");
        }
        if let Some(mask) = batch.field("mask") {
            assert_eq!(mask.data()[row], 1, "{plan}: the mask of sample {index}");
            assert_eq!(mask.data().iter().filter(|real| **real == 1).count(), batch.rows);
        }
        let (_, value): &(_, Tensor) = &sample[buckets.field];
        buckets.class(value.shape().first().copied().unwrap_or(value.data().len()))
    }

    /// The state of one rank that goes in rounds is that of all, and states of several rounds are no
    /// state.
    pub(super) fn rounds_begin_and_end(&self, worlds: &[u64]) {
        for &world in worlds {
            let (outcome, positions) = self.positions(Position::default(), 0, world);
            if self.endless || outcome.error.is_some() || positions.len() < 3 {
                continue;
            }
            let state =
                |done: usize, rank: u64| self.through_json(positions[done].clone(), rank, world);
            for rank in 0..world {
                let other = self.positions(Position::default(), rank, world).1;
                assert_eq!(other, positions, "{}: rank {rank} stands elsewhere", self.plan);
                let position = state(1, 0).position_for(&self.pipeline, SEED, rank, world);
                assert_eq!(position.expect("all ranks stand there"), positions[1]);
            }
            if world > 1 {
                let states: Vec<_> =
                    (0..world).map(|rank| state(1 + (rank == 1) as usize, rank)).collect();
                let error = merge_states(&states).expect_err("two rounds").to_string();
                assert!(error.contains("the same round"), "{error}");
            }
            // Ranks that went without rounds stand at different places.
            let alone = Position { at: Some((0, 1)), ..Position::default() };
            let (pipeline, store) = (Arc::clone(&self.pipeline), Arc::clone(&self.store));
            let refused = Run::start(pipeline, store, alone, self.options(1, 0, 0, world)).err();
            let refused = refused.expect("a state without rounds").to_string();
            assert!(refused.contains("merge_states"), "{refused}");
        }
    }
}
