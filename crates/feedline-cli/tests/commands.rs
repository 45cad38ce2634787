//! Runs the `feedline` command as a shell would, on a few samples.
#![expect(clippy::unwrap_used, reason = "in a test, unwrap says that the test ends otherwise")]

use feedline_ops::codec::{Subsampling, encode_jpeg};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn feedline(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_feedline")).args(args).output().unwrap()
}

/// What a successful command prints.
fn text(args: &[&str]) -> String {
    let output = feedline(args);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {complaint}");
    assert_eq!(complaint, "", "{args:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The document that a successful command prints with --json.
fn json(args: &[&str]) -> Value {
    serde_json::from_str(&text(&[args, &["--json"]].concat())).unwrap()
}

/// The exit code and the complaint of a command that fails.
fn failure(args: &[&str]) -> (i32, String) {
    let output = feedline(args);
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{args:?}");
    assert!(!complaint.contains("panicked"), "{complaint}");
    assert!(complaint.starts_with("error: "), "{complaint}");
    (output.status.code().unwrap(), complaint)
}

fn assert_fields(document: &Value, fields: &[&str]) {
    for field in fields {
        assert!(document.get(field).is_some(), "{field} is missing in {document:#}");
    }
}

/// Six photos in two classes.
fn photos() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..6u8 {
        let pixels: Vec<u8> = (0..40 * 30)
            .flat_map(|at| [(at % 40 * 6) as u8, (at / 40 * 8) as u8, number * 40])
            .collect();
        let jpeg = encode_jpeg(&pixels, 40, 30, 90, Subsampling::S420).unwrap();
        let class = folder.path().join(["cat", "dog"][usize::from(number % 2)]);
        fs::create_dir_all(&class).unwrap();
        fs::write(class.join(format!("{number}.jpg")), jpeg).unwrap();
    }
    folder
}

fn images(folder: &Path, steps: &str) -> String {
    format!("images path={} | {steps}", folder.display())
}

const RANGE: &str = "range count=10 | shuffle seed=3 | batch size=4";

#[test]
fn run_counts_what_it_delivers() {
    let report = json(&["run", RANGE, "--epochs", "2", "--threads", "2", "--memory", "64MB"]);
    assert_eq!(
        (&report["epochs"], &report["batches"], &report["samples"]),
        (&2.into(), &6.into(), &20.into())
    );
    assert_eq!(report["plan"], "range count=10 | shuffle seed=3 | batch size=4");
    assert_fields(
        &report,
        &[
            "fingerprint",
            "seconds",
            "samples_per_second",
            "bytes_delivered",
            "bytes_per_second",
            "bytes_read",
            "cpu_seconds",
            "cpu_seconds_per_1000_samples",
            "first_batch_seconds",
            "waited_seconds",
            "waited_share",
            "skipped",
            "threads",
            "threads_busy_share",
            "peak_memory_bytes",
            "steps",
        ],
    );
    let printed = text(&["run", RANGE]);
    assert!(printed.contains("samples/s") && printed.contains("batches"), "{printed}");
    assert!(!printed.contains('\x1b'), "colours where there is no terminal: {printed}");
}

#[test]
fn run_takes_a_rank_and_a_limit() {
    let report = json(&["run", RANGE, "--rank", "1", "--world", "2"]);
    assert_eq!(report["samples"], 4);
    let endless = json(&["run", "range count=3 | repeat", "--limit-batches", "7", "--seed", "5"]);
    assert_eq!((&endless["samples"], &endless["epochs"]), (&7.into(), &0.into()));
}

#[test]
fn run_says_what_each_step_costs() {
    let folder = photos();
    let plan = images(folder.path(), "decode | resize size=[16,16] | batch size=2");
    let report = json(&["run", &plan, "--epochs", "20"]);
    assert_eq!(report["samples"], 120);
    let steps: Vec<&str> = report["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| step["name"].as_str().unwrap())
        .collect();
    assert!(steps.contains(&"decode"), "{steps:?}");
    assert_fields(&report["steps"][0], &["name", "micros_per_sample", "share", "timed"]);
    assert!(report["bytes_read"].as_u64().unwrap() > 0);
}

#[test]
fn explain_says_what_will_run() {
    let report = json(&["explain", RANGE, "--threads", "3", "--rank", "0", "--world", "2"]);
    assert_eq!(
        (&report["threads"], &report["source_samples"], &report["steps"]),
        (&3.into(), &10.into(), &2.into())
    );
    assert!(text(&["explain", RANGE]).contains("10 samples"));
}

#[test]
fn check_needs_no_data() {
    let plan = "images path=/nowhere | shuffle seed=0 | decode | resize size=8 | batch size=2 drop_last=true";
    let report = json(&[
        "check",
        "images path=/nowhere | decode | resize size=[8,8] | batch size=2 drop_last=true",
    ]);
    assert_eq!(report["output"][0]["shape"], serde_json::json!([2, 8, 8, 3]));
    assert_eq!(report["output"][0]["dtype"], "uint8");
    assert_eq!(report["fingerprint"].as_str().unwrap().len(), 64);
    let printed = text(&["check", plan]);
    assert!(printed.starts_with("images path=/nowhere | shuffle | decode"), "{printed}");
    assert!(printed.contains("fingerprint") && printed.contains("label int64[2]"), "{printed}");
}

#[test]
fn plans_come_from_files_stdin_and_the_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let (lines, document) = (folder.path().join("plan.txt"), folder.path().join("plan.json"));
    fs::write(&lines, format!("{RANGE}\n")).unwrap();
    fs::write(&document, r#"{"feedline": 1, "steps": [{"step": "range", "count": 10}, {"step": "shuffle", "seed": 3}, {"step": "batch", "size": 4}]}"#).unwrap();
    let direct = json(&["check", RANGE]);
    assert_eq!(json(&["check", lines.to_str().unwrap()]), direct);
    assert_eq!(json(&["check", document.to_str().unwrap()]), direct);
    let mut command = Command::new(env!("CARGO_BIN_EXE_feedline"))
        .args(["check", "-", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    command.stdin.take().unwrap().write_all(RANGE.as_bytes()).unwrap();
    let output = command.wait_with_output().unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&output.stdout).unwrap(), direct);
}

#[test]
fn arrays_are_read_from_the_folder_beside_the_plan() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.json");
    fs::write(&plan, r#"{"feedline": 1, "steps": [{"step": "arrays", "fields": [{"name": "x", "blob": "abc", "dtype": "int16", "shape": [3, 2]}]}]}"#).unwrap();
    let plan_file = plan.to_str().unwrap();
    let (code, complaint) = failure(&["run", plan_file]);
    assert_eq!(code, 1, "{complaint}");
    fs::create_dir(folder.path().join("plan.json.blobs")).unwrap();
    let mut blob = b"{\"dtype\": \"int16\", \"shape\": [3, 2]}\n".to_vec();
    blob.extend([1i16, -2, 3, 4, 5, 6].iter().flat_map(|value| value.to_le_bytes()));
    fs::write(folder.path().join("plan.json.blobs/abc"), blob).unwrap();
    let report = json(&["peek", plan_file, "--samples", "2"]);
    assert_eq!(report["samples"][0]["fields"]["x"]["min"], -2.0);
    assert_eq!(report["samples"][1]["fields"]["x"]["mean"], 3.5);
}

#[test]
fn peek_draws_a_contact_sheet() {
    let folder = photos();
    let elsewhere = tempfile::tempdir().unwrap();
    let out = elsewhere.path().join("sheet.png");
    let steps = "decode | resize size=[120,150] | normalize mean=[0.5] std=[0.25] | layout to=CHW | batch size=4";
    let args =
        ["peek", &images(folder.path(), steps), "--samples", "5", "--out", out.to_str().unwrap()];
    let report = json(&args);
    assert_eq!(report["samples"].as_array().unwrap().len(), 5);
    let first = &report["samples"][0];
    assert!(first["origin"].as_str().unwrap().ends_with("cat/0.jpg"));
    assert_eq!(
        (&first["fields"]["label"]["value"], &first["fields"]["label"]["class"]),
        (&0.into(), &"cat".into())
    );
    assert_eq!(first["fields"]["image"]["shape"], serde_json::json!([3, 120, 150]));
    assert!(
        first["fields"]["image"]["min"].as_f64().unwrap()
            < first["fields"]["image"]["max"].as_f64().unwrap()
    );
    // Three columns and two lines of tiles, six pixels apart.
    let sheet = image::open(&out).unwrap();
    assert_eq!((sheet.width(), sheet.height()), (6 + 3 * 156, 6 + 2 * 126));
    assert_eq!(
        (&report["contact_sheet"]["width"], &report["contact_sheet"]["images"]),
        (&474.into(), &5.into())
    );
    let printed = text(&args);
    assert!(printed.contains("1 dog") && printed.contains("sheet.png"), "{printed}");
}

#[test]
fn peek_adds_no_image_to_the_data() {
    let folder = photos();
    let plan = images(folder.path(), "decode");
    for out in ["peek.png", "cat/peek.png"] {
        let out = folder.path().join(out);
        let (code, complaint) = failure(&["peek", &plan, "--out", out.to_str().unwrap()]);
        assert_eq!(code, 2, "{complaint}");
        assert!(complaint.contains("--out") && !out.exists(), "{complaint}");
    }
}

#[test]
fn peek_shows_values_where_there_is_no_image() {
    let folder = photos();
    let report = json(&["peek", "range count=3", "--epoch", "4"]);
    assert_eq!(report["samples"].as_array().unwrap().len(), 3);
    assert_eq!((&report["contact_sheet"], &report["epoch"]), (&Value::Null, &4.into()));
    let printed = text(&["peek", &images(folder.path(), "batch size=3")]);
    assert!(printed.contains("ff d8 ff") && printed.contains("add decode"), "{printed}");
}

#[test]
fn bench_measures_for_as_long_as_it_is_told() {
    let report = json(&["bench", RANGE, "--seconds", "0.2", "--warm-batches", "2"]);
    assert!((0.15..5.0).contains(&report["seconds"].as_f64().unwrap()), "{report:#}");
    assert!(report["samples_per_second"].as_f64().unwrap() > 0.0);
    assert_fields(
        &report,
        &[
            "plan",
            "warm_batches",
            "cpu_seconds_per_1000_samples",
            "first_batch_seconds",
            "peak_memory_bytes",
            "waited_share",
            "steps",
        ],
    );
    assert!(text(&["bench", RANGE, "--seconds", "0.1"]).contains("samples/s"));
}

#[test]
fn steps_lists_every_step() {
    let report = json(&["steps"]);
    let steps = report["steps"].as_array().unwrap();
    let find = |name: &str| steps.iter().find(|step| step["name"] == name).unwrap();
    assert_eq!(find("range")["kind"], "source");
    assert_eq!(find("batch")["required"], serde_json::json!(["size"]));
    assert_fields(find("decode"), &["kind", "required", "optional"]);
    let printed = text(&["steps"]);
    for step in steps {
        assert!(printed.contains(step["name"].as_str().unwrap()), "{step}");
    }
}

#[test]
fn demo_feeds_resumes_and_compares() {
    let args = ["demo", "--seconds", "0.3", "--photos", "24"];
    let report = json(&args);
    assert_fields(&report, &["photos", "plan", "threads", "images_per_second", "step_seconds"]);
    for loader in ["plain", "feedline"] {
        assert_fields(&report[loader], &["images_per_second", "busy_share", "first_batch_seconds"]);
        assert!((0.0..=1.0).contains(&report[loader]["stall_share"].as_f64().unwrap()));
        assert_eq!(report[loader]["timeline"].as_array().unwrap().len(), 60);
    }
    assert_eq!(report["resume"]["identical"], true);
    assert_ne!(report["resume"]["threads_before"], report["resume"]["threads_after"]);
    let printed = text(&args);
    assert!(printed.contains("Identical:") && printed.contains("busy"), "{printed}");
    assert!(!printed.contains('\x1b'));
}

#[test]
fn a_wrong_pipeline_exits_with_2_and_says_what_would_be_right() {
    for (args, words) in [
        (vec!["run", "no/such/plan.json"], "there is no file no/such/plan.json"),
        (vec!["run", "range count=3 | shufle"], "did you mean shuffle?"),
        (vec!["check", "rnage count=3"], "did you mean range?"),
        (vec!["check", "range coutn=3"], "did you mean count?"),
        (vec!["explain", "range count=3 | batch size=0"], "at least one sample"),
        (vec!["run", "range count=3 | decode"], "decode"),
        (vec!["run", "range count=3 |"], "nothing"),
        (vec!["run", "{\"feedline\": 9}"], "version 9"),
        (vec!["run", "range count=3", "--memory", "lots"], "is no size"),
        (vec!["run", "range count=3", "--rank", "2", "--world", "2"], "ranks count from 0"),
        (vec!["explain", "range count=3", "--world", "0"], "--world"),
        (vec!["run", "range count=3", "--threads", "0"], "--threads"),
        (vec!["run", "range count=3", "--epoch", "2"], "--epochs"),
        (vec!["bench", "range count=3", "--seconds", "nan"], "seconds"),
        (vec!["runn", "range count=3"], "run"),
        (vec!["run", "/"], "is a folder"),
    ] {
        let (code, complaint) = failure(&args);
        assert_eq!(code, 2, "{args:?}: {complaint}");
        assert!(complaint.contains(words), "{args:?}: {complaint}");
    }
}

#[test]
fn bad_data_exits_with_1_and_names_it() {
    let folder = photos();
    let empty = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    for (folder, words) in [(empty.path(), "no images in"), (&missing, "missing")] {
        let (code, complaint) = failure(&["run", &images(folder, "decode")]);
        assert_eq!(code, 1, "{complaint}");
        assert!(complaint.contains(words), "{complaint}");
    }
    let victim = folder.path().join("dog/3.jpg");
    let bytes = fs::read(&victim).unwrap();
    fs::write(&victim, &bytes[..bytes.len() / 2]).unwrap();
    let plan = images(folder.path(), "decode | resize size=[8,8] | batch size=2");
    for command in ["run", "peek", "bench"] {
        let (code, complaint) = failure(&[command, &plan]);
        assert_eq!(code, 1, "{complaint}");
        assert!(complaint.contains("dog/3.jpg"), "{complaint}");
    }
    let lenient =
        images(folder.path(), "decode | resize size=[8,8] | on_error policy=skip | batch size=2");
    let report = json(&["run", &lenient]);
    assert_eq!((&report["samples"], &report["skipped"]), (&5.into(), &1.into()));
    let (code, complaint) = failure(&["bench", "range count=3 | batch size=4 drop_last=true"]);
    assert_eq!(code, 1, "{complaint}");
    assert!(complaint.contains("no batch"), "{complaint}");
    let nowhere = folder.path().join("no/such/folder/sheet.png");
    let fine = images(folder.path(), "take count=1 | decode");
    let (code, complaint) = failure(&["peek", &fine, "--out", nowhere.to_str().unwrap()]);
    assert_eq!(code, 1, "{complaint}");
    assert!(complaint.contains("sheet.png"), "{complaint}");
}

#[test]
fn a_failure_is_a_document_too() {
    let output = feedline(&["run", "range count=3 | shufle", "--json"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["error"]["kind"], "pipeline");
    assert!(document["error"]["message"].as_str().unwrap().contains("did you mean shuffle?"));
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn help_and_version_are_no_failures() {
    assert!(text(&["--help"]).contains("feedline run"));
    assert!(text(&["--version"]).starts_with("feedline "));
    assert!(text(&["run", "--help"]).contains("--limit-batches"));
}

#[test]
fn a_reader_that_leaves_early_is_no_failure() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_feedline"))
        .args(["run", RANGE])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(command.stdout.take());
    let output = command.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn saved_epochs_are_read_again_and_saving_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let out = out.to_str().unwrap();
    let report = json(&["save", RANGE, out, "--rows", "3", "--seed", "2", "--threads", "2"]);
    assert_eq!(
        (&report["rows"], &report["shards"], &report["written"], &report["skipped"]),
        (&10.into(), &4.into(), &4.into(), &0.into())
    );
    fs::remove_file(Path::new(out).join("shard-000002.arrow")).unwrap();
    let read = format!("arrow path={out} | batch size=5");
    let (code, complaint) = failure(&["run", &read]);
    assert!(code == 1 && complaint.contains("1 of its 4 shards are missing"), "{complaint}");
    let said = text(&["save", RANGE, out, "--rows", "3", "--seed", "2"]);
    assert!(said.contains("10 rows") && said.contains("1 of them written"), "{said}");
    assert_eq!(json(&["run", &read])["samples"], 10);
    let (code, complaint) = failure(&["save", RANGE, out, "--rows", "3"]);
    assert!(code == 1 && complaint.contains("seed 2 of epoch 0"), "{complaint}");
    let (code, complaint) = failure(&["save", "range count=3 | repeat", out]);
    assert!(code == 2 && complaint.contains("for ever"), "{complaint}");
    assert_eq!(failure(&["save", RANGE, ""]).0, 2);
    let wrong = feedline(&["save", RANGE, out, "--shard", "much"]);
    assert_eq!(wrong.status.code(), Some(2));
}
