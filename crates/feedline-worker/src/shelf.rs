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
//! never more than so many bytes. What all of them have taken goes first, soon: memory that was written a
//! moment ago is cheap to write again, and clients on this host have mapped it. Then goes what is
//! oldest, and is computed again if asked for.

use crate::production::Production;
use feedline_core::{Result, Rows};
use feedline_wire::control::DatasetId;
use feedline_wire::{JobId, Part};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// A job is taken to be there for so long after it has asked for something.
const THERE: Duration = Duration::from_secs(10);

/// Of what is kept, all jobs may have taken one part in so many.
const SPENT: usize = 8;

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

/// A stretch on the shelf.
struct Kept {
    rows: Rows,
    bytes: usize,
    /// Jobs that have taken it.
    taken: Vec<JobId>,
    /// Where it stands among all, oldest first.
    place: u64,
}

#[derive(Default)]
struct Place {
    rows: BTreeMap<u64, Kept>,
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
    /// Line and number of what somebody may still take, oldest first.
    order: BTreeMap<u64, (u64, u64)>,
    /// The same of what all jobs have taken.
    spent: BTreeMap<u64, (u64, u64)>,
    bytes: usize,
    spent_bytes: usize,
    /// How many stretches were kept so far.
    kept: u64,
    /// How many lines there were.
    count: u64,
}

