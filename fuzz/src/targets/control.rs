//! What is said to the dispatcher and by it: bytes of messages, and what the core makes of them.

use crate::runner::{came_to, ended};
use feedline_dispatcher::{Limits, Presence, State, decide, tidy};
use feedline_rpc::convert::{Call, Malformed};
use feedline_rpc::proto;
use feedline_wire::control::{Beat, Dataset, Orders, Report, Roster};
use feedline_wire::status::Status;
use feedline_wire::{
    ConsumerIndex, Cursor, Description, Epoch, Incarnation, JobId, JobName, Life, Nonce, Offset,
    Order, Refusal, Reply, Request, Seat, Stamp, Standing, Start, Ticket, Used, Visitation, Window,
    Windows,
};
use prost::Message;

fn read<M: Message + Default>(bytes: &[u8]) -> Option<M> {
    ended(M::decode(bytes))
}

/// The message that a byte stands for.
fn call(kind: u8, bytes: &[u8]) -> Option<Call> {
    Some(match kind % 7 {
        0 => Call::OpenJob(read(bytes)?),
        1 => Call::Restore(read(bytes)?),
        2 => Call::Attach(read(bytes)?),
        3 => Call::Get(read(bytes)?),
        4 => Call::Commit(read(bytes)?),
        5 => Call::Release(read(bytes)?),
        _ => Call::CloseJob(read(bytes)?),
    })
}

fn number(call: &Call) -> u8 {
    match call {
        Call::OpenJob(_) => 0,
        Call::Restore(_) => 1,
        Call::Attach(_) => 2,
        Call::Get(_) => 3,
        Call::Commit(_) => 4,
        Call::Release(_) => 5,
        Call::CloseJob(_) => 6,
    }
}

fn bytes_of(call: &Call) -> Vec<u8> {
    match call {
        Call::OpenJob(message) => message.encode_to_vec(),
        Call::Restore(message) => message.encode_to_vec(),
        Call::Attach(message) => message.encode_to_vec(),
        Call::Get(message) => message.encode_to_vec(),
        Call::Commit(message) => message.encode_to_vec(),
        Call::Release(message) => message.encode_to_vec(),
        Call::CloseJob(message) => message.encode_to_vec(),
    }
}

/// One message; its first byte says which.
pub fn message(input: &[u8]) {
    let Some((kind, bytes)) = input.split_first() else { return };
    match kind % 14 {
        kind @ 0..7 => {
            let Some(call) = call(kind, bytes) else { return };
            if let Some(request) = ended::<Request, Malformed>(call.try_into()) {
                let again = Request::try_from(Call::from(&request));
                assert_eq!(again.as_ref(), Ok(&request), "a request reads back");
            }
        }
        7 => {
            let Some(message) = read::<proto::Reply>(bytes) else { return };
            if let Some(reply) = ended::<Reply, Malformed>(message.try_into()) {
                let again = Reply::try_from(proto::Reply::from(&reply));
                assert_eq!(again.as_ref(), Ok(&reply), "a reply reads back");
            }
        }
        8 => {
            let message = read::<proto::BeatRequest>(bytes);
            let _ = message.and_then(|message| ended(Beat::try_from(message)));
        }
        9 => drop(read::<proto::ReportRequest>(bytes).map(Report::from)),
        10 => drop(read::<proto::Roster>(bytes).map(Roster::from)),
        11 => drop(read::<proto::Orders>(bytes).map(Orders::from)),
        12 => drop(read::<proto::Dataset>(bytes).map(Dataset::from)),
        _ => {
            let message = read::<proto::StatusReply>(bytes);
            let _ = message.and_then(|message| ended(Status::try_from(message)));
        }
    }
}

/// One message of each sort.
pub fn message_corpus() -> Vec<Vec<u8>> {
    let with = |kind: u8, bytes: Vec<u8>| [vec![kind], bytes].concat();
    let calls = requests().into_iter().map(|request| Call::from(&request));
    let mut corpus: Vec<Vec<u8>> = calls.map(|call| with(number(&call), bytes_of(&call))).collect();
    let standing = Standing {
        epoch: Epoch(2),
        floor: Window(300),
        rewinds: 1,
        stamp: Stamp(17),
        used: Some(Used::new(Window(64))),
    };
    let replies = [
        Reply::Attached { standing: standing.clone() },
        Reply::Wait { standing },
        Reply::Refused(Refusal::RetryLater("soon".into())),
    ];
    corpus.extend(replies.iter().map(|reply| with(7, proto::Reply::from(reply).encode_to_vec())));
    let worker = proto::Worker {
        key: 7,
        name: "w".into(),
        addresses: vec!["127.0.0.1:80".into()],
        ..Default::default()
    };
    let beat = proto::BeatRequest { worker: Some(worker.clone()), ..Default::default() };
    let roster = proto::Roster { version: 3, workers: vec![worker] };
    corpus.push(with(8, beat.encode_to_vec()));
    corpus.push(with(9, proto::ReportRequest::default().encode_to_vec()));
    corpus.push(with(10, roster.encode_to_vec()));
    corpus.push(with(11, proto::Orders::default().encode_to_vec()));
    corpus.push(with(
        12,
        proto::Dataset { plan: "range".into(), ..Default::default() }.encode_to_vec(),
    ));
    corpus.push(with(13, proto::StatusReply::default().encode_to_vec()));
    corpus
}

