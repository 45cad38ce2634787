//! What several jobs, steps at the client, and mistakes come to.

use crate::{PATIENCE, Service, job, next, options};
use feedline_core::{Position, Store};
use feedline_engine::{Next, Run};
use feedline_remote::{Job, Remote};
use feedline_store::LocalStore;
use feedline_testkit::volumes::npy;
use feedline_testkit::{Fixtures, open};
use feedline_wire::Order;
use std::sync::Arc;

#[test]
fn jobs_that_compute_the_same_share_the_work() {
    let fixtures = Fixtures::new();
    let service = Service::new(1);
    let plan = "range count=240 | shuffle | sleep ms=2 | batch size=4";
    let pipeline = open(plan, &fixtures).unwrap();
    let names: Vec<String> = (0..4).map(|_| service.name()).collect();
    let seen: Vec<Vec<u64>> = std::thread::scope(|scope| {
        // However each of them cuts its windows.
        let job = |(name, window): (&String, u64)| {
            let job = Job { window, ..job(name, Order::Exact) };
            let run = service.start(&pipeline, &fixtures, None, job, options(0, 1));
            scope.spawn(move || {
                let mut run = run.unwrap();
                let mut seen = Vec::new();
                while let Some(batch) = next(&mut run).unwrap() {
                    seen.extend(batch.indices.unwrap());
                }
                seen
            })
        };
        let jobs: Vec<_> = names.iter().zip(1..).map(job).collect();
        jobs.into_iter().map(|job| job.join().unwrap()).collect()
    });
    for one in &seen {
        assert_eq!(one, &seen[0]);
    }
    let mut sorted = seen[0].clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..240).collect::<Vec<_>>());
    // The worker's beats tell what was taken from the shelf.
    let shared = || -> (u64, u64) {
        let status = service.dispatcher.status();
        let done = status.workers.iter().flat_map(|worker| &worker.jobs);
        done.fold((0, 0), |(steps, shared), one| (steps + one.steps, shared + one.shared))
    };
    let started = std::time::Instant::now();
    while shared().0 < 240 && started.elapsed() < PATIENCE {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let (steps, shared) = shared();
    assert_eq!(steps, 240);
    assert!(shared > 60, "{shared} of {steps} steps were shared");
}

#[test]
fn a_relaxed_job_leaves_out_what_others_are_past() {
    let fixtures = Fixtures::new();
    let pipeline = open("range count=400 | sleep ms=1 | batch size=4", &fixtures).unwrap();
    let start = |service: &Service, relaxed: bool| {
        // Of its one window, a client has no more than a few steps ahead.
        let one = job(&service.name(), Order::Any);
        let job = Job { relaxed, window: 100, memory: 4096, ..one };
        service.start(&pipeline, &fixtures, None, job, options(0, 1)).unwrap()
    };
    let rest = |run: &mut Remote| {
        let mut seen = Vec::new();
        while let Some(batch) = next(run).unwrap() {
            seen.extend(batch.indices.unwrap());
        }
        seen
    };
    // Alone, it leaves out nothing.
    let mut alone = rest(&mut start(&Service::new(1), true));
    alone.sort_unstable();
    assert_eq!(alone, (0..400).collect::<Vec<_>>());

    let service = Service::new(1);
    let mut first = start(&service, false);
    let mut seen: Vec<u64> = Vec::new();
    for _ in 0..50 {
        seen.extend(next(&mut first).unwrap().unwrap().indices.unwrap());
    }
    let (others, mut late) = std::thread::scope(|scope| {
        let late = scope.spawn(|| rest(&mut start(&service, true)));
        (rest(&mut first), late.join().unwrap())
    });
    seen.extend(others);
    seen.sort_unstable();
    assert_eq!(seen, (0..400).collect::<Vec<_>>());
    late.sort_unstable();
    assert!(late.windows(2).all(|pair| pair[0] < pair[1]), "nothing comes twice");
    assert!(late.len() <= 240, "{} of what was long past came", late.len());
    // When nobody is ahead any more, there is nobody to keep pace with.
    let mut after = rest(&mut start(&service, true));
    after.sort_unstable();
    assert_eq!(after, (0..400).collect::<Vec<_>>());
}

#[test]
fn the_last_steps_can_be_taken_by_the_client() {
    let fixtures = Fixtures::new();
    let service = Service::new(2);
    let plan = "images path=$IMAGES | shuffle | decode | random_resized_crop size=[8,8] | flip_horizontal | \
                color_jitter brightness=0.4 | cast field=image dtype=float32 | batch size=3";
    for (plan, steps) in [
        (plan, &["random_resized_crop", "flip_horizontal", "color_jitter", "cast"][..]),
        (
            "images path=$BAD | on_error policy=skip | decode | resize size=[2,2] | batch size=2",
            &["decode", "resize"][..],
        ),
    ] {
        let pipeline = open(plan, &fixtures).unwrap();
        for step in steps {
            let store: Arc<dyn Store> = Arc::new(LocalStore);
            let start = Position::default();
            let mut local = Run::start(Arc::clone(&pipeline), store, start, options(0, 1)).unwrap();
            let job =
                Job { local_from: Some((*step).to_owned()), ..job(&service.name(), Order::Exact) };
            let mut run = service.start(&pipeline, &fixtures, None, job, options(0, 1)).unwrap();
            loop {
                let wanted = match local.next_within(PATIENCE).unwrap().unwrap() {
                    Next::Batch(batch) => Some(batch),
                    _ => None,
                };
                let found = next(&mut run).unwrap();
                assert_eq!(found, wanted, "{plan} from {step}");
                if found.is_none() {
                    break;
                }
            }
        }
    }
}

