//! What is read back from the dispatcher's disk.

use crate::runner::{came_to, ended};
use crate::targets::control::requests;
use feedline_dispatcher::{Limits, Presence, Record, State, decide};
use feedline_journal::{Disk, Entry, Journal, Options, SimulatedDisk};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const FOLDER: &str = "/journal";

/// The first segment of a journal.
fn segment() -> PathBuf {
    Path::new(FOLDER).join(format!("journal-{:020}.log", 0))
}

fn options() -> Options {
    let full_retry = Duration::from_millis(1);
    Options {
        version: 1,
        segment_bytes: 1 << 20,
        reserve_bytes: 4096,
        full_retry,
        own_thread: true,
    }
}

type Opened = feedline_journal::Result<(Journal, Vec<Vec<u8>>)>;

fn open(disk: &SimulatedDisk) -> Opened {
    let mut records = Vec::new();
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let (journal, _) = Journal::open_on(disk, FOLDER, options(), |entry| {
        match entry {
            Entry::Snapshot(snapshot) => records.push(snapshot.bytes.to_vec()),
            Entry::Record(record) => records.push(record.bytes.to_vec()),
        }
        Ok(())
    })?;
    Ok((journal, records))
}

/// The bytes of a journal's only segment.
pub fn journal(input: &[u8]) {
    let disk = SimulatedDisk::new();
    // An empty journal makes its folder.
    if let Ok((journal, _)) = open(&disk) {
        drop(journal);
    }
    let disk = disk.after_kill();
    disk.put(&segment(), input.to_vec());
    let Some((journal, records)) = ended(open(&disk)) else { return };
    came_to("+".repeat(records.len().min(40)));
    // What was read stays, and what is added lies behind it.
    let added = journal.append(b"more").and_then(|position| journal.wait(position));
    added.expect("a journal that opens takes records");
    drop(journal);
    let (_, again) = open(&disk.after_kill()).expect("it opens again");
    assert_eq!(again[..records.len()], records);
    assert_eq!(again[records.len()..], [b"more".to_vec()]);
}

/// Journals of a few records: left as a killed process leaves them, and closed.
pub fn journal_corpus() -> Vec<Vec<u8>> {
    let mut corpus = Vec::new();
    for (records, closed) in [(0, false), (3, false), (3, true), (20, false)] {
        let disk = SimulatedDisk::new();
        let Ok((journal, _)) = open(&disk) else { continue };
        for number in 0..records {
            let appended = journal.append(format!("record {number}").as_bytes());
            appended.and_then(|position| journal.wait(position)).expect("there is room");
        }
        let disk = if closed {
            journal.close().expect("it can be closed");
            disk
        } else {
            disk.after_kill()
        };
        corpus.extend(disk.bytes(&segment()));
    }
    corpus
}

/// Records as they are journalled, each with its length in two bytes before it.
pub fn record(mut input: &[u8]) {
    let mut state = State::default();
    while let Some((&[low, high], rest)) = input.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes([low, high])).min(rest.len());
        let (bytes, rest) = rest.split_at(length);
        input = rest;
        let Some(record) = ended(postcard::from_bytes::<Record>(bytes)) else { continue };
        came_to(&format!("{record:?}")[20..30]);
        let Some(event) = ended(record.into_event()) else { continue };
        state.apply(&event);
    }
    let bytes = postcard::to_allocvec(&state).expect("a state can be written");
    let again: State = postcard::from_bytes(&bytes).expect("a state reads back");
    assert_eq!(again, state);
}

/// What a whole conversation leaves in the journal.
pub fn record_corpus() -> Vec<Vec<u8>> {
    let (mut state, presence) = (State::default(), Presence::new(0));
    let mut all = Vec::new();
    let mut corpus = Vec::new();
    for request in requests() {
        for event in decide(&state, &presence, &Limits::default(), 1, &request).events {
            state.apply(&event);
            let bytes = postcard::to_allocvec(&Record::new(event)).expect("a record is written");
            all.extend((bytes.len() as u16).to_le_bytes());
            all.extend(bytes);
        }
        corpus.push(all.clone());
    }
    corpus
}
