//! Order as a policy: slow samples, several consumers, what is written down, and ending early.

#![expect(clippy::unwrap_used, reason = "in a test, unwrap says that the test ends otherwise")]

use feedline_core::{Attempt, Entry, Extent, Position, Seed, Store};
use feedline_engine::{Delivery, Next, Options, Recording, Run, State, Team, merge_states};
use feedline_ops::Pipeline;
use feedline_store::LocalStore;
use feedline_testkit::{Fixtures, SlowStore, open};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

fn pipeline(plan: &str) -> Arc<Pipeline> {
    open(plan, &Fixtures::new()).unwrap()
}

fn ready(max_slip: u64, threads: usize) -> Options {
    Options {
        threads,
        delivery: Delivery::Ready { max_slip },
        with_index: true,
        epochs: Some(1),
        ..Options::default()
    }
}

fn start(pipeline: &Arc<Pipeline>, options: Options) -> Run {
    Run::start(Arc::clone(pipeline), Arc::new(LocalStore), Position::default(), options).unwrap()
}

/// The indices of the next batch; `None` at the end of the epoch.
fn indices(run: &mut Run) -> Option<Vec<u64>> {
    match run.next_within(PATIENCE).unwrap().expect("the run hangs") {
        Next::Batch(batch) => Some(batch.indices.unwrap()),
        Next::EpochEnd(_) | Next::End => None,
    }
}

fn epoch(run: &mut Run) -> Vec<Vec<u64>> {
    std::iter::from_fn(|| indices(run)).collect()
}

#[test]
fn a_slow_sample_delays_only_itself_and_not_too_far() {
    let plan = pipeline("range count=120 | sleep slow_ms=1000 every=120 | batch size=4");
    let batches = epoch(&mut start(&plan, ready(9, 2)));
    let found = batches.iter().position(|batch| batch.contains(&0)).unwrap();
    assert!((1..=9).contains(&found), "sample 0 came in batch {found}");
    let mut all = batches.concat();
    all.sort_unstable();
    assert_eq!(all, (0..120).collect::<Vec<u64>>());
    // In exact order it is waited for.
    let exact = Options { delivery: Delivery::Exact, ..ready(1, 2) };
    assert_eq!(indices(&mut start(&plan, exact)).unwrap(), [0, 1, 2, 3]);
}

#[test]
fn a_consumer_that_stops_does_not_hold_up_another() {
    let plan = pipeline("range count=400 | sleep ms=0.2 | batch size=4");
    let team = Team::new(2).unwrap();
    let begin = |rank: u64, delivery: Delivery| {
        let options = Options {
            rank,
            world: 3,
            delivery,
            with_index: true,
            epochs: Some(1),
            ..Options::default()
        };
        let store = Arc::new(LocalStore);
        Run::start_in(&team, Arc::clone(&plan), store, Position::default(), options).unwrap()
    };
    let mut stopped = begin(0, Delivery::Exact);
    assert!(indices(&mut stopped).is_some());
    let (mut one, mut other) =
        (begin(1, Delivery::Exact), begin(2, Delivery::Ready { max_slip: 3 }));
    let other = std::thread::spawn(move || epoch(&mut other).concat().len());
    assert_eq!(epoch(&mut one).concat().len(), 132);
    assert_eq!(other.join().unwrap(), 132);
    // It goes on when it likes; and dropping it midway is fine.
    assert!(indices(&mut stopped).is_some());
    drop((stopped, one));
    assert_eq!(epoch(&mut begin(1, Delivery::Exact)).concat().len(), 132);
}

#[test]
fn a_slow_consumers_work_does_not_hold_up_a_fast_one() {
    let team = Team::new(3).unwrap();
    let begin = |plan: &Arc<Pipeline>| {
        let options = Options { epochs: Some(1), with_index: true, ..Options::default() };
        let store = Arc::new(LocalStore);
        Run::start_in(&team, Arc::clone(plan), store, Position::default(), options).unwrap()
    };
    let slow = pipeline("range count=64 | sleep ms=300 | batch size=8");
    let fast = pipeline("range count=200 | sleep ms=0.3 | batch size=8");
    let (slow, mut fast) = (begin(&slow), begin(&fast));
    assert_eq!(epoch(&mut fast).concat().len(), 200);
    assert!(slow.stats().batches == 0);
    drop(slow);
}

