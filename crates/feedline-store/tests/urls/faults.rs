//! Everything that a server can do wrong.

use super::{both, bytes, objects, range, read, settings, unavailable};
use feedline_core::{Error, Store};
use feedline_store::UrlStore;
use feedline_testkit::objects::{Fault, ObjectServer};
use std::path::Path;
use std::time::Duration;

/// A client that gives up soon.
fn hasty(server: &ObjectServer) -> UrlStore {
    let short = Duration::from_millis(200);
    let patience = feedline_store::Patience {
        opening: short,
        reading: short,
        silence: short,
        ..super::patience()
    };
    UrlStore::new(patience).with_settings(&settings(&server.endpoint()))
}

/// What passes if it is tried again.
fn passing() -> Vec<Fault> {
    let slow = Fault::Trickle(30_000, Duration::from_millis(2));
    vec![
        Fault::Status(500, "InternalError"),
        Fault::Status(503, "SlowDown"),
        Fault::Status(502, ""),
        Fault::Status(408, "RequestTimeout"),
        Fault::StatusWith(429, "", "Retry-After: 0"),
        Fault::StatusWith(503, "", "Retry-After: soon"),
        Fault::CutAfter(0),
        Fault::CutAfter(1),
        Fault::CutAfter(99_999),
        slow,
        Fault::TooLong(10),
        Fault::TooLong(1 << 40),
        Fault::TooShort(1),
        Fault::TooShort(100_000),
        Fault::Shifted(1),
        Fault::Shifted(50_000),
        Fault::NoContentRange,
        Fault::Garbage,
    ]
}

#[test]
fn what_passes_is_tried_again_and_gives_exact_bytes() {
    let server = ObjectServer::start();
    let store = objects(&server);
    let content = bytes(100_000);
    server.put("bucket/x", &content);
    for path in both(&server, "x") {
        let entry = store.stat(&path).unwrap();
        for fault in passing() {
            for times in [1, 3] {
                let before = server.asked().gets;
                server.faults(vec![fault.clone(); times]);
                let got = read(&store, &entry).unwrap_or_else(|error| panic!("{fault:?}: {error}"));
                assert!(got == content, "{fault:?}");
                let gets = server.asked().gets - before;
                assert!(gets <= times as u64 + 1, "{fault:?}: {gets} requests");
                server.always(None);
            }
        }
        // Each try goes on where the last one ended: no byte comes twice.
        let before = server.asked().bytes;
        server.faults((1..20).map(|step| Fault::CutAfter(step * 100)));
        assert!(read(&store, &entry).unwrap() == content);
        assert_eq!(server.asked().bytes - before, 100_000);
    }
}

#[test]
fn faults_in_any_order_never_give_wrong_bytes() {
    let server = ObjectServer::start();
    let store = objects(&server);
    let content = bytes(30_000);
    server.put("bucket/x", &content);
    let entries = both(&server, "x").map(|path| store.stat(&path).unwrap());
    let faults = passing();
    let mut chance = 7u64;
    let mut next = |below: usize| {
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (chance >> 33) as usize % below
    };
    let mut given = 0;
    for round in 0..150 {
        server.always(None);
        server.faults(
            (0..1 + next(5)).map(|_| faults[next(faults.len())].clone()).collect::<Vec<_>>(),
        );
        match read(&store, &entries[round % 2]) {
            Ok(got) => {
                assert!(got == content, "round {round}");
                given += 1;
            }
            Err(error) => assert!(unavailable(&error), "round {round}: {error}"),
        }
    }
    assert!(given > 140, "{given} of 150");
}

#[test]
fn what_never_passes_is_unavailable_in_bounded_time() {
    let server = ObjectServer::start();
    server.put("bucket/x", &bytes(1000));
    let store = hasty(&server);
    for path in both(&server, "x") {
        server.always(None);
        let entry = store.stat(&path).unwrap();
        for fault in [
            Fault::Status(500, "InternalError"),
            Fault::Status(503, "SlowDown"),
            Fault::CutAfter(0),
            Fault::Silence,
            Fault::Garbage,
            Fault::TooShort(1000),
            Fault::Shifted(7),
            Fault::NoContentRange,
            Fault::Trickle(1, Duration::from_millis(50)),
        ] {
            server.always(Some(fault.clone()));
            let began = std::time::Instant::now();
            let error = read(&store, &entry).expect_err(&format!("{fault:?}"));
            let took = began.elapsed();
            // It hangs nowhere, however slow this machine is.
            assert!(took < Duration::from_secs(60), "{fault:?}: {took:?}");
            assert!(unavailable(&error), "{fault:?}: {error}");
            let text = error.to_string();
            assert!(text.contains(path.to_str().unwrap()) && text.contains("tries"), "{text}");
        }
    }
    drop(server);
    let error = store.stat(Path::new("s3://bucket/x")).unwrap_err();
    assert!(unavailable(&error) && error.to_string().contains("refused"), "{error}");
}

