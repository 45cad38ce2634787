//! A dispatcher in a process of its own, killed between requests, and torn tails.

use crate::support::*;
use feedline_dispatcher::{Dispatcher, Options};
use feedline_rpc::Remote;
use feedline_wire::Reply;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const FOLDER: &str = "FEEDLINE_TEST_DISPATCHER";
const ADDRESS: &str = "FEEDLINE_TEST_ADDRESS";

/// Not a test: the process that the tests here start and kill.
#[test]
#[ignore = "run by the tests of this file, in a process of its own"]
fn a_process() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let mut options = Options::new(folder);
    if let Ok(address) = std::env::var(ADDRESS) {
        options.address = address;
    }
    let dispatcher = Dispatcher::start(options).unwrap();
    println!("serves {}", dispatcher.address());
    // Whoever started it kills it; if that is gone, it ends by itself.
    let _ = dispatcher.wait(Duration::from_secs(60));
}

struct Process(Child, String);

impl Process {
    fn start(folder: &Path, address: Option<&str>) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "killed::a_process", "--ignored", "--nocapture"]);
        command.env(FOLDER, folder).stdout(Stdio::piped());
        if let Some(address) = address {
            command.env(ADDRESS, address);
        }
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = lines.map_while(Result::ok).find_map(|line| {
            line.split_once("serves ").map(|(_, address)| address.trim().to_owned())
        });
        Self(child, address.expect("it says where it serves"))
    }

    fn kill(mut self) -> String {
        self.end();
        self.1.clone()
    }

    fn end(&mut self) {
        // Only a process of its own; it may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

#[test]
fn killed_between_requests_a_dispatcher_has_forgotten_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut process = Process::start(folder.path(), None);
    let control = Remote::new(&process.1).unwrap();
    register(&control);
    let mut one = Trainer::join(&control, "job", 400, 2, 0);
    let mut two = Trainer::join(&control, "job", 400, 2, 1);
    for round in 0..8 {
        for _ in 0..4 {
            assert!(matches!(one.get(&control, 5), Reply::Granted { .. }));
            two.get(&control, 3);
            one.use_all();
            if round % 2 == 0 {
                two.use_all();
            }
        }
        let address = process.kill();
        if round % 2 == 1 {
            tear(folder.path());
        }
        process = Process::start(folder.path(), Some(&address));
    }
    two.use_all();
    std::thread::scope(|scope| {
        scope.spawn(|| one.epoch(&control, 8));
        two.epoch(&control, 8);
    });
    assert_eq!(one.used.len() + two.used.len(), 400);
    assert!(one.used.is_disjoint(&two.used));
}

/// Leaves the beginning of a commit at the end of the journal, as a crash does.
fn tear(folder: &Path) {
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let segments = files.filter(|path| path.extension().is_some_and(|end| end == "log"));
    let newest = segments.max().unwrap();
    let mut bytes = std::fs::read(&newest).unwrap();
    bytes.extend([0x5a; 13]);
    std::fs::write(&newest, bytes).unwrap();
}

#[test]
fn a_torn_tail_is_cut_off_and_told() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(folder.path(), None);
    let control = Remote::new(&process.1).unwrap();
    register(&control);
    let mut trainer = Trainer::join(&control, "job", 40, 1, 0);
    trainer.get(&control, 5);
    let address = process.kill();
    tear(folder.path());
    let options = Options { address, ..Options::new(folder.path()) };
    let dispatcher = Dispatcher::start(options).unwrap();
    assert_eq!(dispatcher.torn().unwrap().bytes, 13);
    trainer.use_all();
    trainer.epoch(&control, 8);
    assert_eq!(trainer.used.len(), 40);
}
