//! Who may do what: tokens, TLS, and what is refused.

use crate::support::*;
use feedline_dispatcher::server::{AUDIENCE, Error};
use feedline_dispatcher::{Dispatcher, Options};
use feedline_rpc::Remote;
use feedline_rpc::access::access;
use feedline_rpc::{Address, PROTOCOL, PROTOCOL_HEADER, RemoteOptions, proto};
use feedline_wire::certs::{Made, make_development_ca};
use feedline_wire::control::{Control, Failure};
use feedline_wire::secret::Secret;
use feedline_wire::tls::{ClientTls, ServerTls};
use feedline_wire::token::{Key, Role, Token};
use feedline_wire::{ConsumerIndex, Request};
use prost::Message;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tonic::Code;

const HOUR: Duration = Duration::from_secs(3600);

/// A dispatcher that asks for tokens.
fn guarded(folder: &Path) -> (Dispatcher, Key) {
    let path = folder.join("key");
    let key = Key::make(&path).unwrap();
    let options = Options { key: Some(path), ..Options::new(folder.join("journal")) };
    (Dispatcher::start(options).unwrap(), key)
}

fn save(path: &Path, token: &Secret<String>) -> PathBuf {
    let new = path.with_extension("new");
    std::fs::write(&new, token.expose()).unwrap();
    std::fs::rename(&new, path).unwrap();
    path.to_owned()
}

/// Speaks with a token.
fn with(dispatcher: &Dispatcher, folder: &Path, key: &Key, token: &Token) -> Remote {
    let name = format!("token-{}-{:?}", token.role, token.jobs.as_deref().map(str::len));
    let path = save(&folder.join(name), &key.sign(token));
    let address = dispatcher.address().to_string();
    Remote::with(&RemoteOptions { token: Some(path), ..RemoteOptions::new(&address) }).unwrap()
}

/// Every method of the service, from its own description.
fn methods() -> Vec<String> {
    let set = prost_types::FileDescriptorSet::decode(proto::DESCRIPTOR).unwrap();
    let mut methods = Vec::new();
    for file in set.file {
        for service in &file.service {
            for method in &service.method {
                methods.push(format!("/{}.{}/{}", file.package(), service.name(), method.name()));
            }
        }
    }
    methods
}

/// Calls a method with nothing in it. Says how that went.
fn call(dispatcher: &Dispatcher, path: &str, token: Option<&str>) -> Code {
    let Address::Tcp { host, port } = dispatcher.address() else { panic!() };
    let endpoint =
        tonic::transport::Endpoint::from_shared(format!("http://{host}:{port}")).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut grpc = tonic::client::Grpc::new(endpoint.connect().await.unwrap());
        grpc.ready().await.unwrap();
        let mut request = tonic::Request::new(());
        let headers = request.metadata_mut();
        headers.insert(PROTOCOL_HEADER, PROTOCOL.parse().unwrap());
        if let Some(token) = token {
            headers.insert("authorization", token.parse().unwrap());
        }
        let codec = tonic_prost::ProstCodec::<(), ()>::default();
        let answer = grpc.unary(request, path.parse().unwrap(), codec).await;
        answer.map_or_else(|status| status.code(), |_| Code::Ok)
    })
}

