//! Computes windows through the engine and serves them.
//!
//! ```text
//!            beats: alive, busy, done
//!  dispatcher ◄──────────────────────── ┌────────────┐ ◄──Ask(rank, first step, …)── client
//!             ────────────────────────► │   worker   │
//!              datasets, when asked for │   engine   │ ══ stretches, as credit allows ══►
//!                                       └────────────┘
//! ```
//!
//! A worker remembers nothing that matters. Whatever a client asks for says all that decides what
//! it holds; another worker would send the same bits. Follow a request through [`Worker`]:
//! `serve.rs` takes it, `catalogue.rs` opens what it is computed from, `shelf.rs` has it or makes it;
//! `saving.rs` writes it to a folder instead.

mod beat;
mod catalogue;
mod production;
mod saving;
mod serve;
mod shelf;
mod sight;

pub use sight::Standing;

use beat::Beating;
use catalogue::Catalogue;
use feedline_cache::Allowed;
use feedline_core::{Error, Pool, Result, Store};
use feedline_engine::host::HostCommand;
use feedline_engine::{Team, machine_memory};
use feedline_rpc::http::{HttpOptions, HttpServer};
use feedline_shm::Segments;
use feedline_wire::control::{self, Control, WorkerKey};
use feedline_wire::stream::{Address, SMALLEST_SHARED, Server, ServerOptions};
use saving::Saving;
use serve::{Serving, Shared};
use shelf::Shelf;
use sight::{Gauges, Sight};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How a worker behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it serves; port 0 takes any.
    pub listen: Address,
    /// What clients are told instead, where they reach it by another name; none for where it
    /// listens.
    pub advertise: Vec<String>,
    /// What people call it; empty for its host's name and process number.
    pub name: String,
    /// Threads that compute; 0 for one per core.
    pub threads: usize,
    /// Bytes that windows may have in flight, over all jobs.
    pub memory: usize,
    /// Bytes of finished stretches that are kept for other jobs. Only where several jobs ask for the same
    /// is anything kept.
    pub shelf: usize,
    /// Bytes of memory that is shared with clients on this host.
    pub shared_memory: usize,
    /// What datasets may keep here from one epoch to the next.
    pub cache: Allowed,
    /// Folders beneath which it writes what is saved on the service; none, and it writes nothing.
    pub save_to: Vec<PathBuf>,
    /// The command that runs functions of users; none, and plans with functions are refused.
    pub functions: Option<HostCommand>,
    /// How connections behave, whom they let in, and how they are encrypted.
    pub server: ServerOptions,
    /// Where to serve `/metrics`, `/status` and `/health`, such as `127.0.0.1:0`, and to whom.
    pub http: Option<(String, HttpOptions)>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: Address::Tcp("127.0.0.1:0".into()),
            advertise: Vec::new(),
            name: String::new(),
            threads: 0,
            memory: 1_000_000_000,
            shelf: part_of_memory(8).min(2_000_000_000),
            shared_memory: part_of_memory(2).min(4_000_000_000),
            cache: Allowed { ram: Some(part_of_memory(8) as u64), disk: Some(None), alone: true },
            save_to: Vec::new(),
            functions: None,
            server: ServerOptions::default(),
            http: None,
        }
    }
}

fn part_of_memory(part: u64) -> usize {
    usize::try_from(machine_memory() / part).unwrap_or(usize::MAX)
}

/// A worker that serves until it is dropped.
pub struct Worker {
    shared: Arc<Shared>,
    // Dropped before the team: handlers end first.
    server: Option<Arc<Server>>,
    worker: control::Worker,
    wake: Option<Sender<()>>,
    beating: Option<JoinHandle<()>>,
    http: Option<HttpServer>,
}

