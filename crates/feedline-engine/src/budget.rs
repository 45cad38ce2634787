//! How much a run may use.

use feedline_core::Seed;
use feedline_ops::Pipeline;

/// Parameters of a run. None of them changes what is delivered, except seed, rank, world and the
/// request for indices.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Threads that prepare samples; 0 for one per core this process may use.
    pub threads: usize,
    /// Bytes that may be in flight: batches being filled and fetched data.
    pub memory: usize,
    /// Reads that may wait for storage at once.
    pub reads: usize,
    /// Batches prepared ahead of the consumer; 0 lets the engine choose.
    pub ahead: usize,
    /// The seed of all random choices.
    pub seed: Seed,
    /// Which rank this is.
    pub rank: u64,
    /// How many ranks share the epoch.
    pub world: u64,
    /// Ends after so many epochs; `None` never ends.
    pub epochs: Option<u64>,
    /// Whether batches carry the indices of their samples.
    pub with_index: bool,
    /// Whether steps are timed. Only measurements of the timing's own cost switch it off.
    pub counters: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            threads: 0,
            memory: 1_000_000_000,
            reads: 16,
            ahead: 0,
            seed: Seed(0),
            rank: 0,
            world: 1,
            epochs: None,
            with_index: false,
            counters: true,
        }
    }
}

/// What the engine made of its options for one pipeline.
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
    /// Bytes that the pool of buffers keeps for reuse.
    pub pooled: usize,
}

/// Small batches are prepared this many bytes ahead, so that threads need not wake for each.
const SMALL_AHEAD: usize = 8 << 20;

impl Budget {
    /// Settles what was left open.
    #[must_use]
    pub fn new(pipeline: &Pipeline, options: &Options) -> Self {
        let threads = match options.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        let padded = pipeline.batch.as_ref().is_some_and(|batch| batch.pad);
        let length = usize::try_from(pipeline.length().places()).unwrap_or(usize::MAX);
        let rows = pipeline.stretch().min(if padded { usize::MAX } else { length }).max(1);
        let batch_bytes = pipeline.sample.bytes().map(|bytes| bytes.saturating_mul(rows));
        // Enough for every thread to have a few samples left when the consumer takes a batch.
        let needed = 2 + threads.saturating_mul(4).div_ceil(rows);
        let small = batch_bytes.map_or(0, |bytes| SMALL_AHEAD / bytes.max(1024));
        let mut groups = match options.ahead {
            0 => needed.max(small).min(4096),
            ahead => ahead,
        };
        if let Some(bytes) = batch_bytes.filter(|bytes| *bytes > 0) {
            groups = groups.min(options.memory / bytes);
        }
        let groups = groups.max(1);
        // What is in flight, what the consumer holds, and one more.
        let pooled = batch_bytes
            .map_or(options.memory / 4, |bytes| bytes.saturating_mul(groups.saturating_add(2)));
        let pooled = pooled.min(options.memory).saturating_add(16 << 20);
        Self {
            threads,
            memory: options.memory,
            reads: options.reads.max(1),
            groups,
            batch_bytes,
            pooled,
        }
    }
}
