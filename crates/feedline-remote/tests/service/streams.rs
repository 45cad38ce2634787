//! Jobs of several streams: every worker's own pass through the data, or its own part of it.

use crate::any::{count, epoch};
use crate::{PATIENCE, Service, job, next, options};
use feedline_ops::Pipeline;
use feedline_remote::{Job, Remote, merge_states};
use feedline_testkit::{Fixtures, open};
use feedline_wire::control::Control;
use feedline_wire::{Order, Parting, Streams};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const PARTINGS: [Parting; 3] = [Parting::Copies, Parting::Samples, Parting::Files];

fn streams(name: &str, by: Parting, count: u64) -> Job {
    Job { streams: Some(Streams { by, count }), ..job(name, Order::Any) }
}

/// Nine images in files of their own, in unlike parts.
fn pipeline(fixtures: &Fixtures) -> Arc<Pipeline> {
    open("images path=$IMAGES | shuffle | decode | resize size=[2,2] | batch size=2", fixtures)
        .unwrap()
}

/// How often each sample is to be seen.
fn times(by: Parting, count: u32) -> u32 {
    if by == Parting::Copies { count } else { 1 }
}

#[test]
fn each_stream_is_visited_once_by_any_number_of_clients() {
    let fixtures = Fixtures::new();
    let service = Service::new(2);
    while service.control().workers(0, PATIENCE).unwrap().workers.len() < 2 {
        std::thread::sleep(Duration::from_millis(10));
    }
    let pipeline = pipeline(&fixtures);
    let samples = pipeline.length().finite().unwrap();
    for by in PARTINGS {
        // As many as workers, more than there are samples, and one.
        for (asked, number, clients) in [(0, 2, 1), (20, 20, 2), (1, 1, 2)] {
            let name = service.name();
            let start = |rank| {
                let job = streams(&name, by, asked);
                service.start(&pipeline, &fixtures, None, job, options(rank, clients)).unwrap()
            };
            let mut runs: Vec<Remote> = (0..clients).map(start).collect();
            for round in 0..2 {
                let mut counts = BTreeMap::new();
                epoch(&mut runs, &mut counts);
                assert_eq!(counts.len() as u64, samples, "{by:?} {asked} {round}");
                let right = |seen: &u32| *seen == times(by, number);
                assert!(counts.values().all(right), "{by:?} {asked} {round}: {counts:?}");
            }
        }
    }
}

#[test]
fn streams_go_on_from_states_on_any_number_of_clients_and_through_the_loss_of_a_worker() {
    let fixtures = Fixtures::new();
    let mut service = Service::new(3);
    let pipeline = open("range count=101 | shuffle | batch size=4", &fixtures).unwrap();
    let files = open(
        "images path=$IMAGES | shuffle | repeat count=9 | drop fields=[\"image\"] | batch size=2",
        &fixtures,
    )
    .unwrap();
    for by in PARTINGS {
        let pipeline = if by == Parting::Files { &files } else { &pipeline };
        let name = service.name();
        let start = |service: &Service, state: Option<&str>, rank, world| {
            let job = streams(&name, by, 3);
            service.start(pipeline, &fixtures, state, job, options(rank, world)).unwrap()
        };
        let mut counts = BTreeMap::new();
        let mut runs: Vec<Remote> = (0..2).map(|rank| start(&service, None, rank, 2)).collect();
        for run in &mut runs {
            for _ in 0..5 {
                count(&mut counts, &next(run).unwrap().unwrap());
            }
        }
        // One of them alone, and a worker less.
        let state = runs[1].state().unwrap();
        drop(runs.pop());
        runs.push(start(&service, Some(&state), 1, 2));
        drop(service.workers.pop());
        for run in &mut runs {
            count(&mut counts, &next(run).unwrap().unwrap());
        }
        // All of them, on another number, twice: what is left of what was left.
        for (clients, taken) in [(1, 3), (3, usize::MAX)] {
            let states: Vec<String> = runs.iter().map(|run| run.state().unwrap()).collect();
            drop(runs);
            let merged = merge_states(&states).unwrap();
            runs = (0..clients).map(|rank| start(&service, Some(&merged), rank, clients)).collect();
            if taken == usize::MAX {
                epoch(&mut runs, &mut counts);
            } else {
                for run in &mut runs {
                    for _ in 0..taken {
                        count(&mut counts, &next(run).unwrap().unwrap());
                    }
                }
            }
        }
        let (samples, each) = match by {
            Parting::Files => (9, 9),
            by => (101, times(by, 3)),
        };
        assert_eq!(counts.len(), samples, "{by:?}");
        assert!(counts.values().all(|seen| *seen == each), "{by:?}: {counts:?}");
        service.add();
    }
}

#[test]
fn a_state_of_other_streams_is_refused_and_so_are_streams_with_order_exact() {
    let fixtures = Fixtures::new();
    let service = Service::new(1);
    let pipeline = open("range count=20 | batch size=2", &fixtures).unwrap();
    let name = service.name();
    let start = |state: Option<&str>, job: Job| {
        service.start(&pipeline, &fixtures, state, job, options(0, 1))
    };
    let refusal = |state: Option<&str>, job: Job| start(state, job).err().unwrap().to_string();
    let mut run = start(None, streams(&name, Parting::Copies, 2)).unwrap();
    next(&mut run).unwrap();
    let state = run.state().unwrap();
    let merged = merge_states(std::slice::from_ref(&state)).unwrap();
    for text in [&state, &merged] {
        let error = refusal(Some(text), streams(&name, Parting::Copies, 3));
        assert!(error.contains("it is of 2 copies, and this job is of 3 copies"), "{error}");
        let error = refusal(Some(text), job(&name, Order::Any));
        assert!(error.contains("2 copies, and this job is of the data once"), "{error}");
        assert!(start(Some(text), streams(&name, Parting::Copies, 0)).is_ok());
    }
    let damaged = merged.replace("\"left\":[", "\"left\":[],\"more\":[");
    assert!(start(Some(&damaged), streams(&name, Parting::Copies, 2)).is_err());
    let exact = Job { order: Order::Exact, ..streams(&name, Parting::Copies, 2) };
    assert!(refusal(None, exact).contains("order \"any\""));
    let error = refusal(None, streams(&service.name(), Parting::Files, 2));
    assert!(error.contains("do not come from files"), "{error}");
    let several = |job| service.start(&pipeline, &fixtures, None, job, options(0, 2));
    let error = several(streams(&service.name(), Parting::Copies, 0)).err().unwrap().to_string();
    assert!(error.contains("say how many"), "{error}");
    // Another seed or other streams are another job.
    let mut other = start(None, streams(&name, Parting::Samples, 2)).unwrap();
    let error = next(&mut other).unwrap_err().to_string();
    assert!(error.contains(&name), "{error}");
}
