//! The receiving end: asks, and takes what comes.

use super::link::{PIECE, Pulse, Reader, Writer, interval, lock};
use super::session::{Session, Unsecured, plain_answer};
use super::share::Borrowing;
use super::socket::{Address, Socket};
use crate::bytes::malformed;
use crate::compress::{Compression, Unpacker};
use crate::frame::{
    Header, Hello, Kind, Limits, TRAILER, VERSION, decode_error, encode_credit, encode_request,
};
use crate::secret::Secret;
use crate::stretch::Decoder;
use crate::tls::Trust;
use crate::token::TokenFile;
use feedline_core::{Buffer, Error, Pool, Result, Stretch};
use feedline_shm::View;
use rustls::ClientConnection;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long a client that waits keeps small credit back, in the hope of more to give at once.
const THRIFT: Duration = Duration::from_millis(1);

/// How a client behaves.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// How long connecting and greeting may take.
    pub handshake: Duration,
    /// How long the server may be silent before it is given up.
    pub timeout: Duration,
    /// How many bytes may be under way or wait here; one frame is always admitted.
    pub credit: u64,
    /// What the server wants to see.
    pub token: Option<TokenFile>,
    /// Whom to trust; with it, everything on TCP goes over TLS.
    pub tls: Option<Trust>,
    /// Lets a token be sent to another host without TLS.
    pub insecure: bool,
    /// How many bytes of a server's shared memory to map on the same host; 0 for none.
    pub shared_memory: usize,
    /// How shared memory is mapped.
    pub view: View,
    /// Which packed payloads to take.
    pub compressions: Vec<Compression>,
    /// How large frames may be.
    pub limits: Limits,
    /// Where payloads are read into.
    pub pool: Pool,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(5),
            timeout: Duration::from_secs(10),
            credit: 64 << 20,
            token: None,
            tls: None,
            insecure: false,
            shared_memory: 4 << 30,
            view: View::default(),
            compressions: vec![Compression::Lz4, Compression::Zstd],
            limits: Limits::default(),
            pool: Pool::new(128 << 20),
        }
    }
}

/// How payloads come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Over TCP.
    Tcp,
    /// Over TCP, encrypted.
    Tls,
    /// Over a Unix socket.
    Unix,
    /// Through shared memory, and over a Unix socket when there is none left.
    Shared,
}

/// What [`Client::next_within`] found.
#[derive(Debug)]
pub enum Next {
    /// The next stretch.
    Stretch(Stretch),
    /// All that was asked for has come.
    End,
    /// Nothing yet.
    NotYet,
}

/// One connection to a server, on which one thing at a time is asked for.
pub struct Client {
    shared: Arc<Shared>,
    reading: Option<JoinHandle<()>>,
    address: String,
    way: Way,
    token: Option<TokenFile>,
    credit: u64,
    request: u32,
    /// Credit that was not given back yet.
    owed: u64,
    /// What was taken over from the queue.
    taken: VecDeque<(Item, u64)>,
    ended: bool,
}

struct Shared {
    socket: Arc<Socket>,
    writer: Arc<Mutex<Writer>>,
    queue: Mutex<Queue>,
    arrived: Condvar,
    /// Frames in shared memory that are read no more.
    released: Arc<Mutex<Vec<u64>>>,
}

#[derive(Default)]
struct Queue {
    request: u32,
    items: VecDeque<(Item, u64)>,
    /// Bytes that came and were not given back, and how many may be.
    here: u64,
    window: u64,
    lost: Option<Arc<io::Error>>,
}

enum Item {
    Stretch(Stretch),
    End,
    Failed(Error),
}

