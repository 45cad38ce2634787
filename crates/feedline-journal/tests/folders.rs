//! Folders of every kind, real and simulated.

mod common;

use common::{folder, open, open_real, record, records};
use feedline_journal::{Entry, Error, Journal, Options, SimulatedDisk};
use std::os::unix::fs::PermissionsExt;

fn default_open(folder: &std::path::Path) -> Result<(), Error> {
    open_real(folder, Options::default()).map(|_| ())
}

#[test]
fn a_folder_that_is_not_there_is_made_and_an_empty_one_is_an_empty_journal() {
    let folder = tempfile::tempdir().unwrap();
    for path in [folder.path().to_owned(), folder.path().join("a/b/c")] {
        let (journal, history) = open_real(&path, Options::default()).unwrap();
        assert!(history.snapshot.is_none() && history.torn.is_none());
        assert_eq!((history.records.len(), journal.next().0), (0, 0));
        assert_eq!(journal.generation().0, 1);
    }
}

#[test]
fn a_folder_that_is_a_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "mine").unwrap();
    for path in [file.clone(), file.join("below")] {
        let error = default_open(&path).unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        assert!(error.to_string().contains(&*path.to_string_lossy()), "{error}");
    }
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
}

#[test]
fn folders_that_cannot_be_written_or_read_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    default_open(folder.path()).unwrap();
    for mode in [0o555, 0o000] {
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(mode)).unwrap();
        // For some users permissions mean nothing.
        if std::fs::write(folder.path().join("probe"), "").is_err() {
            let error = default_open(folder.path()).unwrap_err();
            assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        }
    }
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    for deny in [SimulatedDisk::deny_reads, SimulatedDisk::deny_writes] {
        let disk = SimulatedDisk::new();
        let (journal, _) = open(&disk).unwrap();
        journal.append(b"one").unwrap();
        drop(journal);
        let denied = disk.after_kill();
        deny(&denied);
        let error = open(&denied).unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        assert!(error.to_string().contains("/journal"), "{error}");
        let (_, history) = open(&disk).unwrap();
        assert_eq!(records(&history), [b"one"]);
    }
}

#[test]
fn what_is_there_comes_back_from_a_real_disk() {
    let folder = tempfile::tempdir().unwrap();
    for life in 1..=3 {
        let (journal, history) = open_real(folder.path(), Options::default()).unwrap();
        assert_eq!(journal.generation().0, life);
        let expected = ["life 1", "life 2"];
        let expected = expected[..life as usize - 1].iter().map(|text| text.as_bytes().to_vec());
        assert_eq!(records(&history), expected.collect::<Vec<_>>());
        journal.append(format!("life {life}").as_bytes()).unwrap();
    }
}

#[test]
fn openings_without_appends_leave_no_files_behind() {
    let folder = tempfile::tempdir().unwrap();
    (0..10).for_each(|_| default_open(folder.path()).unwrap());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3);
}

#[test]
fn unfinished_files_of_an_earlier_process_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let unfinished = folder.path().join("snapshot-00000000000000000007.snap.new");
    std::fs::write(&unfinished, "half").unwrap();
    default_open(folder.path()).unwrap();
    assert!(!unfinished.exists());
}

#[test]
fn what_the_caller_refuses_is_named_and_stays_there() {
    let disk = SimulatedDisk::new();
    let (journal, _) = open(&disk).unwrap();
    (0..5).for_each(|number| assert!(journal.append(&record(number)).is_ok()));
    drop(journal);
    let shared = std::sync::Arc::new(disk.clone());
    let error = Journal::open_on(shared, folder(), common::small(), |entry| match entry {
        Entry::Record(record) if record.position.0 == 3 => Err("no such event".into()),
        _ => Ok(()),
    });
    assert_eq!(
        error.unwrap_err().to_string(),
        "/journal/journal-00000000000000000000.log: record 3 was read, and refused: no such event"
    );
    let (_, history) = open(&disk).unwrap();
    assert_eq!(records(&history).len(), 5);
}
