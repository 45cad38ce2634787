//! A server that is killed: its client notices, keeps what it has, and nothing is left behind.

use feedline_core::{Batch, DType, Name, Pool, Result, Rows, Stretch, Tensor};
use feedline_shm::Segments;
use feedline_wire::stream::{
    Address, Client, ClientOptions, Handler, Sender, Server, ServerOptions, Way,
};
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const CHILD: &str = "FEEDLINE_TEST_SERVER";
const LENGTH: usize = 300_000;

struct Endless;

impl Handler for Endless {
    fn serve(&self, _: &[u8], out: &mut Sender<'_>) -> Result<()> {
        let pool = Pool::new(1 << 20);
        for step in 0.. {
            let mut bytes = pool.take(LENGTH)?;
            bytes.fill(step as u8);
            let image = Tensor::new(DType::U8, &[LENGTH], bytes.freeze())?;
            let fields = vec![(Name::new("image"), image)];
            let rows = Rows::Batch(Batch { fields, rows: 1, indices: None });
            out.send(&Stretch { step, rows })?;
        }
        Ok(())
    }
}

#[test]
fn a_killed_servers_batches_stay_whole_and_its_client_notices_at_once() {
    if std::env::var_os(CHILD).is_some() {
        return serve();
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", std::thread::current().name().unwrap(), "--nocapture"])
        .env(CHILD, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let address = lines.map_while(std::io::Result::ok).find_map(|line| {
        let (_, address) = line.split_once("listens at ")?;
        address.trim().parse::<Address>().ok()
    });
    let options = ClientOptions { credit: 1 << 20, ..Default::default() };
    let mut client = Client::connect(&address.unwrap(), options).unwrap();
    assert_eq!(client.way(), Way::Shared);
    client.request(b"all").unwrap();
    for _ in 0..100 {
        check(&client.next().unwrap().unwrap());
    }
    let kept: Vec<_> = (0..3).map(|_| client.next().unwrap().unwrap()).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    let started = Instant::now();
    // What had come before is whole; then comes the error.
    while let Ok(more) = client.next() {
        check(&more.unwrap());
    }
    assert!(started.elapsed() < Duration::from_secs(1));
    assert!(!client.is_connected());
    kept.iter().for_each(check);
    drop((kept, client));
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains("memfd:feedline"));
}

fn check(stretch: &Stretch) {
    let Rows::Batch(batch) = &stretch.rows else { panic!("no batch") };
    let image = batch.field("image").expect("it was sent").data();
    assert_eq!(image.len(), LENGTH);
    assert!(image.iter().all(|byte| *byte == stretch.step as u8), "step {}", stretch.step);
}

fn serve() {
    let options = ServerOptions { shared: Some(Segments::new(4 << 20)), ..Default::default() };
    let address = Address::Tcp("127.0.0.1:0".into());
    let server = Server::bind(&address, Endless, options).expect("loopback is there");
    println!("\nlistens at {}", server.address());
    // Until killed, or until the other side is gone.
    let _ = std::io::stdin().read(&mut [0]);
}
