//! The power fails, the process dies or the disk errs at every single operation: what was reported
//! durable is there, in order, and nothing that was never appended.
#![expect(clippy::unwrap_used, reason = "in a test, unwrap says that the test ends otherwise")]

mod common;

use common::{History, files, open, record, records};
use feedline_journal::{Coins, Error, Journal, Result, SimulatedDisk};
use std::io;

/// What a caller knows of its journal.
#[derive(Clone, Debug, Default)]
struct Caller {
    /// All records that were appended, from the beginning of time.
    appended: Vec<Vec<u8>>,
    /// How many of them were reported durable.
    durable: usize,
    generation: u64,
}

impl Caller {
    /// Checks what was found at an opening, and believes it from then on.
    fn check(&mut self, journal: &Journal, history: &History, context: &str) {
        let mut found = match &history.snapshot {
            None => Vec::new(),
            Some((position, bytes)) => {
                let covered = *position as usize;
                assert_eq!(*bytes, state(&self.appended[..covered]), "{context}");
                self.appended[..covered].to_vec()
            }
        };
        found.extend(records(history));
        assert!(found.len() >= self.durable, "{context}: {} < {}", found.len(), self.durable);
        assert_eq!(found[..], self.appended[..found.len()], "{context}");
        assert_eq!(journal.next().0 as usize, found.len(), "{context}");
        assert!(journal.generation().0 > self.generation, "{context}");
        (self.durable, self.generation) = (found.len(), journal.generation().0);
        self.appended = found;
    }

    fn append(&mut self, journal: &Journal, count: u64) -> Result<()> {
        for _ in 0..count {
            let record = record(self.appended.len() as u64 + 1_000 * self.generation);
            let position = journal.append(&record)?;
            assert_eq!(position.0 as usize, self.appended.len());
            self.appended.push(record);
        }
        Ok(())
    }

    fn sync(&mut self, journal: &Journal) -> Result<()> {
        journal.sync()?;
        self.durable = self.appended.len();
        Ok(())
    }

    /// Appends, rolls over, takes snapshots, closes and opens again.
    fn live(&mut self, disk: &SimulatedDisk) -> Result<()> {
        for life in 0..2 {
            let (journal, history) = open(disk)?;
            self.check(&journal, &history, "in life");
            for round in 0..6 {
                self.append(&journal, 7)?;
                self.sync(&journal)?;
                if round == 3 {
                    journal.snapshot(journal.next(), &state(&self.appended))?;
                }
                if round == 4 && life == 1 {
                    // A snapshot of the past, with records after it in the same segment.
                    let past = self.appended.len() - 10;
                    let bytes = state(&self.appended[..past]);
                    journal.snapshot(feedline_journal::Position(past as u64), &bytes)?;
                }
                // Some are appended and not waited for.
                self.append(&journal, 3)?;
            }
            journal.close()?;
            self.durable = self.appended.len();
        }
        Ok(())
    }
}

/// A state that tells records and their order apart.
fn state(records: &[Vec<u8>]) -> Vec<u8> {
    let mut text = format!("{} records: ", records.len()).into_bytes();
    records.iter().for_each(|record| text.extend(&record[..8.min(record.len())]));
    text
}

fn operations_of_a_life() -> u64 {
    let disk = SimulatedDisk::new();
    Caller::default().live(&disk).unwrap();
    assert!(files(&disk, ".log").len() > 1, "segments roll over");
    assert_eq!(files(&disk, ".snap").len(), 1, "snapshots replace one another");
    disk.operations()
}

#[test]
fn after_a_power_failure_at_any_operation_all_that_was_durable_is_there() {
    let operations = operations_of_a_life();
    assert!(operations > 80, "{operations}");
    for stop in 0..operations {
        for seed in 0..20 {
            let context = format!("stopped at operation {stop}, seed {seed}");
            let (disk, mut caller) = (SimulatedDisk::new(), Caller::default());
            disk.stop_at(stop);
            let _ = caller.live(&disk);
            // Again and again, with the power failing during recovery too.
            let mut disk = disk.after_crash(seed);
            let mut coins = Coins::new(seed ^ stop << 8);
            for _ in 0..2 {
                disk.stop_at(coins.below(40));
                let _ = caller.live(&disk);
                disk = disk.after_crash(coins.below(u64::MAX));
            }
            let (journal, history) = open(&disk).unwrap_or_else(|it| panic!("{context}: {it}"));
            caller.check(&journal, &history, &context);
            caller.append(&journal, 2).unwrap();
            caller.sync(&journal).unwrap();
        }
    }
}

