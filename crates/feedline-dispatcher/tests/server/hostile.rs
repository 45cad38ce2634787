//! Garbage, oversized messages, other protocols, connections that say nothing.

use crate::support::*;
use feedline_dispatcher::server::ConnectionLimits;
use feedline_dispatcher::{Dispatcher, Options};
use feedline_rpc::Remote;
use feedline_rpc::{Address, PROTOCOL_HEADER, proto};
use feedline_wire::control::{Control, Failure};
use feedline_wire::{JobId, Offset, Refusal, Request, Window};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;
use tonic::{Code, Status};

fn connect(dispatcher: &Dispatcher) -> TcpStream {
    let Address::Tcp { host, port } = dispatcher.address() else { panic!() };
    let stream = TcpStream::connect((host.as_str(), *port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Waits for the other end to hang up.
fn hung_up(mut stream: TcpStream) {
    let mut bytes = [0; 4096];
    while !matches!(stream.read(&mut bytes), Ok(0) | Err(_)) {}
}

#[test]
fn garbage_on_the_port_disturbs_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let dispatcher = start(folder.path());
    let control = remote(&dispatcher);
    register(&control);
    let mut trainer = Trainer::join(&control, "job", 500, 1, 0);
    let mut noise = 0x9e37_79b9_u32;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    for round in 0..60 {
        let mut stream = connect(&dispatcher);
        let mut bytes = match round % 3 {
            0 => Vec::new(),
            1 => b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
            _ => preface.to_vec(),
        };
        for _ in 0..round * 50 {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            bytes.push((noise >> 24) as u8);
        }
        // It may hang up before all was said.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(Shutdown::Write);
        trainer.get(&control, 4);
        trainer.use_all();
        hung_up(stream);
    }
    trainer.epoch(&control, 16);
    assert_eq!(trainer.used.len(), 500);
}

#[test]
fn connections_that_say_nothing_are_closed_and_many_are_turned_away() {
    let folder = tempfile::tempdir().unwrap();
    let connections = ConnectionLimits {
        most_connections: 8,
        handshake: Duration::from_millis(300),
        ..ConnectionLimits::default()
    };
    let options = Options { connections, ..Options::new(folder.path()) };
    let dispatcher = Dispatcher::start(options).unwrap();
    let silent: Vec<TcpStream> = (0..30).map(|_| connect(&dispatcher)).collect();
    let control = remote(&dispatcher);
    // As soon as the silent ones are gone.
    register(&control);
    silent.into_iter().for_each(hung_up);
    assert!(control.status().is_ok());
}

#[test]
fn unknown_jobs_and_oversized_cursors_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let dispatcher = start(folder.path());
    let control = remote(&dispatcher);
    register(&control);
    let trainer = Trainer::join(&control, "job", 50, 1, 0);
    let mut stranger = trainer.clone();
    stranger.seat.job = JobId(17);
    stranger.cursor.job = JobId(17);
    assert_eq!(refused(stranger.commit(&control)), Refusal::UnknownJob { job: JobId(17) });
    let mut huge = trainer.clone();
    huge.cursor.open = (0..1_000_000).map(|window| (Window(window), Offset(window))).collect();
    let (seat, cursor) = (huge.seat, huge.cursor);
    let failure = control.ask(&Request::Commit { seat, cursor }, PATIENCE).unwrap_err();
    assert!(matches!(failure, Failure::Invalid(_)), "{failure}");
    let reply = control.ask(&open(&"n".repeat(300), 9, 1, 0, nonce()), PATIENCE).unwrap();
    assert!(matches!(refused(reply), Refusal::Mismatch(said) if said.contains("256")));
    assert!(control.status().is_ok());
}

/// Asks as another program would.
fn raw<T, F: Future<Output = Result<T, Status>>>(
    dispatcher: &Dispatcher,
    call: impl FnOnce(proto::dispatcher_client::DispatcherClient<tonic::transport::Channel>) -> F,
) -> Result<T, Status> {
    let Address::Tcp { host, port } = dispatcher.address() else { panic!() };
    let endpoint = format!("http://{host}:{port}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let endpoint = tonic::transport::Endpoint::from_shared(endpoint).unwrap();
        let channel = endpoint.connect().await.unwrap();
        call(proto::dispatcher_client::DispatcherClient::new(channel)).await
    })
}

