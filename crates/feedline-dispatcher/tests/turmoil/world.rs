//! What is known of a run beside what its hosts know: who trains as whom, what was used and saved, and
//! what happens when.

use crate::history::History;
use crate::layout::Layout;
use crate::random::Random;
use crate::setup::Setup;
use crate::trace;
use feedline_client::{Begin, Checkpoint};
use feedline_core::{Blobs, Tensor};
use feedline_journal::SimulatedDisk;
use feedline_rpc::{Address, Calls, Duplex, blob};
use feedline_wire::control::Dataset;
use feedline_wire::{ConsumerIndex, Incarnation, JobId, Millis, Order, Start, Visitation};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use turmoil::net::TcpStream;

/// The world, as all hosts share it.
pub type Shared = Arc<Mutex<World>>;

pub fn lock(world: &Shared) -> MutexGuard<'_, World> {
    world.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The host of the dispatcher, and where it serves.
pub const DISPATCHER: &str = "dispatcher";
pub const PORT: u16 = 7_070;

/// The dispatcher, called over the simulated network.
pub fn connect() -> Calls {
    let address = Address::Tcp { host: DISPATCHER.to_owned(), port: PORT };
    Calls::over(address, None, || async {
        let stream = TcpStream::connect((DISPATCHER, PORT)).await?;
        Ok(Box::new(stream) as Box<dyn Duplex>)
    })
}

/// The dataset that all train on; an argument of its plan is a blob if it has so many numbers.
pub fn dataset(argument: usize) -> (Dataset, Blobs) {
    let numbers: Vec<u64> = (0..argument as u64).collect();
    let tensor = (argument > 0).then(|| Tensor::from_slice(&[argument], &numbers));
    let blobs: Blobs = tensor.into_iter().map(|tensor| (blob::name(&tensor), tensor)).collect();
    let names = blobs.keys().cloned().collect();
    let plan = "{\"steps\":[]}".to_owned();
    (Dataset { plan, manifest: "files".into(), blobs: names }, blobs)
}

/// A state that all clients begin from.
#[derive(Clone, Debug)]
pub struct Plan {
    pub start: Start,
    pub hash: String,
    pub consumers: u32,
    /// What was used before.
    pub base: History,
}

/// What a trainer has saved.
#[derive(Clone, Debug)]
pub struct Save {
    pub checkpoint: Checkpoint,
    pub round: u64,
    /// What was used in this incarnation, and before it.
    pub history: History,
    pub base: History,
    /// How many clients there were.
    pub consumers: u32,
}

/// A process: a client and its trainer.
#[derive(Debug)]
pub struct Process {
    pub consumer: ConsumerIndex,
    pub host: String,
    pub begin: Begin,
    /// What its client has learnt.
    pub job: JobId,
    pub incarnation: Incarnation,
    pub attached: bool,
    pub layout: Option<Arc<Layout>>,
    /// What its trainer has used in this incarnation, and what was used before.
    pub history: History,
    pub base: History,
    /// The incarnation in which it inherits what a lost one had used.
    pub inherits_in: Option<Incarnation>,
    /// Whether it lived on when it was thought to be dead.
    pub zombie: bool,
    pub round: u64,
    /// The save it began from.
    pub began_from: Option<u64>,
    pub finished: bool,
}

impl Process {
    /// A process that begins, on no host yet.
    pub fn new(slot: usize, begin: Begin, history: History, base: History, round: u64) -> Self {
        Self {
            consumer: ConsumerIndex(slot as u32),
            host: String::new(),
            begin,
            job: JobId(0),
            incarnation: Incarnation(0),
            attached: false,
            layout: None,
            history,
            base,
            inherits_in: None,
            zombie: false,
            round,
            began_from: None,
            finished: false,
        }
    }
}

/// A client's place in the job.
#[derive(Debug, Default)]
pub struct Slot {
    /// Its process, if there is one that counts.
    pub process: Option<usize>,
    /// The last three, the newest last.
    pub saves: Vec<Save>,
    /// Gone for good, and the process that was.
    pub lost: bool,
    pub lost_process: Option<usize>,
    /// What whoever takes the place of a lost client inherits.
    pub inherits: History,
}

