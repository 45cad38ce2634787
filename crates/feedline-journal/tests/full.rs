//! A full disk: essential records go on, others are refused, and it heals by itself.

mod common;

use common::{files, folder, open, open_with, records, small};
use feedline_journal::{Error, Journal, Options, SimulatedDisk};
use std::time::{Duration, Instant};

/// Waits for what happens on the journal's own thread.
fn until(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(10), "waited too long until {what}");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// No retry by itself, so that nothing changes between two lines of a test.
fn patient() -> Options {
    Options { full_retry: Duration::from_secs(3_600), ..small() }
}

fn reserve(disk: &SimulatedDisk) -> usize {
    disk.bytes(&folder().join("journal.reserve")).map_or(0, |bytes| bytes.len())
}

#[test]
fn full_at_each_of_500_points_essential_records_go_on_and_nothing_accepted_is_lost() {
    let empty = SimulatedDisk::new();
    let (journal, _) = open(&empty).unwrap();
    let begin = empty.used();
    drop(journal);
    for point in 0..500 {
        let disk = SimulatedDisk::new();
        disk.set_capacity(Some(begin + 13 * point));
        let (journal, _) = open_with(&disk, patient()).unwrap();
        let mut accepted: Vec<Vec<u8>> = Vec::new();
        let append = |essential: bool, accepted: &mut Vec<Vec<u8>>| {
            let record = format!("{point}, {}: {}", accepted.len(), "x".repeat(20)).into_bytes();
            let append = if essential { Journal::append_essential } else { Journal::append };
            let position = append(&journal, &record)?;
            accepted.push(record);
            journal.wait(position)
        };
        // Ordinary records, until they are refused.
        let refused = loop {
            match append(false, &mut accepted) {
                Ok(()) => {}
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, Error::Full { .. }), "{refused}");
        assert!(refused.to_string().contains("is full"), "{refused}");
        assert!(journal.is_full());
        assert_eq!(reserve(&disk), 0);
        assert_eq!(journal.durable(), journal.next(), "what was accepted went into the reserve");
        for _ in 0..20 {
            append(true, &mut accepted).unwrap();
        }
        assert!(matches!(append(false, &mut accepted), Err(Error::Full { .. })));
        // Then the reserve is used up.
        let refused = loop {
            match append(true, &mut accepted) {
                Ok(()) => {}
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, Error::Full { .. }), "{refused}");
        assert!(matches!(append(true, &mut accepted), Err(Error::Full { .. })));
        let lasted = accepted.len();
        if point % 2 == 0 {
            // Space comes back, and a snapshot makes the journal look for it.
            disk.set_capacity(None);
            journal.snapshot(journal.durable(), b"").unwrap();
            until("there is space again", || !journal.is_full());
            until("the rest is durable", || journal.durable() == journal.next());
            assert_eq!(reserve(&disk), 4_096);
            append(false, &mut accepted).unwrap();
            assert_eq!(accepted.len(), lasted + 1);
            drop(journal);
        } else {
            // The power fails.
            let durable = journal.durable().0 as usize;
            disk.set_capacity(None);
            let disk = disk.after_crash(point);
            let (_, history) = open(&disk).unwrap();
            let found = records(&history);
            assert!(found.len() >= durable);
            assert_eq!(found[..], accepted[..found.len()]);
            continue;
        }
        let (_, history) = open(&disk).unwrap();
        let covered = history.snapshot.as_ref().unwrap().0 as usize;
        assert_eq!(records(&history)[..], accepted[covered..]);
    }
}

#[test]
fn space_that_comes_back_is_found_without_being_told() {
    let disk = SimulatedDisk::new();
    let (journal, _) = open(&disk).unwrap();
    disk.set_capacity(Some(disk.used()));
    let position = journal.append(b"into the reserve").unwrap();
    journal.wait(position).unwrap();
    assert!(journal.is_full());
    // Little more than the reserve's own space is not enough to be well again.
    disk.set_capacity(Some(disk.used() + 5_000));
    std::thread::sleep(Duration::from_millis(20));
    assert!(journal.is_full());
    assert!(matches!(journal.append(b"ordinary"), Err(Error::Full { .. })));
    disk.set_capacity(None);
    until("there is space again", || !journal.is_full());
    journal.append(b"ordinary").unwrap();
    journal.sync().unwrap();
    assert_eq!(reserve(&disk), 4_096);
}

