//! Real processes: one that appends is killed again and again; two may not have one journal.
#![expect(clippy::unwrap_used, reason = "in a test, unwrap says that the test ends otherwise")]

mod common;

use common::{open_real, records};
use feedline_journal::{Coins, Error, Options};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const FOLDER: &str = "FEEDLINE_TEST_JOURNAL";

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
