//! A cache that is split over several hosts: each sample has one owner, whom all others ask.
//!
//! ```text
//!  find ──► owner by rendezvous hash ──► here:      make it, and keep it
//!                                   └──► elsewhere: ask ──► it has it, or makes and keeps it
//!                                                     └───► it is full: ask the runner-up
//!                                                     └───► it is gone: read storage
//! ```
//!
//! Nobody agrees on anything: who owns what follows from the list of names that all have. A peer that does
//! not answer costs a read from storage, and is left alone for a while.

use crate::tiers::{Answer, Inner, tensors};
use feedline_core::{Batch, Cost, DType, Error, Name, Result, Rows, Sample, Stretch, Tensor};
use feedline_wire::stream::{
    Address, Client, ClientOptions, Handler, Next, Sender, Server, ServerOptions,
};
use feedline_wire::tls::{ClientTls, ServerTls};
use feedline_wire::token::{AUDIENCE, Guard, TokenFile};
use std::collections::HashMap;
use std::env::{var, var_os};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use twox_hash::XxHash3_64;

/// One that was never met is looked for so often at first.
const FIRST_MEETING: Duration = Duration::from_millis(20);
/// A peer that does not answer is asked again after this time, and after twice of it each time.
const REST: Duration = Duration::from_millis(500);
const LONGEST_REST: Duration = Duration::from_secs(30);
/// A peer that is full is not asked again for this long.
const FULL: Duration = Duration::from_secs(10);
/// However alive a peer seems, an answer takes no longer.
const PATIENCE: Duration = Duration::from_secs(60);
/// The name of the field that says what a sample took; no field of a sample is called so.
const COST: &str = "";

/// What a stretch says that answers a request, in the place of its step.
const HERE: u64 = 0;
const UNWANTED: u64 = 1;
const IS_FULL: u64 = 2;

/// How peers speak to each other.
#[derive(Clone, Debug, Default)]
pub struct PeerOptions {
    /// How others are asked.
    pub client: ClientOptions,
    /// How others are answered.
    pub server: ServerOptions,
}

impl PeerOptions {
    /// As the environment says: the same variables as for a service's servers and clients.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub fn from_environment() -> Result<Self> {
        let file = |name: &str| var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let failed = |reason: String| Error::Service(format!("cache: peers: {reason}"));
        let mut options = Self::default();
        // A peer that says nothing for so long is given up.
        options.client.handshake = Duration::from_secs(1);
        options.client.timeout = Duration::from_secs(2);
        options.client.shared_memory = 0;
        let insecure = var("FEEDLINE_INSECURE").is_ok_and(|value| value == "1");
        (options.client.insecure, options.server.insecure) = (insecure, insecure);
        if let Some(path) = file("FEEDLINE_TOKEN_FILE") {
            options.client.token = Some(TokenFile::open(&path).map_err(failed)?);
        }
        if let Some(authority) = file("FEEDLINE_CA") {
            let identity = file("FEEDLINE_CERTIFICATE").zip(file("FEEDLINE_CERTIFICATE_KEY"));
            let tls = ClientTls { authority, identity, name: var("FEEDLINE_SERVER_NAME").ok() };
            options.client.tls = Some(tls.trust(&[]).map_err(failed)?);
        }
        if let Some(path) = file("FEEDLINE_KEY_FILE") {
            let audience = var("FEEDLINE_AUDIENCE").unwrap_or_else(|_| AUDIENCE.to_owned());
            options.server.guard = Some(Guard::open(&path, &audience).map_err(failed)?);
        }
        if let Some((certificate, key)) =
            file("FEEDLINE_TLS_CERTIFICATE").zip(file("FEEDLINE_TLS_KEY"))
        {
            let tls = ServerTls { certificate, key, clients: file("FEEDLINE_TLS_CLIENTS") };
            options.server.tls = Some(tls.identity(&[]).map_err(failed)?);
        }
        Ok(options)
    }
}

/// All peers, as this process sees them: one for all caches that name the same.
pub struct Hub {
    names: Vec<String>,
    /// Which of them this process is, if it is one.
    me: Option<usize>,
    links: Vec<Link>,
    caches: Arc<Mutex<Caches>>,
    /// Answers the others, as long as anybody here keeps anything.
    server: Option<Server>,
}

type Caches = HashMap<String, Weak<Inner>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Hubs of this process, by the names of their peers.
static HUBS: Mutex<Vec<(Vec<String>, Weak<Hub>)>> = Mutex::new(Vec::new());

impl Hub {
    /// The hub for these peers: the one that this process has already, or a new one.
    ///
    /// # Errors
    ///
    /// As [`Hub::open`].
    pub fn shared(names: &[String]) -> Result<Arc<Self>> {
        let mut hubs = lock(&HUBS);
        hubs.retain(|(_, hub)| hub.strong_count() > 0);
        let same = hubs.iter().find(|(other, _)| other == names);
        if let Some(hub) = same.and_then(|(_, hub)| hub.upgrade()) {
            return Ok(hub);
        }
        let hub = Arc::new(Self::open(names, PeerOptions::from_environment()?)?);
        hubs.push((names.to_vec(), Arc::downgrade(&hub)));
        Ok(hub)
    }

