//! From a command line to an opened pipeline: plans, their blobs, and the options of a run.

use crate::Usage;
use anyhow::{Context, Result, bail};
use feedline_core::{Blobs, Buffer, BufferMut, DType, Error, Host, Seed, Store, Tensor};
use feedline_engine::host::{HostCommand, Hosts};
use feedline_engine::{Delivery, Options, Recording};
use feedline_ops::{Builtin, Pipeline};
use feedline_plan::{Catalog, MAX_BYTES, Plan};
use serde::Deserialize;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The argument that every command about a pipeline takes.
#[derive(clap::Args)]
pub(crate) struct PlanArg {
    /// A file with the plan, - for stdin, or the plan itself
    plan: OsString,
    #[command(flatten)]
    functions: Functions,
}

/// Whether functions of users are run, and how.
#[derive(clap::Args, Clone)]
pub(crate) struct Functions {
    /// Run the functions of plans with this command, such as "python -m feedline.host"; without it,
    /// plans that have some are refused
    #[arg(long, value_name = "COMMAND")]
    functions: Option<String>,
    /// Address space that each process which runs functions may have [default: any]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, requires = "functions")]
    functions_memory: Option<usize>,
}

impl Functions {
    /// The command that runs functions, if they are.
    pub(crate) fn command(&self) -> Result<Option<HostCommand>> {
        let Some(line) = &self.functions else { return Ok(None) };
        let mut command = HostCommand::parse(line).map_err(|_| {
            Usage(format!(
                "--functions {line:?}: this is no command; write \"python -m feedline.host\""
            ))
        })?;
        command.memory = self.functions_memory.map(|bytes| bytes as u64);
        Ok(Some(command))
    }

    /// Who runs functions, if anybody does.
    pub(crate) fn host(&self) -> Result<Option<Arc<dyn Host>>> {
        Ok(self.command()?.map(|command| Arc::new(Hosts::new(command)) as _))
    }
}

/// A plan, and the file it came from.
pub(crate) struct Given {
    pub(crate) plan: Plan,
    file: Option<PathBuf>,
}

/// A pipeline that can run.
pub(crate) struct Opened {
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) store: Arc<dyn Store>,
}

impl PlanArg {
    /// Reads the plan.
    pub(crate) fn read(&self) -> Result<Given> {
        if self.plan == "-" {
            return Ok(Given { plan: parse(io::stdin().lock(), "stdin")?, file: None });
        }
        let path = Path::new(&self.plan);
        match fs::metadata(path) {
            Ok(meta) if meta.is_dir() => bail!(Usage(format!(
                "{path} is a folder, not a plan; to read the images in it: 'images path={path} | decode'",
                path = path.display()
            ))),
            Ok(_) => {
                let name = path.display().to_string();
                let file = File::open(path).map_err(|error| Usage(format!("{name}: {error}")))?;
                Ok(Given { plan: parse(file, &name)?, file: Some(path.to_owned()) })
            }
            Err(error) => match self.plan.to_str().filter(|text| is_plan(text)) {
                Some(text) => Ok(Given { plan: Plan::read(text)?, file: None }),
                None if error.kind() == io::ErrorKind::NotFound => bail!(Usage(format!(
                    "there is no file {}, and it is no plan in text form either, such as \
                     'range count=10 | batch size=2'",
                    path.display()
                ))),
                None => bail!(Usage(format!("{}: {error}", path.display()))),
            },
        }
    }

    /// Reads the plan with its large arguments, and finds the store of its data.
    pub(crate) fn load(&self) -> Result<(Plan, Blobs, Arc<dyn Store>)> {
        let Given { plan, file } = self.read()?;
        let blobs = match &file {
            Some(file) => read_blobs(file)?,
            None => Blobs::new(),
        };
        Ok((plan, blobs, feedline_store::machine_store()?))
    }

    /// Who runs its functions, if anybody does.
    pub(crate) fn host(&self) -> Result<Option<Arc<dyn Host>>> {
        self.functions.host()
    }

    /// Reads the plan, checks it and opens its data.
    pub(crate) fn open(&self) -> Result<Opened> {
        let (plan, blobs, store) = self.load()?;
        let pipeline = Pipeline::open_with(&plan, &*store, &blobs, self.functions.host()?)?;
        Ok(Opened { pipeline: Arc::new(pipeline), store })
    }

    /// As [`PlanArgs::open`], with the cache that the plan asks for.
    pub(crate) fn open_to_run(&self) -> Result<Opened> {
        let opened = self.open()?;
        let memory = feedline_engine::machine_memory();
        let allowed = feedline_cache::Allowed::default();
        feedline_cache::attach(&opened.pipeline, &opened.store, memory, &allowed)?;
        Ok(opened)
    }
}

