//! A service for Python: how a job is described, and a dispatcher of its own.

use crate::error::raise;
use crate::process::Home;
use feedline_core::Error;
use feedline_dispatcher::{Dispatcher as Running, Options as ServerOptions};
use feedline_remote::Job;
use feedline_rpc::{Remote, RemoteOptions};
use feedline_wire::control::{Control, Failure};
use feedline_wire::tls::ClientTls;
use feedline_wire::token::TokenFile;
use feedline_wire::{Order, Parting, Streams, Visitation};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

fn failed(failure: Failure) -> PyErr {
    match failure {
        Failure::Invalid(reason) => PyValueError::new_err(reason),
        Failure::Unavailable(reason) => {
            let reason = io::Error::new(io::ErrorKind::NotConnected, reason);
            raise(Error::unavailable("the dispatcher", reason))
        }
        other => raise(Error::Service(other.to_string())),
    }
}

/// A job and its dispatcher, by name of argument.
pub(crate) fn job(given: &Bound<'_, PyDict>) -> PyResult<(Arc<dyn Control>, Job)> {
    let mut job = Job::new("");
    let mut reached = RemoteOptions::new("");
    let (mut authority, mut identity, mut name) = (None, None, None);
    for (option, value) in given {
        match option.extract::<String>()?.as_str() {
            "url" => reached.address = value.extract()?,
            "token" => reached.token = value.extract()?,
            "ca" => authority = value.extract::<Option<PathBuf>>()?,
            "certificate" => identity = value.extract::<Option<(PathBuf, PathBuf)>>()?,
            "server_name" => name = value.extract::<Option<String>>()?,
            "name" => job.name = value.extract()?,
            "order" => {
                job.order = match value.extract::<String>()?.as_str() {
                    "exact" => Order::Exact,
                    "any" => Order::Any,
                    other => {
                        let wrong = format!("order={other:?} is neither \"exact\" nor \"any\"");
                        return Err(PyValueError::new_err(wrong));
                    }
                }
            }
            "visitation" => {
                let streams = |by| Some(Streams { by, count: 0 });
                let text: String = value.extract()?;
                job.relaxed = text == "relaxed";
                (job.visitation, job.streams) = match text.as_str() {
                    "exactly-once" | "relaxed" => (Visitation::ExactlyOnce, None),
                    "at-most-once" => (Visitation::AtMostOnce, None),
                    "per-worker" => (Visitation::ExactlyOnce, streams(Parting::Copies)),
                    "by-index" => (Visitation::ExactlyOnce, streams(Parting::Samples)),
                    "by-file" => (Visitation::ExactlyOnce, streams(Parting::Files)),
                    other => {
                        let wrong = format!(
                            "visitation={other:?} is none of \"exactly-once\", \"at-most-once\", \
                             \"relaxed\", \"per-worker\", \"by-index\", \"by-file\""
                        );
                        return Err(PyValueError::new_err(wrong));
                    }
                }
            }
            "streams" => {
                let given: u64 = value.extract()?;
                let Some(streams) = job.streams.as_mut().filter(|_| (1..=65_536).contains(&given))
                else {
                    let wrong = "streams goes with visitation \"per-worker\", \"by-index\" or \
                                 \"by-file\", from 1 to 65536";
                    return Err(PyValueError::new_err(wrong));
                };
                streams.count = given;
            }
            "local_from" => job.local_from = value.extract()?,
            "window" => job.window = value.extract()?,
            "memory" => {
                let text: String = value.str()?.extract()?;
                job.memory = feedline_ops::order::parse_bytes(&text)
                    .map_err(|reason| PyValueError::new_err(format!("memory: {reason}")))?
                    as usize;
            }
            "timeout" => {
                let seconds: f64 = value.extract()?;
                job.patience = Duration::try_from_secs_f64(seconds)
                    .ok()
                    .filter(|time| !time.is_zero())
                    .ok_or_else(|| {
                        PyValueError::new_err(format!("timeout={seconds}; give seconds above 0"))
                    })?;
            }
            "shared_memory" => {
                if !value.extract::<bool>()? {
                    job.stream.shared_memory = 0;
                }
            }
            other => return Err(PyValueError::new_err(format!("there is no option {other}"))),
        }
    }
    if reached.address.is_empty() {
        return Err(PyValueError::new_err("the address of a dispatcher is missing"));
    }
    if authority.is_none() && (identity.is_some() || name.is_some()) {
        return Err(PyValueError::new_err("certificate and server_name are of use with ca alone"));
    }
    reached.tls = authority.map(|authority| ClientTls { authority, identity, name });
    let token = reached.token.as_deref().map(TokenFile::open).transpose();
    job.stream.token = token.map_err(PyValueError::new_err)?;
    let trust = reached.tls.as_ref().map(|tls| tls.trust(&[])).transpose();
    job.stream.tls = trust.map_err(PyValueError::new_err)?;
    let control = Remote::with(&reached).map_err(failed)?;
    Ok((Arc::new(control), job))
}

/// How the service of a dispatcher stands, as JSON.
#[pyfunction]
pub(crate) fn service_status(py: Python<'_>, url: &str) -> PyResult<String> {
    let status = py.detach(|| Remote::new(url).and_then(|remote| remote.status()));
    let text = serde_json::to_string(&status.map_err(failed)?);
    text.map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

/// A dispatcher in this process.
#[pyclass(frozen, module = "feedline._core")]
pub(crate) struct Dispatcher {
    running: Mutex<Option<Running>>,
    address: String,
    home: Home,
}

#[pymethods]
impl Dispatcher {
    /// Starts it at an address, with its journal in a folder.
    #[new]
    fn new(py: Python<'_>, address: &str, journal: PathBuf) -> PyResult<Self> {
        let mut options = ServerOptions::new(journal);
        address.clone_into(&mut options.address);
        let started = py.detach(|| Running::start(options));
        let running = started.map_err(|error| raise(Error::Service(error.to_string())))?;
        let address = running.address().to_string();
        Ok(Self { running: Mutex::new(Some(running)), address, home: Home::new() })
    }

    /// Where it can be reached.
    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    /// Ends it.
    fn stop(&self, py: Python<'_>) {
        if self.home.is_here() {
            let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
            py.detach(|| drop(running));
        }
    }
}

impl Drop for Dispatcher {
    fn drop(&mut self) {
        let running = self.running.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if self.home.is_here() {
            Python::attach(|py| py.detach(|| drop(running)));
        } else {
            // After a fork its threads are gone: there is nothing to end.
            std::mem::forget(running);
        }
    }
}
