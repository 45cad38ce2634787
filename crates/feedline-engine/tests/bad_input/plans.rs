//! Pipelines and options that are wrong.

use super::*;

#[test]
fn mistakes_in_plans_are_named() {
    let fixtures = Fixtures::new();
    for (plan, words) in [
        ("", "it is empty"),
        ("|", "a step's name was expected"),
        ("range count=3 |", "a step's name was expected"),
        ("range count", "arguments are written name=value"),
        ("range count=", "argument count: a value is missing"),
        ("range count=3 count=4", "argument count is given twice"),
        ("rnage count=3", "did you mean range?"),
        ("range count=3 | shufle", "did you mean shuffle?"),
        ("range count=3 | make_coffee", "there is no step called \"make_coffee\""),
        ("range cuont=3", "did you mean count?"),
        ("shuffle | batch size=2", "shuffle is no source"),
        ("range count=three", "range: "),
        ("range count=1e3", "range: "),
        ("range count=[1]", "range: "),
        ("range count=3 | batch size=-1", "batch: "),
        ("range count=3 | batch size=\"2\"", "batch: "),
        ("range count=3 | batch size=2 drop_last=yes", "batch: "),
        ("images path=$FLAT | decode | normalize mean=[NaN] std=[1]", "normalize: argument mean"),
        ("images path=$FLAT | decode | normalize mean=[1e999] std=[1]", "normalize: argument mean"),
        ("images path=$FLAT | decode | normalize mean=[] std=[1]", "mean has 0 values"),
        ("images path=$FLAT | decode | flip_horizontal p=NaN", "flip_horizontal: "),
        ("images path=$FLAT | decode | flip_horizontal p=1e300", "is no probability"),
        ("images path=$FLAT | decode | resize size=-5", "resize: "),
        ("images path=$FLAT | decode | resize size=[5]", "resize: "),
        ("images path=$FLAT | decode | resize size=1e9", "resize: "),
        ("images path=$FLAT | decode | center_crop size=99999999999", "is above 65535"),
        (
            "images path=$FLAT | decode | random_resized_crop size=8 scale=[0.1,1e309]",
            "argument scale",
        ),
        ("images path=$FLAT | decode | color_jitter hue=1e300", "hue"),
        ("images path=$FLAT | on_error policy=skip share=-0.5", "share=-0.5"),
        ("images path=$FLAT | on_error policy=skip count=-1", "on_error: "),
        ("images path=$FLAT | decode | random_crop size=64", "does not fit into"),
        ("range count=3 | repeat count=-1", "repeat: "),
        ("range count=3 | shuffle within=-1", "shuffle: "),
        ("range count=3 | split start=-0.5", "a part from -0.5 to 1"),
    ] {
        let error = error_of(plan, &fixtures);
        assert!(error.contains(words), "{plan}: {error}");
        assert!(!error.contains("internal error"), "{plan}: {error}");
    }
}

#[test]
fn huge_parameters_are_refused_or_harmless() {
    let fixtures = Fixtures::new();
    for plan in [
        "range count=1152921504606846976 | shuffle | batch size=3",
        "range count=1152921504606846976 | take count=18446744073709551615 | batch size=2",
        "range count=1152921504606846976 | skip count=1152921504606846970 | batch size=2",
        "range count=5 | shuffle seed=18446744073709551615 | batch size=2",
        "range count=5 | shuffle within=18446744073709551615 | batch size=2",
        "range count=1000000000000 | shuffle within=1000000000 | batch size=2",
        "range count=5 | repeat | take count=4611686018427387904 | batch size=2",
        "images path=$FLAT | decode | color_jitter brightness=1e300 contrast=1e300 | resize size=[2,2] | batch size=4",
        "images path=$FLAT | decode | normalize mean=[1e300] std=[1e-300] | center_crop size=4 | batch size=4",
        "images path=$FLAT | decode | random_resized_crop size=4 scale=[1e-300,1e300] ratio=[1e-300,1e300] | batch size=4",
        "images path=$FLAT | shuffle within=1e-9B | take count=1",
        "images path=$FLAT | shuffle within=999999TB | take count=1",
    ] {
        match open(plan, &fixtures) {
            Err(error) => assert!(!error.to_string().contains("internal error"), "{plan}: {error}"),
            Ok(pipeline) => {
                let part = Part { with_index: true, ..Part::default() };
                let plain = plain_epoch(&pipeline, &local(), part, 4);
                let engine = engine_epoch(&pipeline, &local(), Position::default(), options(), 4);
                assert!(plain == engine, "{plan}");
            }
        }
    }
}

