//! A new order every epoch, in constant memory.

use crate::registry::step;
use feedline_core::{
    Before, Blobs, Cursor, Error, Length, Order, OrderRun, Permutation, Result, Source, StepId,
    TwoLevel,
};
use serde::{Deserialize, Serialize};

/// Shuffles the whole epoch, anew each epoch; or, with `within`, shuffles blocks of neighbours and
/// then samples within groups of blocks, so that reads stay near each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shuffle {
    /// Names the order; every seed gives another.
    #[serde(default)]
    pub seed: u64,
    /// How much is shuffled together: bytes of stored data (`"256MB"`) or a number of samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<Within>,
}

/// A number of samples, or of bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "within is a number of samples, or bytes such as \"256MB\"")]
pub enum Within {
    /// So many samples.
    Samples(u64),
    /// So many bytes, as `"256MB"` or `"1GiB"`.
    Bytes(String),
}

step!(Shuffle, "shuffle", Order);

impl Order for Shuffle {
    fn check(&self) -> Result<()> {
        match &self.within {
            Some(Within::Samples(0)) => Err(Error::pipeline("shuffle: within=0 shuffles nothing")),
            Some(Within::Bytes(text)) => parse_bytes(text)
                .map(|_| ())
                .map_err(|e| Error::pipeline(format!("shuffle: within: {e}"))),
            _ => Ok(()),
        }
    }

    fn bind(
        &self,
        source: &dyn Source,
        _: &Blobs,
        before: &Before<'_>,
        step: StepId,
    ) -> Result<Box<dyn OrderRun>> {
        self.check()?;
        let Length::Finite(length) = before.length else {
            return Err(Error::pipeline(
                "shuffle: the order before it goes round for ever; shuffle before repeat",
            ));
        };
        if length > 1 << 60 {
            return Err(Error::pipeline(format!("shuffle: {length} places are more than 2^60")));
        }
        let samples = match &self.within {
            None => None,
            Some(Within::Samples(samples)) => Some(*samples),
            Some(Within::Bytes(text)) => {
                let bytes = parse_bytes(text).map_err(Error::pipeline)?;
                let Some(stored) = source.stored_bytes() else {
                    return Err(Error::pipeline(format!(
                        "shuffle: within={text}: this source does not know the bytes of its \
                         samples; give a number of samples"
                    )));
                };
                let each = (stored as f64 / source.length().max(1) as f64).max(1.0);
                Some(((bytes as f64 / each) as u64).max(1))
            }
        };
        let levels = samples.filter(|samples| *samples < length).map(|samples| {
            let block = if source.block() > 1 { source.block() } else { samples.div_ceil(16) };
            (block, samples.div_ceil(block).max(1))
        });
        Ok(Box::new(ShuffleRun { length, seed: self.seed, step, levels }))
    }
}

/// Reads `"256MB"`, `"1.5GiB"`, `"4096"` as a number of bytes.
///
/// # Errors
///
/// If it is not of that form.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = (text[..split].trim(), text[split..].trim());
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1000,
        "m" | "mb" => 1_000_000,
        "g" | "gb" => 1_000_000_000,
        "t" | "tb" => 1_000_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        _ => return Err(format!("{text:?} is no number of bytes; write it as 512MB or 1.5GiB")),
    };
    match number.parse::<f64>() {
        Ok(value) if value > 0.0 && value * factor as f64 <= 1e18 => {
            Ok((value * factor as f64) as u64)
        }
        _ => Err(format!("{text:?} is no number of bytes; write it as 512MB or 1.5GiB")),
    }
}

struct ShuffleRun {
    length: u64,
    seed: u64,
    step: StepId,
    /// Samples in a block and blocks in a group.
    levels: Option<(u64, u64)>,
}

impl OrderRun for ShuffleRun {
    fn length(&self) -> Length {
        Length::Finite(self.length)
    }

    fn at(&self, place: u64, visit: u64, cursor: &mut Cursor) -> (u64, u64) {
        let key = cursor.seed.order_key(self.step, self.seed, visit);
        let length = self.length;
        let Some((block, group_size)) = self.levels else {
            let order = cursor.permutation(self.step, 0, key, || Permutation::new(length, key));
            return (order.index(place), visit);
        };
        let levels = TwoLevel::new(length, block, group_size, key);
        let group = levels.group_of(place);
        let group_key = key ^ group.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let within = cursor.permutation(self.step, 1, group_key, || levels.within(group));
        (levels.index(place, group, within), visit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_with_their_units() {
        assert_eq!(parse_bytes("256MB"), Ok(256_000_000));
        assert_eq!(parse_bytes("1.5 GiB"), Ok(3 << 29));
        assert_eq!(parse_bytes("4096"), Ok(4096));
        for wrong in ["", "MB", "-1GB", "0", "12 parsecs", "nan", "1e300GB"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
    }
}
