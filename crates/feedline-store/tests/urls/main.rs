//! Objects by URL, from a server that misbehaves: exact bytes or a clear error, never anything else.

mod confined;
mod faults;
mod pipelines;

use feedline_core::{Entry, Error, Extent, Result, Store};
use feedline_store::{AnyStore, LocalStore, Patience, UrlStore};
use feedline_testkit::objects::{Fault, ObjectServer};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// As patient as a test can be.
fn patience() -> Patience {
    Patience {
        opening: Duration::from_secs(2),
        reading: Duration::from_secs(2),
        first: Duration::from_millis(2),
        longest: Duration::from_millis(20),
        silence: Duration::from_millis(300),
    }
}

/// Settings of an S3 client that speaks to this server.
fn settings(endpoint: &str) -> Vec<(&str, &str)> {
    vec![
        ("AWS_ENDPOINT_URL", endpoint),
        ("AWS_ACCESS_KEY_ID", "a-key"),
        ("AWS_SECRET_ACCESS_KEY", "canary-secret"),
        ("AWS_SESSION_TOKEN", "canary-token"),
        ("AWS_REGION", "us-east-1"),
    ]
}

fn objects(server: &ObjectServer) -> UrlStore {
    UrlStore::new(patience()).with_settings(&settings(&server.endpoint()))
}

/// Files of this machine, and the server's objects.
fn anywhere(server: &ObjectServer) -> Arc<dyn Store> {
    Arc::new(AnyStore::new(Arc::new(LocalStore), objects(server)))
}

fn read(store: &dyn Store, entry: &Entry) -> Result<Vec<u8>> {
    let Entry { path, size, modified } = entry;
    let mut out = vec![0xEE; *size as usize];
    let extent = Extent { path, offset: 0, length: *size, whole: true, modified: *modified };
    store.read(extent, &mut out).map(|()| out)
}

fn range(store: &dyn Store, path: &str, offset: u64, length: usize) -> Result<Vec<u8>> {
    let (mut out, path) = (vec![0xEE; length], Path::new(path));
    let extent = Extent { path, offset, length: length as u64, whole: false, modified: 0 };
    store.read(extent, &mut out).map(|()| out)
}

/// Bytes of which no two neighbourhoods are alike.
fn bytes(count: usize) -> Vec<u8> {
    (0..count as u64).map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

/// The same object for a web client and for an S3 client.
fn both(server: &ObjectServer, name: &str) -> [PathBuf; 2] {
    [server.url(&format!("bucket/{name}")).into(), format!("s3://bucket/{name}").into()]
}

fn unavailable(error: &Error) -> bool {
    matches!(error, Error::Unavailable { .. })
}

#[test]
fn objects_are_read_whole_in_ranges_and_in_parts() {
    let server = ObjectServer::start();
    let store = objects(&server);
    let large = bytes(20 << 20);
    for (name, content) in [("empty", &[][..]), ("a b/ä&?.bin", b"12345"), ("large", &large)] {
        server.put(&format!("bucket/{name}"), content);
    }
    for name in ["empty", "a b/ä&?.bin", "large"] {
        let s3 = format!("s3://bucket/{name}");
        let entry = store.stat(Path::new(&s3)).unwrap();
        let content = read(&store, &entry).unwrap();
        assert!(content.len() as u64 == entry.size && entry.modified > 0, "{name}");
        if name == "large" {
            assert!(content == large);
        }
    }
    let before = server.asked();
    for path in both(&server, "large") {
        let path = path.to_str().unwrap();
        for (offset, length) in [(0, 1), (7, 1000), ((20 << 20) - 1, 1), (5, 19 << 20), (9, 0)] {
            let part = range(&store, path, offset, length).unwrap();
            assert!(part == large[offset as usize..][..length], "{path} {offset} {length}");
        }
    }
    let asked = server.asked();
    // Three small ranges, and three parts of the large one, twice.
    assert_eq!((asked.gets - before.gets, asked.heads - before.heads), (12, 0));
    assert_eq!(asked.bytes - before.bytes, 2 * (1002 + (19 << 20)));
}

#[test]
fn cuts_are_those_of_a_file() {
    let (server, folder) = (ObjectServer::start(), tempfile::tempdir().unwrap());
    let store = objects(&server);
    let content = bytes(3 << 20);
    server.put("bucket/array", &content);
    let file = folder.path().join("array");
    std::fs::write(&file, &content).unwrap();
    let url = Path::new("s3://bucket/array");
    let modified = store.stat(url).unwrap().modified;
    // Rows that lie near each other, and some that lie far apart; in every direction.
    for (counts, strides) in [
        ([2, 3, 5], [1 << 20, 100_000, 300]),
        ([1, 2, 3], [0, 5_000, 1 << 20]),
        ([1, 1, 1], [100, 100, 100]),
        ([3, 1, 4], [1 << 20, 0, 100]),
    ] {
        for flips in 0..8u8 {
            let reversed = [flips & 1 > 0, flips & 2 > 0, flips & 4 > 0];
            let cut = feedline_core::Cut {
                path: &file,
                size: 3 << 20,
                modified: 0,
                offset: 17,
                run: 100,
                counts,
                strides,
                reversed,
            };
            let [mut near, mut far] = [(); 2].map(|()| vec![0; cut.length()]);
            LocalStore.read_cut(&cut, &mut 0, &mut near).unwrap();
            let cut = feedline_core::Cut { path: url, modified, ..cut };
            let mut done = 0;
            store.read_cut(&cut, &mut done, &mut far).unwrap();
            assert_eq!(done, cut.planes());
            assert!(near == far, "{counts:?} {reversed:?}");
        }
    }
}

#[test]
fn a_folder_is_listed_in_pages_and_in_byte_order() {
    let server = ObjectServer::start();
    let store = objects(&server);
    server.page(3);
    let names = ["train/b/2", "train/a", "train/b/10", "train/ä", "train/b-1", "training/x", "y"];
    for name in names {
        server.put(&format!("bucket/{name}"), name.as_bytes());
    }
    // What marks a folder is no object.
    server.put("bucket/train/b/", b"");
    for root in ["s3://bucket/train", "s3://bucket/train/"] {
        let entries = store.list(Path::new(root)).unwrap();
        let names: Vec<&str> = entries.iter().map(|entry| entry.path.to_str().unwrap()).collect();
        let wanted =
            ["a", "b-1", "b/10", "b/2", "ä"].map(|name| format!("s3://bucket/train/{name}"));
        assert_eq!(names, wanted);
        assert_eq!(entries[2].size, 10);
    }
    assert_eq!(store.list(Path::new("s3://bucket")).unwrap().len(), 7);
    let one = store.list(Path::new("s3://bucket/y")).unwrap();
    assert_eq!((one.len(), one[0].path.to_str().unwrap()), (1, "s3://bucket/y"));
    for (root, words) in [
        ("s3://bucket/nothing/", "holds no objects"),
        ("s3://bucket/nothing", "there is no such object"),
        ("s3://nowhere/x/", "there is no bucket nowhere"),
    ] {
        let error = store.list(Path::new(root)).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains(root), "{error}");
    }
}

