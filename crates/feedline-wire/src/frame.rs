//! Frames: what is sent between a worker and a client, and how it is told from noise.
//!
//! Every part of a frame is checked before memory is taken for the next: the header by its own
//! checksum and against [`Limits`], then the description, then the payload. What does not fit is an
//! error that says how; it is never a panic and never a guess.

use crate::bytes::{Reading, malformed, put_bytes, put_number};
use crate::compress::Compression;
use crate::secret::Secret;
use feedline_core::Error;
use std::hash::Hasher;
use std::io;
use twox_hash::XxHash3_64;

/// Bytes of a header.
pub const HEADER: usize = 64;

/// Bytes of a checksum that comes after its payload.
pub const TRAILER: usize = 4;

/// The version of frames that this crate speaks.
pub const VERSION: u16 = 2;

/// What every frame begins with.
pub const MAGIC: [u8; 4] = *b"FDLN";

/// What the first message of a peer begins with that speaks TLS.
const TLS: [u8; 2] = [0x16, 0x03];

/// How large the parts of a frame may be. They are checked before memory is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a description.
    pub description: usize,
    /// Bytes of a payload, sent or unpacked.
    pub payload: usize,
    /// Fields of a batch or a row.
    pub fields: usize,
    /// Different names of fields on one connection: names are kept for as long as the process.
    pub names: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { description: 16 << 20, payload: 1 << 30, fields: 1024, names: 4096 }
    }
}

impl Limits {
    /// What a peer may send before it is known: a greeting.
    #[must_use]
    pub fn greeting() -> Self {
        Self { description: 16 << 10, payload: 0, fields: 0, names: 0 }
    }
}

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Who speaks, which versions, and what else they can do. The first frame of each side.
    Hello = 1,
    /// What a client wants, and how many bytes may be under way to it.
    Request = 2,
    /// So many bytes more may be sent; these frames are read no more.
    Credit = 3,
    /// The rows of one stretch.
    Stretch = 4,
    /// All that was requested has been sent.
    End = 5,
    /// The request failed.
    Error = 6,
    /// Still here.
    Heartbeat = 7,
    /// A segment of shared memory that later frames name by its number.
    Segment = 8,
}

const KINDS: [Kind; 8] = [
    Kind::Hello,
    Kind::Request,
    Kind::Credit,
    Kind::Stretch,
    Kind::End,
    Kind::Error,
    Kind::Heartbeat,
    Kind::Segment,
];

/// The payload lies in shared memory; sent is only where.
const SHARED: u8 = 0b1000;
/// The payload's checksum was computed.
const CHECKED: u8 = 0b0100;
/// The payload's checksum comes after it.
const TRAILED: u8 = 0b1_0000;
const COMPRESSION: u8 = 0b0011;

/// The fixed part of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the frame is.
    pub kind: Kind,
    /// How the payload is packed.
    pub compression: Compression,
    /// Whether the payload lies in shared memory, and the frame only says where.
    pub shared: bool,
    /// Number of the frame among those sent in its direction: one that comes again is noticed.
    pub sequence: u64,
    /// Number of the request it belongs to.
    pub request: u32,
    /// Bytes of the description.
    pub description: usize,
    /// Bytes of the payload as it is sent.
    pub sent: usize,
    /// Bytes of the payload once it is unpacked.
    pub plain: usize,
    /// Checksum of the description.
    pub description_checksum: u32,
    /// Checksum of the payload as it is sent, where one was computed.
    pub payload_checksum: Option<u32>,
    /// Whether the payload's checksum comes after it, in [`TRAILER`] bytes: it was computed while the
    /// payload was sent.
    pub trailed: bool,
}

impl Header {
    /// A header for a frame without a payload.
    #[must_use]
    pub fn new(kind: Kind, request: u32, description: &[u8]) -> Self {
        Self {
            kind,
            compression: Compression::None,
            shared: false,
            sequence: 0,
            request,
            description: description.len(),
            sent: 0,
            plain: 0,
            description_checksum: checksum([description]),
            payload_checksum: None,
            trailed: false,
        }
    }

