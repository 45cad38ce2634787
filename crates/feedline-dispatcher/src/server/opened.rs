//! A dispatcher apart from its threads and sockets: what is opened, and how it is served to whoever
//! connects. [`Dispatcher`](super::Dispatcher) brings threads and sockets to it, a simulation its own.

use super::desk::Desk;
use super::gate::{Gate, Rules};
use super::keeper::{Keeper, TICK};
use super::listen::{Connection, ConnectionLimits, Listener, admit_all};
use super::reports::Reports;
use super::roster::Workers;
use super::service::Service;
use super::store::Store;
use super::{ENDING, Error, Options};
use crate::scale::{Decided, Policy, Scaler};
use feedline_journal::{Disk, Torn};
use feedline_rpc::proto::dispatcher_server::DispatcherServer;
use feedline_rpc::{LONGEST_MESSAGE, proto};
use feedline_wire::token::Guard;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio_stream::Stream;

/// What all parts of a running dispatcher share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(super) desk: Desk,
    pub(super) store: Arc<Store>,
    pub(super) workers: Workers,
    pub(super) reports: Reports,
    pub(super) policy: Policy,
    /// Nothing is decided in the first seconds.
    pub(super) scale: Mutex<Option<Decided>>,
    pub(super) rules: Arc<Rules>,
    /// Bytes of the journal's folder, as last looked up.
    pub(super) journal_bytes: AtomicU64,
    /// True when the dispatcher is ending.
    pub(super) stopping: watch::Sender<bool>,
}

/// A dispatcher whose journal was opened and replayed, and that nobody can reach yet. Clones are the
/// same dispatcher.
#[derive(Clone, Debug)]
pub struct Opened {
    pub(super) shared: Arc<Shared>,
    pub(super) guard: Option<Guard>,
    torn: Option<Torn>,
}

impl Opened {
    /// Opens the journal and replays it, and opens the store of datasets.
    ///
    /// # Errors
    ///
    /// [`Error::Journal`] if the journal is held by another dispatcher, damaged or out of reach;
    /// [`Error::Setup`] if the key of tokens cannot be read.
    pub fn open(options: &Options) -> Result<Self, Error> {
        let guard = options.key.as_ref().map(|path| Guard::open(path, &options.audience));
        let guard = guard.transpose().map_err(Error::Setup)?;
        let (desk, torn) = Desk::open(
            Arc::clone(&options.disk),
            &options.journal,
            options.journal_options.clone(),
            options.limits.clone(),
            options.simulated.clone(),
        )
        .map_err(|error| Error::Journal(error.to_string()))?;
        if let Some(torn) = &torn {
            tracing::warn!(
                file = %torn.file.display(), offset = torn.offset, bytes = torn.bytes,
                "cut off what a crash left of the last commit"
            );
        }
        let store = Store::open(Arc::clone(&options.disk), &options.journal, options.store.clone())
            .map_err(|error| Error::Journal(error.to_string()))?;
        let generation = desk.journal().generation().0;
        let shared = Arc::new(Shared {
            desk,
            store: Arc::new(store),
            // Versions of one start are never those of another.
            workers: Workers::new(generation << 32, options.worker_timeout),
            reports: Reports::default(),
            policy: options.scale.clone(),
            scale: Mutex::default(),
            rules: Arc::new(Rules::new(guard.clone(), options.connections.rate)),
            journal_bytes: AtomicU64::new(0),
            stopping: watch::Sender::new(false),
        });
        Ok(Self { shared, guard, torn })
    }

    /// What a crash had left of the last commit, and was cut off.
    #[must_use]
    pub fn torn(&self) -> Option<&Torn> {
        self.torn.as_ref()
    }

    /// What is to be done now and then.
    pub(super) fn keeper(
        &self,
        scaler: Option<Arc<dyn Scaler>>,
        disk: Arc<dyn Disk>,
        folder: PathBuf,
    ) -> Keeper {
        Keeper { shared: Arc::clone(&self.shared), scaler, disk, folder, ticks: 0 }
    }

    /// The dispatcher was stopped, or cannot go on.
    pub(super) fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let (mut stopping, mut failed) =
            (self.shared.stopping.subscribe(), self.shared.desk.failed());
        async move {
            tokio::select! {
                _ = stopping.wait_for(|stopping| *stopping) => {}
                _ = failed.wait_for(Option::is_some) => {}
            }
        }
    }

    /// Serves connections until `end`; what is under way then has [`ENDING`] left.
    pub(super) async fn serve(
        &self,
        incoming: impl Stream<Item = io::Result<Connection>>,
        limits: &ConnectionLimits,
        end: impl Future<Output = ()>,
    ) {
        let shared = &self.shared;
        let service = DispatcherServer::new(Service(Arc::clone(shared)))
            .max_decoding_message_size(LONGEST_MESSAGE)
            .max_encoding_message_size(LONGEST_MESSAGE);
        let (health, health_service) = tonic_health::server::health_reporter();
        health.set_serving::<DispatcherServer<Service>>().await;
        let reflection = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(proto::DESCRIPTOR)
            .build_v1()
            .expect("the description was made by the build");
        let (ending, mut ended) = watch::channel(false);
        let server = tonic::transport::Server::builder()
            .layer(Gate(Arc::clone(&shared.rules)))
            .max_concurrent_streams(limits.streams)
            .http2_keepalive_interval(Some(Duration::from_secs(10)))
            .http2_keepalive_timeout(Some(Duration::from_secs(10)))
            .http2_max_header_list_size(16 << 10)
            .add_service(service)
            .add_service(health_service)
            .add_service(reflection)
            .serve_with_incoming_shutdown(incoming, async move {
                end.await;
                ending.send_replace(true);
            });
        tokio::select! {
            served = server => if let Err(error) = served {
                shared.desk.stop(&format!("cannot serve: {error}"));
            },
            // Clients that do not let go are left.
            () = async {
                let _ = ended.wait_for(|ended| *ended).await;
                tokio::time::sleep(ENDING).await;
            } => {}
        }
    }

    /// Serves whoever connects, and does what is to be done now and then, on the runtime that this is
    /// called in and on no other thread. For simulations.
    ///
    /// It does not end by itself: one that cannot go on says so to whoever asks until it is dropped,
    /// since in which order connections are told of an end is up to chance.
    pub async fn simulate(&self, options: &Options, listener: impl Listener) {
        let (disk, folder) = (Arc::clone(&options.disk), options.journal.clone());
        let mut keeper = self.keeper(options.scaler.clone(), disk, folder);
        tokio::spawn(async move {
            while keeper.tick().is_ok() {
                tokio::time::sleep(TICK).await;
            }
        });
        let limits = &options.connections;
        self.serve(admit_all(listener, limits, None), limits, std::future::pending()).await;
    }
}
