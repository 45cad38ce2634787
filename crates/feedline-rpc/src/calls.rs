//! The dispatcher as those call it who have a runtime: what is asked, until it is answered or patience
//! ends.
//!
//! ```text
//!  value ──► message ──► connection, made again when it breaks ──► message ──► value
//!               ▲                        │
//!               └── nobody is there: again, a little later
//! ```

use crate::address::{Address, AddressError};
use crate::blob;
use crate::convert::Call;
use crate::proto::dispatcher_client::DispatcherClient;
use crate::{BEARER, CHUNK, LONGEST_MESSAGE, PROTOCOL, PROTOCOL_HEADER, TOKEN_HEADER, proto};
use feedline_core::{Blobs, Tensor};
use feedline_wire::control::{
    Beat, Dataset, DatasetId, Failure, Orders, Report, Roster, WorkerKey,
};
use feedline_wire::status::Status;
use feedline_wire::tls::{ClientTls, Trust};
use feedline_wire::token::TokenFile;
use feedline_wire::{Reply, Request};
use hyper_util::rt::TokioIo;
use prost::Message;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tonic::metadata::MetadataValue;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status as Answer};

/// How long calls wait that name no patience of their own.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// How long a dataset and its blobs may take.
const LONG_PATIENCE: Duration = Duration::from_secs(600);
/// How long a connection may take.
const CONNECTING: Duration = Duration::from_secs(3);
/// The longest blob that is taken from a dispatcher.
const LONGEST_BLOB: usize = 4 << 30;

type Client = DispatcherClient<InterceptedService<Channel, Headers>>;

/// How a dispatcher is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteOptions {
    /// Where it is: `feedline://host:port` or `feedline+unix:///path`.
    pub address: String,
    /// The file of the token, read again when it changes.
    pub token: Option<PathBuf>,
    /// How it is trusted; without, what is said can be read by others on the way.
    pub tls: Option<ClientTls>,
    /// Lets a token be sent to another host without TLS.
    pub insecure: bool,
}

impl RemoteOptions {
    /// An address, without token and TLS.
    #[must_use]
    pub fn new(address: &str) -> Self {
        Self { address: address.to_owned(), token: None, tls: None, insecure: false }
    }
}

/// What every call carries.
#[derive(Clone, Debug)]
struct Headers {
    token: Option<TokenFile>,
}

impl tonic::service::Interceptor for Headers {
    fn call(&mut self, mut request: tonic::Request<()>) -> Result<tonic::Request<()>, Answer> {
        let metadata = request.metadata_mut();
        metadata.insert(PROTOCOL_HEADER, MetadataValue::from_static(PROTOCOL));
        if let Some(token) = &self.token {
            let value = format!("{BEARER}{}", token.get().expose());
            let mut value = MetadataValue::try_from(value)
                .map_err(|_| Answer::unauthenticated("the token has odd letters"))?;
            // Neither logged nor kept by what is below.
            value.set_sensitive(true);
            metadata.insert(TOKEN_HEADER, value);
        }
        Ok(request)
    }
}

/// What can be said on a connection.
pub trait Duplex: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin {}

impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin> Duplex for T {}

/// Makes connections.
#[derive(Clone)]
struct Connector {
    address: Address,
    tls: Option<(Trust, ServerName<'static>)>,
}

impl Connector {
    fn new(address: Address, tls: Option<&ClientTls>) -> Result<Self, String> {
        let tls = match (&address, tls) {
            (Address::Tcp { host, .. }, Some(tls)) => {
                let trust = tls.trust(&["h2"])?;
                let name = trust.name_of(host)?;
                Some((trust, name))
            }
            _ => None,
        };
        Ok(Self { address, tls })
    }

    async fn connect(self) -> io::Result<Box<dyn Duplex>> {
        let stream: Box<dyn Duplex> = match &self.address {
            Address::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                match self.tls {
                    None => Box::new(stream),
                    Some((trust, name)) => {
                        let tls = TlsConnector::from(trust.config());
                        Box::new(tls.connect(name, stream).await?)
                    }
                }
            }
            Address::Unix(path) => Box::new(UnixStream::connect(path).await?),
        };
        Ok(stream)
    }
}

/// The dispatcher, called from a runtime. Clones share one connection.
///
/// It connects when it is first asked, and again when the connection breaks. Calls that find nobody
/// are repeated until their patience ends.
#[derive(Clone, Debug)]
pub struct Calls {
    address: Address,
    client: Client,
}

