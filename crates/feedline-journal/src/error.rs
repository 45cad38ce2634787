//! What can go wrong with a journal, sorted by who acts on it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A result with the journal's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure. There is one variant for each way of handling it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another journal is open on this folder; only one may be.
    #[error("the journal {folder} is in use by {holder}: end that first, or name another folder")]
    Held {
        /// The folder.
        folder: PathBuf,
        /// Who has it: generation, process and host.
        holder: String,
    },
    /// Something before the end is broken; its owner decides whether to [`repair`](crate::repair).
    #[error(
        "{file} is damaged at byte {offset}: {reason}; `repair` keeps what comes before and moves the rest aside"
    )]
    Damaged {
        /// The damaged file.
        file: PathBuf,
        /// Where what can be read ends.
        offset: u64,
        /// What is wrong there.
        reason: String,
    },
    /// The file has a version that this release does not know.
    #[error(
        "{file} was written by a newer release ({what} {found}, and this one knows up to {known}): open it with that release"
    )]
    Newer {
        /// The file.
        file: PathBuf,
        /// Whose version it is: the journal's format, or that of the caller's records.
        what: &'static str,
        /// The version found.
        found: u32,
        /// The highest version known here.
        known: u32,
    },
    /// A file bears a journal's name and is none.
    #[error("{file} is no file of a journal: {reason}; move it elsewhere, or name another folder")]
    Foreign {
        /// The file.
        file: PathBuf,
        /// How that shows.
        reason: String,
    },
    /// The disk is full; the call may be repeated when there is space again.
    #[error("the disk of the journal {folder} is full: free some space, then try again")]
    Full {
        /// The folder.
        folder: PathBuf,
    },
    /// The journal cannot go on; it has to be opened again.
    #[error("the journal {folder} has stopped: {reason}; open it again to see what is durable")]
    Stopped {
        /// The folder.
        folder: PathBuf,
        /// What stopped it.
        reason: String,
    },
    /// The caller could not make use of something that was read; it knows why.
    #[error("{file}: {what} was read, and refused: {source}")]
    Refused {
        /// The file.
        file: PathBuf,
        /// The snapshot, or which record.
        what: String,
        /// What the caller said.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// The call is wrong; its author can fix it.
    #[error("{0}")]
    Invalid(String),
    /// A file or the folder cannot be used; whoever looks after the machine can fix it.
    #[error("{what} is unavailable: {source}")]
    Unavailable {
        /// What was to be done, and with which file.
        what: String,
        /// Why it could not be.
        source: Arc<io::Error>,
    },
}

impl Error {
    /// The disk did not do `verb` with `file`.
    pub(crate) fn disk(verb: &str, file: &Path, source: io::Error) -> Self {
        if is_full(&source) {
            return Self::Full { folder: file.parent().unwrap_or(file).to_owned() };
        }
        Self::Unavailable {
            what: format!("the journal's {} (to {verb} it)", file.display()),
            source: Arc::new(source),
        }
    }
}

/// Whether the disk, or its share for this user, is used up.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
