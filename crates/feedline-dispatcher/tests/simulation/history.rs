//! Which steps a trainer has used: one bit each.

/// Steps of an epoch are numbered below this.
pub const MOST_STEPS: u64 = 128;
const EPOCHS: usize = 4;

/// A set of steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct History([u128; EPOCHS]);

impl History {
    /// All steps of the first epochs.
    pub fn full(epochs: u64, steps: u64) -> Self {
        let mut history = Self::default();
        for epoch in 0..epochs {
            history.0[epoch as usize] = if steps == 128 { u128::MAX } else { (1 << steps) - 1 };
        }
        history
    }

    /// Adds a step; false if it is there already.
    pub fn insert(&mut self, epoch: u64, step: u64) -> bool {
        let fresh = !self.contains(epoch, step);
        self.0[epoch as usize] |= 1 << step;
        fresh
    }

    pub fn contains(&self, epoch: u64, step: u64) -> bool {
        self.0[epoch as usize] >> step & 1 == 1
    }

    /// Adds another set; names a step that is in both.
    pub fn join(&mut self, other: &Self) -> Result<(), String> {
        for epoch in 0..EPOCHS {
            let both = self.0[epoch] & other.0[epoch];
            if both != 0 {
                return Err(format!("step {} of epoch {epoch} twice", both.trailing_zeros()));
            }
            self.0[epoch] |= other.0[epoch];
        }
        Ok(())
    }

    /// Names a step that is in this set and not in the other.
    pub fn missing_in(&self, other: &Self) -> Option<String> {
        (0..EPOCHS).find_map(|epoch| {
            let missing = self.0[epoch] & !other.0[epoch];
            (missing != 0)
                .then(|| format!("step {} of epoch {epoch} never", missing.trailing_zeros()))
        })
    }

    /// Without the epochs from this one on.
    pub fn before(&self, epoch: u64) -> Self {
        let mut history = *self;
        history.0.iter_mut().skip(epoch as usize).for_each(|steps| *steps = 0);
        history
    }
}