#[test]
fn budgets_end_the_run_when_they_are_used_up() {
    let fixtures = Fixtures::new();
    let run_with = |limits: &str| {
        let plan = format!(
            "images path=$BAD | on_error policy=skip {limits} | decode | resize size=[2,2] | batch size=4"
        );
        run(&open(&plan, &fixtures).unwrap())
    };
    for enough in ["", "count=3", "share=0.5", "count=100 share=1", "share=1"] {
        let outcome = run_with(enough);
        assert_eq!((outcome.indices(), outcome.error), (vec![0, 2, 5], None), "{enough}");
    }
    for (little, words) in [
        ("count=2", "3 bad samples in this epoch, and on_error allows 2; the last: "),
        ("count=0", "1 bad samples in this epoch, and on_error allows 0; the last: "),
        ("share=0.4", "3 bad samples in this epoch, and on_error allows 0.4 of 6; the last: "),
        ("share=0", "on_error allows 0 of 6"),
        ("count=2 share=1", "on_error allows 2;"),
    ] {
        let error = run_with(little).error.unwrap();
        assert!(error.contains(words), "{little}: {error}");
    }
}

#[test]
fn a_quarantine_that_cannot_be_written_ends_the_run() {
    let fixtures = Fixtures::new();
    let plan = "images path=$BAD | on_error policy=skip file=$TMP/no/such/folder.jsonl | decode | batch size=1";
    let pipeline = open(plan, &fixtures).unwrap();
    let engine = engine_epoch(&pipeline, &local(), Position::default(), options(), usize::MAX);
    let error = engine.error.unwrap();
    assert!(error.contains("quarantine file") && error.contains("no/such/folder.jsonl"), "{error}");
    assert!(matches!(&pipeline.policy, Policy::Skip { file: Some(_), .. }));
}

#[test]
fn images_of_four_channels_can_be_normalised_or_are_refused() {
    let mut fixtures = Fixtures::new();
    let field = images(&mut fixtures, &[2, 2, 2, 4]);
    for steps in [
        "normalize mean=[0] std=[1]",
        "cast dtype=float32 scale=true",
        "flip_horizontal",
        "center_crop size=3",
        "layout to=CHW",
        "resize size=3",
        "grayscale",
    ] {
        let found = first(&format!("arrays fields=[{field}] | {steps}"), &fixtures);
        assert!(found.is_ok(), "{steps}: {found:?}");
    }
}

#[test]
fn images_without_pixels_are_refused() {
    let mut fixtures = Fixtures::new();
    for shape in [[2, 0, 3, 3], [2, 3, 0, 3], [2, 3, 3, 0]] {
        let field = images(&mut fixtures, &shape);
        for steps in [
            "center_crop size=3",
            "resize size=[2,2]",
            "random_crop size=2 pad_if_needed=true",
            "random_resized_crop size=2",
            "layout to=CHW",
            "flip_horizontal p=1",
            "grayscale",
        ] {
            let found = first(&format!("arrays fields=[{field}] | {steps}"), &fixtures);
            assert!(found.is_ok(), "{shape:?} {steps}: {found:?}");
        }
    }
}

#[test]
fn shapes_beyond_all_memory_are_refused() {
    let fixtures = Fixtures::new();
    let plan = r#"arrays fields=[{"name":"x","blob":"$WEIGHTS","dtype":"uint8","shape":[4294967296,4294967296,2]}]"#;
    let found = first(plan, &fixtures);
    assert!(found.is_ok(), "{found:?}");
}

