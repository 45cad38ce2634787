//! Several hosts that share what they keep: each sample is read once, and nobody depends on anybody.
#![expect(clippy::unwrap_used, reason = "in a test, unwrap says that the test ends otherwise")]

use feedline_cache::{About, Choice, Hub, PeerOptions, Settings, TieredCache};
use feedline_core::{
    Attempt, Batch, Blobs, Cache, CacheStats, Entry, Extent, Position, Result, Seed, Store,
};
use feedline_engine::{Next, Options, Run};
use feedline_ops::Pipeline;
use feedline_ops::plain::{Part, Plain};
use feedline_store::LocalStore;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SAMPLES: u64 = 60;

/// Local files, of which reads are counted.
#[derive(Default)]
struct Counting {
    reads: AtomicU64,
}

impl Store for Counting {
    fn list(&self, root: &Path) -> Result<Vec<Entry>> {
        LocalStore.list(root)
    }

    fn stat(&self, path: &Path) -> Result<Entry> {
        LocalStore.stat(path)
    }

    fn read(&self, extent: Extent<'_>, out: &mut [u8]) -> Result<()> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        LocalStore.read(extent, out)
    }

    fn try_read(&self, _: Extent<'_>, _: &mut [u8]) -> Result<Attempt> {
        Ok(Attempt::WouldWait)
    }
}

/// One host: its part of the cache, and its rank of the run.
struct Host {
    pipeline: Arc<Pipeline>,
    counting: Arc<Counting>,
    store: Arc<dyn Store>,
    cache: Arc<TieredCache>,
    hub: Arc<Hub>,
}

fn data() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..SAMPLES {
        let bytes: Vec<u8> = (0..1000 + number).map(|at| (at * 7 + number * 13) as u8).collect();
        std::fs::write(folder.path().join(format!("{number:03}")), bytes).unwrap();
    }
    let names: Vec<String> = (0..SAMPLES).map(|number| format!("{number:03}\n")).collect();
    std::fs::write(folder.path().join("list.txt"), names.concat()).unwrap();
    folder
}

/// Addresses that nobody listens at.
fn free_addresses(count: usize) -> Vec<String> {
    let listeners: Vec<_> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    listeners.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect()
}

fn options() -> PeerOptions {
    let mut options = PeerOptions::default();
    options.client.handshake = Duration::from_millis(300);
    options.client.timeout = Duration::from_millis(400);
    options
}

fn host(data: &Path, names: &[String], ram: u64) -> Host {
    let list = data.join("list.txt");
    let plan = format!("files list={} | shuffle | cache ram=1MB | batch size=4", list.display());
    let counting = Arc::new(Counting::default());
    let store: Arc<dyn Store> = Arc::clone(&counting) as Arc<dyn Store>;
    let pipeline = Pipeline::open(&plan.parse().unwrap(), &*store, &Blobs::new()).unwrap();
    let pipeline = Arc::new(pipeline);
    let point = pipeline.cache.as_ref().unwrap();
    let hub = Arc::new(Hub::open(names, options()).unwrap());
    let settings = Settings {
        identity: point.identity.clone(),
        about: About { feedline: "0".into(), plan: "files".into(), samples: SAMPLES },
        ram,
        disk: None,
        choice: Choice::First,
        peers: Some(Arc::clone(&hub)),
    };
    let cache = Arc::new(TieredCache::open(&settings).unwrap());
    cache.make_by(&pipeline, &store);
    assert!(point.attached.set(Arc::clone(&cache) as Arc<dyn Cache>).is_ok());
    Host { pipeline, counting, store, cache, hub }
}

impl Host {
    /// Runs one epoch of a rank, and says how many samples it read from storage itself or for others.
    fn epoch(&self, epoch: u64, rank: u64, world: u64) -> (Vec<Batch>, u64) {
        let before = self.counting.reads.load(Ordering::SeqCst);
        let options = Options {
            threads: 2,
            seed: Seed(3),
            rank,
            world,
            epochs: Some(1),
            with_index: true,
            ..Options::default()
        };
        let (pipeline, store) = (Arc::clone(&self.pipeline), Arc::clone(&self.store));
        let mut run = Run::start(pipeline, store, Position::epoch(epoch), options).unwrap();
        let mut batches = Vec::new();
        while let Next::Batch(batch) = run.next().unwrap() {
            batches.push(batch);
        }
        (batches, self.counting.reads.load(Ordering::SeqCst) - before)
    }

