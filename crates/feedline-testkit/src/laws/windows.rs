//! The laws of windows: stretches that are computed by themselves, in windows of any size and from
//! any stretch on, are put together to exactly what a run delivers.

use super::{Laws, Outcome, PATIENCE};
use feedline_core::{Pool, Position, Result, Rows};
use feedline_engine::{
    Assembly, Delivery, Next, Options, Progress, Team, Wanted, Window, WindowRun,
};
use std::collections::BTreeMap;
use std::sync::Arc;

impl Laws<'_> {
    /// From the start, from where a run was left, and from where others were left out of order.
    pub(super) fn windows_make_the_run(&self, worlds: &[u64]) {
        let team = Team::new(2).expect("threads");
        // Where batches go by length, each rank has its own part of a round.
        let all = self.pipeline.bucket.is_some();
        let ranks = |world: u64| if all { 0..world } else { world - 1..world };
        for (world, rank) in worlds.iter().flat_map(|w| ranks(*w).map(move |rank| (*w, rank))) {
            let wanted =
                self.engine(Position::default(), self.options(2, 0, rank, world), self.most());
            for steps in [1, 3] {
                let found = self.in_windows(&team, Position::default(), rank, world, steps);
                self.same(&found, &wanted, &format!("rank {rank} of {world}, windows of {steps}"));
            }
            let (_, positions) = self.positions(Position::default(), rank, world);
            let mut starts: Vec<Position> = positions.into_iter().skip(1).take(2).collect();
            starts.extend(self.after_ready(rank, world));
            for (at, start) in starts.into_iter().enumerate() {
                let options = self.options(2, 0, rank, world);
                let wanted = self.engine(start.clone(), options, self.most());
                let found = self.in_windows(&team, start, rank, world, 2);
                self.same(&found, &wanted, &format!("rank {rank} of {world}, from place {at}"));
            }
        }
    }

    /// Where a run whose batches took what was ready stands after its first.
    fn after_ready(&self, rank: u64, world: u64) -> Option<Position> {
        if self.pipeline.bucket.is_some() {
            return None;
        }
        let delivery = Delivery::Ready { max_slip: 2 };
        let options = Options { delivery, ..self.options(3, 0, rank, world) };
        let mut run = self.start(Position::default(), options);
        match run.next_within(PATIENCE) {
            Ok(Some(Next::Batch(_))) => Some(run.position()),
            _ => None,
        }
    }

    /// An epoch, put together of windows of so many steps.
    fn in_windows(
        &self,
        team: &Team,
        position: Position,
        rank: u64,
        world: u64,
        steps: u64,
    ) -> Outcome {
        let options = self.options(1, 0, rank, world);
        let assembly = Assembly::new(Arc::clone(&self.pipeline), position, options.clone());
        let mut assembly = assembly.expect("options of a test");
        let pool = Pool::new(1 << 20);
        if self.pipeline.bucket.is_some() {
            return self.in_stretches(team, &pool, assembly, &options, steps);
        }
        let mut known: BTreeMap<u64, Result<Rows>> = BTreeMap::new();
        let (mut batches, mut error) = (Vec::new(), None);
        while batches.len() < self.most() {
            match assembly.next() {
                Ok(Some(Next::Batch(batch))) => batches.push(batch),
                Ok(Some(Next::EpochEnd(_) | Next::End)) => break,
                Ok(None) => {
                    let Wanted { start, step, .. } =
                        assembly.wants().expect("it says what it waits for");
                    if !known.contains_key(&step) {
                        // Not from its beginning, as after a worker was lost.
                        let end = (step / steps + 1) * steps;
                        let (first, steps) = (step, end - step);
                        let (from, every_rank) = (0, false);
                        let window = Window { start, rank, world, first, steps, from, every_rank };
                        known.extend(self.window(team, &pool, &window, &options));
                    }
                    let rows = known.remove(&step).expect("a window has all its steps");
                    if let Err(failure) = rows.and_then(|rows| assembly.give(rows)) {
                        error = Some(failure.to_string());
                        break;
                    }
                }
                Err(failure) => {
                    error = Some(failure.to_string());
                    break;
                }
            }
        }
        Outcome { batches, error }
    }

    /// An epoch of stretches that give several batches; after every `lost` of them the window is
    /// computed elsewhere.
    fn in_stretches(
        &self,
        team: &Team,
        pool: &Pool,
        mut assembly: Assembly,
        options: &Options,
        lost: u64,
    ) -> Outcome {
        let Options { rank, world, .. } = *options;
        let (mut batches, mut error) = (Vec::new(), None);
        let (_, stands) = self.positions(assembly.position(), rank, world);
        while batches.len() < self.most() {
            match assembly.next() {
                Ok(Some(Next::Batch(batch))) => batches.push(batch),
                Ok(Some(_)) => break,
                Err(failure) => {
                    error = Some(failure.to_string());
                    break;
                }
                Ok(None) => {
                    let Wanted { start, step, from } = assembly.wants().expect("it says what");
                    // A worker may compute a stretch once for all ranks.
                    let every_rank = options.rounds && lost > 1;
                    let (first, steps) = (step, 1);
                    let window = Window { start, rank, world, first, steps, from, every_rank };
                    let (pipeline, store) = (Arc::clone(&self.pipeline), Arc::clone(&self.store));
                    // Indices are taken out again where nobody asked for them.
                    let given = Options { with_index: false, ..options.clone() };
                    let run = WindowRun::start(team, pool, pipeline, store, &window, given);
                    let mut run = run.expect("options of a test");
                    let (mut taken, mut seen) = (0, 0);
                    let failed = loop {
                        let rows = match run.next_within(PATIENCE) {
                            Ok(Progress::Stretch(stretch)) => {
                                let ranks = if every_rank { world } else { 1 };
                                assert_eq!(stretch.step, from * ranks + seen, "{}", self.plan);
                                let is_batch = matches!(stretch.rows, Rows::Batch(_));
                                seen += u64::from(is_batch);
                                // Bad samples concern all ranks.
                                if every_rank && is_batch && stretch.step % ranks != rank {
                                    continue;
                                }
                                stretch.rows
                            }
                            Ok(Progress::Waits) => panic!("{}: {window:?} hangs", self.plan),
                            Ok(Progress::End) => {
                                assembly.end().expect("a stretch was wanted");
                                break None;
                            }
                            Err(failure) => break Some(failure),
                        };
                        taken += u64::from(matches!(rows, Rows::Batch(_)));
                        if let Err(failure) = assembly.give(rows) {
                            break Some(failure);
                        }
                        if let Ok(Some(Next::Batch(batch))) = assembly.next() {
                            batches.push(batch);
                            assert_eq!(assembly.position(), stands[batches.len()], "{}", self.plan);
                        }
                        if taken == lost || batches.len() == self.most() {
                            break None;
                        }
                    };
                    if let Some(failure) = failed {
                        error = Some(failure.to_string());
                        break;
                    }
                }
            }
        }
        Outcome { batches, error }
    }

    /// All stretches of a window, or as many as there are before an error.
    fn window(
        &self,
        team: &Team,
        pool: &Pool,
        window: &Window,
        options: &Options,
    ) -> BTreeMap<u64, Result<Rows>> {
        let (pipeline, store) = (Arc::clone(&self.pipeline), Arc::clone(&self.store));
        let run = WindowRun::start(team, pool, pipeline, store, window, options.clone());
        let mut run = run.expect("options of a test");
        let mut found = BTreeMap::new();
        loop {
            let step = window.first + found.len() as u64;
            match run.next_within(PATIENCE) {
                Ok(Progress::Stretch(stretch)) => {
                    assert_eq!(stretch.step, step);
                    found.insert(step, Ok(stretch.rows));
                }
                Ok(Progress::Waits) => panic!("{}: {window:?} hangs", self.plan),
                Ok(Progress::End) => return found,
                Err(error) => {
                    found.insert(step, Err(error));
                    return found;
                }
            }
        }
    }
}
