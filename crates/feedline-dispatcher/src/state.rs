//! What the dispatcher remembers. [`State::apply`] alone changes it, and what it does depends on the
//! event and the state only, so that a journal always leads to the same state.

use crate::Event;
use crate::table::{Kept, Table};
use feedline_wire::mutant::{Mutant, planted};
use feedline_wire::{
    ConsumerIndex, Cursor, Description, Epoch, Incarnation, JobId, JobName, Life, Nonce, Order,
    Stamp, Standing, Start, Ticket, Visitation, Window, Windows, lookback,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Everything the dispatcher remembers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    pub(crate) jobs: BTreeMap<JobId, Job>,
    pub(crate) names: BTreeMap<JobName, JobId>,
    /// Jobs opened so far.
    pub(crate) opened: u64,
}

/// A job: what it is, who may speak for it, and the incarnation that is alive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    pub(crate) name: JobName,
    pub(crate) description: Description,
    /// The newest process of each client that asked for a ticket, and the ticket.
    pub(crate) tickets: BTreeMap<ConsumerIndex, (Nonce, Ticket)>,
    pub(crate) last_ticket: Ticket,
    pub(crate) live: Live,
}

/// An incarnation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Live {
    pub(crate) incarnation: Incarnation,
    pub(crate) consumers: u32,
    pub(crate) start: Start,
    /// Names the state it was restored from, if it was.
    pub(crate) hash: Option<String>,
    /// Who opened it.
    pub(crate) by: ConsumerIndex,
    /// The last ticket before it was opened.
    pub(crate) opened_after: Ticket,
    pub(crate) epoch: Epoch,
    pub(crate) table: Table,
    pub(crate) clients: BTreeMap<ConsumerIndex, Client>,
    /// Counts grants and attachments.
    pub(crate) stamp: Stamp,
    /// How often used windows became unused.
    pub(crate) rewinds: u64,
}

/// What is known of a client that has attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Client {
    pub(crate) ticket: Ticket,
    pub(crate) nonce: Nonce,
    /// Tells the cursor that it attached with from others.
    pub(crate) digest: u64,
    pub(crate) released: bool,
    /// The last request that it was granted windows for.
    pub(crate) sequence: u64,
    /// Windows of `held_epoch` that were granted and are not known to be used, each with its grant.
    pub(crate) held: BTreeMap<Window, Stamp>,
    pub(crate) held_epoch: Epoch,
    /// The newest grant to it; the newest in an epoch that is sealed; the newest that is forgotten.
    pub(crate) newest: Stamp,
    pub(crate) newest_sealed: Stamp,
    pub(crate) newest_forgotten: Stamp,
    /// What the seat had used up to this grant stays used, whatever cursors say: the process that used
    /// it was released, and whoever has the seat now inherits it.
    pub(crate) inherited: Stamp,
    /// Cursors that had heard of more than the first number, and at most the second, are void: the
    /// client went back before those grants, and they went to others since.
    pub(crate) void: Vec<(Stamp, Stamp)>,
}

impl Client {
    /// More rewinds than these are remembered as one.
    const MOST_VOID: usize = 64;

    /// Whether a cursor belongs to a past that was given up.
    pub(crate) fn is_void(&self, cursor: &Cursor) -> bool {
        self.void.iter().any(|(after, until)| *after < cursor.seen && cursor.seen <= *until)
    }

    fn give_up(&mut self, after: Stamp, until: Stamp) {
        self.void.retain(|(begin, _)| *begin < after);
        self.void.push((after, until));
        if self.void.len() > Self::MOST_VOID {
            self.void[1].0 = self.void[0].0;
            self.void.remove(0);
        }
    }
}

impl Job {
    /// The windows of an epoch of the incarnation that is alive.
    pub(crate) fn windows(&self, epoch: Epoch) -> &Windows {
        match epoch == self.live.start.epoch {
            true => &self.live.start.windows,
            false => &self.description.windows,
        }
    }

    pub(crate) fn deals(&self) -> bool {
        self.description.order == Order::Any
    }

    pub(crate) fn exactly_once(&self) -> bool {
        self.description.visitation == Visitation::ExactlyOnce
    }

    pub(crate) fn life(&self) -> Life {
        Life {
            incarnation: self.live.incarnation,
            consumers: self.live.consumers,
            start: self.live.start.clone(),
        }
    }

    /// How `epoch` stands for the client with this cursor, once these windows are used too.
    pub(crate) fn standing(&self, cursor: &Cursor, epoch: Epoch, used: &[Window]) -> Standing {
        let live = &self.live;
        let (floor, told) = if !self.deals() {
            (Window(0), None)
        } else if epoch < live.epoch {
            (Window(self.windows(epoch).count), None)
        } else {
            let from = Window(live.table.prefix().0.saturating_sub(lookback(live.consumers)));
            let told = cursor.epoch != epoch || cursor.rewinds != live.rewinds;
            let floor = live.table.prefix_with(used);
            (floor, told.then(|| live.table.used_by(cursor.consumer, from)))
        };
        Standing { epoch, floor, rewinds: live.rewinds, stamp: live.stamp, used: told }
    }

