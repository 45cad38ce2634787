//! Planted mistakes: some of those that break a rule of the protocol have to be found here too.

use crate::cluster::run_adjusted;
use crate::setup::Setup;
use feedline_wire::mutant::{Mutant, plant};
use feedline_wire::{Order, Visitation};

/// Runs seeds until one fails.
fn first_found(mutant: Mutant, most: u64, adjust: fn(&mut Setup)) -> Option<(u64, String)> {
    plant(Some(mutant));
    // A broken protocol may break the simulation too.
    let fails = |seed| match std::panic::catch_unwind(|| run_adjusted(seed, adjust)) {
        Ok(outcome) => outcome.err(),
        Err(_) => Some("it panics".to_owned()),
    };
    let found = (1..=most).find_map(|seed| fails(seed).map(|what| (seed, what)));
    plant(None);
    found
}

/// The world as it is.
fn usual(_: &mut Setup) {}

/// The dispatcher crashes all the time, and little else does.
fn crashing_dispatcher(setup: &mut Setup) {
    (setup.crashes, setup.dispatcher_faults) = (12, 18);
    (setup.order, setup.visitation) = (Order::Any, Visitation::ExactlyOnce);
}

/// One test for each mistake: its name, and the seeds and the world in which one finds it.
macro_rules! found {
    ($($name:ident: $mutant:ident in $most:expr, $adjust:ident;)*) => {
        $(
            #[test]
            fn $name() {
                let found = first_found(Mutant::$mutant, $most, $adjust);
                let (seed, what) = found.expect("some seed finds it");
                println!("{:?}: seed {seed}: {what}", Mutant::$mutant);
            }
        )*
    };
}

/// Prints which seed finds each mistake first: `FEEDLINE_SURVEY=1000` says how far to look.
#[test]
fn the_first_seeds_can_be_surveyed() {
    let Ok(most) = std::env::var("FEEDLINE_SURVEY") else { return };
    let most: u64 = most.parse().expect("FEEDLINE_SURVEY is a number");
    for mutant in [
        Mutant::NoOffsetCheck,
        Mutant::NoRequestId,
        Mutant::ReassignByTimeout,
        Mutant::NoClientFence,
        Mutant::PrefetchCursor,
        Mutant::ServiceSideCursor,
        Mutant::ReplyBeforeJournal,
        Mutant::NoHeldSet,
        Mutant::NoOwnershipCheck,
        Mutant::NoSeal,
        Mutant::DoneAtYield,
        Mutant::RestoreJoinsAttached,
        Mutant::RestoreFencesNobody,
        Mutant::MergeTakesHighestFloor,
        Mutant::MergeIgnoresRewinds,
        Mutant::NoStamps,
    ] {
        println!("{mutant:?}: {:?}", first_found(mutant, most, usual));
    }
}

found! {
    data_taken_at_any_offset_is_found: NoOffsetCheck in 200, usual;
    a_cursor_of_what_was_fetched_is_found: PrefetchCursor in 200, usual;
    replies_before_the_journal_are_found: ReplyBeforeJournal in 500, crashing_dispatcher;
}
