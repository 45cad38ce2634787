//! A few pages over HTTP, for people and monitoring: read only.
//!
//! Whoever serves pages gives a function from a path to a [`Page`]. Requests must name this host
//! (so that no web page elsewhere can have a browser ask), be GET or HEAD, and where a token is
//! asked for, bear it.

use feedline_wire::tls::{Identity, ServerTls};
use feedline_wire::token::{Guard, Role};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, oneshot};
use tokio_rustls::TlsAcceptor;

/// Nobody takes longer to ask, or to be answered.
const PATIENCE: Duration = Duration::from_secs(10);
/// So many ask at once.
const MOST_CONNECTIONS: usize = 64;

/// What is served at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// 200, or what else it is.
    pub status: u16,
    /// Its media type, such as `application/json`.
    pub kind: &'static str,
    /// What it says.
    pub text: String,
    /// Whether it is shown without a token.
    pub open: bool,
}

impl Page {
    /// A page of plain text.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self { status: 200, kind: "text/plain; charset=utf-8", text: text.into(), open: false }
    }

    /// A page of JSON.
    #[must_use]
    pub fn json(text: impl Into<String>) -> Self {
        Self { kind: "application/json", ..Self::text(text) }
    }

    /// What Prometheus reads.
    #[must_use]
    pub fn metrics(text: impl Into<String>) -> Self {
        Self { kind: "text/plain; version=0.0.4; charset=utf-8", ..Self::text(text) }
    }
}

/// Makes the pages: a path goes in, such as `/status`.
pub type Pages = Arc<dyn Fn(&str) -> Option<Page> + Send + Sync>;

/// How pages are served.
#[derive(Clone, Default)]
pub struct HttpOptions {
    /// Names of this host beside `localhost` and its addresses.
    pub names: Vec<String>,
    /// Asks for tokens of operators.
    pub guard: Option<Guard>,
    /// Serves over TLS.
    pub tls: Option<ServerTls>,
    /// Serves other hosts without token and TLS.
    pub insecure: bool,
}

impl fmt::Debug for HttpOptions {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("HttpOptions").field("names", &self.names).finish_non_exhaustive()
    }
}

/// A server of pages. Ends when it is dropped.
#[derive(Debug)]
pub struct HttpServer {
    address: SocketAddr,
    /// Dropped, it ends the thread.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl HttpServer {
    /// Serves pages at an address such as `127.0.0.1:0`.
    ///
    /// # Errors
    ///
    /// If it cannot be bound, or other hosts could ask and neither TLS with tokens nor `insecure` is
    /// set.
    pub fn start(address: &str, options: HttpOptions, pages: Pages) -> Result<Self, String> {
        let failed = |error: io::Error| format!("cannot serve pages at {address}: {error}");
        let listener = std::net::TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let local = listener.local_addr().map_err(failed)?;
        let guarded = options.guard.is_some() && options.tls.is_some();
        if !local.ip().is_loopback() && !guarded && !options.insecure {
            return Err(format!(
                "pages at {address} could be read by other hosts: set TLS and a key for tokens, or \
                 `insecure`"
            ));
        }
        let tls = options.tls.as_ref().map(|tls| tls.identity(&["http/1.1"])).transpose()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(failed)?;
        let (stop, stopped) = oneshot::channel();
        let desk = Arc::new(Desk { options, pages, local: local.ip() });
        let thread = std::thread::Builder::new().name("feedline-http".to_owned());
        let serve = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = accept(listener, tls, desk) => {}
                    _ = stopped => {}
                }
            });
            runtime.shutdown_background();
        };
        let thread = Some(thread.spawn(serve).map_err(failed)?);
        Ok(Self { address: local, stop: Some(stop), thread })
    }

    /// Where it serves.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // It ends by itself, whatever happened to it.
            let _ = thread.join();
        }
    }
}

async fn accept(listener: std::net::TcpListener, tls: Option<Identity>, desk: Arc<Desk>) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    let seats = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        // Those who find no seat wait outside.
        let Ok(seat) = Arc::clone(&seats).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let (tls, desk) = (tls.clone(), Arc::clone(&desk));
        tokio::spawn(async move {
            let _seat = seat;
            // Whoever is slow or breaks off is nobody else's concern.
            let _ = tokio::time::timeout(PATIENCE * 3, async {
                match tls {
                    None => desk.serve(TokioIo::new(stream)).await,
                    Some(identity) => {
                        let tls = TlsAcceptor::from(identity.config());
                        let stream = tokio::time::timeout(PATIENCE, tls.accept(stream)).await;
                        if let Ok(Ok(stream)) = stream {
                            desk.serve(TokioIo::new(stream)).await;
                        }
                    }
                }
            })
            .await;
        });
    }
}

struct Desk {
    options: HttpOptions,
    pages: Pages,
    local: IpAddr,
}

impl Desk {
    async fn serve<I>(self: Arc<Self>, stream: I)
    where
        I: hyper::rt::Read + hyper::rt::Write + Unpin,
    {
        let answer = service_fn(|request: Request<Incoming>| {
            let response = self.answer(&request);
            async move { Ok::<_, Infallible>(response) }
        });
        let served = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(PATIENCE)
            .max_buf_size(16 << 10)
            .serve_connection(stream, answer);
        // Whoever breaks off does not want to know.
        let _ = served.await;
    }

