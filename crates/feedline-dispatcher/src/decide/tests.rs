//! Tests of what is decided.

use super::*;
use feedline_wire::{Offset, Windows};
use proptest::prelude::*;

/// A dispatcher without a server: what is decided is applied at once.
struct Desk {
    state: State,
    presence: Presence,
    limits: Limits,
    now: Millis,
    journal: Vec<Event>,
}

fn description(windows: u64) -> Description {
    Description {
        dataset: "images".into(),
        visitation: Visitation::ExactlyOnce,
        order: Order::Any,
        windows: Windows { count: windows, steps: 4, last: 4 },
    }
}

impl Desk {
    fn new() -> Self {
        let limits = Limits { client_timeout: 1_000, idle_timeout: 50_000, ..Limits::default() };
        let (state, presence) = (State::default(), Presence::new(0));
        Self { state, presence, limits, now: 0, journal: Vec::new() }
    }

    fn ask(&mut self, request: &Request) -> Reply {
        let decision = decide(&self.state, &self.presence, &self.limits, self.now, request);
        for event in decision.events {
            self.state.apply(&event);
            self.journal.push(event);
        }
        if let Some((job, consumer)) = decision.heard {
            self.presence.heard(job, consumer, self.now);
        }
        decision.reply
    }

    fn refusal(&mut self, request: &Request) -> Refusal {
        match self.ask(request) {
            Reply::Refused(refusal) => refusal,
            reply => panic!("{reply:?}"),
        }
    }

    fn open(&mut self, consumer: u32, nonce: u64, description: Description) -> Seat {
        let request = Request::OpenJob {
            name: JobName("job".into()),
            description,
            consumers: 2,
            consumer: ConsumerIndex(consumer),
            nonce: Nonce(nonce),
        };
        let Reply::Opened { job, ticket, life } = self.ask(&request) else { panic!() };
        let consumer = ConsumerIndex(consumer);
        Seat { job, incarnation: life.incarnation, consumer, ticket }
    }

    fn attach(&mut self, seat: Seat, nonce: u64, cursor: &mut Cursor) -> Reply {
        let cursor_then = cursor.clone();
        let request = Request::Attach { seat, nonce: Nonce(nonce), cursor: cursor_then };
        let reply = self.ask(&request);
        if let Reply::Attached { standing } = &reply {
            hear(cursor, standing);
        }
        reply
    }

    /// A client that is new to the job.
    fn join(&mut self, consumer: u32, nonce: u64, windows: u64) -> (Seat, Cursor) {
        let seat = self.open(consumer, nonce, description(windows));
        let mut cursor = Cursor::new(&seat, 2, Order::Any, Epoch(0));
        let reply = self.attach(seat, nonce, &mut cursor);
        assert!(matches!(reply, Reply::Attached { .. }), "{reply:?}");
        (seat, cursor)
    }

    fn get(&mut self, seat: Seat, sequence: u64, want: u32, cursor: &mut Cursor) -> Reply {
        let request = Request::Get { seat, sequence, want, cursor: cursor.clone() };
        let reply = self.ask(&request);
        match &reply {
            Reply::Granted { windows, standing } => {
                hear(cursor, standing);
                windows.iter().for_each(|window| {
                    cursor.open.insert(*window, Offset(0));
                });
            }
            Reply::Wait { standing } => hear(cursor, standing),
            Reply::End { standing, .. } => {
                cursor.next_epoch();
                hear(cursor, standing);
            }
            _ => {}
        }
        reply
    }

    fn release(&self, seat: Seat) -> Request {
        let Seat { job, incarnation, consumer, .. } = seat;
        Request::Release { job, incarnation, consumer }
    }
}

fn hear(cursor: &mut Cursor, standing: &Standing) {
    (cursor.seen, cursor.rewinds, cursor.floor) =
        (standing.stamp, standing.rewinds, standing.floor);
    if let Some(used) = &standing.used {
        cursor.used.join(used);
    }
}

