//! Serving: what a client asks for is taken from the shelf, or made.

use crate::catalogue::{Catalogue, Opened};
use crate::production::{Driven, Production};
use crate::saving::Saving;
use crate::shelf::{Line, PATIENCE, Shelf};
use crate::sight::Gauges;
use feedline_core::{Error, Pool, Position, Result, Rows, Seed, Stretch};
use feedline_engine::{Options, Progress, Team, Window, WindowRun};
use feedline_wire::control::Done;
use feedline_wire::stream::{Handler, Sender};
use feedline_wire::{Ask, JobId};
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What all connections share.
pub(crate) struct Shared {
    pub catalogue: Catalogue,
    pub saving: Saving,
    pub shelf: Shelf,
    pub team: Team,
    pub pool: Pool,
    /// Bytes that windows may have in flight together.
    pub memory: usize,
    pub draining: AtomicBool,
    /// Requests that are being served.
    pub active: AtomicUsize,
    pub done: Mutex<HashMap<JobId, Done>>,
    pub gauges: Gauges,
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
        let served = shared.serve(&ask, out);
        if let Err(error) = &served {
            let Ask { job, dataset, epoch, .. } = &ask;
            match error {
                // Nobody waits for it any more.
                _ if out.cancelled() => {}
                // It is the data's, and the client's to decide.
                Error::Record { .. } | Error::Budget(_) => {
                    tracing::info!(%job, dataset = %dataset.0, epoch, %error, "a sample is bad");
                }
                _ => {
                    shared.gauges.failures.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(%job, dataset = %dataset.0, epoch, %error, "a request failed");
                }
            }
        }
        served
    }
}

impl Shared {
    /// Serves one request.
    fn serve(&self, ask: &Ask, out: &mut Sender<'_>) -> Result<()> {
        let opened = self.catalogue.get(&ask.dataset, ask.part)?;
        if let Some(shard) = &ask.save {
            return self.save(&opened, shard, out);
        }
        let start = start_of(ask)?;
        let line = Line {
            dataset: ask.dataset.clone(),
            part: ask.part,
            seed: ask.seed,
            epoch: ask.epoch,
            start: ask.start.clone(),
            with_index: ask.with_index,
            rows: ask.rows,
            round: ask.rounds.then_some((ask.first, ask.world)),
        };
        let line = self.shelf.join(line, ask.job);
        let sorted = opened.pipeline.bucket.is_some();
        if sorted && !ask.rounds {
            return self.stretch(&opened, &start, ask, out);
        }
        // In rounds, the steps are those of one stretch, as many as there are.
        let (first, steps) = match ask.rounds {
            true => (ask.from, u64::MAX),
            false => (ask.first, ask.steps),
        };
        let mut making: Option<Arc<Production>> = None;
        let mut held = false;
        for step in first..first.saturating_add(steps) {
            let number = step.saturating_mul(ask.world).saturating_add(ask.rank);
            let (rows, was_there) = loop {
                if out.cancelled() {
                    return Err(Error::Cancelled);
                }
                if line.is_shared() {
                    if let Some(rows) = self.shelf.take(&line, number, ask.job) {
                        // A production of our own that has not come so far would compute it again.
                        let behind = making.take_if(|one| !one.has_passed(number));
                        if let Some(production) = behind {
                            self.note_busy(ask.job, production.busy_seconds());
                        }
                        break (rows, true);
                    }
                    if self.shelf.is_over(&line, number) {
                        return Ok(());
                    }
                    if ask.relaxed && making.is_none() && self.shelf.is_past(&line, number, ask.job)
                    {
                        break (Rows::Some { good: Vec::new(), bad: Vec::new() }, true);
                    }
                }
                let production = match &making {
                    Some(production) => production,
                    None => {
                        // Nothing is computed ahead that is here already.
                        let until = match ask.rounds {
                            true => None,
                            false => self.shelf.next_after(&line, number, ask.world),
                        };
                        let until = until.map_or(u64::MAX, |next| next / ask.world);
                        let left = first.saturating_add(steps).min(until) - step;
                        let make = || self.produce(&opened, &start, ask, step, left);
                        match self.shelf.find_or(&line, number, make)? {
                            Some(production) => making.insert(production),
                            None => continue,
                        }
                    }
                };
                // What is there goes out before anything is waited for.
                let patience = if held { Duration::ZERO } else { PATIENCE };
                match production.drive(number, (&self.shelf, &line, ask.job), patience)? {
                    Driven::Made(rows) => break (rows, false),
                    Driven::Waits if held => {
                        out.flush()?;
                        held = false;
                    }
                    Driven::Waits => {}
                    // Somebody else was served from it meanwhile, or it was only part of ours.
                    Driven::Gone => making = None,
                    Driven::End => return Ok(()),
                }
            };
            self.note(ask.job, &rows, was_there);
            out.send_soon(&Stretch { step, rows })?;
            held = true;
        }
        if let Some(production) = making {
            self.note_busy(ask.job, production.busy_seconds());
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

/// Steps of the rank that asks.
fn window(start: &Position, ask: &Ask, first: u64, steps: u64) -> Window {
    Window {
        start: start.clone(),
        rank: ask.rank,
        world: ask.world,
        first,
        steps,
        from: 0,
        every_rank: false,
    }
}

impl Shared {
    /// The batches of one stretch whose samples are sorted by their lengths, for one rank alone.
    fn stretch(
        &self,
        opened: &Opened,
        start: &Position,
        ask: &Ask,
        out: &mut Sender<'_>,
    ) -> Result<()> {
        let window = Window { from: ask.from, ..window(start, ask, ask.first, 1) };
        let mut run = self.run(opened, ask, &window)?;
        loop {
            match run.next_within(PATIENCE)? {
                Progress::End => break,
                Progress::Waits if out.cancelled() => return Err(Error::Cancelled),
                Progress::Waits => {}
                Progress::Stretch(stretch) => {
                    self.note(ask.job, &stretch.rows, false);
                    out.send(&stretch)?;
                }
            }
        }
        self.note_busy(ask.job, run.stats().busy_seconds);
        Ok(())
    }

    fn produce(
        &self,
        opened: &Opened,
        start: &Position,
        ask: &Ask,
        first: u64,
        steps: u64,
    ) -> Result<Arc<Production>> {
        if ask.rounds {
            // What is made is for all ranks, so its batches are simply counted.
            let window =
                Window { from: first, every_rank: true, ..window(start, ask, ask.first, 1) };
            let run = self.run(opened, ask, &window)?;
            return Ok(Arc::new(Production::new(
                ask.job,
                run,
                (0, 1),
                first * ask.world,
                u64::MAX,
            )));
        }
        let run = self.run(opened, ask, &window(start, ask, first, steps))?;
        Ok(Arc::new(Production::new(ask.job, run, (ask.rank, ask.world), first, steps)))
    }

    fn run(&self, opened: &Opened, ask: &Ask, window: &Window) -> Result<WindowRun> {
        let options = Options {
            memory: self.memory,
            seed: Seed(ask.seed),
            with_index: ask.with_index,
            rows: ask.rows,
            rounds: ask.rounds,
            ..Options::default()
        };
        let (pipeline, store) = (Arc::clone(&opened.pipeline), Arc::clone(&opened.store));
        WindowRun::start(&self.team, &self.pool, pipeline, store, window, options)
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
