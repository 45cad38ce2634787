//! What the tests of the journal share: a folder on a simulated disk, and what is read from it.
#![allow(dead_code, reason = "each test binary uses some of it")]

use feedline_journal::{Disk, Entry, Journal, Options, RealDisk, Result, SimulatedDisk, Torn};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Where the journal lies on a simulated disk.
pub fn folder() -> PathBuf {
    PathBuf::from("/journal")
}

/// Small files, so that little is enough to fill several.
pub fn small() -> Options {
    Options {
        version: 3,
        segment_bytes: 2_000,
        reserve_bytes: 4_096,
        full_retry: Duration::from_millis(1),
        ..Options::default()
    }
}

/// What was read when a journal was opened.
#[derive(Debug, Default)]
pub struct History {
    /// Position and bytes.
    pub snapshot: Option<(u64, Vec<u8>)>,
    /// Position, version and bytes.
    pub records: Vec<(u64, u32, Vec<u8>)>,
    pub torn: Option<Torn>,
}

/// Opens the journal of a simulated disk.
pub fn open(disk: &SimulatedDisk) -> Result<(Journal, History)> {
    open_with(disk, small())
}

/// Opens the journal of a simulated disk in some way.
pub fn open_with(disk: &SimulatedDisk, options: Options) -> Result<(Journal, History)> {
    open_on(Arc::new(disk.clone()), &folder(), options)
}

/// Opens a journal on the real disk.
pub fn open_real(folder: &Path, options: Options) -> Result<(Journal, History)> {
    open_on(Arc::new(RealDisk), folder, options)
}

fn open_on(disk: Arc<dyn Disk>, folder: &Path, options: Options) -> Result<(Journal, History)> {
    let mut history = History::default();
    let (journal, torn) = Journal::open_on(disk, folder, options, |entry| {
        match entry {
            Entry::Snapshot(snapshot) => {
                assert!(history.snapshot.is_none() && history.records.is_empty());
                history.snapshot = Some((snapshot.position.0, snapshot.bytes.to_vec()));
            }
            Entry::Record(record) => {
                history.records.push((record.position.0, record.version, record.bytes.to_vec()));
            }
        }
        Ok(())
    })?;
    history.torn = torn;
    Ok((journal, history))
}

/// A record whose bytes tell which one it is; lengths differ.
pub fn record(number: u64) -> Vec<u8> {
    let mut bytes = format!("record {number} ").into_bytes();
    bytes.extend((0..number % 37).map(|byte| (byte * 7 + number) as u8));
    bytes
}

/// The bytes of all records after the snapshot; fails unless their positions follow one another.
pub fn records(history: &History) -> Vec<Vec<u8>> {
    let first = history.snapshot.as_ref().map_or(0, |(position, _)| *position);
    let positions = history.records.iter().map(|(position, ..)| *position);
    assert!(positions.eq((first..).take(history.records.len())));
    history.records.iter().map(|(.., bytes)| bytes.clone()).collect()
}

/// The files of the journal whose names contain `part`, in order.
pub fn files(disk: &SimulatedDisk, part: &str) -> Vec<PathBuf> {
    let mut names = disk.list(&folder()).expect("a simulated folder can be listed");
    names.sort();
    names.retain(|name| name.contains(part));
    names.into_iter().map(|name| folder().join(name)).collect()
}
