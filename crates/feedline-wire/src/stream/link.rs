//! Frames on a socket: one side writes them whole, the other reads them one by one.

use super::socket::Socket;
use crate::bytes::malformed;
use crate::frame::{Checking, HEADER, Header, Kind, Limits, encode_segment};
use feedline_shm::{Segment, receive_with_descriptors, send_with_descriptor};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How much is read at once where frames are small. What a large frame has beyond it is read to
/// where it belongs.
const AT_ONCE: usize = 16 << 10;

/// Descriptors that may wait for the frame that explains them.
const DESCRIPTORS: usize = 16;

/// Locks even after a panic elsewhere: what is locked here is always whole.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A payload is summed and sent, or read and summed, so many bytes at a time: they stay in the cache
/// meanwhile.
pub(super) const PIECE: usize = 256 << 10;

/// Frames up to this many bytes may be held back, to go out together.
const SMALL: usize = 4 << 10;

/// So many bytes go out together at most.
const TOGETHER: usize = 32 << 10;

/// Sends frames. After an error the connection is shut down: half a frame may be out.
pub(super) struct Writer {
    socket: Arc<Socket>,
    sequence: u64,
    last: Instant,
    /// Small frames that go out with the next that is not held back.
    held: Vec<u8>,
}

impl Writer {
    pub(super) fn new(socket: Arc<Socket>) -> Self {
        Self { socket, sequence: 0, last: Instant::now(), held: Vec::new() }
    }

    /// The number that the next frame will have.
    pub(super) fn next_number(&self) -> u64 {
        self.sequence
    }

    /// Sends a frame; only its number is filled in here.
    pub(super) fn send(
        &mut self,
        header: Header,
        description: &[u8],
        payload: &[&[u8]],
    ) -> io::Result<()> {
        let head = Header { sequence: self.sequence, ..header }.encode();
        let mut slices = Vec::with_capacity(payload.len() + 3);
        slices.extend([IoSlice::new(&self.held), IoSlice::new(&head), IoSlice::new(description)]);
        slices.extend(payload.iter().map(|part| IoSlice::new(part)));
        let sent = self.socket.write(&mut slices);
        self.sequence += 1;
        self.sent(sent)
    }

    /// Sends a frame with a large payload, whose checksum is computed on the way: what was just summed is
    /// still in the cache when it is sent.
    pub(super) fn send_summed(
        &mut self,
        header: Header,
        description: &[u8],
        payload: &[&[u8]],
    ) -> io::Result<()> {
        let header = Header { sequence: self.sequence, trailed: true, ..header };
        self.sequence += 1;
        let sent = self.write_summed(&header.encode(), description, payload);
        self.sent(sent)
    }

    fn write_summed(&self, head: &[u8], description: &[u8], payload: &[&[u8]]) -> io::Result<()> {
        let mut checking = Checking::new();
        let mut slices =
            vec![IoSlice::new(&self.held), IoSlice::new(head), IoSlice::new(description)];
        let mut bytes = 0;
        for piece in payload.iter().flat_map(|part| part.chunks(PIECE)) {
            if bytes + piece.len() > PIECE {
                self.socket.write(&mut slices)?;
                (bytes, slices) = (0, Vec::new());
            }
            checking.update(piece);
            slices.push(IoSlice::new(piece));
            bytes += piece.len();
        }
        let trailer = checking.trailer();
        slices.push(IoSlice::new(&trailer));
        self.socket.write(&mut slices)
    }

    /// Sends a frame, or holds it back while it is small: until another is sent, or [`Writer::flush`].
    pub(super) fn send_soon(
        &mut self,
        header: Header,
        description: &[u8],
        payload: &[&[u8]],
    ) -> io::Result<()> {
        let size =
            HEADER + description.len() + payload.iter().map(|part| part.len()).sum::<usize>();
        if size > SMALL {
            return self.send(header, description, payload);
        }
        self.held.extend(Header { sequence: self.sequence, ..header }.encode());
        self.held.extend(description);
        payload.iter().for_each(|part| self.held.extend(*part));
        self.sequence += 1;
        if self.held.len() < TOGETHER {
            return Ok(());
        }
        self.flush()
    }

    /// Sends what was held back.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        if self.held.is_empty() {
            return Ok(());
        }
        let sent = self.socket.write(&mut [IoSlice::new(&self.held)]);
        self.sent(sent)
    }

    /// Sends a frame without a payload.
    pub(super) fn say(&mut self, kind: Kind, request: u32, description: &[u8]) -> io::Result<()> {
        self.send(Header::new(kind, request, description), description, &[])
    }

    /// Passes a segment to the other side, which may name it by its number from then on.
    pub(super) fn pass(&mut self, segment: &Segment) -> io::Result<()> {
        self.flush()?;
        let description = encode_segment(segment.number(), segment.size());
        let header = Header::new(Kind::Segment, 0, &description);
        let head = Header { sequence: self.sequence, ..header }.encode();
        let bytes = [&head[..], &description].concat();
        let sent = send_with_descriptor(&*self.socket, &bytes, segment.descriptor())
            .and_then(|count| self.socket.write(&mut [IoSlice::new(&bytes[count..])]));
        self.sequence += 1;
        self.sent(sent)
    }

    fn sent(&mut self, sent: io::Result<()>) -> io::Result<()> {
        if sent.is_err() {
            self.socket.shut_down();
        }
        self.held.clear();
        self.last = Instant::now();
        sent
    }
}

/// Sends a sign of life.
type Beat = dyn Fn(&mut Writer) -> io::Result<()> + Send;

