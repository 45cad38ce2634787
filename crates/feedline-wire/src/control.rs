//! What is said to the dispatcher beside the protocol of windows: which plans there are, which
//! workers can be reached, and how everything stands.
//!
//! Only [`Dataset`]s are remembered. What workers and clients report is forgotten when they fall
//! silent, and known again a moment after the dispatcher was restarted.

use crate::{ConsumerIndex, JobId, Reply, Request};
use feedline_core::Blobs;
use feedline_plan::{Call, Plan};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// Names a dataset: the hash of all it consists of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DatasetId(pub String);

impl fmt::Display for DatasetId {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(to)
    }
}

impl DatasetId {
    /// The dataset that a job is about: what its description names, up to the first colon.
    #[must_use]
    pub fn of(description: &crate::Description) -> Self {
        let id = description.dataset.split(':').next();
        Self(id.unwrap_or_default().to_owned())
    }
}

/// What workers compute: a plan, and the data that it was opened on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dataset {
    /// The plan as canonical JSON.
    pub plan: String,
    /// Names what the client found when it opened the plan; a worker must find the same.
    pub manifest: String,
    /// Hashes of the plan's large arguments, rising.
    pub blobs: Vec<String>,
}

impl Dataset {
    /// The name under which it is registered: the same content has the same one. The bytes in which
    /// functions travel are no part of it: each process makes others of the same function.
    #[must_use]
    pub fn id(&self) -> DatasetId {
        let Self { plan, manifest, blobs } = self;
        let (mut plan, mut carriers) = (plan.clone(), Vec::new());
        if let Ok(read) = Plan::from_json(&plan) {
            let code = |call: &Call| call.args.get("code")?.as_str().map(str::to_owned);
            carriers = read.calls().iter().filter_map(code).collect();
            if !carriers.is_empty() {
                plan = read.identity().to_json();
            }
        }
        let blobs = blobs.iter().filter(|blob| !carriers.contains(blob));
        let mut hasher = blake3::Hasher::new();
        for part in [&plan, manifest].into_iter().chain(blobs) {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        DatasetId(hasher.finalize().to_hex().as_str()[..32].to_owned())
    }
}

/// A worker process, by a number that it drew at random.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WorkerKey(pub u64);

impl fmt::Display for WorkerKey {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{:016x}", self.0)
    }
}

/// A worker that can be asked for windows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worker {
    /// Which process.
    pub key: WorkerKey,
    /// What people call it.
    pub name: String,
    /// Where it serves, best first: `10.0.0.3:41234`, `[::1]:41234`, `unix:/run/feedline.sock`.
    pub addresses: Vec<String>,
    /// The version of Feedline it runs.
    pub version: String,
    /// Cores it computes with.
    pub cores: u32,
    /// Whether it ends soon: it finishes what it streams and is asked for nothing more.
    pub draining: bool,
}

/// What a worker says about itself, about twice a second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Beat {
    /// Who it is.
    pub worker: Worker,
    /// Share of its cores that was busy since the last beat, from 0 to 1.
    pub busy: f64,
    /// Bytes it holds for windows and batches.
    pub memory: u64,
    /// Connections of clients.
    pub connections: u32,
    /// What it has done for each job since it started.
    pub jobs: Vec<Done>,
}

/// What a worker has done for a job since the worker started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// The job.
    pub job: JobId,
    /// Steps served.
    pub steps: u64,
    /// Samples in them.
    pub samples: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Steps that had been computed for another job.
    pub shared: u64,
    /// CPU time spent on it, in microseconds.
    pub busy: u64,
}

/// What the dispatcher answers to a beat.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orders {
    /// Datasets that have jobs, and how many: what else a worker has opened it may forget.
    pub datasets: Vec<(DatasetId, u32)>,
    /// The worker is to end, as after SIGTERM.
    pub drain: bool,
}

/// The workers that are alive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roster {
    /// Grows with each change; not comparable after the dispatcher was restarted.
    pub version: u64,
    /// The workers.
    pub workers: Vec<Worker>,
}

