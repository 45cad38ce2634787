//! The threads that carry requests to the dispatcher, learn who is there, and tell the time.

use super::{Reachable, Shared};
use feedline_wire::WorkerId;
use feedline_wire::control::{Failure, Roster};
use feedline_wire::token::TokenError;
use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// The dispatcher hears how the trainer fares this often.
const REPORT: Duration = Duration::from_secs(1);

/// How long the dispatcher may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long the dispatcher may hold back an unchanged roster.
const LONG_POLL: Duration = Duration::from_secs(10);

/// Time passes at least this often.
const TICK: Duration = Duration::from_millis(20);

/// Says what the core wants said, and now and then how the trainer fares.
pub(super) fn speak(shared: &Arc<Shared>) {
    let mut reported = Instant::now();
    let mut inner = shared.lock();
    while !shared.is_closing() {
        if let Some((sequence, request)) = inner.request.take() {
            drop(inner);
            let reply = shared.control.ask(&request, PATIENCE);
            inner = shared.lock();
            match reply {
                Ok(reply) => {
                    let now = shared.now();
                    inner.client.reply(now, sequence, reply);
                    shared.pump(&mut inner);
                }
                Err(Failure::Unavailable(reason)) => {
                    inner.trouble = Some(format!("the dispatcher is unavailable: {reason}"));
                }
                // It may be renewed any moment; until then it is as if nobody answered.
                Err(Failure::Denied(reason)) if is_expired(&reason) => {
                    inner.trouble = Some(format!("the dispatcher refuses: {reason}"));
                }
                Err(failure) => {
                    inner.failed = Some(feedline_core::Error::Service(failure.to_string()));
                    shared.arrived.notify_one();
                }
            }
            continue;
        }
        if reported.elapsed() >= REPORT {
            reported = Instant::now();
            if let Some(report) = shared.report(&inner) {
                drop(inner);
                // What was not heard is said again in a second.
                let _ = shared.control.report(&report);
                inner = shared.lock();
                continue;
            }
        }
        let left = REPORT.saturating_sub(reported.elapsed());
        let waited = shared.speak.wait_timeout(inner, left.max(Duration::from_millis(1)));
        inner = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// Whether a refusal is about a token whose time is over.
fn is_expired(reason: &str) -> bool {
    reason.contains(&TokenError::Expired.to_string())
}

/// Learns which workers there are.
pub(super) fn meet(shared: &Arc<Shared>) {
    let mut known = 0;
    let mut pause = Duration::from_millis(20);
    while !shared.is_closing() {
        match shared.control.workers(known, LONG_POLL) {
            Ok(roster) => {
                known = roster.version;
                pause = Duration::from_millis(20);
                introduce(shared, roster);
            }
            Err(_) => {
                // After a restart the dispatcher counts from anew.
                known = 0;
                let inner = shared.lock();
                if !shared.is_closing() {
                    let waited = shared.changed.wait_timeout(inner, pause);
                    drop(waited.unwrap_or_else(PoisonError::into_inner));
                }
                pause = (pause * 2).min(Duration::from_secs(1));
            }
        }
    }
}

fn introduce(shared: &Arc<Shared>, roster: Roster) {
    let mut workers = roster.workers;
    // In the same order for all clients.
    workers.sort_by_key(|worker| worker.key);
    let mut inner = shared.lock();
    let mut here = Vec::new();
    for worker in workers.into_iter().filter(|worker| !worker.draining) {
        let next = WorkerId(inner.numbers.len() as u32);
        let number = *inner.numbers.entry(worker.key).or_insert(next);
        here.push(number);
        match inner.workers.get_mut(&number) {
            Some(known) => known.worker = worker,
            None => {
                let queue = VecDeque::new();
                inner.workers.insert(number, Reachable { worker, queue, idle: 0 });
            }
        }
    }
    let now = shared.now();
    // A dispatcher that was just restarted has not heard of anyone yet: those who are known stay.
    if !here.is_empty() {
        inner.client.workers(now, &here);
        let busy: Vec<WorkerId> = inner.streams.values().map(|stream| stream.worker).collect();
        inner.workers.retain(|number, _| here.contains(number) || busy.contains(number));
        inner.refusals.retain(|number, _| here.contains(number));
        let memory = shared.settings.memory;
        inner.settle_ahead(memory);
    }
    shared.pump(&mut inner);
}

/// Tells the core the time when it wants to know it.
pub(super) fn tick(shared: &Arc<Shared>) {
    let mut inner = shared.lock();
    while !shared.is_closing() {
        let now = shared.now();
        if inner.client.wake().is_some_and(|at| at <= now) {
            inner.client.tick(now);
            shared.pump(&mut inner);
        }
        drop(inner);
        std::thread::sleep(TICK);
        inner = shared.lock();
    }
}