#[test]
fn a_cut_that_cannot_be_made_is_refused_with_those_that_can() {
    let fixtures = Fixtures::new();
    let service = Service::new(0);
    let plan = "images path=$IMAGES | decode | resize size=[4,4] | shuffle | batch size=2";
    let pipeline = open(plan, &fixtures).unwrap();
    for (step, words) in [
        ("normalize", "there is no such step"),
        ("batch", "one sample at a time"),
        ("resize", "shuffle comes after it"),
    ] {
        let job = Job { local_from: Some(step.into()), ..job("cut", Order::Exact) };
        let error = service.start(&pipeline, &fixtures, None, job, options(0, 1));
        let error = error.err().expect("it is refused").to_string();
        assert!(error.contains(words) && error.contains("decode, resize"), "{error}");
    }
}

#[test]
fn other_data_at_a_worker_is_the_error_if_no_other_worker_has_the_right_one() {
    let folder = tempfile::tempdir().unwrap();
    let fixtures = Fixtures::new();
    let service = Service::new(1);
    let file = |value: f64| npy("<f8", false, &[1], &value.to_le_bytes());
    std::fs::write(folder.path().join("a.npy"), file(1.0)).unwrap();
    let plan = format!("npy path={} | batch size=1", folder.path().display());
    let pipeline = open(&plan, &fixtures).unwrap();
    std::fs::write(folder.path().join("b.npy"), file(2.0)).unwrap();
    let job = job(&service.name(), Order::Exact);
    let mut run = service.start(&pipeline, &fixtures, None, job, options(0, 1)).unwrap();
    let error = next(&mut run).unwrap_err().to_string();
    assert!(error.contains("other data than the client did"), "{error}");
}

#[test]
fn nothing_is_left_of_a_run_that_was_dropped() {
    let fixtures = Fixtures::new();
    let service = Service::new(1);
    let pipeline = open("range count=100000 | batch size=1", &fixtures).unwrap();
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let run = |service: &Service| -> Remote {
        let job = job(&service.name(), Order::Exact);
        let mut run = service.start(&pipeline, &fixtures, None, job, options(0, 1)).unwrap();
        next(&mut run).unwrap();
        run
    };
    drop(run(&service));
    std::thread::sleep(std::time::Duration::from_millis(300));
    let before = threads();
    for _ in 0..3 {
        drop(run(&service));
    }
    // A worker notices that its client is gone.
    let started = std::time::Instant::now();
    while threads() > before && started.elapsed() < PATIENCE {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(threads() <= before, "{} threads, and there were {before}", threads());
}

/// Numbers of each length from 1 on, as `arrays` cannot have them: files of their own.
fn sequences(folder: &std::path::Path, count: usize) {
    for number in 0..count {
        let length = 1 + number * 7 % 23;
        let values: Vec<u8> = (0..length).flat_map(|at| (at as f64).to_le_bytes()).collect();
        let bytes = npy("<f8", false, &[length], &values);
        std::fs::write(folder.join(format!("{number:03}.npy")), bytes).unwrap();
    }
}

#[test]
fn batches_by_length_and_in_rounds_are_those_of_a_local_run() {
    let folder = tempfile::tempdir().unwrap();
    sequences(folder.path(), 60);
    let fixtures = Fixtures::new();
    let service = Service::new(2);
    let path = folder.path().display();
    let plan = format!("npy path={path} | shuffle | bucket boundaries=[6,12] size=3 stretch=25");
    let pipeline = open(&plan, &fixtures).unwrap();
    for rounds in [false, true] {
        let name = service.name();
        let options = |rank| feedline_engine::Options { rounds, ..options(rank, 3) };
        std::thread::scope(|scope| {
            for rank in 0..3 {
                let job = job(&name, Order::Exact);
                let run = service.start(&pipeline, &fixtures, None, job, options(rank));
                let pipeline = &pipeline;
                let options = options(rank);
                scope.spawn(move || {
                    let mut run = run.unwrap();
                    let store: Arc<dyn Store> = Arc::new(LocalStore);
                    let start = Position::default();
                    let mut local =
                        Run::start(Arc::clone(pipeline), store, start, options).unwrap();
                    for step in 0..30 {
                        let wanted = match local.next_within(PATIENCE).unwrap().unwrap() {
                            Next::Batch(batch) => Some(batch),
                            _ => None,
                        };
                        let found = next(&mut run).unwrap();
                        assert_eq!(found, wanted, "rank {rank}, step {step}, rounds {rounds}");
                        assert_eq!(run.position().unwrap(), local.position());
                    }
                });
            }
        });
    }
}
