//! A running pipeline for Python.

use crate::error::raise;
use crate::pipeline::{Pipeline, options};
use crate::team::Team;
use crate::tensor::export_batch;
use feedline_core::{Position, Seed};
use feedline_engine::{Next, Run as Running, State, Watch};
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
    watch: Watch,
    opened: Arc<feedline_ops::Pipeline>,
    /// Where the run stood before the last call of `next`.
    before: Mutex<Position>,
    /// Whether someone has closed it.
    closed: AtomicBool,
    process: u32,
}

#[pymethods]
impl Run {
    /// Starts at a state, or at the beginning of an epoch.
    #[new]
    fn new(
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
        let before = Mutex::new(position.clone());
        let run = match team {
            None => Running::start(Arc::clone(&opened), store, position, options),
            Some(team) => {
                Running::start_in(&team.threads, Arc::clone(&opened), store, position, options)
            }
        };
        let run = run.map_err(raise)?;
        let process = std::process::id();
        let watch = run.watch();
        let (run, closed) = (ManuallyDrop::new(Mutex::new(run)), AtomicBool::new(false));
        Ok(Self { run, watch, opened, before, closed, process })
    }

    /// Whether this process started the run.
    fn is_here(&self) -> bool {
        self.process == std::process::id()
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
                    return export_batch(py, batch, self.opened.batch.is_none()).map(Some);
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
        let options = run.options();
        let (seed, rank, world) = (options.seed, options.rank, options.world);
        let position = match before {
            true => self.before.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            false => run.position(),
        };
        Ok(State::new(&self.opened, position, Seed(seed.0), rank, world).to_json())
    }

    /// What the run did so far, as JSON.
    fn stats(&self, py: Python<'_>) -> PyResult<String> {
        let stats = py.detach(|| serde_json::to_string(&self.watch.stats()));
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
