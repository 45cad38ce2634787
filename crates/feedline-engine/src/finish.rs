//! A pipeline cut in two: its first steps are taken elsewhere, the rest here.
//!
//! ```text
//!  elsewhere: source ─► order ─► step ─► step │ cut │ here: step ─► step ─► batch
//! ```
//!
//! Random choices are keyed by sample and step, so where a step runs changes nothing.

use crate::arrange::whole_batch;
use crate::group::{Done, Group};
use feedline_core::{
    Address, Cursor, EpochSeed, Error, Name, Pool, Position, Result, Rows, Sample, SampleSeed,
    Seed, Tensor, Workspace,
};
use feedline_ops::{Pipeline, Progress, Task};
use feedline_plan::Plan;
use std::sync::{Arc, Mutex, PoisonError};

/// Where a pipeline is cut.
#[derive(Debug)]
pub struct Cut {
    /// What is done elsewhere: the plan up to the cut, in stretches of the same size.
    pub first: Plan,
    /// How many per-sample steps that is.
    steps: usize,
}

impl Cut {
    /// Cuts a pipeline before the step of this name.
    ///
    /// # Errors
    ///
    /// If there is no such step, or it is not one that can be taken by itself.
    pub fn before(pipeline: &Pipeline, step: &str) -> Result<Self> {
        let calls = pipeline.plan.calls();
        let maps: Vec<&str> = pipeline.maps.iter().map(|map| map.name).collect();
        let wrong = |what: &str| {
            Err(Error::pipeline(format!(
                "local_from={step:?}: {what}; the steps of this pipeline that can be taken here are {}",
                maps.join(", ")
            )))
        };
        let mut found = calls.iter().enumerate().filter(|(_, call)| call.step == step);
        let Some((at, _)) = found.next() else {
            return wrong("there is no such step");
        };
        if found.next().is_some() {
            return wrong("it occurs more than once");
        }
        if !maps.contains(&step) {
            return wrong("it does not work on one sample at a time");
        }
        let is_map = |name: &str| maps.contains(&name);
        if let Some(later) = calls[at..].iter().find(|call| {
            !is_map(&call.step) && !["batch", "on_error"].contains(&call.step.as_str())
        }) {
            return wrong(&format!("{} comes after it, and is done by workers", later.step));
        }
        let steps = calls[..at].iter().filter(|call| is_map(&call.step)).count();
        let later = calls[at..].iter().filter(|call| !is_map(&call.step));
        Ok(Self { first: Plan::new(calls[..at].iter().chain(later).cloned().collect()), steps })
    }
}

/// Takes the rest of the steps.
pub struct Finish {
    pipeline: Arc<Pipeline>,
    /// The steps before were taken elsewhere.
    steps: usize,
    /// What the fields are called at the cut.
    names: Vec<Name>,
    seed: Seed,
    with_index: bool,
    pool: Pool,
    workspaces: Mutex<Vec<Workspace>>,
}

impl Finish {
    /// Goes on where `first`, the opened first part, ends.
    #[must_use]
    pub fn new(
        pipeline: Arc<Pipeline>,
        cut: &Cut,
        first: &Pipeline,
        seed: Seed,
        with_index: bool,
        pool: Pool,
    ) -> Self {
        let names = first.sample.fields.iter().map(|field| field.name).collect();
        let workspaces = Mutex::default();
        Self { pipeline, steps: cut.steps, names, seed, with_index, pool, workspaces }
    }

    /// Takes the rows of a stretch through the rest of the steps, on this thread.
    ///
    /// # Errors
    ///
    /// If a sample is bad and the plan does not leave it out, or rows are missing.
    pub fn rows(&self, start: &Position, stretch: u64, rows: Rows) -> Result<Rows> {
        let Rows::Some { good, bad } = rows else {
            return Err(Error::Internal("a batch where samples were to come".into()));
        };
        let (size, length) = (self.pipeline.stretch() as u64, self.pipeline.length().places());
        let places = start.places(stretch, size, length);
        let epoch = EpochSeed { seed: self.seed, epoch: start.epoch };
        let mut cursor = Cursor::new(epoch);
        let mut group = Group::new(start.epoch, places.clone(), Vec::new(), false, 0);
        group.allocate(&self.pipeline, &self.pool, false)?;
        let mut workspace = self.workspace();
        let (mut good, mut bad) = (good.into_iter().peekable(), bad.into_iter().peekable());
        for (row, place) in places.into_iter().enumerate() {
            let mut chunk = group.deal(0, 1);
            let address = self.pipeline.address(place, &mut cursor);
            let seed = SampleSeed {
                epoch,
                source: 0,
                index: address.index,
                visit: address.visit,
                output: 0,
            };
            let result = match (good.next_if(|one| one.0 == row), bad.next_if(|one| one.0 == row)) {
                (Some((_, _, fields)), None) => {
                    self.row(address, seed, fields, &mut chunk.columns, &mut workspace)
                }
                (None, Some((_, error))) => Err(error),
                _ => {
                    return Err(Error::Internal("a stretch with other rows than asked for".into()));
                }
            };
            drop(chunk);
            group.finish_row(Done { row, index: address.index, result });
        }
        self.workspaces.lock().unwrap_or_else(PoisonError::into_inner).push(workspace);
        if !self.pipeline.leaves_out() {
            return match group.first_bad() {
                Some((_, error)) => Err(error),
                None => {
                    whole_batch(group, &self.pipeline, &self.pool, self.with_index).map(Rows::Batch)
                }
            };
        }
        let (good, bad) = group.into_good_rows(&self.pipeline)?;
        match bad.iter().find(|(_, error)| !error.is_of_one_sample()) {
            Some((_, error)) => Err(error.clone()),
            None => Ok(Rows::Some { good, bad }),
        }
    }

    fn workspace(&self) -> Workspace {
        let kept = self.workspaces.lock().unwrap_or_else(PoisonError::into_inner).pop();
        kept.unwrap_or_else(|| self.pipeline.workspace(self.pool.clone(), false))
    }

    fn row(
        &self,
        address: Address,
        seed: SampleSeed,
        fields: Vec<Tensor>,
        columns: &mut [Option<feedline_core::RowsMut>],
        workspace: &mut Workspace,
    ) -> Result<Vec<(usize, Tensor)>> {
        let pipeline = &*self.pipeline;
        if fields.len() != self.names.len() {
            return Err(Error::Internal("a sample with other fields than asked for".into()));
        }
        let sample = Sample::of(self.names.iter().copied().zip(fields));
        let mut task = Task::resume(address, seed, sample, self.steps);
        if task.advance(pipeline, workspace)? != Progress::Finished {
            return Err(Error::pipeline(
                "local_from: a step after the cut reads files; cut after it",
            ));
        }
        let mut context = pipeline.finish(seed, workspace);
        let mut loose = Vec::new();
        for (number, (_, value)) in task.into_sample().into_fields().enumerate() {
            let slot = columns.get_mut(number).and_then(Option::as_mut);
            let written = match slot {
                Some(rows) => value.write(rows.row(0), &mut context),
                None => value.into_tensor(&mut context).map(|tensor| loose.push((number, tensor))),
            };
            written.map_err(|error| pipeline.at(error, address.index, "batch"))?;
        }
        Ok(loose)
    }
}
