//! Every value survives its message, and messages that make no sense are refused.

use super::*;
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
use proptest::collection::{btree_map, btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use prost::Message;

fn text() -> impl Strategy<Value = String> {
    "[a-zäß0-9 /\\n]{0,12}"
}

fn windows() -> impl Strategy<Value = Windows> {
    any::<(u64, u64, u64)>().prop_map(|(count, steps, last)| Windows { count, steps, last })
}

fn start() -> impl Strategy<Value = Start> {
    (any::<u64>(), text(), windows()).prop_map(|(epoch, position, windows)| Start {
        epoch: Epoch(epoch),
        position,
        windows,
    })
}

fn life() -> impl Strategy<Value = Life> {
    (any::<u64>(), any::<u32>(), start()).prop_map(|(incarnation, consumers, start)| Life {
        incarnation: Incarnation(incarnation),
        consumers,
        start,
    })
}

fn some_order() -> impl Strategy<Value = Order> {
    prop_oneof![Just(Order::Any), Just(Order::Exact)]
}

fn some_visitation() -> impl Strategy<Value = Visitation> {
    prop_oneof![Just(Visitation::ExactlyOnce), Just(Visitation::AtMostOnce)]
}

fn description() -> impl Strategy<Value = Description> {
    (text(), some_visitation(), some_order(), windows()).prop_map(
        |(dataset, visitation, order, windows)| Description { dataset, visitation, order, windows },
    )
}

fn seat() -> impl Strategy<Value = Seat> {
    any::<(u64, u64, u32, u64)>().prop_map(|(job, incarnation, consumer, ticket)| Seat {
        job: JobId(job),
        incarnation: Incarnation(incarnation),
        consumer: ConsumerIndex(consumer),
        ticket: Ticket(ticket),
    })
}

fn used() -> impl Strategy<Value = Used> {
    (0..1u64 << 40, btree_set(0..3000u64, 0..40)).prop_map(|(from, windows)| {
        let mut used = Used::new(Window(from));
        windows.iter().for_each(|window| used.insert(Window(from + window)));
        used
    })
}

fn cursor() -> impl Strategy<Value = Cursor> {
    let numbers = any::<[u64; 4]>();
    let open = btree_map(any::<u64>(), any::<u64>(), 0..20);
    (seat(), any::<u32>(), some_order(), numbers, any::<u64>(), used(), open).prop_map(
        |(seat, consumers, order, [epoch, seen, rewinds, floor], used_up, used, open)| Cursor {
            job: seat.job,
            incarnation: seat.incarnation,
            consumers,
            consumer: seat.consumer,
            order,
            epoch: Epoch(epoch),
            seen: Stamp(seen),
            rewinds,
            floor: Window(floor),
            used_up,
            used,
            open: open.into_iter().map(|(window, at)| (Window(window), Offset(at))).collect(),
        },
    )
}

fn standings() -> impl Strategy<Value = Standing> {
    (any::<[u64; 4]>(), option::of(used())).prop_map(|([epoch, floor, rewinds, stamp], used)| {
        Standing { epoch: Epoch(epoch), floor: Window(floor), rewinds, stamp: Stamp(stamp), used }
    })
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        (text(), description(), any::<(u32, u32, u64)>()).prop_map(
            |(name, description, (consumers, consumer, nonce))| Request::OpenJob {
                name: JobName(name),
                description,
                consumers,
                consumer: ConsumerIndex(consumer),
                nonce: Nonce(nonce),
            }
        ),
        (seat(), any::<u64>(), any::<u32>(), start(), text()).prop_map(
            |(seat, nonce, consumers, start, hash)| Request::Restore {
                job: seat.job,
                consumer: seat.consumer,
                nonce: Nonce(nonce),
                ticket: seat.ticket,
                consumers,
                start,
                hash,
            }
        ),
        (seat(), any::<u64>(), cursor()).prop_map(|(seat, nonce, cursor)| Request::Attach {
            seat,
            nonce: Nonce(nonce),
            cursor
        }),
        (seat(), any::<(u64, u32)>(), cursor()).prop_map(|(seat, (sequence, want), cursor)| {
            Request::Get { seat, sequence, want, cursor }
        }),
        (seat(), cursor()).prop_map(|(seat, cursor)| Request::Commit { seat, cursor }),
        seat().prop_map(|Seat { job, incarnation, consumer, .. }| Request::Release {
            job,
            incarnation,
            consumer
        }),
        any::<u64>().prop_map(|job| Request::CloseJob { job: JobId(job) }),
    ]
}

