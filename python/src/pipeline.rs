//! An opened pipeline for Python.

use crate::blob::Blob;
use crate::error::raise;
use crate::functions::{self, Words};
use crate::run::PATIENCE;
use crate::tensor::{Names, export_batch};
use feedline_core::{
    Address, Batch, Blobs, Cancel, Error, Position, Result, SampleSeed, Seed, Store,
};
use feedline_engine::save::{SaveOptions, SaveProgress, Saved, ShardSize, Shards};
use feedline_engine::{Delivery, Options, Recording, Steps};
use feedline_ops::Pipeline as Opened;
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// A pipeline that is checked and opened.
#[pyclass(frozen, module = "feedline._core")]
pub(crate) struct Pipeline {
    pub(crate) opened: Arc<Opened>,
    pub(crate) store: Arc<dyn Store>,
    /// The large arguments of its steps.
    pub(crate) blobs: Blobs,
}

/// Options of a run, by name.
pub(crate) fn options(given: &Bound<'_, PyDict>) -> PyResult<Options> {
    let mut options = Options::default();
    for (name, value) in given {
        match name.extract::<String>()?.as_str() {
            "threads" => options.threads = value.extract()?,
            "memory" => {
                let text: String = value.str()?.extract()?;
                options.memory = feedline_ops::order::parse_bytes(&text)
                    .map_err(|reason| PyValueError::new_err(format!("memory: {reason}")))?
                    as usize;
            }
            "reads" => options.reads = value.extract()?,
            "tune" => options.tune = value.extract()?,
            "order" => {
                options.delivery = match value.extract::<String>()?.as_str() {
                    "exact" => Delivery::Exact,
                    "ready" => match options.delivery {
                        Delivery::Ready { .. } => options.delivery,
                        _ => Delivery::Ready { max_slip: 0 },
                    },
                    other => {
                        let wrong = format!("order={other:?} is neither \"exact\" nor \"ready\"");
                        return Err(PyValueError::new_err(wrong));
                    }
                }
            }
            "max_slip" => options.delivery = Delivery::Ready { max_slip: value.extract()? },
            "record" => options.record = Some(value.extract()?),
            "replay" => {
                let recording = Recording::read(&value.extract::<PathBuf>()?).map_err(raise)?;
                options.delivery = Delivery::Replay(Arc::new(recording));
            }
            "ahead" => options.ahead = value.extract()?,
            "seed" => options.seed = Seed(value.extract()?),
            "rank" => options.rank = value.extract()?,
            "world" => options.world = value.extract()?,
            "rounds" => options.rounds = value.extract()?,
            "epochs" => options.epochs = value.extract()?,
            "with_index" => options.with_index = value.extract()?,
            other => return Err(PyValueError::new_err(format!("there is no option {other}"))),
        }
    }
    Ok(options)
}

#[pymethods]
impl Pipeline {
    #[new]
    #[pyo3(signature = (plan, blobs, host = None))]
    fn new(
        py: Python<'_>,
        plan: &str,
        blobs: HashMap<String, Py<Blob>>,
        host: Option<Words>,
    ) -> PyResult<Self> {
        let plan = feedline_plan::Plan::read(plan).map_err(raise)?;
        let blobs: Blobs =
            blobs.into_iter().map(|(hash, blob)| (hash, blob.get().tensor.clone())).collect();
        let store: Arc<dyn Store> = feedline_store::machine_store().map_err(raise)?;
        let host = host.map(functions::host);
        let open = || Opened::open_with(&plan, &*store, &blobs, host);
        let opened = py.detach(open).map_err(raise)?;
        Ok(Self { opened: Arc::new(opened), store, blobs })
    }

    /// Samples in the source.
    #[getter]
    fn source_length(&self) -> u64 {
        self.opened.source.length()
    }

    /// Samples in an epoch; None if it never ends.
    #[getter]
    fn length(&self) -> Option<u64> {
        self.opened.length().finite()
    }

    #[getter]
    fn counted(&self) -> bool {
        self.opened.is_counted()
    }

    #[getter]
    fn classes(&self) -> Option<Vec<String>> {
        self.opened.source.classes().map(<[String]>::to_vec)
    }

