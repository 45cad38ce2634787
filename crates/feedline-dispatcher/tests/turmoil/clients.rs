//! Clients and their trainers: the client's core, driven by real calls and real frames.
//!
//! ```text
//!  trainer ──► Client (core) ──Send──► speak ──► Calls ──► dispatcher
//!     ▲           ▲   │ └────Fetch───► fetch ──► Link ───► worker
//!     └───────────┘   └── events ◄─────┴────── meet ◄── roster
//! ```

use crate::carrying::{Wish, meet, speak};
use crate::fetching::{Fetching, Trouble};
use crate::frames::Link;
use crate::layout::Layout;
use crate::trace;
use crate::world::{Shared, Task, World, connect, dataset, lock};
use feedline_client::{Action, Client, Config, Error};
use feedline_wire::control::{DatasetId, Failure, Report, Roster, WorkerKey};
use feedline_wire::{
    Ask, ConsumerIndex, Data, Description, Fetch, JobId, JobName, Millis, Nonce, Refusal, Reply,
    WorkerId,
};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

/// What happens to a process.
pub enum Event {
    Reply(u64, Result<Reply, Failure>),
    Roster(Roster),
    Data(WorkerId, Data<u64>),
    Gone(WorkerId),
    /// The trainer is through with its batch, or begins the next epoch.
    Trainer,
}

struct Process {
    world: Shared,
    number: usize,
    client: Client<u64>,
    dataset: DatasetId,
    begun: Instant,
    wish: Rc<Wish>,
    events: UnboundedSender<Event>,
    numbers: BTreeMap<WorkerKey, WorkerId>,
    /// Where workers are, as this client numbers them.
    workers: BTreeMap<WorkerId, String>,
    /// Connections that nobody uses now.
    idle: Rc<RefCell<BTreeMap<WorkerId, Vec<Link>>>>,
    tasks: JoinSet<()>,
    /// The batch that the trainer works on.
    batch: Option<(u64, u64)>,
    steps: u64,
}

/// Whether a process goes on.
#[derive(PartialEq)]
enum Goes {
    On,
    Ends,
}

/// A process from its start to its end.
pub async fn run(world: Shared, number: usize) {
    let calls = connect();
    let argument = lock(&world).setup.argument;
    let (dataset, blobs) = dataset(argument);
    let id = loop {
        match calls.register(&dataset, &blobs).await {
            Ok(id) => break id,
            Err(Failure::Unavailable(_)) => sleep(Duration::from_millis(100)).await,
            // The dispatcher's disk is gone, and so is the dispatcher in a moment.
            Err(Failure::Invalid(what)) if what.contains("the simulated power has failed") => {
                sleep(Duration::from_millis(100)).await;
            }
            Err(failure) => return lock(&world).fail(format!("cannot register: {failure}")),
        }
    };
    let (events, mut happens) = unbounded_channel();
    let (wish, idle) = (Rc::new(Wish::default()), Rc::default());
    let (config, begin) = {
        let mut world = lock(&world);
        (config(&mut world, number, &id), world.processes[number].begin.clone())
    };
    let mut tasks = JoinSet::new();
    tasks.spawn_local(speak(calls.clone(), Rc::clone(&wish), events.clone()));
    tasks.spawn_local(meet(calls, events.clone()));
    let mut process = Process {
        client: Client::new(config, begin, 0),
        world,
        number,
        dataset: id,
        begun: Instant::now(),
        wish,
        events,
        numbers: BTreeMap::new(),
        workers: BTreeMap::new(),
        idle,
        tasks,
        batch: None,
        steps: 0,
    };
    process.client.next(0);
    while process.act() == Goes::On {
        let now = process.now();
        let event = match process.client.wake() {
            Some(wake) => {
                let wake = process.begun + Duration::from_millis(wake.max(now + 1));
                timeout_at(wake, happens.recv()).await.ok()
            }
            None => Some(happens.recv().await),
        };
        match event {
            Some(Some(event)) => process.happen(event),
            Some(None) => return,
            None => {
                let now = process.now();
                process.client.tick(now);
            }
        }
    }
}

