//! Pipelines made at random, under all laws.

use feedline_testkit::{Fixtures, assert_laws_within};
use proptest::prelude::*;

/// What a source gives.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Encoded,
    Grey,
    Colour,
    Numbers,
    Table,
    Lengths,
}

fn source() -> impl Strategy<Value = (String, Kind)> {
    prop_oneof![
        (0..40usize).prop_map(|count| (format!("range count={count}"), Kind::Numbers)),
        Just(("images path=$IMAGES".to_owned(), Kind::Encoded)),
        Just(("images path=$FLAT".to_owned(), Kind::Encoded)),
        Just(("images path=$BAD | on_error policy=skip".to_owned(), Kind::Encoded)),
        Just(("arrays fields=$TINY".to_owned(), Kind::Grey)),
        Just(("arrays fields=$SQUARES".to_owned(), Kind::Colour)),
        Just(("arrays fields=$TABLE".to_owned(), Kind::Table)),
        Just(("npy path=$LENGTHS fields=$TOKENS".to_owned(), Kind::Lengths)),
    ]
}

fn order() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => (0..5u64).prop_map(|seed| format!("shuffle seed={seed}")),
        1 => (1..40u64).prop_map(|within| format!("shuffle within={within}")),
        1 => (0..30u64).prop_map(|count| format!("take count={count}")),
        1 => (0..8u64).prop_map(|count| format!("skip count={count}")),
        1 => (1..4u64).prop_map(|count| format!("repeat count={count}")),
    ]
}

/// A step that stands first among those that order.
fn first_order() -> impl Strategy<Value = Option<String>> {
    let split = (0..10u32, 1..10u32, 0..3u64).prop_map(|(start, length, seed)| {
        let end = f64::from((start + length).min(10)) / 10.0;
        Some(format!("split start={} end={end} seed={seed}", f64::from(start) / 10.0))
    });
    prop_oneof![3 => Just(None), 1 => split]
}

fn side() -> impl Strategy<Value = usize> {
    1..12usize
}

fn interpolation() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("nearest"), Just("bilinear"), Just("bicubic")]
}

/// A step on 8-bit pixels.
fn pixels() -> impl Strategy<Value = String> {
    let size = || (side(), side());
    prop_oneof![
        (size(), interpolation(), any::<bool>()).prop_map(|((h, w), how, antialias)| {
            format!("resize size=[{h},{w}] interpolation={how} antialias={antialias}")
        }),
        (side(), 1..20usize)
            .prop_map(|(side, more)| format!("resize size={side} max_size={}", side + more)),
        size().prop_map(|(h, w)| format!("center_crop size=[{h},{w}]")),
        (size(), 0..3usize, 0..9u8).prop_map(|((h, w), border, fill)| {
            format!("random_crop size=[{h},{w}] padding={border} fill={fill} pad_if_needed=true")
        }),
        (size(), interpolation()).prop_map(|((h, w), how)| {
            format!("random_resized_crop size=[{h},{w}] interpolation={how}")
        }),
        Just("flip_horizontal".to_owned()),
        Just("flip_vertical p=0.3".to_owned()),
        Just("layout to=CHW".to_owned()),
        Just("layout to=HWC".to_owned()),
        Just("grayscale channels=3".to_owned()),
    ]
}

/// What may follow once pixels are done.
fn pointwise() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "normalize mean=[0.4] std=[0.2]",
        "cast dtype=float32 scale=true",
        "cast dtype=float16 scale=true",
        "cast dtype=int32",
        "cast dtype=float32 scale=true | normalize mean=[0.4] std=[0.2]",
        "normalize mean=[0.4] std=[0.2] | cast dtype=bfloat16",
        "normalize mean=[0] std=[1] | center_crop size=[5,4] | flip_horizontal",
        "layout to=CHW | normalize mean=[0] std=[1] | cast dtype=uint8",
        "normalize mean=[0] std=[1] | random_crop size=[3,3] padding=1 pad_if_needed=true",
        "cast dtype=float64 scale=true | layout to=CHW | flip_vertical",
    ])
    .prop_map(str::to_owned)
}

