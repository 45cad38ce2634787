//! A running pipeline for Python.

use crate::error::raise;
use crate::pipeline::{Pipeline, options};
use crate::process::Home;
use crate::team::Team;
use crate::tensor::{Names, export_batch};
use feedline_cache::Allowed;
use feedline_core::{Position, Result, Seed};
use feedline_engine::{Next, Run as Local, State, Watch};
use feedline_remote::Remote;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::Duration;

/// How long to wait for a batch before looking whether the user pressed Ctrl-C.
pub(crate) const PATIENCE: Duration = Duration::from_millis(50);

/// A running pipeline. Its threads live in the process that started it: after a fork it can only
/// say where it stood.
#[pyclass(frozen, module = "feedline._core")]
pub(crate) struct Run {
    run: ManuallyDrop<Mutex<Running>>,
    /// Tells what a local run does while a thread takes its batches.
    watch: Option<Watch>,
    opened: Arc<feedline_ops::Pipeline>,
    /// Where the run stood before the last call of `next`, if that is a position.
    before: Mutex<Option<Position>>,
    /// Whether someone has closed it.
    closed: AtomicBool,
    home: Home,
    names: Names,
}

/// Where the samples are prepared.
enum Running {
    Here(Box<Local>),
    Remote(Box<Remote>),
}

impl Running {
    fn next_within(&mut self, patience: Duration) -> Result<Option<Next>> {
        match self {
            Self::Here(run) => run.next_within(patience),
            Self::Remote(run) => run.next_within(patience),
        }
    }

    fn position(&self) -> Option<Position> {
        match self {
            Self::Here(run) => Some(run.position()),
            Self::Remote(run) => run.position(),
        }
    }

    /// The state at a position, or where it stands.
    fn state(&self, opened: &feedline_ops::Pipeline, at: Option<Position>) -> Result<String> {
        let options = match self {
            Self::Here(run) => run.options(),
            Self::Remote(run) => run.options(),
        };
        let (seed, rank, world) = (options.seed, options.rank, options.world);
        match (at.or_else(|| self.position()), self) {
            (Some(position), _) => {
                Ok(State::new(opened, position, Seed(seed.0), rank, world).to_json())
            }
            (None, Self::Remote(run)) => run.state(),
            (None, Self::Here(run)) => {
                Ok(State::new(opened, run.position(), Seed(seed.0), rank, world).to_json())
            }
        }
    }
}

impl Run {
    fn made(run: Running, watch: Option<Watch>, opened: Arc<feedline_ops::Pipeline>) -> Self {
        let before = Mutex::new(run.position());
        let (run, closed) = (ManuallyDrop::new(Mutex::new(run)), AtomicBool::new(false));
        Self { run, watch, opened, before, closed, home: Home::new(), names: Names::default() }
    }
}

#[pymethods]
impl Run {
    /// Starts on a service, at a state or at the beginning of an epoch.
    #[staticmethod]
    fn remote(
        py: Python<'_>,
        pipeline: &Pipeline,
        state: Option<&str>,
        epoch: u64,
        given: &Bound<'_, PyDict>,
        job: &Bound<'_, PyDict>,
    ) -> PyResult<Self> {
        let options = options(given)?;
        let (control, job) = crate::service::job(job)?;
        let opened = Arc::clone(&pipeline.opened);
        let start = || {
            let opened = Arc::clone(&pipeline.opened);
            let data = (&*pipeline.store, &pipeline.blobs);
            Remote::start(control, opened, data, state, epoch, job, options)
        };
        let run = py.detach(start).map_err(raise)?;
        Ok(Self::made(Running::Remote(Box::new(run)), None, opened))
    }

