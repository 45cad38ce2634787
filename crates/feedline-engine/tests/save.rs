//! Saving: what is saved is what the epoch gives, each row once, whatever happens meanwhile.
#![expect(clippy::unwrap_used, reason = "in a test, unwrap says that the test ends otherwise")]

use feedline_core::{Batch, Blobs, Cancel, Error, Pool, Result, Seed, Store, Tensor};
use feedline_engine::save::{Folder, SaveOptions, SaveProgress, Saved, ShardSize, Shards, save};
use feedline_engine::{Options, Team};
use feedline_ops::Pipeline;
use feedline_ops::plain::{Part, Plain};
use feedline_ops::sink::shard_name;
use feedline_plan::Plan;
use feedline_store::LocalStore;
use feedline_testkit::Fixtures;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn store() -> Arc<dyn Store> {
    Arc::new(LocalStore)
}

fn plan(text: &str, fixtures: &Fixtures) -> Plan {
    fixtures.expand(text).parse().unwrap()
}

fn cut(plan: &Plan, blobs: &Blobs, when: (u64, u64), rows: u64) -> Result<Shards> {
    Shards::cut(plan, store(), blobs, (Seed(when.0), when.1), ShardSize::Rows(rows))
}

fn two_threads() -> SaveOptions<'static> {
    SaveOptions { run: Options { threads: 2, ..Options::default() }, ..SaveOptions::default() }
}

fn save_rows(text: &str, fixtures: &Fixtures, to: &Path, rows: u64) -> Result<Saved> {
    save(cut(&plan(text, fixtures), &fixtures.blobs, (0, 0), rows)?, to, &two_threads())
}

/// The rows of an epoch, as the plain run has them.
fn plain(plan: &Plan, blobs: &Blobs, seed: u64, epoch: u64) -> Vec<Vec<Tensor>> {
    let pipeline = Arc::new(Pipeline::open(plan, &LocalStore, blobs).unwrap());
    let position = feedline_core::Position::epoch(epoch);
    let part = Part { seed: Seed(seed), position, ..Part::default() };
    Plain::new(pipeline, store(), part).map(|batch| fields(&batch.unwrap())).collect()
}

fn fields(batch: &Batch) -> Vec<Tensor> {
    batch.fields.iter().map(|(_, tensor)| tensor.clone()).collect()
}

