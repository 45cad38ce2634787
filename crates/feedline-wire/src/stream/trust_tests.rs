//! Tokens, TLS and those who mean harm, on loopback.

use super::tests::{host, numbers, receive, server, tcp, until};
use super::*;
use crate::certs::{Made, make_development_ca};
use crate::frame::{Header, Hello, Kind, VERSION, encode_request};
use crate::secret::Secret;
use crate::tls::{ClientTls, ServerTls};
use crate::token::{Guard, Key, Role, Token, TokenFile};
use feedline_core::{Error, Pool};
use feedline_shm::Segments;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const HOUR: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(300);
const HERE: &str = "here";

/// A folder with a key, certificates and tokens.
struct Office {
    folder: tempfile::TempDir,
    key: Key,
    made: Made,
}

impl Office {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let key = Key::make(&folder.path().join("key")).unwrap();
        let certificates = folder.path().join("certificates");
        let made = make_development_ca(&certificates, &["localhost", "127.0.0.1"]).unwrap();
        Self { folder, key, made }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn guard(&self) -> Option<Guard> {
        Some(Guard::open(&self.path("key"), HERE).unwrap())
    }

    fn token(&self, token: &Token) -> TokenFile {
        let path = self.path("token");
        save(&path, &self.key.sign(token));
        TokenFile::open(&path).unwrap()
    }

    fn tokens(&self) -> ServerOptions {
        ServerOptions { guard: self.guard(), ..Default::default() }
    }

    /// Serves over TLS; those who ask need no certificate.
    fn tls(&self) -> ServerOptions {
        let files = ServerTls { clients: None, ..self.made.server.clone() };
        ServerOptions { tls: Some(files.identity(&[]).unwrap()), ..Default::default() }
    }

    fn trusting(&self) -> ClientOptions {
        trusting(ClientTls { identity: None, ..self.made.client.clone() })
    }
}

fn trusting(files: ClientTls) -> ClientOptions {
    ClientOptions { tls: Some(files.trust(&[]).unwrap()), ..Default::default() }
}

fn save(path: &Path, token: &Secret<String>) {
    let new = path.with_extension("new");
    std::fs::write(&new, token.expose()).unwrap();
    std::fs::rename(&new, path).unwrap();
}

fn refused(server: &Server, options: ClientOptions) -> String {
    Client::connect(server.address(), options).unwrap_err().to_string()
}

#[test]
fn only_a_clients_token_of_this_service_that_lasts_lets_anybody_in() {
    let office = Office::new();
    let other = Key::make(&office.path("other")).unwrap();
    let server = server(office.tokens());
    let right = Token::new(Role::Client, HERE, HOUR);
    let error = refused(&server, ClientOptions::default());
    assert!(error.contains("a token is needed"), "{error}");
    let wrong = [
        (other.sign(&right), "not signed with a key of this service"),
        (office.key.sign(&Token { expires: 1, ..right.clone() }), "has expired"),
        (office.key.sign(&Token::new(Role::Client, "there", HOUR)), "for another service"),
        (office.key.sign(&Token::new(Role::Worker, HERE, HOUR)), "the role worker"),
        (office.key.sign(&Token::new(Role::Operator, HERE, HOUR)), "the role operator"),
        (Secret::new("feedline1.00.00".into()), "not signed with a key of this service"),
    ];
    for (token, words) in wrong {
        save(&office.path("token"), &token);
        let token = TokenFile::open(&office.path("token")).unwrap();
        let error = refused(&server, ClientOptions { token: Some(token), ..Default::default() });
        assert!(error.contains(words), "{words}: {error}");
    }
    until("nobody was let in", || server.connections() == 0);
    let token = Some(office.token(&right));
    let options = ClientOptions { token, ..Default::default() };
    receive(&mut Client::connect(server.address(), options).unwrap(), 2, 10);
}

