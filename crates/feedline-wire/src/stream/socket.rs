//! Sockets of both sorts behind one type, set up for large frames.

use super::session::Session;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, sendmsg};
use std::fmt;
use std::io::{self, IoSlice};
use std::net::{IpAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Duration;

/// How much a socket may hold on its way. The system may allow less.
const BUFFER: usize = 4 << 20;

/// The most pieces that the system takes at once.
const PIECES: usize = 1024;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Host and port: `worker-3:7077`, `127.0.0.1:0`, `[::1]:7077`.
    Tcp(String),
    /// A Unix socket at a path.
    Unix(PathBuf),
}

impl Address {
    /// Whether it can only be reached from this host: a Unix socket, or a loopback address.
    #[must_use]
    pub fn is_local(&self) -> bool {
        let Some(host) = self.host() else { return true };
        host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
    }

    /// The host, without brackets; none of a Unix socket.
    #[must_use]
    pub fn host(&self) -> Option<&str> {
        let Self::Tcp(text) = self else { return None };
        let host = text.rsplit_once(':').map_or(text.as_str(), |(host, _)| host);
        Some(host.trim_start_matches('[').trim_end_matches(']'))
    }
}

impl FromStr for Address {
    type Err = io::Error;

    /// `unix:/path`, or host and port.
    fn from_str(text: &str) -> io::Result<Self> {
        match text.strip_prefix("unix:") {
            Some("") => {}
            Some(path) => return Ok(Self::Unix(path.into())),
            None if text.contains(':') => return Ok(Self::Tcp(text.to_owned())),
            None => {}
        }
        let message = format!("{text:?} is no address: host:port or unix:/path would be");
        Err(io::Error::new(io::ErrorKind::InvalidInput, message))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host) => f.write_str(host),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// One connected socket.
pub(super) struct Socket {
    descriptor: OwnedFd,
    /// Whether it is a Unix socket: its bytes never leave this host's memory.
    pub(super) local: bool,
    /// Where the other end is, if it is known by an address.
    pub(super) peer: Option<IpAddr>,
    /// What is read and written goes through it, from when both sides have agreed on it.
    session: OnceLock<Session>,
}

impl Socket {
    fn tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let peer = stream.peer_addr()?.ip();
        // The same host is the same host, however it was called.
        let peer = Some(peer.to_canonical());
        Ok(Self { descriptor: stream.into(), local: false, peer, session: OnceLock::new() })
    }

    fn unix(stream: UnixStream) -> io::Result<Self> {
        sockopt::set_socket_send_buffer_size(&stream, BUFFER)?;
        let session = OnceLock::new();
        Ok(Self { descriptor: stream.into(), local: true, peer: None, session })
    }

    pub(super) fn connect(address: &Address, within: Duration) -> io::Result<Self> {
        let host = match address {
            Address::Unix(path) => return Self::unix(UnixStream::connect(path)?),
            Address::Tcp(host) => host,
        };
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for address in host.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, within) {
                Ok(stream) => return Self::tcp(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Connects to a Unix socket without a path.
    pub(super) fn connect_local(name: &[u8]) -> io::Result<Self> {
        Self::unix(UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?)
    }

    /// Whether payloads may go through memory that both sides map.
    pub(super) fn can_share(&self) -> bool {
        self.local && feedline_shm::peer_is_same_user(self).unwrap_or(false)
    }

    /// How long a read waits before it says that there is nothing yet.
    pub(super) fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        let timeout = timeout.max(Duration::from_millis(1));
        Ok(sockopt::set_socket_timeout(self, Timeout::Recv, Some(timeout))?)
    }

    /// How long a write waits for the other side to make room.
    pub(super) fn set_write_timeout(&self, timeout: Duration) -> io::Result<()> {
        let timeout = timeout.max(Duration::from_millis(1));
        Ok(sockopt::set_socket_timeout(self, Timeout::Send, Some(timeout))?)
    }

    /// From here on everything is encrypted.
    pub(super) fn secure(&self, session: Session) {
        // There is one handshake on a connection.
        let _ = self.session.set(session);
    }

    /// Whether everything is encrypted.
    pub(super) fn is_secure(&self) -> bool {
        self.session.get().is_some()
    }

    pub(super) fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        match self.session.get() {
            None => self.read_plain(bytes),
            Some(session) => session.read(self, bytes),
        }
    }

