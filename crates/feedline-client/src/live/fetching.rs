//! Fetching: a thread for each stream that is open at a time, with a connection of its own.

use super::{Finisher, Shared, Stream};
use feedline_core::{Error, Result, Rows, Stretch};
use feedline_wire::stream::{Address, Client as Connection, ClientOptions, Next};
use feedline_wire::{Ask, Data, Epoch, Offset, Window, WorkerId};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// A thread that has had nothing to fetch for so long ends.
const IDLE: Duration = Duration::from_secs(10);

/// How long to wait for a stretch before looking whether it is still wanted.
const LOOK_UP: Duration = Duration::from_millis(100);

/// The most steps that are handed to the core at once.
const TOGETHER: usize = 64;

/// How many milliseconds a step may take, as long as little is known.
const FIRST_GUESS: f64 = 300.0;

/// Which stream a thread serves.
type Key = (Epoch, Window, u64);

/// Sees to it that somebody serves each stream.
pub(super) fn staff(shared: &Arc<Shared>, inner: &mut super::Inner) {
    if shared.is_closing() {
        return;
    }
    for (worker, reachable) in &mut inner.workers {
        while reachable.idle < reachable.queue.len() {
            let (shared, worker) = (Arc::clone(shared), *worker);
            let thread = std::thread::Builder::new().name("client-fetch".into());
            // Without another thread, those who are there serve it in their turn.
            let Ok(thread) = thread.spawn(move || Fetcher::new(shared, worker).run()) else {
                break;
            };
            inner.fetchers.push(thread);
            reachable.idle += 1;
        }
    }
    inner.fetchers.retain(|thread| !thread.is_finished());
}

struct Fetcher {
    shared: Arc<Shared>,
    worker: WorkerId,
    connection: Option<Connection>,
}

/// How a stream ended.
enum Ended {
    /// It was served, or nobody wants it any more.
    Done,
    /// Nobody wants it any more, and nothing came lately: the connection may be dead.
    Abandoned,
    /// The worker cannot be reached.
    Gone(Error),
    /// The worker answers, and does not deliver.
    Refused(Error),
}

impl Fetcher {
    fn new(shared: Arc<Shared>, worker: WorkerId) -> Self {
        Self { shared, worker, connection: None }
    }

    fn run(mut self) {
        while let Some(key) = self.wait() {
            let ended = self.serve(key);
            self.settle(key, ended);
        }
    }

