//! What is left of an epoch, from the cursors of all clients; and how it is cut anew.
//!
//! A cursor says of windows below its floor only that they were used when the floor was told. So
//! what several cursors agree on is the lowest floor of them; from there on each must list its own
//! windows, one by one. And all floors must have been told between the same two rewinds: in such a
//! time used windows stay used, and stay whose they are.

use crate::mutant::{Mutant, planted};
use crate::{ConsumerIndex, Cursor, Epoch, Offset, Order, Window, Windows};

/// Clients of one run are never so many windows apart.
const FAR_APART: u64 = 1 << 22;

/// What is left of an epoch: some windows from an offset on, then all from `tail` on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// The epoch.
    pub epoch: Epoch,
    /// Windows below the tail, rising, and the first step of each that was not used.
    pub open: Vec<(Window, Offset)>,
    /// From here on nothing was used.
    pub tail: Window,
}

/// Steps of one window that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The window.
    pub window: Window,
    /// Its first step.
    pub from: Offset,
    /// The step after the last.
    pub to: Offset,
}

/// Why cursors cannot be merged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MergeError {
    /// Some are missing, or are not of one run: gather the right ones.
    #[error("these are not the cursors of all clients of one run: {0}")]
    NotOneRun(String),
    /// They were saved at times that do not fit together: take another checkpoint.
    #[error("these cursors were not saved after the same step: {0}; take another checkpoint")]
    NotOneTime(String),
}

/// What the cursors of all clients leave of an epoch of `windows` windows.
///
/// # Errors
///
/// If they are not the cursors of all clients of one run, saved at times that fit together.
pub fn merge(cursors: &[Cursor], windows: u64) -> Result<Left, MergeError> {
    let Some(first) = cursors.iter().min_by_key(|cursor| (cursor.epoch, cursor.consumer)) else {
        return Err(MergeError::NotOneRun("there are none".into()));
    };
    let mut sorted: Vec<&Cursor> = cursors.iter().collect();
    sorted.sort_by_key(|cursor| cursor.consumer);
    let numbers = sorted.iter().map(|cursor| cursor.consumer);
    if !numbers.clone().eq((0..first.consumers).map(ConsumerIndex)) {
        let numbers: Vec<u32> = numbers.map(|number| number.0).collect();
        return Err(MergeError::NotOneRun(format!(
            "those of consumers {numbers:?} were given, and there are {}",
            first.consumers
        )));
    }
    for cursor in &sorted {
        let run =
            |cursor: &Cursor| (cursor.job, cursor.incarnation, cursor.consumers, cursor.order);
        if run(cursor) != run(first) {
            return Err(MergeError::NotOneRun(format!(
                "consumer {} is of incarnation {} of job {}, and consumer {} of incarnation {} of \
                 job {}",
                first.consumer,
                first.incarnation,
                first.job,
                cursor.consumer,
                cursor.incarnation,
                cursor.job
            )));
        }
        let ended = cursor.epoch.0 == first.epoch.0.saturating_add(1) && cursor.is_untouched();
        if cursor.epoch != first.epoch && !ended {
            return Err(MergeError::NotOneTime(format!(
                "consumer {} was in epoch {}, and consumer {} in epoch {}",
                first.consumer, first.epoch, cursor.consumer, cursor.epoch
            )));
        }
    }
    match first.order {
        Order::Any => merge_any(first, &sorted, windows),
        Order::Exact => merge_exact(first, &sorted, windows),
    }
}

