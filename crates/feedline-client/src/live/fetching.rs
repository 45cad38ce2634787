//! Fetching: a thread for each stream that is open at a time, with a connection of its own.
//!
//! Windows that follow each other and are asked of one worker come as one stream: what is asked for is
//! all their steps, and each window ends where its steps do.

use super::{Fetching, Finisher, Inner, Shared, Stream};
use feedline_core::{Error, Result, Rows, Stretch};
use feedline_wire::stream::{Address, Client as Connection, ClientOptions, Next};
use feedline_wire::{Ask, Data, Epoch, Offset, Window, WorkerId};
use std::collections::VecDeque;
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
pub(super) fn staff(shared: &Arc<Shared>, inner: &mut Inner) {
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

/// Windows that are being received, the first of them first.
struct Coming {
    keys: VecDeque<Key>,
    /// Steps that are left of the first, as far as they are counted.
    left: u64,
    /// Steps of a whole window.
    steps: u64,
}

/// Some steps of a window, and whether they are its last.
type Portion = (Key, Vec<Result<Rows>>, bool);

impl Fetcher {
    fn new(shared: Arc<Shared>, worker: WorkerId) -> Self {
        Self { shared, worker, connection: None }
    }

    fn run(mut self) {
        while let Some(Fetching { epoch, windows, .. }) = self.wait() {
            let keys: Vec<Key> =
                windows.into_iter().map(|(window, number)| (epoch, window, number)).collect();
            let ended = self.serve(&keys);
            self.settle(&keys, ended);
        }
    }

    /// Waits for a stream to serve. Whoever waits counts as idle from its start.
    fn wait(&self) -> Option<Fetching> {
        let since = Instant::now();
        let mut inner = self.shared.lock();
        loop {
            let reachable = inner.workers.get_mut(&self.worker)?;
            if self.shared.is_closing() || since.elapsed() > IDLE {
                reachable.idle -= 1;
                return None;
            }
            if let Some(fetching) = reachable.queue.pop_front() {
                reachable.idle -= 1;
                return Some(fetching);
            }
            let waited = self.shared.work.wait_timeout(inner, IDLE);
            inner = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn settle(&mut self, keys: &[Key], ended: Ended) {
        let mut inner = self.shared.lock();
        let inner = &mut *inner;
        for key in keys {
            if current(inner, key).is_some() {
                inner.streams.remove(&(key.0, key.1));
            }
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

    fn serve(&mut self, keys: &[Key]) -> Ended {
        let Some((ask, addresses, coming)) = self.asked(keys) else { return Ended::Done };
        match self.connect(&addresses) {
            Ok(()) => {}
            // It was found, and lets nobody in who shows what we have: waiting changes nothing.
            Err(error @ Error::Service(_)) => return Ended::Refused(error),
            Err(error) => return Ended::Gone(error),
        }
        let Some(mut connection) = self.connection.take() else { return Ended::Done };
        let ended = self.stream(&mut connection, &ask, coming);
        if connection.is_connected() && !matches!(ended, Ended::Abandoned) {
            self.connection = Some(connection);
        }
        ended
    }

    /// What to ask for, and where: the windows that are still wanted, as far as they follow each
    /// other. Others are asked for again when they are missed.
    fn asked(&self, keys: &[Key]) -> Option<(Ask, Vec<String>, Coming)> {
        let inner = self.shared.lock();
        let wanted = keys.iter().skip_while(|key| current(&inner, key).is_none());
        let wanted: VecDeque<Key> =
            wanted.take_while(|key| current(&inner, key).is_some()).copied().collect();
        let (first, last) = (wanted.front()?, wanted.back()?);
        let stream = current(&inner, first)?;
        let addresses = inner.workers.get(&self.worker)?.worker.addresses.clone();
        let (_, windows) = inner.client.cut_of(first.0);
        let steps = windows.steps;
        let left = steps.saturating_sub(stream.fetch.from.0);
        let ask = self.shared.ask(&inner, &stream.fetch, last.1);
        Some((ask, addresses, Coming { keys: wanted, left, steps }))
    }

    fn connect(&mut self, addresses: &[String]) -> Result<()> {
        if self.connection.as_ref().is_some_and(Connection::is_connected) {
            return Ok(());
        }
        let settings = &self.shared.settings;
        // All streams together have no more under way than may be held.
        let share = settings.memory / self.shared.lock().streams_ahead();
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

    fn stream(&self, connection: &mut Connection, ask: &Ask, mut coming: Coming) -> Ended {
        if let Err(error) = connection.request(&ask.encode()) {
            return Ended::Gone(error);
        }
        // With `bucket` a step is a batch of the stretch.
        let mut expected = if self.shared.settings.sorted { ask.from } else { ask.first };
        let mut silent = true;
        loop {
            let Some(room) = self.wait_for_room(&coming.keys) else {
                return if silent { Ended::Abandoned } else { Ended::Done };
            };
            let mut portions = Vec::new();
            let mut ended = None;
            for taken in 0..room.min(TOGETHER) {
                if taken > 0 && !connection.is_more_here() {
                    break;
                }
                let patience = if taken == 0 { LOOK_UP } else { Duration::ZERO };
                let step = match connection.next_within(patience) {
                    Ok(Next::NotYet) => {
                        silent = taken == 0;
                        break;
                    }
                    Ok(Next::End) => {
                        coming.end(&mut portions);
                        ended = Some(Ended::Done);
                        break;
                    }
                    Ok(Next::Stretch(stretch)) if stretch.step != expected => {
                        let wrong = format!("step {} came instead of {expected}", stretch.step);
                        ended = Some(Ended::Gone(Error::Service(wrong)));
                        break;
                    }
                    Ok(Next::Stretch(stretch)) => {
                        (expected, silent) = (expected + 1, false);
                        self.finished(ask, stretch)
                    }
                    Err(error) => match self.failed(connection, error) {
                        Ok(step) => step,
                        Err(gone) => {
                            ended = Some(gone);
                            break;
                        }
                    },
                };
                // After a step that failed nothing is wanted.
                let failed = step.is_err();
                coming.push(step, failed, &mut portions);
                if failed {
                    ended = Some(Ended::Done);
                    break;
                }
            }
            self.bring(portions);
            if let Some(ended) = ended {
                return ended;
            }
            if coming.keys.is_empty() {
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
    fn wait_for_room(&self, keys: &VecDeque<Key>) -> Option<usize> {
        let mut inner = self.shared.lock();
        loop {
            if self.shared.is_closing() {
                return None;
            }
            let first = current(&inner, keys.front()?)?;
            if first.next < first.until {
                let rooms = keys.iter().map_while(|key| current(&inner, key));
                let rooms = rooms.map(|stream| (stream.until - stream.next).min(1 << 20) as usize);
                return Some(rooms.sum());
            }
            let waited = self.shared.changed.wait_timeout(inner, IDLE);
            inner = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Hands steps to the core.
    fn bring(&self, portions: Vec<Portion>) {
        if portions.is_empty() {
            return;
        }
        let mut inner = self.shared.lock();
        let inner = &mut *inner;
        inner.refusals.remove(&self.worker);
        let mut brought = Vec::with_capacity(portions.len());
        for ((epoch, window, number), steps, end) in portions {
            let stream = inner.streams.get_mut(&(epoch, window));
            let Some(stream) = stream.filter(|stream| stream.number == number) else { continue };
            let good = steps.iter().flatten();
            let bytes: usize = good.map(Rows::bytes).sum();
            inner.came = (inner.came.0 + bytes as u64, inner.came.1 + steps.len() as u64);
            let gap = stream.since.elapsed().as_secs_f64() * 1e3;
            inner.slow = nearly_always(inner.slow, gap);
            stream.since = Instant::now();
            let offset = Offset(stream.next);
            stream.next += steps.len() as u64;
            let incarnation = stream.fetch.incarnation;
            brought.push(Data { incarnation, epoch, window, offset, steps, end });
        }
        inner.client.set_fetch_p99(inner.slow as u64);
        inner.settle_ahead(self.shared.settings.memory);
        inner.client.data_of_several(self.shared.now(), self.worker, brought);
        self.shared.pump(inner);
    }
}

/// A stream, if it is the one that was begun with this number.
fn current<'a>(inner: &'a Inner, (epoch, window, number): &Key) -> Option<&'a Stream> {
    inner.streams.get(&(*epoch, *window)).filter(|stream| stream.number == *number)
}

impl Coming {
    /// Takes in the next step of the first window. Where another follows, the window ends with its last
    /// step; otherwise the worker says where it ends, or a failure does.
    fn push(&mut self, step: Result<Rows>, last: bool, portions: &mut Vec<Portion>) {
        let Some(key) = self.keys.front().copied() else { return };
        self.left = self.left.saturating_sub(1);
        let end = last || self.left == 0 && self.keys.len() > 1;
        match portions.last_mut() {
            Some((known, steps, false)) if *known == key => {
                steps.push(step);
                if let Some(portion) = portions.last_mut() {
                    portion.2 = end;
                }
            }
            _ => portions.push((key, vec![step], end)),
        }
        if end {
            self.keys.pop_front();
            self.left = self.steps;
        }
    }

    /// There is no more: what has not come of any window does not exist.
    fn end(&mut self, portions: &mut Vec<Portion>) {
        for key in self.keys.drain(..) {
            match portions.last_mut() {
                Some((known, _, end)) if *known == key => *end = true,
                _ => portions.push((key, Vec::new(), true)),
            }
        }
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