fn config(world: &mut World, number: usize, dataset: &DatasetId) -> Config {
    let setup = world.setup.clone();
    let description = Description {
        dataset: format!("{dataset}:seed 0"),
        visitation: setup.visitation,
        order: setup.order,
        windows: setup.windows,
    };
    let consumers = world.slots.len() as u32;
    let nonce = Nonce(world.random.next());
    let (name, consumer) = (JobName("job".into()), world.processes[number].consumer);
    Config {
        windows_ahead: setup.windows_ahead,
        steps_ahead: world.random.within(1, 8),
        steps_per_fetch: world.random.within(1, 4),
        lookback: setup.lookback,
        patience: 20_000,
        ..Config::new(name, description, consumers, consumer, nonce)
    }
}

impl Process {
    fn now(&self) -> Millis {
        self.begun.elapsed().as_millis() as Millis
    }

    fn happen(&mut self, event: Event) {
        let now = self.now();
        match event {
            Event::Reply(sequence, Ok(reply)) => self.client.reply(now, sequence, reply),
            Event::Reply(_, Err(Failure::Unavailable(_))) => {}
            Event::Reply(_, Err(failure)) => {
                lock(&self.world).fail(format!("process {}: {failure}", self.number));
            }
            Event::Roster(roster) => self.introduce(roster),
            Event::Data(worker, data) => self.client.data(now, worker, data),
            Event::Gone(worker) => self.client.worker_gone(now, worker),
            Event::Trainer => {
                if let Some((epoch, step)) = self.batch.take() {
                    self.steps += 1;
                    let saves = {
                        let mut world = lock(&self.world);
                        world.used(self.number, epoch, step);
                        let often = world.setup.saves;
                        world.random.chance(often)
                    };
                    if saves {
                        self.save();
                    }
                }
                self.client.next(now);
            }
        }
    }

    fn introduce(&mut self, mut roster: Roster) {
        // In the same order for all clients.
        roster.workers.sort_by_key(|worker| worker.key);
        let mut here = Vec::new();
        for worker in roster.workers.into_iter().filter(|worker| !worker.draining) {
            let next = WorkerId(self.numbers.len() as u32);
            let number = *self.numbers.entry(worker.key).or_insert(next);
            here.push(number);
            self.workers.extend(worker.addresses.into_iter().next().map(|at| (number, at)));
        }
        // A dispatcher that was just restarted has not heard of anyone yet: those who are known stay.
        if !here.is_empty() {
            self.client.workers(self.now(), &here);
        }
    }

    fn save(&mut self) {
        if let Some(checkpoint) = self.client.checkpoint() {
            lock(&self.world).save(self.number, checkpoint);
        }
    }

    fn later(&mut self, from: Millis, to: Millis) {
        let pause = lock(&self.world).random.within(from, to);
        let events = self.events.clone();
        self.tasks.spawn_local(async move {
            sleep(Duration::from_millis(pause)).await;
            let _ = events.send(Event::Trainer);
        });
    }

    /// What others may know of this process.
    fn tell(&mut self) {
        let mut world = lock(&self.world);
        let whole = world.setup.windows;
        let known = &mut world.processes[self.number];
        known.attached = self.client.is_attached();
        (known.job, known.incarnation) = (self.client.job(), self.client.incarnation());
        if known.attached && known.layout.is_none() {
            known.layout = Some(Arc::new(Layout::new(self.client.start(), whole)));
        }
        let report = Report {
            job: self.client.job(),
            consumer: self.client.consumer(),
            epoch: self.client.epoch().0,
            steps: self.steps,
            samples: self.steps,
            bytes: self.steps * 16,
            waited: 0,
            elapsed: self.begun.elapsed().as_micros() as u64,
            buffered: self.client.buffered(),
        };
        *self.wish.report.borrow_mut() = (report.job != JobId(0)).then_some(report);
    }

