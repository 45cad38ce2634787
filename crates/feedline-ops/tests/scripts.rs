//! Every step's script, under all laws; and no step without one.

use feedline_ops::Builtin;
use feedline_plan::Catalog;
use feedline_testkit::{Fixtures, run_script, scripts_in};
use std::path::Path;

feedline_testkit::serve_functions!();

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/pipelines"))
}

#[test]
fn every_step_has_a_script_and_every_script_a_step() {
    let scripts: Vec<String> = scripts_in(folder()).into_iter().map(|script| script.0).collect();
    let steps = Builtin.names();
    let without: Vec<_> =
        steps.iter().filter(|step| !scripts.iter().any(|script| script == *step)).collect();
    assert!(without.is_empty(), "steps without tests/pipelines/<step>.txt: {without:?}");
    let left: Vec<_> = scripts.iter().filter(|script| !steps.contains(&script.as_str())).collect();
    assert!(left.is_empty(), "scripts of steps that do not exist: {left:?}");
}

/// The scripts are dealt to a few tests, which run side by side.
fn run_part(part: usize) {
    let fixtures = Fixtures::new();
    for (number, (_, path)) in scripts_in(folder()).into_iter().enumerate() {
        if number % 3 == part {
            run_script(&path, &fixtures);
        }
    }
}

#[test]
fn scripts_hold_part_one() {
    run_part(0);
}

#[test]
fn scripts_hold_part_two() {
    run_part(1);
}

#[test]
fn scripts_hold_part_three() {
    run_part(2);
}
