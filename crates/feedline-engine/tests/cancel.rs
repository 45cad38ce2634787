//! Ending early, going slowly, failing: results stay exact and nothing waits for ever.

#![expect(clippy::unwrap_used, reason = "in a test, unwrap says that the test ends otherwise")]

use feedline_core::{Error, Position, Store};
use feedline_engine::{Next, Options, Run};
use feedline_ops::Pipeline;
use feedline_ops::codec::Subsampling;
use feedline_ops::plain::Part;
use feedline_store::LocalStore;
use feedline_testkit::{
    CountingStore, FailingStore, Fixtures, SlowStore, encode_jpeg, engine_epoch, open, plain_epoch,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PLAN: &str = "images path=$IMAGES | shuffle | repeat count=3 | decode | \
                    random_resized_crop size=16 | normalize mean=[0.5] std=[0.5] | batch size=4";

fn options() -> Options {
    Options { threads: 3, epochs: Some(1), with_index: true, ..Options::default() }
}

fn equals_plain(pipeline: &Arc<Pipeline>, store: Arc<dyn Store>, options: Options) {
    let part = Part { with_index: true, ..Part::default() };
    let local: Arc<dyn Store> = Arc::new(LocalStore);
    let wanted = plain_epoch(pipeline, &local, part, usize::MAX);
    let found = engine_epoch(pipeline, &store, Position::default(), options.clone(), usize::MAX);
    assert!(found == wanted, "{options:?}\n{found:?}\n{wanted:?}");
}

#[test]
fn a_slow_store_changes_nothing() {
    let fixtures = Fixtures::new();
    let pipeline = open(PLAN, &fixtures).unwrap();
    for (reads, memory, threads) in [
        (1, 1 << 30, 3),
        (4, 1 << 30, 1),
        (16, 1 << 30, 5),
        (16, 1, 2),
        (1, 1, 1),
        (100, 10_000, 3),
    ] {
        let store = Arc::new(SlowStore { delay: Duration::from_millis(1) });
        let options = Options { reads, memory, threads, ..options() };
        equals_plain(&pipeline, store, options);
    }
}

#[test]
fn reads_that_wait_run_side_by_side() {
    let fixtures = Fixtures::new();
    let pipeline = open(PLAN, &fixtures).unwrap();
    let store: Arc<dyn Store> = Arc::new(SlowStore { delay: Duration::from_millis(20) });
    let start = Instant::now();
    let options = Options { reads: 27, threads: 1, ..options() };
    let _ = engine_epoch(&pipeline, &store, Position::default(), options, usize::MAX);
    // One after the other they would take 540 ms.
    assert!(start.elapsed() < Duration::from_millis(400), "{:?}", start.elapsed());
}

#[test]
fn little_memory_is_enough() {
    let fixtures = Fixtures::new();
    let pipeline = open(PLAN, &fixtures).unwrap();
    for memory in [0, 1, 4096, 100_000] {
        for ahead in [0, 1, 100] {
            let options = Options { memory, ahead, ..options() };
            equals_plain(&pipeline, Arc::new(LocalStore), options);
        }
    }
}

#[test]
fn nothing_is_read_twice() {
    let fixtures = Fixtures::new();
    let pipeline = open(PLAN, &fixtures).unwrap();
    let store = Arc::new(CountingStore::default());
    equals_plain(&pipeline, Arc::clone(&store) as Arc<dyn Store>, options());
    assert_eq!(store.reads(), 27);
}

#[test]
fn storage_that_does_not_answer_is_no_bad_sample() {
    let fixtures = Fixtures::new();
    for policy in ["", "on_error policy=skip | "] {
        let plan = format!("images path=$FLAT | {policy}decode | resize size=[4,4] | batch size=2");
        let pipeline = open(&plan, &fixtures).unwrap();
        for late in [false, true] {
            let store: Arc<dyn Store> = Arc::new(FailingStore { ending: "c.jpg", late });
            let mut run =
                Run::start(Arc::clone(&pipeline), store, Position::default(), options()).unwrap();
            // What comes before it is delivered.
            assert!(matches!(run.next(), Ok(Next::Batch(_))), "{plan} late={late}");
            let error = run.next().unwrap_err();
            assert!(matches!(&error, Error::Unavailable { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains("c.jpg is unavailable") && text.contains("no answer"), "{text}");
            assert!(run.next().is_err(), "a failed run stays failed");
        }
    }
}

/// How long dropping a run takes that is in the midst of ordinary photos.
fn time_to_drop(store: Arc<dyn Store>) -> Duration {
    let fixtures = Fixtures::new();
    for number in 0..8 {
        let photo = encode_jpeg(number, 500, 375, Subsampling::S420);
        fixtures.write(format!("photos/{number}.jpg"), &photo);
    }
    let plan = format!(
        "images path={} | repeat | decode | random_resized_crop size=224 | batch size=64",
        fixtures.path("photos").display()
    );
    let pipeline = open(&plan, &fixtures).unwrap();
    let options = Options { threads: 4, ..Options::default() };
    let mut times: Vec<Duration> = (0..5)
        .map(|_| {
            let pipeline = Arc::clone(&pipeline);
            let run =
                Run::start(pipeline, Arc::clone(&store), Position::default(), options.clone());
            let run = run.unwrap();
            std::thread::sleep(Duration::from_millis(15));
            let start = Instant::now();
            drop(run);
            start.elapsed()
        })
        .collect();
    times.sort();
    // The median: other tests may be using the machine.
    times[2]
}

#[test]
fn dropping_a_run_takes_no_time() {
    let time = time_to_drop(Arc::new(LocalStore));
    assert!(time < Duration::from_millis(100), "{time:?}");
    let time = time_to_drop(Arc::new(SlowStore { delay: Duration::from_millis(10) }));
    assert!(time < Duration::from_millis(100), "{time:?}");
}

#[test]
fn a_run_can_be_dropped_before_during_and_after() {
    let fixtures = Fixtures::new();
    let pipeline = open(PLAN, &fixtures).unwrap();
    for taken in 0..9 {
        let store: Arc<dyn Store> = Arc::new(SlowStore { delay: Duration::from_micros(200) });
        let mut run =
            Run::start(Arc::clone(&pipeline), Arc::clone(&store), Position::default(), options())
                .unwrap();
        for _ in 0..taken {
            run.next().unwrap();
        }
        drop(run);
        let start = Instant::now();
        while Arc::strong_count(&store) > 1 {
            assert!(start.elapsed() < Duration::from_secs(2), "a thread is left");
            std::thread::yield_now();
        }
    }
}
