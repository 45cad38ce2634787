//! `feedline peek`: what comes out of a pipeline, to look at.
//!
//! ```text
//!  batches ──► rows ──┬──► a line each: values, or shape, range and mean
//!                     └──► tiles ──► contact sheet (PNG)
//! ```

mod sheet;

use crate::Usage;
use crate::input::{PlanArg, RunArgs};
use crate::output::{Output, Table, bytes, number, shorten};
use anyhow::{Context, Result, bail};
use feedline_core::{Batch, Buffer, DType, Layout, Position, Tensor};
use feedline_engine::{Next, Options, Run};
use feedline_ops::Pipeline;
use half::{bf16, f16};
use serde::Serialize;
use serde_json::{Map, Value, json};
use sheet::{Sheet, tile};
use std::path::{Path, PathBuf};

/// Options of `peek`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    plan: PlanArg,
    /// How many samples to show
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u16).range(1..=4096))]
    samples: u16,
    /// Where to write the contact sheet
    #[arg(long, value_name = "FILE", default_value = "peek.png")]
    out: PathBuf,
    /// Which epoch to look into
    #[arg(long, value_name = "N", default_value_t = 0)]
    epoch: u32,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Serialize)]
struct Report {
    plan: String,
    epoch: u64,
    samples: Vec<Shown>,
    contact_sheet: Option<SheetReport>,
}

#[derive(Serialize)]
struct SheetReport {
    file: PathBuf,
    width: u32,
    height: u32,
    images: usize,
}

#[derive(Serialize)]
struct Shown {
    index: u64,
    origin: String,
    fields: Map<String, Value>,
    #[serde(skip)]
    cells: Vec<String>,
}

pub(crate) fn run(args: &Args, output: &Output) -> Result<()> {
    let epoch = u64::from(args.epoch);
    let options = Options { with_index: true, ..args.run.options(Some(epoch + 1))? };
    let opened = args.plan.open()?;
    let pipeline = opened.pipeline;
    if pipeline.sample.fields.iter().any(|field| field.layout.is_some()) {
        keep_out(&args.out, &pipeline)?;
    }
    let mut run = Run::start(pipeline.clone(), opened.store, Position::epoch(epoch), options)?;
    let wanted = usize::from(args.samples);
    let (mut samples, mut tiles, mut odd) = (Vec::new(), Vec::new(), None);
    while samples.len() < wanted
        && let Next::Batch(batch) = run.next()?
    {
        for row in 0..batch.rows.min(wanted - samples.len()) {
            let index = batch.indices.as_ref().and_then(|indices| indices.get(row).copied());
            let index = index.unwrap_or(samples.len() as u64);
            let (mut fields, mut cells) = (Map::new(), Vec::new());
            for (name, tensor) in row_of(&batch, row, pipeline.batch.is_some()) {
                let (value, cell) = describe(&pipeline, name, &tensor);
                fields.insert(name.to_owned(), value);
                cells.push(cell);
                if let Some(layout) = layout(&pipeline, name) {
                    match tile(&tensor, layout) {
                        Some(tile) => tiles.push(tile),
                        None => odd = Some(format!("{name} {tensor:?}")),
                    }
                }
            }
            let origin = pipeline.source.origin(index);
            samples.push(Shown { index, origin, fields, cells });
        }
    }
    drop(run);
    if samples.is_empty() {
        bail!("epoch {} of this pipeline delivers nothing on this rank", args.epoch);
    }
    let contact_sheet = if tiles.is_empty() {
        None
    } else {
        let sheet = Sheet::of(&tiles);
        let (width, height) = sheet.size();
        sheet.save(&args.out).with_context(|| args.out.display().to_string())?;
        Some(SheetReport { file: args.out.clone(), width, height, images: tiles.len() })
    };
    let plan = pipeline.plan.to_string();
    let report = Report { plan, epoch, samples, contact_sheet };
    if output.json {
        return output.document(&report);
    }
    output.text(&render(&report, &pipeline, odd, output))
}

/// Refuses to put the sheet among the images of the pipeline, of which it would become one.
fn keep_out(out: &Path, pipeline: &Pipeline) -> Result<()> {
    let source = pipeline.plan.calls().first();
    let Some(path) = source.and_then(|call| call.args.get("path")?.as_str()) else { return Ok(()) };
    let parent = out.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = std::fs::canonicalize(parent.unwrap_or(Path::new(".")));
    if let (Ok(parent), Ok(data)) = (parent, std::fs::canonicalize(path))
        && parent.starts_with(&data)
    {
        bail!(Usage(format!(
            "{} would lie among the images of {path} and become one of them; choose another place with --out",
            out.display()
        )));
    }
    Ok(())
}

