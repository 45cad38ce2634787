//! How fast one core can go: the W1 image pipeline (read, random resized crop, flip, normalise) in a bare loop.
//!
//! Nothing of Feedline but its decoder and its kernels runs here: no plan, no threads, no queues. What the engine yields
//! per core is compared with this.
//!
//! ```text
//! limit-w1 DIR [--mode full|crop] [--rounds N]
//! ```

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use feedline_ops::codec::{Decoder, Limits, Mode, probe};
use feedline_ops::kernel::{
    Filter, Level, Order, Rect, Resize, Scratch, Target, Tone, resize_into,
};

const SIDE: usize = 224;
const SLOTS: usize = 64;
const SLOT: usize = SIDE * SIDE * 3 * 4;

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    match run() {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("limit-w1: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<String, String> {
    let (mut folder, mut mode, mut rounds) = (None, "crop".to_string(), 5usize);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--mode" => mode = value()?,
            "--rounds" => {
                rounds = value()?.parse().map_err(|_| "--rounds takes a number".to_string())?
            }
            _ => folder = Some(PathBuf::from(argument)),
        }
    }
    let folder = folder.ok_or("usage: limit-w1 DIR [--mode full|crop] [--rounds N]")?;
    let mut files = Vec::new();
    list(&folder, &mut files).map_err(|error| format!("{}: {error}", folder.display()))?;
    files.sort();
    if files.is_empty() || rounds == 0 {
        return Err(format!("{}: no JPEG files to read", folder.display()));
    }
    let mut work: Box<dyn Work> = match mode.as_str() {
        "full" => Box::new(Full { decoder: Decoder::new() }),
        "crop" => Box::new(Crop::new()),
        other => return Err(format!("--mode is full or crop, not {other}")),
    };
    let (mut costs, mut rates) = (Vec::new(), Vec::new());
    // The first round fills caches and buffers, and is not counted.
    for round in 0..=rounds {
        // Every round draws the same crops, so that rounds can be compared.
        work.restart();
        let (clock, cpu) = (Instant::now(), cpu_time()?);
        for (index, file) in files.iter().enumerate() {
            work.image(index, file).map_err(|error| format!("{}: {error}", file.display()))?;
        }
        if round > 0 {
            let count = files.len() as f64;
            costs.push((cpu_time()? - cpu).as_secs_f64() * 1e3 / count);
            rates.push(count / clock.elapsed().as_secs_f64());
        }
    }
    costs.sort_by(f64::total_cmp);
    rates.sort_by(f64::total_cmp);
    Ok(format!(
        "{{\"bench\": \"limit-w1\", \"mode\": \"{mode}\", \"images\": {}, \"rounds\": {rounds}, \"level\": \"{:?}\", \
         \"cpu_ms_min\": {:.4}, \"cpu_ms_median\": {:.4}, \"images_per_s_max\": {:.1}, \"images_per_s_median\": {:.1}}}",
        files.len(),
        Level::best(),
        costs[0],
        costs[rounds / 2],
        rates[rounds - 1],
        rates[rounds / 2],
    ))
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let extension = path
            .extension()
            .and_then(|extension| extension.to_str())
            .unwrap_or("")
            .to_ascii_lowercase();
        if path.is_dir() {
            list(&path, files)?;
        } else if matches!(extension.as_str(), "jpg" | "jpeg") {
            files.push(path);
        }
    }
    Ok(())
}

trait Work {
    fn restart(&mut self) {}

    fn image(&mut self, index: usize, file: &Path) -> Result<(), Failure>;
}

/// Decodes all of every file.
struct Full {
    decoder: Decoder,
}

impl Work for Full {
    fn image(&mut self, _: usize, file: &Path) -> Result<(), Failure> {
        let bytes = std::fs::read(file)?;
        let header = probe(&bytes, &Limits::default())?;
        std::hint::black_box(self.decoder.decode_full(&bytes, &header, Mode::Rgb, true)?);
        Ok(())
    }
}

/// Decodes a random region, resizes it to 224 by 224, flips it half the time, and normalises.
struct Crop {
    decoder: Decoder,
    scratch: Scratch,
    random: Random,
    batch: Vec<u8>,
}

impl Crop {
    fn new() -> Self {
        // The slots are written once, so that their pages are there before the clock starts, and
        // start on a cache line, as those of a batch do.
        Self {
            decoder: Decoder::new(),
            scratch: Scratch::default(),
            random: Random(0x1234_5678),
            batch: vec![1; SLOTS * SLOT + 64],
        }
    }
}

impl Work for Crop {
    fn restart(&mut self) {
        self.random = Random(0x1234_5678);
    }

    fn image(&mut self, index: usize, file: &Path) -> Result<(), Failure> {
        let bytes = std::fs::read(file)?;
        let header = probe(&bytes, &Limits::default())?;
        let wanted = self.random.crop(header.width, header.height);
        let flip_horizontal = self.random.unit() < 0.5;
        let decoded = self.decoder.decode_region(&bytes, &header, Mode::Rgb, wanted)?;
        let region =
            Rect { x: wanted.x - decoded.region.x, y: wanted.y - decoded.region.y, ..wanted };
        let (mean, deviation) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
        let tone = Tone::Affine {
            scale: std::array::from_fn(|channel| (1.0 / (255.0 * deviation[channel])) as f32),
            bias: std::array::from_fn(|channel| (-mean[channel] / deviation[channel]) as f32),
        };
        let resize =
            Resize { height: SIDE, width: SIDE, filter: Filter::Bilinear, antialias: true };
        let aligned = self.batch.as_ptr().align_offset(64);
        let out = &mut self.batch[aligned + index % SLOTS * SLOT..][..SLOT];
        let target = Target { out, order: Order::Chw, tone, flip_horizontal, flip_vertical: false };
        resize_into(
            Level::best(),
            decoded.pixels,
            region,
            &resize,
            Rect::whole(SIDE, SIDE),
            target,
            &mut self.scratch,
        );
        Ok(())
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// torchvision's RandomResizedCrop: ten tries at an area of 8 to 100 % and a ratio of 3/4 to 4/3, then the centre.
    fn crop(&mut self, width: usize, height: usize) -> Rect {
        let (w, h) = (width as f64, height as f64);
        for _ in 0..10 {
            let area = w * h * self.between(0.08, 1.0);
            let ratio = self.between((3.0f64 / 4.0).ln(), (4.0f64 / 3.0).ln()).exp();
            let (crop_w, crop_h) =
                ((area * ratio).sqrt().round() as usize, (area / ratio).sqrt().round() as usize);
            if (1..=width).contains(&crop_w) && (1..=height).contains(&crop_h) {
                let x = (self.unit() * (width - crop_w + 1) as f64) as usize;
                let y = (self.unit() * (height - crop_h + 1) as f64) as usize;
                return Rect { x, y, width: crop_w, height: crop_h };
            }
        }
        let ratio = (w / h).clamp(3.0 / 4.0, 4.0 / 3.0);
        let crop_w = if w / h > ratio { (h * ratio).round() as usize } else { width };
        let crop_h = if w / h < ratio { (w / ratio).round() as usize } else { height };
        Rect { x: (width - crop_w) / 2, y: (height - crop_h) / 2, width: crop_w, height: crop_h }
    }
}

/// Time that this process, which has one thread, has spent on processors.
fn cpu_time() -> Result<Duration, String> {
    let path = "/proc/self/schedstat";
    let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    let nanos = text.split_whitespace().next().and_then(|number| number.parse().ok());
    nanos.map(Duration::from_nanos).ok_or_else(|| format!("{path}: starts with no number"))
}
