//! Tests of the client's core.

use super::*;
use feedline_wire::{Stamp, Used};

const ONE: WorkerId = WorkerId(1);
const TWO: WorkerId = WorkerId(2);

fn config(order: Order) -> Config {
    let windows = Windows { count: 6, steps: 2, last: 2 };
    let visitation = Visitation::ExactlyOnce;
    let description = Description { dataset: "images".into(), visitation, order, windows };
    let name = JobName("job".into());
    Config::new(name, description, 2, ConsumerIndex(0), Nonce(7))
}

fn standing(epoch: u64, floor: u64, stamp: u64) -> Standing {
    let (epoch, floor, stamp) = (Epoch(epoch), Window(floor), Stamp(stamp));
    Standing { epoch, floor, rewinds: 0, stamp, used: None }
}

fn actions(client: &mut Client<u64>) -> Vec<Action<u64>> {
    std::iter::from_fn(|| client.action()).collect()
}

/// The request that a client sends, and its number.
fn sent(client: &mut Client<u64>) -> (u64, Request) {
    let sent = actions(client).into_iter().find_map(|action| match action {
        Action::Send { sequence, request } => Some((sequence, request)),
        _ => None,
    });
    sent.expect("it says something")
}

fn fetches(actions: &[Action<u64>]) -> Vec<(WorkerId, u64, u64)> {
    let fetch = |action: &Action<u64>| match action {
        Action::Fetch { worker, fetch } => Some((*worker, fetch.window.0, fetch.from.0)),
        _ => None,
    };
    actions.iter().filter_map(fetch).collect()
}

fn life() -> Life {
    let windows = Windows { count: 6, steps: 2, last: 2 };
    let start = Start { epoch: Epoch(0), position: String::new(), windows };
    Life { incarnation: Incarnation(1), consumers: 2, start }
}

/// A client that has its seat and asks for windows.
fn seated(order: Order, begin: Begin) -> Client<u64> {
    let mut client = Client::new(config(order), begin, 0);
    client.workers(0, &[ONE]);
    let (sequence, _) = sent(&mut client);
    let opened = Reply::Opened { job: JobId(1), ticket: Ticket(3), life: life() };
    client.reply(0, sequence, opened);
    let (sequence, request) = sent(&mut client);
    assert!(matches!(request, Request::Attach { .. }), "{request:?}");
    client.reply(0, sequence, Reply::Attached { standing: standing(0, 0, 1) });
    client
}

/// A client that holds these windows.
fn holding(windows: &[u64]) -> Client<u64> {
    let mut client = seated(Order::Any, Begin::Fresh);
    let (sequence, request) = sent(&mut client);
    assert!(matches!(request, Request::Get { .. }), "{request:?}");
    let windows = windows.iter().copied().map(Window).collect();
    client.reply(0, sequence, Reply::Granted { windows, standing: standing(0, 0, 2) });
    client
}

fn data(window: u64, offset: u64, steps: &[u64], end: bool) -> Data<u64> {
    Data {
        incarnation: Incarnation(1),
        epoch: Epoch(0),
        window: Window(window),
        offset: Offset(offset),
        steps: steps.to_vec(),
        end,
    }
}

fn delivered(client: &mut Client<u64>) -> Vec<u64> {
    let batch = |action| match action {
        Action::Deliver { batch, .. } => Some(batch),
        _ => None,
    };
    actions(client).into_iter().filter_map(batch).collect()
}

fn cursor(client: &mut Client<u64>) -> Cursor {
    client.checkpoint().expect("it has its seat").cursor
}

#[test]
fn data_is_taken_only_at_the_next_offset() {
    let mut client = holding(&[0]);
    client.next(1);
    actions(&mut client);
    client.data(1, ONE, data(0, 1, &[11], true));
    assert!(delivered(&mut client).is_empty(), "too early");
    client.data(2, ONE, data(0, 0, &[10], false));
    client.data(3, ONE, data(0, 0, &[10], false));
    client.data(4, ONE, Data { epoch: Epoch(1), ..data(0, 1, &[99], true) });
    assert_eq!(delivered(&mut client), [10]);
    client.next(5);
    assert!(delivered(&mut client).is_empty(), "twice is once");
    client.data(6, ONE, data(0, 1, &[11], true));
    assert_eq!(delivered(&mut client), [11]);
}

