//! How fast batches travel between two processes on one host, and what both spend on it.
//!
//! ```text
//!  wire [word]     measures, as the client; starts itself again as the server
//!  wire serve DIR  serves: raw bytes, frames over TCP, TLS and Unix sockets, shared memory
//! ```

use feedline_core::{Batch, Buffer, DType, Error, Name, Pool, Result, Rows, Stretch, Tensor};
use feedline_shm::Segments;
use feedline_wire::certs::make_development_ca;
use feedline_wire::compress::{Compression, Packer, Packing};
use feedline_wire::stream::{
    Address, Client, ClientOptions, Handler, Sender, Server, ServerOptions, Way,
};
use feedline_wire::tls::{ClientTls, ServerTls};
use rustix::time::{ClockId, clock_gettime};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

const MIB: usize = 1 << 20;
/// Batches per run.
const BATCHES: usize = 1000;
const SCALARS: usize = 200_000;
const ROUNDS: usize = 3;
/// Different batches, so that no cache holds all.
const RING: usize = 16;

fn main() {
    if std::env::args().nth(1).as_deref() == Some("serve") {
        return serve(&std::env::args().nth(2).expect("the folder of the certificates"));
    }
    measure();
}

/// CPU time of this process so far, in seconds.
fn cpu() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Pixels as photos have them: they change slowly, with a little noise.
fn photo(bytes: usize) -> Vec<u8> {
    let mut seed = 1u64;
    let pixel = |at: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let (x, y) = ((at / 3 % 224) as f32, (at / 672) as f32);
        let light = 128.0 + 80.0 * (x / 37.0 + at as f32 % 3.0).sin() * (y / 29.0).cos();
        let noise = if seed >> 62 == 0 { (seed >> 40 & 3) as f32 } else { 0.0 };
        (light / 4.0).round().mul_add(4.0, noise) as u8
    };
    (0..bytes).map(pixel).collect()
}

fn batch(step: u64, image: Buffer) -> Stretch {
    let length = image.len();
    let image = Tensor::new(DType::U8, &[length], image).expect("the shape is that of the bytes");
    let label = Tensor::from_slice(&[1], &[step as i64]);
    let fields = vec![(Name::new("image"), image), (Name::new("label"), label)];
    Stretch { step, rows: Rows::Batch(Batch { fields, rows: 1, indices: None }) }
}

/// Sends what it has again and again.
struct Ring {
    heap: Vec<Stretch>,
    /// The same in shared memory.
    shared: Vec<Stretch>,
}

impl Handler for Ring {
    fn serve(&self, request: &[u8], out: &mut Sender<'_>) -> Result<()> {
        let numbers = std::str::from_utf8(request).ok().and_then(|text| text.split_once(' '));
        let Some((kind, count)) = numbers else { return Err(Error::pipeline("kind count")) };
        let count = count.parse().map_err(|_| Error::pipeline("a count"))?;
        let ring = if kind == "shared" { &self.shared } else { &self.heap };
        for step in 0..count {
            if kind == "scalar" {
                let fields = vec![(Name::new("x"), Tensor::scalar(step as i64))];
                let batch = Batch { fields, rows: 1, indices: None };
                out.send(&Stretch { step: step as u64, rows: Rows::Batch(batch) })?;
            } else {
                out.send(&ring[step % ring.len()])?;
            }
        }
        Ok(())
    }
}

