//! What a folder holds: the newest snapshot, the records after it, what was torn, what is damaged.
//!
//! Surveying changes nothing. [`Journal::open`](crate::Journal::open) goes on from what was found;
//! [`repair`](crate::repair) moves aside what cannot be used.

use crate::error::{Error, Result};
use crate::folder::{Folder, Named};
use crate::format::{FORMAT, HEADER, Header, Kind, Rest, Walk, WrongHeader, scan};
use crate::{Position, Record, Snapshot, Torn};
use std::path::{Path, PathBuf};

/// What a folder holds.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    pub snapshot: Option<Snapshot>,
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
    version: u32,
    bytes: Vec<u8>,
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

impl Survey {
    /// Reads the whole folder. `version` is the highest version of records that the caller knows.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, was written by a newer release, or is foreign. Damage is no error
    /// here.
    pub(crate) fn read(folder: &Folder, version: u32) -> Result<Self> {
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
        survey.read_snapshots(folder, &snapshots, version)?;
        survey.read_segments(folder, &segments, version)?;
        Ok(survey)
    }

    /// The position after the last record.
    pub(crate) fn end(&self) -> u64 {
        self.segments.last().map_or(0, Segment::next).max(self.covered())
    }

    /// The position of the first record that the snapshot does not cover.
    pub(crate) fn covered(&self) -> u64 {
        self.snapshot.as_ref().map_or(0, |snapshot| snapshot.position.0)
    }

    /// Takes the newest snapshot that can be read.
    fn read_snapshots(&mut self, folder: &Folder, positions: &[u64], version: u32) -> Result<()> {
        for position in positions.iter().rev() {
            let path = folder.snapshot(*position);
            if self.snapshot.is_some() {
                self.unneeded.push(path);
                continue;
            }
            let mut bytes = read(folder, &path)?;
            match snapshot_header(&path, *position, &bytes, version)? {
                Ok(header) => {
                    self.generation = self.generation.max(header.generation);
                    bytes.drain(..HEADER);
                    let position = Position(*position);
                    self.snapshot = Some(Snapshot { position, version: header.version, bytes });
                }
                Err(reason) => self.add(Damage::whole(path, *position, reason)),
            }
        }
        Ok(())
    }

    /// Takes the segments that continue the snapshot, up to the first damage.
    fn read_segments(&mut self, folder: &Folder, firsts: &[u64], version: u32) -> Result<()> {
        let covered = self.covered();
        if firsts.is_empty() && self.snapshot.is_some() {
            let reason = "it should follow the snapshot, and is missing";
            self.add(Damage::at(&folder.segment(covered), 0, reason));
        }
        // All records of a segment are covered if the next one begins at or before that position.
        let needed = firsts.partition_point(|first| *first <= covered).saturating_sub(1);
        self.unneeded.extend(firsts[..needed].iter().map(|first| folder.segment(*first)));
        let mut stopped = false;
        for first in &firsts[needed..] {
            let path = folder.segment(*first);
            let bytes = read(folder, &path)?;
            let header = header(&path, Kind::Segment, *first, &bytes, version)?;
            if let Ok(header) = &header {
                self.generation = self.generation.max(header.generation);
            }
            let last = Some(first) == firsts.last();
            if !stopped && last && bytes.len() < HEADER && *first == self.expected(*first) {
                // Even its header was cut off: there is nothing left of it.
                let bytes = bytes.len() as u64;
                self.torn = (bytes > 0).then_some(Torn { file: path, offset: 0, bytes });
                continue;
            }
            let placed = match header {
                Ok(header) => {
                    let segment = Segment::read(path, &header, bytes);
                    if stopped { Err(segment.unusable("")) } else { self.place(segment, last) }
                }
                Err(reason) => Err(Damage::whole(path, *first, reason)),
            };
            if let Err(damage) = placed {
                self.add(damage);
                stopped = true;
            }
        }
        Ok(())
    }

    /// Where a segment should begin whose name says `first`.
    fn expected(&self, first: u64) -> u64 {
        match self.segments.last() {
            Some(before) => before.next(),
            // The first one may begin with records that the snapshot covers.
            None => first.min(self.covered()),
        }
    }

