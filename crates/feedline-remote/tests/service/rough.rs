//! Links that are cut, swallow, delay, reset and flip bits, and workers that nobody understands: every
//! epoch is complete and exact.
//!
//! ```text
//!  client ──proxy──► dispatcher ◄──proxy── worker
//!     └───────────────proxy────────────────► ▲
//! ```

use crate::{Control, PATIENCE, Service, job, next, options};
use feedline_core::{Batch, Position, Store};
use feedline_dispatcher::Dispatcher;
use feedline_engine::{Next, Run};
use feedline_ops::Pipeline;
use feedline_remote::{Job, Remote};
use feedline_store::LocalStore;
use feedline_testkit::proxy::{Conduct, Proxy};
use feedline_testkit::{Coins, Fixtures, open};
use feedline_wire::Order;
use feedline_wire::control::{self, Beat, Control as _, WorkerKey};
use feedline_wire::frame::{Header, Kind};
use feedline_wire::stream::Address;
use feedline_worker::Worker;
use std::collections::BTreeMap;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// How often links are disturbed in each test.
fn cuts() -> u64 {
    number("FEEDLINE_CUTS", 20)
}

/// A dispatcher and workers, between which and whose clients there is nothing but proxies.
struct Rough {
    workers: Vec<Worker>,
    dispatcher: Dispatcher,
    links: Vec<Proxy>,
    /// How many of the links carry batches: the first.
    data: usize,
    _journal: tempfile::TempDir,
}

impl Rough {
    fn new(workers: usize) -> Self {
        let journal = tempfile::tempdir().unwrap();
        let options = feedline_dispatcher::Options::new(journal.path());
        let dispatcher = Dispatcher::start(options).unwrap();
        let mut rough =
            Self { workers: vec![], dispatcher, links: vec![], data: workers, _journal: journal };
        let ports: Vec<SocketAddr> = (0..workers).map(|_| free_address()).collect();
        for (number, address) in ports.iter().enumerate() {
            rough.links.push(Proxy::start(*address, number as u64).unwrap());
        }
        for (number, address) in ports.into_iter().enumerate() {
            let options = feedline_worker::Options {
                listen: Address::Tcp(address.to_string()),
                advertise: vec![rough.links[number].address().to_string()],
                threads: 2,
                memory: 64 << 20,
                // Batches go through the proxy, not past it.
                shared_memory: 0,
                ..Default::default()
            };
            let store: Arc<dyn Store> = Arc::new(LocalStore);
            let control = rough.control();
            rough.workers.push(Worker::start(control, store, options).unwrap());
        }
        rough
    }

    /// The dispatcher, by a link of its own.
    fn control(&mut self) -> Arc<Control> {
        let feedline_rpc::Address::Tcp { host, port } = self.dispatcher.address() else {
            panic!("it listens at {}", self.dispatcher.address());
        };
        let address = SocketAddr::new(host.parse().unwrap(), *port);
        let link = Proxy::start(address, self.links.len() as u64).unwrap();
        let control = Control::new(&link.address().to_string()).unwrap();
        self.links.push(link);
        Arc::new(control)
    }

    fn client(
        &mut self,
        pipeline: &Arc<Pipeline>,
        fixtures: &Fixtures,
        order: Order,
        (rank, world): (u64, u64),
    ) -> Remote {
        let job = job("rough", order);
        let (pipeline, options) = (Arc::clone(pipeline), options(rank, world));
        let data = (&LocalStore as &dyn Store, &fixtures.blobs);
        Remote::start(self.control(), pipeline, data, None, 0, job, options).unwrap()
    }

    fn carried(&self) -> String {
        let all = self.links.iter().map(Proxy::carried);
        let (data, control): (Vec<_>, Vec<_>) =
            all.enumerate().partition(|(number, _)| *number < self.data);
        let sum = |some: &[(usize, feedline_testkit::proxy::Carried)]| {
            let bytes: u64 = some.iter().map(|(_, one)| one.bytes).sum();
            let connections: u64 = some.iter().map(|(_, one)| one.connections).sum();
            format!("{bytes} bytes on {connections} connections")
        };
        format!("batches: {}; control: {}", sum(&data), sum(&control))
    }
}

/// An address that nobody listens at.
fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn millis(coins: &mut Coins, from: u64, to: u64) -> Duration {
    Duration::from_millis(from + coins.below(to - from))
}

