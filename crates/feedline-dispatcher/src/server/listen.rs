//! Sockets: where the dispatcher listens, and who may connect how fast.

use feedline_rpc::Address;
use feedline_wire::tls::Identity;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Sleep;
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

/// Who may connect, and how long a connection may take to say something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// So many connections at once; more are turned away.
    pub most_connections: usize,
    /// So many calls at once on each connection.
    pub streams: u32,
    /// A connection that has not begun to speak after so long is closed.
    pub handshake: Duration,
    /// So many calls a second from each host.
    pub rate: u32,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            most_connections: 4_096,
            streams: 128,
            handshake: Duration::from_secs(10),
            rate: 50_000,
        }
    }
}

/// A socket that was bound and is not listened to yet.
#[derive(Debug)]
pub(crate) enum Bound {
    Tcp(std::net::TcpListener, SocketAddr),
    Unix(std::os::unix::net::UnixListener, SocketFile),
}

/// The name of a socket, removed with the value.
#[derive(Debug)]
pub(crate) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Somebody else may have removed it.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Bound {
    pub(crate) fn bind(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp { host, port } => {
                let listener = std::net::TcpListener::bind((host.as_str(), *port))?;
                listener.set_nonblocking(true)?;
                let local = listener.local_addr()?;
                Ok(Self::Tcp(listener, local))
            }
            Address::Unix(path) => {
                let listener = bind_unix(path)?;
                // As on any port of this host, tokens are for those whom the file lets in.
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
                listener.set_nonblocking(true)?;
                Ok(Self::Unix(listener, SocketFile(path.clone())))
            }
        }
    }

    /// Where others find it.
    pub(crate) fn address(&self) -> Address {
        match self {
            Self::Tcp(_, local) => {
                Address::Tcp { host: local.ip().to_string(), port: local.port() }
            }
            Self::Unix(_, file) => Address::Unix(file.0.clone()),
        }
    }

    /// Takes connections until the stream is dropped. Needs a runtime.
    pub(crate) fn listen(
        self,
        limits: &ConnectionLimits,
        tls: Option<Identity>,
    ) -> io::Result<ReceiverStream<io::Result<Connection>>> {
        Ok(match self {
            Self::Tcp(listener, _) => admit_all(TcpListener::from_std(listener)?, limits, tls),
            Self::Unix(listener, file) => {
                let listener = UnixListener::from_std(listener)?;
                // Nobody in between could read what is said.
                admit_all(LocalListener { listener, _file: file }, limits, None)
            }
        })
    }
}

/// Where connections come from: sockets, or what stands for them in a simulation.
#[doc(hidden)]
pub trait Listener: Send + 'static {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    /// The next connection, and the address that it comes from if it has one.
    fn accept(&mut self)
    -> impl Future<Output = io::Result<(Self::Stream, Option<IpAddr>)>> + Send;
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&mut self) -> io::Result<(TcpStream, Option<IpAddr>)> {
        let (stream, peer) = Self::accept(self).await?;
        // Small answers are not held back to be sent together.
        let _ = stream.set_nodelay(true);
        Ok((stream, Some(peer.ip())))
    }
}

/// A socket in the file system, whose name is removed with it.
struct LocalListener {
    listener: UnixListener,
    _file: SocketFile,
}

impl Listener for LocalListener {
    type Stream = UnixStream;

    async fn accept(&mut self) -> io::Result<(UnixStream, Option<IpAddr>)> {
        Ok((self.listener.accept().await?.0, None))
    }
}

/// Lets connections in until the stream is dropped.
pub(crate) fn admit_all(
    mut listener: impl Listener,
    limits: &ConnectionLimits,
    tls: Option<Identity>,
) -> ReceiverStream<io::Result<Connection>> {
    let (sender, receiver) = mpsc::channel(64);
    let seats = Arc::new(Semaphore::new(limits.most_connections));
    let door = Door { seats, sender, tls, handshake: limits.handshake };
    tokio::spawn(async move {
        while let Some(accepted) = door.next(listener.accept()).await {
            match accepted {
                Ok((stream, peer)) => door.admit(stream, peer),
                Err(_) => pause().await,
            }
        }
    });
    ReceiverStream::new(receiver)
}

/// Accepting fails when files are used up: trying again at once would only make it worse.
async fn pause() {
    tokio::time::sleep(Duration::from_millis(50)).await;
}

/// Lets connections in.
struct Door {
    seats: Arc<Semaphore>,
    sender: mpsc::Sender<io::Result<Connection>>,
    tls: Option<Identity>,
    handshake: Duration,
}

impl Door {
    /// What is accepted next, until nobody takes connections any more.
    async fn next<T>(&self, accept: impl Future<Output = io::Result<T>>) -> Option<io::Result<T>> {
        tokio::select! {
            accepted = accept => Some(accepted),
            () = self.sender.closed() => None,
        }
    }

    /// Lets a connection in, if there is a seat. Does not wait for it.
    fn admit(&self, stream: impl Duplex + 'static, peer: Option<IpAddr>) {
        let Ok(seat) = Arc::clone(&self.seats).try_acquire_owned() else {
            tracing::warn!(?peer, "turned a connection away: there are too many");
            return;
        };
        let (sender, tls, handshake) = (self.sender.clone(), self.tls.clone(), self.handshake);
        tokio::spawn(async move {
            let stream: Box<dyn Duplex> = match tls {
                None => Box::new(stream),
                Some(identity) => {
                    let tls = TlsAcceptor::from(identity.config());
                    match tokio::time::timeout(handshake, tls.accept(stream)).await {
                        Ok(Ok(stream)) => Box::new(stream),
                        Ok(Err(error)) => {
                            tracing::debug!(?peer, %error, "a connection did not speak TLS as it should");
                            return;
                        }
                        Err(_) => return,
                    }
                }
            };
            let silence = Some(Box::pin(tokio::time::sleep(handshake)));
            let connection =
                Connection { stream, peer: Peer(peer), heard: 0, silence, _seat: seat };
            // If nobody takes it, the server is ending.
            let _ = sender.send(Ok(connection)).await;
        });
    }
}

fn bind_unix(path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    use std::os::unix::net::{UnixListener, UnixStream};
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            // A dispatcher that was killed has left it behind; one that is alive answers.
            match UnixStream::connect(path) {
                Err(refused) if refused.kind() == io::ErrorKind::ConnectionRefused => {
                    std::fs::remove_file(path)?;
                    UnixListener::bind(path)
                }
                _ => Err(error),
            }
        }
        bound => bound,
    }
}

/// What can be said on a connection.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// Who is on the other end: an address, or nobody knows which process of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer(pub Option<IpAddr>);

/// HTTP/2 begins with so many bytes that are always the same.
const PREFACE: usize = 24;

/// A connection that has to begin to speak soon.
pub(crate) struct Connection {
    stream: Box<dyn Duplex>,
    peer: Peer,
    heard: usize,
    /// Until it has spoken.
    silence: Option<Pin<Box<Sleep>>>,
    _seat: OwnedSemaphorePermit,
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(silence) = &mut self.silence
            && silence.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        self.heard = self.heard.saturating_add(buffer.filled().len() - before);
        if self.heard >= PREFACE {
            self.silence = None;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
