//! `feedline bench`: how fast is this pipeline on this machine, and what does it cost?

use crate::Usage;
use crate::input::{PlanArg, RunArgs};
use crate::measure::{Figures, cpu_seconds};
use crate::output::{Output, number};
use anyhow::{Result, bail};
use feedline_core::Position;
use feedline_engine::{Next, Run};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Options of `bench`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    plan: PlanArg,
    /// How long to measure
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    seconds: f64,
    /// Batches to let pass before the measurement
    #[arg(long, value_name = "N", default_value_t = 8)]
    warm_batches: u64,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Serialize)]
struct Report {
    plan: String,
    fingerprint: String,
    warm_batches: u64,
    #[serde(flatten)]
    figures: Figures,
}

pub(crate) fn run(args: &Args, output: &Output) -> Result<()> {
    let length = duration(args.seconds)?;
    let opened = args.plan.open_to_run()?;
    let pipeline = opened.pipeline;
    let options = args.run.options(None)?;
    let started = Instant::now();
    let run = Run::start(pipeline.clone(), opened.store, Position::default(), options)?;
    let mut endless = Endless::new(run);
    let mut first = None;
    for _ in 0..args.warm_batches {
        endless.next(None)?;
        first.get_or_insert_with(|| started.elapsed().as_secs_f64());
    }
    let bar = countdown("measuring", length);
    let (before, cpu, start) = (endless.run.stats(), cpu_seconds(), Instant::now());
    while let Some(left) = length.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) {
        if endless.next(Some(left))? {
            first.get_or_insert_with(|| started.elapsed().as_secs_f64());
        }
        tell(&bar, start.elapsed(), || {
            let stats = endless.run.stats();
            let rate = (stats.samples - before.samples) as f64 / start.elapsed().as_secs_f64();
            format!("{} samples/s", number(rate))
        });
    }
    let (after, cpu) = (endless.run.stats(), cpu_seconds() - cpu);
    drop(bar);
    if after.samples == before.samples {
        bail!("not one batch came within {} seconds; try --seconds with more", args.seconds);
    }
    let report = Report {
        plan: pipeline.plan.to_string(),
        fingerprint: pipeline.fingerprint().to_string(),
        warm_batches: args.warm_batches,
        figures: Figures::between(&before, &after, cpu, first),
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

/// A number of seconds that can be waited for.
pub(crate) fn duration(seconds: f64) -> Result<Duration> {
    if !(0.001..=86_400.0).contains(&seconds) {
        bail!(Usage(format!("--seconds {seconds} is not between 0.001 and 86400")));
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// A run that goes from epoch to epoch.
pub(crate) struct Endless {
    pub(crate) run: Run,
    /// Whether this epoch delivered anything.
    any: bool,
}

impl Endless {
    pub(crate) fn new(run: Run) -> Self {
        Self { run, any: false }
    }

    /// Takes the next batch, waiting no longer than `patience`; says whether one came.
    pub(crate) fn next(&mut self, patience: Option<Duration>) -> Result<bool> {
        let deadline = patience.map(|patience| Instant::now() + patience);
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let next = match left {
                Some(left) => self.run.next_within(left)?,
                None => Some(self.run.next()?),
            };
            match next {
                Some(Next::Batch(_)) => {
                    self.any = true;
                    return Ok(true);
                }
                Some(Next::EpochEnd(_)) if self.any => self.any = false,
                Some(Next::EpochEnd(_) | Next::End) => {
                    bail!("an epoch of this pipeline has no batch, so there is nothing to measure")
                }
                None => return Ok(false),
            }
        }
    }
}

/// A bar that fills in `length`, on a terminal.
pub(crate) fn countdown(what: &'static str, length: Duration) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(
        Some(length.as_millis() as u64),
        ProgressDrawTarget::stderr(),
    );
    let style = ProgressStyle::with_template("   {prefix} {bar:32} {msg}");
    bar.set_style(style.expect("the template is right").progress_chars("██░"));
    bar.set_prefix(what);
    bar.with_finish(ProgressFinish::AndClear)
}

/// Moves a countdown on, about ten times a second.
pub(crate) fn tell(bar: &ProgressBar, passed: Duration, message: impl FnOnce() -> String) {
    let passed = passed.as_millis() as u64;
    if !bar.is_hidden() && passed >= bar.position() + 100 {
        bar.set_message(message());
        bar.set_position(passed);
    }
}