fn refusal() -> impl Strategy<Value = Refusal> {
    let consumer = || any::<u32>().prop_map(ConsumerIndex);
    prop_oneof![
        (any::<[u64; 2]>(), consumer()).prop_map(|([asked, current], by)| {
            let (asked, current) = (Incarnation(asked), Incarnation(current));
            Refusal::StaleIncarnation { asked, current, by }
        }),
        (consumer(), text())
            .prop_map(|(consumer, reason)| Refusal::Superseded { consumer, reason }),
        (consumer(), text()).prop_map(|(consumer, what)| Refusal::NotYours { consumer, what }),
        (consumer(), any::<u64>(), text()).prop_map(|(consumer, epoch, reason)| {
            Refusal::RewoundTooFar { consumer, epoch: Epoch(epoch), reason }
        }),
        any::<u64>().prop_map(|job| Refusal::UnknownJob { job: JobId(job) }),
        text().prop_map(Refusal::Mismatch),
        (consumer(), any::<[u64; 2]>()).prop_map(|(consumer, [silent, windows])| {
            Refusal::Silent { consumer, silent, windows }
        }),
        text().prop_map(Refusal::Exhausted),
        text().prop_map(Refusal::RetryLater),
    ]
}

fn reply() -> impl Strategy<Value = Reply> {
    prop_oneof![
        (any::<[u64; 2]>(), life()).prop_map(|([job, ticket], life)| Reply::Opened {
            job: JobId(job),
            ticket: Ticket(ticket),
            life
        }),
        life().prop_map(|life| Reply::Restored { life }),
        standings().prop_map(|standing| Reply::Attached { standing }),
        (vec(any::<u64>().prop_map(Window), 0..20), standings())
            .prop_map(|(windows, standing)| Reply::Granted { windows, standing }),
        standings().prop_map(|standing| Reply::Wait { standing }),
        (any::<u64>(), standings())
            .prop_map(|(epoch, standing)| Reply::End { epoch: Epoch(epoch), standing }),
        standings().prop_map(|standing| Reply::Committed { standing }),
        Just(Reply::Released),
        Just(Reply::Closed),
        refusal().prop_map(Reply::Refused),
    ]
}

fn done() -> impl Strategy<Value = Done> {
    any::<[u64; 6]>().prop_map(|[job, steps, samples, bytes, shared, busy]| Done {
        job: JobId(job),
        steps,
        samples,
        bytes,
        shared,
        busy,
    })
}

fn worker() -> impl Strategy<Value = Worker> {
    (any::<u64>(), text(), vec(text(), 0..3), text(), any::<u32>(), any::<bool>()).prop_map(
        |(key, name, addresses, version, cores, draining)| Worker {
            key: WorkerKey(key),
            name,
            addresses,
            version,
            cores,
            draining,
        },
    )
}

fn rates() -> impl Strategy<Value = Rates> {
    (0.0..1e9, 0.0..1e9, 0.0..1e9).prop_map(|(steps, samples, bytes)| Rates {
        steps,
        samples,
        bytes,
    })
}

