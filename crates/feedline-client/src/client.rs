//! The core of a client: what goes in changes it, what is to be done comes out.

use crate::checkpoint::Checkpoint;
use crate::fetching::{Asked, Held, Workers};
use feedline_wire::mutant::{Mutant, planted};
use feedline_wire::{
    ConsumerIndex, Cursor, Data, Description, Epoch, Fetch, Incarnation, JobId, JobName, Life,
    Millis, Nonce, Offset, Order, Refusal, Reply, Request, Seat, Standing, Start, Ticket,
    Visitation, Window, Windows, WorkerId, lookback,
};
use std::collections::{BTreeMap, VecDeque};

/// What a client is to do, and how patiently.
#[derive(Clone, Debug)]
pub struct Config {
    /// The job.
    pub name: JobName,
    /// What it is.
    pub description: Description,
    /// How many clients it has.
    pub consumers: u32,
    /// Which of them this is.
    pub consumer: ConsumerIndex,
    /// Drawn at random for this process.
    pub nonce: Nonce,
    /// How many windows are held.
    pub windows_ahead: usize,
    /// How many steps are received or asked for ahead of the trainer, over all windows. The first
    /// window is always fetched.
    pub steps_ahead: u64,
    /// How many steps a worker is asked for at once.
    pub steps_per_fetch: u64,
    /// How far below the floor the cursor marks own windows.
    pub lookback: u64,
    /// A request that is not answered for so long is sent again.
    pub request_timeout: Millis,
    /// After "wait" the dispatcher is asked again so much later.
    pub poll: Millis,
    /// The dispatcher hears of this client at least so often.
    pub report: Millis,
    /// What 99 of 100 fetches take at most. A worker that takes three times as long, and more than a
    /// second, is given up for another.
    pub fetch_p99: Millis,
    /// A trainer that has waited for so long without any news is told.
    pub patience: Millis,
    /// Whether clients of one turn share their windows' work.
    pub rounds: bool,
    /// Whether no window has more steps than the job says. With `bucket`, only its end tells.
    pub counted: bool,
    /// So many windows in a row are asked of one worker.
    pub in_a_row: u64,
    /// How many streams the windows belong to in turn. Those of one stream are asked of one worker,
    /// as long as it is there.
    pub streams: u64,
}

impl Config {
    /// The usual settings.
    #[must_use]
    pub fn new(
        name: JobName,
        description: Description,
        consumers: u32,
        consumer: ConsumerIndex,
        nonce: Nonce,
    ) -> Self {
        Self {
            name,
            description,
            consumers,
            consumer,
            nonce,
            windows_ahead: 4,
            steps_ahead: 32,
            steps_per_fetch: 8,
            lookback: lookback(consumers),
            request_timeout: 1_000,
            poll: u64::from(consumers).clamp(15, 500),
            report: 1_000,
            fetch_p99: 300,
            patience: 300_000,
            rounds: false,
            counted: true,
            in_a_row: 1,
            streams: 1,
        }
    }

    /// When a worker that has been asked is given up for another.
    fn stall(&self) -> Millis {
        self.fetch_p99.saturating_mul(3).max(1_000)
    }
}

/// How a client begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begin {
    /// Its trainer has used nothing.
    Fresh,
    /// It alone goes on where its checkpoint stands; the others were never gone.
    Resume(Checkpoint),
    /// All clients begin again, from what their merged checkpoints leave.
    Restore {
        /// What is left.
        start: Start,
        /// Names the merged state: the same for all clients.
        hash: String,
    },
    /// With order exact: at this step of this client's own, whatever the others do. Its windows follow
    /// by arithmetic, so the dispatcher only has to know the job.
    At {
        /// What the windows are cut from.
        start: Start,
        /// Which of the client's own windows.
        own: u64,
        /// The first step of it.
        offset: Offset,
    },
}

