//! How many workers the jobs need: a pure function of what workers and clients report.
//!
//! ```text
//!  what workers do now ──► × what trainers would take if they never waited ──► ÷ how busy they may be
//! ```
//!
//! More are wanted soon after trainers begin to wait for busy workers; fewer only when fewer would
//! have been enough for a long time, and then one by one. Where trainers wait and workers are idle,
//! something else is too slow, and more workers would not help.

use feedline_wire::{JobId, Millis};

/// Provides workers: local processes, a cluster's manager, a person.
pub trait Scaler: Send + Sync {
    /// So many workers are wanted from now on. Called when the number changes, and must return soon.
    fn set(&self, wanted: u32);
}

/// How eager and how patient to be.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Never fewer than these, also when there is nothing to do.
    pub min: u32,
    /// Never more than these.
    pub max: u32,
    /// A job whose trainers wait for more than this share of their time is starved.
    pub starved: f64,
    /// Workers are meant to be busy for this share of their time.
    pub busy: f64,
    /// For so long there must be reason for more workers.
    pub up_after: Millis,
    /// For so long there must be reason for fewer.
    pub down_after: Millis,
}

impl Default for Policy {
    fn default() -> Self {
        Self { min: 0, max: 1_000, starved: 0.05, busy: 0.8, up_after: 5_000, down_after: 60_000 }
    }
}

/// What is known of a job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Need {
    /// The job.
    pub job: JobId,
    /// Share of its time that its trainers wait.
    pub waiting: f64,
}

/// What is known of a worker that does not end soon.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// Share of its cores that is busy.
    pub busy: f64,
    /// Share of that for each job, in any unit.
    pub jobs: Vec<(JobId, f64)>,
}

/// What is known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    /// Jobs whose trainers are running.
    pub needs: Vec<Need>,
    /// Workers.
    pub loads: Vec<Load>,
}

/// What was decided, and what has to be remembered until the next time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decided {
    /// So many workers are wanted.
    pub wanted: u32,
    /// Why.
    pub reason: String,
    /// Since when there is reason for more, or for fewer.
    more_since: Option<Millis>,
    fewer_since: Option<Millis>,
}

impl Decided {
    /// What is decided when nothing was before: as many as there are.
    #[must_use]
    pub fn begin(view: &View) -> Self {
        let wanted = u32::try_from(view.loads.len()).unwrap_or(u32::MAX);
        Self { wanted, reason: "not known yet".to_owned(), ..Self::default() }
    }
}

/// Decides how many workers are wanted, given what was decided before.
#[must_use]
pub fn decide(policy: &Policy, before: &Decided, now: Millis, view: &View) -> Decided {
    let present = u32::try_from(view.loads.len()).unwrap_or(u32::MAX);
    let (needed, reason) = needed(policy, present, before.wanted, view);
    let needed = needed.clamp(policy.min, policy.max.max(policy.min));
    let kept = before.wanted.clamp(policy.min, policy.max.max(policy.min));
    let since = |condition: bool, since: Option<Millis>| {
        condition.then(|| since.map_or(now, |since| since.min(now)))
    };
    let more_since = since(needed > kept, before.more_since);
    let fewer_since = since(needed < kept, before.fewer_since);
    let waited = |since: Option<Millis>, time| since.is_some_and(|since| now - since >= time);
    // The first worker is wanted at once: nothing is known before it is there.
    let first = kept == 0 && needed > 0;
    let (wanted, more_since, fewer_since) = if first || waited(more_since, policy.up_after) {
        (needed, None, None)
    } else if waited(fewer_since, policy.down_after) {
        // The next one takes half as long: it was calm before.
        (kept - 1, None, Some(now.saturating_sub(policy.down_after / 2)))
    } else {
        (kept, more_since, fewer_since)
    };
    Decided { wanted, reason, more_since, fewer_since }
}

fn needed(policy: &Policy, present: u32, wanted: u32, view: &View) -> (u32, String) {
    if view.needs.is_empty() {
        return (0, "no job is running".to_owned());
    }
    if present == 0 {
        return (wanted.max(1), format!("{} jobs run and there is no worker", view.needs.len()));
    }
    let share = |number: f64| if number.is_finite() { number.clamp(0.0, 1.0) } else { 0.0 };
    let busy: f64 = view.loads.iter().map(|load| share(load.busy)).sum();
    let average = busy / f64::from(present);
    let worst = view.needs.iter().map(|need| share(need.waiting)).fold(0.0, f64::max);
    let starved = worst > policy.starved;
    if starved && average < policy.busy * 0.75 {
        let reason = format!(
            "trainers wait {:.0} % of their time, and workers are only {:.0} % busy: something else is \
             too slow",
            worst * 100.0,
            average * 100.0
        );
        return (wanted.min(present).max(1), reason);
    }
    // What workers would do for each job if its trainers never waited; at most twice as much at a
    // time, since then everything looks different.
    let demand: f64 = view.loads.iter().map(|load| demand(policy, view, load)).sum();
    let needed = (demand / policy.busy.clamp(0.1, 1.0)).ceil().max(1.0) as u32;
    // Numbers may say that all is well while trainers wait.
    let needed = if starved { needed.max(present.saturating_add(1)) } else { needed };
    let reason = format!(
        "{present} workers are {:.0} % busy, trainers wait up to {:.0} % of their time",
        average * 100.0,
        worst * 100.0
    );
    (needed, reason)
}