#[test]
fn what_was_accepted_and_found_no_space_is_written_when_there_is() {
    let disk = SimulatedDisk::new();
    let (journal, _) = open(&disk).unwrap();
    disk.set_capacity(Some(disk.used() - 4_096));
    let position = journal.append(b"too much").unwrap();
    assert!(matches!(journal.wait(position), Err(Error::Full { .. })));
    let (sender, receiver) = std::sync::mpsc::channel();
    journal.when_durable(position, move |outcome| sender.send(outcome).unwrap());
    assert!(matches!(receiver.recv().unwrap(), Err(Error::Full { .. })));
    assert!(matches!(journal.append_essential(b"more"), Err(Error::Full { .. })));
    disk.set_capacity(None);
    until("it is durable", || journal.wait(position).is_ok());
    let (_, history) = open(&disk.after_crash(1)).unwrap();
    assert_eq!(records(&history), [b"too much"]);
}

#[test]
fn a_commit_that_was_written_in_part_is_continued_in_its_own_segment() {
    for room in 0..60 {
        let disk = SimulatedDisk::new();
        let (journal, _) = open_with(&disk, patient()).unwrap();
        journal.append(b"first").unwrap();
        journal.append(b"second").unwrap();
        journal.sync().unwrap();
        disk.set_capacity(Some(disk.used() - 4_096 + 13 * room));
        let records: Vec<Vec<u8>> = (0..40).map(|_| b"one of many".to_vec()).collect();
        let positions = records.iter().map(|record| journal.append(record).unwrap());
        let last = positions.last().unwrap();
        assert!(matches!(journal.wait(last), Err(Error::Full { .. })));
        disk.set_capacity(None);
        // This asks for a new segment while some of those records are in the old one.
        journal.snapshot(feedline_journal::Position(1), b"one").unwrap();
        until("they are durable", || journal.wait(last).is_ok());
        drop(journal);
        let (_, history) = open(&disk).unwrap();
        assert_eq!(common::records(&history)[1..], records);
    }
}

#[test]
fn those_who_wait_when_the_disk_becomes_full_are_told() {
    let disk = SimulatedDisk::new();
    let (journal, _) = open_with(&disk, patient()).unwrap();
    disk.set_capacity(Some(0));
    let position = journal.append(b"waiting").unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    journal.when_durable(position, move |outcome| sender.send(outcome).unwrap());
    assert!(matches!(receiver.recv().unwrap(), Err(Error::Full { .. })));
    assert!(matches!(journal.close(), Err(Error::Full { .. })));
}

#[test]
fn a_snapshot_that_finds_no_space_leaves_the_old_one_and_no_remains() {
    let disk = SimulatedDisk::new();
    let (journal, _) = open(&disk).unwrap();
    journal.append(b"one").unwrap();
    journal.snapshot(journal.next(), b"small").unwrap();
    disk.set_capacity(Some(disk.used() + 100));
    let error = journal.snapshot(journal.next(), &[7; 10_000]).unwrap_err();
    assert!(matches!(error, Error::Full { .. }), "{error}");
    assert!(files(&disk, ".new").is_empty());
    journal.append(b"two").unwrap();
    journal.sync().unwrap();
    drop(journal);
    let (_, history) = open(&disk).unwrap();
    assert_eq!(history.snapshot.as_ref().unwrap().1, b"small");
    assert_eq!(records(&history), [b"two"]);
}

#[test]
fn a_journal_opens_on_a_full_disk_with_the_space_of_its_reserve() {
    let disk = SimulatedDisk::new();
    let (journal, _) = open(&disk).unwrap();
    journal.append(b"one").unwrap();
    drop(journal);
    disk.set_capacity(Some(disk.used()));
    let (journal, history) = open_with(&disk, patient()).unwrap();
    assert_eq!(records(&history), [b"one"]);
    assert!(journal.is_full());
    assert!(matches!(journal.append(b"ordinary"), Err(Error::Full { .. })));
    journal.append_essential(b"essential").unwrap();
    journal.sync().unwrap();
    drop(journal);
    let (_, history) = open(&disk).unwrap();
    assert_eq!(records(&history), [&b"one"[..], b"essential"]);
}

#[test]
fn without_a_reserve_nothing_is_accepted_on_a_full_disk_and_it_recovers_all_the_same() {
    let disk = SimulatedDisk::new();
    let options = Options { reserve_bytes: 0, ..small() };
    let (journal, _) = open_with(&disk, options).unwrap();
    (0..1_000).for_each(|_| assert!(journal.append(b"many at once").is_ok()));
    journal.sync().unwrap();
    disk.set_capacity(Some(disk.used()));
    let position = journal.append(b"one").unwrap();
    assert!(matches!(journal.wait(position), Err(Error::Full { .. })));
    assert!(matches!(journal.append_essential(b"two"), Err(Error::Full { .. })));
    disk.set_capacity(None);
    until("it is durable", || journal.wait(position).is_ok());
    until("there is space again", || !journal.is_full());
    assert_eq!(reserve(&disk), 0);
}

#[test]
fn a_disk_without_space_for_an_empty_file_is_refused_as_full() {
    let disk = SimulatedDisk::new();
    disk.set_capacity(Some(0));
    assert!(matches!(open(&disk), Err(Error::Full { .. })));
}
