//! The messages of the network and the plain values of the protocol, both ways. Nowhere else are
//! they turned into each other.
//!
//! Into a message everything goes; a message may lack a part, or say what makes no sense.

mod control;
mod protocol;
mod status;

pub use protocol::Call;

/// A message that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message makes no sense: {0}")]
pub struct Malformed(pub String);

impl From<Malformed> for tonic::Status {
    fn from(malformed: Malformed) -> Self {
        Self::invalid_argument(malformed.to_string())
    }
}

type Result<T> = std::result::Result<T, Malformed>;

fn need<T>(part: Option<T>, what: &str) -> Result<T> {
    part.ok_or_else(|| Malformed(format!("it lacks {what}")))
}

#[cfg(test)]
mod tests;
