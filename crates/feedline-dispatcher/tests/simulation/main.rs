//! The protocol under every failure we could think of, as many times as there are seeds.
//!
//! One seed is one run, and always the same one. `FEEDLINE_SEEDS` says how many seeds are run in all,
//! `FEEDLINE_SEED` which is the first; with `FEEDLINE_TRACE` set, everything that happens is printed.

mod history;
mod layout;
mod mutants;
mod random;
mod world;

use world::{Outcome, run};

/// Seeds are run by so many tests.
const PARTS: u64 = 6;
/// This many, unless the environment says otherwise.
const SEEDS: u64 = 150_000;

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| {
        text.parse().unwrap_or_else(|_| panic!("{name} is {text}, and should be a number"))
    })
}

fn run_seeds(part: u64) {
    let (first, seeds) = (number("FEEDLINE_SEED", 1), number("FEEDLINE_SEEDS", SEEDS));
    let tracing = std::env::var_os("FEEDLINE_TRACE").is_some();
    let mut sum = Outcome::default();
    for seed in (first..first + seeds).filter(|seed| seed % PARTS == part) {
        match run(seed, tracing) {
            Ok(outcome) => {
                sum.happenings += outcome.happenings;
                sum.faults += outcome.faults;
                sum.restores += outcome.restores;
                sum.rewinds += outcome.rewinds;
                sum.refused_merges += outcome.refused_merges;
                sum.releases += outcome.releases;
            }
            Err(what) => panic!(
                "seed {seed}: {what}\nreplay it with\n  FEEDLINE_SEED={seed} FEEDLINE_SEEDS=1 \
                 FEEDLINE_TRACE=1 cargo test -p feedline-dispatcher --test simulation seeds -- \
                 --nocapture --test-threads=1"
            ),
        }
    }
    println!("{sum:?}");
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

#[test]
fn seeds_of_part_4_keep_every_step_exactly_once() {
    run_seeds(4);
}

#[test]
fn seeds_of_part_5_keep_every_step_exactly_once() {
    run_seeds(5);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 1..=500 {
        assert_eq!(run(seed, false), run(seed, false), "seed {seed}");
    }
}
