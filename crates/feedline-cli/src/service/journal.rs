//! `feedline journal`: mending what a disk has damaged.

use crate::output::Output;
use anyhow::Result;
use clap::Subcommand;
use feedline_dispatcher::Options;
use feedline_journal::Repaired;
use std::path::PathBuf;

/// Options of `journal`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Keep what can be read of a damaged journal, and move the rest aside
    Repair {
        /// The dispatcher's folder
        folder: PathBuf,
    },
}

pub(crate) fn run(args: &Args, output: &Output) -> Result<()> {
    let Command::Repair { folder } = &args.command;
    let Repaired { end, lost, aside } =
        feedline_journal::repair(folder, &Options::new(folder).journal_options)?;
    if output.json {
        let document = serde_json::json!({ "records": end.0, "lost": lost, "aside": aside });
        return output.document(&document);
    }
    let mut text = format!("{} records can be read, {lost} were lost\n", end.0);
    for file in aside {
        text += &format!("moved aside: {}\n", file.display());
    }
    output.text(&text)
}
