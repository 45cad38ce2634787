//! A plain loader, as most training scripts have one: to compare with, and not slowed down.
//!
//! ```text
//!  thread 1  ── batch 0, 2, 4 … ──► queue of 2 ──┐
//!  thread 2  ── batch 1, 3, 5 … ──► queue of 2 ──┴──► in turn ──► consumer
//! ```
//!
//! Each thread prepares whole batches: read a file, decode all of it, crop and resize, mirror, make floats
//! of it channel by channel, normalise; at last the samples are copied into their batch. The decoder
//! and the resize are Feedline's own, with its vector instructions.

use anyhow::{Context, Result};
use feedline_core::Draws;
use feedline_ops::codec::{Decoder, Limits, Mode, probe};
use feedline_ops::kernel::{
    Filter, Level, Order, Rect, Resize, Scratch, Target, Tone, resize_into,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Batches that each thread prepares ahead.
const AHEAD: usize = 2;

/// What becomes of each image.
#[derive(Clone, Copy)]
pub(super) struct Recipe {
    pub(super) side: usize,
    pub(super) batch: usize,
    pub(super) mean: [f32; 3],
    pub(super) std: [f32; 3],
}

/// A batch: pixels, and a label for each image.
pub(super) struct Batch {
    pub(super) images: Vec<f32>,
    pub(super) labels: Vec<i64>,
}

/// A running loader. Dropping it ends its threads.
pub(super) struct Loader {
    queues: Vec<Receiver<Result<Batch>>>,
    turn: usize,
    threads: Vec<JoinHandle<()>>,
}

impl Loader {
    /// Starts loading these files, whose class is their folder, epoch after epoch.
    pub(super) fn start(
        folder: &Path,
        classes: &[&str],
        threads: usize,
        recipe: Recipe,
    ) -> Result<Self> {
        let mut files = Vec::new();
        for (label, class) in (0..).zip(classes) {
            for entry in std::fs::read_dir(folder.join(class))? {
                files.push((entry?.path(), label));
            }
        }
        files.sort();
        let files = Arc::new(files);
        let mut this = Self { queues: Vec::new(), turn: 0, threads: Vec::new() };
        for number in 0..threads {
            let (sender, queue) = sync_channel(AHEAD);
            let worker = Worker {
                files: Arc::clone(&files),
                recipe,
                next: number as u64,
                threads: threads as u64,
                decoder: Decoder::new(),
                scratch: Scratch::default(),
                order: (u64::MAX, Vec::new()),
            };
            this.threads.push(std::thread::spawn(move || worker.work(&sender)));
            this.queues.push(queue);
        }
        Ok(this)
    }

    /// The next batch, in order.
    pub(super) fn next(&mut self) -> Result<Batch> {
        let queue = &self.queues[self.turn];
        self.turn = (self.turn + 1) % self.queues.len();
        queue.recv().context("a thread of the plain loader ended")?
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        // A thread ends when it cannot hand its batch over.
        self.queues.clear();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

struct Worker {
    files: Arc<Vec<(PathBuf, i64)>>,
    recipe: Recipe,
    /// The next batch, counted over all epochs.
    next: u64,
    threads: u64,
    decoder: Decoder,
    scratch: Scratch,
    /// An epoch and the order of its samples.
    order: (u64, Vec<usize>),
}

impl Worker {
    fn work(mut self, queue: &SyncSender<Result<Batch>>) {
        loop {
            let batch = self.batch();
            let failed = batch.is_err();
            if queue.send(batch).is_err() || failed {
                return;
            }
            self.next += self.threads;
        }
    }

    fn batch(&mut self) -> Result<Batch> {
        let Recipe { batch, .. } = self.recipe;
        let per_epoch = (self.files.len() / batch).max(1) as u64;
        let (epoch, number) = (self.next / per_epoch, (self.next % per_epoch) as usize);
        if self.order.0 != epoch {
            self.order = (epoch, shuffled(self.files.len(), epoch));
        }
        let chosen: Vec<usize> =
            self.order.1.iter().copied().skip(number * batch).take(batch).collect();
        let mut samples = Vec::new();
        for index in chosen {
            let mut draws = Draws::from_key(epoch, index as u64);
            let (path, label) = self.files[index].clone();
            let image = self.sample(&path, &mut draws);
            samples.push((image.with_context(|| path.display().to_string())?, label));
        }
        let mut images = Vec::with_capacity(samples.iter().map(|(image, _)| image.len()).sum());
        samples.iter().for_each(|(image, _)| images.extend_from_slice(image));
        Ok(Batch { images, labels: samples.iter().map(|(_, label)| *label).collect() })
    }

    /// One image, one pass after the other.
    fn sample(&mut self, path: &Path, draws: &mut Draws) -> Result<Vec<f32>> {
        let Recipe { side, mean, std, .. } = self.recipe;
        let bytes = std::fs::read(path)?;
        let header = probe(&bytes, &Limits::default())?;
        let decoded = self.decoder.decode_full(&bytes, &header, Mode::Rgb, false)?;

        let part = crop(header.width, header.height, draws);
        let mut small = vec![0; side * side * 3];
        resize_into(
            Level::best(),
            decoded.pixels,
            part,
            &Resize { height: side, width: side, filter: Filter::Bilinear, antialias: true },
            Rect::whole(side, side),
            Target {
                out: &mut small,
                order: Order::Hwc,
                tone: Tone::Identity,
                flip_horizontal: false,
                flip_vertical: false,
            },
            &mut self.scratch,
        );

        if draws.chance(0.5) {
            for row in small.chunks_exact_mut(side * 3) {
                row.as_chunks_mut::<3>().0.reverse();
            }
        }

        let mut planes = vec![0.0; side * side * 3];
        for (channel, plane) in planes.chunks_exact_mut(side * side).enumerate() {
            for (value, pixel) in plane.iter_mut().zip(small.as_chunks::<3>().0) {
                *value = f32::from(pixel[channel]) / 255.0;
            }
        }

        for (channel, plane) in planes.chunks_exact_mut(side * side).enumerate() {
            for value in plane {
                *value = (*value - mean[channel]) / std[channel];
            }
        }
        Ok(planes)
    }
}

/// All indices below `count` in an order of their own each epoch.
fn shuffled(count: usize, epoch: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    let mut draws = Draws::from_key(epoch, u64::MAX);
    for last in (1..count).rev() {
        order.swap(last, draws.below(last as u64 + 1) as usize);
    }
    order
}

/// A part of 8 to 100 % of the area, between 3:4 and 4:3, as `random_resized_crop` draws it.
fn crop(width: usize, height: usize, draws: &mut Draws) -> Rect {
    let (log_low, log_high) = ((3.0f64 / 4.0).ln(), (4.0f64 / 3.0).ln());
    for _ in 0..10 {
        let area = (width * height) as f64 * draws.between(0.08, 1.0);
        let ratio = draws.between(log_low, log_high).exp();
        let (w, h) =
            ((area * ratio).sqrt().round() as usize, (area / ratio).sqrt().round() as usize);
        if (1..=width).contains(&w) && (1..=height).contains(&h) {
            let x = draws.below((width - w) as u64 + 1) as usize;
            let y = draws.below((height - h) as u64 + 1) as usize;
            return Rect { x, y, width: w, height: h };
        }
    }
    Rect::whole(width, height)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_come_in_order_and_each_file_once_an_epoch() {
        let folder = tempfile::tempdir().unwrap();
        super::super::photos::make(folder.path(), 10, 2, || {}).unwrap();
        let recipe = Recipe { side: 16, batch: 2, mean: [0.5; 3], std: [0.25; 3] };
        let load = |threads| {
            let classes = &super::super::photos::CLASSES;
            let mut loader = Loader::start(folder.path(), classes, threads, recipe).unwrap();
            let mut labels = Vec::new();
            for _ in 0..5 {
                let batch = loader.next().unwrap();
                assert_eq!(batch.images.len(), 2 * 3 * 16 * 16);
                labels.extend(batch.labels);
            }
            labels
        };
        let one = load(1);
        assert_eq!(load(3), one);
        let mut sorted = one;
        sorted.sort_unstable();
        assert_eq!(sorted, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]);
    }
}