#[test]
fn tokens_are_asked_for_where_memory_is_shared_as_well() {
    let office = Office::new();
    let shared = Some(Segments::new(4 << 20));
    let server = server(ServerOptions { shared, ..office.tokens() });
    let dir = tempfile::tempdir().unwrap();
    let (handler, _) = numbers(Pool::new(1 << 20));
    let unix = Address::Unix(dir.path().join("socket"));
    let local = Server::bind(&unix, handler, office.tokens()).unwrap();
    assert!(refused(&local, ClientOptions::default()).contains("a token is needed"));
    let token = Some(office.token(&Token::new(Role::Client, HERE, HOUR)));
    let options = ClientOptions { token, ..Default::default() };
    let mut client = Client::connect(server.address(), options.clone()).unwrap();
    assert_eq!(client.way(), Way::Shared);
    receive(&mut client, 5, 100_000);
    receive(&mut Client::connect(local.address(), options).unwrap(), 5, 1000);
}

#[test]
fn a_connection_does_not_outlive_its_token() {
    let office = Office::new();
    let server = server(office.tokens());
    let short = Token::new(Role::Client, HERE, Duration::from_secs(2));
    let token = Some(office.token(&short));
    let options = ClientOptions { token, ..Default::default() };
    let mut client = Client::connect(server.address(), options).unwrap();
    let error = loop {
        client.request(b"1 10 0").unwrap();
        match client.next() {
            Ok(_) => std::thread::sleep(Duration::from_millis(50)),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("the token has expired"), "{error}");
    assert!(matches!(error, Error::Unavailable { .. }), "a new one may be there soon");
    until("the connection has ended", || !client.is_connected() && server.connections() == 0);
    // The same file, a newer token, and all is well.
    let token = Some(office.token(&Token::new(Role::Client, HERE, HOUR)));
    let options = ClientOptions { token, ..Default::default() };
    receive(&mut Client::connect(server.address(), options).unwrap(), 2, 10);
}

#[test]
fn tokens_and_keys_change_under_load_and_no_request_fails() {
    let office = Office::new();
    let server = server(office.tokens());
    let token = Token::new(Role::Client, HERE, HOUR);
    let file = Some(office.token(&token));
    let options = ClientOptions { token: file, ..Default::default() };
    let mut client = Client::connect(server.address(), options.clone()).unwrap();
    let mut work = |time: Duration| {
        let end = Instant::now() + time;
        while Instant::now() < end {
            receive(&mut client, 3, 1000);
            receive(&mut Client::connect(server.address(), options.clone()).unwrap(), 1, 10);
        }
    };
    let pause = Duration::from_millis(500);
    work(pause);
    let new = Key::make(&office.path("new")).unwrap();
    let read = |name: &str| std::fs::read_to_string(office.path(name)).unwrap();
    for text in [read("new") + &read("key"), read("new")] {
        std::fs::write(office.path("next"), &text).unwrap();
        std::fs::set_permissions(
            office.path("next"),
            std::os::unix::fs::PermissionsExt::from_mode(0o600),
        )
        .unwrap();
        std::fs::rename(office.path("next"), office.path("key")).unwrap();
        work(pause);
        save(&office.path("token"), &new.sign(&token));
        work(pause);
    }
    save(&office.path("token"), &office.key.sign(&token));
    let end = Instant::now() + Duration::from_secs(20);
    while Client::connect(server.address(), options.clone()).is_ok() {
        assert!(Instant::now() < end, "the old key is not accepted any more");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn batches_arrive_whole_over_tls_and_both_ends_know_each_other() {
    let office = Office::new();
    let token = Some(office.token(&Token::new(Role::Client, HERE, HOUR)));
    let with_token = ServerOptions { guard: office.guard(), ..office.tls() };
    for (options, token) in [(office.tls(), None), (with_token, token)] {
        let server = server(options);
        let options = ClientOptions { token, ..office.trusting() };
        let mut client = Client::connect(server.address(), options).unwrap();
        assert_eq!(client.way(), Way::Tls);
        for (count, bytes) in [(30, 100_000), (0, 0), (500, 1), (3, 3_700_000), (2, 0)] {
            receive(&mut client, count, bytes);
        }
    }
    // Clients' certificates, where the server asks for them.
    let tls = Some(office.made.server.identity(&[]).unwrap());
    let strict = server(ServerOptions { tls, ..Default::default() });
    let own = trusting(office.made.client.clone());
    receive(&mut Client::connect(strict.address(), own).unwrap(), 3, 1000);
    let error = refused(&strict, office.trusting());
    assert!(error.contains("a client's certificate is asked for"), "{error}");
    let other = make_development_ca(&office.path("others"), &["127.0.0.1"]).unwrap();
    let disguised =
        ClientTls { identity: other.client.identity.clone(), ..office.made.client.clone() };
    let error = refused(&strict, trusting(disguised));
    assert!(error.contains("TLS"), "{error}");
    // A server of another authority, and one of another name.
    let error = refused(&strict, trusting(other.client));
    assert!(error.contains("invalid peer certificate"), "{error}");
    let named = ClientTls { name: Some("elsewhere.example".into()), ..office.made.client.clone() };
    let error = refused(&strict, trusting(named));
    assert!(error.contains("elsewhere.example"), "{error}");
}

#[test]
fn over_tls_clients_on_the_same_host_still_share_memory() {
    let office = Office::new();
    let shared = Some(Segments::new(4 << 20));
    let server = server(ServerOptions { shared, ..office.tls() });
    let mut client = Client::connect(server.address(), office.trusting()).unwrap();
    assert_eq!(client.way(), Way::Shared);
    receive(&mut client, 5, 100_000);
}

#[test]
fn a_certificate_that_changes_is_shown_to_the_next_client() {
    let office = Office::new();
    let server = server(office.tls());
    let next = make_development_ca(&office.path("next"), &["127.0.0.1"]).unwrap();
    let new = || trusting(ClientTls { identity: None, ..next.client.clone() });
    let mut old = Client::connect(server.address(), office.trusting()).unwrap();
    assert!(Client::connect(server.address(), new()).is_err());
    std::fs::copy(&next.server.certificate, &office.made.server.certificate).unwrap();
    std::fs::copy(&next.server.key, &office.made.server.key).unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    while Client::connect(server.address(), new()).is_err() {
        assert!(Instant::now() < end, "the new certificate is never shown");
        std::thread::sleep(Duration::from_millis(50));
    }
    receive(&mut old, 5, 1000);
}

#[test]
fn whoever_speaks_plainly_to_tls_or_tls_to_plain_is_told_what_is_wrong() {
    let office = Office::new();
    let (secure, plain) = (server(office.tls()), server(ServerOptions::default()));
    let error = refused(&secure, ClientOptions::default());
    assert!(error.contains("this worker speaks TLS, and was spoken to without"), "{error}");
    let error = refused(&plain, office.trusting());
    assert!(error.contains("the worker does not speak TLS"), "{error}");
    receive(&mut Client::connect(secure.address(), office.trusting()).unwrap(), 2, 10);
    receive(&mut Client::connect(plain.address(), ClientOptions::default()).unwrap(), 2, 10);
}

#[test]
fn other_hosts_are_served_and_shown_tokens_only_in_secret_or_by_name() {
    let office = Office::new();
    let wide = Address::Tcp("0.0.0.0:0".into());
    let both = || ServerOptions { guard: office.guard(), ..office.tls() };
    for (options, served) in [
        (ServerOptions::default(), false),
        (office.tls(), false),
        (office.tokens(), false),
        (both(), true),
        (ServerOptions { insecure: true, ..Default::default() }, true),
    ] {
        let (handler, _) = numbers(Pool::new(1 << 20));
        match Server::bind(&wide, handler, options) {
            Ok(_) => assert!(served),
            Err(error) => assert!(!served && error.to_string().contains("insecure"), "{error}"),
        }
    }
    let token = Some(office.token(&Token::new(Role::Client, HERE, HOUR)));
    let elsewhere = Address::Tcp("192.0.2.1:1".into());
    let options = ClientOptions { token, ..Default::default() };
    let error = Client::connect(&elsewhere, options).unwrap_err().to_string();
    assert!(error.contains("in the clear"), "{error}");
}

/// Passes bytes on, with one bit changed at a given place of one direction. Says what went that way.
fn between(server: String, down: bool, at: usize) -> (Address, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap().to_string());
    let heard = Arc::<Mutex<Vec<u8>>>::default();
    let hearing = Arc::clone(&heard);
    std::thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let server = TcpStream::connect(server).unwrap();
        let pass = |mut from: TcpStream, mut to: TcpStream, at: Option<usize>, hear: bool| {
            let heard = Arc::clone(&hearing);
            std::thread::spawn(move || {
                let (mut bytes, mut passed) = ([0; 1000], 0);
                while let Ok(count @ 1..) = from.read(&mut bytes) {
                    if hear {
                        heard.lock().unwrap().extend_from_slice(&bytes[..count]);
                    }
                    if let Some(at) = at.filter(|at| (passed..passed + count).contains(at)) {
                        bytes[at - passed] ^= 4;
                    }
                    passed += count;
                    if to.write_all(&bytes[..count]).is_err() {
                        break;
                    }
                }
                let _ = to.shutdown(Shutdown::Both);
            })
        };
        let (one, two) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        let up = pass(one, two, (!down).then_some(at), !down);
        pass(server, client, down.then_some(at), down).join().unwrap();
        up.join().unwrap();
    });
    (address, heard)
}

