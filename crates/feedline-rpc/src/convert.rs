//! The messages of the network and the plain values of the protocol, both ways. Nowhere else are
//! they turned into each other.
//!
//! Into a message everything goes; a message may lack a part, or say what makes no sense.

use crate::proto;
use feedline_wire::control::{
    Beat, Dataset, DatasetId, Done, Orders, Report, Roster, Worker, WorkerKey,
};
use feedline_wire::status::{
    ConsumerStatus, DatasetStatus, JobStatus, JournalStatus, Rates, ScaleStatus, Status,
    WorkerStatus,
};
use feedline_wire::{
    ConsumerIndex, Cursor, Description, Epoch, Incarnation, JobId, JobName, Life, Nonce, Offset,
    Order, Refusal, Reply, Request, Seat, Stamp, Standing, Start, Ticket, Used, Visitation, Window,
    Windows,
};
use proto::refusal::Refusal as Refused;
use proto::reply::Reply as Answer;
use std::collections::BTreeMap;

/// A message that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message makes no sense: {0}")]
pub struct Malformed(pub String);

impl From<Malformed> for tonic::Status {
    fn from(malformed: Malformed) -> Self {
        Self::invalid_argument(malformed.to_string())
    }
}

type Result<T> = std::result::Result<T, Malformed>;

fn need<T>(part: Option<T>, what: &str) -> Result<T> {
    part.ok_or_else(|| Malformed(format!("it lacks {what}")))
}

/// A request as one of the messages that carry it.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "named as the requests are")]
pub enum Call {
    OpenJob(proto::OpenJobRequest),
    Restore(proto::RestoreRequest),
    Attach(proto::AttachRequest),
    Get(proto::GetRequest),
    Commit(proto::CommitRequest),
    Release(proto::ReleaseRequest),
    CloseJob(proto::CloseJobRequest),
}

impl Call {
    /// How many bytes the message has on the wire.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        use prost::Message;
        match self {
            Self::OpenJob(message) => message.encoded_len(),
            Self::Restore(message) => message.encoded_len(),
            Self::Attach(message) => message.encoded_len(),
            Self::Get(message) => message.encoded_len(),
            Self::Commit(message) => message.encoded_len(),
            Self::Release(message) => message.encoded_len(),
            Self::CloseJob(message) => message.encoded_len(),
        }
    }
}

impl From<&Request> for Call {
    fn from(request: &Request) -> Self {
        match request {
            Request::OpenJob { name, description, consumers, consumer, nonce } => {
                Self::OpenJob(proto::OpenJobRequest {
                    name: name.0.clone(),
                    description: Some(description.into()),
                    consumers: *consumers,
                    consumer: consumer.0,
                    nonce: nonce.0,
                })
            }
            Request::Restore { job, consumer, nonce, ticket, consumers, start, hash } => {
                Self::Restore(proto::RestoreRequest {
                    job: job.0,
                    consumer: consumer.0,
                    nonce: nonce.0,
                    ticket: ticket.0,
                    consumers: *consumers,
                    start: Some(start.into()),
                    hash: hash.clone(),
                })
            }
            Request::Attach { seat, nonce, cursor } => Self::Attach(proto::AttachRequest {
                seat: Some((*seat).into()),
                nonce: nonce.0,
                cursor: Some(cursor.into()),
            }),
            Request::Get { seat, sequence, want, cursor } => Self::Get(proto::GetRequest {
                seat: Some((*seat).into()),
                sequence: *sequence,
                want: *want,
                cursor: Some(cursor.into()),
            }),
            Request::Commit { seat, cursor } => Self::Commit(proto::CommitRequest {
                seat: Some((*seat).into()),
                cursor: Some(cursor.into()),
            }),
            Request::Release { job, incarnation, consumer } => {
                Self::Release(proto::ReleaseRequest {
                    job: job.0,
                    incarnation: incarnation.0,
                    consumer: consumer.0,
                })
            }
            Request::CloseJob { job } => Self::CloseJob(proto::CloseJobRequest { job: job.0 }),
        }
    }
}

impl TryFrom<Call> for Request {
    type Error = Malformed;

