//! Files of arrays and scans that are wrong in every way: a clear error, never a panic, never a
//! wrong number.

use feedline_core::Store;
use feedline_ops::plain::Part;
use feedline_store::LocalStore;
use feedline_testkit::volumes::{gzip, little, mask, nifti, npy, npz, scan};
use feedline_testkit::{Fixtures, assert_laws, open, plain_epoch};
use std::sync::Arc;

/// What comes of a file of this name and these bytes: the numbers of samples, or the error.
fn outcome(fixtures: &Fixtures, name: &str, bytes: &[u8]) -> Result<usize, String> {
    let path = fixtures.write(format!("one/{name}"), bytes);
    let source = if name.contains(".nii") { "nifti" } else { "npy" };
    let pipeline = open(&format!("{source} path={}", path.display()), fixtures)
        .map_err(|error| error.to_string())?;
    let store: Arc<dyn Store> = Arc::new(LocalStore);
    let found = plain_epoch(&pipeline, &store, Part::default(), 10);
    found.error.map_or(Ok(found.batches.len()), Err)
}

#[track_caller]
fn refused(fixtures: &Fixtures, name: &str, bytes: &[u8], words: &str) {
    match outcome(fixtures, name, bytes) {
        Ok(count) => panic!("{name}: {count} samples, and {words:?} was expected"),
        Err(error) => assert!(error.contains(words), "{name}: {error:?} lacks {words:?}"),
    }
}

#[test]
fn damaged_npy_files_are_named() {
    let fixtures = Fixtures::new();
    let data = little(&scan(0, [2, 3, 4]));
    let sound = npy("<f4", false, &[2, 3, 4], &data);
    assert_eq!(outcome(&fixtures, "a.npy", &sound), Ok(1));
    refused(&fixtures, "a.npy", b"", "no .npy file");
    refused(&fixtures, "a.npy", b"hello", "no .npy file");
    refused(&fixtures, "a.npy", &sound[..60], "ends within");
    refused(&fixtures, "a.npy", &sound[..sound.len() - 1], "shorter than its header says");
    refused(&fixtures, "a.npy", &[&sound[..], b"x"].concat(), "longer than its header says");
    refused(&fixtures, "a.npy", &npy("|O", false, &[1], b"........"), "never unpickled");
    refused(&fixtures, "a.npy", &npy("<c16", false, &[1], &[0; 16]), "complex");
    refused(&fixtures, "a.npy", &npy("<U3", false, &[1], &[0; 12]), "text");
    refused(&fixtures, "a.npy", &npy("<M8[ns]", false, &[1], &[0; 8]), "times");
    refused(
        &fixtures,
        "a.npy",
        &npy("<f4", false, &[usize::MAX, 4], &data),
        "larger than all memory",
    );
    refused(
        &fixtures,
        "a.npy",
        &npy("<f4", false, &[1 << 40], &data),
        "shorter than its header says",
    );
    let odd = String::from_utf8_lossy(&sound[10..100]).replace("descr", "other").into_bytes();
    refused(&fixtures, "a.npy", &[&sound[..10], &odd[..], &sound[100..]].concat(), "odd entry");
}

#[test]
fn every_cut_and_many_changes_of_an_archive_are_survived() {
    let fixtures = Fixtures::new();
    let member = npy("<f4", false, &[2, 3, 4], &little(&scan(0, [2, 3, 4])));
    for deflated in [false, true] {
        let sound = npz(&[("a.npy", member.clone()), ("b.npy", member.clone())], deflated);
        assert_eq!(outcome(&fixtures, "a.npz", &sound), Ok(1));
        for cut in (0..sound.len()).step_by(7) {
            assert!(outcome(&fixtures, "a.npz", &sound[..cut]).is_err(), "cut at {cut}");
        }
        let mut state = 3u32;
        for _ in 0..150 {
            let mut bytes = sound.clone();
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let at = (state >> 8) as usize % bytes.len();
            bytes[at] ^= 1 << (state >> 29);
            let _ = outcome(&fixtures, "a.npz", &bytes);
        }
    }
    refused(&fixtures, "a.npz", b"PK", "no .npz file");
    refused(&fixtures, "a.npz", &npz(&[("a.txt", b"hello".to_vec())], false), "no arrays in it");
    refused(&fixtures, "a.npz", &npz(&[("a.npy", b"hello, hello".to_vec())], true), "no .npy file");
    let twice = npz(&[("a.npy", member.clone()), ("a.npy", member)], false);
    refused(&fixtures, "a.npz", &twice, "twice");
}

#[test]
fn a_changed_byte_of_a_compressed_array_is_found_by_its_checksum() {
    let fixtures = Fixtures::new();
    let member = npy("<f4", false, &[40, 30], &little(&scan(0, [4, 30, 10])));
    let sound = npz(&[("a.npy", member)], true);
    // Somewhere in the middle of the packed numbers.
    for at in (300..sound.len() - 120).step_by(211) {
        let mut bytes = sound.clone();
        bytes[at] ^= 16;
        let error = outcome(&fixtures, "a.npz", &bytes).expect_err("the checksum tells");
        assert!(error.contains("compressed data"), "{error}");
    }
}

