//! A run whose samples are prepared by workers.

use crate::state::{Dealt, Parted, is_dealt, is_parted, streams_of, windows_of_ranks};
use crate::streams::{Cutting, text_of};
use feedline_client::{Begin, Config, Finisher, Live, Next as Fetched, Settings, Totals};
use feedline_core::{Blobs, Error, Policy, Pool, Position, Result, Store};
use feedline_engine::{
    Assembly, Cut, Delivery, Finish, Loose, Next, Options, State, Steps, Wanted,
};
use feedline_ops::Pipeline;
use feedline_wire::control::{Control, Dataset, DatasetId, Failure};
use feedline_wire::stream::ClientOptions;
use feedline_wire::{
    ConsumerIndex, Description, Epoch, JobName, Nonce, Offset, Order, Start, Streams, Visitation,
    Windows,
};
use serde::Serialize;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Samples in a window, unless a number of steps is given: some tenths of a second for photos.
const SAMPLES: u64 = 512;

/// A dispatcher that is there answers within this time.
const SOON: Duration = Duration::from_secs(10);

/// A job that runs on a service.
#[derive(Clone, Debug)]
pub struct Job {
    /// What it is called. Clients that name the same job share it.
    pub name: String,
    /// In which order its clients get what.
    pub order: Order,
    /// How often a step is seen.
    pub visitation: Visitation,
    /// What an epoch consists of, if it is not the data once. A count of 0 is the number of workers.
    pub streams: Option<Streams>,
    /// Whether it may leave out what workers have computed for other jobs and no longer have, to keep
    /// pace with these.
    pub relaxed: bool,
    /// Steps in a window; 0 for about 512 samples.
    pub window: u64,
    /// Bytes that may be received and not used.
    pub memory: usize,
    /// How long to wait for a batch before saying what is waited for.
    pub patience: Duration,
    /// How connections to workers behave.
    pub stream: ClientOptions,
    /// The first step that is taken here, and not by workers; none if they take all.
    pub local_from: Option<String>,
}

impl Job {
    /// A job of this name, with the usual settings.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            order: Order::Exact,
            visitation: Visitation::ExactlyOnce,
            streams: None,
            relaxed: false,
            window: 0,
            memory: 256 << 20,
            patience: Duration::from_secs(300),
            stream: ClientOptions::default(),
            local_from: None,
        }
    }
}

/// What a remote run did so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Stats {
    /// Batches delivered.
    pub batches: u64,
    /// Samples in them.
    pub samples: u64,
    /// Bad samples left out.
    pub skipped: u64,
    /// Epochs that ended.
    pub epochs: u64,
    /// Bytes of batches.
    pub bytes_delivered: u64,
    /// Seconds since the start.
    pub seconds: f64,
    /// Seconds in which the caller waited.
    pub waited_seconds: f64,
    /// Their share.
    pub waited_share: f64,
    /// Batches that are here and were not delivered.
    pub ready: u64,
    /// Workers that can be reached.
    pub workers: usize,
    /// Streams that broke and were begun again.
    pub failures: u64,
}

enum Making {
    Exact(Box<Assembly>),
    Any(Loose, Cutting),
}

/// A run whose samples are prepared by workers. Dropping it ends its threads and connections.
pub struct Remote {
    pipeline: Arc<Pipeline>,
    options: Options,
    job: Job,
    dataset: DatasetId,
    control: Arc<dyn Control>,
    finish: Option<Finisher>,
    making: Making,
    /// How a whole epoch is cut.
    windows: Windows,
    live: Option<Live>,
    /// What has come and was not wanted yet.
    here: VecDeque<Fetched>,
    /// How dealing begins, until it has begun.
    begin: Option<Begin>,
    /// Where a client stands to whom nothing was dealt yet.
    before: Option<String>,
    started: Instant,
    stats: Stats,
}

