//! Dealing: which places a rank's next group holds, by arithmetic.

use crate::bucket::steps_between;
use crate::{Delivery, Options, Recording};
use feedline_core::{Error, Length, Position, Result, Span};
use feedline_ops::Pipeline;

/// What a rank is dealt.
pub(crate) enum Dealt {
    /// The rows of a batch: their places, and their numbers among the rank's rows where those
    /// matter.
    Rows { epoch: u64, places: Vec<u64>, numbers: Vec<u64> },
    /// The end of an epoch.
    End { epoch: u64 },
}

/// Deals a rank its groups, epoch after epoch.
#[derive(Debug)]
pub(crate) struct Dealer {
    /// Where the epoch that is being dealt was begun.
    start: Position,
    stretch: u64,
    /// The stretch that was dealt last.
    last: u64,
    /// The number of the next row among the rank's rows.
    number: u64,
    /// Rows that were dealt, and batches of padding alone.
    dealt: u64,
    padding: u64,
    /// Places of the stretch that were dealt, where it is dealt in parts, and whether it is not.
    within: u64,
    whole: bool,
    epochs_left: Option<u64>,
}

impl Dealer {
    pub(crate) fn new(start: Position, options: &Options) -> Self {
        let stretch = match options.delivery {
            Delivery::Replay(_) => start.batches,
            _ => start.at.map_or(first_stretch(options).0, |at| at.0),
        };
        let epochs_left = options.epochs;
        let (last, number, dealt, padding) = (0, 0, 0, 0);
        let (within, whole) = (0, false);
        Self { start, stretch, last, number, dealt, padding, within, whole, epochs_left }
    }

    /// The same, dealing whole stretches at a time where samples are sorted by their lengths.
    pub(crate) fn whole(start: Position, options: &Options) -> Self {
        Self { whole: true, ..Self::new(start, options) }
    }

    /// Where the epoch that is being dealt was begun.
    pub(crate) fn start(&self) -> &Position {
        &self.start
    }

    pub(crate) fn is_over(&self) -> bool {
        self.epochs_left == Some(0)
    }

    /// Deals nothing more.
    pub(crate) fn end(&mut self) {
        self.epochs_left = Some(0);
    }

    /// The stretch that was dealt last.
    pub(crate) fn dealt_stretch(&self) -> u64 {
        self.last
    }

    /// The number of the next row that will be dealt.
    pub(crate) fn next_number(&self) -> u64 {
        self.number
    }

    pub(crate) fn next(&mut self, pipeline: &Pipeline, options: &Options) -> Result<Option<Dealt>> {
        if self.is_over() {
            return Ok(None);
        }
        if let Delivery::Replay(recording) = &options.delivery {
            let (epoch, batch) = (self.start.epoch, self.stretch);
            let Some(made_of) = recording.batch(epoch, options.rank, batch) else {
                return self.end_of_recording(recording, options);
            };
            self.stretch += 1;
            let row = |place: &u64| row_of(&self.start, *place, pipeline, options);
            let numbers = made_of.places.iter().map(row).collect::<Result<_>>()?;
            return Ok(Some(Dealt::Rows { epoch, places: made_of.places.clone(), numbers }));
        }
        let (size, length) = (pipeline.stretch() as u64, pipeline.length().places());
        let end = end_stretch(pipeline, &self.start, options.world);
        let end = options.until.map_or(end, |until| end.min(until));
        if pipeline.bucket.is_some() {
            return Ok(Some(self.next_part(pipeline, options, end)));
        }
        let padded = pipeline.is_counted() && pipeline.batch.as_ref().is_some_and(|b| b.pad);
        let flows = follows_rows(pipeline, options, &self.start);
        while self.stretch < end {
            let mut places = self.start.places(self.stretch, size, length);
            let mut numbers = Vec::new();
            if flows {
                let first = self.start.at.filter(|at| at.0 == self.stretch).map_or(0, |at| at.1);
                places.drain(..places.len().min(first as usize));
                numbers.extend(self.number..self.number + places.len() as u64);
                self.number += places.len() as u64;
                let taken = |number: u64| self.start.taken.get(number as usize) == Some(&true);
                if numbers.iter().any(|number| taken(*number)) {
                    let mut keep = numbers.iter().map(|number| !taken(*number));
                    places.retain(|_| keep.next().unwrap_or(true));
                    numbers.retain(|number| !taken(*number));
                }
            }
            self.last = self.stretch;
            self.stretch += options.world;
            self.dealt += places.len() as u64;
            if !places.is_empty() || padded && !flows {
                return Ok(Some(Dealt::Rows { epoch: self.start.epoch, places, numbers }));
            }
        }
        // Where rows flow together, the batches that nothing is left for come last.
        let all = end.saturating_sub(options.rank).div_ceil(options.world);
        let filled = self.start.batches + self.dealt.div_ceil(size) + self.padding;
        if padded && flows && filled < all {
            self.padding += 1;
            let epoch = self.start.epoch;
            return Ok(Some(Dealt::Rows { epoch, places: Vec::new(), numbers: Vec::new() }));
        }
        Ok(Some(self.next_epoch(options)))
    }

