//! States of clients to whom windows are dealt, and what all of them leave of an epoch.

use feedline_client::{Checkpoint, Merged, merge_checkpoints};
use feedline_core::{Error, Position, Result, Seed, Span};
use feedline_engine::{Options, State, stretches_left};
use feedline_ops::Pipeline;
use feedline_wire::{Left, Offset, Window, Windows};
use serde::{Deserialize, Serialize};

/// The state of one client of a job with order any.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Dealt {
    /// What it belongs to: the epoch's beginning, as a run's state.
    pub state: State,
    /// How a whole epoch is cut, and places in a step.
    windows: Windows,
    /// What was used.
    pub checkpoint: Checkpoint,
}

/// Whether a state is that of a client to whom windows are dealt.
#[must_use]
pub fn is_dealt(text: &str) -> bool {
    let value: Option<serde_json::Value> = serde_json::from_str(text).ok();
    value.is_some_and(|value| value.get("checkpoint").is_some())
}

impl Dealt {
    pub(crate) fn new(
        pipeline: &Pipeline,
        seed: Seed,
        windows: Windows,
        checkpoint: Checkpoint,
    ) -> Self {
        let position = Position::epoch(checkpoint.cursor.epoch.0);
        Self { state: State::new(pipeline, position, seed, 0, 1), windows, checkpoint }
    }

    pub(crate) fn from_json(text: &str) -> Result<Self> {
        serde_json::from_str(text)
            .map_err(|error| Error::State(format!("this is no state of a job's client: {error}")))
    }

    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// One state out of those of all clients of a job, from which any number of ranks or clients can go
/// on, here or on a service.
///
/// # Errors
///
/// If they are not the states of all clients of one job, saved at times that fit together.
pub fn merge_states(texts: &[String]) -> Result<State> {
    let states: Vec<Dealt> =
        texts.iter().map(|text| Dealt::from_json(text)).collect::<Result<_>>()?;
    let Some(first) = states.first() else {
        return Err(Error::State("there are no states to merge".into()));
    };
    let checkpoints: Vec<Checkpoint> = states.iter().map(|one| one.checkpoint.clone()).collect();
    if let Some(other) = states.iter().find(|one| !one.state.is_of(&first.state)) {
        let (first, other) = (first.checkpoint.cursor.consumer, other.checkpoint.cursor.consumer);
        return Err(Error::State(format!(
            "consumers {first} and {other} did not save the same pipeline"
        )));
    }
    let merged = merge_checkpoints(&checkpoints, &first.windows)
        .map_err(|error| Error::State(error.to_string()))?;
    Ok(first.state.at(rest(&first.state, &merged)?))
}

/// What is left, as places of the epoch.
fn rest(state: &State, merged: &Merged) -> Result<Position> {
    let Merged { left: Left { epoch, open, tail }, start, windows } = merged;
    let start = match start.as_ref().map(|start| start.position.as_str()) {
        None | Some("") => Position::epoch(epoch.0),
        Some(text) => serde_json::from_str(text)
            .map_err(|error| Error::State(format!("its start is damaged: {error}")))?,
    };
    let (size, length) = (state.stretch(), state.places());
    // Where a step of the epoch begins in the list of places that were left.
    let number = |window: Window, offset: Offset| {
        let step = window.0.saturating_mul(windows.steps).saturating_add(offset.0);
        start.stretch(step, size, length).start
    };
    let mut left_over: Vec<Span> = Vec::new();
    let mut leave = |numbers: Span| {
        for span in start.spans(numbers) {
            match left_over.last_mut() {
                Some(last) if last.end == span.start => last.end = span.end,
                _ => left_over.push(span),
            }
        }
    };
    for (window, offset) in open {
        let end = number(Window(window.0 + 1), Offset(0));
        leave(Span { start: number(*window, *offset), end });
    }
    let tail = number(*tail, Offset(0));
    let old: u64 = start.left_over.iter().map(|span| span.length()).sum();
    if tail < old {
        leave(Span { start: tail, end: old });
    }
    let tail = start.tail.saturating_add(tail.saturating_sub(old)).min(length);
    Ok(Position { left_over, tail, ..Position::epoch(epoch.0) })
}

/// How what is left from `start` is cut for a job with order any.
pub(crate) fn windows(pipeline: &Pipeline, start: &Position, steps: u64) -> Windows {
    Windows::holding(stretches_left(pipeline, start, 1), steps)
}

/// How what is left from `start` is cut for the ranks of a job with order exact.
pub(crate) fn windows_of_ranks(
    pipeline: &Pipeline,
    start: &Position,
    steps: u64,
    options: &Options,
) -> Windows {
    let ranks = options.world;
    let all = stretches_left(pipeline, start, ranks);
    // In rounds every rank has its part of every stretch.
    let each = if options.rounds { all } else { all.div_ceil(ranks) };
    let count = each.div_ceil(steps.max(1)).saturating_mul(ranks);
    Windows { count, steps: steps.max(1), last: steps.max(1) }
}
