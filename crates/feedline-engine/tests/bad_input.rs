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

fn all_formats() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("420.jpg", encode_jpeg(1, 33, 27, Subsampling::S420)),
        ("444.jpg", encode_jpeg(2, 24, 40, Subsampling::S444)),
        ("grey.jpg", encode_jpeg(3, 17, 17, Subsampling::Gray)),
        ("p.png", encode_with(4, 21, 13, ImageFormat::Png)),
        ("w.webp", encode_with(5, 21, 13, ImageFormat::WebP)),
        ("b.bmp", encode_with(6, 11, 13, ImageFormat::Bmp)),
        ("g.gif", encode_with(7, 11, 13, ImageFormat::Gif)),
        ("t.tiff", encode_with(8, 11, 13, ImageFormat::Tiff)),
    ]
}

/// Runs a folder of doubtful images, skipping: every file is either delivered or written down.
fn nothing_is_lost(fixtures: &Fixtures, folder: &str, steps: &str) -> (usize, usize) {
    let quarantine = fixtures.path("tmp").join(format!("{}.jsonl", folder.replace('/', "-")));
    let folder = fixtures.path(folder);
    let plan = format!(
        "images path={} | on_error policy=skip file={} | {steps}",
        folder.display(),
        quarantine.display()
    );
    let pipeline = open(&plan, fixtures).unwrap();
    let outcome = run(&pipeline);
    assert_eq!(outcome.error, None, "{plan}");
    let total = pipeline.source.length() as usize;
    let mut seen = vec![0; total];
    outcome.indices().iter().for_each(|index| seen[*index as usize] += 1);
    let lines = std::fs::read_to_string(&quarantine).unwrap_or_default();
    for line in lines.lines() {
        assert!(line.starts_with("{\"epoch\":0,\"index\":"), "{line}");
        let rest = &line["{\"epoch\":0,\"index\":".len()..];
        let index: usize = rest[..rest.find(',').unwrap()].parse().unwrap();
        seen[index] += 1;
        let name = pipeline.source.origin(index as u64);
        assert!(line.contains(&format!("\"origin\":\"{name}\"")), "{line}");
        assert!(
            line.contains("\"step\":\"decode\"") && !line.contains("\"reason\":\"\""),
            "{line}"
        );
        assert!(!line.contains("panicked"), "{line}");
    }
    assert!(seen.iter().all(|count| *count == 1), "{plan}: {seen:?}");
    let delivered = outcome.indices().len();
    (delivered, total - delivered)
}

#[test]
fn files_cut_anywhere_are_delivered_or_written_down() {
    let fixtures = Fixtures::new();
    for (name, bytes) in all_formats() {
        for part in 0..24 {
            let cut = if part < 12 { part * 3 } else { bytes.len() * (part - 11) / 13 };
            fixtures.write(format!("cut/{part:02}-{name}"), &bytes[..cut.min(bytes.len())]);
        }
        fixtures.write(format!("cut/99-{name}"), &bytes);
    }
    let steps = "decode | resize size=[4,4] | batch size=7";
    let (delivered, bad) = nothing_is_lost(&fixtures, "cut", steps);
    assert!(delivered >= 8 && bad >= 8 * 12, "{delivered} delivered, {bad} bad");
}

#[test]
fn files_with_wrong_bytes_are_delivered_or_written_down() {
    let (fixtures, mut draw) = (Fixtures::new(), numbers(11));
    for (name, bytes) in all_formats() {
        for variant in 0..30 {
            let mut wrong = bytes.clone();
            for _ in 0..=draw(4) {
                let at = draw(wrong.len());
                wrong[at] = draw(256) as u8;
            }
            fixtures.write(format!("wrong/{variant:02}-{name}"), &wrong);
        }
    }
    nothing_is_lost(
        &fixtures,
        "wrong",
        "decode max_pixels=1000000 | resize size=[4,4] | batch size=7",
    );
    // The same under a crop, which decodes a part only, and in grey.
    let steps = "decode max_pixels=1000000 mode=gray | center_crop size=[3,5] | batch size=7";
    std::fs::rename(fixtures.path("wrong"), fixtures.path("wrong2")).unwrap();
    nothing_is_lost(&fixtures, "wrong2", steps);
}

