//! Who was heard of when. Not journalled: after a restart everybody counts as just heard.

use feedline_wire::{ConsumerIndex, JobId, Millis};
use std::collections::BTreeMap;

/// When clients and jobs were heard of last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Presence {
    since: Millis,
    latest: Millis,
    clients: BTreeMap<(JobId, ConsumerIndex), Millis>,
    jobs: BTreeMap<JobId, Millis>,
}

impl Presence {
    /// Begins to listen.
    #[must_use]
    pub fn new(now: Millis) -> Self {
        Self { since: now, latest: now, ..Self::default() }
    }

    /// Somebody spoke for a job; a client, if it is named.
    pub fn heard(&mut self, job: JobId, consumer: Option<ConsumerIndex>, now: Millis) {
        if now < self.latest {
            // The clock was put back: nobody was heard in the future.
            self.since = self.since.min(now);
            let heard = self.clients.values_mut().chain(self.jobs.values_mut());
            heard.for_each(|heard| *heard = now.min(*heard));
        }
        self.latest = now;
        self.jobs.insert(job, now);
        if let Some(consumer) = consumer {
            self.clients.insert((job, consumer), now);
        }
    }

    /// A job has ended.
    pub fn forget(&mut self, job: JobId) {
        self.jobs.remove(&job);
        self.clients.retain(|(known, _), _| *known != job);
    }

    /// For how long a client has been silent.
    #[must_use]
    pub fn silent(&self, job: JobId, consumer: ConsumerIndex, now: Millis) -> Millis {
        now.saturating_sub(*self.clients.get(&(job, consumer)).unwrap_or(&self.since))
    }

    /// For how long nobody has spoken for a job.
    #[must_use]
    pub fn idle(&self, job: JobId, now: Millis) -> Millis {
        now.saturating_sub(*self.jobs.get(&job).unwrap_or(&self.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_restart_everybody_counts_as_just_heard() {
        let (job, one, two) = (JobId(1), ConsumerIndex(1), ConsumerIndex(2));
        let mut presence = Presence::new(100);
        presence.heard(job, Some(one), 150);
        assert_eq!((presence.silent(job, one, 160), presence.silent(job, two, 160)), (10, 60));
        assert_eq!((presence.idle(job, 160), presence.idle(JobId(2), 160)), (10, 60));
        assert_eq!(Presence::new(160).silent(job, one, 160), 0);
        presence.heard(job, None, 40);
        assert_eq!(presence.silent(job, one, 45), 5, "the clock was put back");
        presence.forget(job);
        assert_eq!(presence.silent(job, one, 160), 120);
    }
}