    /// Adds a segment to the history if it continues it, as far as it can be read.
    fn place(&mut self, segment: Segment, last: bool) -> Result<(), Damage> {
        let expected = self.expected(segment.first);
        if segment.first < expected {
            return Err(segment.unusable("the file before it holds its first record too"));
        }
        if segment.first > expected {
            let missing = format!("records {expected} to {} are missing", segment.first - 1);
            let damage = segment.unusable(&missing);
            let Some(before) = self.segments.last() else { return Err(damage) };
            let cut = (before.rest != Rest::Nothing).then(|| (before.path.clone(), before.end));
            return Err(Damage { file: before.path.clone(), offset: before.end, cut, ..damage });
        }
        let (path, offset) = (segment.path.clone(), segment.end);
        let damage = match segment.rest {
            Rest::Damaged(_) => {
                let damage = Damage::at(&path, offset, "a broken record is followed by good ones");
                Some(Damage { end: segment.known(), cut: Some((path, offset)), ..damage })
            }
            Rest::Torn if last => {
                let bytes = segment.bytes.len() as u64 - offset;
                self.torn = Some(Torn { file: path, offset, bytes });
                None
            }
            // If records are missing here, the next file begins too late.
            Rest::Torn | Rest::Nothing => None,
        };
        self.segments.push(segment);
        damage.map_or(Ok(()), Err)
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

impl Segment {
    fn read(path: PathBuf, header: &Header, bytes: Vec<u8>) -> Self {
        let scan = scan(&bytes, header.salt());
        Self {
            path,
            first: header.position,
            version: header.version,
            bytes,
            records: u64::from(scan.records),
            end: scan.end as u64,
            rest: scan.rest,
        }
    }

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

    /// How many bytes its records take.
    pub(crate) fn size(&self) -> u64 {
        self.end - HEADER as u64
    }

    /// The records from `position` on.
    pub(crate) fn records_from(&self, position: u64) -> impl Iterator<Item = Record<'_>> {
        let covered = position.saturating_sub(self.first).min(self.records);
        let mut walk = Walk::new(&self.bytes, self.records);
        walk.by_ref().take(covered as usize).for_each(drop);
        (self.first + covered..).zip(walk).map(|(position, bytes)| Record {
            position: Position(position),
            version: self.version,
            bytes,
        })
    }

    fn unusable(self, reason: &str) -> Damage {
        let end = self.known();
        Damage::whole(self.path, end, reason.to_owned())
    }
}

impl Damage {
    fn at(file: &Path, offset: u64, reason: &str) -> Self {
        let (file, reason) = (file.to_owned(), reason.to_owned());
        Self { file, offset, reason, cut: None, aside: Vec::new(), end: 0 }
    }

    /// A file of which nothing can be used.
    fn whole(file: PathBuf, end: u64, reason: String) -> Self {
        Self { file: file.clone(), offset: 0, reason, cut: None, aside: vec![file], end }
    }

    pub(crate) fn into_error(self) -> Error {
        let Self { file, offset, reason, .. } = self;
        Error::Damaged { file, offset, reason }
    }
}

fn read(folder: &Folder, path: &Path) -> Result<Vec<u8>> {
    folder.disk.read(path).map_err(|error| Error::disk("read", path, error))
}

/// The header of a snapshot whose bytes are whole, or what is wrong with it.
fn snapshot_header(
    path: &Path,
    position: u64,
    bytes: &[u8],
    version: u32,
) -> Result<Result<Header, String>> {
    Ok(header(path, Kind::Snapshot, position, bytes, version)?.and_then(|header| {
        let body = &bytes[HEADER..];
        if header.length != body.len() as u64 {
            let (right, here) = (header.length, body.len());
            return Err(format!("{right} bytes should follow its header, and {here} do"));
        }
        if header.body != crc_fast::crc32_iscsi(body) {
            return Err("its checksum is wrong".to_owned());
        }
        Ok(header)
    }))
}

/// The header of a file, or what is wrong with it.
fn header(
    path: &Path,
    kind: Kind,
    position: u64,
    bytes: &[u8],
    version: u32,
) -> Result<Result<Header, String>> {
    let newer = |what, found, known| Error::Newer { file: path.to_owned(), what, found, known };
    match Header::decode(kind, bytes) {
        Ok(header) if header.version > version => {
            Err(newer("version of its records", header.version, version))
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
