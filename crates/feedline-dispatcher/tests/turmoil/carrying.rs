//! Carries requests of a client to the dispatcher, and learns which workers there are.

use crate::clients::Event;
use feedline_rpc::Calls;
use feedline_wire::Request;
use feedline_wire::control::Report;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Instant, sleep, timeout_at};

/// How long the dispatcher may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the dispatcher may hold back an unchanged roster.
const LONG_POLL: Duration = Duration::from_secs(10);
/// The dispatcher hears how the trainer fares this often.
const REPORT: Duration = Duration::from_secs(1);

/// What is to be said to the dispatcher next.
#[derive(Default)]
pub struct Wish {
    pub request: RefCell<Option<(u64, Request)>>,
    pub report: RefCell<Option<Report>>,
    pub news: Notify,
}

/// Says what the core wants said, one thing at a time.
pub async fn speak(calls: Calls, wish: Rc<Wish>, events: UnboundedSender<Event>) {
    let mut reported = Instant::now();
    loop {
        let request = wish.request.borrow_mut().take();
        if let Some((sequence, request)) = request {
            let reply = calls.ask(&request, PATIENCE).await;
            let _ = events.send(Event::Reply(sequence, reply));
            continue;
        }
        let report = *wish.report.borrow();
        if let Some(report) = report.filter(|_| reported.elapsed() >= REPORT) {
            reported = Instant::now();
            // What was not heard is said again in a second.
            let _ = calls.report(&report).await;
            continue;
        }
        let _ = timeout_at(reported + REPORT, wish.news.notified()).await;
        if reported.elapsed() >= REPORT && wish.report.borrow().is_none() {
            reported = Instant::now();
        }
    }
}

/// Learns which workers there are.
pub async fn meet(calls: Calls, events: UnboundedSender<Event>) {
    let mut known = 0;
    let mut pause = Duration::from_millis(20);
    loop {
        match calls.workers(known, LONG_POLL).await {
            Ok(roster) => {
                known = roster.version;
                pause = Duration::from_millis(20);
                let _ = events.send(Event::Roster(roster));
            }
            Err(_) => {
                // After a restart the dispatcher counts from anew.
                known = 0;
                sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(1));
            }
        }
    }
}
