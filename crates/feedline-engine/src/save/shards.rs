//! How the places of an epoch are cut into shards.

use super::folder::Folder;
use feedline_core::{
    Blobs, Cursor, EpochSeed, Error, Policy, Pool, Result, SampleSeed, Seed, Store,
};
use feedline_ops::Pipeline;
use feedline_ops::batch::Batch;
use feedline_ops::sink::{Skipped, Table, check_savable};
use feedline_plan::Plan;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

/// How large shards are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardSize {
    /// About so many bytes each.
    Bytes(u64),
    /// So many rows each, or a few more to fill whole record batches.
    Rows(u64),
}

impl Default for ShardSize {
    fn default() -> Self {
        Self::Bytes(256 << 20)
    }
}

/// Bytes of a record batch, about.
const BATCH_BYTES: u64 = 16 << 20;
/// Rows of a record batch at most: what is held of it in memory stays small.
const BATCH_ROWS: u64 = 1 << 16;
/// Samples that are looked at to guess how large a row is.
const MEASURED: u64 = 8;

/// An epoch of a pipeline, cut into shards.
///
/// With the folder that they are saved to, it is all that anyone needs to write any of them.
pub struct Shards {
    table: Table,
    pub(super) pipeline: Arc<Pipeline>,
    pub(super) store: Arc<dyn Store>,
    /// What the plan says of bad samples.
    policy: Policy,
}

impl Shards {
    /// Cuts an epoch of a plan into shards.
    ///
    /// The rows of its batches are saved, one by one: those that `drop_last` leaves out are not, and
    /// neither is the padding of `pad`.
    ///
    /// # Errors
    ///
    /// If the plan is wrong or has no end, its data is missing, or its samples cannot be saved.
    pub fn cut(
        plan: &Plan,
        store: Arc<dyn Store>,
        blobs: &Blobs,
        (seed, epoch): (Seed, u64),
        size: ShardSize,
    ) -> Result<Self> {
        Self::cut_opened(Pipeline::open(plan, &*store, blobs)?, store, (seed, epoch), size)
    }

    /// As [`Shards::cut`], of a pipeline that is opened already.
    ///
    /// # Errors
    ///
    /// As [`Shards::cut`], but for opening it.
    pub fn cut_opened(
        pipeline: Pipeline,
        store: Arc<dyn Store>,
        (seed, epoch): (Seed, u64),
        size: ShardSize,
    ) -> Result<Self> {
        // Nobody could learn how large a row is.
        pipeline.host()?;
        check_savable(&pipeline.sample)?;
        let Some(mut places) = pipeline.length().finite() else {
            return Err(Error::pipeline(
                "save: the pipeline goes on for ever; give repeat a count",
            ));
        };
        if let Some(batch) = pipeline.batch.as_ref().filter(|batch| batch.drop_last)
            && pipeline.is_counted()
        {
            places -= places % batch.size as u64;
        }
        let row = row_bytes(&pipeline, &*store, seed, epoch, places)?.max(1);
        let wanted = match size {
            ShardSize::Bytes(0) | ShardSize::Rows(0) => {
                return Err(Error::pipeline("save: shards of nothing; choose a size above 0"));
            }
            ShardSize::Bytes(bytes) => (bytes / row).max(1),
            ShardSize::Rows(rows) => rows,
        };
        let wanted = wanted.min(places.max(1));
        let batches = wanted.div_ceil((BATCH_BYTES / row).clamp(1, BATCH_ROWS));
        let batch_places = wanted.div_ceil(batches);
        let shard_places = batch_places * batches;
        let shards = places.div_ceil(shard_places).max(1);
        if shards >= 1_000_000 {
            return Err(Error::pipeline(format!(
                "save: {shards} shards of {shard_places} rows; choose larger ones"
            )));
        }
        let table = Table {
            feedline_save: Table::VERSION,
            complete: false,
            shards,
            shard_places,
            batch_places,
            places,
            seed: seed.0,
            epoch,
            plan: pipeline.plan.to_string(),
            fingerprint: pipeline.fingerprint().to_string(),
            manifest: pipeline.source.manifest(),
            rows: None,
            bytes: None,
            skipped: None,
        };
        Ok(Self::of(table, pipeline, store))
    }

    /// The shards of a folder in which saving has begun, as any process that sees it can write them.
    ///
    /// # Errors
    ///
    /// If nothing was begun there, or the data is not what it was then.
    pub fn open(folder: &Path, store: Arc<dyn Store>, blobs: &Blobs) -> Result<Self> {
        let nothing = || Error::Source(format!("nothing is being saved in {}", folder.display()));
        if !folder.is_dir() {
            return Err(nothing());
        }
        let there = Folder::prepare(folder)?;
        let table = there.table()?.ok_or_else(nothing)?;
        let pipeline = Pipeline::open(&Plan::read(&table.plan)?, &*store, blobs)?;
        if pipeline.source.manifest() != table.manifest {
            return Err(other(
                &there,
                "was made of other data: files were added, removed or changed",
            ));
        }
        Ok(Self::of(table, pipeline, store))
    }

    /// The shards of a folder in which saving has begun, for somebody who has opened the same
    /// pipeline.
    ///
    /// # Errors
    ///
    /// If nothing was begun there, or something else.
    pub fn join(
        folder: &Path,
        pipeline: &Pipeline,
        store: Arc<dyn Store>,
        blobs: &Blobs,
    ) -> Result<Self> {
        let nothing = || Error::Source(format!("nothing is being saved in {}", folder.display()));
        if !folder.is_dir() {
            return Err(nothing());
        }
        let there = Folder::prepare(folder)?;
        let table = there.table()?.ok_or_else(nothing)?;
        let (plan, manifest) = (pipeline.plan.to_string(), pipeline.source.manifest());
        let here = Table { plan, manifest, ..table.clone() };
        let shards = Self::of(here, pipeline.again(blobs)?, store);
        shards.fits(&table, &there)?;
        Ok(Self { table, ..shards })
    }