#[test]
fn a_step_that_blocks_for_ever_is_cancelled() {
    let plan = pipeline("range count=64 | sleep slow_ms=1e11 every=8 | batch size=4");
    for delivery in [Delivery::Exact, Delivery::Ready { max_slip: 2 }] {
        let mut run = start(&plan, Options { delivery, ..ready(2, 4) });
        while run.next_within(Duration::from_millis(50)).unwrap().is_some() {}
        let start = Instant::now();
        drop(run);
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    }
}

#[test]
fn samples_larger_than_the_whole_budget_run_one_by_one() {
    let fixtures = Fixtures::new();
    let plan = "arrays fields=$SQUARES | repeat count=5 | resize size=[300,300] | batch size=3";
    let plan = open(plan, &fixtures).unwrap();
    let wanted = epoch(&mut start(&plan, Options { delivery: Delivery::Exact, ..ready(1, 1) }));
    for delivery in [Delivery::Exact, Delivery::Ready { max_slip: 4 }] {
        for memory in [0, 1000, 400_000] {
            let options = Options { delivery: delivery.clone(), memory, ..ready(4, 3) };
            let mut found = epoch(&mut start(&plan, options)).concat();
            found.sort_unstable();
            let mut wanted = wanted.concat();
            wanted.sort_unstable();
            assert_eq!(found, wanted);
        }
    }
}

#[test]
fn what_is_in_flight_stays_within_the_budget() {
    let fixtures = Fixtures::new();
    let plan = "arrays fields=$SQUARES | repeat count=40 | resize size=[200,200] | sleep ms=0.5 | batch size=2";
    let plan = open(plan, &fixtures).unwrap();
    let batch = 2 * 200 * 200 * 3;
    for delivery in [Delivery::Exact, Delivery::Ready { max_slip: 16 }] {
        let options = Options { delivery, memory: 6 * batch, ..ready(1, 4) };
        let mut run = start(&plan, options);
        let mut most = 0;
        while indices(&mut run).is_some() {
            most = most.max(run.stats().memory_used);
        }
        // Sizes are rounded up to classes, an eighth at most.
        assert!(most <= 6 * batch + batch, "{most} of {}", 6 * batch);
    }
}

#[test]
fn the_largest_state_fits_a_kilobyte() {
    let plan =
        pipeline("range count=20000 | shuffle | sleep ms=0.05 slow_ms=40 p=0.02 | batch size=256");
    let mut run = start(&plan, ready(16, 8));
    for _ in 0..12 {
        indices(&mut run).unwrap();
        let position = run.position();
        assert!(position.taken.len() <= 4096, "{}", position.taken.len());
        let text = State::new(&plan, position, Seed(0), 0, 1).to_json();
        assert!(text.len() <= 1024, "{} bytes: {text}", text.len());
    }
    let error =
        Run::start(Arc::clone(&plan), Arc::new(LocalStore), Position::default(), ready(17, 1));
    let text = error.err().unwrap().to_string();
    assert!(text.contains("max_slip can be 16 at most"), "{text}");
}

