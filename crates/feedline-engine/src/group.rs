//! A group: the places of one batch, and the memory their rows are written to.

use crate::predict::Features;
use feedline_core::{
    BadRow, Buffer, DType, Error, Field, GoodRow, Name, Pool, Result, RowsMut, Shape, Slots, Tensor,
};
use feedline_ops::batch::{Batch, column as column_of, mask};
use feedline_ops::{Pipeline, Row};
use std::sync::Arc;

/// Rows of one field: in one buffer if all have the same size, otherwise each by itself.
#[derive(Debug)]
pub(crate) enum Column {
    Slots(Slots),
    Rows(Vec<Option<Tensor>>),
}

/// What is dealt: the places of a batch, or the end of an epoch.
#[derive(Debug)]
pub(crate) struct Group {
    pub epoch: u64,
    /// The places of its rows.
    pub places: Arc<[u64]>,
    /// The rows' numbers among the rank's rows.
    pub numbers: Vec<u64>,
    /// The end of the epoch, which holds no places.
    pub is_end: bool,
    columns: Vec<Column>,
    pub indices: Vec<u64>,
    /// Rows that may be handed to threads, and rows that were.
    pub released: usize,
    pub dealt: usize,
    /// Rows that wait to be started in the order of their costs, or were.
    pub queued: usize,
    /// Rows that are not finished.
    pub pending: usize,
    /// Rows that are bad.
    pub bad: Vec<BadRow>,
    /// Bytes this group holds of the memory budget.
    pub bytes: usize,
    /// Whether its memory was taken.
    allocated: bool,
    /// Rows by themselves, where they are started in any order.
    single: Vec<Option<Chunk>>,
    /// Whether its rows are started in the order of their guessed costs.
    pub by_cost: bool,
    /// Whether rows are kept by themselves until a batch takes them.
    loose: bool,
}

/// Rows of a group that one thread fills.
#[derive(Debug)]
pub(crate) struct Chunk {
    /// Which group, counted from the start of the run.
    pub group: u64,
    pub epoch: u64,
    /// The first row of the group, and how many.
    pub first_row: usize,
    pub count: usize,
    places: Arc<[u64]>,
    pub columns: Vec<Option<RowsMut>>,
    /// What was known of its one row beforehand, where costs are guessed.
    pub features: Option<Features>,
}

impl Chunk {
    /// Splits off all rows from `at` on.
    pub(crate) fn split_off(&mut self, at: usize) -> Self {
        let split = |rows: &mut Option<RowsMut>| rows.as_mut().map(|rows| rows.split_off(at));
        let columns = self.columns.iter_mut().map(split).collect();
        let count = self.count - at;
        self.count = at;
        Self {
            group: self.group,
            epoch: self.epoch,
            first_row: self.first_row + at,
            count,
            places: Arc::clone(&self.places),
            columns,
            features: None,
        }
    }

    /// The place of its row `at`.
    pub(crate) fn place(&self, at: usize) -> u64 {
        self.places[self.first_row + at]
    }
}

/// What became of a row.
#[derive(Debug)]
pub(crate) struct Done {
    pub row: usize,
    pub index: u64,
    /// Fields that have no slot, with their number; or why the row is bad.
    pub result: Result<Vec<(usize, Tensor)>>,
}

impl Group {
    /// A group that could not be made; it fails when its turn comes.
    pub(crate) fn broken(epoch: u64, error: Error) -> Self {
        Self { is_end: false, bad: vec![(0, error)], ..Self::end(epoch) }
    }

    pub(crate) fn end(epoch: u64) -> Self {
        Self { is_end: true, ..Self::new(epoch, Vec::new(), Vec::new(), false, 0) }
    }

    /// The places of a batch. Its memory is taken when its first row is started; `loose` rows have
    /// memory of their own instead.
    pub(crate) fn new(
        epoch: u64,
        places: Vec<u64>,
        numbers: Vec<u64>,
        loose: bool,
        released: usize,
    ) -> Self {
        let rows = places.len();
        Self {
            epoch,
            places: places.into(),
            numbers,
            is_end: false,
            columns: Vec::new(),
            indices: vec![0; rows],
            released,
            dealt: 0,
            queued: 0,
            pending: rows,
            bad: Vec::new(),
            bytes: 0,
            allocated: false,
            single: Vec::new(),
            by_cost: false,
            loose,
        }
    }

