//! One sample on its way through the steps. It can be left where bytes have to be waited for, and
//! taken up there again, by any thread.

use crate::Pipeline;
use feedline_core::{
    Address, Buffer, Context, Cut, EpochSeed, Error, Extent, Name, Needs, Pool, Result, Sample,
    SampleSeed, Seed, StepId, Store, Tensor, Workspace,
};
use std::time::Instant;

/// A sample between two steps.
#[derive(Debug)]
pub struct Task {
    /// Which sample it is.
    pub address: Address,
    /// The key of its draws.
    pub seed: SampleSeed,
    sample: Sample,
    /// The step that comes next.
    next: usize,
    /// Whether it is to be shown where samples are kept.
    shown: bool,
}

/// How far a task has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Through all steps; values may still be deferred.
    Finished,
    /// To a step that needs field so and so, which has to be read first.
    Reads(usize),
    /// To where samples are kept, with all that it takes to make its values: [`Task::settle`] makes them.
    Keeps,
    /// To a step that takes several samples at once, where [`Workspace::gathers`] says to wait.
    Gathers,
}

impl Task {
    /// A sample at its start, made out of its bytes if it has a record.
    ///
    /// # Errors
    ///
    /// If the record is bad.
    pub fn new(
        pipeline: &Pipeline,
        address: Address,
        bytes: Option<Buffer>,
        seed: SampleSeed,
    ) -> Result<Self> {
        let sample = pipeline
            .source
            .parse(address.index, bytes)
            .map_err(|error| pipeline.at(error, address.index, "read"))?;
        Ok(Self { address, seed, sample, next: 0, shown: false })
    }

    /// A sample that was taken through the first `steps` steps elsewhere.
    #[must_use]
    pub fn resume(address: Address, seed: SampleSeed, sample: Sample, steps: usize) -> Self {
        Self { address, seed, sample, next: steps, shown: false }
    }

    /// Stops where samples are kept, once.
    pub fn show(&mut self) {
        self.shown = true;
    }

    /// Whether it is still to come to where samples are kept.
    #[must_use]
    pub fn is_shown(&self) -> bool {
        self.shown
    }

    /// Makes all values of the sample, which must want nothing, and gives them; then it may go on.
    ///
    /// # Errors
    ///
    /// If the sample is bad.
    pub fn settle(
        &mut self,
        pipeline: &Pipeline,
        workspace: &mut Workspace,
    ) -> Result<Vec<(Name, Tensor)>> {
        self.shown = false;
        let step = self.next.checked_sub(1).and_then(|last| pipeline.maps.get(last));
        let (name, step, slot) = match step {
            Some(step) => (step.name, step.id, self.next - 1),
            None => ("read", StepId::new("finish", 0), pipeline.maps.len()),
        };
        let start = workspace.timing.then(Instant::now);
        let mut context = Context { workspace, seed: self.seed, step, slot };
        let mut made = Vec::new();
        for (field, value) in std::mem::take(&mut self.sample).into_fields() {
            let tensor = value.into_tensor(&mut context);
            let tensor = tensor.map_err(|error| pipeline.at(error, self.address.index, name))?;
            made.push((field, tensor));
        }
        if let Some(start) = start {
            // What deferred values took was charged to their own steps and taken off this one.
            let time = &mut workspace.times[slot];
            time.nanos = time.nanos.wrapping_add(start.elapsed().as_nanos() as u64);
        }
        self.sample = Sample::of(made.iter().cloned());
        Ok(made)
    }

    /// Goes on until all steps are done or something has to be read.
    ///
    /// # Errors
    ///
    /// If the sample is bad; the error says where and at which step.
    pub fn advance(&mut self, pipeline: &Pipeline, workspace: &mut Workspace) -> Result<Progress> {
        let mut last = workspace.timing.then(Instant::now);
        let mut wants = self.sample.wanting(Needs::Everything).is_some();
        let kept_after = pipeline.cache.as_ref().map(|point| point.after);
        loop {
            if self.shown && kept_after == Some(self.next) {
                let field = self.sample.wanting(Needs::Everything);
                return Ok(field.map_or(Progress::Keeps, Progress::Reads));
            }
            let Some(step) = pipeline.maps.get(self.next) else { return Ok(Progress::Finished) };
            let slot = self.next;
            let mut context = Context { workspace, seed: self.seed, step: step.id, slot };
            if wants {
                let needs = step.map.needs(&self.sample, &context);
                if let Some(field) = self.sample.wanting(needs) {
                    return Ok(Progress::Reads(field));
                }
            }
            if context.workspace.gathers && step.map.gathers() {
                return Ok(Progress::Gathers);
            }
            let once = context.workspace.once_nanos;
            let sample = std::mem::take(&mut self.sample);
            let mapped = step.map.map(sample, &mut context);
            self.sample =
                mapped.map_err(|error| pipeline.at(error, self.address.index, step.name))?;
            wants = wants && self.sample.wanting(Needs::Everything).is_some();
            self.next += 1;
            if let Some(before) = last {
                let now = Instant::now();
                let once = workspace.once_nanos - once;
                let nanos = ((now - before).as_nanos() as u64).saturating_sub(once);
                let time = &mut workspace.times[slot];
                time.nanos = time.nanos.wrapping_add(nanos);
                time.samples += 1;
                last = Some(now);
            }
        }
    }

    /// The number of the step that comes next.
    #[must_use]
    pub fn step(&self) -> usize {
        self.next
    }

