//! Functions that users wrote, run in processes of their own.
//!
//! ```text
//!  worker thread ──► Hosts ──► Process ══ socket: requests, answers ══► a host: any command that
//!                    (pool)           ══ shared memory: the arrays ══►  speaks what follows
//! ```
//!
//! # What engine and host say to each other
//!
//! A host is a command. Its standard input is a Unix stream socket, and all is said there; what it
//! prints goes to standard error. It begins with the eight bytes of [`HELLO`], answers one request
//! after another, and ends when the socket is closed. All numbers are little endian. A message is its
//! length (`u32`, without itself) and then:
//!
//! ```text
//!  request                                   answer
//!  u8   verb: 1 load, 2 map, 3 filter        u32  segment
//!  u8   flags: bit 0, wants random numbers   u64  its size, or 0 if it is known
//!  u32  function                             u16  segments that are gone, u32 each
//!  u32  segment                              u16  outcomes, one for each sample:
//!  u64  its size, or 0 if it is known          u8   0 a sample, 1 yes, 2 no, 3 a failure
//!  u16  segments that are free, u32 each       of a sample: u16 fields, and its fields
//!  u16  samples:                               of a failure: u32 length, and a text
//!    u64 u64  seed, u16 fields
//!    fields                                  field
//!                                            u8   dtype, u8 dimensions, u16 length of the name
//!                                            u64  offset, u64 bytes, u64 each side, the name
//! ```
//!
//! Dtypes are numbered as [`DType`](feedline_core::DType) lists them. Arrays lie in segments, sealed
//! memory without a name (see `feedline_shm`), at multiples of 64 bytes. The descriptor of a segment
//! comes with the first message that names it. The engine's segment holds what goes in, and the host
//! only reads it, until it has answered; a new one takes the place of the one before. The host's
//! segments hold what comes out; it may write one again once the engine has said that it is free, and
//! says itself when one is gone for good.
//!
//! `load` brings a function: its number, which is new, and one sample with one field, `code`. The
//! outcome is yes or a failure. `map` and `filter` call it for each sample: `map` gives samples,
//! `filter` yes or no. A function that wants random numbers gets them from the sample's seed. A failure
//! is a line that says what is wrong, and perhaps more lines.
//!
//! # What a host can do to the engine
//!
//! Fail. It may answer nonsense, too late, never, or go: that is an error of the sample, its process
//! is ended, and another takes its place. Nothing it says decides where memory is accessed before it
//! was checked, or makes the engine allocate without bound.

mod command;
mod memory;
mod message;
mod pool;
mod process;

pub use command::{Environment, HostCommand};
pub use message::{Answer, Input, LONGEST, Outcome, Place, Request, Verb};
pub use pool::Hosts;

/// What a host says first: that it is one, and which version of this it speaks.
pub const HELLO: &[u8; 8] = b"feedhst1";