fn use_up(cursor: &mut Cursor, window: u64) {
    cursor.open.remove(&Window(window)).expect("it is held");
    cursor.used.insert(Window(window));
    cursor.used_up += 1;
}

fn granted(reply: &Reply) -> Vec<u64> {
    match reply {
        Reply::Granted { windows, .. } => windows.iter().map(|window| window.0).collect(),
        reply => panic!("{reply:?}"),
    }
}

#[test]
fn windows_are_granted_in_bulk_to_whoever_asks() {
    let mut desk = Desk::new();
    let (one, mut first) = desk.join(0, 10, 8);
    let (two, mut second) = desk.join(1, 20, 8);
    assert_eq!(granted(&desk.get(one, 1, 3, &mut first)), [0, 1, 2]);
    assert_eq!(granted(&desk.get(two, 1, 4, &mut second)), [3, 4, 5, 6]);
    assert_eq!(granted(&desk.get(one, 2, 4, &mut first)), [7]);
    assert!(matches!(desk.get(two, 2, 4, &mut second), Reply::Wait { .. }));
}

#[test]
fn a_request_sent_twice_is_granted_once() {
    let mut desk = Desk::new();
    let (one, cursor) = desk.join(0, 10, 8);
    let first = desk.get(one, 1, 3, &mut cursor.clone());
    assert_eq!(desk.get(one, 1, 3, &mut cursor.clone()), first);
    let mut cursor = cursor;
    assert_eq!(granted(&desk.get(one, 2, 2, &mut cursor)), [0, 1, 2], "what was not heard of");
    assert_eq!(granted(&desk.get(one, 3, 2, &mut cursor)), [3, 4]);
    let old = desk.get(one, 1, 3, &mut Cursor { open: [].into(), ..cursor.clone() });
    assert!(matches!(old, Reply::Refused(Refusal::RetryLater(_))), "{old:?}");
}

#[test]
fn an_epoch_ends_when_all_is_used_and_that_is_written_down() {
    let mut desk = Desk::new();
    let (one, mut first) = desk.join(0, 10, 2);
    let (two, mut second) = desk.join(1, 20, 2);
    desk.get(one, 1, 1, &mut first);
    desk.get(two, 1, 1, &mut second);
    use_up(&mut first, 0);
    assert!(matches!(desk.get(one, 2, 1, &mut first), Reply::Wait { .. }));
    use_up(&mut second, 1);
    let end = Request::Commit { seat: two, cursor: second.clone() };
    assert!(matches!(desk.ask(&end), Reply::Committed { .. }));
    assert_eq!(desk.journal.last(), Some(&Event::Sealed { job: one.job, epoch: Epoch(0) }));
    let reply = desk.get(one, 3, 1, &mut first);
    assert!(matches!(reply, Reply::End { epoch: Epoch(0), .. }), "{reply:?}");
    assert_eq!(granted(&desk.get(one, 4, 2, &mut first)), [0, 1], "the next epoch");
    assert!(matches!(desk.get(two, 2, 1, &mut second), Reply::End { .. }), "late, but it hears");
}

#[test]
fn an_epoch_of_no_windows_ends_at_once() {
    let mut desk = Desk::new();
    let (one, mut cursor) = desk.join(0, 10, 0);
    assert!(matches!(desk.get(one, 1, 1, &mut cursor), Reply::End { .. }));
}

#[test]
fn endless_epochs_stay_near_the_prefix() {
    let mut desk = Desk::new();
    (desk.limits.spread, desk.limits.spread_each) = (4, 0);
    let (one, mut cursor) = desk.join(0, 10, u64::MAX);
    assert_eq!(granted(&desk.get(one, 1, 9, &mut cursor)), [0, 1, 2, 3]);
    assert!(matches!(desk.get(one, 2, 9, &mut cursor), Reply::Wait { .. }));
    use_up(&mut cursor, 0);
    use_up(&mut cursor, 2);
    assert_eq!(granted(&desk.get(one, 3, 9, &mut cursor)), [4]);
}

