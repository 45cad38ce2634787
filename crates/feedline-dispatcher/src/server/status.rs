//! How everything stands, put together from what is remembered and what was reported.

use super::Shared;
use super::reports::Fare;
use crate::scale::{Decided, Load, Need, View};
use crate::{Job, Presence};
use feedline_wire::status::{ConsumerStatus, JobStatus, JournalStatus, Rates, ScaleStatus, Status};
use feedline_wire::{ConsumerIndex, Epoch, JobId, Millis, Order};
use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// No more clients of a job are listed one by one.
const MOST_LISTED: u32 = 4_096;

type Fares = BTreeMap<(JobId, ConsumerIndex), Fare>;

pub(crate) fn status(shared: &Shared) -> Status {
    let jobs = shared.desk.datasets();
    let fares = shared.reports.fares();
    let journal = shared.desk.journal();
    let decided = shared.scale.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let decided = decided.unwrap_or_else(|| Decided::begin(&view(shared)));
    let workers: Vec<_> = shared.workers.status().into_iter().map(|(status, _)| status).collect();
    let present = workers.iter().filter(|status| !status.worker.draining).count();
    Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        uptime_ms: shared.desk.now(),
        jobs: shared.desk.look(|state, presence, now| {
            state.jobs().map(|(id, job)| job_status(id, job, presence, now, &fares)).collect()
        }),
        workers,
        datasets: shared.store.status(&jobs),
        journal: JournalStatus {
            generation: journal.generation().0,
            records: journal.next().0,
            durable: journal.durable().0,
            bytes: shared.journal_bytes.load(Ordering::Relaxed),
            bytes_since_snapshot: journal.bytes_since_snapshot(),
            full: journal.is_full(),
        },
        scale: ScaleStatus {
            wanted: decided.wanted,
            present: u32::try_from(present).unwrap_or(u32::MAX),
            reason: decided.reason,
        },
    }
}

fn job_status(id: JobId, job: &Job, presence: &Presence, now: Millis, fares: &Fares) -> JobStatus {
    let seated: BTreeMap<ConsumerIndex, (bool, u64)> =
        job.clients().map(|(consumer, released, held)| (consumer, (released, held))).collect();
    let consumer = |index: u32| {
        let consumer = ConsumerIndex(index);
        let (seat, fare) = (seated.get(&consumer), fares.get(&(id, consumer)));
        let silent_ms = presence.silent(id, consumer, now);
        let reported = fare.map(|fare| u64::try_from(fare.silent.as_millis()).unwrap_or(u64::MAX));
        ConsumerStatus {
            consumer,
            attached: seat.is_some(),
            released: seat.is_some_and(|(released, _)| *released),
            silent_ms: reported.map_or(silent_ms, |reported| reported.min(silent_ms)),
            held: seat.map_or(0, |(_, held)| *held),
            buffered: fare.map_or(0, |fare| fare.buffered),
            rates: fare.map_or_else(Rates::default, |fare| fare.rates),
            waiting: fare.map_or(0.0, |fare| fare.waiting),
        }
    };
    let all = fares.range((id, ConsumerIndex(0))..=(id, ConsumerIndex(u32::MAX)));
    let all: Vec<&Fare> = all.map(|(_, fare)| fare).collect();
    let sum = |rate: fn(&Rates) -> f64| all.iter().map(|fare| rate(&fare.rates)).sum();
    let reported = all.iter().map(|fare| fare.epoch).max();
    let description = job.description();
    JobStatus {
        job: id,
        name: job.name().clone(),
        dataset: description.dataset.clone(),
        order: description.order,
        visitation: description.visitation,
        incarnation: job.incarnation(),
        epoch: match description.order {
            Order::Any => job.epoch(),
            Order::Exact => Epoch(reported.unwrap_or(0).max(job.epoch().0)),
        },
        windows_used: job.used(),
        windows_total: job.total(),
        windows_held: seated.values().map(|(_, held)| held).sum(),
        idle_ms: presence.idle(id, now),
        consumers: (0..job.consumers().min(MOST_LISTED)).map(consumer).collect(),
        rates: Rates {
            steps: sum(|rates| rates.steps),
            samples: sum(|rates| rates.samples),
            bytes: sum(|rates| rates.bytes),
        },
        waiting: all.iter().map(|fare| fare.waiting).fold(0.0, f64::max),
    }
}

/// What decides how many workers are wanted.
pub(crate) fn view(shared: &Shared) -> View {
    let mut needs: BTreeMap<JobId, f64> = BTreeMap::new();
    for ((job, _), fare) in shared.reports.fares() {
        let waiting = needs.entry(job).or_insert(0.0);
        *waiting = waiting.max(fare.waiting);
    }
    let loads = shared.workers.status().into_iter().filter(|(status, _)| !status.worker.draining);
    View {
        needs: needs.into_iter().map(|(job, waiting)| Need { job, waiting }).collect(),
        loads: loads.map(|(status, jobs)| Load { busy: status.busy, jobs }).collect(),
    }
}
