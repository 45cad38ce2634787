//! Both ends together, on loopback. No test holds more than a few megabytes.

use super::*;
use crate::compress::Packing;
use crate::frame::{Header, Hello, Kind, VERSION};
use feedline_core::{Batch, Error, Name, Pool, Result, Rows, Stretch, Tensor};
use feedline_shm::Segments;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const SHORT: Duration = Duration::from_millis(300);

/// A batch whose every byte follows from its step.
fn stretch(step: u64, bytes: usize, pool: &Pool) -> Stretch {
    let mut image = pool.take(bytes).unwrap();
    let seed = step as u8;
    image.iter_mut().enumerate().for_each(|(at, byte)| *byte = seed.wrapping_add(at as u8));
    let image = Tensor::new(feedline_core::DType::U8, &[bytes], image.freeze()).unwrap();
    let fields = vec![
        (Name::new("label"), Tensor::from_slice(&[2], &[step as i64, -1])),
        (Name::new("image"), image),
        (Name::new("weight"), Tensor::scalar(0.5f32)),
    ];
    Stretch { step, rows: Rows::Batch(Batch { fields, rows: 2, indices: Some(vec![step, 9]) }) }
}

pub(super) fn check(found: &Stretch, step: u64, bytes: usize) {
    let expected = stretch(step, bytes, &Pool::new(0));
    let (Rows::Batch(found_rows), Rows::Batch(expected)) = (&found.rows, &expected.rows) else {
        panic!("no batch");
    };
    assert_eq!(found.step, step);
    assert!(found_rows == expected, "step {step} differs");
}

/// Understands "count bytes pause-in-ms", "fail" and "panic".
pub(super) struct Numbers {
    pool: Pool,
    sent: Arc<AtomicUsize>,
}

