//! A pipeline that runs on a service: to its caller, one more run.
//!
//! ```text
//!  order exact:  Live ──steps of this rank, in turn──► Assembly ──► the batches of a local run
//!  order any:    Live ──steps of any window─────────► Loose ─────► each step is a batch
//! ```
//!
//! With order exact everything follows by arithmetic: the state of a [`Remote`] run is the state of
//! a local one, and either goes on where the other was left. With order any the dispatcher deals
//! windows to whoever asks, and a state is that client's [`cursor`](feedline_wire::Cursor); the
//! states of all clients [merge](merge_states) into an ordinary one.

mod remote;
mod saving;
mod state;
mod streams;

pub use remote::{Job, Remote, Stats};
pub use saving::save;
pub use state::{is_dealt, merge_states};