#[test]
fn recordings_are_checked_before_they_are_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("record.jsonl");
    let plan = pipeline("range count=40 | shuffle | batch size=4");
    let mut run = start(&plan, Options { record: Some(file.clone()), ..ready(3, 2) });
    let wanted = epoch(&mut run);
    drop(run);
    let replay = |plan: &Arc<Pipeline>, options: Options| {
        let recording = Recording::read(&file).map(Arc::new)?;
        let options = Options { delivery: Delivery::Replay(recording), ..options };
        let mut run =
            Run::start(Arc::clone(plan), Arc::new(LocalStore), Position::default(), options)?;
        let mut all = Vec::new();
        loop {
            match run.next_within(PATIENCE)?.expect("the run hangs") {
                Next::Batch(batch) => all.push(batch.indices.unwrap()),
                Next::EpochEnd(_) => {}
                Next::End => return Ok(all),
            }
        }
    };
    let text = |error: feedline_core::Result<Vec<Vec<u64>>>| error.unwrap_err().to_string();
    assert_eq!(replay(&plan, ready(1, 3)).unwrap(), wanted);
    let other = pipeline("range count=40 | batch size=4");
    assert!(text(replay(&other, ready(1, 1))).contains("another pipeline"));
    let seed = Options { seed: Seed(9), ..ready(1, 1) };
    assert!(text(replay(&plan, seed)).contains("seed 0, and this loader has seed 9"));
    let ranks = Options { world: 2, ..ready(1, 1) };
    assert!(text(replay(&plan, ranks)).contains("of 1 ranks, and here are 2"));
    let epochs = Options { epochs: Some(2), ..ready(1, 1) };
    assert!(text(replay(&plan, epochs)).contains("no epoch 1"));
    // A last line that was cut off is forgiven; what it was about is missing.
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() - 9]).unwrap();
    assert!(text(replay(&plan, ready(1, 1))).contains("ends with batch 9 of epoch 0"));
    // Any other damage is not.
    let lines: Vec<&str> = std::str::from_utf8(&bytes).unwrap().lines().collect();
    std::fs::write(&file, format!("{}\nnonsense\n{}\n", lines[0], lines[1])).unwrap();
    assert!(text(replay(&plan, ready(1, 1))).contains("line 2 is no line of a recording"));
    std::fs::write(&file, format!("{}\n{}\n", lines[0], lines[2])).unwrap();
    assert!(text(replay(&plan, ready(1, 1))).contains("batch 0 of epoch 0 is missing"));
    std::fs::write(
        &file,
        lines[0].to_owned() + "\n{\"epoch\":0,\"rank\":0,\"batch\":0,\"places\":[99]}\n",
    )
    .unwrap();
    assert!(text(replay(&plan, ready(1, 1))).contains("place 99"));
    std::fs::write(&file, "").unwrap();
    assert!(text(replay(&plan, ready(1, 1))).contains("the file is empty"));
}

#[test]
fn a_distant_store_is_asked_for_more_at_once() {
    let fixtures = Fixtures::new();
    let plan = "images path=$IMAGES | repeat count=200 | decode | resize size=[4,4] | batch size=8";
    let plan = open(plan, &fixtures).unwrap();
    let store: Arc<dyn Store> = Arc::new(SlowStore { delay: Duration::from_millis(10) });
    let options = Options { threads: 2, epochs: Some(1), ..Options::default() };
    let begin = |options: Options| {
        Run::start(Arc::clone(&plan), Arc::clone(&store), Position::default(), options).unwrap()
    };
    let mut run = begin(options.clone());
    while let Next::Batch(_) = run.next().unwrap() {}
    assert!(run.stats().tuned.reads > 8, "{:?}", run.stats().tuned);
    // What was given stays.
    let mut run = begin(Options { reads: 3, ahead: 5, ..options });
    for _ in 0..20 {
        run.next().unwrap();
    }
    let tuned = run.stats().tuned;
    assert_eq!((tuned.reads, tuned.ahead), (3, 5));
}

#[test]
fn a_bad_sample_is_said_soon_also_where_batches_take_what_is_ready() {
    let fixtures = Fixtures::new();
    let plan = "images path=$BAD | repeat count=50 | decode | resize size=[2,2] | batch size=2";
    let plan = open(plan, &fixtures).unwrap();
    let mut run = start(&plan, ready(3, 2));
    let mut batches = 0;
    let error = loop {
        match run.next_within(PATIENCE) {
            Ok(Some(Next::Batch(_))) => batches += 1,
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        }
    };
    assert!(batches <= 6, "after {batches} batches: {error}");
    assert!(run.position().taken.len() <= 4096);
}

