//! What a worker that may read some URLs reads, and what it does not.

use super::{objects, patience, read, settings};
use feedline_core::{Entry, Error, Store};
use feedline_store::{Allowed, UrlStore};
use feedline_testkit::objects::{Fault, ObjectServer};
use std::path::{Path, PathBuf};

fn confined(server: &ObjectServer, urls: &[String]) -> UrlStore {
    let allowed = Allowed::new(urls).expect("they are URLs");
    UrlStore::confined(allowed, patience()).with_settings(&settings(&server.endpoint()))
}

/// What can be had of a name in any way.
fn tries(store: &UrlStore, path: &Path) -> [Error; 3] {
    let entry = Entry { path: path.to_owned(), size: 6, modified: 0 };
    [
        store.stat(path).expect_err("it is looked at"),
        store.list(path).expect_err("it is listed"),
        read(store, &entry).expect_err("it is read"),
    ]
}

#[test]
fn nothing_is_asked_for_beside_what_is_allowed() {
    let server = ObjectServer::start();
    for name in ["bucket/train/x", "bucket/training/x", "bucket/x", "other/train/x"] {
        server.put(name, b"secret");
    }
    let urls = ["s3://bucket/train/".to_owned(), server.url("bucket/train")];
    let store = confined(&server, &urls);
    for path in ["s3://bucket/train/x".to_owned(), server.url("bucket/train/x")] {
        let entry = store.stat(Path::new(&path)).unwrap();
        assert_eq!(read(&store, &entry).unwrap(), b"secret");
        assert_eq!(store.list(Path::new(&path)).unwrap(), [entry]);
    }
    for root in ["s3://bucket/train", "s3://bucket/train/"] {
        assert_eq!(store.list(Path::new(root)).unwrap().len(), 1);
    }
    let before = server.asked();
    let port = server.endpoint().rsplit(':').next().unwrap().to_owned();
    for path in [
        "s3://bucket/".into(),
        "s3://bucket/x".into(),
        "s3://bucket/training/x".into(),
        "s3://bucket/training/".into(),
        "s3://other/train/x".into(),
        "gs://bucket/train/x".into(),
        "s3://bucket/train/../x".into(),
        server.url("bucket/training/x"),
        server.url("bucket/x"),
        server.url("bucket/train/../x"),
        server.url("bucket/train/%2e%2e/x"),
        server.url("bucket//train/x"),
        format!("http://localhost:{port}/bucket/train/x"),
        format!("https://127.0.0.1:{port}/bucket/train/x"),
        format!("http://127.0.0.1.:{port}/bucket/train/x"),
        format!("http://[::ffff:127.0.0.1]:{port}/bucket/train/x"),
        "http://127.0.0.1/bucket/train/x".into(),
    ] {
        for error in tries(&store, Path::new(&path)) {
            let text = error.to_string();
            assert!(text.contains("--allow-url") || text.contains("is no URL"), "{path}: {text}");
        }
    }
    assert_eq!(server.asked(), before, "nobody was asked");
    let none = confined(&server, &[]);
    for error in tries(&none, Path::new("s3://bucket/train/x")) {
        assert!(error.to_string().contains("started with --allow-url"), "{error}");
    }
}

#[test]
fn redirects_lead_only_where_one_may_go() {
    let (server, other) = (ObjectServer::start(), ObjectServer::start());
    for server in [&server, &other] {
        server.put("bucket/train/x", b"secret");
        server.put("bucket/train/y", b"secret");
        server.put("bucket/x", b"secret");
    }
    let urls = [server.url("bucket/train/")];
    let store = confined(&server, &urls);
    let path = PathBuf::from(server.url("bucket/train/x"));
    let entry = store.stat(&path).unwrap();
    // Within what is allowed a redirect is followed, with whatever query it has.
    let inside = server.url("bucket/train/y?signature=canary");
    server.faults([Fault::Redirect(inside.clone())]);
    assert_eq!(read(&store, &Entry { modified: 0, ..entry.clone() }).unwrap(), b"secret");
    for to in [
        other.url("bucket/train/x"),
        server.url("bucket/x?signature=canary"),
        server.url("bucket/train/../x"),
        "http://169.254.169.254/latest/meta-data/iam/".into(),
        "http://[fe80::1]/".into(),
        "http://2852039166/latest/".into(),
        "http://metadata.google.internal/computeMetadata/v1/".into(),
        "http://user:canary@127.0.0.1/bucket/train/x".into(),
        "file:///etc/passwd".into(),
        "ftp://host/x".into(),
        "s3://bucket/train/x".into(),
    ] {
        server.faults([Fault::Redirect(to.clone())]);
        let error = read(&store, &entry).expect_err(&to).to_string();
        assert!(error.contains(path.to_str().unwrap()), "{error}");
        assert!(error.contains("redirected") || error.contains("refuses"), "{to}: {error}");
        assert!(!error.contains("canary"), "{error}");
        server.always(None);
    }
    assert_eq!(other.asked().gets, 0);
    // A circle ends.
    server.always(Some(Fault::Redirect(path.display().to_string())));
    let error = read(&store, &entry).unwrap_err().to_string();
    assert!(error.contains("redirected more than"), "{error}");
    // Without a list of what is allowed, the provider's addresses are out of reach all the same.
    let open = objects(&server);
    server.always(Some(Fault::Redirect("http://169.254.169.254/latest/".into())));
    let error = read(&open, &entry).unwrap_err().to_string();
    assert!(error.contains("provider"), "{error}");
    server.always(Some(Fault::Redirect(other.url("bucket/train/x"))));
    assert_eq!(read(&open, &Entry { modified: 0, ..entry }).unwrap(), b"secret");
}

#[test]
fn a_name_is_judged_by_where_it_leads() {
    let server = ObjectServer::start();
    server.put("bucket/x", b"secret");
    let port = server.endpoint().rsplit(':').next().unwrap().to_owned();
    // This machine may be named as such, and not by a name that somebody else may choose.
    let near = format!("http://localhost:{port}/bucket/x");
    let store = confined(&server, std::slice::from_ref(&near));
    assert!(store.stat(Path::new(&near)).is_ok());
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let name = name.trim().to_ascii_lowercase();
    let leads = std::net::ToSocketAddrs::to_socket_addrs(&(&name[..], 0));
    let loopback = leads.is_ok_and(|mut found| found.any(|at| at.ip().is_loopback()));
    let host = format!("http://{name}:{port}/bucket/x");
    if loopback && Allowed::new(std::slice::from_ref(&host)).is_ok() {
        let store = confined(&server, std::slice::from_ref(&host));
        let error = store.stat(Path::new(&host)).unwrap_err().to_string();
        assert!(error.contains("this machine itself"), "{error}");
    }
}
