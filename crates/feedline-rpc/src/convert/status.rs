//! How everything stands.

use super::protocol::{order, visitation};
use super::{Malformed, Result, need};
use crate::proto;
use feedline_wire::control::DatasetId;
use feedline_wire::status::{
    ConsumerStatus, DatasetStatus, JobStatus, JournalStatus, Rates, ScaleStatus, Status,
    WorkerStatus,
};
use feedline_wire::{ConsumerIndex, Epoch, Incarnation, JobId, JobName};

impl From<Rates> for proto::Rates {
    fn from(Rates { steps, samples, bytes }: Rates) -> Self {
        Self { steps, samples, bytes }
    }
}

impl From<proto::Rates> for Rates {
    fn from(proto::Rates { steps, samples, bytes }: proto::Rates) -> Self {
        Self { steps, samples, bytes }
    }
}

impl From<&ConsumerStatus> for proto::ConsumerStatus {
    fn from(status: &ConsumerStatus) -> Self {
        let ConsumerStatus {
            consumer,
            attached,
            released,
            silent_ms,
            held,
            buffered,
            rates,
            waiting,
        } = status;
        Self {
            consumer: consumer.0,
            attached: *attached,
            released: *released,
            silent_ms: *silent_ms,
            held: *held,
            buffered: *buffered,
            rates: Some((*rates).into()),
            waiting: *waiting,
        }
    }
}

impl From<proto::ConsumerStatus> for ConsumerStatus {
    fn from(message: proto::ConsumerStatus) -> Self {
        Self {
            consumer: ConsumerIndex(message.consumer),
            attached: message.attached,
            released: message.released,
            silent_ms: message.silent_ms,
            held: message.held,
            buffered: message.buffered,
            rates: message.rates.unwrap_or_default().into(),
            waiting: message.waiting,
        }
    }
}

impl From<&JobStatus> for proto::JobStatus {
    fn from(status: &JobStatus) -> Self {
        let JobStatus {
            job,
            name,
            dataset,
            order,
            visitation,
            incarnation,
            epoch,
            windows_used,
            windows_total,
            windows_held,
            idle_ms,
            consumers,
            rates,
            waiting,
        } = status;
        Self {
            job: job.0,
            name: name.0.clone(),
            dataset: dataset.clone(),
            order: proto::Order::from(*order).into(),
            visitation: proto::Visitation::from(*visitation).into(),
            incarnation: incarnation.0,
            epoch: epoch.0,
            windows_used: *windows_used,
            windows_total: *windows_total,
            windows_held: *windows_held,
            idle_ms: *idle_ms,
            consumers: consumers.iter().map(Into::into).collect(),
            rates: Some((*rates).into()),
            waiting: *waiting,
        }
    }
}

impl TryFrom<proto::JobStatus> for JobStatus {
    type Error = Malformed;

    fn try_from(message: proto::JobStatus) -> Result<Self> {
        Ok(Self {
            job: JobId(message.job),
            name: JobName(message.name),
            dataset: message.dataset,
            order: order(message.order)?,
            visitation: visitation(message.visitation)?,
            incarnation: Incarnation(message.incarnation),
            epoch: Epoch(message.epoch),
            windows_used: message.windows_used,
            windows_total: message.windows_total,
            windows_held: message.windows_held,
            idle_ms: message.idle_ms,
            consumers: message.consumers.into_iter().map(Into::into).collect(),
            rates: message.rates.unwrap_or_default().into(),
            waiting: message.waiting,
        })
    }
}

impl From<&WorkerStatus> for proto::WorkerStatus {
    fn from(status: &WorkerStatus) -> Self {
        let WorkerStatus { worker, silent_ms, busy, memory, connections, rates, jobs } = status;
        Self {
            worker: Some(worker.into()),
            silent_ms: *silent_ms,
            busy: *busy,
            memory: *memory,
            connections: *connections,
            rates: Some((*rates).into()),
            jobs: jobs.iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<proto::WorkerStatus> for WorkerStatus {
    type Error = Malformed;

    fn try_from(message: proto::WorkerStatus) -> Result<Self> {
        Ok(Self {
            worker: need(message.worker, "a worker")?.into(),
            silent_ms: message.silent_ms,
            busy: message.busy,
            memory: message.memory,
            connections: message.connections,
            rates: message.rates.unwrap_or_default().into(),
            jobs: message.jobs.into_iter().map(Into::into).collect(),
        })
    }
}

impl From<&DatasetStatus> for proto::DatasetStatus {
    fn from(DatasetStatus { id, jobs, bytes, blobs, idle_ms }: &DatasetStatus) -> Self {
        Self { id: id.0.clone(), jobs: *jobs, bytes: *bytes, blobs: *blobs, idle_ms: *idle_ms }
    }
}

impl From<proto::DatasetStatus> for DatasetStatus {
    fn from(message: proto::DatasetStatus) -> Self {
        let proto::DatasetStatus { id, jobs, bytes, blobs, idle_ms } = message;
        Self { id: DatasetId(id), jobs, bytes, blobs, idle_ms }
    }
}

impl From<JournalStatus> for proto::JournalStatus {
    fn from(status: JournalStatus) -> Self {
        let JournalStatus { generation, records, durable, bytes, bytes_since_snapshot, full } =
            status;
        Self { generation, records, durable, bytes, bytes_since_snapshot, full }
    }
}

impl From<proto::JournalStatus> for JournalStatus {
    fn from(message: proto::JournalStatus) -> Self {
        let proto::JournalStatus {
            generation,
            records,
            durable,
            bytes,
            bytes_since_snapshot,
            full,
        } = message;
        Self { generation, records, durable, bytes, bytes_since_snapshot, full }
    }
}

impl From<&Status> for proto::StatusReply {
    fn from(status: &Status) -> Self {
        let Status { version, uptime_ms, jobs, workers, datasets, journal, scale } = status;
        let ScaleStatus { wanted, present, reason } = scale.clone();
        Self {
            version: version.clone(),
            uptime_ms: *uptime_ms,
            jobs: jobs.iter().map(Into::into).collect(),
            workers: workers.iter().map(Into::into).collect(),
            datasets: datasets.iter().map(Into::into).collect(),
            journal: Some((*journal).into()),
            scale: Some(proto::ScaleStatus { wanted, present, reason }),
        }
    }
}

impl TryFrom<proto::StatusReply> for Status {
    type Error = Malformed;

    fn try_from(message: proto::StatusReply) -> Result<Self> {
        let proto::ScaleStatus { wanted, present, reason } = message.scale.unwrap_or_default();
        Ok(Self {
            version: message.version,
            uptime_ms: message.uptime_ms,
            jobs: message.jobs.into_iter().map(TryInto::try_into).collect::<Result<_>>()?,
            workers: message.workers.into_iter().map(TryInto::try_into).collect::<Result<_>>()?,
            datasets: message.datasets.into_iter().map(Into::into).collect(),
            journal: message.journal.unwrap_or_default().into(),
            scale: ScaleStatus { wanted, present, reason },
        })
    }
}