fn demand(policy: &Policy, view: &View, load: &Load) -> f64 {
    let factor = |job: JobId| {
        let waiting = view.needs.iter().filter(|need| need.job == job).map(|need| need.waiting);
        let waiting = waiting.fold(0.0, f64::max);
        if waiting > policy.starved { (1.0 / (1.0 - waiting.min(0.5))).min(2.0) } else { 1.0 }
    };
    let busy = if load.busy.is_finite() { load.busy.clamp(0.0, 1.0) } else { 0.0 };
    let total: f64 = load.jobs.iter().map(|(_, part)| part.max(0.0)).sum();
    if total <= 0.0 || !total.is_finite() {
        return busy;
    }
    let part = |(job, part): &(JobId, f64)| busy * part.max(0.0) / total * factor(*job);
    load.jobs.iter().map(part).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const JOB: JobId = JobId(1);

    fn view(workers: usize, busy: f64, waiting: f64) -> View {
        let load = Load { busy, jobs: vec![(JOB, 1.0)] };
        View { needs: vec![Need { job: JOB, waiting }], loads: vec![load; workers] }
    }

    /// What is wanted after each second, if as many workers come as are wanted.
    fn run(
        policy: &Policy,
        start: u32,
        seconds: u64,
        mut view: impl FnMut(u32) -> View,
    ) -> Vec<u32> {
        let mut decided = Decided { wanted: start, ..Decided::default() };
        (0..seconds)
            .map(|second| {
                decided = decide(policy, &decided, second * 1_000, &view(decided.wanted));
                decided.wanted
            })
            .collect()
    }

    /// Trainers that take what so many workers can give.
    fn trainers(worth: f64) -> impl Fn(u32) -> View {
        move |workers| {
            let have = f64::from(workers);
            let busy = if have == 0.0 { 0.0 } else { (worth / have).min(1.0) };
            view(workers as usize, busy, (1.0 - have / worth).max(0.0))
        }
    }

    #[test]
    fn a_starved_job_gets_more_workers_until_it_is_fed() {
        let wanted = run(&Policy::default(), 1, 60, trainers(6.0));
        let last = *wanted.last().unwrap();
        assert!((6..=9).contains(&last), "{wanted:?}");
        assert_eq!(wanted[3], 1, "a moment's waiting is no reason");
    }

    #[test]
    fn whoever_begins_wants_what_is_there() {
        let begun = Decided::begin(&view(5, 0.1, 0.0));
        assert_eq!(begun.wanted, 5);
        let next = decide(&Policy::default(), &begun, 0, &View::default());
        assert_eq!(next.wanted, 5, "nobody is sent away because nobody was heard yet");
    }

    #[test]
    fn the_first_worker_is_wanted_at_once() {
        let wanted = run(&Policy::default(), 0, 2, |_| view(0, 0.0, 1.0));
        assert_eq!(wanted, [1, 1]);
    }

    #[test]
    fn idle_workers_are_given_up_slowly() {
        let wanted = run(&Policy::default(), 8, 400, |workers| view(workers as usize, 0.1, 0.0));
        assert_eq!(wanted[55], 8);
        let drops = wanted.windows(2).filter(|pair| pair[1] < pair[0]);
        assert!(drops.clone().all(|pair| pair[0] - pair[1] == 1), "{wanted:?}");
        assert!(drops.count() >= 5, "{wanted:?}");
    }

    #[test]
    fn a_steady_load_does_not_flap() {
        for worth in [0.5, 1.0, 2.3, 4.0, 7.9] {
            let wanted = run(&Policy::default(), 1, 3_000, trainers(worth));
            let late = &wanted[1_500..];
            let turns = late.windows(2).filter(|pair| pair[0] != pair[1]).count();
            assert!(turns <= 1, "{worth}: {turns} turns");
        }
    }

    #[test]
    fn a_load_that_comes_and_goes_within_seconds_does_not_flap() {
        let mut second = 0;
        let wanted = run(&Policy::default(), 4, 300, |workers| {
            second += 1;
            let busy = if second % 4 < 2 { 1.0 } else { 0.1 };
            view(workers as usize, busy, if second % 4 < 2 { 0.3 } else { 0.0 })
        });
        assert!(wanted.iter().all(|wanted| *wanted == 4), "{wanted:?}");
    }

    #[test]
    fn idle_workers_are_not_joined_by_more() {
        let wanted = run(&Policy::default(), 3, 30, |workers| view(workers as usize, 0.2, 0.9));
        assert!(wanted.iter().all(|wanted| *wanted == 3), "{wanted:?}");
    }

    #[test]
    fn without_jobs_the_least_is_wanted() {
        let policy = Policy { min: 2, ..Policy::default() };
        let wanted = run(&policy, 4, 600, |workers| View {
            needs: vec![],
            ..view(workers as usize, 0.0, 0.0)
        });
        assert_eq!(wanted.last(), Some(&2));
    }

    proptest! {
        #[test]
        fn what_is_wanted_stays_within_bounds(
            (min, more) in (0..5u32, 0..20u32),
            start in 0..100u32,
            seen in proptest::collection::vec((0..40usize, -1.0..3.0f64, -1.0..3.0f64), 1..200),
        ) {
            let policy = Policy { min, max: min + more, ..Policy::default() };
            let mut decided = Decided { wanted: start, ..Decided::default() };
            for (second, (workers, busy, waiting)) in seen.into_iter().enumerate() {
                let busy = if busy < 0.0 { f64::NAN } else { busy };
                let view = view(workers, busy, waiting);
                decided = decide(&policy, &decided, second as u64 * 1_000, &view);
                prop_assert!((min..=min + more).contains(&decided.wanted));
            }
        }
    }
}