    /// Deals a part of a stretch whose samples are sorted by their lengths: the number of a row is
    /// that in the list of places left.
    fn next_part(&mut self, pipeline: &Pipeline, options: &Options, end: u64) -> Dealt {
        let (size, length) = (pipeline.stretch() as u64, pipeline.length().places());
        let part = if self.whole { size } else { pipeline.group() as u64 };
        while self.stretch < end {
            let Span { start, end } = self.start.stretch(self.stretch, size, length);
            let start = start + self.within;
            let numbers = Span { start, end: start.saturating_add(part).min(end) };
            self.within += numbers.length();
            self.last = self.stretch;
            if numbers.end >= end {
                self.within = 0;
                self.stretch = self.stretch.saturating_add(first_stretch(options).1);
            }
            if numbers.length() > 0 {
                // Whoever takes whole stretches asks for no more than where they begin.
                let end = if self.whole { numbers.start + 1 } else { numbers.end };
                let numbers = Span { end, ..numbers };
                let spans = self.start.spans(numbers).into_iter();
                let places = spans.flat_map(|span| span.start..span.end).collect();
                let numbers = (numbers.start..numbers.end).collect();
                return Dealt::Rows { epoch: self.start.epoch, places, numbers };
            }
        }
        self.next_epoch(options)
    }

    fn next_epoch(&mut self, options: &Options) -> Dealt {
        let epoch = self.start.epoch;
        self.start = Position::epoch(epoch.saturating_add(1));
        let replays = matches!(options.delivery, Delivery::Replay(_));
        self.stretch = if replays { 0 } else { first_stretch(options).0 };
        (self.number, self.dealt, self.padding, self.within) = (0, 0, 0, 0);
        self.epochs_left = self.epochs_left.map(|left| left - 1);
        Dealt::End { epoch }
    }

    fn end_of_recording(
        &mut self,
        recording: &Recording,
        options: &Options,
    ) -> Result<Option<Dealt>> {
        let epoch = self.start.epoch;
        let batches = recording.length(epoch, options.rank);
        if self.stretch < batches {
            return Err(Error::State(format!(
                "batch {} of epoch {epoch} is missing in the recording",
                self.stretch
            )));
        }
        if !recording.is_whole(epoch, options.rank) {
            return Err(Error::State(match batches {
                0 => format!("the recording has no epoch {epoch}"),
                _ => format!(
                    "the recording ends with batch {} of epoch {epoch}: the run was broken off there",
                    batches - 1
                ),
            }));
        }
        Ok(Some(self.next_epoch(options)))
    }
}

/// The first stretch of a rank, and how far it is from each to the next: ranks take them in turn,
/// or all of them share each.
pub(crate) fn first_stretch(options: &Options) -> (u64, u64) {
    if options.rounds { (0, 1) } else { (options.rank, options.world) }
}

