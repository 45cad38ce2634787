//! Memory between processes: sealed segments without names, passed over Unix sockets.
//!
//! ```text
//!  producer                                                consumer
//!  Segments::take ──► BufferMut ──► Buffer                 Mappings::region ──► Buffer
//!      ▲                 one memfd each │                       ▲                  │
//!      │                                └── descriptor, once ───┘                  │
//!      └───────────────────── its number, when the last slice is dropped ──────────┘
//! ```
//!
//! - Memory is allocated before it is mapped: when there is none, that is an error, never a signal.
//! - Segments have no names: when the processes that map one are gone, however they went, so is it.
//! - Segments are sealed: nobody can shrink or grow them, and nobody but the producer can write them.
//!
//! What a hostile peer can do: both sides run as one user, which is checked, and a process may do to
//! another of its user what it likes. Even so, nothing that is *read* from shared memory decides
//! where memory is accessed: numbers, places and sizes travel over the socket and are checked. A
//! consumer cannot change what it is shown. A producer can change bytes of a payload while they are
//! being read: then numbers come out wrong, as they would if it had sent wrong numbers. Whoever
//! cannot live with that copies the payload before checking it.

mod mapping;
mod passing;
mod segment;

pub use mapping::{Mappings, View};
pub use passing::{peer_is_same_user, receive_with_descriptors, send_with_descriptor};
pub use segment::{Segment, Segments};
