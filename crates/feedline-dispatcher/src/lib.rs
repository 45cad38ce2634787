//! Decides which client trains on what, and remembers it. Touches no sample.
//!
//! ```text
//!  request ──► decide(&State) ──► events ──► journal ──► State::apply ──► reply
//!              only reads                     synced     alone writes     waits for the sync
//! ```
//!
//! This is the core: no clock, no disk, no network, no randomness. Time comes in as a number; what
//! was decided goes out as [`Event`]s; replaying them rebuilds the [`State`] exactly. Whoever drives
//! it appends the events of a [`Decision`] to a journal, applies them, and sends the reply once
//! *everything* that was appended before has been synced, also what other requests caused: a reply
//! may tell of it.
//!
//! An epoch is a row of windows, each with an owner and a mark for "used":
//!
//! ```text
//!   forgotten │ used, owner known │ granted: used or held, by whom │ never granted
//!   ──────────┴───────────────────┴────────────────────────────────┴──────────────►
//!          kept from            prefix                            next
//!                                  └──────── at most `spread` ───────┘
//! ```
//!
//! Windows come free again when a client attaches with a cursor that does not have them, or is
//! released by an operator; they are granted before new ones. Time alone never moves a window from
//! one client to another. When all windows are used the epoch is sealed, and only then do clients
//! hear that it has ended. After that one client alone cannot go back: all of them restore.
//!
//! Around the core, with the feature `server`: [`Dispatcher`], which keeps a journal and answers over
//! the network.

mod decide;
mod event;
mod presence;
pub mod scale;
#[cfg(feature = "server")]
pub mod server;
mod state;
mod table;

pub use decide::{Decision, Limits, decide, tidy};
pub use event::{CloseReason, Event, Record, VERSION, VersionError};
pub use presence::Presence;
#[cfg(feature = "server")]
pub use server::{Dispatcher, Options};
pub use state::{Job, State};
