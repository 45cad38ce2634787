//! A small object server that misbehaves as it is told: ranged GET, HEAD, and S3's listing.
//!
//! ```text
//!  http://127.0.0.1:port/bucket/key         an object, to a web client and to an S3 client alike
//!  http://127.0.0.1:port/bucket?list-type=2 the names below a prefix, some at a time
//! ```
//!
//! It checks no signatures. What it is asked is counted, so tests can say how often it may be.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often a connection looks whether the server ends.
const LOOK_UP: Duration = Duration::from_millis(20);

/// What goes wrong with an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A status instead of the object, with the word that S3 has for it.
    Status(u16, &'static str),
    /// The same, with a header.
    StatusWith(u16, &'static str, &'static str),
    /// The connection ends after so many bytes of the body.
    CutAfter(usize),
    /// The body comes in pieces of so many bytes, with pauses.
    Trickle(usize, Duration),
    /// `Content-Length` says so many bytes more than there are, and the connection ends.
    TooLong(u64),
    /// `Content-Length` says so many bytes fewer than were asked for, and no more are sent.
    TooShort(u64),
    /// `Content-Range` and body begin so many bytes later than was asked for.
    Shifted(u64),
    /// The whole object, whatever range was asked for.
    NoRanges,
    /// Go elsewhere.
    Redirect(String),
    /// Another version than the one that is there, of the same length.
    OtherTag,
    /// No HTTP at all.
    Garbage,
    /// No answer, while the connection stands.
    Silence,
    /// A range without saying which.
    NoContentRange,
}

/// What was asked so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Requests for objects.
    pub gets: u64,
    /// Requests for what objects are.
    pub heads: u64,
    /// Requests for names.
    pub lists: u64,
    /// Bytes of objects that were sent.
    pub bytes: u64,
    /// Connections that were made.
    pub connections: u64,
}

#[derive(Clone)]
struct Object {
    bytes: Arc<[u8]>,
    tag: String,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Object>,
    /// What goes wrong with the next answers to GET, one each.
    faults: VecDeque<Fault>,
    /// What goes wrong with all answers to GET and HEAD.
    always: Option<Fault>,
    list_faults: VecDeque<Fault>,
    latency: Duration,
    page: usize,
    asked: Asked,
    headers: Vec<String>,
}

/// A server on this machine. Dropping it ends it and its connections.
pub struct ObjectServer {
    shared: Arc<Shared>,
    address: SocketAddr,
    accepting: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    ending: AtomicBool,
    versions: AtomicU64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ObjectServer {
    /// Starts a server without objects.
    ///
    /// # Panics
    ///
    /// If this machine has no port left.
    #[must_use]
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let state = State { page: 1000, ..State::default() };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            ending: AtomicBool::new(false),
            versions: AtomicU64::new(0),
        });
        let serving = Arc::clone(&shared);
        let accepting = std::thread::spawn(move || accept(&serving, &listener));
        Self { shared, address, accepting: Some(accepting) }
    }

    /// Where it is, without a slash at the end.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The URL of an object for a web client.
    #[must_use]
    pub fn url(&self, name: &str) -> String {
        format!("{}/{name}", self.endpoint())
    }

    /// Puts an object there, called `bucket/key`, or exchanges it.
    pub fn put(&self, name: &str, bytes: &[u8]) {
        let version = self.shared.versions.fetch_add(1, Ordering::Relaxed);
        let object = Object { bytes: bytes.into(), tag: format!("\"v{version}\"") };
        self.shared.lock().objects.insert(name.to_owned(), object);
    }

    /// Puts all files below a folder there, called `bucket/` and their names.
    ///
    /// # Errors
    ///
    /// If they cannot be read.
    pub fn put_folder(&self, bucket: &str, folder: &std::path::Path) -> io::Result<()> {
        let mut open = vec![folder.to_owned()];
        while let Some(path) = open.pop() {
            for item in std::fs::read_dir(&path)? {
                let path = item?.path();
                if path.is_dir() {
                    open.push(path);
                    continue;
                }
                let name = path.strip_prefix(folder).unwrap_or(&path).display().to_string();
                self.put(&format!("{bucket}/{name}"), &std::fs::read(&path)?);
            }
        }
        Ok(())
    }

    /// Takes an object away.
    pub fn remove(&self, name: &str) {
        self.shared.lock().objects.remove(name);
    }

    /// Lets the next answers to GET go wrong, one after another.
    pub fn faults(&self, faults: impl IntoIterator<Item = Fault>) {
        self.shared.lock().faults.extend(faults);
    }

    /// Lets the next listings go wrong, one after another.
    pub fn list_faults(&self, faults: impl IntoIterator<Item = Fault>) {
        self.shared.lock().list_faults.extend(faults);
    }

    /// Lets all answers go wrong, or none any more.
    pub fn always(&self, fault: Option<Fault>) {
        let mut state = self.shared.lock();
        state.always = fault;
        state.faults.clear();
    }

    /// How much later answers come.
    pub fn latency(&self, latency: Duration) {
        self.shared.lock().latency = latency;
    }

    /// How many names a listing gives at a time.
    pub fn page(&self, names: usize) {
        self.shared.lock().page = names;
    }

    /// What was asked so far.
    #[must_use]
    pub fn asked(&self) -> Asked {
        self.shared.lock().asked
    }

    /// The headers of all requests so far, a line each.
    #[must_use]
    pub fn headers(&self) -> Vec<String> {
        self.shared.lock().headers.clone()
    }
}

