//! Files that are wrong.

use super::*;

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
