//! The journal that callers hold: open, append, wait, snapshot, close.

use crate::commit::{Committer, Segment};
use crate::disk::{Disk, RealDisk};
use crate::error::{Error, Result, is_full};
use crate::folder::{Folder, Lock, sync};
use crate::format::{Header, LONGEST, RECORD_HEADER, push};
use crate::survey::Survey;
use crate::{Entry, Generation, Options, Position, Refusal, Torn};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, ThreadId};

/// How many bytes may wait to be written if there is no reserve that says how many find room.
const PENDING_WITHOUT_RESERVE: usize = 1 << 19;

/// Called once, with whether what it waited for is durable.
pub(crate) type Notice = Box<dyn FnOnce(Result<()>) + Send>;

/// An open journal. Threads share it by reference; dropping it [closes](Journal::close) it.
#[derive(Debug)]
pub struct Journal {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Who commits if there is no thread: whoever holds this.
    driven: Option<Mutex<Committer>>,
    /// One snapshot at a time.
    snapshots: Mutex<()>,
}

/// What callers and the thread that commits have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    pub folder: Folder,
    pub options: Options,
    pub generation: u64,
    pub state: Mutex<State>,
    /// There is something to do for the thread that commits.
    pub work: Condvar,
    /// Something has become durable, or never will.
    pub done: Condvar,
    /// What was appended has been taken, so there is room for more.
    pub room: Condvar,
    /// The thread that commits, if one does.
    committer: Mutex<Option<ThreadId>>,
    /// Held until the last of them is gone.
    _lock: Lock,
}

#[derive(Debug)]
pub(crate) struct State {
    /// The position of the next record.
    pub next: u64,
    /// All records before this one are durable.
    pub durable: u64,
    /// Somebody waits for all records before this one.
    pub wanted: u64,
    /// The records that no commit has taken yet.
    pub pending: Vec<u8>,
    pub notices: Notices,
    pub health: Health,
    /// How often a new segment was asked for, and how often that was answered.
    pub rolls_wanted: u64,
    pub rolls_done: u64,
    /// Where the segments on the disk begin.
    pub segments: Vec<u64>,
    /// The position of the newest snapshot.
    pub snapshot: Option<u64>,
    /// How many bytes were appended since.
    pub since_snapshot: u64,
    /// Space was freed: it is worth trying again at once.
    pub freed: bool,
    pub closing: bool,
}

/// Who is to be told when a position is durable.
#[derive(Default)]
pub(crate) struct Notices(BTreeMap<u64, Vec<Notice>>);

impl Notices {
    fn add(&mut self, position: u64, notice: Notice) {
        self.0.entry(position).or_default().push(notice);
    }

    /// Those for positions before `end`, in order.
    pub(crate) fn take_before(&mut self, end: u64) -> Vec<Notice> {
        let later = self.0.split_off(&end);
        std::mem::replace(&mut self.0, later).into_values().flatten().collect()
    }
}

impl std::fmt::Debug for Notices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// How the journal is.
#[derive(Clone, Debug)]
pub(crate) enum Health {
    Well,
    /// The disk was full, and the reserve was released: only essential records are accepted.
    Short,
    /// Not even the reserve was enough: nothing is accepted until there is space.
    Full,
    /// It cannot go on.
    Stopped(Error),
}

impl Shared {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many bytes may wait to be written.
    pub(crate) fn pending_limit(&self) -> usize {
        match self.options.reserve_bytes {
            0 => PENDING_WITHOUT_RESERVE,
            reserve => usize::try_from(reserve / 2).unwrap_or(usize::MAX),
        }
    }

    pub(crate) fn full(&self) -> Error {
        Error::Full { folder: self.folder.path.clone() }
    }

    /// Notes how the journal is, unless it has stopped.
    pub(crate) fn set_health(&self, health: Health) {
        let mut state = self.state();
        if !matches!(state.health, Health::Stopped(_)) {
            state.health = health;
        }
    }

