//! How much a run may use.

use crate::record::Recording;
use feedline_core::{Error, Result, Seed};
use feedline_ops::Pipeline;
use std::path::PathBuf;
use std::sync::Arc;

/// In which order samples are delivered.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Delivery {
    /// Batches are a pure function of plan, seed and epoch.
    #[default]
    Exact,
    /// A batch takes what is ready: the same rows, each exactly once an epoch, none of them more
    /// than `max_slip` batches from its place. 0 lets the engine choose.
    Ready {
        /// How many batches a sample may move.
        max_slip: u64,
    },
    /// The batches of an earlier run, as it wrote them down.
    Replay(Arc<Recording>),
    /// Every stretch by itself, as [`WindowRun`](crate::WindowRun) has them.
    Stretches,
}

/// Parameters of a run. None of them changes what is delivered, except seed, rank, world, rounds,
/// delivery and the request for indices.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Threads that prepare samples; 0 for one per core this process may use.
    pub threads: usize,
    /// Bytes that may be in flight: batches being filled and fetched data.
    pub memory: usize,
    /// Reads that may wait for storage at once; 0 lets the engine choose.
    pub reads: usize,
    /// Batches prepared ahead of the consumer; 0 lets the engine choose.
    pub ahead: usize,
    /// Whether the engine goes on choosing while it runs. What is given above is never changed.
    pub tune: bool,
    /// The order of samples.
    pub delivery: Delivery,
    /// Where the composition of batches is written down.
    pub record: Option<PathBuf>,
    /// The seed of all random choices.
    pub seed: Seed,
    /// Which rank this is.
    pub rank: u64,
    /// How many ranks share the epoch.
    pub world: u64,
    /// Whether all ranks take batches of one class of lengths in rounds, as a synchronous job needs
    /// them. Every rank then prepares all samples.
    pub rounds: bool,
    /// Ends after so many epochs; `None` never ends.
    pub epochs: Option<u64>,
    /// Ends every epoch before this stretch; `None` at its own end.
    pub until: Option<u64>,
    /// Whether batches carry the indices of their samples.
    pub with_index: bool,
    /// Whether a window delivers samples by themselves, for whoever takes the rest of their steps.
    pub rows: bool,
    /// Whether steps are timed. Only measurements of the timing's own cost switch it off.
    pub counters: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            threads: 0,
            memory: 1_000_000_000,
            reads: 0,
            ahead: 0,
            tune: true,
            delivery: Delivery::Exact,
            record: None,
            seed: Seed(0),
            rank: 0,
            world: 1,
            rounds: false,
            epochs: None,
            until: None,
            with_index: false,
            rows: false,
            counters: true,
        }
    }
}

/// More threads than this are taken for a mistake.
const MOST_THREADS: usize = 1024;

/// Rows that may be owed at a time where batches take what is ready, so that a state stays small.
pub const MOST_OWED: u64 = 4096;

impl Options {
    /// Checks what can be wrong about the options themselves.
    ///
    /// # Errors
    ///
    /// Says what would be right.
    pub fn check(&self, pipeline: &Pipeline) -> Result<()> {
        if self.world == 0 || self.rank >= self.world {
            return Err(Error::pipeline(format!(
                "rank {} of {} ranks; ranks count from 0",
                self.rank, self.world
            )));
        }
        if self.threads > MOST_THREADS {
            return Err(Error::pipeline(format!(
                "threads={}; there can be {MOST_THREADS} at most",
                self.threads
            )));
        }
        self.check_lengths(pipeline)?;
        let size = pipeline.stretch() as u64;
        if let Delivery::Ready { max_slip } = self.delivery
            && max_slip.max(1).saturating_mul(size) > MOST_OWED
        {
            return Err(Error::pipeline(format!(
                "order=\"ready\" with max_slip={} and batches of {size} may owe {} samples, and a \
                 state holds {MOST_OWED}; {}",
                max_slip.max(1),
                max_slip.max(1).saturating_mul(size),
                match MOST_OWED / size {
                    0 => "make batches smaller".to_owned(),
                    most => format!("max_slip can be {most} at most"),
                }
            )));
        }
        if self.record.is_some() && matches!(self.delivery, Delivery::Replay(_)) {
            return Err(Error::pipeline("a replay is not recorded again; leave record out"));
        }
        Ok(())
    }

