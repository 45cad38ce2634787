//! Planted mistakes: each breaks one rule of the protocol, and has to be found.

use crate::world::{Setup, run_adjusted};
use crate::{SEEDS, number};
use feedline_dispatcher::{Limits, Presence, State, decide};
use feedline_wire::mutant::{Mutant, plant};
use feedline_wire::{
    ConsumerIndex, Cursor, Description, Epoch, JobName, Nonce, Order, Refusal, Reply, Request,
    Seat, Visitation, Window, Windows,
};

/// Runs seeds until one fails.
fn first_found(
    mutant: Mutant,
    seeds: std::ops::Range<u64>,
    adjust: fn(&mut Setup),
) -> Option<(u64, String)> {
    plant(Some(mutant));
    // A broken protocol may break the simulation too.
    let fails = |seed| match std::panic::catch_unwind(|| run_adjusted(seed, false, adjust)) {
        Ok(outcome) => outcome.err(),
        Err(_) => Some("it panics".to_owned()),
    };
    let found = seeds.into_iter().find_map(|seed| fails(seed).map(|what| (seed, what)));
    plant(None);
    found
}

/// The world as it is.
fn usual(_: &mut Setup) {}

/// The dispatcher crashes all the time, and little else does.
fn crashing_dispatcher(setup: &mut Setup) {
    (setup.crashes, setup.dispatcher_faults) = (30, 18);
    (setup.order, setup.visitation) = (Order::Any, Visitation::ExactlyOnce);
    setup.epochs = 3;
}

/// Clients save often, go back often, and remember for long what they used.
fn restless_clients(setup: &mut Setup) {
    (setup.consumers, setup.crashes, setup.dispatcher_faults) = (setup.consumers.max(2), 30, 0);
    (setup.order, setup.visitation) = (Order::Any, Visitation::ExactlyOnce);
    (setup.saves, setup.lookback, setup.lost, setup.late) = (500, 512, 0, 20);
}

/// One test for each mistake: its name, and the seeds and the world in which one finds it.
macro_rules! found {
    ($($name:ident: $mutant:ident in $seeds:expr, $adjust:ident;)*) => {
        $(
            #[test]
            fn $name() {
                let found = first_found(Mutant::$mutant, $seeds, $adjust);
                let (seed, what) = found.expect("some seed finds it");
                println!("{:?}: seed {seed}: {what}", Mutant::$mutant);
            }
        )*

        /// Prints which of the usual seeds finds each mistake first: `FEEDLINE_SURVEY=100000` says
        /// how far to look.
        #[test]
        fn the_first_seeds_can_be_surveyed() {
            let Ok(most) = std::env::var("FEEDLINE_SURVEY") else { return };
            let most: u64 = most.parse().expect("FEEDLINE_SURVEY is a number");
            for mutant in [$(Mutant::$mutant),*, Mutant::SameTicketOtherCursor] {
                println!("{mutant:?}: {:?}", first_found(mutant, 1..most + 1, usual));
            }
            for (mutant, adjust) in [
                (Mutant::EndBeforeSync, crashing_dispatcher as fn(&mut Setup)),
                (Mutant::MergeIgnoresRewinds, restless_clients),
            ] {
                println!("{mutant:?}: {:?}", first_found(mutant, 1..most + 1, adjust));
            }
        }
    };
}

