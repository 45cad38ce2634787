//! The words of the protocol: who is meant, what is asked, what is answered, what is refused.

use crate::Cursor;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Milliseconds since some start; only differences matter.
pub type Millis = u64;

/// So far below the floor a cursor still marks the windows that its client has used: what so many
/// clients use in some seconds, since that is how old the floor can be that another has heard of.
#[must_use]
pub fn lookback(consumers: u32) -> u64 {
    (u64::from(consumers) * 4).max(512)
}

/// A number that cannot be taken for another one.
macro_rules! number {
    ($(#[$about:meta])* $name:ident($inner:ty)) => {
        $(#[$about])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(to)
            }
        }
    };
}

number! {
    /// A job, from its creation until it is closed. Never used twice, also when a name is.
    JobId(u64)
}
number! {
    /// One of the clients of a job, from 0.
    ConsumerIndex(u32)
}
number! {
    /// Drawn at random by each client process.
    Nonce(u64)
}
number! {
    /// Given to a client process by the dispatcher. Later processes get higher ones, so that what
    /// an earlier one said can be told from what its successor says, however late it arrives.
    Ticket(u64)
}
number! {
    /// How often a job was begun: 1 at creation, one more for each restore.
    Incarnation(u64)
}
number! {
    /// An epoch, from 0.
    Epoch(u64)
}
number! {
    /// A window of an epoch, from 0.
    Window(u64)
}
number! {
    /// A step within a window, from 0.
    Offset(u64)
}
number! {
    /// Counts grants within an incarnation: tells what a cursor could know of.
    Stamp(u64)
}
number! {
    /// A worker, as the client numbers those it can reach.
    WorkerId(u32)
}

/// What people call a job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobName(pub String);

impl fmt::Display for JobName {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(to)
    }
}

/// How often a step is seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Visitation {
    /// Once, over what the checkpoints remember.
    #[default]
    ExactlyOnce,
    /// Once or never: what a lost client held is not given to others.
    AtMostOnce,
}

/// Who gets which window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Whoever asks.
    #[default]
    Any,
    /// Consumer i of n has windows i, i + n, i + 2n, and so on; nobody has to ask.
    Exact,
}

/// The windows of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Windows {
    /// How many; `u64::MAX` if there is no end.
    pub count: u64,
    /// Steps in each but the last. Where bad samples are left out, there may be fewer: the worker's
    /// mark at the end of a window counts.
    pub steps: u64,
    /// Steps in the last.
    pub last: u64,
}

impl Windows {
    /// Windows of `steps` steps each that hold `total` steps together.
    #[must_use]
    pub fn holding(total: u64, steps: u64) -> Self {
        let steps = steps.max(1);
        let count = total.div_ceil(steps);
        Self { count, steps, last: total - count.saturating_sub(1) * steps }
    }

    /// Steps in a window.
    #[must_use]
    pub fn steps_of(&self, window: Window) -> u64 {
        if window.0.saturating_add(1) == self.count { self.last } else { self.steps }
    }

    /// Steps in all windows.
    #[must_use]
    pub fn total(&self) -> u64 {
        match self.count {
            0 => 0,
            count => (count - 1).saturating_mul(self.steps).saturating_add(self.last),
        }
    }
}

/// Where an incarnation begins. Its first epoch may be what was left of one; later ones are whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// The first epoch.
    pub epoch: Epoch,
    /// What its windows are cut from: understood by workers and clients, carried by the dispatcher.
    pub position: String,
    /// Its windows.
    pub windows: Windows,
}

/// What a job is, from creation to close.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// The dataset's id, and after a colon what else makes a difference, such as the seed.
    pub dataset: String,
    /// How often a step is seen.
    pub visitation: Visitation,
    /// Who gets which window.
    pub order: Order,
    /// The windows of a whole epoch.
    pub windows: Windows,
}

/// An incarnation, as clients need to know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Life {
    /// Its number.
    pub incarnation: Incarnation,
    /// How many clients it has.
    pub consumers: u32,
    /// Where it began.
    pub start: Start,
}

/// Who speaks, and for which incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    /// The job.
    pub job: JobId,
    /// The incarnation that the speaker believes in.
    pub incarnation: Incarnation,
    /// Which of its clients.
    pub consumer: ConsumerIndex,
    /// Which process of that client.
    pub ticket: Ticket,
}