    /// Waits for a stream to serve. Whoever waits counts as idle from its start.
    fn wait(&self) -> Option<Key> {
        let since = Instant::now();
        let mut inner = self.shared.lock();
        loop {
            let reachable = inner.workers.get_mut(&self.worker)?;
            if self.shared.is_closing() || since.elapsed() > IDLE {
                reachable.idle -= 1;
                return None;
            }
            if let Some(key) = reachable.queue.pop_front() {
                reachable.idle -= 1;
                return Some(key);
            }
            let waited = self.shared.changed.wait_timeout(inner, IDLE);
            inner = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn settle(&mut self, (epoch, window, number): Key, ended: Ended) {
        let mut inner = self.shared.lock();
        let inner = &mut *inner;
        let current = |stream: &Stream| stream.number == number;
        if inner.streams.get(&(epoch, window)).is_some_and(current) {
            inner.streams.remove(&(epoch, window));
        }
        let now = self.shared.now();
        match ended {
            Ended::Done | Ended::Abandoned => {}
            Ended::Gone(error) => {
                self.connection = None;
                inner.trouble = Some(error.to_string());
                inner.totals.failures += 1;
                inner.client.worker_gone(now, self.worker);
            }
            Ended::Refused(error) => {
                inner.trouble = Some(error.to_string());
                inner.totals.failures += 1;
                inner.refusals.insert(self.worker, error.clone());
                // Nobody is left who might see it differently.
                let refuses = |worker: &WorkerId| inner.refusals.contains_key(worker);
                if inner.workers.keys().all(refuses) {
                    inner.failed = Some(error);
                    self.shared.arrived.notify_one();
                }
                inner.client.worker_gone(now, self.worker);
            }
        }
        if let Some(reachable) = inner.workers.get_mut(&self.worker) {
            reachable.idle += 1;
        }
        self.shared.pump(inner);
    }

    fn serve(&mut self, key: Key) -> Ended {
        let Some((ask, addresses)) = self.asked(key) else { return Ended::Done };
        if let Err(error) = self.connect(&addresses) {
            return Ended::Gone(error);
        }
        let Some(mut connection) = self.connection.take() else { return Ended::Done };
        let ended = self.stream(&mut connection, &ask, key);
        if connection.is_connected() && !matches!(ended, Ended::Abandoned) {
            self.connection = Some(connection);
        }
        ended
    }

    /// What to ask for, and where, if the stream is still wanted.
    fn asked(&self, (epoch, window, number): Key) -> Option<(Ask, Vec<String>)> {
        let inner = self.shared.lock();
        let stream = inner.streams.get(&(epoch, window)).filter(|one| one.number == number)?;
        let addresses = inner.workers.get(&self.worker)?.worker.addresses.clone();
        Some((self.shared.ask(&inner, &stream.fetch), addresses))
    }

    fn connect(&mut self, addresses: &[String]) -> Result<()> {
        if self.connection.as_ref().is_some_and(Connection::is_connected) {
            return Ok(());
        }
        let settings = &self.shared.settings;
        // All streams together have no more under way than may be held.
        let share = settings.memory / self.shared.lock().windows_ahead();
        let options = ClientOptions {
            pool: self.shared.pool.clone(),
            credit: settings.stream.credit.min(share as u64),
            ..settings.stream.clone()
        };
        let mut failed = Error::Service("the worker has no address".into());
        for address in addresses {
            let parsed: std::io::Result<Address> = address.parse();
            let parsed = parsed.map_err(|error| Error::unavailable("a worker", error));
            match parsed.and_then(|one| Connection::connect(&one, options.clone())) {
                Ok(connection) => {
                    self.connection = Some(connection);
                    return Ok(());
                }
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    fn stream(&self, connection: &mut Connection, ask: &Ask, key: Key) -> Ended {
        if let Err(error) = connection.request(&ask.encode()) {
            return Ended::Gone(error);
        }
        let mut steps: Vec<Result<Rows>> = Vec::new();
        let mut silent = true;
        loop {
            let Some(room) = self.wait_for_room(key) else {
                return if silent { Ended::Abandoned } else { Ended::Done };
            };
            let mut end = false;
            match connection.next_within(LOOK_UP) {
                Ok(Next::NotYet) => {
                    silent = true;
                    continue;
                }
                Ok(Next::End) => end = true,
                Ok(Next::Stretch(stretch)) => {
                    silent = false;
                    steps.push(self.finished(ask, stretch));
                    while steps.len() < room.min(TOGETHER) && connection.is_more_here() {
                        match connection.next_within(Duration::ZERO) {
                            Ok(Next::Stretch(stretch)) => steps.push(self.finished(ask, stretch)),
                            Ok(Next::End) => {
                                end = true;
                                break;
                            }
                            // It comes again at the next turn, with nothing before it.
                            Ok(Next::NotYet) => break,
                            Err(error) => match self.failed(connection, error) {
                                Ok(step) => {
                                    steps.push(step);
                                    end = true;
                                    break;
                                }
                                Err(ended) => {
                                    self.bring(key, &mut steps, false);
                                    return ended;
                                }
                            },
                        }
                    }
                }
                Err(error) => match self.failed(connection, error) {
                    Ok(step) => {
                        steps.push(step);
                        end = true;
                    }
                    Err(ended) => return ended,
                },
            }
            // After a step that failed nothing is wanted.
            if let Some(failed) = steps.iter().position(Result::is_err) {
                steps.truncate(failed + 1);
                end = true;
            }
            self.bring(key, &mut steps, end);
            if end {
                return Ended::Done;
            }
        }
    }

    fn finished(&self, ask: &Ask, stretch: Stretch) -> Result<Rows> {
        match &self.shared.settings.finish {
            Some(Finisher(finish)) => finish(ask, stretch.step, stretch.rows),
            None => Ok(stretch.rows),
        }
    }

    /// A failure that belongs to the data is a step like others; another worker would come to the
    /// same. All others end the stream.
    fn failed(&self, connection: &Connection, error: Error) -> Result<Result<Rows>, Ended> {
        match error {
            error if !connection.is_connected() => Err(Ended::Gone(error)),
            error @ (Error::Record { .. } | Error::Budget(_) | Error::Internal(_)) => {
                Ok(Err(error))
            }
            error @ (Error::Unavailable { .. } | Error::Cancelled) => Err(Ended::Gone(error)),
            error => Err(Ended::Refused(error)),
        }
    }

    /// How many steps may be taken, as soon as any may be; `None` if they are not wanted.
    fn wait_for_room(&self, (epoch, window, number): Key) -> Option<usize> {
        let mut inner = self.shared.lock();
        loop {
            if self.shared.is_closing() {
                return None;
            }
            let stream = inner.streams.get(&(epoch, window)).filter(|one| one.number == number)?;
            if stream.next < stream.until {
                return Some((stream.until - stream.next).min(1 << 20) as usize);
            }
            let waited = self.shared.changed.wait_timeout(inner, IDLE);
            inner = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Hands steps to the core.
    fn bring(&self, (epoch, window, number): Key, steps: &mut Vec<Result<Rows>>, end: bool) {
        let steps = std::mem::take(steps);
        if steps.is_empty() && !end {
            return;
        }
        let mut inner = self.shared.lock();
        let inner = &mut *inner;
        let Some(stream) = inner.streams.get_mut(&(epoch, window)) else { return };
        if stream.number != number {
            return;
        }
        let good = steps.iter().flatten();
        let bytes: usize = good.map(Rows::bytes).sum();
        inner.came = (inner.came.0 + bytes as u64, inner.came.1 + steps.len() as u64);
        let gap = stream.since.elapsed().as_secs_f64() * 1e3;
        inner.slow = nearly_always(inner.slow, gap);
        stream.since = Instant::now();
        let offset = Offset(stream.next);
        stream.next += steps.len() as u64;
        let incarnation = stream.fetch.incarnation;
        inner.refusals.remove(&self.worker);
        inner.client.set_fetch_p99(inner.slow as u64);
        inner.settle_ahead(self.shared.settings.memory);
        let data = Data { incarnation, epoch, window, offset, steps, end };
        inner.client.data(self.shared.now(), self.worker, data);
        self.shared.pump(inner);
    }
}

/// How long a step takes at most, nearly always, once one more took `gap` milliseconds. One alone
/// says little, since its link may have been cut: it at most doubles what was thought.
fn nearly_always(slow: f64, gap: f64) -> f64 {
    match gap > slow {
        true => gap.min((slow * 2.0).max(FIRST_GUESS)),
        false => slow - (slow - gap) / 512.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_long_wait_is_soon_forgotten_and_many_are_believed() {
        let after = |gaps: &[f64]| gaps.iter().fold(0.0, |slow, gap| nearly_always(slow, *gap));
        assert_eq!(after(&[20.0, 30_000.0]), FIRST_GUESS, "a cut link is no slow step");
        assert_eq!(after(&[5_000.0; 8]), 5_000.0, "all are slow");
        let mostly: Vec<f64> =
            (0..100_000).map(|at| if at % 50 == 0 { 400.0 } else { 10.0 }).collect();
        assert!(after(&mostly) > 300.0, "two in a hundred");
        let hardly: Vec<f64> =
            (0..100_000).map(|at| if at % 5_000 == 0 { 400.0 } else { 10.0 }).collect();
        assert!(after(&[&hardly[..], &[10.0; 4_000]].concat()) < 20.0, "two in ten thousand");
    }
}