    /// The names of what is delivered.
    #[getter]
    fn fields(&self) -> Vec<&'static str> {
        self.opened.output.fields.iter().map(|field| field.name.as_str()).collect()
    }

    /// Least and greatest number of steps in an epoch of this rank, perhaps in rounds; the latter
    /// None if it never ends.
    #[pyo3(signature = (rank, world, rounds = false))]
    fn steps(&self, rank: u64, world: u64, rounds: bool) -> PyResult<(u64, Option<u64>)> {
        if world == 0 || rank >= world {
            return Err(PyValueError::new_err(format!("rank {rank} of {world} ranks")));
        }
        let start = Position::default();
        let steps = match rounds {
            true => feedline_engine::rounds_left(&self.opened, &start, world),
            false => feedline_engine::steps_left(&self.opened, &start, rank, world),
        };
        Ok(match steps {
            Steps::Exactly(steps) => (steps, Some(steps)),
            Steps::Between(least, most) => (least, Some(most)),
            Steps::Endless => (u64::MAX, None),
        })
    }

    /// Complains about options that make no sense.
    fn check_options(&self, given: &Bound<'_, PyDict>) -> PyResult<()> {
        options(given)?.check(&self.opened).map_err(raise)
    }

    /// What a run will do, as text and as JSON.
    fn explain(&self, given: &Bound<'_, PyDict>) -> PyResult<(String, String)> {
        let explanation = feedline_engine::explain(&self.opened, &options(given)?);
        let json = serde_json::to_string(&explanation)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok((explanation.to_string(), json))
    }

    /// Sample `index` of the source through all steps.
    fn sample<'py>(
        &self,
        py: Python<'py>,
        index: i64,
        epoch: u64,
        seed: u64,
    ) -> PyResult<Bound<'py, PyDict>> {
        let length = self.opened.source.length() as i64;
        let at = if index < 0 { index + length } else { index };
        if !(0..length).contains(&at) {
            return Err(PyIndexError::new_err(format!("sample {index} of {length}")));
        }
        let batch = patiently(py, |cancel| self.one(at as u64, epoch, seed, cancel))?;
        export_batch(py, batch, true, &Names::default())
    }

    /// What a function gives, tried on a few of the samples that this pipeline gives.
    fn learn(
        &self,
        py: Python<'_>,
        name: &str,
        code: Py<Blob>,
        random: bool,
        timeout: f64,
        host: Words,
    ) -> PyResult<String> {
        self.learnt(py, name, code.get(), (random, timeout), host)
    }

    /// Saves an epoch to a folder of Arrow files. `tell` is called with shards done, shards, places
    /// done, places and bytes. Gives rows, bytes, shards, written, skipped and seconds.
    #[expect(clippy::too_many_arguments, reason = "they are named on the other side")]
    fn save(
        &self,
        py: Python<'_>,
        blobs: HashMap<String, Py<Blob>>,
        folder: PathBuf,
        seed: u64,
        epoch: u64,
        shard: Option<&str>,
        rows: Option<u64>,
        given: &Bound<'_, PyDict>,
        service: Option<&Bound<'_, PyDict>>,
        tell: Option<Py<PyAny>>,
    ) -> PyResult<(u64, u64, u64, u64, u64, f64)> {
        let run = options(given)?;
        let service = service.map(crate::service::job).transpose()?;
        let size = match (rows, shard) {
            (Some(rows), _) => ShardSize::Rows(rows),
            (None, Some(text)) => {
                let wrong = |reason| PyValueError::new_err(format!("shard: {reason}"));
                ShardSize::Bytes(feedline_ops::order::parse_bytes(text).map_err(wrong)?)
            }
            (None, None) => ShardSize::default(),
        };
        let blobs: Blobs =
            blobs.into_iter().map(|(hash, blob)| (hash, blob.get().tensor.clone())).collect();
        let cancel = Cancel::default();
        let latest = Mutex::new(None);
        let note = |progress: &SaveProgress| {
            *latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(*progress);
        };
        let work = || {
            let store = Arc::clone(&self.store);
            let again = self.opened.again(&blobs)?;
            let shards = Shards::cut_opened(again, store, (Seed(seed), epoch), size)?;
            let (cancel, progress) =
                (cancel.clone(), Some(&note as &(dyn Fn(&SaveProgress) + Sync)));
            let options = SaveOptions { run, cancel, progress };
            match &service {
                None => feedline_engine::save::save(shards, &folder, &options),
                Some((control, job)) => feedline_remote::save(
                    control,
                    (shards, &self.opened),
                    &blobs,
                    &folder,
                    &options,
                    (&job.stream, job.patience),
                ),
            }
        };
        let report = || -> PyResult<()> {
            let progress = latest.lock().unwrap_or_else(PoisonError::into_inner).take();
            match (&tell, progress) {
                (Some(tell), Some(p)) => {
                    let told = (p.shards_done, p.shards, p.places_done, p.places, p.bytes);
                    tell.call1(py, told).map(|_| ())
                }
                _ => Ok(()),
            }
        };
        let saved = std::thread::scope(|scope| {
            let (done, result) = std::sync::mpsc::channel();
            let result = Mutex::new(result);
            let work = AssertUnwindSafe(work);
            scope.spawn(move || {
                let panicked = |_| Err(Error::Internal("saving panicked".into()));
                done.send(catch_unwind(work).unwrap_or_else(panicked))
            });
            loop {
                let wait =
                    || result.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(PATIENCE);
                if let Ok(saved) = py.detach(wait) {
                    report()?;
                    return saved.map_err(raise);
                }
                if let Err(error) = py.check_signals().and_then(|()| report()) {
                    cancel.cancel();
                    // What was begun is taken away before anyone goes on.
                    py.detach(|| {
                        let result = result.lock().unwrap_or_else(PoisonError::into_inner);
                        drop(result.recv());
                    });
                    return Err(error);
                }
            }
        })?;
        let Saved { rows, bytes, shards, written, skipped, seconds } = saved;
        Ok((rows, bytes, shards, written, skipped, seconds))
    }

    /// The state at the beginning of an epoch.
    fn start_state(&self, epoch: u64, seed: u64, rank: u64, world: u64) -> String {
        let position = Position::epoch(epoch);
        feedline_engine::State::new(&self.opened, position, Seed(seed), rank, world).to_json()
    }

    /// Checks that a state fits, and gives it as that of this rank, with the epoch it stands in.
    fn adopt_state(
        &self,
        state: &str,
        seed: u64,
        rank: u64,
        world: u64,
    ) -> PyResult<(String, u64)> {
        let state = feedline_engine::State::from_json(state).map_err(raise)?;
        let seed = Seed(seed);
        let position = state.position_for(&self.opened, seed, rank, world).map_err(raise)?;
        let epoch = position.epoch;
        let own = feedline_engine::State::new(&self.opened, position, seed, rank, world);
        Ok((own.to_json(), epoch))
    }
}