    /// What becomes of a window of the client that attaches with this cursor.
    pub(crate) fn kept(&self, cursor: &Cursor, window: Window, stamp: Stamp) -> Kept {
        if planted(Mutant::ServiceSideCursor) {
            let held = self.live.clients.get(&cursor.consumer);
            let held = held.is_some_and(|client| client.held.contains_key(&window));
            return if held { Kept::Free } else { Kept::Used };
        }
        let client = self.live.clients.get(&cursor.consumer);
        if client.is_some_and(|client| stamp <= client.inherited) {
            return Kept::Used;
        }
        let known = stamp <= cursor.seen || planted(Mutant::NoStamps);
        if cursor.epoch != self.live.epoch || !known {
            Kept::Free
        } else if cursor.open.contains_key(&window) {
            Kept::Held
        } else if cursor.is_used(window) {
            Kept::Used
        } else {
            Kept::Free
        }
    }

    fn attach(&mut self, consumer: ConsumerIndex, ticket: Ticket, nonce: Nonce, cursor: &Cursor) {
        let (unused, freed, held) = match self.deals() && self.exactly_once() {
            true => {
                let mut table = std::mem::take(&mut self.live.table);
                let mut held = BTreeMap::new();
                let (unused, freed) = table.sort_out(consumer, |window, stamp| {
                    let kept = self.kept(cursor, window, stamp);
                    if kept == Kept::Held {
                        held.insert(window, stamp);
                    }
                    kept
                });
                self.live.table = table;
                (unused, freed, held)
            }
            false => (false, false, BTreeMap::new()),
        };
        let live = &mut self.live;
        let client = live.clients.entry(consumer).or_insert_with(|| Client {
            ticket,
            nonce,
            digest: 0,
            released: false,
            sequence: 0,
            held: BTreeMap::new(),
            held_epoch: live.epoch,
            newest: Stamp(0),
            newest_sealed: Stamp(0),
            newest_forgotten: Stamp(0),
            inherited: Stamp(0),
            void: Vec::new(),
        });
        if freed {
            client.give_up(cursor.seen, live.stamp);
        }
        live.rewinds += u64::from(unused);
        live.stamp.0 += 1;
        client.newest = client.newest.min(cursor.seen);
        (client.ticket, client.nonce, client.digest) = (ticket, nonce, cursor.digest());
        (client.released, client.sequence) = (false, 0);
        (client.held, client.held_epoch) = (held, live.epoch);
    }

    fn grant(&mut self, consumer: ConsumerIndex, sequence: u64, windows: &[Window]) {
        let used_at_once = !self.exactly_once();
        let live = &mut self.live;
        live.stamp.0 += 1;
        let Some(client) = live.clients.get_mut(&consumer) else { return };
        if client.held_epoch != live.epoch {
            client.held.clear();
            client.held_epoch = live.epoch;
        }
        (client.sequence, client.newest) = (sequence, live.stamp);
        for window in windows {
            client.held.insert(*window, live.stamp);
            live.table.grant(*window, consumer, live.stamp, used_at_once);
        }
        self.forget();
    }

    fn forget(&mut self) {
        let Live { table, clients, .. } = &mut self.live;
        table.forget(|owner, stamp| {
            if let Some(client) = clients.get_mut(&owner) {
                client.newest_forgotten = client.newest_forgotten.max(stamp);
            }
        });
    }

    fn seal(&mut self, epoch: Epoch) {
        let keeps_offers = !self.exactly_once();
        let live = &mut self.live;
        live.epoch = Epoch(epoch.0 + 1);
        live.table = Table::default();
        for client in live.clients.values_mut() {
            client.newest_sealed = client.newest;
            // Where nothing is granted twice, what is on its way is not taken back.
            if !keeps_offers {
                client.held.clear();
                client.held_epoch = live.epoch;
            }
        }
    }

    fn release(&mut self, consumer: ConsumerIndex) {
        let exactly_once = self.exactly_once();
        let live = &mut self.live;
        let Some(client) = live.clients.get_mut(&consumer) else { return };
        client.held.clear();
        client.released = true;
        (client.newest, client.newest_sealed) = (Stamp(0), Stamp(0));
        (client.newest_forgotten, client.inherited) = (Stamp(0), live.stamp);
        client.give_up(Stamp(0), live.stamp);
        live.stamp.0 += 1;
        if exactly_once {
            live.table.release(consumer);
        }
    }
}

