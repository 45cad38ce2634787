//! Connections: one runtime, one TLS, and nobody connected to whom the rules do not allow.
//!
//! ```text
//!  web      redirects followed, each looked at ─┐
//!  cloud    redirects refused ──────────────────┼─► resolver ─► addresses looked at ─► connection
//!  access   credentials of this machine ────────┘   (all but `access`)
//! ```

use super::allowed::Rules;
use super::retry::Patience;
use async_trait::async_trait;
use feedline_core::{Error, Result, Scheme, Url};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::client::{HttpClient, HttpConnector, HttpError, HttpErrorKind};
use object_store::client::{HttpRequest, HttpResponse, HttpService};
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::{ClientConfigKey, ClientOptions, ObjectStore, RetryConfig};
use reqwest::dns::{Name, Resolve, Resolving};
use reqwest::redirect::{Attempt, Policy};
use rustls_platform_verifier::BuilderVerifierExt;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// Threads that carry bytes; those who wait for them have their own.
const CARRIERS: usize = 2;
/// How long a server may take to let itself be connected to.
const CONNECTING: Duration = Duration::from_secs(10);
/// Redirects that are followed.
const REDIRECTS: usize = 5;
/// Bytes of a refusal that are looked at.
const REFUSAL: usize = 16 << 10;

/// What a server, or a rule of ours, said instead of giving an object.
#[derive(Clone, Debug)]
pub(crate) enum Refusal {
    /// The server's status, its own word for it, the bucket's region if it told, and how long to wait.
    Status { status: u16, code: String, region: Option<String>, pause: Option<Duration> },
    /// A rule forbids to go there.
    Barred(String),
    /// Nobody gave this machine credentials.
    NoCredentials(String),
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Status { status, code, .. } => write!(f, "{status} {code}"),
            Self::Barred(why) | Self::NoCredentials(why) => write!(f, "{why}"),
        }
    }
}

impl std::error::Error for Refusal {}

/// Everything that is needed to reach objects.
pub(crate) struct Net {
    runtime: Option<Runtime>,
    /// For web servers.
    pub web: reqwest::Client,
    connector: Connector,
    environment: Environment,
    stores: Mutex<HashMap<(Scheme, String), Arc<dyn ObjectStore>>>,
}

/// The settings of stores: variables, as processes have them.
pub(crate) type Environment = Arc<[(String, String)]>;

impl Net {
    pub(crate) fn new(
        rules: &Rules,
        patience: &Patience,
        environment: Environment,
    ) -> Result<Self> {
        let failed = |error: io::Error| Error::unavailable("a runtime for connections", error);
        let runtime = Builder::new_multi_thread()
            .worker_threads(CARRIERS)
            .max_blocking_threads(8)
            .thread_keep_alive(Duration::from_secs(2))
            .thread_name("feedline-net")
            .enable_all()
            .build()
            .map_err(failed)?;
        let rules = Arc::new(rules.clone());
        let tls = tls()?;
        let client = |policy: Policy, connecting: Duration, guarded: bool| {
            let client = reqwest::Client::builder()
                .user_agent(concat!("feedline/", env!("CARGO_PKG_VERSION")))
                .redirect(policy)
                .connect_timeout(connecting)
                .read_timeout(patience.silence)
                .http1_only()
                .no_proxy()
                .referer(false)
                .tls_backend_preconfigured(tls.clone());
            let client = match guarded {
                true => client.dns_resolver(Resolver { rules: Arc::clone(&rules) }),
                false => client,
            };
            client.build().map_err(|error| {
                Error::Source(format!("connections cannot be made here: {}", error.without_url()))
            })
        };
        let following = Arc::clone(&rules);
        let web = Policy::custom(move |attempt| follow(&following, attempt));
        let connector = Connector {
            cloud: client(Policy::none(), CONNECTING, true)?,
            access: client(Policy::none(), Duration::from_secs(1), false)?,
            plain: environment.iter().any(|(name, value)| {
                let named = ["AWS_ALLOW_HTTP", "AZURE_ALLOW_HTTP", "GOOGLE_ALLOW_HTTP"];
                named.contains(&&name[..]) && (value == "true" || value == "1")
            }),
        };
        let web = client(web, CONNECTING, true)?;
        let stores = Mutex::default();
        Ok(Self { runtime: Some(runtime), web, connector, environment, stores })
    }