/// What is to happen.
#[derive(Clone, Debug)]
pub enum Task {
    Start { slot: usize, plan: u64 },
    Restart { process: usize },
    Restore,
    Fault,
    Loss,
    Healed,
    Release { slot: usize, incarnation: Incarnation },
    Replace { slot: usize, incarnation: Incarnation, inherits: History },
    ZombieDies { process: usize },
    DispatcherCrashes { partitioned: bool },
    DispatcherUp,
    DiskHasSpace,
    WorkerEnds { worker: u32 },
    WorkerUp { worker: u32 },
    Mend { from: String, to: String },
}

/// How a run went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Depends on everything that was logged, and when.
    pub trace: u64,
    pub milliseconds: u64,
    pub delivered: u64,
    pub faults: u64,
    pub restores: u64,
    pub rewinds: u64,
    pub refused_merges: u64,
    pub releases: u64,
    pub dispatcher_starts: u64,
    /// Starts that found remains of a commit, and starts from a snapshot.
    pub torn: u64,
    pub from_snapshot: u64,
    /// How often the dispatcher's disk was full.
    pub full: u64,
    /// How long it took, at most, from when nothing fails any more to the end, in milliseconds.
    pub slowest: u64,
}

impl Outcome {
    pub fn add(&mut self, other: &Self) {
        let Self {
            trace,
            milliseconds,
            delivered,
            faults,
            restores,
            rewinds,
            refused_merges,
            releases,
            dispatcher_starts,
            torn,
            from_snapshot,
            full,
            slowest,
        } = other;
        self.trace ^= trace;
        self.milliseconds += milliseconds;
        self.delivered += delivered;
        self.faults += faults;
        self.restores += restores;
        self.rewinds += rewinds;
        self.refused_merges += refused_merges;
        self.releases += releases;
        self.dispatcher_starts += dispatcher_starts;
        self.torn += torn;
        self.from_snapshot += from_snapshot;
        self.full += full;
        self.slowest = self.slowest.max(*slowest);
    }

    /// What never happened, of all that many seeds together must have seen.
    pub fn missed(&self) -> Vec<&'static str> {
        let seen = [
            ("a fault", self.faults),
            ("all clients beginning again", self.restores),
            ("a client going back", self.rewinds),
            ("states that do not fit together", self.refused_merges),
            ("a client that was released", self.releases),
            ("a torn journal", self.torn),
            ("a start from a snapshot", self.from_snapshot),
            ("a full disk", self.full),
        ];
        seen.into_iter().filter(|(_, times)| *times == 0).map(|(what, _)| what).collect()
    }
}

pub struct World {
    pub setup: Setup,
    pub random: Random,
    pub disk: SimulatedDisk,
    pub disk_is_full: bool,
    /// The time, as of the last tick.
    pub now: Millis,
    pub healed: bool,
    pub slots: Vec<Slot>,
    pub processes: Vec<Process>,
    /// Which process a host is to run when it is started.
    pub assigned: BTreeMap<String, usize>,
    pub workers_slow: Vec<bool>,
    /// Whether they have been told to end.
    pub workers_draining: Vec<bool>,
    /// How this life of the job began, and how often it was begun anew.
    pub plan: Option<Plan>,
    pub plans: u64,
    /// Saves of all clients by incarnation and round.
    pub common: BTreeMap<(Incarnation, u64), BTreeMap<ConsumerIndex, Save>>,
    /// What lost clients had used when they were released.
    pub inherited: Vec<(Incarnation, History)>,
    /// Where nothing may come twice: all that was ever handed over.
    pub ever: BTreeMap<Incarnation, History>,
    /// What an operator is to release.
    pub release: Option<(usize, JobId, Incarnation)>,
    agenda: BTreeMap<(Millis, u64), Task>,
    order: u64,
    /// The first thing that went wrong.
    pub wrong: Option<String>,
    pub outcome: Outcome,
}

