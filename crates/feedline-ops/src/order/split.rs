//! A part of the data that is the same in every epoch and every run.

use crate::registry::step;
use feedline_core::{
    Before, Blobs, Cursor, Error, Length, Order, OrderRun, Permutation, Result, Source, StepId, mix,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Keeps the share of the samples from `start` to `end` (0 to 1) of a fixed, shuffled list: splits
/// with touching shares and one seed are disjoint and together everything.
///
/// Files are listed by a hash of their names, so adding files moves hardly any of the others from
/// one part to the other. It stands before steps whose order changes from epoch to epoch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Split {
    /// Where the part begins, as a share of all.
    #[serde(default)]
    pub start: f64,
    /// Where it ends.
    #[serde(default = "one")]
    pub end: f64,
    /// Names the split; every seed gives another.
    #[serde(default)]
    pub seed: u64,
}

fn one() -> f64 {
    1.0
}

step!(Split, "split", Order);

impl Order for Split {
    fn check(&self) -> Result<()> {
        let Self { start, end, .. } = self;
        if !(0.0..=1.0).contains(start) || !(0.0..=1.0).contains(end) || start >= end {
            return Err(Error::pipeline(format!(
                "split: a part from {start} to {end}; shares rise from 0 to 1"
            )));
        }
        Ok(())
    }

    fn is_fixed(&self) -> bool {
        true
    }

    fn bind(
        &self,
        source: &dyn Source,
        _: &Blobs,
        before: &Before<'_>,
        _: StepId,
    ) -> Result<Box<dyn OrderRun>> {
        self.check()?;
        let Some(rows) = before.fixed_length() else {
            return Err(Error::pipeline(
                "split: it parts data once and for all; put it before shuffle, sample and repeat",
            ));
        };
        let bound = |share: f64| (share * rows as f64).round() as u64;
        let (start, end) = (bound(self.start), bound(self.end));
        let members = if rows > 0 && source.key(0).is_some() {
            let mut hashed: Vec<(u64, u64)> = (0..rows)
                .map(|place| {
                    let key = source.key(before.index(place)).unwrap_or_default();
                    (hash(self.seed, &key), place)
                })
                .collect();
            hashed.sort_unstable();
            let mut members: Vec<u64> =
                hashed[start as usize..end as usize].iter().map(|(_, index)| *index).collect();
            members.sort_unstable();
            Members::Listed(members.into())
        } else {
            let key = mix(self.seed, 0x0073_706c_6974);
            Members::Computed(Permutation::new(rows.max(1), key), start)
        };
        Ok(Box::new(SplitRun { members, length: end - start }))
    }
}

fn hash(seed: u64, key: &[u8]) -> u64 {
    let hash = blake3::Hasher::new().update(&seed.to_le_bytes()).update(key).finalize();
    u64::from_le_bytes(*hash.as_bytes().first_chunk().expect("a hash has 32 bytes"))
}

enum Members {
    Listed(Arc<[u64]>),
    Computed(Permutation, u64),
}

struct SplitRun {
    members: Members,
    length: u64,
}

impl OrderRun for SplitRun {
    fn length(&self) -> Length {
        Length::Finite(self.length)
    }

    fn at(&self, place: u64, visit: u64, _: &mut Cursor) -> (u64, u64) {
        let index = match &self.members {
            Members::Listed(members) => members[place as usize],
            Members::Computed(order, start) => order.index(start + place),
        };
        (index, visit)
    }
}