    /// The bytes of the header.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER] {
        let Self {
            kind,
            compression,
            shared,
            sequence,
            request,
            description,
            sent,
            plain,
            description_checksum,
            payload_checksum,
            trailed,
        } = self;
        let mut flags = *compression as u8;
        flags |= if *shared { SHARED } else { 0 };
        flags |= if payload_checksum.is_some() { CHECKED } else { 0 };
        flags |= if *trailed { TRAILED } else { 0 };
        let mut out = [0; HEADER];
        out[0..4].copy_from_slice(&MAGIC);
        out[4..6].copy_from_slice(&VERSION.to_le_bytes());
        out[6] = *kind as u8;
        out[7] = flags;
        out[8..16].copy_from_slice(&sequence.to_le_bytes());
        out[16..20].copy_from_slice(&request.to_le_bytes());
        out[20..24].copy_from_slice(&(*description as u32).to_le_bytes());
        out[24..32].copy_from_slice(&(*sent as u64).to_le_bytes());
        out[32..40].copy_from_slice(&(*plain as u64).to_le_bytes());
        out[40..44].copy_from_slice(&description_checksum.to_le_bytes());
        out[44..48].copy_from_slice(&payload_checksum.unwrap_or(0).to_le_bytes());
        let sum = checksum([&out[..60]]);
        out[60..64].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// Reads a header and checks it; `sequence` is the number it must have.
    ///
    /// # Errors
    ///
    /// If it is not a header of this version, is damaged, comes out of turn, or announces more than
    /// the limits allow.
    pub fn decode(bytes: &[u8; HEADER], sequence: u64, limits: &Limits) -> io::Result<Self> {
        let two = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let four = |at: usize| {
            u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes are four bytes"))
        };
        let eight = |at: usize| u64::from(four(at)) | u64::from(four(at + 4)) << 32;
        if bytes[..2] == TLS {
            return Err(malformed("the peer speaks TLS, and this side does not"));
        }
        if bytes[..4] != MAGIC {
            return Err(malformed(format!(
                "the peer does not speak Feedline's protocol: a frame begins with {:02x?} instead of {MAGIC:02x?}",
                &bytes[..4]
            )));
        }
        // The version comes before the checksum: another version may have another one.
        if two(4) != VERSION {
            let theirs = two(4);
            return Err(malformed(format!("a frame of version {theirs}; known is {VERSION}")));
        }
        if four(60) != checksum([&bytes[..60]]) {
            return Err(malformed("a frame's header is damaged: its checksum does not fit"));
        }
        let Some(kind) = KINDS.into_iter().find(|kind| *kind as u8 == bytes[6]) else {
            return Err(malformed(format!("a frame of unknown kind {}", bytes[6])));
        };
        let flags = bytes[7];
        let Some(compression) = Compression::from_number(flags & COMPRESSION) else {
            return Err(malformed(format!(
                "a frame packed in unknown way {}",
                flags & COMPRESSION
            )));
        };
        if flags & !(SHARED | CHECKED | TRAILED | COMPRESSION) != 0 || bytes[48..60] != [0; 12] {
            return Err(malformed("a frame with unknown flags"));
        }
        if eight(8) != sequence {
            return Err(malformed(format!(
                "frame {} where frame {sequence} was to come: one was lost or sent twice",
                eight(8)
            )));
        }
        let size = |what: &str, bytes: u64, most: usize| match usize::try_from(bytes) {
            Ok(bytes) if bytes <= most => Ok(bytes),
            _ => {
                Err(malformed(format!("a frame with {bytes} bytes of {what}; {most} are allowed")))
            }
        };
        let description = size("description", u64::from(four(20)), limits.description)?;
        // What is packed may be a little longer than it was.
        let sent = size("payload", eight(24), limits.payload)?;
        let plain = size("unpacked payload", eight(32), limits.payload)?;
        let (shared, checked) = (flags & SHARED != 0, flags & CHECKED != 0);
        let trailed = flags & TRAILED != 0;
        let alike = compression != Compression::None || shared || sent == plain;
        let payload = kind == Kind::Stretch || (sent == 0 && plain == 0);
        let odd = shared && (compression != Compression::None || sent == 0);
        let plainly = sent > 0 && !shared && !checked && compression == Compression::None;
        if !alike || !payload || odd || (trailed && !plainly) || (!checked && four(44) != 0) {
            return Err(malformed(format!("a {kind:?} frame that contradicts itself")));
        }
        Ok(Self {
            kind,
            compression,
            shared,
            sequence,
            request: four(16),
            description,
            sent,
            plain,
            description_checksum: four(40),
            payload_checksum: checked.then(|| four(44)),
            trailed,
        })
    }

