//! Blobs as they travel and are kept: a line of JSON that describes the tensor, then its bytes.
//!
//! ```text
//!  {"dtype":"uint8","shape":[2,3]}⏎ values                a scalar or an array
//!  {"dtype":"text","offsets":4}⏎ values │ 4 × u64         texts or runs of bytes, with a length each
//! ```
//!
//! A blob is named by the hash of dtype, shape and bytes, so whoever gets one can tell whether it is
//! what was asked for.

use feedline_core::{Buffer, BufferMut, DType, Tensor};
use serde::{Deserialize, Serialize};

/// No description is longer.
const LONGEST_HEADER: usize = 4096;
/// Letters of a name: 128 bits of the hash.
const NAME: usize = 32;

/// Whether a text could be the name of a blob or a dataset.
#[must_use]
pub fn is_name(text: &str) -> bool {
    text.len() == NAME && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The name of a tensor as a blob: the hash of its dtype, shape and bytes.
#[must_use]
pub fn name(tensor: &Tensor) -> String {
    let (header, offsets) = describe(tensor);
    let mut hasher = header.hasher();
    hasher.update(tensor.data());
    hasher.update(&offsets);
    short(&hasher)
}

fn short(hasher: &blake3::Hasher) -> String {
    hasher.finalize().to_hex()[..NAME].to_owned()
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    dtype: DType,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shape: Option<Vec<usize>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    offsets: Option<usize>,
}

impl Header {
    fn hasher(&self) -> blake3::Hasher {
        let shape = self.shape.as_deref().unwrap_or_default();
        let mut hasher = blake3::Hasher::new();
        hasher.update(format!("{}{shape:?}", self.dtype).as_bytes());
        hasher
    }

    fn read(bytes: &[u8]) -> Result<(Self, usize), String> {
        let line = bytes.iter().take(LONGEST_HEADER).position(|byte| *byte == b'\n');
        let line = line.ok_or("a blob begins with a line that describes it, and this does not")?;
        let header = serde_json::from_slice(&bytes[..line]);
        let header: Self = header.map_err(|error| format!("a blob's first line: {error}"))?;
        if header.shape.is_some() == header.offsets.is_some() {
            return Err("a blob has either a shape or offsets".to_owned());
        }
        Ok((header, line + 1))
    }
}

fn describe(tensor: &Tensor) -> (Header, Vec<u8>) {
    let dtype = tensor.dtype();
    let offsets: Vec<u8> = (0..)
        .map_while(|index| tensor.offset(index))
        .flat_map(|offset| (offset as u64).to_le_bytes())
        .collect();
    let header = match offsets.len() / 8 {
        0 => Header { dtype, shape: Some(tensor.shape().to_vec()), offsets: None },
        count => Header { dtype, shape: None, offsets: Some(count) },
    };
    (header, offsets)
}

/// A tensor as a blob's bytes, in parts that follow each other.
#[must_use]
pub fn parts(tensor: &Tensor) -> (Vec<u8>, &[u8], Vec<u8>) {
    let (header, offsets) = describe(tensor);
    let mut line = serde_json::to_vec(&header).expect("names and numbers can be written as JSON");
    line.push(b'\n');
    (line, tensor.data(), offsets)
}

/// The tensor that a blob's bytes stand for.
///
/// # Errors
///
/// If they are damaged; says how.
pub fn read(bytes: &[u8]) -> Result<Tensor, String> {
    let (header, begin) = Header::read(bytes)?;
    let rest = &bytes[begin..];
    let wrong =
        |error: feedline_core::Error| format!("a blob that does not fit its first line: {error}");
    let check_text = |values: &[u8]| match header.dtype {
        DType::Text if std::str::from_utf8(values).is_err() => {
            Err("a blob of text that is not UTF-8".to_owned())
        }
        _ => Ok(()),
    };
    if let Some(shape) = &header.shape {
        check_text(rest)?;
        let mut values = BufferMut::new(rest.len());
        values.copy_from_slice(rest);
        return Tensor::new(header.dtype, shape, values.freeze()).map_err(wrong);
    }
    let marks = header.offsets.and_then(|count| count.checked_mul(8)).unwrap_or(0);
    let values = rest.len().checked_sub(marks).ok_or("a blob that is shorter than its offsets")?;
    let (values, marks) = rest.split_at(values);
    check_text(values)?;
    let offset = |mark: &[u8]| u64::from_le_bytes(mark.try_into().expect("eight bytes each"));
    let offsets: Vec<u64> = marks.chunks_exact(8).map(offset).collect();
    Tensor::ragged(header.dtype, Buffer::from(values), &offsets).map_err(wrong)
}

/// Finds the name of a blob whose bytes come one after another.
#[derive(Debug, Default)]
pub struct Naming {
    /// What has come before the first line was complete.
    line: Vec<u8>,
    /// What follows the first line.
    rest: Option<Rest>,
}

#[derive(Debug)]
struct Rest {
    hasher: blake3::Hasher,
    offsets: Option<usize>,
    bytes: u64,
    /// The last eight bytes: where the last item ends.
    tail: [u8; 8],
}

impl Rest {
    fn add(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        let new = bytes.len().min(8);
        self.tail.rotate_left(new);
        self.tail[8 - new..].copy_from_slice(&bytes[bytes.len() - new..]);
    }

    /// Whether values and offsets meet where the first line says: the hash does not tell.
    fn is_whole(&self) -> bool {
        let Some(offsets) = self.offsets else { return true };
        let marks = (offsets as u64).checked_mul(8);
        let values = marks.and_then(|marks| self.bytes.checked_sub(marks));
        offsets > 0 && values == Some(u64::from_le_bytes(self.tail))
    }
}

impl Naming {
    /// More bytes have come.
    ///
    /// # Errors
    ///
    /// If they are no blob's.
    pub fn add(&mut self, bytes: &[u8]) -> Result<(), String> {
        if let Some(rest) = &mut self.rest {
            rest.add(bytes);
            return Ok(());
        }
        self.line.extend_from_slice(bytes);
        if self.line.contains(&b'\n') || self.line.len() >= LONGEST_HEADER {
            let line = std::mem::take(&mut self.line);
            let (header, begin) = Header::read(&line)?;
            let (hasher, offsets) = (header.hasher(), header.offsets);
            let mut rest = Rest { hasher, offsets, bytes: 0, tail: [0; 8] };
            rest.add(&line[begin..]);
            self.rest = Some(rest);
        }
        Ok(())
    }

    /// The name, now that all has come.
    ///
    /// # Errors
    ///
    /// If not all of a blob has.
    pub fn finish(self) -> Result<String, String> {
        let rest = self.rest.ok_or("a blob without a first line")?;
        match rest.is_whole() {
            true => Ok(short(&rest.hasher)),
            false => Err("a blob whose offsets do not fit its values".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensors() -> Vec<Tensor> {
        let list = Tensor::ragged(DType::Text, Buffer::from(b"abcde".as_slice()), &[0, 2, 2, 5]);
        vec![
            Tensor::from_slice(&[2, 3], &[1.5f32, 2.0, 3.0, 4.0, 5.0, 6.0]),
            Tensor::from_slice::<u8>(&[0], &[]),
            Tensor::scalar(7i64),
            Tensor::text("lines\nof text"),
            Tensor::bytes(Buffer::from(b"\n\0\xff".as_slice())),
            list.unwrap(),
        ]
    }

    fn whole(tensor: &Tensor) -> Vec<u8> {
        let (line, values, offsets) = parts(tensor);
        [&line, values, &offsets].concat()
    }

    #[test]
    fn blobs_survive_the_way_and_keep_their_names() {
        for tensor in tensors() {
            let bytes = whole(&tensor);
            let again = read(&bytes).unwrap();
            assert_eq!(whole(&again), bytes);
            let name = name(&tensor);
            assert!(is_name(&name), "{name}");
            for piece in [1, 7, 4096] {
                let mut naming = Naming::default();
                bytes.chunks(piece).for_each(|bytes| naming.add(bytes).unwrap());
                assert_eq!(naming.finish().unwrap(), name);
            }
        }
    }

    #[test]
    fn damaged_blobs_are_refused_or_have_another_name() {
        for tensor in tensors() {
            let bytes = whole(&tensor);
            for at in 0..bytes.len() {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1;
                let mut naming = Naming::default();
                let found = naming.add(&damaged).and_then(|()| naming.finish());
                assert_ne!(found.as_deref().ok(), Some(name(&tensor).as_str()), "byte {at}");
                // Whatever it is taken for, nothing breaks.
                let _ = read(&damaged);
                assert!(read(&bytes[..at]).map_or(true, |short| name(&short) != name(&tensor)));
            }
        }
        let error = read(&[b'a'; 9000]).unwrap_err();
        assert!(error.contains("begins with a line"), "{error}");
        let huge = br#"{"dtype":"text","offsets":2305843009213693953}"#;
        assert!(read(&[huge.as_slice(), b"\nabc"].concat()).is_err());
    }
}
