//! A window of an epoch: some stretches of one rank, each delivered by itself.
//!
//! What a window yields is a pure function of (plan, seed, epoch, window), so anyone can compute it,
//! from any stretch on; [`Assembly`](crate::Assembly) makes of the stretches what a run would have
//! delivered.
//!
//! Where samples are sorted by their lengths (`bucket`), a window is one stretch, and yields its
//! finished batches one by one, from any of them on; how many there are is known at its end.

use crate::arrange::whole_batch;
use crate::bucket::Piece;
use crate::deal::first_stretch;
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
    /// The first of the rank's steps; with `bucket`, which of the rank's stretches.
    pub first: u64,
    /// Number of steps; with `bucket`, 1.
    pub steps: u64,
    /// With `bucket`, how many batches of the stretch are left out: those that were delivered.
    pub from: u64,
    /// In rounds, whether the batches of all ranks are given, so that a stretch is computed once
    /// for all of them; `rank` says nothing then. Those of round k have the steps k × world + rank.
    pub every_rank: bool,
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
        let Window { start, rank, world, first, steps, from, every_rank } = window;
        let sorted = pipeline.bucket.is_some();
        if sorted && *steps != 1 || !sorted && *from != 0 {
            return Err(Error::Internal(format!(
                "a window of {steps} stretches from batch {from} on; with bucket it is one stretch, \
                 otherwise whole ones"
            )));
        }
        if *every_rank && !options.rounds {
            return Err(Error::Internal("batches of all ranks, and no rounds".into()));
        }
        let options = Options {
            rank: *rank,
            world: *world,
            epochs: Some(1),
            delivery: Delivery::Stretches,
            record: None,
            // Where batches take samples from all over a stretch, nobody else can tell which.
            with_index: options.with_index || sorted,
            ..options
        };
        let (own, stride) = first_stretch(&options);
        let stretch = |step: u64| step.saturating_mul(stride).saturating_add(own);
        let until = Some(stretch(first.saturating_add(*steps)));
        let options = Options { until, ..options };
        let position = Position { at: Some((stretch(*first), *from)), ..start.clone() };
        let step = match (sorted, every_rank) {
            (false, _) => *first,
            (true, false) => *from,
            (true, true) => from.saturating_mul(*world),
        };
        let mut run = Run::start_with(team, pool.clone(), pipeline, store, position, options)?;
        if *every_rank {
            run.give_every_rank();
        }
        Ok(Self { run, step })
    }

    /// Waits for the next stretch, at most as long as `patience` says.
    ///
    /// With `bucket` it is the next batch of the stretch, and `step` its number in it. Bad samples
    /// that the plan leaves out come as rows of which none is good, before the batch with the same
    /// number; a window that is computed once more from a later batch on names them once more.
    ///
    /// # Errors
    ///
    /// If a sample is bad and the plan does not leave it out.
    pub fn next_within(&mut self, patience: Duration) -> Result<Progress> {
        if self.run.lane().pipeline.bucket.is_some() {
            return self.next_sorted(patience);
        }
        let mut group = match self.run.wait_for_head(Instant::now().checked_add(patience)) {
            Some(Head::Group(group)) if group.is_end => return Ok(Progress::End),
            Some(Head::Group(group)) => group,
            Some(Head::Ready(_)) => return Err(Error::Internal("a window out of order".into())),
            None if self.run.is_over() => return Ok(Progress::End),
            None => return Ok(Progress::Waits),
        };
        let lane = self.run.lane();
        let (pipeline, options) = (&lane.pipeline, &lane.options);
        let counted = pipeline.is_counted();
        if counted && let Some((_, error)) = group.first_bad() {
            return Err(error);
        }
        let rows = if !options.rows && (counted || group.rows() == 0) {
            Rows::Batch(whole_batch(*group, pipeline, &lane.pool, options.with_index)?)
        } else {
            let (good, bad) = group.into_good_rows(pipeline)?;
            if let Some((_, error)) = bad.iter().find(|(_, error)| !error.is_of_one_sample()) {
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

    /// The next batch of a stretch whose samples are sorted by their lengths.
    fn next_sorted(&mut self, patience: Duration) -> Result<Progress> {
        let rows = match self.run.next_piece(patience)? {
            Some(Some(Piece::Batch(batch))) => Rows::Batch(batch),
            Some(Some(Piece::Bad(row))) => Rows::Some { good: Vec::new(), bad: vec![row] },
            Some(None) => return Ok(Progress::End),
            None => return Ok(Progress::Waits),
        };
        let step = self.step;
        self.step += u64::from(matches!(rows, Rows::Batch(_)));
        Ok(Progress::Stretch(Stretch { step, rows }))
    }
}
