//! Datasets, workers, and how they and trainers fare.

use super::{Malformed, Result, need};
use crate::proto;
use feedline_wire::control::{
    Beat, Dataset, DatasetId, Done, Orders, Report, Roster, Worker, WorkerKey,
};
use feedline_wire::{ConsumerIndex, JobId};

impl From<&Dataset> for proto::Dataset {
    fn from(Dataset { plan, manifest, blobs }: &Dataset) -> Self {
        Self { plan: plan.clone(), manifest: manifest.clone(), blobs: blobs.clone() }
    }
}

impl From<proto::Dataset> for Dataset {
    fn from(proto::Dataset { plan, manifest, blobs }: proto::Dataset) -> Self {
        Self { plan, manifest, blobs }
    }
}

impl From<&Worker> for proto::Worker {
    fn from(Worker { key, name, addresses, version, cores, draining }: &Worker) -> Self {
        Self {
            key: key.0,
            name: name.clone(),
            addresses: addresses.clone(),
            version: version.clone(),
            cores: *cores,
            draining: *draining,
        }
    }
}

impl From<proto::Worker> for Worker {
    fn from(message: proto::Worker) -> Self {
        let proto::Worker { key, name, addresses, version, cores, draining } = message;
        Self { key: WorkerKey(key), name, addresses, version, cores, draining }
    }
}

impl From<&Done> for proto::Done {
    fn from(Done { job, steps, samples, bytes, shared, busy }: &Done) -> Self {
        Self {
            job: job.0,
            steps: *steps,
            samples: *samples,
            bytes: *bytes,
            shared: *shared,
            busy_us: *busy,
        }
    }
}

impl From<proto::Done> for Done {
    fn from(message: proto::Done) -> Self {
        let proto::Done { job, steps, samples, bytes, shared, busy_us } = message;
        Self { job: JobId(job), steps, samples, bytes, shared, busy: busy_us }
    }
}

impl From<&Beat> for proto::BeatRequest {
    fn from(Beat { worker, busy, memory, connections, jobs }: &Beat) -> Self {
        Self {
            worker: Some(worker.into()),
            busy: *busy,
            memory: *memory,
            connections: *connections,
            jobs: jobs.iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<proto::BeatRequest> for Beat {
    type Error = Malformed;

    fn try_from(message: proto::BeatRequest) -> Result<Self> {
        let proto::BeatRequest { worker, busy, memory, connections, jobs } = message;
        if !busy.is_finite() {
            return Err(Malformed("how busy a worker is, is no number".into()));
        }
        Ok(Self {
            worker: need(worker, "a worker")?.into(),
            busy,
            memory,
            connections,
            jobs: jobs.into_iter().map(Into::into).collect(),
        })
    }
}

impl From<&Orders> for proto::Orders {
    fn from(Orders { datasets, drain }: &Orders) -> Self {
        let datasets = datasets
            .iter()
            .map(|(id, jobs)| proto::orders::DatasetJobs { id: id.0.clone(), jobs: *jobs });
        Self { datasets: datasets.collect(), drain: *drain }
    }
}

impl From<proto::Orders> for Orders {
    fn from(proto::Orders { datasets, drain }: proto::Orders) -> Self {
        let datasets = datasets.into_iter().map(|each| (DatasetId(each.id), each.jobs));
        Self { datasets: datasets.collect(), drain }
    }
}

impl From<&Roster> for proto::Roster {
    fn from(Roster { version, workers }: &Roster) -> Self {
        Self { version: *version, workers: workers.iter().map(Into::into).collect() }
    }
}

impl From<proto::Roster> for Roster {
    fn from(proto::Roster { version, workers }: proto::Roster) -> Self {
        Self { version, workers: workers.into_iter().map(Into::into).collect() }
    }
}

impl From<&Report> for proto::ReportRequest {
    fn from(report: &Report) -> Self {
        let Report { job, consumer, epoch, steps, samples, bytes, waited, elapsed, buffered } =
            report;
        Self {
            job: job.0,
            consumer: consumer.0,
            epoch: *epoch,
            steps: *steps,
            samples: *samples,
            bytes: *bytes,
            waited_us: *waited,
            elapsed_us: *elapsed,
            buffered: *buffered,
        }
    }
}

impl From<proto::ReportRequest> for Report {
    fn from(message: proto::ReportRequest) -> Self {
        Self {
            job: JobId(message.job),
            consumer: ConsumerIndex(message.consumer),
            epoch: message.epoch,
            steps: message.steps,
            samples: message.samples,
            bytes: message.bytes,
            waited: message.waited_us,
            elapsed: message.elapsed_us,
            buffered: message.buffered,
        }
    }
}
