//! Whoever writes: one commit after the other, each durable before the next is begun. That is a thread
//! of the journal's own, or the caller.

use crate::disk::{DiskFile, write_all};
use crate::error::is_full;
use crate::folder::sync;
use crate::format::{HEADER, Header, end_mark, seal};
use crate::journal::{Health, Shared};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// A segment has fewer than 2³² records of at least 16 bytes.
const LONGEST_SEGMENT: u64 = 1 << 35;

/// The segment that is appended to.
#[derive(Debug)]
pub(crate) struct Segment {
    file: Box<dyn DiskFile>,
    first: u64,
    salt: u32,
    /// How much of it is durable.
    length: u64,
}

impl Segment {
    /// A segment of which only the header is there.
    pub(crate) fn new(file: Box<dyn DiskFile>, header: &Header) -> Self {
        Self { file, first: header.position, salt: header.salt(), length: HEADER as u64 }
    }

    /// The number of a record of this segment.
    fn number(&self, position: u64) -> u32 {
        u32::try_from(position - self.first).expect("a segment has fewer than 2^32 records")
    }
}

/// Writes what callers append.
#[derive(Debug)]
pub(crate) struct Committer {
    shared: Arc<Shared>,
    segment: Segment,
    /// The records that were taken and are not durable yet.
    commit: Vec<u8>,
    /// Whether a part of them may be in the file, because the disk became full.
    partial: bool,
    /// When to look for space again.
    retry: Instant,
}

enum Task {
    Commit,
    Roll,
    Retry,
    Close,
    Stop,
    /// There is nothing to do now, and it is not to be waited for.
    Rest,
}

impl Committer {
    pub(crate) fn new(shared: Arc<Shared>, segment: Segment) -> Self {
        Self { shared, segment, commit: Vec::new(), partial: false, retry: Instant::now() }
    }

    /// Works until the journal is closed or stops.
    pub(crate) fn run(mut self) {
        self.commits(true);
    }

    /// Does what is there to do, and does not wait for more.
    pub(crate) fn run_ready(&mut self) {
        self.commits(false);
        self.shared.set_committer(None);
    }

    fn commits(&mut self, waits: bool) {
        self.shared.set_committer(Some(std::thread::current().id()));
        let ended = catch_unwind(AssertUnwindSafe(|| self.work(waits)));
        let reason = match ended {
            Ok(Ok(())) => return,
            Ok(Err(error)) => {
                format!("{}: {error}", self.shared.folder.segment(self.segment.first).display())
            }
            Err(_) => "whoever was to commit panicked".to_owned(),
        };
        self.shared.stop(&reason);
    }

    fn work(&mut self, waits: bool) -> io::Result<()> {
        let mut looked = false;
        loop {
            match self.next_task(waits, looked) {
                Task::Commit => self.commit()?,
                Task::Roll => {
                    self.roll()?;
                    self.shared.state().rolls_done += 1;
                    self.shared.done.notify_all();
                }
                Task::Retry => {
                    self.look_for_space()?;
                    // Whoever does not wait looks once.
                    looked = !waits;
                }
                Task::Close => {
                    self.commit()?;
                    self.mark_end();
                    return Ok(());
                }
                Task::Stop | Task::Rest => return Ok(()),
            }
        }
    }

