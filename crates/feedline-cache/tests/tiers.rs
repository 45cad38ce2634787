//! What is kept on a disk: found by others, whole or not at all, within its limit, whatever happens to it.
#![expect(clippy::unwrap_used, reason = "in a test, unwrap says that the test ends otherwise")]

use feedline_cache::{About, Choice, Settings, TieredCache, list, remove};
use feedline_core::{Buffer, Cache, Cost, Fetch, Found, Name, Pool, Sample, Tensor, Value};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const IDENTITY: &str = "00112233445566778899aabbccddeeff";
const OTHER: &str = "ffeeddccbbaa99887766554433221100";

fn settings(identity: &str, ram: u64, disk: Option<(&Path, u64)>) -> Settings {
    Settings {
        identity: identity.to_owned(),
        about: About { feedline: "0".into(), plan: "files | decode".into(), samples: 100 },
        ram,
        disk: disk.map(|(path, bytes)| (path.to_owned(), bytes)),
        choice: Choice::First,
        peers: None,
    }
}

fn on_disk(folder: &Path, bytes: u64) -> TieredCache {
    TieredCache::open(&settings(IDENTITY, 0, Some((folder, bytes)))).unwrap()
}

fn fields(index: u64, length: usize) -> Vec<(Name, Tensor)> {
    let bytes: Vec<u8> = (0..length).map(|at| (at as u64 * 31 + index * 7) as u8).collect();
    vec![
        (Name::new("x"), Tensor::bytes(Buffer::from(&bytes[..]))),
        (Name::new("index"), Tensor::scalar(index as i64)),
    ]
}

fn keep(cache: &TieredCache, index: u64, length: usize) {
    if cache.wants(index) {
        cache.keep(index, &fields(index, length), Cost { work: 1000, wait: 0, bytes: 10 });
    }
}

/// The sample, by whatever way it comes.
fn find(cache: &TieredCache, index: u64) -> Option<Sample> {
    match cache.find(index) {
        Found::Here(sample) => Some(sample),
        Found::Missing => None,
        Found::Stored(mut stored) => match stored.fetch(&Pool::new(0), true) {
            Fetch::Sample(sample) => Some(sample),
            Fetch::Gone => None,
            Fetch::WouldWait => panic!("it was to wait"),
        },
    }
}

