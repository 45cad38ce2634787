//! A window that is being computed, for whoever needs its stretches.

use crate::shelf::{Known, Shelf};
use feedline_core::{Result, Rows};
use feedline_engine::{Progress, WindowRun};
use feedline_wire::JobId;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A window that is being computed.
pub(crate) struct Production {
    /// Who began it.
    pub job: JobId,
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
    pub(crate) fn new(
        job: JobId,
        run: WindowRun,
        (rank, world): (u64, u64),
        first: u64,
        steps: u64,
    ) -> Self {
        let making = Mutex::new(Making { run, next: first });
        Self { job, rank, world, end: first.saturating_add(steps), making }
    }

    /// Whether the stretch may still come from here.
    pub(crate) fn covers(&self, stretch: u64) -> bool {
        let Some(beyond) = stretch.checked_sub(self.rank) else { return false };
        let step = beyond / self.world;
        beyond % self.world == 0 && step < self.end
    }

    /// Goes on until the stretch is made, but not for longer than `patience`. What comes before it goes
    /// to the shelf.
    pub(crate) fn drive(
        &self,
        stretch: u64,
        (shelf, line, job): (&Shelf, &Known, JobId),
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
                    let taken = number == stretch;
                    shelf.put(line, number, &made.rows, taken.then_some(job));
                    if taken {
                        return Ok(Driven::Made(made.rows));
                    }
                }
            }
        }
    }

    /// Whether it has not made the stretch yet, as far as anyone can tell: one that is being driven may be
    /// on its way there.
    pub(crate) fn may_make(&self, stretch: u64) -> bool {
        let wanted = stretch.saturating_sub(self.rank) / self.world;
        self.making.try_lock().map_or(true, |making| making.next <= wanted)
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
