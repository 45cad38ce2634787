//! What clients ask of the dispatcher, and what it answers.

use super::{Malformed, Result, need};
use crate::proto;
use feedline_wire::{
    ConsumerIndex, Cursor, Description, Epoch, Incarnation, JobId, JobName, Life, Nonce, Offset,
    Order, Refusal, Reply, Request, Seat, Stamp, Standing, Start, Ticket, Used, Visitation, Window,
    Windows,
};
use proto::refusal::Refusal as Refused;
use proto::reply::Reply as Answer;
use std::collections::BTreeMap;

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

pub(super) fn order(number: i32) -> Result<Order> {
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

pub(super) fn visitation(number: i32) -> Result<Visitation> {
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