#[test]
fn what_is_changed_on_the_way_is_never_accepted_over_tls() {
    let office = Office::new();
    let token = Some(office.token(&Token::new(Role::Client, HERE, HOUR)));
    let quick = ServerOptions { handshake: SHORT, timeout: SHORT, ..office.tls() };
    let server = server(ServerOptions { guard: office.guard(), ..quick });
    let receive = |down: bool, at: usize| {
        let (address, heard) = between(host(&server), down, at);
        let options = ClientOptions {
            token: token.clone(),
            handshake: SHORT,
            timeout: SHORT,
            ..office.trusting()
        };
        let received = Client::connect(&address, options).and_then(|mut client| {
            client.request(b"20 100 0")?;
            let mut step = 0;
            while let Some(found) = client.next()? {
                super::tests::check(&found, step, 100);
                step += 1;
            }
            Ok(step)
        });
        (received, heard.lock().unwrap().len())
    };
    for down in [true, false] {
        let (whole, said) = receive(down, usize::MAX);
        assert_eq!((whole.unwrap(), said > 400), (20, true), "{said} bytes, down {down}");
        // How much is said depends on what is sent together, and nobody needs the farewell.
        let mut untold = Vec::new();
        for at in (0..said / 2).step_by(47) {
            // Nothing false is ever taken.
            if let Ok(step) = receive(down, at).0 {
                assert_eq!(step, 20, "byte {at} of {said}, down {down}");
                untold.push(at);
            }
        }
        // TLS ignores two bytes of each record, its version.
        assert!(untold.len() <= 4, "bytes {untold:?} of {said}, down {down}");
    }
}