#[test]
fn the_cursor_is_what_was_used_not_what_was_received() {
    let mut client = holding(&[0, 1]);
    client.data(1, ONE, data(0, 0, &[10, 11], true));
    client.data(1, ONE, data(1, 0, &[12, 13], true));
    assert!(cursor(&mut client).is_untouched());
    client.next(1);
    let report = client.cursor.open[&Window(0)];
    assert_eq!(report, Offset(0), "the trainer has it, and may not have used it");
    assert_eq!(cursor(&mut client).open[&Window(0)], Offset(1), "who saves has used it");
    client.next(2);
    client.next(3);
    let cursor = cursor(&mut client);
    assert!(cursor.is_used(Window(0)) && !cursor.is_used(Window(1)));
    assert_eq!((cursor.open[&Window(1)], cursor.used_up), (Offset(1), 1));
}

#[test]
fn another_worker_is_asked_when_one_is_gone_or_slow() {
    let mut client = holding(&[0]);
    let first = actions(&mut client);
    assert_eq!(fetches(&first), [(ONE, 0, 0)]);
    client.workers(0, &[ONE, TWO]);
    client.data(100, ONE, data(0, 0, &[10], false));
    client.worker_gone(200, ONE);
    assert_eq!(fetches(&actions(&mut client)), [(TWO, 0, 1)], "from where it stands");
    client.tick(1_199);
    assert_eq!(fetches(&actions(&mut client)), []);
    client.tick(1_200);
    assert_eq!(fetches(&actions(&mut client)), [(ONE, 0, 1)]);
    client.set_fetch_p99(2_000);
    client.tick(13_199);
    assert_eq!(fetches(&actions(&mut client)), [], "twice three times what is usual");
    client.tick(13_200);
    assert_eq!(fetches(&actions(&mut client)), [(TWO, 0, 1)]);
}

#[test]
fn when_all_workers_fail_the_first_is_asked_again_as_soon_as_it_may_be() {
    let mut client = holding(&[0]);
    client.workers(0, &[ONE, TWO]);
    actions(&mut client);
    client.worker_gone(200, ONE);
    client.worker_gone(210, TWO);
    actions(&mut client);
    assert_eq!(client.wake(), Some(250), "the pause of the first");
    // Whoever tells the time may be late: it is wanted until it was told.
    client.data(300, ONE, Data { epoch: Epoch(7), ..data(0, 0, &[], false) });
    assert_eq!(fetches(&actions(&mut client)), [(ONE, 0, 0)]);
    client.worker_gone(400, ONE);
    client.worker_gone(401, TWO);
    actions(&mut client);
    let wake = client.wake().expect("it wants to be told");
    client.tick(wake);
    assert_eq!(fetches(&actions(&mut client)).len(), 1);
    assert!(client.wake().is_some_and(|at| at > wake));
}

#[test]
fn in_exact_order_a_client_can_begin_at_any_step_of_its_own() {
    let windows = Windows { count: 6, steps: 2, last: 2 };
    let start = Start { epoch: Epoch(4), position: "rest".into(), windows };
    let begin = Begin::At { start: start.clone(), own: 1, offset: Offset(1) };
    let mut client: Client<u64> = Client::new(config(Order::Exact), begin.clone(), 0);
    let (sequence, _) = sent(&mut client);
    client.workers(0, &[ONE]);
    let opened = Reply::Opened { job: JobId(1), ticket: Ticket(3), life: life() };
    client.reply(0, sequence, opened.clone());
    assert!(client.is_attached() && client.start() == &start);
    assert_eq!(fetches(&actions(&mut client)), [(ONE, 2, 1), (ONE, 4, 0)]);
    client.tick(100_000);
    let said = actions(&mut client);
    assert!(!said.iter().any(|one| matches!(one, Action::Send { .. })), "nobody is told");
    let mut dealt: Client<u64> = Client::new(config(Order::Any), begin, 0);
    let (sequence, _) = sent(&mut dealt);
    dealt.reply(0, sequence, opened);
    let said = actions(&mut dealt);
    assert!(matches!(&said[..], [Action::Fail(Error::Refused(_))]), "{said:?}");
}