/// Two files on one thread, sample by sample: the indices that are delivered.
fn one_after_the_other(first: &[u8], second: &[u8]) -> Vec<u64> {
    let fixtures = Fixtures::new();
    fixtures.write("two/0.jpg", first);
    fixtures.write("two/1.jpg", second);
    let folder = fixtures.path("two");
    let plan = format!("images path={} | on_error policy=skip | decode", folder.display());
    let options = Options { threads: 1, ..options() };
    let pipeline = open(&plan, &fixtures).unwrap();
    let found = engine_epoch(&pipeline, &local(), Position::default(), options, usize::MAX);
    found.indices()
}

#[test]
fn a_jpeg_that_breaks_off_spoils_no_other() {
    let whole = encode_jpeg(1, 33, 27, Subsampling::S420);
    let scan = whole.windows(2).position(|pair| pair == [0xFF, 0xDA]).unwrap();
    for cut in scan..scan + 14 {
        assert_eq!(one_after_the_other(&whole[..cut], &whole), [1], "cut at {cut}");
    }
}

#[test]
fn a_jpeg_without_its_tables_does_not_borrow_those_of_another() {
    let whole = encode_jpeg(1, 33, 27, Subsampling::S420);
    for marker in [0xDB, 0xC4] {
        let mut lacking = whole.clone();
        let at = lacking.windows(2).position(|pair| pair == [0xFF, marker]).unwrap();
        // A segment that decoders skip.
        lacking[at + 1] = 0xED;
        let alone = one_after_the_other(b"no image", &lacking);
        let after = one_after_the_other(&whole, &lacking);
        assert_eq!(after.contains(&1), alone.contains(&1), "segment {marker:02x}");
    }
}

#[test]
fn content_decides_and_not_the_name() {
    let fixtures = Fixtures::new();
    fixtures.write("names/a.jpg", &encode_with(1, 6, 5, ImageFormat::Png));
    fixtures.write("names/b.png", &encode_jpeg(1, 6, 5, Subsampling::S444));
    let folder = fixtures.path("names");
    let plan = format!("images path={} | decode | batch size=2", folder.display());
    let outcome = run(&open(&plan, &fixtures).unwrap());
    assert_eq!((outcome.error, outcome.batches.len()), (None, 1));
    fixtures.write("names/c.jpg", b"hello, I am a text and no image at all");
    let error = error_of(&plan, &fixtures);
    assert!(error.contains("names/c.jpg (index 2, step decode)"), "{error}");
    assert!(error.contains("not a picture of a known format"), "{error}");
    fixtures.write("names/c.jpg", b"");
    assert!(
        error_of(&plan, &fixtures)
            .contains("names/c.jpg (index 2, step decode): the record is empty")
    );
}

/// The size that a picture's header claims, changed.
fn claim(bytes: &[u8], format: &str, width: u32, height: u32) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    match format {
        "jpg" => {
            let at = bytes.windows(2).position(|pair| pair == [0xFF, 0xC0]).unwrap() + 5;
            bytes[at..at + 2].copy_from_slice(&(height as u16).to_be_bytes());
            bytes[at + 2..at + 4].copy_from_slice(&(width as u16).to_be_bytes());
        }
        "png" => {
            bytes[16..20].copy_from_slice(&width.to_be_bytes());
            bytes[20..24].copy_from_slice(&height.to_be_bytes());
            let crc = crc32(&bytes[12..29]);
            bytes[29..33].copy_from_slice(&crc.to_be_bytes());
        }
        "bmp" => {
            bytes[18..22].copy_from_slice(&width.to_le_bytes());
            bytes[22..26].copy_from_slice(&height.to_le_bytes());
        }
        "gif" => {
            bytes[6..8].copy_from_slice(&(width as u16).to_le_bytes());
            bytes[8..10].copy_from_slice(&(height as u16).to_le_bytes());
        }
        other => panic!("{other}"),
    }
    bytes
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 }
        })
    })
}

