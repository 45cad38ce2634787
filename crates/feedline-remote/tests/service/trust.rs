//! A service that asks for tokens and speaks TLS: what it lets through, whom it refuses, and that its
//! secrets stay its own.

use crate::{PATIENCE, job, next, options};
use feedline_core::{Batch, Error, Position, Result, Seed, Store};
use feedline_dispatcher::Dispatcher;
use feedline_engine::{Next, Run};
use feedline_ops::Pipeline;
use feedline_ops::plain::Part;
use feedline_remote::Remote;
use feedline_rpc::http::HttpOptions;
use feedline_rpc::{Remote as Control, RemoteOptions};
use feedline_store::{Allowed, AnyStore, ConfinedStore, LocalStore, Patience, UrlStore};
use feedline_testkit::objects::{Fault, ObjectServer};
use feedline_testkit::{Fixtures, open, plain_epoch, show_batch};
use feedline_wire::Order;
use feedline_wire::certs::{Made, make_development_ca};
use feedline_wire::secret::Secret;
use feedline_wire::stream::{ClientOptions, ServerOptions};
use feedline_wire::token::{AUDIENCE, Guard, Key, Role, Token, TokenFile};
use feedline_worker::Worker;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const HOUR: Duration = Duration::from_secs(3600);

/// A dispatcher and workers that trust nobody without a token, and nobody in between.
struct Guarded {
    workers: Vec<Worker>,
    dispatcher: Dispatcher,
    key: Key,
    made: Made,
    folder: tempfile::TempDir,
}

impl Guarded {
    fn new(workers: usize, store: &Arc<dyn Store>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let key = Key::make(&folder.path().join("key")).unwrap();
        let certificates = folder.path().join("certificates");
        let made = make_development_ca(&certificates, &["localhost", "127.0.0.1"]).unwrap();
        let dispatcher = Dispatcher::start(feedline_dispatcher::Options {
            key: Some(folder.path().join("key")),
            tls: Some(made.server.clone()),
            http: Some("127.0.0.1:0".into()),
            ..feedline_dispatcher::Options::new(folder.path().join("journal"))
        });
        let dispatcher = dispatcher.unwrap();
        let mut service = Self { workers: vec![], dispatcher, key, made, folder };
        service.token("worker", Role::Worker);
        service.token("client", Role::Client);
        for _ in 0..workers {
            let guard = Some(service.guard());
            let tls = Some(service.made.server.identity(&[]).unwrap());
            let http = HttpOptions { guard: guard.clone(), ..HttpOptions::default() };
            let options = feedline_worker::Options {
                threads: 2,
                memory: 64 << 20,
                server: ServerOptions { guard, tls, ..ServerOptions::default() },
                http: Some(("127.0.0.1:0".into(), http)),
                ..feedline_worker::Options::default()
            };
            let control = service.control("worker");
            service.workers.push(Worker::start(control, Arc::clone(store), options).unwrap());
        }
        service
    }

