//! Plans that ask for more memory than there is: an error, never an abort of the process.
//!
//! Each runs in a process of its own, with little memory, so that an abort is seen and harms no one.

#![expect(clippy::unwrap_used, reason = "in a test, unwrap says that the test ends otherwise")]

use feedline_core::{Position, Store};
use feedline_engine::{Options, Run};
use feedline_store::LocalStore;
use feedline_testkit::{Fixtures, open};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// Runs a plan in this process and says what came of it. Only a child does.
#[test]
#[ignore = "is run by the other tests, in processes of their own"]
fn child() {
    let Ok(plan) = std::env::var("FEEDLINE_ABSURD_PLAN") else { return };
    let fixtures = Fixtures::new();
    let outcome = match open(&plan, &fixtures) {
        Err(error) => error.to_string(),
        Ok(pipeline) => {
            let store: Arc<dyn Store> = Arc::new(LocalStore);
            let options = Options { threads: 2, epochs: Some(1), ..Options::default() };
            let next = Run::start(pipeline, store, Position::default(), options)
                .and_then(|mut run| run.next_within(Duration::from_secs(20)));
            match next {
                Ok(Some(_)) => "delivered".to_owned(),
                Ok(None) => "hangs".to_owned(),
                Err(error) => error.to_string(),
            }
        }
    };
    println!("outcome: {outcome}");
}

/// What a plan comes to in a process that may use about 2 GB of addresses.
fn outcome(plan: &str) -> Result<String, String> {
    let program = std::env::current_exe().unwrap();
    let output = Command::new("sh")
        .arg("-c")
        .arg("ulimit -c 0; ulimit -v 2000000; exec \"$0\" \"$@\"")
        .arg(program)
        .args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"])
        .env("FEEDLINE_ABSURD_PLAN", plan)
        .env("RUST_BACKTRACE", "0")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let error = error.lines().filter(|line| !line.is_empty()).take(3).collect::<Vec<_>>().join(" ");
    if let Some(signal) = output.status.signal() {
        return Err(format!("signal {signal}: {error}"));
    }
    let found = text.lines().find_map(|line| Some(line.split_once("outcome: ")?.1.to_owned()));
    found.filter(|found| found != "hangs").ok_or(format!("no outcome: {error}"))
}

fn all_end_well(plans: &[&str]) {
    let mut wrong = String::new();
    for plan in plans {
        match outcome(plan) {
            Ok(found) => println!("{plan}\n  {found}"),
            Err(how) => wrong += &format!("\n{plan}\n  {how}"),
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn ordinary_plans_run_in_little_memory() {
    all_end_well(&["images path=$IMAGES | decode | resize size=[64,64] | batch size=4"]);
}

#[test]
fn pictures_beyond_memory_are_an_error() {
    all_end_well(&[
        "arrays fields=$TINY | random_crop size=4 padding=65535",
        "images path=$FLAT | decode | resize size=[65535,65535]",
        "images path=$FLAT | decode | center_crop size=65535",
        "images path=$FLAT | decode | random_crop size=65535 pad_if_needed=true",
    ]);
}

#[test]
fn batches_beyond_memory_are_an_error() {
    all_end_well(&[
        "range count=3 | one_hot classes=16777216 field=index dtype=float64 | batch size=16777216 pad=true",
        "images path=$FLAT | decode | resize size=[1000,1000] | batch size=16777216 pad=true",
        "images path=$FLAT | repeat count=100000 | decode | resize size=[1000,1000] | batch size=100000",
    ]);
}