impl Handler for Numbers {
    fn serve(&self, request: &[u8], out: &mut Sender<'_>) -> Result<()> {
        let request = std::str::from_utf8(request).unwrap();
        match request {
            "fail" => return Err(Error::Budget("too many bad records".into())),
            "panic" => panic!("a bug in a step"),
            _ => {}
        }
        let numbers: Vec<u64> = request.split(' ').map(|word| word.parse().unwrap()).collect();
        for step in 0..numbers[0] {
            std::thread::sleep(Duration::from_millis(numbers[2]));
            out.send(&stretch(step, numbers[1] as usize, &self.pool))?;
            self.sent.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }
}

pub(super) fn numbers(pool: Pool) -> (Numbers, Arc<AtomicUsize>) {
    let sent = Arc::new(AtomicUsize::new(0));
    (Numbers { pool, sent: Arc::clone(&sent) }, sent)
}

pub(super) fn tcp() -> Address {
    Address::Tcp("127.0.0.1:0".into())
}

pub(super) fn server(options: ServerOptions) -> Server {
    Server::bind(&tcp(), numbers(Pool::new(1 << 20)).0, options).unwrap()
}

pub(super) fn receive(client: &mut Client, count: u64, bytes: usize) {
    client.request(format!("{count} {bytes} 0").as_bytes()).unwrap();
    for step in 0..count {
        check(&client.next().unwrap().unwrap(), step, bytes);
    }
    assert!(client.next().unwrap().is_none());
    assert!(client.next().unwrap().is_none());
}

pub(super) fn until(what: &str, done: impl Fn() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < Duration::from_secs(10), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn stretches_arrive_whole_and_in_order_by_every_way() {
    let dir = tempfile::tempdir().unwrap();
    let unix = Address::Unix(dir.path().join("socket"));
    let v6 = Address::Tcp("[::1]:0".into());
    let with = || ServerOptions { shared: Some(Segments::new(4 << 20)), ..Default::default() };
    let without = ServerOptions::default;
    for (address, options, way) in [
        (tcp(), without(), Way::Tcp),
        (v6, without(), Way::Tcp),
        (unix.clone(), without(), Way::Unix),
        (unix, with(), Way::Shared),
        (tcp(), with(), Way::Shared),
    ] {
        let (handler, _) = numbers(Pool::new(1 << 20));
        let server = Server::bind(&address, handler, options).unwrap();
        let mut client = Client::connect(server.address(), ClientOptions::default()).unwrap();
        assert_eq!(client.way(), way);
        for (count, bytes) in [(30, 100_000), (0, 0), (500, 1), (3, 700_000), (2, 0)] {
            receive(&mut client, count, bytes);
        }
    }
}

#[test]
fn a_client_that_wants_no_shared_memory_gets_none() {
    let server =
        server(ServerOptions { shared: Some(Segments::new(1 << 20)), ..Default::default() });
    let options = ClientOptions { shared_memory: 0, ..Default::default() };
    let mut client = Client::connect(server.address(), options).unwrap();
    assert_eq!(client.way(), Way::Tcp);
    receive(&mut client, 3, 100_000);
}

#[test]
fn batches_made_in_shared_memory_are_not_copied() {
    let segments = Segments::new(4 << 20);
    let source = segments.clone();
    let pool = Pool::over(1 << 20, move |length| {
        (length >= 4096).then(|| source.take(length).ok().flatten()).flatten()
    });
    let (handler, _) = numbers(pool);
    let options = ServerOptions { shared: Some(segments.clone()), ..Default::default() };
    let server = Server::bind(&tcp(), handler, options).unwrap();
    let mut client = Client::connect(server.address(), ClientOptions::default()).unwrap();
    client.request(b"1 1000000 0").unwrap();
    check(&client.next().unwrap().unwrap(), 0, 1_000_000);
    assert!(client.next().unwrap().is_none());
    assert_eq!(segments.bytes(), 1 << 20);
}

#[test]
fn when_shared_memory_is_full_batches_go_over_the_socket() {
    let segments = Segments::new(1 << 20);
    let server = server(ServerOptions { shared: Some(segments.clone()), ..Default::default() });
    let mut client = Client::connect(server.address(), ClientOptions::default()).unwrap();
    assert_eq!(client.way(), Way::Shared);
    client.request(b"20 300000 0").unwrap();
    let all: Vec<_> = (0..20).map(|_| client.next().unwrap().unwrap()).collect();
    all.iter().zip(0..).for_each(|(found, step)| check(found, step, 300_000));
    assert!(segments.bytes() <= 1 << 20);
    drop(all);
    receive(&mut client, 20, 300_000);
}

#[test]
fn a_batch_outlives_its_connection_and_nobody_writes_into_it() {
    let segments = Segments::new(1 << 20);
    let server = server(ServerOptions { shared: Some(segments), ..Default::default() });
    let mut first = Client::connect(server.address(), ClientOptions::default()).unwrap();
    first.request(b"1 900000 0").unwrap();
    let kept = first.next().unwrap().unwrap();
    drop(first);
    until("the client is still there", || server.connections() == 0);
    let mut second = Client::connect(server.address(), ClientOptions::default()).unwrap();
    receive(&mut second, 5, 900_000);
    check(&kept, 0, 900_000);
}

#[test]
fn other_sizes_come_and_go_and_their_segments_with_them() {
    let segments = Segments::new(1 << 20);
    let server = server(ServerOptions { shared: Some(segments.clone()), ..Default::default() });
    let options = ClientOptions { shared_memory: 2 << 20, ..Default::default() };
    let mut client = Client::connect(server.address(), options).unwrap();
    for round in 0..60 {
        receive(&mut client, 4, 50_000 + 13_000 * round);
    }
    assert!(segments.bytes() <= 1 << 20);
}

#[test]
fn no_more_is_sent_than_there_is_credit_for() {
    let (handler, sent) = numbers(Pool::new(1 << 20));
    let server = Server::bind(&tcp(), handler, ServerOptions::default()).unwrap();
    let options = ClientOptions { credit: 100_000, ..Default::default() };
    let mut client = Client::connect(server.address(), options).unwrap();
    client.request(b"50 30000 0").unwrap();
    until("three fit", || sent.load(Ordering::SeqCst) == 3);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(sent.load(Ordering::SeqCst), 3);
    for step in 0..50 {
        check(&client.next().unwrap().unwrap(), step, 30_000);
        assert!(sent.load(Ordering::SeqCst) as u64 <= step + 5);
    }
    // One frame is admitted however large it is.
    receive(&mut client, 3, 500_000);
}

#[test]
fn packed_payloads_arrive_whole() {
    for packing in [Packing::Lz4, Packing::Zstd, Packing::Auto] {
        let server = server(ServerOptions { packing, ..Default::default() });
        let mut client = Client::connect(server.address(), ClientOptions::default()).unwrap();
        receive(&mut client, 20, 200_000);
    }
}

#[test]
fn asking_again_drops_what_was_asked_before() {
    let options = || ClientOptions { credit: 100_000, ..Default::default() };
    let server =
        server(ServerOptions { shared: Some(Segments::new(1 << 20)), ..Default::default() });
    for shared_memory in [0, 1 << 20] {
        let options = ClientOptions { shared_memory, ..options() };
        let mut client = Client::connect(server.address(), options).unwrap();
        for round in 0..20 {
            client.request(b"1000 40000 0").unwrap();
            if round % 2 == 0 {
                check(&client.next().unwrap().unwrap(), 0, 40_000);
            }
        }
        receive(&mut client, 10, 20_000);
    }
}

#[test]
fn an_error_or_panic_reaches_the_client_and_the_connection_goes_on() {
    let server = server(ServerOptions::default());
    let mut client = Client::connect(server.address(), ClientOptions::default()).unwrap();
    client.request(b"fail").unwrap();
    assert!(matches!(client.next(), Err(Error::Budget(message)) if message.contains("too many")));
    client.request(b"panic").unwrap();
    assert!(matches!(client.next(), Err(Error::Internal(message)) if message.contains("a bug")));
    assert!(client.is_connected());
    receive(&mut client, 2, 10);
}

#[test]
fn a_slow_server_is_waited_for_because_its_heart_beats() {
    let options = ServerOptions { timeout: SHORT, ..Default::default() };
    let server = server(options);
    let options = ClientOptions { timeout: SHORT, ..Default::default() };
    let mut client = Client::connect(server.address(), options).unwrap();
    client.request(b"1 10 900").unwrap();
    assert!(matches!(client.next_within(Duration::from_millis(20)).unwrap(), Next::NotYet));
    check(&client.next().unwrap().unwrap(), 0, 10);
    // And a slow client as well.
    std::thread::sleep(SHORT * 3);
    receive(&mut client, 1, 10);
}

/// What a raw peer says first.
fn greeting(timeout: Duration) -> Vec<u8> {
    let hello = Hello {
        oldest: VERSION,
        newest: VERSION,
        timeout: timeout.as_millis() as u64,
        ..Hello::default()
    };
    let description = hello.encode();
    [&Header::new(Kind::Hello, 0, &description).encode()[..], &description].concat()
}

pub(super) fn host(server: &Server) -> String {
    server.address().to_string()
}

#[test]
fn a_silent_server_is_noticed_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap().to_string());
    let silent = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        socket.write_all(&greeting(SHORT)).unwrap();
        let _ = socket.read_to_end(&mut Vec::new());
    });
    let options = ClientOptions { timeout: SHORT, ..Default::default() };
    let mut client = Client::connect(&address, options).unwrap();
    let started = Instant::now();
    client.request(b"1 1 0").unwrap();
    let error = client.next().unwrap_err().to_string();
    assert!(error.contains("no sign of life"), "{error}");
    assert!(started.elapsed() < SHORT * 3, "{:?}", started.elapsed());
    assert!(!client.is_connected());
    assert!(client.request(b"1 1 0").is_err() || client.next().is_err());
    drop(client);
    silent.join().unwrap();
}

