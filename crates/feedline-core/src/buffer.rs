//! Memory that tensors stand on: 64-byte-aligned blocks that are pooled, shared and never copied.
//!
//! ```text
//!  Pool ──take──► BufferMut (one owner, writable) ──freeze──► Buffer (shared, read-only)
//!    ▲                                                           │
//!    │            Slots ──next_rows──► RowsMut … RowsMut         │ last owner gone
//!    └───────────────────────────────────────────────────────────┘
//! ```
//!
//! Blocks go back to their pool when their last owner is dropped. That matters more than it looks:
//! copying into fresh pages runs several times slower than into pages that were touched before.

use crate::{Error, Result};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Every buffer starts at a multiple of this many bytes.
pub const ALIGNMENT: usize = 64;

/// One allocation. Its bytes are initialised from the start and stay so.
struct Block {
    start: NonNull<u8>,
    capacity: usize,
    pool: Weak<PoolState>,
    /// Whether the pool no longer counts it as in use.
    left: AtomicBool,
    /// What owns the memory, if it is not ours to free.
    keep: Option<Box<dyn Any + Send + Sync>>,
}

thread_local! {
    /// Bytes of pooled blocks that this thread took and has not let go, and the most there were
    /// since somebody asked.
    static HELD: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

fn hold(bytes: isize) {
    HELD.with(|held| {
        let (now, most) = held.get();
        held.set((now + bytes, most.max(now + bytes)));
    });
}

/// The most bytes of pooled blocks that this thread held at a time since it last asked.
#[must_use]
pub fn most_held() -> usize {
    HELD.with(|held| held.replace((0, 0)).1.max(0) as usize)
}

// SAFETY: a block owns its allocation; access goes through `&`/`&mut` of its single owner type.
unsafe impl Send for Block {}
// SAFETY: shared access to a block only ever reads (see `Buffer`) or is split into disjoint rows.
unsafe impl Sync for Block {}

impl Block {
    /// What is asked of the allocator: a little more, at an alignment for which it can hand out
    /// pages that the system has zeroed, instead of zeroing them by hand.
    fn layout(capacity: usize) -> Option<Layout> {
        Layout::from_size_align(capacity.checked_add(ALIGNMENT)?, 8).ok()
    }

    /// `None` if there is not so much memory.
    fn allocate(capacity: usize, pool: Weak<PoolState>) -> Option<Self> {
        if capacity == 0 {
            let start = NonNull::new(ALIGNMENT as *mut u8).expect("the alignment is not zero");
            return Some(Self { start, capacity, pool, left: AtomicBool::new(false), keep: None });
        }
        // SAFETY: the layout has a non-zero size.
        let base = NonNull::new(unsafe { alloc_zeroed(Self::layout(capacity)?) })?;
        let skipped = ALIGNMENT - base.as_ptr() as usize % ALIGNMENT;
        // SAFETY: between 1 and 64 bytes are skipped, and 64 more than `capacity` are there; the
        // byte before `start` is therefore ours to note down how many.
        let start = unsafe {
            let start = base.add(skipped);
            start.sub(1).write(skipped as u8);
            start
        };
        Some(Self { start, capacity, pool, left: AtomicBool::new(false), keep: None })
    }
}

impl Block {
    /// Ends counting it as in use.
    fn leave(&self, pool: &PoolState) {
        if !self.left.swap(true, Ordering::Relaxed) {
            pool.used.fetch_sub(self.capacity, Ordering::Relaxed);
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.capacity == 0 {
            return;
        }
        if let Some(pool) = self.pool.upgrade() {
            self.leave(&pool);
            hold(-(self.capacity as isize));
            if self.keep.is_some() {
                return;
            }
            let block = Self {
                start: self.start,
                capacity: self.capacity,
                pool: Weak::new(),
                left: AtomicBool::new(true),
                keep: None,
            };
            if let Some(refused) = pool.give_back(block) {
                std::mem::forget(refused);
            } else {
                return;
            }
        }
        if self.keep.is_some() {
            return;
        }
        let layout = Self::layout(self.capacity).expect("capacity was checked on allocation");
        // SAFETY: allocated in `allocate` with this very layout, and not handed to a pool; the byte
        // before `start` says how far behind it the allocation begins.
        unsafe {
            let skipped = usize::from(self.start.sub(1).read());
            dealloc(self.start.sub(skipped).as_ptr(), layout);
        }
    }
}

/// A reserve of blocks, so that buffers are reused instead of being allocated anew.
///
/// Cloning gives another handle to the same reserve. Blocks that come back after the pool is gone,
/// or when it already keeps enough, are freed.
#[derive(Clone)]
pub struct Pool {
    state: Arc<PoolState>,
}

struct PoolState {
    free: Mutex<Free>,
    keep: usize,
    used: AtomicUsize,
    source: Option<Box<Source>>,
}

/// Where a pool may get memory of a special kind; `None` if there is none for so many bytes.
type Source = dyn Fn(usize) -> Option<BufferMut> + Send + Sync;

#[derive(Default)]
struct Free {
    blocks: VecDeque<Block>,
    bytes: usize,
}

impl PoolState {
    /// Takes a block back, or refuses it. Never waits for long: a fork may have left the lock held.
    fn give_back(&self, block: Block) -> Option<Block> {
        let Ok(mut free) = self.free.try_lock() else { return Some(block) };
        let room = self.keep.saturating_sub(self.used.load(Ordering::Relaxed));
        if block.capacity > room {
            return Some(block);
        }
        // What has lain unused for longest makes room: sizes change as the data does.
        while free.bytes + block.capacity > room || free.blocks.len() >= 512 {
            let Some(oldest) = free.blocks.pop_front() else { break };
            free.bytes -= oldest.capacity;
        }
        free.bytes += block.capacity;
        free.blocks.push_back(block);
        None
    }
}

impl Pool {
    /// A pool that keeps unused blocks as long as they and those in use have at most `keep` bytes.
    #[must_use]
    pub fn new(keep: usize) -> Self {
        let (free, used) = (Mutex::default(), AtomicUsize::new(0));
        Self { state: Arc::new(PoolState { free, keep, used, source: None }) }
    }

    /// A pool that asks `source` first, for memory that other processes can see, say. What comes
    /// from there goes back there; when it has none, the pool allocates as usual.
    #[must_use]
    pub fn over(
        keep: usize,
        source: impl Fn(usize) -> Option<BufferMut> + Send + Sync + 'static,
    ) -> Self {
        let (free, used) = (Mutex::default(), AtomicUsize::new(0));
        Self { state: Arc::new(PoolState { free, keep, used, source: Some(Box::new(source)) }) }
    }

    /// A writable buffer of `length` bytes; what they contain is unspecified.
    ///
    /// # Errors
    ///
    /// If there is not so much memory. The process goes on: whoever asked can give the sample up.
    pub fn take(&self, length: usize) -> Result<BufferMut> {
        if let Some(BufferMut { mut block, .. }) =
            self.state.source.as_ref().and_then(|source| source(length))
            && block.capacity >= length
        {
            block.pool = Arc::downgrade(&self.state);
            return Ok(self.lend(block, length));
        }
        let capacity = size_class(length);
        if let Ok(mut free) = self.state.free.try_lock() {
            // A block that is a little too large is better than fresh pages.
            let fits =
                |block: &Block| (capacity..=capacity + capacity / 4).contains(&block.capacity);
            let exact = free.blocks.iter().rposition(|block| block.capacity == capacity);
            if let Some(index) = exact.or_else(|| free.blocks.iter().rposition(fits))
                && let Some(mut block) = free.blocks.remove(index)
            {
                free.bytes -= block.capacity;
                block.pool = Arc::downgrade(&self.state);
                return Ok(self.lend(block, length));
            }
        }
        let block = Block::allocate(capacity, Arc::downgrade(&self.state));
        Ok(self.lend(block.ok_or_else(|| no_memory(length))?, length))
    }

    fn lend(&self, block: Block, length: usize) -> BufferMut {
        block.left.store(false, Ordering::Relaxed);
        self.state.used.fetch_add(block.capacity, Ordering::Relaxed);
        hold(block.capacity as isize);
        BufferMut { block, length }
    }

    /// Bytes of all blocks that are in use: taken, and neither dropped nor handed over.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.state.used.load(Ordering::Relaxed)
    }

    /// Bytes that lie unused in the pool.
    #[must_use]
    pub fn idle_bytes(&self) -> usize {
        self.state.free.lock().map_or(0, |free| free.bytes)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} bytes idle)", self.idle_bytes())
    }
}