found! {
    data_taken_at_any_offset_is_found: NoOffsetCheck in 1..200, usual;
    a_worker_that_keeps_offsets_is_found: WorkerKeepsOffset in 1..200, usual;
    late_replies_taken_for_others_are_found: NoRequestId in 1..200, usual;
    windows_moved_by_time_are_found: ReassignByTimeout in 1..1_000, usual;
    obeying_a_replaced_process_is_found: NoClientFence in 1..1_000, usual;
    a_cursor_of_what_was_fetched_is_found: PrefetchCursor in 1..500, usual;
    a_cursor_kept_by_the_service_is_found: ServiceSideCursor in 1..500, usual;
    replies_before_the_journal_are_found: ReplyBeforeJournal in 1..1_000, usual;
    appending_behind_a_torn_record_is_found: AppendAfterTornTail in 1..2_000, usual;
    grants_that_nobody_heard_of_are_found: NoHeldSet in 1..2_000, usual;
    claiming_the_windows_of_others_is_found: NoOwnershipCheck in 1..3_000, usual;
    going_back_into_an_ended_epoch_is_found: NoSeal in 1..500, usual;
    counting_as_used_what_was_only_handed_over_is_found: DoneAtYield in 1..200, usual;
    an_end_before_the_journal_is_found: EndBeforeSync in 1..5_000, crashing_dispatcher;
    joining_what_one_has_trained_on_is_found: RestoreJoinsAttached in 1..1_000, usual;
    a_restore_that_fences_nobody_is_found: RestoreFencesNobody in 1..200, usual;
    merging_by_the_highest_floor_is_found: MergeTakesHighestFloor in 1..1_000, usual;
    merging_across_a_rewind_is_found: MergeIgnoresRewinds in 1..10_000, restless_clients;
    believing_a_cursor_about_later_grants_is_found: NoStamps in 1..3_000, usual;
}

/// No seed finds this one: a client never attaches twice with different cursors by itself. So it is
/// asked directly.
#[test]
fn the_same_ticket_with_another_cursor_is_found() {
    let (mut state, presence, limits) = (State::default(), Presence::new(0), Limits::default());
    let mut ask = |request: &Request| {
        let decision = decide(&state, &presence, &limits, 0, request);
        decision.events.iter().for_each(|event| state.apply(event));
        decision.reply
    };
    let windows = Windows { count: 4, steps: 1, last: 1 };
    let description = Description {
        dataset: "dataset".into(),
        visitation: Visitation::ExactlyOnce,
        order: Order::Any,
        windows,
    };
    let (consumer, nonce) = (ConsumerIndex(0), Nonce(1));
    let name = JobName("job".into());
    let open = Request::OpenJob { name, description, consumers: 1, consumer, nonce };
    let Reply::Opened { job, ticket, life } = ask(&open) else { panic!("the job is opened") };
    let seat = Seat { job, incarnation: life.incarnation, consumer, ticket };
    let cursor = Cursor::new(&seat, 1, Order::Any, Epoch(0));
    assert!(matches!(
        ask(&Request::Attach { seat, nonce, cursor: cursor.clone() }),
        Reply::Attached { .. }
    ));
    let get = Request::Get { seat, sequence: 1, want: 2, cursor: cursor.clone() };
    let Reply::Granted { standing, .. } = ask(&get) else { panic!("there are windows") };
    // It claims to have used what it was given, under the name it has already used.
    let mut other = Cursor { seen: standing.stamp, ..cursor };
    (0..2).for_each(|window| other.used.insert(Window(window)));
    let again = Request::Attach { seat, nonce, cursor: other };
    let refused = ask(&again);
    assert!(matches!(refused, Reply::Refused(Refusal::Mismatch(_))), "{refused:?}");
    plant(Some(Mutant::SameTicketOtherCursor));
    let obeyed = ask(&again);
    plant(None);
    assert!(matches!(obeyed, Reply::Attached { .. }), "this test would not notice: {obeyed:?}");
}

/// What is rough enough to find rare mistakes has to do no harm where there are none.
#[test]
fn rougher_worlds_keep_every_step_exactly_once() {
    let first = number("FEEDLINE_SEED", 1);
    let seeds = number("FEEDLINE_SEEDS", SEEDS) / 75;
    for (name, adjust) in [
        ("crashing dispatcher", crashing_dispatcher as fn(&mut Setup)),
        ("restless clients", restless_clients),
    ] {
        for seed in first..first + seeds {
            if let Err(what) = run_adjusted(seed, false, adjust) {
                panic!("{name}, seed {seed}: {what}");
            }
        }
    }
}
