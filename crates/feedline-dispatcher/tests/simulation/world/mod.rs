//! A world of one job: clients with their trainers, workers, a dispatcher with its journal, and a
//! network between them. Time is a number, chance a seed: the same seed gives the same run.
//!
//! ```text
//!  trainer ── Client ──┐                        ┌── journal (synced up to somewhere)
//!  trainer ── Client ──┼── network ── dispatcher┘
//!     …                │   (late, lost,
//!  worker, worker, … ──┘    twice, cut)
//! ```
//!
//! For a while everything fails; then nothing does, and the job has to come to its end. What counts
//! in the end is the history that survived: what the trainers' states say was used.

/// Prints what happens, if anybody wants to see it.
macro_rules! trace {
    ($world:expr, $($what:tt)*) => {
        if $world.tracing {
            eprintln!("{:>9} ms  {}", $world.now, format!($($what)*));
        }
    };
}

mod clients;
mod dispatcher;
mod end;
mod faults;
mod workers;

use crate::history::{History, MOST_STEPS};
use crate::layout::Layout;
use crate::random::Random;
use feedline_client::{Action, Begin, Checkpoint, Client, Config, Error, merge_checkpoints};
use feedline_dispatcher::{Event, Limits, Presence, State, decide};
use feedline_wire::mutant::{Mutant, planted};
use feedline_wire::{
    ConsumerIndex, Data, Description, Epoch, Fetch, Incarnation, JobName, Millis, Nonce, Order,
    Refusal, Reply, Request, Start, Visitation, Window, Windows, WorkerId,
};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::rc::Rc;

/// When everything works again, a job has this long to come to its end.
const GRACE: Millis = 900_000;

/// What a seed decides.
#[derive(Clone, Debug)]
pub struct Setup {
    pub consumers: u32,
    pub workers: u32,
    pub epochs: u64,
    pub windows: Windows,
    pub order: Order,
    pub visitation: Visitation,
    /// In a thousand messages.
    pub lost: u64,
    pub doubled: u64,
    pub late: u64,
    pub crashes: u64,
    pub cuts: u64,
    /// Until when things fail.
    pub troubled: Millis,
    pub lookback: u64,
    pub windows_ahead: usize,
    pub spread: u64,
    /// In a thousand steps.
    pub saves: u64,
    pub client_timeout: Millis,
    /// Of twenty faults, so many hit the dispatcher alone.
    pub dispatcher_faults: u64,
}

impl Setup {
    fn new(random: &mut Random) -> Self {
        let steps = random.within(1, 4);
        let count = random.within(8, 30);
        let last = random.within(1, steps);
        let troubled = random.within(2_000, 30_000);
        let kind = random.within(0, 999);
        Self {
            consumers: random.within(1, 4) as u32,
            workers: random.within(1, 4) as u32,
            epochs: random.within(1, 3),
            windows: Windows { count, steps, last },
            order: if kind < 150 { Order::Exact } else { Order::Any },
            visitation: match kind >= 850 {
                true => Visitation::AtMostOnce,
                false => Visitation::ExactlyOnce,
            },
            lost: random.within(0, 100),
            doubled: random.within(0, 100),
            late: *random.pick(&[0, 20, 200]),
            crashes: random.within(0, 30),
            cuts: random.within(0, 4),
            troubled,
            lookback: *random.pick(&[0, 4, 512]),
            windows_ahead: random.within(1, 5) as usize,
            spread: *random.pick(&[2, 8, 1024]),
            saves: *random.pick(&[30, 150, 500]),
            client_timeout: *random.pick(&[1_500, 8_000]),
            dispatcher_faults: 4,
        }
    }
}

/// A state that all clients begin from.
#[derive(Clone, Debug)]
struct Plan {
    start: Start,
    hash: String,
    consumers: u32,
    /// What was used before.
    base: History,
}

