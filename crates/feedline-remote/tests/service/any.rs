//! With order any, windows go to whoever asks: each sample exactly once, over all clients.

use crate::{Service, job, next, options};
use feedline_core::Batch;
use feedline_remote::{Remote, merge_states};
use feedline_testkit::{Fixtures, open};
use feedline_wire::Order;
use std::collections::BTreeMap;

pub(crate) fn count(counts: &mut BTreeMap<u64, u32>, batch: &Batch) {
    for index in batch.indices.as_ref().unwrap() {
        *counts.entry(*index).or_default() += 1;
    }
}

/// The rest of an epoch of several clients, each at its own speed.
pub(crate) fn epoch(runs: &mut [Remote], counts: &mut BTreeMap<u64, u32>) {
    std::thread::scope(|scope| {
        let rest = |run: &mut Remote| {
            let mut got = Vec::new();
            while let Some(batch) = next(run).unwrap() {
                got.push(batch);
            }
            got
        };
        let parts: Vec<_> = runs.iter_mut().map(|run| scope.spawn(move || rest(run))).collect();
        for part in parts {
            part.join().unwrap().iter().for_each(|batch| count(counts, batch));
        }
    });
}

#[test]
fn several_clients_see_each_sample_once_an_epoch() {
    let fixtures = Fixtures::new();
    let service = Service::new(2);
    let pipeline = open("range count=101 | shuffle | batch size=4", &fixtures).unwrap();
    let name = service.name();
    let mut runs: Vec<Remote> = (0..3)
        .map(|rank| {
            let job = job(&name, Order::Any);
            service.start(&pipeline, &fixtures, None, job, options(rank, 3)).unwrap()
        })
        .collect();
    for number in 1..=3 {
        let mut counts = BTreeMap::new();
        epoch(&mut runs, &mut counts);
        assert_eq!(counts.len(), 101, "epoch {number}");
        assert!(counts.values().all(|times| *times == 1), "epoch {number}: {counts:?}");
    }
}

#[test]
fn a_client_goes_on_where_it_was_saved_and_merged_states_on_any_number() {
    let fixtures = Fixtures::new();
    let service = Service::new(2);
    let pipeline = open("range count=101 | shuffle | batch size=4", &fixtures).unwrap();
    let name = service.name();
    let start = |state: Option<&str>, rank, world| {
        let job = job(&name, Order::Any);
        service.start(&pipeline, &fixtures, state, job, options(rank, world)).unwrap()
    };
    let mut counts = BTreeMap::new();
    let mut runs: Vec<Remote> = (0..2).map(|rank| start(None, rank, 2)).collect();
    for run in &mut runs {
        for _ in 0..5 {
            count(&mut counts, &next(run).unwrap().unwrap());
        }
    }
    // One of them alone.
    let state = runs[1].state().unwrap();
    assert!(state.len() < 1200, "{state}");
    runs[1] = start(Some(&state), 1, 2);
    for run in &mut runs {
        for _ in 0..2 {
            count(&mut counts, &next(run).unwrap().unwrap());
        }
    }
    // All of them, on another number; what was delivered after saving never happened.
    let states: Vec<String> = runs.iter().map(|run| run.state().unwrap()).collect();
    for run in &mut runs {
        next(run).unwrap();
    }
    drop(runs);
    let merged = merge_states(&states).unwrap();
    let mut runs: Vec<Remote> = (0..3).map(|rank| start(Some(&merged), rank, 3)).collect();
    epoch(&mut runs, &mut counts);
    assert_eq!(counts.len(), 101);
    assert!(counts.values().all(|times| *times == 1), "{counts:?}");
    let mut counts = BTreeMap::new();
    epoch(&mut runs, &mut counts);
    assert!(counts.len() == 101 && counts.values().all(|times| *times == 1), "{counts:?}");
}

#[test]
fn bad_samples_are_left_out_of_their_batches() {
    let fixtures = Fixtures::new();
    let service = Service::new(1);
    let plan =
        "images path=$BAD | on_error policy=skip | decode | resize size=[2,2] | batch size=2";
    let pipeline = open(plan, &fixtures).unwrap();
    let job = job(&service.name(), Order::Any);
    let mut run = service.start(&pipeline, &fixtures, None, job, options(0, 1)).unwrap();
    let mut counts = BTreeMap::new();
    while let Some(batch) = next(&mut run).unwrap() {
        count(&mut counts, &batch);
    }
    assert!(counts.values().all(|times| *times == 1) && run.stats().skipped > 0);
    assert_eq!(counts.len() as u64 + run.stats().skipped, pipeline.length().finite().unwrap());
}