    /// Checks a description against its checksum.
    ///
    /// # Errors
    ///
    /// If it is damaged.
    pub fn check_description(&self, description: &[u8]) -> io::Result<()> {
        if checksum([description]) == self.description_checksum {
            return Ok(());
        }
        Err(malformed("a frame's description is damaged: its checksum does not fit"))
    }

    /// Checks a payload, as it was sent, against its checksum.
    ///
    /// # Errors
    ///
    /// If it is damaged.
    pub fn check_payload(&self, payload: &[u8]) -> io::Result<()> {
        match self.payload_checksum {
            Some(sum) if checksum([payload]) != sum => Err(damaged_payload()),
            _ => Ok(()),
        }
    }

    /// Checks a payload while it comes.
    pub(crate) fn checking(&self) -> Checking {
        let checked = self.trailed || self.payload_checksum.is_some();
        Checking { wanted: self.payload_checksum, digest: checked.then(XxHash3_64::new) }
    }

    /// What the frame takes of the receiver's credit.
    #[must_use]
    pub fn cost(&self) -> u64 {
        (HEADER + self.description + self.plain) as u64
    }
}

/// A payload's checksum so far, if it has one, and what it is to be in the end, if that is known.
pub(crate) struct Checking {
    wanted: Option<u32>,
    digest: Option<XxHash3_64>,
}

impl Checking {
    /// The checksum of a payload that is being sent.
    pub(crate) fn new() -> Self {
        Self { wanted: None, digest: Some(XxHash3_64::new()) }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        if let Some(digest) = &mut self.digest {
            digest.write(bytes);
        }
    }

    /// What comes after a payload whose checksum does.
    pub(crate) fn trailer(&self) -> [u8; TRAILER] {
        self.sum().unwrap_or(0).to_le_bytes()
    }

    /// Takes what came after the payload.
    pub(crate) fn expect(&mut self, trailer: [u8; TRAILER]) {
        self.wanted = Some(u32::from_le_bytes(trailer));
    }

    pub(crate) fn finish(self) -> io::Result<()> {
        match (self.wanted, self.sum()) {
            (Some(wanted), Some(sum)) if wanted != sum => Err(damaged_payload()),
            _ => Ok(()),
        }
    }

    fn sum(&self) -> Option<u32> {
        self.digest.as_ref().map(|digest| digest.finish() as u32)
    }
}

fn damaged_payload() -> io::Error {
    malformed("a frame's payload is damaged: its checksum does not fit")
}

/// The checksum of bytes that lie in several places: the lower half of their XXH3.
#[must_use]
pub fn checksum<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u32 {
    let mut parts = parts.into_iter();
    let first = parts.next().unwrap_or_default();
    let Some(second) = parts.next() else { return XxHash3_64::oneshot(first) as u32 };
    let mut digest = XxHash3_64::new();
    digest.write(first);
    digest.write(second);
    parts.for_each(|part| digest.write(part));
    digest.finish() as u32
}

/// The first frame of each side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// The oldest version the speaker knows.
    pub oldest: u16,
    /// The newest version the speaker knows; in an answer, the one that is spoken.
    pub newest: u16,
    /// What shows that the speaker may be here.
    pub token: Secret<Vec<u8>>,
    /// How many bytes of shared memory the speaker is ready to map; 0 for none.
    pub shared_memory: u64,
    /// How payloads may be packed.
    pub compressions: Vec<Compression>,
    /// After how many milliseconds of silence the speaker gives the other up.
    pub timeout: u64,
    /// Which server it is: chosen at random when it starts. A client repeats it when it moves to
    /// the server's Unix socket.
    pub instance: [u8; 16],
    /// The abstract name of the server's Unix socket, for clients on its host.
    pub local: Vec<u8>,
}