impl Worker {
    /// Starts serving, and tells the dispatcher.
    ///
    /// # Errors
    ///
    /// If an address cannot be had, other hosts could reach it and that is neither guarded nor meant,
    /// or no thread can be started.
    pub fn start(
        control: Arc<dyn Control>,
        store: Arc<dyn Store>,
        options: Options,
    ) -> Result<Self> {
        let Options {
            listen,
            advertise,
            name,
            threads,
            memory,
            shelf,
            shared_memory,
            cache,
            save_to,
            functions,
            server,
            http,
        } = options;
        let team = Team::new(threads)?;
        let cores = team.threads() as u32;
        let segments = Segments::new(shared_memory);
        let pool = {
            let segments = segments.clone();
            // What is small goes over the socket anyway.
            let take = move |bytes| (bytes >= SMALLEST_SHARED).then(|| segments.take(bytes).ok());
            Pool::over(memory, move |bytes| take(bytes)??)
        };
        let shared = Arc::new(Shared {
            catalogue: Catalogue::new(
                Arc::clone(&control),
                store,
                cache,
                functions,
                team.threads(),
            ),
            saving: Saving::new(save_to)?,
            shelf: Shelf::new(shelf),
            team,
            pool,
            memory,
            draining: AtomicBool::new(false),
            active: AtomicUsize::new(0),
            done: Mutex::default(),
            gauges: Gauges::new(),
        });
        let server = ServerOptions { shared: (shared_memory > 0).then_some(segments), ..server };
        let server = Arc::new(Server::bind(&listen, Serving(Arc::clone(&shared)), server)?);
        let mut key = [0; 8];
        rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| Error::unavailable("a random number", error.into()))?;
        let addresses = match advertise.is_empty() {
            true => vec![server.address().to_string()],
            false => advertise.iter().map(|told| with_port(told, server.address())).collect(),
        };
        let worker = control::Worker {
            key: WorkerKey(u64::from_le_bytes(key)),
            name: if name.is_empty() { own_name() } else { name },
            addresses,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            cores,
            draining: false,
        };
        let connections = {
            let server = Arc::downgrade(&server);
            Arc::new(move || server.upgrade().map_or(0, |server| server.connections()))
        };
        let sight = || Sight {
            shared: Arc::clone(&shared),
            worker: worker.clone(),
            connections: Arc::clone(&connections) as _,
        };
        let http = http.map(|(at, options)| HttpServer::start(&at, options, sight().pages()));
        let http = http.transpose().map_err(Error::Service)?;
        let beating = Beating { sight: sight(), control };
        let (wake, woken) = channel();
        let beating = std::thread::Builder::new()
            .name("worker-beat".into())
            .spawn(move || beating.run(&woken))
            .map_err(|error| Error::unavailable("a thread", error))?;
        let control::Worker { key, name, addresses, .. } = &worker;
        tracing::info!(worker = %key, name, ?addresses, "the worker serves");
        let (server, wake, beating) = (Some(server), Some(wake), Some(beating));
        Ok(Self { shared, server, worker, wake, beating, http })
    }

    /// Where its pages are, if it serves any.
    #[must_use]
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(HttpServer::address)
    }

    /// What clients are told of it.
    #[must_use]
    pub fn worker(&self) -> &control::Worker {
        &self.worker
    }

    /// Whether it was told to end, by [`Worker::drain`] or by the dispatcher.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.shared.draining.load(Ordering::SeqCst)
    }

    /// Takes on nothing more, finishes what it streams, and says whether all of that was finished
    /// within this time.
    pub fn drain(&self, patience: Duration) -> bool {
        if !self.shared.draining.swap(true, Ordering::SeqCst) {
            tracing::info!(worker = %self.worker.key, "the worker takes on nothing more");
        }
        if let Some(wake) = &self.wake {
            // Clients learn of it by the next beat.
            let _ = wake.send(());
        }
        let started = Instant::now();
        while self.shared.active.load(Ordering::SeqCst) > 0 {
            if started.elapsed() > patience {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        true
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.draining.store(true, Ordering::SeqCst);
        drop(self.wake.take());
        if let Some(beating) = self.beating.take() {
            let _ = beating.join();
        }
        drop(self.server.take());
    }
}

/// What clients are told: an address, with the port that is served if it has none.
fn with_port(told: &str, served: &Address) -> String {
    let has_port = told.starts_with("unix:")
        || told.rsplit_once(':').is_some_and(|(host, port)| {
            port.parse::<u16>().is_ok() && (!host.contains(':') || host.ends_with(']'))
        });
    let served = served.to_string();
    match served.rsplit_once(':') {
        Some((_, port)) if !has_port && told.contains(':') && !told.starts_with('[') => {
            format!("[{told}]:{port}")
        }
        Some((_, port)) if !has_port => format!("{told}:{port}"),
        _ => told.to_owned(),
    }
}

/// The host's name and the number of this process.
fn own_name() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}:{}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_port_gets_the_one_that_is_served() {
        let served: Address = "0.0.0.0:7071".parse().unwrap();
        for (told, complete) in [
            ("worker-3", "worker-3:7071"),
            ("worker-3:80", "worker-3:80"),
            ("10.0.0.3", "10.0.0.3:7071"),
            ("fd00::3", "[fd00::3]:7071"),
            ("[fd00::3]", "[fd00::3]:7071"),
            ("[fd00::3]:80", "[fd00::3]:80"),
            ("unix:/run/worker", "unix:/run/worker"),
        ] {
            assert_eq!(with_port(told, &served), complete);
        }
    }
}