    /// Starts at a state, or at the beginning of an epoch.
    #[new]
    fn new(
        py: Python<'_>,
        pipeline: &Pipeline,
        state: Option<&str>,
        epoch: u64,
        given: &Bound<'_, PyDict>,
        team: Option<&Team>,
    ) -> PyResult<Self> {
        let options = options(given)?;
        let opened = Arc::clone(&pipeline.opened);
        let position = match state {
            None => Position::epoch(epoch),
            Some(text) => State::from_json(text)
                .and_then(|state| {
                    state.position_for(&opened, options.seed, options.rank, options.world)
                })
                .map_err(raise)?,
        };
        let store = Arc::clone(&pipeline.store);
        let memory = feedline_engine::machine_memory();
        let attach = || feedline_cache::attach(&opened, &store, memory, &Allowed::default());
        py.detach(attach).map_err(raise)?;
        let run = match team {
            None => Local::start(Arc::clone(&opened), store, position, options),
            Some(team) => {
                Local::start_in(&team.threads, Arc::clone(&opened), store, position, options)
            }
        };
        let run = run.map_err(raise)?;
        let watch = run.watch();
        Ok(Self::made(Running::Here(Box::new(run)), Some(watch), opened))
    }

    /// Whether this process started the run.
    fn is_here(&self) -> bool {
        self.home.is_here()
    }

    /// The next batch as a dict; None at the end of an epoch.
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        if !self.is_here() {
            return Err(PyRuntimeError::new_err("this run belongs to the process before the fork"));
        }
        loop {
            if self.closed.load(Ordering::Relaxed) {
                return Err(PyRuntimeError::new_err("the loader was closed by another thread"));
            }
            let next = py.detach(|| {
                let mut run = self.run.lock().unwrap_or_else(PoisonError::into_inner);
                *self.before.lock().unwrap_or_else(PoisonError::into_inner) = run.position();
                run.next_within(PATIENCE)
            });
            match next.map_err(raise)? {
                Some(Next::Batch(batch)) => {
                    let single = self.opened.batch.is_none();
                    return export_batch(py, batch, single, &self.names).map(Some);
                }
                Some(Next::EpochEnd(_) | Next::End) => return Ok(None),
                None => py.check_signals()?,
            }
        }
    }

    /// Lets whoever waits for a batch go, and says where the run stands.
    fn close(&self, py: Python<'_>) -> PyResult<String> {
        self.closed.store(true, Ordering::Relaxed);
        if self.is_here() {
            // Whoever holds it looks up at least as often as patience says.
            py.detach(|| drop(self.run.lock().unwrap_or_else(PoisonError::into_inner)));
        }
        self.state(false)
    }

    /// Where the run stands, or stood before the last call of `next`, as JSON. Works after a fork
    /// as well.
    fn state(&self, before: bool) -> PyResult<String> {
        let run = match self.run.try_lock() {
            Ok(run) => run,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) if self.is_here() => {
                return Err(PyRuntimeError::new_err(
                    "another thread is taking a batch; ask for the state between batches",
                ));
            }
            Err(TryLockError::WouldBlock) => {
                return Err(PyRuntimeError::new_err(
                    "the process forked while a batch was being taken; make a new loader here",
                ));
            }
        };
        let at = match before {
            true => self.before.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            false => None,
        };
        run.state(&self.opened, at).map_err(raise)
    }

    /// What the run did so far, as JSON.
    fn stats(&self, py: Python<'_>) -> PyResult<String> {
        let stats = py.detach(|| match &self.watch {
            Some(watch) => serde_json::to_string(&watch.stats()),
            None => match &*self.run.lock().unwrap_or_else(PoisonError::into_inner) {
                Running::Remote(run) => serde_json::to_string(&run.stats()),
                Running::Here(run) => serde_json::to_string(&run.stats()),
            },
        });
        stats.map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.is_here() {
            // SAFETY: taken out once, here.
            let run = unsafe { ManuallyDrop::take(&mut self.run) };
            // Ending its threads may take a moment, in which other threads of Python get on.
            Python::attach(|py| py.detach(|| drop(run)));
        }
        // After a fork its threads are gone and its locks may be held for ever: leave it be.
    }
}
