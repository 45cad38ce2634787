//! The whole stack under every failure we could think of: real servers, real calls, real frames, the
//! real journal, on a network, a disk and a clock that are simulated.
//!
//! One seed is one run, and always the same one. `FEEDLINE_SEEDS` says how many seeds are run in all,
//! `FEEDLINE_SEED` which is the first; with `FEEDLINE_TRACE` set, everything that happens is printed.

mod carrying;
mod clients;
mod cluster;
mod dispatcher;
mod ending;
mod faults;
mod fetching;
mod frames;
#[path = "../simulation/history.rs"]
mod history;
#[path = "../simulation/layout.rs"]
mod layout;
mod mutants;
#[path = "../simulation/random.rs"]
mod random;
mod restoring;
mod rougher;
mod setup;
mod trace;
mod workers;
mod world;

use cluster::run;
use world::Outcome;

/// Seeds are run by so many tests.
const PARTS: u64 = 4;
/// This many, unless the environment says otherwise.
const SEEDS: u64 = 2_000;

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| {
        text.parse().unwrap_or_else(|_| panic!("{name} is {text}, and should be a number"))
    })
}

fn run_seeds(part: u64) {
    let (first, seeds) = (number("FEEDLINE_SEED", 1), number("FEEDLINE_SEEDS", SEEDS));
    let mut sum = Outcome::default();
    for seed in (first..first + seeds).filter(|seed| seed % PARTS == part) {
        match run(seed) {
            Ok(outcome) => sum.add(&outcome),
            Err(what) => panic!(
                "seed {seed}: {what}\nreplay it with\n  FEEDLINE_SEED={seed} FEEDLINE_SEEDS=1 \
                 FEEDLINE_TRACE=1 cargo test -p feedline-dispatcher --test turmoil exactly_once -- \
                 --nocapture --test-threads=1"
            ),
        }
    }
    println!("{sum:?}");
    if seeds >= SEEDS {
        assert_eq!(sum.missed(), Vec::<&str>::new(), "nothing is shown by what did not happen");
    }
}

#[test]
fn seeds_of_part_0_keep_every_step_exactly_once() {
    run_seeds(0);
}

#[test]
fn seeds_of_part_1_keep_every_step_exactly_once() {
    run_seeds(1);
}

#[test]
fn seeds_of_part_2_keep_every_step_exactly_once() {
    run_seeds(2);
}

#[test]
fn seeds_of_part_3_keep_every_step_exactly_once() {
    run_seeds(3);
}

/// How many seeds are run again to see whether they do the same.
const REPEATED: u64 = 40;

/// Runs a seed within a second. h2 forgets by the real clock, a second later, which streams it has
/// reset; on a machine that stands still for that long, a run may be another one.
fn run_swiftly(seed: u64) -> Result<Outcome, String> {
    for _ in 0..20 {
        let begun = std::time::Instant::now();
        let outcome = run(seed);
        if begun.elapsed() < std::time::Duration::from_secs(1) {
            return outcome;
        }
    }
    run(seed)
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 1..=REPEATED {
        assert_eq!(run_swiftly(seed), run_swiftly(seed), "seed {seed}");
    }
}

/// What the test below compares. By itself it shows nothing.
#[test]
fn traces_can_be_printed() {
    if std::env::var_os("FEEDLINE_TRACES").is_some() {
        (1..=REPEATED).for_each(|seed| println!("trace {seed} {:?}", run_swiftly(seed)));
    }
}

#[test]
fn the_same_seed_gives_the_same_run_in_another_process() {
    let program = std::env::current_exe().expect("a test knows where it lies");
    let output = std::process::Command::new(program)
        .args(["--exact", "traces_can_be_printed", "--nocapture", "--test-threads=1"])
        .env("FEEDLINE_TRACES", "1")
        .env_remove("FEEDLINE_TRACE")
        .output()
        .expect("a test can be started again");
    let printed = String::from_utf8_lossy(&output.stdout);
    // The harness may have begun the line.
    let traces = printed.lines().filter_map(|line| line.find("trace ").map(|at| &line[at..]));
    let here: Vec<String> =
        (1..=REPEATED).map(|seed| format!("trace {seed} {:?}", run_swiftly(seed))).collect();
    assert_eq!(traces.collect::<Vec<_>>(), here);
}
