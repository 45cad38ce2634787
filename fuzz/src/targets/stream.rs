//! The two real ends of a connection, each against a peer that says whatever it likes.

use crate::runner::{came_to, ended};
use crate::targets::frames::stretches;
use feedline_core::{Buffer, Error, Pool, Result, Rows, Tensor};
use feedline_shm::{Segment, Segments, send_with_descriptor};
use feedline_wire::frame::{
    self, HEADER, Header, Hello, Kind, Limits, Piece, VERSION, checksum, encode_credit,
    encode_error, encode_request, encode_segment,
};
use feedline_wire::stream::{
    Address, Client, ClientOptions, Handler, Next, Sender, Server, ServerOptions,
};
use feedline_wire::stretch::Encoded;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// Nobody waits longer for the rest of an input: it is all there.
const PATIENCE: Duration = Duration::from_millis(200);

/// Makes the checksums of headers and descriptions fit, and counts the frames, as far as they can be
/// told apart: so that what lies behind them is reached.
fn sealed(input: &[u8]) -> Vec<u8> {
    let mut bytes = input.to_vec();
    let (mut at, mut sequence) = (0, 0u64);
    while let Some(frame) = bytes.get_mut(at..).filter(|rest| rest.len() >= HEADER) {
        let length = u32::from_le_bytes([frame[20], frame[21], frame[22], frame[23]]) as usize;
        let mut sent = [0; 8];
        sent.copy_from_slice(&frame[24..32]);
        let sent = usize::try_from(u64::from_le_bytes(sent)).unwrap_or(usize::MAX);
        frame[8..16].copy_from_slice(&sequence.to_le_bytes());
        let end = HEADER.saturating_add(length).min(frame.len());
        let sum = checksum([&frame[HEADER..end]]).to_le_bytes();
        frame[40..44].copy_from_slice(&sum);
        let sum = checksum([&frame[..60]]).to_le_bytes();
        frame[60..64].copy_from_slice(&sum);
        at = at.saturating_add(HEADER).saturating_add(length).saturating_add(sent);
        sequence += 1;
    }
    bytes
}

fn path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("feedline-fuzz-{}-{name}", std::process::id()))
}

/// Sends two stretches, whatever is asked.
struct Sends;

impl Handler for Sends {
    fn serve(&self, request: &[u8], out: &mut Sender<'_>) -> Result<()> {
        if request.starts_with(b"fail") {
            return Err(Error::Budget("as asked".into()));
        }
        stretches().iter().try_for_each(|stretch| out.send(stretch))
    }
}

static SERVER: LazyLock<(Server, PathBuf)> = LazyLock::new(|| {
    let path = path("server");
    let options = ServerOptions { handshake: PATIENCE, timeout: PATIENCE, ..Default::default() };
    let server = Server::bind(&Address::Unix(path.clone()), Sends, options);
    (server.expect("a socket can be bound"), path)
});

/// A server hears these bytes from a client, and goes on serving others.
pub fn served(input: &[u8]) {
    let (_, path) = &*SERVER;
    let mut socket = UnixStream::connect(path).expect("the server accepts clients");
    socket.set_read_timeout(Some(PATIENCE * 10)).expect("a socket has a time-out");
    // It may be shut down in the middle of them, which is an answer.
    let _ = socket.write_all(&sealed(input));
    let _ = socket.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _ = ended(socket.read_to_end(&mut answer));
    let mut rest = &answer[..];
    while let Some(kind) = rest.get(6) {
        came_to(format!("{}", char::from(b'a' + kind % 26)));
        let length = u32::from_le_bytes([rest[20], rest[21], rest[22], rest[23]]) as usize;
        let sent = u32::from_le_bytes([rest[24], rest[25], rest[26], rest[27]]) as usize;
        rest = rest.get(HEADER + length + sent..).unwrap_or_default();
    }
}

fn frame(kind: Kind, request: u32, description: &[u8]) -> Vec<u8> {
    [&Header::new(kind, request, description).encode()[..], description].concat()
}

fn hello() -> Hello {
    Hello { oldest: VERSION, newest: VERSION, timeout: 10_000, ..Hello::default() }
}

/// What clients say.
pub fn served_corpus() -> Vec<Vec<u8>> {
    let hello = frame(Kind::Hello, 0, &hello().encode());
    let ask = |what: &[u8]| frame(Kind::Request, 1, &encode_request(1 << 20, b"", what));
    let credit = frame(Kind::Credit, 1, &encode_credit(500, &[1]));
    let beat = frame(Kind::Heartbeat, 0, &[]);
    vec![
        hello.clone(),
        [hello.clone(), ask(b"all")].concat(),
        [hello.clone(), beat, ask(b"fail"), credit.clone()].concat(),
        [hello, ask(b"one"), credit.clone(), ask(b"two"), credit].concat(),
    ]
}

/// Memory that a server shares.
static SHARED: LazyLock<(Buffer, Arc<Segment>)> = LazyLock::new(|| {
    let segments = Segments::new(1 << 20);
    let buffer = segments.take(4096).expect("there is memory").expect("it is allowed").freeze();
    let (segment, _) = segments.locate(&buffer).expect("it lies in a segment");
    (buffer, segment)
});

