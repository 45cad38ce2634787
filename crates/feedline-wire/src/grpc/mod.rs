//! The dispatcher over the network: gRPC, as `proto/feedline.proto` describes it.
//!
//! - [`access`]: who may call what.
//! - [`convert`]: the messages of the network and the plain values of the protocol, both ways.
//! - [`Remote`]: the dispatcher as workers and clients call it, from plain threads.
//! - [`Address`]: where it is.

pub mod access;
mod address;
pub mod convert;
mod remote;

pub use address::{Address, AddressError};
pub use remote::{Remote, RemoteOptions};

/// The messages as they are on the wire.
#[expect(missing_docs, reason = "made from the description, which says what they mean")]
#[allow(clippy::all, reason = "made by a program")]
pub mod proto {
    tonic::include_proto!("feedline.v1");

    /// The service's own description, for those who ask what it can do.
    pub const DESCRIPTOR: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/feedline.bin"));
}

/// The version of the protocol that this release speaks. Others are refused.
pub const PROTOCOL: &str = "1";

/// The header in which every call says which version it speaks.
pub const PROTOCOL_HEADER: &str = "feedline-protocol";

/// The header in which a call carries its token, after `Bearer `.
pub const TOKEN_HEADER: &str = "authorization";

/// What comes before the token in its header.
pub const BEARER: &str = "Bearer ";

/// The longest message, in bytes: a plan of 4 MiB, and what is around it.
pub const LONGEST_MESSAGE: usize = (4 << 20) + (64 << 10);

/// The longest plan, in bytes.
pub const LONGEST_PLAN: usize = 4 << 20;

/// Bytes of a blob in each message.
pub const CHUNK: usize = 1 << 20;
