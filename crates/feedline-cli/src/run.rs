//! `feedline run`: goes through a pipeline from end to end.

use crate::input::{PlanArg, RunArgs};
use crate::measure::{Figures, cpu_seconds};
use crate::output::{Output, bytes, number};
use anyhow::Result;
use feedline_core::Position;
use feedline_engine::{Next, Run, Stats, Steps};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Options of `run`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    plan: PlanArg,
    /// Epochs to run
    #[arg(long, value_name = "N", default_value_t = 1)]
    epochs: u64,
    /// End after so many batches
    #[arg(long, value_name = "N")]
    limit_batches: Option<u64>,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Serialize)]
struct Report {
    plan: String,
    fingerprint: String,
    #[serde(flatten)]
    figures: Figures,
}

pub(crate) fn run(args: &Args, output: &Output) -> Result<()> {
    let opened = args.plan.open_to_run()?;
    let pipeline = opened.pipeline;
    let options = args.run.options(Some(args.epochs))?;
    let limit = args.limit_batches.unwrap_or(u64::MAX);
    let (started, cpu) = (Instant::now(), cpu_seconds());
    let mut run = Run::start(pipeline.clone(), opened.store, Position::default(), options)?;
    let mut first = None;
    let mut progress = Progress::new(&run, args.epochs, limit);
    let mut batches = 0;
    while batches < limit {
        match run.next()? {
            Next::Batch(_) => {
                first.get_or_insert_with(|| started.elapsed().as_secs_f64());
                batches += 1;
                progress.batch(&run);
            }
            Next::EpochEnd(epoch) => progress.epoch(&run, epoch + 1),
            Next::End => break,
        }
    }
    drop(progress);
    let before = Stats { threads: 1, ..Stats::default() };
    let figures = Figures::between(&before, &run.stats(), cpu_seconds() - cpu, first);
    let report = Report {
        plan: pipeline.plan.to_string(),
        fingerprint: pipeline.fingerprint().to_string(),
        figures,
    };
    if output.json {
        return output.document(&report);
    }
    output.text(&format!(
        "{}\n\n{}",
        output.paint.accent(&report.plan),
        report.figures.render(output)
    ))
}

/// A bar for each epoch, on a terminal.
struct Progress {
    bar: ProgressBar,
    epochs: u64,
    /// Batches left until the limit.
    left: u64,
    /// When the bar was last told, and what had been delivered by then.
    told: Instant,
    samples: u64,
    bytes: u64,
}

/// How often the bar is told of progress: a batch may take microseconds.
const EVERY: Duration = Duration::from_millis(200);

impl Progress {
    fn new(run: &Run, epochs: u64, limit: u64) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr())
            .with_finish(ProgressFinish::AndClear);
        let mut this =
            Self { bar, epochs, left: limit, told: Instant::now(), samples: 0, bytes: 0 };
        this.begin(run, 0);
        if !this.bar.is_hidden() {
            this.bar.enable_steady_tick(EVERY);
        }
        this
    }

    fn begin(&mut self, run: &Run, epoch: u64) {
        let (length, template) = match run.steps_left() {
            Steps::Exactly(steps) | Steps::Between(_, steps) => (
                Some(steps.min(self.left)),
                "{prefix} {bar:32} {pos}/{len} batches  {msg}  {eta} left",
            ),
            Steps::Endless if self.left < u64::MAX => {
                (Some(self.left), "{prefix} {bar:32} {pos}/{len} batches  {msg}  {eta} left")
            }
            Steps::Endless => (None, "{prefix} {spinner} {pos} batches  {msg}"),
        };
        let style = ProgressStyle::with_template(template).expect("the template is right");
        self.bar.set_style(style.progress_chars("██░"));
        match length {
            Some(length) => self.bar.set_length(length),
            None => self.bar.unset_length(),
        }
        self.bar.reset();
        self.bar.set_prefix(format!("epoch {}/{}", epoch + 1, self.epochs.max(epoch + 1)));
    }

    fn batch(&mut self, run: &Run) {
        self.left = self.left.saturating_sub(1);
        self.bar.inc(1);
        let since = self.told.elapsed();
        if since < EVERY || self.bar.is_hidden() {
            return;
        }
        let stats = run.stats();
        let rate = |now: u64, then: u64| (now - then) as f64 / since.as_secs_f64();
        let samples = number(rate(stats.samples, self.samples));
        let delivered = bytes(rate(stats.bytes_delivered, self.bytes));
        self.bar.set_message(format!("{samples} samples/s  {delivered}/s"));
        (self.told, self.samples, self.bytes) =
            (Instant::now(), stats.samples, stats.bytes_delivered);
    }

    fn epoch(&mut self, run: &Run, epoch: u64) {
        if epoch < self.epochs {
            self.begin(run, epoch);
        }
    }
}