#[test]
fn a_silent_client_is_given_up_and_a_server_that_is_dropped_says_so() {
    let server = server(ServerOptions { timeout: SHORT, ..Default::default() });
    let mut raw = TcpStream::connect(host(&server)).unwrap();
    raw.write_all(&greeting(SHORT)).unwrap();
    until("connected", || server.connections() == 1);
    until("given up", || server.connections() == 0);
    let mut client = Client::connect(server.address(), ClientOptions::default()).unwrap();
    client.request(b"1000000 10 1").unwrap();
    assert!(client.next().unwrap().is_some());
    let started = Instant::now();
    drop(server);
    assert!(started.elapsed() < Duration::from_secs(2));
    while let Ok(Some(_)) = client.next() {}
    assert!(!client.is_connected());
}

#[test]
fn those_who_do_not_greet_are_dropped_and_too_many_are_told() {
    let options =
        ServerOptions { connections: 3, per_peer: 2, handshake: SHORT, ..Default::default() };
    let dir = tempfile::tempdir().unwrap();
    let (handler, _) = numbers(Pool::new(1 << 20));
    let unix = Address::Unix(dir.path().join("socket"));
    let local = Server::bind(&unix, handler, ServerOptions { ..options.clone() }).unwrap();
    let server = server(options);
    let connect = |server: &Server| Client::connect(server.address(), ClientOptions::default());
    let mut good = connect(&server).unwrap();
    let idle: Vec<_> = (0..5).map(|_| TcpStream::connect(host(&server)).unwrap()).collect();
    let mut other = connect(&server).unwrap();
    let error = connect(&server).unwrap_err();
    assert!(error.to_string().contains("2 clients are connected from 127.0.0.1"), "{error}");
    receive(&mut good, 5, 1000);
    for mut idle in idle {
        // The server ends it: with a word or without.
        let _ = idle.read_to_end(&mut Vec::new());
    }
    receive(&mut other, 5, 1000);
    drop(good);
    until("one is gone", || server.connections() == 1);
    receive(&mut connect(&server).unwrap(), 5, 1000);
    let all: Vec<_> = (0..3).map(|_| connect(&local).unwrap()).collect();
    let error = connect(&local).unwrap_err();
    assert!(error.to_string().contains("3 clients are connected, and no more"), "{error}");
    drop(all);
}

