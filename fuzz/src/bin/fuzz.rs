//! Runs one target, or each, for some seconds: `fuzz <target or all> <seconds> [seed]`.
//!
//! `fuzz list` names the targets, `fuzz corpus <target> <folder>` writes the inputs that a target begins with, for libFuzzer, and
//! `fuzz input <target> <file>` gives it one input.

use feedline_fuzz::{TARGETS, Target, memory::Watched, runner};
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[global_allocator]
static MEMORY: Watched = Watched;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["list"] => {
            TARGETS.iter().for_each(|target| println!("{}", target.name));
            Ok(())
        }
        ["corpus", target, folder] => find(target).and_then(|one| write_corpus(one[0], folder)),
        ["input", target, file] => find(target).and_then(|one| give(one[0], file)),
        [target, seconds] => find(target).and_then(|all| run(&all, seconds, "1")),
        [target, seconds, seed] => find(target).and_then(|all| run(&all, seconds, seed)),
        _ => Err("usage: fuzz <target or all> <seconds> [seed]".to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}

fn find(name: &str) -> Result<Vec<&'static Target>, String> {
    let found: Vec<&Target> =
        TARGETS.iter().filter(|target| name == "all" || target.name == name).collect();
    if found.is_empty() {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        return Err(format!("there is no target {name}; there are {}, and all", names.join(", ")));
    }
    Ok(found)
}

fn run(targets: &[&Target], seconds: &str, seed: &str) -> Result<(), String> {
    let seconds: u64 = seconds.parse().map_err(|_| format!("{seconds} is no number of seconds"))?;
    let seed: u64 = seed.parse().map_err(|_| format!("{seed} is no seed"))?;
    let mut failures = Vec::new();
    for target in targets {
        let end = Instant::now() + Duration::from_secs(seconds);
        let outcome = runner::run(target, seed, |_| Instant::now() < end);
        failures.extend(outcome.failure.map(|failure| failure.to_string()));
        let runner::Outcome { executions, kept, slowest, .. } = outcome;
        let name = target.name;
        println!("{name}: {executions} executions, {kept} inputs kept, slowest {slowest:.1?}");
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n\n")) }
}

fn write_corpus(target: &Target, folder: &str) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{folder}: {error}");
    std::fs::create_dir_all(folder).map_err(failed)?;
    for (number, input) in (target.corpus)().iter().enumerate() {
        let file = std::path::Path::new(folder).join(format!("written-{number:03}"));
        std::fs::write(file, input).map_err(failed)?;
    }
    Ok(())
}

fn give(target: &Target, file: &str) -> Result<(), String> {
    let input = std::fs::read(file).map_err(|error| format!("{file}: {error}"))?;
    runner::execute(target, &input).map(|_| ())
}