fn merge_any(first: &Cursor, sorted: &[&Cursor], windows: u64) -> Result<Left, MergeError> {
    // Who has come to the end of the epoch knows that all of it is used, and lists nothing of it.
    let inside = || sorted.iter().filter(|cursor| cursor.epoch == first.epoch);
    let ended = sorted.iter().find(|cursor| cursor.epoch != first.epoch);
    if let Some(other) = sorted.iter().find(|cursor| cursor.rewinds != first.rewinds)
        && !planted(Mutant::MergeIgnoresRewinds)
    {
        return Err(MergeError::NotOneTime(format!(
            "a client went back to an earlier checkpoint after consumer {} had heard of the others \
             last, and before consumer {} had",
            first.consumer, other.consumer
        )));
    }
    let floors =
        || inside().map(|cursor| cursor.floor.0.min(windows)).chain(ended.map(|_| windows));
    let mut floor = floors().min().unwrap_or(0);
    if planted(Mutant::MergeTakesHighestFloor) {
        floor = floors().max().unwrap_or(0);
    }
    let listed = inside().map(|cursor| cursor.used.from().0).chain(ended.map(|_| windows));
    let top = inside().map(|cursor| {
        let held = cursor.open.keys().next_back().map_or(0, |window| window.0.saturating_add(1));
        cursor.used.top().0.max(held)
    });
    let tail = top.max().unwrap_or(0).max(floor).min(windows);
    if listed.max().unwrap_or(0) > floor || tail - floor > FAR_APART {
        return Err(MergeError::NotOneTime(format!(
            "consumer {} had heard that windows up to {floor} are used, and others no longer know \
             which of the later ones were theirs",
            inside().min_by_key(|cursor| cursor.floor).unwrap_or(&first).consumer
        )));
    }
    // Where a window counts as used as soon as it is granted, held ones lie below the floor too.
    let below = inside().flat_map(|cursor| cursor.open.range(..Window(floor)));
    let mut open: Vec<(Window, Offset)> = below.map(|(window, used)| (*window, *used)).collect();
    open.sort_unstable();
    for window in (floor..tail).map(Window) {
        let mut claims = inside().filter_map(|cursor| match cursor.open.get(&window) {
            Some(offset) => Some((cursor.consumer, Some(*offset))),
            None => cursor.used.contains(window).then_some((cursor.consumer, None)),
        });
        let claim = claims.next();
        if let (Some((one, _)), Some((other, _))) = (claim, claims.next()) {
            return Err(MergeError::NotOneTime(format!(
                "consumers {one} and {other} both had window {window}"
            )));
        }
        match claim {
            Some((_, None)) => {}
            Some((_, Some(offset))) => open.push((window, offset)),
            None => open.push((window, Offset(0))),
        }
    }
    Ok(Left { epoch: first.epoch, open, tail: Window(tail) })
}

fn merge_exact(first: &Cursor, sorted: &[&Cursor], windows: u64) -> Result<Left, MergeError> {
    let floor = |cursor: &Cursor| match cursor.epoch == first.epoch {
        true => cursor.floor.0.min(windows),
        false => windows,
    };
    let begin = sorted.iter().map(|cursor| floor(cursor)).min().unwrap_or(0);
    let held = sorted.iter().filter(|cursor| cursor.epoch == first.epoch);
    let held = held
        .filter_map(|cursor| cursor.open.keys().next_back().map(|last| last.0.saturating_add(1)));
    let end = sorted.iter().map(|cursor| floor(cursor)).chain(held).max().unwrap_or(0).min(windows);
    if end - begin > FAR_APART {
        return Err(MergeError::NotOneTime(format!("they are {} windows apart", end - begin)));
    }
    let mut open = Vec::new();
    for window in begin..end {
        let cursor = sorted[(window % u64::from(first.consumers)) as usize];
        if window >= floor(cursor) {
            let offset = cursor.open.get(&Window(window)).copied().unwrap_or_default();
            open.push((Window(window), offset));
        }
    }
    Ok(Left { epoch: first.epoch, open, tail: Window(end) })
}

impl Left {
    /// Steps that are left, of an epoch of these windows.
    #[must_use]
    pub fn steps(&self, windows: &Windows) -> u64 {
        let open = self.open.iter();
        let open: u64 = open.map(|(at, from)| windows.steps_of(*at).saturating_sub(from.0)).sum();
        open.saturating_add(windows.total().saturating_sub(self.before_tail(windows)))
    }

    /// Steps of all windows below the tail.
    fn before_tail(&self, windows: &Windows) -> u64 {
        match self.tail.0 >= windows.count {
            true => windows.total(),
            false => self.tail.0.saturating_mul(windows.steps),
        }
    }

    /// The windows into which what is left is cut: of the same size, whatever they hold.
    #[must_use]
    pub fn cut(&self, windows: &Windows) -> Windows {
        if windows.count == u64::MAX {
            return *windows;
        }
        Windows::holding(self.steps(windows), windows.steps)
    }