#[test]
fn sizes_that_cannot_be_are_bad_samples() {
    let fixtures = Fixtures::new();
    let pictures = [
        ("jpg", encode_jpeg(1, 24, 24, Subsampling::S444)),
        ("png", encode_with(2, 24, 24, ImageFormat::Png)),
        ("bmp", encode_with(3, 24, 24, ImageFormat::Bmp)),
        ("gif", encode_with(4, 24, 24, ImageFormat::Gif)),
    ];
    for (format, bytes) in &pictures {
        for (width, height) in
            [(0, 0), (0, 24), (24, 0), (60_000, 60_000), (65_000, 1), (1, 65_000)]
        {
            let name = format!("claims-{format}/{width}x{height}.{format}");
            fixtures.write(&name, &claim(bytes, format, width, height));
        }
        let (delivered, bad) = nothing_is_lost(
            &fixtures,
            &format!("claims-{format}"),
            "decode max_pixels=100000000 | resize size=[2,2] | batch size=3",
        );
        assert!(bad >= 3, "{format}: {delivered} delivered, {bad} bad");
    }
    let path = fixtures.path("claims-jpg");
    std::fs::remove_file(path.join("0x0.jpg")).unwrap();
    std::fs::remove_file(path.join("0x24.jpg")).unwrap();
    std::fs::remove_file(path.join("1x65000.jpg")).unwrap();
    std::fs::remove_file(path.join("24x0.jpg")).unwrap();
    let error = error_of(&format!("images path={} | decode", path.display()), &fixtures);
    assert!(error.contains("60000x60000.jpg") && error.contains("60000x60000"), "{error}");
}

/// Opens a folder, changes it, then runs.
fn changed(change: impl Fn(&Path), policy: &str) -> Outcome {
    let fixtures = Fixtures::new();
    let plan = format!("images path=$FLAT | {policy}decode | resize size=[4,4] | batch size=4");
    let pipeline = open(&plan, &fixtures).unwrap();
    change(&fixtures.path("flat/b.jpg"));
    let mut outcome = run(&pipeline);
    outcome.error = outcome.error.map(|error| fixtures.hide(&error));
    outcome
}

#[test]
fn files_that_change_after_opening_are_noticed() {
    type Change = fn(&Path);
    let changes: [(Change, &str); 4] = [
        (|path| std::fs::remove_file(path).unwrap(), "the file has vanished since it was listed"),
        (
            |path| std::fs::write(path, b"short").unwrap(),
            "the file has changed: it ends after 5 bytes",
        ),
        (
            |path| {
                let mut bytes = std::fs::read(path).unwrap();
                bytes.push(0);
                std::fs::write(path, bytes).unwrap();
            },
            "the file has changed: it is longer than",
        ),
        (
            |path| {
                std::fs::remove_file(path).unwrap();
                std::fs::create_dir(path).unwrap();
            },
            "it is a folder, not a file",
        ),
    ];
    for (change, words) in changes {
        let error = changed(change, "").error.unwrap();
        assert!(error.starts_with("bad record in $FLAT/b.jpg (index 1, step read): "), "{error}");
        assert!(error.contains(words), "{error}");
        let skipped = changed(change, "on_error policy=skip | ");
        assert_eq!(
            (skipped.error, skipped.batches[0].indices.clone()),
            (None, Some(vec![0, 2, 3]))
        );
    }
}

#[test]
fn files_that_may_not_be_read_are_bad_samples() {
    let forbid = |path: &Path| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o000)).unwrap();
    };
    let outcome = changed(forbid, "");
    // The administrator may read everything.
    if let Some(error) = outcome.error {
        assert!(
            error.contains("b.jpg") && error.contains("may not be read by this user"),
            "{error}"
        );
    }
}

#[test]
fn folders_that_make_no_sense_are_named() {
    let fixtures = Fixtures::new();
    let place = |inside: &str| format!("images path={}", fixtures.path(inside).display());
    fixtures.write("texts/readme.txt", b"x");
    std::fs::create_dir(fixtures.path("empty")).unwrap();
    for (plan, words) in [
        (place("empty"), "no images in $ROOT/empty: it is empty"),
        (place("texts"), "no images in $ROOT/texts: none of its 1 files is called *.jpg"),
        (place("nowhere"), "cannot open $ROOT/nowhere: there is no such file or folder"),
    ] {
        let error = fixtures.hide(&error_of(&plan, &fixtures));
        assert!(error.contains(words), "{error}");
    }
    fixtures.write("images/stray.jpg", b"x");
    let error = error_of("images path=$IMAGES", &fixtures);
    assert!(error.contains("stray.jpg lies beside the class folders"), "{error}");
}