    /// Waits for something on the caller's thread, while the runtime's threads carry bytes.
    pub(crate) fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.as_ref().expect("there until this is dropped").block_on(work)
    }

    /// The store of a bucket, made when it is first asked for.
    pub(crate) fn store(&self, url: &Url) -> Result<Arc<dyn ObjectStore>> {
        let key = (url.scheme(), url.host());
        let mut stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = stores.get(&key) {
            return Ok(Arc::clone(store));
        }
        let store = self.make(url)?;
        stores.insert(key, Arc::clone(&store));
        Ok(store)
    }

    fn make(&self, url: &Url) -> Result<Arc<dyn ObjectStore>> {
        let (bucket, connector) = (url.host(), self.connector.clone());
        // Tries are counted in one place, which is not there.
        let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        let options = ClientOptions::new();
        let settings = |prefix: &'static str| {
            let named = self.environment.iter().filter(move |(name, _)| name.starts_with(prefix));
            named.map(|(name, value)| (name.to_ascii_lowercase(), value.clone()))
        };
        let failed = |error: object_store::Error| cannot_use(url, &error);
        Ok(match url.scheme() {
            Scheme::S3 => Arc::new(
                settings("AWS_")
                    .filter_map(|(name, value)| Some((name.parse().ok()?, value)))
                    .fold(AmazonS3Builder::new(), |builder, (key, value)| {
                        builder.with_config(key, value)
                    })
                    .with_bucket_name(bucket)
                    .with_client_options(options)
                    .with_retry(retry)
                    .with_http_connector(connector)
                    .build()
                    .map_err(failed)?,
            ),
            Scheme::Gs => Arc::new(
                settings("GOOGLE_")
                    .filter_map(|(name, value)| Some((name.parse().ok()?, value)))
                    .fold(GoogleCloudStorageBuilder::new(), |builder, (key, value)| {
                        builder.with_config(key, value)
                    })
                    .with_bucket_name(bucket)
                    .with_client_options(options)
                    .with_retry(retry)
                    .with_http_connector(connector)
                    .build()
                    .map_err(failed)?,
            ),
            Scheme::Az => Arc::new(
                settings("AZURE_")
                    .chain(settings("IDENTITY_ENDPOINT"))
                    .filter_map(|(name, value)| Some((name.parse().ok()?, value)))
                    .fold(MicrosoftAzureBuilder::new(), |builder, (key, value)| {
                        builder.with_config(key, value)
                    })
                    .with_container_name(bucket)
                    .with_client_options(options)
                    .with_retry(retry)
                    .with_http_connector(connector)
                    .build()
                    .map_err(failed)?,
            ),
            Scheme::Http | Scheme::Https => {
                return Err(Error::Internal(format!("{url} has no bucket")));
            }
        })
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // A name that is being resolved may hold its thread for long; nobody waits for it.
            runtime.shutdown_timeout(Duration::from_millis(200));
        }
    }
}

impl std::fmt::Debug for Net {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Net")
    }
}

/// Settings that make no store. What they are is not repeated: they may be secret.
fn cannot_use(url: &Url, error: &object_store::Error) -> Error {
    let text = error.to_string();
    let hint = match url.scheme() {
        Scheme::Az if text.to_ascii_lowercase().contains("account") => {
            "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or their like"
        }
        Scheme::Az => "look at the variables AZURE_…",
        Scheme::Gs => "GOOGLE_APPLICATION_CREDENTIALS names a file with an account's key",
        _ => "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY go together",
    };
    Error::Source(format!("{url} cannot be read with this machine's settings; {hint}"))
}

/// The TLS of all connections: certificates as this system knows them.
fn tls() -> Result<rustls::ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let failed = |error: rustls::Error| Error::Source(format!("TLS cannot be used here: {error}"));
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_platform_verifier())
        .map_err(failed)?;
    Ok(config.with_no_client_auth())
}

/// Whether a redirect is followed.
fn follow(rules: &Rules, attempt: Attempt<'_>) -> reqwest::redirect::Action {
    let barred = |attempt: Attempt<'_>, why: String| attempt.error(Refusal::Barred(why));
    if attempt.previous().len() > REDIRECTS {
        return barred(attempt, format!("it is redirected more than {REDIRECTS} times"));
    }
    // The query of a redirect is the server's own: it is used, and never shown.
    let mut plain = attempt.url().clone();
    plain.set_query(None);
    plain.set_fragment(None);
    let url = match Url::parse(plain.as_str()) {
        Ok(url) => url,
        Err(error) => return barred(attempt, format!("it is redirected, and {error}")),
    };
    let from_tls = attempt.previous().last().is_some_and(|from| from.scheme() == "https");
    if from_tls && url.scheme() == Scheme::Http {
        return barred(attempt, format!("it is redirected to {url}, without TLS"));
    }
    match rules.check(&url) {
        Ok(()) => attempt.follow(),
        Err(error) => barred(attempt, format!("it is redirected, and {error}")),
    }
}

