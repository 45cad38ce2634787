//! The producer's side: segments that batches are written into.

use feedline_core::{BufferMut, Error, Result};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Sizes are multiples of this: of a page, and of enough of them that few sizes occur.
const GRAIN: usize = 64 << 10;

/// What a consumer asks of a segment: that its size stays, and that only its producer writes it.
pub(crate) fn seals() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE
}

/// A piece of memory that other processes can map.
pub struct Segment {
    number: u32,
    start: NonNull<u8>,
    size: usize,
    descriptor: OwnedFd,
}

// SAFETY: a segment only says where memory lies; it is accessed through the `BufferMut` made of it.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// Allocates, seals and maps.
    fn create(number: u32, size: usize) -> std::io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let descriptor = rustix::fs::memfd_create("feedline", flags)?;
        rustix::fs::ftruncate(&descriptor, size as u64)?;
        // Without this, the first access to a page that the system does not have would be a signal.
        rustix::fs::fallocate(&descriptor, FallocateFlags::empty(), 0, size as u64)?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        let flags = flags | MapFlags::POPULATE;
        let null = std::ptr::null_mut();
        // SAFETY: a new mapping at an address that the system chooses touches nobody else's memory.
        let start = unsafe { rustix::mm::mmap(null, size, protection, flags, &descriptor, 0)? };
        let start = NonNull::new(start.cast()).expect("a mapping is not at address zero");
        let segment = Self { number, start, size, descriptor };
        // Last, because it forbids what was just done: another mapping that can be written.
        rustix::fs::fcntl_add_seals(&segment.descriptor, seals() | SealFlags::SEAL)?;
        Ok(segment)
    }

    /// Its number, which no other segment of its producer has or had.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Its size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// What is passed to another process, so that it can map the segment.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: mapped in `create` with this size; a buffer over it would keep it from dropping.
        // It can only fail for a range that is not mapped.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.size) };
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Segment({}, {} bytes)", self.number, self.size)
    }
}

/// A producer's segments. Cloning gives another handle to the same ones.
#[derive(Clone)]
pub struct Segments {
    state: Arc<State>,
}

struct State {
    limit: usize,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    next_number: u32,
    bytes: usize,
    /// All segments, by where they are mapped.
    all: BTreeMap<usize, Arc<Segment>>,
    /// Those that nobody uses; what was used last lies last, and is still in the caches.
    free: Vec<usize>,
}

impl State {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Puts a segment back when the last buffer over it is dropped.
struct Lease {
    segment: Arc<Segment>,
    state: Weak<State>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(state) = self.state.upgrade() else { return };
        let (mut inner, start) = (state.lock(), self.segment.start.as_ptr() as usize);
        if inner.all.get(&start).is_some_and(|kept| Arc::ptr_eq(kept, &self.segment)) {
            inner.free.push(start);
        }
    }
}

impl Segments {
    /// Segments that have at most `limit` bytes together.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { state: Arc::new(State { limit, inner: Mutex::default() }) }
    }

    /// A writable buffer of `length` bytes in a segment of its own; `None` if that would be more
    /// than the limit. When the buffer and all that is made of it are dropped, the segment is used
    /// again.
    ///
    /// # Errors
    ///
    /// If the system has not so much memory.
    pub fn take(&self, length: usize) -> Result<Option<BufferMut>> {
        let Some(size) = size_class(length) else { return Ok(None) };
        let mut inner = self.state.lock();
        let fits = |start: &usize| {
            let segment = inner.all.get(start);
            segment.is_some_and(|segment| (size..=size + size / 4).contains(&segment.size))
        };
        let segment = match inner.free.iter().rposition(fits) {
            Some(at) => {
                let start = inner.free.remove(at);
                Arc::clone(inner.all.get(&start).expect("a free segment is one of all"))
            }
            None => {
                // Other sizes were wanted before: what has lain unused for longest makes room.
                while size > self.state.limit - inner.bytes {
                    if inner.free.is_empty() {
                        return Ok(None);
                    }
                    let oldest = inner.free.remove(0);
                    let gone = inner.all.remove(&oldest).expect("a free segment is one of all");
                    inner.bytes -= gone.size;
                }
                let number = inner.next_number;
                let segment = Segment::create(number, size).map_err(|error| {
                    Error::unavailable(format!("shared memory for {size} bytes"), error)
                })?;
                inner.next_number = number.checked_add(1).ok_or_else(|| {
                    Error::Internal("more segments than there are numbers for them".into())
                })?;
                let segment = Arc::new(segment);
                inner.bytes += size;
                inner.all.insert(segment.start.as_ptr() as usize, Arc::clone(&segment));
                segment
            }
        };
        let start = segment.start;
        let (capacity, state) = (segment.size, Arc::downgrade(&self.state));
        let keep = Box::new(Lease { segment, state });
        // SAFETY: the segment is mapped for as long as the lease keeps it, begins at a page, is all
        // initialised (with zeros, or what was written before), and was just taken off the free
        // ones: only this buffer accesses it. No other process can write it: it is sealed.
        let mut buffer = unsafe { BufferMut::foreign(start, capacity, keep) };
        buffer.truncate(length);
        Ok(Some(buffer))
    }

    /// In which segment bytes lie, and where in it; `None` if they lie elsewhere.
    #[must_use]
    pub fn locate(&self, bytes: &[u8]) -> Option<(Arc<Segment>, usize)> {
        let address = bytes.as_ptr() as usize;
        let inner = self.state.lock();
        let (start, segment) = inner.all.range(..=address).next_back()?;
        let offset = address - start;
        (offset + bytes.len() <= segment.size).then(|| (Arc::clone(segment), offset))
    }

    /// Never uses the segment again in which these bytes lie: somebody may read them for longer than
    /// we know. It no longer counts, and its memory is freed when its last reader is gone.
    pub fn retire(&self, bytes: &[u8]) {
        let Some((segment, _)) = self.locate(bytes) else { return };
        let (mut inner, start) = (self.state.lock(), segment.start.as_ptr() as usize);
        if inner.all.get(&start).is_some_and(|kept| Arc::ptr_eq(kept, &segment)) {
            inner.all.remove(&start);
            inner.free.retain(|free| *free != start);
            inner.bytes -= segment.size;
        }
    }

    /// Bytes of all segments, used or not.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.state.lock().bytes
    }
}