    fn next_task(&mut self, waits: bool, looked: bool) -> Task {
        let mut state = self.shared.state();
        loop {
            let healthy = match state.health {
                Health::Stopped(_) => return Task::Stop,
                Health::Well => true,
                Health::Short | Health::Full => false,
            };
            if state.closing {
                return Task::Close;
            }
            if state.rolls_wanted > state.rolls_done {
                return Task::Roll;
            }
            let wait = self.retry.saturating_duration_since(Instant::now());
            let freed = std::mem::take(&mut state.freed);
            if !healthy && !looked && (freed || wait.is_zero()) {
                return Task::Retry;
            }
            // What found no space is tried again only when there may be some.
            if state.wanted > state.durable && !matches!(state.health, Health::Full) {
                return Task::Commit;
            }
            if !waits {
                return Task::Rest;
            }
            let wait = if healthy { Duration::MAX } else { wait };
            let woken = self.shared.work.wait_timeout(state, wait);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Writes all that was appended, makes it durable, and tells everybody who waits for it.
    fn commit(&mut self) -> io::Result<()> {
        let (durable, healthy) = {
            let mut state = self.shared.state();
            if self.commit.is_empty() {
                std::mem::swap(&mut self.commit, &mut state.pending);
            } else {
                self.commit.append(&mut state.pending);
            }
            (state.durable, matches!(state.health, Health::Well))
        };
        self.shared.room.notify_all();
        if self.commit.is_empty() {
            return Ok(());
        }
        let longest = self.shared.options.segment_bytes.min(LONGEST_SEGMENT);
        if healthy && self.segment.length + self.commit.len() as u64 > longest {
            self.roll()?;
        }
        let number = self.segment.number(durable);
        let records = seal(&mut self.commit, self.segment.salt, number);
        if !self.write(healthy)? {
            self.found_no_space();
            return Ok(());
        }
        sync(&*self.segment.file)?;
        self.segment.length += self.commit.len() as u64;
        self.partial = false;
        self.commit.clear();
        self.commit.shrink_to(self.shared.pending_limit());

        let mut state = self.shared.state();
        state.durable += u64::from(records);
        if matches!(state.health, Health::Full) {
            state.health = Health::Short;
        }
        let durable = state.durable;
        let notices = state.notices.take_before(durable);
        drop(state);
        self.shared.done.notify_all();
        notices.into_iter().for_each(|notice| notice(Ok(())));
        Ok(())
    }

    /// Writes the commit behind what is durable; false if there is no space, not even the reserve's.
    fn write(&mut self, healthy: bool) -> io::Result<bool> {
        let write = |commit: &Self| {
            let segment = &commit.segment;
            match write_all(&*segment.file, segment.length, &commit.commit) {
                Ok(()) => Ok(true),
                Err(error) if is_full(&error) => Ok(false),
                Err(error) => Err(error),
            }
        };
        if write(self)? {
            return Ok(true);
        }
        self.partial = true;
        if !healthy {
            return Ok(false);
        }
        self.shared.folder.release_reserve();
        self.shared.set_health(Health::Short);
        self.retry = Instant::now() + self.shared.options.full_retry;
        write(self)
    }

    /// Tells everybody who waits that this will take longer.
    fn found_no_space(&mut self) {
        self.retry = Instant::now() + self.shared.options.full_retry;
        self.shared.set_health(Health::Full);
        let notices = self.shared.state().notices.take_before(u64::MAX);
        self.shared.done.notify_all();
        self.shared.room.notify_all();
        notices.into_iter().for_each(|notice| notice(Err(self.shared.full())));
    }

    /// Writes what found no space, and takes a reserve aside again.
    fn look_for_space(&mut self) -> io::Result<()> {
        self.retry = Instant::now() + self.shared.options.full_retry;
        self.commit()?;
        let short = matches!(self.shared.state().health, Health::Short);
        // As much again must be free, or the space that was just released would do.
        let reserve = self.shared.options.reserve_bytes;
        if short && self.shared.folder.make_reserve(reserve, reserve).is_ok() {
            self.shared.set_health(Health::Well);
        }
        Ok(())
    }

    /// Begins the next segment, unless this one is empty or the disk has no space for it.
    fn roll(&mut self) -> io::Result<()> {
        // A segment must end with what is durable, so that the next begins where it ends.
        if self.segment.length == HEADER as u64 || self.partial {
            return Ok(());
        }
        let shared = &*self.shared;
        let header =
            Header::segment(shared.options.version, shared.generation, shared.state().durable);
        match shared.folder.create_segment(&header) {
            Ok(file) => {
                self.segment = Segment::new(file, &header);
                shared.state().segments.push(header.position);
                Ok(())
            }
            Err(error) if is_full(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Marks the end, so that damage before it cannot be taken for a torn commit.
    fn mark_end(&mut self) {
        let durable = self.shared.state().durable;
        if !self.commit.is_empty() || self.segment.length == HEADER as u64 {
            return;
        }
        let mark = end_mark(self.segment.salt, self.segment.number(durable));
        // All records are durable; a mark that is missing makes no difference to them.
        let _ = write_all(&*self.segment.file, self.segment.length, &mark)
            .and_then(|()| sync(&*self.segment.file));
    }
}
