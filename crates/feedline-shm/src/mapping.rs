//! The consumer's side: other processes' segments, mapped, and slices of them.

use crate::segment::seals;
use feedline_core::Buffer;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How a consumer maps segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    /// Readable. Code that writes there nevertheless is ended by the system.
    #[default]
    ReadOnly,
    /// Copied where written: code that writes there changes its own copy, which is gone when the
    /// region is given back.
    Private,
}

struct Mapped {
    start: NonNull<u8>,
    size: usize,
    view: View,
    /// How many regions of it are read.
    readers: Mutex<usize>,
}

impl Mapped {
    fn readers(&self) -> MutexGuard<'_, usize> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// SAFETY: a mapping only says where memory lies; it is read through the buffers made of it.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped in `Mappings::add` with this size; no region of it is left, since each
        // keeps it. It can only fail for a range that is not mapped.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.size) };
    }
}

/// What a buffer over a region keeps: its mapping, and whom to tell when it is dropped.
struct Region {
    mapped: Arc<Mapped>,
    released: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl Drop for Region {
    fn drop(&mut self) {
        let mut readers = self.mapped.readers();
        *readers -= 1;
        if self.mapped.view == View::Private && *readers == 0 {
            let (start, size) = (self.mapped.start.as_ptr().cast(), self.mapped.size);
            // SAFETY: the range is the mapping, and its last reader is gone: pages that were copied
            // when written are thrown away, so that the producer's next bytes are seen. If it
            // fails, nothing was copied that could be stale unless someone wrote through a pointer.
            let _ = unsafe { rustix::mm::madvise(start, size, Advice::LinuxDontNeed) };
        }
        drop(readers);
        if let Some(released) = self.released.take() {
            released();
        }
    }
}

/// The segments of one producer that a consumer has mapped.
pub struct Mappings {
    view: View,
    most_bytes: usize,
    most_segments: usize,
    bytes: usize,
    mapped: HashMap<u32, Arc<Mapped>>,
}

impl Mappings {
    /// None yet; at most `most_segments` of `most_bytes` together.
    #[must_use]
    pub fn new(view: View, most_bytes: usize, most_segments: usize) -> Self {
        Self { view, most_bytes, most_segments, bytes: 0, mapped: HashMap::new() }
    }

    /// Maps a segment that was announced with a number and a size. The descriptor is not needed
    /// any more after that.
    ///
    /// # Errors
    ///
    /// If it is not a sealed segment of that size, the number is taken, or the limits are reached.
    pub fn add(&mut self, number: u32, size: usize, descriptor: OwnedFd) -> io::Result<()> {
        let refuse = |why: String| {
            let message = format!("segment {number} of {size} bytes: {why}");
            Err(io::Error::new(io::ErrorKind::InvalidData, message))
        };
        if self.mapped.contains_key(&number) {
            return refuse("it was announced before".into());
        }
        let bytes = self.bytes.checked_add(size).filter(|bytes| *bytes <= self.most_bytes);
        let (Some(bytes), true) = (bytes, self.mapped.len() < self.most_segments) else {
            let (most, segments) = (self.most_bytes, self.most_segments);
            return refuse(format!("{segments} segments of {most} bytes are allowed"));
        };
        // First the seals, then the size: once sealed, the size stays what it is.
        let sealed = rustix::fs::fcntl_get_seals(&descriptor).is_ok_and(|is| is.contains(seals()));
        if !sealed {
            return refuse("it is not sealed, so its producer could take it away".into());
        }
        let real = rustix::fs::fstat(&descriptor)?.st_size;
        if size == 0 || u64::try_from(real) != Ok(size as u64) {
            return refuse(format!("it has {real} bytes"));
        }
        let (protection, flags) = match self.view {
            View::ReadOnly => (ProtFlags::READ, MapFlags::SHARED | MapFlags::POPULATE),
            View::Private => (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE),
        };
        let null = std::ptr::null_mut();
        // SAFETY: a new mapping at an address that the system chooses touches nobody else's memory.
        let start = unsafe { rustix::mm::mmap(null, size, protection, flags, &descriptor, 0)? };
        let start = NonNull::new(start.cast()).expect("a mapping is not at address zero");
        let mapped = Mapped { start, size, view: self.view, readers: Mutex::new(0) };
        self.bytes = bytes;
        self.mapped.insert(number, Arc::new(mapped));
        Ok(())
    }

    /// Forgets a segment. It stays mapped until its last region is dropped.
    ///
    /// # Errors
    ///
    /// If there is none of that number.
    pub fn remove(&mut self, number: u32) -> io::Result<()> {
        let gone = self.mapped.remove(&number).ok_or_else(|| unknown(number))?;
        self.bytes -= gone.size;
        Ok(())
    }

