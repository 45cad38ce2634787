//! Writing one shard: its rows are computed, written under a name of their own, and put in place.

use super::folder::{Folder, failed};
use super::shards::Shards;
use crate::{Options, Progress, Team, Window, WindowRun};
use feedline_core::{Error, Policy, Pool, Position, Result, Rows, Seed, Tensor};
use feedline_ops::sink::{ArrowWriter, Skipped, read_notes, shard_name};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

/// Bytes that are collected before they are written.
const TOGETHER: usize = 1 << 20;
/// How often a writer that waits for rows looks whether it is still wanted.
const PATIENCE: Duration = Duration::from_millis(50);

/// A shard that is in place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Its rows.
    pub rows: u64,
    /// Bytes of its file.
    pub bytes: u64,
    /// Bad samples that were left out of it.
    pub skipped: Vec<Skipped>,
}

/// The note at the start of a shard that says which it is.
const IDENTITY: &str = "feedline";
/// The note at its end that says what became of its places.
const OUTCOME: &str = "feedline:outcome";

#[derive(Serialize, Deserialize)]
struct Outcome {
    rows: u64,
    skipped: Vec<Skipped>,
}

impl Shards {
    /// What tells a shard from all others: equal text, equal rows.
    fn identity(&self, shard: u64) -> String {
        let table = self.table();
        let first = shard * table.shard_places;
        serde_json::json!({
            "version": 1,
            "shard": shard,
            "shards": table.shards,
            "first": first,
            "places": self.places_of(shard),
            "batch": table.batch_places,
            "plan": table.fingerprint,
            "manifest": table.manifest,
            "seed": table.seed,
            "epoch": table.epoch,
        })
        .to_string()
    }

    /// A shard of the folder, if it is there and whole.
    #[must_use]
    pub fn find(&self, folder: &Folder, shard: u64) -> Option<Written> {
        let file = File::open(folder.path().join(shard_name(shard))).ok()?;
        let bytes = file.metadata().ok()?.len();
        let notes = read_notes(bytes, &mut |offset, out| {
            file.read_exact_at(out, offset).map_err(|error| Error::unavailable("a shard", error))
        });
        let notes = notes.ok()?;
        let note = |name: &str| notes.iter().find(|(key, _)| key == name).map(|(_, value)| value);
        if *note(IDENTITY)? != self.identity(shard) {
            return None;
        }
        let Outcome { rows, skipped } = serde_json::from_str(note(OUTCOME)?).ok()?;
        Some(Written { rows, bytes, skipped })
    }

    /// Computes a shard with the threads of a team and puts it in place. `progress` is told of places
    /// and bytes, and says whether to go on.
    ///
    /// Any process may do that for any shard at any time: what is written is the same, and appears
    /// under its name only when it is whole and on the disk.
    ///
    /// # Errors
    ///
    /// If a sample is bad and the plan does not leave it out, the folder cannot be written to, or
    /// the work is no longer wanted. Nothing is left behind then.
    pub fn write(
        &self,
        folder: &Folder,
        shard: u64,
        team: &Team,
        pool: &Pool,
        options: &Options,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Written> {
        let table = self.table();
        if shard >= table.shards {
            return Err(Error::Internal(format!("shard {shard} of {}", table.shards)));
        }
        let steps = table.shard_places / table.batch_places;
        let window = Window {
            start: Position::epoch(table.epoch),
            rank: 0,
            world: 1,
            first: shard * steps,
            steps,
            from: 0,
            every_rank: false,
        };
        let options = Options { seed: Seed(table.seed), with_index: false, ..options.clone() };
        let (pipeline, store) = (Arc::clone(&self.pipeline), Arc::clone(&self.store));
        let mut run = WindowRun::start(team, pool, pipeline, store, &window, options)?;
        let name = shard_name(shard);
        let path = folder.path().join(&name);
        let what = path.display().to_string();
        // A file that is there and is not this shard was damaged, or is somebody else's.
        let replace = path.exists();
        let mut temporary = folder.temporary(&name)?;
        let notes = [(IDENTITY, self.identity(shard))];
        let out = BufWriter::with_capacity(TOGETHER, &mut temporary.file);
        let mut writer = ArrowWriter::new(out, &what, &self.pipeline.sample, &notes)?;
        let mut skipped = Vec::new();
        loop {
            let stretch = match run.next_within(PATIENCE)? {
                Progress::End => break,
                Progress::Waits => {
                    if !progress(0, 0) {
                        return Err(Error::Cancelled);
                    }
                    continue;
                }
                Progress::Stretch(stretch) => stretch,
            };
            let first = stretch.step * table.batch_places;
            let left = table.places.saturating_sub(first).min(table.batch_places);
            let before = writer.bytes();
            self.rows(stretch.rows, first, left, &mut writer, &mut skipped)?;
            if !progress(left, writer.bytes() - before) {
                return Err(Error::Cancelled);
            }
        }
        let rows = writer.rows();
        let outcome = serde_json::to_string(&Outcome { rows, skipped: skipped.clone() })
            .map_err(|error| Error::Internal(format!("an outcome that is no JSON: {error}")))?;
        let mut out = writer.finish(&[(OUTCOME, outcome)])?;
        out.flush().map_err(|error| failed("writing", &path, error))?;
        drop(out);
        let bytes = temporary.file.metadata().map_err(|error| failed("writing", &path, error))?;
        folder.place(temporary, &name, replace)?;
        Ok(Written { rows, bytes: bytes.len(), skipped })
    }

    /// Writes the rows of a stretch that begins at place `first`; those beyond `left` are not saved.
    fn rows(
        &self,
        rows: Rows,
        first: u64,
        left: u64,
        writer: &mut ArrowWriter<impl io::Write>,
        skipped: &mut Vec<Skipped>,
    ) -> Result<()> {
        let (good, bad) = match rows {
            Rows::Some { good, bad } => (good, bad),
            // A stretch without places.
            Rows::Batch(batch) if batch.rows == 0 => return Ok(()),
            Rows::Batch(_) => return Err(Error::Internal("rows that were not told apart".into())),
        };
        for (row, error) in bad.into_iter().filter(|(row, _)| (*row as u64) < left) {
            match error {
                Error::Record { origin, index, reason, .. } if self.policy() != &Policy::Raise => {
                    skipped.push(Skipped { place: first + row as u64, index, origin, reason });
                }
                Error::Filtered => {}
                error => return Err(error),
            }
        }
        let rows: Vec<&[Tensor]> = good
            .iter()
            .filter(|(row, _, _)| (*row as u64) < left)
            .map(|(_, _, fields)| &fields[..])
            .collect();
        writer.write(&rows).map_err(|error| match (error, good.first()) {
            // A value that is not what its step promised.
            (error @ Error::Record { .. }, Some((_, index, _))) => {
                self.pipeline.at(error, *index, "save")
            }
            (error, _) => error,
        })
    }
}
