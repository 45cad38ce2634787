//! Bad data, bad pipelines, bad states: a clear error or the declared policy; never a panic, never
//! a loss.

#![expect(clippy::unwrap_used, reason = "in a test, unwrap says that the test ends otherwise")]

use feedline_core::{Error, Policy, Position, Seed, Store, Tensor};
use feedline_engine::{Next, Options, Run, State, merge_states};
use feedline_ops::Pipeline;
use feedline_ops::codec::Subsampling;
use feedline_ops::plain::Part;
use feedline_store::LocalStore;
use feedline_testkit::{
    Fixtures, Outcome, assert_laws_within, encode_jpeg, encode_with, engine_epoch, open,
    plain_epoch,
};
use image::ImageFormat;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

mod files;
mod functions;
mod lengths;
mod plans;
mod states;

feedline_testkit::serve_functions!();

fn local() -> Arc<dyn Store> {
    Arc::new(LocalStore)
}

fn options() -> Options {
    Options { threads: 3, epochs: Some(1), with_index: true, ..Options::default() }
}

/// An epoch on the engine, which equals the plain one.
fn run(pipeline: &Arc<Pipeline>) -> Outcome {
    let part = Part { with_index: true, ..Part::default() };
    let plain = plain_epoch(pipeline, &local(), part, usize::MAX);
    let engine = engine_epoch(pipeline, &local(), Position::default(), options(), usize::MAX);
    assert!(plain == engine, "plain: {plain:?}\nengine: {engine:?}");
    engine
}

/// The error that a plan ends with, before or while running.
fn error_of(plan: &str, fixtures: &Fixtures) -> String {
    match open(plan, fixtures) {
        Err(error) => error.to_string(),
        Ok(pipeline) => run(&pipeline).error.unwrap_or_else(|| panic!("{plan}: runs")),
    }
}

/// A small generator of numbers that are the same every time.
fn numbers(seed: u64) -> impl FnMut(usize) -> usize {
    let mut draws = feedline_core::Draws::from_key(seed, 0);
    move |bound| draws.below(bound as u64) as usize
}

fn state(plan: &str, fixtures: &Fixtures, rank: u64, world: u64) -> State {
    let pipeline = open(plan, fixtures).unwrap();
    State::new(&pipeline, Position::default(), Seed(1), rank, world)
}

/// The next batch, or what is wrong; a run that hangs or panics is neither.
fn first(plan: &str, fixtures: &Fixtures) -> Result<String, String> {
    let opened = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| open(plan, fixtures)));
    let pipeline = match opened {
        Err(_) => return Err("opening panicked".into()),
        Ok(Err(error)) => return Ok(error.to_string()),
        Ok(Ok(pipeline)) => pipeline,
    };
    let mut run = Run::start(pipeline, local(), Position::default(), options()).unwrap();
    match run.next_within(Duration::from_secs(3)) {
        Ok(Some(next)) => Ok(format!("{next:?}")),
        Ok(None) => Err("the run hangs".into()),
        Err(error) if matches!(error, Error::Internal(_)) => Err(error.to_string()),
        Err(error) => Ok(error.to_string()),
    }
}

fn images(fixtures: &mut Fixtures, shape: &[usize]) -> String {
    let image = Tensor::from_slice(shape, &vec![7u8; shape.iter().product()]);
    fixtures.field("image", image, Some("HWC"))
}