/// A line that somebody asks for.
pub(crate) struct Known {
    number: u64,
    is_round: bool,
    /// Whether others may ask for it as well.
    shared: AtomicBool,
    /// Held by whoever looks for a production and may begin one.
    beginning: Mutex<()>,
    /// Every stretch that was made comes before this one.
    end: AtomicU64,
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
                let known = Arc::new(Known {
                    number,
                    is_round,
                    shared: AtomicBool::new(false),
                    beginning: Mutex::default(),
                    end: AtomicU64::new(0),
                });
                inner.numbers.insert(line, Arc::clone(&known));
                known
            }
        };
        let place = inner.lines.entry(known.number).or_default();
        place.jobs.insert(job, now);
        let before = place.jobs.len();
        place.jobs.retain(|_, seen| now.duration_since(*seen) < THERE);
        let some_left = place.jobs.len() < before;
        place.productions.retain(|one| one.strong_count() > 0);
        let alone = place.jobs.len() < 2 && !known.is_round;
        known.shared.store(!alone, Ordering::Relaxed);
        if alone {
            inner.clear(known.number);
        } else if some_left {
            inner.look_again(known.number);
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
    pub(crate) fn end(&self, line: &Known, end: u64) {
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

    /// A stretch that is here, for a job.
    pub(crate) fn take(&self, line: &Known, stretch: u64, job: JobId) -> Option<Rows> {
        let mut inner = self.lock();
        let kept = inner.lines.get_mut(&line.number)?.rows.get_mut(&stretch)?;
        kept.note(job);
        let rows = kept.rows.clone();
        inner.sort_in(line.number, stretch);
        inner.make_room(self.most);
        Some(rows)
    }

    fn has(&self, line: &Known, stretch: u64) -> bool {
        let inner = self.lock();
        inner.lines.get(&line.number).is_some_and(|place| place.rows.contains_key(&stretch))
    }

    /// Whether a stretch is not here and nobody makes it, though later ones were made and are being made for
    /// other jobs.
    pub(crate) fn is_past(&self, line: &Known, stretch: u64, job: JobId) -> bool {
        if stretch >= line.end.load(Ordering::Relaxed) || self.has(line, stretch) {
            return false;
        }
        let busy = |place: &Place| {
            let mut going_on = place.productions.iter().filter_map(Weak::upgrade);
            going_on.any(|one| one.job != job)
        };
        let busy = self.lock().lines.get(&line.number).is_some_and(busy);
        busy && self.find(line, stretch).is_none()
    }

    /// The first stretch after this one that is here and belongs to the same of so many ranks.
    pub(crate) fn next_after(&self, line: &Known, stretch: u64, ranks: u64) -> Option<u64> {
        let inner = self.lock();
        let mut later = inner.lines.get(&line.number)?.rows.range(stretch + 1..);
        later.find(|(next, _)| (*next - stretch).is_multiple_of(ranks)).map(|(next, _)| *next)
    }

    /// Somebody who makes the stretch, or will soon; if there is nobody, one who begins now. Of jobs that
    /// ask at the same moment, one begins. None if the stretch has come meanwhile.
    pub(crate) fn find_or(
        &self,
        line: &Known,
        stretch: u64,
        make: impl FnOnce() -> Result<Arc<Production>>,
    ) -> Result<Option<Arc<Production>>> {
        let _beginning = line.beginning.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(production) = self.find(line, stretch) {
            return Ok(Some(production));
        }
        if line.is_shared() && self.has(line, stretch) {
            return Ok(None);
        }
        let production = make()?;
        self.announce(line, &production);
        Ok(Some(production))
    }

    fn find(&self, line: &Known, stretch: u64) -> Option<Arc<Production>> {
        let inner = self.lock();
        let productions =
            inner.lines.get(&line.number)?.productions.iter().filter_map(Weak::upgrade);
        let mut covering = productions.filter(|one| one.covers(stretch));
        covering.find(|one| one.may_make(stretch))
    }

    /// Says that a window is being made.
    fn announce(&self, line: &Known, production: &Arc<Production>) {
        let mut inner = self.lock();
        let place = inner.lines.entry(line.number).or_default();
        place.productions.push(Arc::downgrade(production));
    }

    /// Keeps a stretch, if several jobs may ask for it. One of them may have it already.
    pub(crate) fn put(&self, line: &Known, stretch: u64, rows: &Rows, taken: Option<JobId>) {
        line.end.fetch_max(stretch.saturating_add(1), Ordering::Relaxed);
        let bytes = rows.bytes();
        if bytes > self.most || !line.is_shared() {
            return;
        }
        let mut inner = self.lock();
        let (number, next) = (line.number, inner.kept);
        let Some(place) = inner.lines.get_mut(&number) else { return };
        let kept = place.rows.entry(stretch).or_insert_with(|| Kept {
            rows: rows.clone(),
            bytes,
            taken: Vec::new(),
            place: next,
        });
        let is_new = kept.place == next;
        taken.into_iter().for_each(|job| kept.note(job));
        if is_new {
            // It counts here from now on, not as in flight.
            rows.hand_over();
            inner.kept += 1;
            inner.bytes += bytes;
            inner.order.insert(next, (number, stretch));
        }
        inner.sort_in(number, stretch);
        inner.make_room(self.most);
    }

    /// Bytes that are kept.
    pub(crate) fn bytes(&self) -> usize {
        self.lock().bytes
    }
}

impl Kept {
    fn note(&mut self, job: JobId) {
        if !self.taken.contains(&job) {
            self.taken.push(job);
        }
    }
}

impl Inner {
    /// Notes if nobody who is there will still take a stretch.
    fn sort_in(&mut self, line: u64, stretch: u64) {
        let Some(place) = self.lines.get(&line) else { return };
        let Some(kept) = place.rows.get(&stretch) else { return };
        if place.jobs.keys().all(|job| kept.taken.contains(job))
            && let Some(which) = self.order.remove(&kept.place)
        {
            self.spent.insert(kept.place, which);
            self.spent_bytes += kept.bytes;
        }
    }

    /// Jobs have left: others may have taken all there is to take.
    fn look_again(&mut self, line: u64) {
        let Some(place) = self.lines.get(&line) else { return };
        let stretches: Vec<u64> = place.rows.keys().copied().collect();
        stretches.into_iter().for_each(|stretch| self.sort_in(line, stretch));
    }

    fn make_room(&mut self, most: usize) {
        while self.spent_bytes > most / SPENT || self.bytes > most {
            let oldest = self.spent.first_key_value().or_else(|| self.order.first_key_value());
            let Some((line, stretch)) = oldest.map(|(_, which)| *which) else { break };
            let place = self.lines.get_mut(&line).map(|place| &mut place.rows);
            let kept = place.and_then(|rows| rows.remove(&stretch));
            self.forget(&kept.expect("what is in the order is on the shelf"));
        }
    }

    /// A stretch is no longer here.
    fn forget(&mut self, kept: &Kept) {
        self.bytes -= kept.bytes;
        if self.spent.remove(&kept.place).is_some() {
            self.spent_bytes -= kept.bytes;
        }
        self.order.remove(&kept.place);
    }

    /// Lets go of all that is kept of a line.
    fn clear(&mut self, line: u64) {
        let Some(place) = self.lines.get_mut(&line) else { return };
        if place.rows.is_empty() {
            return;
        }
        let kept = std::mem::take(&mut place.rows);
        kept.values().for_each(|kept| self.forget(kept));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use feedline_core::{Batch, Tensor};

    fn rows(bytes: usize) -> Rows {
        let values = Tensor::from_slice(&[bytes], &vec![7u8; bytes]);
        Rows::Batch(Batch { rows: 1, fields: vec![("x".into(), values)], indices: None })
    }

    fn line() -> Line {
        Line {
            dataset: DatasetId("d".into()),
            part: None,
            seed: 0,
            epoch: 0,
            start: String::new(),
            with_index: false,
            rows: false,
            round: None,
        }
    }

    /// Which of the first ten stretches are there.
    fn there(shelf: &Shelf, line: &Known) -> Vec<u64> {
        (0..10).filter(|stretch| shelf.has(line, *stretch)).collect()
    }

    #[test]
    fn what_one_job_alone_asks_for_is_not_kept() {
        let shelf = Shelf::new(8000);
        let known = shelf.join(line(), JobId(1));
        shelf.put(&known, 0, &rows(1000), Some(JobId(1)));
        assert_eq!((there(&shelf, &known), shelf.bytes()), (vec![], 0));
    }

    #[test]
    fn what_all_jobs_have_taken_goes_first() {
        let shelf = Shelf::new(8000);
        let known = shelf.join(line(), JobId(1));
        shelf.join(line(), JobId(2));
        for stretch in 0..5 {
            shelf.put(&known, stretch, &rows(1000), Some(JobId(1)));
        }
        assert_eq!(there(&shelf, &known), [0, 1, 2, 3, 4]);
        // The last that both have taken is kept for a while.
        for stretch in [1, 2, 4] {
            assert!(shelf.take(&known, stretch, JobId(2)).is_some());
        }
        assert_eq!((there(&shelf, &known), shelf.bytes()), (vec![0, 3, 4], 3000));
        assert!(shelf.take(&known, 1, JobId(2)).is_none());
    }

    #[test]
    fn what_is_oldest_goes_when_there_is_no_room() {
        let shelf = Shelf::new(3500);
        let known = shelf.join(line(), JobId(1));
        shelf.join(line(), JobId(2));
        (0..6).for_each(|stretch| shelf.put(&known, stretch, &rows(1000), Some(JobId(1))));
        assert_eq!((there(&shelf, &known), shelf.bytes()), (vec![3, 4, 5], 3000));
        // What would not fit at all is not kept.
        shelf.put(&known, 6, &rows(4000), None);
        assert_eq!(there(&shelf, &known), [3, 4, 5]);
        assert_eq!(shelf.next_after(&known, 1, 2), Some(3));
        assert_eq!(shelf.next_after(&known, 5, 1), None);
    }

    #[test]
    fn a_job_that_is_gone_keeps_nothing_here() {
        let shelf = Shelf::new(8000);
        let known = shelf.join(line(), JobId(1));
        (2..=3).for_each(|job| drop(shelf.join(line(), JobId(job))));
        for stretch in 0..5 {
            shelf.put(&known, stretch, &rows(1000), Some(JobId(1)));
            assert!(shelf.take(&known, stretch, JobId(2)).is_some());
        }
        assert_eq!(shelf.bytes(), 5000);
        let long_ago = Instant::now().checked_sub(THERE).expect("the machine is older");
        shelf.lock().lines.get_mut(&known.number).unwrap().jobs.insert(JobId(3), long_ago);
        shelf.join(line(), JobId(1));
        shelf.put(&known, 5, &rows(1000), None);
        assert_eq!((there(&shelf, &known), shelf.bytes()), (vec![4, 5], 2000));
    }
}
