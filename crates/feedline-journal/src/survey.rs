//! What a folder holds: the newest snapshot, the records after it, what was torn, what is damaged.
//!
//! Surveying changes nothing. [`Journal::open`](crate::Journal::open) goes on from what was found;
//! [`repair`](crate::repair) moves aside what cannot be used.

use crate::error::{Error, Result};
use crate::folder::{Folder, Named};
use crate::format::{FORMAT, HEADER, Header, Kind, Rest, Window, WrongHeader, scan};
use crate::{Entry, Position, Record, Refusal, Snapshot, Torn};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a folder holds.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// The position of the first record that the newest snapshot does not cover.
    pub snapshot: Option<u64>,
    /// The segments that continue it, up to the first damage.
    pub segments: Vec<Segment>,
    pub torn: Option<Torn>,
    pub damage: Option<Damage>,
    /// Files that are not needed: unfinished ones, and what the snapshot covers.
    pub unneeded: Vec<PathBuf>,
    /// The highest generation that wrote any of it.
    pub generation: u64,
}

/// A segment whose records are part of the history.
#[derive(Debug)]
pub(crate) struct Segment {
    pub path: PathBuf,
    pub first: u64,
    records: u64,
    /// Where the records end, and what follows them.
    end: u64,
    rest: Rest,
}

/// The first thing that cannot be read although it was durable.
#[derive(Debug)]
pub(crate) struct Damage {
    file: PathBuf,
    offset: u64,
    reason: String,
    /// The segment that keeps only its beginning, and how much of it.
    pub cut: Option<(PathBuf, u64)>,
    /// Files that cannot be used at all.
    pub aside: Vec<PathBuf>,
    /// Where the records that are known of would have ended.
    pub end: u64,
}

/// Who is given what is read.
pub(crate) type Replay<'a> = &'a mut dyn FnMut(Entry<'_>) -> Result<(), Refusal>;

/// One survey, under way.
struct Surveyor<'a> {
    folder: &'a Folder,
    /// The highest version of records that the caller knows.
    version: u32,
    replay: Replay<'a>,
    buffer: Vec<u8>,
    survey: Survey,
}

impl Survey {
    /// Reads the whole folder, and hands out what it holds up to the first damage. `version` is
    /// the highest version of records that the caller knows.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, was written by a newer release, or is foreign, or if the caller
    /// refuses something. Damage is no error here.
    pub(crate) fn read(folder: &Folder, version: u32, replay: Replay<'_>) -> Result<Self> {
        let names = folder.disk.list(&folder.path);
        let names = names.map_err(|error| Error::disk("list", &folder.path, error))?;
        let (mut segments, mut snapshots, mut survey) = (Vec::new(), Vec::new(), Self::default());
        for name in names {
            match Named::read(&name) {
                Named::Segment(first) => segments.push(first),
                Named::Snapshot(position) => snapshots.push(position),
                Named::Unfinished => survey.unneeded.push(folder.path.join(name)),
                Named::Foreign => {
                    let reason = "its name has no position of 20 digits".to_owned();
                    return Err(Error::Foreign { file: folder.path.join(name), reason });
                }
                Named::Other => {}
            }
        }
        segments.sort_unstable();
        snapshots.sort_unstable();
        let mut surveyor = Surveyor { folder, version, replay, buffer: Vec::new(), survey };
        surveyor.read_snapshots(&snapshots)?;
        surveyor.read_segments(&segments)?;
        Ok(surveyor.survey)
    }

    /// The position after the last record.
    pub(crate) fn end(&self) -> u64 {
        self.segments.last().map_or(0, Segment::next).max(self.covered())
    }

    /// The position of the first record that no snapshot covers.
    fn covered(&self) -> u64 {
        self.snapshot.unwrap_or(0)
    }

    /// How many bytes the records take that follow the snapshot, and some before it.
    pub(crate) fn size(&self) -> u64 {
        self.segments.iter().map(|segment| segment.end - HEADER as u64).sum()
    }

    /// Where a segment should begin whose name says `first`.
    fn expected(&self, first: u64) -> u64 {
        match self.segments.last() {
            Some(before) => before.next(),
            // The first one may begin with records that the snapshot covers.
            None => first.min(self.covered()),
        }
    }

