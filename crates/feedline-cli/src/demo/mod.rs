//! `feedline demo`: what Feedline does, shown in under a minute on any machine.
//!
//! ```text
//!  photos ──► explain ──► a simulated accelerator, fed by a plain loader ──► stop, resume, compare
//!                                              and then by Feedline
//! ```

mod accelerator;
mod loader;
mod photos;

use crate::bench::{Endless, countdown, duration, tell};
use crate::output::{Output, bytes, count, number, seconds, share};
use accelerator::{Shift, bar, feed, strip};
use anyhow::{Context, Result, bail};
use feedline_core::{Batch, Blobs, Position, Seed, Store};
use feedline_engine::{Next, Options, Run, State};
use feedline_ops::Pipeline;
use feedline_plan::{Fingerprint, Plan};
use feedline_store::LocalStore;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};
use loader::{Loader, Recipe};
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Options of `demo`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long each loader feeds the accelerator
    #[arg(long, value_name = "S", default_value_t = 8.0)]
    seconds: f64,
    /// Photos to make
    #[arg(long, value_name = "N", default_value_t = 320, value_parser = clap::value_parser!(u32).range(12..=100_000))]
    photos: u32,
    /// Threads of each loader [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

/// The side of the images that the accelerator gets.
const SIDE: usize = 224;
/// Images in a batch, if there are photos enough.
const BATCH: usize = 32;
const MEAN: [f32; 3] = [0.485, 0.456, 0.406];
const STD: [f32; 3] = [0.229, 0.224, 0.225];
/// How much of what Feedline can deliver the accelerator can take.
const APPETITE: f64 = 0.8;

/// The figures of a demonstration.
#[derive(Serialize)]
struct Report {
    photos: PhotosReport,
    plan: String,
    threads: usize,
    batch: usize,
    /// What Feedline delivers when nobody is slower.
    images_per_second: f64,
    /// How long the simulated accelerator computes on a batch.
    step_seconds: f64,
    accelerator_images_per_second: f64,
    plain: Shift,
    feedline: Shift,
    resume: Resumed,
}

#[derive(Serialize)]
struct PhotosReport {
    count: u32,
    bytes: u64,
    seconds: f64,
}

#[derive(Serialize)]
struct Resumed {
    stopped_after_batches: usize,
    threads_before: usize,
    threads_after: usize,
    state: serde_json::Value,
    state_bytes: usize,
    compared_batches: usize,
    identical: bool,
}

pub(crate) fn run(args: &Args, output: &Output) -> Result<()> {
    let length = duration(args.seconds)?;
    let threads = match args.threads {
        Some(threads) => usize::from(threads),
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    let folder = tempfile::Builder::new().prefix("feedline-demo-").tempdir();
    let folder = folder.context("a temporary folder")?;
    let stage = Stage { output, threads, length, folder: folder.path() };
    let batch = BATCH.min(args.photos as usize / 6);

    let photos = stage.photos(args.photos)?;
    let demo = stage.pipeline(batch)?;
    let (images_per_second, plain, feedline, step) = stage.feed(&demo, batch)?;
    let resume = stage.resume(&demo)?;
    let identical = resume.identical;
    let report = Report {
        photos,
        plan: demo.pipeline.plan.to_string(),
        threads,
        batch,
        images_per_second,
        step_seconds: step.as_secs_f64(),
        accelerator_images_per_second: batch as f64 / step.as_secs_f64(),
        plain,
        feedline,
        resume,
    };
    if output.json {
        output.document(&report)?;
    } else {
        stage.farewell()?;
    }
    if !identical {
        bail!("a resumed run differed from the run without a stop; please report this");
    }
    Ok(())
}

/// Where the demonstration takes place.
struct Stage<'a> {
    output: &'a Output,
    threads: usize,
    length: Duration,
    folder: &'a Path,
}

/// The pipeline that is shown.
struct Demo {
    pipeline: Arc<Pipeline>,
    store: Arc<dyn Store>,
}

