//! Threads that several runs share, for Python.

use crate::error::raise;
use crate::process::Home;
use feedline_engine::Team as Threads;
use pyo3::prelude::*;
use std::mem::ManuallyDrop;

/// A team of threads. They live in the process that started them.
#[pyclass(frozen, module = "feedline._core")]
pub(crate) struct Team {
    pub(crate) threads: ManuallyDrop<Threads>,
    home: Home,
}

#[pymethods]
impl Team {
    /// Starts so many threads; 0 for one per core.
    #[new]
    fn new(threads: usize) -> PyResult<Self> {
        let threads = ManuallyDrop::new(Threads::new(threads).map_err(raise)?);
        Ok(Self { threads, home: Home::new() })
    }

    /// Whether this process started the threads.
    fn is_here(&self) -> bool {
        self.home.is_here()
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        if self.is_here() {
            // SAFETY: dropped once, here; the threads are ours to end.
            unsafe { ManuallyDrop::drop(&mut self.threads) };
        }
        // After a fork the threads are gone: there is nothing to end.
    }
}
