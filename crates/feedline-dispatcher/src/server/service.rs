//! What is asked over the network: read, passed on, answered.

use super::desk::Stopped;
use super::store::StoreError;
use super::{Shared, status};
use feedline_rpc::convert::Call;
use feedline_rpc::proto::dispatcher_server::Dispatcher;
use feedline_rpc::{CHUNK, proto};
use feedline_wire::control::{Beat, Dataset, DatasetId, Orders, Report, WorkerKey};
use feedline_wire::token::Token;
use feedline_wire::{JobId, Refusal, Reply, Request as Asked};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

/// No name is longer.
const LONGEST_NAME: usize = 256;
/// Nobody is left without an answer for longer.
const LONGEST_POLL: Duration = Duration::from_secs(30);
/// A blob that stands still for so long is given up.
const STALLED: Duration = Duration::from_secs(30);

/// The dispatcher as the network sees it.
#[derive(Clone, Debug)]
pub(crate) struct Service(pub Arc<Shared>);

type Answer<T> = Result<Response<T>, Status>;

impl From<Stopped> for Status {
    fn from(stopped: Stopped) -> Self {
        Self::unavailable(stopped.to_string())
    }
}

impl From<StoreError> for Status {
    fn from(error: StoreError) -> Self {
        let said = error.to_string();
        match error {
            StoreError::Missing(_) => Self::not_found(said),
            StoreError::Invalid(_) => Self::invalid_argument(said),
            StoreError::Full(_) => Self::resource_exhausted(said),
            StoreError::InUse(_) => Self::failed_precondition(said),
            StoreError::Disk(_) => Self::data_loss(said),
        }
    }
}

impl Service {
    /// Does what waits for the disk where nobody else waits for it.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Status> {
        if self.0.desk.is_simulated() {
            return Ok(work()?);
        }
        let done = tokio::task::spawn_blocking(work).await;
        Ok(done.map_err(|_| Status::internal("the dispatcher broke while it used its disk"))??)
    }

    async fn ask<M>(
        &self,
        request: Request<M>,
        call: impl FnOnce(M) -> Call,
    ) -> Answer<proto::Reply> {
        let (_, extensions, message) = request.into_parts();
        let request = Asked::try_from(call(message))?;
        self.permit(extensions.get(), &request)?;
        let reply = match self.refused(&request) {
            Some(refusal) => Reply::Refused(refusal),
            None => self.0.desk.ask(&request).await?,
        };
        if let Reply::Closed = reply
            && let Asked::CloseJob { job } = request
        {
            self.0.reports.forget(job);
        }
        Ok(Response::new((&reply).into()))
    }

    /// Whether a token covers the job that a request is about.
    fn permit(&self, token: Option<&Token>, request: &Asked) -> Result<(), Status> {
        match request {
            Asked::OpenJob { name, .. } => permit_name(token, &name.0),
            Asked::Attach { seat, .. } | Asked::Get { seat, .. } | Asked::Commit { seat, .. } => {
                self.permit_job(token, seat.job)
            }
            Asked::Restore { job, .. } | Asked::Release { job, .. } | Asked::CloseJob { job } => {
                self.permit_job(token, *job)
            }
        }
    }

    fn permit_job(&self, token: Option<&Token>, job: JobId) -> Result<(), Status> {
        let Some(token) = token.filter(|token| token.jobs.is_some()) else { return Ok(()) };
        let name = self.0.desk.look(|state, _, _| state.job(job).map(|job| job.name().0.clone()));
        // Whether there is such a job is none of the bearer's business.
        permit_name(Some(token), &name.ok_or_else(not_covered)?)
    }

    /// What the core cannot know: whether workers could find out what a new job is about.
    fn refused(&self, request: &Asked) -> Option<Refusal> {
        if let Asked::Restore { hash, .. } = request
            && hash.len() > LONGEST_NAME
        {
            return Some(Refusal::Mismatch("what names a state has at most 256 bytes".into()));
        }
        let Asked::OpenJob { name, description, .. } = request else { return None };
        let proper = |name: &str| {
            (1..=LONGEST_NAME).contains(&name.len()) && !name.contains(char::is_control)
        };
        if !proper(&name.0) || !proper(&description.dataset) {
            let wrong = "names of jobs and datasets have 1 to 256 bytes, and no control characters";
            return Some(Refusal::Mismatch(wrong.into()));
        }
        let dataset = DatasetId::of(description);
        let known = self.0.store.touch(&dataset)
            || self.0.desk.look(|state, _, _| state.find(name).is_some());
        (!known).then(|| {
            Refusal::Mismatch(format!(
                "there is no dataset {dataset}: register it, then open the job"
            ))
        })
    }
}

