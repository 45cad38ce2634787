//! Saving on the service: every shard once, whoever is lost on the way.

use crate::{PATIENCE, Service};
use feedline_core::{Cancel, Error, Result, Seed, Store};
use feedline_engine::save::{SaveOptions, SaveProgress, Saved, ShardSize, Shards};
use feedline_ops::Pipeline;
use feedline_store::LocalStore;
use feedline_testkit::{Fixtures, open};
use feedline_wire::control::Control;
use feedline_wire::stream::ClientOptions;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn cut(pipeline: &Pipeline, fixtures: &Fixtures, rows: u64) -> Shards {
    let store: Arc<dyn Store> = Arc::new(LocalStore);
    let size = ShardSize::Rows(rows);
    Shards::cut(&pipeline.plan, store, &fixtures.blobs, (Seed(3), 1), size).unwrap()
}

fn save(
    service: &Service,
    pipeline: &Pipeline,
    fixtures: &Fixtures,
    folder: &Path,
    options: &SaveOptions<'_>,
) -> Result<Saved> {
    let control: Arc<dyn Control> = service.control();
    let shards = cut(pipeline, fixtures, 3);
    let stream = (&ClientOptions::default(), PATIENCE);
    feedline_remote::save(&control, (shards, pipeline), &fixtures.blobs, folder, options, stream)
}

/// All files of a folder, as they are.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<(String, Vec<u8>)> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, std::fs::read(entry.path()).unwrap())
        })
        .collect();
    files.sort();
    files
}

const PLAN: &str = "images path=$IMAGES | shuffle | repeat count=5 | decode | random_crop size=[4,4] \
                    pad_if_needed=true | batch size=4";

#[test]
fn workers_leave_what_one_process_leaves() {
    let fixtures = Fixtures::new();
    let folder = tempfile::tempdir().unwrap();
    let service = Service::saving(3, folder.path());
    let pipeline = open(PLAN, &fixtures).unwrap();
    let (here, there) = (folder.path().join("here"), folder.path().join("there"));
    let alone =
        feedline_engine::save::save(cut(&pipeline, &fixtures, 3), &here, &SaveOptions::default());
    let alone = alone.unwrap();
    let told = Mutex::new(SaveProgress::default());
    let note = |progress: &SaveProgress| *told.lock().unwrap() = *progress;
    let options = SaveOptions { progress: Some(&note), ..SaveOptions::default() };
    let saved = save(&service, &pipeline, &fixtures, &there, &options).unwrap();
    assert_eq!((saved.rows, saved.shards, saved.written), (alone.rows, alone.shards, alone.shards));
    assert!(files(&here) == files(&there), "the same files, byte for byte");
    let told = *told.lock().unwrap();
    assert_eq!((told.shards_done, told.places_done), (saved.shards, told.places));
    // Once more, nothing is left to be done.
    let again = save(&service, &pipeline, &fixtures, &there, &SaveOptions::default()).unwrap();
    assert_eq!((again.written, again.rows), (0, saved.rows));
}

#[test]
fn workers_that_are_lost_and_whoever_saves_cost_nothing() {
    let fixtures = Fixtures::new();
    let folder = tempfile::tempdir().unwrap();
    let mut service = Service::saving(2, folder.path());
    let plan = "range count=120 | sleep ms=4 | batch size=4";
    let pipeline = open(plan, &fixtures).unwrap();
    let (here, there) = (folder.path().join("here"), folder.path().join("there"));
    feedline_engine::save::save(cut(&pipeline, &fixtures, 3), &here, &SaveOptions::default())
        .unwrap();
    // Whoever saves gives up after some shards.
    let cancel = Cancel::default();
    let stop = |progress: &SaveProgress| {
        if progress.shards_done >= 5 {
            cancel.cancel();
        }
    };
    let options =
        SaveOptions { cancel: cancel.clone(), progress: Some(&stop), ..SaveOptions::default() };
    let cancelled = save(&service, &pipeline, &fixtures, &there, &options);
    assert!(matches!(cancelled, Err(Error::Cancelled)), "{cancelled:?}");
    // Then a worker is lost, and another comes.
    let done = AtomicU64::new(0);
    let note = |progress: &SaveProgress| done.store(progress.shards_done, Ordering::SeqCst);
    let options = SaveOptions { progress: Some(&note), ..SaveOptions::default() };
    let lost = service.workers.pop();
    service.add();
    let saved = std::thread::scope(|scope| {
        let saving = scope.spawn(|| save(&service, &pipeline, &fixtures, &there, &options));
        while done.load(Ordering::SeqCst) < 10 && !saving.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(lost);
        saving.join().unwrap().unwrap()
    });
    assert!(saved.written < saved.shards, "the first shards were there");
    assert_eq!(saved.rows, 120);
    assert!(files(&here) == files(&there), "the same files, byte for byte");
}

#[test]
fn what_workers_may_not_do_or_cannot_is_said() {
    let fixtures = Fixtures::new();
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let service = Service::saving(1, folder.path());
    let pipeline = open("range count=9 | batch size=3", &fixtures).unwrap();
    let options = SaveOptions::default();
    let refused = save(&service, &pipeline, &fixtures, &elsewhere.path().join("out"), &options);
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("does not write to"), "{error}");
    assert!(error.contains(folder.path().to_str().unwrap()), "{error}");
    let bad = open("images path=$BAD | decode | resize size=[2,2] | batch size=2", &fixtures);
    let failed = save(&service, &bad.unwrap(), &fixtures, &folder.path().join("bad"), &options);
    assert!(matches!(failed, Err(Error::Record { .. })), "{failed:?}");
    // Something else is being saved there.
    save(&service, &pipeline, &fixtures, &folder.path().join("out"), &options).unwrap();
    let other = open("range count=9 | skip count=1 | batch size=3", &fixtures).unwrap();
    let error =
        save(&service, &other, &fixtures, &folder.path().join("out"), &options).unwrap_err();
    assert!(error.to_string().contains("another pipeline"), "{error}");
    let skipping =
        "images path=$BAD | on_error policy=skip | decode | resize size=[2,2] | batch size=2";
    let skipping = open(skipping, &fixtures).unwrap();
    let saved =
        save(&service, &skipping, &fixtures, &folder.path().join("skip"), &options).unwrap();
    assert!(saved.skipped > 0);
    assert_eq!(saved.rows + saved.skipped, skipping.length().finite().unwrap());
}
