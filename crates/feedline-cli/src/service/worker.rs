//! `feedline worker`: computes windows and serves them.

use super::{Ending, connect};
use crate::Usage;
use crate::input::parse_bytes;
use crate::output::{Output, complain};
use anyhow::{Result, bail};
use feedline_wire::stream::Address;
use feedline_worker::{Options, Worker};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// What decides how a worker computes.
#[derive(clap::Args, Clone)]
pub(crate) struct Settings {
    /// Threads that compute [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Memory for what is in flight, over all jobs
    #[arg(long, value_name = "BYTES", default_value = "1GB", value_parser = parse_bytes)]
    memory: usize,
    /// Memory for finished batches that other jobs may ask for
    #[arg(long, value_name = "BYTES", default_value = "256MB", value_parser = parse_bytes)]
    shelf: usize,
    /// Memory shared with clients on this host
    #[arg(long, value_name = "BYTES", default_value = "1GB", value_parser = parse_bytes)]
    shared_memory: usize,
    /// Never share memory with clients on this host
    #[arg(long, conflicts_with = "shared_memory")]
    no_shared_memory: bool,
    /// Write what is saved on the service to folders beneath this one; may be given several times
    #[arg(long, value_name = "DIR")]
    save_to: Vec<PathBuf>,
}

impl Settings {
    pub(crate) fn options(&self) -> Options {
        let usual = Options::default();
        Options {
            threads: self.threads.map_or(usual.threads, usize::from),
            memory: self.memory,
            shelf: self.shelf,
            shared_memory: if self.no_shared_memory { 0 } else { self.shared_memory },
            save_to: self.save_to.clone(),
            ..usual
        }
    }
}

/// Options of `worker`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The dispatcher
    #[arg(long, value_name = "URL", default_value = "feedline://127.0.0.1:7070")]
    dispatcher: String,
    /// Where to serve clients: host:port, or unix:/path
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: String,
    /// Where clients reach it, if that is elsewhere; may be given several times
    #[arg(long, value_name = "ADDRESS")]
    advertise: Vec<String>,
    /// What people call it [default: host and process number]
    #[arg(long, default_value = "")]
    name: String,
    /// Serve other hosts without encryption and without tokens
    #[arg(long)]
    insecure: bool,
    /// Seconds that it may take to finish what it streams when it is told to end
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    drain_timeout: u64,
    /// End with the process that started it
    #[arg(long, hide = true)]
    with_parent: bool,
    #[command(flatten)]
    settings: Settings,
}

pub(crate) fn run(args: &Args, output: &Output) -> Result<()> {
    let ending = Ending::new()?;
    // Asked for again and again: a signal at the parent's death would come when the thread ends that
    // started this process, and not only with its process.
    let parent = rustix::process::getppid();
    let orphaned = || args.with_parent && rustix::process::getppid() != parent;
    let listen: Address =
        args.listen.parse().map_err(|error| Usage(format!("--listen: {error}")))?;
    if !listen.is_local() && !args.insecure {
        bail!(Usage(format!(
            "--listen {}: batches would go to other hosts without encryption and to anybody who asks; \
             listen at 127.0.0.1, or say --insecure if this network is yours alone",
            args.listen
        )));
    }
    let options = Options {
        listen,
        advertise: args.advertise.clone(),
        name: args.name.clone(),
        ..args.settings.options()
    };
    let control = Arc::new(connect(&args.dispatcher)?);
    let worker = Worker::start(control, feedline_store::machine_store()?, options)?;
    let (name, addresses) = (&worker.worker().name, worker.worker().addresses.join(", "));
    match output.json {
        true => output.document(&serde_json::json!({ "name": name, "addresses": addresses }))?,
        false => output.text(&format!("worker {name} serves at {addresses}\n"))?,
    }
    while !ending.within(Duration::from_millis(200)) && !worker.is_draining() && !orphaned() {}
    if !worker.drain(Duration::from_secs(args.drain_timeout)) {
        complain("what it streamed was not finished in time; clients go on elsewhere");
    }
    Ok(())
}