    /// Becomes the first of these peers that this process can be: whose address is this host's, and not
    /// taken by another process. If there is none, it only asks.
    ///
    /// # Errors
    ///
    /// If a name is no address, or other hosts could reach it and nothing guards it.
    pub fn open(names: &[String], options: PeerOptions) -> Result<Self> {
        let wrong = |error: std::io::Error| Error::pipeline(format!("cache: peers: {error}"));
        let addresses: Vec<Address> =
            names.iter().map(|name| name.parse().map_err(wrong)).collect::<Result<_>>()?;
        let caches = Arc::<Mutex<Caches>>::default();
        let (mut me, mut server) = (None, None);
        for (number, address) in addresses.iter().enumerate() {
            let answering = Answering { caches: Arc::clone(&caches) };
            match Server::bind(address, answering, options.server.clone()) {
                Ok(bound) => (me, server) = (Some(number), Some(bound)),
                Err(Error::Unavailable { .. }) => continue,
                Err(error) => return Err(error),
            }
            break;
        }
        let link = |address| Link {
            address,
            options: options.client.clone(),
            idle: Mutex::default(),
            rest: Mutex::default(),
            met: AtomicBool::new(false),
            opened: Instant::now(),
            full: Mutex::default(),
            failures: AtomicU64::new(0),
        };
        let links = addresses.into_iter().map(link).collect();
        Ok(Self { names: names.to_vec(), me, links, caches, server })
    }

    /// Which of the peers this process is; `None` if it only asks.
    #[must_use]
    pub fn me(&self) -> Option<usize> {
        self.me
    }

    /// Number of peers.
    #[must_use]
    pub fn count(&self) -> usize {
        self.names.len()
    }

    /// Which peer owns a sample, as long as none is full; `None` if there are none.
    #[must_use]
    pub fn owner_of(&self, index: u64) -> Option<usize> {
        (0..self.names.len()).max_by_key(|peer| (score(&self.names[*peer], index), *peer))
    }

    /// How often a peer did not answer.
    pub(crate) fn failures(&self) -> u64 {
        self.links.iter().map(|link| link.failures.load(Ordering::Relaxed)).sum()
    }

    /// Answers for a cache from now on.
    pub(crate) fn serve(&self, identity: &str, cache: Weak<Inner>) {
        lock(&self.caches).insert(identity.to_owned(), cache);
    }

    /// Who may have a sample: its owner first, then who has it if that one is full, and so on.
    pub(crate) fn owners(&self, index: u64) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.names.len()).collect();
        order.sort_unstable_by_key(|peer| {
            std::cmp::Reverse((score(&self.names[*peer], index), *peer))
        });
        order
    }

    /// Whether a sample is this process's to keep: all who come before it are full.
    pub(crate) fn is_ours(&self, index: u64) -> bool {
        let before = self.owners(index).into_iter();
        let first =
            before.into_iter().find(|peer| self.me == Some(*peer) || !self.links[*peer].is_full());
        first.is_some() && first == self.me
    }

    /// Asks a peer for a sample.
    pub(crate) fn ask(&self, peer: usize, identity: &str, index: u64) -> Asked {
        self.links[peer].ask(identity, index)
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        // Those who ask notice at once; their connections are ours to close.
        self.server = None;
    }
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hub({:?} of {:?})", self.me, self.names)
    }
}

/// How much a peer is meant to have a sample: the one with most has it. Each sample is spread by itself, so
/// one peer more or less moves only its own samples.
fn score(name: &str, index: u64) -> u64 {
    XxHash3_64::oneshot_with_seed(index, name.as_bytes())
}

/// What came of asking.
#[expect(clippy::large_enum_variant, reason = "a box would be an allocation for each sample")]
pub(crate) enum Asked {
    /// The sample, and what it took to make it there.
    Sample(Sample, Cost),
    /// It does not keep this one, or no more.
    Passed,
    /// There is no sense in asking now.
    Gone,
}

/// The way to one peer.
struct Link {
    address: Address,
    options: ClientOptions,
    /// Connections that nobody uses at this moment.
    idle: Mutex<Vec<Client>>,
    /// Until when it is left alone, and for how long the next time.
    rest: Mutex<Option<(Instant, Duration)>>,
    /// Whether it ever answered, and since when it might have.
    met: AtomicBool,
    opened: Instant,
    /// Until when it is taken to be full.
    full: Mutex<Option<Instant>>,
    failures: AtomicU64,
}

impl Link {
    fn is_full(&self) -> bool {
        lock(&self.full).is_some_and(|until| Instant::now() < until)
    }

