//! Real processes: one that appends is killed again and again; two may not have one journal.
#![expect(clippy::unwrap_used, reason = "in a test, unwrap says that the test ends otherwise")]

mod common;

use common::{open_real, records};
use feedline_journal::{Coins, Error, Options};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const FOLDER: &str = "FEEDLINE_TEST_JOURNAL";
const SMALL_DISK: &str = "FEEDLINE_TEST_SMALL_DISK";

fn options() -> Options {
    Options { segment_bytes: 100_000, ..Options::default() }
}

/// What record a position holds: nobody else writes.
fn record(position: u64) -> Vec<u8> {
    format!("record {position} {}", "r".repeat(position as usize % 50)).into_bytes()
}

/// The child: appends until it is killed, and prints what is durable. Does nothing in a normal run.
#[test]
fn child_that_appends() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let (journal, _) = open_real(Path::new(&folder), options()).unwrap();
    let mut coins = Coins::new(journal.generation().0);
    say(&format!("open {}", journal.generation()));
    loop {
        for _ in 0..=coins.below(64) {
            journal.append(&record(journal.next().0)).unwrap();
        }
        journal.sync().unwrap();
        say(&format!("durable {}", journal.durable()));
        if journal.bytes_since_snapshot() > 200_000 {
            let position = journal.next();
            journal.snapshot(position, position.to_string().as_bytes()).unwrap();
        }
    }
}

/// The child: fills its disk, goes on with essential records, and recovers. Does nothing in a normal
/// run.
#[test]
fn child_on_a_small_disk() {
    let Ok(folder) = std::env::var(SMALL_DISK) else { return };
    let (folder, filler) = (Path::new(&folder).join("journal"), Path::new(&folder).join("filler"));
    std::fs::write(&filler, vec![7; 5 << 19]).unwrap();
    let options = Options { full_retry: Duration::from_millis(10), ..Options::default() };
    let (journal, _) = open_real(&folder, options.clone()).unwrap();
    assert!(!journal.is_full(), "there is space for the reserve");
    let mut accepted = 0;
    let refused = loop {
        let appended = journal.append(&record(accepted)).map(|_| accepted += 1);
        match appended.and_then(|()| if accepted % 100 == 0 { journal.sync() } else { Ok(()) }) {
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::Full { .. }), "{refused}");
    for _ in 0..5_000 {
        journal.append_essential(&record(accepted)).unwrap();
        accepted += 1;
    }
    journal.sync().unwrap();
    assert!(matches!(journal.append(b"ordinary"), Err(Error::Full { .. })));
    std::fs::remove_file(filler).unwrap();
    let begun = Instant::now();
    while journal.is_full() {
        assert!(begun.elapsed() < Duration::from_secs(5), "it recovers by itself");
        std::thread::yield_now();
    }
    journal.append(&record(accepted)).unwrap();
    journal.close().unwrap();
    let (_, history) = open_real(&folder, options).unwrap();
    assert_eq!(records(&history), (0..=accepted).map(record).collect::<Vec<_>>());
    say(&format!("recovered after {accepted}"));
}

#[test]
fn a_real_disk_of_four_megabytes_is_filled_and_recovers() {
    let folder = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o size=4m small \"$1\" && exec \"$2\" --exact child_on_a_small_disk --nocapture";
    let output = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", script, "sh"])
        .args([folder.path(), &std::env::current_exe().unwrap()])
        .env(SMALL_DISK, folder.path())
        .output();
    let Ok(output) = output else { return eprintln!("skipped: there is no `unshare` here") };
    let (told, complaints) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !told.contains("running 1 test") {
        return eprintln!("skipped: a small disk cannot be mounted here: {complaints}");
    }
    assert!(told.contains("\nrecovered after "), "{told}{complaints}");
}

/// A line of its own, whatever the test runner prints around it.
fn say(line: &str) {
    let mut out = std::io::stdout();
    out.write_all(format!("\n{line}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

fn start(folder: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_appends", "--nocapture"])
        .env(FOLDER, folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn after_twenty_kills_all_that_was_printed_as_durable_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let mut coins = Coins::new(20);
    let (mut durable, mut generation) = (0, 0);
    for kill in 0..20 {
        let mut child = start(folder.path());
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(|it| it.unwrap());
        let opened = lines.find_map(|line| line.strip_prefix("open ")?.parse::<u64>().ok());
        assert!(opened.unwrap() > generation, "kill {kill}");
        let wait = coins.below(60_000);
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(wait));
            child.kill().unwrap();
            child.wait().unwrap();
        });
        for line in lines {
            if let Some(number) = line.strip_prefix("durable ") {
                durable = number.parse().unwrap();
            }
        }
        killer.join().unwrap();
        let (journal, history) = open_real(folder.path(), options()).unwrap();
        generation = journal.generation().0;
        let mut next = 0;
        if let Some((position, bytes)) = &history.snapshot {
            assert_eq!(*bytes, position.to_string().as_bytes(), "kill {kill}");
            next = *position;
        }
        for found in records(&history) {
            assert_eq!(found, record(next), "kill {kill}");
            next += 1;
        }
        assert!(next >= durable, "kill {kill}: {next} < {durable}");
    }
    assert!(durable > 1_000, "{durable}");
}

#[test]
fn a_second_process_is_refused_and_told_who_has_the_journal() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = start(folder.path());
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let opened = lines.find(|line| line.as_ref().unwrap() == "open 1");
    assert!(opened.is_some());
    for _ in 0..100 {
        let error = open_real(folder.path(), options()).unwrap_err();
        let Error::Held { holder, .. } = &error else { panic!("{error}") };
        assert!(holder.starts_with(&format!("generation 1, process {} on ", child.id())));
    }
    let refused = feedline_journal::repair(folder.path(), &options());
    assert!(matches!(refused, Err(Error::Held { .. })));
    child.kill().unwrap();
    child.wait().unwrap();
    let (journal, _) = open_real(folder.path(), options()).unwrap();
    assert_eq!(journal.generation().0, 2);
    let error = open_real(folder.path(), options()).unwrap_err();
    assert!(matches!(error, Error::Held { .. }), "a second opening in this process: {error}");
}
