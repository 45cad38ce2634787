//! Serving: what a client asks for is taken from the shelf, or made.

use crate::catalogue::{Catalogue, Opened};
use crate::shelf::{Driven, Line, Production, Shelf};
use feedline_core::{Error, Pool, Position, Result, Rows, Seed, Stretch};
use feedline_engine::{Options, Team, Window, WindowRun};
use feedline_wire::control::Done;
use feedline_wire::stream::{Handler, Sender};
use feedline_wire::{Ask, JobId};
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// What all connections share.
pub(crate) struct Shared {
    pub catalogue: Catalogue,
    pub shelf: Shelf,
    pub team: Team,
    pub pool: Pool,
    /// Bytes that windows may have in flight together.
    pub memory: usize,
    pub draining: AtomicBool,
    /// Requests that are being served.
    pub active: AtomicUsize,
    pub done: Mutex<HashMap<JobId, Done>>,
}

/// Serves one client's requests.
pub(crate) struct Serving(pub Arc<Shared>);

/// Counts a request for as long as it is served.
struct Active<'a>(&'a AtomicUsize);

impl<'a> Active<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Handler for Serving {
    fn serve(&self, request: &[u8], out: &mut Sender<'_>) -> Result<()> {
        let shared = &*self.0;
        let _active = Active::new(&shared.active);
        if shared.draining.load(Ordering::SeqCst) {
            let ending = io::Error::new(io::ErrorKind::ConnectionRefused, "it is being drained");
            return Err(Error::unavailable("this worker", ending));
        }
        let ask = Ask::decode(request)?;
        let opened = shared.catalogue.get(&ask.dataset)?;
        let start = start_of(&ask)?;
        let Ask { job, seed, epoch, with_index, .. } = ask;
        let line = Line {
            dataset: ask.dataset.clone(),
            seed,
            epoch,
            start: ask.start.clone(),
            with_index,
        };
        let line = shared.shelf.join(line, job);
        let mut making: Option<Arc<Production>> = None;
        for step in ask.first..ask.first.saturating_add(ask.steps) {
            let stretch = step.saturating_mul(ask.world).saturating_add(ask.rank);
            let (rows, was_there) = loop {
                if out.cancelled() {
                    return Err(Error::Cancelled);
                }
                if let Some(rows) = shared.shelf.get(&line, stretch) {
                    break (rows, true);
                }
                if making.is_none() {
                    making = shared.shelf.find(&line, stretch);
                }
                let production = match &making {
                    Some(production) => production,
                    None => {
                        let steps = ask.first.saturating_add(ask.steps) - step;
                        let made = shared.produce(&opened, &start, &ask, step, steps)?;
                        shared.shelf.announce(&line, &made);
                        making.insert(made)
                    }
                };
                match production.drive(stretch, &shared.shelf, &line)? {
                    Driven::Made(rows) => break (rows, false),
                    Driven::Waits => {}
                    // Somebody else was served from it meanwhile, or it was only part of ours.
                    Driven::Gone => making = None,
                    Driven::End => return Ok(()),
                }
            };
            shared.note(job, &rows, was_there);
            out.send(&Stretch { step, rows })?;
        }
        if let Some(production) = making {
            shared.note_busy(job, production.busy_seconds());
        }
        Ok(())
    }
}

/// Where the ranks began the epoch.
fn start_of(ask: &Ask) -> Result<Position> {
    if ask.start.is_empty() {
        return Ok(Position::epoch(ask.epoch));
    }
    let position: Position = serde_json::from_str(&ask.start)
        .map_err(|error| Error::Source(format!("start is no position: {error}")))?;
    if position.epoch != ask.epoch || position != position.beginning() {
        return Err(Error::Source("start is no beginning of this epoch".into()));
    }
    Ok(position)
}

impl Shared {
    fn produce(
        &self,
        opened: &Opened,
        start: &Position,
        ask: &Ask,
        first: u64,
        steps: u64,
    ) -> Result<Arc<Production>> {
        let window =
            Window { start: start.clone(), rank: ask.rank, world: ask.world, first, steps };
        let options = Options {
            memory: self.memory,
            seed: Seed(ask.seed),
            with_index: ask.with_index,
            ..Options::default()
        };
        let (pipeline, store) = (Arc::clone(&opened.pipeline), Arc::clone(&opened.store));
        let run = WindowRun::start(&self.team, &self.pool, pipeline, store, &window, options)?;
        Ok(Arc::new(Production::new(run, ask.rank, ask.world, first, steps)))
    }

    fn note(&self, job: JobId, rows: &Rows, shared: bool) {
        self.change(job, |done| {
            done.steps += 1;
            done.samples += rows.count() as u64;
            done.bytes += rows.bytes() as u64;
            done.shared += u64::from(shared);
        });
    }

    fn note_busy(&self, job: JobId, seconds: f64) {
        self.change(job, |done| done.busy += (seconds * 1e6) as u64);
    }

    fn change(&self, job: JobId, change: impl FnOnce(&mut Done)) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        let new = Done { job, steps: 0, samples: 0, bytes: 0, shared: 0, busy: 0 };
        change(done.entry(job).or_insert(new));
    }
}
