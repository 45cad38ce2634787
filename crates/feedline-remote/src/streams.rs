//! How an epoch is cut into windows for clients to whom they are dealt: of one stream of samples, or of
//! several.

use feedline_core::{Blobs, Error, Position, Result};
use feedline_engine::stretches_left;
use feedline_ops::Pipeline;
use feedline_ops::order::{By, Shard};
use feedline_wire::{Epoch, Part, Start, Streams, Windows};
use std::sync::Arc;

/// What windows are cut from.
pub(crate) struct Cutting {
    /// What an epoch consists of, if it is not the data once.
    pub streams: Option<Streams>,
    /// The pipeline of each stream.
    pipelines: Vec<Arc<Pipeline>>,
    /// Steps in a window.
    steps: u64,
}

impl Cutting {
    pub(crate) fn new(
        pipeline: &Arc<Pipeline>,
        streams: Option<Streams>,
        steps: u64,
        blobs: &Blobs,
    ) -> Result<Self> {
        let count = streams.map_or(1, |streams| streams.count);
        let part = |stream| match streams.and_then(|streams| streams.part(stream)) {
            None => Ok(Arc::clone(pipeline)),
            Some(Part { index, of, files }) => {
                let by = if files { By::File } else { By::Sample };
                pipeline.shard(&Shard { index, of, by }, blobs).map(Arc::new)
            }
        };
        Ok(Self { streams, pipelines: (0..count).map(part).collect::<Result<_>>()?, steps })
    }

    /// Places in an epoch of each stream, where there are several.
    pub(crate) fn lengths(&self) -> Vec<u64> {
        match self.streams {
            None => Vec::new(),
            Some(_) => self.pipelines.iter().map(|one| one.length().places()).collect(),
        }
    }

    /// The beginning of an epoch.
    pub(crate) fn whole(&self, epoch: u64) -> Vec<Position> {
        vec![Position::epoch(epoch); self.pipelines.len()]
    }

    /// How what is left from these beginnings of the streams is cut.
    pub(crate) fn windows(&self, starts: &[Position]) -> Windows {
        let (count, steps) = (self.pipelines.len() as u64, self.steps);
        let lefts = self.pipelines.iter().zip(starts);
        let lefts = lefts.map(|(pipeline, start)| stretches_left(pipeline, start, 1));
        match self.streams {
            None => Windows::holding(lefts.sum(), steps),
            // Streams take turns until the longest has ended.
            Some(_) => {
                let longest = lefts.map(|left| left.div_ceil(steps)).max().unwrap_or(0);
                Windows { count: longest.saturating_mul(count), steps, last: steps }
            }
        }
    }

    /// Where clients begin.
    pub(crate) fn start(&self, starts: &[Position]) -> Result<Start> {
        let starts: Vec<Position> = starts.iter().map(Position::beginning).collect();
        let epoch = starts.first().map_or(0, |start| start.epoch);
        let texts: Vec<String> = starts.iter().map(text_of).collect::<Result<_>>()?;
        let position = match (self.streams, texts.as_slice()) {
            (None, [text]) => text.clone(),
            _ if texts.iter().all(String::is_empty) => String::new(),
            _ => to_text(&texts)?,
        };
        Ok(Start { epoch: Epoch(epoch), position, windows: self.windows(&starts) })
    }
}

/// A position as it travels; empty for the beginning of an epoch.
pub(crate) fn text_of(start: &Position) -> Result<String> {
    match *start == Position::epoch(start.epoch) {
        true => Ok(String::new()),
        false => to_text(start),
    }
}

fn to_text<T: serde::Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|error| Error::Internal(error.to_string()))
}

/// Reads a position that has travelled.
pub(crate) fn read_position(text: &str, epoch: u64) -> Result<Position> {
    match text {
        "" => Ok(Position::epoch(epoch)),
        text => serde_json::from_str(text)
            .map_err(|error| Error::State(format!("its start is damaged: {error}"))),
    }
}
