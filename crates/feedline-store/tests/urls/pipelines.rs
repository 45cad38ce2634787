//! Whole pipelines: what comes from a store is what comes from files, bit for bit, and costs one request
//! a sample.

use super::{anywhere, objects, settings};
use feedline_core::{Blobs, Position, Seed, Store};
use feedline_engine::{Next, Options, Run};
use feedline_ops::Pipeline;
use feedline_plan::Plan;
use feedline_store::{AnyStore, LocalStore, ThrottledStore, UrlStore};
use feedline_testkit::objects::{Asked, Fault, ObjectServer};
use feedline_testkit::{Fixtures, Outcome, engine_epoch};
use std::path::Path;
use std::sync::Arc;

fn open(plan: &str, store: &Arc<dyn Store>) -> feedline_core::Result<Arc<Pipeline>> {
    let plan: Plan = plan.parse()?;
    Ok(Arc::new(Pipeline::open(&plan, &**store, &Blobs::new())?))
}

fn options() -> Options {
    Options { threads: 2, seed: Seed(3), epochs: Some(1), ..Options::default() }
}

fn epoch(pipeline: &Arc<Pipeline>, store: &Arc<dyn Store>) -> Outcome {
    engine_epoch(pipeline, store, Position::default(), options(), usize::MAX)
}

fn shown(outcome: &Outcome) -> String {
    let batches: Vec<String> = outcome.batches.iter().map(feedline_testkit::show_batch).collect();
    format!("{}\n{:?}", batches.join("\n"), outcome.error)
}

/// Puts what a fixture names into a bucket, and gives the plan that reads it from there.
fn moved(server: &ObjectServer, fixtures: &Fixtures, plan: &str, name: &str) -> String {
    let folder = fixtures.expand(name);
    let put = server.put_folder(&format!("bucket/{}", &name[1..]), Path::new(&folder));
    put.expect("the fixtures are there");
    plan.replace(name, &format!("s3://bucket/{}", &name[1..]))
}

#[test]
fn every_source_gives_what_its_files_give() {
    let (server, fixtures) = (ObjectServer::start(), Fixtures::new());
    let store = anywhere(&server);
    server.page(2);
    for (plan, name) in [
        (
            "images path=$IMAGES | shuffle | decode | random_resized_crop size=8 | batch size=2",
            "$IMAGES",
        ),
        ("images path=$FLAT | decode | resize size=[4,4] | batch size=3", "$FLAT"),
        ("files path=$FLAT | shuffle | take count=3", "$FLAT"),
        (
            "npy path=$SCANS fields={\"image\":\"*_x.npy\",\"label\":\"*_y.npy\"} | shuffle | \
             random_balanced_crop size=[2,2,2] | batch size=2",
            "$SCANS",
        ),
        ("npy path=$NPZ", "$NPZ"),
        ("npy path=$ROWS rows=true | shuffle | batch size=2", "$ROWS"),
        (
            "nifti path=$NIFTI fields={\"x\":\"*/image.nii.gz\",\"y\":\"*/mask.nii\"} | shuffle",
            "$NIFTI",
        ),
        ("arrow path=$ARROW | shuffle", "$ARROW"),
        ("arrow path=$ARROWIMAGES | shuffle | batch size=2", "$ARROWIMAGES"),
    ] {
        let there = moved(&server, &fixtures, plan, name);
        let far = open(&there, &store).unwrap_or_else(|error| panic!("{there}: {error}"));
        let near = open(&fixtures.expand(plan), &store).unwrap();
        let (wanted, found) = (epoch(&near, &store), epoch(&far, &store));
        assert!(!wanted.batches.is_empty() && wanted.error.is_none(), "{plan}: {:?}", wanted.error);
        assert_eq!(shown(&found), shown(&wanted), "{plan}");
        // A run resumed after any batch gives the rest.
        for done in 1..wanted.batches.len() {
            let (pipeline, store) = (Arc::clone(&far), Arc::clone(&store));
            let mut run =
                Run::start(pipeline, Arc::clone(&store), Position::default(), options()).unwrap();
            for _ in 0..done {
                assert!(matches!(run.next(), Ok(Next::Batch(_))));
            }
            let position = run.position();
            drop(run);
            let rest = engine_epoch(&far, &store, position, options(), usize::MAX);
            let wanted = Outcome { batches: wanted.batches[done..].to_vec(), error: None };
            assert_eq!(shown(&rest), shown(&wanted), "{plan} after {done}");
        }
    }
}