impl fmt::Debug for Segments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Segments({} of {} bytes)", self.bytes(), self.state.limit)
    }
}

/// Eight sizes per power of two, in whole grains; `None` beyond what can be addressed.
fn size_class(length: usize) -> Option<usize> {
    let step = (length.max(1).checked_next_power_of_two()? / 16).max(GRAIN);
    length.max(1).checked_next_multiple_of(step).filter(|size| *size <= isize::MAX as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_used_again() {
        let segments = Segments::new(1 << 20);
        let mut first = segments.take(100_000).unwrap().unwrap();
        first[99_999] = 7;
        let address = first.as_ptr();
        let (segment, offset) = segments.locate(&first[10..20]).unwrap();
        assert_eq!((segment.number(), offset), (0, 10));
        let buffer = first.freeze();
        let slice = buffer.slice(0..5);
        drop(buffer);
        let second = segments.take(100_000).unwrap().unwrap();
        assert_ne!(second.as_ptr(), address);
        drop(slice);
        assert_eq!(segments.take(100_000).unwrap().unwrap().as_ptr(), address);
        assert!(segments.locate(&[1, 2, 3]).is_none());
    }

    #[test]
    fn a_retired_segment_is_never_used_again() {
        let segments = Segments::new(1 << 20);
        let buffer = segments.take(1 << 20).unwrap().unwrap().freeze();
        let address = buffer.as_ptr();
        segments.retire(&buffer);
        assert!(segments.locate(&buffer).is_none());
        assert_eq!(segments.bytes(), 0);
        let other = segments.take(1 << 20).unwrap().unwrap();
        drop(buffer);
        assert_ne!(other.as_ptr(), address);
        assert!(segments.take(1 << 20).unwrap().is_none());
        drop(other);
        assert!(segments.take(1 << 20).unwrap().is_some());
    }

    #[test]
    fn the_limit_holds_and_other_sizes_make_room() {
        let segments = Segments::new(1 << 20);
        let large = segments.take(1 << 20).unwrap().unwrap();
        assert!(segments.take(1).unwrap().is_none());
        drop(large);
        let small: Vec<_> = (0..16).map(|_| segments.take(GRAIN).unwrap().unwrap()).collect();
        assert_eq!(segments.bytes(), 1 << 20);
        assert!(segments.take(1).unwrap().is_none());
        drop(segments);
        drop(small);
    }

    #[test]
    fn nobody_can_resize_a_segment_or_map_it_to_write() {
        let segments = Segments::new(1 << 20);
        let buffer = segments.take(10).unwrap().unwrap();
        let (segment, _) = segments.locate(&buffer).unwrap();
        let descriptor = segment.descriptor();
        assert!(rustix::fs::ftruncate(descriptor, 0).is_err());
        assert!(rustix::fs::ftruncate(descriptor, 1 << 30).is_err());
        assert!(rustix::io::write(descriptor, b"x").is_err());
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert!(rustix::fs::fallocate(descriptor, punch, 0, 4096).is_err());
        let (write, shared) = (ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: it fails, and would otherwise map memory that nobody has.
        let mapped =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), 4096, write, shared, descriptor, 0) };
        assert!(mapped.is_err());
    }

    #[test]
    fn a_pool_over_segments_makes_batches_in_shared_memory() {
        let segments = Segments::new(1 << 20);
        let source = segments.clone();
        let large = move |length: usize| match length {
            0..4096 => None,
            _ => source.take(length).ok().flatten(),
        };
        let pool = feedline_core::Pool::over(1 << 20, large);
        let mut slots = feedline_core::Slots::new(&pool, 4, 16 << 10).unwrap();
        slots.next_rows(4).row(3).fill(9);
        let batch = slots.finish().unwrap().freeze();
        assert_eq!(segments.locate(&batch).unwrap().1, 0);
        assert!(segments.locate(&pool.take(100).unwrap()).is_none());
    }
}
