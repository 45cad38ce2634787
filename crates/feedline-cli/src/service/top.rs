//! `feedline top`: a service as it works, drawn again and again.

use super::status::page;
use super::{DispatcherArg, Ending, failed};
use crate::output::Output;
use anyhow::Result;
use std::io::IsTerminal;
use std::time::Duration;

/// Options of `top`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    dispatcher: DispatcherArg,
    /// Seconds between two pictures
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    every: f64,
    /// End after so many pictures
    #[arg(long, value_name = "N")]
    count: Option<u64>,
}

pub(crate) fn run(args: &Args, output: &Output) -> Result<()> {
    let ending = Ending::new()?;
    let remote = args.dispatcher.connect()?;
    let every = Duration::from_secs_f64(args.every.clamp(0.1, 3600.0));
    let clear = std::io::stdout().is_terminal() && !output.json;
    let mut shown = 0;
    loop {
        let picture = match remote.status() {
            Ok(status) if output.json => serde_json::to_string(&status)? + "\n",
            Ok(status) => page(&status, output),
            // It may come back; what was last seen is no longer true.
            Err(failure) if clear => format!("{}\n", failed(failure)),
            Err(failure) => return Err(failed(failure)),
        };
        // Home, then each line, then all below: less flicker than clearing first.
        let picture = match clear {
            true => format!("\x1b[H{}\x1b[J", picture.replace('\n', "\x1b[K\n")),
            false => picture,
        };
        output.text(&picture)?;
        shown += 1;
        if args.count.is_some_and(|count| shown >= count) || ending.within(every) {
            return Ok(());
        }
    }
}