/// What a trainer has saved.
#[derive(Clone, Debug)]
struct Save {
    checkpoint: Checkpoint,
    round: u64,
    /// What was used in this incarnation, and before it.
    history: History,
    base: History,
    /// How many clients there were.
    consumers: u32,
}

/// A process: a client and its trainer.
struct Process {
    consumer: ConsumerIndex,
    alive: bool,
    client: Client<u64>,
    layout: Option<Rc<Layout>>,
    /// What its trainer has used in this incarnation.
    history: History,
    base: History,
    /// The incarnation in which it inherits what a lost one had used.
    inherits_in: Option<Incarnation>,
    /// Whether it lived on when it was thought to be dead.
    zombie: bool,
    /// The batch that its trainer works on.
    batch: Option<(u64, u64)>,
    round: u64,
    /// The save it began from.
    began_from: Option<u64>,
    finished: bool,
    wakes_at: Option<Millis>,
}

/// A client's place in the job.
#[derive(Default)]
struct Slot {
    /// Its process, if there is one that counts.
    process: Option<usize>,
    /// The last three, the newest last.
    saves: Vec<Save>,
    /// Gone for good, and the process that was.
    lost: bool,
    lost_process: Option<usize>,
    /// What whoever takes the place of a lost client inherits.
    inherits: History,
}

struct Server {
    up: bool,
    life: u64,
    /// Its clock shows so much more than it should.
    clock: Millis,
    state: State,
    presence: Presence,
    /// Events; nothing where one was torn.
    journal: Vec<Option<Event>>,
    synced: usize,
    syncing: bool,
    /// Replies that wait until so much is synced.
    waiting: Vec<(usize, usize, u64, Reply)>,
}

enum Happening {
    ToDispatcher { from: usize, sequence: u64, request: Rc<Request> },
    ToProcess { process: usize, sequence: u64, reply: Box<Reply> },
    ToWorker { worker: u32, from: usize, fetch: Fetch, layout: Rc<Layout> },
    Data { process: usize, worker: u32, data: Data<u64> },
    WorkerGone { process: usize, worker: u32 },
    Wake { process: usize },
    Trainer { process: usize },
    Synced { life: u64, length: usize },
    DispatcherUp,
    WorkerUp { worker: u32 },
    Start { slot: usize, plan: u64 },
    Fault,
    Loss,
    Healed,
    Release { slot: usize, incarnation: Incarnation },
    ZombieDies { process: usize },
}

struct Entry {
    time: Millis,
    order: u64,
    what: Happening,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.time, self.order).cmp(&(other.time, other.order))
    }
}

/// How a run went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Depends on everything that happened.
    pub trace: u64,
    pub happenings: u64,
    pub faults: u64,
    pub restores: u64,
    pub rewinds: u64,
    pub refused_merges: u64,
    pub releases: u64,
}

/// Sender of an operator's requests.
const OPERATOR: usize = usize::MAX;
const DISPATCHER: u32 = 0;

fn worker_node(worker: u32) -> u32 {
    1 + worker
}

fn slot_node(consumer: ConsumerIndex) -> u32 {
    16 + consumer.0
}

struct World {
    random: Random,
    setup: Setup,
    limits: Limits,
    now: Millis,
    queue: BinaryHeap<Reverse<Entry>>,
    order: u64,
    healed: bool,
    server: Server,
    processes: Vec<Process>,
    slots: Vec<Slot>,
    workers_up: Vec<bool>,
    workers_slow: Vec<bool>,
    /// What workers remember that must not: for a planted mistake.
    worker_offsets: BTreeMap<(u32, u64, u64, u64), u64>,
    cuts: Vec<(u32, u32, Millis)>,
    /// How this life of the job began, and how often it was begun anew.
    plan: Option<Plan>,
    plans: u64,
    /// Saves of all clients by incarnation and round.
    common: BTreeMap<(Incarnation, u64), BTreeMap<ConsumerIndex, Save>>,
    /// What lost clients had used when they were released.
    inherited: Vec<(Incarnation, History)>,
    /// Where nothing may come twice: all that was ever handed over.
    ever: BTreeMap<Incarnation, History>,
    outcome: Outcome,
    tracing: bool,
}

