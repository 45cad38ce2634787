//! TLS on a connection whose two directions belong to two threads.
//!
//! ```text
//!  reading thread: socket ──► bytes as they came ──► rustls ──► plain bytes
//!  writing thread: plain bytes ──► rustls ──► encrypted ──► socket
//! ```
//!
//! rustls is locked only while it computes, never while a socket is waited for, so neither direction
//! can hold up the other. The reading thread never writes: what rustls wants said in between goes out
//! with whatever is written next.

use super::link::lock;
use super::socket::Socket;
use crate::bytes::malformed;
use crate::frame::{HEADER, Header, Kind, Limits, MAGIC, decode_error};
use rustls::{AlertDescription, ClientConnection, Connection, Error, ServerConnection};
use std::io::{self, IoSlice, Read, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How much is read from a socket at once.
const AT_ONCE: usize = 64 << 10;

/// How much is encrypted before it is sent.
const TOGETHER: usize = 256 << 10;

/// How long a peer that is turned away may take to hear why.
const FAREWELL: Duration = Duration::from_millis(100);

/// One connection's TLS.
pub(super) struct Session {
    tls: Mutex<Connection>,
    incoming: Mutex<Incoming>,
    /// What goes out next; locked while it does.
    outgoing: Mutex<Vec<u8>>,
}

/// What came and was not looked at yet.
struct Incoming {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

/// Why there is no TLS on a connection.
pub(super) enum Unsecured {
    /// The peer speaks plainly; what came from it so far.
    Plain(Vec<u8>),
    /// Anything else.
    Failed(io::Error),
}

impl From<io::Error> for Unsecured {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

impl Session {
    /// Agrees with a client, by the deadline.
    pub(super) fn accept(
        socket: &Socket,
        tls: ServerConnection,
        deadline: Instant,
    ) -> Result<Self, Unsecured> {
        Self::agree(socket, Connection::Server(tls), deadline)
    }

    /// Agrees with a server, by the deadline.
    pub(super) fn connect(
        socket: &Socket,
        tls: ClientConnection,
        deadline: Instant,
    ) -> Result<Self, Unsecured> {
        Self::agree(socket, Connection::Client(tls), deadline)
    }

    fn agree(socket: &Socket, mut tls: Connection, deadline: Instant) -> Result<Self, Unsecured> {
        tls.set_buffer_limit(Some(TOGETHER));
        let bytes = vec![0; AT_ONCE].into_boxed_slice();
        let mut incoming = Incoming { bytes, start: 0, end: 0 };
        let mut first = true;
        let mut out = Vec::new();
        loop {
            take_encrypted(&mut tls, &mut out)?;
            socket.write_plain(&mut [IoSlice::new(&out)])?;
            if !tls.is_handshaking() {
                let (tls, incoming) = (Mutex::new(tls), Mutex::new(incoming));
                return Ok(Self { tls, incoming, outgoing: Mutex::new(out) });
            }
            if incoming.start == incoming.end {
                incoming.receive_by(socket, deadline)?;
                let came = &incoming.bytes[..incoming.end];
                let plain = came.len().min(MAGIC.len());
                if std::mem::take(&mut first) && came[..plain] == MAGIC[..plain] {
                    return Err(Unsecured::Plain(came.to_vec()));
                }
            }
            if let Err(error) = incoming.feed(&mut tls) {
                // The peer is told why, if it still listens.
                let _ = socket.set_write_timeout(FAREWELL);
                let _ = take_encrypted(&mut tls, &mut out);
                let _ = socket.write_plain(&mut [IoSlice::new(&out)]);
                return Err(Unsecured::Failed(error));
            }
        }
    }

    /// Some bytes, as soon as there are any; none at the end.
    pub(super) fn read(&self, socket: &Socket, to: &mut [u8]) -> io::Result<usize> {
        let mut incoming = lock(&self.incoming);
        loop {
            {
                let mut tls = lock(&self.tls);
                loop {
                    match tls.reader().read(to) {
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        // A connection may end without a word: what was to come is missed anyway.
                        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                        read => return read,
                    }
                    if incoming.start == incoming.end {
                        break;
                    }
                    incoming.feed(&mut tls)?;
                }
            }
            if incoming.receive(socket)? == 0 {
                return Ok(0);
            }
        }
    }

    /// Sends all of it.
    pub(super) fn write(&self, socket: &Socket, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        let mut out = lock(&self.outgoing);
        IoSlice::advance_slices(&mut slices, 0);
        loop {
            {
                let mut tls = lock(&self.tls);
                let taken = tls.writer().write_vectored(slices)?;
                IoSlice::advance_slices(&mut slices, taken);
                take_encrypted(&mut tls, &mut out)?;
            }
            socket.write_plain(&mut [IoSlice::new(&out)])?;
            if slices.is_empty() {
                return Ok(());
            }
        }
    }
}

/// Everything that rustls wants to be sent.
fn take_encrypted(tls: &mut Connection, out: &mut Vec<u8>) -> io::Result<()> {
    out.clear();
    while tls.wants_write() {
        tls.write_tls(out)?;
    }
    Ok(())
}

impl Incoming {
    /// Waits for bytes; none at the end.
    fn receive(&mut self, socket: &Socket) -> io::Result<usize> {
        (self.start, self.end) = (0, 0);
        self.end = socket.read_plain(&mut self.bytes)?;
        Ok(self.end)
    }

    /// Waits for bytes, no longer than to the deadline.
    fn receive_by(&mut self, socket: &Socket, deadline: Instant) -> io::Result<()> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let late = "the peer did not agree on TLS in time";
                return Err(io::Error::new(io::ErrorKind::TimedOut, late));
            }
            socket.set_read_timeout(left)?;
            match self.receive(socket) {
                Ok(0) => {
                    let gone = "the peer closed the connection before it was encrypted";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, gone));
                }
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Gives rustls some of what came.
    fn feed(&mut self, tls: &mut Connection) -> io::Result<()> {
        self.start += tls.read_tls(&mut &self.bytes[self.start..self.end])?;
        tls.process_new_packets().map(drop).map_err(explained)
    }
}

/// What is wrong, for whoever set it up.
fn explained(error: Error) -> io::Error {
    let message = match &error {
        Error::AlertReceived(AlertDescription::CertificateRequired)
        | Error::NoCertificatesPresented => {
            "TLS: a client's certificate is asked for, and none was shown".to_owned()
        }
        Error::AlertReceived(alert) => {
            format!("TLS: the other side does not accept what it was shown ({alert:?})")
        }
        Error::InvalidMessage(_) => {
            "TLS: what came is no TLS, or was changed on its way".to_owned()
        }
        other => format!("TLS: {other}"),
    };
    io::Error::new(io::ErrorKind::InvalidData, message)
}

/// What a server said that does not speak TLS, or not to this client: one frame with an error.
pub(super) fn plain_answer(socket: &Socket, came: Vec<u8>, deadline: Instant) -> io::Error {
    let said = read_plain_answer(socket, came, deadline);
    let said = said.unwrap_or_else(|_| "it speaks without".to_owned());
    malformed(format!("the worker does not speak TLS: {said}"))
}

fn read_plain_answer(socket: &Socket, mut came: Vec<u8>, deadline: Instant) -> io::Result<String> {
    let limits = Limits::greeting();
    let mut incoming = Incoming { bytes: vec![0; HEADER].into_boxed_slice(), start: 0, end: 0 };
    let mut wanted = HEADER;
    loop {
        while came.len() < wanted {
            incoming.receive_by(socket, deadline)?;
            came.extend_from_slice(&incoming.bytes[..incoming.end]);
        }
        let (head, description) = came.split_at(HEADER);
        let head = head.try_into().map_err(|_| malformed("half a header"))?;
        let header = Header::decode(head, 0, &limits)?;
        wanted = HEADER + header.description;
        if let Some(description) = description.get(..header.description) {
            header.check_description(description)?;
            return match header.kind {
                Kind::Error => Ok(decode_error(description)?.to_string()),
                _ => Err(malformed("no error")),
            };
        }
    }
}
