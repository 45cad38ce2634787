//! A cluster of simulated hosts, and the clock that drives it: one seed, one run.
//!
//! ```text
//!  dispatcher   worker-0 …   client-0-a  client-0-b …   operator        hosts
//!  ──────────────────────────── turmoil ────────────────────────────    network, clock
//!  faults, cuts, starts: what the world's agenda says, between ticks    here
//! ```
//!
//! A client has two hosts, so that a process that seems to be dead can live on beside the next.

use crate::history::History;
use crate::random::Random;
use crate::setup::Setup;
use crate::trace::{self, Tracer};
use crate::world::{DISPATCHER, Outcome, Plan, Process, Save, Shared, Task, World, lock};
use crate::{clients, dispatcher, workers};
use feedline_client::Begin;
use feedline_wire::{Epoch, Millis, Offset, Start};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use turmoil::Sim;

/// How far time moves at once, in milliseconds.
const TICK: Millis = 10;
/// When everything works again, a job has this long to come to its end.
const GRACE: Millis = 120_000;
/// No job has more clients.
pub const MOST_CLIENTS: u32 = 4;
/// The host of whoever releases lost clients.
pub const OPERATOR: &str = "operator";

/// tokio numbers all tasks of a process, and a host that crashes drops its tasks by their last bits. So
/// runs of one process take turns, and each begins with a number that ends in zeros.
fn take_turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.expect("a runtime can be made").block_on(async {
        let number = || tokio::spawn(async {}).id().to_string().parse::<u64>();
        while number().expect("tasks are numbered") % 64 != 63 {}
    });
    turn
}

/// Runs a seed. An error says what went wrong.
pub fn run(seed: u64) -> Result<Outcome, String> {
    run_adjusted(seed, |_| {})
}

/// Runs a seed in a world that is rougher in some respect.
pub fn run_adjusted(seed: u64, adjust: fn(&mut Setup)) -> Result<Outcome, String> {
    let _turn = take_turn();
    tracing::subscriber::with_default(Tracer, || {
        trace::begin();
        let mut random = Random::new(seed);
        let mut setup = Setup::new(&mut random);
        adjust(&mut setup);
        Cluster::new(seed, random, setup).run()
    })
}

pub struct Cluster {
    pub sim: Sim<'static>,
    pub world: Shared,
    /// Links that are cut or held, by their ends.
    pub cuts: BTreeSet<(String, String)>,
}

/// The two hosts of a client.
pub fn client_hosts(slot: u32) -> [String; 2] {
    [format!("client-{slot}-a"), format!("client-{slot}-b")]
}