impl Drop for ObjectServer {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::SeqCst);
        // Wakes it up.
        let _ = TcpStream::connect(self.address);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    let mut connections: Vec<JoinHandle<()>> = Vec::new();
    for stream in listener.incoming() {
        if shared.ending.load(Ordering::SeqCst) {
            break;
        }
        let Ok(stream) = stream else { continue };
        shared.lock().asked.connections += 1;
        let shared = Arc::clone(shared);
        connections.retain(|connection| !connection.is_finished());
        connections.push(std::thread::spawn(move || {
            // A client that is gone is no failure of the server.
            let _ = serve(&shared, stream);
        }));
    }
    for connection in connections {
        let _ = connection.join();
    }
}

/// A request, as far as it matters.
struct Request {
    head: bool,
    path: String,
    query: BTreeMap<String, String>,
    range: Option<(u64, u64)>,
}

fn serve(shared: &Shared, stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(LOOK_UP))?;
    stream.set_write_timeout(Some(Duration::from_secs(5)))?;
    let mut out = stream.try_clone()?;
    let mut reader = BufReader::new(Waiting { shared, stream });
    while let Some(request) = read_request(shared, &mut reader)? {
        let latency = shared.lock().latency;
        std::thread::sleep(latency);
        if !answer(shared, &request, &mut out)? {
            break;
        }
    }
    Ok(())
}

/// A stream whose reads end with the server.
struct Waiting<'a> {
    shared: &'a Shared,
    stream: TcpStream,
}

impl Read for Waiting<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.stream.read(out) {
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    ) =>
                {
                    if self.shared.ending.load(Ordering::SeqCst) {
                        return Ok(0);
                    }
                }
                read => return read,
            }
        }
    }
}

