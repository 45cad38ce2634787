//! The sending end: accepts clients, and serves each on threads of its own.

use super::link::{PIECE, Pulse, Reader, Writer, interval, lock};
use super::session::{Session, Unsecured};
use super::share::Lending;
use super::socket::{Address, Listener, Socket};
use crate::bytes::malformed;
use crate::compress::{Compression, Packer, Packing};
use crate::frame::{
    HEADER, Header, Hello, Kind, Limits, VERSION, checksum, decode_credit, decode_request,
    encode_error, encode_pieces,
};
use crate::stretch::Encoded;
use crate::tls::Identity;
use crate::token::{Guard, Role, TokenError};
use feedline_core::{Buffer, Error, Result, Stretch};
use feedline_shm::Segments;
use rustls::ServerConnection;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// What a server does with a request.
pub trait Handler: Send + Sync + 'static {
    /// Sends what was asked for, in order, and returns when that was all.
    ///
    /// # Errors
    ///
    /// What the client is to see. An error of the sender is best returned as it is.
    fn serve(&self, request: &[u8], out: &mut Sender<'_>) -> Result<()>;
}

/// How a server behaves.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// How many clients may be connected; others are turned away.
    pub connections: usize,
    /// How many of them may come from one address.
    pub per_peer: usize,
    /// How many may be about to greet; of more, the oldest of the address that has most is dropped.
    pub pending: usize,
    /// How long a client may take to greet.
    pub handshake: Duration,
    /// How long a client may be silent before it is given up.
    pub timeout: Duration,
    /// How payloads are packed on TCP.
    pub packing: Packing,
    /// Whose tokens let clients in; none if anybody is served.
    pub guard: Option<Guard>,
    /// What is shown over TLS on TCP; none if everything goes in the clear.
    pub tls: Option<Identity>,
    /// Serves other hosts without tokens and TLS.
    pub insecure: bool,
    /// Memory for clients on this host; `None` if all go over sockets.
    pub shared: Option<Segments>,
    /// How large a request may be.
    pub request: usize,
    /// How large a payload may be.
    pub payload: usize,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            connections: 1024,
            per_peer: 512,
            pending: 256,
            handshake: Duration::from_secs(5),
            timeout: Duration::from_secs(10),
            packing: Packing::Auto,
            guard: None,
            tls: None,
            insecure: false,
            shared: None,
            request: 4 << 20,
            payload: Limits::default().payload,
        }
    }
}

/// Serves until it is dropped. Dropping it closes all connections and waits for what is being
/// served: a handler notices at its next send, or by [`Sender::cancelled`].
pub struct Server {
    shared: Arc<Shared>,
    listeners: Vec<(Arc<Listener>, JoinHandle<()>)>,
    address: Address,
}

struct Shared {
    handler: Box<dyn Handler>,
    options: ServerOptions,
    /// Chosen at random: by it a client knows that it met the same server again.
    instance: [u8; 16],
    /// The name of the Unix socket for clients on this host.
    local: Vec<u8>,
    stopping: AtomicBool,
    clients: Mutex<Clients>,
}

#[derive(Default)]
struct Clients {
    next: u64,
    connected: HashMap<u64, Guest>,
    /// Those that are gone, to be joined.
    gone: Vec<JoinHandle<()>>,
}

/// A connection, as all others see it.
struct Guest {
    socket: Arc<Socket>,
    stage: Stage,
    thread: Option<JoinHandle<()>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It has not greeted yet.
    Pending,
    /// It is served.
    Seated,
    /// It was told to go.
    Leaving,
}

impl Clients {
    fn at(&self, stage: Stage) -> impl Iterator<Item = (&u64, &Guest)> {
        self.connected.iter().filter(move |(_, guest)| guest.stage == stage)
    }

    /// Drops one of those who have not greeted: the oldest of the address that has most.
    fn drop_one(&mut self) {
        let mut peers: HashMap<Option<IpAddr>, (usize, u64)> = HashMap::new();
        for (number, guest) in self.at(Stage::Pending) {
            let (count, oldest) = peers.entry(guest.socket.peer).or_insert((0, *number));
            (*count, *oldest) = (*count + 1, (*oldest).min(*number));
        }
        let most = peers.into_values().max_by_key(|(count, _)| *count);
        if let Some(guest) = most.and_then(|(_, oldest)| self.connected.get_mut(&oldest)) {
            guest.socket.shut_down();
            guest.stage = Stage::Leaving;
        }
    }
}

