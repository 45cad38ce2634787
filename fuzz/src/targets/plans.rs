//! Pipelines as text and as JSON.

use crate::runner::{came_to, ended};
use feedline_ops::{Builtin, Pipeline};
use feedline_plan::Plan;
use feedline_testkit::plans_in;
use std::path::Path;

/// A plan, in either form, read, printed and checked.
pub fn plan(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Some(plan) = ended(Plan::read(text)) else { return };
    for form in [plan.to_string(), plan.to_json(), plan.to_pretty_json()] {
        let again = Plan::read(&form).unwrap_or_else(|error| panic!("{form}: {error}"));
        assert_eq!(again, plan, "{form}");
    }
    let Some((checked, _)) = ended(Pipeline::check(&plan, None)) else { return };
    came_to("it is right");
    let canonical = checked.canonical(&Builtin).expect("a plan that was right stays right");
    assert_eq!(canonical, checked);
    assert_eq!(canonical.fingerprint(), checked.fingerprint());
}

/// The plans of all scripts, as text and as JSON.
pub fn plan_corpus() -> Vec<Vec<u8>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/feedline-ops/tests/pipelines");
    let mut corpus = Vec::new();
    for text in plans_in(Path::new(folder)) {
        if let Ok(plan) = text.parse::<Plan>() {
            corpus.push(plan.to_json().into_bytes());
        }
        corpus.push(text.into_bytes());
    }
    corpus
}
