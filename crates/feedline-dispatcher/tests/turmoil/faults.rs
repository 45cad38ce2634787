//! What goes wrong: crashes, cuts, losses, and all clients beginning again.

use crate::cluster::{Cluster, MOST_CLIENTS, OPERATOR, client_hosts};
use crate::history::History;
use crate::layout::Layout;
use crate::trace;
use crate::workers;
use crate::world::{DISPATCHER, Plan, Process, Slot, Task, World, lock};
use feedline_client::{Begin, merge_checkpoints};
use feedline_wire::{Epoch, Incarnation, JobId, Start};
use std::time::Duration;

impl Cluster {
    /// Does what is due.
    pub fn perform(&mut self, task: Task) -> Result<(), String> {
        match task {
            Task::Start { slot, plan } => {
                let world = lock(&self.world);
                let free = world.slots.get(slot).is_some_and(|slot| slot.process.is_none());
                let current = plan == world.plans && free && !world.slots[slot].lost;
                drop(world);
                if current {
                    self.start(slot);
                }
            }
            Task::Restart { process } => {
                if lock(&self.world).counts(process) {
                    lock(&self.world).begin_again(process);
                }
            }
            Task::Restore => self.restore()?,
            Task::Fault => self.fault()?,
            Task::Loss => self.lose(),
            Task::Healed => self.heal(),
            Task::Release { slot, incarnation } => self.release(slot, incarnation),
            Task::Replace { slot, incarnation, inherits } => {
                self.replace(slot, incarnation, inherits);
            }
            Task::ZombieDies { process } => self.crash_process(process),
            Task::DispatcherCrashes { partitioned } => self.crash_dispatcher(partitioned),
            Task::DispatcherUp => self.start_host(DISPATCHER),
            Task::DiskHasSpace => lock(&self.world).free_disk(),
            Task::WorkerUp { worker } => {
                let slow = {
                    let mut world = lock(&self.world);
                    !world.healed && world.random.chance(150)
                };
                lock(&self.world).workers_slow[worker as usize] = slow;
                self.start_host(&workers::host(worker));
            }
            Task::Mend { from, to } => {
                if self.cuts.remove(&(from.clone(), to.clone())) {
                    self.sim.release(from.as_str(), to.as_str());
                }
            }
        }
        Ok(())
    }

    fn start_host(&mut self, host: &str) {
        if !self.sim.is_host_running(host) {
            trace::note(&format!("{host} starts"));
            self.sim.bounce(host);
        }
    }

    fn hosts(&self) -> Vec<String> {
        let workers = (0..lock(&self.world).setup.workers).map(workers::host);
        let clients = (0..MOST_CLIENTS).flat_map(client_hosts);
        [DISPATCHER, OPERATOR]
            .map(str::to_owned)
            .into_iter()
            .chain(workers)
            .chain(clients)
            .collect()
    }

    /// A host stops. If its power fails, its peers hear nothing of that; otherwise its kernel says so.
    fn crash(&mut self, host: &str, power: bool) {
        trace::note(&format!("{host} crashes, {}", if power { "silently" } else { "noticed" }));
        let is_cut = |cuts: &Self, other: &str| {
            let (one, two) = (host.to_owned(), other.to_owned());
            cuts.cuts.contains(&(one.clone(), two.clone())) || cuts.cuts.contains(&(two, one))
        };
        let others: Vec<String> = self
            .hosts()
            .into_iter()
            .filter(|other| other != host && !is_cut(self, other))
            .collect();
        if power {
            others.iter().for_each(|other| self.sim.partition(host, other.as_str()));
        }
        self.sim.crash(host);
        if power {
            others.iter().for_each(|other| self.sim.repair(host, other.as_str()));
        }
    }