#[test]
fn what_will_not_pass_is_said_at_once() {
    let server = ObjectServer::start();
    let store = objects(&server);
    server.put("bucket/x", &bytes(10));
    let [web, s3] = both(&server, "x");
    let entries = [store.stat(&web).unwrap(), store.stat(&s3).unwrap()];
    for (fault, words) in [
        (Fault::Status(404, "NoSuchKey"), "vanished"),
        (Fault::Status(410, ""), "vanished"),
        (Fault::Status(401, ""), "credentials"),
        (Fault::Status(403, "AccessDenied"), "forbidden"),
        (Fault::Status(400, ""), "refuses"),
        (Fault::Status(416, "InvalidRange"), "changed"),
        (Fault::Status(412, ""), "changed"),
        (Fault::OtherTag, "changed"),
    ] {
        for entry in &entries {
            let before = server.asked().gets;
            server.faults([fault.clone()]);
            let error = read(&store, entry).expect_err(words).to_string();
            assert!(error.contains(words), "{fault:?}: {error}");
            assert!(error.contains(entry.path.to_str().unwrap()), "{error}");
            assert_eq!(server.asked().gets - before, 1, "{fault:?}");
        }
    }
    for (fault, words) in [
        (Fault::Status(400, "ExpiredToken"), "renew"),
        (Fault::Status(403, "ExpiredToken"), "renew"),
        (Fault::Status(403, "InvalidAccessKeyId"), "AWS_ACCESS_KEY_ID"),
        (Fault::Status(403, "SignatureDoesNotMatch"), "not accepted"),
        (Fault::Status(301, "PermanentRedirect"), "AWS_REGION"),
        (
            Fault::StatusWith(301, "PermanentRedirect", "x-amz-bucket-region: eu-west-1"),
            "AWS_REGION=eu-west-1",
        ),
    ] {
        server.list_faults([fault.clone()]);
        let error = store.list(Path::new("s3://bucket/")).unwrap_err();
        assert!(matches!(error, Error::Source(_)), "{error:?}");
        assert!(error.to_string().contains(words), "{fault:?}: {error}");
    }
}

#[test]
fn a_changed_object_is_a_bad_record() {
    let server = ObjectServer::start();
    let store = objects(&server);
    for (change, words) in [
        (Some(bytes(99)), "it has 99 bytes, and had 100"),
        (Some(bytes(101)), "it has 101 bytes, and had 100"),
        (Some(vec![1; 100]), "another version"),
        (Some(Vec::new()), "changed"),
        (None, "vanished"),
    ] {
        server.put("bucket/x", &bytes(100));
        let entries = both(&server, "x").map(|path| store.stat(&path).unwrap());
        match change {
            Some(content) => server.put("bucket/x", &content),
            None => server.remove("bucket/x"),
        }
        for entry in entries {
            let error = read(&store, &entry).unwrap_err();
            assert!(error.is_record() && error.to_string().contains(words), "{error}");
        }
    }
    server.put("bucket/x", b"");
    let empty = both(&server, "x").map(|path| store.stat(&path).unwrap());
    server.put("bucket/x", b"full");
    for entry in empty {
        assert!(read(&store, &entry).unwrap_err().is_record());
    }
}

#[test]
fn an_object_that_changes_between_two_tries_is_not_put_together_of_both() {
    let server = ObjectServer::start();
    let store = objects(&server);
    for path in both(&server, "x") {
        server.put("bucket/x", &[1; 1000]);
        // Without a version from a listing, the one that is met first has to stay.
        server.faults([Fault::CutAfter(400), Fault::OtherTag]);
        let error = range(&store, path.to_str().unwrap(), 0, 1000).unwrap_err();
        assert!(error.is_record() && error.to_string().contains("changed"), "{error}");
    }
}

#[test]
fn a_server_without_ranges_gives_whole_objects_only() {
    let server = ObjectServer::start();
    let store = objects(&server);
    let content = bytes(50_000);
    server.put("bucket/x", &content);
    server.always(Some(Fault::NoRanges));
    let [web, _] = both(&server, "x");
    let entry = store.stat(&web).unwrap();
    assert!(read(&store, &entry).unwrap() == content);
    // Cut short, it begins again.
    server.faults([Fault::CutAfter(20_000)]);
    assert!(read(&store, &entry).unwrap() == content);
    let error = range(&store, web.to_str().unwrap(), 5, 10).unwrap_err().to_string();
    assert!(error.contains("gives no ranges"), "{error}");
    assert_eq!(range(&store, web.to_str().unwrap(), 0, 10).unwrap(), content[..10]);
}