    /// What is wrong with where a segment begins, if anything is.
    fn misplaced(&self, path: &Path, first: u64) -> Option<Damage> {
        let expected = self.expected(first);
        if first < expected {
            return Some(Damage::at(path, 0, "the file before it holds its first record too"));
        }
        let missing = || format!("records {expected} to {} are missing", first - 1);
        (first > expected).then(|| match self.segments.last() {
            None => Damage::at(path, 0, &missing()),
            Some(before) => {
                let cut = (before.rest != Rest::Nothing).then(|| (before.path.clone(), before.end));
                Damage { cut, ..Damage::at(&before.path, before.end, &missing()) }
            }
        })
    }

    /// Adds a segment that continues the history, as far as it can be read.
    fn place(&mut self, segment: Segment, length: u64, last: bool) -> Option<Damage> {
        let (path, offset) = (segment.path.clone(), segment.end);
        let damage = match segment.rest {
            Rest::Damaged(_) => {
                let damage = Damage::at(&path, offset, "a broken record is followed by good ones");
                Some(Damage { end: segment.known(), cut: Some((path, offset)), ..damage })
            }
            Rest::Torn if last => {
                self.torn = Some(Torn { file: path, offset, bytes: length - offset });
                None
            }
            // If records are missing here, the next file begins too late.
            Rest::Torn | Rest::Nothing => None,
        };
        self.segments.push(segment);
        damage
    }

    /// Notes damage. The first one is reported; all are repaired.
    fn add(&mut self, damage: Damage) {
        match &mut self.damage {
            None => self.damage = Some(damage),
            Some(known) => {
                known.aside.extend(damage.aside);
                known.end = known.end.max(damage.end);
                known.cut = known.cut.take().or(damage.cut);
            }
        }
    }
}

impl Surveyor<'_> {
    /// Takes the newest snapshot that can be read.
    fn read_snapshots(&mut self, positions: &[u64]) -> Result<()> {
        for position in positions.iter().rev() {
            let path = self.folder.snapshot(*position);
            if self.survey.snapshot.is_some() {
                self.survey.unneeded.push(path);
                continue;
            }
            let read = self.folder.disk.read(&path);
            let bytes = read.map_err(|error| Error::disk("read", &path, error))?;
            let header = self.header(&path, Kind::Snapshot, *position, &bytes)?;
            match header.and_then(|header| whole_snapshot(header, &bytes[HEADER..])) {
                Ok(header) => {
                    self.survey.generation = self.survey.generation.max(header.generation);
                    self.survey.snapshot = Some(*position);
                    let (position, version) = (Position(*position), header.version);
                    let snapshot = Snapshot { position, version, bytes: &bytes[HEADER..] };
                    (self.replay)(Entry::Snapshot(snapshot))
                        .map_err(|refusal| refused(&path, "its snapshot".to_owned(), refusal))?;
                }
                Err(reason) => self.survey.add(Damage::whole(&path, *position, &reason)),
            }
        }
        Ok(())
    }

    /// Takes the segments that continue the snapshot, up to the first damage.
    fn read_segments(&mut self, firsts: &[u64]) -> Result<()> {
        let covered = self.survey.covered();
        if firsts.is_empty() && self.survey.snapshot.is_some() {
            let reason = "it should follow the snapshot, and is missing";
            self.survey.add(Damage::at(&self.folder.segment(covered), 0, reason));
        }
        // All records of a segment are covered if the next one begins at or before that position.
        let needed = firsts.partition_point(|first| *first <= covered).saturating_sub(1);
        let unneeded = firsts[..needed].iter().map(|first| self.folder.segment(*first));
        self.survey.unneeded.extend(unneeded);
        let mut stopped = false;
        for first in &firsts[needed..] {
            let last = Some(first) == firsts.last();
            if let Some(damage) = self.read_segment(*first, last, stopped)? {
                self.survey.add(damage);
                stopped = true;
            }
        }
        Ok(())
    }

    /// Takes one segment. If the history has `stopped`, only what is lost with it is of interest.
    fn read_segment(&mut self, first: u64, last: bool, stopped: bool) -> Result<Option<Damage>> {
        let path = self.folder.segment(first);
        let failed = |error| Error::disk("read", &path, error);
        let file = self.folder.disk.open(&path).map_err(failed)?;
        let length = file.length().map_err(failed)?;
        let mut head = Vec::new();
        while head.len() < HEADER {
            let mut buffer = [0; HEADER];
            match file.read_at(head.len() as u64, &mut buffer[head.len()..]).map_err(failed)? {
                0 => break,
                read => head.extend_from_slice(&buffer[head.len()..][..read]),
            }
        }
        let survey = &mut self.survey;
        if !stopped && last && head.len() < HEADER && first == survey.expected(first) {
            // Even its header was cut off: there is nothing left of it.
            survey.torn = (length > 0).then_some(Torn { file: path, offset: 0, bytes: length });
            return Ok(None);
        }
        let header = match self.header(&path, Kind::Segment, first, &head)? {
            Ok(header) => header,
            Err(reason) => return Ok(Some(Damage::whole(&path, first, &reason))),
        };
        self.survey.generation = self.survey.generation.max(header.generation);
        let misplaced = match stopped {
            true => Some(Damage::at(&path, 0, "it follows damage")),
            false => self.survey.misplaced(&path, first),
        };

        let read = |offset: u64, buffer: &mut [u8]| file.read_at(offset, buffer);
        let window = Window::new(&read, HEADER as u64, length, &mut self.buffer);
        let covered = if misplaced.is_some() { u64::MAX } else { self.survey.covered() };
        let scanned = scan(window, header.salt(), |number, bytes| {
            let position = first + u64::from(number);
            if position < covered {
                return Ok(());
            }
            let record = Record { position: Position(position), version: header.version, bytes };
            (self.replay)(Entry::Record(record)).map_err(|refusal| {
                Interrupted::Refused(refused(&path, format!("record {position}"), refusal))
            })
        });
        let scanned = scanned.map_err(|interrupted| match interrupted {
            Interrupted::Disk(error) => failed(error),
            Interrupted::Refused(error) => error,
        })?;
        let segment = Segment {
            path: path.clone(),
            first,
            records: u64::from(scanned.records),
            end: scanned.end,
            rest: scanned.rest,
        };
        Ok(match misplaced {
            Some(damage) => Some(Damage { aside: vec![path], end: segment.known(), ..damage }),
            None => self.survey.place(segment, length, last),
        })
    }

    /// The header of a file, or what is wrong with it.
    fn header(
        &self,
        path: &Path,
        kind: Kind,
        position: u64,
        bytes: &[u8],
    ) -> Result<Result<Header, String>> {
        let newer = |what, found, known| Error::Newer { file: path.to_owned(), what, found, known };
        match Header::decode(kind, bytes) {
            Ok(header) if header.version > self.version => {
                Err(newer("version of its records", header.version, self.version))
            }
            Ok(header) if header.position != position => {
                Ok(Err(format!("it was written as position {}", header.position)))
            }
            Ok(header) => Ok(Ok(header)),
            Err(WrongHeader::Newer(format)) => Err(newer("format", format, FORMAT)),
            Err(WrongHeader::Foreign) => {
                let reason = "it does not begin as one".to_owned();
                Err(Error::Foreign { file: path.to_owned(), reason })
            }
            Err(WrongHeader::Damaged) => Ok(Err("its header is broken".to_owned())),
            Err(WrongHeader::Short) => Ok(Err("its header is cut off".to_owned())),
        }
    }
}

