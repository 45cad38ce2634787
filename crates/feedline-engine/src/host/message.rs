//! Requests and answers, as bytes; see the module above for what they mean.

use feedline_core::{DType, Shape};
use std::io;

/// No message is longer, in bytes.
pub const LONGEST: usize = 1 << 20;
/// No array has more dimensions.
const MOST_DIMENSIONS: usize = 16;

/// What a host is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Takes a function.
    Load,
    /// Makes other samples of samples.
    Map,
    /// Decides whether samples stay.
    Filter,
}

/// What the engine says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What to do.
    pub verb: Verb,
    /// Whether the function wants random numbers.
    pub random: bool,
    /// Which function.
    pub function: u32,
    /// Where the arrays lie.
    pub segment: u32,
    /// The segment's size if its descriptor comes with this message, otherwise 0.
    pub size: u64,
    /// Segments of the host that it may write again.
    pub free: Vec<u32>,
    /// The samples.
    pub samples: Vec<Input>,
}

/// A sample that goes in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Input {
    /// Where its random numbers come from.
    pub seed: [u64; 2],
    /// Its fields.
    pub fields: Vec<Place>,
}

/// A field, and where its array lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The field's name.
    pub name: String,
    /// The type of its elements.
    pub dtype: DType,
    /// Its shape.
    pub shape: Shape,
    /// Where it begins in its segment.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
}

/// What a host says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Where the arrays lie.
    pub segment: u32,
    /// The segment's size if its descriptor comes with this message, otherwise 0.
    pub size: u64,
    /// Segments of the host that it does not use any more.
    pub gone: Vec<u32>,
    /// What became of each sample.
    pub outcomes: Vec<Outcome>,
}

/// What became of a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Another sample.
    Sample(Vec<Place>),
    /// Yes: the function was loaded, the sample stays.
    Yes,
    /// No: the sample does not stay.
    No,
    /// It failed: a line that says why, and perhaps more lines.
    Failed(String),
}

fn nonsense(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

fn put_places(out: &mut Vec<u8>, places: &[Place]) {
    out.extend((places.len() as u16).to_le_bytes());
    for Place { name, dtype, shape, offset, bytes } in places {
        out.extend([*dtype as u8, shape.len() as u8]);
        out.extend((name.len() as u16).to_le_bytes());
        out.extend(offset.to_le_bytes());
        out.extend(bytes.to_le_bytes());
        shape.iter().for_each(|side| out.extend((*side as u64).to_le_bytes()));
        out.extend(name.as_bytes());
    }
}

/// Writes the length before a message.
fn finish(mut out: Vec<u8>) -> io::Result<Vec<u8>> {
    let length = out.len() - 4;
    if length > LONGEST {
        return Err(nonsense(format!(
            "a message of {length} bytes; at most {LONGEST} are allowed"
        )));
    }
    out[..4].copy_from_slice(&(length as u32).to_le_bytes());
    Ok(out)
}

impl Request {
    /// The message, with its length before it.
    ///
    /// # Errors
    ///
    /// If it is too long: names of fields without end, or too many samples.
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        let Self { verb, random, function, segment, size, free, samples } = self;
        let names = samples.iter().flat_map(|sample| &sample.fields);
        let dimensions = names.clone().map(|place| place.shape.len()).max().unwrap_or(0);
        let names = names.map(|place| place.name.len()).max().unwrap_or(0);
        let fields = samples.iter().map(|sample| sample.fields.len()).max().unwrap_or(0);
        let most = [free.len(), samples.len(), names, fields].into_iter().max().unwrap_or(0);
        if most > usize::from(u16::MAX) || dimensions > MOST_DIMENSIONS {
            return Err(nonsense("a sample of too many fields or dimensions"));
        }
        let mut out = vec![0; 4];
        out.push(match verb {
            Verb::Load => 1,
            Verb::Map => 2,
            Verb::Filter => 3,
        });
        out.push(u8::from(*random));
        out.extend(function.to_le_bytes());
        out.extend(segment.to_le_bytes());
        out.extend(size.to_le_bytes());
        out.extend((free.len() as u16).to_le_bytes());
        free.iter().for_each(|number| out.extend(number.to_le_bytes()));
        out.extend((samples.len() as u16).to_le_bytes());
        for Input { seed, fields } in samples {
            seed.iter().for_each(|part| out.extend(part.to_le_bytes()));
            put_places(&mut out, fields);
        }
        finish(out)
    }

    /// Reads a message, without its length.
    ///
    /// # Errors
    ///
    /// If it is not one.
    pub fn decode(bytes: &[u8]) -> io::Result<Self> {
        let mut reading = Reading(bytes);
        let verb = match reading.byte()? {
            1 => Verb::Load,
            2 => Verb::Map,
            3 => Verb::Filter,
            other => return Err(nonsense(format!("there is no verb {other}"))),
        };
        let random = match reading.byte()? {
            flag @ 0..=1 => flag == 1,
            other => return Err(nonsense(format!("there are no flags {other}"))),
        };
        let (function, segment) = (reading.four()?, reading.four()?);
        let (size, free) = (reading.eight()?, reading.numbers()?);
        let mut samples = Vec::new();
        for _ in 0..reading.two()? {
            let seed = [reading.eight()?, reading.eight()?];
            samples.push(Input { seed, fields: reading.places()? });
        }
        reading.end()?;
        Ok(Self { verb, random, function, segment, size, free, samples })
    }
}