    fn stats(&self) -> CacheStats {
        self.cache.stats()
    }

    fn plain(&self, epoch: u64, rank: u64, world: u64) -> Vec<Batch> {
        let position = Position::epoch(epoch);
        let part = Part { seed: Seed(3), rank, world, position, rounds: false, with_index: true };
        let store: Arc<dyn Store> = Arc::new(LocalStore);
        Plain::new(Arc::clone(&self.pipeline), store, part).map(|batch| batch.unwrap()).collect()
    }
}

/// An epoch of all hosts at once; the number of reads from storage.
fn together(hosts: &[Host], epoch: u64) -> u64 {
    let world = hosts.len() as u64;
    let reads = || hosts.iter().map(|host| host.counting.reads.load(Ordering::SeqCst)).sum::<u64>();
    let before = reads();
    std::thread::scope(|scope| {
        for (rank, host) in hosts.iter().enumerate() {
            scope.spawn(move || {
                let (batches, _) = host.epoch(epoch, rank as u64, world);
                assert_eq!(batches, host.plain(epoch, rank as u64, world), "rank {rank}");
            });
        }
    });
    reads() - before
}

#[test]
fn each_sample_is_read_once_by_all_hosts_together() {
    let folder = data();
    let names = free_addresses(3);
    let hosts: Vec<Host> = (0..3).map(|_| host(folder.path(), &names, 1_000_000)).collect();
    let me: Vec<_> = hosts.iter().map(|host| host.hub.me()).collect();
    assert_eq!(me, [Some(0), Some(1), Some(2)]);
    assert_eq!(together(&hosts, 0), SAMPLES, "each once");
    for epoch in 1..4 {
        assert_eq!(together(&hosts, epoch), 0, "epoch {epoch}");
    }
    let kept: Vec<u64> = hosts.iter().map(|host| host.stats().ram_samples).collect();
    assert_eq!(kept.iter().sum::<u64>(), SAMPLES, "each is kept once: {kept:?}");
    assert!(kept.iter().all(|kept| *kept >= SAMPLES / 8), "{kept:?}");
    let stats = hosts[0].stats();
    assert!(stats.peer_hits > 0 && stats.bytes_saved > 0 && stats.peer_failures == 0, "{stats:?}");
}

#[test]
fn one_that_only_asks_keeps_nothing() {
    let folder = data();
    let names = free_addresses(1);
    let owner = host(folder.path(), &names, 1_000_000);
    let guest = host(folder.path(), &names, 1_000_000);
    assert_eq!((owner.hub.me(), guest.hub.me()), (Some(0), None));
    let (batches, reads) = guest.epoch(0, 0, 1);
    assert_eq!((batches, reads), (guest.plain(0, 0, 1), 0));
    assert_eq!(owner.stats().ram_samples, SAMPLES);
    assert_eq!(guest.stats().ram_samples, 0);
    assert_eq!(guest.stats().peer_hits, SAMPLES);
}

#[test]
fn what_an_owner_has_no_room_for_goes_to_the_next() {
    let folder = data();
    let names = free_addresses(2);
    // The first has room for a few, the second for all.
    let hosts = [host(folder.path(), &names, 6_000), host(folder.path(), &names, 1_000_000)];
    for epoch in 0..3 {
        together(&hosts, epoch);
    }
    assert_eq!(together(&hosts, 3), 0, "both together have room for all");
    let stats = [hosts[0].stats(), hosts[1].stats()];
    assert!(stats[0].ram_bytes <= 6_000, "{stats:?}");
    assert_eq!(stats[0].ram_samples + stats[1].ram_samples, SAMPLES, "{stats:?}");
}