#[test]
fn two_fields_of_one_name_are_refused() {
    let fixtures = Fixtures::new();
    let found = first("files list=$NAMED labels=true field=label", &fixtures);
    assert!(found.as_ref().is_ok_and(|text| text.contains("invalid pipeline")), "{found:?}");
}

#[test]
fn orders_longer_than_can_be_shuffled_are_refused() {
    let fixtures = Fixtures::new();
    for plan in [
        "range count=4 | repeat | take count=4611686018427387903 | shuffle",
        "arrays fields=$TINY | sample balance=label count=9223372036854775807 | shuffle",
    ] {
        let found = first(plan, &fixtures);
        assert!(found.as_ref().is_ok_and(|text| text.contains("2^60")), "{plan}: {found:?}");
    }
}

#[test]
fn skipping_further_than_numbers_reach_is_an_error_or_nothing() {
    let fixtures = Fixtures::new();
    for plan in [
        "range count=4 | repeat | skip count=18446744073709551615",
        "range count=4 | repeat | batch size=2 | skip count=18446744073709551615",
        "range count=4 | skip count=18446744073709551615",
    ] {
        let found = first(plan, &fixtures);
        assert!(found.is_ok(), "{plan}: {found:?}");
    }
}

#[test]
fn absurd_options_are_no_panic() {
    let fixtures = Fixtures::new();
    let pipeline = open("range count=100 | batch size=2", &fixtures).unwrap();
    for (memory, ahead, reads) in
        [(usize::MAX, usize::MAX, usize::MAX), (0, usize::MAX, 0), (usize::MAX, 0, 1), (0, 0, 0)]
    {
        let options = Options { memory, ahead, reads, ..options() };
        let outcome = engine_epoch(&pipeline, &local(), Position::default(), options, usize::MAX);
        assert_eq!(outcome.batches.len(), 50);
    }
}

#[test]
fn patience_may_be_endless() {
    let fixtures = Fixtures::new();
    let pipeline = open("range count=3", &fixtures).unwrap();
    let mut run = Run::start(pipeline, local(), Position::default(), options()).unwrap();
    assert!(matches!(run.next_within(Duration::MAX), Ok(Some(Next::Batch(_)))));
}

#[test]
fn the_last_epoch_of_all_can_be_run() {
    let fixtures = Fixtures::new();
    let pipeline = open("range count=2", &fixtures).unwrap();
    let outcome =
        engine_epoch(&pipeline, &local(), Position::epoch(u64::MAX), options(), usize::MAX);
    assert_eq!(outcome.batches.len(), 2);
}

#[test]
fn a_split_after_a_shuffle_is_refused_or_the_same_in_every_epoch() {
    let fixtures = Fixtures::new();
    let Ok(pipeline) = open("range count=100 | shuffle | split end=0.5", &fixtures) else { return };
    let members = |epoch| {
        let mut members = feedline_testkit::places(&pipeline, Seed(0), epoch, 0, 50);
        members.sort_unstable();
        members
    };
    assert_eq!(members(0), members(1), "training and test data trade places");
}

#[test]
fn weights_after_a_shuffle_are_refused_or_still_those_of_their_samples() {
    let fixtures = Fixtures::new();
    let plan = "arrays fields=$TINY | shuffle | sample weights=$WEIGHTS count=50";
    let Ok(pipeline) = open(plan, &fixtures) else { return };
    for epoch in 0..4 {
        let drawn = feedline_testkit::places(&pipeline, Seed(0), epoch, 0, 50);
        assert!(drawn.iter().all(|index| [1, 3].contains(index)), "{drawn:?}");
    }
}

#[test]
fn counting_the_steps_of_a_long_epoch_takes_no_time() {
    let fixtures = Fixtures::new();
    let plan = "range count=3000000000 | on_error policy=skip | batch size=2";
    let pipeline = open(plan, &fixtures).unwrap();
    let start = std::time::Instant::now();
    let _ = feedline_engine::steps_left(&pipeline, &Position::default(), 0, 1);
    assert!(start.elapsed() < Duration::from_millis(200), "{:?}", start.elapsed());
}
