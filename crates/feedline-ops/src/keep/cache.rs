//! Keeps samples as they are at this point, so that the steps before it need not be done again.

use crate::Step;
use crate::order::parse_bytes;
use crate::registry::IntoStep;
use feedline_core::{Error, Result};
use feedline_plan::Recipe;
use serde::{Deserialize, Deserializer, Serialize};
use std::path::PathBuf;

/// Keeps samples as they are at this point: in memory, on a disk, or both. It admits samples until it is
/// full and gives none up, since each is used once an epoch. What comes out is the same with and without
/// it, so it may stand anywhere before the first step that makes random choices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cache {
    /// Bytes of memory, such as `"4GB"`; `"0"` for none. Without it and without `disk`: a quarter of the
    /// machine's memory.
    #[serde(default, deserialize_with = "size", skip_serializing_if = "Option::is_none")]
    pub ram: Option<String>,
    /// Bytes of disk, such as `"200GB"`, for all that the folder holds.
    #[serde(default, deserialize_with = "size", skip_serializing_if = "Option::is_none")]
    pub disk: Option<String>,
    /// The folder on the disk. By default one in the user's cache folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// Which samples are kept if there is no room for all.
    #[serde(default)]
    pub admit: Admit,
    /// Addresses of all hosts that share what they keep, such as `["a:7071","b:7071"]`, the same list on
    /// all of them. Each sample is kept by one of them, and the others ask it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<String>,
}

/// Which samples are kept if there is no room for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Admit {
    /// Any, with equal chances.
    #[default]
    Uniform,
    /// Those that save most time for each byte.
    Cost,
}

/// A number of bytes, as a text or as a number.
fn size<'de, D: Deserializer<'de>>(given: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a number of bytes, such as \"4GB\"")]
    enum Size {
        Number(u64),
        Text(String),
    }
    Ok(Some(match Size::deserialize(given)? {
        Size::Number(bytes) => bytes.to_string(),
        Size::Text(text) => text,
    }))
}

impl Recipe for Cache {
    const NAME: &'static str = "cache";
}

impl IntoStep for Cache {
    fn into_step(self) -> Step {
        Step::Cache(self)
    }
}

impl Cache {
    /// Checks the recipe alone.
    ///
    /// # Errors
    ///
    /// If a number of bytes is none.
    pub fn check(&self) -> Result<()> {
        self.ram_bytes()?;
        if self.disk_bytes()?.is_none_or(|bytes| bytes == 0) && self.path.is_some() {
            return Err(Error::pipeline(
                "cache: path is for samples on a disk; say how many bytes it may take, as \
                 disk=200GB",
            ));
        }
        if self.ram_bytes()? == Some(0) && self.disk_bytes()?.is_none_or(|bytes| bytes == 0) {
            return Err(Error::pipeline(
                "cache: there is room for nothing; give bytes of ram or of disk",
            ));
        }
        Ok(())
    }

    /// Bytes of memory, if the plan says it.
    ///
    /// # Errors
    ///
    /// If that is no number of bytes.
    pub fn ram_bytes(&self) -> Result<Option<u64>> {
        bytes("ram", self.ram.as_deref())
    }

    /// Bytes of disk, if the plan says it.
    ///
    /// # Errors
    ///
    /// If that is no number of bytes.
    pub fn disk_bytes(&self) -> Result<Option<u64>> {
        bytes("disk", self.disk.as_deref())
    }
}

fn bytes(name: &str, text: Option<&str>) -> Result<Option<u64>> {
    match text {
        None => Ok(None),
        Some("0") => Ok(Some(0)),
        Some(text) => parse_bytes(text)
            .map(Some)
            .map_err(|error| Error::pipeline(format!("cache: {name}: {error}"))),
    }
}