impl Client {
    /// Connects and greets; on the server's host, moves to where memory can be shared.
    ///
    /// # Errors
    ///
    /// If the server is not there, turns the client away, is not to be trusted, or would be shown a
    /// token that others could read on its way.
    pub fn connect(address: &Address, options: ClientOptions) -> Result<Self> {
        let name = address.to_string();
        let failed = |error| Error::unavailable(format!("worker {name}"), error);
        let open = options.token.is_some() && options.tls.is_none() && !options.insecure;
        if open && !address.is_local() {
            return Err(Error::Service(format!(
                "a token would travel to worker {address} in the clear: use TLS"
            )));
        }
        let deadline = Instant::now() + options.handshake;
        let socket = Socket::connect(address, options.handshake).map_err(failed)?;
        if let (Some(trust), Some(host)) = (&options.tls, address.host()) {
            secure(&socket, trust, host, deadline).map_err(failed)?;
        }
        let mut greeted = Greeted::new(socket, [0; 16], &options)?.map_err(failed)?;
        if !greeted.socket.local && !greeted.hello.local.is_empty() && options.shared_memory > 0 {
            // Any trouble on the way only means that the server is elsewhere, or somebody else's.
            if let Some(nearer) = greeted.nearer(&options) {
                greeted = nearer;
            }
        }
        let Greeted { socket, mut reader, writer, hello } = greeted;
        let way = match (socket.local, hello.shared_memory) {
            (false, _) if socket.is_secure() => Way::Tls,
            (false, _) => Way::Tcp,
            (true, 0) => Way::Unix,
            (true, _) => Way::Shared,
        };
        socket.set_write_timeout(options.timeout).map_err(failed)?;
        let shared = Arc::new(Shared {
            socket,
            writer: Arc::new(Mutex::new(writer)),
            queue: Mutex::default(),
            arrived: Condvar::new(),
            released: Arc::default(),
        });
        let released = Arc::clone(&shared.released);
        let pulse = Pulse {
            writer: Arc::clone(&shared.writer),
            interval: interval(Duration::from_millis(hello.timeout)),
            beat: Box::new(move |writer| {
                let released = std::mem::take(&mut *lock(&released));
                match &released[..] {
                    [] => writer.say(Kind::Heartbeat, 0, &[]),
                    some => writer.say(Kind::Credit, 0, &encode_credit(0, some)),
                }
            }),
        };
        reader.converse(options.limits.clone(), options.timeout, pulse).map_err(failed)?;
        let receiving = Receiving {
            shared: Arc::clone(&shared),
            pool: options.pool,
            decoder: Decoder::new(options.limits),
            unpacker: Unpacker::default(),
            packed: Vec::new(),
            borrowing: (way == Way::Shared).then(|| {
                let released = Arc::clone(&shared.released);
                Borrowing::new(options.view, options.shared_memory, released)
            }),
        };
        let reading = thread::Builder::new().name("wire-receive".into());
        let reading = reading.spawn(move || receiving.run(reader)).map_err(failed)?;
        Ok(Self {
            shared,
            reading: Some(reading),
            address: name,
            way,
            token: options.token,
            credit: options.credit,
            request: 0,
            owed: 0,
            taken: VecDeque::new(),
            ended: true,
        })
    }

    /// How payloads come.
    #[must_use]
    pub fn way(&self) -> Way {
        self.way
    }

    /// Whether the connection still stands: after an error, whether it was only the request's.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        lock(&self.shared.queue).lost.is_none()
    }

    /// Whether the next stretch can be had without waiting or locking.
    #[must_use]
    pub fn is_more_here(&self) -> bool {
        !self.taken.is_empty()
    }

    /// Asks for something. What was asked before and has not come yet will not come.
    ///
    /// # Errors
    ///
    /// If the connection is gone.
    pub fn request(&mut self, request: &[u8]) -> Result<()> {
        self.request = self.request.wrapping_add(1);
        (self.owed, self.ended) = (0, false);
        self.taken.clear();
        {
            let mut queue = lock(&self.shared.queue);
            queue.items.clear();
            (queue.request, queue.here, queue.window) = (self.request, 0, self.credit);
        }
        let token = shown(self.token.as_ref());
        let description = encode_request(self.credit, token.expose(), request);
        let said = lock(&self.shared.writer).say(Kind::Request, self.request, &description);
        said.map_err(|error| self.lost(error))
    }

    /// The next stretch of what was asked for; `None` when that was all.
    ///
    /// # Errors
    ///
    /// If the server failed to make it, or is gone.
    #[expect(
        clippy::should_implement_trait,
        reason = "after an error there may be another request"
    )]
    pub fn next(&mut self) -> Result<Option<Stretch>> {
        loop {
            match self.next_within(Duration::from_secs(3600))? {
                Next::Stretch(stretch) => return Ok(Some(stretch)),
                Next::End => return Ok(None),
                Next::NotYet => {}
            }
        }
    }

    /// The next stretch, if it comes within this time.
    ///
    /// # Errors
    ///
    /// If the server failed to make it, or is gone.
    pub fn next_within(&mut self, time: Duration) -> Result<Next> {
        if self.ended {
            return Ok(Next::End);
        }
        if self.taken.is_empty() && !self.wait(time)? {
            return Ok(Next::NotYet);
        }
        let Some((item, cost)) = self.taken.pop_front() else { return Ok(Next::NotYet) };
        self.owed += cost;
        if self.owed >= self.credit / 4 {
            self.give_back();
        }
        match item {
            Item::Stretch(stretch) => Ok(Next::Stretch(stretch)),
            Item::End => {
                self.ended = true;
                Ok(Next::End)
            }
            Item::Failed(error) => {
                self.ended = true;
                Err(error)
            }
        }
    }

    /// Waits until something is here; whether something is.
    fn wait(&mut self, time: Duration) -> Result<bool> {
        let deadline = Instant::now() + time;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let pause = if self.owed > 0 { left.min(THRIFT) } else { left };
            let queue = lock(&self.shared.queue);
            let empty = |queue: &mut Queue| queue.items.is_empty() && queue.lost.is_none();
            let waited = self.shared.arrived.wait_timeout_while(queue, pause, empty);
            let (mut queue, _) = waited.unwrap_or_else(|held| held.into_inner());
            std::mem::swap(&mut queue.items, &mut self.taken);
            let lost = queue.lost.clone();
            drop(queue);
            if !self.taken.is_empty() {
                return Ok(true);
            }
            if let Some(error) = lost {
                self.ended = true;
                return Err(self.lost(io::Error::new(error.kind(), error.to_string())));
            }
            // The server may be waiting for what is owed.
            self.give_back();
            if left <= pause {
                return Ok(false);
            }
        }
    }

    fn give_back(&mut self) {
        let released = std::mem::take(&mut *lock(&self.shared.released));
        let owed = std::mem::take(&mut self.owed);
        if owed == 0 && released.is_empty() {
            return;
        }
        let mut queue = lock(&self.shared.queue);
        queue.here = queue.here.saturating_sub(owed);
        drop(queue);
        let description = encode_credit(owed, &released);
        // If it cannot be said, the connection is gone, and the reader says why in its turn.
        let _ = lock(&self.shared.writer).say(Kind::Credit, self.request, &description);
    }

    fn lost(&self, error: io::Error) -> Error {
        Error::unavailable(format!("worker {}", self.address), error)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.shared.socket.shut_down();
        if let Some(reading) = self.reading.take() {
            let _ = reading.join();
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({} by {:?})", self.address, self.way)
    }
}