#[test]
fn a_sample_costs_one_request_and_its_own_bytes() {
    let (server, fixtures) = (ObjectServer::start(), Fixtures::new());
    let folder = fixtures.expand("$IMAGES");
    server.put_folder("bucket/images", Path::new(&folder)).unwrap();
    let store = anywhere(&server);
    let images = LocalStore.list(Path::new(&folder)).unwrap();
    let pipeline = open(
        "images path=s3://bucket/images | shuffle | decode | resize size=[4,4] | batch size=4",
        &store,
    )
    .unwrap();
    let opened = server.asked();
    assert_eq!((opened.lists, opened.heads, opened.gets), (1, 0, 0), "one listing, and no more");
    for epochs in 1..=3 {
        let outcome = epoch(&pipeline, &store);
        assert!(outcome.error.is_none(), "{:?}", outcome.error);
        let Asked { gets, heads, lists, bytes, .. } = server.asked();
        let samples = pipeline.source.length();
        let stored = pipeline.source.stored_bytes().unwrap();
        assert!(images.len() as u64 >= samples && samples > 5);
        assert_eq!((gets, heads, lists), (epochs * samples, 0, 1));
        assert_eq!(bytes, epochs * stored);
    }
    // Connections are used again: far fewer are made than requests.
    assert!(server.asked().connections * 2 < server.asked().gets, "{:?}", server.asked());
}

#[test]
fn a_run_survives_what_passes_and_names_what_does_not() {
    let (server, fixtures) = (ObjectServer::start(), Fixtures::new());
    let folder = fixtures.expand("$FLAT");
    server.put_folder("bucket/flat", Path::new(&folder)).unwrap();
    let store = anywhere(&server);
    let plan = "images path=s3://bucket/flat | decode | resize size=[4,4]";
    let pipeline = open(&format!("{plan} | batch size=2"), &store).unwrap();
    let wanted = shown(&epoch(&pipeline, &store));
    server.faults([
        Fault::Status(503, "SlowDown"),
        Fault::CutAfter(10),
        Fault::Garbage,
        Fault::TooShort(3),
        Fault::Shifted(5),
    ]);
    assert_eq!(shown(&epoch(&pipeline, &store)), wanted);
    // What may come later is never skipped, whatever the policy for bad samples.
    let skipping = open(&format!("{plan} | on_error policy=skip | batch size=2"), &store).unwrap();
    server.always(Some(Fault::Status(503, "SlowDown")));
    let error = epoch(&skipping, &store).error.expect("it is raised");
    assert!(error.contains("s3://bucket/flat/") && error.contains("unavailable"), "{error}");
    server.always(Some(Fault::Status(403, "AccessDenied")));
    let error = epoch(&skipping, &store).error.expect("it is raised");
    assert!(error.contains("forbidden"), "{error}");
    server.always(None);
    // An object that is gone is a bad sample like a file that is gone.
    server.remove("bucket/flat/1.jpg");
    let names: Vec<_> = LocalStore.list(Path::new(&folder)).unwrap();
    let gone = names[1].path.file_name().unwrap().to_str().unwrap();
    server.remove(&format!("bucket/flat/{gone}"));
    assert!(epoch(&pipeline, &store).error.expect("it is raised").contains("vanished"));
    let outcome = epoch(&skipping, &store);
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    let rows: usize = outcome.batches.iter().map(|batch| batch.rows).sum();
    assert_eq!(rows as u64 + 1, pipeline.length().finite().unwrap());
}

#[test]
fn a_job_is_pinned_to_what_was_listed() {
    let (server, fixtures) = (ObjectServer::start(), Fixtures::new());
    let folder = fixtures.expand("$FLAT");
    server.put_folder("bucket/flat", Path::new(&folder)).unwrap();
    let store = anywhere(&server);
    let plan = "images path=s3://bucket/flat";
    let manifest = |store: &Arc<dyn Store>| open(plan, store).unwrap().source.manifest();
    let before = manifest(&store);
    assert_eq!(before, manifest(&anywhere(&server)), "every client finds the same");
    let pipeline = open(plan, &store).unwrap();
    let first = LocalStore.list(Path::new(&folder)).unwrap().remove(0);
    let name = format!("bucket/flat/{}", first.path.file_name().unwrap().to_str().unwrap());
    // Of the same length, with other bytes.
    server.put(&name, &vec![0; first.size as usize]);
    assert_ne!(before, manifest(&store));
    assert!(epoch(&pipeline, &store).error.expect("it is raised").contains("changed"));
}