    fn try_from(call: Call) -> Result<Self> {
        Ok(match call {
            Call::OpenJob(message) => {
                let proto::OpenJobRequest { name, description, consumers, consumer, nonce } =
                    message;
                Self::OpenJob {
                    name: JobName(name),
                    description: need(description, "a description")?.try_into()?,
                    consumers,
                    consumer: ConsumerIndex(consumer),
                    nonce: Nonce(nonce),
                }
            }
            Call::Restore(message) => {
                let proto::RestoreRequest { job, consumer, nonce, ticket, consumers, start, hash } =
                    message;
                Self::Restore {
                    job: JobId(job),
                    consumer: ConsumerIndex(consumer),
                    nonce: Nonce(nonce),
                    ticket: Ticket(ticket),
                    consumers,
                    start: need(start, "a start")?.try_into()?,
                    hash,
                }
            }
            Call::Attach(proto::AttachRequest { seat, nonce, cursor }) => Self::Attach {
                seat: need(seat, "a seat")?.into(),
                nonce: Nonce(nonce),
                cursor: need(cursor, "a cursor")?.try_into()?,
            },
            Call::Get(proto::GetRequest { seat, sequence, want, cursor }) => Self::Get {
                seat: need(seat, "a seat")?.into(),
                sequence,
                want,
                cursor: need(cursor, "a cursor")?.try_into()?,
            },
            Call::Commit(proto::CommitRequest { seat, cursor }) => Self::Commit {
                seat: need(seat, "a seat")?.into(),
                cursor: need(cursor, "a cursor")?.try_into()?,
            },
            Call::Release(proto::ReleaseRequest { job, incarnation, consumer }) => Self::Release {
                job: JobId(job),
                incarnation: Incarnation(incarnation),
                consumer: ConsumerIndex(consumer),
            },
            Call::CloseJob(proto::CloseJobRequest { job }) => Self::CloseJob { job: JobId(job) },
        })
    }
}

impl From<Order> for proto::Order {
    fn from(order: Order) -> Self {
        match order {
            Order::Any => Self::Any,
            Order::Exact => Self::Exact,
        }
    }
}

fn order(number: i32) -> Result<Order> {
    match proto::Order::try_from(number) {
        Ok(proto::Order::Any) => Ok(Order::Any),
        Ok(proto::Order::Exact) => Ok(Order::Exact),
        _ => Err(Malformed(format!("there is no order {number}"))),
    }
}

impl From<Visitation> for proto::Visitation {
    fn from(visitation: Visitation) -> Self {
        match visitation {
            Visitation::ExactlyOnce => Self::ExactlyOnce,
            Visitation::AtMostOnce => Self::AtMostOnce,
        }
    }
}

fn visitation(number: i32) -> Result<Visitation> {
    match proto::Visitation::try_from(number) {
        Ok(proto::Visitation::ExactlyOnce) => Ok(Visitation::ExactlyOnce),
        Ok(proto::Visitation::AtMostOnce) => Ok(Visitation::AtMostOnce),
        _ => Err(Malformed(format!("there is no visitation {number}"))),
    }
}

impl From<Windows> for proto::Windows {
    fn from(Windows { count, steps, last }: Windows) -> Self {
        Self { count, steps, last }
    }
}

impl From<proto::Windows> for Windows {
    fn from(proto::Windows { count, steps, last }: proto::Windows) -> Self {
        Self { count, steps, last }
    }
}

impl From<&Start> for proto::Start {
    fn from(Start { epoch, position, windows }: &Start) -> Self {
        Self { epoch: epoch.0, position: position.clone(), windows: Some((*windows).into()) }
    }
}

impl TryFrom<proto::Start> for Start {
    type Error = Malformed;

    fn try_from(proto::Start { epoch, position, windows }: proto::Start) -> Result<Self> {
        let windows = need(windows, "the windows of a start")?.into();
        Ok(Self { epoch: Epoch(epoch), position, windows })
    }
}

impl From<&Description> for proto::Description {
    fn from(description: &Description) -> Self {
        let Description { dataset, visitation, order, windows } = description;
        Self {
            dataset: dataset.clone(),
            visitation: proto::Visitation::from(*visitation).into(),
            order: proto::Order::from(*order).into(),
            windows: Some((*windows).into()),
        }
    }
}

impl TryFrom<proto::Description> for Description {
    type Error = Malformed;

    fn try_from(message: proto::Description) -> Result<Self> {
        let proto::Description { dataset, visitation: visits, order: ordered, windows } = message;
        Ok(Self {
            dataset,
            visitation: visitation(visits)?,
            order: order(ordered)?,
            windows: need(windows, "the windows of a description")?.into(),
        })
    }
}

impl From<&Life> for proto::Life {
    fn from(Life { incarnation, consumers, start }: &Life) -> Self {
        Self { incarnation: incarnation.0, consumers: *consumers, start: Some(start.into()) }
    }
}

impl TryFrom<proto::Life> for Life {
    type Error = Malformed;

    fn try_from(proto::Life { incarnation, consumers, start }: proto::Life) -> Result<Self> {
        let start = need(start, "the start of an incarnation")?.try_into()?;
        Ok(Self { incarnation: Incarnation(incarnation), consumers, start })
    }
}

