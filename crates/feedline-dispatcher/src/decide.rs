//! Decides what a request changes and what is answered. Only reads.

use crate::state::{Client, Job};
use crate::table::MOST_CONSUMERS;
use crate::{CloseReason, Event, Presence, State};
use feedline_wire::mutant::{Mutant, planted};
use feedline_wire::{
    ConsumerIndex, Cursor, Description, Epoch, Incarnation, JobId, JobName, Life, Millis, Nonce,
    Order, Refusal, Reply, Request, Seat, Stamp, Standing, Start, Ticket, Visitation, Window,
    lookback,
};

/// How patient and how generous the dispatcher is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A client that is silent for so long, and holds what others wait for, is named to them.
    pub client_timeout: Millis,
    /// A job of which nobody is heard for so long is closed.
    pub idle_timeout: Millis,
    /// Windows are granted at most so far beyond the first that is not used, so that cursors stay
    /// short.
    pub spread: u64,
    /// With very many clients: so far for each of them.
    pub spread_each: u64,
    /// A client holds at most so many windows.
    pub most_held: usize,
    /// There are at most so many jobs.
    pub most_jobs: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            client_timeout: 60_000,
            idle_timeout: 24 * 3_600_000,
            spread: 1024,
            spread_each: 16,
            most_held: 256,
            most_jobs: 10_000,
        }
    }
}

/// What a request changes, and what is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// To be appended to the journal, then applied, in this order.
    pub events: Vec<Event>,
    /// To be sent when [`Decision::needs_sync`] allows.
    pub reply: Reply,
    /// Who was heard of.
    pub heard: Option<(JobId, Option<ConsumerIndex>)>,
}

impl Decision {
    /// Whether the reply has to wait until everything in the journal is synced, its own events and
    /// all before them. Replies that tell nothing of the state need not.
    #[must_use]
    pub fn needs_sync(&self) -> bool {
        let tells_nothing =
            matches!(&self.reply, Reply::Refused(Refusal::Exhausted(_) | Refusal::RetryLater(_)));
        !self.events.is_empty() || !tells_nothing
    }

    fn reply(reply: Reply) -> Self {
        Self { events: Vec::new(), reply, heard: None }
    }
}

impl From<Refusal> for Decision {
    fn from(refusal: Refusal) -> Self {
        Self::reply(Reply::Refused(refusal))
    }
}

/// Decides on a request.
#[must_use]
pub fn decide(
    state: &State,
    presence: &Presence,
    limits: &Limits,
    now: Millis,
    request: &Request,
) -> Decision {
    let decided = match request {
        Request::OpenJob { name, description, consumers, consumer, nonce } => {
            open(state, limits, name, description, *consumers, *consumer, *nonce)
        }
        Request::Restore { job, consumer, nonce, ticket, consumers, start, hash } => {
            let restore = Restore {
                consumer: *consumer,
                nonce: *nonce,
                ticket: *ticket,
                consumers: *consumers,
                start,
                hash,
            };
            find(state, *job).and_then(|found| restore.decide(*job, found))
        }
        Request::Attach { seat, nonce, cursor } => {
            find(state, seat.job).and_then(|job| attach(job, seat, *nonce, cursor))
        }
        Request::Get { seat, sequence, want, cursor } => {
            let get = Get { presence, limits, now, seat, sequence: *sequence, want: *want, cursor };
            find(state, seat.job).and_then(|job| get.decide(job))
        }
        Request::Commit { seat, cursor } => {
            find(state, seat.job).and_then(|job| commit(job, seat, cursor))
        }
        Request::Release { job, incarnation, consumer } => {
            find(state, *job).and_then(|found| release(*job, found, *incarnation, *consumer))
        }
        Request::CloseJob { job } => Ok(Decision {
            events: state
                .jobs
                .contains_key(job)
                .then_some(Event::JobClosed { job: *job, reason: CloseReason::Asked })
                .into_iter()
                .collect(),
            ..Decision::reply(Reply::Closed)
        }),
    };
    decided.unwrap_or_else(Decision::from)
}

/// What is to be tidied up: jobs of which nobody was heard for long.
#[must_use]
pub fn tidy(state: &State, presence: &Presence, limits: &Limits, now: Millis) -> Vec<Event> {
    let idle = state.jobs.keys().filter(|job| presence.idle(**job, now) >= limits.idle_timeout);
    idle.map(|job| Event::JobClosed { job: *job, reason: CloseReason::Idle }).collect()
}

type Decided = Result<Decision, Refusal>;

fn find(state: &State, job: JobId) -> Result<&Job, Refusal> {
    state.jobs.get(&job).ok_or(Refusal::UnknownJob { job })
}

fn open(
    state: &State,
    limits: &Limits,
    name: &JobName,
    description: &Description,
    consumers: u32,
    consumer: ConsumerIndex,
    nonce: Nonce,
) -> Decided {
    if consumers == 0 || consumers >= MOST_CONSUMERS || consumer.0 >= consumers {
        return Err(Refusal::Mismatch(format!(
            "consumer {consumer} of {consumers}: consumers are numbered from 0, and there is at least \
             one"
        )));
    }
    if (description.order, description.visitation) == (Order::Exact, Visitation::AtMostOnce) {
        return Err(Refusal::Mismatch(
            "with order exact nobody keeps account of what was handed out, so visitation is exactly-once"
                .into(),
        ));
    }
    let mut events = Vec::new();
    let job = match state.find(name) {
        Some(job) => job,
        None if state.jobs.len() >= limits.most_jobs => {
            return Err(Refusal::Exhausted(format!(
                "there are {} jobs already; close some",
                state.jobs.len()
            )));
        }
        None => {
            // Unlike a mere count, this does not come up again when the journal was lost.
            let job = JobId(mixed(nonce.0 ^ mixed(state.opened + 1)));
            let (name, description) = (name.clone(), description.clone());
            events.push(Event::JobOpened { job, name, description, consumers });
            job
        }
    };
    let known = state.jobs.get(&job);
    if let Some(what) = known.and_then(|known| differing(&known.description, description)) {
        return Err(Refusal::Mismatch(format!("job {name} was created with {what}")));
    }
    let issued = known.and_then(|known| known.tickets.get(&consumer));
    let ticket = match issued {
        // Asked again, by the same process.
        Some((known, ticket)) if *known == nonce => *ticket,
        _ => {
            let ticket = Ticket(known.map_or(0, |known| known.last_ticket.0) + 1);
            events.push(Event::TicketIssued { job, consumer, nonce, ticket });
            ticket
        }
    };
    let life = known.map_or_else(
        || Life {
            incarnation: Incarnation(1),
            consumers,
            start: Start { epoch: Epoch(0), position: String::new(), windows: description.windows },
        },
        Job::life,
    );
    let reply = Reply::Opened { job, ticket, life };
    Ok(Decision { events, reply, heard: Some((job, None)) })
}

