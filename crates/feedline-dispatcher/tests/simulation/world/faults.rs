//! What goes wrong: crashes, cuts, losses, and all clients beginning again.

use super::*;

impl World {
    pub(super) fn fault(&mut self) -> Result<(), String> {
        self.outcome.faults += 1;
        self.mix([self.now, 10, 0]);
        match self.random.within(0, 19) {
            kind if kind < self.setup.dispatcher_faults => {
                if self.server.up {
                    self.crash_dispatcher();
                }
            }
            4..=7 => {
                let worker = self.random.within(0, u64::from(self.setup.workers) - 1) as u32;
                trace!(self, "worker {worker} crashes");
                self.workers_up[worker as usize] = false;
                self.soon(50, 8_000, Happening::WorkerUp { worker });
            }
            8..=13 => {
                let slot = self.random.within(0, self.slots.len() as u64 - 1) as usize;
                self.crash_client(slot);
            }
            14 | 15 => self.restore()?,
            16 => self.server.clock = *self.random.pick(&[0, 5_000, 365 * 86_400_000]),
            _ => {
                let slot = self.random.within(0, self.slots.len() as u64 - 1) as u32;
                let client = slot_node(ConsumerIndex(slot));
                let other = self.random.within(0, u64::from(self.setup.workers)) as u32;
                let until = self.now + self.random.within(100, 10_000);
                trace!(self, "the way between client {slot} and node {other} is cut until {until}");
                let ways = self.random.within(1, 3);
                if ways & 1 == 1 {
                    self.cuts.push((client, other, until));
                }
                if ways & 2 == 2 {
                    self.cuts.push((other, client, until));
                }
            }
        }
        Ok(())
    }

    pub(super) fn crash_client(&mut self, slot: usize) {
        let Some(process) = self.slots[slot].process else { return };
        if self.processes[process].finished {
            return;
        }
        trace!(self, "process {process} (client {slot}) crashes");
        self.kill(process);
        if self.random.chance(250) {
            self.live_on(process, 10_000);
        }
        self.soon(10, 3_000, Happening::Start { slot, plan: self.plans });
    }

    /// A process only seems to have crashed: another takes its place while it goes on for a while.
    pub(super) fn live_on(&mut self, process: usize, most: Millis) {
        (self.processes[process].alive, self.processes[process].zombie) = (true, true);
        self.soon(100, most, Happening::ZombieDies { process });
    }

    /// A client is gone for good, with everything it has.
    pub(super) fn lose(&mut self) {
        let slot = self.random.within(0, self.slots.len() as u64 - 1) as usize;
        let Some(process) = self.slots[slot].process else { return };
        let known = &self.processes[process];
        if self.slots.len() < 2 || known.finished || !known.client.is_attached() {
            return;
        }
        // One that was thought to be dead may have the seat: then it is not this one that is lost.
        if self.processes.iter().any(|other| other.zombie && other.consumer == known.consumer) {
            return;
        }
        trace!(self, "process {process} (client {slot}) is lost for good");
        self.outcome.faults += 1;
        self.kill(process);
        self.slots[slot].lost = true;
        self.slots[slot].lost_process = Some(process);
    }

    pub(super) fn heal(&mut self) {
        trace!(self, "from now on nothing fails");
        self.healed = true;
        self.cuts.clear();
        self.workers_slow.iter_mut().for_each(|slow| *slow = false);
        if !self.server.up {
            self.restart_dispatcher();
        }
        self.workers_up.iter_mut().for_each(|up| *up = true);
    }

    /// All clients stop, and begin again from a state that they have in common.
    pub(super) fn restore(&mut self) -> Result<(), String> {
        self.outcome.restores += 1;
        let complete = self.common.iter().filter(|(_, saves)| {
            saves.values().next().is_some_and(|save| saves.len() as u32 == save.consumers)
        });
        let mut candidates: Vec<(Incarnation, u64)> = complete.map(|(key, _)| *key).collect();
        candidates.drain(..candidates.len().saturating_sub(4));
        let consumers = match self.random.chance(300) {
            true => self.random.within(1, 4) as u32,
            false => self.slots.len() as u32,
        };
        let mut plan = None;
        while !candidates.is_empty() && plan.is_none() && !self.random.chance(50) {
            let at = (self.random.next() % candidates.len() as u64) as usize;
            plan = self.plan_from(candidates.swap_remove(at), consumers)?;
        }
        // Otherwise from where this life of the job began.
        let plan = plan.or_else(|| self.plan.clone()).unwrap_or_else(|| Plan {
            start: Start { epoch: Epoch(0), position: String::new(), windows: self.setup.windows },
            hash: format!("beginning {consumers}"),
            consumers,
            base: History::default(),
        });
        for slot in 0..self.slots.len() {
            if let Some(process) = self.slots[slot].process {
                self.kill(process);
                if self.random.chance(150) {
                    self.live_on(process, 5_000);
                }
            }
        }
        self.slots = (0..plan.consumers).map(|_| Slot::default()).collect();
        self.plan = Some(plan);
        self.plans += 1;
        for slot in 0..self.slots.len() {
            self.soon(10, 3_000, Happening::Start { slot, plan: self.plans });
        }
        Ok(())
    }

    /// What the saves of a round leave to be done; nothing, if they do not fit together.
    pub(super) fn plan_from(
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
                trace!(self, "{round:?} cannot be restored: {error}");
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
        trace!(self, "all restore {round:?} on {consumers}: {hash}");
        Ok(Some(Plan { start: Start { epoch, position, windows }, hash, consumers, base }))
    }
}
