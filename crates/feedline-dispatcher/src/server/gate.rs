//! Every call passes here, whatever it asks: its version, its token, how many there are, how long it
//! takes. Who may call what says [`access`].

use super::listen::Peer;
use feedline_rpc::access::{access, method, methods};
use feedline_rpc::{BEARER, PROTOCOL, PROTOCOL_HEADER, TOKEN_HEADER};
use feedline_wire::token::{Guard, Token};
use std::collections::HashMap;
use std::fmt::{Debug, Write};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tower::{Layer, Service};

/// The calls that have to say which protocol they speak.
const DISPATCHER: &str = "/feedline.v1.Dispatcher/";
/// The calls that may take long: they have limits of their own.
const LONG: [&str; 3] = [
    "/feedline.v1.Dispatcher/PutBlob",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
];
/// Any other call takes no longer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Of no more hosts is it remembered how much they ask.
const MOST_PEERS: usize = 16_384;

/// What the gate goes by.
#[derive(Debug)]
pub(crate) struct Rules {
    guard: Option<Guard>,
    /// Calls a second that one host may make.
    rate: f64,
    peers: Mutex<HashMap<IpAddr, Bucket>>,
    /// Calls of each method: answered, and turned away or failed.
    counts: Vec<(&'static str, AtomicU64, AtomicU64)>,
}

/// How many more calls a host may make at once.
#[derive(Debug)]
struct Bucket {
    left: f64,
    filled: Instant,
}

impl Rules {
    pub(crate) fn new(guard: Option<Guard>, rate: u32) -> Self {
        let count = |method| (method, AtomicU64::new(0), AtomicU64::new(0));
        let counts = methods().chain(["other"]).map(count).collect();
        Self { guard, rate: f64::from(rate), peers: Mutex::default(), counts }
    }

    /// What a call's token says, if tokens are asked for.
    fn check(&self, request: &Request<Body>) -> Result<Option<Token>, Status> {
        let path = request.uri().path();
        let peer = request.extensions().get::<Peer>().and_then(|peer| peer.0);
        if !peer.is_none_or(|peer| self.has_room(peer)) {
            return Err(Status::unavailable("this host asks too often: slow down"));
        }
        let token = self.token(request, path)?;
        if path.starts_with(DISPATCHER) {
            check_protocol(request)?;
        }
        Ok(token)
    }

    fn token(&self, request: &Request<Body>, path: &str) -> Result<Option<Token>, Status> {
        let access = access(path);
        let (Some(guard), false) = (&self.guard, access.allows_everybody()) else {
            return Ok(None);
        };
        let header = request.headers().get(TOKEN_HEADER);
        let text = header.and_then(|header| header.to_str().ok()?.strip_prefix(BEARER));
        let text = text.ok_or_else(|| Status::unauthenticated("a token is needed"))?;
        let token = guard.check(text);
        let token = token.map_err(|error| Status::unauthenticated(error.to_string()))?;
        match access.allows(token.role) {
            true => Ok(Some(token)),
            false => Err(Status::permission_denied(format!(
                "a token for the role {} does not allow {path}",
                token.role
            ))),
        }
    }

    fn has_room(&self, peer: IpAddr) -> bool {
        let now = Instant::now();
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if peers.len() >= MOST_PEERS && !peers.contains_key(&peer) {
            // Those who have not asked for a second start again with a full bucket anyway.
            let rests = |bucket: &Bucket| bucket.filled.elapsed() > Duration::from_secs(1);
            peers.retain(|_, bucket| !rests(bucket));
            if peers.len() >= MOST_PEERS {
                return false;
            }
        }
        let bucket = peers.entry(peer).or_insert(Bucket { left: self.rate, filled: now });
        let time = now.saturating_duration_since(bucket.filled).as_secs_f64();
        bucket.left = (bucket.left + time * self.rate).min(self.rate);
        bucket.filled = now;
        if bucket.left < 1.0 {
            return false;
        }
        bucket.left -= 1.0;
        true
    }

