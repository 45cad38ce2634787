//! Which steps of an epoch lie in which window, also where only a part of the epoch is left.

use feedline_wire::{Start, Window, Windows};

/// What the windows of an incarnation's first epoch hold.
#[derive(Debug)]
pub struct Layout {
    epoch: u64,
    /// Steps of the whole epoch that are left, in order; all, if absent.
    left: Option<Vec<u64>>,
    first: Windows,
    whole: Windows,
}

impl Layout {
    pub fn new(start: &Start, whole: Windows) -> Self {
        let left = start
            .position
            .strip_prefix("left:")
            .map(|list| list.split(',').filter_map(|step| step.parse().ok()).collect::<Vec<u64>>());
        Self { epoch: start.epoch.0, left, first: start.windows, whole }
    }

    pub fn windows(&self, epoch: u64) -> &Windows {
        if epoch == self.epoch { &self.first } else { &self.whole }
    }

    pub fn steps_of(&self, epoch: u64, window: Window) -> u64 {
        self.windows(epoch).steps_of(window)
    }

    /// The step of the whole epoch at an offset of a window.
    pub fn step(&self, epoch: u64, window: Window, offset: u64) -> u64 {
        let at = window.0 * self.whole.steps + offset;
        match &self.left {
            Some(left) if epoch == self.epoch => left[at as usize],
            _ => at,
        }
    }
}
