//! Scripts: a pipeline, a line, what comes out.
//!
//! ```text
//!  # Leaves out the first two.
//!  range count=4 | skip count=2
//!  ---
//!  2
//!  3
//! ```
//!
//! Cases are parted by a blank line. A line such as `@ seed=3 epochs=2 world=2` before the pipeline
//! says how it runs (`rounds=1` lets ranks take batches in rounds); with several epochs or ranks, a heading stands before what each delivers.
//! `$NAMES` are those of [`Fixtures`]. With `UPDATE=1` in the environment the lower halves are
//! written anew.

use crate::laws::{assert_laws_within, engine_epoch, open, plain_epoch};
use crate::stores::any_store;
use crate::{Fixtures, show_batch};
use feedline_core::{Length, Position, Seed};
use feedline_engine::Options;
use feedline_ops::plain::Part;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Batches shown of a pipeline without an end.
const ENDLESS: usize = 10;

/// One example.
#[derive(Debug, Default)]
struct Case {
    /// Comments and directives, as they stand.
    head: Vec<String>,
    seed: u64,
    epochs: u64,
    world: u64,
    rounds: bool,
    plan: String,
    expected: Vec<String>,
}

/// The scripts in a folder, sorted, each with the step it is about.
///
/// # Panics
///
/// If the folder cannot be read.
#[must_use]
pub fn scripts_in(folder: &Path) -> Vec<(String, PathBuf)> {
    let listed = std::fs::read_dir(folder).expect("the folder of scripts can be read");
    let mut scripts: Vec<(String, PathBuf)> = listed
        .map(|entry| entry.expect("the folder of scripts can be read").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .map(|path| {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            (name, path)
        })
        .collect();
    scripts.sort();
    scripts
}

/// Runs all cases of a script under all laws, and compares what comes out with what is written
/// there, or writes it.
///
/// # Panics
///
/// If something else comes out, or a law is broken.
pub fn run_script(path: &Path, fixtures: &Fixtures) {
    let text = std::fs::read_to_string(path).expect("the script can be read");
    let mut cases = parse(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let update = std::env::var_os("UPDATE").is_some_and(|value| value == "1");
    let mut wrong = String::new();
    for case in &mut cases {
        let found = run(case, fixtures);
        if found != case.expected && !update {
            let (found, expected) = (found.join("\n"), case.expected.join("\n"));
            let _ =
                write!(wrong, "\n{}\n--- found\n{found}\n--- expected\n{expected}\n", case.plan);
        }
        case.expected = found;
        assert_laws_within(&case.plan, fixtures, &[1, 2, 3], 6);
    }
    if update {
        std::fs::write(path, print(&cases)).expect("the script can be written");
    }
    assert!(wrong.is_empty(), "{}:{wrong}", path.display());
}

/// The pipelines of all scripts in a folder.
///
/// # Panics
///
/// If a script cannot be read.
#[must_use]
pub fn plans_in(folder: &Path) -> Vec<String> {
    let cases = scripts_in(folder).into_iter().flat_map(|(_, path)| {
        let text = std::fs::read_to_string(&path).expect("the script can be read");
        parse(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    });
    cases.map(|case| case.plan).collect()
}

fn parse(text: &str) -> Result<Vec<Case>, String> {
    let mut cases = Vec::new();
    for block in text.split("\n\n").filter(|block| !block.trim().is_empty()) {
        let mut case = Case { epochs: 1, world: 1, ..Case::default() };
        let mut lines = block.trim_matches('\n').lines();
        for line in lines.by_ref() {
            if let Some(directives) = line.strip_prefix('@') {
                for directive in directives.split_whitespace() {
                    let number = directive
                        .split_once('=')
                        .and_then(|(name, value)| Some((name, value.parse::<u64>().ok()?)));
                    match number {
                        Some(("seed", value)) => case.seed = value,
                        Some(("epochs", value)) => case.epochs = value,
                        Some(("world", value)) => case.world = value,
                        Some(("rounds", value)) => case.rounds = value > 0,
                        _ => return Err(format!("what does {directive:?} mean?")),
                    }
                }
                case.head.push(line.to_owned());
            } else if line.starts_with('#') {
                case.head.push(line.to_owned());
            } else if line == "---" {
                break;
            } else if case.plan.is_empty() {
                line.clone_into(&mut case.plan);
            } else {
                return Err(format!("a second pipeline, or a missing ---: {line:?}"));
            }
        }
        if case.plan.is_empty() {
            return Err(format!("a case without a pipeline: {block:?}"));
        }
        case.expected = lines.map(str::to_owned).collect();
        cases.push(case);
    }
    Ok(cases)
}

fn print(cases: &[Case]) -> String {
    let blocks: Vec<String> = cases
        .iter()
        .map(|case| {
            let Case { head, plan, expected, .. } = case;
            let mut lines = head.clone();
            lines.extend([plan.clone(), "---".to_owned()]);
            lines.extend(expected.iter().cloned());
            lines.join("\n")
        })
        .collect();
    blocks.join("\n\n") + "\n"
}

fn run(case: &Case, fixtures: &Fixtures) -> Vec<String> {
    let error = |text: &str| format!("error: {}", fixtures.hide(text));
    let pipeline = match open(&case.plan, fixtures) {
        Ok(pipeline) => pipeline,
        Err(failure) => return vec![error(&failure.to_string())],
    };
    let store = any_store();
    let most = if pipeline.length() == Length::Infinite { ENDLESS } else { usize::MAX };
    let mut lines = Vec::new();
    for epoch in 0..case.epochs {
        for rank in 0..case.world {
            let position = Position::epoch(epoch);
            let (seed, world, rounds) = (Seed(case.seed), case.world, case.rounds);
            let (start, with_index, epochs) = (position.clone(), false, Some(1));
            let part = Part { seed, rank, world, position: start, rounds, with_index };
            let options =
                Options { threads: 2, seed, rank, world, rounds, epochs, ..Options::default() };
            if let Err(refused) = options.check(&pipeline) {
                return vec![error(&refused.to_string())];
            }
            let found = plain_epoch(&pipeline, &store, part, most);
            let engine = engine_epoch(&pipeline, &store, position, options, most);
            assert_eq!(engine, found, "{}: engine and plain run differ", case.plan);
            match (case.epochs > 1, case.world > 1) {
                (true, true) => lines.push(format!("epoch {epoch}, rank {rank}")),
                (true, false) => lines.push(format!("epoch {epoch}")),
                (false, true) => lines.push(format!("rank {rank}")),
                (false, false) => {}
            }
            lines.extend(found.batches.iter().map(show_batch));
            lines.extend(found.error.as_deref().map(error));
        }
    }
    if lines.is_empty() {
        lines.push("(nothing)".to_owned());
    }
    if most == ENDLESS {
        lines.push("…".to_owned());
    }
    lines
}
