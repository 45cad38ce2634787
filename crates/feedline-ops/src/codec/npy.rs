//! The header of NumPy's `.npy` format: what type and shape the numbers after it have.
//!
//! The header is a Python dict literal. It is read by a small strict parser of its own, and an array
//! of Python objects is refused: nothing is ever unpickled.

use feedline_core::{DType, Shape};

/// Bytes that begin every file.
pub(crate) const MAGIC: &[u8] = b"\x93NUMPY";
/// Headers beyond this are refused; NumPy's have a few hundred bytes.
const LONGEST: usize = 64 << 10;
/// More dimensions than NumPy knows.
const DIMENSIONS: usize = 64;

/// How an array lies in its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The type of its numbers.
    pub dtype: DType,
    /// Whether their bytes come the other way round than on this machine.
    pub swapped: bool,
    /// Whether the first axis runs fastest.
    pub fortran: bool,
    /// Its extent along each axis.
    pub shape: Shape,
    /// Where its numbers begin.
    pub offset: usize,
}

impl Header {
    /// Bytes of all numbers; `None` if they are more than can be counted.
    pub(crate) fn bytes(&self) -> Option<usize> {
        let size = self.dtype.size()?;
        // An extent of zero makes the whole empty, but the others must be sensible as well.
        let sides = self.shape.iter().map(|side| (*side).max(1));
        sides.clone().try_fold(size, usize::checked_mul)?;
        self.shape.iter().try_fold(size, |product, side| product.checked_mul(*side))
    }
}

/// How many of the first bytes of a file hold its whole header, judged from the first twelve.
///
/// # Errors
///
/// If this is no `.npy` file.
pub(crate) fn header_length(start: &[u8]) -> Result<usize, String> {
    if !start.starts_with(MAGIC) {
        return Err("it is no .npy file: it does not begin with \\x93NUMPY".into());
    }
    let length = match start.get(6..12) {
        Some([1, 0, a, b, ..]) => 10 + usize::from(u16::from_le_bytes([*a, *b])),
        Some([2 | 3, 0, a, b, c, d]) => 12 + u32::from_le_bytes([*a, *b, *c, *d]) as usize,
        Some([major, minor, ..]) => {
            return Err(format!("version {major}.{minor} of .npy is unknown; 1.0 to 3.0 are read"));
        }
        _ => return Err("it ends within the header of .npy".into()),
    };
    if length > LONGEST {
        return Err(format!("its header of {length} bytes is longer than {LONGEST}"));
    }
    Ok(length)
}

/// Reads the header out of the first bytes of a file.
///
/// # Errors
///
/// If it is damaged, or of an array that is not made of plain numbers.
pub(crate) fn header(start: &[u8]) -> Result<Header, String> {
    let length = header_length(start)?;
    let begin = if start[6] == 1 { 10 } else { 12 };
    let text = start.get(begin..length).ok_or("it ends within the header of .npy")?;
    let mut parser = Parser { rest: text };
    let (mut descr, mut order, mut shape) = (None, None, None);
    parser.expect(b'{')?;
    while !parser.eat(b'}') {
        let key = parser.text()?;
        parser.expect(b':')?;
        match key {
            b"descr" if descr.is_none() => descr = Some(parser.descr()?),
            b"fortran_order" if order.is_none() => order = Some(parser.truth()?),
            b"shape" if shape.is_none() => shape = Some(parser.shape()?),
            other => {
                let other = String::from_utf8_lossy(other);
                return Err(format!("its header has an odd entry {other:?}"));
            }
        }
        if !parser.eat(b',') {
            parser.expect(b'}')?;
            break;
        }
    }
    parser.skip();
    if !parser.rest.is_empty() {
        return Err("its header goes on after its end".into());
    }
    let (Some((dtype, swapped)), Some(fortran), Some(shape)) = (descr, order, shape) else {
        return Err("its header lacks one of descr, fortran_order and shape".into());
    };
    let fortran = fortran && shape.len() > 1;
    let header = Header { dtype, swapped, fortran, shape, offset: length };
    match header.bytes() {
        Some(_) => Ok(header),
        None => Err(format!("an array of shape {:?} is larger than all memory", &header.shape[..])),
    }
}

struct Parser<'a> {
    rest: &'a [u8],
}

impl<'a> Parser<'a> {
    fn skip(&mut self) {
        self.rest = self.rest.trim_ascii_start();
    }

    fn eat(&mut self, byte: u8) -> bool {
        self.skip();
        let found = self.rest.first() == Some(&byte);
        self.rest = &self.rest[usize::from(found)..];
        found
    }

    fn expect(&mut self, byte: u8) -> Result<(), String> {
        if self.eat(byte) {
            return Ok(());
        }
        let found = match self.rest.first() {
            Some(found) => format!("{:?}", char::from(*found)),
            None => "its end".into(),
        };
        Err(format!("its header is damaged: {found} where {:?} belongs", char::from(byte)))
    }

