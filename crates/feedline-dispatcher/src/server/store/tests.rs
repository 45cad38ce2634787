//! What is kept comes back, damaged files do not, and everything ends.

use super::*;
use feedline_journal::SimulatedDisk;
use feedline_rpc::blob;

const SOON: Duration = Duration::ZERO;

fn limits() -> StoreLimits {
    StoreLimits { longest_blob: 1000, most_bytes: 1500, most_datasets: 3, idle: SOON }
}

fn open(disk: &SimulatedDisk) -> Arc<Store> {
    Arc::new(Store::open(Arc::new(disk.clone()), Path::new("/journal"), limits()).unwrap())
}

fn some_blob(length: usize) -> (String, Vec<u8>) {
    let line = format!("{{\"dtype\":\"uint8\",\"shape\":[{length}]}}\n");
    let bytes = [line.as_bytes(), &vec![7; length]].concat();
    (blob::name(&blob::read(&bytes).unwrap()), bytes)
}

fn put(store: &Arc<Store>, name: &str, bytes: &[u8]) -> Result<()> {
    let mut upload = store.upload(name)?;
    bytes.chunks(100).try_for_each(|piece| upload.add(piece))?;
    upload.finish()
}

fn whole(store: &Arc<Store>, name: &str) -> Result<Vec<u8>> {
    let mut download = store.download(name)?;
    let mut bytes = Vec::new();
    while let Some(piece) = download.next(64)? {
        bytes.extend(piece);
    }
    Ok(bytes)
}

fn dataset(plan: &str, blobs: Vec<String>) -> Dataset {
    Dataset { plan: plan.into(), manifest: "files".into(), blobs }
}

#[test]
fn a_dataset_is_kept_when_all_its_blobs_are_there() {
    let disk = SimulatedDisk::new();
    let store = open(&disk);
    let (name, bytes) = some_blob(300);
    let dataset = dataset("[1]", vec![name.clone()]);
    let (id, missing) = store.register(&dataset).unwrap();
    assert_eq!((missing, store.touch(&id)), (vec![name.clone()], false));
    put(&store, &name, &bytes).unwrap();
    assert_eq!(store.register(&dataset).unwrap(), (id.clone(), vec![]));
    assert_eq!(store.register(&dataset).unwrap(), (id.clone(), vec![]), "twice is once");
    drop(store);
    let store = open(&disk.after_crash(1));
    assert_eq!(store.dataset(&id).unwrap(), dataset);
    assert_eq!(whole(&store, &name).unwrap(), bytes);
    assert_eq!(store.status(&BTreeMap::new()).len(), 1);
}

#[test]
fn the_same_from_many_at_once_is_kept_once() {
    let disk = SimulatedDisk::new();
    for round in 0..50 {
        let store = open(&disk);
        let (name, bytes) = some_blob(90 + round % 3);
        let dataset = dataset(&(round / 25).to_string(), vec![]);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| put(&store, &name, &bytes).unwrap());
                scope.spawn(|| store.register(&dataset).unwrap());
            }
        });
        assert_eq!(whole(&store, &name).unwrap(), bytes);
        assert_eq!(store.dataset(&dataset.id()).unwrap(), dataset);
        let left = disk.list(Path::new("/journal/datasets")).unwrap();
        assert!(!left.iter().any(|name| name.ends_with(".new")), "{left:?}");
        store.remove(&dataset.id(), 0).unwrap();
    }
}

#[test]
fn blobs_that_are_not_what_their_name_says_are_refused() {
    let disk = SimulatedDisk::new();
    let store = open(&disk);
    let (name, bytes) = some_blob(300);
    let (other, _) = some_blob(301);
    let error = put(&store, &other, &bytes).unwrap_err();
    assert_eq!(error, StoreError::Invalid(format!("what came as blob {other} is blob {name}")));
    for name in ["", "../../etc/passwd", "ABCDEF00000000000000000000000000"] {
        assert!(matches!(store.upload(name), Err(StoreError::Invalid(_))), "{name}");
        assert!(matches!(store.download(name), Err(StoreError::Missing(_))), "{name}");
    }
    assert!(matches!(put(&store, &name, b"nonsense"), Err(StoreError::Invalid(_))));
    assert!(matches!(put(&store, &name, &[]), Err(StoreError::Invalid(_))));
    assert_eq!(disk.list(Path::new("/journal/blobs")).unwrap(), [""; 0], "nothing is left behind");
}

