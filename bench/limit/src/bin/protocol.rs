//! What the dispatcher's core costs: time per grant, memory per window, time to replay a journal, and
//! the size of a cursor. One client takes and uses all windows of an epoch, in bulk.
//!
//! ```text
//! cargo run --release -p feedline-limit --bin protocol [WINDOWS] [AT ONCE] [at-most-once]
//! ```
//!
//! What exactly-once costs beyond at-most-once: `perf stat -e instructions:u` of both.

use feedline_dispatcher::{Event, Limits, Presence, Record, State, decide};
use feedline_wire::{
    ConsumerIndex, Cursor, Description, Epoch, JobName, Nonce, Offset, Order, Reply, Request, Seat,
    Standing, Visitation, Windows,
};
use std::time::{Duration, Instant};

/// A dispatcher without a server.
struct Desk {
    state: State,
    presence: Presence,
    limits: Limits,
    journal: Vec<Event>,
}

impl Desk {
    fn ask(&mut self, request: &Request) -> Reply {
        let decision = decide(&self.state, &self.presence, &self.limits, 0, request);
        decision.events.iter().for_each(|event| self.state.apply(event));
        self.journal.extend(decision.events);
        decision.reply
    }
}

fn hear(cursor: &mut Cursor, standing: Standing) {
    (cursor.seen, cursor.floor) = (standing.stamp, standing.floor);
    cursor.used.forget_below(feedline_wire::Window(standing.floor.0.saturating_sub(512)));
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (words, numbers): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|text| text == "at-most-once");
    let mut numbers = numbers.iter().map(|text| text.parse::<u64>());
    let visitation = match words.is_empty() {
        true => Visitation::ExactlyOnce,
        false => Visitation::AtMostOnce,
    };
    let windows = numbers.next().transpose()?.unwrap_or(1_000_000);
    let at_once = numbers.next().transpose()?.unwrap_or(16);
    let limits = Limits::default();
    let presence = Presence::new(0);
    let mut desk = Desk { state: State::default(), presence, limits, journal: Vec::new() };

    let (consumer, nonce, name) = (ConsumerIndex(0), Nonce(1), JobName("job".into()));
    let description = Description {
        dataset: "dataset".into(),
        visitation,
        order: Order::Any,
        windows: Windows { count: windows, steps: 8, last: 8 },
    };
    let open = Request::OpenJob { name, description, consumers: 1, consumer, nonce };
    let Reply::Opened { job, ticket, life } = desk.ask(&open) else {
        return Err("the job was not opened".into());
    };
    let seat = Seat { job, incarnation: life.incarnation, consumer, ticket };
    let mut cursor = Cursor::new(&seat, 1, Order::Any, Epoch(0));
    let attach = Request::Attach { seat, nonce, cursor: cursor.clone() };
    let Reply::Attached { standing } = desk.ask(&attach) else {
        return Err("the client was not attached".into());
    };
    hear(&mut cursor, standing);

    let (mut asking, mut granted, mut sequence, mut bytes) = (Duration::ZERO, 0, 0, 0);
    let mut largest = 0;
    loop {
        sequence += 1;
        let want = at_once as u32;
        let request = Request::Get { seat, sequence, want, cursor: cursor.clone() };
        let start = Instant::now();
        let reply = desk.ask(&request);
        asking += start.elapsed();
        match reply {
            Reply::Granted { windows, standing } => {
                granted += windows.len() as u64;
                hear(&mut cursor, standing);
                cursor.open = windows.iter().map(|window| (*window, Offset(3))).collect();
                largest = largest.max(serde_json::to_string(&cursor)?.len());
                cursor.open.clear();
                windows.iter().for_each(|window| cursor.used.insert(*window));
                let state = desk.state.job(job).ok_or("the job is there")?;
                bytes = bytes.max(state.window_bytes());
            }
            Reply::End { .. } => break,
            reply => return Err(format!("not expected: {reply:?}").into()),
        }
    }
    let mut text = 0;
    for event in &desk.journal {
        text += serde_json::to_string(&Record::new(event.clone()))?.len();
    }
    let start = Instant::now();
    let mut replayed = State::default();
    desk.journal.iter().for_each(|event| replayed.apply(event));
    let replay = start.elapsed();
    if replayed != desk.state {
        return Err("replaying led to another state".into());
    }
    println!("windows                      {granted}, {at_once} at once");
    println!("decide and apply, per grant  {:.0} ns", asking.as_nanos() as f64 / granted as f64);
    println!("grants per second            {:.0}", granted as f64 / asking.as_secs_f64());
    println!("memory per window            {:.2} B", bytes as f64 / granted as f64);
    println!("events                       {}", desk.journal.len());
    println!("as JSON, per window          {:.1} B", text as f64 / granted as f64);
    println!("replay                       {:.1} ms", replay.as_secs_f64() * 1e3);
    println!("largest cursor, as JSON      {largest} B");
    Ok(())
}