impl Server {
    /// Listens at an address. On TCP and with shared memory, also at a Unix socket without a path,
    /// to which clients on this host move by themselves.
    ///
    /// # Errors
    ///
    /// If the address cannot be had, or other hosts could reach it and neither TLS with tokens nor
    /// `insecure` is set.
    pub fn bind(address: &Address, handler: impl Handler, options: ServerOptions) -> Result<Self> {
        let guarded = options.guard.is_some() && options.tls.is_some();
        if !address.is_local() && !guarded && !options.insecure {
            return Err(Error::Service(format!(
                "other hosts could reach {address}: set TLS and a key for tokens, or `insecure`"
            )));
        }
        let failed = |error| Error::unavailable(format!("address {address} to listen at"), error);
        let listener = Listener::bind(address).map_err(failed)?;
        let bound = listener.address().map_err(failed)?;
        let mut instance = [0; 16];
        rustix::rand::getrandom(&mut instance, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| failed(error.into()))?;
        let mut listeners = vec![(listener, false)];
        let mut local = Vec::new();
        if options.shared.is_some() && matches!(address, Address::Tcp(_)) {
            let mut name = [0; 16];
            rustix::rand::getrandom(&mut name, rustix::rand::GetRandomFlags::empty())
                .map_err(|error| failed(error.into()))?;
            local = format!("feedline-{:032x}", u128::from_le_bytes(name)).into_bytes();
            listeners.push((Listener::bind_local(&local).map_err(failed)?, true));
        }
        let shared = Arc::new(Shared {
            handler: Box::new(handler),
            options,
            instance,
            local,
            stopping: AtomicBool::new(false),
            clients: Mutex::default(),
        });
        let mut server = Self { shared, listeners: Vec::new(), address: bound };
        for (listener, local) in listeners {
            let (shared, listener) = (Arc::clone(&server.shared), Arc::new(listener));
            let accepting = Arc::clone(&listener);
            let accept = move || shared.accept(&accepting, local);
            let thread = thread::Builder::new().name("wire-accept".into()).spawn(accept);
            server.listeners.push((listener, thread.map_err(failed)?));
        }
        Ok(server)
    }