#[test]
fn there_is_room_for_so_much_and_no_more() {
    let store = open(&SimulatedDisk::new());
    let (long, bytes) = some_blob(1001);
    assert!(matches!(put(&store, &long, &bytes), Err(StoreError::Invalid(_))));
    let [one, two] = [some_blob(800), some_blob(801)];
    put(&store, &one.0, &one.1).unwrap();
    assert!(matches!(put(&store, &two.0, &two.1), Err(StoreError::Full(_))));
    let (small, bytes) = some_blob(250);
    for _ in 0..9 {
        // What is there is not counted again.
        put(&store, &small, &bytes).unwrap();
    }
    for number in 0..3 {
        store.register(&dataset(&number.to_string(), vec![])).unwrap();
    }
    assert!(matches!(store.register(&dataset("3", vec![])), Err(StoreError::Full(_))));
    let plan = format!("\"{}\"", "x".repeat(LONGEST_PLAN));
    for wrong in [dataset(&plan, vec![]), dataset("{", vec![]), dataset("0", vec!["x".into()])] {
        assert!(matches!(store.register(&wrong), Err(StoreError::Invalid(_))));
    }
}

#[test]
fn damaged_files_are_moved_aside_and_sent_again() {
    let disk = SimulatedDisk::new();
    let store = open(&disk);
    let (name, bytes) = some_blob(300);
    put(&store, &name, &bytes).unwrap();
    let (id, _) = store.register(&dataset("1", vec![name.clone()])).unwrap();
    let path = store.blob_path(&name);
    let mut damaged = bytes.clone();
    damaged[200] ^= 1;
    disk.put(&path, damaged);
    let error = whole(&store, &name).unwrap_err();
    assert!(matches!(error, StoreError::Missing(_)), "{error}");
    let missing = store.register(&dataset("1", vec![name.clone()])).unwrap().1;
    assert_eq!(missing, std::slice::from_ref(&name));
    put(&store, &name, &bytes).unwrap();
    assert_eq!(whole(&store, &name).unwrap(), bytes);
    disk.put(&store.dataset_path(&id), b"{\"plan\":\"2\",\"manifest\":\"\",\"blobs\":[]}".to_vec());
    assert!(matches!(store.dataset(&id), Err(StoreError::Missing(_))));
    assert!(!store.touch(&id));
}

#[test]
fn what_nobody_uses_is_removed() {
    let disk = SimulatedDisk::new();
    let store = open(&disk);
    let [used, unused] = [some_blob(300), some_blob(301)];
    put(&store, &used.0, &used.1).unwrap();
    put(&store, &unused.0, &unused.1).unwrap();
    let (kept, _) = store.register(&dataset("1", vec![used.0.clone()])).unwrap();
    let (gone, _) = store.register(&dataset("2", vec![unused.0.clone()])).unwrap();
    let jobs = BTreeMap::from([(kept.clone(), 1)]);
    drop(store);
    let limits = StoreLimits { idle: Duration::from_millis(20), ..limits() };
    let store =
        Arc::new(Store::open(Arc::new(disk.clone()), Path::new("/journal"), limits).unwrap());
    std::thread::sleep(Duration::from_millis(30));
    store.tidy(&jobs);
    assert!(store.touch(&kept) && !store.touch(&gone));
    assert!(whole(&store, &used.0).is_ok());
    assert!(whole(&store, &unused.0).is_err());
    assert_eq!(disk.list(Path::new("/journal/blobs")).unwrap().len(), 1);
    assert!(matches!(store.remove(&kept, 1), Err(StoreError::InUse(_))));
    store.remove(&kept, 0).unwrap();
    assert!(matches!(store.remove(&kept, 0), Err(StoreError::Missing(_))));
}

#[test]
fn a_full_disk_keeps_nothing_by_halves() {
    let disk = SimulatedDisk::new();
    let store = open(&disk);
    let (name, bytes) = some_blob(700);
    disk.set_capacity(Some(disk.used() + 200));
    let error = put(&store, &name, &bytes).unwrap_err();
    assert!(matches!(error, StoreError::Full(_)), "{error}");
    assert_eq!(disk.list(Path::new("/journal/blobs")).unwrap(), [""; 0]);
    disk.set_capacity(None);
    put(&store, &name, &bytes).unwrap();
    assert_eq!(whole(&store, &name).unwrap(), bytes);
}
