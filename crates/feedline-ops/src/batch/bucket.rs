//! Batches of samples of about the same length.
//!
//! ```text
//!  samples of a stretch ──► class by length ──► enough for a round ──► batches, one for each rank
//!                                          └──► end of the stretch ──► what is left
//! ```

use super::batch::{check_mask, check_size};
use super::{Batch, Padded, Room};
use crate::Step;
use crate::registry::IntoStep;
use feedline_core::{Error, Result, Spec, Tensor};
use feedline_plan::Recipe;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Stands in the place of `batch`: makes batches of samples whose lengths are of one class.
///
/// It works in stretches of the epoch's order. A class that has `size` samples gives a batch at
/// once; at the end of a stretch every class gives what it has. All fields that differ in length
/// are filled up, and how long each row of `tokens` was is in the field `tokens_length`. Without
/// `drop_last` there is a field `mask`, true for real rows: where ranks take their batches in
/// rounds, one of them may get a row of padding alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bucket {
    /// The field whose length counts: its first dimension, or the bytes of a text; absent if only
    /// one field has a length that differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The greatest length of each class but the last, which holds all longer samples.
    pub boundaries: Vec<usize>,
    /// Samples in a batch, on each rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<usize>,
    /// The same for each class, the last included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sizes: Option<Vec<usize>>,
    /// Samples of the order after which nothing is held back.
    #[serde(default = "usual_stretch")]
    pub stretch: usize,
    /// How long a batch is.
    #[serde(default)]
    pub pad_to: PadTo,
    /// What shorter samples are filled up with.
    #[serde(default)]
    pub value: f64,
    /// Whether batches that are not full are left out.
    #[serde(default)]
    pub drop_last: bool,
}

/// How long a batch is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PadTo {
    /// As long as its longest sample.
    #[default]
    Longest,
    /// As long as its class allows; in the last class as long as its longest sample.
    Boundary,
}

fn usual_stretch() -> usize {
    4096
}

/// More classes than this are taken for a mistake.
const MOST_CLASSES: usize = 1024;

impl Recipe for Bucket {
    const NAME: &'static str = "bucket";
}

impl IntoStep for Bucket {
    fn into_step(self) -> Step {
        Step::Bucket(self)
    }
}

impl Bucket {
    /// Checks the recipe: what a batch looks like, which fields are filled up, and the classes.
    ///
    /// # Errors
    ///
    /// If an argument makes no sense, or no field has a length.
    pub fn output(&self, input: &Spec) -> Result<(Spec, Vec<Padded>, Buckets)> {
        let Self { boundaries, stretch, pad_to, value, drop_last, .. } = self;
        if boundaries.is_empty() || boundaries.len() >= MOST_CLASSES {
            return Err(Error::pipeline(format!(
                "bucket: {} boundaries; there can be 1 to {}",
                boundaries.len(),
                MOST_CLASSES - 1
            )));
        }
        if let Some(pair) = boundaries.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(Error::pipeline(format!(
                "bucket: boundary {} after {}; boundaries rise",
                pair[1], pair[0]
            )));
        }
        let sizes = self.sizes_of_classes()?;
        let largest = sizes.iter().copied().max().unwrap_or(1);
        if *stretch < largest || *stretch > 1 << 24 {
            return Err(Error::pipeline(format!(
                "bucket: stretch={stretch}; it must hold a batch of {largest} and be 2^24 at most"
            )));
        }
        let field = self.field(input)?;
        let padded = Padded::all("bucket", input, *value)?;
        if *pad_to == PadTo::Boundary && padded.iter().all(|padded| padded.field != field) {
            return Err(Error::pipeline(format!(
                "bucket: pad_to=boundary fills numbers up, and {} keeps its lengths; leave it out",
                input.fields[field]
            )));
        }
        if !drop_last {
            check_mask("bucket", input)?;
        }
        let even = sizes.iter().all(|size| *size == largest);
        let rows = (*drop_last && even).then_some(largest);
        let output = Padded::output(&padded, input, rows, !drop_last);
        let buckets = Buckets {
            field,
            boundaries: boundaries.clone(),
            sizes,
            stretch: *stretch,
            pad_to: *pad_to,
            drop_last: *drop_last,
        };
        Ok((output, padded, buckets))
    }

    fn sizes_of_classes(&self) -> Result<Vec<usize>> {
        let classes = self.boundaries.len() + 1;
        let sizes = match (self.size, &self.sizes) {
            (Some(size), None) => vec![size; classes],
            (None, Some(sizes)) if sizes.len() == classes => sizes.clone(),
            (None, Some(sizes)) => {
                return Err(Error::pipeline(format!(
                    "bucket: {} sizes for {classes} classes; one for each boundary, and one for what \
                     is longer",
                    sizes.len()
                )));
            }
            (None, None) => return Err(Error::pipeline("bucket: argument size is missing")),
            (Some(_), Some(_)) => {
                return Err(Error::pipeline("bucket: size and sizes are both given; choose one"));
            }
        };
        sizes.iter().try_for_each(|size| check_size("bucket", *size))?;
        Ok(sizes)
    }

    /// The number of the field whose length counts.
    fn field(&self, input: &Spec) -> Result<usize> {
        let has_length = |number: &usize| {
            let field = &input.fields[*number];
            match field.dtype.size() {
                Some(_) => field.shape.first() == Some(&None),
                None => field.shape.is_empty(),
            }
        };
        if let Some(name) = &self.field {
            let field = input.expect("bucket", name)?;
            let number = input.fields.iter().position(|known| known.name == field.name);
            return number.filter(has_length).ok_or_else(|| {
                Error::pipeline(format!(
                    "bucket: {field} has no length that differs from sample to sample"
                ))
            });
        }
        let numbers: Vec<usize> = (0..input.fields.len()).filter(has_length).collect();
        match numbers[..] {
            [number] => Ok(number),
            [] => Err(Error::pipeline(format!(
                "bucket: no field has a length that differs from sample to sample; there are: {input}"
            ))),
            [first, second, ..] => Err(Error::pipeline(format!(
                "bucket: the length of which field? say field={} or field={}",
                input.fields[first].name, input.fields[second].name
            ))),
        }
    }

    /// How the samples of a batch are stacked.
    #[must_use]
    pub fn batch(&self) -> Batch {
        let sizes = self.sizes.iter().flatten().copied().chain(self.size);
        Batch {
            size: sizes.max().unwrap_or(1),
            drop_last: self.drop_last,
            pad: false,
            pad_ragged: true,
            value: self.value,
        }
    }
}

