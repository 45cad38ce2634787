//! How fast the journal is: durable appends, reading again, snapshots.
//!
//! Usage: `journal [FOLDER]`; the folder should be on the disk in question, and is left empty.

use feedline_journal::{Entry, Journal, Options, Torn};
use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

/// As long as the record of a granted window.
const RECORD: [u8; 33] = [7; 33];

fn main() -> Result<(), Box<dyn Error>> {
    let parent = std::env::args().nth(1).map_or_else(std::env::temp_dir, Into::into);
    let folder = parent.join(format!("feedline-journal-{}", std::process::id()));
    let measured = measure(&folder);
    std::fs::remove_dir_all(&folder)?;
    measured
}

fn measure(folder: &Path) -> Result<(), Box<dyn Error>> {
    for writers in [1, 8, 64] {
        let rate = durable_appends(&folder.join(format!("writers-{writers}")), writers)?;
        println!("{{\"writers\": {writers}, \"durable_appends_per_second\": {rate:.0}}}");
    }
    let rate = noticed_appends(&folder.join("notices"))?;
    println!("{{\"in_flight\": 64, \"noticed_appends_per_second\": {rate:.0}}}");
    for records in [100_000, 1_000_000] {
        let folder = folder.join(format!("records-{records}"));
        let begun = Instant::now();
        let (journal, _) = open(&folder)?;
        for _ in 0..records {
            journal.append(&RECORD)?;
        }
        journal.close()?;
        let written = milliseconds(begun.elapsed());
        let mut times = Vec::new();
        for _ in 0..5 {
            let begun = Instant::now();
            let mut sum = 0;
            let opened = Journal::open(&folder, Options::default(), |entry| {
                if let Entry::Record(record) = entry {
                    sum += u64::from(record.bytes[32]);
                }
                Ok(())
            })?;
            times.push(milliseconds(begun.elapsed()));
            assert_eq!(sum, 7 * records);
            drop(opened);
        }
        times.sort_by(f64::total_cmp);
        println!(
            "{{\"records\": {records}, \"written_ms\": {written:.1}, \"opened_ms\": {:.1}, \
             \"opened_ms_worst\": {:.1}}}",
            times[2], times[4]
        );
    }
    for bytes in [1 << 20, 16 << 20] {
        let folder = folder.join(format!("snapshot-{bytes}"));
        let (journal, _) = open(&folder)?;
        let state = vec![7; bytes];
        let mut times = Vec::new();
        for _ in 0..5 {
            journal.append(&RECORD)?;
            let begun = Instant::now();
            journal.snapshot(journal.next(), &state)?;
            times.push(milliseconds(begun.elapsed()));
        }
        times.sort_by(f64::total_cmp);
        println!("{{\"snapshot_bytes\": {bytes}, \"snapshot_ms\": {:.1}}}", times[2]);
    }
    Ok(())
}

/// Threads that each append a record, wait until it is durable, and go on.
fn durable_appends(folder: &Path, writers: usize) -> Result<f64, Box<dyn Error>> {
    let (journal, _) = open(folder)?;
    let begun = Instant::now();
    let end = begun + Duration::from_secs(3);
    std::thread::scope(|scope| {
        let append = || -> feedline_journal::Result<()> {
            while Instant::now() < end {
                journal.wait(journal.append(&RECORD)?)?;
            }
            Ok(())
        };
        let threads: Vec<_> = (0..writers).map(|_| scope.spawn(append)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no writer panics"))
    })?;
    Ok(journal.durable().0 as f64 / begun.elapsed().as_secs_f64())
}

/// One thread that has 64 records under way, as an event loop has.
fn noticed_appends(folder: &Path) -> Result<f64, Box<dyn Error>> {
    let (journal, _) = open(folder)?;
    let begun = Instant::now();
    let (sender, receiver) = std::sync::mpsc::channel();
    let append = || -> feedline_journal::Result<()> {
        let sender = sender.clone();
        journal.when_durable(journal.append(&RECORD)?, move |outcome| {
            // Nobody listens any more when the time is up.
            let _ = sender.send(outcome);
        });
        Ok(())
    };
    (0..64).try_for_each(|_| append())?;
    while begun.elapsed() < Duration::from_secs(3) {
        receiver.recv()??;
        append()?;
    }
    Ok(journal.durable().0 as f64 / begun.elapsed().as_secs_f64())
}

/// Opens a journal whose history does not matter.
fn open(folder: &Path) -> feedline_journal::Result<(Journal, Option<Torn>)> {
    Journal::open(folder, Options::default(), |_| Ok(()))
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