/// Why a scan ended early.
enum Interrupted {
    Disk(io::Error),
    Refused(Error),
}

impl From<io::Error> for Interrupted {
    fn from(error: io::Error) -> Self {
        Self::Disk(error)
    }
}

/// The header again if it describes these bytes.
fn whole_snapshot(header: Header, bytes: &[u8]) -> Result<Header, String> {
    if header.length != bytes.len() as u64 {
        let (right, here) = (header.length, bytes.len());
        return Err(format!("{right} bytes should follow its header, and {here} do"));
    }
    if header.body != crc_fast::crc32_iscsi(bytes) {
        return Err("its checksum is wrong".to_owned());
    }
    Ok(header)
}

fn refused(file: &Path, what: String, refusal: Refusal) -> Error {
    Error::Refused { file: file.to_owned(), what, source: Arc::from(refusal) }
}

impl Segment {
    /// The position after its last record that can be read.
    fn next(&self) -> u64 {
        self.first + self.records
    }

    /// The position after its last record that is known of.
    fn known(&self) -> u64 {
        match self.rest {
            Rest::Damaged(Some(number)) => self.first + u64::from(number) + 1,
            _ => self.next(),
        }
    }
}

impl Damage {
    fn at(file: &Path, offset: u64, reason: &str) -> Self {
        let (file, reason) = (file.to_owned(), reason.to_owned());
        Self { file, offset, reason, cut: None, aside: Vec::new(), end: 0 }
    }

    /// A file of which nothing can be used.
    fn whole(file: &Path, end: u64, reason: &str) -> Self {
        Self { aside: vec![file.to_owned()], end, ..Self::at(file, 0, reason) }
    }

    pub(crate) fn into_error(self) -> Error {
        let Self { file, offset, reason, .. } = self;
        Error::Damaged { file, offset, reason }
    }
}
