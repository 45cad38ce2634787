//! What a worker shows of itself: as JSON for programs, and as Prometheus reads it.

use crate::serve::Shared;
use feedline_rpc::http::{Page, Pages};
use feedline_rpc::metrics::Family;
use feedline_wire::control::{Done, Worker};
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

/// How a worker stands.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Standing {
    /// Who it is.
    pub worker: Worker,
    /// For how long it has been serving, in milliseconds.
    pub uptime_ms: u64,
    /// Share of its cores that is busy, from 0 to 1.
    pub busy: f64,
    /// Bytes it holds for windows and batches.
    pub memory: u64,
    /// Bytes of these that are kept for other jobs.
    pub shelf: u64,
    /// Clients that are connected.
    pub connections: u32,
    /// Requests that are being served.
    pub requests: u64,
    /// Requests that could not be served since it started.
    pub failures: u64,
    /// Whether the dispatcher answered when it was last told of the worker.
    pub heard: bool,
    /// What it has done for each job since it started.
    pub jobs: Vec<Done>,
}

/// What is measured in passing.
#[derive(Debug)]
pub(crate) struct Gauges {
    started: Instant,
    /// The busy share of cores, as bits.
    busy: AtomicU64,
    heard: AtomicU64,
    pub failures: AtomicU64,
}

impl Gauges {
    pub(crate) fn new() -> Self {
        Self {
            started: Instant::now(),
            busy: AtomicU64::new(0),
            heard: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        }
    }

    pub(crate) fn note(&self, busy: f64, heard: bool) {
        self.busy.store(busy.to_bits(), Ordering::Relaxed);
        self.heard.store(u64::from(heard), Ordering::Relaxed);
    }
}

/// Looks at a worker from outside.
pub(crate) struct Sight {
    pub shared: Arc<Shared>,
    pub worker: Worker,
    /// How many clients are connected.
    pub connections: Arc<dyn Fn() -> usize + Send + Sync>,
}

impl Sight {
    pub(crate) fn standing(&self) -> Standing {
        let Shared { gauges, shelf, pool, active, done, draining, .. } = &*self.shared;
        let mut jobs: Vec<Done> =
            done.lock().unwrap_or_else(PoisonError::into_inner).values().copied().collect();
        jobs.sort_by_key(|done| done.job);
        Standing {
            worker: Worker { draining: draining.load(Ordering::SeqCst), ..self.worker.clone() },
            uptime_ms: u64::try_from(gauges.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            busy: f64::from_bits(gauges.busy.load(Ordering::Relaxed)),
            memory: (pool.used_bytes() + shelf.bytes()) as u64,
            shelf: shelf.bytes() as u64,
            connections: u32::try_from((self.connections)()).unwrap_or(u32::MAX),
            requests: active.load(Ordering::SeqCst) as u64,
            failures: gauges.failures.load(Ordering::Relaxed),
            heard: gauges.heard.load(Ordering::Relaxed) > 0,
            jobs,
        }
    }

    /// What is served over HTTP.
    pub(crate) fn pages(self) -> Pages {
        Arc::new(move |path| match path {
            "/metrics" => Some(Page::metrics(metrics(&self.standing()))),
            "/status" => {
                let text = serde_json::to_string_pretty(&self.standing());
                Some(Page::json(text.expect("numbers and texts can be written as JSON") + "\n"))
            }
            "/health" => {
                let ending = self.shared.draining.load(Ordering::SeqCst);
                let (status, text) = if ending { (503, "ending\n") } else { (200, "ok\n") };
                Some(Page { status, open: true, ..Page::text(text) })
            }
            _ => None,
        })
    }
}

#[expect(clippy::cast_precision_loss, reason = "metrics are floating-point numbers")]
fn metrics(standing: &Standing) -> String {
    let Standing {
        worker,
        uptime_ms,
        busy,
        memory,
        shelf,
        connections,
        requests,
        failures,
        heard,
        jobs,
    } = standing;
    let mut text = String::new();
    let out = &mut text;
    let key = worker.key.to_string();
    let labels = [("worker", worker.name.as_str()), ("key", &key), ("version", &worker.version)];
    Family::new(out, "feedline_worker_info", "The worker, and its release.").add(&labels, 1.0);
    let seconds = *uptime_ms as f64 / 1e3;
    let heard = f64::from(u8::from(*heard));
    let draining = f64::from(u8::from(worker.draining));
    for (name, about, value) in [
        ("feedline_worker_uptime_seconds", "For how long it has been serving.", seconds),
        ("feedline_worker_busy_share", "Share of cores that is busy.", *busy),
        ("feedline_worker_memory_bytes", "Bytes held.", *memory as f64),
        ("feedline_worker_shelf_bytes", "Bytes kept for other jobs.", *shelf as f64),
        ("feedline_worker_connections", "Clients.", f64::from(*connections)),
        ("feedline_worker_requests", "Requests that are being served.", *requests as f64),
        ("feedline_worker_dispatcher_answers", "Whether the dispatcher answers.", heard),
        ("feedline_worker_draining", "Whether it takes on nothing more.", draining),
    ] {
        Family::one(out, name, about, value);
    }
    let about = "Requests that could not be served.";
    Family::counter(out, "feedline_worker_failures_total", about).add(&[], *failures as f64);
    let mut each = |name, about: &str, value: fn(&Done) -> f64| {
        let mut family = Family::counter(out, name, about);
        for done in jobs {
            family.add(&[("id", &done.job.to_string())], value(done));
        }
    };
    each("feedline_worker_job_steps_total", "Steps served.", |done| done.steps as f64);
    each("feedline_worker_job_samples_total", "Samples served.", |done| done.samples as f64);
    each("feedline_worker_job_bytes_total", "Bytes served.", |done| done.bytes as f64);
    each("feedline_worker_job_shared_total", "Steps that another job had computed.", |done| {
        done.shared as f64
    });
    each("feedline_worker_job_cpu_seconds_total", "CPU time.", |done| done.busy as f64 / 1e6);
    text
}