impl Live {
    fn new(incarnation: Incarnation, consumers: u32, start: Start, opened_after: Ticket) -> Self {
        Self {
            incarnation,
            consumers,
            epoch: start.epoch,
            start,
            hash: None,
            by: ConsumerIndex(0),
            opened_after,
            table: Table::default(),
            clients: BTreeMap::new(),
            stamp: Stamp(0),
            rewinds: 0,
        }
    }
}

impl State {
    /// Makes a change. Events about jobs that are gone change nothing.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::JobOpened { job, name, description, consumers } => {
                let windows = description.windows;
                let start = Start { epoch: Epoch(0), position: String::new(), windows };
                let live = Live::new(Incarnation(1), *consumers, start, Ticket(0));
                let opened = Job {
                    name: name.clone(),
                    description: description.clone(),
                    tickets: BTreeMap::new(),
                    last_ticket: Ticket(0),
                    live,
                };
                self.opened += 1;
                self.names.insert(name.clone(), *job);
                self.jobs.insert(*job, opened);
            }
            Event::JobClosed { job, reason: _ } => {
                if let Some(closed) = self.jobs.remove(job) {
                    self.names.remove(&closed.name);
                }
            }
            Event::TicketIssued { job, consumer, nonce, ticket } => self.change(*job, |job| {
                job.tickets.insert(*consumer, (*nonce, *ticket));
                job.last_ticket = *ticket;
            }),
            Event::Restored { job, incarnation, consumer, consumers, start, hash } => {
                self.change(*job, |job| {
                    let live = Live::new(*incarnation, *consumers, start.clone(), job.last_ticket);
                    let mut live = Live { hash: Some(hash.clone()), by: *consumer, ..live };
                    if planted(Mutant::RestoreFencesNobody) {
                        live.clients = std::mem::take(&mut job.live.clients);
                        live.clients.values_mut().for_each(|client| client.held.clear());
                    }
                    job.live = live;
                });
            }
            Event::Attached { job, consumer, nonce, ticket, cursor } => {
                self.change(*job, |job| job.attach(*consumer, *ticket, *nonce, cursor));
            }
            Event::Granted { job, consumer, sequence, windows } => {
                self.change(*job, |job| job.grant(*consumer, *sequence, windows));
            }
            Event::Used { job, consumer, windows } => self.change(*job, |job| {
                if let Some(client) = job.live.clients.get_mut(consumer) {
                    for window in windows {
                        client.held.remove(window);
                    }
                }
                windows.iter().for_each(|window| job.live.table.finish(*window));
                job.forget();
            }),
            Event::Sealed { job, epoch } => self.change(*job, |job| job.seal(*epoch)),
            Event::Released { job, consumer } => self.change(*job, |job| job.release(*consumer)),
        }
    }

    fn change(&mut self, job: JobId, change: impl FnOnce(&mut Job)) {
        if let Some(job) = self.jobs.get_mut(&job) {
            change(job);
        }
    }

    /// The job of this name.
    #[must_use]
    pub fn find(&self, name: &JobName) -> Option<JobId> {
        self.names.get(name).copied()
    }

    /// The jobs.
    pub fn jobs(&self) -> impl Iterator<Item = (JobId, &Job)> {
        self.jobs.iter().map(|(id, job)| (*id, job))
    }

    /// A job.
    #[must_use]
    pub fn job(&self, job: JobId) -> Option<&Job> {
        self.jobs.get(&job)
    }
}

impl Job {
    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &JobName {
        &self.name
    }

    /// What it is.
    #[must_use]
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// The incarnation that is alive.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.live.incarnation
    }

    /// How many clients it has.
    #[must_use]
    pub fn consumers(&self) -> u32 {
        self.live.consumers
    }

    /// The epoch that is open.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.live.epoch
    }

    /// All windows of the open epoch below this one are used.
    #[must_use]
    pub fn prefix(&self) -> Window {
        self.live.table.prefix()
    }

    /// Whether a window of the open epoch is used up.
    #[must_use]
    pub fn is_used(&self, window: Window) -> bool {
        self.live.table.is_used(window)
    }

    /// How many windows of the open epoch are used up.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.live.table.used()
    }

    /// How many windows the open epoch has.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.windows(self.live.epoch).count
    }

    /// Clients that have taken their seats, whether each was released since, and how many windows it
    /// holds.
    pub fn clients(&self) -> impl Iterator<Item = (ConsumerIndex, bool, u64)> {
        let clients = self.live.clients.iter();
        clients.map(|(index, client)| (*index, client.released, client.held.len() as u64))
    }

    /// Windows that a client holds.
    pub fn held(&self, consumer: ConsumerIndex) -> impl Iterator<Item = Window> {
        self.live.clients.get(&consumer).into_iter().flat_map(|client| client.held.keys().copied())
    }

    /// Bytes that the windows of the open epoch take up.
    #[must_use]
    pub fn window_bytes(&self) -> usize {
        self.live.table.bytes()
    }
}