impl Calls {
    /// A dispatcher, with a token and TLS where they are needed. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`Failure::Invalid`] if the address is none, a file cannot be used, or a token would be sent in
    /// the clear.
    ///
    /// # Panics
    ///
    /// Outside of a runtime.
    pub fn with(options: &RemoteOptions) -> Result<Self, Failure> {
        let RemoteOptions { address, token, tls, insecure } = options;
        let address: Address =
            address.parse().map_err(|error: AddressError| Failure::Invalid(error.to_string()))?;
        if token.is_some() && tls.is_none() && !insecure && !address.is_local() {
            return Err(Failure::Invalid(format!(
                "a token would travel to {address} in the clear: use TLS"
            )));
        }
        let token = token.as_deref().map(TokenFile::open).transpose().map_err(Failure::Invalid)?;
        let connector = Connector::new(address.clone(), tls.as_ref()).map_err(Failure::Invalid)?;
        Ok(Self::over(address, token, move || connector.clone().connect()))
    }

    /// A dispatcher that is reached by connections of the caller's own making, as in a simulation. The
    /// address is what errors call it.
    ///
    /// # Panics
    ///
    /// Outside of a runtime.
    pub fn over<F>(
        address: Address,
        token: Option<TokenFile>,
        connect: impl Fn() -> F + Clone + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = io::Result<Box<dyn Duplex>>> + Send + 'static,
    {
        let connector = tower::service_fn(move |_| {
            let connecting = connect();
            async move { connecting.await.map(TokioIo::new) }
        });
        let channel = Endpoint::from_static("http://feedline")
            .connect_timeout(CONNECTING)
            .http2_keep_alive_interval(Duration::from_secs(5))
            .keep_alive_timeout(Duration::from_secs(5))
            .keep_alive_while_idle(true)
            .connect_with_connector_lazy(connector);
        let client = DispatcherClient::with_interceptor(channel, Headers { token })
            .max_decoding_message_size(LONGEST_MESSAGE);
        Self { address, client }
    }

    /// Where the dispatcher is.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Asks what the protocol of windows asks. Waits for an answer for as long as `patience` says.
    ///
    /// # Errors
    ///
    /// If there is no answer. A refusal is one.
    pub fn ask(
        &self,
        request: &Request,
        patience: Duration,
    ) -> impl Future<Output = Result<Reply, Failure>> + Send + use<> {
        let (calls, call) = (self.clone(), Call::from(request));
        async move {
            fits("the request", call.encoded_len())?;
            let reply = calls.call(patience, |mut client, left| {
                let call = call.clone();
                async move {
                    match call {
                        Call::OpenJob(message) => client.open_job(timed(message, left)).await,
                        Call::Restore(message) => client.restore(timed(message, left)).await,
                        Call::Attach(message) => client.attach(timed(message, left)).await,
                        Call::Get(message) => client.get(timed(message, left)).await,
                        Call::Commit(message) => client.commit(timed(message, left)).await,
                        Call::Release(message) => client.release(timed(message, left)).await,
                        Call::CloseJob(message) => client.close_job(timed(message, left)).await,
                    }
                }
            });
            reply.await?.try_into().map_err(malformed)
        }
    }

    /// How everything stands.
    ///
    /// # Errors
    ///
    /// If there is no answer.
    pub async fn status(&self) -> Result<Status, Failure> {
        let status = self.call(PATIENCE, |mut client, left| async move {
            client.status(timed(proto::StatusRequest {}, left)).await
        });
        status.await?.try_into().map_err(malformed)
    }

    /// Has the dispatcher forget a dataset.
    ///
    /// # Errors
    ///
    /// If there is no answer, no such dataset, or a job uses it.
    pub async fn remove_dataset(&self, id: &DatasetId) -> Result<(), Failure> {
        let removed = self.call(PATIENCE, |mut client, left| {
            let request = proto::DatasetRequest { id: id.0.clone() };
            async move { client.remove_dataset(timed(request, left)).await }
        });
        removed.await.map(drop)
    }

    /// Asks a worker to end, as after SIGTERM.
    ///
    /// # Errors
    ///
    /// If there is no answer, or no such worker.
    pub async fn drain_worker(&self, worker: WorkerKey) -> Result<(), Failure> {
        let drained = self.call(PATIENCE, |mut client, left| async move {
            client.drain_worker(timed(proto::DrainRequest { key: worker.0 }, left)).await
        });
        drained.await.map(drop)
    }

    /// Registers a dataset, and sends those of its blobs that the dispatcher lacks.
    ///
    /// # Errors
    ///
    /// If there is no answer, or the dataset is refused.
    pub async fn register(&self, dataset: &Dataset, blobs: &Blobs) -> Result<DatasetId, Failure> {
        let message = proto::Dataset::from(dataset);
        fits("the plan and the names of its blobs", message.encoded_len())?;
        for _ in 0..3 {
            let registered = self.call(LONG_PATIENCE / 10, |mut client, left| {
                let request = timed(message.clone(), left);
                async move { client.register_dataset(request).await }
            });
            let registered = registered.await?;
            if registered.missing.is_empty() {
                return Ok(DatasetId(registered.id));
            }
            for name in registered.missing {
                let tensor = blobs.get(&name).cloned().ok_or_else(|| {
                    Failure::Invalid(format!("the dataset names blob {name}, and it was not given"))
                })?;
                let put = self.call(LONG_PATIENCE, |mut client, left| {
                    let chunks = tokio_stream::iter(chunks(name.clone(), tensor.clone()));
                    async move { client.put_blob(timed(chunks, left)).await }
                });
                put.await?;
            }
        }
        Err(Failure::Unavailable("the dispatcher loses blobs as soon as it has them".into()))
    }

    /// A dataset that was registered, with its blobs.
    ///
    /// # Errors
    ///
    /// If there is no answer, or no such dataset.
    pub async fn dataset(&self, id: &DatasetId) -> Result<(Dataset, Blobs), Failure> {
        let dataset = self.call(LONG_PATIENCE / 10, |mut client, left| {
            let request = timed(proto::DatasetRequest { id: id.0.clone() }, left);
            async move { client.get_dataset(request).await }
        });
        let dataset = Dataset::from(dataset.await?);
        if dataset.id() != *id {
            return Err(Failure::Invalid(format!("dataset {id} is not what its name says")));
        }
        let mut blobs = Blobs::new();
        for name in &dataset.blobs {
            let tensor = self.call(LONG_PATIENCE, |client, left| {
                let fetched = fetch_blob(client, name.clone(), left);
                async move { fetched.await.map(Response::new) }
            });
            blobs.insert(name.clone(), tensor.await?);
        }
        Ok((dataset, blobs))
    }

    /// Says that a worker is alive.
    ///
    /// # Errors
    ///
    /// If there is no answer.
    pub fn beat(
        &self,
        beat: &Beat,
    ) -> impl Future<Output = Result<Orders, Failure>> + Send + use<> {
        let (calls, message) = (self.clone(), proto::BeatRequest::from(beat));
        async move {
            fits("the beat", message.encoded_len())?;
            let orders = calls.call(PATIENCE / 2, |mut client, left| {
                let request = timed(message.clone(), left);
                async move { client.beat(request).await }
            });
            Ok(orders.await?.into())
        }
    }

    /// The workers, as soon as their version is not `known`, or when `patience` ends.
    ///
    /// # Errors
    ///
    /// If there is no answer.
    pub async fn workers(&self, known: u64, patience: Duration) -> Result<Roster, Failure> {
        let end = Instant::now() + patience;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let patience_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
            let limit = left.saturating_add(PATIENCE / 2);
            let roster = self.call(limit, |mut client, left| async move {
                let request = timed(proto::WorkersRequest { known, patience_ms }, left);
                client.workers(request).await
            });
            let roster = roster.await?;
            // A dispatcher answers after some time even if nothing has changed.
            if roster.version != known || Instant::now() >= end {
                return Ok(roster.into());
            }
        }
    }