#[test]
fn a_request_is_repeated_under_its_number() {
    let mut client: Client<u64> = Client::new(config(Order::Any), Begin::Fresh, 0);
    let first = sent(&mut client);
    client.tick(999);
    assert_eq!(actions(&mut client), []);
    client.tick(1_000);
    assert_eq!(sent(&mut client), first);
    let opened = Reply::Opened { job: JobId(1), ticket: Ticket(3), life: life() };
    client.reply(1_100, first.0 + 1, opened.clone());
    assert_eq!(actions(&mut client), [], "an answer to something else");
    client.reply(1_100, first.0, opened.clone());
    let (sequence, _) = sent(&mut client);
    assert_eq!(sequence, first.0 + 1);
    client.reply(1_200, first.0, opened);
    assert_eq!(actions(&mut client), [], "an answer that was heard before");
}

#[test]
fn what_is_fetched_ahead_is_bounded() {
    let mut client = seated(Order::Any, Begin::Fresh);
    (client.config.steps_ahead, client.config.steps_per_fetch) = (3, 2);
    let (sequence, _) = sent(&mut client);
    let windows = vec![Window(0), Window(1), Window(2)];
    client.reply(0, sequence, Reply::Granted { windows, standing: standing(0, 0, 2) });
    assert_eq!(fetches(&actions(&mut client)), [(ONE, 0, 0), (ONE, 1, 0)]);
    client.data(1, ONE, data(0, 0, &[10, 11], true));
    client.data(1, ONE, data(1, 0, &[12, 13], true));
    assert_eq!(fetches(&actions(&mut client)), [], "four steps wait");
    client.next(2);
    client.next(3);
    assert_eq!(fetches(&actions(&mut client)), [(ONE, 2, 0)]);
}

#[test]
fn a_window_of_no_steps_is_used_up_at_once() {
    let mut client = holding(&[0]);
    client.data(1, ONE, data(0, 0, &[], true));
    assert_eq!(cursor(&mut client).used_up, 1);
}

#[test]
fn what_is_said_of_another_epoch_is_not_believed() {
    let mut client = holding(&[0]);
    client.data(1, ONE, data(0, 0, &[10], true));
    client.next(1);
    client.next(2);
    let (sequence, _) = sent(&mut client);
    client.reply(3, sequence, Reply::End { epoch: Epoch(0), standing: standing(1, 0, 2) });
    assert!(actions(&mut client).contains(&Action::EndOfEpoch(Epoch(0))));
    let (sequence, _) = client.pending.as_ref().map(|one| (one.sequence, ())).expect("it asks");
    client.reply(4, sequence, Reply::Committed { standing: standing(0, 6, 2) });
    assert_eq!(cursor(&mut client).floor, Window(0));
}

#[test]
fn with_order_exact_windows_follow_from_the_number() {
    let mut client = seated(Order::Exact, Begin::Fresh);
    let asked = fetches(&actions(&mut client));
    assert_eq!(asked, [(ONE, 0, 0), (ONE, 2, 0), (ONE, 4, 0)]);
    client.data(1, ONE, data(2, 0, &[20, 21], true));
    client.next(1);
    assert!(delivered(&mut client).is_empty(), "in turn");
    client.data(2, ONE, data(0, 0, &[10, 11], true));
    client.data(2, ONE, data(4, 0, &[], true));
    let mut batches = delivered(&mut client);
    for now in 3..6 {
        client.next(now);
        batches.extend(delivered(&mut client));
    }
    assert_eq!(batches, [10, 11, 20, 21]);
    client.next(7);
    let said = actions(&mut client);
    assert!(said.contains(&Action::EndOfEpoch(Epoch(0))), "{said:?}");
    assert!(!said.iter().any(|action| matches!(action, Action::Send { .. })));
    assert_eq!(cursor(&mut client).epoch, Epoch(1));
}

