//! What can go wrong, sorted by who acts on it.

use std::io;
use std::sync::Arc;

/// A result with Feedline's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure. There is one variant for each party that handles it differently.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pipeline is described wrongly; its author can fix it.
    #[error("invalid pipeline: {0}")]
    Pipeline(String),
    /// The data that the pipeline names is missing or is not what it was; its owner can fix it.
    #[error("{0}")]
    Source(String),
    /// One record cannot be used; the run may be allowed to skip it.
    #[error("bad record in {origin} (index {index}, step {step}): {reason}")]
    Record {
        /// Where the record lies: file, and offset where there is one.
        origin: String,
        /// The record's index in its source.
        index: u64,
        /// The step that could not go on.
        step: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Storage or a peer did not answer; trying again may help.
    #[error("{what} is unavailable: {source}")]
    Unavailable {
        /// What was asked for.
        what: String,
        /// Why it was not given.
        source: Arc<io::Error>,
    },
    /// A saved state does not belong to this run; its holder picks another one or starts afresh.
    #[error("state does not fit: {0}")]
    State(String),
    /// The service cannot go on by itself: someone has to restore, to release, or to give access.
    #[error("{0}")]
    Service(String),
    /// More bad records than the pipeline allows.
    #[error("{0}")]
    Budget(String),
    /// A filter leaves the sample out: nothing is wrong with it, and nobody counts it.
    #[error("left out by a filter")]
    Filtered,
    /// The run was asked to stop.
    #[error("cancelled")]
    Cancelled,
    /// An invariant of this engine is broken; please report it.
    #[error("internal error: {0}")]
    Internal(String),
}

impl Error {
    /// An error in the description of a pipeline, in the words of its author.
    pub fn pipeline(message: impl Into<String>) -> Self {
        Self::Pipeline(message.into())
    }

    /// A record that a step cannot use; origin, index and step are added by the run.
    pub fn record(reason: impl Into<String>) -> Self {
        Self::Record { origin: String::new(), index: 0, step: String::new(), reason: reason.into() }
    }

    /// Something that storage did not give.
    pub fn unavailable(what: impl Into<String>, source: io::Error) -> Self {
        Self::Unavailable { what: what.into(), source: Arc::new(source) }
    }

    /// Whether the policy for bad records applies to this error.
    #[must_use]
    pub fn is_record(&self) -> bool {
        matches!(self, Self::Record { .. })
    }

    /// Whether a filter left the sample out, which is no failure.
    #[must_use]
    pub fn is_filtered(&self) -> bool {
        matches!(self, Self::Filtered)
    }

    /// Whether this concerns one sample alone, so that a run may go on without it.
    #[must_use]
    pub fn is_of_one_sample(&self) -> bool {
        self.is_record() || self.is_filtered()
    }

    /// Completes a record's error with where it happened; parts already known are kept.
    #[must_use]
    pub fn at(self, origin: impl FnOnce() -> String, index: u64, step: &str) -> Self {
        match self {
            Self::Record { origin: known, index: _, step: at, reason } => Self::Record {
                origin: if known.is_empty() { origin() } else { known },
                index,
                step: if at.is_empty() { step.to_owned() } else { at },
                reason,
            },
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_error_is_completed_once() {
        let error = Error::record("premature end").at(|| "a.jpg".into(), 7, "decode");
        let text = error.at(|| "other".into(), 7, "other").to_string();
        assert_eq!(text, "bad record in a.jpg (index 7, step decode): premature end");
    }
}