fn serve(certificates: &str) {
    let segments = Segments::new(64 * MIB);
    let pixels = photo(MIB);
    let fill = |mut buffer: feedline_core::BufferMut| {
        buffer.copy_from_slice(&pixels);
        buffer.freeze()
    };
    let pool = Pool::new(0);
    let files = ServerTls {
        certificate: format!("{certificates}/server.pem").into(),
        key: format!("{certificates}/server.key").into(),
        clients: None,
    };
    let identity = files.identity(&[]).expect("the certificates were just made");
    let server = |address: &Address, packing: Packing, share: bool, tls: bool| {
        let heap = (0..RING as u64)
            .map(|step| batch(step, fill(pool.take(MIB).expect("there is memory"))))
            .collect();
        let shared = (0..if share { RING as u64 } else { 0 })
            .filter_map(|step| Some(batch(step, fill(segments.take(MIB).ok()??))))
            .collect();
        let shared_memory = share.then(|| segments.clone());
        let tls = tls.then(|| identity.clone());
        let options = ServerOptions { packing, shared: shared_memory, tls, ..Default::default() };
        Server::bind(address, Ring { heap, shared }, options).expect("loopback is there")
    };
    let tcp = Address::Tcp("127.0.0.1:0".into());
    let path = std::env::temp_dir().join(format!("feedline-wire-{}", std::process::id()));
    let raw = TcpListener::bind("127.0.0.1:0").expect("loopback is there");
    let servers = [
        server(&tcp, Packing::None, false, false),
        server(&Address::Unix(path), Packing::None, false, false),
        server(&tcp, Packing::None, true, false),
        server(&tcp, Packing::Lz4, false, false),
        server(&tcp, Packing::Zstd, false, false),
        server(&tcp, Packing::Auto, false, false),
        server(&tcp, Packing::None, false, true),
    ];
    println!("{}", raw.local_addr().expect("it is bound"));
    servers.iter().for_each(|server| println!("{}", server.address()));
    let ring: Vec<_> = (0..RING).map(|_| pixels.clone()).collect();
    std::thread::spawn(move || {
        for socket in raw.incoming().flatten() {
            let mut socket = socket;
            let _ = socket.set_nodelay(true);
            (0..BATCHES).try_for_each(|at| socket.write_all(&ring[at % RING])).ok();
        }
    });
    for line in std::io::stdin().lines() {
        if line.is_err() {
            break;
        }
        println!("{}", cpu());
    }
}

/// The server's process, which is gone with its standard input.
struct Other {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Other {
    fn start(certificates: &Path) -> Self {
        let program = std::env::current_exe().expect("a program knows where it lies");
        let mut child = Command::new(program)
            .arg("serve")
            .arg(certificates)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("what runs can be run again");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        Self { child, input, output }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the server answers");
        line.trim().to_owned()
    }

