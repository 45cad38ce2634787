//! All clients beginning again, from a state that their saves have in common.

use crate::cluster::{Cluster, MOST_CLIENTS};
use crate::history::History;
use crate::layout::Layout;
use crate::trace;
use crate::world::{Plan, Slot, Task, World, lock};
use feedline_client::merge_checkpoints;
use feedline_wire::{Epoch, Incarnation, Start};

impl Cluster {
    /// All clients stop, and begin again from a state that they have in common.
    pub fn restore(&mut self) -> Result<(), String> {
        let (plan, dead) = {
            let mut world = lock(&self.world);
            let plan = world.choose_plan()?;
            let mut dead = Vec::new();
            for slot in 0..world.slots.len() {
                if let Some(process) = world.slots[slot].process {
                    world.bury(process);
                    match world.random.chance(150) {
                        true => world.live_on(process, 5_000),
                        false => dead.push(process),
                    }
                }
            }
            (plan, dead)
        };
        dead.into_iter().for_each(|process| self.crash_process(process));
        let mut world = lock(&self.world);
        world.slots = (0..plan.consumers).map(|_| Slot::default()).collect();
        world.plan = Some(plan);
        world.plans += 1;
        for slot in 0..world.slots.len() {
            let plan = world.plans;
            world.soon(10, 2_000, Task::Start { slot, plan });
        }
        Ok(())
    }
}

impl World {
    /// A state that all clients have in common.
    fn choose_plan(&mut self) -> Result<Plan, String> {
        self.outcome.restores += 1;
        let complete = self.common.iter().filter(|(_, saves)| {
            saves.values().next().is_some_and(|save| saves.len() as u32 == save.consumers)
        });
        let mut candidates: Vec<(Incarnation, u64)> = complete.map(|(key, _)| *key).collect();
        candidates.drain(..candidates.len().saturating_sub(4));
        let consumers = match self.random.chance(300) {
            true => self.random.within(1, u64::from(MOST_CLIENTS)) as u32,
            false => self.slots.len() as u32,
        };
        let mut plan = None;
        while !candidates.is_empty() && plan.is_none() && !self.random.chance(50) {
            let at = (self.random.next() % candidates.len() as u64) as usize;
            plan = self.plan_from(candidates.swap_remove(at), consumers)?;
        }
        // Otherwise from where this life of the job began.
        Ok(plan.or_else(|| self.plan.clone()).unwrap_or_else(|| Plan {
            start: Start { epoch: Epoch(0), position: String::new(), windows: self.setup.windows },
            hash: format!("beginning {consumers}"),
            consumers,
            base: History::default(),
        }))
    }

    /// What the saves of a round leave to be done; nothing, if they do not fit together.
    fn plan_from(
        &mut self,
        round: (Incarnation, u64),
        consumers: u32,
    ) -> Result<Option<Plan>, String> {
        let saves = &self.common[&round];
        let checkpoints: Vec<_> = saves.values().map(|save| save.checkpoint.clone()).collect();
        let whole = self.setup.windows;
        let merged = match merge_checkpoints(&checkpoints, &whole) {
            Ok(merged) => merged,
            Err(error) => {
                trace::note(&format!("{round:?} cannot be restored: {error}"));
                self.outcome.refused_merges += 1;
                return Ok(None);
            }
        };
        let (epoch, position) = (merged.left.epoch, String::new());
        let start = merged.start.unwrap_or(Start { epoch, position, windows: whole });
        let layout = Layout::new(&start, whole);
        let total = merged.left.steps(&merged.windows);
        let pieces = merged.left.pieces(&merged.windows, 0, total);
        let steps = pieces.iter().flat_map(|piece| {
            let step = |offset| layout.step(epoch.0, piece.window, offset);
            (piece.from.0..piece.to.0).map(step).collect::<Vec<u64>>()
        });
        let steps: Vec<u64> = steps.collect();
        // What was used, and what is left: nothing twice, nothing missing.
        let mut base = saves.values().next().map_or(History::default(), |save| save.base);
        let twice = saves.values().try_for_each(|save| base.join(&save.history));
        let mut all = base;
        let again = steps.iter().find(|step| !all.insert(epoch.0, **step));
        let missing = History::full(epoch.0 + 1, whole.total()).missing_in(&all);
        let missing = missing.filter(|_| self.exactly_once());
        if let Some(wrong) = twice.err().or(missing).or(again.map(|step| format!("{step} again"))) {
            return Err(format!("{round:?} is merged wrongly: {wrong}"));
        }
        let left: Vec<String> = steps.iter().map(u64::to_string).collect();
        let position = format!("left:{}", left.join(","));
        let windows = merged.left.cut(&merged.windows);
        let hash = format!("{epoch} {position} {consumers}");
        trace::note(&format!("all restore {round:?} on {consumers}: {hash}"));
        Ok(Some(Plan { start: Start { epoch, position, windows }, hash, consumers, base }))
    }
}
