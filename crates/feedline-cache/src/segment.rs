//! A pair of files that one process appends samples to: their bytes, and where each lies.
//!
//! ```text
//!  <name>.data   entry │ entry │ entry │ (reserved)
//!  <name>.index  row   │ row   │ row   │ zeros
//! ```
//!
//! A row is written after its entry, so whoever finds a row finds the entry. Rows and entries carry sums:
//! whatever a crash of the machine has left of them is taken for nothing. Who writes holds a lock on the
//! data, which the system lets go when the process ends, however it ends; then another goes on writing.

use crate::entry::LONGEST;
use feedline_core::Cost;
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use std::fs::{File, OpenOptions};
use std::hash::Hasher;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use twox_hash::XxHash3_64;

/// Bytes of a row of an index.
pub(crate) const ROW: u64 = 64;
/// Entries begin at multiples of this.
const STEP: u64 = 64;

/// Where a sample lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// The sample's index in the source.
    pub index: u64,
    /// First byte of its entry, the number of bytes, and their sum.
    pub offset: u64,
    pub length: u64,
    pub sum: u64,
    /// What it took to make it.
    pub cost: Cost,
}

impl Row {
    fn encode(&self) -> [u8; ROW as usize] {
        let Self { index, offset, length, sum, cost: Cost { work, wait, bytes } } = *self;
        let mut row = [0; ROW as usize];
        let numbers = [index, offset, length, sum, work, wait, bytes];
        for (to, number) in row.chunks_exact_mut(8).zip(numbers) {
            to.copy_from_slice(&number.to_le_bytes());
        }
        let sum = row_sum(&row);
        row[56..].copy_from_slice(&sum.to_le_bytes());
        row
    }

    fn decode(row: &[u8; ROW as usize]) -> Option<Self> {
        let mut numbers = [0; 8];
        for (number, bytes) in numbers.iter_mut().zip(row.chunks_exact(8)) {
            *number = u64::from_le_bytes(bytes.try_into().ok()?);
        }
        let [index, offset, length, sum, work, wait, bytes, check] = numbers;
        let sound = check == row_sum(row) && length <= LONGEST && offset <= u64::MAX / 2;
        sound.then_some(Self { index, offset, length, sum, cost: Cost { work, wait, bytes } })
    }
}

/// Never zero, so that a row is never like one that was not written.
fn row_sum(row: &[u8; ROW as usize]) -> u64 {
    XxHash3_64::oneshot_with_seed(0xfeed, &row[..56]).max(1)
}

/// The sum of an entry's bytes, in parts.
pub(crate) fn entry_sum(parts: &[&[u8]]) -> u64 {
    let mut hasher = XxHash3_64::with_seed(0);
    parts.iter().for_each(|part| hasher.write(part));
    hasher.finish()
}

/// The two files, open for reading; and how much of the index was read.
#[derive(Debug)]
pub(crate) struct Segment {
    pub data: File,
    index: File,
}

impl Segment {
    /// Opens a segment for reading, and for writing too if that is possible.
    pub(crate) fn open(folder: &Path, name: &str) -> io::Result<Self> {
        let open = |kind: &str| {
            let path = folder.join(format!("{name}.{kind}"));
            let both = OpenOptions::new().read(true).write(true).open(&path);
            both.or_else(|_| File::open(&path))
        };
        Ok(Self { index: open("index")?, data: open("data")? })
    }

    /// Makes a segment.
    pub(crate) fn create(folder: &Path, name: &str) -> io::Result<Self> {
        let create = |kind: &str| {
            let path = folder.join(format!("{name}.{kind}"));
            OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
        };
        Ok(Self { data: create("data")?, index: create("index")? })
    }

    /// The rows from number `from` on, as far as they are written, those that are damaged left out; and
    /// the number after the last.
    pub(crate) fn rows(&self, from: u64) -> io::Result<(Vec<Row>, u64)> {
        let written = self.index.metadata()?.len() / ROW;
        let (mut rows, mut at) = (Vec::new(), from);
        let mut bytes = Vec::new();
        while at < written {
            let count = (written - at).min(4096);
            bytes.resize((count * ROW) as usize, 0);
            self.index.read_exact_at(&mut bytes, at * ROW)?;
            for row in bytes.as_chunks::<{ ROW as usize }>().0 {
                if row.iter().all(|byte| *byte == 0) {
                    return Ok((rows, at));
                }
                rows.extend(Row::decode(row));
                at += 1;
            }
        }
        Ok((rows, at))
    }
}

/// The end of a segment that this process appends to.
#[derive(Debug)]
pub(crate) struct Writer {
    pub segment: std::sync::Arc<Segment>,
    /// Which process it belongs to: a fork must not append to the same place.
    pub process: u32,
    /// Where the next entry and the next row go.
    end: u64,
    row: u64,
    /// Bytes of both files.
    data_bytes: u64,
    index_bytes: u64,
}

