//! The boxes around the components of each sample's mask, found once and kept: in memory, and in a
//! file of the cache folder for the next run.
//!
//! ```text
//!  <cache>/feedline/boxes/<identity>.jsonl      one line a sample, appended as they are found
//! ```
//!
//! The identity names the data and the steps before, so a file never has to be thrown away. A line
//! that is torn or odd is passed over, and a folder that cannot be written means memory alone.

use crate::kernel::components::{Bounds, Largest};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{OpenOptions, create_dir_all};
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// The boxes of all samples seen so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Boxes {
    kept: Option<Arc<Kept>>,
}

/// What is kept says nothing about the step.
impl PartialEq for Boxes {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

#[derive(Debug)]
struct Kept {
    file: Option<PathBuf>,
    known: Mutex<HashMap<u64, Case>>,
}

/// The boxes of one sample, and the shape of the mask they were found in.
#[derive(Clone, Debug)]
struct Case {
    shape: [usize; 4],
    boxes: Arc<Largest>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    index: u64,
    shape: [usize; 4],
    classes: Vec<(i64, Vec<Bounds>)>,
}

impl Line {
    /// Whether the boxes can be those of a mask of this shape.
    fn is_sound(&self) -> bool {
        let inside = |bounds: &Bounds| {
            bounds
                .iter()
                .zip(self.shape)
                .all(|(side, extent)| side[0] < side[1] && side[1] <= extent)
        };
        self.classes.iter().all(|(class, boxes)| {
            *class > 0 && matches!(boxes.len(), 1 | 2) && boxes.iter().all(inside)
        })
    }
}

impl Boxes {
    /// Those of the data that `identity` names, or none that are kept.
    pub(crate) fn of(identity: Option<&str>) -> Self {
        let kept = identity.map(|identity| {
            let file = crate::keep::cache_folder()
                .map(|folder| folder.join("boxes").join(format!("{identity}.jsonl")));
            let text = file.as_ref().and_then(|file| std::fs::read(file).ok()).unwrap_or_default();
            let lines = text.split(|byte| *byte == b'\n');
            let known = lines
                .filter_map(|line| serde_json::from_slice::<Line>(line).ok())
                .filter(Line::is_sound)
                .map(|Line { index, shape, classes }| {
                    (index, Case { shape, boxes: Arc::new(classes.into_iter().collect()) })
                })
                .collect();
            Arc::new(Kept { file, known: Mutex::new(known) })
        });
        Self { kept }
    }

    /// The boxes of sample `index`, if they are known for a mask of this shape.
    pub(crate) fn get(&self, index: u64, shape: [usize; 4]) -> Option<Arc<Largest>> {
        let known = self.kept.as_ref()?.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&index).filter(|case| case.shape == shape).map(|case| Arc::clone(&case.boxes))
    }

    /// Keeps the boxes of sample `index`.
    pub(crate) fn keep(&self, index: u64, shape: [usize; 4], boxes: &Arc<Largest>) {
        let Some(kept) = &self.kept else { return };
        let case = Case { shape, boxes: Arc::clone(boxes) };
        kept.known.lock().unwrap_or_else(PoisonError::into_inner).insert(index, case);
        let classes = boxes.iter().map(|(class, boxes)| (*class, boxes.clone())).collect();
        let Ok(line) = serde_json::to_string(&Line { index, shape, classes }) else { return };
        let append = |file: &PathBuf| {
            create_dir_all(file.parent()?).ok()?;
            let mut file = OpenOptions::new().create(true).append(true).open(file).ok()?;
            // One write, so that lines of several processes do not mix; it begins anew after a line
            // that was torn.
            file.write_all(format!("\n{line}\n").as_bytes()).ok()
        };
        kept.file.as_ref().and_then(append);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sound_lines_are_believed() {
        let line =
            |text: &str| serde_json::from_str::<Line>(text).is_ok_and(|line| line.is_sound());
        let sound = r#"{"index":1,"shape":[1,4,4,4],"classes":[[2,[[[0,1],[0,2],[1,3],[0,4]]]]]}"#;
        assert!(line(sound));
        assert!(line(r#"{"index":1,"shape":[1,4,4,4],"classes":[]}"#));
        assert!(!line(&sound[..sound.len() - 3]));
        assert!(!line(&sound.replace("[0,2]", "[0,5]")));
        assert!(!line(&sound.replace("[0,2]", "[2,2]")));
        assert!(!line(&sound.replace("[[2,", "[[-2,")));
        assert!(!line(r#"{"index":1}"#));
    }

    #[test]
    fn nothing_is_kept_without_an_identity() {
        let boxes = Boxes::of(None);
        boxes.keep(0, [1; 4], &Arc::default());
        assert!(boxes.get(0, [1; 4]).is_none());
    }
}
