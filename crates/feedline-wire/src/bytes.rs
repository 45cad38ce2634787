//! The compact writing that descriptions are in: numbers seven bits at a time, texts with their
//! length before them.

use std::io;

/// What a peer sent and cannot be right.
pub(crate) fn malformed(message: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message.into())
}

/// Appends a number, seven bits at a time, the lowest first.
pub(crate) fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Appends bytes with their length before them.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reads what was written, from front to back; never past the end.
pub(crate) struct Reading<'a> {
    left: &'a [u8],
}

impl<'a> Reading<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { left: bytes }
    }

    pub(crate) fn left(&self) -> usize {
        self.left.len()
    }

    pub(crate) fn take(&mut self, count: usize) -> io::Result<&'a [u8]> {
        if count > self.left.len() {
            let left = self.left.len();
            return Err(malformed(format!("a description ends {} bytes early", count - left)));
        }
        let (taken, left) = self.left.split_at(count);
        self.left = left;
        Ok(taken)
    }

    pub(crate) fn byte(&mut self) -> io::Result<u8> {
        Ok(self.take(1)?[0])
    }

    pub(crate) fn number(&mut self) -> io::Result<u64> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            number |= bits << shift;
            if byte < 0x80 {
                // One number has one writing: a zero at the end would be another.
                if byte == 0 && shift > 0 {
                    break;
                }
                return Ok(number);
            }
        }
        Err(malformed("a number in a description is not written as numbers are"))
    }

    pub(crate) fn size(&mut self) -> io::Result<usize> {
        usize::try_from(self.number()?).map_err(|_| malformed("a number does not fit this machine"))
    }

    /// A number of things to come, each of which takes at least one byte here: so nobody can make
    /// us reserve more memory than they sent.
    pub(crate) fn count(&mut self) -> io::Result<usize> {
        let count = self.size()?;
        if count > self.left() {
            return Err(malformed(format!("a description of {count} things ends early")));
        }
        Ok(count)
    }

    pub(crate) fn bytes(&mut self) -> io::Result<&'a [u8]> {
        let length = self.size()?;
        self.take(length)
    }

    pub(crate) fn text(&mut self) -> io::Result<&'a str> {
        std::str::from_utf8(self.bytes()?).map_err(|_| malformed("a text is not UTF-8"))
    }

    /// Everything must have been read.
    pub(crate) fn end(self) -> io::Result<()> {
        match self.left.len() {
            0 => Ok(()),
            left => Err(malformed(format!("a description has {left} bytes too many"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_back_and_have_one_writing() {
        for number in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut out = Vec::new();
            put_number(&mut out, number);
            let mut reading = Reading::new(&out);
            assert_eq!(reading.number().unwrap(), number);
            reading.end().unwrap();
        }
        for wrong in [&[0x80, 0x00][..], &[0xff; 10], &[0x80], &[]] {
            assert!(Reading::new(wrong).number().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_count_beyond_what_was_sent_is_refused() {
        let mut out = Vec::new();
        put_number(&mut out, 1 << 40);
        assert!(Reading::new(&out).count().is_err());
    }
}