    /// Takes its memory, if it has none yet. One row alone needs none if it is only `passed_on`: it may
    /// lie in memory that others read too.
    ///
    /// # Errors
    ///
    /// If there is not so much.
    pub(crate) fn allocate(
        &mut self,
        pipeline: &Pipeline,
        pool: &Pool,
        passed_on: bool,
    ) -> Result<()> {
        if self.allocated || self.loose {
            return Ok(());
        }
        let rows = self.rows();
        (self.columns, self.bytes) = columns(pipeline, pool, rows, passed_on && rows == 1)?;
        self.allocated = true;
        Ok(())
    }

    pub(crate) fn is_allocated(&self) -> bool {
        self.allocated || self.loose
    }

    pub(crate) fn rows(&self) -> usize {
        self.places.len()
    }

    /// Hands out the next rows, `count` at most.
    pub(crate) fn deal(&mut self, group: u64, count: usize) -> Chunk {
        let count = count.min(self.rows() - self.dealt);
        let first_row = self.dealt;
        self.dealt += count;
        let columns = self.columns.iter_mut().map(|column| match column {
            Column::Slots(slots) => Some(slots.next_rows(count)),
            Column::Rows(_) => None,
        });
        Chunk {
            group,
            epoch: self.epoch,
            first_row,
            count,
            places: Arc::clone(&self.places),
            columns: columns.collect(),
            features: None,
        }
    }

    /// Hands out one row, any one that was not handed out yet.
    pub(crate) fn deal_row(&mut self, group: u64, row: usize) -> Option<Chunk> {
        if self.single.is_empty() {
            let rows = self.rows();
            self.single = (0..rows).map(|_| Some(self.deal(group, 1))).collect();
        }
        self.single.get_mut(row)?.take()
    }

    /// Notes what became of a row.
    pub(crate) fn finish_row(&mut self, done: Done) {
        self.pending -= 1;
        self.indices[done.row] = done.index;
        match done.result {
            Ok(values) => {
                for (at, tensor) in values {
                    if let Some(Column::Rows(rows)) = self.columns.get_mut(at) {
                        self.bytes += tensor.data().len();
                        rows[done.row] = Some(tensor);
                    }
                }
            }
            Err(error) => self.bad.push((done.row, error)),
        }
    }

    /// Whether it has no rows, good or bad: the end of an epoch, or padding alone.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows() == 0 && self.bad.is_empty()
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.pending == 0 && (self.is_allocated() || self.rows() == 0)
    }

    /// The bad row that comes first, if there is one.
    pub(crate) fn first_bad(&mut self) -> Option<(usize, Error)> {
        self.bad.sort_by_key(|(row, _)| *row);
        if self.bad.is_empty() { None } else { Some(self.bad.remove(0)) }
    }

    /// The fields, stacked; rows of fields without slots are stacked now. Padding rows are zeroed.
    ///
    /// # Errors
    ///
    /// The field and the row that has another shape than the rows before it.
    pub(crate) fn into_columns(self, pipeline: &Pipeline, pool: &Pool) -> Result<(Row, Vec<u64>)> {
        let rows = self.rows();
        Ok((stack_columns(self.columns, rows, &self.indices, pipeline, pool)?, self.indices))
    }

    /// The rows that are not bad, and why the others are, each in order.
    ///
    /// # Errors
    ///
    /// If a row is missing, which would be a fault of the engine.
    pub(crate) fn into_good_rows(self, pipeline: &Pipeline) -> Result<(Vec<GoodRow>, Vec<BadRow>)> {
        let rows = self.rows();
        let mut bad = self.bad;
        bad.sort_by_key(|(row, _)| *row);
        let is_bad = |row: &usize| bad.binary_search_by_key(row, |(row, _)| *row).is_ok();
        let good = (0..rows).filter(|row| !is_bad(row)).collect();
        let indices = self.indices;
        let split = split_columns(self.columns, rows, good, pipeline)?;
        let good = split.into_iter().map(|(row, fields)| (row, indices[row], fields)).collect();
        Ok((good, bad))
    }
}