    /// Says how a trainer fares.
    ///
    /// # Errors
    ///
    /// If there is no answer.
    pub fn report(
        &self,
        report: &Report,
    ) -> impl Future<Output = Result<(), Failure>> + Send + use<> {
        let (calls, message) = (self.clone(), proto::ReportRequest::from(report));
        async move {
            let reported = calls.call(PATIENCE / 2, |mut client, left| async move {
                client.report(timed(message, left)).await
            });
            reported.await.map(drop)
        }
    }

    /// Has `attempt` made, again and again while nobody is there.
    async fn call<T, F>(
        &self,
        patience: Duration,
        attempt: impl Fn(Client, Duration) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<Response<T>, Answer>>,
    {
        let answer = persist(patience, |left| attempt(self.client.clone(), left)).await;
        answer.map(Response::into_inner).map_err(|answer| self.failure(&answer))
    }

    fn failure(&self, answer: &Answer) -> Failure {
        let said = format!("{}: {}", self.address, told(answer));
        match answer.code() {
            Code::Unauthenticated | Code::PermissionDenied => Failure::Denied(said),
            Code::DeadlineExceeded | Code::ResourceExhausted => Failure::Unavailable(said),
            code if may_pass(code) => Failure::Unavailable(said),
            _ => Failure::Invalid(answer.message().to_owned()),
        }
    }
}

/// Whether trying again may help.
fn may_pass(code: Code) -> bool {
    matches!(
        code,
        Code::Unavailable | Code::Unknown | Code::Internal | Code::Cancelled | Code::Aborted
    )
}

/// What went wrong, with what is known of the cause.
fn told(answer: &Answer) -> String {
    let mut said = answer.message().to_owned();
    let mut cause = std::error::Error::source(answer);
    while let Some(error) = cause {
        let text = error.to_string();
        if !said.contains(&text) {
            said = format!("{said}: {text}");
        }
        cause = error.source();
    }
    said
}

/// Tries until there is an answer, or patience ends.
async fn persist<T, F: Future<Output = Result<T, Answer>>>(
    patience: Duration,
    attempt: impl Fn(Duration) -> F,
) -> Result<T, Answer> {
    let end = Instant::now() + patience;
    let mut pause = Duration::from_millis(20);
    let mut last = None;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let answer = match timeout_at(end, attempt(left)).await {
            Ok(Err(answer)) if may_pass(answer.code()) => answer,
            Ok(answer) => return answer,
            Err(_) => {
                let silent = || Answer::deadline_exceeded(format!("no answer within {patience:?}"));
                return Err(last.unwrap_or_else(silent));
            }
        };
        if Instant::now() + pause >= end {
            return Err(answer);
        }
        tracing::debug!(code = ?answer.code(), message = answer.message(), "asking again");
        last = Some(answer);
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}

/// A request that tells the server how long anybody waits for it.
fn timed<T>(message: T, left: Duration) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    // Some more, so that it is this end that gives up, with words of its own.
    request.set_timeout(left.saturating_add(Duration::from_secs(1)));
    request
}