impl Answer {
    /// The message, with its length before it.
    ///
    /// # Errors
    ///
    /// If it is too long.
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        let Self { segment, size, gone, outcomes } = self;
        let mut out = vec![0; 4];
        out.extend(segment.to_le_bytes());
        out.extend(size.to_le_bytes());
        out.extend((gone.len() as u16).to_le_bytes());
        gone.iter().for_each(|number| out.extend(number.to_le_bytes()));
        out.extend((outcomes.len() as u16).to_le_bytes());
        for outcome in outcomes {
            match outcome {
                Outcome::Sample(places) => {
                    out.push(0);
                    put_places(&mut out, places);
                }
                Outcome::Yes => out.push(1),
                Outcome::No => out.push(2),
                Outcome::Failed(text) => {
                    out.push(3);
                    out.extend((text.len() as u32).to_le_bytes());
                    out.extend(text.as_bytes());
                }
            }
        }
        finish(out)
    }

    /// Reads a message, without its length.
    ///
    /// # Errors
    ///
    /// If it is not one.
    pub fn decode(bytes: &[u8]) -> io::Result<Self> {
        let mut reading = Reading(bytes);
        let (segment, size, gone) = (reading.four()?, reading.eight()?, reading.numbers()?);
        let mut outcomes = Vec::new();
        for _ in 0..reading.two()? {
            outcomes.push(match reading.byte()? {
                0 => Outcome::Sample(reading.places()?),
                1 => Outcome::Yes,
                2 => Outcome::No,
                3 => {
                    let length = reading.four()? as usize;
                    let text = reading.take(length)?;
                    Outcome::Failed(String::from_utf8_lossy(text).into_owned())
                }
                other => return Err(nonsense(format!("there is no outcome {other}"))),
            });
        }
        reading.end()?;
        Ok(Self { segment, size, gone, outcomes })
    }
}

/// What is left of a message. Nothing is allocated that is larger than what was read.
struct Reading<'a>(&'a [u8]);

impl<'a> Reading<'a> {
    fn take(&mut self, count: usize) -> io::Result<&'a [u8]> {
        if count > self.0.len() {
            return Err(nonsense("a message that ends too early"));
        }
        let (taken, rest) = self.0.split_at(count);
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> io::Result<u8> {
        Ok(self.take(1)?[0])
    }

