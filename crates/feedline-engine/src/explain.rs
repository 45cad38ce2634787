//! Says what will run: which steps together, into which buffers, within which budgets.

use crate::budget::threads;
use crate::{Budget, Delivery, Options, Steps, rounds_left, steps_left};
use feedline_core::{Policy, Position};
use feedline_ops::Pipeline;
use serde::Serialize;
use std::fmt;

/// What a run of a pipeline will do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// The plan in its text form.
    pub plan: String,
    /// The plan's fingerprint.
    pub fingerprint: String,
    /// Hash over what the source's indices mean.
    pub manifest: String,
    /// Samples in the source.
    pub source_samples: u64,
    /// Samples in an epoch; absent if it never ends.
    pub epoch_samples: Option<u64>,
    /// Steps (batches) of this rank in an epoch, if known.
    pub steps: Option<u64>,
    /// Whether each sample gives exactly one output.
    pub counted: bool,
    /// The stages, in order.
    pub stages: Vec<Stage>,
    /// What is delivered.
    pub output: Vec<String>,
    /// In which order.
    pub delivery: String,
    /// Bytes of one batch, if every batch has the same.
    pub batch_bytes: Option<usize>,
    /// Threads that prepare samples.
    pub threads: usize,
    /// Bytes that may be in flight.
    pub memory: usize,
    /// Batches prepared ahead.
    pub ahead: usize,
    /// Reads that may wait for storage at once.
    pub reads: usize,
    /// Which of these numbers the tuner changes while the run goes on.
    pub tuned: Vec<&'static str>,
}

/// One stage of a run: steps that run together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stage {
    /// Which part of the data's path this is.
    pub stage: &'static str,
    /// The steps in it.
    pub steps: Vec<String>,
    /// How they run.
    pub how: String,
}

/// Says what a run with these options will do.
#[must_use]
pub fn explain(pipeline: &Pipeline, options: &Options) -> Explanation {
    let budget = Budget::new(pipeline, options, threads(options.threads));
    let start = Position::default();
    let left = match options.rounds {
        true => rounds_left(pipeline, &start, options.world),
        false => steps_left(pipeline, &start, options.rank, options.world),
    };
    let steps = match left {
        Steps::Exactly(steps) => Some(steps),
        Steps::Between(..) | Steps::Endless => None,
    };
    let calls = pipeline.plan.calls();
    let mut stages = vec![Stage {
        stage: "source",
        steps: vec![calls[0].to_string()],
        how: format!(
            "{} samples, manifest {}",
            pipeline.source.length(),
            short(&pipeline.source.manifest())
        ),
    }];
    if !pipeline.order_names.is_empty() {
        stages.push(Stage {
            stage: "order",
            steps: pipeline.order_names.iter().map(|name| (*name).to_owned()).collect(),
            how: "computed per place, nothing stored".into(),
        });
    }
    let records = pipeline.source.length() > 0 && pipeline.source.locate(0).is_some();
    if records || pipeline.source.stored_bytes().is_some() {
        let what = if records { "whole files" } else { "what later steps leave of each file" };
        stages.push(Stage {
            stage: "fetch",
            steps: Vec::new(),
            how: format!(
                "{what}; from memory on the thread that uses them, else by up to {} readers",
                budget.reads
            ),
        });
    }
    stages.extend(sample_stages(pipeline));
    let policy = match &pipeline.policy {
        Policy::Raise => "a bad sample ends the run",
        Policy::Skip { file: None, .. } => "bad samples are left out",
        Policy::Skip { .. } => "bad samples are left out and written down",
    };
    if let Some(buckets) = &pipeline.bucket {
        let last = match pipeline.batch.as_ref().is_some_and(|batch| batch.drop_last) {
            true => "dropped",
            false => "delivered",
        };
        let rounds = match options.rounds {
            true => format!("in rounds of {} batches of one class, ", options.world),
            false => String::new(),
        };
        stages.push(Stage {
            stage: "bucket",
            steps: pipeline.plan.calls().last().map(ToString::to_string).into_iter().collect(),
            how: format!(
                "{} classes of lengths, {rounds}rows are copied once and filled up; what is left \
                 after {} samples is {last}; {policy}",
                buckets.classes(),
                buckets.stretch
            ),
        });
    } else if let Some(batch) = &pipeline.batch {
        let last = match (batch.drop_last, batch.pad) {
            (true, _) => "an incomplete last one is dropped",
            (_, true) => "an incomplete last one is padded, with a mask",
            _ => "the last one may be smaller",
        };
        let slots = pipeline.sample.fields.iter().filter(|field| field.bytes().is_some()).count();
        let how = if matches!(options.delivery, Delivery::Ready { .. }) {
            format!("finished samples are copied to the next free row; {last}; {policy}")
        } else if slots == pipeline.sample.fields.len() && pipeline.is_counted() {
            format!("rows are written in place, no copy; {last}; {policy}")
        } else {
            format!(
                "{slots} of {} fields are written in place, the rest is stacked; {last}; {policy}",
                pipeline.sample.fields.len()
            )
        };
        stages.push(Stage {
            stage: "batch",
            steps: vec![format!("batch size={}", batch.size)],
            how,
        });
    } else {
        stages.push(Stage {
            stage: "deliver",
            steps: Vec::new(),
            how: format!("sample by sample; {policy}"),
        });
    }
    Explanation {
        plan: pipeline.plan.to_string(),
        fingerprint: pipeline.fingerprint().to_string(),
        manifest: pipeline.source.manifest(),
        source_samples: pipeline.source.length(),
        epoch_samples: pipeline.length().finite(),
        steps,
        counted: pipeline.is_counted(),
        stages,
        output: pipeline.output.fields.iter().map(ToString::to_string).collect(),
        delivery: delivery(pipeline, options),
        batch_bytes: budget.batch_bytes,
        threads: budget.threads,
        memory: budget.memory,
        ahead: budget.groups,
        reads: budget.reads,
        tuned: tuned(options),
    }
}

