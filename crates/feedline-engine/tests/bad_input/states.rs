//! States that are wrong, or belong elsewhere.

use super::*;

#[test]
fn states_of_other_runs_are_refused_in_words() {
    let fixtures = Fixtures::new();
    let plan = "images path=$FLAT | shuffle | decode | resize size=[2,2] | batch size=2";
    let saved = state(plan, &fixtures, 0, 1);
    let load = |plan: &str, seed: u64| {
        let error = saved.position_for(&open(plan, &fixtures).unwrap(), Seed(seed), 0, 1);
        error.map(|_| String::new()).unwrap_or_else(|error| error.to_string())
    };
    assert_eq!(load(plan, 1), "");
    for (other, seed, words) in [
        (plan, 2, "it was saved with seed 1, and this loader has seed 2"),
        (&plan.replace("size=2", "size=3"), 1, "step 5 (batch) has other arguments"),
        (&plan.replace("| shuffle ", ""), 1, "step 2 is decode and was shuffle"),
        (&plan.replace(" | batch size=2", ""), 1, "step 5 (batch) is missing here"),
        (&plan.replace("$FLAT", "$IMAGES"), 1, "the data has changed"),
        (&plan.replace("| decode", "| decode | flip_horizontal"), 1, "step 4 is flip_horizontal"),
        ("range count=4", 1, "step 1 is range and was images"),
    ] {
        let error = load(other, seed);
        assert!(error.starts_with("state does not fit: ") && error.contains(words), "{error}");
    }
    fixtures.write("flat/new.jpg", &encode_jpeg(1, 5, 5, Subsampling::S444));
    assert!(load(plan, 1).contains("the data has changed"));
    let json = saved.to_json();
    for (text, words) in [
        (String::new(), "this is no state of a loader"),
        ("{}".to_owned(), "missing field"),
        ("[1,2]".to_owned(), "this is no state"),
        (
            json.replace("\"feedline\":1", "\"feedline\":2"),
            "it is of version 2; this release reads version 1",
        ),
        (json.replace("\"seed\":1", "\"seed\":-1"), "this is no state"),
        (json.replace("\"seed\":1", "\"seed\":1,\"more\":2"), "unknown field"),
        (json[..json.len() - 1].to_owned(), "this is no state"),
    ] {
        let error = State::from_json(&text).unwrap_err();
        assert!(matches!(error, Error::State(_)), "{text}");
        assert!(error.to_string().contains(words), "{text}: {error}");
    }
}

#[test]
fn states_that_do_not_belong_together_are_not_merged() {
    let fixtures = Fixtures::new();
    let plan =
        "images path=$BAD | on_error policy=skip | decode | resize size=[2,2] | batch size=2";
    let of = |rank, world| state(plan, &fixtures, rank, world);
    let other =
        state("images path=$BAD | on_error policy=skip | decode | batch size=2", &fixtures, 1, 2);
    for (states, words) in [
        (vec![], "there are no states to merge"),
        (vec![of(0, 2)], "the states of ranks [0] were given, and 2 ranks saved"),
        (vec![of(0, 2), of(0, 2)], "the states of ranks [0, 0] were given"),
        (vec![of(0, 2), of(2, 3)], "the states of ranks [0, 2] were given"),
        (vec![of(0, 2), of(1, 2), of(2, 3)], "the states of ranks [0, 1, 2] were given"),
        (vec![of(0, 2), other], "did not save the same run"),
    ] {
        let error = merge_states(&states).unwrap_err().to_string();
        assert!(error.starts_with("state does not fit: ") && error.contains(words), "{error}");
    }
    assert!(merge_states(&[of(1, 2), of(0, 2)]).is_ok());
    // A state of one of several ranks is not enough for another rank.
    let error = of(0, 2).position_for(&open(plan, &fixtures).unwrap(), Seed(1), 1, 2).unwrap_err();
    assert!(error.to_string().contains("merge the states of all ranks first"), "{error}");
    // Ranks of a counted plan that stand at different steps.
    let counted = open("range count=9 | batch size=2", &fixtures).unwrap();
    let at = |rank: u64, tail: u64| {
        State::new(&counted, Position { tail, ..Position::default() }, Seed(1), rank, 2)
    };
    let error = merge_states(&[at(0, 4), at(1, 8)]).unwrap_err().to_string();
    assert!(error.contains("save all ranks after the same step"), "{error}");
}

#[test]
fn ranks_that_make_no_sense_are_refused() {
    let fixtures = Fixtures::new();
    let pipeline = open("range count=3", &fixtures).unwrap();
    for (rank, world) in [(0, 0), (1, 1), (5, 2)] {
        let options = Options { rank, world, ..Options::default() };
        let started = Run::start(Arc::clone(&pipeline), local(), Position::default(), options);
        let error = started.err().unwrap().to_string();
        assert!(error.contains(&format!("rank {rank} of {world} ranks")), "{error}");
    }
}

#[test]
fn a_second_merge_counts_bad_samples_once() {
    let fixtures = Fixtures::new();
    let plan = "images path=$BAD | on_error policy=skip count=100 | repeat count=9 | decode | resize size=[1,1]";
    let pipeline = open(plan, &fixtures).unwrap();
    // Each rank takes a few samples; the state of all of them, and how many they skipped.
    let go_on = |merged: &State, world: u64| {
        let (mut states, mut skipped) = (Vec::new(), 0);
        for rank in 0..world {
            let position = merged.position_for(&pipeline, Seed(0), rank, world).unwrap();
            let options = Options { rank, world, ..options() };
            let mut run = Run::start(Arc::clone(&pipeline), local(), position, options).unwrap();
            let before = run.position().skipped;
            for _ in 0..2 {
                assert!(matches!(run.next(), Ok(Next::Batch(_))));
            }
            skipped += run.position().skipped - before;
            states.push(State::new(&pipeline, run.position(), Seed(0), rank, world));
        }
        (merge_states(&states).unwrap(), skipped)
    };
    let start = State::new(&pipeline, Position::default(), Seed(0), 0, 1);
    let (once, first) = go_on(&start, 2);
    let (twice, second) = go_on(&once, 2);
    let position = twice.position_for(&pipeline, Seed(0), 0, 1).unwrap();
    assert_eq!(position.skipped, first + second);
}

#[test]
fn merged_states_of_many_ranks_stay_small() {
    let fixtures = Fixtures::new();
    let plan = "range count=100000000 | on_error policy=skip | shuffle | batch size=256";
    let pipeline = open(plan, &fixtures).unwrap();
    let world = 64;
    let states: Vec<State> = (0..world)
        .map(|rank| {
            // Ranks are at most one step apart, as synchronous training keeps them.
            let stretch = rank + world * (3000 + rank % 2);
            let position =
                Position { at: Some((stretch, stretch * 256 + 200)), ..Position::default() };
            State::new(&pipeline, position, Seed(0), rank, world)
        })
        .collect();
    let json = merge_states(&states).unwrap().to_json();
    assert!(json.len() <= 1024, "{} bytes", json.len());
}
