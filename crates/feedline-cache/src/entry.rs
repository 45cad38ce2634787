//! A sample as bytes on a disk, and back.
//!
//! ```text
//!  4 bytes: length of the description │ description │ zeros to a multiple of 64 │ the tensors' bytes
//! ```
//!
//! Description and tensors are written as on the wire. Who reads an entry has checked its sum.

use feedline_core::{ALIGNMENT, Batch, Buffer, Name, Rows, Sample, Stretch, Tensor};
use feedline_wire::frame::Limits;
use feedline_wire::stretch::{Decoder, Encoded};

/// No entry is longer.
pub(crate) const LONGEST: u64 = 4 << 30;

/// An entry's bytes, in parts: the head, and the tensors where they lie.
pub(crate) fn with_parts<T>(
    fields: &[(Name, Tensor)],
    write: impl FnOnce(&[&[u8]], u64) -> T,
) -> T {
    let batch = Batch { fields: fields.to_vec(), rows: 1, indices: None };
    let stretch = Stretch { step: 0, rows: Rows::Batch(batch) };
    let encoded = Encoded::new(&stretch);
    let description = &encoded.description;
    let mut head = Vec::with_capacity(4 + description.len() + ALIGNMENT);
    head.extend_from_slice(&(description.len() as u32).to_le_bytes());
    head.extend_from_slice(description);
    head.resize(head.len().next_multiple_of(ALIGNMENT), 0);
    let length = (head.len() + encoded.length) as u64;
    let parts: Vec<&[u8]> = std::iter::once(&head[..]).chain(encoded.parts.clone()).collect();
    write(&parts, length)
}

/// The sample that an entry holds, over the entry's own memory; `None` if it holds none.
pub(crate) fn read(bytes: &Buffer) -> Option<Sample> {
    let (length, _) = bytes.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let description = bytes.get(4..length.checked_add(4)?)?;
    let start = (4 + length).next_multiple_of(ALIGNMENT);
    if start > bytes.len() {
        return None;
    }
    let payload = bytes.slice(start..bytes.len());
    let limits = Limits { payload: bytes.len(), ..Limits::default() };
    let payload = if payload.is_empty() { Vec::new() } else { vec![payload] };
    let stretch = Decoder::new(limits).decode(description, &payload).ok()?;
    match stretch.rows {
        Rows::Batch(batch) if batch.rows == 1 => Some(Sample::of(batch.fields)),
        _ => None,
    }
}

/// An entry's bytes, in one piece; for tests that damage it.
#[must_use]
pub fn written(fields: &[(Name, Tensor)]) -> Vec<u8> {
    with_parts(fields, |parts, _| parts.concat())
}

/// Reads an entry of bytes that nobody has checked; for tests that give it any.
#[must_use]
pub fn read_unchecked(bytes: &[u8]) -> bool {
    read(&Buffer::from(bytes)).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use feedline_core::Value;
    use proptest::prelude::*;

    fn bytes_of(fields: &[(Name, Tensor)]) -> Vec<u8> {
        with_parts(fields, |parts, length| {
            let bytes = parts.concat();
            assert_eq!(bytes.len() as u64, length);
            bytes
        })
    }

    fn fields() -> Vec<(Name, Tensor)> {
        vec![
            (Name::new("image"), Tensor::from_slice(&[2, 3], &[1u8, 2, 3, 4, 5, 6])),
            (Name::new("label"), Tensor::scalar(7i64)),
            (Name::new("text"), Tensor::text("täglich")),
            (Name::new("empty"), Tensor::from_slice::<f32>(&[0, 4], &[])),
            (
                Name::new("words"),
                Tensor::ragged(
                    feedline_core::DType::Text,
                    Buffer::from(&b"abc"[..]),
                    &[0, 1, 1, 3],
                )
                .unwrap(),
            ),
        ]
    }

    #[test]
    fn what_is_written_is_read() {
        let fields = fields();
        let sample = read(&Buffer::from(&bytes_of(&fields)[..])).unwrap();
        let back: Vec<_> = sample
            .into_fields()
            .map(|(name, value)| match value {
                Value::Tensor(tensor) => (name, tensor),
                Value::Deferred(_) => panic!("a tensor was written"),
            })
            .collect();
        assert_eq!(back, fields);
        assert!(read(&Buffer::from(&bytes_of(&[])[..])).is_some());
    }

    #[test]
    fn what_was_cut_off_is_no_sample() {
        let bytes = bytes_of(&fields());
        for length in 0..bytes.len() {
            assert!(!read_unchecked(&bytes[..length]), "{length} of {}", bytes.len());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = read_unchecked(&bytes);
        }
    }
}