#[test]
fn names_come_from_braces_lists_and_files() {
    let (server, folder) = (ObjectServer::start(), tempfile::tempdir().unwrap());
    let store = anywhere(&server);
    for number in 0..4 {
        server.put(&format!("data/x-{number:02}.bin"), &[number; 3]);
        std::fs::write(folder.path().join(format!("x-{number:02}.bin")), [number; 3]).unwrap();
    }
    let list = "path\nx-01.bin\nx-03.bin\n";
    server.put("data/list.csv", list.as_bytes());
    let endpoint = server.endpoint();
    let mixed = format!(
        "s3://data/x-00.bin\n{endpoint}/data/x-01.bin\nfile://{}/x-02.bin\nx-03.bin\n",
        folder.path().display()
    );
    std::fs::write(folder.path().join("mixed.csv"), mixed).unwrap();
    let local = folder.path().display();
    for (plan, wanted) in [
        (format!("files path=\"{endpoint}/data/x-{{00..03}}.bin\""), vec![0, 1, 2, 3]),
        (format!("files path=\"{endpoint}/data/x-{{03,01}}.bin\""), vec![1, 3]),
        ("files path=\"s3://data/x-{01..02}.bin\"".into(), vec![1, 2]),
        (format!("files path=\"{local}/x-{{00..03}}.bin\""), vec![0, 1, 2, 3]),
        (format!("files path=\"file://{local}/x-{{02..03}}.bin\""), vec![2, 3]),
        (format!("files list={endpoint}/data/list.csv"), vec![1, 3]),
        ("files list=s3://data/list.csv".into(), vec![1, 3]),
        (format!("files list={local}/mixed.csv"), vec![0, 1, 2, 3]),
    ] {
        let pipeline = open(&plan, &store).unwrap_or_else(|error| panic!("{plan}: {error}"));
        let outcome = epoch(&pipeline, &store);
        assert!(outcome.error.is_none(), "{plan}: {:?}", outcome.error);
        let first = |batch: &feedline_core::Batch| batch.fields[0].1.buffer().unwrap()[0];
        assert_eq!(outcome.batches.iter().map(first).collect::<Vec<u8>>(), wanted, "{plan}");
    }
    for (plan, words) in [
        (format!("files path={endpoint}/data/"), "name its objects"),
        (format!("files path=\"{endpoint}/data/x-{{00..09}}.bin\""), "x-04.bin"),
        ("images path=https://user:canary@host/x".into(), "before @"),
        ("images path=https://host/x?token=canary".into(), "secret"),
        ("npy path=ftp://canary@host/x".into(), "none of the schemes"),
        ("images path=file://host/x".into(), "file:///"),
        ("images path=s3://data/".into(), "no images in s3://data/"),
    ] {
        let error = open(&plan, &store).err().expect(&plan).to_string();
        assert!(error.contains(words) && !error.contains("canary"), "{plan}: {error}");
    }
}

#[test]
fn wrappers_go_on_working() {
    let (server, fixtures) = (ObjectServer::start(), Fixtures::new());
    let folder = fixtures.expand("$FLAT");
    server.put_folder("bucket/flat", Path::new(&folder)).unwrap();
    let throttled: Arc<dyn Store> =
        Arc::new(AnyStore::new(Arc::new(ThrottledStore::new(1e9)), objects(&server)));
    let plan =
        |path: &str| format!("images path={path} | decode | resize size=[4,4] | batch size=2");
    let near = open(&plan(&folder), &throttled).unwrap();
    let far = open(&plan("s3://bucket/flat"), &throttled).unwrap();
    assert_eq!(shown(&epoch(&near, &throttled)), shown(&epoch(&far, &throttled)));
    // A store of URLs alone reads them too.
    let endpoint = server.endpoint();
    let alone: Arc<dyn Store> =
        Arc::new(UrlStore::new(super::patience()).with_settings(&settings(&endpoint)));
    assert_eq!(shown(&epoch(&far, &alone)), shown(&epoch(&near, &throttled)));
}