    fn guard(&self) -> Guard {
        Guard::open(&self.path("key"), AUDIENCE).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn token(&self, name: &str, role: Role) {
        save(&self.path(name), &self.key.sign(&Token::new(role, AUDIENCE, HOUR)));
    }

    /// The dispatcher, for whoever bears a token.
    fn control(&self, token: &str) -> Arc<Control> {
        let options = RemoteOptions {
            token: Some(self.path(token)),
            tls: Some(self.made.client.clone()),
            ..RemoteOptions::new(&self.dispatcher.address().to_string())
        };
        Arc::new(Control::with(&options).unwrap())
    }

    /// How a client reaches workers.
    fn stream(&self, token: &str) -> ClientOptions {
        ClientOptions {
            token: Some(TokenFile::open(&self.path(token)).unwrap()),
            tls: Some(self.made.client.trust(&[]).unwrap()),
            // Else they would meet in memory, where there is nothing to encrypt.
            shared_memory: 0,
            ..ClientOptions::default()
        }
    }

    fn start(
        &self,
        pipeline: &Arc<Pipeline>,
        fixtures: &Fixtures,
        name: &str,
        order: Order,
        stream: ClientOptions,
    ) -> Result<Remote> {
        let job = feedline_remote::Job { stream, ..job(name, order) };
        let data = (&LocalStore as &dyn Store, &fixtures.blobs);
        let control = self.control("client");
        Remote::start(control, Arc::clone(pipeline), data, None, 0, job, options(0, 1))
    }
}

fn save(path: &Path, token: &Secret<String>) {
    let new = path.with_extension("new");
    std::fs::write(&new, token.expose()).unwrap();
    std::fs::rename(&new, path).unwrap();
}

fn anywhere() -> Arc<dyn Store> {
    Arc::new(LocalStore)
}

const PHOTOS: &str =
    "images path=$IMAGES | shuffle | repeat count=6 | decode | resize size=[16,16] | batch size=4";

#[test]
fn tokens_and_keys_change_while_batches_flow_and_no_batch_is_missed() {
    let fixtures = Fixtures::new();
    let service = Guarded::new(2, &anywhere());
    let plan = "range count=1200 | shuffle | sleep ms=8 | batch size=1";
    let pipeline = open(plan, &fixtures).unwrap();
    for order in [Order::Exact, Order::Any] {
        let stream = service.stream("client");
        let mut run =
            service.start(&pipeline, &fixtures, &format!("job {order:?}"), order, stream).unwrap();
        let (mut seen, mut last) = (Vec::new(), Instant::now());
        let mut changes = 0;
        while let Some(batch) = next(&mut run).unwrap() {
            seen.extend(batch.indices.unwrap());
            // First the new key beside the old one, then new tokens, then the old key goes: each in its
            // turn, however long a batch was waited for.
            if last.elapsed() >= Duration::from_millis(400) {
                (changes, last) = (changes + 1, Instant::now());
                match changes {
                    1 => {
                        let _ = std::fs::remove_file(service.path("next"));
                        Key::make(&service.path("next")).unwrap();
                        let old = std::fs::read_to_string(service.path("key")).unwrap();
                        let mut file = std::fs::File::options()
                            .append(true)
                            .open(service.path("next"))
                            .unwrap();
                        file.write_all(old.as_bytes()).unwrap();
                        std::fs::rename(service.path("next"), service.path("key")).unwrap();
                    }
                    2 => {
                        let key = Key::read(&service.path("key")).unwrap();
                        for (name, role) in [("client", Role::Client), ("worker", Role::Worker)] {
                            save(&service.path(name), &key.sign(&Token::new(role, AUDIENCE, HOUR)));
                        }
                    }
                    3 => {
                        let keys = std::fs::read_to_string(service.path("key")).unwrap();
                        let first = keys.lines().next().unwrap();
                        let copy = service.path("copy");
                        std::fs::copy(service.path("key"), &copy).unwrap();
                        std::fs::write(&copy, format!("{first}\n")).unwrap();
                        std::fs::rename(copy, service.path("key")).unwrap();
                    }
                    _ => {}
                }
            }
        }
        assert!(changes >= 3, "the old key is gone before the end: {changes}");
        seen.sort_unstable();
        assert_eq!(seen, (0..1200).collect::<Vec<_>>(), "{order:?}");
        assert_eq!(run.stats().failures, 0, "no stream had to be begun again");
    }
}

#[test]
fn a_token_that_is_renewed_too_late_costs_time_and_no_batch() {
    let fixtures = Fixtures::new();
    let service = Guarded::new(2, &anywhere());
    let plan = "range count=1500 | shuffle | sleep ms=8 | batch size=1";
    let pipeline = open(plan, &fixtures).unwrap();
    for order in [Order::Exact, Order::Any] {
        let short = Token::new(Role::Client, AUDIENCE, Duration::from_secs(2));
        save(&service.path("client"), &service.key.sign(&short));
        let (name, stream) = (format!("job {order:?}"), service.stream("client"));
        let mut run = service.start(&pipeline, &fixtures, &name, order, stream).unwrap();
        let (mut seen, renewed) = (Vec::new(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(3500));
                service.token("client", Role::Client);
                renewed.store(true, Ordering::SeqCst);
            });
            while let Some(batch) = next(&mut run).unwrap() {
                seen.extend(batch.indices.unwrap());
            }
            assert!(renewed.load(Ordering::SeqCst), "there was a time without a token");
        });
        seen.sort_unstable();
        assert_eq!(seen, (0..1500).collect::<Vec<_>>(), "{order:?}");
    }
}

#[test]
fn what_comes_over_tls_is_what_a_local_run_gives() {
    let fixtures = Fixtures::new();
    let service = Guarded::new(2, &anywhere());
    let pipeline = open(PHOTOS, &fixtures).unwrap();
    let local = Run::start(Arc::clone(&pipeline), anywhere(), Position::default(), options(0, 1));
    let mut local = local.unwrap();
    let stream = service.stream("client");
    let mut run = service.start(&pipeline, &fixtures, "job", Order::Exact, stream).unwrap();
    let mut batches = 0;
    while let Some(batch) = next(&mut run).unwrap() {
        let Some(Next::Batch(wanted)) = local.next_within(PATIENCE).unwrap() else { panic!() };
        assert_eq!(batch, wanted);
        batches += 1;
    }
    assert!(batches > 5, "{batches}");
}