fn read(folder: &Path) -> Result<Vec<Vec<Tensor>>> {
    let plan: Plan = format!("arrow path={}", folder.display()).parse().unwrap();
    let pipeline = Arc::new(Pipeline::open(&plan, &LocalStore, &Blobs::new())?);
    Plain::new(pipeline, store(), Part::default()).map(|batch| batch.map(|b| fields(&b))).collect()
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn table(folder: &Path) -> serde_json::Value {
    serde_json::from_str(&fs::read_to_string(folder.join("feedline.json")).unwrap()).unwrap()
}

// ------------------------------------------------------------------------------- what is saved

#[test]
fn what_is_saved_is_what_the_epoch_gives() {
    let fixtures = Fixtures::new();
    let texts = [
        "images path=$IMAGES | shuffle | decode | random_resized_crop size=[8,6] | flip_horizontal \
         | normalize mean=[0.5,0.4,0.3] std=[0.2,0.2,0.2] | layout to=CHW",
        // Shapes differ from sample to sample, and bytes are kept as they are.
        "images path=$IMAGES | decode",
        "images path=$IMAGES | sample balance=label count=30",
        "arrays fields=$TEXTS | shuffle | repeat count=3",
        "npy path=$SCANS fields={\"image\":\"*_x.npy\",\"label\":\"*_y.npy\"} | random_flip",
        "arrow path=$ARROW | shuffle",
        "range count=0",
    ];
    for text in texts {
        let plan = plan(text, &fixtures);
        for (seed, epoch, rows) in [(0, 0, 3), (7, 2, 100), (7, 3, 1)] {
            let folder = tempfile::tempdir().unwrap();
            let out = folder.path().join("out");
            let shards = cut(&plan, &fixtures.blobs, (seed, epoch), rows).unwrap();
            let saved = save(shards, &out, &two_threads()).unwrap();
            let wanted = plain(&plan, &fixtures.blobs, seed, epoch);
            assert_eq!(saved.rows, wanted.len() as u64, "{text}");
            assert_eq!(saved.shards, (wanted.len() as u64).div_ceil(rows).max(1), "{text}");
            assert_eq!(read(&out).unwrap(), wanted, "{text}");
            assert_eq!(saved.written, saved.shards);
            let bytes: u64 = names(&out)
                .iter()
                .filter(|name| name.ends_with(".arrow"))
                .map(|name| fs::metadata(out.join(name)).unwrap().len())
                .sum();
            assert_eq!(saved.bytes, bytes);
        }
    }
}

#[test]
fn rows_of_batches_are_saved_one_by_one() {
    let fixtures = Fixtures::new();
    for (batch, rows) in
        [("batch size=4", 10), ("batch size=4 drop_last=true", 8), ("batch size=4 pad=true", 10)]
    {
        let folder = tempfile::tempdir().unwrap();
        let text = format!("range count=10 | shuffle | {batch}");
        let saved = save_rows(&text, &fixtures, folder.path(), 3).unwrap();
        assert_eq!(saved.rows, rows, "{batch}");
        let wanted = plain(&plan("range count=10 | shuffle", &fixtures), &fixtures.blobs, 0, 0);
        assert_eq!(read(folder.path()).unwrap(), wanted[..rows as usize]);
    }
}

#[test]
fn shards_have_about_the_size_that_was_asked_for() {
    let fixtures = Fixtures::new();
    let cut = |text: &str, bytes: u64| {
        let plan = plan(text, &fixtures);
        Shards::cut(&plan, store(), &fixtures.blobs, (Seed(0), 0), ShardSize::Bytes(bytes))
    };
    let shards = cut("range count=100000", 80_000).unwrap();
    assert_eq!((shards.table().shards, shards.table().shard_places), (10, 10_000));
    let measured = cut("images path=$IMAGES | repeat count=100", 100_000).unwrap();
    let table = measured.table();
    assert!((5..200).contains(&table.shard_places), "{table:?}");
    let error = |text: &str, bytes: u64| cut(text, bytes).err().unwrap().to_string();
    assert!(error("range count=10 | repeat", 100).contains("for ever"));
    assert!(error("range count=10", 0).contains("above 0"));
    assert!(error("range count=10000000", 1).contains("choose larger ones"));
}

#[test]
fn bad_samples_are_left_out_and_named_if_the_plan_says_so() {
    let fixtures = Fixtures::new();
    let folder = tempfile::tempdir().unwrap();
    let (out, notes) = (folder.path().join("out"), folder.path().join("bad.jsonl"));
    let text = format!(
        "images path=$BAD | decode | resize size=[8,8] | on_error policy=skip file={}",
        notes.display()
    );
    let saved = save_rows(&text, &fixtures, &out, 2).unwrap();
    assert_eq!((saved.rows, saved.skipped, saved.shards), (3, 3, 3));
    let wanted = plain(&plan(&text, &fixtures), &fixtures.blobs, 0, 0);
    assert_eq!(read(&out).unwrap(), wanted);
    let table = table(&out);
    assert_eq!((&table["complete"], &table["rows"]), (&true.into(), &3.into()));
    let skipped = table["skipped"].as_array().unwrap();
    let places: Vec<u64> = skipped.iter().map(|one| one["place"].as_u64().unwrap()).collect();
    assert_eq!(places, [1, 3, 4]);
    assert!(skipped[1]["origin"].as_str().unwrap().ends_with("3.jpg"));
    assert_eq!(fs::read_to_string(notes).unwrap().lines().count(), 3);
    // Once more: nothing is computed, and the numbers are the same.
    let again = save_rows(&text, &fixtures, &out, 2).unwrap();
    assert_eq!((again.rows, again.skipped, again.written), (3, 3, 0));
    let other = folder.path().join("other");
    let text = "images path=$BAD | decode | resize size=[8,8] | on_error policy=skip count=2";
    for _ in 0..3 {
        // Also when all shards are there.
        let error = save_rows(text, &fixtures, &other, 2).unwrap_err();
        assert!(matches!(error, Error::Budget(_)), "{error}");
        assert!(read(&other).is_err());
    }
    let text = "images path=$BAD | decode | resize size=[8,8]";
    let third = folder.path().join("third");
    let error = save_rows(text, &fixtures, &third, 2).unwrap_err();
    assert!(error.is_record() && error.to_string().contains(".jpg"), "{error}");
    assert!(read(&third).unwrap_err().to_string().contains("is not complete"));
}

#[test]
fn samples_without_a_column_are_refused_before_anything_is_written() {
    let fixtures = Fixtures::new();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let error =
        save_rows("arrays fields=$TABLE | drop fields=[\"x\",\"y\",\"b\"]", &fixtures, &out, 2);
    assert!(error.is_err() && !out.exists());
}

// ---------------------------------------------------------------------------- whose folder it is

#[test]
fn a_folder_of_something_else_is_refused() {
    let fixtures = Fixtures::new();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    save_rows("range count=10 | shuffle", &fixtures, out, 3).unwrap();
    let before = names(out);
    let refused = |text: &str, when: (u64, u64), word: &str| {
        let shards = cut(&plan(text, &fixtures), &fixtures.blobs, when, 3).unwrap();
        let error = save(shards, out, &two_threads()).unwrap_err().to_string();
        assert!(error.contains(word) && error.contains("another folder"), "{error}");
    };
    refused("range count=11 | shuffle", (0, 0), "other data");
    refused("range count=10", (0, 0), "step 1 was shuffle, and is its end");
    refused("range count=10 | shuffle seed=1", (0, 0), "another pipeline");
    refused("range count=10 | shuffle", (1, 0), "seed 0 of epoch 0, and not with seed 1");
    refused("range count=10 | shuffle", (0, 1), "epoch 1");
    refused("arrays fields=$TINY | shuffle", (0, 0), "another pipeline");
    assert_eq!(names(out), before);
    fs::write(out.join("feedline.json"), "{}").unwrap();
    let error = save_rows("range count=10 | shuffle", &fixtures, out, 3).unwrap_err().to_string();
    assert!(error.contains("is no table"), "{error}");
    let other = tempfile::tempdir().unwrap();
    fs::write(other.path().join("mine.txt"), "mine").unwrap();
    let error = save_rows("range count=10", &fixtures, other.path(), 3).unwrap_err().to_string();
    assert!(error.contains("other files (mine.txt)"), "{error}");
}

#[test]
fn the_shards_that_were_begun_stay_as_they_were_cut() {
    let fixtures = Fixtures::new();
    let folder = tempfile::tempdir().unwrap();
    save_rows("range count=10", &fixtures, folder.path(), 3).unwrap();
    fs::remove_file(folder.path().join(shard_name(1))).unwrap();
    let saved = save_rows("range count=10", &fixtures, folder.path(), 5).unwrap();
    assert_eq!((saved.shards, saved.written, saved.rows), (4, 1, 10));
    assert_eq!(read(folder.path()).unwrap().len(), 10);
}

// --------------------------------------------------------------------------------- going on

#[test]
fn only_what_is_missing_or_damaged_is_written_again() {
    let fixtures = Fixtures::new();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    save_rows("range count=20 | shuffle", &fixtures, out, 4).unwrap();
    let wanted = read(out).unwrap();
    let time =
        |number: u64| fs::metadata(out.join(shard_name(number))).unwrap().modified().unwrap();
    let contents = |number: u64| fs::read(out.join(shard_name(number))).unwrap();
    let (before, bytes) = ([0, 3, 4].map(time), contents(1));
    fs::remove_file(out.join(shard_name(1))).unwrap();
    let whole = contents(2);
    fs::write(out.join(shard_name(2)), &whole[..whole.len() / 2]).unwrap();
    fs::write(out.join(".shard-000001.arrow.77-1-1.tmp"), "left behind").unwrap();
    let error = read(out).unwrap_err().to_string();
    assert!(error.contains("1 of its 5 shards are missing"), "{error}");
    let saved = save_rows("range count=20 | shuffle", &fixtures, out, 4).unwrap();
    assert_eq!(saved.written, 2);
    assert_eq!([0, 3, 4].map(time), before);
    assert_eq!((contents(1), contents(2)), (bytes, whole));
    assert_eq!(read(out).unwrap(), wanted);
    assert_eq!(names(out).len(), 6, "{:?}", names(out));
}

#[test]
fn anyone_who_sees_the_folder_can_write_any_shard() {
    let fixtures = Fixtures::new();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    let text = "images path=$IMAGES | shuffle | decode | resize size=[9,7]";
    save_rows(text, &fixtures, out, 2).unwrap();
    let wanted = read(out).unwrap();
    let before: Vec<Vec<u8>> = (0..5).map(|k| fs::read(out.join(shard_name(k))).unwrap()).collect();
    for k in [1, 3, 4] {
        fs::remove_file(out.join(shard_name(k))).unwrap();
    }
    // All that is known here is the folder.
    let shards = Shards::open(out, store(), &Blobs::new()).unwrap();
    let (team, pool) = (Team::new(2).unwrap(), Pool::new(1 << 20));
    let there = Folder::prepare(out).unwrap();
    for k in [4, 1, 3, 3] {
        let options = Options::default();
        let written = shards.write(&there, k, &team, &pool, &options, &mut |_, _| true).unwrap();
        assert_eq!(shards.find(&there, k), Some(written));
    }
    for (k, bytes) in before.iter().enumerate() {
        assert_eq!(fs::read(out.join(shard_name(k as u64))).unwrap(), *bytes, "shard {k}");
    }
    assert_eq!(read(out).unwrap(), wanted);
    assert!(shards.write(&there, 5, &team, &pool, &Options::default(), &mut |_, _| true).is_err());
    let empty = tempfile::tempdir().unwrap();
    let error = Shards::open(empty.path(), store(), &Blobs::new()).err().unwrap().to_string();
    assert!(error.contains("nothing is being saved"), "{error}");
}

#[test]
fn it_ends_when_it_is_told_to_and_goes_on_later() {
    let fixtures = Fixtures::new();
    let folder = tempfile::tempdir().unwrap();
    let text = "range count=60 | sleep ms=1";
    let cancel = Cancel::default();
    let most = AtomicU64::new(0);
    let tell = |progress: &SaveProgress| {
        assert!(progress.places_done <= 60 && progress.shards_done <= 12);
        most.fetch_max(progress.places_done, Ordering::Relaxed);
        if progress.shards_done >= 2 {
            cancel.cancel();
        }
    };
    let options = SaveOptions { cancel: cancel.clone(), progress: Some(&tell), ..two_threads() };
    let shards = cut(&plan(text, &fixtures), &fixtures.blobs, (0, 0), 5).unwrap();
    assert!(matches!(save(shards, folder.path(), &options), Err(Error::Cancelled)));
    let there = names(folder.path());
    assert!((3..12).contains(&there.len()), "{there:?}");
    assert!(there.iter().all(|name| !name.ends_with(".tmp")), "{there:?}");
    assert!(most.load(Ordering::Relaxed) >= 10);
    let saved = save_rows(text, &fixtures, folder.path(), 5).unwrap();
    assert_eq!((saved.rows, saved.written), (60, 12 - (there.len() as u64 - 1)));
}

// ------------------------------------------------------------------- processes that are killed

const CHILD: &str = "FEEDLINE_TEST_SAVE_TO";
const LIMIT: &str = "FEEDLINE_TEST_SAVE_LIMIT";
/// 40 shards of 15 rows each.
const SLOW: &str = "range count=600 | shuffle | sleep ms=0.3";

/// Not a test by itself: what the processes do that the tests below start.
#[test]
fn child() {
    let Some(folder) = std::env::var_os(CHILD) else { return };
    if let Some(limit) = std::env::var_os(LIMIT) {
        let most = limit.to_str().unwrap().parse().unwrap();
        let limit = rustix::process::Rlimit { current: Some(most), maximum: Some(most) };
        rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).unwrap();
        // SAFETY: ignoring a signal runs no code of ours.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    }
    let plan: Plan = SLOW.parse().unwrap();
    let result = cut(&plan, &Blobs::new(), (5, 1), 15)
        .and_then(|shards| save(shards, &PathBuf::from(folder), &two_threads()));
    match result {
        Ok(saved) => println!("saved {} rows, wrote {}", saved.rows, saved.written),
        Err(error) => println!("failed: {error}"),
    }
}

fn start(folder: &Path, limit: Option<u64>) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["child", "--exact", "--nocapture", "--test-threads=1"]).env(CHILD, folder);
    if let Some(limit) = limit {
        command.env(LIMIT, limit.to_string());
    }
    command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

