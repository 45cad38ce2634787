//! What can be seen from outside, and what cannot: pages, and secrets in logs.

use crate::support::*;
use feedline_dispatcher::server::AUDIENCE;
use feedline_dispatcher::{Dispatcher, Options};
use feedline_rpc::Remote;
use feedline_rpc::RemoteOptions;
use feedline_wire::control::{Beat, Control, Worker, WorkerKey};
use feedline_wire::status::Status;
use feedline_wire::token::{Key, Role, Token};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn get(address: SocketAddr, path: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn pages_tell_how_everything_stands() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { http: Some("127.0.0.1:0".into()), ..Options::new(folder.path()) };
    let dispatcher = Dispatcher::start(options).unwrap();
    let control = remote(&dispatcher);
    register(&control);
    let mut trainer = Trainer::join(&control, "a \"job\"", 40, 1, 0);
    trainer.get(&control, 4);
    trainer.use_all();
    trainer.commit(&control);
    let worker = Worker {
        key: WorkerKey(3),
        name: "w".into(),
        addresses: vec![],
        version: "1".into(),
        cores: 1,
        draining: false,
    };
    let beat = Beat { worker, busy: 0.25, memory: 7, connections: 0, jobs: vec![] };
    control.beat(&beat).unwrap();
    let at = dispatcher.http_address().unwrap();
    let metrics = get(at, "/metrics", "");
    let id = trainer.job();
    for line in [
        format!("feedline_job_windows_used{{job=\"a \\\"job\\\"\",id=\"{id}\"}} 4"),
        "feedline_worker_busy_share{worker=\"w\",key=\"0000000000000003\"} 0.25".into(),
        "feedline_calls_total{method=\"Get\",outcome=\"answered\"} 1".into(),
        "feedline_jobs 1".into(),
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} is not in {metrics}");
    }
    let status = get(at, "/status", "");
    let (_, body) = status.split_once("\r\n\r\n").unwrap();
    let status: Status = serde_json::from_str(body).unwrap();
    assert_eq!(status.jobs[0].windows_used, 4);
    assert!(get(at, "/health", "").ends_with("\r\n\r\nok\n"));
    assert!(get(at, "/", "").starts_with("HTTP/1.1 404"));
    drop(dispatcher);
    assert!(TcpStream::connect(at).is_err(), "nobody serves pages any more");
}

/// What was logged, at most so much.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut log = self.0.lock().unwrap();
        if log.len() < 256 << 20 {
            log.extend_from_slice(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn no_secret_is_ever_logged_or_shown() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    let key = Key::make(&path).unwrap();
    let key_text = std::fs::read_to_string(&path).unwrap();
    let mut options = Options::new(folder.path().join("journal"));
    (options.key, options.http) = (Some(path), Some("127.0.0.1:0".into()));
    let shown = format!("{options:?}");
    let dispatcher = Dispatcher::start(options).unwrap();
    let address = dispatcher.address().to_string();
    let other = Key::make(&folder.path().join("other")).unwrap();
    let hour = Duration::from_secs(3600);
    let mut canaries = vec![key_text.trim().strip_prefix("feedline-key ").unwrap().to_owned()];
    let mut said = vec![shown];
    for (number, (key, role)) in
        [(&key, Role::Client), (&key, Role::Operator), (&other, Role::Operator)].iter().enumerate()
    {
        let token = key.sign(&Token::new(*role, AUDIENCE, hour));
        canaries.push(token.expose().rsplit('.').next().unwrap().to_owned());
        let path = folder.path().join(format!("token {number}"));
        std::fs::write(&path, token.expose()).unwrap();
        let options = RemoteOptions { token: Some(path), ..RemoteOptions::new(&address) };
        let control = Remote::with(&options).unwrap();
        said.push(format!("{options:?} {control:?} {:?}", control.status()));
        if *role == Role::Client {
            register(&control);
            Trainer::join(&control, "job", 20, 1, 0).epoch(&control, 4);
        }
        let at = dispatcher.http_address().unwrap();
        let bearer = format!("Authorization: Bearer {}\r\n", token.expose());
        said.push(get(at, "/metrics", &bearer) + &get(at, "/status", &bearer));
    }
    said.push(format!("{dispatcher:?}"));
    dispatcher.stop();
    let log = String::from_utf8_lossy(&log.0.lock().unwrap()).into_owned();
    assert!(log.contains("the dispatcher serves") && log.contains("TRACE"), "it is logged at all");
    for canary in canaries {
        assert!(canary.len() >= 64);
        assert!(!log.contains(&canary), "a secret was logged");
        assert!(!said.iter().any(|said| said.contains(&canary)), "a secret was shown");
    }
}
