//! A run's place, saved: small, readable, and wary of being loaded into another pipeline.

use crate::bucket::add_begun;
use feedline_core::{Error, Position, Result, Seed, Span};
use feedline_ops::Pipeline;
use feedline_plan::Fingerprint;
use serde::{Deserialize, Serialize};

/// Everything that is needed to go on: JSON of a few hundred bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// The version of this form.
    feedline: u32,
    /// Where the run stands.
    #[serde(flatten)]
    position: Position,
    /// The run's seed.
    seed: Seed,
    /// Which rank saved it, of how many; 0 of 1 for a merged state.
    rank: u64,
    world: u64,
    /// Places in a stretch, and in an epoch.
    stretch: u64,
    places: u64,
    /// Whether each place gives exactly one output.
    counted: bool,
    /// Whether samples are sorted by their lengths, so that a stretch gives several batches.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    by_length: bool,
    /// Names index i of the source.
    manifest: String,
    /// The plan's steps, each with a short hash of its arguments.
    steps: Vec<String>,
}

const VERSION: u32 = 1;
/// A stretch was never begun by so many runs.
const MOST_RUNS: usize = 1 << 12;
/// Ranks of one run are never so many batches apart.
const FAR_APART: u64 = 1 << 22;
/// More epochs than any run has.
const MOST_EPOCHS: u64 = 1 << 48;

fn steps(pipeline: &Pipeline) -> Vec<String> {
    let calls = pipeline.plan.calls().iter().enumerate();
    calls
        // What is kept where changes nothing that comes out.
        .filter(|(_, call)| call.step != "cache")
        .map(|(at, call)| {
            // The source's arguments may name another folder on another machine: the manifest
            // says what is in it.
            if at == 0 {
                return call.step.clone();
            }
            let hash = Fingerprint::of(call.identity().to_string().as_bytes()).to_string();
            format!("{}:{}", call.step, &hash[..6])
        })
        .collect()
}

impl State {
    /// The state of a run that stands at `position`.
    #[must_use]
    pub fn new(pipeline: &Pipeline, position: Position, seed: Seed, rank: u64, world: u64) -> Self {
        let mut manifest = pipeline.source.manifest();
        manifest.truncate(32);
        Self {
            feedline: VERSION,
            position,
            seed,
            rank,
            world,
            stretch: pipeline.stretch() as u64,
            places: pipeline.length().places(),
            counted: pipeline.is_counted(),
            by_length: pipeline.bucket.is_some(),
            manifest,
            steps: steps(pipeline),
        }
    }

    /// The state as JSON on one line.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads a state.
    ///
    /// # Errors
    ///
    /// If it is no state, or of another version.
    pub fn from_json(text: &str) -> Result<Self> {
        let none = |error| Error::State(format!("this is no state of a loader: {error}"));
        let value: serde_json::Value = serde_json::from_str(text).map_err(none)?;
        if let Some(version) = value.get("feedline").filter(|version| **version != VERSION) {
            return Err(Error::State(format!(
                "it is of version {version}; this release reads version {VERSION}"
            )));
        }
        let state: Self = serde_json::from_value(value).map_err(none)?;
        if state.rank >= state.world || state.stretch == 0 {
            return Err(Error::State(format!(
                "it is damaged: rank {} of {}, stretches of {}",
                state.rank, state.world, state.stretch
            )));
        }
        let Position { epoch, left_over, tail, at, batches, skipped, taken, begun } =
            &state.position;
        let batches_in_all = (state.places / state.stretch).saturating_add(state.world);
        let inside = *epoch < MOST_EPOCHS
            && *skipped <= state.places
            && left_over.last().is_none_or(|span| span.end <= *tail)
            && *tail <= state.places.saturating_add(state.world.saturating_mul(state.stretch))
            && at.is_none_or(|(number, row)| {
                row < state.stretch.saturating_add(u64::from(state.by_length))
                    && number % state.world == state.rank
                    && number <= batches_in_all
            })
            && *batches <= batches_in_all
            && begun.len() as u64 <= batches_in_all.min(FAR_APART)
            && begun.iter().flatten().all(|(_, done)| *done <= state.stretch)
            && begun.iter().all(|runs| runs.len() <= MOST_RUNS)
            && (state.by_length || begun.is_empty())
            && taken.len() as u64 <= crate::MOST_OWED;
        if !inside {
            return Err(Error::State("it is damaged: its numbers lie outside the epoch".into()));
        }
        Ok(state)
    }

