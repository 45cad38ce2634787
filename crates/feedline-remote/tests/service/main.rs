//! The service as a whole, in one process: a dispatcher, workers, and runs that use them.

#![expect(clippy::unwrap_used, reason = "in a test, unwrap says that the test ends otherwise")]

mod any;
mod exact;
mod jobs;
mod rough;
mod saving;
mod streams;
mod trust;

use feedline_core::{Batch, Error, Result, Seed, Store};
use feedline_dispatcher::Dispatcher;
use feedline_engine::{Next, Options};
use feedline_ops::Pipeline;
use feedline_remote::{Job, Remote};
use feedline_rpc::Remote as Control;
use feedline_testkit::{Fixtures, any_store};
use feedline_wire::Order;
use feedline_worker::Worker;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

feedline_testkit::serve_functions!();

/// Nothing takes so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// A dispatcher with workers.
struct Service {
    // Workers end before their dispatcher does.
    workers: Vec<Worker>,
    dispatcher: Dispatcher,
    _journal: tempfile::TempDir,
    jobs: AtomicU64,
    save_to: Vec<PathBuf>,
}

impl Service {
    fn new(workers: usize) -> Self {
        let journal = tempfile::tempdir().expect("a folder");
        let options = feedline_dispatcher::Options::new(journal.path());
        let dispatcher = Dispatcher::start(options).expect("a dispatcher");
        let mut service = Self {
            workers: Vec::new(),
            dispatcher,
            _journal: journal,
            jobs: AtomicU64::new(0),
            save_to: Vec::new(),
        };
        (0..workers).for_each(|_| service.add());
        service
    }

    /// Whose workers may write to a folder.
    fn saving(workers: usize, folder: &Path) -> Self {
        let mut service = Self::new(0);
        service.save_to = vec![folder.to_owned()];
        (0..workers).for_each(|_| service.add());
        service
    }

    fn control(&self) -> Arc<Control> {
        let address = self.dispatcher.address().to_string();
        Arc::new(Control::new(&address).expect("an address"))
    }

    fn add(&mut self) {
        let store: Arc<dyn Store> = any_store();
        let options = feedline_worker::Options {
            threads: 2,
            memory: 64 << 20,
            save_to: self.save_to.clone(),
            functions: Some(feedline_testkit::test_host_command()),
            ..Default::default()
        };
        self.workers.push(Worker::start(self.control(), store, options).expect("a worker"));
    }

    /// A name that no other job has.
    fn name(&self) -> String {
        format!("job {}", self.jobs.fetch_add(1, Ordering::SeqCst))
    }

    fn start(
        &self,
        pipeline: &Arc<Pipeline>,
        fixtures: &Fixtures,
        state: Option<&str>,
        job: Job,
        options: Options,
    ) -> Result<Remote> {
        let pipeline = Arc::clone(pipeline);
        Remote::start(
            self.control(),
            pipeline,
            (&*any_store(), &fixtures.blobs),
            state,
            0,
            job,
            options,
        )
    }
}

fn options(rank: u64, world: u64) -> Options {
    Options { seed: Seed(3), rank, world, with_index: true, epochs: None, ..Options::default() }
}

fn job(name: &str, order: Order) -> Job {
    Job { order, window: 2, patience: PATIENCE, ..Job::new(name) }
}

/// The next batch; `None` at the end of an epoch.
fn next(run: &mut Remote) -> Result<Option<Batch>> {
    match run.next_within(PATIENCE)? {
        Some(Next::Batch(batch)) => Ok(Some(batch)),
        Some(Next::EpochEnd(_) | Next::End) => Ok(None),
        None => Err(Error::Internal("it hangs".into())),
    }
}
