//! What a trainer saves, and what all trainers' checkpoints leave to be done.

use feedline_wire::{Cursor, Left, MergeError, Start, Windows, merge};
use serde::{Deserialize, Serialize};

/// Where a client's trainer stands: to be stored inside the trainer's own checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// What the epoch's windows are cut from, if it is not whole.
    pub start: Option<Start>,
    /// What was used of it.
    pub cursor: Cursor,
}

/// What the checkpoints of all clients leave of an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merged {
    /// What is left, in windows of the epoch.
    pub left: Left,
    /// What these windows are cut from, if the epoch is not whole.
    pub start: Option<Start>,
    /// The epoch's windows.
    pub windows: Windows,
}

/// Puts the checkpoints of all clients together, so that any number of clients can go on.
///
/// # Errors
///
/// If they are not those of all clients of one run, saved at times that fit together.
pub fn merge_checkpoints(
    checkpoints: &[Checkpoint],
    whole: &Windows,
) -> Result<Merged, MergeError> {
    let first = checkpoints.iter().min_by_key(|checkpoint| checkpoint.cursor.epoch);
    let start = first.and_then(|first| first.start.clone());
    let windows = start.as_ref().map_or(*whole, |start| start.windows);
    let cursors: Vec<Cursor> = checkpoints.iter().map(|one| one.cursor.clone()).collect();
    let left = merge(&cursors, windows.count)?;
    Ok(Merged { left, start, windows })
}
