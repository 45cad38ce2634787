//! The rows of a stretch as a description and a list of slices, and back.
//!
//! Nothing is copied to send a stretch: what is sent are the tensors' own bytes, with zeros between
//! them so that each begins at a multiple of 64. Nothing is copied to receive one either: its
//! tensors are slices of the one buffer that the payload was read into.

use crate::bytes::{Reading, malformed, put_bytes, put_number};
use crate::frame::{Limits, put_error, read_error};
use feedline_core::{
    ALIGNMENT, Batch, Buffer, BufferMut, DType, Error, Name, Rows, Shape, Stretch, Tensor,
};
use std::collections::HashMap;
use std::io;

#[cfg(target_endian = "big")]
compile_error!("numbers are sent as they lie in memory, which must be little-endian");

/// Set in the number of a dtype if the items' lengths follow.
const RAGGED: u8 = 0x80;

/// More dimensions than any tensor has.
const DIMENSIONS: usize = 32;

/// The longest name of a field.
const NAME: usize = 256;

static ZEROS: [u8; ALIGNMENT] = [0; ALIGNMENT];

/// A stretch, ready to be sent.
#[derive(Debug)]
pub struct Encoded<'a> {
    /// What the payload means.
    pub description: Vec<u8>,
    /// The payload, in parts: the tensors' bytes, and zeros between them.
    pub parts: Vec<&'a [u8]>,
    /// The tensors that have bytes, in order.
    pub tensors: Vec<&'a Tensor>,
    /// Bytes of the payload.
    pub length: usize,
}

impl<'a> Encoded<'a> {
    /// Describes a stretch; its bytes stay where they are.
    #[must_use]
    pub fn new(stretch: &'a Stretch) -> Self {
        let mut encoded =
            Self { description: Vec::new(), parts: Vec::new(), tensors: Vec::new(), length: 0 };
        let out = &mut encoded.description;
        put_number(out, stretch.step);
        match &stretch.rows {
            Rows::Batch(Batch { fields, rows, indices }) => {
                out.push(0);
                put_number(out, *rows as u64);
                out.push(u8::from(indices.is_some()));
                if let Some(indices) = indices {
                    put_number(out, indices.len() as u64);
                    indices.iter().for_each(|index| put_number(out, *index));
                }
                put_number(out, fields.len() as u64);
                for (name, tensor) in fields {
                    put_bytes(&mut encoded.description, name.as_str().as_bytes());
                    encoded.tensor(tensor);
                }
            }
            Rows::Some { good, bad } => {
                out.push(1);
                put_number(out, good.len() as u64);
                for (row, index, fields) in good {
                    let out = &mut encoded.description;
                    put_number(out, *row as u64);
                    put_number(out, *index);
                    put_number(out, fields.len() as u64);
                    fields.iter().for_each(|tensor| encoded.tensor(tensor));
                }
                let out = &mut encoded.description;
                put_number(out, bad.len() as u64);
                for (row, error) in bad {
                    put_number(out, *row as u64);
                    put_error(out, error);
                }
            }
        }
        encoded
    }

    fn tensor(&mut self, tensor: &'a Tensor) {
        let out = &mut self.description;
        let (dtype, data) = (tensor.dtype(), tensor.data());
        let items = tensor.shape().first().copied().unwrap_or(0);
        let ragged = dtype.size().is_none() && !tensor.shape().is_empty();
        out.push(dtype as u8 | if ragged { RAGGED } else { 0 });
        if ragged {
            put_number(out, items as u64);
            let ends = (1..=items).filter_map(|item| tensor.offset(item));
            let mut last = 0;
            for end in ends {
                put_number(out, (end - last) as u64);
                last = end;
            }
        } else if dtype.size().is_none() {
            put_number(out, data.len() as u64);
        } else {
            put_number(out, tensor.shape().len() as u64);
            tensor.shape().iter().for_each(|side| put_number(out, *side as u64));
        }
        if !data.is_empty() {
            let gap = self.length.next_multiple_of(ALIGNMENT) - self.length;
            if gap > 0 {
                self.parts.push(&ZEROS[..gap]);
            }
            self.parts.push(data);
            self.tensors.push(tensor);
            self.length += gap + data.len();
        }
    }
}

/// Reads stretches that come over one connection.
#[derive(Debug)]
pub struct Decoder {
    limits: Limits,
    /// Names seen so far. They are interned for good, so a peer may only bring so many.
    names: HashMap<Box<str>, Name>,
}

/// Cuts the tensors out of the pieces of a payload, in order. Each lies in one piece as a whole.
struct Cutting<'a> {
    pieces: std::slice::Iter<'a, Buffer>,
    piece: Option<&'a Buffer>,
    at: usize,
    /// How many more tensors there may be.
    allowed: usize,
}