#[test]
fn workers_refuse_in_clear_words_and_at_once() {
    let fixtures = Fixtures::new();
    let service = Guarded::new(2, &anywhere());
    service.token("operator", Role::Operator);
    let elsewhere = Token::new(Role::Client, "elsewhere", HOUR);
    save(&service.path("elsewhere"), &service.key.sign(&elsewhere));
    let pipeline = open("range count=40 | batch size=4", &fixtures).unwrap();
    let without = ClientOptions { token: None, ..service.stream("client") };
    let plain = ClientOptions { tls: None, ..service.stream("client") };
    for (number, (stream, words)) in [
        (service.stream("operator"), "the role operator"),
        (service.stream("worker"), "the role worker"),
        (service.stream("elsewhere"), "for another service"),
        (without, "a token is needed"),
        (plain, "speaks TLS"),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("job {number}");
        let mut run = service.start(&pipeline, &fixtures, &name, Order::Exact, stream).unwrap();
        let error = next(&mut run).unwrap_err();
        assert!(matches!(error, Error::Service(_)), "{error:?}");
        assert!(error.to_string().contains(words), "{words}: {error}");
    }
    let mut run = service
        .start(&pipeline, &fixtures, "good", Order::Exact, service.stream("client"))
        .unwrap();
    assert!(next(&mut run).unwrap().is_some());
}

#[test]
fn a_plan_whose_files_lie_elsewhere_is_refused_and_told_what_is_allowed() {
    let fixtures = Fixtures::new();
    let allowed = PathBuf::from(fixtures.expand("$IMAGES"));
    let store: Arc<dyn Store> =
        Arc::new(ConfinedStore::new(std::slice::from_ref(&allowed)).unwrap());
    let service = Guarded::new(1, &store);
    let inside = open(PHOTOS, &fixtures).unwrap();
    let mut run = service
        .start(&inside, &fixtures, "inside", Order::Exact, service.stream("client"))
        .unwrap();
    assert!(next(&mut run).unwrap().is_some());
    for (name, plan) in [
        ("outside", "arrow path=$ARROW | batch size=1"),
        ("up", "arrow path=$IMAGES/../arrow | batch size=1"),
        ("linked", "images path=$IMAGES/link | decode | resize size=[8,8] | batch size=1"),
    ] {
        if name == "linked" {
            let target = PathBuf::from(fixtures.expand("$IMAGES")).join("../elsewhere");
            std::fs::create_dir_all(target.join("a")).unwrap();
            std::fs::copy(allowed.join("ant/0.jpg"), target.join("a/0.jpg")).unwrap();
            std::os::unix::fs::symlink("../elsewhere", allowed.join("link")).unwrap();
        }
        let Ok(outside) = open(plan, &fixtures) else { panic!("{plan}") };
        let stream = service.stream("client");
        let mut run = service.start(&outside, &fixtures, name, Order::Exact, stream).unwrap();
        let error = next(&mut run).unwrap_err().to_string();
        let words = format!("only files below {} may be", allowed.display());
        assert!(error.contains(&words), "{error}");
    }
}

/// A server of objects with the photos in it, and a store that reads them from there.
fn bucket(fixtures: &Fixtures, allowed: Option<&[&str]>, secret: &str) -> (ObjectServer, AnyStore) {
    let server = ObjectServer::start();
    let folder = PathBuf::from(fixtures.expand("$IMAGES"));
    server.put_folder("bucket/train", &folder).unwrap();
    let patience =
        Patience { opening: PATIENCE / 10, reading: Duration::from_secs(1), ..Patience::default() };
    let objects = match allowed {
        Some(urls) => {
            let urls: Vec<String> = urls.iter().map(|url| (*url).to_owned()).collect();
            UrlStore::confined(Allowed::new(&urls).unwrap(), patience)
        }
        None => UrlStore::new(patience),
    };
    let objects = objects.with_settings(&[
        ("AWS_ENDPOINT_URL", &server.endpoint()),
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", secret),
        ("AWS_SESSION_TOKEN", secret),
    ]);
    (server, AnyStore::new(Arc::new(LocalStore), objects))
}

const OBJECTS: &str = "images path=s3://bucket/train | shuffle | repeat count=2 | decode | resize size=[8,8] | batch size=4";