/// What a client wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<B> {
    /// Send this to the dispatcher; the reply comes back with the same number.
    Send {
        /// Counts requests. One that is sent again keeps its number.
        sequence: u64,
        /// The request.
        request: Request,
    },
    /// Ask this worker.
    Fetch {
        /// The worker.
        worker: WorkerId,
        /// What it is asked for.
        fetch: Fetch,
    },
    /// Hand the trainer its next batch.
    Deliver {
        /// The batch.
        batch: B,
        /// Its epoch.
        epoch: Epoch,
        /// Its window.
        window: Window,
        /// Its place in the window.
        offset: Offset,
    },
    /// Tell the trainer that the epoch has ended.
    EndOfEpoch(Epoch),
    /// Tell the trainer that it gets no batch, and why.
    Fail(Error),
}

/// Why a trainer gets no batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The dispatcher said no.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The checkpoint belongs to another job: restore all clients from a common checkpoint.
    #[error(
        "the checkpoint is of job {saved}, and {name} is job {now}; restore all clients from it"
    )]
    OtherJob {
        /// The job's name.
        name: JobName,
        /// The job that the checkpoint was saved in.
        saved: JobId,
        /// The job that bears the name now.
        now: JobId,
    },
    /// Nobody answered for long. Asking for the next batch goes on waiting.
    #[error("no batch for {waited} ms: {what}")]
    NoAnswer {
        /// Who is waited for.
        what: String,
        /// For how long.
        waited: Millis,
    },
}

impl Error {
    /// Whether this client can do nothing any more.
    #[must_use]
    pub fn is_final(&self) -> bool {
        !matches!(self, Self::NoAnswer { .. } | Self::Refused(Refusal::Silent { .. }))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Opening,
    Restoring,
    Attaching,
    Running,
    Over,
}

/// A request that waits for its reply.
#[derive(Debug)]
struct Pending {
    sequence: u64,
    request: Request,
    sent: Millis,
}

/// The core of a client.
#[derive(Debug)]
pub struct Client<B> {
    config: Config,
    begin: Begin,
    phase: Phase,
    seat: Seat,
    start: Start,
    cursor: Cursor,
    /// The window of the batch that the trainer has and is not known to have used.
    given: Option<Window>,
    /// Whether any batch was handed over.
    delivered: bool,
    held: BTreeMap<Window, Held<B>>,
    /// Windows in the order in which they are used.
    queue: VecDeque<Window>,
    workers: Workers,
    /// Whether a window waits because no worker can be asked for it.
    unasked: bool,
    /// Whether all windows are asked for or complete, so that there is nothing to fetch.
    settled: bool,
    pending: Option<Pending>,
    sequence: u64,
    /// Not before this time is the dispatcher asked for windows, or for anything.
    ask_again: Millis,
    reported: Millis,
    /// What the dispatcher said with "end".
    ended: Option<Standing>,
    waiting: Option<Millis>,
    news: Millis,
    actions: VecDeque<Action<B>>,
}

impl<B> Client<B> {
    /// A client that begins now.
    #[must_use]
    pub fn new(config: Config, begin: Begin, now: Millis) -> Self {
        let seat = Seat {
            job: JobId(0),
            incarnation: Incarnation(0),
            consumer: config.consumer,
            ticket: Ticket(0),
        };
        let order = config.description.order;
        let windows = config.description.windows;
        let mut client = Self {
            cursor: Cursor::new(&seat, config.consumers, order, Epoch(0)),
            start: Start { epoch: Epoch(0), position: String::new(), windows },
            config,
            begin,
            phase: Phase::Opening,
            seat,
            given: None,
            delivered: false,
            held: BTreeMap::new(),
            queue: VecDeque::new(),
            workers: Workers::default(),
            unasked: false,
            settled: false,
            pending: None,
            sequence: 0,
            ask_again: now,
            reported: now,
            ended: None,
            waiting: None,
            news: now,
            actions: VecDeque::new(),
        };
        client.advance(now);
        client
    }

    /// What is to be done next.
    pub fn action(&mut self) -> Option<Action<B>> {
        self.actions.pop_front()
    }

    /// Whether it has taken its seat.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.phase == Phase::Running
    }

