//! `feedline dispatcher`: decides who does what, and remembers it.

use super::Ending;
use crate::output::{Output, complain};
use anyhow::Result;
use feedline_dispatcher::{Dispatcher, Options as ServerOptions};
use std::path::PathBuf;
use std::time::Duration;

/// Options of `dispatcher`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where to listen; port 0 takes any
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7070")]
    listen: String,
    /// The folder in which it remembers jobs and datasets
    #[arg(long, value_name = "DIR")]
    journal: PathBuf,
    /// Seconds after which a silent client that others wait for is named to them
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    client_timeout: u64,
    /// Serve metrics, status and health as HTTP at this address
    #[arg(long, value_name = "ADDRESS")]
    http: Option<String>,
    /// Serve other hosts without encryption and without tokens
    #[arg(long)]
    insecure: bool,
    /// Hours after which a job that nobody has spoken for is closed
    #[arg(long, value_name = "HOURS", default_value_t = 24)]
    idle_timeout: u64,
}

pub(crate) fn run(args: &Args, output: &Output) -> Result<()> {
    let ending = Ending::new()?;
    let mut options = ServerOptions::new(&args.journal);
    options.address.clone_from(&args.listen);
    options.limits.client_timeout = args.client_timeout.max(1) * 1000;
    options.limits.idle_timeout = args.idle_timeout.max(1) * 3_600_000;
    options.http.clone_from(&args.http);
    options.insecure = args.insecure;
    let dispatcher = Dispatcher::start(options)?;
    if let Some(torn) = dispatcher.torn() {
        complain(&format!(
            "{}: cut off {} bytes that a crash had left of the last commit",
            torn.file.display(),
            torn.bytes
        ));
    }
    let address = dispatcher.address().to_string();
    match output.json {
        true => output.document(&serde_json::json!({ "address": address }))?,
        false => output.text(&format!("listening at {address}\n"))?,
    }
    while !ending.within(Duration::from_millis(200)) {
        if dispatcher.wait(Duration::ZERO)? {
            break;
        }
    }
    dispatcher.stop();
    Ok(())
}