/// What the token's file says now.
fn shown(token: Option<&TokenFile>) -> Secret<Vec<u8>> {
    let text = |token: &TokenFile| token.get().expose().clone().into_bytes();
    Secret::new(token.map(text).unwrap_or_default())
}

/// Agrees with a server on TLS.
fn secure(socket: &Socket, trust: &Trust, host: &str, deadline: Instant) -> io::Result<()> {
    let wrong = |message| io::Error::new(io::ErrorKind::InvalidInput, message);
    let name = trust.name_of(host).map_err(wrong)?;
    let tls = ClientConnection::new(trust.config(), name).map_err(io::Error::other)?;
    socket.set_write_timeout(deadline.saturating_duration_since(Instant::now()))?;
    match Session::connect(socket, tls, deadline) {
        Ok(session) => {
            socket.secure(session);
            Ok(())
        }
        Err(Unsecured::Failed(error)) => Err(error),
        Err(Unsecured::Plain(came)) => Err(plain_answer(socket, came, deadline)),
    }
}

/// A connection on which both sides have greeted.
struct Greeted {
    socket: Arc<Socket>,
    reader: Reader,
    writer: Writer,
    hello: Hello,
}

impl Greeted {
    /// Greets. The outer error is the server's, the inner one the connection's.
    fn new(
        socket: Socket,
        instance: [u8; 16],
        options: &ClientOptions,
    ) -> Result<io::Result<Self>> {
        let mut said = None;
        let greeted = Self::greet(socket, instance, options, &mut said);
        match said {
            Some(error) => Err(error),
            None => Ok(greeted),
        }
    }

    fn greet(
        socket: Socket,
        instance: [u8; 16],
        options: &ClientOptions,
        said: &mut Option<Error>,
    ) -> io::Result<Self> {
        let socket = Arc::new(socket);
        let mut writer = Writer::new(Arc::clone(&socket));
        let deadline = Instant::now() + options.handshake;
        let mut reader = Reader::new(Arc::clone(&socket), deadline);
        let hello = Hello {
            oldest: VERSION,
            newest: VERSION,
            token: shown(options.token.as_ref()),
            shared_memory: if socket.can_share() { options.shared_memory as u64 } else { 0 },
            compressions: options.compressions.clone(),
            timeout: options.timeout.as_millis() as u64,
            instance,
            local: Vec::new(),
        };
        socket.set_write_timeout(options.handshake)?;
        let greeted = writer.say(Kind::Hello, 0, &hello.encode());
        reader.begin()?;
        let mut description = Vec::new();
        // If the greeting did not go out, what the server said instead is the better message.
        let header = reader.next(&mut description).or_else(|error| greeted.and(Err(error)))?;
        match header.kind {
            Kind::Hello => {}
            Kind::Error => {
                *said = Some(decode_error(&description)?);
                return Err(malformed("turned away"));
            }
            other => return Err(malformed(format!("a {other:?} frame instead of a greeting"))),
        }
        let hello = Hello::decode(&description)?;
        Ok(Self { socket, reader, writer, hello })
    }

