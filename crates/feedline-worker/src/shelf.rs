//! Stretches that were computed, or are being computed, for whoever asks for them too.
//!
//! ```text
//!  job A ─┐ stretch 7?                                       ┌─► on the shelf: take it
//!  job B ─┼──────────► line (dataset, seed, epoch, start) ───┼─► in the making: wait for it
//!  job C ─┘                                                  └─► neither: make it
//! ```
//!
//! What a stretch holds depends on its line and its number alone, so jobs that compute the same
//! thing meet here, however many ranks each has. Whoever needs the next stretch drives the
//! production, so one slow job holds nobody up. Only where several jobs meet is anything kept, and
//! never more than so many bytes: what is oldest goes first, and is computed again if asked for.

use feedline_core::{Result, Rows};
use feedline_engine::{Progress, WindowRun};
use feedline_wire::control::DatasetId;
use feedline_wire::{JobId, Part};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// A job is taken to be there for so long after it has asked for something.
const THERE: Duration = Duration::from_secs(10);

/// Whoever waits for a stretch looks up this often.
pub(crate) const PATIENCE: Duration = Duration::from_millis(50);

/// What decides what stretches hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Line {
    pub dataset: DatasetId,
    pub part: Option<Part>,
    pub seed: u64,
    pub epoch: u64,
    pub start: String,
    pub with_index: bool,
    pub rows: bool,
    /// In rounds: which stretch, and of how many ranks. What is numbered then are its batches, of
    /// round k those from k × ranks on.
    pub round: Option<(u64, u64)>,
}

/// A window that is being computed.
pub(crate) struct Production {
    rank: u64,
    world: u64,
    end: u64,
    making: Mutex<Making>,
}

struct Making {
    run: WindowRun,
    /// The next step that comes.
    next: u64,
}

/// What driving a production came to.
pub(crate) enum Driven {
    /// The stretch.
    Made(Rows),
    /// Not yet.
    Waits,
    /// It will not come from here: somebody else took it, or there is no such step.
    Gone,
    /// The window has no more steps.
    End,
}

impl Production {
    pub(crate) fn new(run: WindowRun, rank: u64, world: u64, first: u64, steps: u64) -> Self {
        let making = Mutex::new(Making { run, next: first });
        Self { rank, world, end: first.saturating_add(steps), making }
    }

    /// Whether the stretch may still come from here.
    fn covers(&self, stretch: u64) -> bool {
        let Some(beyond) = stretch.checked_sub(self.rank) else { return false };
        let step = beyond / self.world;
        beyond % self.world == 0 && step < self.end
    }

    /// Goes on until the stretch is made, but not for longer than `patience`. What comes before it goes
    /// to the shelf.
    pub(crate) fn drive(
        &self,
        stretch: u64,
        (shelf, line): (&Shelf, &Known),
        patience: Duration,
    ) -> Result<Driven> {
        let wanted = (stretch - self.rank) / self.world;
        // Whoever it was made for may have asked for less.
        if wanted >= self.end {
            return Ok(Driven::Gone);
        }
        let mut making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if making.next > wanted {
                return Ok(Driven::Gone);
            }
            match making.run.next_within(patience)? {
                Progress::Waits => return Ok(Driven::Waits),
                Progress::End => {
                    shelf.end(line, making.next);
                    return Ok(Driven::End);
                }
                Progress::Stretch(made) => {
                    making.next = made.step + 1;
                    let number = made.step * self.world + self.rank;
                    shelf.put(line, number, &made.rows);
                    if number == stretch {
                        return Ok(Driven::Made(made.rows));
                    }
                }
            }
        }
    }

    /// Whether it has made the stretch, as far as anyone can tell: one that is being driven may have.
    pub(crate) fn has_passed(&self, stretch: u64) -> bool {
        let wanted = stretch.saturating_sub(self.rank) / self.world;
        self.making.try_lock().map_or(true, |making| making.next > wanted)
    }

    /// Seconds of work that went into it.
    pub(crate) fn busy_seconds(&self) -> f64 {
        self.making.lock().unwrap_or_else(PoisonError::into_inner).run.stats().busy_seconds
    }
}

#[derive(Default)]
struct Place {
    rows: BTreeMap<u64, Rows>,
    productions: Vec<Weak<Production>>,
    jobs: HashMap<JobId, Instant>,
    /// Where a stretch ends that gives several batches.
    end: Option<u64>,
}

#[derive(Default)]
struct Inner {
    numbers: HashMap<Line, Arc<Known>>,
    /// By the numbers of lines.
    lines: HashMap<u64, Place>,
    /// What is kept, oldest first, with the number of its line.
    order: VecDeque<(u64, u64)>,
    bytes: usize,
    /// How many lines there were.
    count: u64,
}

/// A line that somebody asks for.
pub(crate) struct Known {
    number: u64,
    is_round: bool,
    /// Whether others may ask for it as well.
    shared: AtomicBool,
}

