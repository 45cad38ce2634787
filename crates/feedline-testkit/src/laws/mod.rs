//! The laws that every pipeline obeys, wherever and however it runs.

use crate::Fixtures;
use crate::stores::any_store;
use feedline_core::{
    Address, Batch, Cursor, EpochSeed, Length, Policy, Pool, Position, Result, SampleSeed, Seed,
    Store,
};
use feedline_engine::{Next, Options, Run, State, Steps, merge_states};
use feedline_ops::plain::{Part, Plain};
use feedline_ops::{Builtin, Pipeline};
use feedline_plan::Plan;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

mod cached;
mod lengths;
mod ready;
mod windows;

/// A run that gives nothing for so long hangs.
const PATIENCE: Duration = Duration::from_secs(60);
/// Batches looked at where there is no end.
const ENDLESS: usize = 12;
const SEED: Seed = Seed(7);

/// What came of an epoch: its batches, and the error that ended it early.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The batches, in order.
    pub batches: Vec<Batch>,
    /// The error's text, if there was one.
    pub error: Option<String>,
}

impl Outcome {
    /// What is left after the first `count` batches.
    fn after(&self, count: usize) -> Self {
        Self { batches: self.batches[count..].to_vec(), error: self.error.clone() }
    }

    /// Indices of all rows, where the run was asked for them.
    #[must_use]
    pub fn indices(&self) -> Vec<u64> {
        self.batches.iter().flat_map(|batch| batch.indices.clone().unwrap_or_default()).collect()
    }
}

/// Opens a plan on local files, after replacing the fixtures' names in it.
///
/// # Errors
///
/// If the plan is wrong or its data is missing.
pub fn open(plan: &str, fixtures: &Fixtures) -> Result<Arc<Pipeline>> {
    let plan: Plan = fixtures.expand(plan).parse()?;
    let host = Some(Arc::clone(&fixtures.host));
    Ok(Arc::new(Pipeline::open_with(&plan, &*any_store(), &fixtures.blobs, host)?))
}

/// The rest of an epoch by the plain run, `most` batches at most.
#[must_use]
pub fn plain_epoch(
    pipeline: &Arc<Pipeline>,
    store: &Arc<dyn Store>,
    part: Part,
    most: usize,
) -> Outcome {
    let (mut batches, mut error) = (Vec::new(), None);
    let mut plain = Plain::new(Arc::clone(pipeline), Arc::clone(store), part);
    while batches.len() < most {
        match plain.next() {
            Some(Ok(batch)) => batches.push(batch),
            Some(Err(failure)) => {
                error = Some(failure.to_string());
                break;
            }
            None => break,
        }
    }
    if batches.len() < most {
        assert!(plain.next().is_none(), "a plain run that has ended goes on");
    }
    Outcome { batches, error }
}

/// The rest of an epoch by the engine, `most` batches at most.
///
/// # Panics
///
/// If the run hangs, cannot be started, or does not stay ended.
#[must_use]
pub fn engine_epoch(
    pipeline: &Arc<Pipeline>,
    store: &Arc<dyn Store>,
    position: Position,
    options: Options,
    most: usize,
) -> Outcome {
    let last = options.epochs == Some(1);
    let epoch = position.epoch;
    let mut run = Run::start(Arc::clone(pipeline), Arc::clone(store), position, options)
        .expect("the run can be started");
    let (mut batches, mut error) = (Vec::new(), None);
    while batches.len() < most {
        match run.next_within(PATIENCE) {
            Ok(None) => panic!("the run hangs after {} batches", batches.len()),
            Ok(Some(Next::Batch(batch))) => batches.push(batch),
            Ok(Some(Next::EpochEnd(ended))) => {
                assert_eq!(ended, epoch, "another epoch ended");
                for _ in 0..3 {
                    if last {
                        let next = run.next_within(PATIENCE);
                        assert!(matches!(next, Ok(Some(Next::End))), "ended, then: {next:?}");
                    }
                }
                break;
            }
            Ok(Some(Next::End)) => panic!("the run ended before its epoch"),
            Err(failure) => {
                let text = failure.to_string();
                let again = run.next_within(PATIENCE).expect_err("a failed run stays failed");
                assert_eq!(again.to_string(), text, "a failed run says something else");
                error = Some(text);
                break;
            }
        }
    }
    Outcome { batches, error }
}