impl Hello {
    /// The description of the frame.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let Self { oldest, newest, token, shared_memory, compressions, timeout, instance, local } =
            self;
        let mut out = Vec::new();
        put_number(&mut out, u64::from(*oldest));
        put_number(&mut out, u64::from(*newest));
        put_bytes(&mut out, token.expose());
        put_number(&mut out, *shared_memory);
        put_number(&mut out, compressions.len() as u64);
        out.extend(compressions.iter().map(|compression| *compression as u8));
        put_number(&mut out, *timeout);
        out.extend_from_slice(instance);
        put_bytes(&mut out, local);
        out
    }

    /// Reads the description of the frame. A later version may say more at its end.
    ///
    /// # Errors
    ///
    /// If it is not one.
    pub fn decode(description: &[u8]) -> io::Result<Self> {
        let mut reading = Reading::new(description);
        let version = |number: u64| {
            u16::try_from(number).map_err(|_| malformed(format!("version {number} in a greeting")))
        };
        let (oldest, newest) = (version(reading.number()?)?, version(reading.number()?)?);
        let token = Secret::new(reading.bytes()?.to_vec());
        let shared_memory = reading.number()?;
        let count = reading.count()?;
        // Ways of packing that we do not know are no concern of ours.
        let numbers = reading.take(count)?;
        let compressions = numbers.iter().copied().filter_map(Compression::from_number).collect();
        let timeout = reading.number()?;
        let instance = reading.take(16)?.try_into().expect("sixteen bytes are sixteen bytes");
        let local = reading.bytes()?.to_vec();
        Ok(Self { oldest, newest, token, shared_memory, compressions, timeout, instance, local })
    }

    /// The token in a greeting: the first that is read of it.
    ///
    /// # Errors
    ///
    /// If it is no greeting.
    pub fn token(description: &[u8]) -> io::Result<&[u8]> {
        let mut reading = Reading::new(description);
        for _version in ["oldest", "newest"] {
            reading.number()?;
        }
        reading.bytes()
    }

    /// The newest version that both sides know.
    #[must_use]
    pub fn common_version(&self, other: &Self) -> Option<u16> {
        let newest = self.newest.min(other.newest);
        (newest >= self.oldest.max(other.oldest)).then_some(newest)
    }
}

/// The description of a request: the credit that goes with it, what shows that the client may ask,
/// and whatever it asks.
#[must_use]
pub fn encode_request(credit: u64, token: &[u8], request: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(token.len() + request.len() + 24);
    put_number(&mut out, credit);
    put_bytes(&mut out, token);
    put_bytes(&mut out, request);
    out
}

/// Reads the description of a request.
///
/// # Errors
///
/// If it is not one.
pub fn decode_request(description: &[u8]) -> io::Result<(u64, &[u8], &[u8])> {
    let mut reading = Reading::new(description);
    let read = (reading.number()?, reading.bytes()?, reading.bytes()?);
    reading.end()?;
    Ok(read)
}

/// The description of credit: bytes given back, and the numbers of those frames whose payload lay in
/// shared memory and is read no more.
#[must_use]
pub fn encode_credit(bytes: u64, released: &[u64]) -> Vec<u8> {
    let mut out = Vec::with_capacity(16 + released.len() * 4);
    put_number(&mut out, bytes);
    put_number(&mut out, released.len() as u64);
    released.iter().for_each(|frame| put_number(&mut out, *frame));
    out
}

/// Reads the description of credit.
///
/// # Errors
///
/// If it is not one.
pub fn decode_credit(description: &[u8]) -> io::Result<(u64, Vec<u64>)> {
    let mut reading = Reading::new(description);
    let bytes = reading.number()?;
    let count = reading.count()?;
    let released = (0..count).map(|_| reading.number()).collect::<io::Result<_>>()?;
    reading.end()?;
    Ok((bytes, released))
}

fn segment_number(number: u64) -> io::Result<u32> {
    u32::try_from(number).map_err(|_| malformed(format!("a segment of number {number}")))
}