    fn cpu(&mut self) -> f64 {
        let input = self.input.as_mut().expect("it is open until the end");
        input.write_all(b"cpu\n").expect("the server listens");
        self.line().parse().expect("the server answers with seconds")
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// Reads every byte, as a copy to a device would.
fn sum(stretch: &Stretch) -> u64 {
    let Rows::Batch(batch) = &stretch.rows else { return 0 };
    let image = batch.fields[0].1.data();
    let words = image
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes are eight bytes")));
    words.fold(0, u64::wrapping_add)
}

fn raw(address: &str) {
    let mut socket = TcpStream::connect(address).expect("the server is there");
    let mut bytes = vec![0; MIB];
    (0..BATCHES).for_each(|_| socket.read_exact(&mut bytes).expect("the server sends"));
}

fn frames(address: &str, way: Way, kind: &str, count: usize, read: bool, authority: Option<&Path>) {
    let address = address.parse().expect("the server's address is one");
    let tls = authority.map(|authority| {
        let files = ClientTls { authority: authority.to_owned(), identity: None, name: None };
        files.trust(&[]).expect("the certificates were just made")
    });
    let options = ClientOptions { tls, ..Default::default() };
    let mut client = Client::connect(&address, options).expect("it is there");
    assert_eq!(client.way(), way);
    client.request(format!("{kind} {count}").as_bytes()).expect("the server listens");
    let mut got = 0;
    while let Some(stretch) = client.next().expect("the server sends") {
        if read {
            std::hint::black_box(sum(&stretch));
        }
        got += 1;
    }
    assert_eq!(got, count);
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A name, and what is to be measured.
type Measured = (&'static str, Box<dyn Fn()>);

fn measure() {
    let folder = std::env::temp_dir().join(format!("feedline-wire-certs-{}", std::process::id()));
    make_development_ca(&folder, &["127.0.0.1"]).expect("certificates can be made");
    let mut other = Other::start(&folder);
    let addresses: Vec<_> = (0..8).map(|_| other.line()).collect();
    let authority = folder.join("ca.pem");
    let at = |index: usize| addresses[index].clone();
    let run = |index: usize, way: Way, kind: &'static str, read: bool| {
        let (address, authority) = (at(index), (way == Way::Tls).then(|| authority.clone()));
        Box::new(move || frames(&address, way, kind, BATCHES, read, authority.as_deref()))
            as Box<dyn Fn()>
    };
    let plain = at(0);
    let runs: Vec<Measured> = vec![
        ("raw TCP", Box::new(move || raw(&plain))),
        ("frames, TCP", run(1, Way::Tcp, "heap", false)),
        ("frames, TCP, every byte read", run(1, Way::Tcp, "heap", true)),
        ("frames, Unix socket", run(2, Way::Unix, "heap", false)),
        ("shared memory, copied there", run(3, Way::Shared, "heap", false)),
        ("shared memory, made there", run(3, Way::Shared, "shared", false)),
        ("shared memory, made there, every byte read", run(3, Way::Shared, "shared", true)),
        ("frames, TCP, lz4", run(4, Way::Tcp, "heap", false)),
        ("frames, TCP, zstd", run(5, Way::Tcp, "heap", false)),
        ("frames, TCP, auto", run(6, Way::Tcp, "heap", false)),
        ("frames, TLS", run(7, Way::Tls, "heap", false)),
    ];
    // A word on the command line picks the runs that have it in their names.
    let picked = std::env::args().nth(1).unwrap_or_default();
    let runs: Vec<_> = runs.into_iter().filter(|(name, _)| name.contains(&picked)).collect();
    let mut found = vec![(Vec::new(), Vec::new()); runs.len()];
    let mut scalars = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        // In turn, so that what else the machine does meets all alike.
        for ((_, run), (rates, costs)) in runs.iter().zip(&mut found) {
            let (spent, started) = (cpu() + other.cpu(), Instant::now());
            run();
            let seconds = started.elapsed().as_secs_f64();
            rates.push(BATCHES as f64 / 1024.0 / seconds);
            costs.push((cpu() + other.cpu() - spent) * 1e3 / BATCHES as f64);
        }
        for (index, way) in [(1, Way::Tcp), (2, Way::Unix)] {
            let started = Instant::now();
            frames(&at(index), way, "scalar", SCALARS, false, None);
            scalars[index - 1].push(SCALARS as f64 / started.elapsed().as_secs_f64());
        }
    }
    println!("{BATCHES} batches of 1 MiB, median of {ROUNDS} runs; CPU of both processes together");
    println!("{:44} {:>8} {:>12}", "", "GiB/s", "ms per MiB");
    for ((name, _), (rates, costs)) in runs.iter().zip(&mut found) {
        println!("{name:44} {:8.2} {:12.3}", median(rates), median(costs));
    }
    let [tcp, unix] = &mut scalars;
    println!("scalars per second: {:.0} over TCP, {:.0} over Unix", median(tcp), median(unix));
    let pixels = photo(MIB);
    for packing in [Packing::Lz4, Packing::Zstd] {
        let mut packer = Packer::new(packing, &[Compression::Lz4, Compression::Zstd]);
        let packed = packer.pack(&[&pixels], MIB).expect("it can be packed");
        let size = packed.map_or(MIB, |(_, bytes)| bytes.len());
        println!("{packing:?}: {:.2} times smaller", MIB as f64 / size as f64);
    }
    // What is left is in the folder for temporary files.
    let _ = std::fs::remove_dir_all(&folder);
}