fn read_request(shared: &Shared, reader: &mut impl BufRead) -> io::Result<Option<Request>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_ascii_whitespace();
    let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or("/"));
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decoded(name), decoded(value))
    };
    let mut request = Request {
        head: method == "HEAD",
        path: decoded(path.trim_start_matches('/')),
        query: query.split('&').filter(|text| !text.is_empty()).map(pair).collect(),
        range: None,
    };
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            return Ok(Some(request));
        }
        let line = line.trim();
        shared.lock().headers.push(line.to_owned());
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        if name.eq_ignore_ascii_case("range") {
            let range = value.trim().strip_prefix("bytes=").and_then(|text| text.split_once('-'));
            request.range = range.and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        }
    }
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        match (first, code.and_then(|two| u8::from_str_radix(two, 16).ok())) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            (b'+', _) => {
                bytes.push(b' ');
                rest = after;
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Answers a request. False if the connection is over.
fn answer(shared: &Shared, request: &Request, out: &mut TcpStream) -> io::Result<bool> {
    if request.query.get("list-type").is_some_and(|kind| kind == "2") {
        return list(shared, request, out);
    }
    let (object, fault) = {
        let mut state = shared.lock();
        match request.head {
            true => state.asked.heads += 1,
            false => state.asked.gets += 1,
        }
        let next = if request.head { None } else { state.faults.pop_front() };
        (state.objects.get(&request.path).cloned(), next.or_else(|| state.always.clone()))
    };
    match &fault {
        Some(Fault::Status(status, code)) => return refuse(*status, code, "", request.head, out),
        Some(Fault::StatusWith(status, code, header)) => {
            return refuse(*status, code, &format!("{header}\r\n"), request.head, out);
        }
        Some(Fault::Redirect(to)) => {
            return refuse(302, "", &format!("Location: {to}\r\n"), request.head, out);
        }
        Some(Fault::Garbage) => {
            out.write_all(b"\x00\xffthis is no answer\r\n\r\n\r\n")?;
            return Ok(false);
        }
        Some(Fault::Silence) => {
            while !shared.ending.load(Ordering::SeqCst) {
                std::thread::sleep(LOOK_UP);
            }
            return Ok(false);
        }
        _ => {}
    }
    let Some(Object { bytes, tag }) = object else {
        return refuse(404, "NoSuchKey", "", request.head, out);
    };
    send(shared, request, &bytes, &tag, fault.as_ref(), out)
}

fn send(
    shared: &Shared,
    request: &Request,
    bytes: &[u8],
    tag: &str,
    fault: Option<&Fault>,
    out: &mut TcpStream,
) -> io::Result<bool> {
    let size = bytes.len() as u64;
    let range = request.range.filter(|_| fault != Some(&Fault::NoRanges));
    let (mut begin, mut end) = match range {
        Some((begin, _)) if begin >= size => {
            return refuse(416, "InvalidRange", "", request.head, out);
        }
        Some((begin, last)) => (begin, size.min(last + 1)),
        None => (0, size),
    };
    if let Some(Fault::Shifted(by)) = fault {
        (begin, end) = ((begin + by).min(size), (end + by).min(size));
    }
    let body = &bytes[begin as usize..end as usize];
    let mut length = body.len() as u64;
    match fault {
        Some(Fault::TooLong(more)) => length += more,
        Some(Fault::TooShort(fewer)) => length = length.saturating_sub(*fewer),
        _ => {}
    }
    let tag = if fault == Some(&Fault::OtherTag) { "\"other\"" } else { tag };
    let mut head = match range {
        Some(_) => "HTTP/1.1 206 Partial Content\r\n".to_owned(),
        None => "HTTP/1.1 200 OK\r\n".to_owned(),
    };
    if range.is_some() && fault != Some(&Fault::NoContentRange) {
        head += &format!("Content-Range: bytes {begin}-{}/{size}\r\n", end.saturating_sub(1));
    }
    head += &format!(
        "Content-Length: {length}\r\nETag: {tag}\r\nAccept-Ranges: bytes\r\n\
         Last-Modified: Wed, 01 Jan 2025 00:00:00 GMT\r\n\r\n"
    );
    if request.head {
        out.write_all(head.as_bytes())?;
        return Ok(true);
    }
    let body = &body[..body.len().min(length as usize)];
    let count = |bytes: usize| shared.lock().asked.bytes += bytes as u64;
    match fault {
        Some(Fault::CutAfter(bytes)) => {
            out.write_all(head.as_bytes())?;
            out.write_all(&body[..body.len().min(*bytes)])?;
            count(body.len().min(*bytes));
            out.flush()?;
            Ok(false)
        }
        Some(Fault::Trickle(piece, pause)) => {
            out.write_all(head.as_bytes())?;
            for piece in body.chunks((*piece).max(1)) {
                if shared.ending.load(Ordering::SeqCst) {
                    return Ok(false);
                }
                out.write_all(piece)?;
                count(piece.len());
                std::thread::sleep(*pause);
            }
            Ok(true)
        }
        _ => {
            // One write: small objects go in one packet.
            let mut all = head.into_bytes();
            all.extend_from_slice(body);
            out.write_all(&all)?;
            count(body.len());
            Ok(!matches!(fault, Some(Fault::TooLong(_) | Fault::TooShort(_))))
        }
    }
}

fn refuse(
    status: u16,
    code: &str,
    header: &str,
    head: bool,
    out: &mut TcpStream,
) -> io::Result<bool> {
    let body = match code {
        "" => String::new(),
        code => format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code></Error>"),
    };
    let length = body.len();
    let body = if head { String::new() } else { body };
    write!(out, "HTTP/1.1 {status} No\r\nContent-Length: {length}\r\n{header}\r\n{body}")?;
    Ok(true)
}

fn list(shared: &Shared, request: &Request, out: &mut TcpStream) -> io::Result<bool> {
    let (objects, page, fault) = {
        let mut state = shared.lock();
        state.asked.lists += 1;
        (state.objects.clone(), state.page, state.list_faults.pop_front())
    };
    match fault {
        Some(Fault::Status(status, code)) => return refuse(status, code, "", false, out),
        Some(Fault::StatusWith(status, code, header)) => {
            return refuse(status, code, &format!("{header}\r\n"), false, out);
        }
        Some(Fault::Garbage) => {
            out.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n<nothing>")?;
            return Ok(true);
        }
        Some(_) => return Ok(false),
        None => {}
    }
    let bucket = format!("{}/", request.path.trim_end_matches('/'));
    let asked = |name: &str| request.query.get(name).cloned().unwrap_or_default();
    let (prefix, after) = (asked("prefix"), asked("continuation-token").max(asked("start-after")));
    let there = |name: &&String| name.starts_with(&bucket);
    if !objects.keys().any(|name| there(&name)) {
        return refuse(404, "NoSuchBucket", "", false, out);
    }
    let mut found = objects.iter().filter_map(|(name, object)| {
        let key = name.strip_prefix(&bucket)?;
        (key.starts_with(&prefix) && *key > *after).then_some((key, object))
    });
    let mut body = String::from("<?xml version=\"1.0\"?><ListBucketResult>");
    let mut last = String::new();
    for (key, object) in found.by_ref().take(page) {
        body += &format!(
            "<Contents><Key>{}</Key><LastModified>2025-01-01T00:00:00.000Z</LastModified>\
             <ETag>{}</ETag><Size>{}</Size></Contents>",
            escaped(key),
            escaped(&object.tag),
            object.bytes.len()
        );
        key.clone_into(&mut last);
    }
    if found.next().is_some() {
        body += &format!(
            "<IsTruncated>true</IsTruncated><NextContinuationToken>{}</NextContinuationToken>",
            escaped(&last)
        );
    } else {
        body += "<IsTruncated>false</IsTruncated>";
    }
    body += "</ListBucketResult>";
    write!(out, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())?;
    Ok(true)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

impl std::fmt::Debug for ObjectServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ObjectServer({})", self.address)
    }
}