/// The source indices of places `start..end` of an epoch.
#[must_use]
pub fn places(pipeline: &Pipeline, seed: Seed, epoch: u64, start: u64, end: u64) -> Vec<u64> {
    let mut cursor = Cursor::new(EpochSeed { seed, epoch });
    (start..end).map(|place| pipeline.address(place, &mut cursor).index).collect()
}

/// Checks a plan under all laws, on 1, 2 and 3 ranks.
///
/// # Panics
///
/// Says which law is broken and how.
pub fn assert_laws(plan: &str, fixtures: &Fixtures) {
    assert_laws_within(plan, fixtures, &[1, 2, 3], 12);
}

/// As [`assert_laws`], on these numbers of ranks and resuming at `resumes` places at most.
///
/// # Panics
///
/// Says which law is broken and how.
pub fn assert_laws_within(plan: &str, fixtures: &Fixtures, worlds: &[u64], resumes: usize) {
    let text = fixtures.expand(plan);
    let Ok(parsed) = text.parse::<Plan>() else { return };
    survives_its_forms(&parsed);
    let Ok(pipeline) = open(plan, fixtures) else { return };
    let mut laws = Laws {
        plan,
        store: any_store(),
        endless: pipeline.length() == Length::Infinite,
        pipeline,
        resumes,
        rounds: false,
    };
    laws.hold(worlds);
    laws.caches_change_nothing(fixtures);
    if laws.pipeline.bucket.is_some() {
        laws.batches_by_length(worlds);
        laws.rounds = true;
        let possible = |world: &u64| laws.options(1, 0, 0, *world).check(&laws.pipeline).is_ok();
        let worlds: Vec<u64> = worlds.iter().copied().filter(possible).collect();
        laws.hold(&worlds);
        laws.batches_by_length(&worlds);
        laws.rounds_begin_and_end(&worlds);
    }
}

/// Law 6: a plan survives its text form and its JSON.
fn survives_its_forms(parsed: &Plan) {
    let reread: Plan = parsed.to_string().parse().expect("a printed plan can be read");
    assert_eq!(&reread, parsed, "the text form changed the plan");
    let Ok((plan, _)) = Pipeline::check(parsed, Some(&*any_store())) else { return };
    let canonical = plan.canonical(&Builtin).expect("a plan that was right stays right");
    assert_eq!(canonical, plan, "canonical twice is not canonical");
    for text in [plan.to_string(), plan.to_json(), plan.to_pretty_json()] {
        let again = Plan::read(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(again, plan, "{text}");
        let (again, _) = Pipeline::check(&again, None).expect("a plan that was right stays right");
        assert_eq!(again.fingerprint(), plan.fingerprint(), "{text}");
    }
}

struct Laws<'a> {
    plan: &'a str,
    pipeline: Arc<Pipeline>,
    store: Arc<dyn Store>,
    endless: bool,
    resumes: usize,
    /// Whether ranks take their batches in rounds.
    rounds: bool,
}