    /// The same server, by a Unix socket.
    fn nearer(&self, options: &ClientOptions) -> Option<Self> {
        let socket = Socket::connect_local(&self.hello.local).ok()?;
        // Our token is for nobody else.
        if !socket.can_share() {
            return None;
        }
        let greeted = Self::new(socket, self.hello.instance, options).ok()?.ok()?;
        (greeted.hello.instance == self.hello.instance).then_some(greeted)
    }
}

/// What the reading thread has.
struct Receiving {
    shared: Arc<Shared>,
    pool: Pool,
    decoder: Decoder,
    unpacker: Unpacker,
    packed: Vec<u8>,
    borrowing: Option<Borrowing>,
}

impl Receiving {
    fn run(mut self, mut reader: Reader) {
        let mut description = Vec::new();
        let error = loop {
            if let Err(error) = self.frame(&mut reader, &mut description) {
                break error;
            }
        };
        self.shared.socket.shut_down();
        lock(&self.shared.queue).lost = Some(Arc::new(error));
        self.shared.arrived.notify_all();
    }

    fn frame(&mut self, reader: &mut Reader, description: &mut Vec<u8>) -> io::Result<()> {
        let header = reader.next(description)?;
        let item = match header.kind {
            Kind::Stretch => {
                self.admit(&header)?;
                let payload = self.payload(&header, reader)?;
                Item::Stretch(self.decoder.decode(description, &payload)?)
            }
            Kind::End => Item::End,
            Kind::Error => Item::Failed(decode_error(description)?),
            Kind::Heartbeat => return Ok(()),
            Kind::Segment => {
                let Some(borrowing) = &mut self.borrowing else {
                    return Err(malformed("a segment where memory is not shared"));
                };
                return borrowing.segment(description, reader);
            }
            other => return Err(malformed(format!("a {other:?} frame from a server"))),
        };
        let cost = if header.kind == Kind::Stretch { header.cost() } else { 0 };
        let mut queue = lock(&self.shared.queue);
        // What was asked for before is not wanted any more.
        if queue.request != header.request {
            return Ok(());
        }
        queue.items.push_back((item, cost));
        let first = queue.items.len() == 1;
        drop(queue);
        if first {
            self.shared.arrived.notify_one();
        }
        Ok(())
    }

    /// Counts a frame; a server that sends more than it was given credit for is cut off.
    fn admit(&self, header: &Header) -> io::Result<()> {
        let mut queue = lock(&self.shared.queue);
        if queue.request != header.request {
            return Ok(());
        }
        let after = queue.here.saturating_add(header.cost());
        if queue.here > 0 && after > queue.window {
            let (window, here) = (queue.window, queue.here);
            return Err(malformed(format!(
                "the server sent {} bytes while {here} of {window} were under way",
                header.cost()
            )));
        }
        queue.here = after;
        Ok(())
    }

    fn payload(&mut self, header: &Header, reader: &mut Reader) -> io::Result<Vec<Buffer>> {
        if header.shared {
            let Some(borrowing) = &mut self.borrowing else {
                return Err(malformed("a payload in shared memory where none is shared"));
            };
            return borrowing.payload(header, reader, &self.pool);
        }
        let mut buffer = self.pool.take(header.plain).map_err(io::Error::other)?;
        if header.compression == Compression::None && buffer.len() <= PIECE && !header.trailed {
            reader.exact(&mut buffer)?;
            header.check_payload(&buffer)?;
        } else if header.compression == Compression::None {
            // Piece by piece: what was just read is still in the cache.
            let mut checking = header.checking();
            for piece in buffer.chunks_mut(PIECE) {
                reader.exact(piece)?;
                checking.update(piece);
            }
            if header.trailed {
                let mut trailer = [0; TRAILER];
                reader.exact(&mut trailer)?;
                checking.expect(trailer);
            }
            checking.finish()?;
        } else {
            self.packed.resize(header.sent, 0);
            reader.exact(&mut self.packed)?;
            header.check_payload(&self.packed)?;
            self.unpacker.unpack(header.compression, &self.packed, &mut buffer)?;
        }
        Ok(vec![buffer.freeze()])
    }
}