fn permit_name(token: Option<&Token>, name: &str) -> Result<(), Status> {
    match token.is_none_or(|token| token.covers(name)) {
        true => Ok(()),
        false => Err(not_covered()),
    }
}

fn not_covered() -> Status {
    Status::permission_denied("the token does not cover this job")
}

#[tonic::async_trait]
impl Dispatcher for Service {
    async fn open_job(&self, request: Request<proto::OpenJobRequest>) -> Answer<proto::Reply> {
        self.ask(request, Call::OpenJob).await
    }

    async fn restore(&self, request: Request<proto::RestoreRequest>) -> Answer<proto::Reply> {
        self.ask(request, Call::Restore).await
    }

    async fn attach(&self, request: Request<proto::AttachRequest>) -> Answer<proto::Reply> {
        self.ask(request, Call::Attach).await
    }

    async fn get(&self, request: Request<proto::GetRequest>) -> Answer<proto::Reply> {
        self.ask(request, Call::Get).await
    }

    async fn commit(&self, request: Request<proto::CommitRequest>) -> Answer<proto::Reply> {
        self.ask(request, Call::Commit).await
    }

    async fn release(&self, request: Request<proto::ReleaseRequest>) -> Answer<proto::Reply> {
        self.ask(request, Call::Release).await
    }

    async fn close_job(&self, request: Request<proto::CloseJobRequest>) -> Answer<proto::Reply> {
        self.ask(request, Call::CloseJob).await
    }

    async fn register_dataset(
        &self,
        request: Request<proto::Dataset>,
    ) -> Answer<proto::Registered> {
        let (store, dataset) = (Arc::clone(&self.0.store), Dataset::from(request.into_inner()));
        let (id, missing) = self.blocking(move || store.register(&dataset)).await?;
        Ok(Response::new(proto::Registered { id: id.0, missing }))
    }

    async fn put_blob(
        &self,
        request: Request<Streaming<proto::Chunk>>,
    ) -> Answer<proto::BlobStored> {
        let mut chunks = request.into_inner();
        let mut upload = None;
        loop {
            let chunk = tokio::time::timeout(STALLED, chunks.message()).await;
            let chunk =
                chunk.map_err(|_| Status::deadline_exceeded("the blob came to a halt"))??;
            let Some(proto::Chunk { name, data }) = chunk else { break };
            let (store, taken) = (Arc::clone(&self.0.store), upload.take());
            let added = self.blocking(move || {
                let mut upload = taken.map_or_else(|| store.upload(&name), Ok)?;
                upload.add(&data).map(|()| upload)
            });
            upload = Some(added.await?);
        }
        let upload = upload.ok_or_else(|| Status::invalid_argument("a blob without a name"))?;
        self.blocking(move || upload.finish()).await?;
        Ok(Response::new(proto::BlobStored {}))
    }

    async fn get_dataset(&self, request: Request<proto::DatasetRequest>) -> Answer<proto::Dataset> {
        let (store, id) = (Arc::clone(&self.0.store), DatasetId(request.into_inner().id));
        let dataset = self.blocking(move || store.dataset(&id)).await?;
        Ok(Response::new((&dataset).into()))
    }

