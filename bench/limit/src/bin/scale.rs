//! What a dispatcher of a very large service would hold, hear and write down: the cores of thousands of
//! clients and of the dispatcher, in simulated time, through one epoch.
//!
//! ```text
//! cargo run --release -p feedline-limit --bin scale [CLIENTS] [SAMPLES] [WORKERS] [SAMPLES/S OF A CLIENT]
//! ```
//!
//! Requests, events and memory are counted, the dispatcher's own time is measured; what the network and
//! the disk add is measured by `dispatcher`.

use feedline_client::{Action, Begin, Client, Config};
use feedline_dispatcher::{Event, Limits, Presence, Record, State, decide};
use feedline_wire::{
    ConsumerIndex, Data, Description, JobName, Nonce, Order, Reply, Request, Start, Visitation,
    Windows, WorkerId,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

/// Counts what is allocated while the dispatcher remembers.
struct Counting;

static HELD: AtomicI64 = AtomicI64::new(0);

thread_local! {
    static COUNTS: Cell<bool> = const { Cell::new(false) };
}

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if COUNTS.get() {
            HELD.fetch_add(layout.size() as i64, Ordering::Relaxed);
        }
        // SAFETY: as the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if COUNTS.get() {
            HELD.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        }
        // SAFETY: as the caller's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Samples in a window, as a job has them unless it says otherwise.
const WINDOW: u64 = 512;
/// Milliseconds until the dispatcher's answer is there.
const ANSWER: u64 = 2;
/// Milliseconds until a worker has delivered a window.
const FETCH: u64 = 20;

/// A dispatcher without a server.
struct Desk {
    state: State,
    presence: Presence,
    limits: Limits,
    busy: Duration,
    requests: BTreeMap<&'static str, u64>,
    events: u64,
    bytes: u64,
    most: i64,
}

impl Desk {
    fn ask(&mut self, now: u64, request: &Request) -> Reply {
        *self.requests.entry(kind(request)).or_default() += 1;
        let started = Instant::now();
        let decision = decide(&self.state, &self.presence, &self.limits, now, request);
        COUNTS.set(true);
        decision.events.iter().for_each(|event| self.state.apply(event));
        if let Some((job, consumer)) = decision.heard {
            self.presence.heard(job, consumer, now);
        }
        COUNTS.set(false);
        self.busy += started.elapsed();
        self.most = self.most.max(HELD.load(Ordering::Relaxed));
        self.note(&decision.events);
        decision.reply
    }

    fn note(&mut self, events: &[Event]) {
        for event in events {
            self.events += 1;
            let record = serde_json::to_vec(&Record::new(event.clone())).unwrap_or_default();
            self.bytes += record.len() as u64;
        }
    }
}

fn kind(request: &Request) -> &'static str {
    match request {
        Request::OpenJob { .. } => "open",
        Request::Restore { .. } => "restore",
        Request::Attach { .. } => "attach",
        Request::Get { .. } => "get",
        Request::Commit { .. } => "commit",
        _ => "other",
    }
}

/// What happens to a client.
enum Happening {
    Reply(u64, Reply),
    Data(WorkerId, Data<()>),
    Used,
    Tick,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let clients = numbers.next().transpose()?.unwrap_or(10_000);
    let samples = numbers.next().transpose()?.unwrap_or(1_000_000_000);
    let workers = numbers.next().transpose()?.unwrap_or(1_000);
    let rate = numbers.next().transpose()?.unwrap_or(1_000);

    let limits = Limits::default();
    let mut desk = Desk {
        state: State::default(),
        presence: Presence::new(0),
        limits,
        busy: Duration::ZERO,
        requests: BTreeMap::new(),
        events: 0,
        bytes: 0,
        most: 0,
    };
    let windows = Windows::holding(samples.div_ceil(WINDOW), 1);
    let description = Description {
        dataset: "dataset".into(),
        visitation: Visitation::ExactlyOnce,
        order: Order::Any,
        windows,
    };
    let known: Vec<WorkerId> = (0..workers as u32).map(WorkerId).collect();
    let start = Start { epoch: feedline_wire::Epoch(0), position: String::new(), windows };
    let mut cores: Vec<Client<()>> = (0..clients)
        .map(|number| {
            let consumer = ConsumerIndex(number as u32);
            let name = JobName("large".into());
            let config =
                Config::new(name, description.clone(), clients as u32, consumer, Nonce(number + 1));
            let begin = Begin::Restore { start: start.clone(), hash: "begin".into() };
            let mut core = Client::new(config, begin, 0);
            core.workers(0, &known);
            core
        })
        .collect();

