//! Which samples each batch was made of, written down, so that a run whose batches took what was
//! ready can be repeated exactly.
//!
//! One JSON object a line: the first says which run it was, each of the others one batch.

use crate::Options;
use feedline_core::{Error, Result};
use feedline_ops::Pipeline;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

/// What a recording belongs to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Heading {
    feedline_record: u32,
    seed: u64,
    world: u64,
    manifest: String,
    plan: String,
}

impl Heading {
    fn of(pipeline: &Pipeline, options: &Options) -> Self {
        Self {
            feedline_record: 1,
            seed: options.seed.0,
            world: options.world,
            manifest: pipeline.source.manifest(),
            plan: pipeline.fingerprint().to_string(),
        }
    }
}

/// One batch: its places in the epoch, in the order of its rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    epoch: u64,
    rank: u64,
    batch: u64,
    places: Vec<u64>,
    /// Places of bad samples that were left out since the batch before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    skipped: Vec<u64>,
}

/// The end of an epoch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct End {
    epoch: u64,
    rank: u64,
    batches: u64,
}

/// What a batch was made of.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct MadeOf {
    /// Its places in the epoch, in the order of its rows.
    pub places: Vec<u64>,
    /// Places of bad samples that were left out since the batch before.
    pub skipped: Vec<u64>,
}

/// Writes batches down as they are delivered.
#[derive(Debug)]
pub(crate) struct Recorder {
    file: File,
    path: PathBuf,
    rank: u64,
}

impl Recorder {
    /// Goes on with the recording of this very run, from batch `first` of an epoch on, or begins one.
    ///
    /// # Errors
    ///
    /// If the file cannot be written, or holds something else.
    pub(crate) fn open(
        path: &Path,
        pipeline: &Pipeline,
        options: &Options,
        (epoch, first): (u64, u64),
    ) -> Result<Self> {
        let failed = |error| Error::unavailable(format!("record file {}", path.display()), error);
        let heading = Heading::of(pipeline, options);
        let regular = std::fs::metadata(path).map_or(true, |meta| meta.is_file());
        if !regular {
            return Err(Error::State(format!(
                "{} is no regular file; a recording is read again when it goes on",
                path.display()
            )));
        }
        let mut file =
            File::options().create(true).append(true).read(true).open(path).map_err(failed)?;
        let bytes = std::fs::read(path).map_err(failed)?;
        if !bytes.is_empty() {
            let recording = Recording::read(path)?;
            recording.check(&heading)?;
            recording.goes_on(epoch, options.rank, first)?;
            // A line that was cut off by the end of its process is written anew.
            let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            if whole < bytes.len() {
                file.set_len(whole as u64).map_err(failed)?;
            }
        } else {
            write_line(&mut file, &heading).map_err(failed)?;
        }
        Ok(Self { file, path: path.to_owned(), rank: options.rank })
    }

    pub(crate) fn batch(&mut self, epoch: u64, batch: u64, made_of: MadeOf) -> Result<()> {
        let MadeOf { places, skipped } = made_of;
        let line = Line { epoch, rank: self.rank, batch, places, skipped };
        self.write(&line)
    }

    /// Notes that an epoch had so many batches.
    pub(crate) fn end(&mut self, epoch: u64, batches: u64) -> Result<()> {
        self.write(&End { epoch, rank: self.rank, batches })
    }

    fn write(&mut self, line: &impl Serialize) -> Result<()> {
        write_line(&mut self.file, line).map_err(|error| {
            Error::unavailable(format!("record file {}", self.path.display()), error)
        })
    }
}

/// A line in one call, so that several ranks may write to one file.
fn write_line(file: &mut File, line: &impl Serialize) -> std::io::Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    file.write_all(&text)
}

/// The batches that an earlier run delivered.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    path: PathBuf,
    heading: Heading,
    batches: BTreeMap<(u64, u64, u64), MadeOf>,
    /// Epochs of ranks that came to their end, and the number of their batches.
    ends: BTreeMap<(u64, u64), u64>,
}