#[test]
fn every_method_refuses_who_may_not_call_it() {
    let folder = tempfile::tempdir().unwrap();
    let (dispatcher, key) = guarded(folder.path());
    let other = Key::make(&folder.path().join("other key")).unwrap();
    let bearer = |key: &Key, token: &Token| format!("Bearer {}", key.sign(token).expose());
    let methods = methods();
    assert_eq!(methods.len(), 17, "{methods:?}");
    for path in &methods {
        assert_eq!(call(&dispatcher, path, None), Code::Unauthenticated, "{path}");
        for garbage in ["", "Bearer", "Bearer ", "Bearer feedline1.00.00", "Basic abc"] {
            assert_eq!(call(&dispatcher, path, Some(garbage)), Code::Unauthenticated, "{path}");
        }
        let mut allowed = 0;
        for role in Role::ALL {
            let right = Token::new(role, AUDIENCE, HOUR);
            let expired = Token { expires: 1, ..right.clone() };
            let elsewhere = Token::new(role, "elsewhere", HOUR);
            for wrong in [bearer(&other, &right), bearer(&key, &expired), bearer(&key, &elsewhere)]
            {
                let code = call(&dispatcher, path, Some(&wrong));
                assert_eq!(code, Code::Unauthenticated, "{path} {role}");
            }
            let code = call(&dispatcher, path, Some(&bearer(&key, &right)));
            match access(path).allows(role) {
                false => assert_eq!(code, Code::PermissionDenied, "{path} {role}"),
                true => {
                    allowed += 1;
                    let denied = matches!(code, Code::PermissionDenied | Code::Unauthenticated);
                    assert!(!denied, "{path} {role}: {code:?}");
                }
            }
        }
        assert!(allowed > 0, "nobody may call {path}");
    }
    let health = "/grpc.health.v1.Health/Check";
    assert_ne!(call(&dispatcher, health, None), Code::Unauthenticated);
    let other = "/feedline.v1.Other/Method";
    assert_eq!(call(&dispatcher, other, None), Code::Unauthenticated, "denied by default");
    let operator = bearer(&key, &Token::new(Role::Operator, AUDIENCE, HOUR));
    assert_eq!(call(&dispatcher, other, Some(&operator)), Code::PermissionDenied);
}

#[test]
fn each_role_does_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let (dispatcher, key) = guarded(folder.path());
    let bearing = |role| with(&dispatcher, folder.path(), &key, &Token::new(role, AUDIENCE, HOUR));
    let (client, operator) = (bearing(Role::Client), bearing(Role::Operator));
    let id = register(&client);
    let mut trainer = Trainer::join(&client, "job", 30, 1, 0);
    assert_eq!(trainer.epoch(&client, 4), 30);
    assert!(matches!(client.status(), Err(Failure::Denied(_))));
    assert_eq!(operator.status().unwrap().jobs.len(), 1);
    assert!(bearing(Role::Worker).dataset(&id).is_ok());
    assert!(matches!(client.dataset(&id), Err(Failure::Denied(_))));
    let (job, incarnation, consumer) = (trainer.job(), trainer.seat.incarnation, ConsumerIndex(0));
    let release = Request::Release { job, incarnation, consumer };
    assert!(matches!(client.ask(&release, PATIENCE), Err(Failure::Denied(_))));
    assert!(operator.ask(&release, PATIENCE).is_ok());
    let nobody = remote(&dispatcher).status().unwrap_err();
    assert!(matches!(&nobody, Failure::Denied(said) if said.contains("token is needed")));
}

#[test]
fn a_token_for_some_jobs_reaches_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let (dispatcher, key) = guarded(folder.path());
    let bearing = |jobs: Option<&str>| {
        let jobs = jobs.map(str::to_owned);
        let token = Token { jobs, ..Token::new(Role::Client, AUDIENCE, HOUR) };
        with(&dispatcher, folder.path(), &key, &token)
    };
    let (all, team) = (bearing(None), bearing(Some("team/")));
    register(&team);
    let mut own = Trainer::join(&team, "team/job", 20, 1, 0);
    assert_eq!(own.epoch(&team, 4), 20);
    let others = Trainer::join(&all, "other/job", 20, 1, 0);
    let denied = |request: &Request| {
        let failure = team.ask(request, PATIENCE).unwrap_err();
        assert!(matches!(&failure, Failure::Denied(said) if said.contains("cover")), "{failure}");
    };
    denied(&open("other/new", 5, 1, 0, nonce()));
    denied(&Request::CloseJob { job: others.job() });
    denied(&Request::CloseJob { job: feedline_wire::JobId(404) });
    denied(&Request::Commit { seat: others.seat, cursor: others.cursor.clone() });
    let report = feedline_wire::control::Report {
        job: others.job(),
        consumer: ConsumerIndex(0),
        epoch: 0,
        steps: 0,
        samples: 0,
        bytes: 0,
        waited: 0,
        elapsed: 0,
        buffered: 0,
    };
    assert!(matches!(team.report(&report), Err(Failure::Denied(_))));
    assert!(all.report(&report).is_ok());
}

