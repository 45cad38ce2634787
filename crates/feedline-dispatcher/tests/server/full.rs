//! A full disk: what is running is finished, nothing is begun, and all goes on when there is room.

use crate::support::*;
use feedline_dispatcher::server::Error;
use feedline_dispatcher::{Dispatcher, Options};
use feedline_journal::{Coins, SimulatedDisk};
use feedline_rpc::Remote;
use feedline_wire::control::{Control, Failure, Report};
use feedline_wire::{Refusal, Reply, Request};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn on(disk: &SimulatedDisk) -> Options {
    let mut options = Options::new("/journal");
    options.disk = Arc::new(disk.clone());
    options.journal_options.reserve_bytes = 64 << 10;
    options.journal_options.full_retry = Duration::from_millis(20);
    options
}

/// Asks for windows until there is no room for the answer.
fn fill(control: &Remote, trainer: &mut Trainer) -> Refusal {
    for _ in 0..10_000 {
        match trainer.get(control, 8) {
            Reply::Granted { .. } => trainer.use_all(),
            other => return refused(other),
        }
    }
    panic!("the disk did not become full");
}

#[test]
fn on_a_full_disk_what_runs_is_finished_and_nothing_is_begun() {
    let disk = SimulatedDisk::new();
    let dispatcher = Dispatcher::start(on(&disk)).unwrap();
    let control = remote(&dispatcher);
    register(&control);
    let mut other = Trainer::join(&control, "other", 40, 1, 0);
    let granted = other.get(&control, 3);
    assert!(matches!(granted, Reply::Granted { .. }));
    let mut trainer = Trainer::join(&control, "job", 100_000, 1, 0);
    disk.set_capacity(Some(disk.used() + (8 << 10)));
    let refusal = fill(&control, &mut trainer);
    assert!(matches!(&refusal, Refusal::Exhausted(said) if said.contains("full")), "{refusal}");
    assert!(dispatcher.status().journal.full);
    // A commit is noted, new jobs are not opened.
    other.use_all();
    assert!(matches!(other.commit(&control), Reply::Committed { .. }));
    let status = dispatcher.status();
    let noted = status.jobs.iter().find(|job| job.name.0 == "other").unwrap();
    assert_eq!(noted.windows_used, 3);
    let reply = control.ask(&open("third", 9, 1, 0, nonce()), PATIENCE).unwrap();
    assert!(matches!(refused(reply), Refusal::Exhausted(_)));
    disk.set_capacity(None);
    let end = Instant::now() + PATIENCE;
    while matches!(trainer.get(&control, 8), Reply::Refused(Refusal::Exhausted(_))) {
        assert!(Instant::now() < end, "there is room, and nothing goes on");
        std::thread::sleep(Duration::from_millis(20));
    }
    trainer.use_all();
    trainer.commit(&control);
    let used = trainer.used.len() as u64;
    drop(dispatcher);
    let dispatcher = Dispatcher::start(on(&disk.after_crash(3))).unwrap();
    let status = dispatcher.status();
    let kept = |name: &str| status.jobs.iter().find(|job| job.name.0 == name).unwrap().windows_used;
    assert_eq!((kept("job"), kept("other")), (used, 3));
}

#[test]
fn at_whichever_point_the_disk_is_full_nothing_that_was_said_is_lost() {
    let mut coins = Coins::new(7);
    for _ in 0..30 {
        let disk = SimulatedDisk::new();
        let dispatcher = Dispatcher::start(on(&disk)).unwrap();
        let control = remote(&dispatcher);
        register(&control);
        let mut trainer = Trainer::join(&control, "job", 100_000, 1, 0);
        disk.set_capacity(Some(disk.used() + coins.below(6 << 10)));
        fill(&control, &mut trainer);
        // Until even the reserve is used up, or a while has passed.
        for _ in 0..coins.below(20) {
            trainer.commit(&control);
        }
        drop((control, dispatcher));
        let disk = disk.after_crash(coins.below(1 << 40));
        disk.set_capacity(None);
        let dispatcher = Dispatcher::start(on(&disk)).unwrap();
        let control = remote(&dispatcher);
        trainer.get(&control, 8);
        trainer.use_all();
        trainer.commit(&control);
        assert_eq!(dispatcher.status().jobs[0].windows_used, trainer.used.len() as u64);
    }
}

#[test]
fn a_disk_that_fails_to_write_or_to_sync_ends_the_dispatcher() {
    for later in 0..4 {
        let disk = SimulatedDisk::new();
        let dispatcher = Dispatcher::start(on(&disk)).unwrap();
        let control = remote(&dispatcher);
        register(&control);
        let mut trainer = Trainer::join(&control, "job", 100, 1, 0);
        assert_eq!(dispatcher.wait(Duration::from_millis(10)), Ok(false));
        // Each commit writes and syncs; one of those fails.
        disk.fail_at(disk.operations() + later, std::io::ErrorKind::Other);
        let failure = (1..9).find_map(|sequence| {
            let (seat, cursor) = (trainer.seat, trainer.cursor.clone());
            let get = Request::Get { seat, sequence, want: 1, cursor };
            let reply = control.ask(&get, Duration::from_secs(2));
            if let Ok(Reply::Granted { windows, standing }) = &reply {
                trainer.cursor.seen = standing.stamp;
                windows.iter().for_each(|window| trainer.cursor.used.insert(*window));
            }
            reply.err()
        });
        assert!(matches!(failure, Some(Failure::Unavailable(_))), "{later}: {failure:?}");
        let error = dispatcher.wait(PATIENCE).unwrap_err();
        assert!(matches!(&error, Error::Stopped(said) if said.contains("journal")), "{error}");
        let address = dispatcher.address().to_string();
        let failure = Remote::new(&address).unwrap().report(&report(&trainer)).unwrap_err();
        assert!(matches!(failure, Failure::Unavailable(_)), "nobody serves: {failure}");
    }
}

fn report(trainer: &Trainer) -> Report {
    let (job, consumer) = (trainer.job(), trainer.seat.consumer);
    let (epoch, steps, samples, bytes) = (0, 0, 0, 0);
    Report { job, consumer, epoch, steps, samples, bytes, waited: 0, elapsed: 0, buffered: 0 }
}