impl Demo {
    fn start(&self, position: Position, threads: usize, epochs: Option<u64>) -> Result<Run> {
        let options = Options { threads, epochs, ..Options::default() };
        Ok(Run::start(Arc::clone(&self.pipeline), Arc::clone(&self.store), position, options)?)
    }
}

impl Stage<'_> {
    fn say(&self, line: &str) -> Result<()> {
        if self.output.json { Ok(()) } else { self.output.text(&format!("{line}\n")) }
    }

    fn heading(&self, number: u8, title: &str) -> Result<()> {
        let paint = self.output.paint;
        self.say(&format!("\n{}  {}", paint.accent(&number.to_string()), paint.bold(title)))
    }

    /// Makes the photos.
    fn photos(&self, count: u32) -> Result<PhotosReport> {
        self.heading(1, "Photos")?;
        let bar = ProgressBar::with_draw_target(Some(count.into()), ProgressDrawTarget::stderr())
            .with_finish(ProgressFinish::AndClear);
        let style = ProgressStyle::with_template("   drawing {bar:32} {pos}/{len}");
        bar.set_style(style.expect("the template is right").progress_chars("██░"));
        let start = Instant::now();
        let size = photos::make(self.folder, count as usize, self.threads, || bar.inc(1))?;
        let taken = start.elapsed().as_secs_f64();
        drop(bar);
        self.say(&format!(
            "   {count} JPEG files of {}×{} in {} classes, {} ({} each), made up in {}.\n   They are in {} until the end.",
            photos::WIDTH,
            photos::HEIGHT,
            photos::CLASSES.len(),
            bytes(size as f64),
            bytes(size as f64 / f64::from(count)),
            seconds(taken),
            self.folder.display(),
        ))?;
        Ok(PhotosReport { count, bytes: size, seconds: taken })
    }

    /// Writes the pipeline and explains it.
    fn pipeline(&self, batch: usize) -> Result<Demo> {
        self.heading(2, "The pipeline, and what will run")?;
        let text = format!(
            "images path={path} | shuffle | decode | random_resized_crop size={SIDE} | \
             flip_horizontal | normalize mean={MEAN:?} std={STD:?} | layout to=CHW | \
             batch size={batch} drop_last=true",
            path = serde_json::to_string(self.folder)?
        );
        let plan: Plan = text.parse()?;
        let store: Arc<dyn Store> = Arc::new(LocalStore);
        let pipeline = Arc::new(Pipeline::open(&plan, &*store, &Blobs::new())?);
        let options = Options { threads: self.threads, ..Options::default() };
        let explanation = feedline_engine::explain(&pipeline, &options).to_string();
        for line in explanation.lines() {
            for part in wrapped(line, &[" | ", " → "], 96) {
                self.say(format!("   {part}").trim_end())?;
            }
        }
        Ok(Demo { pipeline, store })
    }

    /// Measures Feedline, then lets both loaders feed an accelerator.
    fn feed(&self, demo: &Demo, batch: usize) -> Result<(f64, Shift, Shift, Duration)> {
        let paint = self.output.paint;
        self.heading(3, "Feeding an accelerator")?;
        let rate = self.rate(demo)?;
        let step = Duration::from_secs_f64(batch as f64 / (APPETITE * rate));
        let (threads, plural) = (self.threads, if self.threads == 1 { "" } else { "s" });
        self.say(&format!(
            "   Feedline alone delivers {} images/s here, with {threads} thread{plural}. The accelerator is \
             simulated:\n   it takes {batch} images, computes for {}, meanwhile asks for more, and so could use \
             {} images/s.\n",
            number(rate),
            seconds(step.as_secs_f64()),
            number(batch as f64 / step.as_secs_f64()),
        ))?;
        self.say(&format!(
            "   {}  as many threads, each preparing whole batches ahead, as training scripts do:\n                 \
             read, decode all, crop and resize, mirror, to floats, normalise, stack",
            paint.poor("plain loader")
        ))?;
        let recipe = Recipe { side: SIDE, batch, mean: MEAN, std: STD };
        let mut loader = Loader::start(self.folder, &photos::CLASSES, self.threads, recipe)?;
        let plain = feed("plain loader", step, self.length, || {
            let batch = loader.next()?;
            let count = batch.labels.len();
            Ok((batch.images, count))
        })?;
        drop(loader);
        self.verdict(&plain, false)?;
        self.say(&format!(
            "   {}      the pipeline above: one task per image, straight into its batch",
            paint.good("Feedline")
        ))?;
        let mut run = demo.start(Position::default(), self.threads, None)?;
        let feedline = feed("Feedline    ", step, self.length, || {
            loop {
                if let Next::Batch(batch) = run.next()? {
                    let count = batch.rows;
                    return Ok((batch, count));
                }
            }
        })?;
        drop(run);
        self.verdict(&feedline, true)?;
        let gain = feedline.images_per_second / plain.images_per_second;
        self.say(&format!(
            "   In the same time the accelerator trained on {} images instead of {} ({:.2} times as many).",
            paint.bold(&count(feedline.images)),
            count(plain.images),
            gain
        ))?;
        Ok((rate, plain, feedline, step))
    }

    fn verdict(&self, shift: &Shift, good: bool) -> Result<()> {
        let paint = self.output.paint;
        let (full, empty) = bar(shift.busy_share, 40);
        let colour = |text: &str| if good { paint.good(text) } else { paint.poor(text) };
        self.say(&format!(
            "      {}{}  {} busy, {} waiting for data, {} images/s",
            colour(&full),
            paint.dim(&empty),
            paint.bold(&share(shift.busy_share)),
            share(shift.stall_share),
            number(shift.images_per_second),
        ))?;
        self.say(&format!(
            "      {}\n      {}\n",
            colour(&strip(&shift.timeline)),
            paint.dim(&format!(
                "└ busy, over {}; first batch after {}",
                seconds(shift.seconds),
                seconds(shift.first_batch_seconds)
            ))
        ))
    }

    /// Images per second that Feedline delivers to a consumer that does nothing.
    fn rate(&self, demo: &Demo) -> Result<f64> {
        let mut endless = Endless::new(demo.start(Position::default(), self.threads, None)?);
        for _ in 0..4 {
            endless.next(None)?;
        }
        let length = (self.length / 4).min(Duration::from_secs(2));
        let bar = countdown("measuring", length);
        let (before, start) = (endless.run.stats().samples, Instant::now());
        while start.elapsed() < length {
            endless.next(None)?;
            tell(&bar, start.elapsed(), String::new);
        }
        let images = endless.run.stats().samples - before;
        Ok(images as f64 / start.elapsed().as_secs_f64())
    }

    /// Stops in the middle of an epoch, goes on from the saved state, and compares.
    fn resume(&self, demo: &Demo) -> Result<Resumed> {
        let paint = self.output.paint;
        self.heading(4, "Stopping, and resuming exactly")?;
        let whole = rest(demo.start(Position::default(), self.threads, Some(1))?)?;
        let stop = whole.len() * 2 / 5;
        let mut run = demo.start(Position::default(), self.threads, Some(1))?;
        let mut begun = Vec::new();
        while begun.len() < stop
            && let Next::Batch(batch) = run.next()?
        {
            begun.push(fingerprint(&batch));
        }
        let seed = Seed(0);
        let state = State::new(&demo.pipeline, run.position(), seed, 0, 1).to_json();
        drop(run);

        // From here on only the text of the state is used.
        let position = State::from_json(&state)?.position_for(&demo.pipeline, seed, 0, 1)?;
        let threads_after = 2 * self.threads + 1;
        let after = rest(demo.start(position, threads_after, Some(1))?)?;
        let identical = begun == whole[..begun.len()] && after == whole[begun.len()..];

        let short = |hashes: &[Fingerprint]| {
            let words = hashes.iter().take(12).map(|hash| hash.to_string()[..5].to_owned());
            let words: Vec<String> = words.collect();
            words.join(" ") + if hashes.len() > 12 { " …" } else { "" }
        };
        self.say("   Each batch of an epoch as a hash of its bits:\n")?;
        let gap = " ".repeat(6 * begun.len().min(12));
        let line = |what: &str, hashes: &str| self.say(&format!("   {:<24} {hashes}", what));
        line("without a stop", &short(&whole))?;
        line(&format!("stopped after batch {stop}"), &paint.poor(&short(&begun)))?;
        line(
            &format!("resumed, {threads_after} threads"),
            &format!("{gap}{}", paint.good(&short(&after))),
        )?;
        self.say(&format!(
            "\n   The state in between, {}, is all that was kept:",
            bytes(state.len() as f64)
        ))?;
        for part in wrapped(&state, &[","], 96) {
            self.say(&format!("   {}", paint.dim(&part)))?;
        }
        self.say(&if identical {
            format!(
                "\n   {} the {} batches after the stop, bit for bit.",
                paint.good("Identical:"),
                after.len()
            )
        } else {
            format!("\n   {} the batches after the stop differ.", paint.poor("Not identical:"))
        })?;
        Ok(Resumed {
            stopped_after_batches: stop,
            threads_before: self.threads,
            threads_after,
            state_bytes: state.len(),
            state: serde_json::from_str(&state)?,
            compared_batches: after.len(),
            identical,
        })
    }

    fn farewell(&self) -> Result<()> {
        let paint = self.output.paint;
        let line = |what: &str, text: &str| {
            self.say(&format!("   {} {}", paint.dim(&format!("{what:<12}")), paint.accent(text)))
        };
        self.say(&format!("\n{}", paint.bold("What to try next")))?;
        line(
            "in Python",
            "loader = fl.images(\"train/\").shuffle().decode().random_resized_crop(224).batch(64).loader()",
        )?;
        line(
            "in a shell",
            "feedline peek 'images path=train/ | shuffle | decode | resize size=224'",
        )?;
        line(
            "to read",
            "docs/ explains pipelines, resuming and measuring; feedline --help lists the commands",
        )
    }
}