/// Looks for a sample until it is found: what others write is looked for now and then.
fn find_soon(cache: &TieredCache, index: u64) -> Option<Sample> {
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline {
        if let Some(sample) = find(cache, index) {
            return Some(sample);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    None
}

fn is(sample: Option<Sample>, index: u64, length: usize) -> bool {
    let Some(sample) = sample else { return false };
    let found: Vec<(Name, Tensor)> = sample
        .into_fields()
        .map(|(name, value)| match value {
            Value::Tensor(tensor) => (name, tensor),
            Value::Deferred(_) => panic!("a tensor was kept"),
        })
        .collect();
    assert_eq!(found, fields(index, length), "sample {index} is another");
    true
}

fn files(folder: &Path, kind: &str) -> Vec<PathBuf> {
    let all = fs::read_dir(folder.join(IDENTITY)).unwrap().flatten().map(|file| file.path());
    all.filter(|path| path.extension().is_some_and(|extension| extension == kind)).collect()
}

fn bytes_below(folder: &Path) -> u64 {
    let mut sum = 0;
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let meta = entry.metadata().unwrap();
        sum += if meta.is_dir() { bytes_below(&entry.path()) } else { meta.len() };
    }
    sum
}

#[test]
fn what_one_keeps_others_find_now_and_later() {
    let folder = tempfile::tempdir().unwrap();
    let one = on_disk(folder.path(), 10_000_000);
    let other = on_disk(folder.path(), 10_000_000);
    for index in 0..10 {
        keep(&one, index, 1000 + index as usize);
    }
    keep(&other, 10, 50);
    for index in 0..10 {
        assert!(is(find(&one, index), index, 1000 + index as usize));
        assert!(is(find_soon(&other, index), index, 1000 + index as usize));
    }
    assert!(is(find_soon(&one, 10), 10, 50));
    assert_eq!(files(folder.path(), "data").len(), 2, "each writes to files of its own");
    let stats = other.stats();
    assert_eq!((stats.disk_samples, stats.damaged), (11, 0));
    assert!(stats.bytes_saved >= 100 && stats.seconds_saved > 0.0, "{stats:?}");
    drop((one, other));
    let later = on_disk(folder.path(), 10_000_000);
    assert!((0..10).all(|index| is(find(&later, index), index, 1000 + index as usize)));
    assert!(find(&later, 11).is_none());
    // It goes on in files that nobody writes to any more.
    keep(&later, 11, 77);
    assert!(is(find(&later, 11), 11, 77));
    assert_eq!(files(folder.path(), "data").len(), 2);
}

#[test]
fn memory_comes_first_and_takes_what_the_disk_has() {
    let folder = tempfile::tempdir().unwrap();
    let open =
        || TieredCache::open(&settings(IDENTITY, 3000, Some((folder.path(), 10_000_000)))).unwrap();
    let cache = open();
    for index in 0..10 {
        keep(&cache, index, 1000);
    }
    let stats = cache.stats();
    assert_eq!((stats.ram_samples, stats.disk_samples), (2, 8), "{stats:?}");
    assert!(stats.ram_bytes <= 3000);
    assert!((0..10).all(|index| is(find(&cache, index), index, 1000)));
    assert_eq!((cache.stats().ram_hits, cache.stats().disk_hits), (2, 8));
    drop(cache);
    let later = open();
    assert!(is(find(&later, 5), 5, 1000) && is(find(&later, 5), 5, 1000));
    assert_eq!((later.stats().disk_hits, later.stats().ram_hits), (1, 1), "read once, then kept");
    assert!(find(&later, 0).is_none(), "memory is gone with its process");
}

#[test]
fn the_limit_counts_everything() {
    let folder = tempfile::tempdir().unwrap();
    for limit in [100_000, 1_000_000, 3_333_333] {
        let path = folder.path().join(limit.to_string());
        let caches: Vec<_> = (0..3).map(|_| on_disk(&path, limit)).collect();
        for index in 0..3000u64 {
            keep(&caches[index as usize % 3], index, 500 + index as usize % 3000);
            if index % 500 == 0 {
                assert!(bytes_below(&path) <= limit, "{} of {limit}", bytes_below(&path));
            }
        }
        assert!(bytes_below(&path) <= limit, "{} of {limit}", bytes_below(&path));
        let kept: u64 = caches[0].stats().disk_samples;
        drop(caches);
        let after = bytes_below(&path);
        assert!(after <= limit && after > limit * 8 / 10, "{after} of {limit}, {kept} samples");
        let again = on_disk(&path, limit);
        let found = (0..3000)
            .filter(|index| is(find(&again, *index), *index, 500 + *index as usize % 3000));
        assert!(found.count() as u64 >= kept.min(20), "{kept}");
    }
}

#[test]
fn flipped_bits_are_noticed_and_the_sample_is_kept_anew() {
    let folder = tempfile::tempdir().unwrap();
    let cache = on_disk(folder.path(), 10_000_000);
    for index in 0..20 {
        keep(&cache, index, 1000);
    }
    let data = &files(folder.path(), "data")[0];
    let file = OpenOptions::new().read(true).write(true).open(data).unwrap();
    // A bit in the middle of each third entry: of 1000 bytes with a head, so 1088 apart.
    let length = fs::metadata(data).unwrap().len();
    let mut flipped = 0;
    for at in (500..length.min(20 * 1088)).step_by(3 * 1088) {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 16], at).unwrap();
        flipped += 1;
    }
    let found: Vec<u64> = (0..20).filter(|index| is(find(&cache, *index), *index, 1000)).collect();
    assert_eq!(found.len() as u64, 20 - flipped, "{found:?}");
    assert_eq!(cache.stats().damaged, flipped);
    // Made again, they are kept again, and found from then on.
    for index in 0..20 {
        keep(&cache, index, 1000);
    }
    assert!((0..20).all(|index| is(find(&cache, index), index, 1000)));
    drop(cache);
    let later = on_disk(folder.path(), 10_000_000);
    let found = (0..20).filter(|index| is(find(&later, *index), *index, 1000)).count();
    assert!(found as u64 >= 20 - flipped, "{found}");
}

#[test]
fn a_half_written_end_is_never_served() {
    let folder = tempfile::tempdir().unwrap();
    let cache = on_disk(folder.path(), 10_000_000);
    for index in 0..8 {
        keep(&cache, index, 300);
    }
    drop(cache);
    let (data, index) = (&files(folder.path(), "data")[0], &files(folder.path(), "index")[0]);
    let whole = (fs::read(data).unwrap(), fs::read(index).unwrap());
    // Cut both at any place, as a crash of the machine might leave them.
    for cut in 0..200 {
        let at = |bytes: &[u8]| bytes.len() * cut / 200;
        for (data_end, index_end) in [
            (at(&whole.0), whole.1.len()),
            (whole.0.len(), at(&whole.1)),
            (at(&whole.0), at(&whole.1)),
        ] {
            fs::write(data, &whole.0[..data_end]).unwrap();
            fs::write(index, &whole.1[..index_end]).unwrap();
            let cache = on_disk(folder.path(), 10_000_000);
            for number in 0..8 {
                // Found as it was, or not at all.
                is(find(&cache, number), number, 300);
                keep(&cache, number, 300);
                assert!(is(find(&cache, number), number, 300), "cut at {cut} of 200");
            }
        }
    }
}

