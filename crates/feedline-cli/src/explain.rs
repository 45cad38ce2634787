//! `feedline explain`: says what a run will do.

use crate::input::{PlanArg, RunArgs};
use crate::output::Output;
use anyhow::Result;

/// Options of `explain`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    plan: PlanArg,
    #[command(flatten)]
    run: RunArgs,
}

pub(crate) fn run(args: &Args, output: &Output) -> Result<()> {
    let options = args.run.options(None)?;
    let opened = args.plan.open()?;
    let explanation = feedline_engine::explain(&opened.pipeline, &options);
    if output.json {
        return output.document(&explanation);
    }
    output.text(&explanation.to_string())
}
