//! Memory between the engine and a host: segments that go in, and leases of those that come out.

use feedline_core::{BufferMut, Error, Result};
use feedline_shm::Segments;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// No sample has more bytes.
pub(super) const LARGEST: usize = 4 << 30;
/// What is no larger is copied at once: that costs less than to keep a segment for it.
pub(super) const SMALL: u64 = 16 << 10;
/// Of so many segments that are still read, no more are lent.
pub(super) const MOST_LEASES: usize = 8;

/// At least so many bytes that another process can map.
pub(super) fn take(segments: &Segments, bytes: usize) -> Result<BufferMut> {
    let taken = segments.take(bytes)?;
    taken.ok_or_else(|| {
        let error = std::io::Error::from(std::io::ErrorKind::OutOfMemory);
        Error::unavailable(format!("shared memory for {bytes} bytes"), error)
    })
}

/// Which segments of a host are read, and which it may write again.
#[derive(Debug, Default)]
pub(super) struct Leases {
    free: Mutex<Vec<u32>>,
    out: AtomicUsize,
}

impl Leases {
    /// Notes that a segment is read until the lease and all its clones are dropped.
    pub(super) fn lease(self: &Arc<Self>, segment: u32) -> Arc<Lease> {
        self.out.fetch_add(1, Ordering::Relaxed);
        Arc::new(Lease { segment, leases: Arc::clone(self) })
    }

    /// Number of segments that are read.
    pub(super) fn out(&self) -> usize {
        self.out.load(Ordering::Relaxed)
    }

    /// Segments that became free since this was asked last.
    pub(super) fn freed(&self) -> Vec<u32> {
        std::mem::take(&mut *self.free.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A segment that is read.
#[derive(Debug)]
pub(super) struct Lease {
    segment: u32,
    leases: Arc<Leases>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.leases.free.lock().unwrap_or_else(PoisonError::into_inner).push(self.segment);
        self.leases.out.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_free_when_its_last_reader_is_gone() {
        let leases = Arc::new(Leases::default());
        let (one, two) = (leases.lease(1), leases.lease(2));
        let other = Arc::clone(&one);
        drop((one, two));
        assert_eq!((leases.out(), leases.freed()), (1, vec![2]));
        drop(other);
        assert_eq!((leases.out(), leases.freed()), (0, vec![1]));
        assert!(leases.freed().is_empty());
    }
}