    /// The `length` bytes of a segment from `offset` on; `released` is called when nobody reads
    /// them any more.
    ///
    /// # Errors
    ///
    /// If there is no such segment, or it is shorter.
    pub fn region(
        &self,
        number: u32,
        offset: usize,
        length: usize,
        released: impl FnOnce() + Send + Sync + 'static,
    ) -> io::Result<Buffer> {
        let mapped = self.mapped.get(&number).ok_or_else(|| unknown(number))?;
        if offset.checked_add(length).is_none_or(|end| end > mapped.size) {
            let message = format!(
                "{length} bytes at {offset} of segment {number}, which has {}",
                mapped.size
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        *mapped.readers() += 1;
        let released: Box<dyn FnOnce() + Send + Sync> = Box::new(released);
        let keep = Region { mapped: Arc::clone(mapped), released: Some(released) };
        // SAFETY: the mapping is kept by `keep`, reaches at least so far, and its pages exist and
        // cannot be taken away, as the seals say. Its producer writes them again only once it was
        // told that they were released; one that lies changes numbers, and nothing else (see the
        // crate).
        Ok(unsafe { Buffer::foreign(mapped.start.add(offset), length, Box::new(keep)) })
    }

    /// Number of segments that are mapped.
    #[must_use]
    pub fn segments(&self) -> usize {
        self.mapped.len()
    }
}

impl fmt::Debug for Mappings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mappings({} of {} bytes)", self.mapped.len(), self.bytes)
    }
}

fn unknown(number: u32) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("segment {number} was never announced"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Segments;
    use rustix::fs::MemfdFlags;
    use std::os::fd::BorrowedFd;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn owned(descriptor: BorrowedFd<'_>) -> OwnedFd {
        descriptor.try_clone_to_owned().unwrap()
    }

    #[test]
    fn a_region_shows_what_was_written_and_tells_when_it_is_read() {
        for view in [View::ReadOnly, View::Private] {
            let segments = Segments::new(1 << 20);
            let mut buffer = segments.take(1000).unwrap().unwrap();
            let (segment, _) = segments.locate(&buffer).unwrap();
            let mut mappings = Mappings::new(view, 1 << 20, 4);
            mappings.add(0, segment.size(), owned(segment.descriptor())).unwrap();
            let told = Arc::new(AtomicU32::new(0));
            for round in 1..=3u8 {
                buffer.fill(round);
                let tell = Arc::clone(&told);
                let tell = move || {
                    tell.fetch_add(1, Ordering::SeqCst);
                };
                let region = mappings.region(0, 0, 1000, tell).unwrap();
                assert_eq!(&region[..], &[round; 1000]);
                let slice = region.slice(5..6);
                drop(region);
                assert_eq!(told.load(Ordering::SeqCst), u32::from(round) - 1);
                drop(slice);
                assert_eq!(told.load(Ordering::SeqCst), u32::from(round));
            }
        }
    }

    #[test]
    fn writing_through_a_private_view_harms_nobody_and_is_forgotten() {
        let segments = Segments::new(1 << 20);
        let mut buffer = segments.take(1000).unwrap().unwrap();
        let (segment, _) = segments.locate(&buffer).unwrap();
        let mut mappings = Mappings::new(View::Private, 1 << 20, 4);
        mappings.add(0, segment.size(), owned(segment.descriptor())).unwrap();
        buffer.fill(1);
        let region = mappings.region(0, 0, 1000, || ()).unwrap();
        // SAFETY: the mapping is writable, and the test reads it only after this.
        unsafe { region.as_ptr().cast_mut().write(9) };
        assert_eq!((region[0], buffer[0]), (9, 1));
        drop(region);
        buffer.fill(2);
        assert_eq!(mappings.region(0, 0, 1000, || ()).unwrap()[0], 2);
    }

    #[test]
    fn what_a_peer_announces_is_checked() {
        let segments = Segments::new(1 << 20);
        let buffer = segments.take(1000).unwrap().unwrap();
        let (segment, _) = segments.locate(&buffer).unwrap();
        let (size, file) = (segment.size(), || owned(segment.descriptor()));
        let mut mappings = Mappings::new(View::ReadOnly, 2 * size, 2);
        assert!(mappings.add(0, size + 4096, file()).is_err());
        assert!(mappings.add(0, size - 1, file()).is_err());
        assert!(mappings.add(0, 0, file()).is_err());
        assert!(mappings.add(0, usize::MAX, file()).is_err());
        let loose = rustix::fs::memfd_create("loose", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&loose, 4096).unwrap();
        let error = mappings.add(0, 4096, loose).unwrap_err().to_string();
        assert!(error.contains("not sealed"), "{error}");
        let (pipe, _other) = rustix::pipe::pipe().unwrap();
        assert!(mappings.add(0, 4096, pipe).is_err());
        mappings.add(0, size, file()).unwrap();
        assert!(mappings.add(0, size, file()).is_err());
        mappings.add(1, size, file()).unwrap();
        assert!(mappings.add(2, size, file()).is_err());
        assert!(mappings.region(7, 0, 1, || ()).is_err());
        assert!(mappings.region(0, 0, size + 1, || ()).is_err());
        assert!(mappings.region(0, 1, size, || ()).is_err());
        assert!(mappings.region(0, usize::MAX, 2, || ()).is_err());
        assert!(mappings.remove(7).is_err());
        let region = mappings.region(0, 0, size, || ()).unwrap();
        mappings.remove(0).unwrap();
        assert!(mappings.region(0, 0, 1, || ()).is_err());
        assert_eq!(region.len(), size);
        mappings.add(3, size, file()).unwrap();
        assert_eq!(mappings.segments(), 2);
    }
}
