//! Which files belong together: patterns with one `*`, whose text is the key of a sample.

use feedline_core::{Entry, Error, Name, Result, Store};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A field of a sample, and which files hold it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileField {
    /// The field's name.
    pub name: Name,
    /// The files, relative to the folder: a name with one `*`, which stands for the sample's key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<String>,
    /// The type of its elements, as found in the files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<feedline_core::DType>,
    /// Its shape, as found in the files; null where they differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<Vec<feedline_core::Dim>>,
}

/// Reads fields in either spelling: `{"image": "*_x.npy"}`, or a list of [`FileField`].
pub(crate) fn either<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<FileField>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "fields are names with a pattern each: {\"image\": \"*_x.npy\"}")]
    enum Either {
        Patterns(BTreeMap<String, String>),
        Fields(Vec<FileField>),
    }
    Ok(Some(match Either::deserialize(deserializer)? {
        Either::Fields(fields) => fields,
        Either::Patterns(patterns) => patterns
            .into_iter()
            .map(|(name, files)| FileField {
                name: Name::new(&name),
                files: Some(files),
                dtype: None,
                shape: None,
            })
            .collect(),
    }))
}

/// A sample: its key, and the file of each field.
pub(crate) struct Case {
    pub key: Vec<u8>,
    pub files: Vec<usize>,
}

/// A pattern taken apart at its `*`.
struct Pattern<'a> {
    name: Name,
    before: &'a [u8],
    after: &'a [u8],
}

impl<'a> Pattern<'a> {
    fn new(step: &str, name: Name, text: &'a str) -> Result<Self> {
        match text.split_once('*') {
            Some((before, after)) if !after.contains('*') => {
                Ok(Self { name, before: before.as_bytes(), after: after.as_bytes() })
            }
            _ => Err(Error::pipeline(format!(
                "{step}: the pattern {text:?} of field {name} needs exactly one *, which stands for \
                 the sample's key"
            ))),
        }
    }

    /// What the `*` stands for in `path`, if the path is of this kind.
    fn key<'b>(&self, path: &'b [u8]) -> Option<&'b [u8]> {
        let key = path.strip_prefix(self.before)?.strip_suffix(self.after)?;
        (!key.is_empty()).then_some(key)
    }

    fn file(&self, key: &[u8]) -> String {
        let name = [self.before, key, self.after].concat();
        String::from_utf8_lossy(&name).into_owned()
    }
}

/// A file's name inside the folder.
pub(crate) fn inside<'a>(root: &Path, path: &'a Path) -> &'a [u8] {
    path.strip_prefix(root).unwrap_or(path).as_os_str().as_bytes()
}

/// Whether a file, or a folder on the way to it, is hidden.
pub(crate) fn is_hidden(root: &Path, path: &Path) -> bool {
    inside(root, path).split(|byte| *byte == b'/').any(|part| part.starts_with(b"."))
}

/// Whether a file's name ends like this, in letters of any size.
pub(crate) fn ends_with(path: &Path, end: &str) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().to_ascii_lowercase());
    name.is_some_and(|name| name.ends_with(end))
}

/// The files below a folder whose names end in one of these ways.
///
/// # Errors
///
/// If there are none; `what` says what they would be.
pub(crate) fn list(
    store: &dyn Store,
    root: &Path,
    what: &str,
    ends: [&str; 2],
) -> Result<Vec<Entry>> {
    let listed = store.list(root)?;
    let total = listed.len();
    let fits = |entry: &Entry| ends.iter().any(|end| ends_with(&entry.path, end));
    let entries: Vec<Entry> =
        listed.into_iter().filter(|e| !is_hidden(root, &e.path) && fits(e)).collect();
    if entries.is_empty() {
        let found = match total {
            0 => "it is empty".to_owned(),
            _ => format!("none of its {total} files is called *{} or *{}", ends[0], ends[1]),
        };
        return Err(Error::Source(format!("no {what} in {}: {found}", root.display())));
    }
    Ok(entries)
}

/// The fields' patterns, if they have some.
pub(crate) fn patterns(fields: Option<&[FileField]>) -> Option<Vec<(Name, &str)>> {
    fields?.iter().map(|field| Some((field.name, field.files.as_deref()?))).collect()
}

