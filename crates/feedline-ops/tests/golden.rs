//! What torchvision makes of small images, against what our steps make of them.
//!
//! The values and their format are described in `golden/README.md`. Every kind of case states how
//! far it may be off, and prints how far it is.

#![expect(clippy::unwrap_used, reason = "in a test, unwrap says that the test ends otherwise")]

use feedline_core::{DType, Store, Tensor};
use feedline_ops::Pipeline;
use feedline_ops::kernel::{
    Filter, Level, Order, Pixels, Rect, Resize, Scratch, Target, Tone, resize_into,
};
use feedline_ops::plain::Part;
use feedline_store::LocalStore;
use feedline_testkit::{Fixtures, engine_epoch, open, plain_epoch};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

struct Golden {
    cases: Value,
    values: Vec<u8>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

impl Golden {
    fn read() -> Self {
        let cases = std::fs::read(folder().join("cases.json")).unwrap();
        let cases = serde_json::from_slice(&cases).unwrap();
        Self { cases, values: std::fs::read(folder().join("values.bin")).unwrap() }
    }

    fn array(&self, name: &str) -> Tensor {
        let array = &self.cases["arrays"][name];
        let shape = sizes(&array["shape"]);
        let dtype = match array["dtype"].as_str().unwrap() {
            "u8" => DType::U8,
            "u16" => DType::U16,
            "f16" => DType::F16,
            "f32" => DType::F32,
            other => panic!("{name}: dtype {other}"),
        };
        let bytes = shape.iter().product::<usize>() * dtype.size().unwrap();
        let start = array["offset"].as_u64().unwrap() as usize;
        Tensor::new(dtype, &shape, self.values[start..start + bytes].into()).unwrap()
    }

    fn cases(&self, op: &str) -> Vec<&Value> {
        let cases = self.cases["cases"].as_array().unwrap();
        let found: Vec<&Value> = cases.iter().filter(|case| case["op"] == op).collect();
        assert!(!found.is_empty(), "no case of {op}");
        found
    }
}

fn sizes(value: &Value) -> Vec<usize> {
    let list = value.as_array().unwrap_or_else(|| panic!("{value} is no list"));
    list.iter().map(|side| side.as_u64().unwrap() as usize).collect()
}

/// Runs steps on one image `count` times over, on the engine and plainly.
fn run(image: &Tensor, steps: &str, count: usize) -> Vec<Tensor> {
    let mut fixtures = Fixtures::new();
    let mut shape = vec![1];
    shape.extend(image.shape());
    let image = image.clone().reinterpret(DType::U8, &shape).unwrap();
    let field = fixtures.field("image", image, Some("HWC"));
    let plan = format!("arrays fields=[{field}] | repeat count={count} | {steps}");
    let pipeline = open(&plan, &fixtures).unwrap_or_else(|error| panic!("{steps}: {error}"));
    outcome(&pipeline, steps)
}

fn outcome(pipeline: &Arc<Pipeline>, what: &str) -> Vec<Tensor> {
    let store: Arc<dyn Store> = Arc::new(LocalStore);
    let plain = plain_epoch(pipeline, &store, Part::default(), usize::MAX);
    let options = feedline_engine::Options { epochs: Some(1), ..Default::default() };
    let engine = engine_epoch(pipeline, &store, Default::default(), options, usize::MAX);
    assert!(plain == engine, "{what}: engine and plain run differ");
    assert_eq!(plain.error, None, "{what}");
    plain.batches.into_iter().map(|batch| batch.fields[0].1.clone()).collect()
}

fn floats(tensor: &Tensor) -> Vec<f64> {
    let data = tensor.data();
    match tensor.dtype() {
        DType::U8 => data.iter().map(|value| f64::from(*value)).collect(),
        DType::F16 => data
            .chunks_exact(2)
            .map(|bytes| half::f16::from_ne_bytes(bytes.try_into().unwrap()).to_f64())
            .collect(),
        DType::F32 => data
            .chunks_exact(4)
            .map(|bytes| f64::from(f32::from_ne_bytes(bytes.try_into().unwrap())))
            .collect(),
        other => panic!("{other}"),
    }
}

/// The greatest difference of two tensors of one shape, and how many values differ at all.
fn difference(found: &Tensor, wanted: &Tensor, name: &str) -> (f64, usize) {
    assert_eq!(found.shape(), wanted.shape(), "{name}: shape");
    assert_eq!(found.dtype(), wanted.dtype(), "{name}: dtype");
    let differences = floats(found).into_iter().zip(floats(wanted)).map(|(a, b)| (a - b).abs());
    differences
        .fold((0.0, 0), |(worst, count), by| (f64::max(worst, by), count + usize::from(by != 0.0)))
}

/// How far the cases of each kind are off.
#[derive(Default)]
struct Report(BTreeMap<String, (f64, usize, usize, String)>);

impl Report {
    /// Notes a case, and fails if it is further off than `allowed`.
    fn note(&mut self, kind: &str, name: &str, found: &Tensor, wanted: &Tensor, allowed: f64) {
        let (worst, count) = difference(found, wanted, name);
        let row = self.0.entry(kind.to_owned()).or_default();
        row.1 += 1;
        row.2 += usize::from(count > 0);
        if worst > row.0 {
            (row.0, row.3) = (worst, name.to_owned());
        }
        assert!(
            worst <= allowed,
            "{kind} {name}: off by {worst}, {count} values; allowed {allowed}"
        );
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        for (kind, (worst, cases, inexact, name)) in &self.0 {
            println!("{kind}: {cases} cases, {inexact} not exact, worst {worst} {name}");
        }
    }
}

fn filter(parameters: &Value) -> Option<&'static str> {
    match parameters["interpolation"].as_str()? {
        "nearest" => Some("nearest"),
        "bilinear" => Some("bilinear"),
        "bicubic" => Some("bicubic"),
        _ => None,
    }
}