#[test]
fn a_recording_goes_on_where_a_run_was_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let plan = pipeline("range count=60 | shuffle | sleep ms=0.1 | batch size=4");
    for delivery in [Delivery::Ready { max_slip: 4 }, Delivery::Exact] {
        let file = folder.path().join(format!("{delivery:?}.jsonl"));
        let options =
            || Options { delivery: delivery.clone(), record: Some(file.clone()), ..ready(4, 3) };
        let mut run = start(&plan, options());
        let mut wanted: Vec<_> = (0..6).filter_map(|_| indices(&mut run)).collect();
        let position = run.position();
        // It went on after it was saved, and was cut off while it wrote.
        wanted.truncate(6);
        indices(&mut run);
        indices(&mut run);
        drop(run);
        let mut bytes = std::fs::read(&file).unwrap();
        bytes.truncate(bytes.len() - 5);
        std::fs::write(&file, bytes).unwrap();
        let store = Arc::new(LocalStore);
        let mut run = Run::start(Arc::clone(&plan), store, position, options()).unwrap();
        wanted.extend(epoch(&mut run));
        drop(run);
        let recording = Arc::new(Recording::read(&file).unwrap());
        let replay = Options { delivery: Delivery::Replay(recording), ..ready(1, 2) };
        assert_eq!(epoch(&mut start(&plan, replay)), wanted);
    }
}

#[test]
fn a_replay_accounts_for_what_was_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let fixtures = Fixtures::new();
    let plan = "images path=$BAD | on_error policy=skip | repeat count=40 | shuffle | decode | \
                resize size=[2,2] | batch size=4";
    let plan = open(plan, &fixtures).unwrap();
    for delivery in [Delivery::Ready { max_slip: 4 }, Delivery::Exact] {
        let file = folder.path().join(format!("{delivery:?}.jsonl"));
        let options = Options { delivery, record: Some(file.clone()), ..ready(4, 3) };
        let mut run = start(&plan, options);
        let (mut wanted, mut positions) = (Vec::new(), Vec::new());
        while let Some(batch) = indices(&mut run) {
            wanted.push(batch);
            positions.push(run.position());
        }
        assert!(positions.last().unwrap().skipped > 10);
        let recording = Arc::new(Recording::read(&file).unwrap());
        let replay = Options { delivery: Delivery::Replay(recording), ..ready(1, 2) };
        let mut run = start(&plan, replay.clone());
        for (batch, position) in wanted.iter().zip(&positions) {
            assert_eq!(indices(&mut run).as_ref(), Some(batch));
            let found = run.position();
            assert_eq!((found.at, &found.taken), (position.at, &position.taken));
            assert_eq!(found.skipped, position.skipped);
        }
        // It can be left off and gone on with as well.
        let store = Arc::new(LocalStore);
        let mut run = start(&plan, replay.clone());
        let mut found: Vec<_> = (0..7).filter_map(|_| indices(&mut run)).collect();
        let rest = Run::start(Arc::clone(&plan), store, run.position(), replay);
        found.extend(epoch(&mut rest.unwrap()));
        assert_eq!(found, wanted);
    }
}

#[test]
fn a_rank_that_came_to_its_end_first_is_merged_with_the_others() {
    // Rank 0 has two batches, rank 1 has one.
    let plan = pipeline("range count=10 | batch size=4");
    let state = |rank, batches| {
        let exact = Options { delivery: Delivery::Exact, rank, world: 2, ..ready(1, 1) };
        let mut run = start(&plan, exact);
        (0..batches).for_each(|_| drop(indices(&mut run)));
        State::new(&plan, run.position(), Seed(0), rank, 2)
    };
    let rest = |states: &[State]| {
        let merged = merge_states(states).unwrap();
        assert_eq!(merged.epoch(), 0);
        let position = merged.position_for(&plan, Seed(0), 0, 1).unwrap();
        let exact = Options { delivery: Delivery::Exact, ..ready(1, 1) };
        let run = Run::start(Arc::clone(&plan), Arc::new(LocalStore), position, exact);
        epoch(&mut run.unwrap()).concat()
    };
    assert_eq!(rest(&[state(0, 1), state(1, 2)]), [8, 9]);
    assert!(rest(&[state(0, 2), state(1, 2)]).is_empty());
    assert_eq!(merge_states(&[state(0, 3), state(1, 2)]).unwrap().epoch(), 1);
    for behind in [[state(0, 0), state(1, 1)], [state(0, 0), state(1, 2)]] {
        let error = merge_states(&behind).unwrap_err().to_string();
        assert!(error.contains("after the same step"), "{error}");
    }
}

