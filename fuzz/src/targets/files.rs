//! Files of all formats, read as a pipeline reads them.

use crate::runner::{came_to, ended};
use feedline_core::{Attempt, Blobs, Entry, Error, Extent, Result, Store};
use feedline_ops::Pipeline;
use feedline_ops::codec::{Decoder, Limits, Mode, probe};
use feedline_ops::plain::{Part, Plain};
use feedline_plan::Plan;
use feedline_testkit::{Fixtures, encode_jpeg, encode_with};
use image::ImageFormat;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A store of one file.
#[derive(Debug)]
pub(crate) struct Memory {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl Memory {
    /// A store of one file without bytes.
    pub(crate) fn empty() -> Self {
        Self { path: "/memory/none".into(), bytes: Vec::new() }
    }

    fn entry(&self) -> Entry {
        Entry { path: self.path.clone(), size: self.bytes.len() as u64, modified: 1 }
    }
}

impl Store for Memory {
    fn list(&self, root: &Path) -> Result<Vec<Entry>> {
        match self.path.starts_with(root) {
            true => Ok(vec![self.entry()]),
            false => Err(Error::Source(format!("{} is not there", root.display()))),
        }
    }

    fn stat(&self, path: &Path) -> Result<Entry> {
        self.list(path).map(|_| self.entry())
    }

    fn read(&self, extent: Extent<'_>, out: &mut [u8]) -> Result<()> {
        let bytes = usize::try_from(extent.offset).ok().and_then(|from| self.bytes.get(from..));
        match bytes.and_then(|bytes| bytes.get(..out.len())) {
            Some(bytes) => out.copy_from_slice(bytes),
            None => return Err(Error::record("the file ends before")),
        }
        Ok(())
    }

    fn try_read(&self, extent: Extent<'_>, out: &mut [u8]) -> Result<Attempt> {
        self.read(extent, out).map(|()| Attempt::Done)
    }
}

/// Reads a file's first samples through each of these pipelines.
fn read(name: &str, bytes: &[u8], plans: &[&str]) {
    let path = format!("/memory/{name}");
    for plan in plans {
        let store = Memory { path: PathBuf::from(&path), bytes: bytes.to_vec() };
        let text = plan.replace("$FILE", &path);
        let plan: Plan = text.parse().expect("the plan is right");
        let Some(pipeline) = ended(Pipeline::open(&plan, &store, &Blobs::new())) else { continue };
        let plain = Plain::new(Arc::new(pipeline), Arc::new(store), Part::default());
        for batch in plain.take(4) {
            let Some(batch) = ended(batch) else { break };
            came_to(format!("{} rows", batch.rows > 0));
        }
    }
}

/// All files below the folder of this name.
fn files(folder: &str, ending: &str) -> Vec<Vec<u8>> {
    let fixtures = Fixtures::new();
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::from(fixtures.expand(folder))];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(folder).expect("the folder is there");
        for path in entries.map(|entry| entry.expect("it can be read").path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.to_string_lossy().ends_with(ending) {
                found.push(std::fs::read(&path).expect("the file is there"));
            }
        }
    }
    found.sort();
    found
}

/// A NumPy array.
pub fn npy(input: &[u8]) {
    read("a.npy", input, &["npy path=$FILE", "npy path=$FILE rows=true"]);
}

/// Arrays of all types.
pub fn npy_corpus() -> Vec<Vec<u8>> {
    files("$ARRAYS", ".npy")
}

/// An archive of NumPy arrays.
pub fn npz(input: &[u8]) {
    read("a.npz", input, &["npy path=$FILE", "npy path=$FILE fields={\"x\":\"*.npz\"}"]);
}

/// Archives, stored and deflated.
pub fn npz_corpus() -> Vec<Vec<u8>> {
    files("$NPZ", ".npz")
}

/// A scan.
pub fn nifti(input: &[u8]) {
    read("a.nii", input, &["nifti path=$FILE", "nifti path=$FILE channel=true"]);
}

/// Masks, and scans that were unpacked.
pub fn nifti_corpus() -> Vec<Vec<u8>> {
    files("$NIFTI", ".nii")
}

/// A packed scan.
pub fn nifti_gz(input: &[u8]) {
    read("a.nii.gz", input, &["nifti path=$FILE"]);
}

/// Packed scans.
pub fn nifti_gz_corpus() -> Vec<Vec<u8>> {
    files("$NIFTI", ".nii.gz")
}

/// An Arrow file.
pub fn arrow(input: &[u8]) {
    read("a.arrow", input, &["arrow path=$FILE", "arrow path=$FILE | batch size=2"]);
}

/// Arrow files of all sorts of columns.
pub fn arrow_corpus() -> Vec<Vec<u8>> {
    [files("$ARROW", "a.arrow"), files("$ARROW", "c.arrow"), files("$ARROWIMAGES", ".arrow")]
        .concat()
}

/// A picture: what it says of itself, and its pixels if they are few.
pub fn picture(input: &[u8]) {
    let Some(header) = ended(probe(input, &Limits::default())) else { return };
    came_to(format!("{:?} {}", header.format, header.progressive));
    if header.width * header.height > 1 << 16 {
        return;
    }
    let mut decoder = Decoder::new();
    let _ = ended(decoder.decode_full(input, &header, Mode::Rgb, false));
}

/// Small pictures of every format.
pub fn picture_corpus() -> Vec<Vec<u8>> {
    use feedline_ops::codec::Subsampling;
    let formats = [
        ImageFormat::Png,
        ImageFormat::Bmp,
        ImageFormat::Gif,
        ImageFormat::Tiff,
        ImageFormat::WebP,
    ];
    let mut corpus: Vec<Vec<u8>> =
        formats.iter().map(|format| encode_with(1, 9, 7, *format)).collect();
    for sampling in [Subsampling::S420, Subsampling::S444] {
        corpus.push(encode_jpeg(2, 17, 9, sampling));
    }
    corpus
}
