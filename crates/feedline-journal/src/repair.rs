//! Making a damaged journal usable again, without throwing anything away.

use crate::disk::{Disk, RealDisk, write_all};
use crate::error::{Error, Result};
use crate::folder::{Folder, sync};
use crate::format::Header;
use crate::survey::Survey;
use crate::{Options, Position};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a repair did.
#[derive(Clone, Debug, PartialEq)]
pub struct Repaired {
    /// The position after the last record that was kept.
    pub end: Position,
    /// How many records that are known to have been there were lost.
    pub lost: u64,
    /// What was moved aside: files whose names end in `.damaged`.
    pub aside: Vec<PathBuf>,
}

/// Keeps what comes before the first damage and moves the rest aside, into files whose names end in
/// `.damaged`. A folder without damage is left as it is.
///
/// ```text
///   journal-0.log   journal-80.log   journal-200.log         80 … 119 can be read
///                   ▓▓▓▓▓▓▓░░░░░░░
///   journal-0.log   journal-80.log   journal-80.log.damaged  journal-200.log.damaged
/// ```
///
/// If the newest snapshot is damaged and no older one is left, nothing can be used without it, and
/// the journal is empty afterwards.
///
/// # Errors
///
/// If the journal is open, a file was written by a newer release or is foreign, or the disk fails.
pub fn repair(folder: impl AsRef<Path>, options: &Options) -> Result<Repaired> {
    repair_on(Arc::new(RealDisk), folder, options)
}

/// [`repair`] on any disk.
///
/// # Errors
///
/// As [`repair`].
pub fn repair_on(
    disk: Arc<dyn Disk>,
    folder: impl AsRef<Path>,
    options: &Options,
) -> Result<Repaired> {
    let folder = Folder::new(disk, folder.as_ref());
    let lock = folder.lock()?;
    let survey = Survey::read(&folder, options.version, &mut |_| Ok(()))?;
    let (end, generation) = (survey.end(), survey.generation.max(lock.generation));
    let Some(damage) = survey.damage else {
        return Ok(Repaired { end: Position(end), lost: 0, aside: Vec::new() });
    };
    // The generation must go on growing, also if the files that prove it are moved aside.
    lock.sign(generation)?;
    lock.sync()?;
    let mut moved = Vec::new();
    // The part is saved before anything else is done: until the very end the folder is either
    // damaged still, or all that was not kept lies aside.
    if let Some((path, offset)) = &damage.cut {
        let bytes = folder.disk.read(path).map_err(|error| Error::disk("read", path, error))?;
        let aside = free_name(&folder, path)?;
        let copied = folder.disk.create(&aside).and_then(|file| {
            write_all(&*file, 0, &bytes[*offset as usize..])?;
            sync(&*file)
        });
        copied.map_err(|error| Error::disk("write", &aside, error))?;
        moved.push(aside);
    }
    // From the last on, so that what is left is never without its beginning.
    for path in damage.aside.iter().rev() {
        let aside = free_name(&folder, path)?;
        let renamed = folder.disk.rename(path, &aside);
        renamed.map_err(|error| Error::disk("rename", path, error))?;
        moved.push(aside);
    }
    let synced = folder.sync_names();
    synced.map_err(|error| Error::disk("write", &folder.path, error))?;
    if let Some((path, offset)) = &damage.cut {
        let cut = folder.disk.open(path).and_then(|file| {
            file.set_length(*offset)?;
            sync(&*file)
        });
        cut.map_err(|error| Error::disk("cut", path, error))?;
    }
    if survey.segments.is_empty() && survey.snapshot.is_some() {
        let header = Header::segment(options.version, generation, end);
        let created = folder.create_segment(&header);
        created.map_err(|error| Error::disk("write", &folder.segment(end), error))?;
    }
    Ok(Repaired { end: Position(end), lost: damage.end.saturating_sub(end), aside: moved })
}

/// A name for what is moved aside that no file has yet.
fn free_name(folder: &Folder, path: &Path) -> Result<PathBuf> {
    let names = folder.disk.list(&folder.path);
    let names = names.map_err(|error| Error::disk("list", &folder.path, error))?;
    let name = path.file_name().expect("a file of the journal has a name").to_string_lossy();
    let first = format!("{name}.damaged");
    let others = (2..).map(|number| format!("{name}.{number}.damaged"));
    let free = std::iter::once(first).chain(others).find(|name| !names.contains(name));
    Ok(folder.path.join(free.expect("the numbers do not end")))
}