#[test]
fn keys_and_tokens_change_while_everybody_works() {
    let folder = tempfile::tempdir().unwrap();
    let (dispatcher, old) = guarded(folder.path());
    let path = folder.path().join("token");
    let token = Token::new(Role::Client, AUDIENCE, HOUR);
    save(&path, &old.sign(&token));
    let address = dispatcher.address().to_string();
    let options = RemoteOptions { token: Some(path.clone()), ..RemoteOptions::new(&address) };
    let control = Remote::with(&options).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let working = scope.spawn(|| {
            let mut calls = 0;
            while !done.load(Ordering::SeqCst) {
                control.workers(0, Duration::ZERO).expect("no call fails");
                calls += 1;
            }
            calls
        });
        let pause = || std::thread::sleep(Duration::from_millis(500));
        pause();
        // First the new key beside the old one, then the new token, then the old key goes.
        let new_path = folder.path().join("new key");
        let new = Key::make(&new_path).unwrap();
        let old_text = std::fs::read_to_string(folder.path().join("key")).unwrap();
        let new_text = std::fs::read_to_string(&new_path).unwrap();
        for text in [format!("{new_text}{old_text}"), new_text] {
            std::fs::write(&new_path, &text).unwrap();
            std::fs::copy(&new_path, folder.path().join("next")).unwrap();
            std::fs::rename(folder.path().join("next"), folder.path().join("key")).unwrap();
            pause();
            save(&path, &new.sign(&token));
            pause();
        }
        done.store(true, Ordering::SeqCst);
        assert!(working.join().unwrap() > 10);
    });
    save(&path, &old.sign(&token));
    let end = std::time::Instant::now() + PATIENCE;
    while control.workers(0, Duration::ZERO).is_ok() {
        assert!(std::time::Instant::now() < end, "the old key is not accepted any more");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn certificates(folder: &Path) -> Made {
    make_development_ca(&folder.join("certificates"), &["localhost", "127.0.0.1"]).unwrap()
}

fn secured(folder: &Path, tls: ServerTls) -> Dispatcher {
    let options = Options { tls: Some(tls), ..Options::new(folder.join("journal")) };
    Dispatcher::start(options).unwrap()
}

fn over(address: &str, tls: ClientTls) -> Remote {
    Remote::with(&RemoteOptions { tls: Some(tls), ..RemoteOptions::new(address) }).unwrap()
}

fn unanswered(control: &Remote) {
    let request = Request::CloseJob { job: feedline_wire::JobId(1) };
    let failure = control.ask(&request, Duration::from_millis(700)).unwrap_err();
    assert!(matches!(failure, Failure::Unavailable(_)), "{failure}");
}

#[test]
fn over_tls_both_ends_know_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let made = certificates(folder.path());
    let dispatcher = secured(folder.path(), made.server.clone());
    let address = dispatcher.address().to_string();
    let control = over(&address, made.client.clone());
    register(&control);
    assert_eq!(Trainer::join(&control, "job", 50, 1, 0).epoch(&control, 8), 50);
    // In the clear, without a certificate, with another authority's, under another name.
    unanswered(&remote(&dispatcher));
    unanswered(&over(&address, ClientTls { identity: None, ..made.client.clone() }));
    let other = make_development_ca(&folder.path().join("other"), &["127.0.0.1"]).unwrap();
    unanswered(&over(&address, other.client.clone()));
    let disguised = ClientTls { identity: other.client.identity, ..made.client.clone() };
    unanswered(&over(&address, disguised));
    let name = Some("elsewhere.example".to_owned());
    unanswered(&over(&address, ClientTls { name, ..made.client.clone() }));
    drop(dispatcher);
    let dispatcher = secured(folder.path(), ServerTls { clients: None, ..made.server });
    let anonymous = ClientTls { identity: None, ..made.client };
    let control = over(&dispatcher.address().to_string(), anonymous);
    assert!(control.status().is_ok(), "certificates of clients are optional");
}