    /// Fills all of `bytes` if that takes no longer than the time-out, without waking up in between.
    /// What is encrypted comes piece by piece.
    pub(super) fn read_all(&self, bytes: &mut [u8]) -> io::Result<usize> {
        match self.session.get() {
            None => Ok(rustix::net::recv(&self.descriptor, bytes, RecvFlags::WAITALL)?.1),
            Some(session) => session.read(self, bytes),
        }
    }

    /// Writes all of it, wherever it lies.
    pub(super) fn write(&self, slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        match self.session.get() {
            None => self.write_plain(slices),
            Some(session) => session.write(self, slices),
        }
    }

    pub(super) fn read_plain(&self, bytes: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(&self.descriptor, bytes)?)
    }

    pub(super) fn write_plain(&self, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        IoSlice::advance_slices(&mut slices, 0);
        while !slices.is_empty() {
            let some = &slices[..slices.len().min(PIECES)];
            let none = &mut SendAncillaryBuffer::default();
            match sendmsg(&self.descriptor, some, none, SendFlags::NOSIGNAL) {
                Ok(sent) => IoSlice::advance_slices(&mut slices, sent),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => {
                    let message = "the peer takes no bytes any more";
                    return Err(io::Error::new(io::ErrorKind::TimedOut, message));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Ends both directions: whoever reads or writes on any thread returns.
    pub(super) fn shut_down(&self) {
        // It only fails if the connection is gone, which is what is wanted.
        let _ = rustix::net::shutdown(&self.descriptor, Shutdown::Both);
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Accepts connections.
pub(super) enum Listener {
    Tcp(TcpListener),
    /// With the path to remove in the end, if it has one.
    Unix(UnixListener, Option<PathBuf>),
}

impl Listener {
    pub(super) fn bind(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(host) => Ok(Self::Tcp(TcpListener::bind(host)?)),
            Address::Unix(path) => {
                Ok(Self::Unix(bind_path(path)?, Some(std::path::absolute(path)?)))
            }
        }
    }

    /// A Unix socket without a path: it is gone when its process is.
    pub(super) fn bind_local(name: &[u8]) -> io::Result<Self> {
        let address = SocketAddr::from_abstract_name(name)?;
        Ok(Self::Unix(UnixListener::bind_addr(&address)?, None))
    }

    /// Where it listens: with the port that the system chose.
    pub(super) fn address(&self) -> io::Result<Address> {
        Ok(match self {
            Self::Tcp(listener) => Address::Tcp(listener.local_addr()?.to_string()),
            Self::Unix(_, path) => Address::Unix(path.clone().unwrap_or_default()),
        })
    }

    pub(super) fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(listener) => Socket::tcp(listener.accept()?.0),
            Self::Unix(listener, _) => Socket::unix(listener.accept()?.0),
        }
    }

    /// Makes [`Listener::accept`] return on whatever thread it waits.
    pub(super) fn shut_down(&self) {
        let descriptor = match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener, _) => listener.as_fd(),
        };
        // It only fails if nobody listens any more.
        let _ = rustix::net::shutdown(descriptor, Shutdown::Both);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, Some(path)) = self {
            // If it is gone already, so much the better.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Listens at a path. A file there that nobody listens at is what a killed server left.
fn bind_path(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let dead = UnixStream::connect(path)
                .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
            if !dead {
                return Err(error);
            }
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        bound => bound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_back_and_others_are_refused() {
        for text in ["127.0.0.1:80", "[::1]:80", "worker-3:7077", "unix:/run/feedline.sock"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in ["", "host", "unix:"] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains("host:port or unix:/path"), "{error}");
        }
    }

    #[test]
    fn what_a_killed_server_left_is_taken_over_and_a_living_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let address = Address::Unix(dir.path().join("socket"));
        let first = Listener::bind(&address).unwrap();
        assert!(Listener::bind(&address).is_err());
        let Listener::Unix(listener, path) = &first else { unreachable!() };
        let copy = listener.try_clone().unwrap();
        let path = path.clone().unwrap();
        std::fs::hard_link(&path, dir.path().join("other")).unwrap();
        drop((first, copy));
        std::fs::rename(dir.path().join("other"), &path).unwrap();
        drop(Listener::bind(&address).unwrap());
        assert!(!path.exists());
    }
}