#[test]
fn endless_epochs_take_up_a_bounded_memory() {
    let mut desk = Desk::new();
    let (one, mut cursor) = desk.join(0, 10, u64::MAX);
    desk.get(one, 1, 64, &mut cursor);
    let early = cursor.clone();
    let mut sequence = 1;
    while cursor.floor.0 < 5 << 20 {
        let open: Vec<u64> = cursor.open.keys().map(|window| window.0).collect();
        open.into_iter().for_each(|window| use_up(&mut cursor, window));
        sequence += 1;
        desk.get(one, sequence, 64, &mut cursor);
        cursor.used.forget_below(cursor.floor);
        desk.journal.clear();
    }
    assert!(desk.state.job(one.job).unwrap().window_bytes() < 24 << 20);
    let seat = desk.open(0, 11, description(u64::MAX));
    let refused = desk.attach(seat, 11, &mut early.clone());
    assert!(matches!(refused, Reply::Refused(Refusal::RewoundTooFar { .. })), "{refused:?}");
    assert!(matches!(desk.attach(seat, 11, &mut cursor), Reply::Attached { .. }));
    desk.join(1, 20, u64::MAX);
}

#[test]
fn a_client_that_goes_back_gives_up_what_it_had_since() {
    let mut desk = Desk::new();
    let (one, mut cursor) = desk.join(0, 10, 8);
    desk.get(one, 1, 2, &mut cursor);
    let saved = cursor.clone();
    use_up(&mut cursor, 0);
    desk.get(one, 2, 2, &mut cursor);
    let later = cursor.clone();
    // A new process loads the older checkpoint.
    let seat = desk.open(0, 11, description(8));
    let mut cursor = saved.clone();
    desk.attach(seat, 11, &mut cursor);
    assert_eq!((cursor.rewinds, cursor.floor), (1, Window(0)));
    let (two, mut other) = desk.join(1, 20, 8);
    assert_eq!(granted(&desk.get(two, 1, 2, &mut other)), [2, 3], "free ones first");
    // What was saved after it is void.
    let seat = desk.open(0, 12, description(8));
    let refused = desk.attach(seat, 12, &mut later.clone());
    assert!(matches!(refused, Reply::Refused(Refusal::NotYours { .. })), "{refused:?}");
    let mut again = saved;
    assert!(matches!(desk.attach(seat, 12, &mut again), Reply::Attached { .. }));
}

#[test]
fn an_old_process_is_not_heard() {
    let mut desk = Desk::new();
    let (old, mut cursor) = desk.join(0, 10, 8);
    desk.get(old, 1, 2, &mut cursor);
    let saved = cursor.clone();
    let new = desk.open(0, 11, description(8));
    desk.attach(new, 11, &mut cursor);
    for request in [
        Request::Get { seat: old, sequence: 9, want: 1, cursor: saved.clone() },
        Request::Commit { seat: old, cursor: saved.clone() },
        Request::Attach { seat: old, nonce: Nonce(10), cursor: saved.clone() },
    ] {
        let refusal = desk.refusal(&request);
        assert!(matches!(refusal, Refusal::Superseded { .. }), "{refusal}");
    }
    assert_eq!(desk.open(0, 11, description(8)), new, "the same process keeps its ticket");
}

#[test]
fn one_client_alone_cannot_go_back_into_a_sealed_epoch() {
    let mut desk = Desk::new();
    let (one, mut cursor) = desk.join(0, 10, 2);
    desk.get(one, 1, 2, &mut cursor);
    use_up(&mut cursor, 0);
    let saved = cursor.clone();
    use_up(&mut cursor, 1);
    let complete = cursor.clone();
    desk.get(one, 2, 2, &mut cursor);
    let seat = desk.open(0, 11, description(2));
    let refused = desk.attach(seat, 11, &mut saved.clone());
    assert!(matches!(refused, Reply::Refused(Refusal::RewoundTooFar { .. })), "{refused:?}");
    // A checkpoint that has all of the epoch is as good as one after it.
    let mut cursor = complete;
    assert!(matches!(desk.attach(seat, 11, &mut cursor), Reply::Attached { .. }));
    assert!(matches!(desk.get(seat, 1, 2, &mut cursor), Reply::End { .. }));
}

