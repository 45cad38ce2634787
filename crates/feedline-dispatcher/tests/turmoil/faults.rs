//! What goes wrong: crashes, cuts, full disks, losses.

use crate::cluster::{Cluster, MOST_CLIENTS, OPERATOR, client_hosts};
use crate::history::History;
use crate::trace;
use crate::workers;
use crate::world::{DISPATCHER, Process, Slot, Task, World, lock};
use feedline_client::Begin;
use feedline_wire::{Incarnation, JobId};
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
            Task::WorkerEnds { worker } => self.crash_worker(worker, false),
            Task::WorkerUp { worker } => self.start_worker(worker),
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
                let mut world = lock(&self.world);
                let worker = world.random.within(0, u64::from(setup.workers) - 1) as u32;
                if world.random.chance(250) {
                    trace::note(&format!("worker {worker} is told to end"));
                    world.workers_draining[worker as usize] = true;
                    world.soon(700, 2_000, Task::WorkerEnds { worker });
                } else {
                    drop(world);
                    self.crash_worker(worker, power);
                }
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

    fn crash_worker(&mut self, worker: u32, power: bool) {
        lock(&self.world).soon(50, 6_000, Task::WorkerUp { worker });
        self.crash(&workers::host(worker), power);
    }

    fn start_worker(&mut self, worker: u32) {
        let host = workers::host(worker);
        if !self.sim.is_host_running(host.as_str()) {
            let mut world = lock(&self.world);
            let slow = !world.healed && world.random.chance(150);
            world.workers_slow[worker as usize] = slow;
            world.workers_draining[worker as usize] = false;
        }
        self.start_host(&host);
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
    pub fn crash_process(&mut self, process: usize) {
        let world = lock(&self.world);
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
        (0..workers).for_each(|worker| self.start_worker(worker));
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
    pub fn live_on(&mut self, process: usize, most: u64) {
        trace::note(&format!("process {process} lives on"));
        self.processes[process].zombie = true;
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
}