    /// Whether all ranks stand at the same place by arithmetic, so that the state of one is that of
    /// all.
    fn is_even(&self) -> bool {
        let even = self.position.at.is_none() && self.position.batches == 0;
        even && (self.counted || self.is_of_rounds())
    }

    /// Whether ranks that take their batches in rounds have delivered some.
    fn is_of_rounds(&self) -> bool {
        let last = self.position.begun(0).last();
        self.position.at.is_none() && last.is_some_and(|(world, _)| *world == self.world)
    }

    /// The same pipeline, data and seed at another position, for all ranks.
    #[must_use]
    pub fn at(&self, position: Position) -> Self {
        Self { position, rank: 0, world: 1, ..self.clone() }
    }

    /// Whether both belong to the same pipeline, data and seed.
    #[must_use]
    pub fn is_of(&self, other: &Self) -> bool {
        let same = Position::default();
        self.at(same.clone()) == other.at(same)
    }

    /// Places in a stretch.
    #[must_use]
    pub fn stretch(&self) -> u64 {
        self.stretch
    }

    /// Places in an epoch.
    #[must_use]
    pub fn places(&self) -> u64 {
        self.places
    }

    /// The epoch it stands in.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.position.epoch
    }

    /// The position at which rank `rank` of `world` goes on in `pipeline`.
    ///
    /// # Errors
    ///
    /// If the state was saved by another pipeline, on other data or with another seed: says what
    /// differs. If an uncounted plan is resumed on another number of ranks without merging.
    pub fn position_for(
        &self,
        pipeline: &Pipeline,
        seed: Seed,
        rank: u64,
        world: u64,
    ) -> Result<Position> {
        let here = Self::new(pipeline, Position::default(), seed, rank, world);
        if here.steps != self.steps {
            return Err(Error::State(differing_steps(&self.steps, &here.steps)));
        }
        if here.manifest != self.manifest {
            return Err(Error::State(format!(
                "the data has changed: this state was saved on {}, and here is {}; files were \
                 added, removed, renamed or modified since",
                self.manifest, here.manifest
            )));
        }
        if here.seed != self.seed {
            return Err(Error::State(format!(
                "it was saved with seed {}, and this loader has seed {}",
                self.seed.0, seed.0
            )));
        }
        let cut = |state: &Self| (state.stretch, state.places, state.counted, state.by_length);
        if cut(&here) != cut(self) {
            return Err(Error::State(format!(
                "it was saved on {} samples in batches of {}, and here are {} in batches of {}",
                self.places, self.stretch, here.places, here.stretch
            )));
        }
        if self.is_even() || (self.rank, self.world) == (rank, world) {
            // Padding may reach beyond the last place.
            let tail = self.position.tail.min(self.places);
            return Ok(Position { tail, ..self.position.clone() });
        }
        if self.world == 1 {
            let mut position = merge_states(std::slice::from_ref(self))?.position;
            // What was skipped is counted once, by the first rank.
            if rank > 0 {
                position.skipped = 0;
            }
            return Ok(position);
        }
        Err(Error::State(format!(
            "it was saved by rank {} of {}, and ranks stand at different places where bad samples are \
             left out, batches take what is ready or go by length: merge the states of all ranks \
             first (merge_states)",
            self.rank, self.world
        )))
    }
}

/// Names the first step in which two pipelines differ.
fn differing_steps(saved: &[String], here: &[String]) -> String {
    let name = |step: &str| step.split(':').next().unwrap_or(step).to_owned();
    for at in 0..saved.len().max(here.len()) {
        match (saved.get(at), here.get(at)) {
            (Some(old), Some(new)) if old == new => {}
            (Some(old), Some(new)) if name(old) == name(new) => {
                return format!(
                    "step {} ({}) has other arguments than when it was saved",
                    at + 1,
                    name(new)
                );
            }
            (Some(old), Some(new)) => {
                return format!(
                    "step {} is {} and was {} when it was saved",
                    at + 1,
                    name(new),
                    name(old)
                );
            }
            (Some(old), None) => return format!("step {} ({}) is missing here", at + 1, name(old)),
            (None, Some(new)) => {
                return format!("step {} ({}) was not there when it was saved", at + 1, name(new));
            }
            (None, None) => {}
        }
    }
    "the steps differ".to_owned()
}