    /// The incarnation it belongs to.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.seat.incarnation
    }

    /// Where that incarnation began.
    #[must_use]
    pub fn start(&self) -> &Start {
        &self.start
    }

    /// When it wants to be told the time, if nothing else happens. Until it was told, that may lie in
    /// the past.
    #[must_use]
    pub fn wake(&self) -> Option<Millis> {
        if self.phase == Phase::Over {
            return None;
        }
        let stall = self.config.stall();
        let fetches = self.held.values().filter_map(|held| held.gives_up_at(stall)).min();
        let pending =
            self.pending.as_ref().map(|pending| pending.sent + self.config.request_timeout);
        let asks = match self.pending {
            None if self.phase != Phase::Running || self.wants_windows() => Some(self.ask_again),
            _ => None,
        };
        let report = self.reported + self.config.report;
        let reports = self.phase == Phase::Running && !self.keeps_its_own();
        let report = (reports && self.pending.is_none()).then_some(report);
        let patience = self.waiting.map(|since| since.max(self.news) + self.config.patience);
        let workers = self.unasked.then(|| self.workers.ready_at()).flatten();
        [fetches, pending, asks, report, patience, workers].into_iter().flatten().min()
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Millis) {
        self.advance(now);
    }

    /// These workers can be asked.
    pub fn workers(&mut self, now: Millis, workers: &[WorkerId]) {
        self.workers.set(workers);
        self.advance(now);
    }

    /// Fetches take longer or shorter than was thought.
    pub fn set_fetch_p99(&mut self, p99: Millis) {
        self.config.fetch_p99 = p99;
    }

    /// More or fewer steps and windows are held ahead from now on.
    pub fn set_ahead(&mut self, steps: u64, windows: usize) {
        (self.config.steps_ahead, self.config.windows_ahead) = (steps.max(1), windows.max(1));
        self.config.steps_per_fetch = (steps / 4).max(1);
        // With order any, windows that are used in no time are asked for together, as long as every
        // worker has some. A power of two, so that clients who share work mostly agree.
        let each = windows / self.workers.count().max(1) / 4;
        if self.config.description.order == Order::Any && each > 0 {
            self.config.in_a_row = 1 << each.ilog2();
        }
    }

    /// Steps that are here and were not handed over.
    #[must_use]
    pub fn buffered(&self) -> u64 {
        self.held.values().map(|held| held.buffer.len() as u64).sum()
    }

    /// The job, once the dispatcher has named it.
    #[must_use]
    pub fn job(&self) -> JobId {
        self.seat.job
    }

    /// Which client of the job this is.
    #[must_use]
    pub fn consumer(&self) -> ConsumerIndex {
        self.config.consumer
    }

    /// What the windows of an epoch are cut from, and how.
    #[must_use]
    pub fn cut_of(&self, epoch: Epoch) -> (&str, Windows) {
        match epoch == self.start.epoch {
            true => (&self.start.position, self.start.windows),
            false => ("", self.config.description.windows),
        }
    }

    /// The epoch that the trainer is in.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.cursor.epoch
    }

    /// The connection to a worker is gone.
    pub fn worker_gone(&mut self, now: Millis, worker: WorkerId) {
        self.workers.gone(now, worker, self.config.stall());
        for held in self.held.values_mut() {
            if held.asked.is_some_and(|asked| asked.worker == worker) {
                held.fail();
                self.settled = false;
            }
        }
        self.advance(now);
    }

    /// A worker has sent steps.
    pub fn data(&mut self, now: Millis, worker: WorkerId, data: Data<B>) {
        self.data_of_several(now, worker, [data]);
    }

    /// A worker has sent steps of several windows.
    pub fn data_of_several(
        &mut self,
        now: Millis,
        worker: WorkerId,
        several: impl IntoIterator<Item = Data<B>>,
    ) {
        self.workers.delivered(worker);
        for data in several {
            let current =
                data.incarnation == self.seat.incarnation && data.epoch == self.cursor.epoch;
            if self.phase == Phase::Running
                && current
                && let Some(held) = self.held.get_mut(&data.window)
                && (data.offset.0 == held.expected() || planted(Mutant::NoOffsetCheck))
            {
                self.news = now;
                let window = data.window;
                held.take_in(now, data);
                self.settled &= held.asked.is_some() || held.is_complete();
                self.finish_if_used_up(window);
            }
        }
        self.advance(now);
    }

    /// The trainer wants its next batch. It has used the one before.
    pub fn next(&mut self, now: Millis) {
        self.use_given();
        self.waiting = Some(now);
        self.advance(now);
    }

    /// The trainer has used its batch and wants no other for now.
    pub fn used(&mut self, now: Millis) {
        self.use_given();
        self.advance(now);
    }

    /// The trainer saves its state, of which its last batch is a part. None before it has a seat.
    pub fn checkpoint(&mut self) -> Option<Checkpoint> {
        self.use_given();
        if self.phase != Phase::Running {
            return None;
        }
        let mut cursor = self.cursor.clone();
        if planted(Mutant::PrefetchCursor) {
            for (window, held) in &self.held {
                cursor.open.insert(*window, Offset(held.expected()));
                if held.is_complete() {
                    cursor.open.remove(window);
                    cursor.used.insert(*window);
                }
            }
        }
        let start = (cursor.epoch == self.start.epoch).then(|| self.start.clone());
        Some(Checkpoint { start, cursor })
    }

    /// The dispatcher has answered request `sequence`.
    pub fn reply(&mut self, now: Millis, sequence: u64, reply: Reply) {
        let expected = self.pending.as_ref().is_some_and(|pending| pending.sequence == sequence);
        let believed = planted(Mutant::NoRequestId) && self.phase == Phase::Running;
        if !expected && !believed {
            return;
        }
        self.pending = None;
        // With windows in hand, it is workers that are waited for.
        if self.held.is_empty() {
            self.news = now;
        }
        match reply {
            Reply::Opened { job, ticket, life } => self.opened(job, ticket, life),
            Reply::Restored { life } => self.begin_life(life, None),
            Reply::Attached { standing } => self.attached(standing),
            Reply::Granted { windows, standing } => {
                self.adopt(standing);
                self.hold(&windows);
                self.ask_again = now;
            }
            Reply::Wait { standing } => {
                self.adopt(standing);
                // While there is something to do, there is no hurry.
                let pause =
                    if self.held.is_empty() { self.config.poll } else { self.config.report };
                self.ask_again = now + pause;
            }
            Reply::End { epoch, standing } => {
                if epoch == self.cursor.epoch {
                    self.ended = Some(standing);
                }
            }
            Reply::Committed { standing } => self.adopt(standing),
            Reply::Released | Reply::Closed => {}
            Reply::Refused(refusal) => self.refused(now, refusal),
        }
        self.advance(now);
    }

    fn opened(&mut self, job: JobId, ticket: Ticket, life: Life) {
        (self.seat.job, self.seat.ticket) = (job, ticket);
        match &self.begin {
            Begin::Restore { .. } => self.phase = Phase::Restoring,
            Begin::At { start, own, offset } => {
                let (start, own, offset) = (start.clone(), *own, *offset);
                self.begin_at(start, own, offset);
            }
            Begin::Fresh => self.begin_life(life, None),
            Begin::Resume(checkpoint) if checkpoint.cursor.job != job => {
                let (name, saved) = (self.config.name.clone(), checkpoint.cursor.job);
                self.fail(Error::OtherJob { name, saved, now: job });
            }
            Begin::Resume(checkpoint) => {
                let cursor = checkpoint.cursor.clone();
                self.begin_life(life, Some(cursor));
            }
        }
    }

    fn begin_at(&mut self, start: Start, own: u64, offset: Offset) {
        let (consumers, order) = (self.config.consumers, self.config.description.order);
        if order == Order::Any {
            let what = "with order any, windows are dealt by the dispatcher; restore instead";
            self.fail(Error::Refused(Refusal::Mismatch(what.into())));
            return;
        }
        self.cursor = Cursor::new(&self.seat, consumers, order, start.epoch);
        self.cursor.used_up = own;
        self.cursor.floor.0 += own * u64::from(consumers);
        if offset.0 > 0 {
            self.cursor.open.insert(self.cursor.floor, offset);
        }
        self.start = start;
        self.phase = Phase::Running;
    }

    fn begin_life(&mut self, life: Life, cursor: Option<Cursor>) {
        self.seat.incarnation = cursor.as_ref().map_or(life.incarnation, |one| one.incarnation);
        let (consumers, order) = (self.config.consumers, self.config.description.order);
        self.cursor =
            cursor.unwrap_or_else(|| Cursor::new(&self.seat, consumers, order, life.start.epoch));
        if self.config.description.visitation == Visitation::AtMostOnce {
            // What was granted to an earlier process may have been used by it: it counts as used.
            for window in std::mem::take(&mut self.cursor.open).into_keys() {
                self.cursor.used.insert(window);
            }
        }
        self.start = life.start;
        self.phase = Phase::Attaching;
    }

    fn attached(&mut self, standing: Standing) {
        self.phase = Phase::Running;
        self.adopt(standing);
        self.held.clear();
        self.queue.clear();
        for (window, used) in &self.cursor.open {
            self.held.insert(*window, Held::new(*used));
            self.queue.push_back(*window);
            self.settled = false;
        }
    }

    fn adopt(&mut self, standing: Standing) {
        let Standing { epoch, floor, rewinds, stamp, used } = standing;
        if epoch != self.cursor.epoch {
            return;
        }
        (self.cursor.seen, self.cursor.rewinds) = (stamp, rewinds);
        if self.cursor.order == Order::Exact {
            return;
        }
        if let Some(used) = used {
            self.cursor.used.join(&used);
        }
        self.cursor.floor = floor;
        let listed_from = Window(floor.0.saturating_sub(self.config.lookback));
        self.cursor.used.forget_below(listed_from);
    }

    fn hold(&mut self, windows: &[Window]) {
        for window in windows {
            if !self.held.contains_key(window) || planted(Mutant::NoRequestId) {
                self.cursor.open.insert(*window, Offset(0));
                self.held.insert(*window, Held::new(Offset(0)));
                self.queue.push_back(*window);
                self.settled = false;
            }
        }
    }

    fn refused(&mut self, now: Millis, refusal: Refusal) {
        match refusal {
            Refusal::RetryLater(_) | Refusal::Exhausted(_) => {
                self.ask_again = now + self.config.poll;
            }
            // Others may have restored the same state again, before this client did anything.
            Refusal::StaleIncarnation { .. }
                if matches!(self.begin, Begin::Restore { .. })
                    && self.phase != Phase::Restoring
                    && !self.delivered =>
            {
                self.phase = Phase::Restoring;
                self.held.clear();
                self.queue.clear();
                self.ended = None;
            }
            Refusal::Silent { .. } => {
                self.ask_again = now + self.config.report;
                if self.waiting.take().is_some() {
                    self.actions.push_back(Action::Fail(Error::Refused(refusal)));
                }
            }
            refusal => self.fail(Error::Refused(refusal)),
        }
    }

    fn fail(&mut self, error: Error) {
        self.phase = Phase::Over;
        self.pending = None;
        self.actions.push_back(Action::Fail(error));
    }

    fn windows(&self) -> Windows {
        self.cut_of(self.cursor.epoch).1
    }

    fn use_given(&mut self) {
        let Some(window) = self.given.take() else { return };
        if let Some(used) = self.cursor.open.get_mut(&window) {
            used.0 += 1;
        } else if self.cursor.order == Order::Exact {
            self.cursor.open.insert(window, Offset(1));
        }
        self.finish_if_used_up(window);
    }

    fn finish_if_used_up(&mut self, window: Window) {
        let used = self.cursor.open.get(&window).map_or(0, |used| used.0);
        let end = self.held.get(&window).and_then(|held| held.end);
        if end.is_none_or(|end| used < end) {
            return;
        }
        match self.cursor.order {
            Order::Any => self.cursor.used.insert(window),
            // Windows are used in turn, so an empty one waits for those before it.
            Order::Exact if self.cursor.floor != window => return,
            Order::Exact => self.cursor.floor.0 += u64::from(self.cursor.consumers),
        }
        self.cursor.used_up += 1;
        self.cursor.open.remove(&window);
        self.held.remove(&window);
        if let Some(at) = self.queue.iter().position(|queued| *queued == window) {
            self.queue.remove(at);
        }
        if self.held.is_empty() {
            // That may have been the epoch's last.
            self.ask_again = 0;
        }
        if self.cursor.order == Order::Exact {
            self.finish_if_used_up(self.cursor.floor);
        }
    }

    /// Whether the dispatcher is not concerned with what is used.
    fn keeps_its_own(&self) -> bool {
        matches!(self.begin, Begin::At { .. })
    }

    fn wants_windows(&self) -> bool {
        self.cursor.order == Order::Any
            && self.ended.is_none()
            && self.held.len() <= self.config.windows_ahead / 2
    }

    /// Does whatever is due.
    fn advance(&mut self, now: Millis) {
        if self.phase == Phase::Over {
            return;
        }
        if self.phase == Phase::Running {
            self.take_own_windows();
            self.give_up_slow_workers(now);
            self.deliver(now);
            self.fetch(now);
        }
        self.ask(now);
        if let Some(since) = self.waiting
            && now >= since.max(self.news) + self.config.patience
        {
            self.waiting = None;
            let waited = now - since;
            let what = match (self.phase, self.held.is_empty()) {
                (Phase::Running, false) => "no worker delivers",
                _ => "the dispatcher does not answer",
            };
            let error = Error::NoAnswer { what: what.to_owned(), waited };
            self.actions.push_back(Action::Fail(error));
        }
    }

    /// With order exact, the next windows follow by arithmetic.
    fn take_own_windows(&mut self) {
        if self.cursor.order == Order::Any {
            return;
        }
        let step = u64::from(self.cursor.consumers);
        let last = self.queue.back().map(|window| window.0.saturating_add(step));
        let mut next = last.unwrap_or(self.cursor.floor.0);
        while self.held.len() < self.config.windows_ahead.max(1) && next < self.windows().count {
            let used = self.cursor.open.get(&Window(next)).copied().unwrap_or_default();
            self.held.insert(Window(next), Held::new(used));
            self.queue.push_back(Window(next));
            self.settled = false;
            next = next.saturating_add(step);
        }
    }

    fn give_up_slow_workers(&mut self, now: Millis) {
        let stall = self.config.stall();
        for held in self.held.values_mut() {
            let late = held.gives_up_at(stall).is_some_and(|at| now >= at);
            if let Some(asked) = held.asked.filter(|_| late) {
                self.workers.late(now, asked.worker, stall);
                held.fail();
                held.late += 1;
                self.settled = false;
            }
        }
    }

    fn fetch(&mut self, now: Millis) {
        if self.settled {
            return;
        }
        let windows = self.windows();
        let ahead = |held: &Held<B>| held.buffer.len() as u64 + held.coming();
        let mut total: u64 = self.held.values().map(ahead).sum();
        (self.unasked, self.settled) = (false, true);
        for (at, window) in self.queue.iter().enumerate() {
            let Some(held) = self.held.get_mut(window) else { continue };
            let full = total >= self.config.steps_ahead && (at > 0 || !held.buffer.is_empty());
            if held.asked.is_some() || held.is_complete() {
                continue;
            }
            if full {
                self.settled = false;
                continue;
            }
            // The same for all jobs: those that compute the same thing meet at one worker. So do
            // the clients of a round, whose windows of the same turn are one stretch.
            let number = match (self.config.rounds, self.config.streams) {
                (true, _) => window.0 / u64::from(self.config.consumers),
                (false, 0..=1) => window.0 / self.config.in_a_row.max(1),
                (false, streams) => window.0 % streams,
            } + u64::from(held.failures);
            let Some(worker) = self.workers.choose(now, number, held.last) else {
                (self.unasked, self.settled) = (true, false);
                return;
            };
            let from = held.expected();
            let left = match self.config.counted {
                true => windows.steps_of(*window).saturating_sub(from),
                false => u64::MAX,
            };
            let most = self.config.steps_per_fetch.min(left).max(1);
            held.asked = Some(Asked { worker, since: now, until: from + most });
            total += most;
            let fetch = Fetch {
                job: self.seat.job,
                incarnation: self.seat.incarnation,
                epoch: self.cursor.epoch,
                window: *window,
                from: Offset(from),
                most,
            };
            self.actions.push_back(Action::Fetch { worker, fetch });
        }
    }

    fn deliver(&mut self, now: Millis) {
        if self.waiting.is_none() {
            return;
        }
        let in_turn = if self.cursor.order == Order::Exact { 1 } else { usize::MAX };
        let ready =
            |window: &&Window| self.held.get(window).is_some_and(|held| !held.buffer.is_empty());
        let ready = self.queue.iter().take(in_turn).find(ready).copied();
        if let Some(window) = ready
            && let Some(held) = self.held.get_mut(&window)
            && let Some(batch) = held.buffer.pop_front()
        {
            let (epoch, offset) = (self.cursor.epoch, Offset(held.delivered));
            held.delivered += 1;
            self.given = Some(window);
            self.delivered = true;
            self.waiting = None;
            self.actions.push_back(Action::Deliver { batch, epoch, window, offset });
            if planted(Mutant::DoneAtYield) {
                self.use_given();
            }
            return;
        }
        let over = match self.cursor.order {
            Order::Any => self.ended.is_some(),
            Order::Exact => self.cursor.floor.0 >= self.windows().count,
        };
        if over && self.held.is_empty() {
            self.actions.push_back(Action::EndOfEpoch(self.cursor.epoch));
            self.cursor.next_epoch();
            if let Some(standing) = self.ended.take() {
                self.adopt(standing);
            }
            self.waiting = None;
            self.ask_again = now;
            self.take_own_windows();
        }
    }

    /// Sends what is due to the dispatcher, one request at a time.
    fn ask(&mut self, now: Millis) {
        if let Some(pending) = &mut self.pending {
            if now >= pending.sent + self.config.request_timeout {
                pending.sent = now;
                let (sequence, request) = (pending.sequence, pending.request.clone());
                self.actions.push_back(Action::Send { sequence, request });
            }
            return;
        }
        let request = match self.phase {
            Phase::Over => return,
            _ if self.phase != Phase::Running && now < self.ask_again => return,
            Phase::Opening => Request::OpenJob {
                name: self.config.name.clone(),
                description: self.config.description.clone(),
                consumers: self.config.consumers,
                consumer: self.config.consumer,
                nonce: self.config.nonce,
            },
            Phase::Restoring => {
                let Begin::Restore { start, hash } = &self.begin else { return };
                Request::Restore {
                    job: self.seat.job,
                    consumer: self.config.consumer,
                    nonce: self.config.nonce,
                    ticket: self.seat.ticket,
                    consumers: self.config.consumers,
                    start: start.clone(),
                    hash: hash.clone(),
                }
            }
            Phase::Attaching => Request::Attach {
                seat: self.seat,
                nonce: self.config.nonce,
                cursor: self.cursor.clone(),
            },
            Phase::Running if self.wants_windows() && now >= self.ask_again => Request::Get {
                seat: self.seat,
                sequence: self.sequence + 1,
                want: self.config.windows_ahead.saturating_sub(self.held.len()).max(1) as u32,
                cursor: self.cursor.clone(),
            },
            Phase::Running if self.keeps_its_own() => return,
            Phase::Running if now >= self.reported + self.config.report => {
                Request::Commit { seat: self.seat, cursor: self.cursor.clone() }
            }
            Phase::Running => return,
        };
        if self.phase == Phase::Running {
            self.reported = now;
        }
        self.sequence += 1;
        let sequence = self.sequence;
        self.actions.push_back(Action::Send { sequence, request: request.clone() });
        self.pending = Some(Pending { sequence, request, sent: now });
    }
}

#[cfg(test)]
mod tests;