/// Disturbs one link after another, and leaves all of them healed.
fn disturb(links: &[Proxy], seed: u64, over: &AtomicBool) {
    let mut coins = Coins::new(number("FEEDLINE_SEED", seed));
    let good = Conduct::GOOD;
    for cut in 0..cuts() {
        std::thread::sleep(millis(&mut coins, 10, 120));
        let link = &links[coins.below(links.len() as u64) as usize];
        let conduct = match coins.below(8) {
            0 | 1 => Conduct::CUT,
            2 => Conduct { cut_up: true, ..good },
            3 => Conduct { cut_down: true, ..good },
            4 => Conduct { half_open: true, ..good },
            5 => Conduct { delay: millis(&mut coins, 5, 60), ..good },
            6 => Conduct { bytes_per_second: 2_000 + coins.below(50_000), ..good },
            _ => {
                link.reset();
                good
            }
        };
        link.set(conduct);
        std::thread::sleep(match cut % 50 {
            // Only where there are many.
            49 => millis(&mut coins, 5_000, 15_000),
            cut if cut % 5 == 4 => millis(&mut coins, 1_000, 1_800),
            _ => millis(&mut coins, 30, 400),
        });
        link.set(good);
        // Sometimes what was held back arrives, and sometimes the connection is gone.
        if coins.below(3) == 0 {
            link.reset();
        }
    }
    over.store(true, Ordering::SeqCst);
}

/// The batches of an epoch; remembers the longest that one took.
fn epoch(run: &mut Remote, longest: &mut Duration) -> Vec<Batch> {
    let mut batches = Vec::new();
    let mut last = Instant::now();
    while let Some(batch) = next(run).unwrap() {
        *longest = (*longest).max(last.elapsed());
        last = Instant::now();
        batches.push(batch);
    }
    batches
}

const PLAN: &str = "range count=240 | shuffle | sleep ms=1 | batch size=4";

#[test]
fn cut_links_change_nothing_with_order_exact() {
    let fixtures = Fixtures::new();
    let pipeline = open(PLAN, &fixtures).unwrap();
    let mut rough = Rough::new(3);
    let mut clients: Vec<Remote> =
        (0..2).map(|rank| rough.client(&pipeline, &fixtures, Order::Exact, (rank, 2))).collect();
    let over = AtomicBool::new(false);
    let (mut epochs, mut longest) = (Vec::new(), Duration::ZERO);
    std::thread::scope(|scope| {
        scope.spawn(|| disturb(&rough.links, 11, &over));
        let runs: Vec<_> = (0..2)
            .zip(&mut clients)
            .map(|(rank, client)| {
                let (pipeline, over) = (&pipeline, &over);
                scope.spawn(move || {
                    let store: Arc<dyn Store> = Arc::new(LocalStore);
                    let start = Position::default();
                    let mut local =
                        Run::start(Arc::clone(pipeline), store, start, options(rank, 2)).unwrap();
                    let (mut epochs, mut longest, mut healed) = (0, Duration::ZERO, false);
                    // One more when all is well again.
                    while !healed {
                        healed = over.load(Ordering::SeqCst);
                        let found = epoch(client, &mut longest);
                        for (step, batch) in found.iter().enumerate() {
                            let Some(Next::Batch(wanted)) = local.next_within(PATIENCE).unwrap()
                            else {
                                panic!("rank {rank}, epoch {epochs}: step {step} is too many");
                            };
                            assert_eq!(*batch, wanted, "rank {rank}, epoch {epochs}, step {step}");
                        }
                        let end = local.next_within(PATIENCE).unwrap();
                        assert!(
                            matches!(end, Some(Next::EpochEnd(_))),
                            "rank {rank}: {end:?} is missing"
                        );
                        epochs += 1;
                    }
                    (epochs, longest)
                })
            })
            .collect();
        for run in runs {
            let (count, wait) = run.join().unwrap();
            epochs.push(count);
            longest = longest.max(wait);
        }
    });
    let (cuts, carried) = (cuts(), rough.carried());
    println!("{cuts} cuts survived in {epochs:?} epochs; longest wait {longest:.1?}; {carried}");
}

#[test]
fn cut_links_change_nothing_with_order_any() {
    let fixtures = Fixtures::new();
    let pipeline = open(PLAN, &fixtures).unwrap();
    let mut rough = Rough::new(3);
    let mut clients: Vec<Remote> =
        (0..2).map(|rank| rough.client(&pipeline, &fixtures, Order::Any, (rank, 2))).collect();
    let over = AtomicBool::new(false);
    let (mut epochs, mut longest, mut healed) = (0, Duration::ZERO, false);
    std::thread::scope(|scope| {
        scope.spawn(|| disturb(&rough.links, 12, &over));
        while !healed {
            healed = over.load(Ordering::SeqCst);
            let mut counts: BTreeMap<u64, u32> = BTreeMap::new();
            std::thread::scope(|scope| {
                let run = |client| {
                    scope.spawn(move || {
                        let mut longest = Duration::ZERO;
                        (epoch(client, &mut longest), longest)
                    })
                };
                let runs: Vec<_> = clients.iter_mut().map(run).collect();
                for run in runs {
                    let (batches, wait) = run.join().unwrap();
                    longest = longest.max(wait);
                    for index in batches.iter().flat_map(|batch| batch.indices.iter().flatten()) {
                        *counts.entry(*index).or_default() += 1;
                    }
                }
            });
            let wanted: BTreeMap<u64, u32> = (0..240).map(|index| (index, 1)).collect();
            assert_eq!(counts, wanted, "epoch {epochs}");
            epochs += 1;
        }
    });
    let (cuts, carried) = (cuts(), rough.carried());
    println!("{cuts} cuts survived in {epochs} epochs; longest wait {longest:.1?}; {carried}");
}

