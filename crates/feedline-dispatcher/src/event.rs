//! What is journalled: every change of the dispatcher's state, in the order in which it happened.

use feedline_wire::{
    ConsumerIndex, Cursor, Description, Epoch, Incarnation, JobId, JobName, Nonce, Start, Ticket,
    Window,
};
use serde::{Deserialize, Serialize};

/// The version of the events that this release writes. Older ones are read.
pub const VERSION: u32 = 1;

/// A change of the dispatcher's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// A job was created; its first incarnation begins at the start of epoch 0.
    JobOpened {
        /// The job.
        job: JobId,
        /// What it is called.
        name: JobName,
        /// What it is.
        description: Description,
        /// How many clients it has.
        consumers: u32,
    },
    /// A client process was given a ticket.
    TicketIssued {
        /// The job.
        job: JobId,
        /// The client.
        consumer: ConsumerIndex,
        /// Its process.
        nonce: Nonce,
        /// The ticket.
        ticket: Ticket,
    },
    /// A new incarnation was opened. Everything of the one before is void.
    Restored {
        /// The job.
        job: JobId,
        /// The new incarnation.
        incarnation: Incarnation,
        /// Who opened it.
        consumer: ConsumerIndex,
        /// How many clients it has.
        consumers: u32,
        /// Where it begins.
        start: Start,
        /// Names the state it was restored from.
        hash: String,
    },
    /// A client process took its seat. Its cursor says which of its windows are used and held; the
    /// others are free.
    Attached {
        /// The job.
        job: JobId,
        /// The client.
        consumer: ConsumerIndex,
        /// Its process.
        nonce: Nonce,
        /// The ticket of that process.
        ticket: Ticket,
        /// What it has used.
        cursor: Cursor,
    },
    /// Windows were granted to a client.
    Granted {
        /// The job.
        job: JobId,
        /// The client.
        consumer: ConsumerIndex,
        /// The request that they answer.
        sequence: u64,
        /// The windows.
        windows: Vec<Window>,
    },
    /// A client has used windows up.
    Used {
        /// The job.
        job: JobId,
        /// The client.
        consumer: ConsumerIndex,
        /// The windows.
        windows: Vec<Window>,
    },
    /// All windows of the epoch are used; the next one begins.
    Sealed {
        /// The job.
        job: JobId,
        /// The epoch that has ended.
        epoch: Epoch,
    },
    /// A client was given up: what it held is free, what it has used stays used, and is inherited by
    /// whoever takes its seat.
    Released {
        /// The job.
        job: JobId,
        /// The client.
        consumer: ConsumerIndex,
    },
    /// A job has ended; its name is free.
    JobClosed {
        /// The job.
        job: JobId,
        /// Why.
        reason: CloseReason,
    },
}

impl Event {
    /// Whether it is worth the journal's reserve when the disk is full: it finishes what is running
    /// and begins nothing.
    #[must_use]
    pub fn is_essential(&self) -> bool {
        match self {
            Self::Used { .. } | Self::Sealed { .. } => true,
            Self::Released { .. } | Self::JobClosed { .. } => true,
            Self::JobOpened { .. } | Self::TicketIssued { .. } => false,
            Self::Restored { .. } | Self::Attached { .. } | Self::Granted { .. } => false,
        }
    }
}

/// Why a job was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CloseReason {
    /// A client or an operator asked for it.
    Asked,
    /// Nobody was heard of for too long.
    Idle,
}

/// An event as it is written down, with the version of its form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    version: u32,
    event: Event,
}

/// A record was written by a newer release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the journal is of version {found}, and this release reads up to {VERSION}")]
pub struct VersionError {
    /// The record's version.
    pub found: u32,
}

impl Record {
    /// The event as this release writes it.
    #[must_use]
    pub fn new(event: Event) -> Self {
        Self { version: VERSION, event }
    }

    /// The event.
    ///
    /// # Errors
    ///
    /// If a newer release wrote it.
    pub fn into_event(self) -> Result<Event, VersionError> {
        match self.version {
            1..=VERSION => Ok(self.event),
            found => Err(VersionError { found }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_releases_journal_is_refused() {
        let record = Record::new(Event::Sealed { job: JobId(7), epoch: Epoch(3) });
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(text, r#"{"version":1,"event":{"Sealed":{"job":7,"epoch":3}}}"#);
        let again: Record = serde_json::from_str(&text).unwrap();
        assert_eq!(again.clone().into_event(), Ok(record.event));
        let newer: Record = serde_json::from_str(&text.replace("n\":1", "n\":2")).unwrap();
        let error = newer.into_event().unwrap_err();
        assert_eq!(
            error.to_string(),
            "the journal is of version 2, and this release reads up to 1"
        );
    }
}
