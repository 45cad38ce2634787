//! Which of a rank's rows were delivered, in whatever order.

use feedline_core::Position;
use std::collections::VecDeque;

/// Rows are numbered from where the run stood when it started. All before the first that is owed
/// are done; of those after it, some are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tracker {
    first: u64,
    done: VecDeque<bool>,
}

impl Tracker {
    /// Where `position` stands: nothing before its first row, and perhaps some after it, is done.
    pub(crate) fn new(position: &Position) -> Self {
        Self { first: 0, done: position.taken.iter().copied().collect() }
    }

    /// The first row that is owed.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    pub(crate) fn mark(&mut self, row: u64) {
        let Some(at) = row.checked_sub(self.first) else { return };
        if self.done.len() <= at as usize {
            self.done.resize(at as usize + 1, false);
        }
        self.done[at as usize] = true;
        while self.done.front() == Some(&true) {
            self.done.pop_front();
            self.first += 1;
        }
    }

    /// The position of a run that started at `start` and has delivered what is marked here.
    pub(crate) fn position(&self, start: &Position, size: u64, rank: u64, world: u64) -> Position {
        let at =
            if self.first == 0 { start.at } else { Some(start.row(self.first, size, rank, world)) };
        Position { at, taken: self.done.iter().copied().collect(), ..start.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_may_be_done_in_any_order() {
        let start = Position { at: Some((1, 2)), taken: vec![false, true], ..Position::epoch(4) };
        let mut tracker = Tracker::new(&start);
        tracker.mark(3);
        assert_eq!(tracker.first(), 0);
        tracker.mark(0);
        assert_eq!(tracker.first(), 2);
        let position = tracker.position(&start, 3, 1, 2);
        assert_eq!((position.at, position.taken), (Some((3, 1)), vec![false, true]));
    }
}
