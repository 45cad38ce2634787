//! Journals of earlier formats are read for ever, and the format does not change unnoticed.
//!
//! `UPDATE=1 cargo test -p feedline-journal --test golden` writes the files of a new format.
#![expect(clippy::unwrap_used, reason = "in a test, unwrap says that the test ends otherwise")]

mod common;

use common::{files, open, record, records};
use feedline_journal::SimulatedDisk;
use std::path::{Path, PathBuf};

fn golden(format: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/format-{format}"))
}

/// A snapshot of five records, and two segments behind it: one closed, one not.
fn journal() -> SimulatedDisk {
    let disk = SimulatedDisk::new();
    let (journal, _) = open(&disk).unwrap();
    for number in 0..8 {
        journal.append(&record(number)).unwrap();
        if number == 4 {
            journal.snapshot(journal.next(), b"five records").unwrap();
        }
    }
    journal.close().unwrap();
    let (journal, _) = open(&disk).unwrap();
    for number in 8..12 {
        journal.append(&record(number)).unwrap();
    }
    journal.sync().unwrap();
    disk.after_kill()
}

#[test]
fn the_format_does_not_change_unnoticed() {
    let disk = journal();
    let paths = files(&disk, "-");
    assert_eq!(paths.len(), 3);
    for path in paths {
        let (bytes, kept) = (disk.bytes(&path).unwrap(), golden(1).join(path.file_name().unwrap()));
        if std::env::var_os("UPDATE").is_some() {
            std::fs::create_dir_all(golden(1)).unwrap();
            std::fs::write(&kept, &bytes).unwrap();
        }
        assert_eq!(std::fs::read(&kept).unwrap(), bytes, "{}", kept.display());
    }
}

#[test]
fn a_journal_of_format_1_is_read() {
    let disk = SimulatedDisk::new();
    for entry in std::fs::read_dir(golden(1)).unwrap() {
        let entry = entry.unwrap();
        disk.put(&common::folder().join(entry.file_name()), std::fs::read(entry.path()).unwrap());
    }
    let (journal, history) = open(&disk).unwrap();
    assert_eq!(journal.generation().0, 3);
    assert_eq!(history.snapshot, Some((5, b"five records".to_vec())));
    assert_eq!(records(&history), (5..12).map(record).collect::<Vec<_>>());
    assert!(history.torn.is_none());
}
