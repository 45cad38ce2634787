//! `feedline status`: how a service stands.

use super::{DispatcherArg, failed};
use crate::output::{Output, Table, bytes, number};
use anyhow::Result;
use feedline_wire::Order;
use feedline_wire::status::{JobStatus, Status, WorkerStatus};
use std::fmt::Write;

/// Options of `status`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    dispatcher: DispatcherArg,
}

pub(crate) fn run(args: &Args, output: &Output) -> Result<()> {
    let status = args.dispatcher.connect()?.status().map_err(failed)?;
    match output.json {
        true => output.document(&status),
        false => output.text(&page(&status, output)),
    }
}

/// Everything on one page.
pub(super) fn page(status: &Status, output: &Output) -> String {
    let Status { version, uptime_ms, jobs, workers, datasets, journal, scale } = status;
    let paint = output.paint;
    let mut text = format!(
        "{} {version}, up {}, {} datasets, journal {} ({} durable records{})\n",
        paint.bold("dispatcher"),
        span(*uptime_ms),
        datasets.len(),
        bytes(journal.bytes as f64),
        number(journal.durable as f64),
        if journal.full { paint.poor(", disk full") } else { String::new() }
    );
    let _ = writeln!(
        text,
        "{} {} there, {} wanted: {}",
        paint.bold("workers"),
        scale.present,
        scale.wanted,
        scale.reason
    );
    if !workers.is_empty() {
        let mut table =
            Table::new(&["name", "address", ">cores", ">busy", ">samples/s", ">bytes/s", ">held"]);
        workers.iter().for_each(|worker| table.row(worker_row(worker)));
        text.push_str(&table.render(paint));
    }
    let _ = writeln!(text, "{} {}", paint.bold("jobs"), jobs.len());
    if !jobs.is_empty() {
        let headings =
            ["name", "order", ">consumers", ">epoch", ">done", ">samples/s", ">waiting", "silent"];
        let mut table = Table::new(&headings);
        jobs.iter().for_each(|job| table.row(job_row(job)));
        text.push_str(&table.render(paint));
    }
    text
}

fn worker_row(status: &WorkerStatus) -> Vec<String> {
    let WorkerStatus { worker, busy, memory, rates, .. } = status;
    let ending = if worker.draining { " (ending)" } else { "" };
    vec![
        format!("{}{ending}", worker.name),
        worker.addresses.join(" "),
        worker.cores.to_string(),
        percent(*busy),
        number(rates.samples),
        bytes(rates.bytes),
        bytes(*memory as f64),
    ]
}

fn job_row(status: &JobStatus) -> Vec<String> {
    let JobStatus { name, order, epoch, windows_used, windows_total, rates, waiting, .. } = status;
    let done = match (order, *windows_total) {
        (Order::Exact, _) | (_, 0 | u64::MAX) => "-".to_owned(),
        (Order::Any, total) => percent(*windows_used as f64 / total as f64),
    };
    let silent = status.consumers.iter().filter(|one| one.silent_ms > 5_000 && !one.released);
    let silent: Vec<String> =
        silent.map(|one| format!("{} for {}", one.consumer, span(one.silent_ms))).collect();
    vec![
        name.to_string(),
        if *order == Order::Exact { "exact" } else { "any" }.to_owned(),
        status.consumers.len().to_string(),
        epoch.to_string(),
        done,
        number(rates.samples),
        percent(*waiting),
        if silent.is_empty() { "-".to_owned() } else { silent.join(", ") },
    ]
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// A time for people.
fn span(millis: u64) -> String {
    match millis / 1000 {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..3600 => format!("{} min", seconds / 60),
        seconds @ 3600..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}
