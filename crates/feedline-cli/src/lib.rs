//! The `feedline` command: everything that can be done with a pipeline from a shell.
//!
//! ```text
//!  check    is it right?            run      go through it        demo    see what Feedline does
//!  explain  what will happen?       bench    how fast is it?      steps   what can be written?
//!  peek     what comes out?         save     keep what comes out  cache   what is kept between epochs?
//!
//!  dispatcher  worker  cluster   run a service        status  top  job  journal   look after it
//!  certs  token                  let its parts know each other
//! ```
//!
//! Each command is one file with its options and its work. Results go to stdout, for people or, with
//! `--json`, as one JSON document; progress and errors go to stderr.

mod bench;
mod cache;
mod check;
mod demo;
mod explain;
mod input;
mod measure;
mod output;
mod peek;
mod run;
mod save;
mod service;
mod steps;

pub use input::read_blobs;

use clap::{Parser, Subcommand};
use feedline_core::Error;
use output::Output;
use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

/// The command or its pipeline is wrong.
const WRONG: u8 = 2;
/// The data, the machine, or Feedline itself failed.
const FAILED: u8 = 1;

#[derive(Parser)]
#[command(
    name = "feedline",
    bin_name = "feedline",
    version,
    about = "Keeps accelerators fed: runs, explains and measures input pipelines",
    after_help = "A PLAN is a file with a pipeline (JSON, or one line of text), - for stdin, or the \
                  text itself:\n  feedline run 'images path=train/ | shuffle | decode | resize \
                  size=[224,224] | batch size=64'"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Print one JSON document instead of text
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Run a pipeline from end to end and say where the time went
    Run(run::Args),
    /// Compute an epoch once and keep it as Arrow files, which `arrow` reads; goes on where it ended
    Save(save::Args),
    /// Say what a run will do: which steps together, into which buffers, within which budgets
    Explain(explain::Args),
    /// Show the first samples that come out, and a contact sheet of their images
    Peek(peek::Args),
    /// Measure a pipeline: throughput, CPU time and memory, step by step
    Bench(bench::Args),
    /// Look at what is kept on the disk from one epoch to the next, or remove it
    Cache(cache::Args),
    /// Check a pipeline without touching its data
    Check(check::Args),
    /// List the steps that a pipeline can be made of
    Steps,
    /// Run a service's dispatcher: it decides who does what, and remembers it
    Dispatcher(service::dispatcher::Args),
    /// Run a service's worker: it computes windows and serves them
    Worker(Box<service::worker::Args>),
    /// Run a dispatcher and workers in one process, for trying
    Cluster(service::cluster::Args),
    /// Say how a service stands: workers, jobs, rates, waiting
    Status(service::status::Args),
    /// Watch a service work
    Top(service::top::Args),
    /// Release a lost client of a job, or close a job
    Job(service::job::Args),
    /// Repair a dispatcher's damaged journal
    Journal(service::journal::Args),
    /// Make certificates for TLS: an authority, one for servers, one for clients
    Certs(service::certs::Args),
    /// Make a key, or a token that is signed with it
    Token(service::token::Args),
    /// Watch Feedline feed a simulated accelerator and resume exactly where it stopped
    Demo(demo::Args),
}

/// Runs the command line `args`, the program's name first, and says how it ended: 0 for success, 2
/// if the command or its pipeline is wrong, 1 if the data or the machine failed.
///
/// It never ends the process itself, so that other programs can offer the same command. Only commands
/// that serve catch signals: whoever calls it from a process that catches SIGINT gives the signal its
/// default action first, so that Ctrl-C ends a run at once.
pub fn main_with(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let Cli { command, json } = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            // If even this cannot be printed, the exit code still says it.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(WRONG) } else { ExitCode::SUCCESS };
        }
    };
    let output = Output::new(json);
    let result = match command {
        Command::Run(args) => run::run(&args, &output),
        Command::Save(args) => save::run(&args, &output),
        Command::Explain(args) => explain::run(&args, &output),
        Command::Peek(args) => peek::run(&args, &output),
        Command::Bench(args) => bench::run(&args, &output),
        Command::Cache(args) => cache::run(&args, &output),
        Command::Check(args) => check::run(&args, &output),
        Command::Steps => steps::run(&output),
        Command::Dispatcher(args) => service::dispatcher::run(&args, &output),
        Command::Worker(args) => service::worker::run(&args, &output),
        Command::Cluster(args) => service::cluster::run(&args, &output),
        Command::Status(args) => service::status::run(&args, &output),
        Command::Top(args) => service::top::run(&args, &output),
        Command::Job(args) => service::job::run(&args, &output),
        Command::Journal(args) => service::journal::run(&args, &output),
        Command::Certs(args) => service::certs::run(&args, &output),
        Command::Token(args) => service::token::run(&args, &output),
        Command::Demo(args) => demo::run(&args, &output),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error, &output),
    }
}

/// The command was called wrongly: what a person would call a usage error.
#[derive(Debug)]
struct Usage(String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

fn report(error: &anyhow::Error, output: &Output) -> ExitCode {
    // Whoever read our output has had enough, as `head` does: that is no failure.
    let closed = |io: &io::Error| io.kind() == io::ErrorKind::BrokenPipe;
    if error.downcast_ref::<io::Error>().is_some_and(closed) {
        return ExitCode::SUCCESS;
    }
    let (kind, code) = match (error.downcast_ref::<Error>(), error.is::<Usage>()) {
        (_, true) => ("usage", WRONG),
        (Some(Error::Pipeline(_)), _) => ("pipeline", WRONG),
        (Some(Error::State(_)), _) => ("state", WRONG),
        (Some(Error::Record { .. }), _) => ("record", FAILED),
        (Some(Error::Budget(_)), _) => ("budget", FAILED),
        (Some(Error::Service(_)), _) => ("service", FAILED),
        (Some(Error::Internal(_)), _) => ("internal", FAILED),
        _ => ("data", FAILED),
    };
    let message = format!("{error:#}");
    if output.json {
        let document = serde_json::json!({ "error": { "kind": kind, "message": message } });
        let _ = output.document(&document);
    }
    output::complain(&format!("error: {message}"));
    ExitCode::from(code)
}
