//! `feedline job`: what an operator does about a job.

use super::{DispatcherArg, failed};
use crate::Usage;
use crate::output::Output;
use anyhow::{Result, bail};
use clap::Subcommand;
use feedline_core::Error;
use feedline_rpc::Remote;
use feedline_wire::control::Control;
use feedline_wire::status::JobStatus;
use feedline_wire::{ConsumerIndex, Reply, Request};
use std::time::Duration;

/// Options of `job`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Give up a client that is lost: what it held goes to others
    Release {
        /// The job's name
        job: String,
        /// The client's number
        consumer: u32,
        #[command(flatten)]
        dispatcher: DispatcherArg,
    },
    /// End a job; its name is free again
    Close {
        /// The job's name
        job: String,
        #[command(flatten)]
        dispatcher: DispatcherArg,
    },
}

const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) fn run(args: &Args, output: &Output) -> Result<()> {
    let (request, done) = match &args.command {
        Command::Release { job, consumer, dispatcher } => {
            let remote = dispatcher.connect()?;
            let JobStatus { job: id, incarnation, .. } = find(&remote, job)?;
            let consumer = ConsumerIndex(*consumer);
            let done =
                format!("consumer {consumer} of {job} is released: others get what it held\n");
            ((remote, Request::Release { job: id, incarnation, consumer }), done)
        }
        Command::Close { job, dispatcher } => {
            let remote = dispatcher.connect()?;
            let id = find(&remote, job)?.job;
            ((remote, Request::CloseJob { job: id }), format!("{job} is closed\n"))
        }
    };
    let (remote, request) = request;
    match remote.ask(&request, PATIENCE).map_err(failed)? {
        Reply::Refused(refusal) => bail!(Error::Service(refusal.to_string())),
        _ if output.json => output.document(&serde_json::json!({ "done": true })),
        _ => output.text(&done),
    }
}

fn find(remote: &Remote, name: &str) -> Result<JobStatus> {
    let jobs = remote.status().map_err(failed)?.jobs;
    let names: Vec<String> = jobs.iter().map(|job| job.name.to_string()).collect();
    match jobs.into_iter().find(|job| job.name.0 == name) {
        Some(job) => Ok(job),
        None if names.is_empty() => bail!(Usage(format!("there is no job {name}; there are none"))),
        None => bail!(Usage(format!("there is no job {name}; there are {}", names.join(", ")))),
    }
}