impl Cutting<'_> {
    fn cut(&mut self, length: usize) -> io::Result<Buffer> {
        if length == 0 {
            return Ok(BufferMut::new(0).freeze());
        }
        let mut at = self.at.next_multiple_of(ALIGNMENT);
        if self.piece.is_none_or(|piece| at >= piece.len()) {
            self.finish()?;
            (self.piece, at) = (self.pieces.next(), 0);
        }
        let (Some(piece), end) = (self.piece, at.checked_add(length)) else {
            return Err(malformed("a payload without room for its tensors"));
        };
        let Some(end) = end.filter(|end| *end <= piece.len()) else {
            let all = piece.len();
            return Err(malformed(format!("a tensor of {length} bytes at {at} of {all}")));
        };
        self.at = end;
        Ok(piece.slice(at..end))
    }

    /// The piece at hand must have been cut up to its end.
    fn finish(&self) -> io::Result<()> {
        match self.piece {
            Some(piece) if piece.len() != self.at => {
                let (at, all) = (self.at, piece.len());
                Err(malformed(format!("tensors of {at} bytes in a payload of {all}")))
            }
            _ => Ok(()),
        }
    }

    fn tensor(&mut self, reading: &mut Reading<'_>) -> io::Result<Tensor> {
        let Some(allowed) = self.allowed.checked_sub(1) else {
            return Err(malformed("a frame with more fields than are allowed"));
        };
        self.allowed = allowed;
        let number = reading.byte()?;
        let Some(dtype) = DType::numbered(number & !RAGGED) else {
            return Err(malformed(format!("a tensor of unknown dtype {number}")));
        };
        let refused = |error: Error| malformed(error.to_string());
        let Some(size) = dtype.size() else {
            if number & RAGGED == 0 {
                let length = reading.size()?;
                return Tensor::new(dtype, &[], self.cut(length)?).map_err(refused);
            }
            let items = reading.count()?;
            let mut offsets = Vec::with_capacity(items + 1);
            let mut end = 0u64;
            offsets.push(end);
            for _ in 0..items {
                let sum = end.checked_add(reading.number()?);
                end = sum.ok_or_else(|| malformed("items longer than any payload"))?;
                offsets.push(end);
            }
            let length = usize::try_from(end).map_err(|_| malformed("items of too many bytes"))?;
            return Tensor::ragged(dtype, self.cut(length)?, &offsets).map_err(refused);
        };
        let sides = reading.count()?;
        if number & RAGGED != 0 || sides > DIMENSIONS {
            return Err(malformed(format!("a {dtype} tensor of {sides} dimensions")));
        }
        let shape = (0..sides).map(|_| reading.size()).collect::<io::Result<Shape>>()?;
        let length = shape.iter().try_fold(size, |product, side| product.checked_mul(*side));
        let length = length.ok_or_else(|| malformed(format!("a tensor of shape {shape:?}")))?;
        Tensor::new(dtype, &shape, self.cut(length)?).map_err(refused)
    }
}