#[test]
fn noise_is_turned_away_in_clear_words() {
    let server = server(ServerOptions::default());
    let mut raw = TcpStream::connect(host(&server)).unwrap();
    raw.write_all(&[b'x'; 200]).unwrap();
    let mut answer = Vec::new();
    // The server closes with our bytes unread, so the end may be a reset.
    let _ = raw.read_to_end(&mut answer);
    until("gone", || server.connections() == 0);
    // And a server that is none.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap().to_string());
    let other = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let _ = socket.write_all(&[b'y'; 100]);
        let _ = socket.read(&mut [0; 1000]);
    });
    let error = Client::connect(&address, ClientOptions::default()).unwrap_err().to_string();
    assert!(error.contains("does not speak Feedline's protocol"), "{error}");
    other.join().unwrap();
}

/// Passes bytes on, the answers with one bit changed at a given place.
fn damaging(server: String, at: usize) -> Address {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap().to_string());
    std::thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let server = TcpStream::connect(server).unwrap();
        let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        let up = std::thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(std::net::Shutdown::Both);
        });
        let (mut from, mut to, mut passed) = (server, client, 0);
        let mut bytes = [0; 1000];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            if (passed..passed + count).contains(&at) {
                bytes[at - passed] ^= 4;
            }
            passed += count;
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Both);
        up.join().unwrap();
    });
    address
}

#[test]
fn a_bit_changed_on_the_way_is_noticed_wherever_it_is() {
    let server = server(ServerOptions { packing: Packing::None, ..Default::default() });
    for at in (0..2500).step_by(37) {
        let address = damaging(host(&server), at);
        let damaged = Client::connect(&address, ClientOptions::default()).and_then(|mut client| {
            client.request(b"20 100 0")?;
            let mut step = 0;
            while let Some(found) = client.next()? {
                check(&found, step, 100);
                step += 1;
            }
            Ok(step)
        });
        assert!(damaged.is_err(), "byte {at}: {damaged:?}");
    }
}