    /// Stops the journal for good, and tells everybody who waits.
    pub(crate) fn stop(&self, reason: &str) -> Error {
        let mut state = self.state();
        let stopped =
            Error::Stopped { folder: self.folder.path.clone(), reason: reason.to_owned() };
        let error = match &state.health {
            // The first reason is the one that counts.
            Health::Stopped(error) => error.clone(),
            _ => stopped,
        };
        state.health = Health::Stopped(error.clone());
        let notices = state.notices.take_before(u64::MAX);
        drop(state);
        self.done.notify_all();
        self.room.notify_all();
        self.work.notify_one();
        notices.into_iter().for_each(|notice| notice(Err(error.clone())));
        error
    }

    /// Whether a position is durable, or why it will not be soon; nothing if it is under way.
    fn outcome(&self, state: &State, position: u64) -> Option<Result<()>> {
        if position < state.durable {
            return Some(Ok(()));
        }
        if position >= state.next {
            let next = state.next;
            let reason = format!("cannot wait for record {position}: the next to come is {next}");
            return Some(Err(Error::Invalid(reason)));
        }
        match &state.health {
            Health::Well | Health::Short => None,
            Health::Full => Some(Err(self.full())),
            Health::Stopped(error) => Some(Err(error.clone())),
        }
    }

    /// Whether this is the thread that commits, which must not wait for itself.
    fn is_committer(&self) -> bool {
        let committer = self.committer.lock().unwrap_or_else(PoisonError::into_inner);
        *committer == Some(std::thread::current().id())
    }

    /// Notes which thread commits.
    pub(crate) fn set_committer(&self, thread: Option<ThreadId>) {
        *self.committer.lock().unwrap_or_else(PoisonError::into_inner) = thread;
    }

    /// Has all records before `end` committed.
    fn want(&self, state: &mut State, end: u64) {
        if state.wanted < end {
            state.wanted = end;
            self.work.notify_one();
        }
    }
}

