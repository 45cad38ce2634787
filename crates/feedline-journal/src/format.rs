//! The bytes of segments and snapshots: how they are written, and what is made of what is found.
//!
//! Nothing here knows a disk, so that any bytes can be tried.

use std::io;

/// The journal's own format. It grows when the layout of records changes.
pub(crate) const FORMAT: u32 = 1;

/// Bytes before the first record of a segment, and before the bytes of a snapshot. This layout
/// stays the same in every format, so that an old release can tell a newer file from damage.
pub(crate) const HEADER: usize = 48;

/// Bytes before each record.
pub(crate) const RECORD_HEADER: usize = 16;

/// The longest record.
pub(crate) const LONGEST: usize = 64 << 20;

/// How much of a file is read at a time.
const WINDOW: usize = 1 << 18;

/// The length that stands for the mark at the end of a journal that was closed.
const END_MARK: u32 = u32::MAX;

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Segment,
    Snapshot,
}

impl Kind {
    fn magic(self) -> &'static [u8; 8] {
        match self {
            Self::Segment => b"FEEDJRNL",
            Self::Snapshot => b"FEEDSNAP",
        }
    }
}

/// The head of a file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Header {
    pub kind: Kind,
    /// The caller's version of what it writes.
    pub version: u32,
    /// Which opening of the journal wrote the file.
    pub generation: u64,
    /// Of a segment: the position of its first record. Of a snapshot: the position of the first
    /// record that it does not cover.
    pub position: u64,
    /// Of a snapshot: how many bytes follow.
    pub length: u64,
    /// Of a snapshot: their checksum.
    pub body: u32,
}

/// Why a header is not one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum WrongHeader {
    Short,
    Foreign,
    Damaged,
    Newer(u32),
}

impl Header {
    /// The header of a segment.
    pub(crate) fn segment(version: u32, generation: u64, position: u64) -> Self {
        Self { kind: Kind::Segment, version, generation, position, length: 0, body: 0 }
    }

    /// The header of a snapshot of these bytes.
    pub(crate) fn snapshot(version: u32, generation: u64, position: u64, bytes: &[u8]) -> Self {
        let (length, body) = (bytes.len() as u64, crc_fast::crc32_iscsi(bytes));
        Self { kind: Kind::Snapshot, version, generation, position, length, body }
    }