/// Spreads the bits of a number.
fn mixed(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

/// Names the first thing in which a job differs from what it is taken for.
fn differing(known: &Description, asked: &Description) -> Option<String> {
    let Description { dataset, visitation, order, windows } = known;
    if *dataset != asked.dataset {
        return Some(format!("dataset {dataset}, and this client has {}", asked.dataset));
    }
    if *visitation != asked.visitation {
        return Some(format!(
            "visitation {visitation:?}, and this client asks {:?}",
            asked.visitation
        ));
    }
    if *order != asked.order {
        return Some(format!("order {order:?}, and this client asks for {:?}", asked.order));
    }
    (*windows != asked.windows).then(|| {
        format!(
            "{} windows of {} steps, and this client counts {} of {}",
            windows.count, windows.steps, asked.windows.count, asked.windows.steps
        )
    })
}

fn stale(job: &Job, asked: Incarnation) -> Refusal {
    Refusal::StaleIncarnation { asked, current: job.live.incarnation, by: job.live.by }
}

/// Finds the client that a seat belongs to, unless somebody else has it by now.
fn seated<'a>(job: &'a Job, seat: &Seat, cursor: &Cursor) -> Result<&'a Client, Refusal> {
    let live = &job.live;
    if seat.incarnation != live.incarnation && !planted(Mutant::RestoreFencesNobody) {
        return Err(stale(job, seat.incarnation));
    }
    let client = live
        .clients
        .get(&seat.consumer)
        .ok_or_else(|| Refusal::Mismatch(format!("consumer {} has not attached", seat.consumer)))?;
    let superseded = |reason: &str| {
        Err(Refusal::Superseded { consumer: seat.consumer, reason: reason.to_owned() })
    };
    if client.ticket != seat.ticket && !planted(Mutant::NoClientFence) {
        return superseded("a process that was started later has taken its place");
    }
    if client.released && !planted(Mutant::ReassignByTimeout) {
        return superseded("an operator has released it");
    }
    fits(seat, cursor)?;
    Ok(client)
}

fn fits(seat: &Seat, cursor: &Cursor) -> Result<(), Refusal> {
    let speaker = (cursor.job, cursor.incarnation, cursor.consumer);
    if speaker != (seat.job, seat.incarnation, seat.consumer) {
        return Err(Refusal::Mismatch(format!(
            "the cursor is that of consumer {} in incarnation {} of job {}, sent by consumer {} in \
             incarnation {} of job {}",
            cursor.consumer,
            cursor.incarnation,
            cursor.job,
            seat.consumer,
            seat.incarnation,
            seat.job
        )));
    }
    Ok(())
}

struct Restore<'a> {
    consumer: ConsumerIndex,
    nonce: Nonce,
    ticket: Ticket,
    consumers: u32,
    start: &'a Start,
    hash: &'a str,
}

impl Restore<'_> {
    fn decide(&self, id: JobId, job: &Job) -> Decided {
        let Self { consumer, nonce, ticket, consumers, start, hash } = self;
        if consumer.0 >= *consumers || *consumers >= MOST_CONSUMERS {
            return Err(Refusal::Mismatch(format!("consumer {consumer} of {consumers}")));
        }
        let live = &job.live;
        let heard = Some((id, Some(*consumer)));
        let attached = live.clients.get(consumer);
        if attached.is_some_and(|client| *ticket < client.ticket) {
            return Err(Refusal::Superseded {
                consumer: *consumer,
                reason: "a process that was started later has taken its place".into(),
            });
        }
        // All clients load the same state: the first opens, the others join. A client that has
        // already trained on it has crashed since, and all begin again.
        let trained = attached.is_some_and(|client| client.nonce != *nonce);
        let same = live.hash.as_deref() == Some(*hash) && live.consumers == *consumers;
        if same && (!trained || planted(Mutant::RestoreJoinsAttached)) {
            let reply = Reply::Restored { life: job.life() };
            return Ok(Decision { heard, ..Decision::reply(reply) });
        }
        // A process that asked for its ticket before this incarnation was opened has been overtaken:
        // its request is late, or it loaded another state than the others did.
        if *ticket <= live.opened_after {
            return Err(stale(job, live.incarnation));
        }
        let incarnation = Incarnation(live.incarnation.0 + 1);
        let life = Life { incarnation, consumers: *consumers, start: (*start).clone() };
        let event = Event::Restored {
            job: id,
            incarnation,
            consumer: *consumer,
            consumers: *consumers,
            start: (*start).clone(),
            hash: (*hash).to_owned(),
        };
        Ok(Decision { events: vec![event], reply: Reply::Restored { life }, heard })
    }
}