    fn fault(&mut self) -> Result<(), String> {
        let (kind, power, setup) = {
            let mut world = lock(&self.world);
            world.outcome.faults += 1;
            (world.random.within(0, 19), world.random.chance(400), world.setup.clone())
        };
        match kind {
            kind if kind < setup.dispatcher_faults => self.trouble_dispatcher(power),
            4..=7 => {
                let worker = {
                    let mut world = lock(&self.world);
                    let worker = world.random.within(0, u64::from(setup.workers) - 1) as u32;
                    world.soon(50, 6_000, Task::WorkerUp { worker });
                    worker
                };
                self.crash(&workers::host(worker), power);
            }
            8..=13 => {
                let slots = lock(&self.world).slots.len() as u64;
                let slot = lock(&self.world).random.within(0, slots - 1) as usize;
                self.crash_client(slot, power);
            }
            // Each begins again by itself.
            14 | 15 if setup.alone => {
                (0..setup.consumers as usize).for_each(|slot| self.crash_client(slot, power));
            }
            14 | 15 => self.restore()?,
            16 => lock(&self.world).fill_disk(),
            _ => self.cut(),
        }
        Ok(())
    }

    /// The way between a client and somebody else, or between a worker and the dispatcher, is cut or
    /// held.
    fn cut(&mut self) {
        let mut world = lock(&self.world);
        let setup = world.setup.clone();
        let slots = world.slots.len() as u64;
        let slot = world.random.within(0, slots - 1) as usize;
        let other = world.random.within(0, u64::from(setup.workers)) as u32;
        let other = match other.checked_sub(1) {
            None => DISPATCHER.to_owned(),
            Some(worker) => workers::host(worker),
        };
        let client = world.slots[slot].process.map(|process| world.processes[process].host.clone());
        let (from, to) = match client {
            Some(client) if world.random.chance(800) => (client, other),
            _ => (workers::host(0), DISPATCHER.to_owned()),
        };
        let kind = world.random.within(0, 3);
        if from == to || !self.cuts.insert((from.clone(), to.clone())) {
            return;
        }
        trace::note(&format!("the way between {from} and {to} is cut, in way {kind}"));
        world.soon(100, 6_000, Task::Mend { from: from.clone(), to: to.clone() });
        drop(world);
        match kind {
            0 => self.sim.partition(from.as_str(), to.as_str()),
            1 => self.sim.partition_oneway(from.as_str(), to.as_str()),
            2 => self.sim.partition_oneway(to.as_str(), from.as_str()),
            _ => self.sim.hold(from.as_str(), to.as_str()),
        }
    }

    /// The power of the dispatcher's disk fails, now or at one of its next operations; soon after, the
    /// dispatcher is gone.
    fn trouble_dispatcher(&mut self, power: bool) {
        if !self.sim.is_host_running(DISPATCHER) {
            return;
        }
        let mut world = lock(&self.world);
        let after = world.random.within(0, 3);
        world.disk.stop_at(world.disk.operations() + after);
        let later = world.random.chance(500);
        let (from, to) = if later { (10, 80) } else { (0, 0) };
        world.soon(from, to, Task::DispatcherCrashes { partitioned: power });
    }

    fn crash_dispatcher(&mut self, power: bool) {
        self.crash(DISPATCHER, power);
        let mut world = lock(&self.world);
        let coins = world.random.next();
        // What was synced is there; of the rest, any part.
        world.disk = world.disk.after_crash(coins);
        let (least, most) = match (world.healed, world.random.chance(100)) {
            (true, _) => (50, 500),
            (false, true) => (5_000, 15_000),
            (false, false) => (50, 3_000),
        };
        world.soon(least, most, Task::DispatcherUp);
    }

    fn crash_client(&mut self, slot: usize, power: bool) {
        let mut world = lock(&self.world);
        let Some(process) = world.slots[slot].process else { return };
        if world.processes[process].finished {
            return;
        }
        world.bury(process);
        let plan = world.plans;
        world.soon(10, 3_000, Task::Start { slot, plan });
        if world.random.chance(250) {
            world.live_on(process, 8_000);
            return;
        }
        let host = world.processes[process].host.clone();
        drop(world);
        self.crash(&host, power);
    }

    /// Ends a process, if its host has not been given to another.
    fn crash_process(&mut self, process: usize) {
        let mut world = lock(&self.world);
        world.processes[process].alive = false;
        let host = world.processes[process].host.clone();
        let has_it = world.assigned.get(&host) == Some(&process);
        drop(world);
        if has_it {
            self.crash(&host, false);
        }
    }

