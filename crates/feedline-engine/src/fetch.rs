//! Reading what a sample needs, on a thread that may wait for storage.

use crate::group::Chunk;
use crate::lane::Lane;
use feedline_core::{
    Address, Attempt, Buffer, BufferMut, Cost, Cut, Error, Fetch, Result, Sample, StepTime, Stored,
    Value,
};
use feedline_ops::Task;
use std::time::Instant;

/// Records beyond this are refused before memory is asked for.
const LARGEST_RECORD: u64 = 4 << 30;

/// A sample that was left where bytes have to be waited for. Nothing it has done is done again.
pub(crate) struct Parked {
    /// Its one row.
    pub chunk: Chunk,
    pub address: Address,
    pub stage: Stage,
    /// What came of the reading, once it was done.
    pub result: Result<()>,
    /// Nanoseconds of work so far, by step and in all, and the most bytes held.
    pub times: Vec<StepTime>,
    pub nanos: u64,
    pub held: usize,
    /// What it took so far, where samples are kept.
    pub cost: Cost,
}

/// Where a sample was left.
pub(crate) enum Stage {
    /// It was kept, and has to be waited for.
    Stored { stored: Box<dyn Stored>, found: Option<Box<Sample>> },
    /// Its record has to be read; then it may be shown to be kept.
    Record { buffer: BufferMut, show: bool },
    /// A step needs a field.
    Field { task: Box<Task>, field: usize, reading: Reading },
    /// Nothing has to be read: it waits for others, with which a step takes it at once.
    Gathered(Box<Task>),
    /// It is through all steps, and a field has to be read to be written.
    Value { sample: Box<Half>, reading: Reading },
}

impl Stage {
    /// Whether what is read is all of a sample, to be kept, and perhaps more than its steps need.
    pub(crate) fn is_shown(&self) -> bool {
        matches!(self, Self::Field { task, .. } if task.is_shown())
    }
}

/// Bytes on their way into a buffer, or straight into the row if there is none.
pub(crate) struct Reading {
    pub buffer: Option<BufferMut>,
    /// Planes that are read.
    pub done: usize,
}

/// A finished sample whose values are being written to its row.
pub(crate) struct Half {
    pub seed: feedline_core::SampleSeed,
    pub values: feedline_core::Fields,
    /// The field that comes next, and its value if it was taken out to be read.
    pub number: usize,
    pub current: Option<Value>,
    /// What the current value wanted, if it is read in place and has no row.
    pub filled: Option<BufferMut>,
    /// Whether the current value has been given what it wanted.
    pub read: bool,
    /// Fields that have no slot.
    pub loose: Vec<(usize, feedline_core::Tensor)>,
}

impl Half {
    pub(crate) fn new(seed: feedline_core::SampleSeed, sample: Sample) -> Self {
        Self {
            seed,
            values: sample.into_fields(),
            number: 0,
            current: None,
            filled: None,
            read: false,
            loose: Vec::new(),
        }
    }
}

impl Parked {
    /// Reads what it waits for.
    pub(crate) fn read(&mut self, lane: &Lane) {
        let start = Instant::now();
        self.result = self.try_to_read(lane);
        self.cost.wait += start.elapsed().as_nanos() as u64;
    }

    fn try_to_read(&mut self, lane: &Lane) -> Result<()> {
        let store = &*lane.store;
        match &mut self.stage {
            Stage::Stored { stored, found } => {
                if let Fetch::Sample(sample) = stored.fetch(&lane.pool, true) {
                    *found = Some(Box::new(sample));
                }
                Ok(())
            }
            Stage::Record { buffer, .. } => match lane.pipeline.source.locate(self.address.index) {
                Some(extent) => store.read(extent, buffer),
                None => Err(Error::Internal("nothing to read was left to a reader".into())),
            },
            Stage::Field { task, field, reading } => {
                match (task.wants(*field), &mut reading.buffer) {
                    (Some(cut), Some(buffer)) => store.read_cut(&cut, &mut reading.done, buffer),
                    _ => Err(Error::Internal("nothing to read was left to a reader".into())),
                }
            }
            Stage::Gathered(_) => {
                Err(Error::Internal("nothing to read was left to a reader".into()))
            }
            Stage::Value { sample, reading } => {
                let wants = sample.current.as_ref().and_then(Value::wants);
                let row = self.chunk.columns.get_mut(sample.number).and_then(Option::as_mut);
                match (wants, &mut reading.buffer, row) {
                    (Some(cut), Some(buffer), _) => store.read_cut(&cut, &mut reading.done, buffer),
                    (Some(cut), None, Some(row)) => {
                        store.read_cut(&cut, &mut reading.done, row.row(0))
                    }
                    _ => Err(Error::Internal("nothing to read was left to a reader".into())),
                }
            }
        }
    }

    /// The bytes it will read.
    pub(crate) fn bytes(&self) -> usize {
        match &self.stage {
            Stage::Stored { stored, .. } => stored.bytes(),
            Stage::Record { buffer, .. } => buffer.len(),
            Stage::Field { task, field, .. } => task.wants(*field).map_or(0, |cut| cut.length()),
            Stage::Gathered(_) => 0,
            Stage::Value { sample, .. } => {
                let wants = sample.current.as_ref().and_then(Value::wants);
                wants.map_or(0, |cut| cut.length())
            }
        }
    }
}

/// What came of asking for bytes without waiting.
pub(crate) enum Fetched {
    Bytes(Option<Buffer>),
    WouldWait(BufferMut),
}

/// A sample's record, if it has one.
///
/// # Errors
///
/// If it cannot be read.
pub(crate) fn try_record(lane: &Lane, address: Address) -> Result<Fetched> {
    let source = &lane.pipeline.source;
    let Some(extent) = source.locate(address.index) else { return Ok(Fetched::Bytes(None)) };
    let at = |error: Error| error.at(|| source.origin(address.index), address.index, "read");
    if extent.length > LARGEST_RECORD {
        let reason = format!("{} bytes; a record has at most {LARGEST_RECORD}", extent.length);
        return Err(at(Error::record(reason)));
    }
    let mut buffer = lane.pool.take(extent.length as usize)?;
    match lane.store.try_read(extent, &mut buffer).map_err(at)? {
        Attempt::Done => Ok(Fetched::Bytes(Some(buffer.freeze()))),
        Attempt::WouldWait => Ok(Fetched::WouldWait(buffer)),
    }
}

/// Memory for what a value wants, refused if that is absurd.
///
/// # Errors
///
/// If it is, or there is not so much.
pub(crate) fn room_for(lane: &Lane, cut: &Cut<'_>) -> Result<BufferMut> {
    if cut.length() as u64 > LARGEST_RECORD {
        let length = cut.length();
        let reason = format!("{length} bytes; a value has at most {LARGEST_RECORD}");
        return Err(Error::record(reason));
    }
    lane.pool.take(cut.length())
}
