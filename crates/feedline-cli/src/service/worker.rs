//! `feedline worker`: computes windows and serves them.

use super::Ending;
use super::logs::Logs;
use super::trust::{Asking, Serving};
use crate::Usage;
use crate::input::{Functions, parse_bytes};
use crate::output::{Output, complain};
use anyhow::{Result, bail};
use feedline_store::Allowed;
use feedline_wire::stream::{Address, ServerOptions};
use feedline_worker::{Options, Worker};
use std::net::IpAddr;
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
    /// Memory for finished batches that other jobs ask for too [default: 2GB, at most an eighth of all]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    shelf: Option<usize>,
    /// Memory shared with clients on this host [default: 4GB, at most half of all]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    shared_memory: Option<usize>,
    /// Never share memory with clients on this host
    #[arg(long, conflicts_with = "shared_memory")]
    no_shared_memory: bool,
    /// Memory for samples that datasets with a cache keep, for each of them [default: an eighth of all]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    cache_ram: Option<usize>,
    /// Folder for what datasets with a cache keep on the disk; without it they keep nothing there
    #[arg(long, value_name = "DIR", requires = "cache_disk")]
    cache_path: Option<PathBuf>,
    /// Bytes of all that this folder holds
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, requires = "cache_path")]
    cache_disk: Option<usize>,
    /// Write what is saved on the service to folders beneath this one; may be given several times
    #[arg(long, value_name = "DIR")]
    save_to: Vec<PathBuf>,
    #[command(flatten)]
    functions: Functions,
}

impl Settings {
    pub(crate) fn options(&self) -> Result<Options> {
        let usual = Options::default();
        Ok(Options {
            threads: self.threads.map_or(usual.threads, usize::from),
            memory: self.memory,
            shelf: self.shelf.unwrap_or(usual.shelf),
            shared_memory: match self.no_shared_memory {
                true => 0,
                false => self.shared_memory.unwrap_or(usual.shared_memory),
            },
            cache: feedline_cache::Allowed {
                ram: self.cache_ram.map(|bytes| bytes as u64).or(usual.cache.ram),
                disk: Some(self.cache_path.clone().zip(self.cache_disk.map(|bytes| bytes as u64))),
                alone: true,
            },
            save_to: self.save_to.clone(),
            functions: self.functions.command()?,
            ..usual
        })
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
    /// Where clients reach it, if that is elsewhere: host:port, or host alone; may be given several
    /// times
    #[arg(long, value_name = "ADDRESS")]
    advertise: Vec<String>,
    /// What people call it [default: host and process number]
    #[arg(long, default_value = "")]
    name: String,
    /// Read files below this folder only; may be given several times. Where other hosts are served,
    /// this or --allow-url must be
    #[arg(long, value_name = "DIR")]
    allow_path: Vec<PathBuf>,
    /// Read objects below this URL only, such as s3://bucket/train/ or https://host/data/; may be
    /// given several times. With one of these two, nothing else is read
    #[arg(long, value_name = "URL")]
    allow_url: Vec<String>,
    /// Serve metrics, status and health as HTTP at this address
    #[arg(long, value_name = "ADDRESS")]
    http: Option<String>,
    /// What this host is called by those who read these pages, beside its addresses; may be given
    /// several times
    #[arg(long, value_name = "HOST")]
    http_name: Vec<String>,
    /// Seconds that it may take to finish what it streams when it is told to end
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    drain_timeout: u64,
    /// End with the process that started it
    #[arg(long, hide = true)]
    with_parent: bool,
    #[command(flatten)]
    settings: Settings,
    #[command(flatten)]
    serving: Serving,
    #[command(flatten)]
    asking: Asking,
    #[command(flatten)]
    logs: Logs,
}

impl Args {
    /// What is wrong with serving other hosts, if they are.
    fn check(&self, listen: &Address) -> Result<()> {
        let Self { serving, advertise, allow_path, allow_url, .. } = self;
        serving.check("--listen", &self.listen, listen.is_local())?;
        if listen.is_local() {
            return Ok(());
        }
        if allow_path.is_empty() && allow_url.is_empty() {
            bail!(Usage(format!(
                "--listen {}: other hosts could have any file read that this user may read; say which \
                 folders they may, with --allow-path DIR, or which objects, with --allow-url URL",
                self.listen
            )));
        }
        let any = listen.host().and_then(|host| host.parse().ok());
        if any.is_some_and(|any: IpAddr| any.is_unspecified()) && advertise.is_empty() {
            bail!(Usage(format!(
                "--listen {}: clients cannot know where that is; say by which name or address they \
                 reach this host, with --advertise HOST",
                self.listen
            )));
        }
        Ok(())
    }
}

pub(crate) fn run(args: &Args, output: &Output) -> Result<()> {
    let ending = Ending::new()?;
    // Asked for again and again: a signal at the parent's death would come when the thread ends that
    // started this process, and not only with its process.
    let parent = rustix::process::getppid();
    let orphaned = || args.with_parent && rustix::process::getppid() != parent;
    let listen: Address =
        args.listen.parse().map_err(|error| Usage(format!("--listen: {error}")))?;
    args.check(&listen)?;
    args.logs.start();
    let serving = &args.serving;
    let tls = serving.tls().map(|tls| tls.identity(&[])).transpose().map_err(Usage)?;
    let server = ServerOptions {
        guard: serving.guard()?,
        tls,
        insecure: serving.insecure,
        ..ServerOptions::default()
    };
    let http =
        args.http.clone().map(|at| Ok::<_, anyhow::Error>((at, serving.pages(&args.http_name)?)));
    let store = match (&args.allow_path[..], &args.allow_url[..]) {
        ([], []) => feedline_store::machine_store()?,
        (folders, urls) => {
            Allowed::new(urls).map_err(|error| Usage(format!("--allow-url: {error}")))?;
            feedline_store::confined_store(folders, urls)?
        }
    };
    let options = Options {
        listen,
        advertise: args.advertise.clone(),
        name: args.name.clone(),
        server,
        http: http.transpose()?,
        ..args.settings.options()?
    };
    let control = Arc::new(args.asking.connect(&args.dispatcher, serving.insecure)?);
    let worker = Worker::start(control, store, options)?;
    let (name, addresses) = (&worker.worker().name, worker.worker().addresses.join(", "));
    match output.json {
        true => {
            let http = worker.http_address().map(|at| at.to_string());
            let shown = serde_json::json!({ "name": name, "addresses": addresses, "http": http });
            output.document(&shown)?;
        }
        false => output.text(&format!("worker {name} serves at {addresses}\n"))?,
    }
    while !ending.within(Duration::from_millis(200)) && !worker.is_draining() && !orphaned() {}
    if !worker.drain(Duration::from_secs(args.drain_timeout)) {
        complain("what it streamed was not finished in time; clients go on elsewhere");
    }
    Ok(())
}