fn delivery(pipeline: &Pipeline, options: &Options) -> String {
    match &options.delivery {
        Delivery::Stretches => "every stretch by itself".to_owned(),
        Delivery::Exact => "in exact order; samples guessed to be slow are started first".into(),
        Delivery::Ready { .. } => {
            let size = pipeline.stretch() as u64;
            let slip = options.window(size).unwrap_or(size) / size;
            format!("as they are ready, at most {slip} batches from their place")
        }
        Delivery::Replay(_) => "as they were recorded".into(),
    }
}

fn tuned(options: &Options) -> Vec<&'static str> {
    let Options { threads, ahead, reads, .. } = *options;
    let chosen = [("threads", threads > 0), ("ahead", ahead > 0), ("reads", reads > 0)];
    let open = chosen.into_iter().filter(|(_, given)| options.tune && !given);
    open.map(|(name, _)| name).collect()
}

/// Per-sample steps, those that run in one pass put together.
fn sample_stages(pipeline: &Pipeline) -> Vec<Stage> {
    let mut stages: Vec<(bool, Vec<String>)> = Vec::new();
    for (at, map) in pipeline.maps.iter().enumerate() {
        let fused = map.map.is_fused();
        let kept = pipeline.cache.as_ref().is_some_and(|point| point.after == at && at > 0);
        match stages.last_mut() {
            Some((true, steps)) if fused && !kept => steps.push(map.call.clone()),
            _ => stages.push((fused, vec![map.call.clone()])),
        }
    }
    let how = |fused: bool, steps: &[String]| {
        let decodes = steps.iter().any(|step| step.starts_with("decode"));
        let crops = steps.iter().any(|step| step.contains("crop"));
        if steps.iter().any(|step| step.starts_with("map ") || step.starts_with("filter ")) {
            return "in a process of its own, several samples at once where they are cheap";
        }
        match (fused && steps.len() > 1, decodes, crops) {
            (true, true, true) => {
                "fused: decodes only the region the crop needs, then one pass over its pixels"
            }
            (true, true, false) => "fused: decode, then one pass over the pixels",
            (true, ..) => "fused: one pass over the pixels",
            (false, true, _) => "decoded when its pixels are needed",
            _ => "one after another, on the sample's thread",
        }
    };
    let (mut all, mut steps_before) = (Vec::new(), 0);
    for (fused, steps) in stages {
        all.extend(cache_stage(pipeline, steps_before));
        steps_before += steps.len();
        all.push(Stage { stage: "sample", how: how(fused, &steps).into(), steps });
    }
    all.extend(cache_stage(pipeline, steps_before));
    all
}

/// Where samples are kept, if that is after so many steps.
fn cache_stage(pipeline: &Pipeline, steps: usize) -> Option<Stage> {
    let point = pipeline.cache.as_ref().filter(|point| point.after == steps)?;
    let call = pipeline.plan.calls().iter().find(|call| call.step == "cache")?;
    let how = format!(
        "samples are kept as they are here, until it is full; identity {}",
        short(&point.identity)
    );
    Some(Stage { stage: "cache", steps: vec![call.to_string()], how })
}

fn short(hash: &str) -> String {
    hash.chars().take(16).collect()
}

/// Bytes for people.
pub(crate) fn human_bytes(bytes: usize) -> String {
    let units = [(1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    match units.iter().find(|(size, _)| bytes as f64 >= *size) {
        Some((size, unit)) => format!("{:.1} {unit}", bytes as f64 / size),
        None => format!("{bytes} B"),
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.plan)?;
        writeln!(f, "fingerprint {}", short(&self.fingerprint))?;
        let epoch = match self.epoch_samples {
            Some(samples) => format!("{samples} samples"),
            None => "endless".to_owned(),
        };
        match self.steps {
            Some(steps) => writeln!(f, "an epoch: {epoch}, {steps} steps on this rank")?,
            None => writeln!(f, "an epoch: {epoch}")?,
        }
        writeln!(f)?;
        for stage in &self.stages {
            if stage.steps.is_empty() {
                writeln!(f, "  {:<8} {}", stage.stage, stage.how)?;
                continue;
            }
            writeln!(f, "  {:<8} {}", stage.stage, stage.steps.join(" → "))?;
            writeln!(f, "  {:<8} {}", "", stage.how)?;
        }
        writeln!(f, "\n  delivers {}", self.output.join(", "))?;
        writeln!(f, "           {}", self.delivery)?;
        let batch = self.batch_bytes.map_or("of varying size".to_owned(), human_bytes);
        writeln!(
            f,
            "  budgets  {} threads, {} in flight at most, {} batches ahead ({batch} each), {} reads at once",
            self.threads,
            human_bytes(self.memory),
            self.ahead,
            self.reads
        )?;
        match &self.tuned[..] {
            [] => Ok(()),
            names => writeln!(f, "           tuned while it runs: {}", names.join(", ")),
        }
    }
}
