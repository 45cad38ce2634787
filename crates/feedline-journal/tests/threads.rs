//! Many threads append, wait and take snapshots at once, on a real disk.
#![expect(clippy::unwrap_used, reason = "in a test, unwrap says that the test ends otherwise")]

mod common;

use common::{open_real, records};
use feedline_journal::{Error, Options, Position};
use std::collections::BTreeMap;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

fn parts(record: &[u8]) -> (u64, u64) {
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    (number(&record[..8]), number(&record[8..]))
}

fn record(thread: u64, index: u64) -> Vec<u8> {
    [thread.to_le_bytes(), index.to_le_bytes()].concat()
}

#[test]
fn the_order_of_each_thread_is_kept_and_positions_are_right() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, _) = open_real(folder.path(), Options::default()).unwrap();
    let positions = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for thread in 0..32 {
            let (journal, positions) = (&journal, &positions);
            scope.spawn(move || {
                for index in 0..100 {
                    let position = journal.append(&record(thread, index)).unwrap();
                    journal.wait(position).unwrap();
                    assert!(journal.durable() > position);
                    positions.lock().unwrap().insert(position, (thread, index));
                }
            });
        }
    });
    drop(journal);
    let (journal, history) = open_real(folder.path(), Options::default()).unwrap();
    assert_eq!(journal.next(), Position(3_200));
    let positions = positions.into_inner().unwrap();
    let mut next = [0; 32];
    for (position, bytes) in (0..).map(Position).zip(records(&history)) {
        let (thread, index) = parts(&bytes);
        assert_eq!(positions[&position], (thread, index));
        assert_eq!(next[thread as usize], index);
        next[thread as usize] += 1;
    }
    assert_eq!(next, [100; 32]);
}

#[test]
fn notices_come_in_order_and_not_before_their_record_is_durable() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, _) = open_real(folder.path(), Options::default()).unwrap();
    let journal = Arc::new(journal);
    let (sender, receiver) = channel();
    for index in 0..2_000 {
        let position = journal.append(&record(0, index)).unwrap();
        let (sender, weak) = (sender.clone(), Arc::downgrade(&journal));
        journal.when_durable(position, move |outcome| {
            outcome.unwrap();
            let durable = weak.upgrade().map(|journal| journal.durable());
            sender.send((position, durable)).unwrap();
        });
    }
    drop(sender);
    let told: Vec<_> = receiver.iter().collect();
    assert_eq!(told.len(), 2_000);
    assert!(told.is_sorted_by_key(|(position, _)| *position));
    assert!(told.iter().all(|(position, durable)| durable.is_none_or(|end| end > *position)));
}

#[test]
fn snapshots_and_roll_overs_go_on_beside_appends() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { segment_bytes: 4_000, ..Options::default() };
    let (journal, _) = open_real(folder.path(), options.clone()).unwrap();
    std::thread::scope(|scope| {
        let journal = &journal;
        let writers: Vec<_> = (0..4)
            .map(|thread| {
                scope.spawn(move || {
                    for index in 0..300 {
                        let position = journal.append(&record(thread, index)).unwrap();
                        journal.wait(position).unwrap();
                    }
                })
            })
            .collect();
        scope.spawn(move || {
            while !writers.iter().all(|writer| writer.is_finished()) {
                let position = journal.next();
                journal.snapshot(position, position.to_string().as_bytes()).unwrap();
            }
        });
    });
    drop(journal);
    let (_, history) = open_real(folder.path(), options).unwrap();
    let (position, bytes) = history.snapshot.as_ref().unwrap();
    assert_eq!(*bytes, position.to_string().as_bytes());
    assert_eq!(position + records(&history).len() as u64, 1_200);
    let segments = std::fs::read_dir(folder.path())
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().ends_with(".log"));
    assert!(segments.count() <= 3, "what a snapshot covers is removed");
}

#[test]
fn appends_that_nobody_waits_for_are_bounded_and_durable_after_closing() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { reserve_bytes: 100_000, ..Options::default() };
    let (journal, _) = open_real(folder.path(), options.clone()).unwrap();
    for index in 0..20_000 {
        journal.append(&record(0, index)).unwrap();
    }
    // At most half of the reserve waits, and as much is being written.
    assert!(journal.next().0 - journal.durable().0 <= 100_000 / 32);
    journal.close().unwrap();
    let (_, history) = open_real(folder.path(), options).unwrap();
    assert_eq!(records(&history).len(), 20_000);
}

#[test]
fn a_notice_may_drop_the_journal() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, _) = open_real(folder.path(), Options::default()).unwrap();
    let position = journal.append(b"last words").unwrap();
    let journal = Arc::new(journal);
    let (sender, receiver) = channel();
    let last = Arc::clone(&journal);
    journal.when_durable(position, move |outcome| {
        drop(last);
        sender.send(outcome).unwrap();
    });
    drop(journal);
    receiver.recv().unwrap().unwrap();
}

#[test]
fn a_notice_may_append_any_number_of_records_and_is_told_that_it_cannot_wait() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { reserve_bytes: 10_000, ..Options::default() };
    let (journal, _) = open_real(folder.path(), options).unwrap();
    let journal = Arc::new(journal);
    let (sender, receiver) = channel();
    let position = journal.append(b"first").unwrap();
    let weak = Arc::downgrade(&journal);
    journal.when_durable(position, move |outcome| {
        outcome.unwrap();
        let journal = weak.upgrade().unwrap();
        (0..1_000).for_each(|index| assert!(journal.append(&record(0, index)).is_ok()));
        let texts = [journal.sync(), journal.snapshot(Position(0), b"")]
            .map(|refused| refused.unwrap_err().to_string());
        sender.send(texts).unwrap();
    });
    for text in receiver.recv().unwrap() {
        assert!(text.contains("cannot wait for the journal that gives it"), "{text}");
    }
    journal.sync().unwrap();
    assert_eq!(journal.durable(), Position(1_001));
}

#[test]
fn a_notice_that_panics_stops_the_journal_and_hangs_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, _) = open_real(folder.path(), Options::default()).unwrap();
    let position = journal.append(b"one").unwrap();
    journal.when_durable(position, |_| panic!("as the test wants it"));
    while journal.append(b"two").is_ok() {
        std::thread::yield_now();
    }
    assert!(matches!(journal.sync(), Err(Error::Stopped { .. })));
}

#[test]
fn wrong_calls_are_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, _) = open_real(folder.path(), Options::default()).unwrap();
    let text = |error: Error| error.to_string();
    assert_eq!(
        text(journal.wait(Position(3)).unwrap_err()),
        "cannot wait for record 3: the next to come is 0"
    );
    assert_eq!(
        text(journal.snapshot(Position(1), b"").unwrap_err()),
        "cannot take a snapshot at 1: it must lie between 0 and 0"
    );
    let long = vec![0; feedline_journal::LONGEST_RECORD + 1];
    assert_eq!(
        text(journal.append(&long).unwrap_err()),
        "a record of 67108865 bytes is too long: the longest has 67108864"
    );
    journal.append(&long[1..]).unwrap();
    journal.sync().unwrap();
}