fn no_memory(length: usize) -> Error {
    let source = std::io::Error::from(std::io::ErrorKind::OutOfMemory);
    Error::unavailable(format!("memory for {length} bytes"), source)
}

/// Rounds up to one of eight sizes per power of two, so that buffers of similar length can be
/// exchanged and at most an eighth is wasted.
fn size_class(length: usize) -> usize {
    if length <= ALIGNMENT {
        return if length == 0 { 0 } else { ALIGNMENT };
    }
    let Some(power) = length.checked_next_power_of_two() else { return length };
    let step = (power / 16).max(ALIGNMENT);
    length.div_ceil(step) * step
}

/// Bytes with one owner, who may write them.
pub struct BufferMut {
    block: Block,
    length: usize,
}

impl BufferMut {
    /// A zeroed buffer outside any pool, for a few bytes.
    ///
    /// # Panics
    ///
    /// If there is not so much memory.
    #[must_use]
    pub fn new(length: usize) -> Self {
        Self::try_new(length).unwrap_or_else(|error| panic!("{error}"))
    }

    /// A zeroed buffer outside any pool, of exactly so many bytes.
    ///
    /// # Errors
    ///
    /// If there is not so much memory.
    pub fn try_new(length: usize) -> Result<Self> {
        let block = Block::allocate(length, Weak::new());
        Ok(Self { block: block.ok_or_else(|| no_memory(length))?, length })
    }

