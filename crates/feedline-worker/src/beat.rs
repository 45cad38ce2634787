//! Telling the dispatcher that the worker is alive, and doing what it says.

use crate::sight::{Sight, Standing};
use feedline_wire::control::{Beat, Control, Orders};
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
    pub sight: Sight,
    pub control: Arc<dyn Control>,
}

/// CPU time that this process has used.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

impl Beating {
    /// Beats until told to stop, or at once when woken.
    pub(crate) fn run(self, wake: &Receiver<()>) {
        let (mut last, mut used) = (Instant::now(), cpu_time());
        let (mut busy, mut heard) = (0.0, true);
        let (shared, worker) = (&self.sight.shared, &self.sight.worker);
        loop {
            let (now, cpu) = (Instant::now(), cpu_time());
            let elapsed = now.duration_since(last).as_secs_f64() * f64::from(worker.cores);
            if elapsed > 0.05 {
                busy = (cpu.saturating_sub(used).as_secs_f64() / elapsed).min(1.0);
                (last, used) = (now, cpu);
            }
            shared.gauges.note(busy, heard);
            // Without an answer the dispatcher is asked again soon; clients are served regardless.
            let answer = self.control.beat(&self.beat());
            shared.gauges.note(busy, answer.is_ok());
            match &answer {
                Ok(_) if !heard => {
                    tracing::info!(worker = %worker.key, "the dispatcher answers again")
                }
                Err(error) if heard => {
                    tracing::warn!(worker = %worker.key, %error, "the dispatcher does not answer");
                }
                _ => {}
            }
            heard = answer.is_ok();
            if let Ok(Orders { datasets, drain }) = answer {
                shared.catalogue.keep(&datasets);
                if drain && !shared.draining.swap(true, Ordering::SeqCst) {
                    tracing::info!(worker = %worker.key, "the dispatcher asks the worker to end");
                    continue;
                }
            }
            match wake.recv_timeout(EVERY) {
                Ok(()) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn beat(&self) -> Beat {
        {
            let mut done = self.sight.shared.done.lock().unwrap_or_else(PoisonError::into_inner);
            if done.len() > JOBS
                && let Some(least) =
                    done.values().min_by_key(|done| done.steps).map(|done| done.job)
            {
                done.remove(&least);
            }
        }
        let Standing { worker, busy, memory, connections, jobs, .. } = self.sight.standing();
        Beat { worker, busy, memory, connections, jobs }
    }
}
