//! The targets under libFuzzer; `FEEDLINE_FUZZ` names the one that runs.
#![no_main]

use feedline_fuzz::{TARGETS, Target};
use std::sync::LazyLock;

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("FEEDLINE_FUZZ").unwrap_or_default();
    let found = TARGETS.iter().find(|target| target.name == name);
    found.unwrap_or_else(|| panic!("FEEDLINE_FUZZ names no target: {name:?}"))
});

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if input.len() <= TARGET.longest {
        (TARGET.run)(input);
    }
});