/// Several requests, one after another, to one dispatcher: each with a byte for its kind, and its
/// length in one byte.
pub fn conversation(mut input: &[u8]) {
    let mut state = State::default();
    let mut presence = Presence::new(0);
    let limits = Limits::default();
    let mut now = 0;
    while let Some((&[kind, length], rest)) = input.split_first_chunk() {
        let (bytes, rest) = rest.split_at(usize::from(length).min(rest.len()));
        input = rest;
        now += u64::from(length);
        let Some(call) = call(kind, bytes) else { continue };
        let Some(request) = ended::<Request, Malformed>(call.try_into()) else { continue };
        let decision = decide(&state, &presence, &limits, now, &request);
        if let Some((job, consumer)) = decision.heard {
            presence.heard(job, consumer, now);
        }
        match &decision.reply {
            Reply::Refused(refusal) => came_to(refusal),
            Reply::Granted { .. } => came_to("granted"),
            other => came_to(std::format_args!("{:.8}", format!("{other:?}"))),
        }
        decision.events.iter().for_each(|event| state.apply(event));
        // What was said once and is said again changes nothing more than the first time did.
        let again = decide(&state, &presence, &limits, now, &request);
        again.events.iter().for_each(|event| state.apply(event));
        let bytes = postcard::to_allocvec(&state).map_or(0, |bytes| bytes.len());
        assert!(bytes < 1 << 20, "a few hundred bytes made the state {bytes} bytes long");
    }
    tidy(&state, &presence, &limits, now).iter().for_each(|event| state.apply(event));
}

/// The whole conversation, and its beginnings.
pub fn conversation_corpus() -> Vec<Vec<u8>> {
    let mut corpus = vec![Vec::new()];
    for request in requests() {
        let call = Call::from(&request);
        let bytes = bytes_of(&call);
        let mut longer = corpus.last().cloned().unwrap_or_default();
        longer.extend([number(&call), bytes.len() as u8]);
        longer.extend(bytes);
        corpus.push(longer);
    }
    corpus
}

/// What a client says from its first word to its last.
pub(crate) fn requests() -> Vec<Request> {
    let windows = Windows { count: 10, steps: 4, last: 2 };
    let description = Description {
        dataset: "data".into(),
        visitation: Visitation::ExactlyOnce,
        order: Order::Any,
        windows,
    };
    let (consumer, nonce) = (ConsumerIndex(0), Nonce(5));
    let open = Request::OpenJob {
        name: JobName("job".into()),
        description,
        consumers: 2,
        consumer,
        nonce,
    };
    // The job's number is the dispatcher's to choose: it is asked for it.
    let (job, incarnation, ticket) = opened(&open);
    let seat = Seat { job, incarnation, consumer, ticket };
    let mut cursor = Cursor::new(&seat, 2, Order::Any, Epoch(0));
    let attach = Request::Attach { seat, nonce, cursor: cursor.clone() };
    let get = Request::Get { seat, sequence: 1, want: 3, cursor: cursor.clone() };
    cursor.seen = Stamp(4);
    cursor.open = [(Window(0), Offset(2)), (Window(1), Offset(0)), (Window(2), Offset(0))].into();
    let commit = Request::Commit { seat, cursor: cursor.clone() };
    cursor.open.remove(&Window(0));
    cursor.used.insert(Window(0));
    cursor.used_up = 1;
    let more = Request::Get { seat, sequence: 2, want: 3, cursor: cursor.clone() };
    let back = Request::Attach { seat, nonce: Nonce(6), cursor };
    let release = Request::Release { job, incarnation, consumer: ConsumerIndex(1) };
    let start = Start { epoch: Epoch(1), position: String::new(), windows };
    let hash = "ab".to_owned();
    let restore = Request::Restore { job, consumer, nonce, ticket, consumers: 3, start, hash };
    vec![open, attach, get, commit, more, back, release, restore, Request::CloseJob { job }]
}

fn opened(open: &Request) -> (JobId, Incarnation, Ticket) {
    let (state, presence) = (State::default(), Presence::new(0));
    let decision = decide(&state, &presence, &Limits::default(), 0, open);
    match decision.reply {
        Reply::Opened { job, life: Life { incarnation, .. }, ticket, .. } => {
            (job, incarnation, ticket)
        }
        other => panic!("a job cannot be opened: {other:?}"),
    }
}