#[test]
fn a_dead_peer_costs_reads_and_no_error_and_one_that_comes_back_is_asked_again() {
    let folder = data();
    let names = free_addresses(2);
    let mut hosts: Vec<Host> = (0..2).map(|_| host(folder.path(), &names, 1_000_000)).collect();
    together(&hosts, 0);
    let gone = hosts.pop().unwrap();
    let owned = gone.stats().ram_samples;
    drop(gone);
    for epoch in 1..3 {
        let (batches, reads) = hosts[0].epoch(epoch, 0, 1);
        assert_eq!(batches, hosts[0].plain(epoch, 0, 1));
        assert_eq!(reads, owned, "what the other had is read from storage");
    }
    assert!(hosts[0].stats().peer_failures > 0);
    hosts.push(host(folder.path(), &names, 1_000_000));
    assert_eq!(hosts[1].hub.me(), Some(1));
    let deadline = Instant::now() + Duration::from_secs(30);
    while hosts[1].stats().ram_samples < owned {
        let (batches, _) = hosts[0].epoch(3, 0, 1);
        assert_eq!(batches, hosts[0].plain(3, 0, 1));
        assert!(Instant::now() < deadline, "it is asked again");
    }
    assert_eq!(hosts[0].epoch(4, 0, 1).1, 0);
}

/// Somebody who listens at a peer's address and does something else.
fn imposter(behave: impl Fn(&mut std::net::TcpStream) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let behave = Arc::new(behave);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten().take(10_000) {
            let behave = Arc::clone(&behave);
            std::thread::spawn(move || behave(&mut { stream }));
        }
    });
    address
}

#[test]
fn peers_that_stall_or_send_garbage_cost_reads_and_no_error() {
    let folder = data();
    let silent = imposter(|stream| drop(stream.read(&mut [0; 1])));
    let stuck = imposter(|_| std::thread::sleep(Duration::from_secs(5)));
    let noisy = imposter(|stream| {
        for _ in 0..1000 {
            if stream.write_all(&[0xa5; 997]).is_err() {
                return;
            }
        }
    });
    let closing = imposter(|_| ());
    for other in [silent, stuck, noisy, closing] {
        let mut names = free_addresses(1);
        names.push(other);
        let host = host(folder.path(), &names, 1_000_000);
        for epoch in 0..3 {
            let (batches, _) = host.epoch(epoch, 0, 1);
            assert_eq!(batches, host.plain(epoch, 0, 1));
        }
        let stats = host.stats();
        assert!(stats.peer_failures > 0, "{stats:?}");
        assert!(stats.ram_hits > 0, "its own samples are kept: {stats:?}");
    }
}

#[test]
fn requests_that_are_none_are_refused_and_others_served() {
    use feedline_wire::stream::Client;
    let folder = data();
    let names = free_addresses(1);
    let host = host(folder.path(), &names, 1_000_000);
    let mut client = Client::connect(&names[0].parse().unwrap(), options().client).unwrap();
    for wrong in [&b""[..], b"1234567", &[0xff; 100]] {
        client.request(wrong).unwrap();
        let error = client.next().unwrap_err().to_string();
        assert!(error.contains("no request to a cache"), "{error}");
    }
    // Another data set, and an index beyond the end.
    for (index, identity) in [(0u64, "0".repeat(32)), (SAMPLES + 7, host.stats().identity)] {
        client.request(&[&index.to_le_bytes(), identity.as_bytes()].concat()).unwrap();
        assert_ne!(client.next().unwrap().unwrap().step, 0, "nothing is known of it");
        assert!(client.next().unwrap().is_none());
    }
    assert_eq!(host.epoch(0, 0, 1).0, host.plain(0, 0, 1));
}

#[test]
fn names_are_addresses_and_other_hosts_need_trust() {
    let open = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        Hub::open(&names, options()).map(|hub| hub.me()).map_err(|error| error.to_string())
    };
    let error = open(&["nonsense"]).unwrap_err();
    assert!(error.contains("cache: peers") && error.contains("host:port"), "{error}");
    let error = open(&["192.0.2.1:7071"]).unwrap_err();
    assert!(error.contains("TLS"), "{error}");
    assert_eq!(open(&[]).unwrap(), None);
}

#[test]
fn one_peer_more_moves_only_its_own_samples() {
    let owners = |names: &[String]| -> BTreeMap<u64, String> {
        // Asking who owns needs nobody to listen.
        let hub = Hub::open(names, options()).unwrap();
        (0..3000).map(|index| (index, names[hub.owner_of(index).unwrap()].clone())).collect()
    };
    let mut names = free_addresses(4);
    let four = owners(&names);
    for name in &names {
        let share = four.values().filter(|owner| *owner == name).count();
        assert!((650..850).contains(&share), "{name} owns {share} of 3000");
    }
    names.extend(free_addresses(1));
    let five = owners(&names);
    for (index, owner) in &five {
        assert!(*owner == names[4] || *owner == four[index], "{index} moved between others");
    }
}
