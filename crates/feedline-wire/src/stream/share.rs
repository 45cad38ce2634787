//! Payloads that go through memory which both processes map.
//!
//! ```text
//!  Lending::place ──► pieces: (segment, offset, length), or a few bytes along with the frame
//!                          │                        descriptors of new segments go ahead of it
//!  Borrowing::payload ◄────┘──► buffers over the mapped segments, one per piece
//!        └── the frame's number, when the last of them is dropped ──► the sender lets go
//! ```
//!
//! Tensors that lie in segments already are not copied. Others are copied into one; when there is no
//! room for that, the frame goes over the socket as if there were no shared memory.

use super::link::{Reader, Writer, lock};
use crate::bytes::malformed;
use crate::frame::{Header, Kind, Piece, decode_pieces, decode_segment, encode_segment};
use crate::stretch::Encoded;
use feedline_core::{ALIGNMENT, Buffer, Pool, Tensor};
use feedline_shm::{Mappings, Segment, Segments, View};
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, Weak};

/// Payloads below this go over the socket: a copy is cheaper than the bookkeeping.
pub const SMALLEST_SHARED: usize = 16 << 10;

/// The most segments that one connection has at a time.
const SEGMENTS: usize = 4096;

/// The sender's side of one connection.
pub(super) struct Lending {
    segments: Segments,
    /// What the other side maps, and how many bytes it is ready to map.
    announced: HashMap<u32, (Weak<Segment>, usize)>,
    bytes: usize,
    most: usize,
}

/// A payload that lies in segments.
pub(super) struct Placed<'a> {
    pub(super) pieces: Vec<Piece>,
    /// The bytes that follow the list of pieces.
    pub(super) here: Vec<&'a [u8]>,
    /// What must not be used again before the other side says so.
    pub(super) keep: Vec<Buffer>,
    segments: Vec<Arc<Segment>>,
}

impl<'a> Placed<'a> {
    fn located(&mut self, segment: Arc<Segment>, offset: usize, length: usize, buffer: Buffer) {
        self.pieces.push(Piece::Segment { number: segment.number(), offset, length });
        self.keep.push(buffer);
        self.segments.push(segment);
    }

    /// Takes up tensors that lie elsewhere; `None` if there is no room for them.
    fn gather(&mut self, run: &mut Vec<&'a [u8]>, segments: &Segments) -> Option<()> {
        let end = |at: usize, part: &&[u8]| at.next_multiple_of(ALIGNMENT) + part.len();
        let length = run.iter().fold(0, end);
        if length == 0 {
            return Some(());
        }
        if length < SMALLEST_SHARED {
            let mut at = 0usize;
            for part in run.drain(..) {
                let gap = at.next_multiple_of(ALIGNMENT) - at;
                self.here.extend([&ZEROS[..gap], part]);
                at += gap + part.len();
            }
            self.pieces.push(Piece::Here { length });
            return Some(());
        }
        // An error is no room as well: the socket is always there.
        let mut buffer = segments.take(length).ok().flatten()?;
        let mut at = 0usize;
        for part in run.drain(..) {
            let start = at.next_multiple_of(ALIGNMENT);
            buffer[at..start].fill(0);
            at = start + part.len();
            buffer[start..at].copy_from_slice(part);
        }
        let (segment, offset) = segments.locate(&buffer)?;
        self.located(segment, offset, length, buffer.freeze());
        Some(())
    }
}

static ZEROS: [u8; ALIGNMENT] = [0; ALIGNMENT];

impl Lending {
    pub(super) fn new(segments: Segments, most: usize) -> Self {
        Self { segments, announced: HashMap::new(), bytes: 0, most }
    }