#[test]
fn the_same_ticket_with_another_cursor_is_refused() {
    let mut desk = Desk::new();
    let (one, cursor) = desk.join(0, 10, 8);
    let fresh = Cursor::new(&one, 2, Order::Any, Epoch(0));
    let again = Request::Attach { seat: one, nonce: Nonce(10), cursor: fresh };
    let events = desk.journal.len();
    assert!(matches!(desk.ask(&again), Reply::Attached { .. }), "the same again is harmless");
    assert_eq!(desk.journal.len(), events);
    let other = Request::Attach { seat: one, nonce: Nonce(10), cursor };
    assert!(matches!(desk.refusal(&other), Refusal::Mismatch(_)));
}

fn restore(desk: &mut Desk, seat: Seat, nonce: u64, hash: &str) -> Reply {
    let start = Start {
        epoch: Epoch(3),
        position: "somewhere".into(),
        windows: Windows { count: 5, steps: 4, last: 1 },
    };
    let Seat { job, consumer, ticket, .. } = seat;
    let (nonce, hash) = (Nonce(nonce), hash.to_owned());
    desk.ask(&Request::Restore { job, consumer, nonce, ticket, consumers: 2, start, hash })
}

fn incarnation(reply: Reply) -> u64 {
    match reply {
        Reply::Restored { life } => life.incarnation.0,
        reply => panic!("{reply:?}"),
    }
}

/// Takes a seat in an incarnation.
fn take_seat(desk: &mut Desk, seat: Seat, nonce: u64, incarnation: u64) -> Seat {
    let seat = Seat { incarnation: Incarnation(incarnation), ..seat };
    let mut cursor = Cursor::new(&seat, 2, Order::Any, Epoch(3));
    let reply = desk.attach(seat, nonce, &mut cursor);
    assert!(matches!(reply, Reply::Attached { .. }), "{reply:?}");
    seat
}

#[test]
fn the_first_to_restore_opens_and_the_others_join() {
    let mut desk = Desk::new();
    let (old, cursor) = desk.join(0, 10, 8);
    let [one, two] = [desk.open(0, 11, description(8)), desk.open(1, 21, description(8))];
    assert_eq!(incarnation(restore(&mut desk, one, 11, "state")), 2);
    assert_eq!(incarnation(restore(&mut desk, two, 21, "state")), 2);
    assert_eq!(incarnation(restore(&mut desk, one, 11, "state")), 2, "asked twice");
    let one = take_seat(&mut desk, one, 11, 2);
    assert_eq!(incarnation(restore(&mut desk, one, 11, "state")), 2, "asked late");
    let refusal = desk.refusal(&Request::Commit { seat: old, cursor });
    let wanted = Refusal::StaleIncarnation {
        asked: Incarnation(1),
        current: Incarnation(2),
        by: ConsumerIndex(0),
    };
    assert_eq!(refusal, wanted, "who restored is named");
    assert_eq!(desk.state.job(one.job).unwrap().epoch(), Epoch(3));
}

#[test]
fn the_same_state_restored_again_after_a_crash_is_a_new_incarnation() {
    let mut desk = Desk::new();
    let [one, two] = [desk.open(0, 11, description(8)), desk.open(1, 21, description(8))];
    restore(&mut desk, one, 11, "state");
    take_seat(&mut desk, one, 11, 2);
    take_seat(&mut desk, two, 21, 2);
    let [again, other] = [desk.open(0, 12, description(8)), desk.open(1, 22, description(8))];
    assert_eq!(incarnation(restore(&mut desk, again, 12, "state")), 3);
    assert_eq!(incarnation(restore(&mut desk, other, 22, "state")), 3);
    // What a process of the time before said arrives late.
    take_seat(&mut desk, again, 12, 3);
    let late = restore(&mut desk, one, 11, "state");
    assert!(matches!(late, Reply::Refused(Refusal::Superseded { .. })), "{late:?}");
    let late = restore(&mut desk, two, 21, "another state");
    assert!(matches!(late, Reply::Refused(Refusal::StaleIncarnation { .. })), "{late:?}");
}