    /// Steps `from` to `to` of what is left, as pieces of the windows they come from.
    #[must_use]
    pub fn pieces(&self, windows: &Windows, from: u64, to: u64) -> Vec<Piece> {
        let (mut from, mut to, mut pieces) = (from, to, Vec::new());
        let mut take = |window: Window, start: u64, length: u64, from: u64, to: u64| {
            if from < to.min(length) {
                let to = to.min(length);
                pieces.push(Piece { window, from: Offset(start + from), to: Offset(start + to) });
            }
        };
        for (window, start) in &self.open {
            let length = windows.steps_of(*window).saturating_sub(start.0);
            take(*window, start.0, length, from, to);
            (from, to) = (from.saturating_sub(length), to.saturating_sub(length));
        }
        let steps = windows.steps.max(1);
        let mut window = self.tail.0.saturating_add(from / steps);
        (from, to) = (from % steps, to.saturating_sub(from - from % steps));
        while from < to && window < windows.count {
            let length = windows.steps_of(Window(window));
            take(Window(window), 0, length, from, to);
            (from, to) = (0, to.saturating_sub(length));
            window += 1;
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Incarnation, JobId, Seat, Ticket, Used};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn cursor(consumer: u32, consumers: u32, order: Order) -> Cursor {
        let seat = Seat {
            job: JobId(1),
            incarnation: Incarnation(1),
            consumer: ConsumerIndex(consumer),
            ticket: Ticket(1),
        };
        Cursor::new(&seat, consumers, order, Epoch(2))
    }

    /// Deals windows to clients at random, lets each use some of its steps, and tells each a floor
    /// that was true at some time.
    fn dealt(
        consumers: u32,
        windows: &Windows,
        order: Order,
        owners: &[u32],
        progress: &[u64],
        heard: &[u64],
    ) -> (Vec<Cursor>, BTreeSet<(u64, u64)>) {
        let mut cursors: Vec<_> = (0..consumers).map(|at| cursor(at, consumers, order)).collect();
        let mut used = BTreeSet::new();
        let mut behind = vec![false; consumers as usize];
        for (at, (owner, progress)) in owners.iter().zip(progress).enumerate() {
            let (window, at) = (Window(at as u64), at as u64);
            let owner = match order {
                Order::Any => *owner % consumers,
                Order::Exact => (at % u64::from(consumers)) as u32,
            };
            let steps = windows.steps_of(window);
            let mut progress = (*progress).min(steps);
            if order == Order::Exact {
                // Windows are used in turn.
                progress = if behind[owner as usize] { 0 } else { progress };
                behind[owner as usize] |= progress < steps;
            }
            used.extend((0..progress).map(|step| (at, step)));
            let cursor = &mut cursors[owner as usize];
            match (progress == steps, order) {
                (true, Order::Any) => cursor.used.insert(window),
                (true, Order::Exact) => cursor.floor = Window(at + u64::from(consumers)),
                (false, Order::Any) => {
                    cursor.open.insert(window, Offset(progress));
                }
                (false, Order::Exact) if progress > 0 => {
                    cursor.open.insert(window, Offset(progress));
                }
                (false, Order::Exact) => {}
            }
            cursor.used_up += u64::from(progress == steps);
        }
        if order == Order::Any {
            let done = |window: &u64| {
                (0..windows.steps_of(Window(*window))).all(|step| used.contains(&(*window, step)))
            };
            let prefix = (0..owners.len() as u64).take_while(done).count() as u64;
            for (cursor, heard) in cursors.iter_mut().zip(heard) {
                cursor.floor = Window((*heard).min(prefix));
            }
            let lowest = cursors.iter().map(|cursor| cursor.floor.0).min().unwrap_or(0);
            cursors.iter_mut().for_each(|cursor| cursor.used.forget_below(Window(lowest)));
        }
        (cursors, used)
    }

    proptest! {
        #[test]
        fn used_and_left_are_every_step_exactly_once(
            consumers in 1..5u32,
            total in 0..120u64,
            steps in 1..5u64,
            exact in any::<bool>(),
            touched in proptest::collection::vec((0..5u32, 0..6u64), 0..40),
            heard in proptest::collection::vec(0..40u64, 4),
            size in 1..7u64,
        ) {
            let windows = Windows::holding(total, steps);
            let order = if exact { Order::Exact } else { Order::Any };
            let count = touched.len().min(windows.count as usize);
            let (owners, progress): (Vec<_>, Vec<_>) = touched[..count].iter().copied().unzip();
            let (cursors, used) = dealt(consumers, &windows, order, &owners, &progress, &heard);
            let left = merge(&cursors, windows.count).unwrap();
            prop_assert_eq!(left.steps(&windows), total - used.len() as u64);
            // Cut anew, in pieces of any size, what is left is everything else, once.
            let mut seen = used;
            let mut at = 0;
            while at < left.steps(&windows) {
                for piece in left.pieces(&windows, at, (at + size).min(left.steps(&windows))) {
                    for step in piece.from.0..piece.to.0 {
                        prop_assert!(seen.insert((piece.window.0, step)), "{piece:?}");
                    }
                }
                at += size;
            }
            prop_assert_eq!(seen.len() as u64, total);
            let again = left.cut(&windows);
            prop_assert_eq!((again.total(), again.steps), (left.steps(&windows), steps));
        }
    }

    proptest! {
        #[test]
        fn no_cursors_make_merging_panic(
            exact in any::<bool>(),
            windows in prop_oneof![0..20u64, Just(u64::MAX)],
            rough in proptest::collection::vec(
                (0..3u64, 0..3u64, prop_oneof![0..30u64, Just(u64::MAX)], 0..9u64, any::<[bool; 8]>(),
                 proptest::collection::btree_map(prop_oneof![0..30u64, Just(u64::MAX)], 0..9u64, 0..4)),
                1..4,
            ),
        ) {
            let (order, count) = (if exact { Order::Exact } else { Order::Any }, rough.len() as u32);
            let mut cursors = Vec::new();
            for (at, (epoch, rewinds, floor, from, bits, open)) in rough.into_iter().enumerate() {
                let mut used = Used::new(Window(from));
                (0..8).filter(|bit| bits[*bit]).for_each(|bit| used.insert(Window(bit as u64 * 3)));
                let open = open.into_iter().map(|(window, used)| (Window(window), Offset(used)));
                let (epoch, floor) = (Epoch(epoch), Window(floor));
                let cursor = cursor(at as u32, count, order);
                cursors.push(Cursor { epoch, rewinds, floor, used, open: open.collect(), ..cursor });
            }
            if let Ok(left) = merge(&cursors, windows) {
                let windows = Windows { count: windows, steps: 3, last: 2 };
                let _ = (left.cut(&windows), left.pieces(&windows, 0, 50));
                prop_assert!(left.open.is_sorted());
            }
        }
    }

    #[test]
    fn endless_epochs_have_an_endless_rest() {
        let windows = Windows { count: u64::MAX, steps: 4, last: 4 };
        let mut one = cursor(0, 1, Order::Any);
        one.used.insert(Window(1));
        one.open.insert(Window(0), Offset(3));
        let left = merge(&[one], windows.count).unwrap();
        assert_eq!((left.open.clone(), left.tail), (vec![(Window(0), Offset(3))], Window(2)));
        assert_eq!(left.cut(&windows), windows);
        let piece =
            |window, from, to| Piece { window: Window(window), from: Offset(from), to: Offset(to) };
        assert_eq!(left.pieces(&windows, 0, 6), [piece(0, 3, 4), piece(2, 0, 4), piece(3, 0, 1)]);
        assert_eq!(left.pieces(&windows, 4001, 4003), [piece(1002, 0, 2)]);
    }

    #[test]
    fn a_client_that_ended_the_epoch_has_used_its_part() {
        let mut late = cursor(0, 2, Order::Exact);
        late.floor = Window(2);
        let mut ended = cursor(1, 2, Order::Exact);
        ended.next_epoch();
        let left = merge(&[late.clone(), ended.clone()], 5).unwrap();
        assert_eq!(left.open, [(Window(2), Offset(0)), (Window(4), Offset(0))]);
        ended.used_up = 1;
        assert!(matches!(merge(&[late, ended], 5), Err(MergeError::NotOneTime(_))));
    }

    #[test]
    fn what_does_not_fit_together_is_refused() {
        let (one, two) = (cursor(0, 2, Order::Any), cursor(1, 2, Order::Any));
        assert!(matches!(merge(&[], 9), Err(MergeError::NotOneRun(_))));
        assert!(matches!(merge(std::slice::from_ref(&one), 9), Err(MergeError::NotOneRun(_))));
        let other = Cursor { incarnation: Incarnation(2), ..two.clone() };
        assert!(matches!(merge(&[one.clone(), other], 9), Err(MergeError::NotOneRun(_))));
        let later = Cursor { rewinds: 1, ..two.clone() };
        assert!(matches!(merge(&[one.clone(), later], 9), Err(MergeError::NotOneTime(_))));
        let ahead = Cursor { floor: Window(5), used: Used::new(Window(5)), ..two.clone() };
        assert!(matches!(merge(&[one.clone(), ahead], 9), Err(MergeError::NotOneTime(_))));
        let mut both = [one, two];
        for cursor in &mut both {
            cursor.open.insert(Window(3), Offset(0));
        }
        assert!(matches!(merge(&both, 9), Err(MergeError::NotOneTime(_))));
    }
}