    /// Puts a payload into segments; `None` if it is too small or there is no room.
    pub(super) fn place<'a>(&self, encoded: &Encoded<'a>) -> Option<Placed<'a>> {
        if encoded.length < SMALLEST_SHARED {
            return None;
        }
        let (pieces, here) = (Vec::new(), Vec::new());
        let mut placed = Placed { pieces, here, keep: Vec::new(), segments: Vec::new() };
        let mut run = Vec::new();
        for tensor in &encoded.tensors {
            let data = tensor.data();
            match self.locate(tensor) {
                Some((segment, offset, buffer)) => {
                    placed.gather(&mut run, &self.segments)?;
                    placed.located(segment, offset, data.len(), buffer);
                }
                None => run.push(data),
            }
        }
        placed.gather(&mut run, &self.segments)?;
        Some(placed)
    }

    fn locate(&self, tensor: &Tensor) -> Option<(Arc<Segment>, usize, Buffer)> {
        let (data, buffer) = (tensor.data(), tensor.buffer()?);
        let (segment, offset) =
            (data.len() >= SMALLEST_SHARED).then(|| self.segments.locate(data))??;
        offset.is_multiple_of(ALIGNMENT).then(|| (segment, offset, buffer.clone()))
    }

    /// Passes the segments that the other side does not have yet; whether it has them all now.
    pub(super) fn announce(
        &mut self,
        placed: &Placed<'_>,
        writer: &mut Writer,
    ) -> io::Result<bool> {
        for segment in &placed.segments {
            if self.announced.contains_key(&segment.number()) {
                continue;
            }
            self.withdraw(writer)?;
            if self.bytes + segment.size() > self.most || self.announced.len() >= SEGMENTS {
                return Ok(false);
            }
            writer.pass(segment)?;
            self.bytes += segment.size();
            self.announced.insert(segment.number(), (Arc::downgrade(segment), segment.size()));
        }
        Ok(true)
    }

    /// Tells the other side which segments are no more, so that it lets go of them as well.
    pub(super) fn withdraw(&mut self, writer: &mut Writer) -> io::Result<()> {
        let mut gone = Vec::new();
        self.announced.retain(|number, (segment, size)| {
            let kept = segment.strong_count() > 0;
            if !kept {
                gone.push((*number, *size));
            }
            kept
        });
        for (number, size) in gone {
            self.bytes -= size;
            writer.say(Kind::Segment, 0, &encode_segment(number, 0))?;
        }
        Ok(())
    }
}

/// The receiver's side of one connection.
pub(super) struct Borrowing {
    mappings: Mappings,
    released: Arc<Mutex<Vec<u64>>>,
    sent: Vec<u8>,
}

/// Says that a frame is read no more.
struct Release {
    frame: u64,
    released: Arc<Mutex<Vec<u64>>>,
}

impl Drop for Release {
    fn drop(&mut self) {
        lock(&self.released).push(self.frame);
    }
}

impl Borrowing {
    /// `released` collects the numbers of frames that are read no more.
    pub(super) fn new(view: View, most: usize, released: Arc<Mutex<Vec<u64>>>) -> Self {
        Self { mappings: Mappings::new(view, most, SEGMENTS), released, sent: Vec::new() }
    }

    /// Takes up a segment, or lets go of one.
    pub(super) fn segment(&mut self, description: &[u8], reader: &mut Reader) -> io::Result<()> {
        match decode_segment(description)? {
            (number, 0) => self.mappings.remove(number),
            (number, size) => self.mappings.add(number, size, reader.descriptor()?),
        }
    }

    /// The pieces of a payload.
    pub(super) fn payload(
        &mut self,
        header: &Header,
        reader: &mut Reader,
        pool: &Pool,
    ) -> io::Result<Vec<Buffer>> {
        let mut sent = std::mem::take(&mut self.sent);
        sent.resize(header.sent, 0);
        reader.exact(&mut sent)?;
        header.check_payload(&sent)?;
        let released = Arc::clone(&self.released);
        let release = Arc::new(Release { frame: header.sequence, released });
        let mut left = header.plain;
        let mut payload = Vec::new();
        for (piece, bytes) in decode_pieces(&sent)? {
            let (Piece::Segment { length, .. } | Piece::Here { length }) = piece;
            left = left
                .checked_sub(length)
                .ok_or_else(|| malformed("pieces longer than the payload they make"))?;
            payload.push(match piece {
                Piece::Segment { number, offset, length } => {
                    if !offset.is_multiple_of(ALIGNMENT) {
                        return Err(malformed(format!("a tensor at {offset} of a segment")));
                    }
                    let release = Arc::clone(&release);
                    self.mappings.region(number, offset, length, move || drop(release))?
                }
                Piece::Here { .. } => {
                    let mut buffer = pool.take(length).map_err(io::Error::other)?;
                    buffer.copy_from_slice(bytes);
                    buffer.freeze()
                }
            });
        }
        self.sent = sent;
        Ok(payload)
    }
}