    pub(crate) fn encode(&self) -> [u8; HEADER] {
        let Self { kind, version, generation, position, length, body } = self;
        let mut bytes = [0; HEADER];
        bytes[0..8].copy_from_slice(kind.magic());
        bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[12..16].copy_from_slice(&version.to_le_bytes());
        bytes[16..24].copy_from_slice(&generation.to_le_bytes());
        bytes[24..32].copy_from_slice(&position.to_le_bytes());
        bytes[32..40].copy_from_slice(&length.to_le_bytes());
        bytes[40..44].copy_from_slice(&body.to_le_bytes());
        let crc = crc_fast::crc32_iscsi(&bytes[..44]);
        bytes[44..48].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads the head of a file.
    pub(crate) fn decode(kind: Kind, bytes: &[u8]) -> Result<Self, WrongHeader> {
        let Some(bytes) = bytes.first_chunk::<HEADER>() else { return Err(WrongHeader::Short) };
        let mut right = *bytes;
        right[0..8].copy_from_slice(kind.magic());
        let sound = crc_fast::crc32_iscsi(&right[..44]) == u32_at(bytes, 44);
        if right != *bytes {
            // A damaged magic, or nothing but zeros, is damage. Anything else was never ours.
            let ours = sound || bytes.iter().all(|byte| *byte == 0);
            return Err(if ours { WrongHeader::Damaged } else { WrongHeader::Foreign });
        }
        if !sound {
            return Err(WrongHeader::Damaged);
        }
        let format = u32_at(bytes, 8);
        if format > FORMAT {
            return Err(WrongHeader::Newer(format));
        }
        Ok(Self {
            kind,
            version: u32_at(bytes, 12),
            generation: u64_at(bytes, 16),
            position: u64_at(bytes, 24),
            length: u64_at(bytes, 32),
            body: u32_at(bytes, 40),
        })
    }

    /// What is mixed into the checksums of a segment's records, so that a record of another segment
    /// is none of this one.
    pub(crate) fn salt(&self) -> u32 {
        u32_at(&self.encode(), 44)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Adds a record to a commit; its number, index and checksum follow when it is [sealed](seal).
pub(crate) fn push(commit: &mut Vec<u8>, record: &[u8]) {
    let length = u32::try_from(record.len()).expect("no record is longer than `LONGEST`");
    commit.reserve(RECORD_HEADER + record.len());
    commit.extend_from_slice(&[0; 4]);
    commit.extend_from_slice(&length.to_le_bytes());
    commit.extend_from_slice(&[0; 8]);
    commit.extend_from_slice(record);
}

/// Completes the records of a commit, the first of which is number `number` of its segment. Returns
/// how many they are.
pub(crate) fn seal(commit: &mut [u8], salt: u32, number: u32) -> u32 {
    let (mut at, mut index) = (0, 0);
    while at < commit.len() {
        let end = at + RECORD_HEADER + u32_at(commit, at + 4) as usize;
        let record = &mut commit[at..end];
        record[8..12].copy_from_slice(&(number + index).to_le_bytes());
        record[12..16].copy_from_slice(&index.to_le_bytes());
        let crc = crc_fast::crc32_iscsi(&record[4..]) ^ salt;
        record[0..4].copy_from_slice(&crc.to_le_bytes());
        (at, index) = (end, index + 1);
    }
    index
}

/// The mark that says that a segment ends here and that all before it was durable.
pub(crate) fn end_mark(salt: u32, number: u32) -> [u8; RECORD_HEADER] {
    let mut mark = [0; RECORD_HEADER];
    mark[4..8].copy_from_slice(&END_MARK.to_le_bytes());
    mark[8..12].copy_from_slice(&number.to_le_bytes());
    let crc = crc_fast::crc32_iscsi(&mark[4..]) ^ salt;
    mark[0..4].copy_from_slice(&crc.to_le_bytes());
    mark
}

/// The fields before a record, not yet believed.
#[derive(Clone, Copy)]
struct Claim {
    /// Whether it is the mark at the end, which has no bytes.
    mark: bool,
    /// Where it would end, perhaps behind all that is there.
    end: usize,
    number: u32,
    index: u32,
}

impl Claim {
    #[inline]
    fn at(bytes: &[u8], at: usize) -> Option<Self> {
        let header = bytes.get(at..)?.first_chunk::<RECORD_HEADER>()?;
        let (length, number, index) = (u32_at(header, 4), u32_at(header, 8), u32_at(header, 12));
        let mark = length == END_MARK;
        let length = if mark { 0 } else { length as usize };
        let end = at + RECORD_HEADER + length;
        (length <= LONGEST).then_some(Self { mark, end, number, index })
    }

    #[inline]
    fn holds(&self, bytes: &[u8], at: usize, salt: u32) -> bool {
        crc_fast::crc32_iscsi(&bytes[at + 4..self.end]) ^ salt == u32_at(bytes, at)
    }
}

/// What a segment holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scan {
    /// How many records can be read from its beginning.
    pub records: u32,
    /// Where they end.
    pub end: u64,
    /// What follows.
    pub rest: Rest,
}

/// What follows the records that can be read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Rest {
    /// Nothing.
    Nothing,
    /// What the last commit left behind, if it was not durable; zeros; other remains.
    Torn,
    /// Records of a later commit, up to this number (or unknown): so what is broken was durable.
    Damaged(Option<u32>),
}

/// Reads a segment from its first record on, and hands out each record with its number.
///
/// A commit is written only when the one before it is durable. So if anything of a later commit can
/// be read behind a broken record, that record was durable, and the disk has damaged it. If nothing
/// can, or only records of the same commit, the commit was torn by the crash: its parts reach
/// the disk in any order.
pub(crate) fn scan<E: From<io::Error>>(
    mut window: Window<'_>,
    salt: u32,
    mut each: impl FnMut(u32, &[u8]) -> Result<(), E>,
) -> Result<Scan, E> {
    let mut number = 0;
    let mut ended = false;
    while !ended {
        let Some(size) = Claim::at(window.bytes(RECORD_HEADER)?, 0).map(|claim| claim.end) else {
            break;
        };
        let bytes = window.bytes(size)?;
        let Some(claim) = Claim::at(bytes, 0).filter(|claim| claim.end <= bytes.len()) else {
            break;
        };
        if claim.number != number || !claim.holds(bytes, 0, salt) {
            break;
        }
        if claim.mark {
            ended = true;
        } else {
            each(number, &bytes[RECORD_HEADER..size])?;
            number += 1;
        }
        window.skip(size);
    }
    let end = window.at;
    let rest = window.rest()?;
    let rest = if rest.is_empty() { Rest::Nothing } else { judge(rest, number, salt) };
    Ok(Scan { records: number, end, rest })
}

/// A file that is read from its beginning to its end, some bytes at a time.
///
/// A file as a whole would need as much memory, and fresh memory costs several times what reading
/// the file does.
pub(crate) struct Window<'a> {
    read: &'a dyn Fn(u64, &mut [u8]) -> io::Result<usize>,
    /// Where the bytes that were read begin in the file, and how long the file is.
    at: u64,
    length: u64,
    /// What was read: of the buffer, this part is ahead.
    buffer: &'a mut Vec<u8>,
    begin: usize,
    end: usize,
}

