//! A journal without a thread: whoever wants something durable commits it.

mod common;

use common::{open_with, record, records, small};
use feedline_journal::{Error, Options, Position, SimulatedDisk};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn driven() -> Options {
    Options { own_thread: false, ..small() }
}

#[test]
fn nothing_is_written_before_somebody_wants_it_and_then_at_once() {
    let disk = SimulatedDisk::new();
    let (journal, _) = open_with(&disk, driven()).unwrap();
    let before = disk.operations();
    (0..5)
        .for_each(|number| assert_eq!(journal.append(&record(number)).unwrap(), Position(number)));
    assert_eq!((disk.operations(), journal.durable()), (before, Position(0)));
    let (sender, receiver) = channel();
    journal.when_durable(Position(2), move |outcome| sender.send(outcome).unwrap());
    assert!(receiver.try_recv().unwrap().is_ok(), "the notice came before the call returned");
    assert_eq!(journal.durable(), Position(5), "what came meanwhile is part of the commit");
    assert_eq!(disk.operations(), before + 2, "one write, one sync");
    journal.append(&record(5)).unwrap();
    journal.close().unwrap();
    let (_, history) = open_with(&disk, driven()).unwrap();
    assert_eq!(records(&history), (0..6).map(record).collect::<Vec<_>>());
}

#[test]
fn what_was_said_to_be_durable_is_there_wherever_the_power_fails() {
    for stop in 0..60 {
        let disk = SimulatedDisk::new();
        let (journal, _) = open_with(&disk, driven()).unwrap();
        disk.stop_at(disk.operations() + stop);
        let mut durable = 0;
        for number in 0..40 {
            let Ok(position) = journal.append(&record(number)) else { break };
            if number % 3 == 0 && journal.wait(position).is_ok() {
                durable = position.0 + 1;
            }
            // The old snapshot is there if this one fails.
            if number % 16 == 15 && journal.snapshot(Position(number), b"state").is_ok() {
                durable = durable.max(number);
            }
        }
        drop(journal);
        let (journal, _) = open_with(&disk.after_crash(stop), driven()).unwrap();
        assert!(journal.next().0 >= durable, "stopped at {stop}");
    }
}

#[test]
fn segments_and_snapshots_are_made_by_the_caller() {
    let disk = SimulatedDisk::new();
    let (journal, _) = open_with(&disk, driven()).unwrap();
    for number in 0..500 {
        journal.append(&record(number)).unwrap();
    }
    journal.snapshot(Position(400), b"after 400").unwrap();
    drop(journal);
    let (_, history) = open_with(&disk, driven()).unwrap();
    assert_eq!(history.snapshot, Some((400, b"after 400".to_vec())));
    assert_eq!(records(&history), (400..500).map(record).collect::<Vec<_>>());
}

#[test]
fn space_that_comes_back_is_found_by_whoever_appends_or_waits_next() {
    let disk = SimulatedDisk::new();
    let options = Options { full_retry: Duration::ZERO, ..driven() };
    let (journal, _) = open_with(&disk, options).unwrap();
    disk.set_capacity(Some(disk.used()));
    let last = loop {
        match journal.append_essential(&[7; 200]).and_then(|position| journal.wait(position)) {
            Ok(()) => {}
            Err(Error::Full { .. }) => break Position(journal.next().0 - 1),
            Err(error) => panic!("{error}"),
        }
    };
    assert!(matches!(journal.append(b"more"), Err(Error::Full { .. })));
    assert!(matches!(journal.wait(last), Err(Error::Full { .. })));
    disk.set_capacity(None);
    journal.wait(last).unwrap();
    let more = journal.append(b"more").unwrap();
    journal.wait(more).unwrap();
    assert!(!journal.is_full());
}

#[test]
fn a_notice_may_append_and_not_wait() {
    let disk = SimulatedDisk::new();
    let (journal, _) = open_with(&disk, driven()).unwrap();
    let journal = Arc::new(journal);
    let first = journal.append(b"first").unwrap();
    let said = Arc::new(Mutex::new(None));
    let (inside, saying) = (Arc::clone(&journal), Arc::clone(&said));
    journal.when_durable(first, move |_| {
        let second = inside.append(b"second").unwrap();
        *saying.lock().unwrap() = Some(inside.wait(second));
    });
    assert!(matches!(*said.lock().unwrap(), Some(Err(Error::Invalid(_)))));
    journal.sync().unwrap();
    assert_eq!(journal.durable(), Position(2));
}