    type GetBlobStream = Pin<Box<dyn Stream<Item = Result<proto::Chunk, Status>> + Send>>;

    async fn get_blob(&self, request: Request<proto::BlobRequest>) -> Answer<Self::GetBlobStream> {
        let (store, name) = (Arc::clone(&self.0.store), request.into_inner().name);
        let mut download = self.blocking(move || store.download(&name)).await?;
        let (sender, receiver) = mpsc::channel(2);
        let service = self.clone();
        tokio::spawn(async move {
            loop {
                let read =
                    service.blocking(move || download.next(CHUNK).map(|piece| (download, piece)));
                let (rest, piece) = match read.await {
                    Ok((rest, Some(piece))) => (rest, Ok(piece)),
                    Ok((_, None)) => return,
                    Err(status) => {
                        // Nobody may be left to hear it.
                        let _ = sender.send(Err(status)).await;
                        return;
                    }
                };
                download = rest;
                let sent = tokio::time::timeout(STALLED, sender.send(piece)).await;
                if !matches!(sent, Ok(Ok(()))) {
                    return;
                }
            }
        });
        let chunk = |data: Vec<u8>| proto::Chunk { name: String::new(), data: data.into() };
        let chunks = ReceiverStream::new(receiver).map(move |piece| piece.map(chunk));
        Ok(Response::new(Box::pin(chunks)))
    }

    async fn remove_dataset(
        &self,
        request: Request<proto::DatasetRequest>,
    ) -> Answer<proto::Removed> {
        let id = DatasetId(request.into_inner().id);
        let jobs = self.0.desk.datasets().get(&id).copied().unwrap_or(0);
        let store = Arc::clone(&self.0.store);
        self.blocking(move || store.remove(&id, jobs)).await?;
        Ok(Response::new(proto::Removed {}))
    }

    async fn beat(&self, request: Request<proto::BeatRequest>) -> Answer<proto::Orders> {
        let beat = Beat::try_from(request.into_inner())?;
        let drain = self.0.workers.beat(beat).map_err(Status::invalid_argument)?;
        let datasets = self.0.desk.datasets().into_iter().collect();
        Ok(Response::new((&Orders { datasets, drain }).into()))
    }

    async fn workers(&self, request: Request<proto::WorkersRequest>) -> Answer<proto::Roster> {
        let proto::WorkersRequest { known, patience_ms } = request.into_inner();
        let patience = Duration::from_millis(patience_ms).min(LONGEST_POLL);
        let mut stopping = self.0.stopping.subscribe();
        let roster = tokio::select! {
            roster = self.0.workers.after(known, patience) => roster,
            _ = stopping.wait_for(|stopping| *stopping) => {
                return Err(Status::unavailable("the dispatcher is ending"));
            }
        };
        Ok(Response::new((&roster).into()))
    }

    async fn drain_worker(&self, request: Request<proto::DrainRequest>) -> Answer<proto::Drained> {
        let key = WorkerKey(request.into_inner().key);
        match self.0.workers.drain(key) {
            true => Ok(Response::new(proto::Drained {})),
            false => Err(Status::not_found(format!("there is no worker {key}"))),
        }
    }

    async fn report(&self, request: Request<proto::ReportRequest>) -> Answer<proto::Reported> {
        let token = request.extensions().get::<Token>().cloned();
        let report = Report::from(request.into_inner());
        self.permit_job(token.as_ref(), report.job)?;
        if !self.0.desk.heard(report.job, report.consumer) {
            return Err(Status::not_found(format!(
                "there is no consumer {} of a job {}",
                report.consumer, report.job
            )));
        }
        self.0.reports.note(&report);
        Ok(Response::new(proto::Reported {}))
    }

    async fn status(&self, _: Request<proto::StatusRequest>) -> Answer<proto::StatusReply> {
        Ok(Response::new((&status::status(&self.0)).into()))
    }
}