    /// Where it listens: with the port that the system chose, if it was to choose.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Number of clients that are served. Those who have not greeted yet are none.
    #[must_use]
    pub fn connections(&self) -> usize {
        lock(&self.shared.clients).at(Stage::Seated).count()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.listeners.iter().for_each(|(listener, _)| listener.shut_down());
        for (_, thread) in self.listeners.drain(..) {
            let _ = thread.join();
        }
        // Nobody comes any more; those who are here are told, then waited for.
        let threads: Vec<_> = {
            let mut clients = lock(&self.shared.clients);
            let clients = &mut *clients;
            clients.connected.values().for_each(|guest| guest.socket.shut_down());
            let connected = clients.connected.values_mut().filter_map(|guest| guest.thread.take());
            connected.chain(clients.gone.drain(..)).collect()
        };
        for thread in threads {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({}, {} clients)", self.address, self.connections())
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, listener: &Listener, local: bool) {
        while !self.stopping.load(Ordering::SeqCst) {
            let Ok(socket) = listener.accept() else {
                // Stopping, or no descriptors left: those who are here may leave.
                if !self.stopping.load(Ordering::SeqCst) {
                    thread::sleep(Duration::from_millis(10));
                }
                continue;
            };
            // Memory is shared with the same user alone, and what is said there goes in the clear.
            if !socket.local || socket.can_share() {
                self.admit(socket, local);
            }
        }
    }

    fn admit(self: &Arc<Self>, socket: Socket, local: bool) {
        let options = &self.options;
        let socket = Arc::new(socket);
        let mut clients = lock(&self.clients);
        for thread in clients.gone.drain(..) {
            let _ = thread.join();
        }
        if clients.at(Stage::Pending).count() >= options.pending.max(1) {
            clients.drop_one();
        }
        // Those who come faster than others can leave find the door closed.
        if clients.connected.len() >= options.connections + 2 * options.pending.max(1) {
            return;
        }
        let number = clients.next;
        clients.next += 1;
        let guest = Guest { socket: Arc::clone(&socket), stage: Stage::Pending, thread: None };
        clients.connected.insert(number, guest);
        let shared = Arc::clone(self);
        let serve = move || {
            // Whatever ends a connection, the client learns by its end; others are not concerned.
            if let Err(error) = shared.connection(&socket, number, local) {
                let peer = socket.peer;
                tracing::debug!(connection = number, ?peer, %error, "a connection ended");
            }
            socket.shut_down();
            let mut clients = lock(&shared.clients);
            if let Some(Guest { thread: Some(thread), .. }) = clients.connected.remove(&number) {
                clients.gone.push(thread);
            }
        };
        match thread::Builder::new().name("wire-read".into()).spawn(serve) {
            Ok(thread) => {
                // The thread waits for the lock before it looks for itself here.
                if let Some(guest) = clients.connected.get_mut(&number) {
                    guest.thread = Some(thread);
                }
            }
            Err(_) => drop(clients.connected.remove(&number)),
        }
    }

    /// Gives a client that has greeted its seat.
    fn seat(&self, number: u64) -> Result<()> {
        let mut clients = lock(&self.clients);
        let (mut all, mut alike) = (0, 0);
        let peer = clients.connected.get(&number).and_then(|guest| guest.socket.peer);
        for (_, guest) in clients.at(Stage::Seated) {
            all += 1;
            alike += usize::from(peer.is_some() && guest.socket.peer == peer);
        }
        let (most, most_alike) = (self.options.connections, self.options.per_peer);
        let full = match peer {
            _ if all >= most => format!("{most} clients are connected, and no more are allowed"),
            Some(peer) if alike >= most_alike => format!(
                "{most_alike} clients are connected from {peer}, and no more of one address are allowed"
            ),
            _ => {
                if let Some(guest) = clients.connected.get_mut(&number) {
                    guest.stage = Stage::Seated;
                }
                return Ok(());
            }
        };
        let full = io::Error::new(io::ErrorKind::ConnectionRefused, full);
        Err(Error::unavailable("a connection", full))
    }

    /// Agrees on TLS, where that is spoken.
    fn secure(&self, socket: &Arc<Socket>, deadline: Instant) -> io::Result<()> {
        let Some(identity) = self.options.tls.as_ref().filter(|_| !socket.local) else {
            return Ok(());
        };
        let tls = ServerConnection::new(identity.config()).map_err(io::Error::other)?;
        match Session::accept(socket, tls, deadline) {
            Ok(session) => {
                socket.secure(session);
                Ok(())
            }
            Err(Unsecured::Failed(error)) => Err(error),
            Err(Unsecured::Plain(_)) => {
                // It would not understand a word of TLS.
                let message = "this worker speaks TLS, and was spoken to without: connect with the \
                               authority of its certificate";
                let error = Error::Service(message.to_owned());
                let _ = Writer::new(Arc::clone(socket)).say(Kind::Error, 0, &encode_error(&error));
                Err(malformed(message))
            }
        }
    }

    /// One client, from its greeting to its end.
    fn connection(&self, socket: &Arc<Socket>, number: u64, local: bool) -> io::Result<()> {
        let options = &self.options;
        let timeout = options.timeout;
        let deadline = Instant::now() + options.handshake;
        socket.set_write_timeout(options.handshake)?;
        self.secure(socket, deadline)?;
        let mut reader = Reader::new(Arc::clone(socket), deadline);
        let mut writer = Writer::new(Arc::clone(socket));
        let greeted = self.greet(&mut reader, local);
        let hello = match greeted.and_then(|hello| self.seat(number).map(|()| hello)) {
            Ok(hello) => hello,
            Err(error) => {
                // A peer that speaks our language is told why; others would not understand.
                let _ = writer.say(Kind::Error, 0, &encode_error(&error));
                return Err(io::Error::other(error));
            }
        };
        let sharing = options.shared.as_ref().filter(|_| socket.can_share());
        let most = usize::try_from(hello.shared_memory).unwrap_or(usize::MAX);
        let lending = sharing.filter(|_| most > 0);
        let answer = Hello {
            oldest: VERSION,
            newest: VERSION,
            shared_memory: u64::from(lending.is_some()),
            timeout: timeout.as_millis() as u64,
            instance: self.instance,
            local: self.local.clone(),
            ..Hello::default()
        };
        writer.say(Kind::Hello, 0, &answer.encode())?;
        socket.set_write_timeout(timeout)?;
        let writer = Arc::new(Mutex::new(writer));
        let pulse = Pulse {
            writer: Arc::clone(&writer),
            interval: interval(Duration::from_millis(hello.timeout)),
            beat: Box::new(|writer| writer.say(Kind::Heartbeat, 0, &[])),
        };
        let limits = Limits { description: options.request, payload: 0, ..Limits::greeting() };
        reader.converse(limits, timeout, pulse)?;
        let packing = if socket.local { Packing::None } else { options.packing };
        let connection = Connection {
            socket,
            writer: &writer,
            payload: options.payload,
            guard: options.guard.as_ref(),
            flow: Mutex::default(),
            changed: Condvar::new(),
        };
        let tools = Tools {
            packer: Packer::new(packing, &hello.compressions),
            lending: lending.map(|segments| Lending::new(segments.clone(), most)),
        };
        thread::scope(|scope| {
            let serve = || connection.serve(&*self.handler, tools);
            let serving = thread::Builder::new().name("wire-serve".into());
            let serving = serving.spawn_scoped(scope, serve)?;
            let ended = connection.listen(&mut reader);
            socket.shut_down();
            lock(&connection.flow).closed = true;
            connection.changed.notify_all();
            // A panic of a handler was caught; none is left that would matter here.
            let _ = serving.join();
            // The client may read on for as long as it lives: nobody will tell us when it is done.
            if let Some(segments) = lending {
                let lent = std::mem::take(&mut lock(&connection.flow).lent);
                lent.values().flatten().for_each(|buffer| segments.retire(buffer));
            }
            ended
        })
    }

    fn greet(&self, reader: &mut Reader, local: bool) -> Result<Hello> {
        let failed = |error| Error::unavailable("a connection", error);
        let mut description = Vec::new();
        let header = reader.begin().and_then(|()| reader.next(&mut description)).map_err(failed)?;
        if header.kind != Kind::Hello {
            let other = format!("a {:?} frame instead of a greeting", header.kind);
            return Err(failed(malformed(other)));
        }
        // Nothing else of it is looked at before its token.
        let token = Hello::token(&description).map_err(failed)?;
        admitted(self.options.guard.as_ref(), token)?;
        let hello = Hello::decode(&description).map_err(failed)?;
        let ours = Hello { oldest: VERSION, newest: VERSION, ..Hello::default() };
        if hello.common_version(&ours).is_none() {
            let (oldest, newest) = (hello.oldest, hello.newest);
            return Err(failed(malformed(format!(
                "the client speaks versions {oldest} to {newest}, the server {VERSION}"
            ))));
        }
        if local && hello.instance != self.instance {
            return Err(Error::Service("the client looks for another server".into()));
        }
        Ok(hello)
    }
}

/// Whether a token lets a client in.
///
/// # Errors
///
/// What the client is to see. One that has expired may be renewed; all others stay wrong.
fn admitted(guard: Option<&Guard>, token: &[u8]) -> Result<()> {
    let Some(guard) = guard else { return Ok(()) };
    if token.is_empty() {
        return Err(Error::Service("a token is needed, and the client has none".into()));
    }
    match std::str::from_utf8(token)
        .map_err(|_| TokenError::Invalid)
        .and_then(|text| guard.check(text))
    {
        Ok(token) if token.role == Role::Client => Ok(()),
        Ok(token) => Err(Error::Service(format!(
            "a token for the role {} does not allow reading batches: one for the role client does",
            token.role
        ))),
        Err(error @ TokenError::Expired) => {
            let error = io::Error::new(io::ErrorKind::PermissionDenied, error);
            Err(Error::unavailable("a connection", error))
        }
        Err(error) => Err(Error::Service(error.to_string())),
    }
}

/// What the two threads of a connection share.
struct Connection<'a> {
    socket: &'a Socket,
    writer: &'a Mutex<Writer>,
    /// How large a payload may be.
    payload: usize,
    guard: Option<&'a Guard>,
    flow: Mutex<Flow>,
    changed: Condvar,
}

