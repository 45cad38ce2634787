//! Telling the dispatcher that the worker is alive, and doing what it says.

use crate::serve::Shared;
use feedline_wire::control::{Beat, Control, Orders, Worker};
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// The dispatcher hears of the worker this often.
const EVERY: Duration = Duration::from_millis(500);

/// So many jobs are remembered: those that were served last.
const JOBS: usize = 256;

pub(crate) struct Beating {
    pub shared: Arc<Shared>,
    pub control: Arc<dyn Control>,
    pub worker: Worker,
    /// How many clients are connected.
    pub connections: Box<dyn Fn() -> usize + Send>,
}

/// CPU time that this process has used.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

impl Beating {
    /// Beats until told to stop, or at once when woken.
    pub(crate) fn run(mut self, wake: &Receiver<()>) {
        let (mut last, mut used) = (Instant::now(), cpu_time());
        let mut busy = 0.0;
        loop {
            let (now, cpu) = (Instant::now(), cpu_time());
            let elapsed = now.duration_since(last).as_secs_f64() * f64::from(self.worker.cores);
            if elapsed > 0.05 {
                busy = (cpu.saturating_sub(used).as_secs_f64() / elapsed).min(1.0);
                (last, used) = (now, cpu);
            }
            self.worker.draining = self.shared.draining.load(Ordering::SeqCst);
            // Without an answer the dispatcher is asked again soon; clients are served regardless.
            if let Ok(Orders { datasets, drain }) = self.control.beat(&self.beat(busy)) {
                self.shared.catalogue.keep(&datasets);
                if drain && !self.shared.draining.swap(true, Ordering::SeqCst) {
                    continue;
                }
            }
            match wake.recv_timeout(EVERY) {
                Ok(()) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn beat(&self, busy: f64) -> Beat {
        let mut done = self.shared.done.lock().unwrap_or_else(PoisonError::into_inner);
        if done.len() > JOBS
            && let Some(least) = done.values().min_by_key(|done| done.steps).map(|done| done.job)
        {
            done.remove(&least);
        }
        Beat {
            worker: self.worker.clone(),
            busy,
            memory: (self.shared.pool.used_bytes() + self.shared.shelf.bytes()) as u64,
            connections: (self.connections)() as u32,
            jobs: done.values().copied().collect(),
        }
    }
}
