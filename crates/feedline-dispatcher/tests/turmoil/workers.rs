//! Workers: they beat, and send what they are asked for, which depends on nothing else.

use crate::frames::{Came, Link};
use crate::world::{Shared, connect, dataset, lock};
use feedline_core::{Batch, Error, Name, Rows, Stretch, Tensor};
use feedline_rpc::Calls;
use feedline_wire::Ask;
use feedline_wire::control::{Beat, DatasetId, Failure, Worker, WorkerKey};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use turmoil::net::{TcpListener, TcpStream};

/// Where workers serve.
const PORT: u16 = 7_171;
/// The dispatcher hears of a worker this often.
const EVERY: Duration = Duration::from_millis(500);
/// How long a client may take to greet.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// The name of a worker's host.
pub fn host(worker: u32) -> String {
    format!("worker-{worker}")
}

/// What a step of an epoch holds.
pub fn content(epoch: u64, step: u64) -> u64 {
    (epoch << 32 | step).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17)
}

/// A worker from its start to its end.
pub async fn run(world: Shared, worker: u32) -> turmoil::Result {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).await?;
    let key = WorkerKey(lock(&world).random.next());
    let calls = connect();
    let address = format!("{}:{PORT}", turmoil::lookup(host(worker)));
    tokio::task::spawn_local(beat(Shared::clone(&world), calls.clone(), worker, key, address));
    let known = Rc::new(RefCell::new(BTreeSet::new()));
    loop {
        let (stream, _) = listener.accept().await?;
        let (world, calls, known) = (Shared::clone(&world), calls.clone(), Rc::clone(&known));
        tokio::task::spawn_local(async move {
            // Whatever ends a connection, the client learns by its end.
            let _ = serve(world, worker, calls, known, stream).await;
        });
    }
}

async fn beat(world: Shared, calls: Calls, worker: u32, key: WorkerKey, address: String) {
    let (name, version, addresses) = (host(worker), "1".to_owned(), vec![address]);
    let identity = Worker { key, name, addresses, version, cores: 2, draining: false };
    loop {
        let draining = lock(&world).workers_draining[worker as usize];
        let identity = Worker { draining, ..identity.clone() };
        let beat = Beat { worker: identity, busy: 0.5, memory: 0, connections: 1, jobs: vec![] };
        // Without an answer the dispatcher is told again soon.
        let _ = calls.beat(&beat).await;
        sleep(EVERY).await;
    }
}

async fn serve(
    world: Shared,
    worker: u32,
    calls: Calls,
    known: Rc<RefCell<BTreeSet<DatasetId>>>,
    stream: TcpStream,
) -> io::Result<()> {
    let instance = u128::from(lock(&world).random.next()).to_le_bytes();
    let mut link = timeout(HANDSHAKE, Link::accept(stream, instance)).await??;
    loop {
        let Came::Request(number, request) = link.next().await? else { return Ok(()) };
        let outcome = match Ask::decode(&request) {
            Ok(ask) => match open(&world, &calls, &known, &ask.dataset).await {
                Ok(()) => compute(&world, worker, &mut link, number, &ask).await?,
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        link.end(number, outcome).await?;
    }
}

/// A worker learns from the dispatcher what a dataset is, once.
async fn open(
    world: &Shared,
    calls: &Calls,
    known: &RefCell<BTreeSet<DatasetId>>,
    id: &DatasetId,
) -> Result<(), Error> {
    if known.borrow().contains(id) {
        return Ok(());
    }
    let argument = lock(world).setup.argument;
    match calls.dataset(id).await {
        Ok(found) if found == dataset(argument) => {
            known.borrow_mut().insert(id.clone());
            return Ok(());
        }
        Ok(_) => lock(world).fail(format!("dataset {id} is another")),
        Err(Failure::Unavailable(_)) => {}
        // There is a job for it, so it was registered, and whoever did was told so.
        Err(failure) => lock(world).fail(format!("dataset {id} is lost: {failure}")),
    }
    Err(Error::unavailable("the dataset", io::ErrorKind::NotConnected.into()))
}

async fn compute(
    world: &Shared,
    worker: u32,
    link: &mut Link,
    number: u32,
    ask: &Ask,
) -> io::Result<Result<(), Error>> {
    let left: Option<Vec<u64>> = ask
        .start
        .strip_prefix("left:")
        .map(|list| list.split(',').filter_map(|step| step.parse().ok()).collect());
    for at in ask.first..ask.first.saturating_add(ask.steps) {
        let pause = lock(world).computing(worker);
        sleep(Duration::from_millis(pause)).await;
        let step = match &left {
            None => at,
            Some(left) => match left.get(at as usize) {
                Some(step) => *step,
                None => return Ok(Err(Error::Source(format!("there is no step {at}")))),
            },
        };
        let tensor = Tensor::from_slice(&[2], &[step, content(ask.epoch, step)]);
        let batch = Batch { fields: vec![(Name::new("step"), tensor)], rows: 2, indices: None };
        link.send(number, &Stretch { step: at, rows: Rows::Batch(batch) }).await?;
    }
    Ok(Ok(()))
}