#[derive(Default)]
struct Flow {
    /// The latest request's number; one that is not served yet.
    current: u32,
    waiting: Option<Vec<u8>>,
    /// How many bytes may be under way, and how many are.
    window: u64,
    under_way: u64,
    /// What lies in shared memory and is still read, by frame.
    lent: HashMap<u64, Vec<Buffer>>,
    closed: bool,
}

/// What serving takes, besides the connection.
struct Tools {
    packer: Packer,
    lending: Option<Lending>,
}

impl Connection<'_> {
    /// Takes requests and credit until the client is gone.
    fn listen(&self, reader: &mut Reader) -> io::Result<()> {
        let mut description = Vec::new();
        loop {
            let header = reader.next(&mut description)?;
            match header.kind {
                Kind::Request => {
                    let (window, token, request) = decode_request(&description)?;
                    // A connection lasts no longer than tokens do.
                    if let Err(error) = admitted(self.guard, token) {
                        let told = encode_error(&error);
                        lock(self.writer).say(Kind::Error, header.request, &told)?;
                        return Err(io::Error::other(error));
                    }
                    let mut flow = lock(&self.flow);
                    (flow.current, flow.waiting) = (header.request, Some(request.to_vec()));
                    (flow.window, flow.under_way) = (window, 0);
                }
                Kind::Credit => {
                    let (bytes, released) = decode_credit(&description)?;
                    let mut gone = Vec::new();
                    let mut flow = lock(&self.flow);
                    if header.request == flow.current {
                        let left = flow.under_way.checked_sub(bytes);
                        let more = || malformed("credit for more than was sent");
                        flow.under_way = left.ok_or_else(more)?;
                    }
                    for frame in released {
                        let lent = flow.lent.remove(&frame);
                        let never = || malformed(format!("frame {frame} was not lent"));
                        gone.push(lent.ok_or_else(never)?);
                    }
                    drop(flow);
                }
                Kind::Heartbeat => continue,
                other => return Err(malformed(format!("a {other:?} frame from a client"))),
            }
            self.changed.notify_all();
        }
    }

    /// Serves request after request.
    fn serve(&self, handler: &dyn Handler, mut tools: Tools) {
        loop {
            let (number, request) = {
                let mut flow = lock(&self.flow);
                loop {
                    if flow.closed {
                        return;
                    }
                    if let Some(request) = flow.waiting.take() {
                        break (flow.current, request);
                    }
                    flow = self.changed.wait(flow).unwrap_or_else(|held| held.into_inner());
                }
            };
            let mut sender = Sender { connection: self, tools: &mut tools, request: number };
            let served = catch_unwind(AssertUnwindSafe(|| handler.serve(&request, &mut sender)));
            let served = served.unwrap_or_else(|panic| {
                let words = panic.downcast_ref::<String>().map(String::as_str);
                let words = words.or_else(|| panic.downcast_ref::<&str>().copied());
                Err(Error::Internal(format!("serving a request: {}", words.unwrap_or("panic"))))
            });
            let mut writer = lock(self.writer);
            let told = match served {
                Ok(()) => writer.say(Kind::End, number, &[]),
                Err(error) => writer.say(Kind::Error, number, &encode_error(&error)),
            };
            let told = told.and_then(|()| match &mut tools.lending {
                Some(lending) => lending.withdraw(&mut writer),
                None => Ok(()),
            });
            if told.is_err() {
                self.socket.shut_down();
                return;
            }
        }
    }
}

