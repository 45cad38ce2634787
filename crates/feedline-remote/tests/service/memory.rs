//! A dispatcher without a network or a disk.

use feedline_core::Blobs;
use feedline_dispatcher::{Limits, Presence, State, decide};
use feedline_wire::control::{
    Beat, Control, Dataset, DatasetId, Failure, Orders, Report, Roster, Worker,
};
use feedline_wire::{Reply, Request};
use std::collections::HashMap;
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

#[derive(Default)]
pub struct Memory {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    state: State,
    presence: Presence,
    datasets: HashMap<DatasetId, (Dataset, Blobs)>,
    workers: Vec<(Worker, Instant)>,
    version: u64,
}

impl Control for Memory {
    fn ask(&self, request: &Request, _: Duration) -> Result<Reply, Failure> {
        let mut inner = self.inner.lock().unwrap();
        let inner = &mut *inner;
        let decision = decide(&inner.state, &inner.presence, &Limits::default(), 0, request);
        decision.events.iter().for_each(|event| inner.state.apply(event));
        if let Some((job, consumer)) = decision.heard {
            inner.presence.heard(job, consumer, 0);
        }
        Ok(decision.reply)
    }

    fn register(&self, dataset: &Dataset, blobs: &Blobs) -> Result<DatasetId, Failure> {
        let id = dataset.id();
        let entry = (dataset.clone(), blobs.clone());
        self.inner.lock().unwrap().datasets.insert(id.clone(), entry);
        Ok(id)
    }

    fn dataset(&self, id: &DatasetId) -> Result<(Dataset, Blobs), Failure> {
        let found = self.inner.lock().unwrap().datasets.get(id).cloned();
        found.ok_or_else(|| Failure::Invalid(format!("there is no dataset {id}")))
    }

    fn beat(&self, beat: &Beat) -> Result<Orders, Failure> {
        let mut inner = self.inner.lock().unwrap();
        let known = inner.workers.iter_mut().find(|(one, _)| one.key == beat.worker.key);
        let changed = known.as_ref().is_none_or(|(one, _)| *one != beat.worker);
        match known {
            Some(known) => *known = (beat.worker.clone(), Instant::now()),
            None => inner.workers.push((beat.worker.clone(), Instant::now())),
        }
        inner.version += u64::from(changed);
        self.changed.notify_all();
        let datasets = inner.datasets.keys().map(|id| (id.clone(), 1)).collect();
        Ok(Orders { datasets, drain: false })
    }

    fn workers(&self, known: u64, patience: Duration) -> Result<Roster, Failure> {
        let inner = self.inner.lock().unwrap();
        let waited = patience.min(Duration::from_millis(100));
        let waited = self.changed.wait_timeout_while(inner, waited, |inner| inner.version == known);
        let mut inner = waited.unwrap().0;
        let before = inner.workers.len();
        inner.workers.retain(|(_, heard)| heard.elapsed() < Duration::from_secs(3));
        inner.version += u64::from(inner.workers.len() != before);
        let workers = inner.workers.iter().map(|(worker, _)| worker.clone()).collect();
        Ok(Roster { version: inner.version, workers })
    }

    fn report(&self, _: &Report) -> Result<(), Failure> {
        Ok(())
    }
}
