//! One sample on its way through the steps. It can be left where bytes have to be waited for, and
//! taken up there again, by any thread.

use crate::Pipeline;
use feedline_core::{
    Address, Buffer, Context, Cut, Error, Extent, Name, Needs, Pool, Result, Sample, SampleSeed,
    Store, Tensor, Workspace,
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
}

/// How far a task has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Through all steps; values may still be deferred.
    Finished,
    /// To a step that needs field so and so, which has to be read first.
    Reads(usize),
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
        Ok(Self { address, seed, sample, next: 0 })
    }

    /// A sample that was taken through the first `steps` steps elsewhere.
    #[must_use]
    pub fn resume(address: Address, seed: SampleSeed, sample: Sample, steps: usize) -> Self {
        Self { address, seed, sample, next: steps }
    }

    /// Goes on until all steps are done or something has to be read.
    ///
    /// # Errors
    ///
    /// If the sample is bad; the error says where and at which step.
    pub fn advance(&mut self, pipeline: &Pipeline, workspace: &mut Workspace) -> Result<Progress> {
        let mut last = workspace.timing.then(Instant::now);
        let mut wants = self.sample.wanting(Needs::Everything).is_some();
        while let Some(step) = pipeline.maps.get(self.next) {
            let slot = self.next;
            let mut context = Context { workspace, seed: self.seed, step: step.id, slot };
            if wants {
                let needs = step.map.needs(&self.sample, &context);
                if let Some(field) = self.sample.wanting(needs) {
                    return Ok(Progress::Reads(field));
                }
            }
            let sample = std::mem::take(&mut self.sample);
            let mapped = step.map.map(sample, &mut context);
            self.sample =
                mapped.map_err(|error| pipeline.at(error, self.address.index, step.name))?;
            wants = wants && self.sample.wanting(Needs::Everything).is_some();
            self.next += 1;
            if let Some(before) = last {
                let now = Instant::now();
                let time = &mut workspace.times[slot];
                time.nanos = time.nanos.wrapping_add((now - before).as_nanos() as u64);
                time.samples += 1;
                last = Some(now);
            }
        }
        Ok(Progress::Finished)
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
        let bytes = match self.source.locate(index) {
            None => None,
            Some(extent) => Some(read_record(extent, store, &pool).map_err(read)?),
        };
        let mut task = Task::new(self, address, bytes, seed)?;
        while let Progress::Reads(field) = task.advance(self, workspace)? {
            let bytes = task.wants(field).map(|cut| read_cut(&cut, store, &pool));
            task.supply(field, bytes.transpose().map_err(read)?.unwrap_or(Buffer::from(&[][..])));
        }
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
