//! How everything stands, as the dispatcher tells people and programs.

use crate::control::{DatasetId, Done, Worker};
use crate::{ConsumerIndex, Epoch, Incarnation, JobId, JobName, Order, Visitation};
use serde::{Deserialize, Serialize};

/// How everything stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The release of the dispatcher.
    pub version: String,
    /// For how long it has been serving, in milliseconds.
    pub uptime_ms: u64,
    /// The jobs.
    pub jobs: Vec<JobStatus>,
    /// The workers that are alive.
    pub workers: Vec<WorkerStatus>,
    /// The datasets that are registered.
    pub datasets: Vec<DatasetStatus>,
    /// What the dispatcher remembers by.
    pub journal: JournalStatus,
    /// How many workers there should be.
    pub scale: ScaleStatus,
}

/// What is done each second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Steps.
    pub steps: f64,
    /// Samples in them.
    pub samples: f64,
    /// Their bytes.
    pub bytes: f64,
}

/// How a job stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobStatus {
    /// The job.
    pub job: JobId,
    /// What people call it.
    pub name: JobName,
    /// Names its plan, data and seed.
    pub dataset: String,
    /// Who gets which window.
    pub order: Order,
    /// How often a step is seen.
    pub visitation: Visitation,
    /// The incarnation that is alive.
    pub incarnation: Incarnation,
    /// The epoch that is open; with order exact, the furthest that a client has reported.
    pub epoch: Epoch,
    /// Windows of it that are used; with order exact nobody counts them, and this is 0.
    pub windows_used: u64,
    /// Windows it has; `u64::MAX` if there is no end.
    pub windows_total: u64,
    /// Windows that clients hold.
    pub windows_held: u64,
    /// For how long nobody has spoken for the job, in milliseconds.
    pub idle_ms: u64,
    /// Its clients.
    pub consumers: Vec<ConsumerStatus>,
    /// What all of them use.
    pub rates: Rates,
    /// Share of their time that its trainers wait, from 0 to 1: the largest of them.
    pub waiting: f64,
}

/// How a client stands.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConsumerStatus {
    /// The client.
    pub consumer: ConsumerIndex,
    /// Whether it has taken its seat.
    pub attached: bool,
    /// Whether an operator has given it up.
    pub released: bool,
    /// For how long it has been silent, in milliseconds.
    pub silent_ms: u64,
    /// Windows that it holds.
    pub held: u64,
    /// Steps that it has fetched and not used.
    pub buffered: u64,
    /// What it uses.
    pub rates: Rates,
    /// Share of its time that its trainer waits, from 0 to 1.
    pub waiting: f64,
}

/// How a worker stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// Who it is.
    pub worker: Worker,
    /// For how long it has been silent, in milliseconds.
    pub silent_ms: u64,
    /// Share of its cores that is busy, from 0 to 1.
    pub busy: f64,
    /// Bytes it holds.
    pub memory: u64,
    /// Connections of clients.
    pub connections: u32,
    /// What it serves.
    pub rates: Rates,
    /// What it has done for each job.
    pub jobs: Vec<Done>,
}

/// How a dataset stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetStatus {
    /// The dataset.
    pub id: DatasetId,
    /// How many jobs use it.
    pub jobs: u32,
    /// Bytes of its plan and blobs.
    pub bytes: u64,
    /// How many blobs it has.
    pub blobs: u32,
    /// For how long nobody has asked for it, in milliseconds.
    pub idle_ms: u64,
}

/// How the journal stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalStatus {
    /// Which opening of the journal this is.
    pub generation: u64,
    /// Records since its beginning.
    pub records: u64,
    /// Those that are durable.
    pub durable: u64,
    /// Bytes in its folder.
    pub bytes: u64,
    /// Bytes that a restart would have to replay.
    pub bytes_since_snapshot: u64,
    /// Whether its disk is full.
    pub full: bool,
}

/// How many workers there should be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScaleStatus {
    /// How many workers the jobs need.
    pub wanted: u32,
    /// How many there are that do not end soon.
    pub present: u32,
    /// Why.
    pub reason: String,
}
