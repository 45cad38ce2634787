//! `feedline._core`: the engine for Python, private to the package `feedline`.
//!
//! Pipelines cross as text, batches as buffers, and the interpreter's lock is released while Rust
//! works. Everything that is pleasant to use is Python code in `feedline/`.

mod blob;
mod error;
mod functions;
mod pipeline;
mod process;
mod run;
mod service;
mod team;
mod tensor;

use pyo3::prelude::*;
use std::process::ExitCode;

/// Checks a plan in JSON: its canonical JSON, its text form, its fingerprint, and what it delivers.
#[pyfunction]
fn check(py: Python<'_>, plan: &str) -> PyResult<(String, String, String, Vec<String>)> {
    let plan = feedline_plan::Plan::read(plan).map_err(error::raise)?;
    // Objects may take a while to be looked at.
    let checked = py.detach(|| {
        let store = feedline_store::machine_store()?;
        feedline_ops::Pipeline::check(&plan, Some(&*store))
    });
    let (plan, output) = checked.map_err(error::raise)?;
    let fields = output.fields.iter().map(ToString::to_string).collect();
    Ok((plan.to_json(), plan.to_string(), plan.fingerprint().to_string(), fields))
}

/// A number of bytes out of a text such as `512MB`.
#[pyfunction]
fn parse_bytes(text: &str) -> PyResult<u64> {
    let wrong = |reason| pyo3::exceptions::PyValueError::new_err(format!("memory: {reason}"));
    feedline_ops::order::parse_bytes(text).map_err(wrong)
}

/// Names of all steps.
#[pyfunction]
fn steps() -> Vec<&'static str> {
    use feedline_plan::Catalog;
    feedline_ops::Builtin.names()
}

/// One state out of those of all ranks.
#[pyfunction]
fn merge_states(states: Vec<String>) -> PyResult<String> {
    if states.first().is_some_and(|state| feedline_remote::is_dealt(state)) {
        return feedline_remote::merge_states(&states).map_err(error::raise);
    }
    let states: feedline_core::Result<Vec<_>> =
        states.iter().map(|text| feedline_engine::State::from_json(text)).collect();
    let merged = states.and_then(|states| feedline_engine::merge_states(&states));
    Ok(merged.map_err(error::raise)?.to_json())
}

/// The `feedline` command; returns its exit code.
#[pyfunction]
fn main(py: Python<'_>, args: Vec<std::ffi::OsString>) -> u8 {
    let code = py.detach(|| feedline_cli::main_with(args));
    (0..=2).find(|number| code == ExitCode::from(*number)).unwrap_or(1)
}

/// The engine for Python, private to the package `feedline`.
#[pymodule(gil_used = false)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<blob::Blob>()?;
    module.add_class::<pipeline::Pipeline>()?;
    module.add_class::<run::Run>()?;
    module.add_class::<service::Dispatcher>()?;
    module.add_class::<team::Team>()?;
    module.add_class::<tensor::Tensor>()?;
    module.add_function(wrap_pyfunction!(check, module)?)?;
    module.add_function(wrap_pyfunction!(steps, module)?)?;
    module.add_function(wrap_pyfunction!(parse_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(merge_states, module)?)?;
    module.add_function(wrap_pyfunction!(service::service_status, module)?)?;
    module.add_function(wrap_pyfunction!(main, module)?)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    error::add(module)
}
