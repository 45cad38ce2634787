//! The processes of one command, shared by all that call functions here.
//!
//! ```text
//!  call ──► an idle process, or a new one ──► back to the idle ones
//!                    ▲
//!               keeper: starts processes, and ends those that nobody needs
//! ```
//!
//! Processes end with the thread that started them, which is a promise of the kernel. So one thread,
//! the keeper, starts them all, and lives as long as there are any.

use super::command::HostCommand;
use super::process::{Fault, Process};
use feedline_core::{Context, Error, Function, Host, Made, Result, Sample};
use feedline_shm::Segments;
use std::any::Any;
use std::fmt;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often a sample is tried whose process ends.
const ATTEMPTS: usize = 3;
/// A process that no run holds is ended after so long.
const IDLE: Duration = Duration::from_secs(10);
/// Processes forked from each other that use one value; each has its own pool.
const FORKS: usize = 8;
/// Bytes of what goes into all processes of a pool.
const SHARED: usize = 1 << 40;

/// Runs functions in processes of one command. Processes are started when they are needed, serve
/// one call at a time, and end when the last run that holds them is dropped.
pub struct Hosts {
    command: Arc<HostCommand>,
    /// One for this process, and one for each fork that has a copy of this value.
    pools: [OnceLock<Arc<Inner>>; FORKS],
}

impl Hosts {
    /// A pool of processes of this command; none is started yet.
    #[must_use]
    pub fn new(command: HostCommand) -> Self {
        Self { command: Arc::new(command), pools: [const { OnceLock::new() }; FORKS] }
    }

    /// The pool of this process. After a fork it is another one: threads and locks stay behind.
    fn inner(&self) -> Result<&Arc<Inner>> {
        let home = std::process::id();
        let made = || {
            let (segments, state) = (Segments::new(SHARED), Mutex::default());
            Arc::new(Inner { home, command: Arc::clone(&self.command), segments, state })
        };
        let mut pools = self.pools.iter().map(|pool| pool.get_or_init(made));
        pools
            .find(|inner| inner.home == home)
            .ok_or_else(|| Error::Internal(format!("more than {FORKS} forks within each other")))
    }

    /// Number of processes that are alive.
    #[must_use]
    pub fn processes(&self) -> usize {
        self.inner().map_or(0, |inner| inner.lock().alive)
    }
}

impl fmt::Debug for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hosts({:?})", self.command.line())
    }
}

impl Host for Hosts {
    fn call(&self, function: &Function, sample: Sample, context: &mut Context<'_>) -> Result<Made> {
        let inner = self.inner()?;
        let mut taken = inner.take()?;
        let input = match taken.process.prepare(sample, context) {
            Ok(input) => input,
            Err(error) => {
                inner.give_back(taken);
                return Err(error);
            }
        };
        let name = &function.name;
        let mut last = String::new();
        for _ in 0..ATTEMPTS {
            match taken.process.call(function, &input, context) {
                Ok(made) => {
                    inner.give_back(taken);
                    return Ok(made);
                }
                Err(Fault::Failed(text)) => {
                    inner.give_back(taken);
                    return Err(Error::record(format!("function {name}: {text}")));
                }
                Err(Fault::Ended(how)) => {
                    let memory = taken.process.take_input();
                    inner.end(taken);
                    if context.workspace.cancel.is_cancelled() {
                        return Err(Error::Cancelled);
                    }
                    last = how;
                    taken = inner.take()?;
                    taken.process.set_input(memory);
                }
                Err(fault) => {
                    inner.end(taken);
                    return Err(match fault {
                        Fault::Cancelled => Error::Cancelled,
                        Fault::Fatal(error) => error,
                        Fault::Late => Error::record(format!(
                            "function {name}: no answer within {} s, and its process was ended; \
                             timeout= allows more",
                            function.timeout.as_secs_f64()
                        )),
                        Fault::Nonsense(what) => Error::record(format!(
                            "function {name}: its host answered nonsense: {what}"
                        )),
                        Fault::Failed(text) | Fault::Ended(text) => Error::Internal(text),
                    });
                }
            }
        }
        inner.give_back(taken);
        Err(Error::record(format!(
            "function {name}: the process that ran it {last}, {ATTEMPTS} times out of {ATTEMPTS}"
        )))
    }

    fn hold(&self, calls: usize) -> Box<dyn Any + Send + Sync> {
        let Ok(inner) = self.inner() else { return Box::new(()) };
        let mut state = inner.lock();
        state.holds += 1;
        let missing = calls.saturating_sub(state.alive);
        if let Ok(orders) = inner.orders(&mut state) {
            for _ in 0..missing {
                if orders.send(Order::Warm).is_ok() {
                    state.alive += 1;
                }
            }
        }
        drop(state);
        Box::new(Hold(Arc::clone(inner)))
    }
}

/// Says that processes are needed.
struct Hold(Arc<Inner>);