#[test]
fn resizing_equals_torchvision() {
    let (golden, mut report) = (Golden::read(), Report::default());
    for case in golden.cases("resize") {
        let parameters = &case["parameters"];
        // Pixel centres exactly: not offered.
        let Some(filter) = filter(parameters) else { continue };
        let (size, antialias) = (&parameters["size"], &parameters["antialias"]);
        let longest = match &parameters["max_size"] {
            Value::Null => String::new(),
            longest => format!(" max_size={longest}"),
        };
        if size.is_null() {
            continue;
        }
        // A list of one number is the shorter side.
        let size = match size.as_array().map(Vec::as_slice) {
            Some([side]) => side,
            _ => size,
        };
        let steps =
            format!("resize size={size} interpolation={filter} antialias={antialias}{longest}");
        let found = run(&golden.array(case["input"].as_str().unwrap()), &steps, 1);
        let (name, wanted) = (case["name"].as_str().unwrap(), case["output"].as_str().unwrap());
        let kind = format!("resize {filter} antialias={antialias}");
        report.note(&kind, name, &found[0], &golden.array(wanted), 0.0);
    }
}

/// A part of an image, resized by the kernel at one level.
fn resized(
    image: &Tensor,
    part: &[usize],
    size: &[usize],
    filter: Filter,
    antialias: bool,
    level: Level,
) -> Tensor {
    let &[height, width, channels] = image.shape() else { panic!("{image:?}") };
    let region = Rect { x: part[1], y: part[0], width: part[3], height: part[2] };
    let resize = Resize { height: size[0], width: size[1], filter, antialias };
    let mut out = vec![0; size[0] * size[1] * channels];
    let target = Target {
        out: &mut out,
        order: Order::Hwc,
        tone: Tone::Identity,
        flip_horizontal: false,
        flip_vertical: false,
    };
    let pixels = Pixels::packed(image.data(), width, height, channels);
    let window = Rect::whole(size[1], size[0]);
    resize_into(level, pixels, region, &resize, window, target, &mut Scratch::default());
    Tensor::new(DType::U8, &[size[0], size[1], channels], out[..].into()).unwrap()
}

