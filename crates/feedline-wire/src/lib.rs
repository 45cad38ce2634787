//! What dispatcher, workers and clients say to each other, as plain values.
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

mod cursor;
mod merge;
#[doc(hidden)]
pub mod mutant;
mod protocol;

pub use cursor::{Cursor, Used};
pub use merge::{Left, MergeError, Piece, merge};
pub use protocol::*;
