//! Fetching: some steps of a window, asked of a worker.

use crate::clients::Event;
use crate::frames::{Came, Link};
use crate::workers::content;
use feedline_core::Rows;
use feedline_wire::{Ask, Data, Fetch, Offset, WorkerId};
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::timeout;

/// How long connecting to a worker may take, and how long one may be silent.
const HANDSHAKE: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_secs(10);

/// Some steps that a worker is asked for.
pub struct Fetching {
    pub worker: WorkerId,
    pub fetch: Fetch,
    /// Steps of the whole window.
    pub steps: u64,
    pub ask: Ask,
    pub events: UnboundedSender<Event>,
}

/// Why steps do not come.
pub enum Trouble {
    /// The worker cannot be reached, or cannot deliver now.
    Gone,
    /// What came is not what was asked for.
    Wrong(String),
}

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Self {
        // TCP neither changes nor doubles anything, also where it is simulated.
        match error.kind() {
            std::io::ErrorKind::InvalidData => Self::Wrong(format!("a frame is wrong: {error}")),
            _ => Self::Gone,
        }
    }
}

impl From<tokio::time::error::Elapsed> for Trouble {
    fn from(_: tokio::time::error::Elapsed) -> Self {
        Self::Gone
    }
}

impl Fetching {
    /// Asks, and passes on what comes. The connection can be used again afterwards.
    pub async fn run(&self, address: &str, link: Option<Link>) -> Result<Link, Trouble> {
        let mut link = match link {
            Some(link) => link,
            None => timeout(HANDSHAKE, Link::connect(address)).await??,
        };
        link.ask(&self.ask.encode()).await?;
        let mut came = 0;
        loop {
            match timeout(SILENCE, link.next()).await?? {
                Came::Stretch(stretch) => {
                    let expected = self.ask.first + came;
                    if stretch.step != expected {
                        let what = format!("step {} came instead of {expected}", stretch.step);
                        return Err(Trouble::Wrong(what));
                    }
                    let step = self.read(&stretch.rows)?;
                    let offset = Offset(self.fetch.from.0 + came);
                    came += 1;
                    let Fetch { incarnation, epoch, window, .. } = self.fetch;
                    let end = offset.0 + 1 == self.steps;
                    let data = Data { incarnation, epoch, window, offset, steps: vec![step], end };
                    let _ = self.events.send(Event::Data(self.worker, data));
                }
                Came::End => return Ok(link),
                Came::Failed(feedline_core::Error::Unavailable { .. }) => {
                    return Err(Trouble::Gone);
                }
                Came::Failed(error) => return Err(Trouble::Wrong(error.to_string())),
                Came::Request(..) => return Err(Trouble::Wrong("a worker asks".into())),
            }
        }
    }

    /// Which step it is, if it holds what that step holds.
    fn read(&self, rows: &Rows) -> Result<u64, Trouble> {
        let Rows::Batch(batch) = rows else { return Err(Trouble::Wrong("no batch".into())) };
        let values = batch.field("step").and_then(|tensor| tensor.as_slice::<u64>());
        match values {
            Some([step, holds]) if *holds == content(self.ask.epoch, *step) => Ok(*step),
            other => Err(Trouble::Wrong(format!("a step holds {other:?}"))),
        }
    }
}
