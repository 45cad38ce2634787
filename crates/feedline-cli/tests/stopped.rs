//! The service as processes of their own, of which some are stopped, slow, or out of space.
#![expect(clippy::unwrap_used, reason = "in a test, unwrap says that the test ends otherwise")]

use feedline_core::{Batch, Blobs, Position, Seed, Store};
use feedline_engine::{Next, Options, Run};
use feedline_ops::Pipeline;
use feedline_plan::Plan;
use feedline_remote::{Job, Remote};
use feedline_rpc::Remote as Control;
use feedline_store::LocalStore;
use feedline_testkit::volumes::npy;
use feedline_wire::Order;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Nothing takes so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process that was started here, and ends with this value.
struct Process {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Process {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Self { child, said }
    }

    fn feedline(args: &[&str]) -> Self {
        Self::start(Command::new(env!("CARGO_BIN_EXE_feedline")).args(args).stderr(Stdio::null()))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Returns when it stands still.
    fn stop(&self) {
        self.signal(Signal::STOP);
        let status = format!("/proc/{}/stat", self.child.id());
        let begun = Instant::now();
        while !std::fs::read_to_string(&status).unwrap().contains(") T ") {
            assert!(begun.elapsed() < PATIENCE, "it cannot be stopped");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    /// The most memory it has had so far, in bytes.
    fn most_memory(&self) -> u64 {
        most_memory(&self.child.id().to_string())
    }
}

fn most_memory(process: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

impl Drop for Process {
    fn drop(&mut self) {
        // SIGKILL also ends what is stopped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A dispatcher and workers.
struct Service {
    workers: Vec<Process>,
    dispatcher: Process,
    url: String,
    _journal: tempfile::TempDir,
}

impl Service {
    fn new(workers: usize, args: &[&str]) -> Self {
        let journal = tempfile::tempdir().unwrap();
        let folder = journal.path().to_str().unwrap();
        let usual = ["dispatcher", "--listen", "127.0.0.1:0", "--journal", folder];
        let mut dispatcher = Process::feedline(&[&usual[..], args].concat());
        let url = dispatcher.line().rsplit_once(' ').expect("it says where").1.to_owned();
        let mut service = Self { workers: vec![], dispatcher, url, _journal: journal };
        (0..workers).for_each(|_| service.add(&[]));
        service
    }

    fn add(&mut self, args: &[&str]) {
        let usual = ["worker", "--dispatcher", &self.url, "--threads", "1"];
        let mut worker = Process::feedline(&[&usual[..], args].concat());
        assert!(worker.line().contains("serves at"));
        self.workers.push(worker);
    }

    fn client(&self, plan: &str, job: Job, rank: u64, world: u64) -> Remote {
        client(&self.url, plan, job, rank, world)
    }
}

fn options(rank: u64, world: u64) -> Options {
    Options { seed: Seed(3), rank, world, with_index: true, epochs: None, ..Options::default() }
}

fn opened(plan: &str) -> Arc<Pipeline> {
    let plan: Plan = plan.parse().unwrap();
    Arc::new(Pipeline::open(&plan, &LocalStore, &Blobs::new()).unwrap())
}

fn client(url: &str, plan: &str, job: Job, rank: u64, world: u64) -> Remote {
    let control = Arc::new(Control::new(url).unwrap());
    let data = (&LocalStore as &dyn Store, &Blobs::new());
    Remote::start(control, opened(plan), data, None, 0, job, options(rank, world)).unwrap()
}

fn job(name: &str, order: Order) -> Job {
    Job { order, window: 2, patience: PATIENCE, ..Job::new(name) }
}

fn next(run: &mut Remote) -> Option<Batch> {
    match run.next_within(PATIENCE).unwrap() {
        Some(Next::Batch(batch)) => Some(batch),
        Some(_) => None,
        None => panic!("it hangs"),
    }
}

/// Takes epochs of a client and of a local run, and holds one against the other.
struct Compared {
    client: Remote,
    local: Run,
    longest: Duration,
}

impl Compared {
    fn new(service: &Service, plan: &str, name: &str) -> Self {
        let store: Arc<dyn Store> = Arc::new(LocalStore);
        let start = Position::default();
        let local = Run::start(opened(plan), store, start, options(0, 1)).unwrap();
        let client = service.client(plan, job(name, Order::Exact), 0, 1);
        Self { client, local, longest: Duration::ZERO }
    }

    /// One more batch, or the end of the epoch; whether it was a batch.
    fn step(&mut self) -> bool {
        let wanted = match self.local.next_within(PATIENCE).unwrap().unwrap() {
            Next::Batch(batch) => Some(batch),
            _ => None,
        };
        let asked = Instant::now();
        let found = next(&mut self.client);
        self.longest = self.longest.max(asked.elapsed());
        assert_eq!(found, wanted);
        found.is_some()
    }
}

const PLAN: &str = "range count=240 | shuffle | sleep ms=1 | batch size=4";

#[test]
fn a_stopped_worker_holds_up_no_epoch() {
    let service = Service::new(3, &[]);
    let mut compared = Compared::new(&service, PLAN, "stopped");
    let stops = std::env::var("FEEDLINE_STOPS").ok().and_then(|text| text.parse().ok());
    let stops: usize = stops.unwrap_or(6);
    for stop in 0..stops {
        // In the middle of what it streams.
        (0..5).for_each(|_| assert!(compared.step()));
        let worker = &service.workers[stop % 3];
        worker.stop();
        while compared.step() {}
        // The next epoch as well, from its beginning.
        while compared.step() {}
        worker.go_on();
    }
    while compared.step() {}
    println!("{stops} workers stopped; the longest wait was {:.1?}", compared.longest);
}

#[test]
fn a_stopped_dispatcher_is_not_missed_by_exact_order_and_waited_for_by_any() {
    let service = Service::new(2, &[]);
    let mut compared = Compared::new(&service, PLAN, "exact");
    let mut any = service.client(PLAN, job("any", Order::Any), 0, 1);
    let mut counts: BTreeMap<u64, u32> = BTreeMap::new();
    let mut count = |batch: &Batch| {
        for index in batch.indices.iter().flatten() {
            *counts.entry(*index).or_default() += 1;
        }
    };
    assert!(compared.step());
    count(&next(&mut any).unwrap());
    service.dispatcher.stop();
    while compared.step() {}
    while compared.step() {}
    // What it holds is delivered, and then it waits.
    while let Some(Next::Batch(batch)) = any.next_within(Duration::from_millis(500)).unwrap() {
        count(&batch);
    }
    service.dispatcher.go_on();
    while let Some(batch) = next(&mut any) {
        count(&batch);
    }
    assert_eq!(counts, (0..240).map(|index| (index, 1)).collect());
}

const CHILD: &str = "FEEDLINE_TEST_CLIENT";

/// What a client process does: prints the indices of each batch, as slowly as it is told.
#[test]
fn child_that_trains() {
    let Ok(url) = std::env::var(CHILD) else { return };
    let mut run = client(&url, PLAN, job("stopped", Order::Any), 1, 2);
    let mut out = std::io::stdout();
    while let Some(batch) = next(&mut run) {
        let indices: Vec<String> =
            batch.indices.iter().flatten().map(ToString::to_string).collect();
        writeln!(out, "\nsaw {}", indices.join(" ")).unwrap();
        out.flush().unwrap();
    }
    writeln!(out, "\nthe end").unwrap();
}

#[test]
fn a_stopped_client_is_named_to_the_others_and_goes_on_when_it_is_let() {
    let service = Service::new(2, &["--client-timeout", "1"]);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child_that_trains", "--nocapture"]).env(CHILD, &service.url);
    let mut child = Process::start(command.stderr(Stdio::null()));
    let mut counts: BTreeMap<u64, u32> = BTreeMap::new();
    let mut saw = |line: &str| {
        let Some(indices) = line.strip_prefix("saw ") else { return false };
        indices.split(' ').for_each(|one| *counts.entry(one.parse().unwrap()).or_default() += 1);
        true
    };
    while !saw(&child.line()) {}
    child.stop();
    let mut other = service.client(PLAN, job("stopped", Order::Any), 0, 2);
    let mut trained = 0;
    let error = loop {
        match other.next_within(PATIENCE) {
            Ok(Some(Next::Batch(batch))) => {
                trained += 1;
                let indices: Vec<String> =
                    batch.indices.iter().flatten().map(ToString::to_string).collect();
                saw(&format!("saw {}", indices.join(" ")));
            }
            Ok(end) => panic!("{end:?}, and a client holds windows"),
            Err(error) => break error.to_string(),
        }
    };
    assert!(error.contains("consumer 1 holds") && error.contains("silent"), "{error}");
    assert!(trained > 20, "all but what the other holds: {trained} steps");
    child.go_on();
    let rest = std::thread::spawn(move || {
        let mut rest = Vec::new();
        loop {
            match other.next_within(PATIENCE) {
                Ok(Some(Next::Batch(batch))) => rest.extend(batch.indices.unwrap()),
                Ok(Some(_)) => return rest,
                Ok(None) => panic!("it hangs"),
                // As long as nothing was heard of it.
                Err(error) => assert!(error.to_string().contains("silent"), "{error}"),
            }
        }
    });
    loop {
        match child.line().as_str() {
            "the end" => break,
            line => saw(line),
        };
    }
    for index in rest.join().unwrap() {
        saw(&format!("saw {index}"));
    }
    assert_eq!(counts, (0..240).map(|index| (index, 1)).collect());
}

/// Files of half a megabyte each.
fn large(folder: &Path, count: usize) -> String {
    for number in 0..count {
        let values = vec![number as u8; 512 << 10];
        let file = folder.join(format!("{number:03}.npy"));
        std::fs::write(file, npy("|u1", false, &[values.len()], &values)).unwrap();
    }
    format!("npy path={} | shuffle | batch size=2", folder.display())
}

#[test]
fn clients_that_do_not_read_neither_swell_a_worker_nor_disturb_others() {
    let folder = tempfile::tempdir().unwrap();
    let plan = large(folder.path(), 128);
    for shared in [&["--no-shared-memory"][..], &["--shared-memory", "32MB"]] {
        let mut service = Service::new(0, &[]);
        let sizes = ["--memory", "16MB", "--shelf", "8MB"];
        service.add(&[&sizes[..], shared].concat());
        let mut compared = Compared::new(&service, &plan, "quick");
        while compared.step() {}
        let before = (service.workers[0].most_memory(), most_memory("self"));
        // Each may hold 4 MB, has seen one batch, and looks at no other.
        let lazy: Vec<Remote> = (0..8)
            .map(|number| {
                let job = Job {
                    memory: 4 << 20,
                    window: 64,
                    ..job(&format!("lazy {number}"), Order::Exact)
                };
                let mut run = service.client(&plan, job, 0, 1);
                assert!(next(&mut run).is_some());
                run
            })
            .collect();
        for _ in 0..4 {
            while compared.step() {}
        }
        let grown = (service.workers[0].most_memory() - before.0, most_memory("self") - before.1);
        let (worker, clients) = (grown.0 >> 20, grown.1 >> 20);
        println!("a worker of 8 lazy clients grew by {worker} MB, and they by {clients} MB");
        // All of their epochs would be half a gigabyte.
        assert!(worker < 160 && clients < 160, "they grew by {worker} and {clients} MB");
        drop(lazy);
    }
}

const SMALL_DISK: &str = "FEEDLINE_TEST_SMALL_DISK";

/// Runs where the journal's folder is a disk of its own, of a few megabytes.
#[test]
fn child_on_a_small_disk() {
    let Ok(folder) = std::env::var(SMALL_DISK) else { return };
    let args = ["dispatcher", "--listen", "127.0.0.1:0", "--journal", &folder];
    let mut dispatcher = Process::feedline(&args);
    let url = dispatcher.line().rsplit_once(' ').expect("it says where").1.to_owned();
    let mut service =
        Service { workers: vec![], dispatcher, url, _journal: tempfile::tempdir().unwrap() };
    service.add(&[]);
    let mut exact = Compared::new(&service, PLAN, "exact");
    let plan = "range count=8000 | shuffle | batch size=4";
    let mut any = service.client(plan, job("any", Order::Any), 0, 1);
    let mut counts: BTreeMap<u64, u32> = BTreeMap::new();
    let mut count = |batch: &Batch| {
        for index in batch.indices.iter().flatten() {
            *counts.entry(*index).or_default() += 1;
        }
    };
    count(&next(&mut any).unwrap());
    assert!(exact.step());
    let filler = Path::new(&folder).join("filler");
    let mut file = std::fs::File::create(&filler).unwrap();
    while file.write_all(&[7; 4096]).is_ok() {}
    drop(file);
    // Nothing new can be granted; what needs no grant goes on.
    while exact.step() {}
    while exact.step() {}
    let refused = loop {
        match any.next_within(Duration::from_secs(2)) {
            Ok(Some(Next::Batch(batch))) => count(&batch),
            Ok(Some(end)) => panic!("{end:?} on a full disk"),
            Ok(None) => break "it waits".to_owned(),
            Err(error) => break error.to_string(),
        }
    };
    let alive = service.dispatcher.child.try_wait().unwrap().is_none();
    assert!(alive, "a full disk does not end the dispatcher");
    assert!(Control::new(&service.url).unwrap().status().unwrap().journal.full);
    std::fs::remove_file(filler).unwrap();
    let begun = Instant::now();
    loop {
        // While there is no room, that may be an error, which passes.
        match any.next_within(PATIENCE) {
            Ok(Some(Next::Batch(batch))) => count(&batch),
            Ok(Some(_)) => break,
            Ok(None) | Err(_) => {
                assert!(begun.elapsed() < PATIENCE, "there is room, and {refused}");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
    assert_eq!(counts, (0..8000).map(|index| (index, 1)).collect());
    println!("\nrecovered after a full disk");
}

#[test]
fn a_dispatcher_whose_disk_is_full_recovers_when_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o size=16m small \"$1\" && exec \"$2\" --exact child_on_a_small_disk --nocapture";
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
    assert!(told.contains("\nrecovered after a full disk"), "{told}{complaints}");
}

#[test]
fn a_second_dispatcher_on_one_journal_is_refused_in_words() {
    let service = Service::new(0, &[]);
    let folder = service._journal.path().to_str().unwrap();
    for _ in 0..5 {
        let args = ["dispatcher", "--listen", "127.0.0.1:0", "--journal", folder];
        let output = Command::new(env!("CARGO_BIN_EXE_feedline")).args(args).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let who = format!("process {}", service.dispatcher.child.id());
        assert!(!output.status.success() && said.contains(&who), "{said}");
    }
    assert!(Control::new(&service.url).unwrap().status().is_ok(), "the first goes on");
}