/// The classes of a checked recipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buckets {
    /// The field whose length counts.
    pub field: usize,
    boundaries: Vec<usize>,
    sizes: Vec<usize>,
    /// Places in a stretch.
    pub stretch: usize,
    pad_to: PadTo,
    drop_last: bool,
}

impl Buckets {
    /// The length of a value.
    #[must_use]
    pub fn length(value: &Tensor) -> usize {
        value.shape().first().copied().unwrap_or(value.data().len())
    }

    /// Number of classes.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.sizes.len()
    }

    /// The class of a length.
    #[must_use]
    pub fn class(&self, length: usize) -> usize {
        self.boundaries.partition_point(|boundary| *boundary < length)
    }

    /// The room that the batches of a round are given. Where there are fewer samples than ranks, a
    /// batch without any has a row of padding, as long as the longest sample of the others.
    #[must_use]
    pub fn room<T>(&self, round: &Round<T>) -> Room {
        let boundary = self.boundaries.get(self.class(round.longest));
        let too_few = (round.rows.len() as u64) < round.ranks;
        let length = match boundary.filter(|_| self.pad_to == PadTo::Boundary) {
            Some(boundary) => Some(*boundary),
            None => too_few.then_some(round.longest.max(1)),
        };
        let length = length.map(|length| (self.field, length));
        Room { rows: usize::from(too_few), length, mask: !self.drop_last }
    }

    /// The least and the greatest number of samples in a full batch.
    #[must_use]
    pub fn sizes(&self) -> (usize, usize) {
        let sizes = || self.sizes.iter().copied();
        (sizes().min().unwrap_or(1), sizes().max().unwrap_or(1))
    }

    /// The least and the greatest number of rounds that so many good samples of a stretch can give
    /// to `world` ranks; 0 if there are no rounds.
    #[must_use]
    pub fn bounds(&self, samples: u64, world: u64) -> (u64, u64) {
        let (small, large) = self.sizes();
        let ranks = world.max(1);
        let round = |size: usize| ranks.saturating_mul(size as u64);
        let dropped = match (self.drop_last, world) {
            (false, _) => 0,
            (true, 0) => self.sizes.iter().map(|size| *size as u64 - 1).sum(),
            (true, _) => round(large) - 1,
        };
        let least = samples.saturating_sub(dropped).div_ceil(round(large));
        let most = samples / round(small) + self.classes() as u64;
        (least, most.min(samples))
    }
}

