//! `feedline token`: keys, and the tokens that are signed with them.

use crate::Usage;
use crate::output::Output;
use anyhow::{Context, Result, bail};
use feedline_wire::token::{AUDIENCE, Key, Role, Token};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// No token lasts longer.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);

/// Options of `token`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Make a key in this file, and no token
    #[arg(long, value_name = "FILE", conflicts_with_all = ["key", "role", "ttl", "jobs", "out"])]
    new_key: Option<PathBuf>,
    /// Sign with the first key in this file
    #[arg(long, value_name = "FILE", env = "FEEDLINE_KEY_FILE")]
    key: Option<PathBuf>,
    /// What its bearer is: client (trains), worker (computes) or operator (looks after it)
    #[arg(long, value_name = "ROLE", required_unless_present = "new_key")]
    role: Option<Role>,
    /// How long it lasts: seconds, or such as 30m, 1h, 7d
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_time)]
    ttl: Duration,
    /// The service that it is for
    #[arg(long, value_name = "NAME", default_value = AUDIENCE, env = "FEEDLINE_AUDIENCE")]
    audience: String,
    /// Let its bearer touch only jobs whose names begin so
    #[arg(long, value_name = "PREFIX")]
    jobs: Option<String>,
    /// Write it to this file, in place of what was there, instead of printing it
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(crate) fn run(args: &Args, output: &Output) -> Result<()> {
    if let Some(path) = &args.new_key {
        Key::make(path).map_err(Usage)?;
        return match output.json {
            true => output.document(&serde_json::json!({ "key": path })),
            false => output.text(&format!(
                "made the key {}: whoever has it can sign any token\n",
                path.display()
            )),
        };
    }
    let Some((path, role)) = args.key.as_ref().zip(args.role) else {
        bail!(Usage("--key FILE is missing; feedline token --new-key FILE makes one".into()));
    };
    let key = Key::read(path).map_err(Usage)?;
    let jobs = args.jobs.clone();
    let token = Token { jobs, ..Token::new(role, &args.audience, args.ttl) };
    let signed = key.sign(&token);
    let text = signed.expose();
    match &args.out {
        Some(path) => {
            replace(path, text).with_context(|| format!("cannot write {}", path.display()))?;
            match output.json {
                true => {
                    output.document(&serde_json::json!({ "out": path, "expires": token.expires }))
                }
                false => Ok(()),
            }
        }
        None if output.json => {
            output.document(&serde_json::json!({ "token": text, "expires": token.expires }))
        }
        None => output.text(&format!("{text}\n")),
    }
}

/// Replaces a file at once: whoever reads it sees the old token or the new one, never half of either.
fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    let new = PathBuf::from(name);
    // What a killed process of the same number left would be written into otherwise.
    let _ = fs::remove_file(&new);
    let written =
        File::options().write(true).create_new(true).mode(0o600).open(&new).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.write_all(b"\n")?;
            file.sync_all()
        });
    let replaced = written.and_then(|()| fs::rename(&new, path));
    if replaced.is_err() {
        // It may not have been made.
        let _ = fs::remove_file(&new);
    }
    replaced
}

/// Reads a time: `90`, `90s`, `30m`, `1h`, `7d`.
fn parse_time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no time; write it like 90s, 30m, 1h or 7d");
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..end].parse().map_err(|_| wrong())?;
    let seconds = match &text[end..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    match number.checked_mul(seconds).map(Duration::from_secs) {
        Some(time) if !time.is_zero() && time <= LONGEST => Ok(time),
        _ => Err(format!("{text:?} is out of range: a token lasts from a second to a year")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn times_are_read_as_people_write_them() {
        for (text, seconds) in
            [("90", 90), ("90s", 90), ("30m", 1_800), ("1h", 3_600), ("7d", 604_800)]
        {
            assert_eq!(parse_time(text), Ok(Duration::from_secs(seconds)));
        }
        for wrong in ["", "h", "-1h", "1.5h", "1w", "0", "9999999999999999999d", "2y", "400d"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_token_replaces_the_one_before_and_is_its_owners_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        for text in ["one", "two"] {
            replace(&path, text).expect("it can be written");
            assert_eq!(fs::read_to_string(&path).expect("it is there"), format!("{text}\n"));
        }
        assert_eq!(fs::metadata(&path).expect("it is there").mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
        assert!(replace(&folder.path().join("no/such/folder"), "x").is_err());
    }
}