    /// A client is gone for good, with everything it has.
    fn lose(&mut self) {
        let mut world = lock(&self.world);
        let slots = world.slots.len() as u64;
        let slot = world.random.within(0, slots - 1) as usize;
        let Some(process) = world.slots[slot].process else { return };
        let known = &world.processes[process];
        if world.slots.len() < 2 || known.finished || !known.attached {
            return;
        }
        // One that was thought to be dead may have the seat: then it is not this one that is lost.
        if world.processes.iter().any(|other| other.zombie && other.consumer == known.consumer) {
            return;
        }
        trace::note(&format!("process {process} (client {slot}) is lost for good"));
        world.outcome.faults += 1;
        world.bury(process);
        world.slots[slot].lost = true;
        world.slots[slot].lost_process = Some(process);
        drop(world);
        self.crash_process(process);
    }

    fn heal(&mut self) {
        trace::note("from now on nothing fails");
        {
            let mut world = lock(&self.world);
            world.healed = true;
            world.free_disk();
            world.workers_slow.iter_mut().for_each(|slow| *slow = false);
        }
        self.cuts.clear();
        self.sim.set_fail_rate(0.0);
        self.sim.set_max_message_latency(Duration::from_millis(5));
        let hosts = self.hosts();
        for (at, one) in hosts.iter().enumerate() {
            hosts[..at].iter().for_each(|other| self.sim.release(one.as_str(), other.as_str()));
        }
        let workers = lock(&self.world).setup.workers;
        (0..workers).for_each(|worker| self.start_host(&workers::host(worker)));
    }

    fn release(&mut self, slot: usize, incarnation: Incarnation) {
        let mut world = lock(&self.world);
        let lost = world.slots.get(slot).is_some_and(|slot| slot.lost);
        let job = world.processes.iter().map(|process| process.job).find(|job| *job != JobId(0));
        let (Some(job), true, None) = (job, lost, world.release) else { return };
        trace::note(&format!("client {slot} is to be released"));
        world.release = Some((slot, job, incarnation));
        drop(world);
        self.sim.bounce(OPERATOR);
    }

    fn replace(&mut self, slot: usize, incarnation: Incarnation, inherits: History) {
        let mut world = lock(&self.world);
        if !world.slots.get(slot).is_some_and(|slot| slot.lost) {
            return;
        }
        let rounds = world.slots.iter().filter_map(|slot| slot.process);
        let round = rounds.map(|process| world.processes[process].round).max().unwrap_or(0);
        world.slots[slot] = Slot { inherits, ..Slot::default() };
        let base = world.plan.as_ref().map_or_else(History::default, |plan| plan.base);
        drop(world);
        // Whatever all began from, who takes over begins with what is there.
        let process = Process::new(slot, Begin::Fresh, inherits, base, round);
        self.launch(slot, Process { inherits_in: Some(incarnation), ..process });
    }

    /// All clients stop, and begin again from a state that they have in common.
    fn restore(&mut self) -> Result<(), String> {
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
    /// Somebody else fills the dispatcher's disk, for a while.
    fn fill_disk(&mut self) {
        let left = self.random.within(0, 3_000);
        trace::note(&format!("the disk is full, but for {left} bytes"));
        self.disk.set_capacity(Some(self.disk.used() + left));
        self.disk_is_full = true;
        self.outcome.full += 1;
        self.soon(200, 5_000, Task::DiskHasSpace);
    }

    fn free_disk(&mut self) {
        self.disk.set_capacity(None);
        self.disk_is_full = false;
    }

    /// A process only seems to have crashed: another takes its place while it goes on for a while.
    fn live_on(&mut self, process: usize, most: u64) {
        trace::note(&format!("process {process} lives on"));
        (self.processes[process].alive, self.processes[process].zombie) = (true, true);
        self.soon(100, most, Task::ZombieDies { process });
    }

    /// A process waits for a client that is silent.
    pub fn missed(&mut self, silent: usize, by: usize) {
        // It has finished, but in a life of the job that is over.
        let finished = self.slots.get(silent).and_then(|slot| slot.process);
        if let Some(process) = finished.filter(|one| self.processes[*one].finished) {
            self.soon(0, 0, Task::Restart { process });
        }
        if self.slots.get(silent).is_some_and(|slot| slot.lost) {
            let incarnation = self.processes[by].incarnation;
            self.soon(10, 500, Task::Release { slot: silent, incarnation });
        }
    }

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