/// The hashes of all batches that are left.
fn rest(mut run: Run) -> Result<Vec<Fingerprint>> {
    let mut hashes = Vec::new();
    while let Next::Batch(batch) = run.next()? {
        hashes.push(fingerprint(&batch));
    }
    Ok(hashes)
}

fn fingerprint(batch: &Batch) -> Fingerprint {
    let fields = batch.fields.iter();
    let hashes = fields
        .map(|(name, tensor)| format!("{name} {tensor:?} {}", Fingerprint::of(tensor.data())));
    Fingerprint::of(hashes.collect::<Vec<_>>().join("\n").as_bytes())
}

/// Cuts a line after separators into parts of at most `width`, where it can; all parts are as far in.
fn wrapped(line: &str, separators: &[&str], width: usize) -> Vec<String> {
    let text = line.trim_start();
    let mut lines = vec![String::new()];
    let mut rest = text;
    while !rest.is_empty() {
        let ends = separators.iter().filter_map(|mark| Some(rest.find(mark)? + mark.len()));
        let (part, after) = rest.split_at(ends.min().unwrap_or(rest.len()));
        let last = lines.last_mut().expect("there is always a line");
        if !last.is_empty() && last.chars().count() + part.chars().count() > width {
            lines.push(part.to_owned());
        } else {
            last.push_str(part);
        }
        rest = after;
    }
    let indent = &line[..line.len() - text.len()];
    // What follows the name of a stage begins below what it goes on from.
    let hang = text.split_once("   ").map_or(0, |(_, after)| text.len() - after.trim_start().len());
    let hang = " ".repeat(if indent.is_empty() { 0 } else { hang });
    let placed = lines.iter().enumerate();
    placed.map(|(at, part)| format!("{indent}{}{part}", if at > 0 { &*hang } else { "" })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_cut_after_commas() {
        assert_eq!(wrapped("a,b,c", &[","], 4), ["a,b,", "c"]);
        assert_eq!(wrapped("abc", &[","], 1), ["abc"]);
        assert_eq!(wrapped("  so   a | b", &[" | "], 9), ["  so   a | ", "       b"]);
        assert_eq!(wrapped("", &[","], 9), [""]);
    }
}