#[test]
fn what_an_opening_shows_is_durable_even_if_a_killed_process_had_not_synced_it() {
    for stop in 0..operations_of_a_life() {
        for seed in 0..10 {
            let context = format!("killed at operation {stop}, seed {seed}");
            let (disk, mut caller) = (SimulatedDisk::new(), Caller::default());
            disk.stop_at(stop);
            let _ = caller.live(&disk);
            let disk = disk.after_kill();
            let (journal, history) = open(&disk).unwrap_or_else(|it| panic!("{context}: {it}"));
            caller.check(&journal, &history, &context);
            let disk = disk.after_crash(seed);
            let (journal, history) = open(&disk).unwrap_or_else(|it| panic!("{context}: {it}"));
            caller.check(&journal, &history, &context);
        }
    }
}

#[test]
fn an_opening_after_a_kill_may_be_cut_off_anywhere_too() {
    for stop in 0..operations_of_a_life() {
        let (disk, mut caller) = (SimulatedDisk::new(), Caller::default());
        disk.stop_at(stop);
        let _ = caller.live(&disk);
        for (cut, seed) in (0..12).flat_map(|cut| (0..4).map(move |seed| (cut, seed))) {
            let context = format!("killed at operation {stop}, cut off at {cut}, seed {seed}");
            let killed = disk.after_kill();
            killed.stop_at(cut);
            drop(open(&killed));
            let disk = killed.after_crash(seed);
            let (journal, history) = open(&disk).unwrap_or_else(|it| panic!("{context}: {it}"));
            caller.clone().check(&journal, &history, &context);
        }
    }
}

#[test]
fn a_snapshot_waits_until_what_it_covers_is_durable() {
    let disk = SimulatedDisk::new();
    let (journal, _) = open(&disk).unwrap();
    journal.append(b"one").unwrap();
    journal.snapshot(journal.next(), b"state").unwrap();
    assert_eq!(journal.durable(), journal.next());
    assert_eq!(journal.bytes_since_snapshot(), 0);
    journal.append(b"two").unwrap();
    assert_eq!(journal.bytes_since_snapshot(), 16 + 3);
}

#[test]
fn an_error_of_the_disk_at_any_operation_loses_nothing_durable_and_no_later_call_pretends() {
    let mut stopped = 0;
    for fail in 0..operations_of_a_life() {
        let context = format!("failed at operation {fail}");
        let (disk, mut caller) = (SimulatedDisk::new(), Caller::default());
        disk.fail_at(fail, io::ErrorKind::Other);
        if let Err(error) = caller.live(&disk) {
            stopped += u64::from(matches!(error, Error::Stopped { .. }));
        }
        for seed in 0..5 {
            let (disk, mut caller) = (disk.after_crash(seed), caller.clone());
            let (journal, history) = open(&disk).unwrap_or_else(|it| panic!("{context}: {it}"));
            caller.check(&journal, &history, &context);
        }
    }
    assert!(stopped > 50, "{stopped}");
}

#[test]
fn a_failed_sync_stops_the_journal_and_nothing_is_tried_again() {
    let disk = SimulatedDisk::new();
    let (journal, _) = open(&disk).unwrap();
    journal.append(b"one").unwrap();
    journal.sync().unwrap();
    let position = journal.append(b"two").unwrap();
    // The write is next, then the sync.
    disk.fail_at(disk.operations() + 1, io::ErrorKind::Other);
    let error = journal.wait(position).unwrap_err();
    assert!(matches!(error, Error::Stopped { .. }));
    assert!(error.to_string().contains("could not make it durable"), "{error}");
    let operations = disk.operations();
    let (sender, receiver) = std::sync::mpsc::channel();
    journal.when_durable(position, move |outcome| sender.send(outcome).unwrap());
    assert!(matches!(receiver.recv().unwrap(), Err(Error::Stopped { .. })));
    assert!(matches!(journal.append(b"three"), Err(Error::Stopped { .. })));
    assert!(matches!(journal.append_essential(b"three"), Err(Error::Stopped { .. })));
    assert!(matches!(journal.sync(), Err(Error::Stopped { .. })));
    assert!(matches!(journal.snapshot(journal.durable(), b""), Err(Error::Stopped { .. })));
    assert_eq!(journal.durable().0, 1);
    assert!(journal.close().is_err());
    assert_eq!(disk.operations(), operations, "the disk was left alone");
    let (_, history) = open(&disk.after_crash(1)).unwrap();
    assert_eq!(records(&history), [b"one"]);
}

#[test]
fn a_failed_sync_of_a_snapshot_stops_the_journal_too() {
    let disk = SimulatedDisk::new();
    let (journal, _) = open(&disk).unwrap();
    // The file is made, its header and bytes are written, then it is synced.
    disk.fail_at(disk.operations() + 3, io::ErrorKind::Other);
    assert!(matches!(journal.snapshot(journal.next(), b"state"), Err(Error::Stopped { .. })));
    assert!(matches!(journal.append(b"one"), Err(Error::Stopped { .. })));
}