#[test]
fn time_names_a_silent_client_and_moves_nothing() {
    let mut desk = Desk::new();
    let (one, mut first) = desk.join(0, 10, 4);
    let (two, mut second) = desk.join(1, 20, 4);
    desk.get(two, 1, 2, &mut second);
    desk.get(one, 1, 2, &mut first);
    assert!(matches!(desk.get(one, 2, 1, &mut first), Reply::Wait { .. }));
    desk.now = 5_000;
    use_up(&mut first, 2);
    let busy = desk.get(one, 3, 1, &mut first);
    assert!(matches!(busy, Reply::Wait { .. }), "it still has something to do: {busy:?}");
    use_up(&mut first, 3);
    let get = Request::Get { seat: one, sequence: 4, want: 1, cursor: first.clone() };
    let silent = Refusal::Silent { consumer: ConsumerIndex(1), silent: 5_000, windows: 2 };
    assert_eq!(desk.refusal(&get), silent);
    assert!(!desk.journal.iter().any(|event| matches!(event, Event::Released { .. })));
    assert_eq!(desk.ask(&desk.release(two)), Reply::Released);
    assert_eq!(granted(&desk.get(one, 5, 9, &mut first)), [0, 1]);
    let refusal = desk.refusal(&Request::Commit { seat: two, cursor: second });
    assert!(matches!(refusal, Refusal::Superseded { .. }), "{refusal}");
}

#[test]
fn who_takes_a_released_clients_seat_inherits_what_it_used() {
    let mut desk = Desk::new();
    let (lost, mut cursor) = desk.join(0, 10, 4);
    desk.get(lost, 1, 2, &mut cursor);
    use_up(&mut cursor, 0);
    desk.get(lost, 2, 1, &mut cursor);
    desk.ask(&desk.release(lost));
    for nonce in [11, 12] {
        // Also when it crashes before it could save anything.
        let (seat, fresh) = desk.join(0, nonce, 4);
        assert_eq!(fresh.used.iter().collect::<Vec<_>>(), [Window(0)]);
        let mut again = Cursor::new(&seat, 2, Order::Any, Epoch(0));
        desk.attach(seat, nonce, &mut again);
        assert_eq!(again.used, fresh.used, "it did not hear the first time");
    }
    let seat = desk.open(0, 13, description(4));
    let refused = desk.attach(seat, 13, &mut cursor);
    assert!(matches!(refused, Reply::Refused(Refusal::NotYours { .. })), "{refused:?}");
}

#[test]
fn where_nothing_may_come_twice_nothing_is_granted_twice() {
    let mut desk = Desk::new();
    let description = Description { visitation: Visitation::AtMostOnce, ..description(4) };
    let seat = desk.open(0, 10, description.clone());
    let mut cursor = Cursor::new(&seat, 2, Order::Any, Epoch(0));
    desk.attach(seat, 10, &mut cursor);
    let unheard = cursor.clone();
    assert_eq!(granted(&desk.get(seat, 1, 3, &mut cursor)), [0, 1, 2]);
    assert_eq!(granted(&desk.get(seat, 1, 3, &mut unheard.clone())), [0, 1, 2], "not heard yet");
    let seat = desk.open(0, 11, description);
    let mut cursor = Cursor::new(&seat, 2, Order::Any, Epoch(0));
    desk.attach(seat, 11, &mut cursor);
    assert_eq!(granted(&desk.get(seat, 1, 3, &mut cursor)), [3]);
    assert!(matches!(desk.get(seat, 2, 3, &mut cursor), Reply::End { .. }));
}

