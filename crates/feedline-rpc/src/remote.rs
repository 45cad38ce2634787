//! The dispatcher as workers and clients call it: from plain threads, over the network.
//!
//! ```text
//!  caller ──(a future)──► thread with a runtime ──► Calls
//!     ▲                          │
//!     └────── the answer ◄───────┘      nobody waits longer than its patience
//! ```

use crate::address::Address;
use crate::calls::{Calls, PATIENCE, RemoteOptions};
use feedline_core::Blobs;
use feedline_wire::control::{
    Beat, Control, Dataset, DatasetId, Failure, Orders, Report, Roster, WorkerKey,
};
use feedline_wire::status::Status;
use feedline_wire::{Reply, Request};
use std::future::Future;
use std::io;
use std::sync::mpsc;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long dropping waits for the thread.
const ENDING: Duration = Duration::from_millis(100);

/// A dispatcher over the network: [`Calls`] for threads, which share it by reference.
///
/// A value that was made before `fork()` says so when it is used after it, and does not hang.
#[derive(Debug)]
pub struct Remote {
    address: Address,
    process: u32,
    inner: Option<Inner>,
}

#[derive(Debug)]
struct Inner {
    handle: tokio::runtime::Handle,
    calls: Calls,
    /// Dropped, it ends the thread, and whatever waits for it.
    stop: std::sync::Mutex<Option<oneshot::Sender<()>>>,
    ended: std::sync::Mutex<mpsc::Receiver<()>>,
}

impl Remote {
    /// A dispatcher at an address such as `feedline://host:port`. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// As [`Remote::with`].
    pub fn new(address: &str) -> Result<Self, Failure> {
        Self::with(&RemoteOptions::new(address))
    }

    /// A dispatcher, with a token and TLS where they are needed. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// As [`Calls::with`]; [`Failure::Unavailable`] if there is no thread to be had.
    pub fn with(options: &RemoteOptions) -> Result<Self, Failure> {
        let unavailable =
            |error: io::Error| Failure::Unavailable(format!("no thread for it: {error}"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(unavailable)?;
        let handle = runtime.handle().clone();
        let calls = {
            let _entered = handle.enter();
            Calls::with(options)?
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let (ending, ended) = mpsc::channel();
        let thread = std::thread::Builder::new().name("feedline-remote".to_owned());
        thread
            .spawn(move || {
                // Ends when the other end is dropped.
                let _ = runtime.block_on(stopped);
                // A name may be looked up still, which nobody waits for.
                runtime.shutdown_background();
                drop(ending);
            })
            .map_err(unavailable)?;
        let ended = std::sync::Mutex::new(ended);
        let stop = std::sync::Mutex::new(Some(stop));
        let address = calls.address().clone();
        let inner = Some(Inner { handle, calls, stop, ended });
        Ok(Self { address, process: std::process::id(), inner })
    }

    /// Where the dispatcher is.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// How everything stands.
    ///
    /// # Errors
    ///
    /// If there is no answer.
    pub fn status(&self) -> Result<Status, Failure> {
        self.call(Some(PATIENCE), |calls| async move { calls.status().await })
    }

    /// Has the dispatcher forget a dataset.
    ///
    /// # Errors
    ///
    /// If there is no answer, no such dataset, or a job uses it.
    pub fn remove_dataset(&self, id: &DatasetId) -> Result<(), Failure> {
        let id = id.clone();
        self.call(Some(PATIENCE), |calls| async move { calls.remove_dataset(&id).await })
    }

    /// Asks a worker to end, as after SIGTERM.
    ///
    /// # Errors
    ///
    /// If there is no answer, or no such worker.
    pub fn drain_worker(&self, worker: WorkerKey) -> Result<(), Failure> {
        self.call(Some(PATIENCE), |calls| async move { calls.drain_worker(worker).await })
    }

    /// Has a call made by the runtime, which keeps time by itself. `patience` is for when it is gone,
    /// or the machine stands still.
    fn call<T, F>(
        &self,
        patience: Option<Duration>,
        call: impl FnOnce(Calls) -> F,
    ) -> Result<T, Failure>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let here = std::process::id();
        let Some(inner) = self.inner.as_ref().filter(|_| here == self.process) else {
            return Err(Failure::Invalid(format!(
                "the connection to {} was made in process {}, and this is process {here}: make a new \
                 one after fork()",
                self.address, self.process
            )));
        };
        let (answer, answered) = mpsc::sync_channel(1);
        let call = call(inner.calls.clone());
        inner.handle.spawn(async move {
            // The caller may have given up.
            let _ = answer.send(call.await);
        });
        let silent = || Failure::Unavailable(format!("{}: no answer in time", self.address));
        match patience {
            Some(patience) => {
                let patience = patience.saturating_add(Duration::from_secs(2));
                answered.recv_timeout(patience).unwrap_or_else(|_| Err(silent()))
            }
            None => answered.recv().unwrap_or_else(|_| Err(silent())),
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        let Some(inner) = self.inner.take() else { return };
        if std::process::id() != self.process {
            // Its thread is in another process. Whatever it had locked stays locked here.
            std::mem::forget(inner);
            return;
        }
        let Inner { handle: _, calls, stop, ended } = inner;
        drop(calls);
        drop(stop);
        let ended = ended.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        // It ends by itself, later, if it does not now.
        let _ = ended.recv_timeout(ENDING);
    }
}

impl Control for Remote {
    fn close(&self) {
        if let Some(inner) = self.inner.as_ref().filter(|_| std::process::id() == self.process) {
            drop(inner.stop.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take());
        }
    }

    fn ask(&self, request: &Request, patience: Duration) -> Result<Reply, Failure> {
        self.call(Some(patience), |calls| calls.ask(request, patience))
    }

    fn register(&self, dataset: &Dataset, blobs: &Blobs) -> Result<DatasetId, Failure> {
        let (dataset, blobs) = (dataset.clone(), blobs.clone());
        self.call(None, |calls| async move { calls.register(&dataset, &blobs).await })
    }

    fn dataset(&self, id: &DatasetId) -> Result<(Dataset, Blobs), Failure> {
        let id = id.clone();
        self.call(None, |calls| async move { calls.dataset(&id).await })
    }

    fn beat(&self, beat: &Beat) -> Result<Orders, Failure> {
        self.call(Some(PATIENCE / 2), |calls| calls.beat(beat))
    }

    fn workers(&self, known: u64, patience: Duration) -> Result<Roster, Failure> {
        let limit = patience.saturating_add(PATIENCE);
        self.call(Some(limit), |calls| async move { calls.workers(known, patience).await })
    }

    fn report(&self, report: &Report) -> Result<(), Failure> {
        self.call(Some(PATIENCE / 2), |calls| calls.report(report))
    }
}