#[test]
fn certificates_are_read_again_when_their_files_change() {
    let folder = tempfile::tempdir().unwrap();
    let made = certificates(folder.path());
    let next = make_development_ca(&folder.path().join("next"), &["127.0.0.1"]).unwrap();
    let tls = ServerTls { clients: None, ..made.server.clone() };
    let dispatcher = secured(folder.path(), tls);
    let address = dispatcher.address().to_string();
    let old = over(&address, ClientTls { identity: None, ..made.client.clone() });
    assert!(old.status().is_ok());
    // A client's authority is read again as well, when it has to connect anew.
    let authority = folder.path().join("authority.pem");
    std::fs::copy(&made.client.authority, &authority).unwrap();
    let tls = ClientTls { authority: authority.clone(), identity: None, name: None };
    let client = over(&address, tls);
    std::fs::copy(&next.client.authority, &authority).unwrap();
    std::fs::copy(&next.server.certificate, &made.server.certificate).unwrap();
    std::fs::copy(&next.server.key, &made.server.key).unwrap();
    let end = std::time::Instant::now() + PATIENCE;
    while client.workers(0, Duration::ZERO).is_err() {
        assert!(std::time::Instant::now() < end, "the new certificate is never shown");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(old.status().is_ok(), "those who are connected stay so");
}

/// Passes bytes on, and changes one in each so many.
fn tamper(to: &Address, every: usize) -> std::net::SocketAddr {
    let Address::Tcp { host, port } = to.clone() else { panic!() };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let Ok(onward) = TcpStream::connect((host.as_str(), port)) else { return };
            let pairs = [
                (stream.try_clone().unwrap(), onward.try_clone().unwrap(), 0),
                (onward, stream, every),
            ];
            for (mut from, mut to, every) in pairs {
                std::thread::spawn(move || {
                    let (mut bytes, mut passed) = ([0; 4096], 0);
                    while let Ok(read @ 1..) = from.read(&mut bytes) {
                        for byte in &mut bytes[..read] {
                            passed += 1;
                            if every > 0 && passed % every == 0 {
                                *byte ^= 0x40;
                            }
                        }
                        if to.write_all(&bytes[..read]).is_err() {
                            return;
                        }
                    }
                });
            }
        }
    });
    address
}

#[test]
fn what_is_changed_on_the_way_is_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    let made = certificates(folder.path());
    let dispatcher = secured(folder.path(), made.server.clone());
    let direct = over(&dispatcher.address().to_string(), made.client.clone());
    let id = register(&direct);
    for every in [300, 900, 2_000, 3_500] {
        let between = tamper(dispatcher.address(), every);
        let control = over(&format!("feedline://{between}"), made.client.clone());
        for _ in 0..4 {
            let request = Request::CloseJob { job: feedline_wire::JobId(1) };
            if let Ok(reply) = control.ask(&request, Duration::from_millis(300)) {
                assert_eq!(reply, feedline_wire::Reply::Closed);
            }
        }
    }
    assert!(direct.dataset(&id).is_ok());
}

#[test]
fn other_hosts_are_served_only_with_tls_and_tokens_or_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let made = certificates(folder.path());
    let key = folder.path().join("key");
    Key::make(&key).unwrap();
    let wide = |key: Option<&Path>, tls: Option<&ServerTls>, insecure| {
        Dispatcher::start(Options {
            address: "0.0.0.0:0".into(),
            key: key.map(Path::to_owned),
            tls: tls.cloned(),
            insecure,
            ..Options::new(folder.path().join("journal"))
        })
    };
    for (key, tls) in [(None, None), (Some(key.as_path()), None), (None, Some(&made.server))] {
        let error = wide(key, tls, false).unwrap_err();
        assert!(matches!(&error, Error::Setup(said) if said.contains("insecure")), "{error}");
    }
    drop(wide(Some(&key), Some(&made.server), false).unwrap());
    drop(wide(None, None, true).unwrap());
    let error = wide(Some(&folder.path().join("no key")), None, true).unwrap_err();
    assert!(matches!(&error, Error::Setup(said) if said.contains("no key")), "{error}");
    // Nor is a token sent in the clear.
    let token = Some(folder.path().join("token"));
    std::fs::write(token.as_ref().unwrap(), "feedline1.00.00").unwrap();
    let options = RemoteOptions { token, ..RemoteOptions::new("feedline://10.0.0.1:7") };
    let failure = Remote::with(&options).unwrap_err();
    assert!(matches!(&failure, Failure::Invalid(said) if said.contains("TLS")), "{failure}");
    assert!(Remote::with(&RemoteOptions { insecure: true, ..options }).is_ok());
}

#[test]
fn a_host_that_asks_too_often_is_slowed_down_and_not_lost() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = Options::new(folder.path());
    options.connections.rate = 50;
    let dispatcher = Dispatcher::start(options).unwrap();
    let control = remote(&dispatcher);
    register(&control);
    let mut trainer = Trainer::join(&control, "job", 80, 1, 0);
    assert_eq!(trainer.epoch(&control, 1), 80, "asking again is what callers do");
}
