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
use super::message::Input;
use super::process::{Fault, Process};
use feedline_core::{BufferMut, Context, Error, Function, Host, Made, Result, Sample, SampleSeed};
use feedline_shm::Segments;
use std::any::Any;
use std::fmt;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often a sample is tried whose process ends.
const ATTEMPTS: usize = 3;
/// Samples of so many bytes together are handed over at once.
const AT_ONCE: usize = 4 << 20;
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
        let made = self.call_many(function, vec![(context.seed, sample)], context).pop();
        made.unwrap_or_else(|| Err(Error::Internal("a call without an answer".into())))
    }

    fn call_many(
        &self,
        function: &Function,
        samples: Vec<(SampleSeed, Sample)>,
        context: &mut Context<'_>,
    ) -> Vec<Result<Made>> {
        let mut results = Vec::with_capacity(samples.len());
        let (mut some, mut bytes) = (Vec::new(), 0);
        for (seed, sample) in samples {
            bytes += sample.fields().map(|(_, value)| value.bytes()).sum::<usize>();
            some.push((seed, sample));
            if bytes >= AT_ONCE {
                results.extend(self.some(function, std::mem::take(&mut some), context));
                bytes = 0;
            }
        }
        results.extend(self.some(function, some, context));
        results
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

impl Hosts {
    /// Calls a function with samples that are handed over together.
    fn some(
        &self,
        function: &Function,
        samples: Vec<(SampleSeed, Sample)>,
        context: &mut Context<'_>,
    ) -> Vec<Result<Made>> {
        let count = samples.len();
        let all = |error: Error| (0..count).map(|_| Err(error.clone())).collect();
        if count == 0 {
            return Vec::new();
        }
        let taken = self.inner().and_then(|inner| Ok((inner, inner.take()?)));
        let (inner, mut taken) = match taken {
            Ok(taken) => taken,
            Err(error) => return all(error),
        };
        let prepared = match taken.process.prepare(samples, context) {
            Ok(prepared) => prepared,
            Err(error) => {
                inner.give_back(taken);
                return all(error);
            }
        };
        let inputs: Vec<Input> = prepared.iter().flatten().cloned().collect();
        let mut taken = Some(taken);
        let made = inner.answers(function, &inputs, &mut taken, context);
        if let Some(taken) = taken {
            inner.give_back(taken);
        }
        let mut made = made.into_iter();
        let none = || Err(Error::Internal("a call without an answer".into()));
        let result = |input: Result<Input>| input.and_then(|_| made.next().unwrap_or_else(none));
        prepared.into_iter().map(result).collect()
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

/// What a function made of samples, with its failures as errors of theirs.
fn failures(name: &str, made: Vec<Result<Made, String>>) -> Vec<Result<Made>> {
    let error = |text| Error::record(format!("function {name}: {text}"));
    made.into_iter().map(|made| made.map_err(error)).collect()
}

/// What is said of a process that gave no answer and was ended for it.
fn error_of(function: &Function, fault: Fault) -> Error {
    let name = &function.name;
    match fault {
        Fault::Cancelled => Error::Cancelled,
        Fault::Fatal(error) => error,
        Fault::Late => Error::record(format!(
            "function {name}: no answer within {} s, and its process was ended; timeout= allows more",
            function.timeout.as_secs_f64()
        )),
        Fault::Nonsense(what) => {
            Error::record(format!("function {name}: its host answered nonsense: {what}"))
        }
        Fault::Ended(text) | Fault::Unsaid(text) => {
            Error::record(format!("function {name}: {text}"))
        }
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

    /// What a function makes of samples that were prepared for a process. Where it does not answer for
    /// all of them, each is tried by itself.
    fn answers(
        self: &Arc<Self>,
        function: &Function,
        inputs: &[Input],
        taken: &mut Option<Taken>,
        context: &mut Context<'_>,
    ) -> Vec<Result<Made>> {
        let name = &function.name;
        if inputs.is_empty() {
            return Vec::new();
        }
        let mut memory = None;
        if inputs.len() > 1 {
            match taken.as_mut().map(|taken| taken.process.call(function, inputs, context)) {
                Some(Ok(made)) => return failures(name, made),
                Some(Err(Fault::Unsaid(_))) | None => {}
                Some(Err(fault)) => {
                    memory = self.end(taken);
                    if let Fault::Cancelled | Fault::Fatal(_) = fault {
                        let error = error_of(function, fault);
                        return inputs.iter().map(|_| Err(error.clone())).collect();
                    }
                }
            }
        }
        let one = |input: &Input| self.answer(function, input, taken, &mut memory, context);
        let made = inputs.iter().map(one).collect();
        if let Some(memory) = memory {
            // Nobody is left to read it.
            self.segments.retire(&memory);
        }
        made
    }

    /// What a function makes of one sample, tried again if its process ends.
    fn answer(
        self: &Arc<Self>,
        function: &Function,
        input: &Input,
        taken: &mut Option<Taken>,
        memory: &mut Option<BufferMut>,
        context: &mut Context<'_>,
    ) -> Result<Made> {
        let name = &function.name;
        let mut last = String::new();
        for _ in 0..ATTEMPTS {
            if context.workspace.cancel.is_cancelled() {
                return Err(Error::Cancelled);
            }
            let used = match taken {
                Some(used) => used,
                None => taken.insert(self.take()?),
            };
            if let Some(memory) = memory.take() {
                used.process.set_input(memory);
            }
            match used.process.call(function, std::slice::from_ref(input), context) {
                Ok(made) => {
                    let none = || Err(Error::Internal("a call without an answer".into()));
                    return failures(name, made).pop().unwrap_or_else(none);
                }
                Err(Fault::Unsaid(text)) => return Err(Error::record(text)),
                Err(Fault::Ended(how)) => {
                    *memory = self.end(taken);
                    last = how;
                }
                Err(fault) => {
                    *memory = self.end(taken);
                    return Err(error_of(function, fault));
                }
            }
        }
        Err(Error::record(format!(
            "function {name}: the process that ran it {last}, {ATTEMPTS} times out of {ATTEMPTS}"
        )))
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

    /// Ends a process; what was written for it can be read by another one.
    fn end(&self, taken: &mut Option<Taken>) -> Option<BufferMut> {
        let Taken { mut process, .. } = taken.take()?;
        let memory = process.take_input();
        drop(process);
        self.gone();
        memory
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