/// Samples that are delivered together: one batch for each rank, or for the one rank whose stretch
/// it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Round<T> {
    /// Its samples.
    pub rows: Vec<T>,
    /// The longest of their lengths.
    longest: usize,
    /// Ranks that share it.
    ranks: u64,
}

impl<T> Round<T> {
    /// The part of one rank: as many as the others have, or one more. It is empty if there are
    /// fewer samples than ranks.
    #[must_use]
    pub fn part(mut self, rank: u64) -> Vec<T> {
        let count = self.rows.len() as u64;
        let (each, more) = (count / self.ranks, count % self.ranks);
        let start = |rank: u64| (rank.saturating_mul(each) + rank.min(more)).min(count) as usize;
        let (start, end) = (start(rank), start(rank.saturating_add(1)));
        self.rows.truncate(end);
        self.rows.drain(..start);
        self.rows
    }

    /// The parts of all ranks, in order.
    pub fn parts(self) -> impl Iterator<Item = Vec<T>> {
        let count = self.rows.len() as u64;
        let (each, more) = (count / self.ranks, count % self.ranks);
        let mut rows = self.rows.into_iter();
        let size = move |rank: u64| (each + u64::from(rank < more)) as usize;
        (0..self.ranks).map(move |rank| rows.by_ref().take(size(rank)).collect())
    }
}

/// A sample that is held back: its number in the stretch, its length, and itself.
struct Held<T> {
    number: u64,
    length: usize,
    row: T,
}

/// One way in which the rest of a stretch is dealt.
struct Stage<T> {
    /// Ranks that take their batches in rounds; 0 if there are no rounds.
    world: u64,
    /// Rounds that were delivered before.
    done: u64,
    /// What each class holds; nothing before the first sample.
    held: Vec<Vec<Held<T>>>,
}

/// Makes the rounds of one stretch. What earlier runs have delivered of it is made again and left
/// out; what they left is dealt anew.
pub struct BucketRun<T> {
    buckets: Buckets,
    /// How the stretch was dealt, one after the other; the last makes what is delivered.
    stages: VecDeque<Stage<T>>,
    pushed: u64,
}

impl<T> BucketRun<T> {
    /// A stretch of which earlier runs have delivered so much (ranks that took rounds, or 0; how
    /// many), and which is now dealt to `world` ranks in rounds (0 without), `done` of them again.
    #[must_use]
    pub fn new(buckets: &Buckets, begun: &[(u64, u64)], world: u64, done: u64) -> Self {
        let mut all: Vec<(u64, u64)> =
            begun.iter().copied().filter(|(_, done)| *done > 0).collect();
        match all.last_mut() {
            // What the same number of ranks has begun goes on.
            Some((before, rounds)) if *before == world => *rounds = rounds.saturating_add(done),
            _ => all.push((world, done)),
        }
        let stages = all.into_iter().map(|(world, done)| Stage { world, done, held: Vec::new() });
        Self { buckets: buckets.clone(), stages: stages.collect(), pushed: 0 }
    }

    /// Takes the next sample; a round may come of it.
    pub fn push(&mut self, length: usize, row: T, out: &mut VecDeque<Round<T>>) {
        let number = self.pushed;
        self.pushed += 1;
        self.take(Held { number, length, row }, out);
    }

    fn take(&mut self, held: Held<T>, out: &mut VecDeque<Round<T>>) {
        let class = self.buckets.class(held.length);
        let last = self.stages.len() == 1;
        let Some(stage) = self.stages.front_mut() else { return };
        stage.held.resize_with(self.buckets.classes(), Vec::new);
        stage.held[class].push(held);
        let enough = stage.world.max(1).saturating_mul(self.buckets.sizes[class] as u64);
        if (stage.held[class].len() as u64) < enough {
            return;
        }
        let rows = std::mem::take(&mut stage.held[class]);
        if stage.done == 0 {
            out.push_back(round(rows, stage.world));
            return;
        }
        stage.done -= 1;
        if stage.done == 0 && !last {
            // The rest is dealt in another way.
            let rest = stage.held.drain(..).flatten().collect();
            self.stages.pop_front();
            self.go_on(rest, out);
        }
    }

    /// Deals samples once more, in their order.
    fn go_on(&mut self, mut rest: Vec<Held<T>>, out: &mut VecDeque<Round<T>>) {
        rest.sort_unstable_by_key(|held| held.number);
        rest.into_iter().for_each(|held| self.take(held, out));
    }