    // The time in milliseconds, a number that orders what happens at once, and to whom.
    let mut due: BinaryHeap<Reverse<(u64, u64, usize)>> = BinaryHeap::new();
    let mut happenings: BTreeMap<u64, Happening> = BTreeMap::new();
    let mut count = 0;
    let mut put = |due: &mut BinaryHeap<Reverse<(u64, u64, usize)>>,
                   happenings: &mut BTreeMap<u64, Happening>,
                   at: u64,
                   who: usize,
                   what: Happening| {
        count += 1;
        happenings.insert(count, what);
        due.push(Reverse((at, count, who)));
    };
    // They begin within a second, and use a window in so many milliseconds.
    for who in 0..cores.len() {
        put(&mut due, &mut happenings, who as u64 % 1000, who, Happening::Used);
    }
    let each = (WINDOW * 1000 / rate.max(1)).max(1);
    let (mut now, mut ended, mut used) = (0, 0, 0_u64);
    let mut ticks: Vec<u64> = vec![0; cores.len()];
    while let Some(Reverse((at, number, who))) = due.pop() {
        let Some(what) = happenings.remove(&number) else { continue };
        now = at;
        let core = &mut cores[who];
        match what {
            Happening::Reply(sequence, reply) => core.reply(now, sequence, reply),
            Happening::Data(worker, data) => core.data(now, worker, data),
            Happening::Used => core.next(now),
            Happening::Tick => core.tick(now),
        }
        while let Some(action) = core.action() {
            match action {
                Action::Send { sequence, request } => {
                    let reply = desk.ask(now, &request);
                    let what = Happening::Reply(sequence, reply);
                    put(&mut due, &mut happenings, now + ANSWER, who, what);
                }
                Action::Fetch { worker, fetch } => {
                    let data = Data {
                        incarnation: fetch.incarnation,
                        epoch: fetch.epoch,
                        window: fetch.window,
                        offset: fetch.from,
                        steps: vec![()],
                        end: true,
                    };
                    put(&mut due, &mut happenings, now + FETCH, who, Happening::Data(worker, data));
                }
                Action::Deliver { .. } => {
                    used += 1;
                    put(&mut due, &mut happenings, now + each, who, Happening::Used);
                }
                Action::EndOfEpoch(_) => ended += 1,
                Action::Fail(error) => return Err(error.to_string().into()),
            }
        }
        if ended == clients {
            break;
        }
        if let Some(wake) = core.wake()
            && (ticks[who] <= now || wake < ticks[who])
        {
            ticks[who] = wake.max(now + 1);
            put(&mut due, &mut happenings, wake.max(now + 1), who, Happening::Tick);
        }
    }
    if used != windows.count {
        return Err(format!("{used} windows were used of {}", windows.count).into());
    }
    let requests: u64 = desk.requests.values().sum();
    let seconds = now as f64 / 1e3;
    println!("clients, workers, samples      {clients}, {workers}, {samples}");
    println!(
        "windows                        {} of {WINDOW} samples, each used once",
        windows.count
    );
    println!("the epoch, simulated           {seconds:.1} s");
    println!("requests                       {requests}: {:?}", desk.requests);
    println!("requests a second              {:.0}", requests as f64 / seconds);
    println!("beats and reports a second     {}", clients + workers);
    println!("events, bytes as JSON          {}, {} MB", desk.events, desk.bytes / 1_000_000);
    println!("  per window                   {:.1} B", desk.bytes as f64 / windows.count as f64);
    println!("memory, at most                {:.1} MB", desk.most as f64 / 1e6);
    println!(
        "time of deciding, per request  {:.2} µs: one core decides {:.0} a second",
        desk.busy.as_secs_f64() * 1e6 / requests as f64,
        requests as f64 / desk.busy.as_secs_f64()
    );
    Ok(())
}
