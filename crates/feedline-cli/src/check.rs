//! `feedline check`: is this pipeline right? Its data is not touched.

use crate::input::PlanArg;
use crate::output::Output;
use anyhow::Result;
use feedline_core::{DType, Field, Layout};
use feedline_ops::Pipeline;
use serde::Serialize;

/// Options of `check`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    plan: PlanArg,
}

#[derive(Serialize)]
struct Report {
    plan: String,
    fingerprint: String,
    output: Vec<FieldReport>,
}

/// A field of what is delivered; a side of unknown length is null.
#[derive(Serialize)]
struct FieldReport {
    name: &'static str,
    dtype: DType,
    shape: Vec<Option<usize>>,
    layout: Option<Layout>,
}

pub(crate) fn run(args: &Args, output: &Output) -> Result<()> {
    let store = feedline_store::machine_store()?;
    let (plan, spec) = Pipeline::check(&args.plan.read()?.plan, Some(&*store))?;
    let fingerprint = plan.fingerprint().to_string();
    if output.json {
        let field = |field: &Field| {
            let Field { name, dtype, shape, layout } = field.clone();
            FieldReport { name: name.as_str(), dtype, shape, layout }
        };
        let output_fields = spec.fields.iter().map(field).collect();
        return output.document(&Report {
            plan: plan.to_string(),
            fingerprint,
            output: output_fields,
        });
    }
    let paint = output.paint;
    let mut text = format!(
        "{}\n\n  {} {fingerprint}\n",
        paint.accent(&plan.to_string()),
        paint.dim("fingerprint")
    );
    for (at, field) in spec.fields.iter().enumerate() {
        let heading = if at == 0 { "delivers   " } else { "           " };
        text += &format!("  {} {field}\n", paint.dim(heading));
    }
    output.text(&text)
}
