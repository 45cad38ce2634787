//! The one place where errors become exceptions.

use feedline_core::Error;
use pyo3::create_exception;
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

create_exception!(feedline, PipelineError, PyValueError, "The pipeline is described wrongly.");
create_exception!(feedline, SourceError, PyOSError, "The data is missing or is not what it was.");
create_exception!(feedline, RecordError, PyRuntimeError, "One sample cannot be used.");
create_exception!(feedline, UnavailableError, PyOSError, "Storage did not answer; try again.");
create_exception!(feedline, ServiceError, PyRuntimeError, "The service cannot go on by itself.");
create_exception!(feedline, StateError, PyValueError, "A saved state does not fit this loader.");

/// The exception for an error.
pub(crate) fn raise(error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Pipeline(_) => PipelineError::new_err(text),
        Error::Source(_) => SourceError::new_err(text),
        Error::Record { origin, index, step, reason } => Python::attach(|py| {
            let raised = RecordError::new_err(text);
            // Where it happened, for programs; people read the message.
            let value = raised.value(py);
            let _ = value.setattr("origin", origin);
            let _ = value.setattr("index", index);
            let _ = value.setattr("step", step);
            let _ = value.setattr("reason", reason);
            raised
        }),
        Error::Unavailable { .. } => UnavailableError::new_err(text),
        Error::State(_) => StateError::new_err(text),
        Error::Service(_) => ServiceError::new_err(text),
        Error::Budget(_) => RecordError::new_err(text),
        _ => PyRuntimeError::new_err(text),
    }
}

/// Adds the exceptions to the module.
pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("PipelineError", py.get_type::<PipelineError>())?;
    module.add("SourceError", py.get_type::<SourceError>())?;
    module.add("RecordError", py.get_type::<RecordError>())?;
    module.add("UnavailableError", py.get_type::<UnavailableError>())?;
    module.add("ServiceError", py.get_type::<ServiceError>())?;
    module.add("StateError", py.get_type::<StateError>())
}
