//! The dispatcher over the network: gRPC, as `proto/feedline.proto` describes it.
//!
//! - [`access`]: who may call what.
//! - [`convert`]: the messages of the network and the plain values of the protocol, both ways.
//! - [`blob`]: data that belongs to a plan.
//! - [`Calls`]: the dispatcher as it is called from a runtime.
//! - [`Remote`]: the dispatcher as workers and clients call it, from plain threads.
//! - [`Address`]: where it is.
//! - [`http`]: what a process shows of itself to browsers and to whoever collects its [`metrics`].

pub mod access;
mod address;
pub mod blob;
mod calls;
pub mod convert;
pub mod http;
pub mod metrics;
mod remote;

pub use address::{Address, AddressError};
pub use calls::{Calls, Duplex, RemoteOptions};
pub use remote::Remote;

/// The messages as they are on the wire.
#[expect(missing_docs, reason = "made from the description, which says what they mean")]
#[allow(clippy::all, reason = "made by a program")]
pub mod proto {
    include!("generated/feedline.v1.rs");

    /// The service's own description, for those who ask what it can do.
    pub const DESCRIPTOR: &[u8] = include_bytes!("generated/feedline.bin");
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

#[cfg(test)]
mod tests {
    #[test]
    fn the_messages_are_made_from_the_description_as_it_is() {
        let made_from = include_str!("generated/made_from.txt").trim();
        let now = blake3::hash(include_bytes!("../proto/feedline.proto"));
        assert_eq!(made_from, now.to_hex().as_str(), "the description changed: run make proto");
    }
}