/// What a client asks of the dispatcher. Each may be sent again, and arrive twice or late.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Creates the job if there is none of this name, and asks for a ticket.
    OpenJob {
        /// What the job is called.
        name: JobName,
        /// What it is; must agree with what it was created as.
        description: Description,
        /// How many clients it has if it is created now.
        consumers: u32,
        /// The one that asks.
        consumer: ConsumerIndex,
        /// Its process.
        nonce: Nonce,
    },
    /// Opens a new incarnation, or joins the one that another client has opened from the same state.
    Restore {
        /// The job.
        job: JobId,
        /// The client that asks.
        consumer: ConsumerIndex,
        /// Its process.
        nonce: Nonce,
        /// The ticket of that process.
        ticket: Ticket,
        /// How many clients the incarnation has.
        consumers: u32,
        /// Where it begins.
        start: Start,
        /// Names the state that all clients have loaded.
        hash: String,
    },
    /// Takes a client's seat: from now on its earlier processes are not heard, and its cursor says
    /// which of its windows are used, held, and free.
    Attach {
        /// Who speaks.
        seat: Seat,
        /// Its process.
        nonce: Nonce,
        /// What its trainer has used.
        cursor: Cursor,
    },
    /// Asks for windows, and reports what was used.
    Get {
        /// Who speaks.
        seat: Seat,
        /// Counts the requests of this process.
        sequence: u64,
        /// How many more windows are wanted.
        want: u32,
        /// What its trainer has used, and what it holds.
        cursor: Cursor,
    },
    /// Reports what was used, and that the client is alive.
    Commit {
        /// Who speaks.
        seat: Seat,
        /// What its trainer has used.
        cursor: Cursor,
    },
    /// Gives up a client that is lost: what it held goes to others; what it is known to have used is
    /// inherited by the process that takes its seat next. Said by an operator.
    Release {
        /// The job.
        job: JobId,
        /// The incarnation that the operator looked at.
        incarnation: Incarnation,
        /// The client that is lost.
        consumer: ConsumerIndex,
    },
    /// Ends a job. Its name is free again.
    CloseJob {
        /// The job.
        job: JobId,
    },
}

/// How an epoch stands, as one client needs to know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// The epoch. A client that has come to another one in the meantime is not concerned.
    pub epoch: Epoch,
    /// All windows below are used, by whomever.
    pub floor: Window,
    /// How often a client has gone back, so that windows in use became unused.
    pub rewinds: u64,
    /// No grant to this client that it has not heard of is older.
    pub stamp: Stamp,
    /// Which windows from somewhat below the floor on this client has used, as far as the dispatcher
    /// knows; told if the client may not know.
    pub used: Option<crate::Used>,
}

/// What the dispatcher answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The job is there.
    Opened {
        /// The job.
        job: JobId,
        /// The ticket of the process that asked.
        ticket: Ticket,
        /// The incarnation that is alive.
        life: Life,
    },
    /// The incarnation is there: attach to it.
    Restored {
        /// What was opened or joined.
        life: Life,
    },
    /// The seat is taken.
    Attached {
        /// How the cursor's epoch stands.
        standing: Standing,
    },
    /// These windows are the client's: everything granted to it that it has not shown to hold.
    Granted {
        /// The windows.
        windows: Vec<Window>,
        /// How the epoch stands.
        standing: Standing,
    },
    /// There is nothing to grant now. Others hold what is left.
    Wait {
        /// How the epoch stands.
        standing: Standing,
    },
    /// The epoch has ended: all its windows are used, and that is written down.
    End {
        /// The epoch that has ended.
        epoch: Epoch,
        /// How the client stands in the next.
        standing: Standing,
    },
    /// What was used is noted.
    Committed {
        /// How the epoch stands.
        standing: Standing,
    },
    /// What the client held is free.
    Released,
    /// The job has ended.
    Closed,
    /// It was not done.
    Refused(Refusal),
}