fn render(report: &Report, pipeline: &Pipeline, odd: Option<String>, output: &Output) -> String {
    let fields: Vec<String> = pipeline.sample.fields.iter().map(ToString::to_string).collect();
    let mut headings = vec![">#", ">index", "from"];
    headings.extend(fields.iter().map(String::as_str));
    let mut table = Table::new(&headings);
    let start = common_start(&report.samples);
    for (at, sample) in report.samples.iter().enumerate() {
        let from = shorten(&sample.origin[start..], 40);
        let mut cells = vec![at.to_string(), sample.index.to_string(), from];
        cells.extend(sample.cells.iter().take(fields.len()).cloned());
        table.row(cells);
    }
    let mut text = format!("{}\n\n", output.paint.accent(&report.plan));
    text += &table.render(output.paint);
    text += &match (&report.contact_sheet, odd) {
        (Some(SheetReport { file, width, height, images }), _) => format!(
            "\n  {} {} ({images} images, {width}×{height})\n",
            output.paint.dim("contact sheet"),
            output.paint.bold(&file.display().to_string())
        ),
        (None, Some(odd)) => {
            format!("\n  no contact sheet: {odd} cannot be drawn; images have 1 or 3 channels\n")
        }
        (None, None) => {
            let encoded = pipeline.sample.fields.iter().any(|field| field.dtype == DType::Bytes);
            let hint =
                if encoded { "; if there are images in these bytes, add decode" } else { "" };
            format!("\n  no contact sheet: there is no image here{hint}\n")
        }
    };
    text
}

/// Bytes of the folder that all origins share.
fn common_start(samples: &[Shown]) -> usize {
    let Some(first) = samples.first().map(|sample| &sample.origin) else { return 0 };
    let end = first.rfind('/').map_or(0, |slash| slash + 1);
    let mut start = end;
    while start > 0 && !samples.iter().all(|sample| sample.origin.starts_with(&first[..start])) {
        start = first[..start - 1].rfind('/').map_or(0, |slash| slash + 1);
    }
    start
}

/// The fields of one row of a batch.
fn row_of(batch: &Batch, row: usize, batched: bool) -> Vec<(&'static str, Tensor)> {
    let take = |tensor: &Tensor| match (batched, tensor.dtype()) {
        (false, _) => tensor.clone(),
        (true, dtype) if dtype.size().is_some() => tensor.row(row),
        (true, dtype) => {
            let item = tensor.item(row).unwrap_or_default();
            match std::str::from_utf8(item) {
                Ok(text) if dtype == DType::Text => Tensor::text(text),
                _ => Tensor::bytes(Buffer::from(item)),
            }
        }
    };
    batch.fields.iter().map(|(name, tensor)| (name.as_str(), take(tensor))).collect()
}

fn layout(pipeline: &Pipeline, field: &str) -> Option<Layout> {
    pipeline.sample.field(field).and_then(|field| field.layout)
}

/// Longest text that is shown of a value.
const LONGEST: usize = 40;

/// What is to be said of one value: for programs, and for people.
fn describe(pipeline: &Pipeline, field: &str, tensor: &Tensor) -> (Value, String) {
    let dtype = tensor.dtype();
    let mut value = json!({ "dtype": dtype, "shape": tensor.shape() });
    let data = tensor.data();
    if dtype == DType::Text && tensor.shape().is_empty() {
        let text = String::from_utf8_lossy(data);
        value["text"] = json!(shorten(&text, 1000));
        return (value, format!("{:?}", shorten(&text, LONGEST)));
    }
    if dtype.size().is_none() {
        value["bytes"] = json!(data.len());
        let start: Vec<String> = data.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        return (value, format!("{} ({} …)", bytes(data.len() as f64), start.join(" ")));
    }
    if tensor.elements() == 1 {
        let exact = exact(tensor);
        let mut cell = exact.to_string();
        value["value"] = exact.clone();
        let class = pipeline
            .source
            .classes()
            .filter(|_| field == "label")
            .and_then(|classes| classes.get(usize::try_from(exact.as_u64()?).ok()?));
        if let Some(class) = class {
            value["class"] = json!(class);
            cell += &format!(" {}", shorten(class, LONGEST));
        }
        return (value, cell);
    }
    let numbers = numbers(tensor);
    let sides: Vec<String> = tensor.shape().iter().map(ToString::to_string).collect();
    let sides = sides.join("×");
    if numbers.is_empty() {
        return (value, format!("{sides}  empty"));
    }
    let (low, high) = range(&numbers);
    let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
    (value["min"], value["max"], value["mean"]) = (json!(low), json!(high), json!(mean));
    let whole = !dtype.is_float();
    let brief = |value: f64| if whole { format!("{value}") } else { number(value) };
    if numbers.len() <= 6 {
        let numbers: Vec<String> = numbers.iter().map(|value| brief(*value)).collect();
        return (value, format!("[{}]", numbers.join(", ")));
    }
    let cell = format!("{sides}  {} … {}  mean {}", brief(low), brief(high), number(mean));
    (value, cell)
}