    fn text(&mut self) -> Result<&'a [u8], String> {
        let quote = if self.eat(b'"') { b'"' } else { b'\'' };
        if quote == b'\'' {
            self.expect(quote)?;
        }
        let end = self.rest.iter().position(|byte| *byte == quote);
        let end = end.ok_or("its header is damaged: a quote is not closed")?;
        let text = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        Ok(text)
    }

    fn truth(&mut self) -> Result<bool, String> {
        self.skip();
        for (word, value) in [(&b"True"[..], true), (b"False", false)] {
            if let Some(rest) = self.rest.strip_prefix(word) {
                self.rest = rest;
                return Ok(value);
            }
        }
        Err("its header is damaged: fortran_order is neither True nor False".into())
    }

    fn shape(&mut self) -> Result<Shape, String> {
        let mut shape = Shape::new();
        self.expect(b'(')?;
        while !self.eat(b')') {
            self.skip();
            let digits = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let number = std::str::from_utf8(&self.rest[..digits]).unwrap_or_default();
            let number: usize =
                number.parse().map_err(|_| "its header is damaged: the shape is no shape")?;
            self.rest = &self.rest[digits..];
            // Python 2 wrote whole numbers with an L.
            self.rest = self.rest.strip_prefix(b"L").unwrap_or(self.rest);
            shape.push(number);
            if shape.len() > DIMENSIONS {
                return Err(format!("its header is damaged: more than {DIMENSIONS} dimensions"));
            }
            if !self.eat(b',') {
                self.expect(b')')?;
                break;
            }
        }
        Ok(shape)
    }

    fn descr(&mut self) -> Result<(DType, bool), String> {
        self.skip();
        if self.rest.first() == Some(&b'[') {
            return Err("it holds records of several fields; save each as an array".into());
        }
        let text = String::from_utf8_lossy(self.text()?).into_owned();
        let (order, kind) = match text.as_bytes().first() {
            Some(b'<' | b'>' | b'|' | b'=') => text.split_at(1),
            _ => ("=", &text[..]),
        };
        let dtype = match kind {
            "b1" | "?" => DType::Bool,
            "i1" => DType::I8,
            "u1" => DType::U8,
            "i2" => DType::I16,
            "u2" => DType::U16,
            "i4" => DType::I32,
            "u4" => DType::U32,
            "i8" => DType::I64,
            "u8" => DType::U64,
            "f2" => DType::F16,
            "f4" => DType::F32,
            "f8" => DType::F64,
            _ => return Err(refused(kind, &text)),
        };
        let other = if cfg!(target_endian = "little") { ">" } else { "<" };
        Ok((dtype, order == other && dtype.size() != Some(1)))
    }
}

/// Why an array of this kind is not read.
fn refused(kind: &str, text: &str) -> String {
    let what = match kind.as_bytes().first() {
        Some(b'O') => "Python objects, which are never unpickled",
        Some(b'c') => "complex numbers",
        Some(b'U' | b'S' | b'a') => "text",
        Some(b'V') => "records",
        Some(b'M' | b'm') => "times",
        _ => "a type that is not known here",
    };
    format!("it holds {what} (dtype {text:?}); only whole and floating-point numbers are read")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(version: u8, dict: &str) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([version, 0]);
        match version {
            1 => bytes.extend((dict.len() as u16).to_le_bytes()),
            _ => bytes.extend((dict.len() as u32).to_le_bytes()),
        }
        bytes.extend(dict.bytes());
        bytes
    }

    fn dict(descr: &str, order: &str, shape: &str) -> String {
        format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}    \n")
    }

    #[test]
    fn all_versions_orders_and_shapes_are_read() {
        for version in [1, 2, 3] {
            let bytes = file(version, &dict("'<f4'", "False", "(2, 3)"));
            let found = header(&bytes).unwrap();
            assert_eq!((found.dtype, found.swapped, found.fortran), (DType::F32, false, false));
            assert_eq!((&found.shape[..], found.offset), (&[2, 3][..], bytes.len()));
        }
        let big = header(&file(1, &dict("'>i2'", "True", "(4, 5L, 6)"))).unwrap();
        assert_eq!((big.dtype, big.swapped, big.fortran), (DType::I16, true, true));
        let scalar = header(&file(1, &dict("\"|b1\"", "True", "()"))).unwrap();
        assert_eq!((scalar.dtype, scalar.fortran, scalar.bytes()), (DType::Bool, false, Some(1)));
        let empty = header(&file(1, &dict("'|u1'", "False", "(0, 7)"))).unwrap();
        assert_eq!(empty.bytes(), Some(0));
    }

    #[test]
    fn what_is_not_a_plain_array_is_refused_in_words() {
        let error = |descr: &str| header(&file(1, &dict(descr, "False", "(2,)"))).unwrap_err();
        assert!(error("'|O'").contains("never unpickled"));
        assert!(error("'<c8'").contains("complex"));
        assert!(error("'<U5'").contains("text"));
        assert!(error("[('a', '<f4')]").contains("several fields"));
        assert!(error("'<f16'").contains("not known"));
        let shape = |shape: &str| header(&file(1, &dict("'<f8'", "False", shape))).unwrap_err();
        assert!(shape("(4294967296, 4294967296)").contains("larger than all memory"));
        assert!(shape("(0, 4294967296, 4294967296)").contains("larger than all memory"));
        assert!(shape("(-1,)").contains("no shape"));
        assert!(shape("(99999999999999999999,)").contains("no shape"));
        assert!(shape(&format!("({})", "1,".repeat(70))).contains("dimensions"));
        assert!(header(b"PK").unwrap_err().contains("no .npy"));
        assert!(header(&file(9, "")).unwrap_err().contains("version 9.0"));
    }

    #[test]
    fn damage_never_panics() {
        let whole = file(1, &dict("'<f4'", "False", "(2, 3)"));
        for cut in 0..whole.len() {
            assert!(header(&whole[..cut]).is_err(), "{cut}");
        }
        let mut state = 1u32;
        for _ in 0..20_000 {
            let mut bytes = whole.clone();
            for _ in 0..3 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let at = 6 + (state >> 8) as usize % (bytes.len() - 6);
                bytes[at] = (state >> 24) as u8;
            }
            let _ = header(&bytes);
        }
    }
}