#[test]
fn workers_read_allowed_objects_with_their_own_credentials_and_no_others() {
    let fixtures = Fixtures::new();
    let (client_secret, worker_secret) = ("client-canary".repeat(4), "worker-canary".repeat(4));
    let (near, here) = bucket(&fixtures, None, &client_secret);
    let plan: feedline_plan::Plan = OBJECTS.parse().unwrap();
    let pipeline = Arc::new(Pipeline::open(&plan, &here, &fixtures.blobs).unwrap());
    let wanted = fixtures.expand(OBJECTS).replace("s3://bucket/train", &fixtures.expand("$IMAGES"));
    let wanted = open(&wanted, &fixtures).unwrap();
    let store: Arc<dyn Store> = Arc::new(LocalStore);
    let part = Part { seed: Seed(3), with_index: true, ..Part::default() };
    let wanted = plain_epoch(&wanted, &store, part, usize::MAX).batches;

    // The worker lists and reads for itself, and finds what the client found.
    let (far, there) = bucket(&fixtures, Some(&["s3://bucket/train/"]), &worker_secret);
    let service = Guarded::new(1, &(Arc::new(there) as Arc<dyn Store>));
    let stream = service.stream("client");
    let mut run = service.start(&pipeline, &fixtures, "allowed", Order::Exact, stream).unwrap();
    let mut found = Vec::new();
    while let Some(batch) = next(&mut run).unwrap() {
        found.push(batch);
    }
    let shown = |batches: &[Batch]| batches.iter().map(show_batch).collect::<Vec<_>>();
    assert_eq!(shown(&found), shown(&wanted));
    let state = run.state().unwrap();
    drop(run);
    assert_eq!(near.asked().gets, 0, "the client reads nothing itself");
    assert_eq!(far.asked().lists, 1, "one listing for each who opens it");
    let sent = far.headers().join("\n");
    assert!(sent.contains(&worker_secret) && !sent.contains(&client_secret));
    assert!(!state.contains("canary") && !plan.to_json().contains("canary"));
    drop(service);

    for (allowed, words) in [
        (&[][..], "it would if it were started with --allow-url"),
        (&["s3://bucket/other/", "https://host/"], "s3://bucket/other/, https://host/"),
    ] {
        let (far, there) = bucket(&fixtures, Some(allowed), &worker_secret);
        let service = Guarded::new(1, &(Arc::new(there) as Arc<dyn Store>));
        let stream = service.stream("client");
        let mut run = service.start(&pipeline, &fixtures, "other", Order::Exact, stream).unwrap();
        let error = next(&mut run).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("--allow-url"), "{error}");
        assert!(!error.contains("canary"), "{error}");
        assert_eq!(far.asked().lists, 0);
    }
}

fn get(address: SocketAddr, path: &str, token: Option<&str>) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let bearer = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
    let bearer = bearer.unwrap_or_default();
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{bearer}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_workers_pages_are_for_operators_and_tell_what_it_does() {
    let fixtures = Fixtures::new();
    let service = Guarded::new(1, &anywhere());
    let at = service.workers[0].http_address().unwrap();
    let other = Key::make(&service.path("other")).unwrap();
    let sign = |key: &Key, token: &Token| key.sign(token).expose().clone();
    let right = Token::new(Role::Operator, AUDIENCE, HOUR);
    let wrong = [
        None,
        Some("feedline1.00.00".to_owned()),
        Some(sign(&other, &right)),
        Some(sign(&service.key, &Token { expires: 1, ..right.clone() })),
        Some(sign(&service.key, &Token::new(Role::Operator, "elsewhere", HOUR))),
        Some(sign(&service.key, &Token::new(Role::Client, AUDIENCE, HOUR))),
        Some(sign(&service.key, &Token::new(Role::Worker, AUDIENCE, HOUR))),
    ];
    for path in ["/metrics", "/status"] {
        for token in &wrong {
            let answer = get(at, path, token.as_deref());
            assert!(answer.starts_with("HTTP/1.1 401"), "{path}: {answer}");
        }
    }
    assert!(get(at, "/health", None).ends_with("\r\n\r\nok\n"));
    let pipeline = open("range count=40 | batch size=4", &fixtures).unwrap();
    let stream = service.stream("client");
    let mut run = service.start(&pipeline, &fixtures, "job", Order::Exact, stream).unwrap();
    while next(&mut run).unwrap().is_some() {}
    let bearer = sign(&service.key, &right);
    let status = get(at, "/status", Some(&bearer));
    let (_, body) = status.split_once("\r\n\r\n").unwrap();
    let status: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(status["jobs"][0]["samples"], 40, "{status}");
    assert_eq!(status["worker"]["name"], service.workers[0].worker().name.as_str());
    let metrics = get(at, "/metrics", Some(&bearer));
    let found = |line: &str| metrics.lines().any(|found| found.starts_with(line));
    assert!(found("feedline_worker_job_samples_total{id="), "{metrics}");
    assert!(found("feedline_worker_connections "), "{metrics}");
    service.workers[0].drain(Duration::ZERO);
    assert!(get(at, "/health", None).starts_with("HTTP/1.1 503"));
}