impl From<Seat> for proto::Seat {
    fn from(Seat { job, incarnation, consumer, ticket }: Seat) -> Self {
        Self { job: job.0, incarnation: incarnation.0, consumer: consumer.0, ticket: ticket.0 }
    }
}

impl From<proto::Seat> for Seat {
    fn from(proto::Seat { job, incarnation, consumer, ticket }: proto::Seat) -> Self {
        Self {
            job: JobId(job),
            incarnation: Incarnation(incarnation),
            consumer: ConsumerIndex(consumer),
            ticket: Ticket(ticket),
        }
    }
}

impl From<&Used> for proto::Used {
    fn from(used: &Used) -> Self {
        Self { from: used.from().0, words: used.words().to_vec() }
    }
}

impl TryFrom<proto::Used> for Used {
    type Error = Malformed;

    fn try_from(proto::Used { from, words }: proto::Used) -> Result<Self> {
        Self::from_words(Window(from), words)
            .ok_or_else(|| Malformed("a cursor lists windows that are too far away".into()))
    }
}

impl From<&Cursor> for proto::Cursor {
    fn from(cursor: &Cursor) -> Self {
        let Cursor {
            job,
            incarnation,
            consumers,
            consumer,
            order,
            epoch,
            seen,
            rewinds,
            floor,
            used_up,
            used,
            open,
        } = cursor;
        let held = |(window, offset): (&Window, &Offset)| proto::Open {
            window: window.0,
            offset: offset.0,
        };
        Self {
            job: job.0,
            incarnation: incarnation.0,
            consumers: *consumers,
            consumer: consumer.0,
            order: proto::Order::from(*order).into(),
            epoch: epoch.0,
            seen: seen.0,
            rewinds: *rewinds,
            floor: floor.0,
            used_up: *used_up,
            used: Some(used.into()),
            open: open.iter().map(held).collect(),
        }
    }
}

impl TryFrom<proto::Cursor> for Cursor {
    type Error = Malformed;

    fn try_from(message: proto::Cursor) -> Result<Self> {
        let rises = message.open.windows(2).all(|pair| pair[0].window < pair[1].window);
        if !rises {
            return Err(Malformed("the windows that a cursor holds do not rise".into()));
        }
        let held = message.open.iter().map(|held| (Window(held.window), Offset(held.offset)));
        let open: BTreeMap<Window, Offset> = held.collect();
        Ok(Self {
            job: JobId(message.job),
            incarnation: Incarnation(message.incarnation),
            consumers: message.consumers,
            consumer: ConsumerIndex(message.consumer),
            order: order(message.order)?,
            epoch: Epoch(message.epoch),
            seen: Stamp(message.seen),
            rewinds: message.rewinds,
            floor: Window(message.floor),
            used_up: message.used_up,
            used: need(message.used, "the used windows of a cursor")?.try_into()?,
            open,
        })
    }
}

impl From<&Standing> for proto::Standing {
    fn from(Standing { epoch, floor, rewinds, stamp, used }: &Standing) -> Self {
        Self {
            epoch: epoch.0,
            floor: floor.0,
            rewinds: *rewinds,
            stamp: stamp.0,
            used: used.as_ref().map(Into::into),
        }
    }
}

fn standing(message: Option<proto::Standing>) -> Result<Standing> {
    let message = need(message, "how the epoch stands")?;
    let proto::Standing { epoch, floor, rewinds, stamp, used } = message;
    Ok(Standing {
        epoch: Epoch(epoch),
        floor: Window(floor),
        rewinds,
        stamp: Stamp(stamp),
        used: used.map(Used::try_from).transpose()?,
    })
}

impl From<&Reply> for proto::Reply {
    fn from(reply: &Reply) -> Self {
        use proto::reply as of;
        let answer = match reply {
            Reply::Opened { job, ticket, life } => {
                Answer::Opened(of::Opened { job: job.0, ticket: ticket.0, life: Some(life.into()) })
            }
            Reply::Restored { life } => Answer::Restored(of::Restored { life: Some(life.into()) }),
            Reply::Attached { standing } => {
                Answer::Attached(of::Attached { standing: Some(standing.into()) })
            }
            Reply::Granted { windows, standing } => Answer::Granted(of::Granted {
                windows: windows.iter().map(|window| window.0).collect(),
                standing: Some(standing.into()),
            }),
            Reply::Wait { standing } => Answer::Wait(of::Wait { standing: Some(standing.into()) }),
            Reply::End { epoch, standing } => {
                Answer::End(of::End { epoch: epoch.0, standing: Some(standing.into()) })
            }
            Reply::Committed { standing } => {
                Answer::Committed(of::Committed { standing: Some(standing.into()) })
            }
            Reply::Released => Answer::Released(of::Released {}),
            Reply::Closed => Answer::Closed(of::Closed {}),
            Reply::Refused(refusal) => Answer::Refused(refusal.into()),
        };
        Self { reply: Some(answer) }
    }
}

