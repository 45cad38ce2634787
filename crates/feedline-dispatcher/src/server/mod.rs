//! The dispatcher as a server: a journal below, gRPC above, and what is not worth remembering beside.
//!
//! ```text
//!  sockets ──► gate ──► service ──► desk    the core and its journal     all of it: opened.rs
//!  listen.rs   gate.rs  service.rs  ├ store    datasets and blobs, as files
//!                                   ├ workers  who is alive; forgotten at the end
//!                                   └ reports  how trainers fare; forgotten at the end
//!                       keeper: tidies up, takes snapshots, decides how many workers are wanted
//! ```

mod desk;
mod gate;
mod keeper;
mod listen;
mod meter;
mod metrics;
mod opened;
mod reports;
mod roster;
mod service;
mod simulated;
mod status;
mod store;

pub use listen::ConnectionLimits;
#[doc(hidden)]
pub use listen::Listener;
#[doc(hidden)]
pub use opened::Opened;
#[doc(hidden)]
pub use simulated::Simulated;
pub use store::StoreLimits;

use crate::Limits;
use crate::scale::{Policy, Scaler};
use feedline_journal::{Disk, RealDisk, Torn};
use feedline_rpc::Address;
use feedline_rpc::http::{HttpOptions, HttpServer, Page, Pages};
use feedline_wire::status::Status;
use feedline_wire::tls::ServerTls;
pub use feedline_wire::token::AUDIENCE;
use listen::Bound;
use opened::Shared;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::watch;

/// How long calls that are under way may take when the dispatcher ends.
const ENDING: Duration = Duration::from_millis(500);

/// How a dispatcher is run.
#[derive(Clone)]
pub struct Options {
    /// Where to listen: `127.0.0.1:0`, `feedline://[::1]:7000`, `feedline+unix:///path`. With port 0
    /// a free one is taken.
    pub address: String,
    /// The folder of the journal, the datasets and the blobs.
    pub journal: PathBuf,
    /// How the journal is kept.
    pub journal_options: feedline_journal::Options,
    /// The disk that it is on.
    pub disk: Arc<dyn Disk>,
    /// How patient and how generous the core is.
    pub limits: Limits,
    /// How much is kept of datasets.
    pub store: StoreLimits,
    /// Who may connect.
    pub connections: ConnectionLimits,
    /// A worker that is silent for so long is gone.
    pub worker_timeout: Duration,
    /// How many workers to want.
    pub scale: Policy,
    /// Who provides them.
    pub scaler: Option<Arc<dyn Scaler>>,
    /// The file of the key that tokens are signed with, read again when it changes. Without one, no
    /// tokens are asked for.
    pub key: Option<PathBuf>,
    /// What tokens call this service.
    pub audience: String,
    /// TLS, from files that are read again when they change.
    pub tls: Option<ServerTls>,
    /// Serves other hosts without TLS and tokens.
    pub insecure: bool,
    /// Where to serve `/metrics`, `/status` and `/health`, such as `127.0.0.1:0`.
    pub http: Option<String>,
    /// What this host is called by those who ask for pages, beside its addresses.
    pub names: Vec<String>,
    /// What a simulation decides, if this is one.
    #[doc(hidden)]
    pub simulated: Option<Arc<Simulated>>,
}

impl Options {
    /// A dispatcher on a free port of this host, with its journal in a folder.
    #[must_use]
    pub fn new(journal: impl Into<PathBuf>) -> Self {
        Self {
            address: "127.0.0.1:0".into(),
            journal: journal.into(),
            journal_options: feedline_journal::Options {
                reserve_bytes: 4 << 20,
                ..feedline_journal::Options::default()
            },
            disk: Arc::new(RealDisk),
            limits: Limits::default(),
            store: StoreLimits::default(),
            connections: ConnectionLimits::default(),
            worker_timeout: Duration::from_secs(3),
            scale: Policy::default(),
            scaler: None,
            key: None,
            audience: AUDIENCE.into(),
            tls: None,
            insecure: false,
            http: None,
            names: vec![],
            simulated: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Options")
            .field("address", &self.address)
            .field("journal", &self.journal)
            .field("key", &self.key)
            .field("tls", &self.tls)
            .field("insecure", &self.insecure)
            .field("http", &self.http)
            .finish_non_exhaustive()
    }
}

/// Why a dispatcher does not run. There is one variant for each thing that can be done about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It is set up wrongly: its operator can fix it.
    #[error("{0}")]
    Setup(String),
    /// Its journal cannot be used: the message says by whom it is held, or how to repair it.
    #[error("{0}")]
    Journal(String),
    /// It was running and cannot go on: start it again.
    #[error("the dispatcher has stopped: {0}")]
    Stopped(String),
}

/// A running dispatcher. Dropping it [stops](Dispatcher::stop) it.
#[derive(Debug)]
pub struct Dispatcher {
    opened: Opened,
    address: Address,
    server: Option<JoinHandle<()>>,
    keeper: Option<JoinHandle<()>>,
    /// Dropped, it ends the keeper.
    awake: Option<mpsc::Sender<()>>,
    ended: watch::Receiver<bool>,
    http: Option<HttpServer>,
}

