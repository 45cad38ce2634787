//! The dispatcher: the real one, on a simulated disk and a simulated network; and the operator who
//! releases lost clients.

use crate::trace;
use crate::world::{PORT, Shared, Task, World, connect, lock};
use feedline_dispatcher::server::{Listener, Opened, Simulated};
use feedline_dispatcher::{Event, Limits, Options, State};
use feedline_journal::Disk;
use feedline_wire::control::Failure;
use feedline_wire::mutant::{Mutant, planted};
use feedline_wire::{ConsumerIndex, Reply, Request, Window};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;
use turmoil::net::{TcpListener, TcpStream};

/// Where the journal lies on the simulated disk.
const FOLDER: &str = "/journal";

/// Connections over the simulated network.
struct Incoming(TcpListener);

impl Listener for Incoming {
    type Stream = TcpStream;

    async fn accept(&mut self) -> io::Result<(TcpStream, Option<IpAddr>)> {
        let (stream, peer) = self.0.accept().await?;
        Ok((stream, Some(peer.ip())))
    }
}

/// The dispatcher from its start until it cannot go on.
pub async fn run(world: Shared) -> turmoil::Result {
    let options = options(&world);
    match Opened::open(&options) {
        Ok(opened) => {
            {
                let mut world = lock(&world);
                let files = world.disk.list(Path::new(FOLDER)).unwrap_or_default();
                let snapshot = files.iter().any(|file| file.ends_with(".snap"));
                world.outcome.dispatcher_starts += 1;
                world.outcome.torn += u64::from(opened.torn().is_some());
                world.outcome.from_snapshot += u64::from(snapshot);
            }
            let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).await?;
            opened.simulate(&options, Incoming(listener)).await;
        }
        // It crashes again while it starts.
        Err(error) if error.to_string().contains("the simulated power has failed") => {}
        // There is no space for even an empty file; there will be.
        Err(error) if lock(&world).disk_is_full => {
            trace::note(&format!("the dispatcher does not start: {error}"));
            lock(&world).soon(200, 500, Task::DispatcherUp);
        }
        // Whatever a crash leaves of a journal can be opened.
        Err(error) => lock(&world).fail(format!("the dispatcher does not start: {error}")),
    }
    Ok(())
}

fn options(world: &Shared) -> Options {
    let (times, witnesses) = (Shared::clone(world), Shared::clone(world));
    let world = lock(world);
    let setup = &world.setup;
    let simulated = Simulated {
        sync: Box::new(move || {
            let mut world = lock(&times);
            let slow = !world.healed && world.random.chance(30);
            Duration::from_millis(world.random.within(1, if slow { 1_000 } else { 10 }))
        }),
        witness: Box::new(move |state, event| lock(&witnesses).witness(state, event)),
        snapshot_after: setup.snapshot_after,
    };
    let limits = Limits {
        client_timeout: setup.client_timeout,
        spread: setup.spread,
        spread_each: 0,
        ..Limits::default()
    };
    Options {
        disk: Arc::new(world.disk.clone()),
        journal_options: feedline_journal::Options {
            segment_bytes: setup.segment_bytes,
            reserve_bytes: setup.reserve_bytes,
            // It is looked for at every occasion, whatever the real clock shows.
            full_retry: Duration::ZERO,
            ..feedline_journal::Options::default()
        },
        limits,
        simulated: Some(Arc::new(simulated)),
        ..Options::new(FOLDER)
    }
}

impl World {
    /// Sees to it that what is about to be written down is true.
    fn witness(&mut self, state: &State, event: &Event) {
        match event {
            Event::Used { job, consumer, windows } if self.exactly_once() => {
                let Some(job) = state.job(*job) else { return };
                let (incarnation, epoch) = (job.incarnation(), job.epoch().0);
                for window in windows {
                    if !self.was_used(*consumer, incarnation, epoch, *window) {
                        let what = "counts as used, and was not by whoever says so";
                        self.fail(format!("window {window} of epoch {epoch} {what}"));
                    }
                }
            }
            Event::Released { job, consumer } if !planted(Mutant::ReassignByTimeout) => {
                if let Some(job) = state.job(*job) {
                    self.released_client(job, *consumer);
                }
            }
            _ => {}
        }
    }

    /// Whether some process of a client has used a whole window.
    fn was_used(
        &self,
        consumer: ConsumerIndex,
        incarnation: feedline_wire::Incarnation,
        epoch: u64,
        window: Window,
    ) -> bool {
        let of_client = |process: &&crate::world::Process| {
            process.consumer == consumer && process.incarnation == incarnation
        };
        self.processes.iter().filter(of_client).any(|process| {
            process.layout.as_ref().is_some_and(|layout| {
                (0..layout.steps_of(epoch, window)).all(|offset| {
                    process.history.contains(epoch, layout.step(epoch, window, offset))
                })
            })
        })
    }

    /// What a lost client had used, as far as the dispatcher knows, counts.
    fn released_client(&mut self, job: &feedline_dispatcher::Job, consumer: ConsumerIndex) {
        let (incarnation, epoch) = (job.incarnation(), job.epoch().0);
        let lost = self.processes.iter().rposition(|process| process.consumer == consumer);
        let Some(lost) = lost else { return };
        let mut used = self.processes[lost].history.before(epoch);
        let Some(layout) = self.layout(lost) else { return };
        if epoch < self.setup.epochs {
            for window in (0..layout.windows(epoch).count).map(Window) {
                for offset in 0..layout.steps_of(epoch, window) {
                    let step = layout.step(epoch, window, offset);
                    if job.is_used(window) && self.processes[lost].history.contains(epoch, step) {
                        used.insert(epoch, step);
                    }
                }
            }
        }
        self.inherited.retain(|(known, _)| *known != incarnation);
        self.inherited.push((incarnation, used));
        self.outcome.releases += 1;
    }

    /// An operator hears that a client was released: sometimes somebody else takes its place.
    fn released(&mut self, slot: usize) {
        let lost = self.slots.get(slot).is_some_and(|slot| slot.lost);
        if lost && self.random.chance(500) {
            let Some((incarnation, inherits)) = self.inherited.pop() else { return };
            self.soon(0, 0, Task::Replace { slot, incarnation, inherits });
        }
    }
}

/// An operator who releases the client that the world says.
pub async fn operate(world: Shared) -> turmoil::Result {
    let Some((slot, job, incarnation)) = lock(&world).release else { return Ok(()) };
    let calls = connect();
    let request = Request::Release { job, incarnation, consumer: ConsumerIndex(slot as u32) };
    loop {
        match calls.ask(&request, Duration::from_secs(5)).await {
            Ok(Reply::Released) => lock(&world).released(slot),
            // It was restored in the meantime, or has come back.
            Ok(_) => {}
            Err(Failure::Unavailable(_)) => {
                sleep(Duration::from_millis(200)).await;
                continue;
            }
            Err(failure) => lock(&world).fail(format!("cannot release: {failure}")),
        }
        lock(&world).release = None;
        return Ok(());
    }
}
