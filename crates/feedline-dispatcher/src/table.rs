//! The windows of an epoch: eight bytes for each that was granted.

use feedline_wire::{ConsumerIndex, Stamp, Used, Window};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Who has a window, since which grant, and whether it is used up: 24, 39 and 1 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
struct Slot(u64);

const NOBODY: u64 = (1 << 24) - 1;
/// Consumers are numbered below this.
pub(crate) const MOST_CONSUMERS: u32 = NOBODY as u32;
const STAMPS: u64 = (1 << 39) - 1;

impl Slot {
    const FREE: Self = Self(NOBODY << 40);

    fn granted(owner: ConsumerIndex, stamp: Stamp, used: bool) -> Self {
        Self(u64::from(owner.0) << 40 | (stamp.0 & STAMPS) << 1 | u64::from(used))
    }

    fn owner(self) -> Option<ConsumerIndex> {
        (self.0 >> 40 != NOBODY).then_some(ConsumerIndex((self.0 >> 40) as u32))
    }

    fn stamp(self) -> Stamp {
        Stamp(self.0 >> 1 & STAMPS)
    }

    fn is_used(self) -> bool {
        self.0 & 1 == 1
    }
}

/// What becomes of a client's window when it attaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    Used,
    Held,
    Free,
}

/// The windows of an epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Table {
    /// Windows below are used, and it is no longer known by whom.
    kept_from: u64,
    slots: Vec<Slot>,
    /// All windows below are used.
    prefix: u64,
    /// Windows that were granted once and are free again.
    free: BTreeSet<Window>,
}

impl Table {
    /// So many windows are remembered behind the prefix: further back no single client can go.
    const REMEMBERED: u64 = 1 << 20;

    fn slot(&self, window: Window) -> Option<Slot> {
        let at = window.0.checked_sub(self.kept_from)?;
        self.slots.get(usize::try_from(at).ok()?).copied()
    }

    fn set(&mut self, window: Window, slot: Slot) {
        let at = (window.0 - self.kept_from) as usize;
        self.slots[at] = slot;
    }

    /// All windows below are used.
    pub(crate) fn prefix(&self) -> Window {
        Window(self.prefix)
    }

    /// Windows below are used, and it is no longer known by whom.
    pub(crate) fn kept_from(&self) -> Window {
        Window(self.kept_from)
    }

    /// The prefix, once these windows, rising, are used too.
    pub(crate) fn prefix_with(&self, used: &[Window]) -> Window {
        let mut prefix = self.prefix;
        while used.binary_search(&Window(prefix)).is_ok()
            || self.slot(Window(prefix)).is_some_and(|slot| slot.is_used())
        {
            prefix += 1;
        }
        Window(prefix)
    }

    /// Whether a window is used up.
    pub(crate) fn is_used(&self, window: Window) -> bool {
        window.0 < self.prefix || self.slot(window).is_some_and(Slot::is_used)
    }

    /// How many windows are used up.
    pub(crate) fn used(&self) -> u64 {
        let beyond = usize::try_from(self.prefix - self.kept_from).unwrap_or(usize::MAX);
        let beyond = self.slots.get(beyond..).unwrap_or_default();
        self.prefix + beyond.iter().filter(|slot| slot.is_used()).count() as u64
    }

    /// Who has a window, and since which grant.
    pub(crate) fn owner(&self, window: Window) -> Option<(ConsumerIndex, Stamp)> {
        let slot = self.slot(window)?;
        slot.owner().map(|owner| (owner, slot.stamp()))
    }

    /// Up to `most` windows that can be granted: free ones first, then new ones below `end`.
    pub(crate) fn grantable(&self, most: usize, end: u64) -> Vec<Window> {
        let next = self.kept_from + self.slots.len() as u64;
        let new = (next..end.max(next)).map(Window);
        self.free.iter().copied().chain(new).take(most).collect()
    }

    /// Grants a window; it counts as used at once if `used` says so.
    pub(crate) fn grant(&mut self, window: Window, owner: ConsumerIndex, stamp: Stamp, used: bool) {
        let slot = Slot::granted(owner, stamp, used);
        if !self.free.remove(&window) {
            // Room for an eighth more, not twice as much: there may be millions.
            if self.slots.len() == self.slots.capacity() {
                self.slots.reserve_exact(self.slots.len() / 8 + 16);
            }
            self.slots.push(slot);
        } else {
            self.set(window, slot);
        }
        if used {
            self.advance();
        }
    }

    /// Marks a window as used up.
    pub(crate) fn finish(&mut self, window: Window) {
        if let Some(slot) = self.slot(window) {
            self.set(window, Slot(slot.0 | 1));
            self.advance();
        }
    }

    fn advance(&mut self) {
        self.prefix = self.prefix_with(&[]).0;
    }

    /// Goes through a client's windows and lets `keep` say what becomes of each. Says whether a used
    /// one became unused, and whether one became free.
    pub(crate) fn sort_out(
        &mut self,
        owner: ConsumerIndex,
        mut keep: impl FnMut(Window, Stamp) -> Kept,
    ) -> (bool, bool) {
        let (mut unused, mut freed) = (false, false);
        for at in 0..self.slots.len() {
            let (slot, window) = (self.slots[at], Window(self.kept_from + at as u64));
            if slot.owner() != Some(owner) {
                continue;
            }
            let kept = keep(window, slot.stamp());
            self.slots[at] = match kept {
                Kept::Used => Slot(slot.0 | 1),
                Kept::Held => Slot(slot.0 & !1),
                Kept::Free => Slot::FREE,
            };
            if kept == Kept::Free {
                freed = true;
                self.free.insert(window);
            }
            if kept != Kept::Used && slot.is_used() {
                unused = true;
                self.prefix = self.prefix.min(window.0);
            }
        }
        self.advance();
        (unused, freed)
    }