    /// Ends the stretch: everything that is held comes out, or is dropped.
    pub fn finish(mut self, out: &mut VecDeque<Round<T>>) {
        while let Some(stage) = self.stages.pop_front() {
            let (world, mut done) = (stage.world, stage.done);
            let (rounds, mut rest) = self.last_rounds(stage);
            for rows in rounds {
                if done > 0 {
                    done -= 1;
                } else if self.stages.is_empty() {
                    out.push_back(round(rows, world));
                } else {
                    rest.extend(rows);
                }
            }
            if !self.stages.is_empty() {
                self.go_on(rest, out);
            }
        }
    }

    /// The rounds that are left at the end of a stretch, and what is dropped.
    fn last_rounds(&self, stage: Stage<T>) -> (Vec<Vec<Held<T>>>, Vec<Held<T>>) {
        let Stage { world, held, .. } = stage;
        let sizes = &self.buckets.sizes;
        let classes = held.into_iter().enumerate().filter(|(_, rows)| !rows.is_empty());
        if world == 0 {
            let all = classes.map(|(_, rows)| rows);
            return match self.buckets.drop_last {
                true => (Vec::new(), all.flatten().collect()),
                false => (all.collect(), Vec::new()),
            };
        }
        // A class that has enough for all ranks has a round of its own. The others share some, the
        // shorter ones first, of which none is larger than the smallest of their batches.
        let (mut rounds, mut shared, mut size) = (Vec::new(), Vec::new(), usize::MAX);
        for (class, rows) in classes {
            if !self.buckets.drop_last && rows.len() as u64 >= world {
                rounds.push(rows);
            } else {
                shared.extend(rows);
                size = size.min(sizes[class]);
            }
        }
        let whole = world.saturating_mul(size as u64).max(1);
        let mut dropped = Vec::new();
        if self.buckets.drop_last {
            // What came last is dropped, whatever its length.
            let keep = (shared.len() as u64 / whole * whole) as usize;
            shared.sort_unstable_by_key(|held| held.number);
            dropped = shared.split_off(keep);
            shared.sort_by_key(|held| self.buckets.class(held.length));
        }
        let mut left = (shared.len() as u64).div_ceil(whole);
        while !shared.is_empty() {
            // Rounds of about the same size, in which each rank has a sample if that can be.
            let even = (shared.len() as u64).div_ceil(left.max(1)).max(world);
            let rest = shared.split_off(even.min(shared.len() as u64) as usize);
            rounds.push(std::mem::replace(&mut shared, rest));
            left = left.saturating_sub(1);
        }
        (rounds, dropped)
    }
}