/// A part of a payload that goes through shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// It lies in a segment.
    Segment {
        /// The segment's number.
        number: u32,
        /// Where in it.
        offset: usize,
        /// How many bytes.
        length: usize,
    },
    /// It is too small for that, and follows the list of pieces.
    Here {
        /// How many bytes.
        length: usize,
    },
}

/// The list of a payload's pieces; the bytes of those that are [`Piece::Here`] follow it.
#[must_use]
pub fn encode_pieces(pieces: &[Piece]) -> Vec<u8> {
    let mut out = Vec::with_capacity(pieces.len() * 8 + 2);
    put_number(&mut out, pieces.len() as u64);
    for piece in pieces {
        match *piece {
            Piece::Segment { number, offset, length } => {
                put_number(&mut out, u64::from(number) + 1);
                put_number(&mut out, offset as u64);
                put_number(&mut out, length as u64);
            }
            Piece::Here { length } => {
                put_number(&mut out, 0);
                put_number(&mut out, length as u64);
            }
        }
    }
    out
}

/// Reads a list of pieces; each comes with its bytes if they follow the list.
///
/// # Errors
///
/// If it is not one.
pub fn decode_pieces(sent: &[u8]) -> io::Result<Vec<(Piece, &[u8])>> {
    let mut reading = Reading::new(sent);
    let count = reading.count()?;
    let mut pieces = Vec::with_capacity(count);
    for _ in 0..count {
        pieces.push(match reading.number()? {
            0 => Piece::Here { length: reading.size()? },
            number => Piece::Segment {
                number: segment_number(number - 1)?,
                offset: reading.size()?,
                length: reading.size()?,
            },
        });
    }
    let bytes = |piece| match piece {
        Piece::Here { length } => Ok((piece, reading.take(length)?)),
        Piece::Segment { .. } => Ok((piece, &[][..])),
    };
    let pieces = pieces.into_iter().map(bytes).collect::<io::Result<_>>()?;
    reading.end()?;
    Ok(pieces)
}

/// The description of a segment: its number and size. A segment of size 0 is gone.
#[must_use]
pub fn encode_segment(number: u32, size: usize) -> Vec<u8> {
    let mut out = Vec::new();
    put_number(&mut out, u64::from(number));
    put_number(&mut out, size as u64);
    out
}

/// Reads the description of a segment.
///
/// # Errors
///
/// If it is not one.
pub fn decode_segment(description: &[u8]) -> io::Result<(u32, usize)> {
    let mut reading = Reading::new(description);
    let read = (segment_number(reading.number()?)?, reading.size()?);
    reading.end()?;
    Ok(read)
}

const IO_KINDS: [io::ErrorKind; 12] = [
    io::ErrorKind::Other,
    io::ErrorKind::NotFound,
    io::ErrorKind::PermissionDenied,
    io::ErrorKind::ConnectionRefused,
    io::ErrorKind::ConnectionReset,
    io::ErrorKind::TimedOut,
    io::ErrorKind::UnexpectedEof,
    io::ErrorKind::InvalidData,
    io::ErrorKind::InvalidInput,
    io::ErrorKind::OutOfMemory,
    io::ErrorKind::StorageFull,
    io::ErrorKind::Unsupported,
];

/// Appends an error with all that its handler may need.
pub(crate) fn put_error(out: &mut Vec<u8>, error: &Error) {
    let text = |out: &mut Vec<u8>, number: u8, text: &str| {
        out.push(number);
        put_bytes(out, text.as_bytes());
    };
    match error {
        Error::Pipeline(message) => text(out, 1, message),
        Error::Source(message) => text(out, 2, message),
        Error::Record { origin, index, step, reason } => {
            text(out, 3, origin);
            put_number(out, *index);
            put_bytes(out, step.as_bytes());
            put_bytes(out, reason.as_bytes());
        }
        Error::Unavailable { what, source } => {
            text(out, 4, what);
            let kind = IO_KINDS.iter().position(|kind| *kind == source.kind()).unwrap_or(0);
            out.push(kind as u8);
            put_bytes(out, source.to_string().as_bytes());
        }
        Error::State(message) => text(out, 5, message),
        Error::Budget(message) => text(out, 6, message),
        Error::Cancelled => text(out, 7, ""),
        Error::Internal(message) => text(out, 8, message),
        Error::Service(message) => text(out, 9, message),
        Error::Filtered => text(out, 10, ""),
        // Whoever adds a variant decides here how it travels; until then its words do.
        other => text(out, 8, &other.to_string()),
    }
}