impl World {
    pub fn new(random: Random, setup: Setup) -> Self {
        Self {
            workers_slow: vec![false; setup.workers as usize],
            workers_draining: vec![false; setup.workers as usize],
            slots: (0..setup.consumers).map(|_| Slot::default()).collect(),
            random,
            disk: SimulatedDisk::new(),
            disk_is_full: false,
            now: 0,
            healed: false,
            processes: Vec::new(),
            assigned: BTreeMap::new(),
            plan: None,
            plans: 0,
            common: BTreeMap::new(),
            inherited: Vec::new(),
            ever: BTreeMap::new(),
            release: None,
            agenda: BTreeMap::new(),
            order: 0,
            wrong: None,
            outcome: Outcome::default(),
            setup,
        }
    }

    pub fn exactly_once(&self) -> bool {
        self.setup.visitation == Visitation::ExactlyOnce
    }

    pub fn may_lose_clients(&self) -> bool {
        self.exactly_once() && self.setup.order == Order::Any && self.setup.consumers > 1
    }

    /// Something went wrong. The first counts.
    pub fn fail(&mut self, what: impl Into<String>) {
        let what = what.into();
        trace::note(&what);
        self.wrong.get_or_insert(what);
    }

    pub fn at(&mut self, time: Millis, task: Task) {
        self.order += 1;
        self.agenda.insert((time, self.order), task);
    }

    pub fn soon(&mut self, from: Millis, to: Millis, task: Task) {
        let time = self.now + self.random.within(from, to);
        self.at(time, task);
    }

    /// What is due.
    pub fn due(&mut self) -> Option<Task> {
        let now = self.now;
        let first = self.agenda.first_entry().filter(|entry| entry.key().0 <= now)?;
        Some(first.remove())
    }

    /// Whether a process is the one that stands for its client.
    pub fn counts(&self, process: usize) -> bool {
        self.slots.iter().any(|slot| slot.process == Some(process))
    }

    /// A process stands for its client no longer.
    pub fn bury(&mut self, process: usize) {
        self.slots.iter_mut().filter(|slot| slot.process == Some(process)).for_each(|slot| {
            slot.process = None;
        });
    }

    /// How long a worker takes for a step.
    pub fn computing(&mut self, worker: u32) -> Millis {
        let slow = self.workers_slow[worker as usize] && !self.healed;
        let (least, most) = if slow { (1_500, 6_000) } else { (1, 30) };
        self.random.within(least, most)
    }

    pub fn layout(&mut self, process: usize) -> Option<Arc<Layout>> {
        self.processes[process].layout.clone()
    }

    /// Who takes the place of a lost client inherits what that had used, unless all began again before
    /// it had its seat.
    pub fn settle(&mut self, process: usize) {
        let known = &mut self.processes[process];
        let begun = known.incarnation;
        if known.inherits_in.take().is_some_and(|incarnation| incarnation != begun) {
            known.history = History::default();
        }
    }

    /// A trainer is through with a batch.
    pub fn used(&mut self, process: usize, epoch: u64, step: u64) {
        self.outcome.delivered += 1;
        let counts = self.counts(process) && self.exactly_once();
        let known = &mut self.processes[process];
        let twice = !known.history.insert(epoch, step) || known.base.contains(epoch, step);
        if twice && counts {
            self.fail(format!("process {process} got step {step} of epoch {epoch} twice"));
        }
    }

    /// A trainer is given a batch.
    pub fn given(&mut self, process: usize, epoch: u64, step: u64) {
        self.settle(process);
        if !self.exactly_once() {
            let incarnation = self.processes[process].incarnation;
            if !self.ever.entry(incarnation).or_default().insert(epoch, step) {
                self.fail(format!("step {step} of epoch {epoch} came twice"));
            }
        }
    }

    /// A trainer saves its state.
    pub fn save(&mut self, process: usize, checkpoint: Checkpoint) {
        if !self.counts(process) {
            return;
        }
        let consumers = self.slots.len() as u32;
        let known = &mut self.processes[process];
        known.round += 1;
        let (round, consumer, history, base) =
            (known.round, known.consumer, known.history, known.base);
        trace::note(&format!("process {process} saves round {round}"));
        let incarnation = checkpoint.cursor.incarnation;
        let save = Save { checkpoint, round, history, base, consumers };
        self.common.entry((incarnation, round)).or_default().insert(consumer, save.clone());
        let saves = &mut self.slots[consumer.0 as usize].saves;
        saves.push(save);
        if saves.len() > 3 {
            saves.remove(0);
        }
    }
}