/// Whether a text that names no file is meant as a plan.
fn is_plan(text: &str) -> bool {
    let mut words = text.split_whitespace();
    let first = words.next().unwrap_or("");
    text.contains('|')
        || text.trim_start().starts_with('{')
        || Builtin.names().contains(&first)
        || words.any(|word| word.contains('='))
}

fn parse(reader: impl Read, name: &str) -> Result<Plan> {
    let mut bytes = Vec::new();
    let read = reader.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes);
    read.map_err(|error| Usage(format!("{name}: {error}")))?;
    let text = String::from_utf8(bytes);
    let text = text.map_err(|_| Usage(format!("{name} is no plan: it is not text")))?;
    if text.trim().is_empty() {
        bail!(Usage(format!(
            "{name} is empty; a plan begins with a source, such as images or range"
        )));
    }
    Plan::read(&text).map_err(|error| match error {
        Error::Pipeline(message) => Error::Pipeline(format!("{name}: {message}")).into(),
        other => other.into(),
    })
}

/// The first line of a blob's file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    dtype: DType,
    shape: Vec<usize>,
}

/// No header is longer.
const HEADER_BYTES: u64 = 4096;

/// Reads the large arguments that were saved beside a plan, in the folder `<plan file>.blobs/`: one
/// file per blob, named by its hash. Its first line is a JSON header such as
/// `{"dtype": "uint8", "shape": [2, 3]}`; the rest is the values, little endian. A `bytes` or
/// `text` blob has the shape `[]` and all the rest as its value. Without the folder there are none.
///
/// # Errors
///
/// If a file cannot be read or is not of this form; names the file.
pub fn read_blobs(plan_file: &Path) -> Result<Blobs> {
    let mut folder = plan_file.as_os_str().to_owned();
    folder.push(".blobs");
    let folder = Path::new(&folder);
    let mut blobs = Blobs::new();
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(blobs),
        Err(error) => bail!("{}: {error}", folder.display()),
    };
    for entry in entries {
        let path = entry.with_context(|| folder.display().to_string())?.path();
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        if name.is_empty() || name.starts_with('.') || path.is_dir() {
            continue;
        }
        let tensor = read_blob(&path).with_context(|| format!("blob {}", path.display()))?;
        blobs.insert(name.to_owned(), tensor);
    }
    Ok(blobs)
}

fn read_blob(path: &Path) -> Result<Tensor> {
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    let mut reader = BufReader::new(file);
    let mut line = Vec::new();
    reader.by_ref().take(HEADER_BYTES).read_until(b'\n', &mut line)?;
    if line.last() != Some(&b'\n') {
        bail!(
            "its first line should be a header, such as {{\"dtype\": \"uint8\", \"shape\": [2, 3]}}"
        );
    }
    let Header { dtype, shape } = serde_json::from_slice(&line).context("its header is damaged")?;
    let length = usize::try_from(size - line.len() as u64)?;
    let mut values = BufferMut::new(length);
    reader.read_exact(&mut values)?;
    let values: Buffer = values.freeze();
    if dtype == DType::Text && std::str::from_utf8(&values).is_err() {
        bail!("its header says text, and it is not UTF-8");
    }
    let needed = dtype
        .size()
        .and_then(|size| shape.iter().try_fold(size, |product, side| product.checked_mul(*side)));
    match Tensor::new(dtype, &shape, values) {
        Ok(tensor) => Ok(tensor),
        Err(_) if dtype.size().is_none() => {
            bail!("{dtype} of shape {shape:?}; only shape [] is read")
        }
        Err(_) => bail!(
            "{dtype} of shape {shape:?} takes {} bytes, and it holds {length}",
            needed.map_or("too many".to_owned(), |bytes| bytes.to_string())
        ),
    }
}

/// What a run may use, and which part of the data it takes.
#[derive(clap::Args)]
pub(crate) struct RunArgs {
    /// Threads that prepare samples [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Memory for what is in flight, such as 512MB or 2GiB [default: 1GB]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    memory: Option<usize>,
    /// Seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Which rank this is
    #[arg(long, value_name = "R", default_value_t = 0, requires = "world")]
    rank: u64,
    /// How many ranks share an epoch
    #[arg(long, value_name = "W", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    world: u64,
    /// Batches in exact order, or of what is ready
    #[arg(long, value_name = "ORDER", default_value = "exact", value_parser = ["exact", "ready"])]
    order: String,
    /// With --order ready: how many batches a sample may move [default: 32, or as many as 4,096 samples allow]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_slip: Option<u64>,
    /// All ranks take batches of one class of lengths in rounds, where the plan has bucket
    #[arg(long)]
    rounds: bool,
    /// Write each batch's samples down in this file
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Deliver the batches that this file says
    #[arg(long, value_name = "FILE", conflicts_with_all = ["record", "max_slip"])]
    replay: Option<PathBuf>,
}