#[test]
fn crops_that_are_resized_equal_torchvision_at_every_level() {
    let (golden, mut report) = (Golden::read(), Report::default());
    for case in golden.cases("resized_crop") {
        let parameters = &case["parameters"];
        let kind = match filter(parameters) {
            Some("nearest") => Filter::Nearest,
            Some("bilinear") => Filter::Bilinear,
            Some("bicubic") => Filter::Bicubic,
            _ => continue,
        };
        let image = golden.array(case["input"].as_str().unwrap());
        let (part, size) = (sizes(&parameters["box"]), sizes(&parameters["size"]));
        let antialias = parameters["antialias"].as_bool().unwrap_or(false);
        let wanted = golden.array(case["output"].as_str().unwrap());
        for &level in Level::available() {
            let found = resized(&image, &part, &size, kind, antialias, level);
            let name = case["name"].as_str().unwrap();
            report.note(&format!("resized_crop {kind:?} {level:?}"), name, &found, &wanted, 0.0);
        }
    }
}

#[test]
fn crops_flips_and_colours_equal_torchvision() {
    let (golden, mut report) = (Golden::read(), Report::default());
    let mut check = |op: &str, allowed: f64, steps: &dyn Fn(&Value) -> String| {
        for case in golden.cases(op) {
            let steps = steps(&case["parameters"]);
            // Colours of grey images are not changed: color_jitter refuses them.
            if case["input"] == "grey" && op.starts_with("adjust") {
                continue;
            }
            let found = run(&golden.array(case["input"].as_str().unwrap()), &steps, 1);
            let wanted = golden.array(case["output"].as_str().unwrap());
            report.note(op, case["name"].as_str().unwrap(), &found[0], &wanted, allowed);
        }
    };
    check("center_crop", 0.0, &|p| match sizes(&p["size"])[..] {
        [side] => format!("center_crop size={side}"),
        _ => format!("center_crop size={}", p["size"]),
    });
    check("horizontal_flip", 0.0, &|_| "flip_horizontal p=1".into());
    check("vertical_flip", 0.0, &|_| "flip_vertical p=1".into());
    for what in ["brightness", "contrast", "saturation", "hue"] {
        check(&format!("adjust_{what}"), 1.0, &|p| {
            format!("color_jitter {what}=[{0},{0}]", p["factor"])
        });
    }
    check("rgb_to_grayscale", 0.0, &|p| format!("grayscale channels={}", p["channels"]));
}

#[test]
fn every_crop_of_a_padded_image_is_among_ours() {
    let golden = Golden::read();
    for case in golden.cases("crop") {
        let p = &case["parameters"];
        // A colour to fill with is not offered, only one value; nor is a box outside the image.
        if p["fill"].is_array() || case["name"].as_str().unwrap().starts_with("crop-outside") {
            continue;
        }
        let part = sizes(&p["box"]);
        let border = if p["pad_if_needed"].is_null() {
            format!("padding={}", p["padding"])
        } else {
            "pad_if_needed=true".to_owned()
        };
        let mode = p["padding_mode"].as_str().unwrap();
        let size = format!("[{},{}]", part[2], part[3]);
        let steps = format!(
            "random_crop size={size} {border} padding_mode={mode} fill={}",
            p["fill"].as_u64().unwrap_or(0)
        );
        let found = run(&golden.array(case["input"].as_str().unwrap()), &steps, 800);
        let wanted = golden.array(case["output"].as_str().unwrap());
        assert!(found.contains(&wanted), "{}: never drawn", case["name"]);
    }
}

#[test]
fn types_and_normalisation_equal_torchvision() {
    let (golden, mut report) = (Golden::read(), Report::default());
    for case in golden.cases("to_dtype") {
        let p = &case["parameters"];
        let steps = format!("cast dtype={} scale={}", p["dtype"].as_str().unwrap(), p["scale"]);
        let found = run(&golden.array(case["input"].as_str().unwrap()), &steps, 1);
        let wanted = golden.array(case["output"].as_str().unwrap());
        let allowed = if p["dtype"] == "float16" { 5e-4 } else { 1.2e-7 };
        report.note("to_dtype", case["name"].as_str().unwrap(), &found[0], &wanted, allowed);
    }
    for op in ["to_dtype_normalize", "to_dtype_normalize_to_dtype"] {
        for case in golden.cases(op) {
            let p = &case["parameters"];
            let half = p["dtype"] == "float16";
            let cast = if half { " | cast dtype=float16" } else { "" };
            let steps = format!("normalize mean={} std={}{cast}", p["mean"], p["std"]);
            let found = run(&golden.array(case["input"].as_str().unwrap()), &steps, 1);
            let wanted = golden.array(case["output"].as_str().unwrap());
            // Normalised in half precision, torchvision rounds three times; we round once.
            let allowed = match (half, op) {
                (false, _) => 1e-6,
                (true, "to_dtype_normalize") => 8e-3,
                (true, _) => 2e-3,
            };
            let kind = format!("{op} {}", p["dtype"]);
            report.note(&kind, case["name"].as_str().unwrap(), &found[0], &wanted, allowed);
        }
    }
}

