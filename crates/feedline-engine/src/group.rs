//! A group: the places of one batch, and the memory their rows are written to.

use feedline_core::{
    Buffer, DType, Error, Field, Pool, Result, RowsMut, Shape, Slots, Span, Tensor,
};
use feedline_ops::Pipeline;

/// Rows of one field: in one buffer if all have the same size, otherwise each by itself.
#[derive(Debug)]
enum Column {
    Slots(Slots),
    Rows(Vec<Option<Tensor>>),
}

/// What is dealt: the places of a batch, or the end of an epoch.
#[derive(Debug)]
pub(crate) struct Group {
    pub epoch: u64,
    /// Number of this group's stretch in its epoch.
    pub stretch: u64,
    pub span: Span,
    /// The end of the epoch, which holds no places.
    pub is_end: bool,
    columns: Vec<Column>,
    pub indices: Vec<u64>,
    /// Rows handed to threads.
    pub dealt: usize,
    /// Rows that are not finished.
    pub pending: usize,
    /// Rows that are bad, and why.
    pub bad: Vec<(usize, Error)>,
    /// Bytes this group holds of the memory budget.
    pub bytes: usize,
}

/// Rows of a group that one thread fills.
#[derive(Debug)]
pub(crate) struct Chunk {
    /// Which group, counted from the start of the run.
    pub group: u64,
    pub epoch: u64,
    pub first_row: usize,
    pub places: Span,
    pub columns: Vec<Option<RowsMut>>,
}

impl Chunk {
    /// Splits off all rows from `at` on.
    pub(crate) fn split_off(&mut self, at: usize) -> Self {
        let middle = self.places.start + at as u64;
        let places = Span { start: middle, end: self.places.end };
        self.places.end = middle;
        let split = |rows: &mut Option<RowsMut>| rows.as_mut().map(|rows| rows.split_off(at));
        let columns = self.columns.iter_mut().map(split).collect();
        let (group, epoch) = (self.group, self.epoch);
        Self { group, epoch, first_row: self.first_row + at, places, columns }
    }
}

/// What became of a row.
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
        let span = Span { start: 0, end: 0 };
        Self {
            epoch,
            stretch: 0,
            span,
            is_end: true,
            columns: Vec::new(),
            indices: Vec::new(),
            dealt: 0,
            pending: 0,
            bad: Vec::new(),
            bytes: 0,
        }
    }

    pub(crate) fn new(
        pipeline: &Pipeline,
        pool: &Pool,
        epoch: u64,
        stretch: u64,
        span: Span,
    ) -> Result<Self> {
        let rows = span.length() as usize;
        let padded = pipeline.batch.as_ref().filter(|batch| batch.pad);
        let room = padded.map_or(rows, |batch| batch.size);
        let column = |field: &Field| {
            Ok(match field.bytes() {
                Some(bytes) => Column::Slots(Slots::new(pool, room, bytes)?),
                None => Column::Rows((0..rows).map(|_| None).collect()),
            })
        };
        let columns = pipeline.sample.fields.iter().map(column).collect::<Result<_>>()?;
        let bytes = pipeline.sample.fields.iter().filter_map(Field::bytes).sum::<usize>() * room;
        Ok(Self {
            epoch,
            stretch,
            span,
            is_end: false,
            columns,
            indices: vec![0; rows],
            dealt: 0,
            pending: rows,
            bad: Vec::new(),
            bytes,
        })
    }

    pub(crate) fn rows(&self) -> usize {
        self.span.length() as usize
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
        let start = self.span.start + first_row as u64;
        Chunk {
            group,
            epoch: self.epoch,
            first_row,
            places: Span { start, end: start + count as u64 },
            columns: columns.collect(),
        }
    }

    /// Notes what became of a row.
    pub(crate) fn finish_row(&mut self, done: Done) {
        self.pending -= 1;
        self.indices[done.row] = done.index;
        match done.result {
            Ok(values) => {
                for (at, tensor) in values {
                    if let Column::Rows(rows) = &mut self.columns[at] {
                        self.bytes += tensor.data().len();
                        rows[done.row] = Some(tensor);
                    }
                }
            }
            Err(error) => self.bad.push((done.row, error)),
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.pending == 0
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
    pub(crate) fn into_columns(
        self,
        pipeline: &Pipeline,
        pool: &Pool,
    ) -> Result<(Vec<Tensor>, Vec<u64>)> {
        let rows = self.rows();
        let mut tensors = Vec::with_capacity(self.columns.len());
        for (column, field) in self.columns.into_iter().zip(&pipeline.sample.fields) {
            tensors.push(match column {
                Column::Slots(slots) => {
                    let mut buffer = slots.finish().ok_or_else(|| {
                        Error::Internal("a row of a finished batch is still being written".into())
                    })?;
                    let row = field.bytes().unwrap_or(0);
                    let room = buffer.len().checked_div(row).unwrap_or(rows);
                    buffer[rows * row..].fill(0);
                    stacked(field, room.max(rows), buffer.freeze())?
                }
                Column::Rows(parts) => {
                    let parts: Option<Vec<Tensor>> = parts.into_iter().collect();
                    let parts = parts
                        .ok_or_else(|| Error::Internal("a row of a batch is missing".into()))?;
                    Tensor::stack(&parts, pool).map_err(|odd| {
                        let index = self.indices[odd];
                        Error::record(format!(
                            "field {} is {:?}, where the batch begins with {:?}; samples of a \
                             batch have one shape: add resize or a crop before batch",
                            field.name, parts[odd], parts[0]
                        ))
                        .at(
                            || pipeline.source.origin(index),
                            index,
                            "batch",
                        )
                    })?
                }
            });
        }
        Ok((tensors, self.indices))
    }

    /// Each good row's fields by themselves, with its number.
    pub(crate) fn into_rows(self, pipeline: &Pipeline) -> Result<Vec<(usize, u64, Vec<Tensor>)>> {
        let rows = self.rows();
        let good: Vec<usize> =
            (0..rows).filter(|row| self.bad.iter().all(|(bad, _)| bad != row)).collect();
        let mut result: Vec<(usize, u64, Vec<Tensor>)> =
            good.iter().map(|row| (*row, self.indices[*row], Vec::new())).collect();
        for (column, field) in self.columns.into_iter().zip(&pipeline.sample.fields) {
            match column {
                Column::Slots(slots) => {
                    let buffer = slots.finish().ok_or_else(|| {
                        Error::Internal("a row of a finished batch is still being written".into())
                    })?;
                    let row_bytes = field.bytes().unwrap_or(0);
                    let room = buffer.len().checked_div(row_bytes).unwrap_or(rows);
                    let all = stacked(field, room, buffer.freeze())?;
                    result.iter_mut().for_each(|(row, _, fields)| fields.push(all.row(*row)));
                }
                Column::Rows(mut parts) => {
                    for (row, _, fields) in &mut result {
                        let part = parts[*row].take();
                        fields.push(part.ok_or_else(|| {
                            Error::Internal("a row of a batch is missing".into())
                        })?);
                    }
                }
            }
        }
        Ok(result)
    }
}

/// A buffer of rows of a field as one tensor.
fn stacked(field: &Field, rows: usize, buffer: Buffer) -> Result<Tensor> {
    let mut shape = Shape::from_slice(&[rows]);
    shape.extend(field.shape.iter().map(|dim| dim.unwrap_or(0)));
    debug_assert_ne!(field.dtype, DType::Bytes);
    Tensor::new(field.dtype, &shape, buffer)
}
