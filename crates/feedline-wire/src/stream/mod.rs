//! The two ends of a connection: blocking sockets, a few threads each, no runtime.
//!
//! ```text
//!  server                                            client
//!  accept ─► greet ─► reads ◄──── requests, credit ────── request, next
//!                       │ wakes                             ▲
//!                     serves ─────── frames ─────► reads ───┘ queue, within the credit
//! ```
//!
//! A client asks for one thing at a time and says how many bytes may be under way to it. The server
//! sends while that lasts; at least one frame is always admitted, however large. What the client
//! takes, it gives back as credit. Asking again before the end drops what was asked before.
//!
//! Both sides send a sign of life when they have nothing else to say, so a peer that is dead, or
//! alive and stuck, is noticed within the time-out of whoever waits for it.
//!
//! A server may ask for tokens: in the greeting, before anything else of it is looked at, and again
//! with every request, so that a connection does not outlive its token. It may speak TLS, and ask for
//! clients' certificates. Those who have not greeted yet take no seat from those who have, and when
//! there are too many of them, the oldest of whoever has most is dropped.
//!
//! A client on the server's host moves from TCP to a Unix socket by itself, if both run as the same
//! user; there, large payloads go through shared memory. Checksums of payloads are computed on TCP
//! only: elsewhere the bytes do not leave this host's memory.

mod client;
mod link;
mod server;
mod session;
mod share;
mod socket;

pub use client::{Client, ClientOptions, Next, Way};
pub use server::{Handler, Sender, Server, ServerOptions};
pub use share::SMALLEST_SHARED;
pub use socket::Address;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod trust_tests;
