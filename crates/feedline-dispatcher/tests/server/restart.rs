//! What was answered is still true after the dispatcher was stopped and started again.

use crate::support::*;
use feedline_dispatcher::server::Error;
use feedline_dispatcher::{Dispatcher, Limits, Options};
use feedline_journal::SimulatedDisk;
use feedline_rpc::Remote;
use feedline_wire::control::{Control, Failure};
use feedline_wire::{Refusal, Reply, Request};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[test]
fn a_restart_in_the_middle_of_an_epoch_keeps_everything() {
    let folder = tempfile::tempdir().unwrap();
    let dispatcher = start(folder.path());
    let address = dispatcher.address().to_string();
    let control = Remote::new(&address).unwrap();
    register(&control);
    let mut one = Trainer::join(&control, "job", 200, 2, 0);
    let mut two = Trainer::join(&control, "job", 200, 2, 1);
    let mut dispatcher = Some(dispatcher);
    for round in 0..6 {
        for _ in 0..3 {
            one.get(&control, 4);
            two.get(&control, 4);
            if round != 3 {
                one.use_all();
            }
            two.use_all();
        }
        drop(dispatcher.take());
        let options = Options { address: address.clone(), ..Options::new(folder.path()) };
        dispatcher = Some(Dispatcher::start(options).unwrap());
    }
    one.use_all();
    std::thread::scope(|scope| {
        scope.spawn(|| one.epoch(&control, 8));
        two.epoch(&control, 8);
    });
    assert_eq!(one.used.len() + two.used.len(), 200);
    assert!(one.used.is_disjoint(&two.used));
    let status = dispatcher.unwrap().status();
    assert_eq!((status.jobs[0].epoch.0, status.jobs[0].name.0.as_str()), (1, "job"));
    assert_eq!(status.journal.generation, 7);
}

