//! Planted mistakes: some of those that break a rule of the protocol have to be found here too.

use crate::cluster::run;
use feedline_wire::mutant::{Mutant, plant};

/// Runs seeds until one fails.
fn first_found(mutant: Mutant, most: u64) -> Option<(u64, String)> {
    plant(Some(mutant));
    // A broken protocol may break the simulation too.
    let fails = |seed| match std::panic::catch_unwind(|| run(seed)) {
        Ok(outcome) => outcome.err(),
        Err(_) => Some("it panics".to_owned()),
    };
    let found = (1..=most).find_map(|seed| fails(seed).map(|what| (seed, what)));
    plant(None);
    found
}

/// One test for each mistake: its name, and within how many seeds one finds it.
macro_rules! found {
    ($($name:ident: $mutant:ident in $most:expr;)*) => {
        $(
            #[test]
            fn $name() {
                let found = first_found(Mutant::$mutant, $most);
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
        println!("{mutant:?}: {:?}", first_found(mutant, most));
    }
}

found! {
    data_taken_at_any_offset_is_found: NoOffsetCheck in 500;
    late_replies_taken_for_others_are_found: NoRequestId in 1_000;
    windows_moved_by_time_are_found: ReassignByTimeout in 1_000;
    obeying_a_replaced_process_is_found: NoClientFence in 500;
    a_cursor_of_what_was_fetched_is_found: PrefetchCursor in 500;
    a_cursor_kept_by_the_service_is_found: ServiceSideCursor in 500;
    replies_before_the_journal_are_found: ReplyBeforeJournal in 500;
    going_back_into_an_ended_epoch_is_found: NoSeal in 500;
    counting_as_used_what_was_only_handed_over_is_found: DoneAtYield in 500;
    joining_what_one_has_trained_on_is_found: RestoreJoinsAttached in 500;
    a_restore_that_fences_nobody_is_found: RestoreFencesNobody in 500;
    merging_by_the_highest_floor_is_found: MergeTakesHighestFloor in 1_000;
}