/// Checks names and patterns of fields alone.
///
/// # Errors
///
/// If one is given twice or is no pattern.
pub(crate) fn check(step: &str, fields: &[FileField]) -> Result<()> {
    for (at, field) in fields.iter().enumerate() {
        if fields[..at].iter().any(|other| other.name == field.name) {
            return Err(Error::pipeline(format!("{step}: {} is given twice", field.name)));
        }
        if let Some(files) = &field.files {
            Pattern::new(step, field.name, files)?;
        }
    }
    if fields.is_empty() {
        return Err(Error::pipeline(format!(
            "{step}: fields is empty; leave it out, or name some"
        )));
    }
    Ok(())
}

/// Sorts files into samples by the patterns of the fields. A file that fits several patterns belongs
/// to the one that says most about its name.
///
/// # Errors
///
/// If a file lacks its counterpart, or there are none.
pub(crate) fn cases(
    step: &str,
    root: &Path,
    entries: &[Entry],
    fields: &[(Name, &str)],
) -> Result<Vec<Case>> {
    let patterns: Vec<Pattern<'_>> =
        fields.iter().map(|(name, text)| Pattern::new(step, *name, text)).collect::<Result<_>>()?;
    let mut found: BTreeMap<&[u8], Vec<Option<usize>>> = BTreeMap::new();
    for (number, entry) in entries.iter().enumerate() {
        let name = inside(root, &entry.path);
        let best = patterns
            .iter()
            .enumerate()
            .filter_map(|(at, pattern)| Some((at, pattern, pattern.key(name)?)))
            .max_by_key(|(at, pattern, _)| {
                (pattern.before.len() + pattern.after.len(), std::cmp::Reverse(*at))
            });
        if let Some((at, _, key)) = best {
            found.entry(key).or_insert_with(|| vec![None; patterns.len()])[at] = Some(number);
        }
    }
    if found.is_empty() {
        let wanted: Vec<&str> = fields.iter().map(|field| field.1).collect();
        return Err(Error::Source(format!(
            "no samples in {}: none of its {} files is called {}",
            root.display(),
            entries.len(),
            wanted.join(" or ")
        )));
    }
    let whole = |(key, files): (&[u8], Vec<Option<usize>>)| {
        let missing = files.iter().position(Option::is_none);
        if let (Some(missing), Some(there)) = (missing, files.iter().flatten().next()) {
            let pattern = &patterns[missing];
            return Err(Error::Source(format!(
                "{} has no counterpart {} for field {}",
                entries[*there].path.display(),
                pattern.file(key),
                pattern.name
            )));
        }
        Ok(Case { key: key.to_vec(), files: files.into_iter().flatten().collect() })
    };
    found.into_iter().map(whole).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(names: &[&str]) -> Vec<Entry> {
        let entry = |name: &&str| Entry { path: Path::new("d").join(name), size: 0, modified: 0 };
        names.iter().map(entry).collect()
    }

    #[test]
    fn files_are_paired_by_key_and_the_narrower_pattern_wins() {
        let files = entries(&["a.npy", "a_y.npy", "b/c.npy", "b/c_y.npy", "notes.txt"]);
        let fields = [(Name::new("x"), "*.npy"), (Name::new("y"), "*_y.npy")];
        let found = cases("npy", Path::new("d"), &files, &fields).unwrap();
        let found: Vec<_> = found.into_iter().map(|case| (case.key, case.files)).collect();
        assert_eq!(found, [(b"a".to_vec(), vec![0, 1]), (b"b/c".to_vec(), vec![2, 3])]);
    }

    #[test]
    fn a_missing_counterpart_is_named() {
        let files = entries(&["1/i.npy", "1/s.npy", "2/i.npy"]);
        let fields = [(Name::new("x"), "*/i.npy"), (Name::new("y"), "*/s.npy")];
        let error = cases("npy", Path::new("d"), &files, &fields).err().unwrap().to_string();
        assert_eq!(error, "d/2/i.npy has no counterpart 2/s.npy for field y");
        let none = cases("npy", Path::new("d"), &files, &[(Name::new("x"), "*.nii")]);
        assert!(none.err().unwrap().to_string().contains("none of its 3 files"));
    }
}