/// Runs a seed. An error says what went wrong.
pub fn run(seed: u64, tracing: bool) -> Result<Outcome, String> {
    run_adjusted(seed, tracing, |_| {})
}

/// Runs a seed in a world that is rougher in some respect.
pub fn run_adjusted(seed: u64, tracing: bool, adjust: fn(&mut Setup)) -> Result<Outcome, String> {
    let mut random = Random::new(seed);
    let mut setup = Setup::new(&mut random);
    adjust(&mut setup);
    World::new(random, setup, tracing).run()
}

impl World {
    fn new(random: Random, setup: Setup, tracing: bool) -> Self {
        let limits = Limits {
            client_timeout: setup.client_timeout,
            spread: setup.spread,
            spread_each: 0,
            ..Limits::default()
        };
        let server = Server {
            up: true,
            life: 0,
            clock: 0,
            state: State::default(),
            presence: Presence::new(0),
            journal: Vec::new(),
            synced: 0,
            syncing: false,
            waiting: Vec::new(),
        };
        let workers = setup.workers as usize;
        Self {
            random,
            limits,
            now: 0,
            queue: BinaryHeap::new(),
            order: 0,
            healed: false,
            server,
            processes: Vec::new(),
            slots: Vec::new(),
            workers_up: vec![true; workers],
            workers_slow: vec![false; workers],
            worker_offsets: BTreeMap::new(),
            cuts: Vec::new(),
            plan: None,
            plans: 0,
            common: BTreeMap::new(),
            inherited: Vec::new(),
            ever: BTreeMap::new(),
            outcome: Outcome::default(),
            tracing,
            setup,
        }
    }

    fn exactly_once(&self) -> bool {
        self.setup.visitation == Visitation::ExactlyOnce
    }

    fn at(&mut self, time: Millis, what: Happening) {
        self.order += 1;
        self.queue.push(Reverse(Entry { time, order: self.order, what }));
    }

    fn soon(&mut self, from: Millis, to: Millis, what: Happening) {
        let time = self.now + self.random.within(from, to);
        self.at(time, what);
    }

    fn run(mut self) -> Result<Outcome, String> {
        trace!(self, "{:?}", self.setup);
        self.slots = (0..self.setup.consumers).map(|_| Slot::default()).collect();
        for slot in 0..self.slots.len() {
            self.soon(0, 500, Happening::Start { slot, plan: 0 });
        }
        for _ in 0..self.setup.crashes + self.setup.cuts {
            self.soon(0, self.setup.troubled, Happening::Fault);
        }
        let may_lose = self.exactly_once() && self.setup.order == Order::Any;
        if may_lose && self.setup.consumers > 1 && self.random.chance(300) {
            self.soon(0, self.setup.troubled, Happening::Loss);
        }
        self.at(self.setup.troubled, Happening::Healed);
        while let Some(Reverse(entry)) = self.queue.pop() {
            self.now = entry.time;
            self.outcome.happenings += 1;
            if self.now > self.setup.troubled + GRACE || self.outcome.happenings > 300_000 {
                return Err(format!("stuck: {}", self.standstill()));
            }
            self.happen(entry.what)?;
            if self.is_over() && !self.call_back() {
                self.check()?;
                return Ok(self.outcome);
            }
        }
        Err(format!("nothing happens any more: {}", self.standstill()))
    }

    fn standstill(&self) -> String {
        let slots = self.slots.iter().enumerate().map(|(at, slot)| match slot.process {
            None if slot.lost => format!("client {at} is lost"),
            None => format!("client {at} is down"),
            Some(process) => {
                let process = &self.processes[process];
                let attached = process.client.is_attached();
                format!("client {at}: attached {attached}, finished {}", process.finished)
            }
        });
        slots.collect::<Vec<_>>().join(", ")
    }

