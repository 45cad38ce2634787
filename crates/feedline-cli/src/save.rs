//! `feedline save`: computes an epoch once and keeps it as Arrow files.

use crate::Usage;
use crate::input::{PlanArg, parse_bytes};
use crate::output::{Output, bytes, count, seconds};
use crate::service::trust::Asking;
use anyhow::{Result, bail};
use feedline_core::Seed;
use feedline_engine::Options;
use feedline_engine::save::{SaveOptions, SaveProgress, Saved, ShardSize, Shards};
use feedline_ops::Pipeline;
use feedline_wire::control::Control;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How long to wait for workers.
const PATIENCE: Duration = Duration::from_secs(300);

/// Options of `save`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    plan: PlanArg,
    /// The folder to save to: a new one, an empty one, or one in which the same was begun
    out: PathBuf,
    /// Seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Which epoch is saved
    #[arg(long, value_name = "N", default_value_t = 0)]
    epoch: u64,
    /// Size of a file, such as 64MB or 1GiB [default: 256MB]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    shard: Option<usize>,
    /// Rows of a file, instead of its size
    #[arg(long, value_name = "N", conflicts_with = "shard", value_parser = clap::value_parser!(u64).range(1..))]
    rows: Option<u64>,
    /// Threads that prepare samples [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Memory for what is in flight, such as 512MB or 2GiB [default: 1GB]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    memory: Option<usize>,
    /// Let the workers of a service write the files: the folder must be the same place for them
    #[arg(long, value_name = "URL", conflicts_with_all = ["threads", "memory"])]
    dispatcher: Option<String>,
    #[command(flatten)]
    asking: Asking,
}

#[derive(Serialize)]
struct Report {
    folder: String,
    plan: String,
    rows: u64,
    bytes: u64,
    shards: u64,
    written: u64,
    skipped: u64,
    seconds: f64,
}

pub(crate) fn run(args: &Args, output: &Output) -> Result<()> {
    let Args { plan, out, seed, epoch, shard, rows, threads, memory, dispatcher, asking } = args;
    if out.as_os_str().is_empty() {
        bail!(Usage("the folder to save to has no name".into()));
    }
    let host = plan.host()?;
    let (plan, blobs, store) = plan.load()?;
    let pipeline = Pipeline::open_with(&plan, &*store, &blobs, host)?;
    let service = match dispatcher {
        None => None,
        Some(url) => {
            let control: Arc<dyn Control> = Arc::new(asking.connect(url, false)?);
            Some((control, asking.stream()?, pipeline.again(&blobs)?))
        }
    };
    let size = match (rows, shard) {
        (Some(rows), _) => ShardSize::Rows(*rows),
        (None, Some(bytes)) => ShardSize::Bytes(*bytes as u64),
        (None, None) => ShardSize::default(),
    };
    let shards = Shards::cut_opened(pipeline, store, (Seed(*seed), *epoch), size)?;
    let plan = shards.table().plan.clone();
    let usual = Options::default();
    let run = Options {
        threads: threads.map_or(usual.threads, usize::from),
        memory: memory.unwrap_or(usual.memory),
        ..usual
    };
    let bar = bar();
    let tell = |progress: &SaveProgress| {
        bar.set_length(progress.places);
        bar.set_position(progress.places_done);
        bar.set_message(format!(
            "{}/{} files  {} written",
            progress.shards_done,
            progress.shards,
            bytes(progress.bytes as f64)
        ));
    };
    let options = SaveOptions { run, progress: Some(&tell), ..SaveOptions::default() };
    let saved = match &service {
        None => feedline_engine::save::save(shards, out, &options),
        Some((control, stream, pipeline)) => {
            let how = (stream, PATIENCE);
            feedline_remote::save(control, (shards, pipeline), &blobs, out, &options, how)
        }
    };
    bar.finish_and_clear();
    let Saved { rows, bytes: size, shards, written, skipped, seconds: took } = saved?;
    let folder = out.display().to_string();
    if output.json {
        let bytes = size;
        let seconds = took;
        return output.document(&Report {
            folder,
            plan,
            rows,
            bytes,
            shards,
            written,
            skipped,
            seconds,
        });
    }
    let mut text = format!(
        "{}\n\n{} rows, {} in {} files in {folder}, {} of them written now in {}\n",
        output.paint.accent(&plan),
        count(rows),
        bytes(size as f64),
        count(shards),
        count(written),
        seconds(took)
    );
    if skipped > 0 {
        text +=
            &format!("{} bad samples were left out; feedline.json names them\n", count(skipped));
    }
    output.text(&text)
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{bar:32} {pos}/{len} samples  {msg}  {eta} left");
    bar.set_style(style.expect("the template is right").progress_chars("██░"));
    if !bar.is_hidden() {
        bar.enable_steady_tick(Duration::from_millis(200));
    }
    bar
}