impl Recording {
    /// Reads a recording.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or is no recording; names the line.
    pub fn read(path: &Path) -> Result<Self> {
        let failed = |error| Error::unavailable(format!("record file {}", path.display()), error);
        let lines = BufReader::new(File::open(path).map_err(failed)?).lines();
        let wrong = |number: usize, why: String| {
            Error::Source(format!(
                "{}, line {number} is no line of a recording: {why}",
                path.display()
            ))
        };
        let (mut heading, mut batches, mut ends) = (None, BTreeMap::new(), BTreeMap::new());
        let mut broken: Option<Error> = None;
        for (number, line) in lines.enumerate() {
            let text = line.map_err(failed)?;
            if let Some(error) = broken.take() {
                return Err(error);
            }
            if heading.is_none() {
                let read = serde_json::from_str::<Heading>(&text);
                heading = Some(read.map_err(|error| wrong(number + 1, error.to_string()))?);
                continue;
            }
            match serde_json::from_str::<Line>(&text) {
                // A run that was resumed delivers its last batches again: what it wrote counts, and
                // what was written behind that before does not.
                Ok(Line { epoch, rank, batch, places, skipped }) => {
                    let mut behind = batches.split_off(&(epoch, rank, batch));
                    behind.retain(|(e, r, _), _| (*e, *r) != (epoch, rank));
                    batches.append(&mut behind);
                    ends.remove(&(epoch, rank));
                    batches.insert((epoch, rank, batch), MadeOf { places, skipped });
                }
                Err(error) => match serde_json::from_str::<End>(&text) {
                    Ok(End { epoch, rank, batches }) => drop(ends.insert((epoch, rank), batches)),
                    // Ranks that begin one file together may each write its heading.
                    Err(_) if serde_json::from_str::<Heading>(&text).ok() == heading => {}
                    // A last line that was cut off by the end of its process is forgiven.
                    Err(_) => broken = Some(wrong(number + 1, error.to_string())),
                },
            }
        }
        let heading = heading.ok_or_else(|| wrong(1, "the file is empty".into()))?;
        Ok(Self { path: path.to_owned(), heading, batches, ends })
    }

    /// Whether it was made by this plan on this data, with this seed and so many ranks.
    ///
    /// # Errors
    ///
    /// Says what differs.
    pub(crate) fn fits(&self, pipeline: &Pipeline, options: &Options) -> Result<()> {
        self.check(&Heading::of(pipeline, options))
    }

    fn check(&self, here: &Heading) -> Result<()> {
        let there = &self.heading;
        let what = if there.plan != here.plan {
            "of another pipeline".to_owned()
        } else if there.manifest != here.manifest {
            "of other data".to_owned()
        } else if there.seed != here.seed {
            format!("of seed {}, and this loader has seed {}", there.seed, here.seed)
        } else if there.world != here.world {
            format!("of {} ranks, and here are {}", there.world, here.world)
        } else {
            return Ok(());
        };
        Err(Error::State(format!("the recording {} is {what}", self.path.display())))
    }

    /// The places of a batch, in the order of its rows.
    #[must_use]
    pub fn places(&self, epoch: u64, rank: u64, batch: u64) -> Option<&[u64]> {
        self.batch(epoch, rank, batch).map(|made_of| &*made_of.places)
    }

    /// What a batch was made of.
    pub(crate) fn batch(&self, epoch: u64, rank: u64, batch: u64) -> Option<&MadeOf> {
        self.batches.get(&(epoch, rank, batch))
    }

    /// Number of batches of an epoch.
    pub(crate) fn length(&self, epoch: u64, rank: u64) -> u64 {
        let last = self.batches.range((epoch, rank, 0)..=(epoch, rank, u64::MAX)).next_back();
        last.map_or(0, |((_, _, batch), _)| batch + 1)
    }

    /// Whether an epoch was recorded to its end.
    pub(crate) fn is_whole(&self, epoch: u64, rank: u64) -> bool {
        self.ends.get(&(epoch, rank)) == Some(&self.length(epoch, rank))
    }

    /// Whether a run that begins with batch `first` of an epoch goes on with it.
    ///
    /// # Errors
    ///
    /// If it is another run, whose batches would replace those that are there.
    fn goes_on(&self, epoch: u64, rank: u64, first: u64) -> Result<()> {
        let there = self.length(epoch, rank);
        if there < first || (epoch, first) == (0, 0) && there > 0 {
            return Err(Error::State(format!(
                "the recording {} has {there} batches of epoch {epoch}, and this run begins with \
                 batch {first}; give it a file of its own, or load the state of the run that was \
                 recorded",
                self.path.display()
            )));
        }
        Ok(())
    }
}
