//! Samples in this process's memory.

use feedline_core::{BufferMut, Cost, DType, Name, Sample, Tensor};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

/// Bytes that it takes to keep a sample, besides its values: its row in the table (which is up to half
/// empty) and what the allocator adds.
const SAMPLE: u64 = 192;
/// The same for each of its fields.
const FIELD: u64 = 96;

/// Samples in memory, up to so many bytes.
#[derive(Debug)]
pub(crate) struct Ram {
    limit: u64,
    used: AtomicU64,
    samples: RwLock<HashMap<u64, Kept>>,
}

#[derive(Debug)]
struct Kept {
    fields: Box<[(Name, Tensor)]>,
    cost: Cost,
}

impl Ram {
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit, used: AtomicU64::new(0), samples: RwLock::default() }
    }

    /// A sample, and what it took to make it.
    pub(crate) fn find(&self, index: u64) -> Option<(Sample, Cost)> {
        let samples = self.samples.read().unwrap_or_else(PoisonError::into_inner);
        let kept = samples.get(&index)?;
        Some((Sample::of(kept.fields.iter().cloned()), kept.cost))
    }

    /// Bytes that keeping these fields takes.
    pub(crate) fn size_of(fields: &[(Name, Tensor)]) -> u64 {
        let values = |tensor: &Tensor| {
            let offsets = if is_ragged(tensor) { (tensor.elements() + 1) * 8 } else { 0 };
            tensor.data().len().next_multiple_of(64) + offsets
        };
        let values: usize = fields.iter().map(|(_, tensor)| values(tensor)).sum();
        SAMPLE + FIELD * fields.len() as u64 + values as u64
    }

    /// Keeps a sample, if there is room. False if there is none; one that is kept already stays.
    pub(crate) fn put(&self, index: u64, fields: &[(Name, Tensor)], cost: Cost) -> bool {
        let size = Self::size_of(fields);
        let limit = self.limit;
        let take = |used: u64| used.checked_add(size).filter(|sum| *sum <= limit);
        if self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_err() {
            return false;
        }
        let give_back = || self.used.fetch_sub(size, Ordering::SeqCst);
        let Some(fields) = fields.iter().map(copy).collect() else {
            give_back();
            return false;
        };
        let mut samples = self.samples.write().unwrap_or_else(PoisonError::into_inner);
        match samples.entry(index) {
            Entry::Occupied(_) => drop(give_back()),
            Entry::Vacant(free) => drop(free.insert(Kept { fields, cost })),
        }
        true
    }

    /// Bytes that may still be kept.
    pub(crate) fn room(&self) -> u64 {
        self.limit - self.used().min(self.limit)
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::SeqCst)
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Number of samples.
    pub(crate) fn count(&self) -> u64 {
        self.samples.read().unwrap_or_else(PoisonError::into_inner).len() as u64
    }
}

/// A field in memory of its own: what it lies in belongs to a pool, or is larger than it is. `None` if there
/// is not so much.
fn copy((name, tensor): &(Name, Tensor)) -> Option<(Name, Tensor)> {
    if tensor.buffer().is_none() && !is_ragged(tensor) {
        return Some((*name, tensor.clone()));
    }
    let mut memory = BufferMut::try_new(tensor.data().len()).ok()?;
    memory.copy_from_slice(tensor.data());
    let memory = memory.freeze();
    let tensor = if is_ragged(tensor) {
        let offsets = (0..=tensor.elements()).map(|item| tensor.offset(item).map(|at| at as u64));
        Tensor::ragged(tensor.dtype(), memory, &offsets.collect::<Option<Vec<_>>>()?)
    } else {
        Tensor::new(tensor.dtype(), tensor.shape(), memory)
    };
    Some((*name, tensor.ok()?))
}

fn is_ragged(tensor: &Tensor) -> bool {
    matches!(tensor.dtype(), DType::Bytes | DType::Text) && !tensor.shape().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use feedline_core::{Buffer, Value};

    fn fields(length: usize) -> Vec<(Name, Tensor)> {
        let words = Buffer::from(&b"abc"[..]);
        vec![
            (Name::new("x"), Tensor::bytes(Buffer::from(&vec![5u8; length][..]))),
            (Name::new("label"), Tensor::scalar(3i64)),
            (Name::new("words"), Tensor::ragged(DType::Text, words, &[0, 1, 3]).unwrap()),
        ]
    }

    #[test]
    fn what_was_kept_is_found_and_nothing_beyond_the_limit_is() {
        let size = Ram::size_of(&fields(1000));
        assert!(size >= 1000);
        let ram = Ram::new(3 * size + size / 2);
        for index in 0..5 {
            assert_eq!(ram.put(index, &fields(1000), Cost::default()), index < 3, "{index}");
        }
        assert_eq!((ram.count(), ram.used()), (3, 3 * size));
        assert!(ram.room() < size);
        assert!(ram.put(1, &fields(10), Cost::default()), "a small one that is there already");
        assert_eq!((ram.count(), ram.used()), (3, 3 * size));
        let (sample, _) = ram.find(2).unwrap();
        for ((name, value), (wanted, tensor)) in sample.into_fields().zip(fields(1000)) {
            let Value::Tensor(value) = value else { panic!("a tensor was kept") };
            assert_eq!((name, value), (wanted, tensor));
        }
        assert!(ram.find(3).is_none());
    }
}
