//! How fast the dispatcher is: durable grants over loopback gRPC, and the time of a restart.
//!
//! ```text
//! cargo run --release -p feedline-limit --bin dispatcher [FOLDER] [SECONDS]
//! ```
//!
//! The folder should be on the disk in question, and is left empty. A window is counted when it was
//! granted, synced and answered; what was used is reported along with the next request.

use feedline_core::Blobs;
use feedline_dispatcher::{Dispatcher, Options};
use feedline_rpc::Remote;
use feedline_wire::control::{Control, Dataset};
use feedline_wire::{
    ConsumerIndex, Cursor, Description, JobName, Nonce, Order, Reply, Request, Seat, Standing,
    Visitation, Window, Windows, lookback,
};
use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let parent = arguments.next().map_or_else(std::env::temp_dir, Into::into);
    let seconds = arguments.next().map_or(Ok(5), |text| text.parse())?;
    let folder = parent.join(format!("feedline-dispatcher-{}", std::process::id()));
    let measured = measure(&folder, Duration::from_secs(seconds));
    std::fs::remove_dir_all(&folder)?;
    measured
}

fn measure(folder: &Path, time: Duration) -> Result<(), Box<dyn Error>> {
    for (clients, want) in [(1, 1), (1, 16), (64, 1), (64, 16)] {
        let folder = folder.join(format!("clients-{clients}-{want}"));
        let (windows, requests, took) = grants(&folder, clients, want, time)?;
        println!(
            "{{\"clients\": {clients}, \"windows_per_request\": {want}, \
             \"durable_grants_per_second\": {:.0}, \"requests_per_second\": {:.0}}}",
            windows as f64 / took.as_secs_f64(),
            requests as f64 / took.as_secs_f64()
        );
    }
    for windows in [100_000, 1_000_000] {
        let folder = folder.join(format!("restart-{windows}"));
        let dispatcher = Dispatcher::start(Options::new(&folder))?;
        let control = Remote::new(&dispatcher.address().to_string())?;
        let mut client = Client::join(&control, 1, 0)?;
        let mut granted = 0;
        while granted < windows {
            granted += client.get(&control, 16)?;
        }
        drop(control);
        dispatcher.stop();
        let mut times = Vec::new();
        for _ in 0..5 {
            let begun = Instant::now();
            let dispatcher = Dispatcher::start(Options::new(&folder))?;
            let control = Remote::new(&dispatcher.address().to_string())?;
            client.get(&control, 1)?;
            times.push(begun.elapsed().as_secs_f64() * 1e3);
            drop(control);
            dispatcher.stop();
        }
        times.sort_by(f64::total_cmp);
        println!(
            "{{\"windows\": {windows}, \"restart_to_first_answer_ms\": {:.1}, \
             \"restart_to_first_answer_ms_worst\": {:.1}}}",
            times[2], times[4]
        );
    }
    Ok(())
}

/// Windows and requests that all clients got together, and the time that took.
fn grants(
    folder: &Path,
    clients: u32,
    want: u32,
    time: Duration,
) -> Result<(u64, u64, Duration), Box<dyn Error>> {
    let dispatcher = Dispatcher::start(Options::new(folder))?;
    let address = dispatcher.address().to_string();
    let control = Remote::new(&address)?;
    let mut members = Vec::new();
    for consumer in 0..clients {
        members.push(Client::join(&control, clients, consumer)?);
    }
    // A thread with a connection for each eight of them, as hosts with eight trainers have.
    let begun = Instant::now();
    let end = begun + time;
    let counted = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for group in members.chunks_mut(8) {
            let control = Remote::new(&address)?;
            threads.push(scope.spawn(move || -> Result<(u64, u64), String> {
                let control = &control;
                std::thread::scope(|scope| {
                    let work = |client: &mut Client| -> Result<(u64, u64), String> {
                        let (mut windows, mut requests) = (0, 0);
                        while Instant::now() < end {
                            windows +=
                                client.get(control, want).map_err(|error| error.to_string())?;
                            requests += 1;
                        }
                        Ok((windows, requests))
                    };
                    let threads: Vec<_> =
                        group.iter_mut().map(|client| scope.spawn(move || work(client))).collect();
                    sum(threads.into_iter().map(|thread| thread.join()))
                })
            }));
        }
        sum(threads.into_iter().map(|thread| thread.join())).map_err(Box::<dyn Error>::from)
    })?;
    Ok((counted.0, counted.1, begun.elapsed()))
}

fn sum(
    parts: impl Iterator<Item = std::thread::Result<Result<(u64, u64), String>>>,
) -> Result<(u64, u64), String> {
    let mut sum = (0, 0);
    for part in parts {
        let (windows, requests) = part.map_err(|_| "a client panicked".to_owned())??;
        sum = (sum.0 + windows, sum.1 + requests);
    }
    Ok(sum)
}

/// A client that uses at once what it is granted.
struct Client {
    seat: Seat,
    cursor: Cursor,
    sequence: u64,
}

impl Client {
    fn join(control: &Remote, consumers: u32, consumer: u32) -> Result<Self, Box<dyn Error>> {
        let dataset = Dataset { plan: "{}".into(), manifest: String::new(), blobs: vec![] };
        let dataset = control.register(&dataset, &Blobs::new())?.0;
        let (consumer, nonce) = (ConsumerIndex(consumer), Nonce(u64::from(consumer) + 1));
        let description = Description {
            dataset,
            visitation: Visitation::ExactlyOnce,
            order: Order::Any,
            windows: Windows { count: 1 << 40, steps: 1, last: 1 },
        };
        let name = JobName("job".into());
        let open = Request::OpenJob { name, description, consumers, consumer, nonce };
        let Reply::Opened { job, ticket, life } = control.ask(&open, PATIENCE)? else {
            return Err("the job was not opened".into());
        };
        let seat = Seat { job, incarnation: life.incarnation, consumer, ticket };
        let cursor = Cursor::new(&seat, consumers, Order::Any, life.start.epoch);
        let attach = Request::Attach { seat, nonce, cursor: cursor.clone() };
        let Reply::Attached { standing } = control.ask(&attach, PATIENCE)? else {
            return Err("the client was not attached".into());
        };
        let mut client = Self { seat, cursor, sequence: 0 };
        client.hear(standing);
        Ok(client)
    }

    fn hear(&mut self, standing: Standing) {
        let Standing { floor, rewinds, stamp, used, .. } = standing;
        (self.cursor.seen, self.cursor.floor, self.cursor.rewinds) = (stamp, floor, rewinds);
        if let Some(used) = used {
            self.cursor.used.join(&used);
        }
        let from = floor.0.saturating_sub(lookback(self.cursor.consumers));
        self.cursor.used.forget_below(Window(from));
    }

    /// Asks for windows, and uses them.
    fn get(&mut self, control: &Remote, want: u32) -> Result<u64, Box<dyn Error>> {
        self.sequence += 1;
        let (seat, sequence, cursor) = (self.seat, self.sequence, self.cursor.clone());
        match control.ask(&Request::Get { seat, sequence, want, cursor }, PATIENCE)? {
            Reply::Granted { windows, standing } => {
                self.hear(standing);
                windows.iter().for_each(|window| self.cursor.used.insert(*window));
                self.cursor.used_up += windows.len() as u64;
                Ok(windows.len() as u64)
            }
            // Others have come so far ahead that they are waited for.
            Reply::Wait { standing } => {
                self.hear(standing);
                Ok(0)
            }
            other => Err(format!("{other:?}").into()),
        }
    }
}
