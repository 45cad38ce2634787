//! A list of files, with labels or without: from a CSV file, or handed over by a program.

use super::images::FileList;
use crate::registry::step;
use feedline_core::{
    Blobs, DType, Entry, Error, Field, Name, Result, Source, SourceRecipe, Spec, Store, is_url,
    place,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Files in the order in which they are listed, where a file may be listed more than once; or all files
/// below a folder, or of names with braces, in byte order of their names.
///
/// Fields: `field` (the bytes), and `label` if there are labels. Labels that are not whole numbers
/// are names of classes, numbered in byte order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Files {
    /// A folder, or names with braces such as `x-{000..127}.bin`; or URLs of either.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "super::maybe_place"
    )]
    pub path: Option<PathBuf>,
    /// A CSV file with one file a line, `path` or `path,label`; a first line that says `path` or
    /// `path,label` is a heading. Paths that are not absolute are taken from the list's folder. List and
    /// files may be URLs.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "super::maybe_place"
    )]
    pub list: Option<PathBuf>,
    /// The same list, handed over with the plan: the hash of its lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blob: Option<String>,
    /// Whether the list has labels.
    #[serde(default)]
    pub labels: bool,
    /// What to call the field with the bytes.
    #[serde(default = "data")]
    pub field: Name,
}

fn data() -> Name {
    Name::new("data")
}

step!(Files, "files", Source);

impl SourceRecipe for Files {
    fn spec(&self) -> Result<Spec> {
        let given = [self.path.is_some(), self.list.is_some(), self.blob.is_some()];
        if given.iter().filter(|given| **given).count() != 1 {
            return Err(Error::pipeline(
                "files: give path=FOLDER, or list=FILE.csv, or hand a list over",
            ));
        }
        if self.labels && self.path.is_some() {
            return Err(Error::pipeline("files: labels=true goes with a list; path has none"));
        }
        if self.labels && self.field == "label" {
            return Err(Error::pipeline(
                "files: field=label is the name of the labels; choose another",
            ));
        }
        let mut fields = vec![Field::new(self.field, DType::Bytes, &[])];
        if self.labels {
            fields.push(Field::new("label", DType::I64, &[]));
        }
        Ok(Spec::new(fields))
    }

    fn open(&self, store: &dyn Store, blobs: &Blobs) -> Result<Arc<dyn Source>> {
        if let Some(path) = &self.path {
            let entries = store.list(path)?;
            if entries.is_empty() {
                return Err(Error::Source(format!("there are no files in {}", path.display())));
            }
            let field = self.field.as_str();
            return Ok(Arc::new(FileList::new(path, entries, None, Vec::new(), field)));
        }
        let (text, folder, what) = match (&self.list, &self.blob) {
            (Some(list), _) => {
                let entry = store.stat(list)?;
                let mut text = feedline_core::BufferMut::new(entry.size as usize);
                let extent = feedline_core::Extent {
                    path: list,
                    offset: 0,
                    length: entry.size,
                    whole: true,
                    modified: entry.modified,
                };
                store.read(extent, &mut text)?;
                let folder = list.parent().unwrap_or(Path::new("")).to_owned();
                (text.freeze(), folder, list.display().to_string())
            }
            (None, Some(blob)) => {
                let list = blobs.get(blob).cloned().ok_or_else(|| missing(blob))?;
                (list.into_buffer(), PathBuf::new(), "the list of files".to_owned())
            }
            (None, None) => return Err(Error::pipeline("files: there is no list")),
        };
        if text.contains(&0) {
            return Err(Error::Source(format!(
                "{what} is no list of files: it holds bytes that are no text"
            )));
        }
        let mut rows = parse(&text, self.labels, &what)?;
        let at = |line: usize, error: Error| match error {
            // Another try may help, and whoever asked may want to know.
            Error::Unavailable { .. } => error,
            error => Error::Source(format!("{what}, entry {}: {error}", line + 1)),
        };
        let mut paths = Vec::with_capacity(rows.len());
        for (line, (path, _)) in rows.iter().enumerate() {
            let path = Path::new(OsStr::from_bytes(path));
            let path = if is_url(path) { path.to_owned() } else { folder.join(path) };
            paths.push(place(path).map_err(|error| at(line, error))?);
        }
        let mut entries: Vec<Entry> = Vec::with_capacity(rows.len());
        for (line, entry) in store.stat_all(&paths).into_iter().enumerate() {
            entries.push(entry.map_err(|error| at(line, error))?);
        }
        if entries.is_empty() {
            return Err(Error::Source(format!("{what} is empty")));
        }
        let (mut labels, mut classes) = (None, Vec::new());
        if self.labels {
            let texts: Vec<Vec<u8>> =
                rows.iter_mut().map(|row| std::mem::take(&mut row.1)).collect();
            let numbers: Option<Vec<i64>> = texts
                .iter()
                .map(|text| std::str::from_utf8(text).ok()?.trim().parse().ok())
                .collect();
            labels = Some(numbers.unwrap_or_else(|| {
                let mut known: BTreeMap<&[u8], i64> = BTreeMap::new();
                known.extend(texts.iter().map(|text| (&text[..], 0)));
                known.values_mut().enumerate().for_each(|(at, label)| *label = at as i64);
                classes =
                    known.keys().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
                texts.iter().map(|text| known[&text[..]]).collect()
            }));
        }
        let field = self.field.as_str();
        Ok(Arc::new(FileList::new(&folder, entries, labels, classes, field)))
    }
}

