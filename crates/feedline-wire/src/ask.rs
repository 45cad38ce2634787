//! What a client asks of a worker over a stream: some steps of one rank, from any one on.

use crate::control::DatasetId;
use crate::{JobId, Part};
use feedline_core::{Error, Result};
use serde::{Deserialize, Serialize};

/// Some steps of one rank. It says everything that decides what they hold, so a worker remembers
/// nothing of whoever asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ask {
    /// For whom: workers share their cores between jobs.
    pub job: JobId,
    /// What is computed.
    pub dataset: DatasetId,
    /// The part of its data that counts, if not all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<Part>,
    /// The seed of all random choices.
    pub seed: u64,
    /// The epoch.
    pub epoch: u64,
    /// What was left of the epoch when the ranks began it, as a position in JSON; empty if it was
    /// whole.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub start: String,
    /// Whose steps.
    pub rank: u64,
    /// Of how many ranks.
    pub world: u64,
    /// The first step; with `bucket`, which of the rank's stretches.
    pub first: u64,
    /// How many; with `bucket`, 1.
    pub steps: u64,
    /// With `bucket`, the first batch of the stretch.
    #[serde(default)]
    pub from: u64,
    /// With `bucket`, whether the batches of a stretch are dealt to the ranks in rounds.
    #[serde(default)]
    pub rounds: bool,
    /// Whether batches carry the indices of their samples.
    #[serde(default)]
    pub with_index: bool,
    /// Whether samples are wanted by themselves, since the rest of their steps is taken elsewhere.
    #[serde(default)]
    pub rows: bool,
    /// Whether steps that other jobs are past, and that would have to be computed again, may come empty.
    #[serde(default)]
    pub relaxed: bool,
    /// What is to be written to a folder, instead of any steps. What is sent then is progress: in each
    /// batch the numbers `places` and `bytes` since the one before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub save: Option<SaveShard>,
}

/// A shard that a worker writes to a folder which it shares with whoever asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SaveShard {
    /// The folder, from its root on.
    pub folder: String,
    /// Which shard of those that the folder's table lists.
    pub shard: u64,
}

impl Ask {
    /// As it is sent.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads what was sent.
    ///
    /// # Errors
    ///
    /// If it is no such thing, or contradicts itself.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let ask: Self = serde_json::from_slice(bytes)
            .map_err(|error| Error::Source(format!("this asks for no steps: {error}")))?;
        if ask.world == 0 || ask.rank >= ask.world {
            let (rank, world) = (ask.rank, ask.world);
            return Err(Error::Source(format!("rank {rank} of {world} ranks; they count from 0")));
        }
        if let Some(Part { index, of, .. }) = ask.part.filter(|part| part.index >= part.of) {
            return Err(Error::Source(format!("part {index} of {of} parts; they count from 0")));
        }
        Ok(ask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_survives_its_bytes_and_nonsense_does_not() {
        let ask = Ask {
            job: JobId(u64::MAX),
            dataset: DatasetId("abc".into()),
            part: Some(Part { index: 1, of: 2, files: true }),
            seed: 7,
            epoch: 3,
            start: String::new(),
            rank: 1,
            world: 2,
            first: 5,
            steps: u64::MAX,
            from: 4,
            rounds: true,
            with_index: true,
            rows: false,
            relaxed: true,
            save: Some(SaveShard { folder: "/data/out".into(), shard: 3 }),
        };
        assert_eq!(Ask::decode(&ask.encode()).unwrap(), ask);
        let outside = Ask { part: Some(Part { index: 2, of: 2, files: true }), ..ask.clone() };
        assert!(Ask::decode(&outside.encode()).unwrap_err().to_string().contains("part 2 of 2"));
        let outside = Ask { rank: 2, ..ask };
        assert!(Ask::decode(&outside.encode()).unwrap_err().to_string().contains("rank 2 of 2"));
        for bytes in [&b""[..], b"{}", b"\xff", b"[1,2]"] {
            assert!(Ask::decode(bytes).is_err());
        }
    }
}
