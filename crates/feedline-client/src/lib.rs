//! Fetches batches from workers; to its caller it is one more stream of batches.
//!
//! ```text
//!  trainer ──next, checkpoint──► ┌────────┐ ──Get, Commit, …──► dispatcher
//!          ◄──batch, end, error─ │ Client │ ◄──Granted, End, …─
//!                                │        │ ──Fetch(window, from)──► worker
//!                    time ─────► └────────┘ ◄──Data(window, offset)─
//! ```
//!
//! [`Client`] is the core: it does no I/O and reads no clock. Whatever happens goes in by a method;
//! what is to be done comes out as [`Action`]s. It owns the cursor: what the trainer has *used*. That
//! is what a [`Checkpoint`] holds, and what the dispatcher is told. What was fetched ahead is nobody's
//! business: it can be fetched again, from any worker, at any offset, and is the same.
//!
//! [`Live`] runs that core on threads, against a real dispatcher and real workers.

mod checkpoint;
mod client;
mod fetching;
mod live;

pub use checkpoint::{Checkpoint, Merged, merge_checkpoints};
pub use client::{Action, Begin, Client, Config, Error};
pub use live::{Finisher, Finishing, Live, Next, Settings, Step, Totals};
