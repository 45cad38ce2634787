//! States of clients to whom windows are dealt, and what all of them leave of an epoch.

use crate::streams::{Cutting, read_position};
use feedline_client::{Checkpoint, Merged, merge_checkpoints};
use feedline_core::{Error, Position, Result, Seed, Span};
use feedline_engine::{Options, State, stretches_left};
use feedline_ops::Pipeline;
use feedline_wire::{Left, Streams, Windows};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The state of one client of a job with order any.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Dealt {
    /// What it belongs to: the epoch's beginning, as a run's state.
    pub state: State,
    /// How a whole epoch is cut, and places in a step.
    windows: Windows,
    /// What an epoch consists of, if it is not the data once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<Streams>,
    /// Places in an epoch of each stream, where there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    lengths: Vec<u64>,
    /// What was used.
    pub checkpoint: Checkpoint,
}

/// What the clients of a job with several streams left of an epoch.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Parted {
    /// What it belongs to.
    pub state: State,
    /// The streams.
    pub streams: Streams,
    /// What is left of each.
    pub left: Vec<Position>,
}

fn has(text: &str, field: &str) -> bool {
    let value: Option<serde_json::Value> = serde_json::from_str(text).ok();
    value.is_some_and(|value| value.get(field).is_some())
}

/// Whether a state is that of a client to whom windows are dealt.
#[must_use]
pub fn is_dealt(text: &str) -> bool {
    has(text, "checkpoint")
}

/// Whether a state is what the clients of several streams left.
pub(crate) fn is_parted(text: &str) -> bool {
    has(text, "left")
}

/// The streams that a state is about.
pub(crate) fn streams_of(text: &str) -> Result<Option<Streams>> {
    if is_dealt(text) {
        return Ok(Dealt::from_json(text)?.streams);
    }
    match is_parted(text) {
        true => Ok(Some(read::<Parted>(text)?.streams)),
        false => Ok(None),
    }
}

fn read<T: DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text)
        .map_err(|error| Error::State(format!("this is no state of a job's client: {error}")))
}

impl Dealt {
    pub(crate) fn new(
        pipeline: &Pipeline,
        seed: Seed,
        (windows, cutting): (Windows, &Cutting),
        checkpoint: Checkpoint,
    ) -> Self {
        let position = Position::epoch(checkpoint.cursor.epoch.0);
        let state = State::new(pipeline, position, seed, 0, 1);
        let (streams, lengths) = (cutting.streams, cutting.lengths());
        Self { state, windows, streams, lengths, checkpoint }
    }

    pub(crate) fn from_json(text: &str) -> Result<Self> {
        read(text)
    }

    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl Parted {
    pub(crate) fn from_json(text: &str) -> Result<Self> {
        let parted: Self = read(text)?;
        if parted.left.len() as u64 != parted.streams.count {
            let (left, streams) = (parted.left.len(), parted.streams.count);
            return Err(Error::State(format!("it is damaged: {left} rests of {streams} streams")));
        }
        Ok(parted)
    }
}

/// One state out of those of all clients of a job, from which any number of ranks or clients can go
/// on, here or on a service. Where the job has several streams, it goes on on a service.
///
/// # Errors
///
/// If they are not the states of all clients of one job, saved at times that fit together.
pub fn merge_states(texts: &[String]) -> Result<String> {
    let states: Vec<Dealt> =
        texts.iter().map(|text| Dealt::from_json(text)).collect::<Result<_>>()?;
    let Some(first) = states.first() else {
        return Err(Error::State("there are no states to merge".into()));
    };
    let checkpoints: Vec<Checkpoint> = states.iter().map(|one| one.checkpoint.clone()).collect();
    let same = |one: &Dealt| one.state.is_of(&first.state) && one.streams == first.streams;
    if let Some(other) = states.iter().find(|one| !same(one)) {
        let (first, other) = (first.checkpoint.cursor.consumer, other.checkpoint.cursor.consumer);
        return Err(Error::State(format!(
            "consumers {first} and {other} did not save the same pipeline"
        )));
    }
    let merged = merge_checkpoints(&checkpoints, &first.windows)
        .map_err(|error| Error::State(error.to_string()))?;
    let epoch = merged.left.epoch.0;
    let start = merged.start.as_ref().map_or("", |start| start.position.as_str());
    let Some(streams) = first.streams else {
        let start = read_position(start, epoch)?;
        let left = rest(&start, &merged, first.state.stretch(), first.state.places(), None);
        return Ok(first.state.at(left).to_json());
    };
    let starts: Vec<String> = match start {
        "" => vec![String::new(); first.lengths.len()],
        text => read(text)?,
    };
    if starts.len() as u64 != streams.count || first.lengths.len() as u64 != streams.count {
        return Err(Error::State("it is damaged: its streams are not all there".into()));
    }
    let mut left = Vec::new();
    for (stream, (text, length)) in starts.iter().zip(&first.lengths).enumerate() {
        let start = read_position(text, epoch)?;
        let stream = Some((&streams, stream as u64));
        left.push(rest(&start, &merged, first.state.stretch(), *length, stream));
    }
    let state = first.state.at(Position::epoch(epoch));
    serde_json::to_string(&Parted { state, streams, left })
        .map_err(|error| Error::Internal(error.to_string()))
}

/// What is left of a stream, as places of its epoch.
fn rest(
    start: &Position,
    merged: &Merged,
    size: u64,
    length: u64,
    stream: Option<(&Streams, u64)>,
) -> Position {
    let Merged { left: Left { epoch, open, tail }, windows, .. } = merged;
    // Where a step of the stream begins in the list of places that were left.
    let number = |own: u64, offset: u64| {
        let step = own.saturating_mul(windows.steps).saturating_add(offset);
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
        let own = match stream {
            None => window.0,
            Some((streams, stream)) => match streams.of(*window) {
                (of, own) if of == stream => own,
                _ => continue,
            },
        };
        leave(Span { start: number(own, offset.0), end: number(own + 1, 0) });
    }
    let tail = match stream {
        None => tail.0,
        Some((streams, stream)) => streams.below(*tail, stream),
    };
    let tail = number(tail, 0);
    let old: u64 = start.left_over.iter().map(|span| span.length()).sum();
    if tail < old {
        leave(Span { start: tail, end: old });
    }
    let tail = start.tail.saturating_add(tail.saturating_sub(old)).min(length);
    Position { left_over, tail, ..Position::epoch(epoch.0) }
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
