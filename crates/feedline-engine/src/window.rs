//! A window of an epoch: some stretches of one rank, each delivered by itself.
//!
//! What a window yields is a pure function of (plan, seed, epoch, window), so anyone can compute it,
//! from any stretch on; [`Assembly`](crate::Assembly) makes of the stretches what a run would have
//! delivered.

use crate::arrange::whole_batch;
use crate::run::{Head, Run};
use crate::{Delivery, Options, Stats, Team};
use feedline_core::{Error, Pool, Position, Result, Rows, Store, Stretch};
use feedline_ops::Pipeline;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Which stretches of an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Where the epoch was begun: ranks and stretches count in what was left of it then.
    pub start: Position,
    /// Whose stretches.
    pub rank: u64,
    /// Of how many ranks.
    pub world: u64,
    /// The first of the rank's steps.
    pub first: u64,
    /// Number of steps.
    pub steps: u64,
}

/// How far a window has come.
#[derive(Debug)]
pub enum Progress {
    /// One more stretch.
    Stretch(Stretch),
    /// Nothing yet.
    Waits,
    /// All of it was delivered.
    End,
}

/// A window that is being computed.
pub struct WindowRun {
    run: Run,
    step: u64,
}

impl WindowRun {
    /// Starts computing a window with the threads of a team. Windows that share a pool share the
    /// memory that `options` allow.
    ///
    /// # Errors
    ///
    /// If the options make no sense.
    pub fn start(
        team: &Team,
        pool: &Pool,
        pipeline: Arc<Pipeline>,
        store: Arc<dyn Store>,
        window: &Window,
        options: Options,
    ) -> Result<Self> {
        let Window { start, rank, world, first, steps } = window;
        let stretch = |step: u64| step.saturating_mul(*world).saturating_add(*rank);
        let position = Position { at: Some((stretch(*first), 0)), ..start.clone() };
        let options = Options {
            rank: *rank,
            world: *world,
            epochs: Some(1),
            until: Some(stretch(first.saturating_add(*steps))),
            delivery: Delivery::Stretches,
            record: None,
            ..options
        };
        let run = Run::start_with(team, pool.clone(), pipeline, store, position, options)?;
        Ok(Self { run, step: *first })
    }

    /// Waits for the next stretch, at most as long as `patience` says.
    ///
    /// # Errors
    ///
    /// If a sample is bad and the plan does not leave it out.
    pub fn next_within(&mut self, patience: Duration) -> Result<Progress> {
        let mut group = match self.run.wait_for_head(Instant::now().checked_add(patience)) {
            Some(Head::Group(group)) if group.is_end => return Ok(Progress::End),
            Some(Head::Group(group)) => group,
            Some(Head::Ready(_)) => return Err(Error::Internal("a window out of order".into())),
            None if self.run.is_over() => return Ok(Progress::End),
            None => return Ok(Progress::Waits),
        };
        let lane = self.run.lane();
        let (pipeline, options) = (&lane.pipeline, &lane.options);
        let rows = if pipeline.is_counted() || group.rows() == 0 {
            if let Some((_, error)) = group.first_bad() {
                return Err(error);
            }
            Rows::Batch(whole_batch(*group, pipeline, &lane.pool, options.with_index)?)
        } else {
            let (good, bad) = group.into_good_rows(pipeline)?;
            if let Some((_, error)) = bad.iter().find(|(_, error)| !error.is_record()) {
                return Err(error.clone());
            }
            Rows::Some { good, bad }
        };
        let step = self.step;
        self.step += 1;
        Ok(Progress::Stretch(Stretch { step, rows }))
    }

    /// What it did so far, and where its time went.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.run.stats()
    }
}
