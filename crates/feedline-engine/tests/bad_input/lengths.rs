//! Batches by length, given states, options and stretches that are wrong.

use super::*;
use feedline_core::{Batch, Pool, Rows};
use feedline_engine::{Assembly, Delivery, Team, Window, WindowRun};

const PLAN: &str = "npy path=$LENGTHS fields=$TOKENS | bucket boundaries=[3,6] size=2 stretch=9";

fn by_length(fixtures: &Fixtures) -> Arc<Pipeline> {
    open(PLAN, fixtures).unwrap()
}

#[test]
fn states_with_impossible_stretches_are_refused() {
    let fixtures = Fixtures::new();
    let pipeline = by_length(&fixtures);
    let json = |begun: Vec<Vec<(u64, u64)>>, at: Option<(u64, u64)>| {
        let position = Position { begun, at, ..Position::default() };
        State::new(&pipeline, position, Seed(1), 0, 1).to_json()
    };
    assert!(State::from_json(&json(vec![vec![(2, 9), (0, 1)]], Some((0, 9)))).is_ok());
    for damaged in [
        json(vec![vec![(2, 10)]], None),
        json(vec![vec![(2, u64::MAX)]], None),
        json(vec![Vec::new(); 100], None),
        json(vec![vec![(1, 1); 5000]], None),
        json(Vec::new(), Some((0, 10))),
        json(Vec::new(), Some((100, 1))),
        json(vec![vec![(2, 1)]], None).replace("\"by_length\":true,", ""),
        json(vec![vec![(2, 1)]], None).replace("[[[2,1]]]", "[[[2]]]"),
    ] {
        let error = State::from_json(&damaged).unwrap_err().to_string();
        assert!(error.starts_with("state does not fit: "), "{damaged}: {error}");
    }
}

#[test]
fn a_state_that_lies_about_what_was_delivered_ends_the_epoch_in_order() {
    let fixtures = Fixtures::new();
    let pipeline = by_length(&fixtures);
    for begun in [(u64::MAX, 9), (1 << 40, 1), (3, 9), (0, 9)] {
        let position = Position { begun: vec![vec![begun]], ..Position::default() };
        for rounds in [false, true] {
            let options = Options { rounds, world: 2, epochs: Some(1), ..Options::default() };
            let found = engine_epoch(&pipeline, &local(), position.clone(), options, usize::MAX);
            assert_eq!(found.error, None);
            let part = Part { rounds, world: 2, position: position.clone(), ..Part::default() };
            assert_eq!(found, plain_epoch(&pipeline, &local(), part, usize::MAX), "{begun:?}");
        }
    }
}

#[test]
fn options_that_do_not_go_with_batches_by_length_are_refused() {
    let fixtures = Fixtures::new();
    let pipeline = by_length(&fixtures);
    let usual = Options::default;
    for (options, words) in [
        (Options { delivery: Delivery::Ready { max_slip: 2 }, ..usual() }, "goes with batch"),
        (Options { record: Some("x".into()), ..usual() }, "leave record and replay out"),
        (Options { rounds: true, world: 5, ..usual() }, "make stretch longer"),
        (Options { rounds: true, world: u64::MAX, ..usual() }, "make stretch longer"),
    ] {
        let error = options.check(&pipeline).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn a_stretch_that_nobody_asked_for_is_refused() {
    let fixtures = Fixtures::new();
    let pipeline = by_length(&fixtures);
    let new = || Assembly::new(Arc::clone(&pipeline), Position::default(), options()).unwrap();
    let batch = |rows: usize, indices: usize| {
        Rows::Batch(Batch { fields: Vec::new(), rows, indices: Some(vec![0; indices]) })
    };
    // Before anything was wanted.
    assert!(new().give(batch(1, 1)).is_err() && new().end().is_err());
    // More rows than a batch has, or indices of others.
    for wrong in [batch(3, 3), batch(2, 1)] {
        let mut assembly = new();
        assert!(assembly.next().unwrap().is_none());
        assert!(assembly.give(wrong).is_err());
        assert!(assembly.next().is_err(), "a failed run stays failed");
    }
    let team = Team::new(1).unwrap();
    let window = |steps: u64, from: u64, every_rank: bool, plan: &str| {
        let (start, rank, world, first) = (Position::default(), 0, 1, 0);
        let window = Window { start, rank, world, first, steps, from, every_rank };
        let pipeline = open(plan, &fixtures).unwrap();
        WindowRun::start(&team, &Pool::new(0), pipeline, local(), &window, options())
    };
    assert!(window(2, 0, false, PLAN).is_err());
    assert!(window(1, 0, true, PLAN).is_err());
    assert!(window(1, 1, false, "range count=4 | batch size=2").is_err());
    assert!(window(1, u64::MAX, false, PLAN).is_ok());
}