    /// Writable bytes that something else owns: memory that other processes map as well.
    ///
    /// # Safety
    ///
    /// `start` must be a multiple of [`ALIGNMENT`], point to `length` initialised bytes, and be
    /// valid for reads and writes of them on any thread for as long as `keep` is alive; nobody else
    /// in this process may touch them in that time.
    pub unsafe fn foreign(
        start: NonNull<u8>,
        length: usize,
        keep: Box<dyn Any + Send + Sync>,
    ) -> Self {
        let (pool, left) = (Weak::new(), AtomicBool::new(false));
        Self { block: Block { start, capacity: length, pool, left, keep: Some(keep) }, length }
    }

    /// Shortens the buffer to its first `length` bytes; longer than it is, it stays as it is.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    /// Ends writing: from here on the bytes are shared and read-only.
    #[must_use]
    pub fn freeze(self) -> Buffer {
        let length = self.length;
        Buffer { owner: Arc::new(Owner::Block(self.block)), start: 0, length }
    }
}

impl Deref for BufferMut {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the block holds at least `length` initialised bytes and is owned by `self`.
        unsafe { std::slice::from_raw_parts(self.block.start.as_ptr(), self.length) }
    }
}

impl DerefMut for BufferMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the access unique.
        unsafe { std::slice::from_raw_parts_mut(self.block.start.as_ptr(), self.length) }
    }
}

impl fmt::Debug for BufferMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufferMut({} bytes)", self.length)
    }
}

enum Owner {
    Block(Block),
    Foreign { start: NonNull<u8>, length: usize, _keep: Box<dyn Any + Send + Sync> },
}

// SAFETY: foreign bytes are only read, and the promise of `Buffer::foreign` covers every thread.
unsafe impl Send for Owner {}
// SAFETY: as above.
unsafe impl Sync for Owner {}

impl Owner {
    fn bytes(&self) -> (NonNull<u8>, usize) {
        match self {
            Self::Block(block) => (block.start, block.capacity),
            Self::Foreign { start, length, .. } => (*start, *length),
        }
    }
}

/// Shared, read-only bytes. Cloning and slicing copy nothing.
#[derive(Clone)]
pub struct Buffer {
    owner: Arc<Owner>,
    start: usize,
    length: usize,
}

impl Buffer {
    /// Bytes that something else owns: a NumPy array, a mapped file, a received frame.
    ///
    /// # Safety
    ///
    /// `start` must be valid for reads of `length` bytes on any thread for as long as `keep` is
    /// alive, and nobody may write them in that time.
    pub unsafe fn foreign(
        start: NonNull<u8>,
        length: usize,
        keep: Box<dyn Any + Send + Sync>,
    ) -> Self {
        let owner = Owner::Foreign { start, length, _keep: keep };
        Self { owner: Arc::new(owner), start: 0, length }
    }

