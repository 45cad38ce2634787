//! What happens to samples that cannot be read or decoded.

use crate::Step;
use crate::registry::IntoStep;
use feedline_core::Policy;
use feedline_plan::Recipe;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Says what happens to a bad sample. Without this step the run ends with its error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, try_from = "Given")]
pub struct OnError {
    /// `raise`, or `skip`.
    pub policy: Choice,
    /// So many may be skipped in an epoch; more end the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// This share of the epoch may be skipped (0 to 1); more ends the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// Quarantine: a file to which index, origin and reason of each are appended, one JSON object a
    /// line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
}

/// The arguments as they are given.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    policy: Choice,
    count: Option<u64>,
    share: Option<f64>,
    file: Option<PathBuf>,
}

impl TryFrom<Given> for OnError {
    type Error = String;

    fn try_from(given: Given) -> Result<Self, String> {
        let Given { policy, count, share, file } = given;
        if policy == Choice::Raise && (count.is_some() || share.is_some() || file.is_some()) {
            return Err("count, share and file go with policy=skip".into());
        }
        if share.is_some_and(|share| !(0.0..=1.0).contains(&share)) {
            return Err(format!("share={} is not between 0 and 1", share.unwrap_or(0.0)));
        }
        Ok(Self { policy, count, share, file })
    }
}

/// The choices there are.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Choice {
    /// End the run with the error.
    Raise,
    /// Leave the sample out.
    Skip,
}

impl Recipe for OnError {
    const NAME: &'static str = "on_error";
}

impl IntoStep for OnError {
    fn into_step(self) -> Step {
        let Self { policy, count, share, file } = self;
        Step::Policy(match policy {
            Choice::Raise => Policy::Raise,
            Choice::Skip => Policy::Skip { count, share, file },
        })
    }
}