impl Remote {
    /// Begins a job, or joins it: from a state, or from the beginning of an epoch.
    ///
    /// # Errors
    ///
    /// If the options make no sense, the state does not fit, or the dispatcher does not take the
    /// pipeline.
    pub fn start(
        control: Arc<dyn Control>,
        pipeline: Arc<Pipeline>,
        (store, blobs): (&dyn Store, &Blobs),
        state: Option<&str>,
        epoch: u64,
        job: Job,
        options: Options,
    ) -> Result<Self> {
        options.check(&pipeline)?;
        check(&pipeline, &job, &options)?;
        let pool = Pool::new(job.memory);
        let cut = job.local_from.as_deref().map(|step| Cut::before(&pipeline, step)).transpose()?;
        let first = match &cut {
            None => Arc::clone(&pipeline),
            Some(cut) => Arc::new(Pipeline::open(&cut.first, store, blobs)?),
        };
        let finish = cut.map(|cut| finisher(&pipeline, &cut, &first, &options, &pool));
        let dataset = dataset_of(&first, blobs);
        let steps = match job.window {
            _ if pipeline.bucket.is_some() => 1,
            0 => (SAMPLES / pipeline.stretch() as u64).max(1),
            given => given,
        };
        // Nobody there is known sooner than that a dataset takes long to be sent.
        let roster = control.workers(0, job.patience.min(SOON)).map_err(unanswered)?;
        let whole = Position::epoch(epoch);
        let (making, windows, begin, before) = match job.order {
            Order::Exact => {
                let position = match state {
                    None => whole,
                    Some(text) => State::from_json(text)?.position_for(
                        &pipeline,
                        options.seed,
                        options.rank,
                        options.world,
                    )?,
                };
                let start = Position::default();
                let windows = windows_of_ranks(&pipeline, &start, steps, &options);
                let assembly = Assembly::new(Arc::clone(&pipeline), position, options.clone())?;
                (Making::Exact(Box::new(assembly)), windows, None, None)
            }
            Order::Any => {
                let workers = roster.workers.len() as u64;
                let streams = streams(&job, state, workers, options.world)?;
                let cutting = Cutting::new(&pipeline, streams, steps, blobs)?;
                let cut = cutting.windows(&cutting.whole(0));
                let begin = dealing(&pipeline, &cutting, state, epoch, &options)?;
                let loose = Loose::new(Arc::clone(&pipeline), pool, options.with_index);
                (Making::Any(loose, cutting), cut, Some(begin), state.map(str::to_owned))
            }
        };
        let dataset = control.register(&dataset, blobs).map_err(unanswered)?;
        let (started, stats) = (Instant::now(), Stats::default());
        Ok(Self {
            pipeline,
            options,
            job,
            dataset,
            control,
            finish,
            making,
            windows,
            live: None,
            here: VecDeque::new(),
            begin,
            before,
            started,
            stats,
        })
    }

    /// Waits for the next batch, or the end of the epoch; `None` after `patience`. With order any,
    /// the batch before counts as used from now on.
    ///
    /// # Errors
    ///
    /// The first error in the order of samples, or what is wrong with the service.
    pub fn next_within(&mut self, patience: Duration) -> Result<Option<Next>> {
        let next = match self.making {
            Making::Exact(_) => self.next_exact(patience)?,
            Making::Any(..) => self.next_any(patience)?,
        };
        match &next {
            Some(Next::Batch(batch)) => {
                self.stats.batches += 1;
                self.stats.samples += batch.rows as u64;
                self.stats.bytes_delivered += batch.bytes() as u64;
            }
            Some(Next::EpochEnd(_)) => self.stats.epochs += 1,
            _ => {}
        }
        Ok(next)
    }

    fn next_exact(&mut self, patience: Duration) -> Result<Option<Next>> {
        let mut until = None;
        loop {
            let Making::Exact(assembly) = &mut self.making else {
                return Err(Error::Internal("windows are dealt".into()));
            };
            if let Some(next) = assembly.next()? {
                return Ok(Some(next));
            }
            let Some(wanted) = assembly.wants() else {
                return Err(Error::Internal("nothing is wanted and nothing comes".into()));
            };
            // Who asks for more than an epoch has begins the next.
            let most = || match assembly.steps_left() {
                Steps::Exactly(steps) => steps,
                Steps::Between(..) => 1,
                Steps::Endless => u64::MAX,
            };
            let most = if self.here.is_empty() { most() } else { 0 };
            let live = match &self.live {
                Some(live) => live,
                None => {
                    let begin = self.begin_at(&wanted)?;
                    let live = self.connect(begin)?;
                    self.live.insert(live)
                }
            };
            if self.here.is_empty() {
                let (now, until) = (Instant::now(), &mut until);
                let left = until.get_or_insert(now + patience).saturating_duration_since(now);
                if !live.some_within(left, most, &mut self.here)? {
                    return Ok(None);
                }
            }
            if let Some(fetched) = self.here.pop_front() {
                self.take(fetched, &wanted)?;
            }
        }
    }

