//! Processes that keep samples in one folder and are killed, and a disk that is really full.
#![expect(clippy::unwrap_used, reason = "in a test, unwrap says that the test ends otherwise")]

use feedline_cache::{About, Choice, Settings, TieredCache};
use feedline_core::{Buffer, Cache, Cost, Fetch, Found, Name, Pool, Tensor, Value};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const FOLDER: &str = "FEEDLINE_TEST_CACHE";
const SMALL_DISK: &str = "FEEDLINE_TEST_SMALL_DISK";
const LIMIT: u64 = 4_000_000;

fn open(folder: &Path, limit: u64) -> TieredCache {
    let settings = Settings {
        identity: "00112233445566778899aabbccddeeff".into(),
        about: About { feedline: "0".into(), plan: "files".into(), samples: 10_000 },
        ram: 0,
        disk: Some((folder.to_owned(), limit)),
        choice: Choice::First,
        peers: None,
    };
    TieredCache::open(&settings).unwrap()
}

fn fields(index: u64) -> Vec<(Name, Tensor)> {
    let length = 200 + index * 37 % 3000;
    let bytes: Vec<u8> = (0..length).map(|at| (at * 31 + index * 7) as u8).collect();
    vec![(Name::new("x"), Tensor::bytes(Buffer::from(&bytes[..])))]
}

/// Whether a sample is found; if so, it is the right one.
fn is_found(cache: &TieredCache, index: u64) -> bool {
    let sample = match cache.find(index) {
        Found::Here(sample) => sample,
        Found::Missing => return false,
        Found::Stored(mut stored) => match stored.fetch(&Pool::new(0), true) {
            Fetch::Sample(sample) => sample,
            _ => return false,
        },
    };
    for ((_, value), (_, wanted)) in sample.into_fields().zip(fields(index)) {
        let Value::Tensor(value) = value else { panic!("a tensor was kept") };
        assert_eq!(value, wanted, "sample {index} is another");
    }
    true
}

#[test]
fn child_that_keeps() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let cache = open(Path::new(&folder), LIMIT);
    println!("\nopen");
    for round in 0..1_000_000u64 {
        let index = round * 7919 % 10_000;
        if !is_found(&cache, index) && cache.wants(index) {
            cache.keep(index, &fields(index), Cost::default());
        }
    }
}

fn start(folder: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_keeps", "--nocapture"])
        .env(FOLDER, folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn after_thirty_kills_what_is_found_is_right_and_the_next_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    for kill in 0..15u64 {
        let mut children = [start(folder.path()), start(folder.path())];
        for child in &mut children {
            let lines = BufReader::new(child.stdout.take().unwrap()).lines();
            assert!(lines.map_while(Result::ok).any(|line| line == "open"), "kill {kill}");
        }
        std::thread::sleep(Duration::from_micros(kill * 1777 % 20_000));
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let cache = open(folder.path(), LIMIT);
        let found = (0..10_000).filter(|index| is_found(&cache, *index)).count();
        let stats = cache.stats();
        assert_eq!(stats.damaged, 0, "kill {kill}: {stats:?}");
        assert_eq!(found as u64, stats.disk_samples, "kill {kill}");
        assert!(stats.disk_bytes <= LIMIT, "kill {kill}: {stats:?}");
    }
    // Nobody holds a lock any more: there is room, or it is full.
    let cache = open(folder.path(), 2 * LIMIT);
    let index = (0..10_000).find(|index| !is_found(&cache, *index)).unwrap();
    cache.keep(index, &fields(index), Cost::default());
    assert!(is_found(&cache, index));
    let segments =
        std::fs::read_dir(folder.path().join("00112233445566778899aabbccddeeff")).unwrap();
    let names = segments.flatten().map(|file| file.file_name().into_string().unwrap());
    assert!(names.filter(|name| name.ends_with(".data")).count() <= 3, "files are used again");
}

#[test]
fn child_on_a_small_disk() {
    let Some(folder) = std::env::var_os(SMALL_DISK) else { return };
    let cache = open(Path::new(&folder), 100_000_000);
    for index in 0..10_000 {
        if cache.wants(index) {
            cache.keep(index, &fields(index), Cost::default());
        }
    }
    let found = (0..10_000).filter(|index| is_found(&cache, *index)).count();
    let stats = cache.stats();
    assert!(found > 100 && found < 9_000, "{found} of what fits into 4 MB");
    assert_eq!((found as u64, stats.damaged), (stats.disk_samples, 0), "{stats:?}");
    assert!(stats.note.contains("the disk is full"), "{stats:?}");
    let mut out = std::io::stdout();
    out.write_all(b"\nwent on without room\n").unwrap();
}

#[test]
fn a_full_disk_ends_writing_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o size=4m small \"$1\" && exec \"$2\" --exact child_on_a_small_disk --nocapture";
    let output = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", script, "sh"])
        .args([folder.path(), &std::env::current_exe().unwrap()])
        .env(SMALL_DISK, folder.path())
        .output();
    let Ok(output) = output else { return eprintln!("skipped: there is no `unshare` here") };
    let (told, complaints) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !told.contains("running 1 test") {
        return eprintln!("skipped: a small disk cannot be mounted here: {complaints}");
    }
    assert!(told.contains("\nwent on without room"), "{told}{complaints}");
}
