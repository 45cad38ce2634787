//! Where samples can be kept: files that a later run reads instead of computing them again.

mod arrow;
mod table;

pub use arrow::{ArrowWriter, check_savable, read_notes};
pub use table::{Skipped, TABLE, Table, shard_name};