impl RunArgs {
    /// The engine's options, for `epochs` epochs or without end.
    pub(crate) fn options(&self, epochs: Option<u64>) -> Result<Options> {
        let Self { threads, memory, seed, rank, world, rounds, .. } = self;
        let Self { order, max_slip, record, replay, .. } = self;
        if rank >= world {
            bail!(Usage(format!("--rank {rank} of --world {world}: ranks count from 0")));
        }
        let delivery = match (order.as_str(), replay) {
            ("ready", Some(_)) => {
                bail!(Usage("a replay has the order of its recording; leave --order out".into()))
            }
            (_, Some(path)) => Delivery::Replay(Arc::new(Recording::read(path)?)),
            ("ready", None) => Delivery::Ready { max_slip: max_slip.unwrap_or(0) },
            _ if max_slip.is_some() => bail!(Usage("--max-slip goes with --order ready".into())),
            _ => Delivery::Exact,
        };
        let usual = Options::default();
        Ok(Options {
            threads: threads.map_or(usual.threads, usize::from),
            memory: memory.unwrap_or(usual.memory),
            seed: Seed(*seed),
            rank: *rank,
            world: *world,
            rounds: *rounds,
            epochs,
            delivery,
            record: record.clone(),
            ..usual
        })
    }
}

/// Reads a number of bytes: `1000000`, `512MB`, `1.5 GiB`.
pub(crate) fn parse_bytes(text: &str) -> Result<usize, String> {
    let wrong = || format!("{text:?} is no size; write it like 512MB or 2GiB");
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..end].parse().map_err(|_| wrong())?;
    let unit = match text[end..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kb" => 1e3,
        "m" | "mb" => 1e6,
        "g" | "gb" => 1e9,
        "t" | "tb" => 1e12,
        "kib" => 1024.0,
        "mib" => 1024.0 * 1024.0,
        "gib" => 1024.0 * 1024.0 * 1024.0,
        "tib" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        _ => return Err(wrong()),
    };
    let bytes = number * unit;
    if !(1.0..=1e15).contains(&bytes) {
        return Err(format!("{text:?} is out of range; give at least one byte"));
    }
    Ok(bytes as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_every_usual_spelling() {
        let sizes = ["1000", "512MB", "1GB", "2GiB", "1.5 kB", "64k"]
            .map(|text| parse_bytes(text).unwrap());
        assert_eq!(sizes, [1000, 512_000_000, 1_000_000_000, 2 << 30, 1500, 64_000]);
        for wrong in ["", "GB", "1XB", "-1GB", "0", "1e999", "1..2GB", "99999TB"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_text_is_told_from_a_file_name() {
        for plan in ["range count=3", "rnage count=3", "a|b", " {\"feedline\": 1}", "images"] {
            assert!(is_plan(plan), "{plan}");
        }
        for file in ["plan.json", "my plan.json", "", "x/y=z.json"] {
            assert!(!is_plan(file), "{file}");
        }
    }

    #[test]
    fn blobs_are_read_and_damaged_ones_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let plan = folder.path().join("plan.json");
        assert!(read_blobs(&plan).unwrap().is_empty());
        let blobs = folder.path().join("plan.json.blobs");
        fs::create_dir(&blobs).unwrap();
        fs::write(blobs.join("aa"), b"{\"dtype\": \"int16\", \"shape\": [2]}\n\x01\0\xff\xff")
            .unwrap();
        fs::write(blobs.join("bb"), b"{\"dtype\": \"text\", \"shape\": []}\na\nb").unwrap();
        let read = read_blobs(&plan).unwrap();
        assert_eq!(read["aa"], Tensor::from_slice(&[2], &[1i16, -1]));
        assert_eq!(read["bb"], Tensor::text("a\nb"));
        for (damage, words) in [
            (&b"{\"dtype\": \"int16\", \"shape\": [3]}\nabcd"[..], "takes 6 bytes, and it holds 4"),
            (b"no header", "first line"),
            (b"[]\n", "damaged"),
            (b"{\"dtype\": \"int16\", \"shape\": [18446744073709551615, 9]}\n", "too many"),
            (b"{\"dtype\": \"text\", \"shape\": []}\n\xff", "UTF-8"),
            (b"{\"dtype\": \"bytes\", \"shape\": [1]}\n\xff", "shape []"),
        ] {
            fs::write(blobs.join("cc"), damage).unwrap();
            let error = format!("{:#}", read_blobs(&plan).unwrap_err());
            assert!(error.contains(words) && error.contains("plan.json.blobs/cc"), "{error}");
        }
    }
}