/// Sends a sign of life when nothing else was sent for a while.
pub(super) struct Pulse {
    pub(super) writer: Arc<Mutex<Writer>>,
    /// How often the other side wants to hear something.
    pub(super) interval: Duration,
    /// What is sent.
    pub(super) beat: Box<Beat>,
}

impl Pulse {
    fn check(&self) -> io::Result<()> {
        // If somebody holds it, they are sending.
        match self.writer.try_lock() {
            Ok(mut writer) if writer.last.elapsed() >= self.interval => (self.beat)(&mut writer),
            _ => Ok(()),
        }
    }
}

/// How often somebody who gives up after `timeout` must hear something.
pub(super) fn interval(timeout: Duration) -> Duration {
    (timeout / 4).clamp(Duration::from_millis(5), Duration::from_secs(60))
}

/// Receives frames.
pub(super) struct Reader {
    socket: Arc<Socket>,
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    sequence: u64,
    limits: Limits,
    descriptors: VecDeque<OwnedFd>,
    /// When something came last, and how long nothing may come.
    last: Instant,
    timeout: Duration,
    /// By when all that is read must have come: until the peer is known.
    deadline: Option<Instant>,
    /// By when the frame that has begun to come must be understood, but for its payload.
    head_deadline: Option<Instant>,
    pulse: Option<Pulse>,
}

impl Reader {
    /// Reads greetings, and nothing else; they must have come by the deadline.
    pub(super) fn new(socket: Arc<Socket>, deadline: Instant) -> Self {
        Self {
            socket,
            bytes: vec![0; AT_ONCE].into_boxed_slice(),
            start: 0,
            end: 0,
            sequence: 0,
            limits: Limits::greeting(),
            descriptors: VecDeque::new(),
            last: Instant::now(),
            timeout: Duration::MAX,
            deadline: Some(deadline),
            head_deadline: None,
            pulse: None,
        }
    }

    /// From here on, frames within these limits, in a conversation that may pause: as long as signs
    /// of life come.
    pub(super) fn converse(
        &mut self,
        limits: Limits,
        timeout: Duration,
        pulse: Pulse,
    ) -> io::Result<()> {
        self.socket.set_read_timeout(pulse.interval.min(interval(timeout)))?;
        (self.limits, self.timeout) = (limits, timeout);
        (self.deadline, self.pulse) = (None, Some(pulse));
        Ok(())
    }

    /// The next frame's header, and its description in `description`. The payload comes next, and
    /// must be read before the next header.
    pub(super) fn next(&mut self, description: &mut Vec<u8>) -> io::Result<Header> {
        let mut head = [0; HEADER];
        while self.start == self.end {
            self.fill()?;
        }
        // Payloads may be long and links slow; what comes before them is neither.
        self.head_deadline = Instant::now().checked_add(self.timeout);
        self.exact(&mut head)?;
        let header = Header::decode(&head, self.sequence, &self.limits)?;
        self.sequence += 1;
        description.resize(header.description, 0);
        self.exact(description)?;
        header.check_description(description)?;
        self.head_deadline = None;
        if let Some(pulse) = &self.pulse {
            pulse.check()?;
        }
        Ok(header)
    }

    /// The descriptor that came with a frame that announced one.
    pub(super) fn descriptor(&mut self) -> io::Result<OwnedFd> {
        let descriptor = self.descriptors.pop_front();
        descriptor.ok_or_else(|| malformed("a segment was announced and no descriptor came"))
    }

    /// Reads exactly so many bytes.
    pub(super) fn exact(&mut self, mut to: &mut [u8]) -> io::Result<()> {
        loop {
            let count = to.len().min(self.end - self.start);
            to[..count].copy_from_slice(&self.bytes[self.start..self.start + count]);
            self.start += count;
            to = &mut to[count..];
            if to.is_empty() {
                return Ok(());
            }
            if to.len() >= AT_ONCE {
                // Descriptors come with the first byte of their own frame: never in here.
                let read = self.socket.read_all(to);
                let count = self.arrived(read)?;
                to = &mut to[count..];
            } else {
                self.fill()?;
            }
        }
    }

    fn fill(&mut self) -> io::Result<()> {
        let read = if self.socket.local {
            let mut new = Vec::new();
            let read = receive_with_descriptors(&*self.socket, &mut self.bytes, &mut new);
            self.descriptors.extend(new);
            if self.descriptors.len() > DESCRIPTORS {
                return Err(malformed("a peer sent descriptors and never said what for"));
            }
            read
        } else {
            self.socket.read(&mut self.bytes)
        };
        (self.start, self.end) = (0, self.arrived(read)?);
        Ok(())
    }

    /// What came of a read: how many bytes, 0 if there are none yet.
    fn arrived(&mut self, read: io::Result<usize>) -> io::Result<usize> {
        match read {
            Ok(0) => {
                let message = "the peer closed the connection";
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, message))
            }
            Ok(count) => {
                self.last = Instant::now();
                self.in_time()?;
                Ok(count)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.in_time()?;
                if let Some(pulse) = &self.pulse {
                    pulse.check()?;
                }
                Ok(0)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(error) => Err(error),
        }
    }

    fn in_time(&self) -> io::Result<()> {
        let late = |message| Err(io::Error::new(io::ErrorKind::TimedOut, message));
        if let Some(deadline) = self.deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return late("the peer did not greet in time".to_owned());
            }
            self.socket.set_read_timeout(left)?;
        }
        if self.head_deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return late("the peer takes too long to send a frame".to_owned());
        }
        let silent = self.last.elapsed();
        if silent >= self.timeout {
            return late(format!("no sign of life from the peer for {silent:.1?}"));
        }
        Ok(())
    }

    /// Prepares the first read of greetings: it does not wait past the deadline either.
    pub(super) fn begin(&mut self) -> io::Result<()> {
        self.in_time()
    }
}