    fn ask(&self, identity: &str, index: u64) -> Asked {
        if lock(&self.rest).is_some_and(|(until, _)| Instant::now() < until) {
            return Asked::Gone;
        }
        // One that stood unused may have ended meanwhile: that says nothing about the peer.
        let idle = lock(&self.idle).pop();
        let used = idle.is_some();
        let mut asked = self.ask_by(idle, identity, index);
        if used && asked.is_err() {
            asked = self.ask_by(None, identity, index);
        }
        match asked {
            Ok(asked) => {
                self.met.store(true, Ordering::Relaxed);
                *lock(&self.rest) = None;
                asked
            }
            Err(error) => {
                tracing::debug!(peer = %self.address, %error, "a peer of the cache does not answer");
                self.failures.fetch_add(1, Ordering::Relaxed);
                let mut rest = lock(&self.rest);
                let pause = rest.map_or(REST, |(_, pause)| (pause * 2).min(LONGEST_REST));
                *rest = Some((Instant::now() + pause, pause));
                // All others are as old as this one.
                lock(&self.idle).clear();
                Asked::Gone
            }
        }
    }

    /// Connects. Hosts that start together do not start at once: one that was never met is given the time
    /// in which any peer has to answer.
    fn connect(&self) -> Result<Client> {
        loop {
            let connected = Client::connect(&self.address, self.options.clone());
            let waits =
                !self.met.load(Ordering::Relaxed) && self.opened.elapsed() < self.options.timeout;
            match connected {
                Err(Error::Unavailable { .. }) if waits => std::thread::sleep(FIRST_MEETING),
                connected => return connected,
            }
        }
    }

    fn ask_by(&self, idle: Option<Client>, identity: &str, index: u64) -> Result<Asked> {
        let mut client = match idle {
            Some(client) => client,
            None => self.connect()?,
        };
        client.request(&request(identity, index))?;
        let deadline = Instant::now() + PATIENCE;
        let mut found = None;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match client.next_within(left)? {
                Next::Stretch(stretch) => found = Some(stretch),
                Next::End => break,
                Next::NotYet => {
                    let late = std::io::Error::from(std::io::ErrorKind::TimedOut);
                    return Err(Error::unavailable(format!("peer {}", self.address), late));
                }
            }
        }
        lock(&self.idle).push(client);
        let Some(Stretch { step, rows: Rows::Batch(batch) }) = found else {
            return Err(lies(&self.address, "it sent no answer"));
        };
        match step {
            HERE => {
                let (sample, cost) = read_answer(batch, index).ok_or_else(|| {
                    lies(&self.address, "it sent another sample than was asked for")
                })?;
                Ok(Asked::Sample(sample, cost))
            }
            IS_FULL => {
                *lock(&self.full) = Some(Instant::now() + FULL);
                Ok(Asked::Passed)
            }
            _ => Ok(Asked::Passed),
        }
    }
}

fn lies(address: &Address, what: &str) -> Error {
    let error = std::io::Error::new(std::io::ErrorKind::InvalidData, what);
    Error::unavailable(format!("peer {address}"), error)
}

fn request(identity: &str, index: u64) -> Vec<u8> {
    [&index.to_le_bytes(), identity.as_bytes()].concat()
}

/// The batch that carries a sample: its fields, and before them what it took and which it is.
fn answer(index: u64, fields: impl Iterator<Item = (Name, Tensor)>, cost: Cost) -> Batch {
    let numbers = [cost.work, cost.wait, cost.bytes];
    let about = (Name::new(COST), Tensor::from_slice(&[3], &numbers));
    let fields = std::iter::once(about).chain(fields).collect();
    Batch { fields, rows: 1, indices: Some(vec![index]) }
}

fn read_answer(batch: Batch, index: u64) -> Option<(Sample, Cost)> {
    let mut fields = batch.fields.into_iter();
    let (name, numbers) = fields.next()?;
    let right = name == COST && numbers.dtype() == DType::U64 && batch.rows == 1;
    if !right || batch.indices != Some(vec![index]) {
        return None;
    }
    let [work, wait, bytes] = *numbers.as_slice::<u64>()? else { return None };
    Some((Sample::of(fields), Cost { work, wait, bytes }))
}

/// Answers those who ask.
struct Answering {
    caches: Arc<Mutex<Caches>>,
}

impl Handler for Answering {
    fn serve(&self, request: &[u8], out: &mut Sender<'_>) -> Result<()> {
        let read = request.split_first_chunk::<8>();
        let read = read.and_then(|(index, name)| Some((*index, std::str::from_utf8(name).ok()?)));
        let Some((index, identity)) = read else {
            return Err(Error::Service("this is no request to a cache".into()));
        };
        let index = u64::from_le_bytes(index);
        let cache = lock(&self.caches).get(identity).and_then(Weak::upgrade);
        // Nobody here keeps that now, which may change.
        let answered = cache.map_or(Answer::Unwanted, |cache| cache.answer(index));
        let none = Batch { fields: Vec::new(), rows: 0, indices: None };
        let (step, batch) = match answered {
            Answer::Sample(sample, cost) => (HERE, answer(index, tensors(&sample), cost)),
            Answer::Unwanted => (UNWANTED, none),
            Answer::Full => (IS_FULL, none),
        };
        out.send(&Stretch { step, rows: Rows::Batch(batch) })
    }
}