#[test]
fn flipped_bits_never_become_data() {
    let fixtures = Fixtures::new();
    let plan = "images path=$IMAGES | shuffle | decode | resize size=[64,64] | batch size=2";
    let pipeline = open(plan, &fixtures).unwrap();
    let mut rough = Rough::new(2);
    let mut client = rough.client(&pipeline, &fixtures, Order::Exact, (0, 1));
    for link in &rough.links[..rough.data] {
        link.set(Conduct { flip_one_in: 200_000, ..Conduct::GOOD });
    }
    let store: Arc<dyn Store> = Arc::new(LocalStore);
    let start = Position::default();
    let mut local = Run::start(Arc::clone(&pipeline), store, start, options(0, 1)).unwrap();
    let flips = |rough: &Rough| -> u64 {
        rough.links[..rough.data].iter().map(|link| link.carried().flips).sum()
    };
    let (mut batches, mut epochs, mut longest) = (0, 0, Duration::ZERO);
    while flips(&rough) < cuts() || epochs == 0 {
        match local.next_within(PATIENCE).unwrap().unwrap() {
            Next::Batch(wanted) => {
                let asked = Instant::now();
                let found = next(&mut client).unwrap();
                longest = longest.max(asked.elapsed());
                assert!(found == Some(wanted), "batch {batches} differs");
                batches += 1;
            }
            _ => {
                assert_eq!(next(&mut client).unwrap(), None);
                epochs += 1;
            }
        }
    }
    let flips = flips(&rough);
    assert!(client.stats().failures > 0, "flips were noticed");
    let carried = rough.carried();
    println!("{flips} bits flipped in {batches} batches; longest wait {longest:.1?}; {carried}");
}

/// A worker of a release to come: it beats as others do, and greets in a version that nobody knows.
struct Newer {
    over: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Newer {
    fn start(control: Arc<Control>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let worker = control::Worker {
            key: WorkerKey(1),
            name: "newer".into(),
            addresses: vec![listener.local_addr().unwrap().to_string()],
            version: "9.0.0".into(),
            cores: 1,
            draining: false,
        };
        let beat = Beat { worker, busy: 0.0, memory: 0, connections: 0, jobs: vec![] };
        control.beat(&beat).unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&over);
        let beats = std::thread::spawn(move || {
            while !done.load(Ordering::SeqCst) {
                control.beat(&beat).unwrap();
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        let done = Arc::clone(&over);
        listener.set_nonblocking(true).unwrap();
        let greets = std::thread::spawn(move || {
            while !done.load(Ordering::SeqCst) {
                let Ok((mut socket, _)) = listener.accept() else {
                    std::thread::sleep(Duration::from_millis(5));
                    continue;
                };
                let mut hello = Header::new(Kind::Hello, 0, &[]).encode();
                hello[4] = 9;
                // Whoever does not understand it may be gone.
                let _ = socket.write_all(&hello);
            }
        });
        Self { over, threads: vec![beats, greets] }
    }
}

impl Drop for Newer {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

#[test]
fn a_worker_of_another_version_is_left_aside_and_named_if_there_is_no_other() {
    let fixtures = Fixtures::new();
    let pipeline = open("range count=40 | shuffle | batch size=4", &fixtures).unwrap();
    let mut service = Service::new(0);
    let _newer = Newer::start(service.control());
    let impatient = Job { patience: Duration::from_secs(1), ..job("alone", Order::Exact) };
    let mut run = service.start(&pipeline, &fixtures, None, impatient, options(0, 1)).unwrap();
    let error = next(&mut run).unwrap_err().to_string();
    assert!(error.contains("a frame of version 9; known is 2"), "{error}");
    service.add();
    let job = job("both", Order::Exact);
    let mut run = service.start(&pipeline, &fixtures, None, job, options(0, 1)).unwrap();
    let mut seen: Vec<u64> = Vec::new();
    while let Some(batch) = next(&mut run).unwrap() {
        seen.extend(batch.indices.unwrap());
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..40).collect::<Vec<_>>());
}
