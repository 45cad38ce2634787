//! What a simulation decides that is otherwise up to the disk.

use crate::{Event, State};
use std::fmt;
use std::time::Duration;

/// Sees each event, and the state that it is about to change.
pub type Witness = dyn Fn(&State, &Event) + Send + Sync;

/// What a simulation decides. With it a dispatcher starts no thread: the journal is committed by those
/// who wait for it, and all time is that of tokio's clock.
pub struct Simulated {
    /// How long the disk takes to make the next commit durable.
    pub sync: Box<dyn Fn() -> Duration + Send + Sync>,
    /// Sees all events.
    pub witness: Box<Witness>,
    /// A snapshot is taken when so many bytes were appended, or twice the last one.
    pub snapshot_after: u64,
}

impl fmt::Debug for Simulated {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Simulated")
            .field("snapshot_after", &self.snapshot_after)
            .finish_non_exhaustive()
    }
}