/// Reads an error.
pub(crate) fn read_error(reading: &mut Reading<'_>) -> io::Result<Error> {
    let number = reading.byte()?;
    let message = reading.text()?.to_owned();
    Ok(match number {
        1 => Error::Pipeline(message),
        2 => Error::Source(message),
        3 => Error::Record {
            origin: message,
            index: reading.number()?,
            step: reading.text()?.to_owned(),
            reason: reading.text()?.to_owned(),
        },
        4 => {
            let kind = IO_KINDS.get(usize::from(reading.byte()?));
            let kind = *kind.ok_or_else(|| malformed("an error of unknown cause"))?;
            Error::unavailable(message, io::Error::new(kind, reading.text()?.to_owned()))
        }
        5 => Error::State(message),
        6 => Error::Budget(message),
        7 => Error::Cancelled,
        8 => Error::Internal(message),
        9 => Error::Service(message),
        10 => Error::Filtered,
        other => return Err(malformed(format!("an error of unknown sort {other}"))),
    })
}

/// The description of a failure.
#[must_use]
pub fn encode_error(error: &Error) -> Vec<u8> {
    let mut out = Vec::new();
    put_error(&mut out, error);
    out
}

/// Reads the description of a failure.
///
/// # Errors
///
/// If it is not one.
pub fn decode_error(description: &[u8]) -> io::Result<Error> {
    let mut reading = Reading::new(description);
    let error = read_error(&mut reading)?;
    reading.end()?;
    Ok(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            compression: Compression::Zstd,
            sequence: 7,
            request: 3,
            sent: 100,
            plain: 1000,
            payload_checksum: Some(5),
            ..Header::new(Kind::Stretch, 3, b"abc")
        }
    }

    /// Bytes whose checksum was made to fit.
    fn sealed(change: impl FnOnce(&mut [u8; HEADER])) -> [u8; HEADER] {
        let mut bytes = header().encode();
        change(&mut bytes);
        let sum = checksum([&bytes[..60]]);
        bytes[60..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn refused(bytes: &[u8; HEADER], says: &str) {
        let error = Header::decode(bytes, 7, &Limits::default()).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }

    #[test]
    fn a_header_reads_back() {
        let read = Header::decode(&header().encode(), 7, &Limits::default()).unwrap();
        assert_eq!(read, header());
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_noticed() {
        let bytes = header().encode();
        for bit in 0..HEADER * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&damaged, 7, &Limits::default()).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn headers_that_lie_are_refused_in_clear_words() {
        refused(&sealed(|bytes| bytes[0] = b'H'), "does not speak Feedline's protocol");
        refused(&sealed(|bytes| bytes[4] = 9), "version 9; known is 2");
        refused(&sealed(|bytes| bytes[6] = 99), "unknown kind 99");
        refused(&sealed(|bytes| bytes[7] |= 0x80), "unknown flags");
        refused(&sealed(|bytes| bytes[7] |= COMPRESSION), "unknown way 3");
        refused(&sealed(|bytes| bytes[50] = 1), "unknown flags");
        refused(&sealed(|bytes| bytes[8] = 6), "lost or sent twice");
        refused(&sealed(|bytes| bytes[20..24].fill(0xff)), "are allowed");
        refused(&sealed(|bytes| bytes[24..32].fill(0xff)), "are allowed");
        refused(&sealed(|bytes| bytes[32..40].fill(0xff)), "are allowed");
        refused(&sealed(|bytes| bytes[6] = Kind::Credit as u8), "contradicts itself");
        refused(&sealed(|bytes| bytes[7] &= !COMPRESSION), "contradicts itself");
        refused(&sealed(|bytes| bytes[7] |= SHARED), "contradicts itself");
    }

    #[test]
    fn greetings_read_back_and_agree_on_a_version() {
        let hello = Hello {
            oldest: 1,
            newest: 3,
            token: Secret::new(b"secret".to_vec()),
            shared_memory: 1 << 30,
            compressions: vec![Compression::Lz4, Compression::Zstd],
            timeout: 2000,
            instance: [7; 16],
            local: b"name".to_vec(),
        };
        assert_eq!(Hello::decode(&hello.encode()).unwrap(), hello);
        assert_eq!(Hello::token(&hello.encode()).unwrap(), b"secret");
        assert!(!format!("{hello:?}").contains("115"), "tokens are not shown");
        let other = |oldest, newest| Hello { oldest, newest, ..Hello::default() };
        assert_eq!(hello.common_version(&other(2, 9)), Some(3));
        assert_eq!(hello.common_version(&other(1, 1)), Some(1));
        assert_eq!(hello.common_version(&other(4, 9)), None);
        for length in 0..hello.encode().len() {
            assert!(Hello::decode(&hello.encode()[..length]).is_err());
        }
    }

    #[test]
    fn every_error_reads_back() {
        let record = Error::Record {
            origin: "a.tar".into(),
            index: 7,
            step: "decode".into(),
            reason: "premature end".into(),
        };
        let missing = io::Error::new(io::ErrorKind::NotFound, "no such file");
        let errors = [
            Error::Pipeline("p".into()),
            Error::Source("s".into()),
            record,
            Error::unavailable("bucket", missing),
            Error::State("s".into()),
            Error::Budget("b".into()),
            Error::Cancelled,
            Error::Internal("i".into()),
            Error::Service("s".into()),
            Error::Filtered,
        ];
        for error in errors {
            let read = decode_error(&encode_error(&error)).unwrap();
            assert_eq!(format!("{read}"), format!("{error}"));
            assert_eq!(std::mem::discriminant(&read), std::mem::discriminant(&error));
            for length in 0..encode_error(&error).len() {
                assert!(decode_error(&encode_error(&error)[..length]).is_err());
            }
        }
    }

    #[test]
    fn a_checksum_comes_after_a_payload_that_is_sent_as_it_is_and_has_no_other() {
        let limits = Limits::default();
        let plain = Header {
            sequence: 7,
            sent: 1000,
            plain: 1000,
            trailed: true,
            ..Header::new(Kind::Stretch, 3, b"abc")
        };
        assert_eq!(Header::decode(&plain.encode(), 7, &limits).unwrap(), plain);
        for odd in [
            Header { payload_checksum: Some(5), ..plain.clone() },
            Header { compression: Compression::Lz4, ..plain.clone() },
            Header { shared: true, ..plain.clone() },
            Header { sent: 0, plain: 0, ..plain.clone() },
            Header { kind: Kind::End, ..plain.clone() },
        ] {
            let error = Header::decode(&odd.encode(), 7, &limits).unwrap_err().to_string();
            assert!(error.contains("contradicts itself"), "{error}");
        }
    }

    #[test]
    fn requests_credit_and_segments_read_back() {
        let request = encode_request(9, b"token", b"x");
        assert_eq!(decode_request(&request).unwrap(), (9, &b"token"[..], &b"x"[..]));
        assert_eq!(decode_credit(&encode_credit(9, &[1, 70_000])).unwrap(), (9, vec![1, 70_000]));
        assert_eq!(decode_segment(&encode_segment(3, 1 << 20)).unwrap(), (3, 1 << 20));
        let pieces = [
            Piece::Here { length: 2 },
            Piece::Segment { number: 3, offset: 64, length: 1 << 20 },
            Piece::Here { length: 1 },
        ];
        let sent = [&encode_pieces(&pieces)[..], b"abc"].concat();
        let read = decode_pieces(&sent).unwrap();
        assert_eq!(read, [(pieces[0], &b"ab"[..]), (pieces[1], &[]), (pieces[2], b"c")]);
        for length in 0..sent.len() {
            assert!(decode_pieces(&sent[..length]).is_err());
        }
        assert!(decode_request(&[1, 5, 0]).is_err());
        assert!(decode_credit(&[1, 200, 1]).is_err());
    }
}