/// Why something was not done. There is one variant for each thing that a caller can do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Refusal {
    /// The job was restored: load the state that it was restored from.
    #[error(
        "incarnation {asked} of the job is over: consumer {by} restored it and opened incarnation \
         {current}; load the same state and restore too"
    )]
    StaleIncarnation {
        /// What the caller believed in.
        asked: Incarnation,
        /// What is alive.
        current: Incarnation,
        /// Who opened it.
        by: ConsumerIndex,
    },
    /// Another process has this seat, or nobody: stop.
    #[error("consumer {consumer} is no longer this process: {reason}")]
    Superseded {
        /// The seat.
        consumer: ConsumerIndex,
        /// Who has it now.
        reason: String,
    },
    /// The cursor speaks of windows that belong to others: load another checkpoint, or restore all.
    #[error(
        "the cursor of consumer {consumer} claims {what}, which it does not own: it went back to an \
         earlier checkpoint since; load that one, or restore all clients from a common checkpoint"
    )]
    NotYours {
        /// The client.
        consumer: ConsumerIndex,
        /// What is claimed.
        what: String,
    },
    /// One client alone cannot go back so far: restore all from a common checkpoint.
    #[error(
        "consumer {consumer} alone cannot go back to epoch {epoch}: {reason}; restore all clients from \
         a common checkpoint"
    )]
    RewoundTooFar {
        /// The client.
        consumer: ConsumerIndex,
        /// The epoch of its cursor.
        epoch: Epoch,
        /// Why not.
        reason: String,
    },
    /// There is no such job: open it.
    #[error("there is no job {job}: it was closed, or the dispatcher lost its journal")]
    UnknownJob {
        /// The job asked for.
        job: JobId,
    },
    /// The request contradicts the job: its author can fix it.
    #[error("this does not fit the job: {0}")]
    Mismatch(String),
    /// A client that holds what is left has fallen silent: wait for it, release it, or restore.
    #[error(
        "consumer {consumer} holds {windows} windows and has been silent for {silent} ms; everything \
         else is used: bring it back, release it (feedline job release), or restore all clients"
    )]
    Silent {
        /// The silent client.
        consumer: ConsumerIndex,
        /// For how long.
        silent: Millis,
        /// How many windows it holds.
        windows: u64,
    },
    /// The dispatcher has no room for this: make room, then ask again.
    #[error("the dispatcher has no room: {0}")]
    Exhausted(String),
    /// The dispatcher cannot answer now: ask again.
    #[error("ask again later: {0}")]
    RetryLater(String),
}

/// What a client asks of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetch {
    /// The job.
    pub job: JobId,
    /// The incarnation: its start tells what the windows of its first epoch are.
    pub incarnation: Incarnation,
    /// The epoch.
    pub epoch: Epoch,
    /// The window.
    pub window: Window,
    /// The first step wanted. The client says where it stands; a worker never remembers.
    pub from: Offset,
    /// The most steps wanted.
    pub most: u64,
}

/// What a worker answers: steps of one window that follow each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Data<B> {
    /// The incarnation asked for.
    pub incarnation: Incarnation,
    /// The epoch.
    pub epoch: Epoch,
    /// The window.
    pub window: Window,
    /// The offset of the first step.
    pub offset: Offset,
    /// The steps.
    pub steps: Vec<B>,
    /// Whether the window ends here.
    pub end: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_hold_what_they_were_cut_from() {
        for total in 0..50 {
            for steps in 1..8 {
                let windows = Windows::holding(total, steps);
                let sum: u64 = (0..windows.count).map(|at| windows.steps_of(Window(at))).sum();
                assert_eq!((sum, windows.total()), (total, total), "{total} by {steps}");
            }
        }
    }

    #[test]
    fn endless_windows_are_all_of_one_size() {
        let endless = Windows { count: u64::MAX, steps: 7, last: 7 };
        assert_eq!(endless.steps_of(Window(u64::MAX / 2)), 7);
        assert_eq!(endless.total(), u64::MAX);
    }

    #[test]
    fn a_refusal_says_what_would_be_right() {
        let refusal = Refusal::Silent { consumer: ConsumerIndex(3), silent: 61_000, windows: 2 };
        let text = refusal.to_string();
        assert!(text.contains("consumer 3") && text.contains("release"), "{text}");
    }

    #[test]
    fn requests_survive_their_text() {
        let seat = Seat {
            job: JobId(u64::MAX),
            incarnation: Incarnation(2),
            consumer: ConsumerIndex(1),
            ticket: Ticket(9),
        };
        let cursor = Cursor::new(&seat, 4, Order::Any, Epoch(3));
        let request = Request::Get { seat, sequence: 7, want: 16, cursor };
        let text = serde_json::to_string(&request).unwrap();
        assert_eq!(serde_json::from_str::<Request>(&text).unwrap(), request);
    }
}