/// Does work on a thread of its own, and ends it if the user interrupts.
pub(crate) fn patiently<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&Cancel) -> Result<T> + Send,
) -> PyResult<T> {
    let cancel = Cancel::default();
    std::thread::scope(|scope| {
        let (done, result) = std::sync::mpsc::channel();
        let result = Mutex::new(result);
        let (work, cancel) = (AssertUnwindSafe(|| work(&cancel)), &cancel);
        scope.spawn(move || {
            let panicked = |_| Err(Error::Internal("a step panicked".into()));
            done.send(catch_unwind(work).unwrap_or_else(panicked))
        });
        loop {
            let wait =
                || result.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(PATIENCE);
            if let Ok(done) = py.detach(wait) {
                return done.map_err(raise);
            }
            if let Err(error) = py.check_signals() {
                cancel.cancel();
                return Err(error);
            }
        }
    })
}

impl Pipeline {
    fn one(&self, index: u64, epoch: u64, seed: u64, cancel: &Cancel) -> Result<Batch> {
        let opened = &self.opened;
        let address = Address { index, visit: 0 };
        let epoch = feedline_core::EpochSeed { seed: Seed(seed), epoch };
        let seed = SampleSeed { epoch, source: 0, index, visit: 0, output: 0 };
        let mut workspace = opened.workspace(feedline_core::Pool::new(0), false);
        workspace.cancel = cancel.clone();
        let fields = opened.sample(address, seed, &*self.store, &mut workspace)?;
        Ok(Batch { fields, rows: 1, indices: None })
    }
}