    /// The part `range` of these bytes, sharing their memory.
    ///
    /// # Panics
    ///
    /// If the range reaches past the end.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.length, "slice {range:?}");
        Self {
            owner: Arc::clone(&self.owner),
            start: self.start + range.start,
            length: range.end - range.start,
        }
    }

    /// Whether the bytes belong to somebody else: an array they are a view of, or memory that other
    /// processes map.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        match &*self.owner {
            Owner::Block(block) => block.keep.is_some(),
            Owner::Foreign { .. } => true,
        }
    }

    /// Hands the bytes over to somebody else's budget: their pool no longer counts them as in use.
    pub fn hand_over(&self) {
        if let Owner::Block(block) = &*self.owner
            && let Some(pool) = block.pool.upgrade()
        {
            block.leave(&pool);
        }
    }

    /// The buffer as a writable one, if nothing else shares it and it is whole; otherwise itself.
    ///
    /// # Errors
    ///
    /// Gives the buffer back when it is shared, a slice, or foreign memory.
    pub fn try_mut(self) -> Result<BufferMut, Self> {
        let Self { owner, start, length } = self;
        if start != 0 {
            return Err(Self { owner, start, length });
        }
        match Arc::try_unwrap(owner) {
            Ok(Owner::Block(block)) => Ok(BufferMut { block, length }),
            Ok(foreign) => Err(Self { owner: Arc::new(foreign), start, length }),
            Err(owner) => Err(Self { owner, start, length }),
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let (start, length) = self.owner.bytes();
        debug_assert!(self.start + self.length <= length);
        // SAFETY: the range lies within what the owner keeps alive, initialised and unwritten.
        unsafe { std::slice::from_raw_parts(start.as_ptr().add(self.start), self.length) }
    }
}

impl From<&[u8]> for Buffer {
    fn from(bytes: &[u8]) -> Self {
        let mut buffer = BufferMut::new(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer.freeze()
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.length)
    }
}

/// A buffer of equal rows that several threads fill at once.
///
/// Rows are handed out from the front, each once, so no two writers ever share a byte; when all
/// writers are done, [`Slots::finish`] gives the whole as one [`Buffer`].
pub struct Slots {
    block: Arc<Block>,
    row_bytes: usize,
    rows: usize,
    handed_out: usize,
}

impl Slots {
    /// Room for `rows` rows of `row_bytes` bytes each, from a pool.
    ///
    /// # Errors
    ///
    /// If there is not so much memory.
    pub fn new(pool: &Pool, rows: usize, row_bytes: usize) -> Result<Self> {
        let buffer = pool.take(rows.saturating_mul(row_bytes))?;
        Ok(Self { block: Arc::new(buffer.block), row_bytes, rows, handed_out: 0 })
    }

    /// The next `count` rows, to be written by one thread.
    ///
    /// # Panics
    ///
    /// If fewer than `count` rows are left.
    pub fn next_rows(&mut self, count: usize) -> RowsMut {
        let first = self.handed_out;
        assert!(first + count <= self.rows, "rows {first}+{count} of {}", self.rows);
        self.handed_out += count;
        RowsMut { block: Arc::clone(&self.block), first, count, row_bytes: self.row_bytes }
    }

    /// All rows as one buffer, once every [`RowsMut`] is dropped; `None` while one is alive.
    #[must_use]
    pub fn finish(self) -> Option<BufferMut> {
        let length = self.rows * self.row_bytes;
        Arc::into_inner(self.block).map(|block| BufferMut { block, length })
    }
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slots({} of {} rows out)", self.handed_out, self.rows)
    }
}

/// A run of rows of a [`Slots`], writable by its one owner.
pub struct RowsMut {
    block: Arc<Block>,
    first: usize,
    count: usize,
    row_bytes: usize,
}

impl RowsMut {
    /// Splits off the rows from `at` on.
    ///
    /// # Panics
    ///
    /// If there are fewer than `at` rows.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Self {
        assert!(at <= self.count, "split at {at} of {}", self.count);
        let (first, count) = (self.first + at, self.count - at);
        self.count = at;
        Self { block: Arc::clone(&self.block), first, count, row_bytes: self.row_bytes }
    }

    /// Row `index` of this run.
    ///
    /// # Panics
    ///
    /// If `index` is not below the number of rows.
    pub fn row(&mut self, index: usize) -> &mut [u8] {
        assert!(index < self.count, "row {index} of {}", self.count);
        let offset = (self.first + index) * self.row_bytes;
        // SAFETY: `Slots::next_rows` gave these rows to this value alone and checked that they lie
        // within the block; `&mut self` makes the access unique.
        unsafe {
            std::slice::from_raw_parts_mut(self.block.start.as_ptr().add(offset), self.row_bytes)
        }
    }
}

