//! Workers come and go, and whoever waits for them hears at once.

use crate::support::*;
use feedline_dispatcher::scale::Scaler;
use feedline_dispatcher::{Dispatcher, Options};
use feedline_wire::ConsumerIndex;
use feedline_wire::control::{Beat, Control, Done, Failure, Report, Worker, WorkerKey};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

fn beat(key: u64) -> Beat {
    let worker = Worker {
        key: WorkerKey(key),
        name: format!("worker-{key}"),
        addresses: vec!["127.0.0.1:9".into()],
        version: "1".into(),
        cores: 2,
        draining: false,
    };
    Beat { worker, busy: 1.0, memory: 1 << 20, connections: 1, jobs: vec![] }
}

#[test]
fn whoever_waits_for_workers_hears_of_them_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let options =
        Options { worker_timeout: Duration::from_millis(600), ..Options::new(folder.path()) };
    let dispatcher = Dispatcher::start(options).unwrap();
    let (control, other) = (remote(&dispatcher), remote(&dispatcher));
    let none = control.workers(0, Duration::ZERO).unwrap();
    assert_eq!(none.workers, []);
    let unchanged = control.workers(none.version, Duration::from_millis(50)).unwrap();
    assert_eq!(unchanged, none);
    let poll = |known: u64| {
        let waiting = |control: &dyn Control| control.workers(known, PATIENCE).unwrap();
        std::thread::scope(|scope| {
            let polls: Vec<_> = (0..4).map(|_| scope.spawn(|| waiting(&control))).collect();
            std::thread::sleep(Duration::from_millis(30));
            polls.into_iter().map(|poll| poll.join().unwrap()).next().unwrap()
        })
    };
    let come = std::thread::scope(|scope| {
        let poll = scope.spawn(|| poll(none.version));
        other.beat(&beat(7)).unwrap();
        poll.join().unwrap()
    });
    assert_eq!(come.workers, [beat(7).worker]);
    let draining = std::thread::scope(|scope| {
        let poll = scope.spawn(|| poll(come.version));
        other.drain_worker(WorkerKey(7)).unwrap();
        poll.join().unwrap()
    });
    assert!(draining.workers[0].draining);
    assert!(other.beat(&beat(7)).unwrap().drain);
    let begun = Instant::now();
    let gone = poll(draining.version);
    assert_eq!(gone.workers, []);
    assert!(begun.elapsed() < PATIENCE, "it was told, and not only found in the end");
    let failure = other.drain_worker(WorkerKey(8)).unwrap_err();
    assert!(matches!(failure, Failure::Invalid(_)), "{failure:?}");
}

#[test]
fn polls_end_when_the_dispatcher_does() {
    let folder = tempfile::tempdir().unwrap();
    let dispatcher = start(folder.path());
    let control = remote(&dispatcher);
    let version = control.workers(0, Duration::ZERO).unwrap().version;
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let poll = scope.spawn(|| control.workers(version, Duration::from_secs(2)));
        std::thread::sleep(Duration::from_millis(100));
        dispatcher.stop();
        assert!(matches!(poll.join().unwrap(), Err(Failure::Unavailable(_))));
    });
    assert!(begun.elapsed() < PATIENCE);
}

#[test]
fn orders_and_status_tell_what_is_going_on() {
    let folder = tempfile::tempdir().unwrap();
    let dispatcher = start(folder.path());
    let control = remote(&dispatcher);
    let id = register(&control);
    let mut trainer = Trainer::join(&control, "job", 100, 2, 1);
    trainer.get(&control, 5);
    trainer.use_all();
    trainer.get(&control, 3);
    let orders = control.beat(&beat(7)).unwrap();
    assert_eq!((orders.datasets, orders.drain), (vec![(id.clone(), 1)], false));
    let report = Report {
        job: trainer.job(),
        consumer: ConsumerIndex(1),
        epoch: 0,
        steps: 5,
        samples: 40,
        bytes: 4000,
        waited: 500_000,
        elapsed: 1_000_000,
        buffered: 3,
    };
    control.report(&report).unwrap();
    let unknown = Report { consumer: ConsumerIndex(2), ..report };
    assert!(matches!(control.report(&unknown), Err(Failure::Invalid(_))));
    let status = control.status().unwrap();
    assert_eq!(status.datasets[0].id, id);
    assert_eq!(status.datasets[0].jobs, 1);
    assert_eq!(status.workers[0].worker.name, "worker-7");
    let job = &status.jobs[0];
    assert_eq!((job.windows_used, job.windows_total, job.windows_held), (5, 100, 3));
    assert_eq!(job.consumers.len(), 2);
    assert!(!job.consumers[0].attached && job.consumers[1].attached);
    assert_eq!((job.consumers[1].held, job.consumers[1].buffered), (3, 3));
    assert!((job.waiting - 0.5).abs() < 1e-9, "{job:?}");
    assert!(status.journal.records > 3 && status.journal.durable == status.journal.records);
}

#[derive(Default)]
struct Counting(AtomicU32);

impl Scaler for Counting {
    fn set(&self, wanted: u32) {
        self.0.store(wanted, Ordering::SeqCst);
    }
}

#[test]
fn starved_trainers_make_the_dispatcher_ask_for_workers() {
    let folder = tempfile::tempdir().unwrap();
    let scaler = Arc::new(Counting::default());
    let mut options = Options::new(folder.path());
    options.scaler = Some(scaler.clone());
    (options.scale.up_after, options.scale.max) = (500, 5);
    let dispatcher = Dispatcher::start(options).unwrap();
    let control = remote(&dispatcher);
    register(&control);
    let trainer = Trainer::join(&control, "job", 100, 1, 0);
    let end = Instant::now() + PATIENCE;
    for round in 1.. {
        let (job, consumer) = (trainer.job(), ConsumerIndex(0));
        let elapsed = round * 100_000;
        let waited = elapsed / 2;
        let report = Report {
            job,
            consumer,
            epoch: 0,
            steps: round,
            samples: round,
            bytes: round,
            waited,
            elapsed,
            buffered: 0,
        };
        control.report(&report).unwrap();
        let done = Done { job, steps: round, samples: round, bytes: round, shared: 0, busy: round };
        let mut beat = beat(1);
        beat.jobs = vec![done];
        control.beat(&beat).unwrap();
        if scaler.0.load(Ordering::SeqCst) >= 2 {
            break;
        }
        assert!(Instant::now() < end, "{:?}", dispatcher.status().scale);
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(dispatcher.status().scale.wanted >= 2);
}