/// The one number of a tensor, not rounded.
fn exact(tensor: &Tensor) -> Value {
    let number = numbers(tensor).first().copied().unwrap_or(f64::NAN);
    match tensor.dtype() {
        DType::Bool => json!(number != 0.0),
        DType::I64 => tensor.value::<i64>().map_or(Value::Null, |value| json!(value)),
        DType::U64 => tensor.value::<u64>().map_or(Value::Null, |value| json!(value)),
        DType::F32 => tensor.value::<f32>().map_or(Value::Null, |value| json!(value)),
        dtype if dtype.is_integer() => json!(number as i64),
        _ => json!(number),
    }
}

/// The least and the greatest finite value.
fn range(numbers: &[f64]) -> (f64, f64) {
    let finite = numbers.iter().copied().filter(|value| value.is_finite());
    let (low, high) =
        finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
    if low > high { (f64::NAN, f64::NAN) } else { (low, high) }
}

/// The numbers of a tensor, whatever their type and alignment.
fn numbers(tensor: &Tensor) -> Vec<f64> {
    fn each<const N: usize>(data: &[u8], read: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        data.as_chunks::<N>().0.iter().map(|bytes| read(*bytes)).collect()
    }
    let data = tensor.data();
    match tensor.dtype() {
        DType::Bool | DType::U8 => each(data, |[byte]| f64::from(byte)),
        DType::I8 => each(data, |bytes| f64::from(i8::from_ne_bytes(bytes))),
        DType::U16 => each(data, |bytes| f64::from(u16::from_ne_bytes(bytes))),
        DType::I16 => each(data, |bytes| f64::from(i16::from_ne_bytes(bytes))),
        DType::U32 => each(data, |bytes| f64::from(u32::from_ne_bytes(bytes))),
        DType::I32 => each(data, |bytes| f64::from(i32::from_ne_bytes(bytes))),
        DType::U64 => each(data, |bytes| u64::from_ne_bytes(bytes) as f64),
        DType::I64 => each(data, |bytes| i64::from_ne_bytes(bytes) as f64),
        DType::F16 => each(data, |bytes| f16::from_ne_bytes(bytes).to_f64()),
        DType::BF16 => each(data, |bytes| bf16::from_ne_bytes(bytes).to_f64()),
        DType::F32 => each(data, |bytes| f64::from(f32::from_ne_bytes(bytes))),
        DType::F64 => each(data, f64::from_ne_bytes),
        DType::Bytes | DType::Text => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_whatever_their_type() {
        assert_eq!(numbers(&Tensor::from_slice(&[2], &[-3i16, 7])), [-3.0, 7.0]);
        assert_eq!(numbers(&Tensor::from_slice(&[1], &[f16::from_f32(1.5)])), [1.5]);
        assert_eq!(exact(&Tensor::scalar(u64::MAX)), json!(u64::MAX));
        assert_eq!(range(&[f64::NAN, 2.0, f64::INFINITY, -1.0]), (-1.0, 2.0));
    }

    #[test]
    fn origins_are_shown_without_the_folder_they_share() {
        let sample = |origin: &str| Shown {
            index: 0,
            origin: origin.into(),
            fields: Map::new(),
            cells: Vec::new(),
        };
        assert_eq!(
            common_start(&[sample("/data/a/1.jpg"), sample("/data/b/2.jpg")]),
            "/data/".len()
        );
        assert_eq!(common_start(&[sample("/data/a/1.jpg")]), "/data/a/".len());
        assert_eq!(common_start(&[sample("range[1]"), sample("range[2]")]), 0);
    }
}
