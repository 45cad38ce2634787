//! With order exact, a remote run is a local one: the same batches, states and errors.

use crate::{PATIENCE, Service, job, next, options};
use feedline_core::{Batch, Position, Store};
use feedline_engine::{Next, Run, State};
use feedline_ops::Pipeline;
use feedline_testkit::{Fixtures, any_store, open, plans_in};
use feedline_wire::Order;
use std::path::Path;
use std::sync::Arc;

const MOST: usize = 12;

/// Batches, the state after each, and the error at the end.
#[derive(Debug, Default, PartialEq)]
struct Story {
    batches: Vec<Batch>,
    states: Vec<String>,
    error: Option<String>,
}

fn local(pipeline: &Arc<Pipeline>, state: Option<&str>, rank: u64, world: u64) -> Story {
    let store: Arc<dyn Store> = any_store();
    let options = options(rank, world);
    let position = match state {
        None => Position::default(),
        Some(text) => {
            let state = State::from_json(text).unwrap();
            state.position_for(pipeline, options.seed, rank, world).unwrap()
        }
    };
    let mut run = Run::start(Arc::clone(pipeline), store, position, options.clone()).unwrap();
    let mut story = Story::default();
    while story.batches.len() < MOST {
        match run.next_within(PATIENCE) {
            Ok(Some(Next::Batch(batch))) => {
                story.batches.push(batch);
                let state = State::new(pipeline, run.position(), options.seed, rank, world);
                story.states.push(state.to_json());
            }
            Ok(Some(_)) => break,
            Ok(None) => panic!("the local run hangs"),
            Err(error) => {
                story.error = Some(error.to_string());
                break;
            }
        }
    }
    story
}

fn remote(
    service: &Service,
    pipeline: &Arc<Pipeline>,
    fixtures: &Fixtures,
    state: Option<&str>,
    rank: u64,
    world: u64,
) -> Story {
    let job = job(&service.name(), Order::Exact);
    let run = service.start(pipeline, fixtures, state, job, options(rank, world));
    let mut run = run.expect("it can be started");
    let mut story = Story::default();
    while story.batches.len() < MOST {
        match next(&mut run) {
            Ok(Some(batch)) => {
                story.batches.push(batch);
                story.states.push(run.state().unwrap());
            }
            Ok(None) => break,
            Err(error) => {
                story.error = Some(error.to_string());
                break;
            }
        }
    }
    story
}

fn plans() -> Vec<String> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../feedline-ops/tests/pipelines"));
    plans_in(folder)
}

#[test]
fn a_remote_run_is_a_local_one() {
    let fixtures = Fixtures::new();
    let service = Service::new(2);
    let mut ran = 0;
    for plan in plans() {
        let Ok(pipeline) = open(&plan, &fixtures) else { continue };
        // Refused, so far.
        if pipeline.bucket.is_some() && plan.contains("on_error") {
            continue;
        }
        ran += 1;
        for (rank, world) in [(0, 1), (1, 2)] {
            let wanted = local(&pipeline, None, rank, world);
            let found = remote(&service, &pipeline, &fixtures, None, rank, world);
            assert_eq!(found, wanted, "{plan}: rank {rank} of {world}");
            // And each goes on where the other was left.
            let Some(state) = wanted.states.get(wanted.states.len() / 2) else { continue };
            let wanted = local(&pipeline, Some(state), rank, world);
            let found = remote(&service, &pipeline, &fixtures, Some(state), rank, world);
            assert_eq!(found, wanted, "{plan}: rank {rank} of {world}, from {state}");
        }
    }
    assert!(ran > 50, "{ran} pipelines ran");
}

#[test]
fn epochs_follow_each_other_as_they_do_locally() {
    let fixtures = Fixtures::new();
    let service = Service::new(1);
    let pipeline = open("range count=23 | shuffle | batch size=3 pad=true", &fixtures).unwrap();
    for rank in 0..2 {
        let store: Arc<dyn Store> = any_store();
        let options = options(rank, 2);
        let start = Position::default();
        let mut run = Run::start(Arc::clone(&pipeline), store, start, options.clone()).unwrap();
        let job = job(&service.name(), Order::Exact);
        let mut remote = service.start(&pipeline, &fixtures, None, job, options).unwrap();
        for _ in 0..15 {
            let wanted = match run.next_within(PATIENCE).unwrap().unwrap() {
                Next::Batch(batch) => Some(batch),
                _ => None,
            };
            assert_eq!(next(&mut remote).unwrap(), wanted);
        }
    }
}

#[test]
fn losing_workers_changes_nothing() {
    let fixtures = Fixtures::new();
    let mut service = Service::new(3);
    let plan = "range count=400 | shuffle | sleep ms=1 | batch size=4";
    let pipeline = open(plan, &fixtures).unwrap();
    let store: Arc<dyn Store> = any_store();
    let start = Position::default();
    let mut local = Run::start(Arc::clone(&pipeline), store, start, options(0, 1)).unwrap();
    let job = job(&service.name(), Order::Exact);
    let mut remote = service.start(&pipeline, &fixtures, None, job, options(0, 1)).unwrap();
    let mut batches = 0;
    loop {
        let wanted = match local.next_within(PATIENCE).unwrap().unwrap() {
            Next::Batch(batch) => Some(batch),
            _ => None,
        };
        let found = next(&mut remote).unwrap();
        assert_eq!(found, wanted, "batch {batches}");
        if found.is_none() {
            break;
        }
        batches += 1;
        match batches {
            20 => drop(service.workers.remove(0)),
            40 => drop(service.workers.remove(0)),
            60 => {
                drop(service.workers.remove(0));
                service.add();
            }
            _ => {}
        }
    }
    assert_eq!(batches, 100);
    assert!(remote.stats().failures > 0);
}
