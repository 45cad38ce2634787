//! Every call passes here, whatever it asks.

use feedline_wire::grpc::{PROTOCOL, PROTOCOL_HEADER};
use std::pin::Pin;
use std::task::{Context, Poll};
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::{Code, Status};
use tower::{Layer, Service};

/// The calls that have to say which protocol they speak.
const DISPATCHER: &str = "/feedline.v1.Dispatcher/";

/// Puts the gate in front of a service.
#[derive(Clone, Debug)]
pub(crate) struct Gate;

impl<S> Layer<S> for Gate {
    type Service = Gated<S>;

    fn layer(&self, inner: S) -> Gated<S> {
        Gated { inner }
    }
}

/// A service behind the gate.
#[derive(Clone, Debug)]
pub(crate) struct Gated<S> {
    inner: S,
}

impl Gate {
    fn check(&self, request: &Request<Body>) -> Result<(), Status> {
        if !request.uri().path().starts_with(DISPATCHER) {
            return Ok(());
        }
        let spoken = request.headers().get(PROTOCOL_HEADER);
        match spoken.map(|spoken| spoken.to_str().unwrap_or("?")) {
            Some(PROTOCOL) => Ok(()),
            Some(other) => Err(Status::new(
                Code::FailedPrecondition,
                format!(
                    "this dispatcher speaks protocol {PROTOCOL}, and was spoken to in protocol \
                     {other:?}: use the same release of Feedline on both sides"
                ),
            )),
            None => Err(Status::new(
                Code::FailedPrecondition,
                format!("the header {PROTOCOL_HEADER} is missing; it should say {PROTOCOL}"),
            )),
        }
    }
}

impl<S> Service<Request<Body>> for Gated<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        match Gate.check(&request) {
            Ok(()) => Box::pin(self.inner.call(request)),
            Err(status) => Box::pin(async move { Ok(status.into_http()) }),
        }
    }
}
