//! Hosts for functions, for Python: one pool of processes for all pipelines of this process.

use crate::blob::Blob;
use crate::error::raise;
use crate::pipeline::{Pipeline, patiently};
use feedline_core::{
    Address, Cancel, EpochSeed, Error, Function, Host, Made, Makes, Pool, Result, Sample,
    SampleSeed, Seed,
};
use feedline_engine::host::{Environment, HostCommand, Hosts};
use feedline_ops::function::common_output;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::ffi::OsString;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The words of a command, and variables for its environment.
pub(crate) type Words = (Vec<OsString>, Vec<(OsString, OsString)>);

/// The pool in use, and the command that it is of.
static POOL: Mutex<Option<(HostCommand, Arc<Hosts>)>> = Mutex::new(None);

/// Samples that are tried to learn what a function gives.
const TRIED: u64 = 3;
/// Where those are left out or bad, so many others are looked at.
const LOOKED_AT: u64 = 64;

/// The pool of processes of a command.
pub(crate) fn host((words, variables): Words) -> Arc<dyn Host> {
    let mut command = HostCommand::new(words);
    command.environment = Environment::Whole;
    command.variables = variables;
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    match &*pool {
        Some((known, hosts)) if *known == command => Arc::clone(hosts) as _,
        _ => {
            let hosts = Arc::new(Hosts::new(command.clone()));
            *pool = Some((command, Arc::clone(&hosts)));
            hosts
        }
    }
}

impl Pipeline {
    /// What a function gives, tried on a few of the samples that this pipeline gives, as the JSON of
    /// `map`'s argument `output`.
    pub(crate) fn learnt(
        &self,
        py: Python<'_>,
        name: &str,
        code: &Blob,
        (random, seconds): (bool, f64),
        command: Words,
    ) -> PyResult<String> {
        let timeout = Duration::try_from_secs_f64(seconds);
        let timeout = timeout
            .map_err(|_| raise(Error::pipeline(format!("map: timeout={seconds}; give seconds"))))?;
        let function = Function {
            name: name.into(),
            code: code.hash.as_str().into(),
            bytes: code.tensor.clone(),
            makes: Makes::Sample,
            random,
            timeout,
        };
        let host = host(command);
        let found = patiently(py, |cancel| self.tried(&*host, &function, cancel))?;
        let outputs = common_output(&self.opened.sample, &found).map_err(raise)?;
        serde_json::to_string(&outputs).map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }

    fn tried(
        &self,
        host: &dyn Host,
        function: &Function,
        cancel: &Cancel,
    ) -> Result<Vec<Vec<(feedline_core::Name, feedline_core::Tensor)>>> {
        let opened = &self.opened;
        if opened.batch.is_some() {
            return Err(Error::pipeline("map: works on samples; put it before batch"));
        }
        let length = opened.source.length();
        let mut order: Vec<u64> = vec![0, length / 2, length.saturating_sub(1)];
        order.extend(0..LOOKED_AT);
        let mut seen = std::collections::HashSet::new();
        order.retain(|index| *index < length && seen.insert(*index));
        let mut workspace = opened.workspace(Pool::new(0), false);
        workspace.cancel = cancel.clone();
        let mut found = Vec::new();
        for (at, index) in order.into_iter().enumerate() {
            if found.len() as u64 == TRIED || at as u64 >= TRIED && !found.is_empty() {
                break;
            }
            let address = Address { index, visit: 0 };
            let epoch = EpochSeed { seed: Seed(0), epoch: 0 };
            let seed = SampleSeed { epoch, source: 0, index, visit: 0, output: 0 };
            let tried =
                opened.sample(address, seed, &*self.store, &mut workspace).and_then(|row| {
                    let mut context = opened.finish(seed, &mut workspace);
                    host.call(function, Sample::of(row), &mut context)
                        .map_err(|error| opened.at(error, index, "map"))
                });
            match tried {
                Ok(Made::Sample(fields)) => found.push(fields),
                Ok(Made::Decision(_)) => {
                    return Err(Error::Internal("a decision where a sample was due".into()));
                }
                Err(error) if opened.leaves_out() && error.is_of_one_sample() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }
}
