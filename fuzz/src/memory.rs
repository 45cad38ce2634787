//! Notices who asks for a lot of memory at once: a few hostile bytes must not.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

static LARGEST: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, which remembers the largest request.
#[derive(Debug)]
pub struct Watched;

// SAFETY: every call goes to the system's allocator as it came; a number is kept beside it.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps to the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps to the contract, which is the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LARGEST.fetch_max(size, Ordering::Relaxed);
        // SAFETY: the caller keeps to the contract, which is the same.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps to the contract, which is the same.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// The largest request since the last call, in bytes; 0 where [`Watched`] is not the allocator.
#[must_use]
pub fn largest() -> usize {
    LARGEST.swap(0, Ordering::Relaxed)
}