impl TryFrom<proto::Reply> for Reply {
    type Error = Malformed;

    fn try_from(message: proto::Reply) -> Result<Self> {
        Ok(match need(message.reply, "an answer that this release knows")? {
            Answer::Opened(message) => Self::Opened {
                job: JobId(message.job),
                ticket: Ticket(message.ticket),
                life: need(message.life, "an incarnation")?.try_into()?,
            },
            Answer::Restored(message) => {
                Self::Restored { life: need(message.life, "an incarnation")?.try_into()? }
            }
            Answer::Attached(message) => Self::Attached { standing: standing(message.standing)? },
            Answer::Granted(message) => Self::Granted {
                windows: message.windows.into_iter().map(Window).collect(),
                standing: standing(message.standing)?,
            },
            Answer::Wait(message) => Self::Wait { standing: standing(message.standing)? },
            Answer::End(message) => {
                Self::End { epoch: Epoch(message.epoch), standing: standing(message.standing)? }
            }
            Answer::Committed(message) => Self::Committed { standing: standing(message.standing)? },
            Answer::Released(_) => Self::Released,
            Answer::Closed(_) => Self::Closed,
            Answer::Refused(refusal) => Self::Refused(refusal.try_into()?),
        })
    }
}

impl From<&Refusal> for proto::Refusal {
    fn from(refusal: &Refusal) -> Self {
        use proto::refusal as of;
        let refused = match refusal {
            Refusal::StaleIncarnation { asked, current, by } => {
                Refused::StaleIncarnation(of::StaleIncarnation {
                    asked: asked.0,
                    current: current.0,
                    by: by.0,
                })
            }
            Refusal::Superseded { consumer, reason } => {
                Refused::Superseded(of::Superseded { consumer: consumer.0, reason: reason.clone() })
            }
            Refusal::NotYours { consumer, what } => {
                Refused::NotYours(of::NotYours { consumer: consumer.0, what: what.clone() })
            }
            Refusal::RewoundTooFar { consumer, epoch, reason } => {
                Refused::RewoundTooFar(of::RewoundTooFar {
                    consumer: consumer.0,
                    epoch: epoch.0,
                    reason: reason.clone(),
                })
            }
            Refusal::UnknownJob { job } => Refused::UnknownJob(of::UnknownJob { job: job.0 }),
            Refusal::Mismatch(what) => Refused::Mismatch(what.clone()),
            Refusal::Silent { consumer, silent, windows } => Refused::Silent(of::Silent {
                consumer: consumer.0,
                silent_ms: *silent,
                windows: *windows,
            }),
            Refusal::Exhausted(what) => Refused::Exhausted(what.clone()),
            Refusal::RetryLater(what) => Refused::RetryLater(what.clone()),
        };
        Self { refusal: Some(refused) }
    }
}

impl TryFrom<proto::Refusal> for Refusal {
    type Error = Malformed;

    fn try_from(message: proto::Refusal) -> Result<Self> {
        Ok(match need(message.refusal, "a refusal that this release knows")? {
            Refused::StaleIncarnation(message) => Self::StaleIncarnation {
                asked: Incarnation(message.asked),
                current: Incarnation(message.current),
                by: ConsumerIndex(message.by),
            },
            Refused::Superseded(message) => Self::Superseded {
                consumer: ConsumerIndex(message.consumer),
                reason: message.reason,
            },
            Refused::NotYours(message) => {
                Self::NotYours { consumer: ConsumerIndex(message.consumer), what: message.what }
            }
            Refused::RewoundTooFar(message) => Self::RewoundTooFar {
                consumer: ConsumerIndex(message.consumer),
                epoch: Epoch(message.epoch),
                reason: message.reason,
            },
            Refused::UnknownJob(message) => Self::UnknownJob { job: JobId(message.job) },
            Refused::Mismatch(what) => Self::Mismatch(what),
            Refused::Silent(message) => Self::Silent {
                consumer: ConsumerIndex(message.consumer),
                silent: message.silent_ms,
                windows: message.windows,
            },
            Refused::Exhausted(what) => Self::Exhausted(what),
            Refused::RetryLater(what) => Self::RetryLater(what),
        })
    }
}

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

#[cfg(test)]
mod tests;