fn attach(job: &Job, seat: &Seat, nonce: Nonce, cursor: &Cursor) -> Decided {
    let (live, consumer) = (&job.live, seat.consumer);
    if seat.incarnation != live.incarnation {
        return Err(stale(job, seat.incarnation));
    }
    fits(seat, cursor)?;
    if consumer.0 >= live.consumers || cursor.consumers != live.consumers {
        return Err(Refusal::Mismatch(format!(
            "it has {} consumers, and this is consumer {consumer} of {}; to go on with another number, \
             restore",
            live.consumers, cursor.consumers
        )));
    }
    if cursor.order != job.description.order {
        return Err(Refusal::Mismatch("the cursor is that of another order".into()));
    }
    let client = live.clients.get(&consumer);
    let mut standing = job.standing(cursor, cursor.epoch, &[]);
    let heard = Some((seat.job, Some(consumer)));
    if let Some(client) = client {
        if seat.ticket < client.ticket && !planted(Mutant::NoClientFence) {
            return Err(Refusal::Superseded {
                consumer,
                reason: "a process that was started later has taken its place".into(),
            });
        }
        if seat.ticket == client.ticket {
            if client.digest == cursor.digest() && !client.released {
                // Asked again, and not heard yet: nothing was granted to this process since.
                if job.deals() && cursor.epoch == live.epoch {
                    let from = standing.floor.0.saturating_sub(lookback(live.consumers));
                    standing.used = Some(live.table.used_by(consumer, Window(from)));
                }
                return Ok(Decision { heard, ..Decision::reply(Reply::Attached { standing }) });
            }
            if !planted(Mutant::SameTicketOtherCursor) {
                return Err(Refusal::Mismatch(
                    "this process has attached before, with another cursor".into(),
                ));
            }
        }
    }
    if cursor.epoch > live.epoch && job.deals() {
        return Err(Refusal::Mismatch(format!(
            "the cursor is in epoch {}, and the job in {}",
            cursor.epoch, live.epoch
        )));
    }
    if job.deals() && job.exactly_once() {
        allowed(job, client, cursor)?;
    }
    standing.stamp.0 += 1;
    if job.deals() && job.exactly_once() {
        let keep = |window, stamp| job.kept(cursor, window, stamp);
        let (floor, unused, used) = live.table.foresee(consumer, lookback(live.consumers), keep);
        standing.rewinds += u64::from(unused);
        if cursor.epoch == live.epoch {
            (standing.floor, standing.used) = (floor, Some(used));
        }
    }
    let (job, ticket, cursor) = (seat.job, seat.ticket, cursor.clone());
    let event = Event::Attached { job, consumer, nonce, ticket, cursor };
    Ok(Decision { events: vec![event], reply: Reply::Attached { standing }, heard })
}

/// Whether a client may go on from this cursor, alone.
fn allowed(job: &Job, client: Option<&Client>, cursor: &Cursor) -> Result<(), Refusal> {
    let (live, consumer) = (&job.live, cursor.consumer);
    let not_yours = |what: String| Err(Refusal::NotYours { consumer, what });
    let too_far = |reason: &str| {
        let reason = reason.to_owned();
        Err(Refusal::RewoundTooFar { consumer, epoch: cursor.epoch, reason })
    };
    if !planted(Mutant::NoOwnershipCheck) {
        if client.is_some_and(|client| client.is_void(cursor)) {
            return not_yours("windows that came free when it went back".into());
        }
        if cursor.seen > live.stamp {
            return not_yours("grants that were never made".into());
        }
    }
    if cursor.epoch < live.epoch {
        // It may have ended the epoch with the others and not heard of it.
        let sealed = client.map_or(Stamp(0), |client| client.newest_sealed);
        let complete = cursor.open.is_empty() && cursor.seen >= sealed;
        return match complete || planted(Mutant::NoSeal) {
            true => Ok(()),
            false => too_far("that epoch has ended"),
        };
    }
    let forgotten = client.map_or(Stamp(0), |client| client.newest_forgotten);
    let known = cursor.floor >= live.table.kept_from() && cursor.seen >= forgotten;
    if forgotten > Stamp(0) && !known {
        return too_far("what it used then is no longer known");
    }
    if !planted(Mutant::NoOwnershipCheck) {
        let listed = cursor.used.iter().chain(cursor.open.keys().copied());
        for window in listed.filter(|window| *window >= live.table.kept_from()) {
            if live.table.owner(window).map(|(owner, _)| owner) != Some(consumer) {
                return not_yours(format!("window {window}"));
            }
        }
    }
    Ok(())
}

/// Windows that the client holds and has used up now, rising.
fn used_up(client: &Client, cursor: &Cursor) -> Vec<Window> {
    let held = client.held.iter().filter(|_| client.held_epoch == cursor.epoch);
    let known = |stamp: Stamp| stamp <= cursor.seen || planted(Mutant::NoStamps);
    let used = held.filter(|(window, stamp)| known(**stamp) && cursor.is_used(**window));
    used.map(|(window, _)| *window).collect()
}

/// The events for windows that were used up, and whether that ends the epoch.
fn note_used(
    job: &Job,
    seat: &Seat,
    used: &[Window],
    all_shown: bool,
    events: &mut Vec<Event>,
) -> bool {
    if !used.is_empty() {
        let (job, consumer, windows) = (seat.job, seat.consumer, used.to_vec());
        events.push(Event::Used { job, consumer, windows });
    }
    let live = &job.live;
    let over = all_shown && live.table.prefix_with(used).0 >= job.windows(live.epoch).count;
    if over {
        events.push(Event::Sealed { job: seat.job, epoch: live.epoch });
    }
    over
}

/// How a client stands that has just heard of the end of `epoch`.
fn after_end(job: &Job, cursor: &Cursor, epoch: Epoch, sealed_now: bool) -> Standing {
    let next = Epoch(epoch.0 + 1);
    let live = &job.live;
    match sealed_now {
        true => Standing {
            epoch: next,
            floor: Window(0),
            rewinds: live.rewinds,
            stamp: live.stamp,
            used: None,
        },
        false => job.standing(cursor, next, &[]),
    }
}

struct Get<'a> {
    presence: &'a Presence,
    limits: &'a Limits,
    now: Millis,
    seat: &'a Seat,
    sequence: u64,
    want: u32,
    cursor: &'a Cursor,
}