#[test]
fn the_usual_training_steps_in_one_pass_equal_torchvision() {
    let (golden, mut report) = (Golden::read(), Report::default());
    for case in golden.cases("train") {
        let p = &case["parameters"];
        let image = golden.array(case["input"].as_str().unwrap());
        let (part, size) = (sizes(&p["box"]), sizes(&p["size"]));
        let list = |name: &str| -> Vec<f64> {
            p[name].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
        };
        let (mean, std) = (list("mean"), list("std"));
        let tone = Tone::Affine {
            scale: std::array::from_fn(|at| (1.0 / (255.0 * std[at])) as f32),
            bias: std::array::from_fn(|at| (-mean[at] / std[at]) as f32),
        };
        let resize =
            Resize { height: size[0], width: size[1], filter: Filter::Bilinear, antialias: true };
        for &level in Level::available() {
            let mut out = vec![0; size[0] * size[1] * 3 * 4];
            let target = Target {
                out: &mut out,
                order: Order::Hwc,
                tone,
                flip_horizontal: p["mirrored"].as_bool().unwrap(),
                flip_vertical: false,
            };
            let pixels = Pixels::packed(image.data(), image.shape()[1], image.shape()[0], 3);
            let region = Rect { x: part[1], y: part[0], width: part[3], height: part[2] };
            let window = Rect::whole(size[1], size[0]);
            resize_into(level, pixels, region, &resize, window, target, &mut Scratch::default());
            let found = Tensor::new(DType::F32, &[size[0], size[1], 3], out[..].into()).unwrap();
            let wanted = golden.array(case["output"].as_str().unwrap());
            let name = case["name"].as_str().unwrap();
            report.note(&format!("train {level:?}"), name, &found, &wanted, 1e-6);
        }
    }
}

/// Decodes files through the pipeline.
fn decode(files: &[&str], settings: &str) -> Vec<Tensor> {
    let fixtures = Fixtures::new();
    let lines: Vec<String> = files
        .iter()
        .map(|file| folder().join("files").join(file).to_str().unwrap().to_owned())
        .collect();
    let list = fixtures.write("golden.csv", lines.join("\n").as_bytes());
    let plan = format!("files list={} | decode {settings}", list.display());
    outcome(&open(&plan, &fixtures).unwrap(), settings)
}

/// The first frame, where there are several.
fn first_frame(tensor: Tensor) -> Tensor {
    if tensor.shape().len() == 4 { tensor.row(0) } else { tensor }
}

#[test]
fn files_decode_as_torchvision_decodes_them() {
    let (golden, mut report) = (Golden::read(), Report::default());
    let rows = golden.cases["decode"].as_array().unwrap();
    for (settings, keys) in [
        ("exif=false", ["rgb_u8", "rgb"]),
        ("exif=false mode=gray", ["gray_u8", "gray"]),
        ("exif=true", ["rgb_upright", "rgb_upright"]),
    ] {
        let wanted: Vec<(&str, Tensor)> = rows
            .iter()
            .filter_map(|row| {
                let key = keys.iter().find_map(|key| row[*key].as_str())?;
                Some((row["file"].as_str()?, first_frame(golden.array(key))))
            })
            .collect();
        let files: Vec<&str> = wanted.iter().map(|row| row.0).collect();
        for ((file, wanted), found) in wanted.iter().zip(decode(&files, settings)) {
            let format = file.split('-').next().unwrap();
            let kind = format!("decode {format} {settings}");
            // Colour is exact. Transparent pixels of a GIF keep the colour of their palette here, where
            // torchvision paints the background; grey is rounded where torchvision or Pillow cuts off.
            let allowed = match (format, settings) {
                ("gif", "exif=false") if file.contains("transparent") => 71.0,
                ("jpeg", _) | (_, "exif=false" | "exif=true") => 0.0,
                _ => 1.0,
            };
            report.note(&kind, file, &found, wanted, allowed);
        }
    }
}