/// Says everything; whenever a segment is announced, with the descriptor of one.
fn say(socket: &mut UnixStream, mut bytes: &[u8]) -> std::io::Result<()> {
    while bytes.len() >= HEADER {
        let length = u32::from_le_bytes([bytes[20], bytes[21], bytes[22], bytes[23]]) as usize;
        let sent = u32::from_le_bytes([bytes[24], bytes[25], bytes[26], bytes[27]]) as usize;
        let (frame, rest) = bytes.split_at((HEADER + length + sent).min(bytes.len()));
        let first = match frame[6] == Kind::Segment as u8 {
            true => send_with_descriptor(&*socket, frame, SHARED.1.descriptor())?,
            false => 0,
        };
        socket.write_all(&frame[first..])?;
        bytes = rest;
    }
    socket.write_all(bytes)
}

/// A client hears these bytes from a server.
pub fn received(input: &[u8]) {
    let _ = hear(input, 0);
}

/// A client that shares memory hears these bytes from a server.
pub fn borrowed(input: &[u8]) {
    let _ = hear(input, 1 << 20);
}

/// What a client makes of a server's words; how many stretches it took.
fn hear(input: &[u8], shared_memory: usize) -> usize {
    static LISTENER: LazyLock<(UnixListener, PathBuf)> = LazyLock::new(|| {
        let path = path("client");
        let _ = std::fs::remove_file(&path);
        (UnixListener::bind(&path).expect("a socket can be bound"), path)
    });
    let (listener, path) = &*LISTENER;
    let bytes = sealed(input);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut socket, _) = listener.accept().expect("a client comes");
            // The client may be gone before it has heard all, which is an answer.
            let _ = say(&mut socket, &bytes);
            let _ = socket.shutdown(std::net::Shutdown::Write);
            let _ = socket.read_to_end(&mut Vec::new());
        });
        let limits = Limits { description: 16 << 10, payload: 1 << 20, fields: 64, names: 64 };
        let options = ClientOptions {
            handshake: PATIENCE,
            timeout: PATIENCE,
            shared_memory,
            limits,
            pool: Pool::new(0),
            ..ClientOptions::default()
        };
        let address = Address::Unix(path.clone());
        let mut taken = 0;
        let Some(mut client) = ended(Client::connect(&address, options)) else { return taken };
        if ended(client.request(b"all")).is_none() {
            return taken;
        }
        while let Some(next) = ended(client.next_within(PATIENCE * 10)) {
            match next {
                Next::Stretch(stretch) => {
                    came_to(format!("even {}", sum(&stretch.rows).is_multiple_of(2)));
                    taken += 1;
                }
                Next::End => break,
                Next::NotYet => panic!("a client waits for a server that is gone"),
            }
        }
        taken
    })
}

/// Touches every byte of all values.
fn sum(rows: &Rows) -> u64 {
    let sum = |tensor: &Tensor| tensor.data().iter().map(|byte| u64::from(*byte)).sum::<u64>();
    match rows {
        Rows::Batch(batch) => batch.fields.iter().map(|(_, tensor)| sum(tensor)).sum(),
        Rows::Some { good, .. } => good.iter().flat_map(|(_, _, fields)| fields).map(sum).sum(),
    }
}

/// What servers say that share memory.
pub fn borrowed_corpus() -> Vec<Vec<u8>> {
    let hello = Hello { shared_memory: 1, ..hello() };
    let mut all = frame(Kind::Hello, 0, &hello.encode());
    all.extend(frame(Kind::Segment, 0, &encode_segment(1, SHARED.1.size())));
    for stretch in stretches() {
        let encoded = Encoded::new(&stretch);
        let (mut pieces, mut here) = (Vec::new(), Vec::new());
        for (number, tensor) in encoded.tensors.iter().enumerate() {
            let length = tensor.data().len();
            pieces.push(match number {
                2 => Piece::Here { length },
                _ => Piece::Segment { number: 1, offset: number * 64, length },
            });
            if number == 2 {
                here.extend(tensor.data());
            }
        }
        let sent = [frame::encode_pieces(&pieces), here].concat();
        let plain = encoded.tensors.iter().map(|tensor| tensor.data().len()).sum();
        let header = Header::new(Kind::Stretch, 1, &encoded.description);
        all.extend(Header { shared: true, sent: sent.len(), plain, ..header }.encode());
        all.extend(&encoded.description);
        all.extend(sent);
    }
    let gone = frame(Kind::Segment, 0, &encode_segment(1, 0));
    let end = frame(Kind::End, 1, &[]);
    vec![[all.clone(), end.clone()].concat(), [all, gone, end].concat()]
}

/// What servers say.
pub fn received_corpus() -> Vec<Vec<u8>> {
    let hello = frame(Kind::Hello, 0, &hello().encode());
    let mut all = hello.clone();
    for stretch in stretches() {
        let encoded = Encoded::new(&stretch);
        let header = Header::new(Kind::Stretch, 1, &encoded.description);
        let header = Header { sent: encoded.length, plain: encoded.length, ..header };
        all.extend(header.encode());
        all.extend(&encoded.description);
        all.extend(encoded.parts.concat());
    }
    let end = frame(Kind::End, 1, &[]);
    let failed = frame(Kind::Error, 1, &encode_error(&Error::Budget("too many".into())));
    let refused = frame(Kind::Error, 0, &encode_error(&Error::Cancelled));
    vec![[all.clone(), end].concat(), [all, failed].concat(), hello, refused]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_is_taken_until_it_is_changed() {
        assert_eq!(hear(&received_corpus()[0], 0), 2);
        let shares = borrowed_corpus();
        assert!(shares.iter().all(|input| hear(input, 1 << 20) == 2));
        assert_eq!(hear(&shares[0], 0), 0, "who shares no memory takes none");
        let mut changed = received_corpus()[0].clone();
        let last = changed.len() - 200;
        changed.remove(last);
        assert!(hear(&changed, 0) < 2);
    }
}