#[test]
fn with_order_exact_nobody_has_to_ask() {
    let mut desk = Desk::new();
    let description = Description { order: Order::Exact, ..description(8) };
    let seat = desk.open(1, 10, description.clone());
    let mut cursor = Cursor::new(&seat, 2, Order::Exact, Epoch(7));
    assert!(matches!(desk.attach(seat, 10, &mut cursor), Reply::Attached { .. }));
    let get = Request::Get { seat, sequence: 1, want: 1, cursor: cursor.clone() };
    assert!(matches!(desk.refusal(&get), Refusal::Mismatch(_)));
    let commit = Request::Commit { seat, cursor };
    assert!(matches!(desk.ask(&commit), Reply::Committed { .. }));
    let description = Description { visitation: Visitation::AtMostOnce, ..description };
    let request = Request::OpenJob {
        name: JobName("other".into()),
        description,
        consumers: 2,
        consumer: ConsumerIndex(0),
        nonce: Nonce(1),
    };
    assert!(matches!(desk.refusal(&request), Refusal::Mismatch(_)));
}

#[test]
fn a_job_is_what_it_was_created_as() {
    let mut desk = Desk::new();
    desk.open(0, 10, description(8));
    let request = |description| Request::OpenJob {
        name: JobName("job".into()),
        description,
        consumers: 2,
        consumer: ConsumerIndex(0),
        nonce: Nonce(3),
    };
    let other = Description { dataset: "text".into(), ..description(8) };
    let refusal = desk.refusal(&request(other)).to_string();
    assert!(refusal.contains("dataset images, and this client has text"), "{refusal}");
    let refusal = desk.refusal(&request(description(9))).to_string();
    assert!(refusal.contains("8 windows of 4 steps"), "{refusal}");
    desk.limits.most_jobs = 1;
    let Request::OpenJob { description, consumers, consumer, nonce, .. } = request(description(8))
    else {
        panic!()
    };
    let name = JobName("second".into());
    let second = Request::OpenJob { name, description, consumers, consumer, nonce };
    assert!(matches!(desk.refusal(&second), Refusal::Exhausted(_)));
}

#[test]
fn a_closed_jobs_name_is_free_and_its_number_is_not() {
    let mut desk = Desk::new();
    let (old, cursor) = desk.join(0, 10, 8);
    assert_eq!(desk.ask(&Request::CloseJob { job: old.job }), Reply::Closed);
    assert_eq!(desk.ask(&Request::CloseJob { job: old.job }), Reply::Closed, "asked twice");
    let refusal = desk.refusal(&Request::Commit { seat: old, cursor });
    assert_eq!(refusal, Refusal::UnknownJob { job: old.job });
    let new = desk.open(0, 10, description(8));
    assert_ne!(new.job, old.job);
}

#[test]
fn idle_jobs_are_closed() {
    let mut desk = Desk::new();
    let (seat, cursor) = desk.join(0, 10, 8);
    desk.now = 49_999;
    assert_eq!(tidy(&desk.state, &desk.presence, &desk.limits, desk.now), []);
    desk.ask(&Request::Commit { seat, cursor });
    desk.now = 99_999;
    let closed = tidy(&desk.state, &desk.presence, &desk.limits, desk.now);
    assert_eq!(closed, [Event::JobClosed { job: seat.job, reason: CloseReason::Idle }]);
    closed.iter().for_each(|event| desk.state.apply(event));
    assert_eq!(desk.state.find(&JobName("job".into())), None);
}

#[test]
fn replies_that_tell_something_wait_for_the_journal() {
    let desk = Desk::new();
    let asked = |request: &Request| {
        decide(&desk.state, &desk.presence, &desk.limits, 0, request).needs_sync()
    };
    assert!(asked(&Request::CloseJob { job: JobId(1) }), "that there is none is news too");
    let refused = Decision::from(Refusal::RetryLater("the disk is full".into()));
    assert!(!refused.needs_sync());
}