impl Laws<'_> {
    fn hold(&self, worlds: &[u64]) {
        self.engine_equals_plain();
        self.epochs_follow_each_other();
        for &world in worlds {
            self.every_place_once(world);
            self.resumed_anywhere(world);
            self.resumed_on_other_ranks(world, worlds);
        }
        self.ready_is_the_same_set(worlds);
        self.windows_make_the_run(worlds);
        self.dropped_leaves_nothing();
    }

    fn most(&self) -> usize {
        if self.endless { ENDLESS } else { usize::MAX }
    }

    fn plain(&self, position: Position, rank: u64, world: u64, most: usize) -> Outcome {
        let rounds = self.rounds;
        let part = Part { seed: SEED, rank, world, position, rounds, with_index: true };
        plain_epoch(&self.pipeline, &self.store, part, most)
    }

    fn options(&self, threads: usize, ahead: usize, rank: u64, world: u64) -> Options {
        let memory = if ahead == 1 { 1 } else { 1 << 30 };
        Options {
            threads,
            ahead,
            memory,
            rank,
            world,
            rounds: self.rounds,
            seed: SEED,
            epochs: Some(1),
            with_index: true,
            ..Options::default()
        }
    }

    fn engine(&self, position: Position, options: Options, most: usize) -> Outcome {
        engine_epoch(&self.pipeline, &self.store, position, options, most)
    }

    #[track_caller]
    fn same(&self, found: &Outcome, wanted: &Outcome, when: &str) {
        let Self { plan, .. } = self;
        for (at, (found, wanted)) in found.batches.iter().zip(&wanted.batches).enumerate() {
            if found != wanted {
                panic!(
                    "{plan}\n{when}: batch {at} differs\n found {}\nwanted {}\n indices {:?} and {:?}",
                    crate::show_batch(found),
                    crate::show_batch(wanted),
                    found.indices,
                    wanted.indices
                );
            }
        }
        assert_eq!(found.error, wanted.error, "{plan}\n{when}: the errors differ");
        assert_eq!(found.batches.len(), wanted.batches.len(), "{plan}\n{when}: number of batches");
    }

    /// Laws 1, 2 and 5: on any number of threads, with any memory, twice.
    fn engine_equals_plain(&self) {
        let start = Position::default();
        let wanted = self.plain(start.clone(), 0, 1, self.most());
        let again = self.plain(start.clone(), 0, 1, self.most());
        self.same(&again, &wanted, "the plain run a second time");
        for (threads, ahead) in [(1, 0), (2, 1), (3, 0), (5, 3), (5, 3), (1, 1)] {
            let options = self.options(threads, ahead, 0, 1);
            let found = self.engine(start.clone(), options, self.most());
            self.same(&found, &wanted, &format!("{threads} threads, {ahead} ahead"));
        }
    }

    /// Epochs come one after the other, each its own, and prefetching runs across the border.
    fn epochs_follow_each_other(&self) {
        if self.endless {
            return;
        }
        let wanted: Vec<Outcome> =
            (0..3).map(|epoch| self.plain(Position::epoch(epoch), 0, 1, usize::MAX)).collect();
        if wanted.iter().any(|epoch| epoch.error.is_some()) {
            return;
        }
        let options = Options { epochs: Some(3), ..self.options(3, 0, 0, 1) };
        let mut run = self.start(Position::default(), options);
        for (epoch, wanted) in wanted.iter().enumerate() {
            let mut batches = Vec::new();
            loop {
                match run.next_within(PATIENCE).expect("the plain run met no error") {
                    Some(Next::Batch(batch)) => batches.push(batch),
                    Some(Next::EpochEnd(ended)) => {
                        assert_eq!(ended, epoch as u64, "{}", self.plan);
                        break;
                    }
                    other => panic!("{}: epoch {epoch} ended with {other:?}", self.plan),
                }
            }
            let found = Outcome { batches, error: None };
            self.same(&found, wanted, &format!("epoch {epoch} of one run"));
            assert_eq!(run.position(), Position::epoch(epoch as u64 + 1), "{}", self.plan);
        }
        for _ in 0..3 {
            assert!(matches!(run.next_within(PATIENCE), Ok(Some(Next::End))), "{}", self.plan);
        }
        let orders: Vec<Vec<u64>> = wanted.iter().map(Outcome::indices).collect();
        let distinct: HashSet<u64> = orders[0].iter().copied().collect();
        if self.pipeline.order_names.contains(&"shuffle") && distinct.len() >= 8 {
            assert_ne!(orders[0], orders[1], "{}: two epochs in one order", self.plan);
        }
    }

    fn start(&self, position: Position, options: Options) -> Run {
        Run::start(Arc::clone(&self.pipeline), Arc::clone(&self.store), position, options)
            .expect("the run can be started")
    }

    /// The indices that all ranks together deliver from a position, if there is an end.
    fn expected_from(&self, tail: u64, world: u64) -> Option<Vec<u64>> {
        let length = self.pipeline.length().finite()?;
        let mut end = length;
        if let Some(batch) = self.pipeline.batch.as_ref().filter(|batch| batch.drop_last) {
            let round = batch.size as u64 * world;
            end = tail + length.saturating_sub(tail) / round * round;
        }
        Some(sorted(places(&self.pipeline, SEED, 0, tail.min(end), end)))
    }

    /// Law 4: over all ranks, every place once, minus the tail that is declared dropped.
    fn every_place_once(&self, world: u64) {
        let all: Vec<Outcome> = (0..world)
            .map(|rank| {
                let wanted = self.plain(Position::default(), rank, world, self.most());
                let options = self.options(2, 0, rank, world);
                let found = self.engine(Position::default(), options, self.most());
                self.same(&found, &wanted, &format!("rank {rank} of {world}"));
                found
            })
            .collect();
        if self.endless || all.iter().any(|outcome| outcome.error.is_some()) {
            return;
        }
        let delivered = sorted(all.iter().flat_map(Outcome::indices).collect());
        if self.pipeline.is_counted() {
            assert_eq!(Some(&delivered), self.expected_from(0, world).as_ref(), "{}", self.plan);
            let steps: HashSet<usize> = all.iter().map(|outcome| outcome.batches.len()).collect();
            let even =
                self.pipeline.batch.as_ref().is_some_and(|batch| batch.drop_last || batch.pad);
            assert!(!even || steps.len() == 1, "{}: ranks have {steps:?} steps", self.plan);
        } else {
            self.is_rest(&delivered, &[], world, "all ranks");
        }
    }

    /// Whether `delivered` and `before` are together all good samples, minus dropped tails.
    #[track_caller]
    fn is_rest(&self, delivered: &[u64], before: &[u64], world: u64, when: &str) {
        let one = self.plain_rows();
        let together = sorted([delivered, before].concat());
        match &self.pipeline.batch {
            Some(batch) if batch.drop_last => {
                assert!(is_part(&together, &one), "{}\n{when}: {together:?}", self.plan);
                let most = self.most_dropped(world, one.len());
                let most = most.unwrap_or((batch.size - 1) * world as usize * 3);
                assert!(together.len() + most >= one.len(), "{}\n{when}: {together:?}", self.plan);
            }
            _ => assert_eq!(together, one, "{}\n{when}", self.plan),
        }
    }

    /// Indices of all good samples of the epoch, each looked at by itself.
    fn plain_rows(&self) -> Vec<u64> {
        let pipeline = &self.pipeline;
        let mut workspace = pipeline.workspace(Pool::new(0), true);
        let mut cursor = Cursor::new(EpochSeed { seed: SEED, epoch: 0 });
        let mut good = Vec::new();
        for place in 0..pipeline.length().finite().unwrap_or(0) {
            let address = pipeline.address(place, &mut cursor);
            let Address { index, visit } = address;
            let seed = SampleSeed { epoch: cursor.seed, source: 0, index, visit, output: 0 };
            if pipeline.sample(address, seed, &*self.store, &mut workspace).is_ok() {
                good.push(index);
            }
        }
        sorted(good)
    }

    /// Saves and loads a state, as a checkpoint does.
    fn through_json(&self, position: Position, rank: u64, world: u64) -> State {
        let state = State::new(&self.pipeline, position, SEED, rank, world);
        let json = state.to_json();
        assert!(json.len() <= 1024, "{}: a state of {} bytes: {json}", self.plan, json.len());
        let read = State::from_json(&json).unwrap_or_else(|error| panic!("{json}: {error}"));
        assert_eq!(read, state, "{}: {json}", self.plan);
        read
    }

    /// Runs a rank on the engine and notes where it stood before and after every batch.
    fn positions(&self, position: Position, rank: u64, world: u64) -> (Outcome, Vec<Position>) {
        let mut run = self.start(position, self.options(3, 0, rank, world));
        let (mut batches, mut error) = (Vec::new(), None);
        let (mut positions, mut steps) = (vec![run.position()], vec![run.steps_left()]);
        while batches.len() < self.most() {
            match run.next_within(PATIENCE) {
                Ok(Some(Next::Batch(batch))) => {
                    batches.push(batch);
                    positions.push(run.position());
                    steps.push(run.steps_left());
                }
                Ok(Some(Next::EpochEnd(_))) => break,
                Ok(other) => panic!("{}: {other:?} in the middle of an epoch", self.plan),
                Err(failure) => {
                    error = Some(failure.to_string());
                    break;
                }
            }
        }
        let total = batches.len();
        for (done, steps) in steps.into_iter().enumerate() {
            let left = (total - done) as u64;
            let right = match steps {
                Steps::Exactly(steps) => {
                    self.pipeline.is_counted() && (steps == left || error.is_some())
                }
                Steps::Between(least, most) => {
                    let least = if error.is_some() { 0 } else { least };
                    !self.pipeline.is_counted() && (least..=most).contains(&left)
                }
                Steps::Endless => self.endless,
            };
            assert!(
                right,
                "{}: after {done} of {total} batches, rank {rank} of {world}: {steps:?}",
                self.plan
            );
        }
        (Outcome { batches, error }, positions)
    }

    /// Law 3: resumed after any batch, also on other threads: exactly the rest.
    fn resumed_anywhere(&self, world: u64) {
        for rank in 0..world {
            let (all, positions) = self.positions(Position::default(), rank, world);
            let every = positions.len().div_ceil(self.resumes.max(1)).max(1);
            for (done, position) in positions.into_iter().enumerate() {
                if done % every != 0 && done != all.batches.len() {
                    continue;
                }
                let state = self.through_json(position, rank, world);
                let position = state
                    .position_for(&self.pipeline, SEED, rank, world)
                    .unwrap_or_else(|error| panic!("{}: {error}", self.plan));
                let wanted = all.after(done);
                let most = if self.endless { wanted.batches.len() } else { usize::MAX };
                let when = format!("rank {rank} of {world}, resumed after {done} batches");
                let found = self.plain(position.clone(), rank, world, most);
                self.same(&found, &wanted, &format!("{when}, plain"));
                let options = self.options([1, 3, 2, 5][done % 4], done % 3, rank, world);
                let found = self.engine(position, options, most);
                self.same(&found, &wanted, &when);
            }
        }
    }

    /// Law 3 with other ranks: what was not delivered is delivered, once.
    fn resumed_on_other_ranks(&self, world: u64, worlds: &[u64]) {
        if self.endless {
            return;
        }
        let start = Position::default();
        let ranks: Vec<(Outcome, Vec<Position>)> =
            (0..world).map(|rank| self.positions(start.clone(), rank, world)).collect();
        // Each rank has the whole budget for bad samples, and merging adds up what they skipped: a
        // run that was within its budget on several ranks need not be on one.
        let budget = matches!(
            self.pipeline.policy,
            Policy::Skip { count: Some(_), .. } | Policy::Skip { share: Some(_), .. }
        );
        if budget || ranks.iter().any(|(outcome, _)| outcome.error.is_some()) {
            return;
        }
        let steps = ranks.iter().map(|(outcome, _)| outcome.batches.len()).max().unwrap_or(0);
        let every = steps.div_ceil(self.resumes.clamp(1, 5)).max(1);
        for done in (0..=steps).step_by(every) {
            if self.pipeline.is_counted() {
                // All ranks are at the same step, so those of ranks that have it are equal.
                let at: Vec<&Position> =
                    ranks.iter().filter_map(|(_, positions)| positions.get(done)).collect();
                assert!(at.windows(2).all(|pair| pair[0] == pair[1]), "{}: {at:?}", self.plan);
                for &other in worlds {
                    let wanted = self.expected_from(at[0].tail, other).unwrap_or_default();
                    let found = self.rest(&self.through_json(at[0].clone(), 0, world), other);
                    let when = format!("{done} steps on {world} ranks, the rest on {other}");
                    assert_eq!(found, wanted, "{}\n{when}", self.plan);
                }
                continue;
            }
            // Ranks of an uncounted plan may stand anywhere, unless they go in rounds.
            let (mut states, mut before) = (Vec::new(), Vec::new());
            for (rank, (outcome, positions)) in ranks.iter().enumerate() {
                let apart = if self.rounds { 0 } else { rank * 2 };
                let done = (done + apart) % positions.len();
                states.push(self.through_json(positions[done].clone(), rank as u64, world));
                before.extend(
                    outcome.batches[..done]
                        .iter()
                        .flat_map(|b| b.indices.clone().unwrap_or_default()),
                );
            }
            let merged =
                merge_states(&states).unwrap_or_else(|error| panic!("{}: {error}", self.plan));
            for &other in worlds {
                let rest = self.rest(&merged, other);
                let when = format!("{world} ranks after about {done} batches, the rest on {other}");
                self.is_rest(&rest, &before, world.max(other), &when);
                self.merged_again(&merged, other, &before);
            }
        }
    }

    /// From a merged state: a batch on each of `world` ranks, merged once more, the rest on one.
    fn merged_again(&self, merged: &State, world: u64, before: &[u64]) {
        let (mut states, mut before) = (Vec::new(), before.to_vec());
        for rank in 0..world {
            let position = merged
                .position_for(&self.pipeline, SEED, rank, world)
                .unwrap_or_else(|error| panic!("{}: {error}", self.plan));
            let (outcome, positions) = self.positions(position, rank, world);
            assert_eq!(outcome.error, None, "{}", self.plan);
            let more = if self.rounds { 0 } else { rank as usize % 2 };
            let done = outcome.batches.len().min(1 + more);
            before.extend(
                outcome.batches[..done].iter().flat_map(|b| b.indices.clone().unwrap_or_default()),
            );
            states.push(self.through_json(positions[done].clone(), rank, world));
        }
        let again = merge_states(&states).unwrap_or_else(|error| panic!("{}: {error}", self.plan));
        let rest = self.rest(&again, 1);
        self.is_rest(&rest, &before, world, "merged twice");
    }

    /// Indices that `world` ranks deliver from a state to the end of the epoch.
    fn rest(&self, state: &State, world: u64) -> Vec<u64> {
        let mut delivered = Vec::new();
        for rank in 0..world {
            let position = state
                .position_for(&self.pipeline, SEED, rank, world)
                .unwrap_or_else(|error| panic!("{}: {error}", self.plan));
            let wanted = self.plain(position.clone(), rank, world, usize::MAX);
            assert_eq!(wanted.error, None, "{}\nresumed on rank {rank} of {world}", self.plan);
            if rank + 1 == world {
                let found = self.engine(position, self.options(2, 0, rank, world), usize::MAX);
                self.same(&found, &wanted, &format!("resumed on rank {rank} of {world}"));
            }
            delivered.extend(wanted.indices());
        }
        sorted(delivered)
    }

    /// Law 5: a run that is dropped half-way is gone.
    fn dropped_leaves_nothing(&self) {
        let store = any_store();
        let options = Options { epochs: None, ..self.options(3, 0, 0, 1) };
        let pipeline = Arc::clone(&self.pipeline);
        let mut run = Run::start(pipeline, Arc::clone(&store), Position::default(), options)
            .expect("the run can be started");
        let _ = run.next_within(PATIENCE);
        let start = Instant::now();
        drop(run);
        assert!(start.elapsed() < Duration::from_secs(5), "{}: dropping took too long", self.plan);
        // Every thread of a run holds the store.
        while Arc::strong_count(&store) > 1 {
            assert!(start.elapsed() < Duration::from_secs(10), "{}: a thread is left", self.plan);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn sorted(mut indices: Vec<u64>) -> Vec<u64> {
    indices.sort_unstable();
    indices
}

/// Whether the sorted `part` is contained in the sorted `whole`, each as often at most.
fn is_part(part: &[u64], whole: &[u64]) -> bool {
    let mut whole = whole.iter();
    part.iter().all(|item| whole.any(|other| other == item))
}