/// The fields of each of some rows by themselves.
///
/// # Errors
///
/// If a row is missing or still being written, which would be a fault of the engine.
pub(crate) fn split_columns(
    columns: Vec<Column>,
    rows: usize,
    wanted: Vec<usize>,
    pipeline: &Pipeline,
) -> Result<Vec<(usize, Vec<Tensor>)>> {
    let mut result: Vec<_> = wanted.into_iter().map(|row| (row, Vec::new())).collect();
    for (column, field) in columns.into_iter().zip(&pipeline.sample.fields) {
        match column {
            Column::Slots(slots) => {
                let buffer = slots.finish().ok_or_else(|| {
                    Error::Internal("a row of a finished batch is still being written".into())
                })?;
                let room = buffer.len().checked_div(field.bytes().unwrap_or(0)).unwrap_or(rows);
                let all = stacked(field, room, buffer.freeze())?;
                result.iter_mut().for_each(|(row, fields)| fields.push(all.row(*row)));
            }
            Column::Rows(mut parts) => {
                for (row, fields) in &mut result {
                    let part = parts[*row].take();
                    fields.push(
                        part.ok_or_else(|| Error::Internal("a row of a batch is missing".into()))?,
                    );
                }
            }
        }
    }
    Ok(result)
}

/// Memory for the rows of a batch: one buffer for each field of a fixed size, with room for padding
/// where the plan pads, unless rows bring their own. Also says how many bytes it is.
///
/// # Errors
///
/// If there is not so much memory.
pub(crate) fn columns(
    pipeline: &Pipeline,
    pool: &Pool,
    rows: usize,
    own: bool,
) -> Result<(Vec<Column>, usize)> {
    let padded = pipeline.batch.as_ref().filter(|batch| batch.pad);
    let room = padded.map_or(rows, |batch| batch.size);
    // Rows that are sorted by their lengths wait for their batch, each by itself.
    let apart = pipeline.bucket.is_some() || own && room == rows;
    let bytes = |field: &Field| field.bytes().filter(|_| !apart);
    let column = |field: &Field| {
        Ok(match bytes(field) {
            Some(bytes) => Column::Slots(Slots::new(pool, room, bytes)?),
            None => Column::Rows((0..rows).map(|_| None).collect()),
        })
    };
    let columns = pipeline.sample.fields.iter().map(column).collect::<Result<_>>()?;
    let bytes = pipeline.sample.fields.iter().filter_map(bytes).sum::<usize>() * room;
    Ok((columns, bytes))
}

/// The fields of a batch of `rows` rows, stacked, with lengths and mask where the plan has them; rows
/// of fields without slots are stacked now. Rows of a slot beyond those are padding, and zeroed.
///
/// # Errors
///
/// The field and the row that has another shape than the rows before it.
pub(crate) fn stack_columns(
    columns: Vec<Column>,
    rows: usize,
    indices: &[u64],
    pipeline: &Pipeline,
    pool: &Pool,
) -> Result<Row> {
    let (mut fields, mut lengths) = (Vec::with_capacity(columns.len()), Vec::new());
    let room = pipeline.batch.as_ref().map(Batch::room).unwrap_or_default();
    for (number, (column, field)) in columns.into_iter().zip(&pipeline.sample.fields).enumerate() {
        let tensor = match column {
            Column::Slots(slots) => {
                let mut buffer = slots.finish().ok_or_else(|| {
                    Error::Internal("a row of a finished batch is still being written".into())
                })?;
                let row = field.bytes().unwrap_or(0);
                buffer.truncate(room.rows.max(rows) * row);
                buffer[rows * row..].fill(0);
                stacked(field, room.rows.max(rows), buffer.freeze())?
            }
            Column::Rows(parts) => {
                let parts: Option<Vec<Tensor>> = parts.into_iter().take(rows).collect();
                let mut parts =
                    parts.ok_or_else(|| Error::Internal("a row of a batch is missing".into()))?;
                // One row that was left where it is.
                if rows == 1
                    && room.rows <= 1
                    && field.bytes().is_some()
                    && pipeline.bucket.is_none()
                    && let Some(one) = parts.pop()
                {
                    fields.push((field.name, stacked(field, 1, one.into_buffer())?));
                    continue;
                }
                let (tensor, own) = column_of(pipeline, number, parts, room, indices, pool)?;
                lengths.extend(own);
                tensor
            }
        };
        fields.push((field.name, tensor));
    }
    fields.extend(lengths);
    if room.mask {
        fields.push((Name::new(Batch::MASK), mask(rows, room.rows)?));
    }
    Ok(fields)
}

/// A buffer of rows of a field as one tensor.
fn stacked(field: &Field, rows: usize, buffer: Buffer) -> Result<Tensor> {
    let mut shape = Shape::from_slice(&[rows]);
    shape.extend(field.shape.iter().map(|dim| dim.unwrap_or(0)));
    debug_assert_ne!(field.dtype, DType::Bytes);
    Tensor::new(field.dtype, &shape, buffer)
}