/// Whatever a client was told must be there after the machine lost all that was not synced.
#[test]
fn what_was_answered_survives_a_crash_at_any_moment() {
    let windows = 400;
    for seed in 0..6 {
        let disk = SimulatedDisk::new();
        let on = |disk: &SimulatedDisk| {
            let mut options = Options::new("/journal");
            options.disk = Arc::new(disk.clone());
            Dispatcher::start(options).unwrap()
        };
        let dispatcher = on(&disk);
        let control = remote(&dispatcher);
        register(&control);
        let join = |consumer| Mutex::new(Trainer::join(&control, "job", windows, 4, consumer));
        let trainers: Vec<Mutex<Trainer>> = (0..4).map(join).collect();
        let stop = AtomicBool::new(false);
        let (told, crashed) = std::thread::scope(|scope| {
            for trainer in &trainers {
                let (control, stop) = (&control, &stop);
                scope.spawn(move || {
                    while !stop.load(Ordering::SeqCst) {
                        let mut trainer = trainer.lock().unwrap();
                        if trainer.used.len() < 60 {
                            trainer.get(control, 2);
                            trainer.use_all();
                        }
                        drop(trainer);
                        std::thread::yield_now();
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(10 + seed * 17));
            // What each has heard so far; then the power fails while others are answered.
            let told: Vec<Trainer> =
                trainers.iter().map(|trainer| trainer.lock().unwrap().clone()).collect();
            let crashed = disk.after_crash(seed);
            stop.store(true, Ordering::SeqCst);
            (told, crashed)
        });
        drop((control, dispatcher));
        let dispatcher = on(&crashed);
        let control = remote(&dispatcher);
        let mut resumed = told;
        resumed.iter_mut().for_each(|trainer| trainer.resume(&control, "job", windows));
        std::thread::scope(|scope| {
            for trainer in &mut resumed {
                scope.spawn(|| trainer.epoch(&control, 8));
            }
        });
        let mut all = BTreeSet::new();
        for window in resumed.iter().flat_map(|trainer| &trainer.used) {
            assert!(all.insert(*window), "{window:?} came to two clients");
        }
        assert_eq!(all.len() as u64, windows);
    }
}

#[test]
fn many_windows_are_kept_in_snapshots() {
    let folder = tempfile::tempdir().unwrap();
    let dispatcher = start(folder.path());
    let control = remote(&dispatcher);
    register(&control);
    let mut trainer = Trainer::join(&control, "job", 10_000_000, 1, 0);
    // Enough for a snapshot, which is taken in the background.
    while dispatcher.status().journal.bytes_since_snapshot < 5 << 20 {
        for _ in 0..200 {
            trainer.get(&control, 64);
            trainer.use_all();
        }
        let compacted = dispatcher.status().journal.bytes_since_snapshot < 1 << 20;
        if trainer.used.len() > 1_000_000 || compacted && trainer.used.len() > 500_000 {
            break;
        }
    }
    trainer.get(&control, 1);
    trainer.use_all();
    trainer.commit(&control);
    dispatcher.stop();
    let files = std::fs::read_dir(folder.path()).unwrap();
    let names: Vec<_> =
        files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    assert!(names.iter().any(|name| name.starts_with("snapshot-")), "{names:?}");
    let dispatcher = start(folder.path());
    let used = dispatcher.status().jobs[0].windows_used;
    assert_eq!(used, trainer.used.len() as u64);
}

#[test]
fn a_second_dispatcher_on_one_journal_says_who_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let first = start(folder.path());
    let error = Dispatcher::start(Options::new(folder.path())).unwrap_err();
    let Error::Journal(said) = error else { panic!("{error:?}") };
    assert!(said.contains(&format!("process {}", std::process::id())), "{said}");
    drop(first);
    start(folder.path());
}

#[test]
fn an_address_that_cannot_be_bound_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    for address in [taken.local_addr().unwrap().to_string(), "nonsense".into()] {
        let options = Options { address: address.clone(), ..Options::new(folder.path()) };
        let error = Dispatcher::start(options).unwrap_err();
        assert!(matches!(&error, Error::Setup(said) if said.contains(&address)), "{error}");
    }
}

#[test]
fn while_the_dispatcher_is_away_callers_wait_as_long_as_they_like() {
    let folder = tempfile::tempdir().unwrap();
    let dispatcher = start(folder.path());
    let address = dispatcher.address().to_string();
    let control = Remote::new(&address).unwrap();
    register(&control);
    let mut trainer = Trainer::join(&control, "job", 50, 1, 0);
    drop(dispatcher);
    let seat = trainer.seat;
    let commit = Request::Commit { seat, cursor: trainer.cursor.clone() };
    let failure = control.ask(&commit, Duration::from_millis(200)).unwrap_err();
    assert!(matches!(&failure, Failure::Unavailable(said) if said.contains(&address)), "{failure}");
    let waiting = std::thread::spawn(move || {
        trainer.get(&control, 3);
        (control, trainer)
    });
    std::thread::sleep(Duration::from_millis(300));
    let options = Options { address, ..Options::new(folder.path()) };
    let _dispatcher = Dispatcher::start(options).unwrap();
    let (control, mut trainer) = waiting.join().unwrap();
    assert_eq!(trainer.cursor.open.len(), 3);
    trainer.use_all();
    trainer.epoch(&control, 8);
    assert_eq!(trainer.used.len(), 50);
}

#[test]
fn jobs_end_and_their_names_can_be_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let limits = Limits { idle_timeout: 700, ..Limits::default() };
    let dispatcher = Dispatcher::start(Options { limits, ..Options::new(folder.path()) }).unwrap();
    let control = remote(&dispatcher);
    register(&control);
    let first = Trainer::join(&control, "job", 8, 1, 0);
    let close = Request::CloseJob { job: first.job() };
    assert_eq!(control.ask(&close, PATIENCE), Ok(Reply::Closed));
    let second = Trainer::join(&control, "job", 9, 1, 0);
    assert_ne!(first.job(), second.job());
    assert_eq!(refused(first.commit(&control)), Refusal::UnknownJob { job: first.job() });
    let end = std::time::Instant::now() + PATIENCE;
    while !dispatcher.status().jobs.is_empty() {
        assert!(std::time::Instant::now() < end, "an idle job is collected");
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(dispatcher);
    assert!(start(folder.path()).status().jobs.is_empty(), "and stays so");
}

#[test]
fn a_dispatcher_listens_on_a_unix_socket_and_on_ipv6() {
    let folder = tempfile::tempdir().unwrap();
    let socket = format!("feedline+unix://{}", folder.path().join("socket").display());
    // What a killed one left behind is no obstacle.
    drop(std::os::unix::net::UnixListener::bind(folder.path().join("socket")).unwrap());
    for address in [socket.as_str(), "feedline://[::1]:0"] {
        let journal = folder.path().join("journal");
        let options = Options { address: address.into(), ..Options::new(journal) };
        let dispatcher = match Dispatcher::start(options) {
            Err(error) if address.contains("::1") => {
                eprintln!("no IPv6 here: {error}");
                continue;
            }
            started => started.unwrap(),
        };
        let control = remote(&dispatcher);
        register(&control);
        assert_eq!(Trainer::join(&control, address, 20, 1, 0).epoch(&control, 8), 20);
    }
    assert!(!folder.path().join("socket").exists(), "nothing is left behind");
}