/// Sends stretches to one client, for one request.
pub struct Sender<'a> {
    connection: &'a Connection<'a>,
    tools: &'a mut Tools,
    request: u32,
}

impl Sender<'_> {
    /// Sends a stretch as soon as the client's credit allows.
    ///
    /// # Errors
    ///
    /// If the client is gone, or has asked for something else since.
    pub fn send(&mut self, stretch: &Stretch) -> Result<()> {
        self.send_soon(stretch)?;
        self.flush()
    }

    /// As [`Sender::send`], but a small stretch may be held back to go out with those after it: until
    /// [`Sender::flush`], which is due before anything is waited for, or the end.
    ///
    /// # Errors
    ///
    /// As [`Sender::send`].
    pub fn send_soon(&mut self, stretch: &Stretch) -> Result<()> {
        let encoded = Encoded::new(stretch);
        let most = self.connection.payload;
        if encoded.length > most {
            let message = format!("a payload of {} bytes; {most} are allowed", encoded.length);
            let error = io::Error::new(io::ErrorKind::InvalidInput, message);
            return Err(Error::unavailable(format!("step {}", stretch.step), error));
        }
        let header = Header {
            sent: encoded.length,
            plain: encoded.length,
            ..Header::new(Kind::Stretch, self.request, &encoded.description)
        };
        self.wait_for_credit(header.cost())?;
        let sent = match self.share(&header, &encoded) {
            Ok(false) => self.copy(header, &encoded),
            shared => shared.map(drop),
        };
        sent.map_err(|error| Error::unavailable("the client", error))
    }

    /// Sends what was held back.
    ///
    /// # Errors
    ///
    /// If the client is gone.
    pub fn flush(&mut self) -> Result<()> {
        let sent = lock(self.connection.writer).flush();
        sent.map_err(|error| Error::unavailable("the client", error))
    }

    /// Whether nobody waits for the rest any more.
    #[must_use]
    pub fn cancelled(&self) -> bool {
        let flow = lock(&self.connection.flow);
        flow.closed || flow.current != self.request
    }

    fn wait_for_credit(&mut self, cost: u64) -> Result<()> {
        let connection = self.connection;
        let mut flow = lock(&connection.flow);
        let mut flushed = false;
        loop {
            if flow.closed {
                let gone = io::Error::from(io::ErrorKind::ConnectionReset);
                return Err(Error::unavailable("the client", gone));
            }
            if flow.current != self.request {
                return Err(Error::Cancelled);
            }
            let after = flow.under_way.saturating_add(cost);
            if flow.under_way == 0 || after <= flow.window {
                flow.under_way = after;
                return Ok(());
            }
            if !flushed {
                // Credit comes back for what has arrived.
                drop(flow);
                self.flush()?;
                (flow, flushed) = (lock(&connection.flow), true);
                continue;
            }
            flow = connection.changed.wait(flow).unwrap_or_else(|held| held.into_inner());
        }
    }

    /// Sends a payload through shared memory, if that is possible.
    fn share(&mut self, header: &Header, encoded: &Encoded<'_>) -> io::Result<bool> {
        let Some(lending) = &mut self.tools.lending else { return Ok(false) };
        let Some(placed) = lending.place(encoded) else { return Ok(false) };
        let mut writer = lock(self.connection.writer);
        if !lending.announce(&placed, &mut writer)? {
            return Ok(false);
        }
        let pieces = encode_pieces(&placed.pieces);
        let here = placed.here.iter().map(|part| part.len()).sum::<usize>();
        let header = Header { shared: true, sent: pieces.len() + here, ..header.clone() };
        let parts: Vec<_> = [&pieces[..]].into_iter().chain(placed.here).collect();
        // First the note, then the frame: the answer may be quick.
        lock(&self.connection.flow).lent.insert(writer.next_number(), placed.keep);
        writer.send_soon(header, &encoded.description, &parts)?;
        Ok(true)
    }

    /// Sends a payload over the socket.
    fn copy(&mut self, mut header: Header, encoded: &Encoded<'_>) -> io::Result<()> {
        // In this machine's memory nothing is damaged, and TLS sees to it itself.
        let safe = self.connection.socket.local || self.connection.socket.is_secure();
        let packer = &mut self.tools.packer;
        let packed = packer.pack(&encoded.parts, encoded.length)?;
        let packed = packed.map(|(way, bytes)| (way, [bytes]));
        let (way, parts) = match &packed {
            Some((way, parts)) => (*way, &parts[..]),
            None => (Compression::None, &encoded.parts[..]),
        };
        (header.compression, header.sent) = (way, parts.iter().map(|part| part.len()).sum());
        let bytes = HEADER + header.description + header.sent;
        let large = way == Compression::None && header.sent > PIECE;
        if !safe && !large {
            header.payload_checksum = Some(checksum(parts.iter().copied()));
        }
        let mut writer = lock(self.connection.writer);
        let started = Instant::now();
        match !safe && large {
            true => writer.send_summed(header, &encoded.description, parts)?,
            false => writer.send_soon(header, &encoded.description, parts)?,
        }
        drop(writer);
        packer.wrote(bytes, started.elapsed());
        Ok(())
    }
}

impl fmt::Debug for Sender<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sender(request {})", self.request)
    }
}