#[test]
fn what_was_heard_of_a_good_client_is_of_no_use_to_others() {
    let office = Office::new();
    let token = Some(office.token(&Token::new(Role::Client, HERE, HOUR)));
    let quick = ServerOptions { handshake: SHORT, ..office.tls() };
    let server = server(ServerOptions { guard: office.guard(), ..quick });
    let (address, heard) = between(host(&server), false, usize::MAX);
    let options = ClientOptions { token, ..office.trusting() };
    let mut good = Client::connect(&address, options).unwrap();
    receive(&mut good, 3, 1000);
    let heard = heard.lock().unwrap().clone();
    let secret = std::fs::read(office.path("token")).unwrap();
    assert!(!heard.windows(20).any(|part| part == &secret[..20]), "the token went in the clear");
    let before = server.connections();
    for length in (0..heard.len()).step_by(heard.len() / 60).chain([heard.len()]) {
        let mut raw = TcpStream::connect(host(&server)).unwrap();
        raw.set_read_timeout(Some(SHORT * 10)).unwrap();
        raw.write_all(&heard[..length]).unwrap();
        let _ = raw.shutdown(Shutdown::Write);
        // All that comes back is the server's side of a handshake, or an alert.
        let mut answer = Vec::new();
        let _ = raw.read_to_end(&mut answer);
        assert_eq!(server.connections(), before, "{length} bytes of {}", heard.len());
    }
    receive(&mut good, 3, 1000);
}

