//! A run that is dropped leaves no thread behind. One test, so that no other one's threads count.

#![expect(clippy::unwrap_used, reason = "in a test, unwrap says that the test ends otherwise")]

use feedline_core::{Position, Store};
use feedline_engine::{Options, Run};
use feedline_testkit::{Fixtures, SlowStore, open};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Threads of this process that a run started.
fn ours() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .filter(|name| name.starts_with("feedline-"))
        .count()
}

#[test]
fn dropped_runs_leave_no_thread() {
    let fixtures = Fixtures::new();
    let plan = "images path=$IMAGES | repeat | decode | resize size=[8,8] | batch size=4";
    let pipeline = open(plan, &fixtures).unwrap();
    for delay in [0, 5] {
        let store: Arc<dyn Store> = Arc::new(SlowStore { delay: Duration::from_millis(delay) });
        let options = Options { threads: 4, reads: 8, ..Options::default() };
        let mut run =
            Run::start(Arc::clone(&pipeline), store, Position::default(), options).unwrap();
        for _ in 0..5 {
            run.next().unwrap();
        }
        assert!(ours() > 4, "{} threads", ours());
        drop(run);
        // Readers are awaited, not joined: the kernel may take a moment to remove them.
        let start = Instant::now();
        while ours() > 0 {
            assert!(start.elapsed() < Duration::from_secs(2), "{} threads are left", ours());
            std::thread::yield_now();
        }
    }
}