#[test]
fn readers_that_a_store_holds_back_are_not_counted_on() {
    let fixtures = Fixtures::new();
    let plan =
        open("images path=$IMAGES | decode | resize size=[4,4] | batch size=2", &fixtures).unwrap();
    let team = Team::new(2).unwrap();
    let stuck = Arc::new(Stuck::default());
    let begin = |store: Arc<dyn Store>| {
        Run::start_in(&team, Arc::clone(&plan), store, Position::default(), ready(2, 2)).unwrap()
    };
    let mut run = begin(Arc::clone(&stuck) as Arc<dyn Store>);
    while !stuck.asked.load(Ordering::Relaxed) {
        assert!(run.next_within(Duration::from_millis(20)).unwrap().is_none());
    }
    drop(run);
    // Its readers are still out; another run gets readers of its own.
    let mut run = begin(Arc::new(SlowStore { delay: Duration::from_millis(1) }));
    assert!(!epoch(&mut run).is_empty());
    *stuck.free.lock().unwrap() = true;
    stuck.freed.notify_all();
}

#[test]
fn epochs_without_rows_end_in_ready_order_too() {
    for (plan, rank, world) in [
        ("range count=5 | batch size=8 drop_last=true", 0, 1),
        ("range count=5 | batch size=8", 1, 2),
        ("range count=0 | batch size=8", 0, 1),
        ("range count=9 | take count=0 | batch size=8", 0, 1),
        ("range count=20 | batch size=8 drop_last=true", 2, 3),
        ("range count=16 | batch size=8 pad=true", 2, 3),
    ] {
        let batches = |delivery| {
            let options = Options { delivery, rank, world, epochs: None, ..ready(2, 2) };
            let mut run = start(&pipeline(plan), options);
            let mut found = Vec::new();
            for _ in 0..3 {
                let mut rows = Vec::new();
                while let Next::Batch(batch) = run.next_within(PATIENCE).unwrap().unwrap() {
                    rows.push(batch.rows);
                }
                found.push(rows);
            }
            found
        };
        let ready = batches(Delivery::Ready { max_slip: 2 });
        assert_eq!(ready, batches(Delivery::Exact), "{plan}, rank {rank} of {world}");
    }
}

#[test]
fn recordings_are_kept_apart_and_say_when_they_are_cut_short() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("record.jsonl");
    let plan = pipeline("range count=40 | batch size=4");
    let record = || Options { record: Some(file.clone()), ..ready(2, 2) };
    let begin = |position: Position, options: Options| {
        Run::start(Arc::clone(&plan), Arc::new(LocalStore), position, options)
    };
    let mut run = begin(Position::default(), record()).unwrap();
    let mut wanted: Vec<_> = (0..3).filter_map(|_| indices(&mut run)).collect();
    let position = run.position();
    drop(run);
    let replay = || {
        let recording = Arc::new(Recording::read(&file).unwrap());
        let options = Options { delivery: Delivery::Replay(recording), ..ready(1, 1) };
        let mut run = begin(Position::default(), options).unwrap();
        let mut found = Vec::new();
        loop {
            match run.next_within(PATIENCE) {
                Ok(Some(Next::Batch(batch))) => found.push(batch.indices.unwrap()),
                Ok(_) => return (found, String::new()),
                Err(error) => return (found, error.to_string()),
            }
        }
    };
    let (found, error) = replay();
    assert_eq!(found, wanted);
    assert!(error.contains("broken off"), "{error}");
    // Another run does not write over it, the same one goes on.
    let error = begin(Position::default(), record()).err().unwrap().to_string();
    assert!(error.contains("a file of its own"), "{error}");
    wanted.extend(epoch(&mut begin(position, record()).unwrap()));
    assert_eq!(replay(), (wanted, String::new()));
    let odd = Options { record: Some("/dev/null".into()), ..ready(2, 2) };
    let error = begin(Position::default(), odd).err().unwrap().to_string();
    assert!(error.contains("no regular file"), "{error}");
}

