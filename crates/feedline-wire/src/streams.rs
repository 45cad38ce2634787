//! What an epoch of a job consists of, where it is not simply the data once: several streams, each
//! with windows of its own.
//!
//! ```text
//!  window  0 1 2 3 4 5 …        of 3 streams
//!  stream  0 1 2 0 1 2 …
//!  its own 0 0 0 1 1 1 …
//! ```

use crate::Window;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How streams differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Parting {
    /// Each is all of the data, in an order and with random choices of its own.
    Copies,
    /// Each is a part of the data: every so-many-th sample.
    Samples,
    /// Each is a part of the data: every so-many-th file.
    Files,
}

/// The streams of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Streams {
    /// How they differ.
    pub by: Parting,
    /// How many there are.
    pub count: u64,
}

/// A part of the data that a worker is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Which part.
    pub index: u64,
    /// Of how many.
    pub of: u64,
    /// Whether whole files are parted, or single samples.
    pub files: bool,
}

impl Streams {
    /// Which stream a window belongs to, and which of the stream's own windows it is.
    #[must_use]
    pub fn of(&self, window: Window) -> (u64, u64) {
        (window.0 % self.count.max(1), window.0 / self.count.max(1))
    }

    /// How many of the windows below `end` belong to a stream.
    #[must_use]
    pub fn below(&self, end: Window, stream: u64) -> u64 {
        end.0.saturating_sub(stream).div_ceil(self.count.max(1))
    }

    /// The seed of a stream's random choices. The first of several copies has the job's own.
    #[must_use]
    pub fn seed(&self, seed: u64, stream: u64) -> u64 {
        match (self.by, stream) {
            (Parting::Copies, 1..) => feedline_core::mix(seed, stream),
            _ => seed,
        }
    }

    /// Where a stream begins, of the list that says it for all; empty for the beginning of an epoch.
    #[must_use]
    pub fn start_of(starts: &str, stream: u64) -> String {
        let starts: Vec<String> = serde_json::from_str(starts).unwrap_or_default();
        starts.into_iter().nth(stream as usize).unwrap_or_default()
    }

    /// The part of the data that a stream is, if it is not all.
    #[must_use]
    pub fn part(&self, stream: u64) -> Option<Part> {
        let files = match self.by {
            Parting::Copies => return None,
            Parting::Samples => false,
            Parting::Files => true,
        };
        Some(Part { index: stream, of: self.count, files })
    }
}

impl fmt::Display for Streams {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = match self.by {
            Parting::Copies => "copies",
            Parting::Samples => "parts by sample",
            Parting::Files => "parts by file",
        };
        write!(to, "{} {by}", self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_window_belongs_to_one_stream() {
        let streams = Streams { by: Parting::Copies, count: 3 };
        for end in 0..20 {
            let mut counts = [0; 3];
            for window in 0..end {
                let (stream, own) = streams.of(Window(window));
                assert_eq!(own, counts[stream as usize]);
                counts[stream as usize] += 1;
            }
            let below = |stream: usize| streams.below(Window(end), stream as u64);
            assert_eq!([below(0), below(1), below(2)], counts);
        }
        assert_eq!(streams.seed(7, 0), 7);
        assert_ne!(streams.seed(7, 1), streams.seed(7, 2));
    }
}
