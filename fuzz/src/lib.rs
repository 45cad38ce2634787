//! Whatever reads bytes from outside, given bytes that nobody would send.
//!
//! ```text
//!  corpus (our own writers) ──► mutate ──► target(&[u8]) ──► reads it, or says why not
//!          ▲                                  │
//!          └──── came to another end ◄────────┘             never panics, never takes much memory
//! ```
//!
//! A target is a function of bytes. It calls what a process calls with bytes that it was sent or has
//! read, and holds what comes of them to what is promised: what was read can be written and read
//! again. The tests run each for a while with a seed of their own; `make fuzz` runs one for long,
//! under libFuzzer where there is a C++ compiler.

pub mod memory;
pub mod mutate;
pub mod runner;
pub mod targets;

pub use targets::{TARGETS, Target};