fn table() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "cast field=x dtype=float64",
        "cast field=y dtype=int16",
        "cast field=b dtype=float32 scale=true",
        r#"drop fields=["b"]"#,
        r#"select fields=["b","x","y"]"#,
        "one_hot classes=4 field=y | on_error policy=skip",
        "one_hot classes=256 field=b dtype=uint8",
    ])
    .prop_map(str::to_owned)
}

fn batch() -> impl Strategy<Value = Option<String>> {
    let last = prop::sample::select(vec!["", " drop_last=true", " pad=true"]);
    let batch = (1..7usize, last).prop_map(|(size, last)| Some(format!("batch size={size}{last}")));
    prop_oneof![1 => Just(None), 5 => batch]
}

/// Batches of samples of several lengths: by length, or filled up as they come.
fn by_length() -> impl Strategy<Value = String> {
    let sizes = prop::collection::vec(1..5usize, 3..4);
    let last = prop::sample::select(vec!["", " drop_last=true"]);
    let to = prop::sample::select(vec!["longest", "boundary"]);
    let bucket = (1..6usize, 1..9usize, sizes, 6..30usize, last, to).prop_map(
        |(first, more, sizes, stretch, last, to)| {
            let (boundaries, second) = (first, first + more);
            format!(
                "bucket boundaries=[{boundaries},{second}] sizes={sizes:?} stretch={stretch} \
                 pad_to={to}{last}"
            )
        },
    );
    let last = prop::sample::select(vec!["", " drop_last=true", " pad=true"]);
    let batch = (1..7usize, last)
        .prop_map(|(size, last)| format!("batch size={size} pad_ragged=true value=-7{last}"));
    prop_oneof![3 => bucket, 1 => batch]
}

prop_compose! {
    fn pipeline()(
        (source, kind) in source(),
        first in first_order(),
        orders in prop::collection::vec(order(), 0..3),
        pixel_steps in prop::collection::vec(pixels(), 0..4),
        jitter in any::<bool>(),
        end in prop::option::of(pointwise()),
        table in prop::option::of(table()),
        size in (side(), side()),
        batch in batch(),
        by_length in by_length(),
        bad in any::<bool>(),
    ) -> String {
        let mut steps = vec![source];
        steps.extend(first);
        steps.extend(orders);
        if kind == Kind::Encoded {
            steps.push("decode".to_owned());
        }
        if matches!(kind, Kind::Encoded | Kind::Colour | Kind::Grey) {
            if jitter && kind != Kind::Grey {
                steps.push("color_jitter brightness=0.3 hue=0.1".to_owned());
            }
            steps.extend(pixel_steps);
            if batch.is_some() {
                steps.push(format!("resize size=[{},{}]", size.0, size.1));
            }
            steps.extend(end);
        }
        if kind == Kind::Table {
            steps.extend(table);
        }
        if kind == Kind::Lengths {
            steps.extend(bad.then(|| "one_hot classes=5 | on_error policy=skip".to_owned()));
            steps.push(by_length);
        } else {
            steps.extend(batch);
        }
        steps.join(" | ")
    }
}

/// How many pipelines are tried: enough for a few seconds, or what `PROPTEST_CASES` says.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(120)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(),
        failure_persistence: None,
        max_shrink_iters: 300,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_pipeline_obeys_the_laws(plan in pipeline(), world in 2..5u64) {
        // One folder for all cases: making it costs more than most of them.
        thread_local! {
            static FIXTURES: Fixtures = Fixtures::new();
        }
        FIXTURES.with(|fixtures| {
            if let Err(error) = feedline_testkit::open(&plan, fixtures) {
                panic!("{plan}: {error}");
            }
            assert_laws_within(&plan, fixtures, &[1, world], 3);
        });
    }
}