impl Dispatcher {
    /// Opens the journal, replays it, and serves.
    ///
    /// # Errors
    ///
    /// [`Error::Journal`] if the journal is held by another dispatcher, damaged or out of reach;
    /// [`Error::Setup`] if the address cannot be bound, or makes no sense.
    pub fn start(options: Options) -> Result<Self, Error> {
        let setup = |what: &dyn fmt::Display| Error::Setup(what.to_string());
        let address: Address = options.address.parse().map_err(|error| setup(&error))?;
        let guarded = options.key.is_some() && options.tls.is_some();
        if !address.is_local() && !guarded && !options.insecure {
            return Err(setup(&format_args!(
                "other hosts could reach {address}: set TLS and a key for tokens, or `insecure`"
            )));
        }
        let tls = options.tls.as_ref().map(|tls| tls.identity(&["h2"])).transpose();
        let tls = tls.map_err(Error::Setup)?;
        let opened = Opened::open(&options)?;
        let bound = Bound::bind(&address)
            .map_err(|error| setup(&format_args!("cannot listen at {address}: {error}")))?;
        let address = bound.address();
        let generation = opened.shared.desk.journal().generation().0;
        let http = options.http.as_ref().map(|at| {
            let (names, tls, insecure) =
                (options.names.clone(), options.tls.clone(), options.insecure);
            let http = HttpOptions { names, guard: opened.guard.clone(), tls, insecure };
            HttpServer::start(at, http, pages(&opened.shared))
        });
        let http = http.transpose().map_err(Error::Setup)?;
        let no_thread =
            |error: std::io::Error| setup(&format_args!("no thread to be had: {error}"));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .max_blocking_threads(16)
            .thread_name("feedline-dispatcher")
            .enable_all()
            .build()
            .map_err(no_thread)?;
        let (ending, ended) = watch::channel(false);
        let server = {
            let (opened, limits) = (opened.clone(), options.connections);
            let thread = std::thread::Builder::new().name("feedline-dispatcher".to_owned());
            let serve = move || {
                runtime.block_on(async {
                    match bound.listen(&limits, tls) {
                        Ok(incoming) => opened.serve(incoming, &limits, opened.ended()).await,
                        Err(error) => {
                            opened.shared.desk.stop(&format!("cannot listen: {error}"));
                        }
                    }
                });
                drop(opened);
                runtime.shutdown_timeout(ENDING);
                // Whoever started it may be gone.
                let _ = ending.send(true);
            };
            thread.spawn(serve).map_err(no_thread)?
        };
        let (awake, asleep) = mpsc::channel();
        let keeper = {
            let keeper = opened.keeper(options.scaler, options.disk, options.journal);
            let thread = std::thread::Builder::new().name("feedline-keeper".to_owned());
            thread.spawn(move || keeper.run(&asleep))
        };
        let mut dispatcher = Self {
            opened,
            address,
            server: Some(server),
            keeper: None,
            awake: Some(awake),
            ended,
            http,
        };
        // From here on dropping it ends what was begun.
        dispatcher.keeper = Some(keeper.map_err(no_thread)?);
        tracing::info!(address = %dispatcher.address, generation, "the dispatcher serves");
        Ok(dispatcher)
    }

    /// Where it can be reached.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Where its pages are, if it serves any.
    #[must_use]
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(HttpServer::address)
    }

    /// What a crash had left of the last commit, and was cut off at the start.
    #[must_use]
    pub fn torn(&self) -> Option<&Torn> {
        self.opened.torn()
    }

    /// How everything stands.
    #[must_use]
    pub fn status(&self) -> Status {
        status::status(&self.opened.shared)
    }

    /// Waits until it ends, at most for so long. True if it has.
    ///
    /// # Errors
    ///
    /// [`Error::Stopped`] if it could not go on.
    pub fn wait(&self, patience: Duration) -> Result<bool, Error> {
        let end = std::time::Instant::now() + patience;
        loop {
            if let Some(reason) = self.opened.shared.desk.failed().borrow().clone() {
                return Err(Error::Stopped(reason));
            }
            if *self.ended.borrow() {
                return Ok(true);
            }
            let left = end.saturating_duration_since(std::time::Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            std::thread::sleep(left.min(Duration::from_millis(20)));
        }
    }

    /// Answers what is under way, and ends. The journal is closed when this returns.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.opened.shared.stopping.send_replace(true);
        self.http = None;
        self.awake = None;
        for thread in [self.server.take(), self.keeper.take()].into_iter().flatten() {
            // It ends by itself, whatever happened to it.
            let _ = thread.join();
        }
    }
}

impl Drop for Dispatcher {
    fn drop(&mut self) {
        self.end();
    }
}

/// What is served over HTTP.
fn pages(shared: &Arc<Shared>) -> Pages {
    let shared = Arc::clone(shared);
    Arc::new(move |path| match path {
        "/metrics" => Some(Page::metrics(metrics::metrics(&shared))),
        "/status" => {
            let text = serde_json::to_string_pretty(&status::status(&shared));
            Some(Page::json(text.expect("numbers and texts can be written as JSON") + "\n"))
        }
        "/health" => {
            let failed = shared.desk.failed().borrow().is_some();
            let (status, text) = if failed { (503, "stopped\n") } else { (200, "ok\n") };
            Some(Page { status, open: true, ..Page::text(text) })
        }
        _ => None,
    })
}