    fn count(&self, path: &str, well: bool) {
        let name = method(path).unwrap_or("other");
        if let Some((_, answered, failed)) = self.counts.iter().find(|(known, ..)| *known == name) {
            let count = if well { answered } else { failed };
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Calls so far, as Prometheus reads them.
    pub(crate) fn metrics(&self, text: &mut String) {
        text.push_str("# HELP feedline_calls_total Calls of each method.\n");
        text.push_str("# TYPE feedline_calls_total counter\n");
        for (method, answered, failed) in &self.counts {
            for (outcome, count) in [("answered", answered), ("failed", failed)] {
                let count = count.load(Ordering::Relaxed);
                // Writing to a text does not fail.
                let _ = writeln!(
                    text,
                    "feedline_calls_total{{method=\"{method}\",outcome=\"{outcome}\"}} {count}"
                );
            }
        }
    }
}

fn check_protocol(request: &Request<Body>) -> Result<(), Status> {
    let spoken = request.headers().get(PROTOCOL_HEADER);
    match spoken.map(|spoken| spoken.to_str().unwrap_or("?")) {
        Some(PROTOCOL) => Ok(()),
        Some(other) => Err(Status::failed_precondition(format!(
            "this dispatcher speaks protocol {PROTOCOL}, and was spoken to in protocol {other:?}: use \
             the same release of Feedline on both sides"
        ))),
        None => Err(Status::failed_precondition(format!(
            "the header {PROTOCOL_HEADER} is missing; it should say {PROTOCOL}"
        ))),
    }
}

/// Puts the gate in front of a service.
#[derive(Clone, Debug)]
pub(crate) struct Gate(pub Arc<Rules>);

impl<S> Layer<S> for Gate {
    type Service = Gated<S>;

    fn layer(&self, inner: S) -> Gated<S> {
        Gated { inner, rules: Arc::clone(&self.0) }
    }
}

/// A service behind the gate.
#[derive(Clone, Debug)]
pub(crate) struct Gated<S> {
    inner: S,
    rules: Arc<Rules>,
}

impl<S> Service<Request<Body>> for Gated<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Debug,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let path = request.uri().path().to_owned();
        let rules = Arc::clone(&self.rules);
        match rules.check(&request) {
            Ok(token) => {
                if let Some(token) = token {
                    request.extensions_mut().insert(token);
                }
                let answer = self.inner.call(request);
                Box::pin(async move {
                    let answer = match LONG.contains(&path.as_str()) {
                        true => answer.await,
                        false => {
                            let late = |_| Ok(late().into_http());
                            tokio::time::timeout(PATIENCE, answer).await.unwrap_or_else(late)
                        }
                    };
                    let well = answer.as_ref().is_ok_and(answered);
                    rules.count(&path, well);
                    answer
                })
            }
            Err(status) => {
                let peer = request.extensions().get::<Peer>().copied();
                tracing::debug!(path, ?peer, code = ?status.code(), "turned a call away");
                rules.count(&path, false);
                Box::pin(async move { Ok(status.into_http()) })
            }
        }
    }
}

fn late() -> Status {
    Status::deadline_exceeded(format!("the call took longer than {PATIENCE:?}"))
}

/// Whether an answer is none of an error. Of streams that is known only at their end.
fn answered(answer: &Response<Body>) -> bool {
    answer.headers().get("grpc-status").is_none_or(|status| status == "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_host_may_ask_so_often_and_others_are_not_concerned() {
        let rules = Rules::new(None, 5);
        let [one, two] = [IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2])];
        let admitted = (0..50).filter(|_| rules.has_room(one)).count();
        assert!((5..8).contains(&admitted), "{admitted}");
        assert!(rules.has_room(two));
        for number in 0..MOST_PEERS as u32 {
            rules.has_room(IpAddr::from(number.to_be_bytes()));
        }
        assert!(rules.peers.lock().unwrap().len() <= MOST_PEERS);
    }
}