impl Drop for Hold {
    fn drop(&mut self) {
        let inner = &self.0;
        if inner.home != std::process::id() {
            return;
        }
        let mut state = inner.lock();
        state.holds -= 1;
        let mut idle = Vec::new();
        if state.holds == 0 {
            state.era += 1;
            idle = std::mem::take(&mut state.idle);
            state.alive -= idle.len();
        }
        let keeper = state.keeper_if_done();
        drop(state);
        drop(idle);
        end_keeper(keeper);
    }
}

/// A process that somebody uses.
struct Taken {
    process: Process,
    /// Of which time it is: when the last hold is dropped, another begins.
    era: u64,
}

struct Inner {
    home: u32,
    command: Arc<HostCommand>,
    segments: Segments,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Processes that nobody uses, and since when; the last one was used last.
    idle: Vec<(Process, Instant)>,
    /// All processes, also those that are being started.
    alive: usize,
    /// Runs that need processes.
    holds: usize,
    era: u64,
    keeper: Option<Keeper>,
}

struct Keeper {
    orders: Sender<Order>,
    thread: JoinHandle<()>,
}

/// What the keeper is to do.
enum Order {
    /// Start a process for somebody who waits.
    Start(SyncSender<Result<Process>>),
    /// Start a process for whoever comes first.
    Warm,
}

impl State {
    /// The keeper, once there is nothing left to keep.
    fn keeper_if_done(&mut self) -> Option<Keeper> {
        if self.alive == 0 && self.holds == 0 { self.keeper.take() } else { None }
    }
}

fn end_keeper(keeper: Option<Keeper>) {
    if let Some(Keeper { orders, thread }) = keeper {
        drop(orders);
        // It cannot have panicked in a way that matters: it is gone either way.
        let _ = thread.join();
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the keeper is told what to do; it is started if there is none.
    fn orders(self: &Arc<Self>, state: &mut State) -> Result<Sender<Order>> {
        if state.keeper.is_none() {
            let (orders, received) = channel();
            let inner = Arc::downgrade(self);
            let thread = std::thread::Builder::new()
                .name("function-keeper".into())
                .spawn(move || keep(&inner, &received))
                .map_err(|error| Error::unavailable("a thread", error))?;
            state.keeper = Some(Keeper { orders, thread });
        }
        let keeper = state.keeper.as_ref();
        Ok(keeper.expect("it was just started").orders.clone())
    }

    /// A process for one call.
    fn take(self: &Arc<Self>) -> Result<Taken> {
        let mut state = self.lock();
        let era = state.era;
        if let Some((process, _)) = state.idle.pop() {
            return Ok(Taken { process, era });
        }
        let (reply, replied) = sync_channel(1);
        self.orders(&mut state)?
            .send(Order::Start(reply))
            .map_err(|_| Error::Internal("the keeper of processes is gone".into()))?;
        state.alive += 1;
        drop(state);
        let started = replied.recv();
        let started = started
            .unwrap_or_else(|_| Err(Error::Internal("the keeper of processes is gone".into())));
        match started {
            Ok(process) => Ok(Taken { process, era }),
            Err(error) => {
                self.gone();
                Err(error)
            }
        }
    }

    fn give_back(&self, Taken { process, era }: Taken) {
        let mut state = self.lock();
        if era == state.era {
            state.idle.push((process, Instant::now()));
            return;
        }
        // Whoever needed it is gone.
        drop(state);
        drop(process);
        self.gone();
    }

    fn end(&self, taken: Taken) {
        drop(taken.process);
        self.gone();
    }

    /// Notes that a process is gone.
    fn gone(&self) {
        let mut state = self.lock();
        state.alive -= 1;
        let keeper = state.keeper_if_done();
        drop(state);
        end_keeper(keeper);
    }
}

/// Starts processes as it is told, and ends those that nobody has needed for a while.
fn keep(inner: &Weak<Inner>, orders: &Receiver<Order>) {
    loop {
        let order = orders.recv_timeout(Duration::from_secs(1));
        let Some(inner) = inner.upgrade() else { return };
        match order {
            Ok(Order::Start(reply)) => {
                // One that was started for whoever comes first may have become ready.
                let mut state = inner.lock();
                let warm = state.idle.pop();
                state.alive -= usize::from(warm.is_some());
                drop(state);
                let process = match warm {
                    Some((process, _)) => Ok(process),
                    None => Process::start(&inner.command, inner.segments.clone()),
                };
                // Who asked waits for it.
                let _ = reply.send(process);
            }
            Ok(Order::Warm) => {
                let started = Process::start(&inner.command, inner.segments.clone());
                let mut state = inner.lock();
                match started {
                    Ok(process) if state.holds > 0 => state.idle.push((process, Instant::now())),
                    // Whoever calls a function is told why.
                    _ => state.alive -= 1,
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                let mut state = inner.lock();
                if state.holds > 0 {
                    continue;
                }
                let (old, young): (Vec<_>, Vec<_>) =
                    state.idle.drain(..).partition(|(_, since)| since.elapsed() >= IDLE);
                state.idle = young;
                state.alive -= old.len();
                let done = state.alive == 0;
                if done {
                    // Nobody joins it: it is about to end.
                    state.keeper = None;
                }
                drop(state);
                drop(old);
                if done {
                    return;
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