impl Journal {
    /// Opens the journal in a folder, which is made if it is not there.
    ///
    /// All that it remembers is handed to `replay`: the newest snapshot, if there is one, and the
    /// records after it, in order. It is durable when this returns, and not before; if this
    /// fails, `replay` may have been given a part of it. What a crash left of a commit that had not
    /// become durable is cut off, and returned for the log.
    ///
    /// # Errors
    ///
    /// [`Error::Held`] if it is open already, here or in another process; [`Error::Damaged`] if
    /// something before the end cannot be read; [`Error::Newer`] or [`Error::Foreign`] if a file was
    /// not written by this release or an older one; [`Error::Refused`] if `replay` fails;
    /// [`Error::Full`] if there is not even space for an empty file; [`Error::Unavailable`] if the
    /// folder cannot be used.
    pub fn open(
        folder: impl AsRef<Path>,
        options: Options,
        replay: impl FnMut(Entry<'_>) -> Result<(), Refusal>,
    ) -> Result<(Self, Option<Torn>)> {
        Self::open_on(Arc::new(RealDisk), folder, options, replay)
    }

    /// [`Journal::open`] on any disk.
    ///
    /// # Errors
    ///
    /// As [`Journal::open`].
    pub fn open_on(
        disk: Arc<dyn Disk>,
        folder: impl AsRef<Path>,
        options: Options,
        mut replay: impl FnMut(Entry<'_>) -> Result<(), Refusal>,
    ) -> Result<(Self, Option<Torn>)> {
        let folder = Folder::new(disk, folder.as_ref());
        let lock = folder.lock()?;
        let survey = Survey::read(&folder, options.version, &mut replay)?;
        if let Some(damage) = survey.damage {
            return Err(damage.into_error());
        }
        let generation = survey.generation.max(lock.generation) + 1;
        make_durable(&folder, &survey)?;

        let next = survey.end();
        let header = Header::segment(options.version, generation, next);
        let mut health = Health::Well;
        let begin = || {
            lock.sign(generation)?;
            let created = folder.create_segment(&header);
            created.map_err(|error| Error::disk("write", &folder.segment(next), error))
        };
        let file = match begin() {
            Err(Error::Full { .. }) => {
                folder.release_reserve();
                health = Health::Short;
                begin()?
            }
            other => other?,
        };
        // All names are durable now, also that of a snapshot which makes other files unneeded.
        for path in &survey.unneeded {
            // What cannot be removed now is not needed at the next opening either.
            let _ = folder.disk.remove(path);
        }
        // Otherwise the space of the reserve is what is left to work with.
        if matches!(health, Health::Well) {
            match folder.make_reserve(options.reserve_bytes, 0) {
                Ok(()) => {}
                Err(error) if is_full(&error) => health = Health::Short,
                Err(error) => return Err(Error::disk("make a reserve in", &folder.path, error)),
            }
        }

        let mut segments: Vec<u64> = survey.segments.iter().map(|segment| segment.first).collect();
        segments.retain(|first| *first != next);
        segments.push(next);
        let state = State {
            next,
            durable: next,
            wanted: 0,
            pending: Vec::new(),
            notices: Notices::default(),
            health,
            rolls_wanted: 0,
            rolls_done: 0,
            segments,
            snapshot: survey.snapshot,
            since_snapshot: survey.size(),
            freed: false,
            closing: false,
        };
        let shared = Arc::new(Shared {
            folder,
            options,
            generation,
            state: Mutex::new(state),
            work: Condvar::new(),
            done: Condvar::new(),
            room: Condvar::new(),
            committer: Mutex::new(None),
            _lock: lock,
        });
        let committer = Committer::new(Arc::clone(&shared), Segment::new(file, &header));
        let snapshots = Mutex::new(());
        if !shared.options.own_thread {
            let driven = Some(Mutex::new(committer));
            return Ok((Self { shared, thread: None, driven, snapshots }, survey.torn));
        }
        let thread = std::thread::Builder::new().name("feedline-journal".to_owned());
        let thread = thread.spawn(move || committer.run());
        let thread = thread.map_err(|error| Error::Unavailable {
            what: "a thread for the journal".to_owned(),
            source: Arc::new(error),
        })?;
        Ok((Self { shared, thread: Some(thread), driven: None, snapshots }, survey.torn))
    }

    /// Without a thread that commits: does here what it would do.
    fn drive(&self) {
        if let Some(driven) = self.driven.as_ref().filter(|_| !self.shared.is_committer()) {
            driven.lock().unwrap_or_else(PoisonError::into_inner).run_ready();
        }
    }

    /// Without a thread that commits, nobody else would see that there is space again.
    fn look_again(&self) {
        if self.driven.is_some() && self.is_full() {
            self.drive();
        }
    }

    /// Waits for what `condition` stands for: the thread that commits brings it about, or this one.
    fn wait_on<'a>(
        &'a self,
        condition: &Condvar,
        state: MutexGuard<'a, State>,
    ) -> MutexGuard<'a, State> {
        if self.driven.is_some() {
            drop(state);
            self.drive();
            return self.shared.state();
        }
        condition.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a commit.
    fn wait_done<'a>(&'a self, state: MutexGuard<'a, State>) -> Result<MutexGuard<'a, State>> {
        if self.shared.is_committer() {
            return Err(Error::Invalid(
                "a notice cannot wait for the journal that gives it: pass the news on".to_owned(),
            ));
        }
        Ok(self.wait_on(&self.shared.done, state))
    }

    /// Appends a record and says where. It is durable when [`Journal::wait`] or
    /// [`Journal::when_durable`] say so, or [`Journal::sync`] does; if nobody asks, when the
    /// journal is closed.
    ///
    /// Returns at once, unless so much is waiting for the disk that there must be room first.
    ///
    /// # Errors
    ///
    /// [`Error::Full`] if the disk is, and [`Error::Stopped`]; the record was not appended then.
    pub fn append(&self, record: &[u8]) -> Result<Position> {
        self.append_if(record, |health| matches!(health, Health::Well))
    }

    /// Appends a record that is worth the reserve: it is accepted on a full disk too, until the
    /// reserve is used up.
    ///
    /// # Errors
    ///
    /// As [`Journal::append`].
    pub fn append_essential(&self, record: &[u8]) -> Result<Position> {
        self.append_if(record, |health| matches!(health, Health::Well | Health::Short))
    }

    fn append_if(&self, record: &[u8], accepted: fn(&Health) -> bool) -> Result<Position> {
        if record.len() > LONGEST {
            let length = record.len();
            return Err(Error::Invalid(format!(
                "a record of {length} bytes is too long: the longest has {LONGEST}"
            )));
        }
        let size = RECORD_HEADER + record.len();
        let limit = self.shared.pending_limit();
        self.look_again();
        let mut state = self.shared.state();
        loop {
            match &state.health {
                Health::Stopped(error) => return Err(error.clone()),
                health if !accepted(health) => return Err(self.shared.full()),
                _ => {}
            }
            let room = state.pending.is_empty() || state.pending.len() + size <= limit;
            if room || self.shared.is_committer() {
                break;
            }
            let next = state.next;
            self.shared.want(&mut state, next);
            state = self.wait_on(&self.shared.room, state);
        }
        push(&mut state.pending, record);
        state.since_snapshot += size as u64;
        let position = Position(state.next);
        state.next += 1;
        Ok(position)
    }

    /// Whether records of so many bytes together can be appended now without waiting for the disk. It
    /// stays true while nobody else appends.
    #[must_use]
    pub fn has_room(&self, records: usize, bytes: usize) -> bool {
        let pending = self.shared.state().pending.len();
        let size = pending.saturating_add(bytes).saturating_add(records * RECORD_HEADER);
        size <= self.shared.pending_limit() || pending == 0
    }

    /// Waits until a record, and all before it, are durable.
    ///
    /// # Errors
    ///
    /// [`Error::Full`] if there is no space for it now; it is written when there is, and may be
    /// waited for again. [`Error::Stopped`] if nobody knows whether it is durable.
    pub fn wait(&self, position: Position) -> Result<()> {
        self.look_again();
        let mut state = self.shared.state();
        loop {
            if let Some(outcome) = self.shared.outcome(&state, position.0) {
                return outcome;
            }
            self.shared.want(&mut state, position.0 + 1);
            state = self.wait_done(state)?;
        }
    }

    /// Calls `notice` once, with what [`Journal::wait`] would have returned, and does not wait.
    ///
    /// It is called on this thread if the outcome is known already, otherwise on the one that
    /// commits, which does nothing else meanwhile: it should only pass the news on. It may append, but
    /// not wait. If it panics, the journal stops.
    pub fn when_durable(
        &self,
        position: Position,
        notice: impl FnOnce(Result<()>) + Send + 'static,
    ) {
        self.look_again();
        let mut state = self.shared.state();
        if let Some(outcome) = self.shared.outcome(&state, position.0) {
            drop(state);
            return notice(outcome);
        }
        state.notices.add(position.0, Box::new(notice));
        self.shared.want(&mut state, position.0 + 1);
        drop(state);
        self.drive();
    }

    /// Waits until all that was appended so far is durable.
    ///
    /// # Errors
    ///
    /// As [`Journal::wait`].
    pub fn sync(&self) -> Result<()> {
        let next = self.next();
        match next.0.checked_sub(1) {
            Some(last) => self.wait(Position(last)),
            None => Ok(()),
        }
    }

    /// Writes a snapshot that stands for all records before `position`, and removes the files that
    /// are no longer needed. Appending goes on meanwhile.
    ///
    /// After a crash there is either the old snapshot with all records after it, or the new one.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if `position` was not appended yet or lies before the last snapshot's;
    /// [`Error::Full`] if there is no space, and [`Error::Stopped`]. The old snapshot is still there.
    pub fn snapshot(&self, position: Position, bytes: &[u8]) -> Result<()> {
        let _one = self.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &*self.shared;
        let since = {
            let state = shared.state();
            let oldest = state.snapshot.unwrap_or(0);
            if !(oldest..=state.next).contains(&position.0) {
                let next = state.next;
                return Err(Error::Invalid(format!(
                    "cannot take a snapshot at {position}: it must lie between {oldest} and {next}"
                )));
            }
            state.since_snapshot
        };
        if let Some(last) = position.0.checked_sub(1) {
            self.wait(Position(last))?;
        }
        self.roll()?;

        let folder = &shared.folder;
        let path = folder.snapshot(position.0);
        let header = Header::snapshot(shared.options.version, shared.generation, position.0, bytes);
        match folder.create_whole(&path, &[&header.encode(), bytes]) {
            Ok(_) => {}
            Err(error) if is_full(&error) => return Err(shared.full()),
            Err(error) => return Err(shared.stop(&format!("{}: {error}", path.display()))),
        }

        let mut unneeded = Vec::new();
        {
            let mut state = shared.state();
            state.since_snapshot -= since;
            let before = state.snapshot.replace(position.0);
            unneeded
                .extend(before.filter(|old| *old != position.0).map(|old| folder.snapshot(old)));
            let covered = state.segments.partition_point(|first| *first <= position.0);
            let covered = covered.saturating_sub(1);
            unneeded.extend(state.segments.drain(..covered).map(|first| folder.segment(first)));
        }
        for path in unneeded {
            // What cannot be removed now is removed at the next opening.
            let _ = folder.disk.remove(&path);
        }
        shared.state().freed = true;
        shared.work.notify_one();
        self.drive();
        Ok(())
    }

    /// Has what comes next written to a new segment, so that the one before can be removed.
    fn roll(&self) -> Result<()> {
        let shared = &*self.shared;
        let mut state = shared.state();
        state.rolls_wanted += 1;
        let ticket = state.rolls_wanted;
        shared.work.notify_one();
        loop {
            if let Health::Stopped(error) = &state.health {
                return Err(error.clone());
            }
            if state.rolls_done >= ticket {
                return Ok(());
            }
            state = self.wait_done(state)?;
        }
    }

    /// Which opening this is.
    #[must_use]
    pub fn generation(&self) -> Generation {
        Generation(self.shared.generation)
    }

    /// The position that the next record will have.
    #[must_use]
    pub fn next(&self) -> Position {
        Position(self.shared.state().next)
    }

    /// The position of the first record that is not durable.
    #[must_use]
    pub fn durable(&self) -> Position {
        Position(self.shared.state().durable)
    }

    /// About how many bytes of records an opening would have to read besides the snapshot. A good
    /// moment for the next one is when they are several times its size.
    #[must_use]
    pub fn bytes_since_snapshot(&self) -> u64 {
        self.shared.state().since_snapshot
    }

    /// Whether the disk is full, so that only essential records are accepted, or none.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self.shared.state().health, Health::Short | Health::Full)
    }