/// One state out of those of all ranks, from which any number of ranks can go on.
///
/// # Errors
///
/// If they are not the states of all ranks of one run at one time.
pub fn merge_states(states: &[State]) -> Result<State> {
    let Some(first) = states.iter().min_by_key(|state| (state.epoch(), state.rank)) else {
        return Err(Error::State("there are no states to merge".into()));
    };
    let mut sorted: Vec<&State> = states.iter().collect();
    sorted.sort_by_key(|state| state.rank);
    let complete = sorted.len() as u64 == first.world
        && sorted.iter().enumerate().all(|(rank, state)| state.rank == rank as u64);
    if !complete {
        let ranks: Vec<u64> = sorted.iter().map(|state| state.rank).collect();
        return Err(Error::State(format!(
            "the states of ranks {ranks:?} were given, and {} ranks saved",
            first.world
        )));
    }
    // A rank may have come to the end of the epoch before others have.
    let ended = |state: &State| state.position == Position::epoch(first.epoch() + 1);
    for state in &sorted {
        let same = state.steps == first.steps
            && state.manifest == first.manifest
            && state.seed == first.seed
            && state.world == first.world
            && (state.stretch, state.places) == (first.stretch, first.places)
            && (ended(state)
                || state.epoch() == first.epoch()
                    && (state.position.left_over == first.position.left_over || state.by_length));
        if !same {
            return Err(Error::State(format!(
                "ranks {} and {} did not save the same run in the same epoch",
                first.rank, state.rank
            )));
        }
    }
    let mut merged = State { rank: 0, world: 1, ..first.clone() };
    let (size, world) = (first.stretch, first.world);
    let left = first.position.left(first.places);
    if first.by_length {
        merged.position = merge_by_length(&sorted, first, ended)?;
        return Ok(merged);
    }
    if sorted.iter().all(|state| state.is_even()) {
        // Those that ended the epoch can be one step ahead.
        let step = size.saturating_mul(world);
        let apart = |state: &&&State| match ended(state) {
            true => left > step,
            false => state.position.tail != first.position.tail,
        };
        if let Some(other) = sorted.iter().find(apart) {
            let place = if ended(other) { first.places } else { other.position.tail };
            return Err(Error::State(format!(
                "rank {} had delivered up to place {}, and rank {} up to {place}; save all ranks \
                 after the same step",
                first.rank, first.position.tail, other.rank
            )));
        }
        if !sorted.iter().any(|state| ended(state)) {
            merged.position.tail = merged.position.tail.min(first.places);
            return Ok(merged);
        }
    }
    // Of everything up to the furthest row that a rank has delivered, what was not is left over.
    let all = left.div_ceil(size);
    let stand = |state: &State| match ended(state) {
        true => (all, 0),
        false => state.position.row(0, size, state.rank, world),
    };
    let touched = |state: &State| {
        if ended(state) {
            return all;
        }
        let rows = state.position.taken.len() as u64;
        let (stretch, row) = state.position.row(rows, size, state.rank, world);
        if row == 0 { stretch } else { stretch + world }
    };
    let old: u64 = first.position.left_over.iter().map(|span| span.length()).sum();
    let end = sorted.iter().map(|state| touched(state)).max().unwrap_or(0).max(old.div_ceil(size));
    let (begin, end) = (sorted.iter().map(|state| stand(state).0).min().unwrap_or(0), end.min(all));
    if end.saturating_sub(begin) > FAR_APART {
        return Err(Error::State("the ranks stand too far apart to be of one run".into()));
    }
    let mut left_over: Vec<Span> = Vec::new();
    let mut leave = |numbers: Span| {
        for span in first.position.spans(numbers) {
            match left_over.last_mut() {
                Some(last) if last.end == span.start => last.end = span.end,
                _ => left_over.push(span),
            }
        }
    };
    for number in begin..end {
        let state = sorted[(number % world) as usize];
        let (stretch, row) = stand(state);
        let numbers = first.position.stretch(number, size, first.places);
        if stretch > number {
            continue;
        }
        // Rows of this stretch count from the rank's first row that was not delivered.
        let before = ((number - stretch) / world * size).saturating_sub(row);
        let start = if stretch == number { row } else { 0 };
        for at in start..numbers.length() {
            let count = before + at - start;
            if !state.position.taken.get(count as usize).copied().unwrap_or(false) {
                leave(Span { start: numbers.start + at, end: numbers.start + at + 1 });
            }
        }
    }
    let delivered_to = first.position.stretch(end, size, first.places).start;
    merged.position = Position {
        epoch: first.position.epoch,
        tail: first.position.tail.saturating_add(delivered_to.saturating_sub(old)),
        left_over,
        skipped: sorted.iter().map(|state| state.position.skipped).sum(),
        ..Position::default()
    };
    Ok(merged)
}