impl Writer {
    /// Takes a segment over, if nobody else appends to it.
    pub(crate) fn take(segment: std::sync::Arc<Segment>) -> io::Result<Option<Self>> {
        if flock(&segment.data, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(None);
        }
        let (rows, row) = segment.rows(0)?;
        let end = rows.iter().map(|row| row.offset.saturating_add(row.length)).max().unwrap_or(0);
        let data_bytes = segment.data.metadata()?.len();
        let index_bytes = segment.index.metadata()?.len();
        let end = end.next_multiple_of(STEP);
        let process = std::process::id();
        Ok(Some(Self { segment, process, end, row, data_bytes, index_bytes }))
    }

    /// How many bytes more the files need before an entry of so many fits.
    pub(crate) fn needs(&self, length: u64) -> u64 {
        let data = (self.end + length).next_multiple_of(STEP).saturating_sub(self.data_bytes);
        let index = ((self.row + 1) * ROW).saturating_sub(self.index_bytes);
        data + index
    }

    /// Makes the files longer by `bytes` together, for entries of about this length.
    pub(crate) fn reserve(&mut self, bytes: u64, length: u64) -> io::Result<()> {
        let rows = (bytes / (length.max(1) + ROW)).max(1);
        let index = (self.row + rows) * ROW;
        let index = index.saturating_sub(self.index_bytes).min(bytes);
        extend(&self.segment.index, &mut self.index_bytes, index)?;
        extend(&self.segment.data, &mut self.data_bytes, bytes - index)
    }

    /// Appends an entry, which must fit, and says where it lies.
    pub(crate) fn append(
        &mut self,
        index: u64,
        parts: &[&[u8]],
        length: u64,
        cost: Cost,
    ) -> io::Result<Row> {
        let offset = self.end;
        let mut at = offset;
        for part in parts {
            self.segment.data.write_all_at(part, at)?;
            at += part.len() as u64;
        }
        let row = Row { index, offset, length, sum: entry_sum(parts), cost };
        self.segment.index.write_all_at(&row.encode(), self.row * ROW)?;
        self.row += 1;
        self.end = (offset + length).next_multiple_of(STEP);
        Ok(row)
    }

    /// Gives back what was reserved and not used.
    pub(crate) fn trim(&mut self) {
        // Without it the room is used by whoever writes here next.
        let _ = self.segment.data.set_len(self.end.min(self.data_bytes));
        let _ = self.segment.index.set_len((self.row * ROW).min(self.index_bytes));
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            self.trim();
            let _ = flock(&self.segment.data, FlockOperation::Unlock);
        }
    }
}

fn extend(file: &File, bytes: &mut u64, more: u64) -> io::Result<()> {
    if more == 0 {
        return Ok(());
    }
    match fallocate(file, FallocateFlags::empty(), *bytes, more) {
        // A file system without reservations says that it is full when it is.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
            file.set_len(*bytes + more)?
        }
        done => done?,
    }
    *bytes += more;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn cost(work: u64) -> Cost {
        Cost { work, wait: 2, bytes: 3 }
    }

    #[test]
    fn rows_come_back_and_a_damaged_one_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let segment = Arc::new(Segment::create(folder.path(), "a").unwrap());
        let mut writer = Writer::take(Arc::clone(&segment)).unwrap().unwrap();
        let mut rows = Vec::new();
        for index in 0..5 {
            let bytes = [index as u8; 100];
            let needs = writer.needs(100);
            writer.reserve(needs, 100).unwrap();
            assert_eq!(writer.needs(100), 0);
            rows.push(
                writer.append(index, &[&bytes[..30], &bytes[30..]], 100, cost(index)).unwrap(),
            );
        }
        let other = Segment::open(folder.path(), "a").unwrap();
        assert_eq!(other.rows(0).unwrap(), (rows.clone(), 5));
        assert_eq!(other.rows(3).unwrap(), (rows[3..].to_vec(), 5));
        // One bit of the third row.
        let mut row = [0; ROW as usize];
        other.index.read_exact_at(&mut row, 2 * ROW).unwrap();
        row[9] ^= 4;
        other.index.write_all_at(&row, 2 * ROW).unwrap();
        let (left, end) = other.rows(0).unwrap();
        assert_eq!((left.len(), end), (4, 5));
        assert!(left.iter().all(|row| row.index != 2));
    }

    #[test]
    fn one_process_appends_and_the_next_goes_on_where_it_ended() {
        let folder = tempfile::tempdir().unwrap();
        let segment = Arc::new(Segment::create(folder.path(), "a").unwrap());
        let mut writer = Writer::take(segment).unwrap().unwrap();
        writer.reserve(1 << 16, 100).unwrap();
        let first = writer.append(7, &[&[1; 100]], 100, cost(1)).unwrap();
        let again = Arc::new(Segment::open(folder.path(), "a").unwrap());
        assert!(Writer::take(Arc::clone(&again)).unwrap().is_none(), "it is being written");
        drop(writer);
        let length =
            |kind| std::fs::metadata(folder.path().join(format!("a.{kind}"))).unwrap().len();
        assert_eq!((length("data"), length("index")), (128, ROW), "nothing is left reserved");
        let mut writer = Writer::take(again).unwrap().unwrap();
        let needs = writer.needs(10);
        writer.reserve(needs, 10).unwrap();
        let second = writer.append(8, &[&[2; 10]], 10, cost(2)).unwrap();
        assert_eq!((first.offset, second.offset), (0, 128));
    }
}