impl<'a> Window<'a> {
    /// The bytes from `at` to `length`, in a buffer that is used again and again.
    pub(crate) fn new(
        read: &'a dyn Fn(u64, &mut [u8]) -> io::Result<usize>,
        at: u64,
        length: u64,
        buffer: &'a mut Vec<u8>,
    ) -> Self {
        buffer.resize(buffer.len().max(WINDOW), 0);
        Self { read, at, length, buffer, begin: 0, end: 0 }
    }

    /// What is ahead: at least so many bytes, unless the file ends before.
    #[inline]
    fn bytes(&mut self, count: usize) -> io::Result<&[u8]> {
        if self.end - self.begin < count {
            self.fill(count)?;
        }
        Ok(&self.buffer[self.begin..self.end])
    }

    #[cold]
    fn fill(&mut self, count: usize) -> io::Result<()> {
        let left = usize::try_from(self.length - self.at).unwrap_or(usize::MAX);
        let count = count.min(left);
        self.buffer.copy_within(self.begin..self.end, 0);
        (self.begin, self.end) = (0, self.end - self.begin);
        if self.buffer.len() < count {
            self.buffer.resize(count, 0);
        }
        while self.end < count {
            match (self.read)(self.at + self.end as u64, &mut self.buffer[self.end..]) {
                // The file is shorter than it was: what is there counts.
                Ok(0) => self.length = self.at + self.end as u64,
                Ok(read) => self.end += read.min(left - self.end),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            if self.at + self.end as u64 >= self.length {
                break;
            }
        }
        Ok(())
    }

    #[inline]
    fn skip(&mut self, count: usize) {
        self.begin += count;
        self.at += count as u64;
    }

    /// All that is ahead.
    fn rest(&mut self) -> io::Result<&[u8]> {
        self.bytes(usize::try_from(self.length - self.at).unwrap_or(usize::MAX))
    }
}

/// Whether what is broken, where record `expected` should be, is torn or damaged.
fn judge(bytes: &[u8], expected: u32, salt: u32) -> Rest {
    // Bytes made to look like ever so many long records must not take for ever.
    let mut effort = 8 * bytes.len() + (1 << 20);
    let mut last = None;
    let mut at = 0;
    while let Some(claim) = claim_from(bytes, &mut at, expected) {
        let cost = claim.end - at;
        if cost > effort {
            return Rest::Damaged(last);
        }
        effort -= cost;
        if claim.holds(bytes, at, salt) {
            // The mark has the number of the record that would have come next.
            let number = if claim.mark { claim.number - 1 } else { claim.number };
            last = last.max(Some(number));
            at = claim.end;
        } else {
            at += 1;
        }
    }
    if last.is_some() { Rest::Damaged(last) } else { Rest::Torn }
}

/// The next place, from `at` on, that could hold a record of a commit that begins after `expected`.
fn claim_from(bytes: &[u8], at: &mut usize, expected: u32) -> Option<Claim> {
    while *at + RECORD_HEADER <= bytes.len() {
        if let Some(claim) = Claim::at(bytes, *at) {
            let begins = claim.number.checked_sub(claim.index);
            if claim.end <= bytes.len() && begins.is_some_and(|begins| begins > expected) {
                return Some(claim);
            }
        }
        *at += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(commits: &[&[&[u8]]]) -> (Vec<u8>, u32) {
        let header = Header::segment(7, 3, 100);
        let (mut bytes, salt) = (header.encode().to_vec(), header.salt());
        let mut number = 0;
        for records in commits {
            let mut commit = Vec::new();
            records.iter().for_each(|record| push(&mut commit, record));
            number += seal(&mut commit, salt, number);
            bytes.extend(commit);
        }
        (bytes, salt)
    }

    /// Scans bytes that are given out a few at a time.
    fn scan(bytes: &[u8], salt: u32) -> (Scan, Vec<Vec<u8>>) {
        let mut records = Vec::new();
        let read = |offset: u64, buffer: &mut [u8]| {
            let some = bytes.get(offset as usize..).unwrap_or_default();
            let some = &some[..some.len().min(buffer.len()).min(1_000)];
            buffer[..some.len()].copy_from_slice(some);
            Ok(some.len())
        };
        let mut buffer = Vec::new();
        let window = Window::new(&read, HEADER as u64, bytes.len() as u64, &mut buffer);
        let scan = super::scan(window, salt, |number, record| {
            assert_eq!(number as usize, records.len());
            records.push(record.to_vec());
            Ok::<_, io::Error>(())
        });
        (scan.unwrap(), records)
    }

    #[test]
    fn the_checksum_is_crc_32c() {
        assert_eq!(crc_fast::crc32_iscsi(b"123456789"), 0xE306_9283);
    }

    #[test]
    fn a_header_survives_its_bytes_and_no_flipped_bit_does() {
        let header = Header::snapshot(7, 3, 100, b"state");
        let bytes = header.encode();
        assert_eq!(Header::decode(Kind::Snapshot, &bytes), Ok(header));
        assert_eq!(Header::decode(Kind::Segment, &bytes), Err(WrongHeader::Foreign));
        for bit in 0..8 * HEADER {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::decode(Kind::Snapshot, &bytes), Err(WrongHeader::Damaged));
        }
    }

    #[test]
    fn a_header_of_a_later_format_is_newer_and_not_damaged() {
        let mut bytes = Header::segment(7, 3, 100).encode();
        bytes[8..12].copy_from_slice(&2u32.to_le_bytes());
        let crc = crc_fast::crc32_iscsi(&bytes[..44]);
        bytes[44..48].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(Header::decode(Kind::Segment, &bytes), Err(WrongHeader::Newer(2)));
    }

    #[test]
    fn records_come_back_as_they_were_written() {
        let records: &[&[u8]] = &[b"one", b"", b"three"];
        let (bytes, salt) = segment(&[records, &[b"four"]]);
        let (scan, found) = scan(&bytes, salt);
        assert_eq!(scan, Scan { records: 4, end: bytes.len() as u64, rest: Rest::Nothing });
        assert_eq!(found, [&b"one"[..], b"", b"three", b"four"]);
    }

    #[test]
    fn records_come_back_whatever_their_length_is_to_the_window() {
        for length in [0, 1, 1_000, WINDOW - 100, WINDOW, 3 * WINDOW + 1] {
            let long = vec![7; length];
            let (bytes, salt) = segment(&[&[b"short", &long, b"short", &long], &[b"end"]]);
            let (scan, found) = scan(&bytes, salt);
            assert_eq!((scan.records, scan.rest), (5, Rest::Nothing));
            assert_eq!(found, [b"short", &long[..], b"short", &long, b"end"]);
        }
    }

    #[test]
    fn a_record_costs_sixteen_bytes() {
        let (bytes, _) = segment(&[&[&[7; 33][..]; 10]]);
        assert_eq!(bytes.len(), HEADER + 10 * (33 + 16));
    }

    #[test]
    fn a_broken_record_is_torn_in_the_last_commit_and_damage_before_it() {
        let (bytes, salt) = segment(&[&[b"aa", b"bb"], &[b"cc", b"dd", b"ee"]]);
        for record in 0..5 {
            let mut bytes = bytes.clone();
            bytes[HEADER + record * (RECORD_HEADER + 2) + RECORD_HEADER] ^= 1;
            let rest = if record < 2 { Rest::Damaged(Some(4)) } else { Rest::Torn };
            let (scan, _) = scan(&bytes, salt);
            assert_eq!((scan.records as usize, scan.rest), (record, rest));
        }
    }

    #[test]
    fn after_the_mark_at_the_end_nothing_is_torn() {
        let (mut bytes, salt) = segment(&[&[b"aa", b"bb"]]);
        bytes.extend(end_mark(salt, 2));
        assert_eq!(scan(&bytes, salt).0.rest, Rest::Nothing);
        bytes[HEADER + RECORD_HEADER] ^= 1;
        assert_eq!(scan(&bytes, salt).0.rest, Rest::Damaged(Some(1)));
    }

    #[test]
    fn records_of_another_segment_are_none() {
        let (bytes, salt) = segment(&[&[b"aa"]]);
        assert_eq!(scan(&bytes, salt ^ 1).0.records, 0);
    }

    #[test]
    fn bytes_made_to_look_like_long_records_are_given_up_soon() {
        let (mut bytes, salt) = segment(&[&[b"aa"]]);
        let pattern: Vec<u8> =
            [0, 1_000_000u32, 900_000, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend(pattern.iter().cycle().take(4 << 20));
        let begun = std::time::Instant::now();
        assert_eq!(scan(&bytes, salt).0.rest, Rest::Damaged(None));
        assert!(begun.elapsed().as_secs() < 5);
    }
}