/// The number, among the rows of a rank that began at `start`, of the row at a recorded place.
pub(crate) fn row_of(
    start: &Position,
    place: u64,
    pipeline: &Pipeline,
    options: &Options,
) -> Result<u64> {
    let (size, world) = (pipeline.stretch() as u64, options.world);
    let (stretch, row) = start.at.unwrap_or((options.rank, 0));
    let number = start.number(place).filter(|_| place < pipeline.length().places());
    let number = number.and_then(|number| {
        let ahead = (number / size).checked_sub(stretch).filter(|a| a.is_multiple_of(world))?;
        (ahead / world * size + number % size).checked_sub(row)
    });
    number.ok_or_else(|| {
        Error::State(format!("place {place} of the recording is not one of this rank's"))
    })
}

/// Whether rows flow together into batches, so that each of them has to be accounted for; otherwise
/// every group is a batch.
pub(crate) fn follows_rows(pipeline: &Pipeline, options: &Options, start: &Position) -> bool {
    if options.delivery == Delivery::Stretches {
        return false;
    }
    let uneven = start.at.is_some() || start.batches > 0;
    !pipeline.is_counted() || uneven || options.delivery != Delivery::Exact
}

/// How many steps a rank has left in an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steps {
    /// Exactly so many.
    Exactly(u64),
    /// Between these two, since bad samples may be left out or batches go by length.
    Between(u64, u64),
    /// It goes on for ever.
    Endless,
}

/// The stretch after the last one of the epoch, counted from where the run started.
pub(crate) fn end_stretch(pipeline: &Pipeline, position: &Position, world: u64) -> u64 {
    let size = pipeline.stretch() as u64;
    let left = position.left(pipeline.length().places());
    match &pipeline.batch {
        // Whole rounds only: every rank has as many steps as every other.
        Some(batch) if pipeline.is_counted() && (batch.drop_last || batch.pad) => {
            let round = size.saturating_mul(world);
            let rounds = if batch.pad { left.div_ceil(round) } else { left / round };
            rounds.saturating_mul(world)
        }
        _ => left.div_ceil(size),
    }
}

/// How many stretches are left from `start`, for `world` ranks together.
#[must_use]
pub fn stretches_left(pipeline: &Pipeline, start: &Position, world: u64) -> u64 {
    end_stretch(pipeline, start, world.max(1))
}

/// How many steps rank `rank` of `world` has left from `position` to the end of its epoch.
#[must_use]
pub fn steps_left(pipeline: &Pipeline, position: &Position, rank: u64, world: u64) -> Steps {
    if pipeline.length() == Length::Infinite {
        return Steps::Endless;
    }
    let world = world.max(1);
    if let Some(buckets) = &pipeline.bucket {
        return steps_between(pipeline, buckets, position, (rank, world), false);
    }
    let end = end_stretch(pipeline, position, world);
    if pipeline.is_counted() {
        // Every stretch is a batch, whichever rows it was given.
        let groups = end.saturating_sub(rank).div_ceil(world);
        let taken = match position.at {
            Some((stretch, _)) if position.batches == 0 => stretch.saturating_sub(rank) / world,
            _ => position.batches,
        };
        return Steps::Exactly(groups.saturating_sub(taken));
    }
    let (first, row) = position.at.unwrap_or((rank, 0));
    let size = pipeline.stretch() as u64;
    let length = pipeline.length().places();
    let count = end.saturating_sub(first).div_ceil(world);
    let mut rows = 0;
    if count > 0 {
        // All stretches are full but the last of all.
        let last = position.stretch(first + (count - 1) * world, size, length);
        rows = ((count - 1) * size + last.length()).saturating_sub(row);
    }
    rows -= rows.min(position.taken.iter().filter(|taken| **taken).count() as u64);
    let drops = pipeline.batch.as_ref().is_some_and(|batch| batch.drop_last);
    let most = if drops { rows / size } else { rows.div_ceil(size) };
    Steps::Between(0, most)
}

/// How many steps each of `world` ranks has left that take their batches in rounds.
#[must_use]
pub fn rounds_left(pipeline: &Pipeline, position: &Position, world: u64) -> Steps {
    match &pipeline.bucket {
        Some(buckets) if pipeline.length() != Length::Infinite => {
            steps_between(pipeline, buckets, position, (0, world.max(1)), true)
        }
        _ => steps_left(pipeline, position, 0, world),
    }
}