    /// What [`Table::sort_out`] would do: the prefix after it, whether a used window would become
    /// unused, and what the client would have used from somewhat below the prefix on.
    pub(crate) fn foresee(
        &self,
        owner: ConsumerIndex,
        lookback: u64,
        mut keep: impl FnMut(Window, Stamp) -> Kept,
    ) -> (Window, bool, Used) {
        let own = |(at, slot): (usize, &Slot)| {
            let window = Window(self.kept_from + at as u64);
            (slot.owner() == Some(owner)).then_some((window, *slot))
        };
        let own: Vec<(Window, Slot)> = self.slots.iter().enumerate().filter_map(own).collect();
        let kept: Vec<(Window, Slot, Kept)> =
            own.into_iter().map(|(at, slot)| (at, slot, keep(at, slot.stamp()))).collect();
        let unused = kept.iter().find(|(_, slot, kept)| slot.is_used() && *kept != Kept::Used);
        let prefix = unused.map_or(self.prefix, |(window, ..)| window.0.min(self.prefix));
        let from = prefix.saturating_sub(lookback).max(self.kept_from);
        let mut used = Used::new(Window(from));
        for (window, _, kept) in &kept {
            if *kept == Kept::Used {
                used.insert(*window);
            }
        }
        (Window(prefix), unused.is_some(), used)
    }

    /// Gives up a client: what it held is free.
    pub(crate) fn release(&mut self, owner: ConsumerIndex) {
        for at in 0..self.slots.len() {
            let slot = self.slots[at];
            if slot.owner() == Some(owner) && !slot.is_used() {
                self.slots[at] = Slot::FREE;
                self.free.insert(Window(self.kept_from + at as u64));
            }
        }
    }

    /// What a client has used, from a window on.
    pub(crate) fn used_by(&self, owner: ConsumerIndex, from: Window) -> Used {
        let from = from.0.max(self.kept_from);
        let mut used = Used::new(Window(from));
        let slots = self.slots.iter().enumerate().skip((from - self.kept_from) as usize);
        for (at, slot) in slots {
            if slot.is_used() && slot.owner() == Some(owner) {
                used.insert(Window(self.kept_from + at as u64));
            }
        }
        used
    }

    /// Forgets who used what, far behind the prefix. Tells the owner and the grant of each.
    pub(crate) fn forget(&mut self, mut tell: impl FnMut(ConsumerIndex, Stamp)) {
        // In large pieces, since the rest has to be moved.
        if self.prefix - self.kept_from < 2 * Self::REMEMBERED {
            return;
        }
        let gone = (self.prefix - self.kept_from - Self::REMEMBERED) as usize;
        for slot in self.slots.drain(..gone) {
            if let Some(owner) = slot.owner() {
                tell(owner, slot.stamp());
            }
        }
        self.kept_from += gone as u64;
    }

    /// Bytes that it takes up.
    pub(crate) fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>() + self.free.len() * 2 * size_of::<Window>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: ConsumerIndex = ConsumerIndex(1);
    const TWO: ConsumerIndex = ConsumerIndex(2);

    fn granted(owners: &[ConsumerIndex]) -> Table {
        let mut table = Table::default();
        for (at, owner) in owners.iter().enumerate() {
            table.grant(Window(at as u64), *owner, Stamp(at as u64 + 1), false);
        }
        table
    }

    #[test]
    fn the_prefix_follows_what_is_used() {
        let mut table = granted(&[ONE, TWO, ONE, TWO]);
        table.finish(Window(1));
        assert_eq!(table.prefix(), Window(0));
        assert_eq!(table.prefix_with(&[Window(0), Window(2)]), Window(3));
        assert_eq!(table.used(), 1);
        table.finish(Window(0));
        assert_eq!(table.prefix(), Window(2));
        assert_eq!(table.owner(Window(1)), Some((TWO, Stamp(2))));
    }

    #[test]
    fn free_windows_are_granted_before_new_ones() {
        let mut table = granted(&[ONE, TWO, ONE, TWO]);
        table.finish(Window(0));
        table.finish(Window(1));
        let (unused, freed) = table.sort_out(ONE, |_, _| Kept::Free);
        assert!(unused && freed);
        assert_eq!(table.prefix(), Window(0));
        let windows: Vec<u64> = table.grantable(4, 6).iter().map(|window| window.0).collect();
        assert_eq!(windows, [0, 2, 4, 5]);
        assert_eq!(table.grantable(9, 0).len(), 2, "free ones may lie beyond the end of new ones");
        table.grant(Window(0), TWO, Stamp(9), false);
        assert_eq!(table.owner(Window(0)), Some((TWO, Stamp(9))));
    }

    #[test]
    fn what_a_released_client_used_stays_used() {
        let mut table = granted(&[ONE, ONE]);
        table.finish(Window(0));
        table.release(ONE);
        assert_eq!((table.prefix(), table.owner(Window(0))), (Window(1), Some((ONE, Stamp(1)))));
        assert_eq!(table.grantable(5, 2), [Window(1)]);
    }

    #[test]
    fn what_is_long_past_is_forgotten() {
        let mut table = Table::default();
        let count = 2 * Table::REMEMBERED + 10;
        for window in 0..count {
            table.grant(Window(window), ONE, Stamp(window + 1), true);
        }
        let mut newest = Stamp(0);
        table.forget(|_, stamp| newest = newest.max(stamp));
        assert_eq!(table.kept_from(), Window(count - Table::REMEMBERED));
        assert_eq!(newest, Stamp(count - Table::REMEMBERED));
        assert_eq!((table.prefix(), table.owner(Window(3))), (Window(count), None));
        assert_eq!(table.grantable(1, u64::MAX), [Window(count)]);
    }
}