/// Resolves names to addresses that may be connected to. What it gives is what is connected to, so a
/// name that leads elsewhere a moment later gains nothing.
struct Resolver {
    rules: Arc<Rules>,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let rules = Arc::clone(&self.rules);
        Box::pin(async move {
            let name = name.as_str();
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name, 0)).await?.collect();
            for address in &found {
                rules.check_resolved(name, address.ip()).map_err(Refusal::Barred)?;
            }
            Ok(Box::new(found.into_iter()) as reqwest::dns::Addrs)
        })
    }
}

/// Makes the clients that stores of buckets speak through.
#[derive(Clone, Debug)]
struct Connector {
    cloud: reqwest::Client,
    access: reqwest::Client,
    /// Whether a store may be spoken to without TLS.
    plain: bool,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        // Plain http is asked for only where this machine's credentials are: stores are made without.
        let access =
            options.get_config_value(&ClientConfigKey::AllowHttp).as_deref() == Some("true");
        Ok(match access {
            true => HttpClient::new(Access { client: self.access.clone() }),
            false => HttpClient::new(Cloud { client: self.cloud.clone(), plain: self.plain }),
        })
    }
}

/// Asks this machine's provider for credentials, at addresses that data may not come from.
#[derive(Debug)]
struct Access {
    client: reqwest::Client,
}

#[async_trait]
impl HttpService for Access {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let answer = HttpService::call(&self.client, request).await;
        let none = |why: &str| {
            HttpError::new(HttpErrorKind::Unknown, Refusal::NoCredentials(why.to_owned()))
        };
        match answer {
            Err(_) => Err(none("this machine's provider gives none")),
            Ok(answer) if answer.status().as_u16() == 404 => {
                Err(none("this machine's provider knows of none"))
            }
            Ok(answer) => Ok(answer),
        }
    }
}

/// Asks a store of buckets.
#[derive(Debug)]
struct Cloud {
    client: reqwest::Client,
    plain: bool,
}

#[async_trait]
impl HttpService for Cloud {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let barred = |why: String| HttpError::new(HttpErrorKind::Unknown, Refusal::Barred(why));
        let uri = request.uri();
        let host = format!(
            "{}://{}/",
            uri.scheme_str().unwrap_or_default(),
            uri.authority().map_or("", |authority| authority.as_str())
        );
        // Which server speaks for a bucket is this machine's setting, so it may be a near one.
        let url = Url::parse(&host).map_err(|error| barred(format!("its endpoint: {error}")))?;
        let rules = Rules { allowed: None, plain_http: self.plain };
        rules.check_web(&url).map_err(|_| {
            barred(format!(
                "its endpoint {url} would be spoken to without TLS, or belongs to this machine's \
                 network; use https, or set AWS_ALLOW_HTTP=true"
            ))
        })?;
        let answer = HttpService::call(&self.client, request).await?;
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let header = |name: &str| {
            let value = answer.headers().get(name).and_then(|value| value.to_str().ok());
            value.map(str::to_owned)
        };
        let region = header("x-amz-bucket-region");
        let pause = header("retry-after").as_deref().and_then(seconds);
        let named = header("x-ms-error-code");
        let code = named.unwrap_or(code_of(&beginning(answer).await));
        let refusal = Refusal::Status { status: status.as_u16(), code, region, pause };
        Err(HttpError::new(HttpErrorKind::Unknown, refusal))
    }
}

/// How long a server asks to be left alone.
pub(crate) fn seconds(text: &str) -> Option<Duration> {
    text.trim().parse().ok().map(Duration::from_secs)
}

/// The beginning of an answer, as text.
async fn beginning(answer: HttpResponse) -> String {
    use futures_util::StreamExt;
    let mut bytes = Vec::new();
    let mut stream = answer.into_body().bytes_stream();
    while let Some(Ok(chunk)) = stream.next().await {
        bytes.extend_from_slice(&chunk);
        if bytes.len() >= REFUSAL {
            break;
        }
    }
    bytes.truncate(REFUSAL);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The word that a store has for its refusal: `<Code>SlowDown</Code>`. Of what a server says nothing
/// else is shown, for some repeat what they were sent.
pub(crate) fn code_of(body: &str) -> String {
    let inside = body.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
    let word = inside.map_or("", |(code, _)| code.trim());
    let sound = word.len() <= 64 && word.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if sound { word.to_owned() } else { String::new() }
}