    fn answer<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        let page = self.page(request);
        let status = StatusCode::from_u16(page.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let text = if request.method() == Method::HEAD { String::new() } else { page.text };
        let mut response = Response::new(Full::new(Bytes::from(text)));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(page.kind));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        let policy = HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'");
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }

    fn page<B>(&self, request: &Request<B>) -> Page {
        let wrong = |status, text: &str| Page { status, ..Page::text(format!("{text}\n")) };
        let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
        if !host.is_some_and(|host| self.is_this_host(host)) {
            return wrong(421, "this is another host: ask for it by its own name");
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return wrong(405, "pages can be read, and nothing else");
        }
        let Some(page) = (self.pages)(request.uri().path()) else {
            return wrong(404, "there is no such page");
        };
        match page.open || self.is_operator(request) {
            true => page,
            false => wrong(401, "a token of an operator is needed"),
        }
    }

    fn is_this_host(&self, host: &str) -> bool {
        let name = match host.strip_prefix('[') {
            Some(rest) => rest.split_once(']').map_or("", |(name, _)| name),
            None => host.split(':').next().unwrap_or_default(),
        };
        let own = |address: IpAddr| {
            address.is_loopback() || address == self.local || self.local.is_unspecified()
        };
        name == "localhost"
            || name.parse().is_ok_and(own)
            || self.options.names.iter().any(|known| known.eq_ignore_ascii_case(name))
    }

    fn is_operator<B>(&self, request: &Request<B>) -> bool {
        let Some(guard) = &self.options.guard else { return true };
        let token = request.headers().get(header::AUTHORIZATION);
        let token = token.and_then(|token| token.to_str().ok()?.strip_prefix("Bearer "));
        let verified = token.map(|token| guard.check(token));
        matches!(verified, Some(Ok(token)) if token.role == Role::Operator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use feedline_wire::token::{Key, Token};
    use std::io::{Read, Write};
    use std::net::TcpStream;

    fn pages() -> Pages {
        Arc::new(|path| match path {
            "/health" => Some(Page { open: true, ..Page::text("ok\n") }),
            "/status" => Some(Page::json("{}")),
            _ => None,
        })
    }

    fn ask(server: &HttpServer, request: &str) -> String {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE * 2)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn get(server: &HttpServer, path: &str, headers: &str) -> String {
        ask(server, &format!("GET {path} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n"))
    }

    #[test]
    fn pages_are_read_and_nothing_else() {
        let server = HttpServer::start("127.0.0.1:0", HttpOptions::default(), pages()).unwrap();
        let host = format!("Host: {}\r\n", server.address());
        let found = get(&server, "/status?x=1", &host);
        assert!(found.starts_with("HTTP/1.1 200") && found.ends_with("{}"), "{found}");
        assert!(found.contains("nosniff") && found.contains("default-src 'none'"), "{found}");
        assert!(get(&server, "/other", &host).starts_with("HTTP/1.1 404"));
        assert!(get(&server, "/../status", &host).starts_with("HTTP/1.1 404"));
        for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
            let request = format!(
                "{method} /status HTTP/1.1\r\n{host}Content-Length: 0\r\nConnection: close\r\n\r\n"
            );
            assert!(ask(&server, &request).starts_with("HTTP/1.1 405"), "{method}");
        }
        let head = format!("HEAD /status HTTP/1.1\r\n{host}Connection: close\r\n\r\n");
        assert!(ask(&server, &head).ends_with("\r\n\r\n"));
    }

    #[test]
    fn requests_for_other_hosts_are_turned_away() {
        let names = vec!["feed.example".to_owned()];
        let options = HttpOptions { names, ..HttpOptions::default() };
        let server = HttpServer::start("127.0.0.1:0", options, pages()).unwrap();
        for host in
            ["localhost", "LOCALHOST.evil.example", "evil.example:80", "10.0.0.1", "", "[::1"]
        {
            let answer = get(&server, "/health", &format!("Host: {host}\r\n"));
            let right = host == "localhost";
            assert_eq!(answer.starts_with("HTTP/1.1 200"), right, "{host}: {answer}");
        }
        for host in ["127.0.0.1:99", "[::1]:99", "Feed.Example"] {
            let answer = get(&server, "/health", &format!("Host: {host}\r\n"));
            assert!(answer.starts_with("HTTP/1.1 200"), "{host}: {answer}");
        }
        assert!(get(&server, "/health", "").starts_with("HTTP/1.1 4"), "no host at all");
        let garbage = ask(&server, "\0\r\n\r\n\r\n");
        assert!(garbage.is_empty() || garbage.starts_with("HTTP/1.1 400"), "{garbage}");
    }

    #[test]
    fn with_a_key_only_operators_read_and_everybody_sees_health() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let key = Key::make(&path).unwrap();
        let guard = Some(Guard::open(&path, "here").unwrap());
        let options = HttpOptions { guard, ..HttpOptions::default() };
        let server = HttpServer::start("127.0.0.1:0", options, pages()).unwrap();
        let with = |path: &str, role: Option<Role>| {
            let token = role.map(|role| key.sign(&Token::new(role, "here", PATIENCE)));
            let bearer = token.map(|token| format!("Authorization: Bearer {}\r\n", token.expose()));
            let headers = format!("Host: localhost\r\n{}", bearer.unwrap_or_default());
            get(&server, path, &headers)
        };
        assert!(with("/health", None).starts_with("HTTP/1.1 200"));
        assert!(with("/status", None).starts_with("HTTP/1.1 401"));
        assert!(with("/status", Some(Role::Client)).starts_with("HTTP/1.1 401"));
        assert!(with("/status", Some(Role::Operator)).starts_with("HTTP/1.1 200"));
    }

    #[test]
    fn other_hosts_are_not_served_by_accident() {
        let error = HttpServer::start("0.0.0.0:0", HttpOptions::default(), pages()).unwrap_err();
        assert!(error.contains("insecure"), "{error}");
        let options = HttpOptions { insecure: true, ..HttpOptions::default() };
        drop(HttpServer::start("0.0.0.0:0", options, pages()).unwrap());
        assert!(HttpServer::start("nonsense", HttpOptions::default(), pages()).is_err());
    }
}