    fn mix(&mut self, numbers: [u64; 3]) {
        for number in numbers {
            let mixed = (self.outcome.trace ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            self.outcome.trace = mixed.rotate_left(31);
        }
    }

    fn happen(&mut self, what: Happening) -> Result<(), String> {
        let now = self.now;
        match what {
            Happening::ToDispatcher { from, sequence, request } => {
                self.mix([now, 1, sequence]);
                self.answer(from, sequence, &request)?;
            }
            Happening::ToProcess { process, sequence, reply } => {
                self.mix([now, 2, sequence]);
                if self.processes[process].alive {
                    trace!(self, "process {process} hears {sequence}: {reply:?}");
                    self.processes[process].client.reply(now, sequence, *reply);
                    self.act(process)?;
                }
            }
            Happening::ToWorker { worker, from, fetch, layout } => {
                self.mix([now, 3, u64::from(worker)]);
                self.serve(worker, from, &fetch, &layout);
            }
            Happening::Data { process, worker, data } => {
                self.mix([now, 4, data.window.0 << 8 | data.offset.0]);
                if self.processes[process].alive {
                    self.processes[process].client.data(now, WorkerId(worker), data);
                    self.act(process)?;
                }
            }
            Happening::WorkerGone { process, worker } => {
                self.mix([now, 5, u64::from(worker)]);
                if self.processes[process].alive {
                    self.processes[process].client.worker_gone(now, WorkerId(worker));
                    self.act(process)?;
                }
            }
            Happening::Wake { process } => {
                if self.processes[process].wakes_at == Some(now) {
                    self.processes[process].wakes_at = None;
                    if self.processes[process].alive {
                        self.processes[process].client.tick(now);
                        self.act(process)?;
                    }
                }
            }
            Happening::Trainer { process } => {
                self.mix([now, 6, process as u64]);
                self.train(process)?;
            }
            Happening::Synced { life, length } => {
                if self.server.up && self.server.life == life {
                    self.mix([now, 7, length as u64]);
                    self.synced(length);
                }
            }
            Happening::DispatcherUp => self.restart_dispatcher(),
            Happening::WorkerUp { worker } => {
                self.workers_up[worker as usize] = true;
                self.workers_slow[worker as usize] = !self.healed && self.random.chance(150);
            }
            Happening::Start { slot, plan } => {
                let free = self.slots.get(slot).is_some_and(|slot| slot.process.is_none());
                if plan == self.plans && free {
                    self.start(slot)?;
                }
            }
            Happening::Fault => self.fault()?,
            Happening::Loss => self.lose(),
            Happening::Healed => self.heal(),
            Happening::Release { slot, incarnation } => self.send_release(slot, incarnation),
            Happening::ZombieDies { process } => {
                self.processes[process].alive = false;
            }
        }
        Ok(())
    }

    fn travel_time(&mut self) -> Millis {
        match !self.healed && self.random.chance(self.setup.late) {
            true => self.random.within(50, 5_000),
            false => self.random.within(1, 20),
        }
    }

    /// When copies of a message arrive: none, one or two.
    fn arrivals(&mut self, from: u32, to: u32) -> [Option<Millis>; 2] {
        let now = self.now;
        if self.healed {
            return [Some(now + self.travel_time()), None];
        }
        self.cuts.retain(|(_, _, until)| *until > now);
        let cut = self.cuts.iter().any(|(a, b, _)| (*a, *b) == (from, to));
        let arrives = !cut && !self.random.chance(self.setup.lost);
        let first = arrives.then(|| now + self.travel_time());
        let again = arrives && self.random.chance(self.setup.doubled);
        [first, again.then(|| now + self.travel_time())]
    }
}
