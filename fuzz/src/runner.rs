//! Runs a target on many inputs, and says which one it cannot take.

use crate::memory;
use crate::mutate::Mutator;
use crate::targets::Target;
use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// No more inputs than these are kept to go on from.
const MOST_KEPT: usize = 4096;

thread_local! {
    /// What the input at hand came to, as a target tells it.
    static ENDS: RefCell<DefaultHasher> = RefCell::new(DefaultHasher::new());
}

/// A target says what an input came to, in words; figures do not count. Inputs that come to
/// something new are kept to go on from.
pub fn came_to(words: impl fmt::Display) {
    let words = words.to_string();
    let words: Vec<char> = words.chars().filter(|one| !one.is_ascii_digit()).take(60).collect();
    ENDS.with_borrow_mut(|ends| words.hash(ends));
}

/// As [`came_to`], of what can fail.
pub fn ended<T, E: fmt::Display>(result: Result<T, E>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            came_to(error);
            None
        }
    }
}

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    /// How often the target ran.
    pub executions: u64,
    /// How many inputs were kept, those it began with among them.
    pub kept: usize,
    /// The longest that one input took.
    pub slowest: Duration,
    /// The input that the target could not take, and why.
    pub failure: Option<Failure>,
}

/// An input that a target cannot take.
#[derive(Debug)]
pub struct Failure {
    /// What went wrong.
    pub reason: String,
    /// The input.
    pub input: Vec<u8>,
}

impl fmt::Display for Failure {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reason, input } = self;
        writeln!(to, "{reason}\nwith {} bytes, escaped:", input.len())?;
        write!(to, "{}", input.escape_ascii())
    }
}

/// Gives a target its corpus, then changed inputs while `more` says so, given how many it had.
pub fn run(target: &Target, seed: u64, mut more: impl FnMut(u64) -> bool) -> Outcome {
    let mut mutator = Mutator::new(seed, target.longest);
    let mut kept = (target.corpus)();
    let mut seen = HashSet::new();
    let mut outcome = Outcome { executions: 0, kept: 0, slowest: Duration::ZERO, failure: None };
    let first = kept.len();
    while outcome.executions < first as u64 || more(outcome.executions) {
        let input = match kept.get(outcome.executions as usize) {
            Some(input) if outcome.executions < first as u64 => input.clone(),
            _ => {
                let (at, other) = (mutator.below(kept.len()), mutator.below(kept.len()));
                let mut input = kept.get(at).cloned().unwrap_or_default();
                let other = kept.get(other).cloned().unwrap_or_default();
                mutator.change(&mut input, &other);
                input
            }
        };
        let started = Instant::now();
        let end = match execute(target, &input) {
            Ok(end) => end,
            Err(reason) => {
                outcome.failure = Some(Failure { reason, input });
                break;
            }
        };
        outcome.slowest = outcome.slowest.max(started.elapsed());
        if seen.insert(end) && outcome.executions >= first as u64 && kept.len() < MOST_KEPT {
            kept.push(input);
        }
        outcome.executions += 1;
    }
    outcome.kept = kept.len();
    outcome
}

/// Runs a target once; says what the input came to, as a number.
///
/// # Errors
///
/// If it panics, or takes more memory at once than is allowed to it.
pub fn execute(target: &Target, input: &[u8]) -> Result<u64, String> {
    ENDS.set(DefaultHasher::new());
    let _ = memory::largest();
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (target.run)(input))) {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        let words = words.or_else(|| panic.downcast_ref::<&str>().copied());
        return Err(format!("{}: it panics: {}", target.name, words.unwrap_or("?")));
    }
    let largest = memory::largest();
    if largest > target.memory {
        let (name, allowed) = (target.name, target.memory);
        return Err(format!("{name}: it asks for {largest} bytes at once; {allowed} are allowed"));
    }
    Ok(ENDS.with_borrow(Hasher::finish))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picky(bytes: &[u8]) {
        match bytes {
            [b'f', b'u', b'z', b'z', ..] => panic!("found"),
            [b'f', b'u', b'z', ..] => came_to("three"),
            [b'f', b'u', ..] => came_to("two"),
            [b'f', ..] => came_to("one"),
            _ => {}
        }
    }

    #[test]
    fn what_it_comes_to_leads_to_the_input_that_panics() {
        let corpus = || vec![b"aaaa".to_vec()];
        let target = Target { name: "picky", run: picky, corpus, longest: 8, memory: 1 << 20 };
        let outcome = run(&target, 1, |executions| executions < 1_000_000);
        let failure = outcome.failure.expect("it is found");
        assert!(failure.input.starts_with(b"fuzz"), "{failure}");
        assert!(failure.to_string().contains("it panics: found"), "{failure}");
    }
}