    /// Makes all that was appended durable, marks the end and releases the lock.
    ///
    /// # Errors
    ///
    /// If not all of it is durable.
    pub fn close(mut self) -> Result<()> {
        self.end();
        let state = self.shared.state();
        match &state.health {
            _ if state.durable == state.next => Ok(()),
            Health::Stopped(error) => Err(error.clone()),
            _ => Err(self.shared.full()),
        }
    }

    fn end(&mut self) {
        if let Some(driven) = self.driven.take() {
            self.shared.state().closing = true;
            driven.into_inner().unwrap_or_else(PoisonError::into_inner).run_ready();
        }
        let Some(thread) = self.thread.take() else { return };
        self.shared.state().closing = true;
        self.shared.work.notify_one();
        // A notice may drop the last reference to the journal: it cannot wait for its own thread.
        if !self.shared.is_committer() {
            // It ends by itself, whatever happens to it.
            let _ = thread.join();
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.end();
    }
}

/// Cuts off what was torn, and makes durable what a process may have left that was killed. The
/// names are left to the segment that is made next.
fn make_durable(folder: &Folder, survey: &Survey) -> Result<()> {
    if let Some(torn) = &survey.torn {
        let cut = folder.disk.open(&torn.file).and_then(|file| file.set_length(torn.offset));
        cut.map_err(|error| Error::disk("cut", &torn.file, error))?;
    }
    if let Some(last) = survey.segments.last() {
        let synced = folder.disk.open(&last.path).and_then(|file| sync(&*file));
        synced.map_err(|error| Error::disk("sync", &last.path, error))?;
    }
    Ok(())
}