#[test]
fn idle_identities_make_room_and_those_in_use_stay() {
    let folder = tempfile::tempdir().unwrap();
    let limit = 1_000_000;
    let open = |identity: &str| {
        TieredCache::open(&settings(identity, 0, Some((folder.path(), limit)))).unwrap()
    };
    let old = open(OTHER);
    for index in 0..300 {
        keep(&old, index, 3000);
    }
    let held = list(folder.path()).unwrap();
    assert_eq!(held.len(), 1);
    assert!(held[0].in_use && held[0].samples > 250, "{held:?}");
    assert_eq!(held[0].about.as_ref().unwrap().plan, "files | decode");
    // As long as it is used, there is no room for another.
    let new = open(IDENTITY);
    keep(&new, 1, 200_000);
    assert!(find(&new, 1).is_none());
    assert!(new.stats().disk_bytes <= limit);
    assert!(remove(folder.path(), OTHER).unwrap_err().to_string().contains("in use"));
    drop((old, new));
    let new = open(IDENTITY);
    keep(&new, 1, 200_000);
    assert!(is(find(&new, 1), 1, 200_000));
    let held = list(folder.path()).unwrap();
    assert_eq!(held.iter().map(|held| &held.identity[..]).collect::<Vec<_>>(), [IDENTITY]);
    drop(new);
    // What is no identity is nobody's to remove.
    fs::create_dir(folder.path().join("mine")).unwrap();
    fs::write(folder.path().join("mine/lease"), "x").unwrap();
    assert_eq!(remove(folder.path(), "").unwrap(), [IDENTITY]);
    assert!(folder.path().join("mine/lease").exists());
}

#[test]
fn a_folder_that_cannot_be_written_is_an_error_or_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "x").unwrap();
    let error = TieredCache::open(&settings(IDENTITY, 0, Some((&file.join("below"), 1000))));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("cannot be used") && error.contains("give path a folder"), "{error}");
    let path = folder.path().join("cache");
    let cache = on_disk(&path, 1_000_000);
    keep(&cache, 1, 100);
    drop(cache);
    let set = |mode| {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        fs::set_permissions(path.join(IDENTITY), fs::Permissions::from_mode(mode)).unwrap();
    };
    set(0o500);
    let cache = on_disk(&path, 1_000_000);
    assert!(is(find(&cache, 1), 1, 100));
    keep(&cache, 2, 100);
    // Root may write everywhere.
    if File::create(path.join(IDENTITY).join("probe")).is_err() {
        assert!(find(&cache, 2).is_none() || files(&path, "data").len() == 1);
    }
    drop(cache);
    set(0o700);
}

#[test]
fn a_folder_that_is_deleted_under_a_run_is_not_missed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let cache = on_disk(&path, 1_000_000);
    for index in 0..5 {
        keep(&cache, index, 1000);
    }
    fs::remove_dir_all(&path).unwrap();
    for index in 0..5 {
        assert!(is(find(&cache, index), index, 1000), "what is open is still there");
    }
    for index in 5..400 {
        keep(&cache, index, 10_000);
    }
    let stats = cache.stats();
    assert!(stats.note.contains("nothing more is written"), "{stats:?}");
}

#[test]
fn a_lock_that_cannot_be_had_ends_writing_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let cache = on_disk(folder.path(), 10_000_000);
    keep(&cache, 1, 1000);
    fs::remove_file(folder.path().join("limit.lock")).unwrap();
    fs::create_dir(folder.path().join("limit.lock")).unwrap();
    for index in 2..2000 {
        keep(&cache, index, 10_000);
    }
    assert!(is(find(&cache, 1), 1, 1000));
    assert!(cache.stats().note.contains("nothing more is written"), "{:?}", cache.stats());
}

#[test]
fn many_threads_keep_and_find_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let caches: Vec<Arc<TieredCache>> = (0..2)
        .map(|_| {
            let settings = settings(IDENTITY, 50_000, Some((folder.path(), 10_000_000)));
            Arc::new(TieredCache::open(&settings).unwrap())
        })
        .collect();
    std::thread::scope(|scope| {
        for thread in 0..6usize {
            let cache = Arc::clone(&caches[thread % 2]);
            scope.spawn(move || {
                for round in 0..3 {
                    for at in 0..300u64 {
                        let index = (at * 7 + thread as u64 * 50) % 300;
                        let length = 100 + index as usize * 5;
                        if !is(find(&cache, index), index, length) {
                            keep(&cache, index, length);
                        }
                        assert!(round == 0 || is(find(&cache, index), index, length), "{index}");
                    }
                }
            });
        }
    });
    for cache in &caches {
        assert_eq!(cache.stats().damaged, 0);
    }
}