impl Decoder {
    /// A decoder for one connection.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, names: HashMap::new() }
    }

    /// Reads a stretch out of its description and its payload, which may lie in several pieces.
    ///
    /// # Errors
    ///
    /// If they do not fit together, or ask for more than the limits allow.
    pub fn decode(&mut self, description: &[u8], payload: &[Buffer]) -> io::Result<Stretch> {
        let mut reading = Reading::new(description);
        let reading = &mut reading;
        let (pieces, allowed) = (payload.iter(), self.limits.fields);
        let mut cutting = Cutting { pieces, piece: None, at: 0, allowed };
        let step = reading.number()?;
        let rows = match reading.byte()? {
            0 => {
                let rows = reading.size()?;
                let indices = match reading.byte()? {
                    0 => None,
                    1 => {
                        let count = reading.count()?;
                        Some((0..count).map(|_| reading.number()).collect::<io::Result<_>>()?)
                    }
                    other => return Err(malformed(format!("{other} instead of yes or no"))),
                };
                let count = reading.count()?;
                let mut fields = Vec::with_capacity(count.min(self.limits.fields));
                for _ in 0..count {
                    let name = self.name(reading.text()?)?;
                    fields.push((name, cutting.tensor(reading)?));
                }
                Rows::Batch(Batch { fields, rows, indices })
            }
            1 => {
                let count = reading.count()?;
                let mut good = Vec::with_capacity(count);
                for _ in 0..count {
                    let (row, index, fields) =
                        (reading.size()?, reading.number()?, reading.count()?);
                    let fields = (0..fields).map(|_| cutting.tensor(reading));
                    good.push((row, index, fields.collect::<io::Result<_>>()?));
                }
                let count = reading.count()?;
                let mut bad = Vec::with_capacity(count);
                for _ in 0..count {
                    bad.push((reading.size()?, read_error(reading)?));
                }
                Rows::Some { good, bad }
            }
            other => return Err(malformed(format!("rows of unknown sort {other}"))),
        };
        std::mem::replace(reading, Reading::new(&[])).end()?;
        cutting.finish()?;
        if cutting.pieces.any(|piece| !piece.is_empty()) {
            return Err(malformed("a payload with more pieces than its tensors have"));
        }
        Ok(Stretch { step, rows })
    }

    fn name(&mut self, text: &str) -> io::Result<Name> {
        if let Some(name) = self.names.get(text) {
            return Ok(*name);
        }
        if text.len() > NAME || self.names.len() >= self.limits.names {
            let most = self.limits.names;
            return Err(malformed(format!("a name of over {NAME} bytes, or over {most} names")));
        }
        let name = Name::new(text);
        self.names.insert(text.into(), name);
        Ok(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{HEADER, Header, Kind, checksum};
    use proptest::prelude::*;

    fn gathered(encoded: &Encoded<'_>) -> Buffer {
        let bytes = encoded.parts.concat();
        assert_eq!(bytes.len(), encoded.length);
        Buffer::from(&bytes[..])
    }

    fn same(left: &Stretch, right: &Stretch) -> bool {
        left.step == right.step
            && match (&left.rows, &right.rows) {
                (Rows::Batch(left), Rows::Batch(right)) => left == right,
                (Rows::Some { good, bad }, Rows::Some { good: others, bad: worse }) => {
                    let words = |bad: &[(usize, Error)]| format!("{bad:?}");
                    good == others && words(bad) == words(worse)
                }
                _ => false,
            }
    }

    /// A frame as it would lie on a socket.
    fn frame(stretch: &Stretch) -> Vec<u8> {
        let encoded = Encoded::new(stretch);
        let payload = gathered(&encoded);
        let header = Header {
            sent: payload.len(),
            plain: payload.len(),
            payload_checksum: Some(checksum([&payload[..]])),
            ..Header::new(Kind::Stretch, 1, &encoded.description)
        };
        [&header.encode()[..], &encoded.description, &payload].concat()
    }

    fn read(bytes: &[u8], decoder: &mut Decoder) -> io::Result<Stretch> {
        let head = bytes.first_chunk::<HEADER>().ok_or_else(|| malformed("no header"))?;
        let header = Header::decode(head, 0, &decoder.limits)?;
        let rest = &bytes[HEADER..];
        if rest.len() != header.description + header.sent {
            return Err(malformed("another length"));
        }
        let (description, payload) = rest.split_at(header.description);
        header.check_description(description)?;
        header.check_payload(payload)?;
        decoder.decode(description, &[Buffer::from(payload)])
    }

    fn tensor() -> impl Strategy<Value = Tensor> {
        let numbers = (0usize..13, proptest::collection::vec(0usize..5, 0..4), any::<u8>());
        let numbers = numbers.prop_map(|(dtype, shape, seed)| {
            let dtype = DType::numbered(dtype as u8).unwrap();
            let size = dtype.size().unwrap() * shape.iter().product::<usize>();
            let bytes: Vec<u8> = (0..size).map(|at| (at as u8).wrapping_mul(seed)).collect();
            Tensor::new(dtype, &shape, Buffer::from(&bytes[..])).unwrap()
        });
        let bytes = proptest::collection::vec(any::<u8>(), 0..200);
        let one = bytes.prop_map(|bytes| Tensor::bytes(Buffer::from(&bytes[..])));
        let items = proptest::collection::vec("[a-zé]{0,9}", 0..6);
        let ragged = (items, any::<bool>()).prop_map(|(items, text)| {
            let mut offsets = vec![0u64];
            for item in &items {
                offsets.push(offsets[offsets.len() - 1] + item.len() as u64);
            }
            let dtype = if text { DType::Text } else { DType::Bytes };
            Tensor::ragged(dtype, Buffer::from(items.concat().as_bytes()), &offsets).unwrap()
        });
        let inline = any::<i64>().prop_map(Tensor::scalar);
        let text = "[a-zé]{0,20}".prop_map(|text| Tensor::text(&text));
        prop_oneof![4 => numbers, 1 => one, 1 => ragged, 1 => inline, 1 => text]
    }

    fn error() -> impl Strategy<Value = Error> {
        (any::<u64>(), "[a-z ]{0,12}").prop_map(|(index, text)| Error::Record {
            origin: text.clone(),
            index,
            step: "decode".into(),
            reason: text,
        })
    }

    fn stretch() -> impl Strategy<Value = Stretch> {
        let fields = proptest::collection::vec(tensor(), 0..6).prop_map(|tensors| {
            let names = (0..).map(|number| Name::new(&format!("field {number}")));
            names.zip(tensors).collect::<Vec<_>>()
        });
        let indices = proptest::option::of(proptest::collection::vec(any::<u64>(), 0..9));
        let batch = (fields, 0usize..1000, indices)
            .prop_map(|(fields, rows, indices)| Rows::Batch(Batch { fields, rows, indices }));
        let row = (any::<usize>(), any::<u64>(), proptest::collection::vec(tensor(), 0..4));
        let good = proptest::collection::vec(row, 0..5);
        let bad = proptest::collection::vec((any::<usize>(), error()), 0..4);
        let some = (good, bad).prop_map(|(good, bad)| Rows::Some { good, bad });
        let rows = prop_oneof![batch, some];
        (any::<u64>(), rows).prop_map(|(step, rows)| Stretch { step, rows })
    }

    proptest! {
        #[test]
        fn whatever_is_sent_reads_back_and_lies_aligned(stretch in stretch()) {
            let read = read(&frame(&stretch), &mut Decoder::new(Limits::default())).unwrap();
            prop_assert!(same(&stretch, &read));
            let aligned = |tensor: &Tensor| {
                tensor.data().is_empty() || (tensor.data().as_ptr() as usize).is_multiple_of(ALIGNMENT)
            };
            match &read.rows {
                Rows::Batch(batch) => prop_assert!(batch.fields.iter().all(|(_, t)| aligned(t))),
                Rows::Some { good, .. } => {
                    prop_assert!(good.iter().all(|(_, _, fields)| fields.iter().all(aligned)));
                }
            }
        }
    }

    /// A small generator, so that the damages are the same on every run.
    struct Dice(u64);

    impl Dice {
        fn below(&mut self, sides: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ((self.0 >> 33) as usize) % sides
        }
    }

    fn sample() -> Stretch {
        let image =
            Tensor::from_slice(&[2, 3, 5], &(0..30).map(|at| at as f32).collect::<Vec<_>>());
        let texts =
            Tensor::ragged(DType::Text, Buffer::from(&b"onethree"[..]), &[0, 3, 8]).unwrap();
        let fields = vec![
            (Name::new("image"), image),
            (Name::new("text"), texts),
            (Name::new("label"), Tensor::from_slice(&[2], &[7i64, 8])),
        ];
        Stretch {
            step: 300,
            rows: Rows::Batch(Batch { fields, rows: 2, indices: Some(vec![5, 9]) }),
        }
    }

    #[test]
    fn ten_thousand_damages_are_refused_or_change_nothing() {
        let (whole, stretch, mut dice) = (frame(&sample()), sample(), Dice(1));
        for number in 0..10_000 {
            let mut bytes = whole.clone();
            match dice.below(4) {
                0 => bytes.truncate(dice.below(whole.len())),
                1 => bytes.push(dice.below(256) as u8),
                _ => {
                    for _ in 0..=dice.below(8) {
                        let at = dice.below(bytes.len());
                        bytes[at] = dice.below(256) as u8;
                    }
                }
            }
            if let Ok(read) = read(&bytes, &mut Decoder::new(Limits::default())) {
                assert!(same(&read, &stretch), "damage {number} went unnoticed");
            }
        }
    }

    #[test]
    fn ten_thousand_lying_descriptions_never_panic() {
        let stretch = sample();
        let (encoded, mut dice) = (Encoded::new(&stretch), Dice(2));
        let payload = gathered(&encoded);
        for _ in 0..10_000 {
            // No checksum stands between these and the decoder: they are what a peer could mean.
            let mut description = encoded.description.clone();
            for _ in 0..=dice.below(4) {
                let at = dice.below(description.len());
                description[at] = dice.below(256) as u8;
            }
            description.truncate(description.len() - dice.below(3));
            let limits = Limits { names: 4, ..Limits::default() };
            let _ = Decoder::new(limits).decode(&description, std::slice::from_ref(&payload));
        }
    }

    #[test]
    fn more_fields_or_names_than_allowed_are_refused() {
        let stretch = sample();
        let encoded = Encoded::new(&stretch);
        let payload = gathered(&encoded);
        for limits in
            [Limits { fields: 2, ..Limits::default() }, Limits { names: 2, ..Limits::default() }]
        {
            assert!(
                Decoder::new(limits)
                    .decode(&encoded.description, std::slice::from_ref(&payload))
                    .is_err()
            );
        }
        assert!(
            Decoder::new(Limits::default())
                .decode(&encoded.description, std::slice::from_ref(&payload))
                .is_ok()
        );
    }

    #[test]
    fn sending_copies_no_tensor() {
        let stretch = sample();
        let encoded = Encoded::new(&stretch);
        let Rows::Batch(batch) = &stretch.rows else { unreachable!() };
        assert_eq!(encoded.parts[0].as_ptr(), batch.fields[0].1.data().as_ptr());
    }
}