    fn two(&mut self) -> io::Result<u16> {
        let bytes = self.take(2)?;
        Ok(u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    fn four(&mut self) -> io::Result<u32> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().expect("four bytes were taken")))
    }

    fn eight(&mut self) -> io::Result<u64> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().expect("eight bytes were taken")))
    }

    fn numbers(&mut self) -> io::Result<Vec<u32>> {
        let count = usize::from(self.two()?);
        let bytes = self.take(count * 4)?;
        let number = |four: &[u8]| u32::from_le_bytes(four.try_into().expect("four bytes each"));
        Ok(bytes.chunks_exact(4).map(number).collect())
    }

    fn places(&mut self) -> io::Result<Vec<Place>> {
        let mut places: Vec<Place> = Vec::new();
        for _ in 0..self.two()? {
            let number = self.byte()?;
            let dtype = DType::numbered(number);
            let dtype = dtype.ok_or_else(|| nonsense(format!("there is no dtype {number}")))?;
            let dimensions = usize::from(self.byte()?);
            if dimensions > MOST_DIMENSIONS {
                return Err(nonsense(format!("{dimensions} dimensions")));
            }
            let letters = usize::from(self.two()?);
            let (offset, bytes) = (self.eight()?, self.eight()?);
            let mut shape = Shape::new();
            for _ in 0..dimensions {
                let side = usize::try_from(self.eight()?);
                shape.push(side.map_err(|_| nonsense("a side that is too long"))?);
            }
            let name = std::str::from_utf8(self.take(letters)?);
            let name = name.map_err(|_| nonsense("a name that is not UTF-8"))?.to_owned();
            let wanted = match dtype.size() {
                Some(size) => shape.iter().try_fold(size, |all, side| all.checked_mul(*side)),
                None if shape.is_empty() => usize::try_from(bytes).ok(),
                None => None,
            };
            if wanted.map(|wanted| wanted as u64) != Some(bytes) {
                return Err(nonsense(format!(
                    "field {name:?}: {dtype}{:?} in {bytes} bytes",
                    &shape[..]
                )));
            }
            if !offset.is_multiple_of(64) {
                return Err(nonsense(format!("field {name:?} at {offset}, no multiple of 64")));
            }
            if places.iter().any(|place| place.name == name) {
                return Err(nonsense(format!("field {name:?} comes twice")));
            }
            places.push(Place { name, dtype, shape, offset, bytes });
        }
        Ok(places)
    }

    fn end(&self) -> io::Result<()> {
        match self.0.len() {
            0 => Ok(()),
            left => Err(nonsense(format!("{left} bytes after the end of a message"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(name: &str) -> Place {
        let shape = Shape::from_slice(&[2, 3]);
        Place { name: name.into(), dtype: DType::F32, shape, offset: 128, bytes: 24 }
    }

    fn messages() -> (Request, Answer) {
        let text = Place { dtype: DType::Text, shape: Shape::new(), bytes: 5, ..place("text") };
        let samples = vec![Input { seed: [1, u64::MAX], fields: vec![place("x"), text] }];
        let request = Request {
            verb: Verb::Map,
            random: true,
            function: 7,
            segment: 3,
            size: 1 << 20,
            free: vec![1, 2],
            samples,
        };
        let outcomes = vec![
            Outcome::Sample(vec![place("é")]),
            Outcome::Yes,
            Outcome::No,
            Outcome::Failed("no\nlines".into()),
        ];
        (request, Answer { segment: 1, size: 0, gone: vec![9], outcomes })
    }

    #[test]
    fn messages_read_back_and_cut_ones_are_refused() {
        let (request, answer) = messages();
        let (asked, said) = (request.encode().unwrap(), answer.encode().unwrap());
        assert_eq!(Request::decode(&asked[4..]).unwrap(), request);
        assert_eq!(Answer::decode(&said[4..]).unwrap(), answer);
        assert_eq!(asked[..4], (asked.len() as u32 - 4).to_le_bytes());
        for length in 4..asked.len() {
            assert!(Request::decode(&asked[4..length]).is_err());
        }
        for length in 4..said.len() {
            assert!(Answer::decode(&said[4..length]).is_err());
        }
    }

    #[test]
    fn arrays_that_cannot_be_are_refused() {
        let wrong = [
            Place { bytes: 23, ..place("x") },
            Place { shape: Shape::from_slice(&[usize::MAX, 9]), ..place("x") },
            Place { offset: 8, ..place("x") },
            Place { dtype: DType::Text, ..place("x") },
        ];
        for place in wrong {
            let outcomes = vec![Outcome::Sample(vec![place])];
            let answer = Answer { segment: 0, size: 0, gone: vec![], outcomes };
            assert!(Answer::decode(&answer.encode().unwrap()[4..]).is_err());
        }
        let outcomes = vec![Outcome::Sample(vec![place("x"), place("x")])];
        let twice = Answer { segment: 0, size: 0, gone: vec![], outcomes };
        assert!(Answer::decode(&twice.encode().unwrap()[4..]).is_err());
    }

    #[test]
    fn a_message_without_end_is_not_sent() {
        let (mut request, mut answer) = messages();
        answer.outcomes = vec![Outcome::Failed("x".repeat(LONGEST))];
        assert!(answer.encode().is_err());
        request.samples = vec![Input { seed: [0; 2], fields: vec![place(&"x".repeat(70_000))] }];
        assert!(request.encode().is_err());
    }
}