fn with<T>(message: T, header: Option<&'static str>) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    if let Some(header) = header {
        request.metadata_mut().insert(PROTOCOL_HEADER, header.parse().unwrap());
    }
    request
}

fn status_with(dispatcher: &Dispatcher, header: Option<&'static str>) -> Result<(), Status> {
    raw(dispatcher, |mut client| async move {
        client.status(with(proto::StatusRequest {}, header)).await.map(drop)
    })
}

#[test]
fn messages_that_are_too_long_are_not_even_read() {
    let folder = tempfile::tempdir().unwrap();
    let dispatcher = start(folder.path());
    let long = proto::Dataset { plan: "x".repeat(9 << 20), ..proto::Dataset::default() };
    let status = raw(&dispatcher, |mut client| async move {
        client.register_dataset(with(long, Some("1"))).await
    });
    assert_eq!(status.unwrap_err().code(), Code::OutOfRange);
    let chunk = |name: &str| proto::Chunk { name: name.into(), data: vec![7; 100].into() };
    for chunks in [vec![], vec![chunk("nonsense")], vec![chunk(&"0".repeat(32))]] {
        let status = raw(&dispatcher, |mut client| async move {
            client.put_blob(with(tokio_stream::iter(chunks), Some("1"))).await
        });
        assert_eq!(status.unwrap_err().code(), Code::InvalidArgument);
    }
    assert!(status_with(&dispatcher, Some("1")).is_ok());
}

#[test]
fn another_version_of_the_protocol_is_refused_in_words() {
    let folder = tempfile::tempdir().unwrap();
    let dispatcher = start(folder.path());
    assert!(status_with(&dispatcher, Some("1")).is_ok());
    for (header, part) in [(Some("2"), "protocol \"2\""), (None, PROTOCOL_HEADER)] {
        let status = status_with(&dispatcher, header).unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(status.message().contains(part), "{}", status.message());
    }
}

#[test]
fn a_value_used_after_fork_says_so_and_does_not_hang() {
    let folder = tempfile::tempdir().unwrap();
    let dispatcher = start(folder.path());
    let control = remote(&dispatcher);
    assert!(control.status().is_ok());
    let (mut reader, writer) = std::io::pipe().unwrap();
    // SAFETY: the child only uses the value, writes to a pipe and leaves without clean-up.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let said = control.status().unwrap_err().to_string();
        let _ = (&writer).write_all(said.as_bytes());
        drop(control);
        let _ = (&writer).write_all(b" dropped");
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) };
    }
    drop(writer);
    let mut said = String::new();
    reader.read_to_string(&mut said).unwrap();
    // SAFETY: waits for the child that was made above.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    assert!(said.contains("after fork()") && said.ends_with(" dropped"), "{said}");
    assert!(control.status().is_ok(), "the parent's goes on");
}

#[test]
fn dropping_a_connection_to_nobody_takes_no_time() {
    let control = Remote::new("feedline://192.0.2.1:9").unwrap();
    let failure = control.report(&feedline_wire::control::Report {
        job: JobId(1),
        consumer: feedline_wire::ConsumerIndex(0),
        epoch: 0,
        steps: 0,
        samples: 0,
        bytes: 0,
        waited: 0,
        elapsed: 0,
        buffered: 0,
    });
    assert!(matches!(failure, Err(Failure::Unavailable(_))));
    let begun = std::time::Instant::now();
    drop(control);
    assert!(begun.elapsed() < Duration::from_secs(2));
}