impl Get<'_> {
    fn decide(&self, job: &Job) -> Decided {
        let Self { seat, cursor, .. } = self;
        let client = seated(job, seat, cursor)?;
        let live = &job.live;
        if !job.deals() {
            return Err(Refusal::Mismatch(
                "with order exact, windows follow from the consumer's number; nobody has to ask"
                    .into(),
            ));
        }
        if cursor.epoch > live.epoch {
            return Err(Refusal::Mismatch(format!(
                "the cursor is in epoch {}, and the job in {}",
                cursor.epoch, live.epoch
            )));
        }
        if self.sequence < client.sequence && !planted(Mutant::NoRequestId) {
            return Err(Refusal::RetryLater("this request was overtaken by a later one".into()));
        }
        let heard = Some((seat.job, Some(seat.consumer)));
        let used = used_up(client, cursor);
        let offered = self.offered(client, &used);
        if cursor.epoch < live.epoch {
            let reply = match offered.is_empty() {
                true => {
                    let standing = after_end(job, cursor, cursor.epoch, false);
                    Reply::End { epoch: cursor.epoch, standing }
                }
                false => {
                    let standing = job.standing(cursor, cursor.epoch, &[]);
                    Reply::Granted { windows: offered, standing }
                }
            };
            return Ok(Decision { heard, ..Decision::reply(reply) });
        }
        let mut events = Vec::new();
        let all_shown = offered.is_empty();
        if note_used(job, seat, &used, all_shown, &mut events) {
            let standing = after_end(job, cursor, cursor.epoch, true);
            return Ok(Decision {
                events,
                reply: Reply::End { epoch: cursor.epoch, standing },
                heard,
            });
        }
        let mut windows = offered;
        let mut standing = job.standing(cursor, cursor.epoch, &used);
        let room = self.limits.most_held.saturating_sub(client.held.len() - used.len());
        let more = (self.want as usize).saturating_sub(windows.len()).min(room);
        let asked_again = self.sequence == client.sequence && !windows.is_empty();
        let each = u64::from(live.consumers).saturating_mul(self.limits.spread_each);
        let spread = self.limits.spread.max(each);
        let end = standing.floor.0.saturating_add(spread);
        let end = end.min(job.windows(live.epoch).count);
        let more = if asked_again { 0 } else { more };
        let fresh = live.table.grantable(more, end);
        if !fresh.is_empty() {
            windows.extend(&fresh);
            standing.stamp.0 += 1;
            let (job, consumer, sequence) = (seat.job, seat.consumer, self.sequence);
            events.push(Event::Granted { job, consumer, sequence, windows: fresh });
        }
        let reply = if !windows.is_empty() {
            Reply::Granted { windows, standing }
        } else if let Some((consumer, silent)) = self.silent(job, client.held.len() - used.len()) {
            if planted(Mutant::ReassignByTimeout) {
                events.push(Event::Released { job: seat.job, consumer });
            }
            let windows = live.clients.get(&consumer).map_or(0, |client| client.held.len() as u64);
            Reply::Refused(Refusal::Silent { consumer, silent, windows })
        } else {
            Reply::Wait { standing }
        };
        Ok(Decision { events, reply, heard })
    }

    /// Windows that were granted to the client and that it does not show.
    fn offered(&self, client: &Client, used: &[Window]) -> Vec<Window> {
        let Self { cursor, .. } = self;
        let held = client.held.iter().filter(|_| client.held_epoch == cursor.epoch);
        let held = held.filter(|(window, stamp)| {
            let answered = self.sequence == client.sequence && **stamp == client.newest;
            let offered = answered || !planted(Mutant::NoHeldSet);
            offered && used.binary_search(window).is_err() && !cursor.open.contains_key(window)
        });
        held.map(|(window, _)| *window).collect()
    }

    /// Another client that holds windows and was not heard of for long, if this one has none left.
    fn silent(&self, job: &Job, held: usize) -> Option<(ConsumerIndex, Millis)> {
        let others = job.live.clients.iter().filter(|(_, client)| {
            held == 0 && client.held_epoch == job.live.epoch && !client.held.is_empty()
        });
        let silent = others.map(|(consumer, _)| {
            (*consumer, self.presence.silent(self.seat.job, *consumer, self.now))
        });
        silent
            .filter(|(consumer, _)| *consumer != self.seat.consumer)
            .find(|(_, silent)| *silent >= self.limits.client_timeout)
    }
}

fn commit(job: &Job, seat: &Seat, cursor: &Cursor) -> Decided {
    let client = seated(job, seat, cursor)?;
    let heard = Some((seat.job, Some(seat.consumer)));
    let mut events = Vec::new();
    let mut standing = job.standing(cursor, cursor.epoch, &[]);
    if job.deals() && cursor.epoch == job.live.epoch {
        let used = used_up(client, cursor);
        standing = job.standing(cursor, cursor.epoch, &used);
        let all_shown = client
            .held
            .keys()
            .all(|window| used.binary_search(window).is_ok() || cursor.open.contains_key(window));
        if note_used(job, seat, &used, all_shown, &mut events) {
            standing.floor = Window(job.windows(cursor.epoch).count);
        }
    }
    // A report is not answered with windows, so it must not look as if there were none.
    standing.stamp = cursor.seen;
    Ok(Decision { events, reply: Reply::Committed { standing }, heard })
}

