//! A link that misbehaves: carries bytes between two processes or threads, as badly as it is told.
//!
//! ```text
//!  client ──► Proxy ──► server        upwards: to the server
//!         ◄──       ◄──               downwards: to the client
//! ```
//!
//! A cut holds bytes back, as a network does that is to send them again; whether they arrive when it
//! heals depends on who is still there. What a half-open link has swallowed never arrives, so such a
//! connection stays dead.

use feedline_journal::Coins;
use rustix::net::sockopt::set_socket_linger;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often a connection looks whether the link has changed.
const LOOK_UP: Duration = Duration::from_millis(2);

/// The most bytes that are carried at once.
const AT_ONCE: usize = 32 << 10;

/// How a link behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conduct {
    /// Bytes to the server are held back.
    pub cut_up: bool,
    /// Bytes to the client are held back.
    pub cut_down: bool,
    /// Connections stand, and whatever is said is swallowed, both ways.
    pub half_open: bool,
    /// How much later bytes arrive.
    pub delay: Duration,
    /// How many bytes a second are carried each way, for each connection; 0 for as many as come.
    pub bytes_per_second: u64,
    /// One bit in so many bytes arrives wrong, about; 0 for none.
    pub flip_one_in: u64,
}

impl Conduct {
    /// A link that carries nothing.
    pub const CUT: Self = Self { cut_up: true, cut_down: true, ..Self::GOOD };
    /// A link without fault.
    pub const GOOD: Self = Self {
        cut_up: false,
        cut_down: false,
        half_open: false,
        delay: Duration::ZERO,
        bytes_per_second: 0,
        flip_one_in: 0,
    };
}

/// What a link has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Connections that were made.
    pub connections: u64,
    /// Bytes that arrived, both ways.
    pub bytes: u64,
    /// Bits that arrived wrong.
    pub flips: u64,
    /// Connections that were reset.
    pub resets: u64,
}

/// A link between whoever connects to it and a server. Dropping it ends all its connections.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    address: SocketAddr,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    server: SocketAddr,
    conduct: Mutex<Conduct>,
    coins: Mutex<Coins>,
    closing: AtomicBool,
    open: Mutex<Vec<Arc<Connection>>>,
    connections: AtomicU64,
    bytes: AtomicU64,
    flips: AtomicU64,
    resets: AtomicU64,
}