fn output(child: Child) -> String {
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
}

/// Every file that can be seen under its name is whole.
fn assert_whole(folder: &Path) -> usize {
    let Ok(shards) = Shards::open(folder, store(), &Blobs::new()) else { return 0 };
    let there = Folder::prepare(folder).unwrap();
    let mut count = 0;
    for k in 0..shards.table().shards {
        if folder.join(shard_name(k)).exists() {
            let written = shards.find(&there, k);
            assert_eq!(written.map(|written| written.rows), Some(15), "shard {k}");
            count += 1;
        }
    }
    count
}

/// The rows are those of the epoch, each of them once.
fn assert_exact(folder: &Path) {
    let rows = read(folder).unwrap();
    let plan: Plan = "range count=600 | shuffle".parse().unwrap();
    assert_eq!(rows, plain(&plan, &Blobs::new(), 5, 1));
    let mut ids: Vec<i64> = rows.iter().map(|row| row[0].value().unwrap()).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..600).collect::<Vec<i64>>());
    let left = names(folder);
    assert_eq!(left.len(), 41, "{left:?}");
}

#[test]
fn each_row_is_saved_once_however_often_the_process_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let mut state = 0x9E37_79B9u64 ^ u64::from(std::process::id());
    let (mut kills, mut most) = (0, 0);
    let began = Instant::now();
    while kills < 40 && began.elapsed() < Duration::from_secs(60) {
        let mut child = start(&out, None);
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_millis(5 + (state >> 33) % 60));
        child.kill().unwrap();
        drop(child.wait_with_output());
        kills += 1;
        let whole = assert_whole(&out);
        assert!(whole >= most, "a shard that was there is gone");
        most = whole;
        // When all is done there is nothing left to be killed: take a few away again.
        if whole == 40 {
            (0..30).for_each(|k| fs::remove_file(out.join(shard_name(k))).unwrap());
            most = 10;
        }
    }
    assert!(kills >= 20, "{kills} kills");
    let text = output(start(&out, None));
    assert!(text.contains("saved 600 rows"), "{text}");
    assert_exact(&out);
}

#[test]
fn several_processes_may_save_to_one_folder_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let children: Vec<Child> = (0..3).map(|_| start(&out, None)).collect();
    for text in children.into_iter().map(output) {
        assert!(text.contains("saved 600 rows"), "{text}");
    }
    assert_exact(&out);
}

#[test]
fn a_full_disk_is_an_error_and_leaves_nothing_half_written() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    // The table fits, a shard does not.
    let text = output(start(&out, Some(1000)));
    assert!(text.contains("failed: room for") && text.contains("shard-"), "{text}");
    assert_eq!(names(&out), ["feedline.json"]);
    let text = output(start(&out, None));
    assert!(text.contains("saved 600 rows"), "{text}");
    assert_exact(&out);
    // Not even the table fits.
    let other = folder.path().join("other");
    let text = output(start(&other, Some(10)));
    assert!(text.contains("failed: room for") && text.contains("feedline.json"), "{text}");
    assert!(names(&other).is_empty());
}
