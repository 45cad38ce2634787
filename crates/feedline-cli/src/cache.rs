//! `feedline cache`: what is kept on the disk from one epoch to the next, and getting rid of it.

use crate::Usage;
use crate::output::{Output, Table, bytes, count};
use anyhow::{Result, bail};
use clap::Subcommand;
use feedline_cache::{Held, list, path_or_default, remove};
use serde_json::json;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// Options of `cache`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
    /// The folder [default: that of caches whose plan names none]
    #[arg(long, value_name = "DIR", global = true)]
    path: Option<PathBuf>,
}

#[derive(Subcommand)]
enum What {
    /// List what is kept: of which data, after which steps, how much, and when it was last used
    Ls,
    /// Remove what is kept under an identity, or under all
    Rm {
        /// The identity, or how it begins
        #[arg(required_unless_present = "all")]
        identity: Option<String>,
        /// Remove all that nobody uses
        #[arg(long, conflicts_with = "identity")]
        all: bool,
    },
    /// Say how much is kept in all
    Stat,
}

pub(crate) fn run(args: &Args, output: &Output) -> Result<()> {
    let path = path_or_default(args.path.clone())?;
    // Without an explicit folder, one that was never made holds nothing.
    let held = match args.path.is_none() && !path.exists() {
        true => Vec::new(),
        false => list(&path)?,
    };
    match &args.what {
        What::Ls => ls(&path, &held, output),
        What::Stat => stat(&path, &held, output),
        What::Rm { identity, .. } => {
            let prefix = identity.as_deref().unwrap_or("");
            let all = prefix.is_empty();
            if identity.is_some() && prefix.len() < 4 {
                bail!(Usage(format!(
                    "{prefix:?} is too short to name one; give at least 4 letters"
                )));
            }
            let chosen: Vec<&Held> =
                held.iter().filter(|held| held.identity.starts_with(prefix)).collect();
            if chosen.is_empty() && !all {
                bail!(Usage(format!("nothing is kept under {prefix} in {}", path.display())));
            }
            let mut removed = Vec::new();
            for held in chosen.iter().filter(|held| !all || !held.in_use) {
                removed.extend(remove(&path, &held.identity)?);
            }
            let freed: u64 = held
                .iter()
                .filter(|held| removed.contains(&held.identity))
                .map(|held| held.bytes)
                .sum();
            if output.json {
                return output.document(&json!({ "removed": removed, "bytes": freed }));
            }
            let what = if removed.len() == 1 {
                "1 identity".into()
            } else {
                format!("{} identities", removed.len())
            };
            output.text(&format!("removed {what}, {}\n", bytes(freed as f64)))
        }
    }
}

fn ls(path: &std::path::Path, held: &[Held], output: &Output) -> Result<()> {
    if output.json {
        return output.document(&json!({ "path": path, "held": held }));
    }
    if held.is_empty() {
        return output.text(&format!("nothing is kept in {}\n", path.display()));
    }
    let mut table = Table::new(&["identity", ">samples", ">bytes", "used", "what"]);
    for held in held {
        let (plan, all) = match &held.about {
            Some(about) => (about.plan.clone(), format!(" of {}", count(about.samples))),
            None => ("?".to_owned(), String::new()),
        };
        let used = if held.in_use { "now".to_owned() } else { ago(held.used) };
        table.row(vec![
            held.identity[..12].to_owned(),
            format!("{}{all}", count(held.samples)),
            bytes(held.bytes as f64),
            used,
            plan,
        ]);
    }
    output.text(&table.render(output.paint))
}

fn stat(path: &std::path::Path, held: &[Held], output: &Output) -> Result<()> {
    let total: u64 = held.iter().map(|held| held.bytes).sum();
    let samples: u64 = held.iter().map(|held| held.samples).sum();
    let in_use = held.iter().filter(|held| held.in_use).count();
    if output.json {
        let identities = held.len();
        let document = json!({
            "path": path, "identities": identities, "in_use": in_use, "samples": samples, "bytes": total
        });
        return output.document(&document);
    }
    let mut table = Table::new(&["", ">", ""]);
    table.row(vec!["folder".into(), String::new(), path.display().to_string()]);
    table.row(vec!["identities".into(), held.len().to_string(), format!("{in_use} in use")]);
    table.row(vec!["samples".into(), count(samples), String::new()]);
    table.row(vec!["bytes".into(), bytes(total as f64), String::new()]);
    output.text(&table.render(output.paint))
}

/// How long ago a time was, for people.
fn ago(seconds: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    match now.saturating_sub(seconds) {
        past @ 0..120 => format!("{past} s ago"),
        past @ 120..7200 => format!("{} min ago", past / 60),
        past @ 7200..172_800 => format!("{} h ago", past / 3600),
        past => format!("{} days ago", past / 86_400),
    }
}