    /// Gives what was fetched to whoever puts it together.
    fn take(&mut self, fetched: Fetched, wanted: &Wanted) -> Result<()> {
        let Making::Exact(assembly) = &mut self.making else { return Ok(()) };
        let sorted = self.pipeline.bucket.is_some();
        let Wanted { start, step, from } = wanted;
        let fetched = match fetched {
            Fetched::Step(fetched) => fetched,
            Fetched::EndOfEpoch(epoch) if sorted && epoch.0 == start.epoch => {
                return assembly.end();
            }
            Fetched::EndOfEpoch(_) => return Ok(()),
        };
        // Steps of padding alone are made here.
        if fetched.epoch.0 < start.epoch {
            return Ok(());
        }
        let own = fetched.window.0 / self.options.world;
        let number = match sorted {
            true => (own, fetched.offset.0),
            false => (own * self.windows.steps + fetched.offset.0, 0),
        };
        let here = (fetched.epoch.0, number);
        if here == (start.epoch, (*step, *from)) {
            return assembly.give(fetched.rows);
        }
        // How many batches a stretch gives is known when something else comes.
        if sorted && (fetched.epoch.0, own) > (start.epoch, *step) && fetched.offset.0 == 0 {
            self.here.push_front(Fetched::Step(fetched));
            return assembly.end();
        }
        Err(Error::Internal(format!(
            "step {number:?} of epoch {} came instead of step {:?} of epoch {}",
            fetched.epoch,
            (step, from),
            start.epoch
        )))
    }

    fn next_any(&mut self, patience: Duration) -> Result<Option<Next>> {
        let until = Instant::now() + patience;
        loop {
            if self.live.is_none() {
                let begin = self.begin.take().unwrap_or(Begin::Fresh);
                self.live = Some(self.connect(begin)?);
            }
            let (Some(live), Making::Any(loose, _)) = (&self.live, &mut self.making) else {
                return Err(Error::Internal("nothing is dealt".into()));
            };
            let left = until.saturating_duration_since(Instant::now());
            match live.next_within(left)? {
                None => return Ok(None),
                Some(Fetched::EndOfEpoch(epoch)) => return Ok(Some(Next::EpochEnd(epoch.0))),
                Some(Fetched::Step(step)) => {
                    if let Some(batch) = loose.give(step.epoch.0, step.rows)? {
                        return Ok(Some(Next::Batch(batch)));
                    }
                }
            }
        }
    }

    /// How a client begins at one of its own steps.
    fn begin_at(&self, wanted: &Wanted) -> Result<Begin> {
        let Wanted { start, step, from } = wanted;
        let steps = self.windows.steps;
        let windows = windows_of_ranks(&self.pipeline, start, steps, &self.options);
        let start = Start { epoch: Epoch(start.epoch), position: text_of(start)?, windows };
        let (own, offset) = match self.pipeline.bucket.is_some() {
            true => (*step, *from),
            false => (step / steps, step % steps),
        };
        Ok(Begin::At { start, own, offset: Offset(offset) })
    }

