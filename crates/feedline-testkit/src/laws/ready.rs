//! The laws of batches that take what is ready: the same rows, none too late, resumed and replayed
//! exactly.

use super::{Laws, Outcome, PATIENCE, SEED, is_part, sorted};
use crate::show::show_rows;
use feedline_core::{Policy, Position};
use feedline_engine::{Delivery, Next, Options, Recording, State, merge_states};
use std::sync::Arc;

impl Laws<'_> {
    /// Laws 2, 3 and 4 where batches take what is ready: the same rows in some order, none far from
    /// its place, resumed after any batch, on other ranks, and replayed from what was written down.
    pub(super) fn ready_is_the_same_set(&self, worlds: &[u64]) {
        let size = self.pipeline.stretch() as u64;
        if self.endless || size > 512 {
            return;
        }
        if self.pipeline.bucket.is_some() {
            let delivery = Delivery::Ready { max_slip: 1 };
            let options = Options { delivery, ..self.options(1, 0, 0, 1) };
            let refused = options.check(&self.pipeline).expect_err("bucket has one order");
            assert!(refused.to_string().contains("bucket"), "{refused}");
            return;
        }
        let folder = tempfile::tempdir().expect("a folder for recordings");
        for (number, &world) in worlds.iter().enumerate() {
            let max_slip = 1 + number as u64;
            for rank in 0..world {
                let wanted = self.plain(Position::default(), rank, world, usize::MAX);
                let file = folder.path().join(format!("{world}-{rank}"));
                let options = Options {
                    delivery: Delivery::Ready { max_slip },
                    record: Some(file.clone()),
                    ..self.options(1 + number, 0, rank, world)
                };
                let found = self.engine(Position::default(), options, usize::MAX);
                if let Some(error) = &wanted.error {
                    // Rows that cannot be stacked may come with others that they can be stacked with.
                    let of_its_rows = self.pipeline.batch.is_some() && error.contains("batch");
                    assert!(found.error.is_some() || of_its_rows, "{}\n{error}", self.plan);
                    continue;
                }
                // And, the other way round, meet some that they cannot be stacked with.
                if found.error.as_ref().is_some_and(|error| error.contains("batch")) {
                    continue;
                }
                assert_eq!(found.error, None, "{}", self.plan);
                let when = format!("ready, rank {rank} of {world}, max_slip {max_slip}");
                self.same_rows(&found, &wanted, &when);
                let recording = Arc::new(Recording::read(&file).expect("it was written"));
                self.none_slips(&recording, found.batches.len(), (rank, world), max_slip, &when);
                if !found.batches.is_empty() {
                    let options = Options {
                        delivery: Delivery::Replay(recording),
                        ..self.options(3, 0, rank, world)
                    };
                    let again = self.engine(Position::default(), options, usize::MAX);
                    self.same(&again, &found, &format!("{when}, replayed"));
                }
            }
            self.ready_resumed(world, max_slip, worlds);
        }
    }

    /// The same rows in any order, in batches of the same sizes.
    #[track_caller]
    fn same_rows(&self, found: &Outcome, wanted: &Outcome, when: &str) {
        let sizes = |outcome: &Outcome| -> Vec<usize> {
            outcome.batches.iter().map(|batch| batch.rows).collect()
        };
        assert_eq!(sizes(found), sizes(wanted), "{}\n{when}", self.plan);
        let stacked = self.pipeline.batch.is_some();
        let rows = |outcome: &Outcome| {
            let mut rows: Vec<String> =
                outcome.batches.iter().flat_map(|batch| show_rows(batch, stacked)).collect();
            rows.sort_unstable();
            rows
        };
        // With a tail that is dropped and bad samples left out, another tail may be dropped.
        let drops = self.pipeline.batch.as_ref().is_some_and(|batch| batch.drop_last);
        if self.pipeline.is_counted() || !drops {
            assert_eq!(rows(found), rows(wanted), "{}\n{when}", self.plan);
        }
    }

    /// No row is more than `max_slip` batches from its place.
    fn none_slips(
        &self,
        recording: &Recording,
        batches: usize,
        (rank, world): (u64, u64),
        max_slip: u64,
        when: &str,
    ) {
        if !self.pipeline.is_counted() {
            return;
        }
        let size = self.pipeline.stretch() as u64;
        for batch in 0..batches as u64 {
            for place in recording.places(0, rank, batch).unwrap_or(&[]) {
                let home = (place / size - rank) / world;
                assert!(
                    home.abs_diff(batch) <= max_slip,
                    "{}\n{when}: place {place} came in batch {batch}",
                    self.plan
                );
            }
        }
    }

    /// Resumed after some batches, on the same ranks and on others: exactly the rest.
    fn ready_resumed(&self, world: u64, max_slip: u64, worlds: &[u64]) {
        let all: Vec<Outcome> = (0..world)
            .map(|rank| self.plain(Position::default(), rank, world, usize::MAX))
            .collect();
        if all.iter().any(|outcome| outcome.error.is_some()) {
            return;
        }
        let drops = self.pipeline.batch.as_ref().is_some_and(|batch| batch.drop_last);
        let ready = |rank: u64, world: u64| Options {
            delivery: Delivery::Ready { max_slip },
            ..self.options(2, 0, rank, world)
        };
        let steps = all.iter().map(|outcome| outcome.batches.len()).max().unwrap_or(0);
        for taken in (0..=steps).step_by(steps.div_ceil(self.resumes.clamp(1, 4)).max(1)) {
            let (mut states, mut before) = (Vec::new(), Vec::new());
            for rank in 0..world {
                let mut run = self.start(Position::default(), ready(rank, world));
                let mut batches = Vec::new();
                while batches.len() < taken {
                    match run.next_within(PATIENCE).expect("the plain run met no error") {
                        Some(Next::Batch(batch)) => batches.push(batch),
                        _ => break,
                    }
                }
                let position = run.position();
                let state = self.through_json(position.clone(), rank, world);
                // A rank that has fewer batches stands at the next epoch by now.
                if position.epoch == 0 && (self.pipeline.is_counted() || !drops) {
                    for delivery in [ready(rank, world).delivery, Delivery::Exact] {
                        let options = Options { delivery, ..self.options(3, 0, rank, world) };
                        let rest = self.engine(position.clone(), options, usize::MAX);
                        let mut found = batches.clone();
                        found.extend(rest.batches);
                        let found = Outcome { batches: found, error: rest.error };
                        let when = format!("ready, rank {rank} of {world} resumed after {taken}");
                        self.same_rows(&found, &all[rank as usize], &when);
                    }
                }
                states.push(state);
                before.extend(Outcome { batches, error: None }.indices());
            }
            // Other ranks meet other numbers of bad samples.
            let limited = match &self.pipeline.policy {
                Policy::Skip { count, share, .. } => count.is_some() || share.is_some(),
                Policy::Raise => false,
            };
            if limited {
                continue;
            }
            let merged = merge_states(&states).expect("the states of all ranks");
            if merged.epoch() > 0 {
                assert_eq!(sorted(before), self.plain_rows(), "{}, {taken}", self.plan);
                continue;
            }
            let merged = State::from_json(&merged.to_json()).expect("a merged state");
            for &other in worlds {
                let mut indices = before.clone();
                for rank in 0..other {
                    let position = merged.position_for(&self.pipeline, SEED, rank, other);
                    let position = position.expect("a merged state fits any number of ranks");
                    let rest = self.engine(position, ready(rank, other), usize::MAX);
                    assert_eq!(rest.error, None, "{}", self.plan);
                    indices.extend(rest.indices());
                }
                let when = format!("ready, {world} ranks resumed on {other} after {taken}");
                if drops {
                    assert!(is_part(&sorted(indices), &self.plain_rows()), "{}\n{when}", self.plan);
                } else {
                    assert_eq!(sorted(indices), self.plain_rows(), "{}\n{when}", self.plan);
                }
            }
        }
    }
}
