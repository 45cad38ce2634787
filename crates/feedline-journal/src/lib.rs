//! An append-only log of records, with snapshots: what it said was durable is there after any crash.
//!
//! Records and snapshots are bytes that the caller gives and gets back; the journal does not look
//! into them. A record is *appended*, which costs a copy, and is *durable* when the disk has said so
//! after the next commit. One thread writes: all that was appended while it waited for the disk
//! is its next commit, so many callers share each wait.
//!
//! ```text
//!   append ──► pending ──► one write, one sync ──► durable ──► whoever waits
//!     │           ▲             (commit)
//!     └ position  └ all that came meanwhile
//! ```
//!
//! # Files
//!
//! ```text
//!   snapshot-00000000000000000200.snap    the state after records 0 … 199
//!   journal-00000000000000000200.log      records 200 … 349   (a segment)
//!   journal-00000000000000000350.log      records 350 …       the newest is appended to
//!   journal.lock                          who has the journal open; the generation
//!   journal.reserve                       space for when the disk is full
//!   *.new                                 not finished; removed at the next opening
//!   *.damaged                             moved aside by a repair; left alone
//! ```
//!
//! Every opening begins a segment of its own, and so does a segment that has become too long. A
//! snapshot makes all records before it unneeded, and the files that hold nothing else are removed.
//! Segments and snapshots are made under another name and renamed when they are durable.
//!
//! # Bytes
//!
//! All numbers are little-endian, all checksums CRC-32C.
//!
//! ```text
//!   header    magic 8 │ format 4 │ caller's version 4 │ generation 8 │ position 8
//!             │ length 8 │ checksum of the bytes 4 │ checksum of the header 4            = 48
//!   snapshot  header │ bytes
//!   segment   header │ record │ record │ … │ end mark
//!   record    checksum 4 │ length 4 │ number in segment 4 │ index in commit 4 │ bytes    = 16 + n
//!   end mark  a record of length 2³²-1 without bytes: the journal was closed here
//! ```
//!
//! A record's checksum covers all that follows it and is mixed with that of the segment's header, so a
//! record is valid only where it was written.
//!
//! # Torn or damaged
//!
//! A commit is written only when the one before it is durable. A crash can therefore tear the last
//! commit and no other, and its parts may reach the disk in any order. A record that cannot be read
//! is *torn* if only remains of its own commit follow: it was never durable, and is cut off. It
//! is *damaged* if a later commit, a later segment or the end mark follows: then it was durable, and
//! opening is refused until [`repair`] was asked for.
//!
//! # A full disk
//!
//! ```text
//!   healthy ──(no space)──► reserve released: essential records only ──(no space)──► none at all
//!      ▲                                   │                                             │
//!      └──────────── space for the reserve, and as much again ◄──────────────────────────┘
//! ```
//!
//! What was accepted is never given up: it is written when there is space. A sync that fails is
//! another matter. Nothing is known then of what was written, so the journal stops, and the next
//! opening finds out.
//!
//! # Example
//!
//! ```
//! use feedline_journal::{Entry, Journal, Options};
//!
//! # let folder = tempfile::tempdir()?;
//! for opening in 0..3 {
//!     // The state is what the snapshot says, and what the records after it add.
//!     let mut windows = String::new();
//!     let (journal, _torn) = Journal::open(folder.path(), Options::default(), |entry| {
//!         match entry {
//!             Entry::Snapshot(snapshot) => windows = str::from_utf8(snapshot.bytes)?.to_owned(),
//!             Entry::Record(record) => windows += str::from_utf8(record.bytes)?,
//!         }
//!         Ok(())
//!     })?;
//!     assert_eq!(windows, ["", "granted 7; ", "granted 7; granted 7; "][opening]);
//!
//!     windows += "granted 7; ";
//!     let position = journal.append(b"granted 7; ")?;
//!     journal.wait(position)?; // Only now may anybody be told.
//!     if journal.bytes_since_snapshot() > 50 {
//!         journal.snapshot(journal.next(), windows.as_bytes())?;
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod commit;
mod disk;
mod error;
mod folder;
mod format;
mod journal;
mod repair;
mod simulated;
mod survey;

pub use disk::{Disk, DiskFile, RealDisk};
pub use error::{Error, Result};
pub use journal::Journal;
pub use repair::{Repaired, repair, repair_on};
pub use simulated::{Coins, SimulatedDisk};

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// The longest record that can be appended, in bytes.
pub const LONGEST_RECORD: usize = format::LONGEST;

/// The place of a record in the history of a journal, counted from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u64);

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Which opening of a journal this is. It is greater than that of any opening before, so whoever
/// saw a greater one can turn a holder away that has been replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u64);

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How a journal is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The version of the records and snapshots that the caller writes. Files of a greater version
    /// are refused; what is read says which version it is of.
    pub version: u32,
    /// A segment that would grow beyond this many bytes is continued in the next.
    pub segment_bytes: u64,
    /// How much space is taken aside for when the disk is full; 0 for none. At most half as much
    /// waits to be written at any time (or one longer record), and as much is being written, so that
    /// what was accepted before the disk was full finds room.
    pub reserve_bytes: u64,
    /// How long to wait, on a full disk, before looking for space again.
    pub full_retry: Duration,
    /// Whether a thread of the journal's own commits. Without one, whoever wants something durable
    /// does, in the midst of its call: for simulations, where nothing may happen by itself.
    pub own_thread: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            version: 0,
            segment_bytes: 64 << 20,
            reserve_bytes: 1 << 20,
            full_retry: Duration::from_secs(1),
            own_thread: true,
        }
    }
}

/// Why a caller cannot make use of what was read.
pub type Refusal = Box<dyn std::error::Error + Send + Sync>;

/// A part of what a journal remembers, handed out when it is opened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Entry<'a> {
    /// The newest snapshot: comes first, if there is one.
    Snapshot(Snapshot<'a>),
    /// A record after it, in order.
    Record(Record<'a>),
}

/// A state of the caller that stands for all records before a position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Snapshot<'a> {
    /// The position of the first record that it does not cover.
    pub position: Position,
    /// The caller's version when it was written.
    pub version: u32,
    /// The caller's bytes.
    pub bytes: &'a [u8],
}

/// One record of the history.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record<'a> {
    /// Its place.
    pub position: Position,
    /// The caller's version when it was written.
    pub version: u32,
    /// The caller's bytes.
    pub bytes: &'a [u8],
}

/// The remains of a commit that a crash interrupted.
#[derive(Clone, Debug, PartialEq)]
pub struct Torn {
    /// The file they were cut off from.
    pub file: PathBuf,
    /// Where they began.
    pub offset: u64,
    /// How many bytes they were.
    pub bytes: u64,
}
