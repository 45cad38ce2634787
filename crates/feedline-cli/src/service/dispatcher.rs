//! `feedline dispatcher`: decides who does what, and remembers it.

use super::Ending;
use super::logs::Logs;
use super::trust::Serving;
use crate::Usage;
use crate::output::{Output, complain};
use anyhow::Result;
use feedline_dispatcher::{Dispatcher, Options as ServerOptions};
use feedline_rpc::Address;
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
    /// What this host is called by those who read these pages, beside its addresses; may be given
    /// several times
    #[arg(long, value_name = "HOST")]
    http_name: Vec<String>,
    /// Hours after which a job that nobody has spoken for is closed
    #[arg(long, value_name = "HOURS", default_value_t = 24)]
    idle_timeout: u64,
    #[command(flatten)]
    serving: Serving,
    #[command(flatten)]
    logs: Logs,
}

pub(crate) fn run(args: &Args, output: &Output) -> Result<()> {
    let ending = Ending::new()?;
    args.logs.start();
    let serving = &args.serving;
    let listen: Address =
        args.listen.parse().map_err(|error| Usage(format!("--listen: {error}")))?;
    serving.check("--listen", &args.listen, listen.is_local())?;
    let mut options = ServerOptions::new(&args.journal);
    options.address.clone_from(&args.listen);
    options.limits.client_timeout = args.client_timeout.max(1) * 1000;
    options.limits.idle_timeout = args.idle_timeout.max(1) * 3_600_000;
    options.http.clone_from(&args.http);
    options.names.clone_from(&args.http_name);
    options.key.clone_from(&serving.key);
    options.audience.clone_from(&serving.audience);
    (options.tls, options.insecure) = (serving.tls(), serving.insecure);
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
        true => {
            let http = dispatcher.http_address().map(|at| at.to_string());
            output.document(&serde_json::json!({ "address": address, "http": http }))?;
        }
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
