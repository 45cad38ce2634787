//! `feedline cluster`: a dispatcher and workers in one process, for trying.

use super::logs::Logs;
use super::worker::Settings;
use super::{Ending, failed};
use crate::Usage;
use crate::output::Output;
use anyhow::{Result, bail};
use feedline_dispatcher::{Dispatcher, Options as ServerOptions};
use feedline_rpc::{Address, Remote};
use feedline_worker::{Options, Worker};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Options of `cluster`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many workers
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    workers: u16,
    /// Where to listen; port 0 takes any
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7070")]
    listen: String,
    /// The folder in which it remembers jobs [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    journal: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
    #[command(flatten)]
    logs: Logs,
}

pub(crate) fn run(args: &Args, output: &Output) -> Result<()> {
    let ending = Ending::new()?;
    args.logs.start();
    let listen: Address =
        args.listen.parse().map_err(|error| Usage(format!("--listen: {error}")))?;
    if !listen.is_local() {
        bail!(Usage(format!(
            "--listen {}: a cluster in one process is for its own host; for others, start feedline \
             dispatcher and feedline worker",
            args.listen
        )));
    }
    let temporary = tempfile::Builder::new().prefix("feedline-cluster-").tempdir()?;
    let journal = args.journal.clone().unwrap_or_else(|| temporary.path().join("journal"));
    let mut options = ServerOptions::new(journal);
    options.address.clone_from(&args.listen);
    let dispatcher = Dispatcher::start(options)?;
    let address = dispatcher.address().to_string();
    let mut workers = Vec::new();
    for number in 1..=args.workers {
        let control = Arc::new(Remote::new(&address).map_err(failed)?);
        let mut options = Options { name: format!("worker {number}"), ..args.settings.options()? };
        if options.save_to.is_empty() {
            options.save_to.push(PathBuf::from("/"));
        }
        workers.push(Worker::start(control, feedline_store::machine_store()?, options)?);
    }
    match output.json {
        true => {
            let count = workers.len();
            output.document(&serde_json::json!({ "address": address, "workers": count }))?;
        }
        false => output.text(&format!(
            "{} workers at {address}\n  in Python   ds.distribute(\"{address}\", job=\"…\")\n  \
             in a shell  feedline top {address}\nCtrl-C ends it\n",
            workers.len()
        ))?,
    }
    while !ending.within(Duration::from_millis(200)) {
        if dispatcher.wait(Duration::ZERO)? {
            break;
        }
    }
    drop(workers);
    dispatcher.stop();
    Ok(())
}