impl Known {
    /// Whether anything of it may be on the shelf, or in the making for others.
    pub(crate) fn is_shared(&self) -> bool {
        self.is_round || self.shared.load(Ordering::Relaxed)
    }
}

/// What is kept and what is being made.
pub(crate) struct Shelf {
    most: usize,
    inner: Mutex<Inner>,
}

impl Shelf {
    /// A shelf for so many bytes.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, inner: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A job asks for stretches of a line.
    pub(crate) fn join(&self, line: Line, job: JobId) -> Arc<Known> {
        let now = Instant::now();
        let mut inner = self.lock();
        let known = match inner.numbers.get(&line) {
            Some(known) => Arc::clone(known),
            None => {
                inner.count += 1;
                let (number, is_round) = (inner.count, line.round.is_some());
                let known = Arc::new(Known { number, is_round, shared: AtomicBool::new(false) });
                inner.numbers.insert(line, Arc::clone(&known));
                known
            }
        };
        let place = inner.lines.entry(known.number).or_default();
        place.jobs.insert(job, now);
        place.jobs.retain(|_, seen| now.duration_since(*seen) < THERE);
        place.productions.retain(|one| one.strong_count() > 0);
        let alone = place.jobs.len() < 2 && !known.is_round;
        known.shared.store(!alone, Ordering::Relaxed);
        if alone {
            inner.clear(known.number);
        }
        // Epochs come and go.
        let there =
            |place: &Place| place.jobs.values().any(|seen| now.duration_since(*seen) < THERE);
        let idle = inner.lines.iter().filter(|(_, place)| !there(place));
        let idle: Vec<u64> = idle.map(|(number, _)| *number).collect();
        for number in &idle {
            inner.clear(*number);
            inner.lines.remove(number);
        }
        if !idle.is_empty() {
            inner.numbers.retain(|_, known| !idle.contains(&known.number));
        }
        known
    }

    /// Notes where a stretch ends.
    fn end(&self, line: &Known, end: u64) {
        if line.is_round
            && let Some(place) = self.lock().lines.get_mut(&line.number)
        {
            place.end = Some(end);
        }
    }

    /// Whether a stretch is known to end before this batch.
    pub(crate) fn is_over(&self, line: &Known, batch: u64) -> bool {
        let end = self.lock().lines.get(&line.number).and_then(|place| place.end);
        end.is_some_and(|end| batch >= end)
    }

    /// A stretch that is here.
    pub(crate) fn get(&self, line: &Known, stretch: u64) -> Option<Rows> {
        self.lock().lines.get(&line.number)?.rows.get(&stretch).cloned()
    }

    /// Somebody who makes the stretch, or will soon.
    pub(crate) fn find(&self, line: &Known, stretch: u64) -> Option<Arc<Production>> {
        let inner = self.lock();
        let productions =
            inner.lines.get(&line.number)?.productions.iter().filter_map(Weak::upgrade);
        let mut covering = productions.filter(|one| one.covers(stretch));
        // One that is being driven at this moment has not passed it, as far as anyone can tell.
        covering.find(|one| {
            let making = one.making.try_lock();
            making.map_or(true, |making| making.next <= (stretch - one.rank) / one.world)
        })
    }

    /// Says that a window is being made.
    pub(crate) fn announce(&self, line: &Known, production: &Arc<Production>) {
        let mut inner = self.lock();
        let place = inner.lines.entry(line.number).or_default();
        place.productions.push(Arc::downgrade(production));
    }

    /// Keeps a stretch, if several jobs may ask for it.
    fn put(&self, line: &Known, stretch: u64, rows: &Rows) {
        let bytes = rows.bytes();
        if bytes > self.most || !line.is_shared() {
            return;
        }
        let mut inner = self.lock();
        let Some(place) = inner.lines.get_mut(&line.number) else { return };
        if place.rows.insert(stretch, rows.clone()).is_some() {
            return;
        }
        inner.order.push_back((line.number, stretch));
        inner.bytes += bytes;
        while inner.bytes > self.most
            && let Some((line, stretch)) = inner.order.pop_front()
        {
            inner.remove(line, stretch);
        }
    }

    /// Bytes that are kept.
    pub(crate) fn bytes(&self) -> usize {
        self.lock().bytes
    }
}

impl Inner {
    fn remove(&mut self, line: u64, stretch: u64) {
        let rows = self.lines.get_mut(&line).and_then(|place| place.rows.remove(&stretch));
        self.bytes -= rows.map_or(0, |rows| rows.bytes());
    }

    /// Lets go of all that is kept of a line.
    fn clear(&mut self, line: u64) {
        let Some(place) = self.lines.get_mut(&line) else { return };
        if place.rows.is_empty() {
            return;
        }
        let kept = std::mem::take(&mut place.rows);
        self.bytes -= kept.values().map(Rows::bytes).sum::<usize>();
        self.order.retain(|(other, _)| *other != line);
    }
}