#[test]
fn a_client_goes_on_where_its_checkpoint_stands() {
    let mut client = holding(&[0, 3]);
    client.data(1, ONE, data(3, 0, &[30], false));
    client.next(1);
    let checkpoint = client.checkpoint().expect("it has its seat");
    let text = serde_json::to_string(&checkpoint).unwrap();
    let checkpoint = serde_json::from_str(&text).unwrap();
    let mut client = seated(Order::Any, Begin::Resume(checkpoint));
    assert_eq!(fetches(&actions(&mut client)), [(ONE, 0, 0), (ONE, 3, 1)]);
}

#[test]
fn a_checkpoint_of_another_job_is_refused() {
    let checkpoint = holding(&[0]).checkpoint().expect("it has its seat");
    let mut client: Client<u64> = Client::new(config(Order::Any), Begin::Resume(checkpoint), 0);
    let (sequence, _) = sent(&mut client);
    let opened = Reply::Opened { job: JobId(2), ticket: Ticket(3), life: life() };
    client.reply(0, sequence, opened);
    let said = actions(&mut client);
    assert!(matches!(said[..], [Action::Fail(Error::OtherJob { .. })]), "{said:?}");
}

#[test]
fn who_restores_joins_again_while_nothing_was_used() {
    let begin = Begin::Restore { start: life().start, hash: "state".into() };
    let mut client: Client<u64> = Client::new(config(Order::Any), begin, 0);
    let (sequence, _) = sent(&mut client);
    let opened = Reply::Opened { job: JobId(1), ticket: Ticket(3), life: life() };
    client.reply(0, sequence, opened);
    let stale = || {
        let (asked, current) = (Incarnation(2), Incarnation(3));
        Reply::Refused(Refusal::StaleIncarnation { asked, current, by: ConsumerIndex(1) })
    };
    for incarnation in [2, 3] {
        let (sequence, request) = sent(&mut client);
        assert!(matches!(request, Request::Restore { .. }), "{request:?}");
        let life = Life { incarnation: Incarnation(incarnation), ..life() };
        client.reply(0, sequence, Reply::Restored { life });
        let (sequence, request) = sent(&mut client);
        assert!(matches!(request, Request::Attach { .. }), "{request:?}");
        client.reply(0, sequence, stale());
    }
    let (sequence, _) = sent(&mut client);
    client.reply(0, sequence, stale());
    let said = actions(&mut client);
    assert!(matches!(&said[..], [Action::Fail(error)] if error.is_final()), "{said:?}");
}

#[test]
fn a_trainer_that_waits_in_vain_is_told() {
    let mut client = holding(&[0]);
    client.next(0);
    actions(&mut client);
    client.tick(300_000);
    let said = actions(&mut client);
    let told = said.iter().find_map(|action| match action {
        Action::Fail(error) => Some(error),
        _ => None,
    });
    let told = told.expect("it is told");
    assert_eq!(told.to_string(), "no batch for 300000 ms: no worker delivers");
    assert!(!told.is_final());
}

#[test]
fn what_a_peers_rewind_changed_is_learnt() {
    let mut client = holding(&[5]);
    client.data(1, ONE, data(5, 0, &[10], true));
    client.next(1);
    client.next(2);
    let (sequence, _) = sent(&mut client);
    let mut used = Used::new(Window(0));
    used.insert(Window(2));
    let standing = Standing { rewinds: 1, used: Some(used), ..standing(0, 1, 9) };
    client.reply(3, sequence, Reply::Wait { standing });
    let cursor = cursor(&mut client);
    assert_eq!((cursor.rewinds, cursor.floor), (1, Window(1)));
    assert_eq!(cursor.used.iter().collect::<Vec<_>>(), [Window(2), Window(5)]);
}
