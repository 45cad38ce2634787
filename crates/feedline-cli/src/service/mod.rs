//! The commands of the service: `dispatcher`, `worker`, `cluster`, `status`, `top`, `job`, and those
//! that make what its parts know each other by: `certs`, `token`.

pub(crate) mod certs;
pub(crate) mod cluster;
pub(crate) mod dispatcher;
pub(crate) mod job;
pub(crate) mod journal;
mod logs;
pub(crate) mod status;
pub(crate) mod token;
pub(crate) mod top;
pub(crate) mod trust;
pub(crate) mod worker;

use anyhow::Result;
use feedline_core::Error;
use feedline_rpc::Remote;
use feedline_wire::control::Failure;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;
use trust::Asking;

/// The argument that names a dispatcher.
#[derive(clap::Args)]
pub(crate) struct DispatcherArg {
    /// The dispatcher, such as feedline://127.0.0.1:7070
    #[arg(value_name = "URL", default_value = "feedline://127.0.0.1:7070")]
    url: String,
    #[command(flatten)]
    asking: Asking,
}

impl DispatcherArg {
    pub(crate) fn connect(&self) -> Result<Remote> {
        self.asking.connect(&self.url, false)
    }
}

/// A dispatcher that does not answer, as an error of this command.
pub(crate) fn failed(failure: Failure) -> anyhow::Error {
    match failure {
        Failure::Unavailable(reason) => {
            let reason = io::Error::new(io::ErrorKind::NotConnected, reason);
            Error::unavailable("the dispatcher", reason).into()
        }
        other => Error::Service(other.to_string()).into(),
    }
}

/// Ctrl-C and SIGTERM, as a command that serves sees them.
pub(crate) struct Ending(Receiver<()>);

impl Ending {
    /// Catches them from now on.
    pub(crate) fn new() -> Result<Self> {
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let (send, receive) = channel();
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            for _ in signals.forever() {
                if send.send(()).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self(receive))
    }

    /// Waits for one of them, at most for so long; whether one came.
    pub(crate) fn within(&self, time: Duration) -> bool {
        !matches!(self.0.recv_timeout(time), Err(RecvTimeoutError::Timeout))
    }
}