#[test]
fn names_need_not_be_text() {
    let fixtures = Fixtures::new();
    let name = std::ffi::OsStr::from_bytes(b"odd/\xff\xfeclass/pic\xe9ture.jpg");
    fixtures.write(Path::new(name), &encode_jpeg(1, 8, 8, Subsampling::S444));
    fixtures.write("odd/other/fine.jpg", b"broken");
    let plan = format!(
        "images path={} | on_error policy=skip | decode | batch size=2",
        fixtures.path("odd").display()
    );
    let outcome = run(&open(&plan, &fixtures).unwrap());
    // "other" comes before the byte 0xff.
    assert_eq!((outcome.error, outcome.batches[0].indices.clone()), (None, Some(vec![1])));
    // In a list as well.
    let mut list = b"odd/\xff\xfeclass/pic\xe9ture.jpg\n".to_vec();
    list.extend(b"odd/other/fine.jpg\n");
    let list = fixtures.write("odd.csv", &list);
    let plan = format!("files list={} | take count=1 | decode", list.display());
    assert_eq!(run(&open(&plan, &fixtures).unwrap()).error, None);
}

#[test]
fn lists_that_make_no_sense_are_named() {
    let fixtures = Fixtures::new();
    for (text, labels, words) in [
        ("", false, "$ROOT/l.csv is empty"),
        ("path\n", false, "$ROOT/l.csv is empty"),
        ("flat/none.jpg\n", false, "$ROOT/l.csv, entry 1: cannot open $FLAT/none.jpg"),
        ("flat\n", false, "$FLAT is a folder, not a file"),
        ("\"flat/a.jpg\n", false, "$ROOT/l.csv, line 1: a quote is not closed"),
        ("flat/a.jpg,1,2\n", true, "$ROOT/l.csv, line 1: 3 columns where path,label was expected"),
        ("flat/a.jpg,1\nflat/b.jpg\n", true, "$ROOT/l.csv, line 2: 1 columns"),
    ] {
        let list = fixtures.write("l.csv", text.as_bytes());
        let plan = format!("files list={} labels={labels}", list.display());
        let error = fixtures.hide(&error_of(&plan, &fixtures));
        assert!(error.contains(words), "{text:?}: {error}");
    }
}

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

fn state(plan: &str, fixtures: &Fixtures, rank: u64, world: u64) -> State {
    let pipeline = open(plan, fixtures).unwrap();
    State::new(&pipeline, Position::default(), Seed(1), rank, world)
}

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
fn a_list_moved_to_another_folder_is_the_same_data() {
    let open_in =
        |fixtures: &Fixtures| open("files list=$LIST", fixtures).unwrap().source.manifest();
    let first = Fixtures::new();
    let before = open_in(&first);
    let moved = Fixtures::new();
    for name in ["a.jpg", "b.jpg", "c.jpg", "d.jpg"] {
        let from = first.path("flat").join(name);
        let time = std::fs::metadata(from).unwrap().modified().unwrap();
        let to = std::fs::File::options().write(true).open(moved.path("flat").join(name)).unwrap();
        to.set_modified(time).unwrap();
    }
    assert_eq!(before, open_in(&moved));
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

#[test]
fn fixtures_of_bad_images_obey_the_laws_under_skip() {
    let fixtures = Fixtures::new();
    for batch in
        ["", " | batch size=2", " | batch size=4 pad=true", " | batch size=3 drop_last=true"]
    {
        let plan = format!(
            "images path=$BAD | on_error policy=skip | repeat count=3 | shuffle | decode | \
             random_resized_crop size=4{batch}"
        );
        assert_laws_within(&plan, &fixtures, &[1, 2, 3, 5], 20);
    }
}