#[test]
fn padding_beyond_the_end_survives_a_merge() {
    let plan = pipeline("range count=10 | batch size=3 pad=true");
    let state = |rank, batches| {
        let exact = Options { delivery: Delivery::Exact, rank, world: 2, ..ready(1, 1) };
        let mut run = start(&plan, exact);
        (0..batches).for_each(|_| drop(indices(&mut run)));
        State::new(&plan, run.position(), Seed(0), rank, 2)
    };
    let merged = merge_states(&[state(0, 2), state(1, 2)]).unwrap();
    for one in [merged, state(0, 2)] {
        let position = one.position_for(&plan, Seed(0), 0, 1).unwrap();
        let saved = State::new(&plan, position, Seed(0), 0, 1).to_json();
        assert!(State::from_json(&saved).is_ok(), "{saved}");
    }
}

#[test]
fn damaged_states_are_refused_at_once() {
    let plan = pipeline("range count=60 | batch size=4");
    let good = State::new(&plan, Position::default(), Seed(0), 0, 2).to_json();
    for damage in [
        "\"at\":[1000000000000000,0],\"tail\":0",
        "\"at\":[1,0],\"tail\":0",
        "\"at\":[0,9],\"tail\":0",
        "\"batches\":18446744073709551615,\"tail\":0",
        "\"left_over\":[0,1000000000000000000],\"batches\":1,\"tail\":0",
        "\"tail\":1000000000000000000",
    ] {
        let text = good.replace("\"tail\":0", damage);
        assert_ne!(text, good);
        let error = State::from_json(&text).unwrap_err().to_string();
        assert!(error.contains("outside the epoch"), "{damage}: {error}");
    }
}

/// Files whose bytes never come, until somebody lets them.
#[derive(Default)]
struct Stuck {
    free: Mutex<bool>,
    freed: Condvar,
    asked: AtomicBool,
}

impl Store for Stuck {
    fn list(&self, root: &Path) -> feedline_core::Result<Vec<Entry>> {
        LocalStore.list(root)
    }

    fn stat(&self, path: &Path) -> feedline_core::Result<Entry> {
        LocalStore.stat(path)
    }

    fn read(&self, extent: Extent<'_>, out: &mut [u8]) -> feedline_core::Result<()> {
        self.asked.store(true, Ordering::Relaxed);
        let mut free = self.free.lock().unwrap();
        while !*free {
            free = self.freed.wait(free).unwrap();
        }
        LocalStore.read(extent, out)
    }

    fn try_read(&self, _: Extent<'_>, _: &mut [u8]) -> feedline_core::Result<Attempt> {
        Ok(Attempt::WouldWait)
    }
}

#[test]
fn storage_that_never_answers_does_not_hang_the_end_of_a_run() {
    let fixtures = Fixtures::new();
    let plan = open("images path=$IMAGES | decode | resize size=[4,4] | batch size=2", &fixtures);
    let store = Arc::new(Stuck::default());
    let mut run = Run::start(
        plan.unwrap(),
        Arc::clone(&store) as Arc<dyn Store>,
        Position::default(),
        ready(2, 2),
    )
    .unwrap();
    while !store.asked.load(Ordering::Relaxed) {
        assert!(run.next_within(Duration::from_millis(20)).unwrap().is_none());
    }
    let start = Instant::now();
    drop(run);
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    // What was left behind ends as soon as it can.
    *store.free.lock().unwrap() = true;
    store.freed.notify_all();
    let start = Instant::now();
    while Arc::strong_count(&store) > 1 {
        assert!(start.elapsed() < Duration::from_secs(10), "a thread is left");
        std::thread::yield_now();
    }
}