fn job_status() -> impl Strategy<Value = JobStatus> {
    let consumer = (any::<u32>(), any::<[bool; 2]>(), any::<[u64; 3]>(), rates(), 0.0..1.0);
    let consumer = consumer.prop_map(
        |(consumer, [attached, released], [silent_ms, held, buffered], rates, waiting)| {
            let consumer = ConsumerIndex(consumer);
            ConsumerStatus {
                consumer,
                attached,
                released,
                silent_ms,
                held,
                buffered,
                rates,
                waiting,
            }
        },
    );
    let parts = (description(), any::<[u64; 7]>(), text(), vec(consumer, 0..3), rates(), 0.0..1.0);
    parts.prop_map(|(description, numbers, name, consumers, rates, waiting)| {
        let [job, incarnation, epoch, windows_used, windows_total, windows_held, idle_ms] = numbers;
        JobStatus {
            job: JobId(job),
            name: JobName(name),
            dataset: description.dataset,
            order: description.order,
            visitation: description.visitation,
            incarnation: Incarnation(incarnation),
            epoch: Epoch(epoch),
            windows_used,
            windows_total,
            windows_held,
            idle_ms,
            consumers,
            rates,
            waiting,
        }
    })
}

fn status() -> impl Strategy<Value = Status> {
    let worker = (worker(), any::<[u64; 2]>(), any::<u32>(), rates(), 0.0..1.0, vec(done(), 0..3));
    let worker =
        worker.prop_map(|(worker, [silent_ms, memory], connections, rates, busy, jobs)| {
            WorkerStatus { worker, silent_ms, busy, memory, connections, rates, jobs }
        });
    let dataset = (text(), any::<[u32; 2]>(), any::<[u64; 2]>());
    let dataset = dataset.prop_map(|(id, [jobs, blobs], [bytes, idle_ms])| {
        let id = DatasetId(id);
        DatasetStatus { id, jobs, bytes, blobs, idle_ms }
    });
    let journal = (any::<[u64; 5]>(), any::<bool>()).prop_map(|(numbers, full)| {
        let [generation, records, durable, bytes, bytes_since_snapshot] = numbers;
        JournalStatus { generation, records, durable, bytes, bytes_since_snapshot, full }
    });
    let scale = (any::<[u32; 2]>(), text()).prop_map(|([wanted, present], reason)| ScaleStatus {
        wanted,
        present,
        reason,
    });
    let lists = (vec(job_status(), 0..3), vec(worker, 0..3), vec(dataset, 0..3));
    (text(), any::<u64>(), lists, journal, scale).prop_map(
        |(version, uptime_ms, (jobs, workers, datasets), journal, scale)| Status {
            version,
            uptime_ms,
            jobs,
            workers,
            datasets,
            journal,
            scale,
        },
    )
}

/// Through the bytes that the network carries.
fn sent<M: Message + Default>(message: M) -> M {
    M::decode(message.encode_to_vec().as_slice()).unwrap()
}

