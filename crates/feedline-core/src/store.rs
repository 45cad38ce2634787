//! Bytes by name and range, as the engine sees them; the implementations live elsewhere.

use crate::Result;
use std::path::{Path, PathBuf};

/// One object of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name. Bytes, not text: names need not be UTF-8.
    pub path: PathBuf,
    /// Its length in bytes.
    pub size: u64,
    /// When it was last changed, in nanoseconds since 1970, or, where a store names versions
    /// otherwise, any number that only this version has; 0 if unknown.
    pub modified: i64,
}

/// A range of bytes of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent<'a> {
    /// The object.
    pub path: &'a Path,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// Whether this is all of the object, so that a different length means that it was changed.
    pub whole: bool,
    /// Which version of it was listed (see [`Entry::modified`]); 0 if any will do. A store that is told
    /// the version with the bytes compares it.
    pub modified: i64,
}

/// Equal runs of bytes of one object, at equal distances: the rows of a box that is cut out of an
/// array. A whole object is a cut of one run.
///
/// Runs are numbered as nested loops would meet them, the first of `counts` outermost. They are put
/// down one after another; an axis that is `reversed` is put down from its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut<'a> {
    /// The object.
    pub path: &'a Path,
    /// Bytes of the whole object when it was listed.
    pub size: u64,
    /// When it had last been changed then; 0 if unknown.
    pub modified: i64,
    /// First byte of the first run.
    pub offset: u64,
    /// Bytes of each run.
    pub run: usize,
    /// Number of runs along each axis.
    pub counts: [usize; 3],
    /// Bytes from one run to the next along each axis.
    pub strides: [u64; 3],
    /// Which axes are put down from their end.
    pub reversed: [bool; 3],
}

impl<'a> Cut<'a> {
    /// The first `length` bytes from `offset` on of an object of `size` bytes.
    #[must_use]
    pub fn range(path: &'a Path, size: u64, offset: u64, length: usize) -> Self {
        let (counts, strides, reversed) = ([1; 3], [0; 3], [false; 3]);
        Self { path, size, modified: 0, offset, run: length, counts, strides, reversed }
    }

    /// Bytes of all runs together.
    #[must_use]
    pub fn length(&self) -> usize {
        self.counts.iter().product::<usize>() * self.run
    }

    /// Number of planes: groups of runs along the last axis, which are read together.
    #[must_use]
    pub fn planes(&self) -> usize {
        self.counts[0] * self.counts[1]
    }

    /// Where plane `number` begins in the object, how many bytes it spans there, and the first run
    /// of the result that it fills.
    #[must_use]
    pub fn plane(&self, number: usize) -> (u64, usize, usize) {
        let [_, middle, last] = self.counts;
        let at = [number / middle, number % middle];
        let begin = self.offset + at[0] as u64 * self.strides[0] + at[1] as u64 * self.strides[1];
        let span = self.strides[2] as usize * last.saturating_sub(1) + self.run;
        let place = |axis: usize| {
            if self.reversed[axis] { self.counts[axis] - 1 - at[axis] } else { at[axis] }
        };
        (begin, span, (place(0) * middle + place(1)) * last)
    }

    /// Reads the planes from number `done` on into `out`, by `read` (from a place in the object into
    /// bytes), until it says that it would wait.
    ///
    /// Runs that lie near each other are read in one go with what lies between them, and then put
    /// where they belong: that is several times faster than a read for each.
    ///
    /// # Errors
    ///
    /// What `read` fails with.
    pub fn read_planes(
        &self,
        done: &mut usize,
        out: &mut [u8],
        mut read: impl FnMut(u64, &mut [u8]) -> Result<Attempt>,
    ) -> Result<Attempt> {
        let (run, last, stride) = (self.run, self.counts[2], self.strides[2] as usize);
        let together = if stride.saturating_sub(run) <= NEAR { last } else { 1 };
        let in_order = !self.reversed[2] && (stride == run || last == 1);
        let mut span = Vec::new();
        while *done < self.planes() {
            let (begin, whole, first) = self.plane(*done);
            if in_order {
                let to = first * run;
                if read(begin, &mut out[to..to + whole])? == Attempt::WouldWait {
                    return Ok(Attempt::WouldWait);
                }
                *done += 1;
                continue;
            }
            for start in (0..last).step_by(together) {
                let count = together.min(last - start);
                span.resize((count - 1) * stride + run, 0);
                if read(begin + (start * stride) as u64, &mut span)? == Attempt::WouldWait {
                    return Ok(Attempt::WouldWait);
                }
                for (number, bytes) in (start..start + count).zip(span.chunks(stride.max(1))) {
                    let place = if self.reversed[2] { last - 1 - number } else { number };
                    let to = (first + place) * run;
                    out[to..to + run].copy_from_slice(&bytes[..run]);
                }
            }
            *done += 1;
        }
        Ok(Attempt::Done)
    }
}

/// Runs with less than this many bytes between them are read together.
const NEAR: usize = 16 << 10;

/// What came of trying to read without waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// All bytes are there.
    Done,
    /// The bytes are not in memory: whoever asked should let a reader wait for them.
    WouldWait,
}

/// Where bytes come from.
pub trait Store: Send + Sync {
    /// All files below `root`, in byte order of their names; `root` itself if it is a file.
    ///
    /// # Errors
    ///
    /// If `root` does not exist or cannot be read.
    fn list(&self, root: &Path) -> Result<Vec<Entry>>;

    /// One file.
    ///
    /// # Errors
    ///
    /// If it does not exist.
    fn stat(&self, path: &Path) -> Result<Entry>;

    /// Several files, each as by [`Store::stat`], in the same order.
    fn stat_all(&self, paths: &[PathBuf]) -> Vec<Result<Entry>> {
        paths.iter().map(|path| self.stat(path)).collect()
    }

    /// Fills `out` (of the extent's length) with the extent's bytes, waiting as long as it takes.
    ///
    /// # Errors
    ///
    /// `Record` if the bytes are not there and will not be; `Unavailable` if they may be later.
    fn read(&self, extent: Extent<'_>, out: &mut [u8]) -> Result<()>;

    /// As [`Store::read`], if that needs no waiting; what `out` holds otherwise is unspecified.
    ///
    /// # Errors
    ///
    /// As [`Store::read`].
    fn try_read(&self, extent: Extent<'_>, out: &mut [u8]) -> Result<Attempt>;

    /// Reads the planes of a cut from number `done` on into `out` (of the cut's length), counting
    /// `done` up, waiting as long as it takes.
    ///
    /// # Errors
    ///
    /// As [`Store::read`].
    fn read_cut(&self, cut: &Cut<'_>, done: &mut usize, out: &mut [u8]) -> Result<()> {
        let reading = cut.read_planes(done, out, |offset, bytes| {
            let length = bytes.len() as u64;
            let whole = offset == 0 && length == cut.size;
            let modified = cut.modified;
            self.read(Extent { path: cut.path, offset, length, whole, modified }, bytes)?;
            Ok(Attempt::Done)
        });
        reading.map(|_| ())
    }

    /// As [`Store::read_cut`], as far as that needs no waiting. Planes that are done stay done.
    ///
    /// # Errors
    ///
    /// As [`Store::read`].
    fn try_read_cut(&self, _cut: &Cut<'_>, _done: &mut usize, _out: &mut [u8]) -> Result<Attempt> {
        Ok(Attempt::WouldWait)
    }
}