pub(crate) fn missing(blob: &str) -> Error {
    Error::Source(format!(
        "the plan needs data that was not handed over with it (blob {}); open the plan with the \
         program that made it, or save it with its blobs",
        &blob[..blob.len().min(12)]
    ))
}

/// A file's path and its label, as bytes.
type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// Lines of a CSV: `path` or `path,label`, with RFC 4180 quotes around either.
fn parse(text: &[u8], labels: bool, what: &str) -> Result<Entries> {
    let mut rows = Vec::new();
    let mut rest = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let mut number = 0;
    while !rest.is_empty() {
        number += 1;
        let (cells, after) = split_line(rest, !labels).ok_or_else(|| {
            Error::Source(format!("{what}, line {number}: a quote is not closed"))
        })?;
        rest = after;
        let wanted = 1 + usize::from(labels);
        if cells.iter().all(Vec::is_empty) {
            continue;
        }
        if number == 1 && cells[0].eq_ignore_ascii_case(b"path") {
            continue;
        }
        if cells.len() != wanted {
            let form = if labels { "path,label" } else { "path" };
            return Err(Error::Source(format!(
                "{what}, line {number}: {} columns where {form} was expected",
                cells.len()
            )));
        }
        let mut cells = cells.into_iter();
        rows.push((cells.next().unwrap_or_default(), cells.next().unwrap_or_default()));
    }
    Ok(rows)
}

/// The cells of the first line, and what comes after it. Without labels a comma is part of the
/// path unless it is quoted.
fn split_line(text: &[u8], one_cell: bool) -> Option<(Vec<Vec<u8>>, &[u8])> {
    let (mut cells, mut cell, mut quoted, mut at) = (Vec::new(), Vec::new(), false, 0);
    while at < text.len() {
        match text[at] {
            b'"' if quoted && text.get(at + 1) == Some(&b'"') => {
                cell.push(b'"');
                at += 1;
            }
            b'"' if quoted => quoted = false,
            b'"' if cell.is_empty() => quoted = true,
            b',' if !quoted && !one_cell => cells.push(std::mem::take(&mut cell)),
            b'\n' if !quoted => {
                at += 1;
                break;
            }
            byte => cell.push(byte),
        }
        at += 1;
    }
    if cell.last() == Some(&b'\r') {
        cell.pop();
    }
    cells.push(cell);
    (!quoted).then_some((cells, &text[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_with_headings_quotes_and_odd_line_ends() {
        let text = b"path,label\r\n\"a,b.jpg\",cat\r\n\nc \"d\".jpg,dog";
        let rows = parse(text, true, "x").unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let rows: Vec<_> = rows.iter().map(|(path, label)| (text(path), text(label))).collect();
        assert_eq!(rows, [("a,b.jpg".into(), "cat".into()), ("c \"d\".jpg".into(), "dog".into())]);
        assert_eq!(parse(b"a,b.jpg\n", false, "x").unwrap()[0].0, b"a,b.jpg");
    }

    #[test]
    fn broken_lists_are_named_with_their_line() {
        let error = |text: &[u8]| parse(text, true, "list.csv").unwrap_err().to_string();
        assert!(error(b"a,1\nb\n").contains("list.csv, line 2"));
        assert!(error(b"\"a,1\n").contains("quote"));
        assert!(error(b"a,1,2\n").contains("3 columns"));
    }
}