    fn connect(&self, begin: Begin) -> Result<Live> {
        let Self { job, options, .. } = self;
        let small = |number: u64| {
            u32::try_from(number)
                .map_err(|_| Error::pipeline(format!("{number} ranks are too many")))
        };
        let mut nonce = [0; 8];
        rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| Error::unavailable("a random number", error.into()))?;
        let streams = match &self.making {
            Making::Any(_, cutting) => cutting.streams,
            Making::Exact(_) => None,
        };
        // Whoever joins the job has to mean the same by it.
        let and = streams.map_or(String::new(), |streams| format!(", {streams}"));
        let and = if job.relaxed { format!("{and}, relaxed") } else { and };
        let description = Description {
            dataset: format!("{}:seed {}{and}", self.dataset, options.seed.0),
            visitation: job.visitation,
            order: job.order,
            windows: self.windows,
        };
        let (name, nonce) = (JobName(job.name.clone()), Nonce(u64::from_le_bytes(nonce)));
        let consumer = ConsumerIndex(small(options.rank)?);
        let config = Config {
            patience: job.patience.as_millis() as u64,
            rounds: options.rounds,
            counted: self.pipeline.bucket.is_none(),
            streams: streams.map_or(1, |streams| streams.count),
            ..Config::new(name, description, small(options.world)?, consumer, nonce)
        };
        let settings = Settings {
            dataset: self.dataset.clone(),
            seed: options.seed.0,
            streams,
            with_index: options.with_index,
            sorted: self.pipeline.bucket.is_some(),
            rounds: options.rounds,
            relaxed: job.relaxed,
            memory: job.memory,
            stream: job.stream.clone(),
            finish: self.finish.clone(),
        };
        Live::start(Arc::clone(&self.control), settings, config, begin)
    }

    /// Where the run stands after what it has delivered, as JSON.
    ///
    /// # Errors
    ///
    /// If the dispatcher has not dealt anything yet.
    pub fn state(&self) -> Result<String> {
        let Options { seed, rank, world, .. } = &self.options;
        let assembly = match &self.making {
            Making::Exact(assembly) => assembly,
            Making::Any(_, cutting) => {
                let checkpoint = self.live.as_ref().and_then(Live::checkpoint);
                return match (checkpoint, &self.before) {
                    (Some(checkpoint), _) => {
                        let cut = (self.windows, cutting);
                        Ok(Dealt::new(&self.pipeline, *seed, cut, checkpoint).to_json())
                    }
                    (None, Some(before)) => Ok(before.clone()),
                    (None, None) => Err(Error::State(
                        "nothing was delivered yet, so there is nothing to save".into(),
                    )),
                };
            }
        };
        Ok(State::new(&self.pipeline, assembly.position(), *seed, *rank, *world).to_json())
    }

    /// Where the run stands, if that is a matter of arithmetic.
    #[must_use]
    pub fn position(&self) -> Option<Position> {
        match &self.making {
            Making::Exact(assembly) => Some(assembly.position()),
            Making::Any(..) => None,
        }
    }

    /// The run's options.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// What was done so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let totals = self.live.as_ref().map(Live::totals).unwrap_or_default();
        let Totals { waited, buffered, workers, failures, .. } = totals;
        let seconds = self.started.elapsed().as_secs_f64();
        let waited_seconds = waited.as_secs_f64();
        let skipped = match &self.making {
            Making::Any(loose, _) => loose.left_out(),
            Making::Exact(assembly) => assembly.position().skipped,
        };
        Stats {
            skipped,
            seconds,
            waited_seconds,
            waited_share: if seconds > 0.0 { waited_seconds / seconds } else { 0.0 },
            ready: buffered,
            workers,
            failures,
            ..self.stats.clone()
        }
    }
}

/// What workers are told of a pipeline.
pub(crate) fn dataset_of(pipeline: &Pipeline, blobs: &Blobs) -> Dataset {
    let plan = pipeline.plan.to_json();
    // Of what was given, what the plan names.
    let mut hashes: Vec<String> =
        blobs.keys().filter(|name| plan.contains(name.as_str())).cloned().collect();
    hashes.sort_unstable();
    Dataset { plan, manifest: pipeline.source.manifest(), blobs: hashes }
}

/// Takes the steps after the cut.
fn finisher(
    pipeline: &Arc<Pipeline>,
    cut: &Cut,
    first: &Pipeline,
    options: &Options,
    pool: &Pool,
) -> Finisher {
    let (seed, with_index) = (options.seed, options.with_index);
    let finish = Finish::new(Arc::clone(pipeline), cut, first, seed, with_index, pool.clone());
    Finisher(Arc::new(move |ask, step, rows| {
        let start = match ask.start.as_str() {
            "" => Position::epoch(ask.epoch),
            text => serde_json::from_str(text)
                .map_err(|error| Error::Internal(format!("a start that is none: {error}")))?,
        };
        finish.rows(&start, step * ask.world + ask.rank, rows)
    }))
}

fn check(pipeline: &Pipeline, job: &Job, options: &Options) -> Result<()> {
    if job.name.is_empty() || job.name.len() > 256 {
        return Err(Error::pipeline("job: give it a name of at most 256 letters"));
    }
    if options.delivery != Delivery::Exact || options.record.is_some() {
        return Err(Error::pipeline(
            "on a service batches come in order \"exact\" or \"any\"; \"ready\", record and replay are \
             for local runs",
        ));
    }
    if job.order == Order::Exact && job.visitation != Visitation::ExactlyOnce {
        return Err(Error::pipeline(
            "with order \"exact\" every sample is seen exactly once; other visitations go with order \
             \"any\"",
        ));
    }
    if job.relaxed && (job.order == Order::Exact || job.local_from.is_some()) {
        return Err(Error::pipeline(
            "visitation \"relaxed\" goes with order \"any\" and without local_from",
        ));
    }
    let streams = job.streams.is_some();
    if streams && (job.order, job.visitation) != (Order::Any, Visitation::ExactlyOnce) {
        return Err(Error::pipeline("several streams go with order \"any\""));
    }
    if streams && job.local_from.is_some() {
        return Err(Error::pipeline("several streams go without local_from"));
    }
    if pipeline.bucket.is_some() {
        let wrong = match (job.order, &pipeline.policy, &job.local_from) {
            (Order::Any, _, _) => "with order \"exact\" on a service",
            (_, Policy::Skip { .. }, _) => "without on_error(\"skip\") on a service",
            (_, _, Some(_)) => "without local_from on a service",
            _ => "",
        };
        if !wrong.is_empty() {
            return Err(Error::pipeline(format!("bucket goes {wrong}")));
        }
    }
    if job.memory == 0 {
        return Err(Error::pipeline("memory=0; give at least one byte"));
    }
    Ok(())
}

