//! Each target takes its corpus and many changed inputs, and never panics.
#![expect(clippy::unwrap_used, reason = "in a test, unwrap says that the test ends otherwise")]

use feedline_fuzz::memory::Watched;
use feedline_fuzz::{TARGETS, runner};

#[global_allocator]
static MEMORY: Watched = Watched;

#[track_caller]
fn holds(name: &str, executions: u64) {
    let target = TARGETS.iter().find(|target| target.name == name).unwrap();
    let outcome = runner::run(target, 1, |so_far| so_far < executions);
    if let Some(failure) = outcome.failure {
        panic!("{failure}");
    }
    assert!(outcome.executions >= executions);
    println!("{name}: {} executions, {} inputs kept", outcome.executions, outcome.kept);
}

macro_rules! targets {
    ($($claim:ident: $name:literal, $executions:literal;)*) => {
        $(
            #[test]
            fn $claim() {
                holds($name, $executions);
            }
        )*

        #[test]
        fn every_target_is_tested() {
            let tested = [$($name),*];
            assert!(TARGETS.iter().map(|target| target.name).eq(tested));
        }
    };
}

targets! {
    any_bytes_are_a_frame_or_are_refused: "frame", 20_000;
    any_bytes_are_a_description_or_are_refused: "description", 20_000;
    any_bytes_are_a_stretch_or_are_refused: "stretch", 20_000;
    a_server_takes_whatever_a_client_says: "served", 500;
    a_client_takes_whatever_a_server_says: "received", 500;
    a_client_that_shares_memory_takes_whatever_a_server_says: "borrowed", 500;
    any_bytes_are_a_message_or_are_refused: "message", 20_000;
    a_dispatcher_takes_whatever_is_said: "conversation", 10_000;
    any_bytes_are_an_answer_of_a_host_or_are_refused: "answer", 20_000;
    any_bytes_are_a_request_to_a_host_or_are_refused: "request", 20_000;
    any_bytes_are_a_journal_or_are_refused: "journal", 2_000;
    a_journals_records_may_say_anything: "record", 10_000;
    any_text_is_a_state_or_is_refused: "state", 5_000;
    any_text_is_a_checkpoint_or_is_refused: "checkpoint", 10_000;
    any_text_is_an_ask_or_is_refused: "ask", 20_000;
    any_bytes_are_a_kept_sample_or_are_refused: "kept", 20_000;
    any_text_is_a_plan_or_is_refused: "plan", 5_000;
    any_text_is_a_plain_url_or_is_refused: "url", 20_000;
    any_text_stands_for_names_or_is_refused: "braces", 10_000;
    any_bytes_are_an_array_or_are_refused: "npy", 3_000;
    any_bytes_are_an_archive_or_are_refused: "npz", 3_000;
    any_bytes_are_a_scan_or_are_refused: "nifti", 3_000;
    any_bytes_are_a_packed_scan_or_are_refused: "nifti-gz", 3_000;
    any_bytes_are_an_arrow_file_or_are_refused: "arrow", 3_000;
    any_bytes_are_a_picture_or_are_refused: "picture", 3_000;
}

/// What was found, and is mended.
const FOUND: [(&str, &str); 4] = [
    // One rank more than the most there can be.
    (
        "state",
        r#"{"feedline":1,"epoch":2,"tail":24,"seed":3,"rank":0,"world":18446744073709551615,"stretch":4,"places":1000,"counted":true,"manifest":"range:1000","steps":["range"]}"#,
    ),
    // The epoch after the last.
    (
        "state",
        r#"{"feedline":1,"epoch":18446744073709551615,"tail":0,"seed":3,"rank":0,"world":1,"stretch":1,"places":37,"counted":false,"manifest":"range:37","steps":["range"]}"#,
    ),
    // An argument that JSON had no place for.
    ("plan", "range count=3 step=2"),
    // A name that became another plan when it was printed.
    ("plan", r#"{"feedline":1,"steps":[{"fient=3 | sleep mrlds":7,"step":"npy"}]}"#),
];

#[test]
fn what_was_found_stays_mended() {
    for (name, input) in FOUND {
        let target = TARGETS.iter().find(|target| target.name == name).unwrap();
        if let Err(reason) = runner::execute(target, input.as_bytes()) {
            panic!("{reason}\nwith {input}");
        }
    }
}