fn release(id: JobId, job: &Job, incarnation: Incarnation, consumer: ConsumerIndex) -> Decided {
    if incarnation != job.live.incarnation {
        return Err(stale(job, incarnation));
    }
    let attached = job.live.clients.get(&consumer);
    let events = match attached.is_some_and(|client| !client.released) {
        true => vec![Event::Released { job: id, consumer }],
        false => Vec::new(),
    };
    Ok(Decision { events, reply: Reply::Released, heard: Some((id, None)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use feedline_wire::{Offset, Windows};
    use proptest::prelude::*;

    /// A dispatcher without a server: what is decided is applied at once.
    struct Desk {
        state: State,
        presence: Presence,
        limits: Limits,
        now: Millis,
        journal: Vec<Event>,
    }

    fn description(windows: u64) -> Description {
        Description {
            dataset: "images".into(),
            visitation: Visitation::ExactlyOnce,
            order: Order::Any,
            windows: Windows { count: windows, steps: 4, last: 4 },
        }
    }

    impl Desk {
        fn new() -> Self {
            let limits =
                Limits { client_timeout: 1_000, idle_timeout: 50_000, ..Limits::default() };
            let (state, presence) = (State::default(), Presence::new(0));
            Self { state, presence, limits, now: 0, journal: Vec::new() }
        }

        fn ask(&mut self, request: &Request) -> Reply {
            let decision = decide(&self.state, &self.presence, &self.limits, self.now, request);
            for event in decision.events {
                self.state.apply(&event);
                self.journal.push(event);
            }
            if let Some((job, consumer)) = decision.heard {
                self.presence.heard(job, consumer, self.now);
            }
            decision.reply
        }

        fn refusal(&mut self, request: &Request) -> Refusal {
            match self.ask(request) {
                Reply::Refused(refusal) => refusal,
                reply => panic!("{reply:?}"),
            }
        }

        fn open(&mut self, consumer: u32, nonce: u64, description: Description) -> Seat {
            let request = Request::OpenJob {
                name: JobName("job".into()),
                description,
                consumers: 2,
                consumer: ConsumerIndex(consumer),
                nonce: Nonce(nonce),
            };
            let Reply::Opened { job, ticket, life } = self.ask(&request) else { panic!() };
            let consumer = ConsumerIndex(consumer);
            Seat { job, incarnation: life.incarnation, consumer, ticket }
        }

        fn attach(&mut self, seat: Seat, nonce: u64, cursor: &mut Cursor) -> Reply {
            let cursor_then = cursor.clone();
            let request = Request::Attach { seat, nonce: Nonce(nonce), cursor: cursor_then };
            let reply = self.ask(&request);
            if let Reply::Attached { standing } = &reply {
                hear(cursor, standing);
            }
            reply
        }

        /// A client that is new to the job.
        fn join(&mut self, consumer: u32, nonce: u64, windows: u64) -> (Seat, Cursor) {
            let seat = self.open(consumer, nonce, description(windows));
            let mut cursor = Cursor::new(&seat, 2, Order::Any, Epoch(0));
            let reply = self.attach(seat, nonce, &mut cursor);
            assert!(matches!(reply, Reply::Attached { .. }), "{reply:?}");
            (seat, cursor)
        }

        fn get(&mut self, seat: Seat, sequence: u64, want: u32, cursor: &mut Cursor) -> Reply {
            let request = Request::Get { seat, sequence, want, cursor: cursor.clone() };
            let reply = self.ask(&request);
            match &reply {
                Reply::Granted { windows, standing } => {
                    hear(cursor, standing);
                    windows.iter().for_each(|window| {
                        cursor.open.insert(*window, Offset(0));
                    });
                }
                Reply::Wait { standing } => hear(cursor, standing),
                Reply::End { standing, .. } => {
                    cursor.next_epoch();
                    hear(cursor, standing);
                }
                _ => {}
            }
            reply
        }

        fn release(&self, seat: Seat) -> Request {
            let Seat { job, incarnation, consumer, .. } = seat;
            Request::Release { job, incarnation, consumer }
        }
    }

    fn hear(cursor: &mut Cursor, standing: &Standing) {
        (cursor.seen, cursor.rewinds, cursor.floor) =
            (standing.stamp, standing.rewinds, standing.floor);
        if let Some(used) = &standing.used {
            cursor.used.join(used);
        }
    }

    fn use_up(cursor: &mut Cursor, window: u64) {
        cursor.open.remove(&Window(window)).expect("it is held");
        cursor.used.insert(Window(window));
        cursor.used_up += 1;
    }

    fn granted(reply: &Reply) -> Vec<u64> {
        match reply {
            Reply::Granted { windows, .. } => windows.iter().map(|window| window.0).collect(),
            reply => panic!("{reply:?}"),
        }
    }

    #[test]
    fn windows_are_granted_in_bulk_to_whoever_asks() {
        let mut desk = Desk::new();
        let (one, mut first) = desk.join(0, 10, 8);
        let (two, mut second) = desk.join(1, 20, 8);
        assert_eq!(granted(&desk.get(one, 1, 3, &mut first)), [0, 1, 2]);
        assert_eq!(granted(&desk.get(two, 1, 4, &mut second)), [3, 4, 5, 6]);
        assert_eq!(granted(&desk.get(one, 2, 4, &mut first)), [7]);
        assert!(matches!(desk.get(two, 2, 4, &mut second), Reply::Wait { .. }));
    }

    #[test]
    fn a_request_sent_twice_is_granted_once() {
        let mut desk = Desk::new();
        let (one, cursor) = desk.join(0, 10, 8);
        let first = desk.get(one, 1, 3, &mut cursor.clone());
        assert_eq!(desk.get(one, 1, 3, &mut cursor.clone()), first);
        let mut cursor = cursor;
        assert_eq!(granted(&desk.get(one, 2, 2, &mut cursor)), [0, 1, 2], "what was not heard of");
        assert_eq!(granted(&desk.get(one, 3, 2, &mut cursor)), [3, 4]);
        let old = desk.get(one, 1, 3, &mut Cursor { open: [].into(), ..cursor.clone() });
        assert!(matches!(old, Reply::Refused(Refusal::RetryLater(_))), "{old:?}");
    }

    #[test]
    fn an_epoch_ends_when_all_is_used_and_that_is_written_down() {
        let mut desk = Desk::new();
        let (one, mut first) = desk.join(0, 10, 2);
        let (two, mut second) = desk.join(1, 20, 2);
        desk.get(one, 1, 1, &mut first);
        desk.get(two, 1, 1, &mut second);
        use_up(&mut first, 0);
        assert!(matches!(desk.get(one, 2, 1, &mut first), Reply::Wait { .. }));
        use_up(&mut second, 1);
        let end = Request::Commit { seat: two, cursor: second.clone() };
        assert!(matches!(desk.ask(&end), Reply::Committed { .. }));
        assert_eq!(desk.journal.last(), Some(&Event::Sealed { job: one.job, epoch: Epoch(0) }));
        let reply = desk.get(one, 3, 1, &mut first);
        assert!(matches!(reply, Reply::End { epoch: Epoch(0), .. }), "{reply:?}");
        assert_eq!(granted(&desk.get(one, 4, 2, &mut first)), [0, 1], "the next epoch");
        assert!(
            matches!(desk.get(two, 2, 1, &mut second), Reply::End { .. }),
            "late, but it hears"
        );
    }

    #[test]
    fn an_epoch_of_no_windows_ends_at_once() {
        let mut desk = Desk::new();
        let (one, mut cursor) = desk.join(0, 10, 0);
        assert!(matches!(desk.get(one, 1, 1, &mut cursor), Reply::End { .. }));
    }

    #[test]
    fn endless_epochs_stay_near_the_prefix() {
        let mut desk = Desk::new();
        (desk.limits.spread, desk.limits.spread_each) = (4, 0);
        let (one, mut cursor) = desk.join(0, 10, u64::MAX);
        assert_eq!(granted(&desk.get(one, 1, 9, &mut cursor)), [0, 1, 2, 3]);
        assert!(matches!(desk.get(one, 2, 9, &mut cursor), Reply::Wait { .. }));
        use_up(&mut cursor, 0);
        use_up(&mut cursor, 2);
        assert_eq!(granted(&desk.get(one, 3, 9, &mut cursor)), [4]);
    }

    #[test]
    fn endless_epochs_take_up_a_bounded_memory() {
        let mut desk = Desk::new();
        let (one, mut cursor) = desk.join(0, 10, u64::MAX);
        desk.get(one, 1, 64, &mut cursor);
        let early = cursor.clone();
        let mut sequence = 1;
        while cursor.floor.0 < 5 << 20 {
            let open: Vec<u64> = cursor.open.keys().map(|window| window.0).collect();
            open.into_iter().for_each(|window| use_up(&mut cursor, window));
            sequence += 1;
            desk.get(one, sequence, 64, &mut cursor);
            cursor.used.forget_below(cursor.floor);
            desk.journal.clear();
        }
        assert!(desk.state.job(one.job).unwrap().window_bytes() < 24 << 20);
        let seat = desk.open(0, 11, description(u64::MAX));
        let refused = desk.attach(seat, 11, &mut early.clone());
        assert!(matches!(refused, Reply::Refused(Refusal::RewoundTooFar { .. })), "{refused:?}");
        assert!(matches!(desk.attach(seat, 11, &mut cursor), Reply::Attached { .. }));
        desk.join(1, 20, u64::MAX);
    }

    #[test]
    fn a_client_that_goes_back_gives_up_what_it_had_since() {
        let mut desk = Desk::new();
        let (one, mut cursor) = desk.join(0, 10, 8);
        desk.get(one, 1, 2, &mut cursor);
        let saved = cursor.clone();
        use_up(&mut cursor, 0);
        desk.get(one, 2, 2, &mut cursor);
        let later = cursor.clone();
        // A new process loads the older checkpoint.
        let seat = desk.open(0, 11, description(8));
        let mut cursor = saved.clone();
        desk.attach(seat, 11, &mut cursor);
        assert_eq!((cursor.rewinds, cursor.floor), (1, Window(0)));
        let (two, mut other) = desk.join(1, 20, 8);
        assert_eq!(granted(&desk.get(two, 1, 2, &mut other)), [2, 3], "free ones first");
        // What was saved after it is void.
        let seat = desk.open(0, 12, description(8));
        let refused = desk.attach(seat, 12, &mut later.clone());
        assert!(matches!(refused, Reply::Refused(Refusal::NotYours { .. })), "{refused:?}");
        let mut again = saved;
        assert!(matches!(desk.attach(seat, 12, &mut again), Reply::Attached { .. }));
    }

    #[test]
    fn an_old_process_is_not_heard() {
        let mut desk = Desk::new();
        let (old, mut cursor) = desk.join(0, 10, 8);
        desk.get(old, 1, 2, &mut cursor);
        let saved = cursor.clone();
        let new = desk.open(0, 11, description(8));
        desk.attach(new, 11, &mut cursor);
        for request in [
            Request::Get { seat: old, sequence: 9, want: 1, cursor: saved.clone() },
            Request::Commit { seat: old, cursor: saved.clone() },
            Request::Attach { seat: old, nonce: Nonce(10), cursor: saved.clone() },
        ] {
            let refusal = desk.refusal(&request);
            assert!(matches!(refusal, Refusal::Superseded { .. }), "{refusal}");
        }
        assert_eq!(desk.open(0, 11, description(8)), new, "the same process keeps its ticket");
    }

    #[test]
    fn one_client_alone_cannot_go_back_into_a_sealed_epoch() {
        let mut desk = Desk::new();
        let (one, mut cursor) = desk.join(0, 10, 2);
        desk.get(one, 1, 2, &mut cursor);
        use_up(&mut cursor, 0);
        let saved = cursor.clone();
        use_up(&mut cursor, 1);
        let complete = cursor.clone();
        desk.get(one, 2, 2, &mut cursor);
        let seat = desk.open(0, 11, description(2));
        let refused = desk.attach(seat, 11, &mut saved.clone());
        assert!(matches!(refused, Reply::Refused(Refusal::RewoundTooFar { .. })), "{refused:?}");
        // A checkpoint that has all of the epoch is as good as one after it.
        let mut cursor = complete;
        assert!(matches!(desk.attach(seat, 11, &mut cursor), Reply::Attached { .. }));
        assert!(matches!(desk.get(seat, 1, 2, &mut cursor), Reply::End { .. }));
    }

    #[test]
    fn the_same_ticket_with_another_cursor_is_refused() {
        let mut desk = Desk::new();
        let (one, cursor) = desk.join(0, 10, 8);
        let fresh = Cursor::new(&one, 2, Order::Any, Epoch(0));
        let again = Request::Attach { seat: one, nonce: Nonce(10), cursor: fresh };
        let events = desk.journal.len();
        assert!(matches!(desk.ask(&again), Reply::Attached { .. }), "the same again is harmless");
        assert_eq!(desk.journal.len(), events);
        let other = Request::Attach { seat: one, nonce: Nonce(10), cursor };
        assert!(matches!(desk.refusal(&other), Refusal::Mismatch(_)));
    }

    fn restore(desk: &mut Desk, seat: Seat, nonce: u64, hash: &str) -> Reply {
        let start = Start {
            epoch: Epoch(3),
            position: "somewhere".into(),
            windows: Windows { count: 5, steps: 4, last: 1 },
        };
        let Seat { job, consumer, ticket, .. } = seat;
        let (nonce, hash) = (Nonce(nonce), hash.to_owned());
        desk.ask(&Request::Restore { job, consumer, nonce, ticket, consumers: 2, start, hash })
    }

    fn incarnation(reply: Reply) -> u64 {
        match reply {
            Reply::Restored { life } => life.incarnation.0,
            reply => panic!("{reply:?}"),
        }
    }

    /// Takes a seat in an incarnation.
    fn take_seat(desk: &mut Desk, seat: Seat, nonce: u64, incarnation: u64) -> Seat {
        let seat = Seat { incarnation: Incarnation(incarnation), ..seat };
        let mut cursor = Cursor::new(&seat, 2, Order::Any, Epoch(3));
        let reply = desk.attach(seat, nonce, &mut cursor);
        assert!(matches!(reply, Reply::Attached { .. }), "{reply:?}");
        seat
    }

    #[test]
    fn the_first_to_restore_opens_and_the_others_join() {
        let mut desk = Desk::new();
        let (old, cursor) = desk.join(0, 10, 8);
        let [one, two] = [desk.open(0, 11, description(8)), desk.open(1, 21, description(8))];
        assert_eq!(incarnation(restore(&mut desk, one, 11, "state")), 2);
        assert_eq!(incarnation(restore(&mut desk, two, 21, "state")), 2);
        assert_eq!(incarnation(restore(&mut desk, one, 11, "state")), 2, "asked twice");
        let one = take_seat(&mut desk, one, 11, 2);
        assert_eq!(incarnation(restore(&mut desk, one, 11, "state")), 2, "asked late");
        let refusal = desk.refusal(&Request::Commit { seat: old, cursor });
        let wanted = Refusal::StaleIncarnation {
            asked: Incarnation(1),
            current: Incarnation(2),
            by: ConsumerIndex(0),
        };
        assert_eq!(refusal, wanted, "who restored is named");
        assert_eq!(desk.state.job(one.job).unwrap().epoch(), Epoch(3));
    }

    #[test]
    fn the_same_state_restored_again_after_a_crash_is_a_new_incarnation() {
        let mut desk = Desk::new();
        let [one, two] = [desk.open(0, 11, description(8)), desk.open(1, 21, description(8))];
        restore(&mut desk, one, 11, "state");
        take_seat(&mut desk, one, 11, 2);
        take_seat(&mut desk, two, 21, 2);
        let [again, other] = [desk.open(0, 12, description(8)), desk.open(1, 22, description(8))];
        assert_eq!(incarnation(restore(&mut desk, again, 12, "state")), 3);
        assert_eq!(incarnation(restore(&mut desk, other, 22, "state")), 3);
        // What a process of the time before said arrives late.
        take_seat(&mut desk, again, 12, 3);
        let late = restore(&mut desk, one, 11, "state");
        assert!(matches!(late, Reply::Refused(Refusal::Superseded { .. })), "{late:?}");
        let late = restore(&mut desk, two, 21, "another state");
        assert!(matches!(late, Reply::Refused(Refusal::StaleIncarnation { .. })), "{late:?}");
    }

    #[test]
    fn time_names_a_silent_client_and_moves_nothing() {
        let mut desk = Desk::new();
        let (one, mut first) = desk.join(0, 10, 4);
        let (two, mut second) = desk.join(1, 20, 4);
        desk.get(two, 1, 2, &mut second);
        desk.get(one, 1, 2, &mut first);
        assert!(matches!(desk.get(one, 2, 1, &mut first), Reply::Wait { .. }));
        desk.now = 5_000;
        use_up(&mut first, 2);
        let busy = desk.get(one, 3, 1, &mut first);
        assert!(matches!(busy, Reply::Wait { .. }), "it still has something to do: {busy:?}");
        use_up(&mut first, 3);
        let get = Request::Get { seat: one, sequence: 4, want: 1, cursor: first.clone() };
        let silent = Refusal::Silent { consumer: ConsumerIndex(1), silent: 5_000, windows: 2 };
        assert_eq!(desk.refusal(&get), silent);
        assert!(!desk.journal.iter().any(|event| matches!(event, Event::Released { .. })));
        assert_eq!(desk.ask(&desk.release(two)), Reply::Released);
        assert_eq!(granted(&desk.get(one, 5, 9, &mut first)), [0, 1]);
        let refusal = desk.refusal(&Request::Commit { seat: two, cursor: second });
        assert!(matches!(refusal, Refusal::Superseded { .. }), "{refusal}");
    }

    #[test]
    fn who_takes_a_released_clients_seat_inherits_what_it_used() {
        let mut desk = Desk::new();
        let (lost, mut cursor) = desk.join(0, 10, 4);
        desk.get(lost, 1, 2, &mut cursor);
        use_up(&mut cursor, 0);
        desk.get(lost, 2, 1, &mut cursor);
        desk.ask(&desk.release(lost));
        for nonce in [11, 12] {
            // Also when it crashes before it could save anything.
            let (seat, fresh) = desk.join(0, nonce, 4);
            assert_eq!(fresh.used.iter().collect::<Vec<_>>(), [Window(0)]);
            let mut again = Cursor::new(&seat, 2, Order::Any, Epoch(0));
            desk.attach(seat, nonce, &mut again);
            assert_eq!(again.used, fresh.used, "it did not hear the first time");
        }
        let seat = desk.open(0, 13, description(4));
        let refused = desk.attach(seat, 13, &mut cursor);
        assert!(matches!(refused, Reply::Refused(Refusal::NotYours { .. })), "{refused:?}");
    }

    #[test]
    fn where_nothing_may_come_twice_nothing_is_granted_twice() {
        let mut desk = Desk::new();
        let description = Description { visitation: Visitation::AtMostOnce, ..description(4) };
        let seat = desk.open(0, 10, description.clone());
        let mut cursor = Cursor::new(&seat, 2, Order::Any, Epoch(0));
        desk.attach(seat, 10, &mut cursor);
        let unheard = cursor.clone();
        assert_eq!(granted(&desk.get(seat, 1, 3, &mut cursor)), [0, 1, 2]);
        assert_eq!(
            granted(&desk.get(seat, 1, 3, &mut unheard.clone())),
            [0, 1, 2],
            "not heard yet"
        );
        let seat = desk.open(0, 11, description);
        let mut cursor = Cursor::new(&seat, 2, Order::Any, Epoch(0));
        desk.attach(seat, 11, &mut cursor);
        assert_eq!(granted(&desk.get(seat, 1, 3, &mut cursor)), [3]);
        assert!(matches!(desk.get(seat, 2, 3, &mut cursor), Reply::End { .. }));
    }

    #[test]
    fn with_order_exact_nobody_has_to_ask() {
        let mut desk = Desk::new();
        let description = Description { order: Order::Exact, ..description(8) };
        let seat = desk.open(1, 10, description.clone());
        let mut cursor = Cursor::new(&seat, 2, Order::Exact, Epoch(7));
        assert!(matches!(desk.attach(seat, 10, &mut cursor), Reply::Attached { .. }));
        let get = Request::Get { seat, sequence: 1, want: 1, cursor: cursor.clone() };
        assert!(matches!(desk.refusal(&get), Refusal::Mismatch(_)));
        let commit = Request::Commit { seat, cursor };
        assert!(matches!(desk.ask(&commit), Reply::Committed { .. }));
        let description = Description { visitation: Visitation::AtMostOnce, ..description };
        let request = Request::OpenJob {
            name: JobName("other".into()),
            description,
            consumers: 2,
            consumer: ConsumerIndex(0),
            nonce: Nonce(1),
        };
        assert!(matches!(desk.refusal(&request), Refusal::Mismatch(_)));
    }

    #[test]
    fn a_job_is_what_it_was_created_as() {
        let mut desk = Desk::new();
        desk.open(0, 10, description(8));
        let request = |description| Request::OpenJob {
            name: JobName("job".into()),
            description,
            consumers: 2,
            consumer: ConsumerIndex(0),
            nonce: Nonce(3),
        };
        let other = Description { dataset: "text".into(), ..description(8) };
        let refusal = desk.refusal(&request(other)).to_string();
        assert!(refusal.contains("dataset images, and this client has text"), "{refusal}");
        let refusal = desk.refusal(&request(description(9))).to_string();
        assert!(refusal.contains("8 windows of 4 steps"), "{refusal}");
        desk.limits.most_jobs = 1;
        let Request::OpenJob { description, consumers, consumer, nonce, .. } =
            request(description(8))
        else {
            panic!()
        };
        let name = JobName("second".into());
        let second = Request::OpenJob { name, description, consumers, consumer, nonce };
        assert!(matches!(desk.refusal(&second), Refusal::Exhausted(_)));
    }

    #[test]
    fn a_closed_jobs_name_is_free_and_its_number_is_not() {
        let mut desk = Desk::new();
        let (old, cursor) = desk.join(0, 10, 8);
        assert_eq!(desk.ask(&Request::CloseJob { job: old.job }), Reply::Closed);
        assert_eq!(desk.ask(&Request::CloseJob { job: old.job }), Reply::Closed, "asked twice");
        let refusal = desk.refusal(&Request::Commit { seat: old, cursor });
        assert_eq!(refusal, Refusal::UnknownJob { job: old.job });
        let new = desk.open(0, 10, description(8));
        assert_ne!(new.job, old.job);
    }

    #[test]
    fn idle_jobs_are_closed() {
        let mut desk = Desk::new();
        let (seat, cursor) = desk.join(0, 10, 8);
        desk.now = 49_999;
        assert_eq!(tidy(&desk.state, &desk.presence, &desk.limits, desk.now), []);
        desk.ask(&Request::Commit { seat, cursor });
        desk.now = 99_999;
        let closed = tidy(&desk.state, &desk.presence, &desk.limits, desk.now);
        assert_eq!(closed, [Event::JobClosed { job: seat.job, reason: CloseReason::Idle }]);
        closed.iter().for_each(|event| desk.state.apply(event));
        assert_eq!(desk.state.find(&JobName("job".into())), None);
    }

    #[test]
    fn replies_that_tell_something_wait_for_the_journal() {
        let desk = Desk::new();
        let asked = |request: &Request| {
            decide(&desk.state, &desk.presence, &desk.limits, 0, request).needs_sync()
        };
        assert!(asked(&Request::CloseJob { job: JobId(1) }), "that there is none is news too");
        let refused = Decision::from(Refusal::RetryLater("the disk is full".into()));
        assert!(!refused.needs_sync());
    }

    /// Something that a client, or a former process of it, could say.
    #[derive(Clone, Debug)]
    enum Said {
        Open(u32, u64),
        Attach(usize),
        Get(usize, u32),
        UseAndCommit(usize, u64),
        Restore(usize, u8),
        Release(u32),
        Close,
    }

    fn said() -> impl Strategy<Value = Said> {
        prop_oneof![
            2 => (0..2u32, 0..6u64).prop_map(|(consumer, nonce)| Said::Open(consumer, nonce)),
            3 => (0..9usize).prop_map(Said::Attach),
            6 => (0..9usize, 0..4u32).prop_map(|(who, want)| Said::Get(who, want)),
            6 => (0..9usize, any::<u64>()).prop_map(|(who, which)| Said::UseAndCommit(who, which)),
            1 => (0..9usize, 0..3u8).prop_map(|(who, hash)| Said::Restore(who, hash)),
            1 => (0..2u32).prop_map(Said::Release),
            1 => Just(Said::Close),
        ]
    }

    proptest! {
        #[test]
        fn replaying_the_journal_rebuilds_the_state(
            conversation in proptest::collection::vec(said(), 1..80),
            visitation in prop_oneof![Just(Visitation::ExactlyOnce), Just(Visitation::AtMostOnce)],
        ) {
            let mut desk = Desk::new();
            let description = Description { visitation, ..description(6) };
            // Processes, with the cursor each has come to.
            let mut known: Vec<(Seat, u64, Cursor)> = Vec::new();
            for (sequence, said) in conversation.into_iter().enumerate() {
                let count = known.len().max(1);
                match said {
                    Said::Open(consumer, nonce) => {
                        let seat = desk.open(consumer, nonce, description.clone());
                        let cursor = Cursor::new(&seat, 2, Order::Any, Epoch(0));
                        known.push((seat, nonce, cursor));
                    }
                    Said::Attach(who) => if let Some((seat, nonce, cursor)) = known.get_mut(who % count) {
                        desk.attach(*seat, *nonce, cursor);
                    },
                    Said::Get(who, want) => if let Some((seat, _, cursor)) = known.get_mut(who % count) {
                        desk.get(*seat, sequence as u64, want, cursor);
                    },
                    Said::UseAndCommit(who, which) => {
                        if let Some((seat, _, cursor)) = known.get_mut(who % count) {
                            let open: Vec<u64> = cursor.open.keys().map(|window| window.0).collect();
                            if !open.is_empty() {
                                use_up(cursor, open[which as usize % open.len()]);
                            }
                            desk.ask(&Request::Commit { seat: *seat, cursor: cursor.clone() });
                        }
                    }
                    Said::Restore(who, hash) => if let Some((seat, nonce, cursor)) = known.get_mut(who % count) {
                        let reply = restore(&mut desk, *seat, *nonce, &hash.to_string());
                        if let Reply::Restored { life } = reply {
                            seat.incarnation = life.incarnation;
                            *cursor = Cursor::new(seat, 2, Order::Any, life.start.epoch);
                        }
                    },
                    Said::Release(consumer) => if let Some((seat, ..)) = known.first() {
                        let seat = Seat { consumer: ConsumerIndex(consumer), ..*seat };
                        desk.ask(&desk.release(seat));
                    },
                    Said::Close => if let Some((seat, ..)) = known.first() {
                        desk.ask(&Request::CloseJob { job: seat.job });
                    },
                }
            }
            let mut replayed = State::default();
            for event in &desk.journal {
                let text = serde_json::to_string(&crate::Record::new(event.clone())).unwrap();
                let record: crate::Record = serde_json::from_str(&text).unwrap();
                replayed.apply(&record.into_event().unwrap());
            }
            prop_assert_eq!(&replayed, &desk.state);
            let snapshot = serde_json::to_string(&desk.state).unwrap();
            prop_assert_eq!(serde_json::from_str::<State>(&snapshot).unwrap(), replayed);
        }
    }
}
