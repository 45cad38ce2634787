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
mod tests;