#[test]
fn garbage_never_stops_a_server_that_speaks_tls() {
    let office = Office::new();
    let quick = ServerOptions { handshake: SHORT, timeout: SHORT, ..office.tls() };
    let server = server(quick);
    let mut good = Client::connect(server.address(), office.trusting()).unwrap();
    let mut seed = 7u64;
    let mut dice = |sides: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize % sides
    };
    for round in 0..400 {
        let mut bytes: Vec<u8> = (0..dice(700)).map(|_| dice(256) as u8).collect();
        // Half of them look like TLS, or like a greeting, at their beginning.
        let starts: [&[u8]; 4] =
            [&[], &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3], b"FDLN", &[0x15, 3, 3]];
        bytes.splice(0..0, starts[round % 4].iter().copied());
        if let Ok(mut raw) = TcpStream::connect(host(&server)) {
            let _ = raw.write_all(&bytes);
        }
        if round % 50 == 0 {
            receive(&mut good, 3, 1000);
        }
    }
    receive(&mut good, 3, 1000);
    until("all others are gone", || server.connections() == 1);
}

fn greeting(token: &[u8], timeout: Duration) -> Vec<u8> {
    let hello = Hello {
        oldest: VERSION,
        newest: VERSION,
        token: Secret::new(token.to_vec()),
        timeout: timeout.as_millis() as u64,
        ..Hello::default()
    };
    let description = hello.encode();
    [&Header::new(Kind::Hello, 0, &description).encode()[..], &description].concat()
}

#[test]
fn thousands_who_only_connect_and_some_who_dawdle_keep_nobody_from_reading() {
    let office = Office::new();
    let token = office.token(&Token::new(Role::Client, HERE, HOUR));
    let text = token.get().expose().clone();
    let options = ServerOptions { pending: 64, guard: office.guard(), ..Default::default() };
    let server = server(options);
    let options = ClientOptions { token: Some(token), ..Default::default() };
    let mut good = Client::connect(server.address(), options.clone()).unwrap();
    let mut open = Vec::new();
    // Those who say a greeting byte by byte, and in the end not all of it.
    let slow: Vec<_> = (0..8).filter_map(|_| TcpStream::connect(host(&server)).ok()).collect();
    let greeting = greeting(text.as_bytes(), HOUR);
    for round in 0..2400 {
        open.extend(TcpStream::connect(host(&server)));
        for mut slow in &slow {
            let _ = slow.write(&greeting[round % 50..round % 50 + 1]);
        }
        if round % 100 == 99 {
            receive(&mut good, 5, 10_000);
            // Whoever comes now is let in as well.
            receive(&mut Client::connect(server.address(), options.clone()).unwrap(), 2, 1000);
            open.drain(..open.len().saturating_sub(400));
        }
    }
    receive(&mut good, 20, 10_000);
    drop(open);
}

#[test]
fn a_client_that_sends_half_a_request_is_given_up() {
    let server = server(ServerOptions { timeout: SHORT, ..Default::default() });
    let mut raw = TcpStream::connect(host(&server)).unwrap();
    raw.write_all(&greeting(b"", HOUR)).unwrap();
    until("seated", || server.connections() == 1);
    let request = encode_request(1000, b"", b"3 10 0");
    let header = Header { sequence: 1, ..Header::new(Kind::Request, 1, &request) };
    // A byte now and then is a sign of life, but no request.
    let started = Instant::now();
    for byte in header.encode() {
        if raw.write_all(&[byte]).is_err() || server.connections() == 0 {
            break;
        }
        std::thread::sleep(SHORT / 10);
    }
    until("given up", || server.connections() == 0);
    assert!(started.elapsed() < SHORT * 8, "only when all had come");
}

#[test]
fn of_requests_that_come_at_once_one_is_served_at_a_time() {
    let (handler, sent) = numbers(Pool::new(1 << 20));
    let server = Server::bind(&tcp(), handler, ServerOptions::default()).unwrap();
    let mut raw = TcpStream::connect(host(&server)).unwrap();
    let mut bytes = greeting(b"", HOUR);
    for number in 1..=2000u32 {
        let request = encode_request(1 << 20, b"", b"1 10 1");
        let sequence = u64::from(number);
        let header = Header { sequence, ..Header::new(Kind::Request, number, &request) };
        bytes.extend_from_slice(&header.encode());
        bytes.extend_from_slice(&request);
    }
    raw.write_all(&bytes).unwrap();
    let mut good = Client::connect(server.address(), ClientOptions::default()).unwrap();
    receive(&mut good, 5, 1000);
    drop(raw);
    until("gone", || server.connections() == 1);
    let served = sent.load(std::sync::atomic::Ordering::SeqCst);
    assert!(served < 2000, "{served}: what was asked before is dropped");
}
