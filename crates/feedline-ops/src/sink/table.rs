//! The table of a saved pipeline: what its shards are, and what they were made of.

use feedline_core::{Error, Result, Store};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The file that holds the table, in the folder of the shards.
pub const TABLE: &str = "feedline.json";

/// The version of the table's form.
const VERSION: u32 = 1;
/// No table is longer.
const LARGEST: u64 = 1 << 30;

/// How the places of an epoch are cut into shards, and what they belong to. Shard `k` holds what
/// places `k * shard_places` and on give, `shard_places` of them or as many as are left.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// The version of this form.
    pub feedline_save: u32,
    /// Whether all shards are there.
    pub complete: bool,
    /// Number of shards.
    pub shards: u64,
    /// Places of each shard but the last.
    pub shard_places: u64,
    /// Places of each record batch but the last of a shard.
    pub batch_places: u64,
    /// Places of all shards.
    pub places: u64,
    /// The seed of all random choices.
    pub seed: u64,
    /// The epoch that is saved.
    pub epoch: u64,
    /// The plan, in its text form.
    pub plan: String,
    /// The plan's fingerprint.
    pub fingerprint: String,
    /// What index i of the source means.
    pub manifest: String,
    /// Rows of all shards, once it is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<u64>,
    /// Bytes of all shards, once it is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Bad samples that were left out, once it is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<Vec<Skipped>>,
}

/// A bad sample that was left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// Its place in the epoch.
    pub place: u64,
    /// Its index in the source.
    pub index: u64,
    /// Where it lies.
    pub origin: String,
    /// What is wrong with it.
    pub reason: String,
}

/// The name of shard `number`.
#[must_use]
pub fn shard_name(number: u64) -> String {
    format!("shard-{number:06}.arrow")
}

impl Table {
    /// The version that is written.
    pub const VERSION: u32 = VERSION;

    /// The table as text.
    ///
    /// # Errors
    ///
    /// If it cannot be written as JSON, which would be a fault of this release.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string_pretty(self)
            .map(|text| text + "\n")
            .map_err(|error| Error::Internal(format!("a table that is no JSON: {error}")))
    }

    /// Reads a table. `what` names it.
    ///
    /// # Errors
    ///
    /// If it is none, of another version, or its numbers do not fit each other.
    pub fn from_json(text: &str, what: &str) -> Result<Self> {
        let none = |error: String| {
            Error::Source(format!("{what} is no table of a saved pipeline: {error}"))
        };
        let value: serde_json::Value =
            serde_json::from_str(text).map_err(|error| none(error.to_string()))?;
        if let Some(version) = value.get("feedline_save").filter(|version| **version != VERSION) {
            return Err(Error::Source(format!(
                "{what} is of version {version}; this release reads version {VERSION}"
            )));
        }
        let table: Self = serde_json::from_value(value).map_err(|error| none(error.to_string()))?;
        let Self { shards, shard_places, batch_places, places, .. } = table;
        let fits = shard_places > 0
            && (1..=1 << 24).contains(&batch_places)
            && shard_places.is_multiple_of(batch_places)
            && shards == places.div_ceil(shard_places).max(1)
            && shards < 1_000_000;
        if !fits {
            return Err(none(format!(
                "{places} places in {shards} shards of {shard_places} do not fit each other"
            )));
        }
        Ok(table)
    }

    /// The table of a folder, if it has one.
    ///
    /// # Errors
    ///
    /// As [`Table::from_json`], or if it cannot be read.
    pub fn of_folder(store: &dyn Store, folder: &Path) -> Result<Self> {
        let path = folder.join(TABLE);
        let entry = store.stat(&path)?;
        if entry.size > LARGEST {
            return Err(Error::Source(format!("{} is too large for a table", path.display())));
        }
        let bytes = crate::source::read_piece(store, &path, 0, entry.size as usize)?;
        let text = String::from_utf8_lossy(&bytes);
        Self::from_json(&text, &path.display().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        Table {
            feedline_save: VERSION,
            complete: false,
            shards: 4,
            shard_places: 6,
            batch_places: 3,
            places: 20,
            seed: 1,
            epoch: 2,
            plan: "range count=20".into(),
            fingerprint: "f".into(),
            manifest: "m".into(),
            rows: None,
            bytes: None,
            skipped: None,
        }
    }

    #[test]
    fn a_table_reads_back() {
        let mut given = table();
        for _ in 0..2 {
            assert_eq!(Table::from_json(&given.to_json().unwrap(), "t").unwrap(), given);
            given.skipped = Some(vec![Skipped {
                place: 3,
                index: 4,
                origin: "a.jpg".into(),
                reason: "damaged".into(),
            }]);
            (given.rows, given.bytes, given.complete) = (Some(19), Some(100), true);
        }
    }

    #[test]
    fn tables_that_cannot_be_are_refused() {
        let read = |table: &Table| Table::from_json(&table.to_json().unwrap(), "t.json");
        for wrong in [
            Table { shards: 5, ..table() },
            Table { shard_places: 0, ..table() },
            Table { batch_places: 0, ..table() },
            Table { batch_places: 4, ..table() },
            Table { batch_places: 1 << 40, shard_places: 1 << 40, shards: 1, ..table() },
            Table { places: u64::MAX, shards: u64::MAX.div_ceil(6), ..table() },
        ] {
            assert!(read(&wrong).unwrap_err().to_string().contains("t.json is no table"));
        }
        let later = read(&Table { feedline_save: 2, ..table() }).unwrap_err().to_string();
        assert!(later.contains("version 2"), "{later}");
        for text in ["", "{}", "[]", "{\"complete\": 3}", "\u{0}"] {
            assert!(Table::from_json(text, "t").is_err());
        }
    }
}