    fn of(table: Table, mut pipeline: Pipeline, store: Arc<dyn Store>) -> Self {
        // A record batch is a batch of the run. Bad rows are told apart from good ones; what becomes
        // of them is decided here.
        let size = usize::try_from(table.batch_places).unwrap_or(usize::MAX);
        let (drop_last, pad, pad_ragged, value) = (false, false, false, 0.0);
        pipeline.batch = Some(Batch { size, drop_last, pad, pad_ragged, value });
        pipeline.bucket = None;
        let any = Policy::Skip { count: None, share: None, file: None };
        let policy = std::mem::replace(&mut pipeline.policy, any);
        Self { table, pipeline: Arc::new(pipeline), store, policy }
    }

    /// The table of the shards.
    #[must_use]
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// What the plan says of bad samples.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Number of places of a shard.
    #[must_use]
    pub fn places_of(&self, shard: u64) -> u64 {
        let Table { shard_places, places, .. } = self.table;
        places.saturating_sub(shard.saturating_mul(shard_places)).min(shard_places)
    }

    /// Writes the table to the folder, or takes the one that is there.
    pub(super) fn settle(self, folder: &Folder) -> Result<Self> {
        if folder.table()?.is_none() {
            folder.write_table(&self.table, false)?;
        }
        let Some(there) = folder.table()? else {
            return Err(Error::Source(format!(
                "{} was emptied while it was written to",
                folder.path().display()
            )));
        };
        self.fits(&there, folder)?;
        let Self { pipeline, store, policy, .. } = self;
        let Ok(pipeline) = Arc::try_unwrap(pipeline) else {
            return Err(Error::Internal("a pipeline that is saved twice at once".into()));
        };
        let shards = Self::of(there, pipeline, store);
        Ok(Self { policy, ..shards })
    }

    /// Whether a table is one of the same rows.
    fn fits(&self, there: &Table, folder: &Folder) -> Result<()> {
        let here = &self.table;
        let (old, new) = (Plan::read(&there.plan)?.identity(), &self.pipeline.plan.identity());
        // The same data may lie in another folder: the manifest says what is in it.
        let same = |at: usize| match (old.calls().get(at), new.calls().get(at)) {
            (Some(old), Some(new)) if at == 0 => old.step == new.step,
            (old, new) => old == new,
        };
        let steps = old.calls().len().max(new.calls().len());
        if let Some(at) = (0..steps).find(|at| !same(*at)) {
            let text = |plan: &Plan| {
                plan.calls().get(at).map_or("its end".to_owned(), ToString::to_string)
            };
            return Err(other(
                folder,
                &format!(
                    "was made by another pipeline: step {at} was {}, and is {}",
                    text(&old),
                    text(new)
                ),
            ));
        }
        if there.manifest != here.manifest {
            return Err(other(
                folder,
                "was made of other data: files were added, removed or changed",
            ));
        }
        if (there.seed, there.epoch) != (here.seed, here.epoch) {
            return Err(other(
                folder,
                &format!(
                    "was made with seed {} of epoch {}, and not with seed {} of epoch {}",
                    there.seed, there.epoch, here.seed, here.epoch
                ),
            ));
        }
        if there.places != here.places {
            return Err(other(folder, "was made of another number of samples"));
        }
        Ok(())
    }

    /// Writes down bad samples where the plan says so.
    pub(super) fn quarantine(&self, skipped: &[Skipped]) -> Result<()> {
        let Policy::Skip { file: Some(path), .. } = &self.policy else { return Ok(()) };
        let mut text = String::new();
        for Skipped { index, origin, reason, .. } in skipped {
            let line = serde_json::json!({
                "epoch": self.table.epoch, "index": index, "origin": origin, "step": "save",
                "reason": reason,
            });
            text += &format!("{line}\n");
        }
        let written = std::fs::File::create(path).and_then(|mut to| to.write_all(text.as_bytes()));
        written.map_err(|error| super::folder::failed("writing", path, error))
    }
}

fn other(folder: &Folder, what: &str) -> Error {
    Error::Source(format!("{} {what}; save to another folder", folder.path().display()))
}

/// Bytes of a row: known, or guessed from a few.
fn row_bytes(
    pipeline: &Pipeline,
    store: &dyn Store,
    seed: Seed,
    epoch: u64,
    places: u64,
) -> Result<u64> {
    if let Some(bytes) = pipeline.sample.bytes() {
        return Ok(bytes as u64);
    }
    let epoch = EpochSeed { seed, epoch };
    let mut cursor = Cursor::new(epoch);
    let mut workspace = pipeline.workspace(Pool::new(0), false);
    let (mut bytes, mut good) = (0, 0);
    for number in 0..MEASURED.min(places) {
        let place = u128::from(number) * u128::from(places) / u128::from(MEASURED.min(places));
        let address = pipeline.address(place as u64, &mut cursor);
        let (index, visit) = (address.index, address.visit);
        let seed = SampleSeed { epoch, source: 0, index, visit, output: 0 };
        match pipeline.sample(address, seed, store, &mut workspace) {
            Ok(row) => {
                bytes += row.iter().map(|(_, tensor)| tensor.data().len() as u64 + 4).sum::<u64>();
                good += 1;
            }
            // Its shard says so, if it matters.
            Err(error) if error.is_of_one_sample() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(u64::checked_div(bytes, good).unwrap_or(1 << 20))
}