    /// Carries out what the core wants done.
    fn act(&mut self) -> Goes {
        while self.tasks.try_join_next().is_some() {}
        while let Some(action) = self.client.action() {
            self.tell();
            match action {
                Action::Send { sequence, request } => {
                    *self.wish.request.borrow_mut() = Some((sequence, request));
                    self.wish.news.notify_one();
                }
                Action::Fetch { worker, fetch } => self.fetch(worker, fetch),
                Action::Deliver { batch, epoch, .. } => {
                    trace::note(&format!(
                        "process {} trains on step {batch} of epoch {epoch}",
                        self.number
                    ));
                    let long = {
                        let mut world = lock(&self.world);
                        world.given(self.number, epoch.0, batch);
                        !world.healed && world.random.chance(20)
                    };
                    self.batch = Some((epoch.0, batch));
                    let (from, to) = if long { (500, 4_000) } else { (5, 60) };
                    self.later(from, to);
                }
                Action::EndOfEpoch(epoch) => {
                    trace::note(&format!("process {} hears the end of {epoch}", self.number));
                    let saves = {
                        let mut world = lock(&self.world);
                        world.settle(self.number);
                        if epoch.0 + 1 == world.setup.epochs {
                            world.processes[self.number].finished = true;
                            return Goes::Ends;
                        }
                        world.random.chance(300)
                    };
                    if saves {
                        self.save();
                    }
                    self.later(1, 50);
                }
                Action::Fail(error) => {
                    trace::note(&format!("process {} fails: {error}", self.number));
                    if self.fail(&error) == Goes::Ends {
                        return Goes::Ends;
                    }
                }
            }
        }
        self.tell();
        Goes::On
    }

    fn fail(&mut self, error: &Error) -> Goes {
        let number = self.number;
        let shared = Shared::clone(&self.world);
        let mut world = lock(&shared);
        if !world.counts(number) {
            world.bury(number);
            return Goes::Ends;
        }
        let slot = world.processes[number].consumer.0 as usize;
        let start = Task::Start { slot, plan: world.plans };
        match error {
            Error::NoAnswer { .. } => {
                drop(world);
                self.later(10, 500);
                return Goes::On;
            }
            Error::Refused(Refusal::Silent { consumer, .. }) => {
                let ConsumerIndex(silent) = *consumer;
                world.missed(silent as usize, number);
                drop(world);
                self.later(500, 1_500);
                return Goes::On;
            }
            Error::Refused(Refusal::NotYours { .. } | Refusal::RewoundTooFar { .. }) => {
                let began_from = world.processes[number].began_from;
                world.slots[slot].saves.retain(|save| Some(save.round) != began_from);
                world.bury(number);
                if world.slots[slot].saves.is_empty() || world.random.chance(300) {
                    world.soon(0, 0, Task::Restore);
                } else {
                    world.soon(10, 1_000, start);
                }
            }
            // One that seemed to have crashed was slower, and has the seat.
            Error::Refused(Refusal::Superseded { .. }) => {
                world.bury(number);
                world.soon(10, 1_000, start);
            }
            // Somebody began again from the common state: so does this one.
            Error::Refused(Refusal::StaleIncarnation { .. }) if world.plan.is_some() => {
                world.bury(number);
                world.slots[slot].saves.clear();
                world.soon(10, 1_000, start);
            }
            error => world.fail(format!("process {number} fails: {error}")),
        }
        Goes::Ends
    }

    /// Asks a worker for steps of a window.
    fn fetch(&mut self, worker: WorkerId, fetch: Fetch) {
        let Some(address) = self.workers.get(&worker).cloned() else { return };
        let (start, windows) = self.client.cut_of(fetch.epoch);
        let steps = windows.steps_of(fetch.window);
        let first = fetch.window.0 * windows.steps + fetch.from.0;
        let ask = Ask {
            job: fetch.job,
            dataset: self.dataset.clone(),
            part: None,
            seed: 0,
            epoch: fetch.epoch.0,
            start: start.to_owned(),
            rank: 0,
            world: 1,
            first,
            steps: fetch.most.min(steps.saturating_sub(fetch.from.0)),
            from: 0,
            rounds: false,
            with_index: false,
            rows: false,
            relaxed: false,
            save: None,
        };
        let link = self.idle.borrow_mut().get_mut(&worker).and_then(Vec::pop);
        let fetching = Fetching { worker, fetch, steps, ask, events: self.events.clone() };
        let (idle, world) = (Rc::clone(&self.idle), Shared::clone(&self.world));
        self.tasks.spawn_local(async move {
            match fetching.run(&address, link).await {
                Ok(link) => idle.borrow_mut().entry(worker).or_default().push(link),
                Err(Trouble::Gone) => {
                    let _ = fetching.events.send(Event::Gone(worker));
                }
                Err(Trouble::Wrong(what)) => lock(&world).fail(what),
            }
        });
    }
}