#[test]
fn objects_that_no_path_can_name_are_named() {
    let server = ObjectServer::start();
    let store = objects(&server);
    for (name, words) in [("a//b", "empty part"), ("a/../b", ". or .."), ("a/./b", ". or ..")] {
        server.put(&format!("bucket/{name}"), b"x");
        let error = store.list(Path::new("s3://bucket/")).unwrap_err().to_string();
        assert!(error.contains(words) && error.starts_with("s3://bucket/ holds"), "{error}");
        server.remove(&format!("bucket/{name}"));
        server.put("bucket/z", b"x");
    }
}

#[test]
fn other_clouds_are_read_as_well() {
    let server = ObjectServer::start();
    let content = bytes(10_000);
    server.put("bucket/train/a b.bin", &content);
    server.put("bucket/train/c.bin", b"c");
    let endpoint = server.endpoint();
    let key = format!(
        "{{\"gcs_base_url\": \"{endpoint}\", \"disable_oauth\": true, \"client_email\": \"\", \
         \"private_key\": \"\", \"private_key_id\": \"\"}}"
    );
    let store = UrlStore::new(patience()).with_settings(&[
        ("GOOGLE_SERVICE_ACCOUNT_KEY", &key),
        ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
        ("AZURE_STORAGE_ACCOUNT_KEY", "Y2FuYXJ5"),
        ("AZURE_STORAGE_ENDPOINT", &endpoint),
    ]);
    let listed = store.list(Path::new("gs://bucket/train")).unwrap();
    assert_eq!(listed.len(), 2);
    for url in ["gs://bucket/train/a b.bin", "az://bucket/train/a b.bin"] {
        let entry = store.stat(Path::new(url)).unwrap();
        assert_eq!((entry.size, entry.modified), (10_000, listed[0].modified), "{url}");
        assert!(read(&store, &entry).unwrap() == content, "{url}");
        assert_eq!(range(&store, url, 77, 5).unwrap(), content[77..82], "{url}");
        server.faults([Fault::Status(503, "ServerBusy"), Fault::CutAfter(100)]);
        assert!(read(&store, &entry).unwrap() == content, "{url}");
        server.faults([Fault::OtherTag]);
        assert!(read(&store, &entry).unwrap_err().is_record(), "{url}");
        let error = store.stat(Path::new(&url.replace("a b", "x"))).unwrap_err().to_string();
        assert!(error.contains("no such object"), "{error}");
    }
}

#[test]
fn many_are_looked_at_together() {
    let server = ObjectServer::start();
    let store = anywhere(&server);
    for number in 0..100 {
        server.put(&format!("data/x-{number:03}"), &bytes(number));
    }
    server.latency(Duration::from_millis(20));
    let entries = store.list(Path::new(&server.url("data/x-{000..099}"))).unwrap();
    assert_eq!(
        entries.iter().map(|entry| entry.size).collect::<Vec<_>>(),
        (0..100).collect::<Vec<_>>()
    );
    assert_eq!((server.asked().heads, server.asked().gets), (100, 0));
    // One after another they would share one connection.
    assert!(server.asked().connections >= 8, "{:?}", server.asked());
    let error = store.list(Path::new(&server.url("data/x-{098..101}"))).unwrap_err().to_string();
    assert!(error.contains("x-100") && error.contains("no such object"), "{error}");
}

#[test]
fn a_dropped_store_leaves_no_thread() {
    fn carriers() -> usize {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
        tasks
            .filter_map(|task| name(task).ok())
            .filter(|name| name.starts_with("feedline-net"))
            .count()
    }
    let server = ObjectServer::start();
    server.put("bucket/x", b"x");
    // Other tests of this process may have some of their own.
    for _ in 0..50 {
        let store = objects(&server);
        store.stat(Path::new("s3://bucket/x")).unwrap();
    }
    let mut left = usize::MAX;
    for _ in 0..200 {
        left = carriers();
        if left < 50 {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(left < 50, "{left} threads of 50 stores");
}