/// Something that a client, or a former process of it, could say.
#[derive(Clone, Debug)]
enum Said {
    Open(u32, u64),
    Attach(usize),
    Get(usize, u32),
    UseAndCommit(usize, u64),
    Restore(usize, u8),
    Release(u32),
    Close,
}

fn said() -> impl Strategy<Value = Said> {
    prop_oneof![
        2 => (0..2u32, 0..6u64).prop_map(|(consumer, nonce)| Said::Open(consumer, nonce)),
        3 => (0..9usize).prop_map(Said::Attach),
        6 => (0..9usize, 0..4u32).prop_map(|(who, want)| Said::Get(who, want)),
        6 => (0..9usize, any::<u64>()).prop_map(|(who, which)| Said::UseAndCommit(who, which)),
        1 => (0..9usize, 0..3u8).prop_map(|(who, hash)| Said::Restore(who, hash)),
        1 => (0..2u32).prop_map(Said::Release),
        1 => Just(Said::Close),
    ]
}

proptest! {
    #[test]
    fn replaying_the_journal_rebuilds_the_state(
        conversation in proptest::collection::vec(said(), 1..80),
        visitation in prop_oneof![Just(Visitation::ExactlyOnce), Just(Visitation::AtMostOnce)],
    ) {
        let mut desk = Desk::new();
        let description = Description { visitation, ..description(6) };
        // Processes, with the cursor each has come to.
        let mut known: Vec<(Seat, u64, Cursor)> = Vec::new();
        for (sequence, said) in conversation.into_iter().enumerate() {
            let count = known.len().max(1);
            match said {
                Said::Open(consumer, nonce) => {
                    let seat = desk.open(consumer, nonce, description.clone());
                    let cursor = Cursor::new(&seat, 2, Order::Any, Epoch(0));
                    known.push((seat, nonce, cursor));
                }
                Said::Attach(who) => if let Some((seat, nonce, cursor)) = known.get_mut(who % count) {
                    desk.attach(*seat, *nonce, cursor);
                },
                Said::Get(who, want) => if let Some((seat, _, cursor)) = known.get_mut(who % count) {
                    desk.get(*seat, sequence as u64, want, cursor);
                },
                Said::UseAndCommit(who, which) => {
                    if let Some((seat, _, cursor)) = known.get_mut(who % count) {
                        let open: Vec<u64> = cursor.open.keys().map(|window| window.0).collect();
                        if !open.is_empty() {
                            use_up(cursor, open[which as usize % open.len()]);
                        }
                        desk.ask(&Request::Commit { seat: *seat, cursor: cursor.clone() });
                    }
                }
                Said::Restore(who, hash) => if let Some((seat, nonce, cursor)) = known.get_mut(who % count) {
                    let reply = restore(&mut desk, *seat, *nonce, &hash.to_string());
                    if let Reply::Restored { life } = reply {
                        seat.incarnation = life.incarnation;
                        *cursor = Cursor::new(seat, 2, Order::Any, life.start.epoch);
                    }
                },
                Said::Release(consumer) => if let Some((seat, ..)) = known.first() {
                    let seat = Seat { consumer: ConsumerIndex(consumer), ..*seat };
                    desk.ask(&desk.release(seat));
                },
                Said::Close => if let Some((seat, ..)) = known.first() {
                    desk.ask(&Request::CloseJob { job: seat.job });
                },
            }
        }
        let mut replayed = State::default();
        for event in &desk.journal {
            let text = serde_json::to_string(&crate::Record::new(event.clone())).unwrap();
            let record: crate::Record = serde_json::from_str(&text).unwrap();
            replayed.apply(&record.into_event().unwrap());
        }
        prop_assert_eq!(&replayed, &desk.state);
        let snapshot = serde_json::to_string(&desk.state).unwrap();
        prop_assert_eq!(serde_json::from_str::<State>(&snapshot).unwrap(), replayed);
    }
}