impl Cluster {
    fn new(seed: u64, random: Random, setup: Setup) -> Self {
        trace::note(&format!("{setup:?}"));
        let mut builder = turmoil::Builder::new();
        builder
            .rng_seed(seed)
            .epoch(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000))
            .simulation_duration(Duration::from_secs(1_000_000))
            .tick_duration(Duration::from_millis(TICK))
            .min_message_latency(Duration::from_millis(1))
            .max_message_latency(Duration::from_millis(setup.latency))
            .fail_rate(setup.broken as f64 / 1e6)
            .repair_rate(0.05)
            .enable_random_order();
        let mut sim = builder.build();
        let workers = setup.workers;
        let world: Shared = Arc::new(Mutex::new(World::new(random, setup)));
        let shared = Shared::clone(&world);
        sim.host(DISPATCHER, move || dispatcher::run(Shared::clone(&shared)));
        for worker in 0..workers {
            let shared = Shared::clone(&world);
            sim.host(workers::host(worker), move || workers::run(Shared::clone(&shared), worker));
        }
        for host in (0..MOST_CLIENTS).flat_map(client_hosts) {
            let (shared, name) = (Shared::clone(&world), host.clone());
            sim.host(host, move || {
                let (shared, name) = (Shared::clone(&shared), name.clone());
                async move {
                    let assigned = lock(&shared).assigned.get(&name).copied();
                    if let Some(process) = assigned {
                        clients::run(shared, process).await;
                    }
                    Ok(())
                }
            });
        }
        let shared = Shared::clone(&world);
        sim.host(OPERATOR, move || dispatcher::operate(Shared::clone(&shared)));
        Self { sim, world, cuts: BTreeSet::new() }
    }

    fn run(mut self) -> Result<Outcome, String> {
        {
            let mut world = lock(&self.world);
            let troubled = world.setup.troubled;
            for slot in 0..world.slots.len() {
                world.soon(0, 300, Task::Start { slot, plan: 0 });
            }
            for _ in 0..world.setup.crashes + world.setup.cuts {
                world.soon(0, troubled, Task::Fault);
            }
            if world.may_lose_clients() && world.random.chance(300) {
                world.soon(0, troubled, Task::Loss);
            }
            world.at(troubled, Task::Healed);
        }
        loop {
            let now = self.sim.elapsed().as_millis() as Millis;
            trace::set_now(now);
            lock(&self.world).now = now;
            loop {
                let due = lock(&self.world).due();
                let Some(task) = due else { break };
                self.perform(task)?;
            }
            self.sim.step().map_err(|error| format!("a host fails: {error}"))?;
            if trace::panics() > 0 {
                return Err("a task panicked".into());
            }
            let mut world = lock(&self.world);
            if let Some(wrong) = world.wrong.take() {
                return Err(wrong);
            }
            if world.is_over() && !world.call_back() {
                world.check()?;
                world.outcome.trace = trace::hash();
                world.outcome.milliseconds = now;
                world.outcome.slowest = now.saturating_sub(world.setup.troubled);
                return Ok(world.outcome.clone());
            }
            if now > world.setup.troubled + GRACE {
                return Err(format!("stuck: {}", world.standstill()));
            }
        }
    }

    /// Starts a client's process, from one of its saves, or from what all begin from.
    pub fn start(&mut self, slot: usize) {
        let mut world = lock(&self.world);
        let base = world.plan.as_ref().map_or_else(Default::default, |plan| plan.base);
        let saves = world.slots[slot].saves.len() as u64;
        let (begin, history, round, began_from) = match (saves, world.plan.clone()) {
            _ if world.setup.alone => world.begin_alone(slot),
            (0, None) => (Begin::Fresh, world.slots[slot].inherits, 0, None),
            (0, Some(plan)) => {
                let Plan { start, hash, .. } = plan;
                (Begin::Restore { start, hash }, Default::default(), 0, None)
            }
            _ => {
                let save = world.choose_save(slot);
                let begin = Begin::Resume(save.checkpoint);
                (begin, save.history, save.round, Some(save.round))
            }
        };
        drop(world);
        let process = Process::new(slot, begin, history, base, round);
        self.launch(slot, Process { began_from, ..process });
    }

    /// Starts a process on one of the two hosts of its client.
    pub fn launch(&mut self, slot: usize, mut process: Process) {
        let hosts = client_hosts(slot as u32);
        let free = hosts.iter().find(|host| !self.sim.is_host_running(host.as_str()));
        // If both are in use, one of them is by a process that was thought to be dead.
        let host = free.unwrap_or(&hosts[0]).clone();
        let mut world = lock(&self.world);
        if let Begin::Resume(checkpoint) = &process.begin {
            // It goes back: what it saved later is of no use to anyone.
            let (incarnation, round) = (checkpoint.cursor.incarnation, process.round);
            for ((known, later), saves) in &mut world.common {
                if *known == incarnation && *later > round {
                    saves.remove(&process.consumer);
                }
            }
            world.outcome.rewinds += 1;
        }
        let number = world.processes.len();
        world.assigned.insert(host.clone(), number);
        trace::note(&format!("process {number} starts on {host}: {:?}", process.begin));
        process.host = host.clone();
        world.processes.push(process);
        world.slots[slot].process = Some(number);
        drop(world);
        self.sim.bounce(host);
    }
}

impl World {
    /// One of a client's saves, more likely a late one.
    fn choose_save(&mut self, slot: usize) -> Save {
        let last = self.slots[slot].saves.len() as u64 - 1;
        let save = self.random.within(0, last).max(self.random.within(0, last));
        self.slots[slot].saves[save as usize].clone()
    }

    /// With order exact: a client goes by its own state, whatever the others do.
    fn begin_alone(&mut self, slot: usize) -> (Begin, History, u64, Option<u64>) {
        let (position, windows) = (String::new(), self.setup.windows);
        if self.slots[slot].saves.is_empty() {
            let start = Start { epoch: Epoch(0), position, windows };
            return (Begin::At { start, own: 0, offset: Offset(0) }, History::default(), 0, None);
        }
        let Save { checkpoint, history, round, .. } = self.choose_save(slot);
        let cursor = checkpoint.cursor;
        let start = Start { epoch: cursor.epoch, position, windows };
        let offset = cursor.open.get(&cursor.floor).copied().unwrap_or_default();
        self.outcome.rewinds += 1;
        (Begin::At { start, own: cursor.used_up, offset }, history, round, Some(round))
    }
}