/// What was logged, at most so much.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut log = self.0.lock().unwrap();
        if log.len() < 128 << 20 {
            log.extend_from_slice(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn no_secret_of_worker_or_client_is_ever_logged_or_shown() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    // Other tests of this process may log as well: there must be no secret in that either.
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let fixtures = Fixtures::new();
    let secret = "a worker's credentials for its store".repeat(2).replace(' ', "-");
    let (objects, store) = bucket(&fixtures, None, &secret);
    let plan: feedline_plan::Plan = OBJECTS.parse().unwrap();
    let distant = Arc::new(Pipeline::open(&plan, &store, &fixtures.blobs).unwrap());
    let service = Guarded::new(1, &(Arc::new(store) as Arc<dyn Store>));
    let pipeline = open("range count=40 | batch size=4", &fixtures).unwrap();
    let mut said = Vec::new();
    for fault in [None, Some(Fault::Status(403, "AccessDenied")), Some(Fault::OtherTag)] {
        let name = format!("distant {fault:?}");
        let stream = service.stream("client");
        let mut run = service.start(&distant, &fixtures, &name, Order::Exact, stream).unwrap();
        objects.always(fault);
        let ended = loop {
            match next(&mut run) {
                Ok(Some(_)) => {}
                ended => break ended,
            }
        };
        said.push(format!("{ended:?} {} {:?}", run.state().unwrap(), run.stats()));
    }
    assert!(objects.headers().iter().any(|header| header.contains(&secret)), "it is used");
    let stream = service.stream("client");
    said.push(format!("{stream:?} {:?}", service.guard()));
    let mut run = service.start(&pipeline, &fixtures, "job", Order::Any, stream).unwrap();
    while next(&mut run).unwrap().is_some() {}
    said.push(format!("{} {:?}", run.state().unwrap(), run.stats()));
    drop(run);
    // And what is said when something is wrong: a token of another key, and one of another role.
    let other = Key::make(&service.path("other key")).unwrap();
    let foreign = other.sign(&Token::new(Role::Client, AUDIENCE, HOUR));
    save(&service.path("foreign"), &foreign);
    for token in ["foreign", "worker"] {
        let stream = service.stream(token);
        let name = format!("job {token}");
        let mut run = service.start(&pipeline, &fixtures, &name, Order::Exact, stream).unwrap();
        let error = next(&mut run).unwrap_err();
        said.push(format!("{error} {error:?} {:?}", service.control(token).status()));
    }
    let operator = service.key.sign(&Token::new(Role::Operator, AUDIENCE, HOUR));
    for at in [service.workers[0].http_address().unwrap()] {
        for path in ["/metrics", "/status", "/health"] {
            said.push(get(at, path, Some(operator.expose())));
            said.push(get(at, path, Some(foreign.expose())));
        }
    }
    let mut canaries = vec![secret];
    for name in ["client", "worker", "foreign"] {
        let token = std::fs::read_to_string(service.path(name)).unwrap();
        canaries.push(token.rsplit('.').next().unwrap().trim().to_owned());
    }
    canaries.push(operator.expose().rsplit('.').next().unwrap().to_owned());
    let key = std::fs::read_to_string(service.path("key")).unwrap();
    canaries.push(key.trim().strip_prefix("feedline-key ").unwrap().to_owned());
    let certificate = std::fs::read_to_string(&service.made.server.key).unwrap();
    canaries.push(certificate.lines().nth(1).unwrap().to_owned());
    drop(service);
    let log = String::from_utf8_lossy(&log.0.lock().unwrap()).into_owned();
    for words in ["the worker serves", "opened a dataset", "a connection ended", "TRACE"] {
        assert!(log.contains(words), "{words:?} is not logged at all");
    }
    for canary in canaries {
        assert!(canary.len() >= 40, "{}", canary.len());
        assert!(!log.contains(&canary), "a secret was logged");
        assert!(!said.iter().any(|said| said.contains(&canary)), "a secret was shown");
    }
}
