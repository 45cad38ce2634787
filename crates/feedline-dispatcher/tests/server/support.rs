//! A dispatcher, and a trainer that takes and uses windows as a client does.

use feedline_core::Blobs;
use feedline_dispatcher::{Dispatcher, Options};
use feedline_rpc::Remote;
use feedline_wire::control::{Control, Dataset, DatasetId};
use feedline_wire::{
    ConsumerIndex, Cursor, Description, Epoch, JobId, JobName, Nonce, Offset, Order, Refusal,
    Reply, Request, Seat, Standing, Visitation, Window, Windows, lookback,
};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub const PATIENCE: Duration = Duration::from_secs(20);

pub fn start(folder: &Path) -> Dispatcher {
    Dispatcher::start(Options::new(folder)).unwrap()
}

pub fn remote(dispatcher: &Dispatcher) -> Remote {
    Remote::new(&dispatcher.address().to_string()).unwrap()
}

pub fn dataset() -> Dataset {
    Dataset { plan: "{\"steps\":[]}".into(), manifest: "files".into(), blobs: vec![] }
}

pub fn register(control: &dyn Control) -> DatasetId {
    control.register(&dataset(), &Blobs::new()).unwrap()
}

pub fn description(windows: u64) -> Description {
    Description {
        dataset: format!("{}:seed 0", dataset().id()),
        visitation: Visitation::ExactlyOnce,
        order: Order::Any,
        windows: Windows { count: windows, steps: 1, last: 1 },
    }
}

/// One client of a job.
#[derive(Clone, Debug)]
pub struct Trainer {
    pub seat: Seat,
    pub cursor: Cursor,
    sequence: u64,
    /// What was used, over all epochs.
    pub used: BTreeSet<(Epoch, Window)>,
}

pub fn nonce() -> Nonce {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let process = u64::from(std::process::id()) << 32;
    Nonce(process | NEXT.fetch_add(1, Ordering::Relaxed))
}

pub fn open(name: &str, windows: u64, consumers: u32, consumer: u32, nonce: Nonce) -> Request {
    Request::OpenJob {
        name: JobName(name.into()),
        description: description(windows),
        consumers,
        consumer: ConsumerIndex(consumer),
        nonce,
    }
}

impl Trainer {
    /// Opens a job and takes a seat.
    pub fn join(
        control: &dyn Control,
        name: &str,
        windows: u64,
        consumers: u32,
        consumer: u32,
    ) -> Self {
        let nonce = nonce();
        let reply = control.ask(&open(name, windows, consumers, consumer, nonce), PATIENCE);
        let Ok(Reply::Opened { job, ticket, life }) = reply else { panic!("{reply:?}") };
        let consumer = ConsumerIndex(consumer);
        let seat = Seat { job, incarnation: life.incarnation, consumer, ticket };
        let cursor = Cursor::new(&seat, life.consumers, Order::Any, life.start.epoch);
        let mut trainer = Self { seat, cursor, sequence: 0, used: BTreeSet::new() };
        let attach = Request::Attach { seat, nonce, cursor: trainer.cursor.clone() };
        let reply = control.ask(&attach, PATIENCE);
        let Ok(Reply::Attached { standing }) = reply else { panic!("{reply:?}") };
        trainer.hear(standing);
        trainer
    }

    /// Takes the seat again, as a process does that has loaded this checkpoint.
    pub fn resume(&mut self, control: &dyn Control, name: &str, windows: u64) {
        let (nonce, consumer) = (nonce(), self.seat.consumer);
        let open = open(name, windows, self.cursor.consumers, consumer.0, nonce);
        let reply = control.ask(&open, PATIENCE);
        let Ok(Reply::Opened { ticket, .. }) = reply else { panic!("{reply:?}") };
        (self.seat.ticket, self.sequence) = (ticket, 0);
        let attach = Request::Attach { seat: self.seat, nonce, cursor: self.cursor.clone() };
        let reply = control.ask(&attach, PATIENCE);
        let Ok(Reply::Attached { standing }) = reply else { panic!("{reply:?}") };
        self.hear(standing);
    }

    pub fn job(&self) -> JobId {
        self.seat.job
    }

    fn hear(&mut self, standing: Standing) {
        let Standing { epoch, floor, rewinds, stamp, used } = standing;
        self.cursor.seen = stamp;
        if epoch == self.cursor.epoch {
            (self.cursor.floor, self.cursor.rewinds) = (floor, rewinds);
            if let Some(used) = used {
                self.cursor.used.join(&used);
            }
            let from = floor.0.saturating_sub(lookback(self.cursor.consumers));
            self.cursor.used.forget_below(Window(from));
        }
    }

    /// Asks for windows. What is granted is held.
    pub fn get(&mut self, control: &dyn Control, want: u32) -> Reply {
        self.sequence += 1;
        let (seat, sequence, cursor) = (self.seat, self.sequence, self.cursor.clone());
        let reply = control.ask(&Request::Get { seat, sequence, want, cursor }, PATIENCE).unwrap();
        match reply.clone() {
            Reply::Granted { windows, standing } => {
                self.hear(standing);
                self.cursor.open.extend(windows.into_iter().map(|window| (window, Offset(0))));
            }
            Reply::Wait { standing } => self.hear(standing),
            Reply::End { standing, .. } => {
                self.cursor.next_epoch();
                self.hear(standing);
            }
            _ => {}
        }
        reply
    }

    /// Uses everything that is held.
    pub fn use_all(&mut self) {
        for window in std::mem::take(&mut self.cursor.open).into_keys() {
            self.cursor.used.insert(window);
            self.cursor.used_up += 1;
            let fresh = self.used.insert((self.cursor.epoch, window));
            assert!(fresh, "window {window} came twice");
        }
    }

    /// Asks and uses until the epoch ends. Says how many windows that took.
    pub fn epoch(&mut self, control: &dyn Control, want: u32) -> usize {
        let before = self.used.len();
        loop {
            match self.get(control, want) {
                Reply::Granted { .. } => self.use_all(),
                Reply::Wait { .. } => std::thread::sleep(Duration::from_millis(2)),
                Reply::End { .. } => return self.used.len() - before,
                other => panic!("{other:?}"),
            }
        }
    }

    pub fn commit(&self, control: &dyn Control) -> Reply {
        let (seat, cursor) = (self.seat, self.cursor.clone());
        control.ask(&Request::Commit { seat, cursor }, PATIENCE).unwrap()
    }
}

pub fn refused(reply: Reply) -> Refusal {
    match reply {
        Reply::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}