/// Both sockets of a connection; there is no server's while nobody was to be reached.
#[derive(Debug)]
struct Connection {
    client: TcpStream,
    server: Option<TcpStream>,
    /// Something was swallowed: nothing may arrive any more.
    dead: AtomicBool,
    ended: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Proxy {
    /// A good link to a server, at an address of its own. What is left to chance follows from `seed`.
    ///
    /// # Errors
    ///
    /// If no address is to be had.
    pub fn start(server: SocketAddr, seed: u64) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            server,
            conduct: Mutex::new(Conduct::GOOD),
            coins: Mutex::new(Coins::new(seed)),
            closing: AtomicBool::new(false),
            open: Mutex::default(),
            connections: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            flips: AtomicU64::new(0),
            resets: AtomicU64::new(0),
        });
        let accept = Arc::clone(&shared);
        let accepting = std::thread::Builder::new().name("proxy".into());
        let accepting = accepting.spawn(move || accept.accept(&listener))?;
        Ok(Self { shared, address, accepting: Some(accepting) })
    }

    /// Where clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on the link behaves so, connections that are open among them.
    pub fn set(&self, conduct: Conduct) {
        *lock(&self.shared.conduct) = conduct;
    }

    /// Resets all connections that are open: what is under way is lost, and both sides are told.
    pub fn reset(&self) {
        for connection in lock(&self.shared.open).drain(..) {
            connection.reset();
            self.shared.resets.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What the link has done so far.
    #[must_use]
    pub fn carried(&self) -> Carried {
        let Shared { connections, bytes, flips, resets, .. } = &*self.shared;
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Carried {
            connections: read(connections),
            bytes: read(bytes),
            flips: read(flips),
            resets: read(resets),
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
        lock(&self.shared.open).drain(..).for_each(|connection| connection.reset());
    }
}

impl Connection {
    /// Has both sockets closed so that their peers are told of an error, not of an end.
    fn reset(&self) {
        for socket in [Some(&self.client), self.server.as_ref()].into_iter().flatten() {
            // If the peer is gone already, so much the better.
            let _ = set_socket_linger(socket, Some(Duration::ZERO));
        }
        // The threads that carry see it, and the last one closes them.
        self.ended.store(true, Ordering::SeqCst);
    }

    fn is_over(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        while !self.closing.load(Ordering::SeqCst) {
            match listener.accept() {
                Ok((client, _)) => {
                    let shared = Arc::clone(self);
                    let serve = std::thread::Builder::new().name("proxy-link".into());
                    // Without a thread the client is turned away, as a busy host would.
                    let _ = serve.spawn(move || shared.serve(client));
                }
                Err(_) => std::thread::sleep(LOOK_UP),
            }
        }
    }

    fn conduct(&self) -> Conduct {
        *lock(&self.conduct)
    }

    fn serve(self: Arc<Self>, client: TcpStream) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        // A half-open link never reaches the server; a cut one reaches it when it heals.
        while self.conduct().cut_up && !self.closing.load(Ordering::SeqCst) {
            std::thread::sleep(LOOK_UP);
        }
        let half_open = self.conduct().half_open;
        let server = match half_open {
            true => None,
            false => match TcpStream::connect_timeout(&self.server, Duration::from_secs(5)) {
                Ok(server) => Some(server),
                // The server is gone, and so is the connection.
                Err(_) => return,
            },
        };
        let dead = AtomicBool::new(half_open);
        let connection =
            Arc::new(Connection { client, server, dead, ended: AtomicBool::new(false) });
        {
            let mut open = lock(&self.open);
            open.retain(|one| !one.is_over());
            open.push(Arc::clone(&connection));
        }
        std::thread::scope(|scope| {
            scope.spawn(|| self.carry(&connection, true));
            self.carry(&connection, false);
        });
        // Whoever is last closes both, so that neither side waits for the other.
        connection.ended.store(true, Ordering::SeqCst);
    }

    /// Carries bytes one way until the connection ends.
    fn carry(&self, connection: &Connection, up: bool) {
        let Connection { client, server, dead, .. } = connection;
        let (from, to) = match up {
            true => (Some(client), server.as_ref()),
            false => (server.as_ref(), Some(client)),
        };
        let Some(mut from) = from else {
            // Nothing comes from a server that was never reached.
            while !connection.is_over() && !self.closing.load(Ordering::SeqCst) {
                std::thread::sleep(LOOK_UP);
            }
            return;
        };
        let _ = from.set_nodelay(true);
        let _ = from.set_read_timeout(Some(LOOK_UP));
        let mut bytes = vec![0; AT_ONCE];
        while !connection.is_over() && !self.closing.load(Ordering::SeqCst) {
            let conduct = self.conduct();
            if if up { conduct.cut_up } else { conduct.cut_down } {
                std::thread::sleep(LOOK_UP);
                continue;
            }
            let most = match conduct.bytes_per_second {
                0 => AT_ONCE,
                rate => (rate / 100).clamp(1, AT_ONCE as u64) as usize,
            };
            let count = match from.read(&mut bytes[..most]) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => {
                    connection.reset();
                    return;
                }
            };
            let some = &mut bytes[..count];
            if conduct.half_open {
                dead.store(true, Ordering::SeqCst);
            }
            if dead.load(Ordering::SeqCst) {
                continue;
            }
            self.flip(conduct.flip_one_in, some);
            let pace = match conduct.bytes_per_second {
                0 => Duration::ZERO,
                rate => Duration::from_secs_f64(count as f64 / rate as f64),
            };
            self.pause(connection, conduct.delay + pace);
            if !self.write(connection, to, some) {
                connection.reset();
                return;
            }
            self.bytes.fetch_add(count as u64, Ordering::Relaxed);
        }
        // An end is carried as well: the other direction may go on.
        if let Some(to) = to
            && !dead.load(Ordering::SeqCst)
            && !connection.is_over()
        {
            let _ = to.shutdown(Shutdown::Write);
        }
    }

    fn flip(&self, one_in: u64, bytes: &mut [u8]) {
        if one_in == 0 || bytes.is_empty() {
            return;
        }
        let mut coins = lock(&self.coins);
        if coins.below(one_in) < bytes.len() as u64 {
            let at = coins.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << coins.below(8);
            self.flips.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits, unless the connection ends.
    fn pause(&self, connection: &Connection, time: Duration) {
        let end = Instant::now() + time;
        while !connection.is_over() && !self.closing.load(Ordering::SeqCst) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(LOOK_UP));
        }
    }

    /// Writes all of it; false if the connection is gone.
    fn write(&self, connection: &Connection, to: Option<&TcpStream>, mut bytes: &[u8]) -> bool {
        let Some(mut to) = to else { return false };
        let _ = to.set_write_timeout(Some(Duration::from_millis(50)));
        while !bytes.is_empty() {
            if connection.is_over() || self.closing.load(Ordering::SeqCst) {
                return false;
            }
            match to.write(bytes) {
                Ok(0) => return false,
                Ok(count) => bytes = &bytes[count..],
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(200);

    /// A server that sends back whatever it hears.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                std::thread::spawn(move || {
                    let mut reader = socket.try_clone().unwrap();
                    let mut writer = socket;
                    let _ = io::copy(&mut reader, &mut writer);
                });
            }
        });
        address
    }

    fn connect(proxy: &Proxy) -> TcpStream {
        let socket = TcpStream::connect(proxy.address()).unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        socket
    }

    fn heard(socket: &mut TcpStream, count: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        socket.read_exact(&mut bytes).map(|()| bytes)
    }

    #[test]
    fn a_good_link_carries_everything() {
        let proxy = Proxy::start(echo(), 1).unwrap();
        let mut socket = connect(&proxy);
        socket.set_read_timeout(Some(SOON * 50)).unwrap();
        let bytes: Vec<u8> = (0..300_000u32).map(|at| at as u8).collect();
        let mut writer = socket.try_clone().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| writer.write_all(&bytes).unwrap());
            assert_eq!(heard(&mut socket, bytes.len()).unwrap(), bytes);
        });
        assert_eq!(proxy.carried().flips, 0);
        assert_eq!(proxy.carried().connections, 1);
    }

    #[test]
    fn what_a_cut_held_back_arrives_when_it_heals() {
        let proxy = Proxy::start(echo(), 1).unwrap();
        let one_way = [
            Conduct { cut_up: true, ..Conduct::GOOD },
            Conduct { cut_down: true, ..Conduct::GOOD },
            Conduct::CUT,
        ];
        for conduct in one_way {
            let mut socket = connect(&proxy);
            socket.write_all(b"before").unwrap();
            assert_eq!(heard(&mut socket, 6).unwrap(), b"before");
            proxy.set(conduct);
            // What was looked at before the cut may still pass.
            std::thread::sleep(SOON / 4);
            socket.write_all(b"during").unwrap();
            assert!(heard(&mut socket, 1).is_err(), "{conduct:?}");
            proxy.set(Conduct::GOOD);
            assert_eq!(heard(&mut socket, 6).unwrap(), b"during", "{conduct:?}");
        }
    }

    #[test]
    fn a_half_open_link_swallows_and_stays_dead() {
        let proxy = Proxy::start(echo(), 1).unwrap();
        let mut old = connect(&proxy);
        old.write_all(b"before").unwrap();
        assert_eq!(heard(&mut old, 6).unwrap(), b"before");
        proxy.set(Conduct { half_open: true, ..Conduct::GOOD });
        std::thread::sleep(SOON / 4);
        let mut new = connect(&proxy);
        for socket in [&mut old, &mut new] {
            socket.write_all(b"swallowed").unwrap();
            assert!(heard(socket, 1).is_err());
        }
        proxy.set(Conduct::GOOD);
        for socket in [&mut old, &mut new] {
            let _ = socket.write_all(b"late");
            assert!(heard(socket, 1).is_err(), "it arrives after a gap");
        }
        let mut socket = connect(&proxy);
        socket.write_all(b"again").unwrap();
        assert_eq!(heard(&mut socket, 5).unwrap(), b"again");
    }

    #[test]
    fn a_reset_is_told_to_both_sides() {
        let proxy = Proxy::start(echo(), 1).unwrap();
        let mut socket = connect(&proxy);
        socket.write_all(b"hello").unwrap();
        assert_eq!(heard(&mut socket, 5).unwrap(), b"hello");
        proxy.reset();
        let error = heard(&mut socket, 1).unwrap_err();
        assert_ne!(error.kind(), ErrorKind::WouldBlock, "{error}");
        assert_eq!(proxy.carried().resets, 1);
    }

    #[test]
    fn flips_change_single_bits_by_the_seed() {
        let flipped = || {
            let proxy = Proxy::start(echo(), 7).unwrap();
            proxy.set(Conduct { flip_one_in: 1, ..Conduct::GOOD });
            let mut socket = connect(&proxy);
            socket.write_all(&[0; 64]).unwrap();
            let bytes = heard(&mut socket, 64).unwrap();
            (bytes, proxy.carried().flips)
        };
        let (bytes, flips) = flipped();
        let ones: u32 = bytes.iter().map(|byte| byte.count_ones()).sum();
        assert!(u64::from(ones) <= flips && ones > 0, "{ones} of {flips} flips");
        assert_eq!(flipped().0, bytes);
    }
}