/// The position of all ranks where a stretch gives several batches: stretches that were begun are
/// left over as they are, with what was delivered of them.
fn merge_by_length(
    sorted: &[&State],
    first: &State,
    ended: impl Fn(&State) -> bool,
) -> Result<Position> {
    let (size, world) = (first.stretch, first.world);
    let start = first.position.beginning();
    let all = start.left(first.places).div_ceil(size);
    let of_rounds = sorted.iter().any(|state| state.is_of_rounds());
    let same = |state: &State| state.position.beginning() == start;
    let ends = |state: &State| ended(state) && (!of_rounds || all <= 1);
    if let Some(other) = sorted.iter().find(|state| !same(state) && !ends(state)) {
        return Err(Error::State(match of_rounds {
            true => format!(
                "ranks {} and {} stand at different rounds; save all ranks after the same round",
                first.rank, other.rank
            ),
            false => format!("ranks {} and {} did not begin at one place", first.rank, other.rank),
        }));
    }
    if of_rounds {
        return Ok(Position { skipped: first.position.skipped, ..start });
    }
    let stand = |state: &State| match ended(state) {
        true => (all, 0),
        false => state.position.at.unwrap_or((state.rank, 0)),
    };
    // Nobody has begun a stretch from this one on.
    let touched = sorted.iter().map(|state| match stand(state) {
        (stretch, 0) if !ended(state) => stretch.saturating_sub(world - 1),
        (stretch, _) => stretch.saturating_add(1),
    });
    let old: u64 = start.left_over.iter().map(|span| span.length()).sum();
    let least = old.div_ceil(size).max(start.begun.len() as u64);
    let (begin, end) = (
        sorted.iter().map(|state| stand(state).0).min().unwrap_or(0),
        touched.max().unwrap_or(0).max(least).min(all),
    );
    if end.saturating_sub(begin) > FAR_APART {
        return Err(Error::State("the ranks stand too far apart to be of one run".into()));
    }
    let (mut left_over, mut begun) = (Vec::<Span>::new(), Vec::new());
    for number in begin..end {
        let state = sorted[(number % world) as usize];
        let (stretch, done) = stand(state);
        if stretch > number {
            continue;
        }
        for span in start.spans(start.stretch(number, size, first.places)) {
            match left_over.last_mut() {
                Some(last) if last.end == span.start => last.end = span.end,
                _ => left_over.push(span),
            }
        }
        let mut known = start.begun(number).to_vec();
        add_begun(&mut known, (0, if stretch == number { done } else { 0 }));
        begun.push(known);
    }
    while begun.last().is_some_and(Vec::is_empty) {
        begun.pop();
    }
    let delivered_to = start.stretch(end, size, first.places).start;
    Ok(Position {
        epoch: start.epoch,
        tail: start.tail.saturating_add(delivered_to.saturating_sub(old)),
        left_over,
        skipped: sorted.iter().map(|state| state.position.skipped).sum(),
        begun,
        ..Position::default()
    })
}