#[test]
fn a_truncated_file_is_refused_as_torchvision_refuses_it() {
    let golden = Golden::read();
    for row in golden.cases["decode"].as_array().unwrap() {
        if row["error"].is_null() {
            continue;
        }
        let fixtures = Fixtures::new();
        let file = folder().join("files").join(row["file"].as_str().unwrap());
        let list = fixtures.write("golden.csv", file.to_str().unwrap().as_bytes());
        let pipeline = open(&format!("files list={} | decode", list.display()), &fixtures).unwrap();
        let store: Arc<dyn Store> = Arc::new(LocalStore);
        let plain = plain_epoch(&pipeline, &store, Part::default(), usize::MAX);
        assert!(plain.error.is_some(), "{}", row["file"]);
    }
}

#[test]
fn the_shorter_side_is_computed_as_torchvision_computes_it() {
    let golden = Golden::read();
    for row in golden.cases["sizes"].as_array().unwrap() {
        // The longer side alone is not offered.
        if row["size"].is_null() {
            continue;
        }
        let input = sizes(&row["input"]);
        let longest = match &row["max_size"] {
            Value::Null => String::new(),
            longest => format!(" max_size={longest}"),
        };
        let image = format!(
            r#"{{"name":"image","blob":"0","dtype":"uint8","shape":[1,{},{},3],"layout":"HWC"}}"#,
            input[0], input[1]
        );
        let plan = format!("arrays fields=[{image}] | resize size={}{longest}", row["size"]);
        let found = Pipeline::check(&plan.parse().unwrap(), None).map(|(_, spec)| {
            let size = spec.fields[0].image_size().unwrap();
            [size[0].unwrap(), size[1].unwrap()]
        });
        match row["output"].as_array() {
            Some(_) => assert_eq!(found.unwrap().to_vec(), sizes(&row["output"]), "{row}"),
            None => assert!(found.is_err(), "{row}: {found:?}"),
        }
    }
}

#[test]
fn boxes_of_random_crops_are_computed_as_torchvision_computes_them() {
    let golden = Golden::read();
    for row in golden.cases["boxes"].as_array().unwrap() {
        let input = sizes(&row["input"]);
        let (height, width) = (input[0], input[1]);
        // Every pixel tells where it comes from.
        let pixels: Vec<u8> = (0..height)
            .flat_map(|y| {
                (0..width).flat_map(move |x| [x as u8, y as u8, (x / 256 * 16 + y / 256) as u8])
            })
            .collect();
        let image = Tensor::from_slice(&[height, width, 3], &pixels);
        let (steps, part) = if row["fallback"].is_null() {
            let size = sizes(&row["size"]);
            let (area, ratio) = (&row["area"], &row["ratio"]);
            (
                format!("scale=[{area},{area}] ratio=[{ratio},{ratio}]"),
                [usize::MAX, 0, size[0], size[1]],
            )
        } else {
            let part = sizes(&row["fallback"]);
            // A hundred times the image never fits.
            let ratios = &row["ratios"];
            (format!("scale=[100,100] ratio={ratios}"), [part[0], part[1], part[2], part[3]])
        };
        let [top, left, box_height, box_width] = part;
        if box_height == 0 || box_width == 0 || box_height > height || box_width > width {
            continue;
        }
        let steps = format!("random_resized_crop size=[{box_height},{box_width}] {steps}");
        let found = &run(&image, &steps, 1)[0];
        let first = found.data();
        let (x, y) = (
            usize::from(first[0]) + usize::from(first[2] / 16) * 256,
            usize::from(first[1]) + usize::from(first[2] % 16) * 256,
        );
        if top != usize::MAX {
            assert_eq!((y, x), (top, left), "{row}");
        }
        // Of the right size nothing is resized, so the box is there pixel for pixel.
        for (at, row_found) in first.chunks_exact(box_width * 3).enumerate() {
            let start = ((y + at) * width + x) * 3;
            assert!(row_found == &pixels[start..start + box_width * 3], "{row}: another size");
        }
    }
}