#[test]
fn a_bit_changed_in_a_large_payload_or_behind_it_is_noticed() {
    const BYTES: usize = 700_000;
    let server = server(ServerOptions { packing: Packing::None, ..Default::default() });
    // Greeting, header and description come before the payload, and its checksum after it.
    let ends = (0..1000).step_by(97).chain((BYTES - 400..BYTES + 700).step_by(7));
    for at in ends.chain((1000..BYTES).step_by(41_017)) {
        let address = damaging(host(&server), at);
        let damaged = Client::connect(&address, ClientOptions::default()).and_then(|mut client| {
            client.request(format!("3 {BYTES} 0").as_bytes())?;
            let mut step = 0;
            while let Some(found) = client.next()? {
                check(&found, step, BYTES);
                step += 1;
            }
            Ok(step)
        });
        assert!(damaged.is_err(), "byte {at}: {damaged:?}");
    }
    let mut client = Client::connect(server.address(), ClientOptions::default()).unwrap();
    receive(&mut client, 3, BYTES);
}

#[test]
fn a_thousand_damaged_conversations_never_stop_a_server() {
    let server = server(ServerOptions { handshake: SHORT, timeout: SHORT, ..Default::default() });
    let mut good = Client::connect(server.address(), ClientOptions::default()).unwrap();
    let request = crate::frame::encode_request(1000, b"", b"3 10 0");
    let header = Header { sequence: 1, ..Header::new(Kind::Request, 1, &request) };
    let whole = [&greeting(SHORT)[..], &header.encode(), &request].concat();
    let seed = Mutex::new(1u64);
    let dice = |sides: usize| {
        let mut seed = seed.lock().unwrap();
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (*seed >> 33) as usize % sides
    };
    for round in 0..1000 {
        let mut bytes = whole.clone();
        (0..=dice(3)).for_each(|_| bytes[dice(whole.len())] = dice(256) as u8);
        bytes.truncate(whole.len() - dice(2) * dice(40));
        // Connections are many and short: the system may be out of ports for a moment.
        if let Ok(mut raw) = TcpStream::connect(host(&server)) {
            let _ = raw.write_all(&bytes);
        }
        if round % 100 == 0 {
            receive(&mut good, 3, 1000);
        }
    }
    receive(&mut good, 3, 1000);
    until("all others are gone", || server.connections() == 1);
}

/// Holds small stretches back, and large ones between them, and flushes where the request says so.
struct Together(Pool);

impl Handler for Together {
    fn serve(&self, request: &[u8], out: &mut Sender<'_>) -> Result<()> {
        for step in 0..600 {
            let bytes = if step % 100 == 99 { 20_000 } else { 10 };
            out.send_soon(&stretch(step, bytes, &self.0))?;
        }
        if request == b"flush" {
            out.flush()?;
            // Nobody has to wait for the end.
            while !out.cancelled() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }
}

#[test]
fn small_stretches_go_out_together_in_order_and_before_anything_is_waited_for() {
    for options in [
        ServerOptions::default(),
        ServerOptions { shared: Some(Segments::new(4 << 20)), ..Default::default() },
    ] {
        let server = Server::bind(&tcp(), Together(Pool::new(1 << 20)), options).unwrap();
        // So little credit that it runs out while some are held back.
        for credit in [64 << 10, 64 << 20] {
            let options = ClientOptions { credit, ..Default::default() };
            let mut client = Client::connect(server.address(), options).unwrap();
            for request in ["flush", "to the end", "flush"] {
                client.request(request.as_bytes()).unwrap();
                for step in 0..600 {
                    let bytes = if step % 100 == 99 { 20_000 } else { 10 };
                    check(&client.next().unwrap().unwrap(), step, bytes);
                }
                if request == "to the end" {
                    assert!(client.next().unwrap().is_none());
                }
            }
        }
    }
}