#[test]
fn listings_go_on_where_they_were_interrupted() {
    let server = ObjectServer::start();
    let store = objects(&server);
    server.page(2);
    for number in 0..9 {
        server.put(&format!("bucket/x{number}"), &bytes(number));
    }
    let good = store.list(Path::new("s3://bucket/")).unwrap();
    for fault in [Fault::Status(503, "SlowDown"), Fault::CutAfter(0), Fault::Status(500, "")] {
        server.list_faults([fault.clone(), fault]);
        assert_eq!(store.list(Path::new("s3://bucket/")).unwrap(), good);
    }
    server.list_faults(vec![Fault::Garbage; 1000]);
    let error = hasty(&server).list(Path::new("s3://bucket/")).unwrap_err();
    assert!(unavailable(&error), "{error}");
}

#[test]
fn secrets_are_sent_to_the_store_and_shown_to_nobody() {
    let server = ObjectServer::start();
    let store = hasty(&server);
    server.put("bucket/x", &bytes(10));
    let mut said = vec![format!("{store:?}")];
    let entry = store.stat(Path::new("s3://bucket/x")).unwrap();
    said.push(format!("{entry:?}"));
    assert!(server.headers().iter().any(|header| header.contains("canary-token")), "it is used");
    for fault in [
        Fault::Status(403, "AccessDenied"),
        Fault::Status(400, "ExpiredToken"),
        Fault::Redirect("https://elsewhere.invalid/?X-Amz-Security-Token=canary-token".into()),
        Fault::Garbage,
        Fault::CutAfter(0),
    ] {
        server.always(Some(fault));
        for path in both(&server, "x") {
            let error = read(&store, &feedline_core::Entry { path, ..entry.clone() }).unwrap_err();
            said.push(format!("{error} {error:?}"));
        }
    }
    server.always(None);
    let endpoint = server.endpoint();
    let half = [("AWS_ENDPOINT_URL", &endpoint[..]), ("AWS_SECRET_ACCESS_KEY", "canary-secret")];
    let half = UrlStore::new(super::patience()).with_settings(&half);
    said.push(half.stat(Path::new("s3://bucket/x")).unwrap_err().to_string());
    let half = UrlStore::new(super::patience())
        .with_settings(&[("AZURE_STORAGE_ACCOUNT_KEY", "canary-secret")]);
    said.push(half.stat(Path::new("az://bucket/x")).unwrap_err().to_string());
    let wrong = [("GOOGLE_SERVICE_ACCOUNT_KEY", "{\"private_key\": \"canary-secret\"}")];
    let wrong = UrlStore::new(super::patience()).with_settings(&wrong);
    said.push(wrong.stat(Path::new("gs://bucket/x")).unwrap_err().to_string());
    for said in said {
        assert!(!said.contains("canary"), "{said}");
    }
}

#[test]
fn without_credentials_it_is_said_which_would_do() {
    let server = ObjectServer::start();
    server.put("bucket/x", &bytes(10));
    let endpoint = server.endpoint();
    // Nobody listens where the machine's provider would give some.
    let none =
        [("AWS_ENDPOINT_URL", &endpoint[..]), ("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")];
    let store = UrlStore::new(super::patience()).with_settings(&none);
    let error = store.list(Path::new("s3://bucket/")).unwrap_err().to_string();
    assert!(error.contains("no credentials") && error.contains("AWS_ACCESS_KEY_ID"), "{error}");
    let open = [("AWS_ENDPOINT_URL", &endpoint[..]), ("AWS_SKIP_SIGNATURE", "true")];
    let store = UrlStore::new(super::patience()).with_settings(&open);
    assert_eq!(store.list(Path::new("s3://bucket/")).unwrap().len(), 1);
    assert!(!server.headers().iter().any(|header| header.starts_with("authorization")));
}

#[test]
fn a_store_without_tls_elsewhere_is_refused_unless_it_is_wanted() {
    for (more, words) in
        [(None, "AWS_ALLOW_HTTP"), (Some(("AWS_ALLOW_HTTP", "true")), "unavailable")]
    {
        let mut settings = settings("http://store.invalid:9000");
        settings.extend(more);
        let store = UrlStore::new(super::patience()).with_settings(&settings);
        let error = store.stat(Path::new("s3://bucket/x")).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}