fn malformed(malformed: crate::convert::Malformed) -> Failure {
    Failure::Invalid(malformed.to_string())
}

/// Whether a message is short enough to be sent.
fn fits(what: &str, bytes: usize) -> Result<(), Failure> {
    match bytes <= LONGEST_MESSAGE {
        true => Ok(()),
        false => Err(Failure::Invalid(format!(
            "{what} takes {bytes} bytes, and messages have at most {LONGEST_MESSAGE}"
        ))),
    }
}

/// A blob in pieces, the first of which names it.
fn chunks(name: String, tensor: Tensor) -> impl Iterator<Item = proto::Chunk> + Send {
    let (line, offsets) = {
        let (line, _, offsets) = blob::parts(&tensor);
        (line, offsets)
    };
    let total = line.len() + tensor.data().len() + offsets.len();
    (0..total).step_by(CHUNK).map(move |from| {
        let mut data = Vec::with_capacity(CHUNK.min(total - from));
        let mut skip = from;
        for part in [line.as_slice(), tensor.data(), &offsets] {
            let rest = part.get(skip..).unwrap_or_default();
            data.extend_from_slice(&rest[..rest.len().min(CHUNK - data.len())]);
            skip = skip.saturating_sub(part.len());
        }
        let name = if from == 0 { name.clone() } else { String::new() };
        proto::Chunk { name, data: data.into() }
    })
}

async fn fetch_blob(mut client: Client, name: String, left: Duration) -> Result<Tensor, Answer> {
    let request = timed(proto::BlobRequest { name: name.clone() }, left);
    let mut stream = client.get_blob(request).await?.into_inner();
    let mut bytes = Vec::new();
    let stalled = |_| Answer::unavailable(format!("blob {name} came to a halt"));
    while let Some(chunk) = timeout(PATIENCE * 6, stream.message()).await.map_err(stalled)?? {
        if bytes.len() + chunk.data.len() > LONGEST_BLOB {
            return Err(Answer::invalid_argument(format!("blob {name} is too long")));
        }
        bytes.extend_from_slice(&chunk.data);
    }
    let tensor = blob::read(&bytes).map_err(Answer::invalid_argument)?;
    match blob::name(&tensor) == name {
        true => Ok(tensor),
        false => Err(Answer::data_loss(format!("blob {name} is not what its name says"))),
    }
}
