//! What dispatcher, workers and clients say to each other, as plain values, and how finished batches
//! travel between them.
//!
//! # What is said
//!
//! ```text
//!            OpenJob  Restore  Attach  Get  Commit                    Fetch(window, from offset)
//!  dispatcher ◄──────────────────────────────────── client ────────────────────────► worker
//!             ────────────────────────────────────►        ◄────────────────────────
//!               Opened  Restored  Attached  Granted              Data(window, offset, steps)
//!               Wait  End  Committed  Refused
//! ```
//!
//! An epoch's order is cut into [`Window`]s. A window is owned by one client and can be computed by
//! any worker. What a client's trainer has used is its [`Cursor`]: it lives in the trainer's
//! checkpoint, and everything else follows from it. The cursors of all clients together tell what
//! is [`Left`] of an epoch, on which any number of clients can go on.
//!
//! # How batches travel
//!
//! ```text
//!  worker                                                              client
//!  Handler::serve ──► Sender ══ frames, while credit lasts ══► reader ──► Client::next_within
//!                        ▲                                                   │
//!                        └────────────── credit, as frames are used ─────────┘
//! ```
//!
//! A frame is a fixed header, a short description, and the bytes of the tensors:
//!
//! ```text
//!  header, 64 bytes, little-endian
//!  ┌───────┬─────────┬──────┬───────┬──────────┬─────────┬─────────────┐
//!  │ magic │ version │ kind │ flags │ sequence │ request │ description │
//!  │ 4     │ 2       │ 1    │ 1     │ 8        │ 4       │ bytes, 4    │
//!  ├───────┴─────┬───┴──────┴───┬───┴──────────┼─────────┴──┬──────────┴──────────┐
//!  │ sent bytes  │ plain bytes  │ XXH3 of      │ XXH3 of    │ zeros │ XXH3 of     │
//!  │ 8           │ 8            │ description  │ sent bytes │ 12    │ the header  │
//!  └─────────────┴──────────────┴──────────────┴────────────┴───────┴─────────────┘
//!  description: what the frame means; of a stretch, its rows and each tensor's dtype, shape, place
//!  payload:     ┌ tensor ┐┌ tensor ─────────┐┌ tensor ┐   each at a multiple of 64 bytes
//! ```
//!
//! On a Unix socket the payload is left in memory that both processes map, and the frame only says
//! where. Two processes on one host that meet over TCP move to a Unix socket by themselves.
//!
//! - [`control`]: what is said beside it, and the dispatcher as others see it.
//! - [`status`]: how everything stands.
//! - [`token`], [`tls`], [`certs`], [`secret`], [`watched`]: who may do what, how it stays between the
//!   two, and files that are read again.
//! - [`frame`]: the frames, and what becomes of damaged ones.
//! - [`stretch`]: the rows of a stretch as a description and a list of slices.
//! - [`compress`]: making payloads smaller, where that pays.
//! - [`stream`]: the two ends of a connection.

mod ask;
mod bytes;
pub mod certs;
pub mod compress;
pub mod control;
mod cursor;
pub mod frame;
mod merge;
#[doc(hidden)]
pub mod mutant;
mod protocol;
pub mod secret;
pub mod status;
pub mod stream;
mod streams;
pub mod stretch;
pub mod tls;
pub mod token;
pub mod watched;

pub use ask::{Ask, SaveShard};
pub use cursor::{Cursor, Used};
pub use merge::{Left, MergeError, Piece, merge};
pub use protocol::*;
pub use streams::{Part, Parting, Streams};