fn round<T>(held: Vec<Held<T>>, world: u64) -> Round<T> {
    let longest = held.iter().map(|held| held.length).max().unwrap_or(0);
    Round { rows: held.into_iter().map(|held| held.row).collect(), longest, ranks: world.max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use feedline_core::{DType, Field};

    fn buckets(boundaries: &[usize], size: usize, drop_last: bool) -> Buckets {
        let recipe = Bucket {
            field: None,
            boundaries: boundaries.to_vec(),
            size: Some(size),
            sizes: None,
            stretch: 4096,
            pad_to: PadTo::Longest,
            value: 0.0,
            drop_last,
        };
        let spec = Spec::new(vec![Field::new("tokens", DType::I32, &[None])]);
        recipe.output(&spec).unwrap().2
    }

    /// The rounds of a stretch, as the lengths in them.
    fn rounds(mut run: BucketRun<usize>, lengths: &[usize]) -> Vec<Vec<usize>> {
        let mut out = VecDeque::new();
        lengths.iter().for_each(|length| run.push(*length, *length, &mut out));
        run.finish(&mut out);
        out.into_iter().map(|round| round.rows).collect()
    }

    #[test]
    fn a_full_class_gives_a_batch_at_once_and_the_rest_at_the_end() {
        let buckets = buckets(&[10, 20], 2, false);
        let mut out = VecDeque::new();
        let mut run = BucketRun::new(&buckets, &[], 0, 0);
        for (length, batches) in [(15, 0), (10, 0), (30, 0), (11, 1), (0, 2), (7, 2), (20, 2)] {
            run.push(length, length, &mut out);
            assert_eq!(out.len(), batches, "after {length}");
        }
        run.finish(&mut out);
        let rows: Vec<_> = out.into_iter().map(|round| round.rows).collect();
        assert_eq!(rows, [vec![15, 11], vec![10, 0], vec![7], vec![20], vec![30]]);
    }

    #[test]
    fn a_round_has_a_batch_for_each_rank_of_about_the_same_size() {
        let parts = |count: usize, ranks: u64| -> Vec<Vec<usize>> {
            let round = Round { rows: (0..count).collect(), longest: 0, ranks };
            let each: Vec<_> = (0..ranks).map(|rank| round.clone().part(rank)).collect();
            assert_eq!(round.parts().collect::<Vec<_>>(), each);
            each
        };
        assert_eq!(parts(6, 3), [[0, 1], [2, 3], [4, 5]]);
        assert_eq!(parts(5, 3), [vec![0, 1], vec![2, 3], vec![4]]);
        assert_eq!(parts(2, 3), [vec![0], vec![1], vec![]]);
        let huge = Round { rows: vec![1, 2], longest: 0, ranks: u64::MAX };
        assert_eq!(huge.part(u64::MAX - 1), Vec::<i32>::new());
    }

    #[test]
    fn what_is_left_makes_rounds_of_a_class_and_then_mixed_ones() {
        let run = |drop_last| BucketRun::new(&buckets(&[10, 20], 2, drop_last), &[], 2, 0);
        let lengths = [15, 1, 2, 30, 3, 16, 4, 5, 6, 17, 40];
        // Four of the first class fill a round; two of it, three of the second and two of the third
        // are left.
        let all = [vec![1, 2, 3, 4], vec![5, 6], vec![15, 16, 17], vec![30, 40]];
        assert_eq!(rounds(run(false), &lengths), all);
        // One of each of the others share a round, the shorter ones first.
        assert_eq!(rounds(run(false), &[30, 15, 1]), [[1, 15, 30]]);
        // Only full ones: the first four of what is left, whatever their lengths.
        assert_eq!(rounds(run(true), &lengths), [[1, 2, 3, 4], [5, 15, 16, 30]]);
    }

    #[test]
    fn batches_of_one_leave_a_last_round_with_fewer_samples_than_ranks() {
        let run = BucketRun::new(&buckets(&[10, 20, 30], 1, false), &[], 3, 0);
        let found = rounds(run, &[5, 15, 25, 35]);
        assert_eq!(found, [vec![5, 15, 25], vec![35]]);
    }

    #[test]
    fn what_was_delivered_before_is_left_out_and_the_rest_dealt_anew() {
        let mut seed = 7u64;
        let mut draw = move |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for _ in 0..300 {
            let buckets = buckets(&[10, 20], 1 + draw(3) as usize, draw(2) == 0);
            // Different samples, so that each can be counted.
            let lengths: Vec<usize> = (0..draw(60)).map(|at| (at * 37 % 61) as usize).collect();
            let (mut begun, mut delivered) = (Vec::new(), Vec::new());
            for _ in 0..4 {
                let world = draw(5);
                let found = rounds(BucketRun::new(&buckets, &begun, world, 0), &lengths);
                let done = draw(found.len() as u64 + 1);
                let again = rounds(BucketRun::new(&buckets, &begun, world, done), &lengths);
                assert_eq!(again, found[done as usize..], "{begun:?}, {world} ranks");
                delivered.extend(found[..done as usize].iter().flatten().copied());
                if begun.last().is_some_and(|(known, _)| *known == world) {
                    begun.last_mut().unwrap().1 += done;
                } else {
                    begun.push((world, done));
                }
                let mut rest: Vec<usize> = found[done as usize..].concat();
                rest.extend(&delivered);
                rest.sort_unstable();
                let mut all = lengths.clone();
                all.sort_unstable();
                if buckets.drop_last {
                    rest.dedup();
                    assert!(rest.iter().all(|one| all.contains(one)));
                } else {
                    assert_eq!(rest, all, "{begun:?}");
                }
            }
        }
    }

    #[test]
    fn a_stretch_that_never_was_so_long_gives_nothing_more() {
        let begun = [(u64::MAX, 3), (2, u64::MAX), (0, 1)];
        let run = BucketRun::new(&buckets(&[10], 2, false), &begun, u64::MAX, u64::MAX);
        assert_eq!(rounds(run, &[1, 2, 3]), Vec::<Vec<usize>>::new());
    }

    #[test]
    fn bounds_hold_whatever_the_lengths() {
        for (drop_last, world) in [(false, 0), (true, 0), (false, 3), (true, 3), (false, 1)] {
            let buckets = buckets(&[10, 20], 3, drop_last);
            for count in 0..60usize {
                for step in [1, 7, 13, 31] {
                    let lengths: Vec<usize> = (0..count).map(|at| at * step % 29).collect();
                    let found = rounds(BucketRun::new(&buckets, &[], world, 0), &lengths).len();
                    let (least, most) = buckets.bounds(count as u64, world);
                    assert!((least..=most).contains(&(found as u64)), "{count}, {world} ranks");
                }
            }
        }
    }
}
