//! Windows in hand: what was received of each, and who is asked for more.

use feedline_wire::{Data, Millis, Offset, WorkerId};
use std::collections::{BTreeMap, VecDeque};

/// A window that the client holds.
#[derive(Debug)]
pub(crate) struct Held<B> {
    /// Steps handed to the trainer so far.
    pub delivered: u64,
    /// Steps received, in order, from `delivered` on.
    pub buffer: VecDeque<B>,
    /// How many steps the window has, once that is known.
    pub end: Option<u64>,
    pub asked: Option<Asked>,
    /// Who delivered last, and so has the rest at hand.
    pub last: Option<WorkerId>,
    /// Workers that failed to deliver.
    pub failures: u32,
    /// Those among them that took too long.
    pub late: u32,
}

/// A worker that was asked for steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub worker: WorkerId,
    /// When it was asked, or delivered last.
    pub since: Millis,
    /// The step after the last it was asked for.
    pub until: u64,
}

impl<B> Held<B> {
    pub(crate) fn new(from: Offset) -> Self {
        Self {
            delivered: from.0,
            buffer: VecDeque::new(),
            end: None,
            asked: None,
            last: None,
            failures: 0,
            late: 0,
        }
    }

    /// The offset at which data is accepted.
    pub(crate) fn expected(&self) -> u64 {
        self.delivered + self.buffer.len() as u64
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.end.is_some_and(|end| self.expected() >= end)
    }

    /// When the worker that was asked is given up for another. Each time doubles the patience: if all
    /// are slow, one of them has to be waited for.
    pub(crate) fn gives_up_at(&self, stall: Millis) -> Option<Millis> {
        let patience = stall.saturating_mul(1 << self.late.min(8));
        self.asked.map(|asked| asked.since.saturating_add(patience))
    }

    /// The worker that was asked has failed.
    pub(crate) fn fail(&mut self) {
        (self.asked, self.last) = (None, None);
        self.failures += 1;
    }

    /// Steps that were asked for and have not come.
    pub(crate) fn coming(&self) -> u64 {
        self.asked.map_or(0, |asked| asked.until.saturating_sub(self.expected()))
    }

    pub(crate) fn take_in(&mut self, now: Millis, data: Data<B>) {
        self.buffer.extend(data.steps);
        if data.end {
            self.end = Some(self.expected());
        }
        self.last = self.asked.map(|asked| asked.worker);
        let done = self.is_complete() || self.coming() == 0;
        match &mut self.asked {
            Some(_) if done => self.asked = None,
            Some(asked) => asked.since = now,
            None => {}
        }
    }
}

/// The workers that can be asked, and those that failed lately.
#[derive(Debug, Default)]
pub(crate) struct Workers {
    known: Vec<WorkerId>,
    /// Until when a worker is not asked, and how often it has failed since it last delivered.
    suspect: BTreeMap<WorkerId, (Millis, u32)>,
}

impl Workers {
    /// A worker that failed once is left alone for so long, and twice as long each time after.
    const PAUSE: Millis = 50;

    pub(crate) fn set(&mut self, known: &[WorkerId]) {
        self.known = known.to_vec();
        self.suspect.retain(|worker, _| known.contains(worker));
    }

    pub(crate) fn count(&self) -> usize {
        self.known.len()
    }

    /// A worker has failed: it is left alone for a while, `most` at most.
    pub(crate) fn failed(&mut self, now: Millis, worker: WorkerId, most: Millis) {
        let (until, failures) = self.suspect.entry(worker).or_default();
        // Several windows may have waited for it: that is one failure.
        if *until <= now {
            *until = now + (Self::PAUSE << (*failures).min(16)).min(most);
            *failures += 1;
        }
    }

    /// A worker has delivered.
    pub(crate) fn delivered(&mut self, worker: WorkerId) {
        self.suspect.remove(&worker);
    }

    /// The worker to ask for the window of this number: the one that delivered `last`, while it can be
    /// asked. Different windows ask different ones.
    pub(crate) fn choose(
        &self,
        now: Millis,
        number: u64,
        last: Option<WorkerId>,
    ) -> Option<WorkerId> {
        let trusted =
            |worker: &&WorkerId| self.suspect.get(worker).is_none_or(|(until, _)| *until <= now);
        if let Some(last) = last.filter(|last| self.known.contains(last) && trusted(&last)) {
            return Some(last);
        }
        let count = self.known.iter().filter(trusted).count() as u64;
        let at = number.checked_rem(count)?;
        self.known.iter().filter(trusted).nth(at as usize).copied()
    }

    /// From when on somebody can be asked.
    pub(crate) fn ready_at(&self) -> Option<Millis> {
        let until = |worker: &WorkerId| self.suspect.get(worker).map_or(0, |(until, _)| *until);
        self.known.iter().map(until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_fails_is_left_alone_for_longer_each_time() {
        let (one, two) = (WorkerId(1), WorkerId(2));
        let mut workers = Workers::default();
        assert_eq!(workers.choose(0, 3, None), None);
        workers.set(&[one, two]);
        workers.failed(0, one, 1_000);
        workers.failed(0, one, 1_000);
        assert_eq!(
            (workers.choose(49, 0, None), workers.choose(50, 0, None)),
            (Some(two), Some(one))
        );
        workers.failed(50, one, 1_000);
        workers.failed(60, two, 1_000);
        assert_eq!((workers.choose(70, 0, None), workers.ready_at()), (None, Some(110)));
        assert_eq!(
            (workers.choose(110, 0, None), workers.choose(150, 0, None)),
            (Some(two), Some(one))
        );
        workers.delivered(one);
        workers.failed(200, one, 1_000);
        assert_eq!(workers.choose(250, 0, None), Some(one), "what it delivered counts for it");
        (0..20).for_each(|at| workers.failed(300 + at * 2_000, one, 1_000));
        assert_eq!(workers.choose(300 + 19 * 2_000 + 1_000, 0, None), Some(one));
    }
}