/// What an epoch of the job consists of: as many streams as its state has, as were asked for, or as
/// there are workers.
fn streams(
    job: &Job,
    state: Option<&str>,
    workers: u64,
    consumers: u64,
) -> Result<Option<Streams>> {
    let asked = job.streams.map(|Streams { by, count }| {
        let count = if count == 0 { workers.max(1) } else { count };
        Streams { by, count }
    });
    let saved = match state {
        Some(text) if is_dealt(text) || is_parted(text) => streams_of(text)?,
        _ if consumers > 1 && job.streams.is_some_and(|streams| streams.count == 0) => {
            return Err(Error::pipeline(
                "streams: say how many; consumers that begin one after the other may find different \
                 numbers of workers",
            ));
        }
        _ => return Ok(asked),
    };
    let fits = match (job.streams, saved) {
        (Some(asked), Some(saved)) => {
            asked.by == saved.by && [0, saved.count].contains(&asked.count)
        }
        (asked, saved) => asked.is_none() && saved.is_none(),
    };
    if fits {
        return Ok(saved);
    }
    let of = |streams: Option<Streams>| match streams {
        None => "the data once".to_owned(),
        Some(streams) => streams.to_string(),
    };
    Err(Error::State(format!("it is of {}, and this job is of {}", of(saved), of(asked))))
}

/// How a client begins to whom windows are dealt.
fn dealing(
    pipeline: &Pipeline,
    cutting: &Cutting,
    state: Option<&str>,
    epoch: u64,
    options: &Options,
) -> Result<Begin> {
    let restore = |starts: &[Position], hash: &str| {
        let start = cutting.start(starts)?;
        let hash = blake3::hash(hash.as_bytes()).to_hex().as_str()[..32].to_owned();
        Ok(Begin::Restore { start, hash })
    };
    match state {
        // Who begins anew begins anew for all: the others join, or learn that they have to.
        None => restore(&cutting.whole(epoch), &format!("epoch {epoch}")),
        Some(text) if is_parted(text) => {
            let parted = Parted::from_json(text)?;
            parted.state.position_for(pipeline, options.seed, 0, 1)?;
            restore(&parted.left, text)
        }
        Some(text) if is_dealt(text) => {
            let dealt = Dealt::from_json(text)?;
            dealt.state.position_for(pipeline, options.seed, 0, 1)?;
            let cursor = &dealt.checkpoint.cursor;
            let (saved, here) = (
                (u64::from(cursor.consumer.0), u64::from(cursor.consumers)),
                (options.rank, options.world),
            );
            if saved != here {
                return Err(Error::State(format!(
                    "it was saved by consumer {} of {}, and this is consumer {} of {}: merge the \
                     states of all consumers first (merge_states)",
                    saved.0, saved.1, here.0, here.1
                )));
            }
            Ok(Begin::Resume(dealt.checkpoint))
        }
        Some(text) => {
            let position = State::from_json(text)?.position_for(pipeline, options.seed, 0, 1)?;
            match cutting.streams {
                None => restore(&[position], text),
                Some(_) if position == Position::epoch(position.epoch) => {
                    restore(&cutting.whole(position.epoch), text)
                }
                Some(streams) => Err(Error::State(format!(
                    "it stands within an epoch of the data once, and this job is of {streams}"
                ))),
            }
        }
    }
}

pub(crate) fn unanswered(failure: Failure) -> Error {
    match failure {
        Failure::Unavailable(reason) => Error::unavailable(
            "the dispatcher",
            io::Error::new(io::ErrorKind::NotConnected, reason),
        ),
        other => Error::Service(other.to_string()),
    }
}