fn sent_call(call: Call) -> Call {
    match call {
        Call::OpenJob(message) => Call::OpenJob(sent(message)),
        Call::Restore(message) => Call::Restore(sent(message)),
        Call::Attach(message) => Call::Attach(sent(message)),
        Call::Get(message) => Call::Get(sent(message)),
        Call::Commit(message) => Call::Commit(sent(message)),
        Call::Release(message) => Call::Release(sent(message)),
        Call::CloseJob(message) => Call::CloseJob(sent(message)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn requests_survive_the_network(request in request()) {
        let again = Request::try_from(sent_call(Call::from(&request)));
        prop_assert_eq!(again, Ok(request));
    }

    #[test]
    fn replies_survive_the_network(reply in reply()) {
        let again = Reply::try_from(sent(proto::Reply::from(&reply)));
        prop_assert_eq!(again, Ok(reply));
    }

    #[test]
    fn what_is_said_beside_survives_the_network(
        (worker, jobs) in (worker(), vec(done(), 0..4)),
        busy in 0.0..1.0f64,
        (numbers, names) in (any::<[u64; 9]>(), vec(text(), 1..4)),
        drain in any::<bool>(),
    ) {
        let (memory, connections) = (numbers[0], numbers[1] as u32);
        let roster = Roster { version: numbers[2], workers: vec![worker.clone(), worker.clone()] };
        prop_assert_eq!(&Roster::from(sent(proto::Roster::from(&roster))), &roster);
        let beat = Beat { worker, busy, memory, connections, jobs };
        prop_assert_eq!(Beat::try_from(sent(proto::BeatRequest::from(&beat))), Ok(beat));
        let named = |name: &String| (DatasetId(name.clone()), numbers[3] as u32);
        let orders = Orders { datasets: names.iter().map(named).collect(), drain };
        prop_assert_eq!(&Orders::from(sent(proto::Orders::from(&orders))), &orders);
        let [job, consumer, epoch, steps, samples, bytes, waited, elapsed, buffered] = numbers;
        let (job, consumer) = (JobId(job), ConsumerIndex(consumer as u32));
        let report =
            Report { job, consumer, epoch, steps, samples, bytes, waited, elapsed, buffered };
        prop_assert_eq!(Report::from(sent(proto::ReportRequest::from(&report))), report);
        let dataset =
            Dataset { plan: names[0].clone(), manifest: names[0].clone(), blobs: names.clone() };
        prop_assert_eq!(&Dataset::from(sent(proto::Dataset::from(&dataset))), &dataset);
    }

    #[test]
    fn how_everything_stands_survives_the_network(status in status()) {
        let again = Status::try_from(sent(proto::StatusReply::from(&status)));
        prop_assert_eq!(again, Ok(status.clone()));
        let text = serde_json::to_string(&status).unwrap();
        prop_assert_eq!(serde_json::from_str::<Status>(&text).unwrap(), status);
    }

    #[test]
    fn garbage_is_refused_or_makes_sense(bytes in vec(any::<u8>(), 0..200)) {
        if let Ok(message) = proto::GetRequest::decode(bytes.as_slice()) {
            let _ = Request::try_from(Call::Get(message));
        }
        if let Ok(message) = proto::Reply::decode(bytes.as_slice()) {
            let _ = Reply::try_from(message);
        }
    }
}

#[test]
fn messages_that_lack_a_part_say_which() {
    let error = Request::try_from(Call::Get(proto::GetRequest::default())).unwrap_err();
    assert_eq!(error.to_string(), "the message makes no sense: it lacks a seat");
    let seat = Some(proto::Seat::default());
    let request = proto::CommitRequest { seat, cursor: Some(proto::Cursor::default()) };
    let error = Request::try_from(Call::Commit(request.clone())).unwrap_err();
    assert_eq!(error.to_string(), "the message makes no sense: there is no order 0");
    let cursor = proto::Cursor {
        order: proto::Order::Any.into(),
        used: Some(proto::Used { from: u64::MAX - 3, words: vec![1] }),
        ..proto::Cursor::default()
    };
    let far = proto::CommitRequest { cursor: Some(cursor.clone()), ..request.clone() };
    let error = Request::try_from(Call::Commit(far)).unwrap_err();
    assert!(error.to_string().contains("too far away"), "{error}");
    let open = vec![proto::Open { window: 3, offset: 0 }; 2];
    let twice = proto::Cursor { used: Some(proto::Used::default()), open, ..cursor };
    let twice = proto::CommitRequest { cursor: Some(twice), ..request };
    let error = Request::try_from(Call::Commit(twice)).unwrap_err();
    assert!(error.to_string().contains("do not rise"), "{error}");
    let error = Reply::try_from(proto::Reply::default()).unwrap_err();
    assert!(error.to_string().contains("an answer that this release knows"), "{error}");
    let nan = proto::BeatRequest {
        worker: Some(proto::Worker::default()),
        busy: f64::NAN,
        ..proto::BeatRequest::default()
    };
    assert!(Beat::try_from(nan).is_err());
}