    /// Checks what goes with batches by length.
    fn check_lengths(&self, pipeline: &Pipeline) -> Result<()> {
        let Some(buckets) = &pipeline.bucket else {
            if self.rounds {
                return Err(Error::pipeline(
                    "rounds give all ranks batches of one class of lengths; put bucket in the place \
                     of batch",
                ));
            }
            return Ok(());
        };
        if matches!(self.delivery, Delivery::Ready { .. }) {
            return Err(Error::pipeline(
                "order=\"ready\" goes with batch, not with bucket; leave it out",
            ));
        }
        if self.record.is_some() || matches!(self.delivery, Delivery::Replay(_)) {
            return Err(Error::pipeline(
                "batches that bucket makes are the same in every run; leave record and replay out",
            ));
        }
        let round = self.world.saturating_mul(buckets.sizes().0 as u64);
        if self.rounds && round > buckets.stretch as u64 {
            return Err(Error::pipeline(format!(
                "a round of {} ranks takes {round} samples, and a stretch has {}; make stretch longer",
                self.world, buckets.stretch
            )));
        }
        Ok(())
    }

    /// How many rows from the first that is owed on may be under way, where batches take what is
    /// ready.
    pub(crate) fn window(&self, size: u64) -> Option<u64> {
        match self.delivery {
            Delivery::Ready { max_slip: 0 } => Some((MOST_OWED / size).clamp(1, 32) * size),
            Delivery::Ready { max_slip } => Some(max_slip * size),
            Delivery::Exact | Delivery::Replay(_) | Delivery::Stretches => None,
        }
    }
}

/// What the engine made of its options for one pipeline, before it has measured anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Threads that prepare samples.
    pub threads: usize,
    /// Bytes that may be in flight.
    pub memory: usize,
    /// Reads that may wait at once.
    pub reads: usize,
    /// Groups that may be open at once.
    pub groups: usize,
    /// Bytes of one batch, if every batch has the same.
    pub batch_bytes: Option<usize>,
}

/// Small batches are prepared this many bytes ahead, so that threads need not wake for each.
const SMALL_AHEAD: usize = 8 << 20;
/// Reads at once before any was measured.
const FIRST_READS: usize = 8;

/// One thread for each core this process may use, unless a number was given.
pub(crate) fn threads(given: usize) -> usize {
    match given {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    }
}

impl Budget {
    /// Settles what was left open, for a team of `threads`.
    #[must_use]
    pub fn new(pipeline: &Pipeline, options: &Options, threads: usize) -> Self {
        let padded = pipeline.batch.as_ref().is_some_and(|batch| batch.pad);
        let length = usize::try_from(pipeline.length().places()).unwrap_or(usize::MAX);
        let rows = pipeline.group().min(if padded { usize::MAX } else { length }).max(1);
        let batch_bytes = pipeline.sample.bytes().map(|bytes| bytes.saturating_mul(rows));
        // Enough for every thread to have a few samples left when the consumer takes a batch.
        let needed = 2 + threads.saturating_mul(4).div_ceil(rows);
        // Of a round all batches are prepared to deliver one.
        let round = if options.rounds { options.world as usize } else { 1 };
        let needed = needed.saturating_mul(round.max(1));
        let small = batch_bytes.map_or(0, |bytes| SMALL_AHEAD / bytes.max(1024));
        let mut groups = match options.ahead {
            0 => needed.max(small).min(4096),
            ahead => ahead,
        };
        if let Some(bytes) = batch_bytes.filter(|bytes| *bytes > 0) {
            groups = groups.min(options.memory / bytes);
        }
        let groups = groups.max(1);
        let reads = if options.reads == 0 { FIRST_READS } else { options.reads };
        Self { threads, memory: options.memory, reads, groups, batch_bytes }
    }
}