#[test]
fn damaged_scans_are_named() {
    let fixtures = Fixtures::new();
    let data = little(&scan(0, [2, 3, 4]));
    let sound = nifti((16, 32), &[2, 3, 4], [1.0; 3], (1.0, 0.0), &data);
    assert_eq!(outcome(&fixtures, "a.nii", &sound), Ok(1));
    refused(&fixtures, "a.nii", b"", "it is empty");
    refused(&fixtures, "a.nii", &sound[..100], "ends within its header");
    refused(&fixtures, "a.nii", &sound[..sound.len() - 4], "shorter than its header says");
    refused(&fixtures, "a.nii", &[&sound[..], &[0; 9]].concat(), "longer than its header says");
    refused(&fixtures, "a.nii", &nifti((128, 24), &[2], [1.0; 3], (1.0, 0.0), &[0; 6]), "colours");
    refused(&fixtures, "a.nii", &nifti((32, 64), &[2], [1.0; 3], (1.0, 0.0), &[0; 16]), "complex");
    refused(
        &fixtures,
        "a.nii",
        &nifti((1536, 128), &[2], [1.0; 3], (1.0, 0.0), &[0; 32]),
        "float128",
    );
    let packed = gzip(&sound);
    assert_eq!(outcome(&fixtures, "a.nii.gz", &packed), Ok(1));
    refused(&fixtures, "a.nii.gz", b"", "ends too early");
    refused(&fixtures, "a.nii.gz", b"no gzip at all", "no gzip file");
    refused(&fixtures, "a.nii.gz", &packed[..packed.len() - 9], "gzip data");
    refused(&fixtures, "a.nii.gz", &packed[..packed.len() - 3], "ends too early");
    refused(&fixtures, "a.nii.gz", &[&packed[..], b"more"].concat(), "something else follows");
    let mut wrong = packed.clone();
    let at = wrong.len() - 6;
    wrong[at] ^= 1;
    refused(&fixtures, "a.nii.gz", &wrong, "checksum");
    // Two members are one file.
    for cut in [200, 348, 400] {
        let two = [gzip(&sound[..cut]), gzip(&sound[cut..])].concat();
        assert_eq!(outcome(&fixtures, "a.nii.gz", &two), Ok(1), "{cut}");
    }
}

#[test]
fn one_file_that_cannot_be_used_is_a_bad_sample_of_its_source() {
    let store: Arc<dyn Store> = Arc::new(LocalStore);
    let sound = npy("|u1", false, &[2, 2, 2], &mask(0, [2, 2, 2]));
    let scan = nifti((2, 8), &[2, 2, 2], [1.0; 3], (1.0, 0.0), &[1; 8]);
    let archive = npz(&[("data.npy", sound.clone())], true);
    let kinds = [
        ("npy", "npy", sound.clone()),
        ("npz", "npy", archive),
        ("nii", "nifti", scan.clone()),
        ("nii.gz", "nifti", gzip(&scan)),
    ];
    for (kind, source, sound) in kinds {
        for bad in [0, 1, 2] {
            let fixtures = Fixtures::new();
            for number in 0..3 {
                let bytes = if number == bad { &sound[..sound.len() / 3] } else { &sound[..] };
                fixtures.write(format!("some/{number}.{kind}"), bytes);
            }
            let folder = fixtures.write("some/notes.txt", b"").parent().unwrap().to_owned();
            let plan = format!("{source} path={}", folder.display());
            let error = open(&plan, &fixtures).err().unwrap().to_string();
            assert!(error.contains(&format!("{bad}.{kind}")), "{error}");
            let skips = format!("{plan} | on_error policy=skip file=$TMP/bad.jsonl");
            let found = plain_epoch(&open(&skips, &fixtures).unwrap(), &store, Part::default(), 10);
            assert_eq!((found.batches.len(), found.error), (2, None));
            assert_laws(&skips, &fixtures);
            // Of how many rows it robs us cannot be told.
            if kind == "npy" {
                let rows = format!("{plan} rows=true | on_error policy=skip");
                let error = open(&rows, &fixtures).err().unwrap().to_string();
                assert!(error.contains(&format!("{bad}.{kind}")), "{error}");
            }
        }
    }
}

#[test]
fn bombs_are_refused_before_they_unfold() {
    let fixtures = Fixtures::new();
    // Much more data than the header says.
    let small = nifti((2, 8), &[2, 2, 2], [1.0; 3], (1.0, 0.0), &vec![0; 64 << 20]);
    refused(&fixtures, "a.nii.gz", &gzip(&small), "longer than its header says");
    // A header that says much more than there can be.
    let large = nifti((2, 8), &[30_000, 30_000, 30_000], [1.0; 3], (1.0, 0.0), &[0; 64]);
    refused(&fixtures, "a.nii.gz", &gzip(&large), "cannot hold");
}

#[test]
fn files_that_change_after_opening_are_bad_records() {
    let fixtures = Fixtures::new();
    let path = fixtures.write("one/a.npy", &npy("|u1", false, &[4, 4, 4], &mask(0, [4, 4, 4])));
    let pipeline = open(&format!("npy path={} | random_flip", path.display()), &fixtures).unwrap();
    let store: Arc<dyn Store> = Arc::new(LocalStore);
    let error = || plain_epoch(&pipeline, &store, Part::default(), 10).error.unwrap_or_default();
    assert_eq!(error(), "");
    fixtures.write("one/a.npy", &npy("|u1", false, &[4, 4, 5], &mask(0, [4, 4, 5])));
    assert!(error().contains("longer"), "{}", error());
    fixtures.write("one/a.npy", b"gone");
    assert!(error().contains("ends after 4 bytes"), "{}", error());
    std::fs::remove_file(&path).unwrap();
    assert!(error().contains("vanished"), "{}", error());
}