    /// Takes samples that have all come to the same step through it, at once: each, or why it is bad.
    ///
    /// # Panics
    ///
    /// If there is no such step.
    pub fn map_many(
        pipeline: &Pipeline,
        mut tasks: Vec<Self>,
        workspace: &mut Workspace,
    ) -> Vec<Result<Self>> {
        let Some((slot, seed)) = tasks.first().map(|task| (task.next, task.seed)) else {
            return Vec::new();
        };
        let step = &pipeline.maps[slot];
        let (start, once) = (Instant::now(), workspace.once_nanos);
        let samples = tasks.iter_mut().map(|task| (task.seed, std::mem::take(&mut task.sample)));
        let samples: Vec<_> = samples.collect();
        let mut context = Context { workspace, seed, step: step.id, slot };
        let mapped = step.map.map_many(samples, &mut context);
        let once = workspace.once_nanos - once;
        let nanos = (start.elapsed().as_nanos() as u64).saturating_sub(once);
        let time = &mut workspace.times[slot];
        time.nanos = time.nanos.wrapping_add(nanos);
        time.samples += tasks.len() as u64;
        let finish = |(mut task, mapped): (Self, Result<Sample>)| match mapped {
            Ok(sample) => {
                task.sample = sample;
                task.next += 1;
                Ok(task)
            }
            Err(error) => Err(pipeline.at(error, task.address.index, step.name)),
        };
        tasks.into_iter().zip(mapped).map(finish).collect()
    }

    /// What field `number` has to be given.
    #[must_use]
    pub fn wants(&self, number: usize) -> Option<Cut<'_>> {
        self.sample.fields().nth(number).and_then(|(_, value)| value.wants())
    }

    /// Gives field `number` what it wanted.
    pub fn supply(&mut self, number: usize, bytes: Buffer) {
        self.sample.field_mut(number).supply(bytes);
    }

    /// The finished sample.
    #[must_use]
    pub fn into_sample(self) -> Sample {
        self.sample
    }
}

/// A finished sample: its fields by name.
pub type Row = Vec<(Name, Tensor)>;

impl Pipeline {
    /// Completes an error with where it happened.
    #[must_use]
    pub fn at(&self, error: Error, index: u64, step: &str) -> Error {
        error.at(|| self.source.origin(index), index, step)
    }

    /// Takes one sample through all steps on this thread, waiting for whatever has to be read.
    ///
    /// # Errors
    ///
    /// If the sample is bad or its bytes are not to be had.
    pub fn sample(
        &self,
        address: Address,
        seed: SampleSeed,
        store: &dyn Store,
        workspace: &mut Workspace,
    ) -> Result<Row> {
        let index = address.index;
        let pool = workspace.pool.clone();
        let read = |error: Error| self.at(error, index, "read");
        let mut task = self.begin(address, seed, store, &pool)?;
        self.take_on(&mut task, store, workspace)?;
        let mut context = self.finish(seed, workspace);
        let mut row = Vec::new();
        for (name, mut value) in task.into_sample().into_fields() {
            let bytes = value.wants().map(|cut| read_cut(&cut, store, &pool));
            if let Some(bytes) = bytes.transpose().map_err(read)? {
                value.supply(bytes);
            }
            let tensor = value.into_tensor(&mut context);
            row.push((name, tensor.map_err(|error| self.at(error, index, "batch"))?));
        }
        Ok(row)
    }

    /// Takes one sample to where samples are kept, on this thread, waiting for whatever has to be read.
    ///
    /// # Errors
    ///
    /// If the sample is bad or its bytes are not to be had.
    pub fn kept_sample(
        &self,
        index: u64,
        store: &dyn Store,
        workspace: &mut Workspace,
    ) -> Result<Row> {
        let address = Address { index, visit: 0 };
        // No step before the cache makes random choices.
        let epoch = EpochSeed { seed: Seed(0), epoch: 0 };
        let seed = SampleSeed { epoch, source: 0, index, visit: 0, output: 0 };
        let mut task = self.begin(address, seed, store, &workspace.pool.clone())?;
        task.show();
        match self.take_on(&mut task, store, workspace)? {
            Progress::Keeps => task.settle(self, workspace),
            _ => Err(Error::Internal("this pipeline keeps no samples".into())),
        }
    }

    fn begin(
        &self,
        address: Address,
        seed: SampleSeed,
        store: &dyn Store,
        pool: &Pool,
    ) -> Result<Task> {
        let bytes =
            self.source.locate(address.index).map(|extent| read_record(extent, store, pool));
        let bytes = bytes.transpose().map_err(|error| self.at(error, address.index, "read"))?;
        Task::new(self, address, bytes, seed)
    }

    /// Goes on with a task as far as it goes, reading what it needs.
    fn take_on(
        &self,
        task: &mut Task,
        store: &dyn Store,
        workspace: &mut Workspace,
    ) -> Result<Progress> {
        let pool = workspace.pool.clone();
        loop {
            let field = match task.advance(self, workspace)? {
                Progress::Reads(field) => field,
                progress => return Ok(progress),
            };
            let bytes = task.wants(field).map(|cut| read_cut(&cut, store, &pool)).transpose();
            let bytes = bytes.map_err(|error| self.at(error, task.address.index, "read"))?;
            task.supply(field, bytes.unwrap_or(Buffer::from(&[][..])));
        }
    }
}

fn read_record(extent: Extent<'_>, store: &dyn Store, pool: &Pool) -> Result<Buffer> {
    let mut buffer = pool.take(extent.length as usize)?;
    store.read(extent, &mut buffer)?;
    Ok(buffer.freeze())
}

fn read_cut(cut: &Cut<'_>, store: &dyn Store, pool: &Pool) -> Result<Buffer> {
    let mut buffer = pool.take(cut.length())?;
    store.read_cut(cut, &mut 0, &mut buffer)?;
    Ok(buffer.freeze())
}