/// What a client says about its trainer, about once a second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The job.
    pub job: JobId,
    /// The client.
    pub consumer: ConsumerIndex,
    /// The epoch its trainer is in.
    pub epoch: u64,
    /// Steps its trainer has used since the client started.
    pub steps: u64,
    /// Samples in them.
    pub samples: u64,
    /// Their bytes.
    pub bytes: u64,
    /// For how long the trainer has waited since the client started, in microseconds.
    pub waited: u64,
    /// For how long the client has been there, in microseconds.
    pub elapsed: u64,
    /// Steps that are here and not used.
    pub buffered: u64,
}

/// Why the dispatcher did not answer. There is one variant for each thing that a caller can do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// It is not there, or not yet: try again.
    #[error("the dispatcher is unavailable: {0}")]
    Unavailable(String),
    /// The caller may not do this: get another token.
    #[error("the dispatcher refuses: {0}")]
    Denied(String),
    /// What was asked makes no sense to it, or is too large: ask for something else.
    #[error("{0}")]
    Invalid(String),
}

/// The dispatcher, as workers and clients see it. Every call may be repeated.
pub trait Control: Send + Sync {
    /// Asks what the protocol of windows asks. Waits for an answer for as long as `patience` says.
    ///
    /// # Errors
    ///
    /// If there is no answer. A refusal is one.
    fn ask(&self, request: &Request, patience: Duration) -> Result<Reply, Failure>;

    /// Registers a dataset, and sends those of its blobs that the dispatcher lacks.
    ///
    /// # Errors
    ///
    /// If there is no answer, or the dataset is refused.
    fn register(&self, dataset: &Dataset, blobs: &Blobs) -> Result<DatasetId, Failure>;

    /// A dataset that was registered, with its blobs.
    ///
    /// # Errors
    ///
    /// If there is no answer, or no such dataset.
    fn dataset(&self, id: &DatasetId) -> Result<(Dataset, Blobs), Failure>;

    /// Says that a worker is alive.
    ///
    /// # Errors
    ///
    /// If there is no answer.
    fn beat(&self, beat: &Beat) -> Result<Orders, Failure>;

    /// The workers, as soon as their version is not `known`, or when `patience` ends.
    ///
    /// # Errors
    ///
    /// If there is no answer.
    fn workers(&self, known: u64, patience: Duration) -> Result<Roster, Failure>;

    /// Says how a trainer fares.
    ///
    /// # Errors
    ///
    /// If there is no answer.
    fn report(&self, report: &Report) -> Result<(), Failure>;

    /// Lets whoever waits for an answer go. Nothing can be asked after that.
    fn close(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dataset_is_named_by_all_it_consists_of() {
        let one = Dataset { plan: "a".into(), manifest: "bc".into(), blobs: vec!["d".into()] };
        let same = one.clone();
        let others = [
            Dataset { plan: "ab".into(), manifest: "c".into(), ..one.clone() },
            Dataset { manifest: "bcd".into(), blobs: vec![], ..one.clone() },
            Dataset { blobs: vec!["d".into(), "".into()], ..one.clone() },
        ];
        assert_eq!(one.id(), same.id());
        assert!(others.iter().all(|other| other.id() != one.id()));
    }

    #[test]
    fn the_bytes_in_which_a_function_travels_name_no_dataset() {
        let dataset = |source: &str, code: &str| {
            let text = format!("range count=3 | map function=f source={source} code={code}");
            let plan = text.parse::<Plan>().unwrap().to_json();
            Dataset { plan, manifest: String::new(), blobs: vec![code.to_owned(), "other".into()] }
        };
        assert_eq!(dataset("s", "aa").id(), dataset("s", "bb").id());
        assert_ne!(dataset("s", "aa").id(), dataset("t", "aa").id());
        let less = Dataset { blobs: vec!["aa".into()], ..dataset("s", "aa") };
        assert_ne!(less.id(), dataset("s", "aa").id());
    }
}