impl fmt::Debug for RowsMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RowsMut({}..{})", self.first, self.first + self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_knows_what_is_in_use() {
        let pool = Pool::new(1 << 20);
        let _ = most_held();
        let (first, second) = (pool.take(1000).unwrap(), pool.take(3000).unwrap().freeze());
        assert!((4000..4600).contains(&pool.used_bytes()));
        drop(first);
        assert!((3000..3500).contains(&pool.used_bytes()));
        second.hand_over();
        assert_eq!(pool.used_bytes(), 0);
        drop(second);
        assert_eq!(pool.used_bytes(), 0);
        assert!((4000..4600).contains(&most_held()));
        assert_eq!(most_held(), 0);
        assert!(pool.take(2900).unwrap().len() == 2900 && pool.used_bytes() == 0);
    }

    #[test]
    fn buffers_are_aligned_and_reused() {
        let pool = Pool::new(1 << 20);
        let first = pool.take(1000).unwrap();
        assert_eq!(first.as_ptr() as usize % ALIGNMENT, 0);
        let address = first.as_ptr() as usize;
        drop(first.freeze());
        assert!(pool.idle_bytes() >= 1000);
        assert_eq!(pool.take(990).unwrap().as_ptr() as usize, address);
    }

    #[test]
    fn a_pool_keeps_no_more_than_it_may() {
        let pool = Pool::new(4096);
        let buffers: Vec<_> = (0..4).map(|_| pool.take(2048).unwrap()).collect();
        drop(buffers);
        assert_eq!(pool.idle_bytes(), 4096);
        let late = pool.take(64).unwrap();
        drop(pool);
        drop(late);
    }

    #[test]
    fn foreign_memory_is_written_shared_and_given_back_to_its_owner() {
        let owner = Arc::new(BufferMut::new(256));
        let source = Arc::clone(&owner);
        let pool = Pool::over(1 << 20, move |length| {
            let keep = Box::new(Arc::clone(&source));
            let start = NonNull::new(source.as_ptr().cast_mut())?;
            // SAFETY: the block has 256 bytes, `keep` keeps it, and the test writes one at a time.
            (length <= 256).then(|| unsafe { BufferMut::foreign(start, 256, keep) })
        });
        let mut buffer = pool.take(100).unwrap();
        buffer.fill(7);
        assert_eq!((buffer.len(), pool.used_bytes()), (100, 256));
        let shared = buffer.freeze();
        assert_eq!((shared[99], shared.as_ptr()), (7, owner.as_ptr()));
        assert_eq!(Arc::strong_count(&owner), 3);
        drop(shared.clone().try_mut().unwrap_err());
        drop(shared.try_mut().unwrap());
        assert_eq!((Arc::strong_count(&owner), pool.used_bytes(), pool.idle_bytes()), (2, 0, 0));
        assert!(pool.take(300).unwrap().as_ptr() != owner.as_ptr());
    }

    #[test]
    fn slices_share_memory() {
        let whole = Buffer::from(&b"feedline"[..]);
        let part = whole.slice(4..8);
        assert_eq!(&*part, b"line");
        assert_eq!(part.as_ptr() as usize, whole.as_ptr() as usize + 4);
        assert!(part.try_mut().is_err());
    }

    #[test]
    fn rows_written_by_many_threads_make_one_buffer() {
        let mut slots = Slots::new(&Pool::new(0), 8, 4).unwrap();
        let threads: Vec<_> = (0..4u8)
            .map(|thread| {
                let mut rows = slots.next_rows(2);
                std::thread::spawn(move || {
                    rows.row(0).fill(2 * thread);
                    rows.row(1).fill(2 * thread + 1);
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let buffer = slots.finish().unwrap();
        let expected: Vec<u8> = (0..8).flat_map(|row| [row; 4]).collect();
        assert_eq!(&*buffer, &expected[..]);
    }

    #[test]
    fn split_rows_stay_apart() {
        let mut slots = Slots::new(&Pool::new(0), 3, 1).unwrap();
        let mut first = slots.next_rows(3);
        let mut last = first.split_off(2);
        last.row(0)[0] = 3;
        (first.row(0)[0], first.row(1)[0]) = (1, 2);
        drop((first, last));
        assert_eq!(&*slots.finish().unwrap(), &[1, 2, 3]);
    }

    #[test]
    fn slots_are_not_finished_while_a_writer_lives() {
        let mut slots = Slots::new(&Pool::new(0), 2, 4).unwrap();
        let rows = slots.next_rows(1);
        assert!(slots.finish().is_none());
        drop(rows);
    }

    #[test]
    fn empty_buffers_are_fine() {
        let pool = Pool::new(100);
        assert!(pool.take(0).unwrap().is_empty());
        assert!(BufferMut::new(0).freeze().is_empty());
        assert_eq!(Slots::new(&pool, 4, 0).unwrap().finish().unwrap().len(), 0);
    }

    #[test]
    fn size_classes_waste_at_most_an_eighth() {
        for length in [1, 64, 65, 1000, 4097, 1 << 20, (1 << 20) + 1, 38_535_168] {
            let class = size_class(length);
            assert!(class >= length && class <= length + (length / 8).max(64), "{length} {class}");
            assert_eq!(size_class(class), class);
        }
    }
}
