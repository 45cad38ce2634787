//! Functions that fail, and hosts that lie: an error of the sample, and nothing that is left behind.

use super::*;
use feedline_core::Host;
use feedline_engine::host::{HostCommand, Hosts};
use feedline_plan::Plan;
use feedline_testkit::test_host_command;
use std::time::Instant;

fn map(code: &str, timeout: f64) -> String {
    format!(
        "range count=4 | map function=t.f source=s code={code} timeout={timeout} \
         output=[{{\"name\":\"index\",\"dtype\":\"int64\"}}] | batch size=2"
    )
}

/// The pipeline with a host of its own.
fn hosted(plan: &str, fixtures: &Fixtures, command: HostCommand) -> (Arc<Pipeline>, Arc<Hosts>) {
    let plan: Plan = fixtures.expand(plan).parse().unwrap();
    let hosts = Arc::new(Hosts::new(command));
    let host = Some(Arc::clone(&hosts) as Arc<dyn Host>);
    let opened = Pipeline::open_with(&plan, &LocalStore, &fixtures.blobs, host).unwrap();
    (Arc::new(opened), hosts)
}

#[test]
fn a_host_that_lies_is_an_error_of_the_sample() {
    let fixtures = Fixtures::new();
    for (code, words) in [
        ("$NOISE", "nonsense"),
        ("$HUGE", "an answer of 4294967295 bytes"),
        ("$HALF", "exit code 0, 3 times"),
        ("$OUTSIDE", "nonsense"),
        ("$EXIT", "exit code 3, 3 times"),
    ] {
        let error = error_of(&map(code, 10.0), &fixtures);
        assert!(error.contains(words) && error.contains("step map"), "{code}: {error}");
    }
}

#[test]
fn a_function_that_hangs_ends_in_its_time() {
    let fixtures = Fixtures::new();
    let start = Instant::now();
    let error = error_of(&map("$HANG", 0.2), &fixtures);
    assert!(error.contains("index 2") && error.contains("no answer within 0.2 s"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(30));
    let skipping = map("$HANG", 0.2).replace("| map", "| on_error policy=skip | map");
    let found = run(&open(&skipping, &fixtures).unwrap());
    assert_eq!(found.indices(), [0, 1, 3]);
}

#[test]
fn dropping_a_run_ends_what_a_function_does_not() {
    let fixtures = Fixtures::new();
    let (pipeline, hosts) = hosted(&map("$HANG", 3600.0), &fixtures, test_host_command());
    let mut run = Run::start(pipeline, local(), Position::default(), options()).unwrap();
    assert!(matches!(run.next_within(Duration::from_secs(60)), Ok(Some(Next::Batch(_)))));
    assert!(hosts.processes() > 0);
    let start = Instant::now();
    drop(run);
    assert!(start.elapsed() < Duration::from_secs(20), "dropping waits for a function");
    while hosts.processes() > 0 {
        assert!(start.elapsed() < Duration::from_secs(20), "a process is left");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_command_that_is_no_host_is_told_apart_from_a_bad_sample() {
    let fixtures = Fixtures::new();
    for (line, words) in [
        ("/no/such/program", "/no/such/program"),
        ("true", "before it was ready"),
        ("sh -c 'head -c 8 /dev/zero >&0; sleep 60'", "begins with something else"),
    ] {
        let command = HostCommand::parse(line).unwrap();
        let (pipeline, _) = hosted(&map("$DOUBLE", 5.0), &fixtures, command);
        let mut run = Run::start(pipeline, local(), Position::default(), options()).unwrap();
        let error = run.next_within(Duration::from_secs(60)).unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn a_plan_with_functions_is_refused_where_nobody_runs_them() {
    let fixtures = Fixtures::new();
    let plan: Plan = fixtures.expand(&map("$DOUBLE", 5.0)).parse().unwrap();
    let pipeline = Arc::new(Pipeline::open(&plan, &LocalStore, &fixtures.blobs).unwrap());
    let error = Run::start(pipeline, local(), Position::default(), options()).err().unwrap();
    assert!(matches!(error, Error::Pipeline(_)), "{error}");
    assert!(error.to_string().contains("t.f") && error.to_string().contains("--functions"));
}

#[test]
fn processes_have_no_more_memory_than_they_are_given() {
    let fixtures = Fixtures::new();
    let mut command = test_host_command();
    command.memory = Some(1 << 20);
    let (pipeline, _) = hosted(&map("$DOUBLE", 5.0), &fixtures, command);
    let mut run = Run::start(pipeline, local(), Position::default(), options()).unwrap();
    let error = run.next_within(Duration::from_secs(60)).unwrap_err();
    // So little that the program cannot even be loaded.
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
}
