//! Tiny data sets that come out the same on every machine.

use feedline_core::{Blobs, Buffer, DType, Element, Field, Host, Layout, Spec, Tensor};
use feedline_ops::codec::{self, Subsampling};
use feedline_ops::sink::{ArrowWriter, Table, shard_name};
use feedline_plan::Fingerprint;
use image::{DynamicImage, ImageBuffer, ImageFormat};
use std::any::Any;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

/// A temporary folder of small data, and the names by which pipelines call it.
///
/// | name | what |
/// |---|---|
/// | `$IMAGES` | three classes, some images nested, every format, odd sizes |
/// | `$FLAT` | four JPEGs without classes |
/// | `$BAD` | six images, of which 1, 3 and 4 are damaged |
/// | `$LIST`, `$LABELLED`, `$NAMED` | CSV lists: without labels, with numbers, with names |
/// | `$TINY` | arrays: 4 grey images of 2×3 pixels, and `label` |
/// | `$COLOURS` | arrays: 3 images of 1×2 pixels in RGB |
/// | `$SQUARES` | arrays: 6 RGB images of 7×5 pixels, and `label` |
/// | `$TABLE` | arrays: `x` (5×2 float32), `y` (int64), `b` (uint8) |
/// | `$TEXTS` | arrays: `text` and `n` |
/// | `$WEIGHTS` | weights for the rows of `$TINY` |
/// | `$SCANS` | five cases of `*_x.npy` (float32) and `*_y.npy` (uint8), 1×D×H×W, sizes differ |
/// | `$ARRAYS` | one `.npy` of every kind: types, byte orders, Fortran's order, empty, one number |
/// | `$NPZ` | three archives of `x` and `y`, of which the last is compressed |
/// | `$ROWS` | two files of 3 and 2 rows of 2×2 numbers |
/// | `$NIFTI` | three scans with masks, `*/image.nii.gz` and `*/mask.nii` |
/// | `$BADSCANS` | four cases `*/x.npy`, `*/y.npy`: sound, too small, of two sizes, with odd numbers |
/// | `$ARROW` | two Arrow files of 3 and 2 rows: numbers, tensors, lists, bytes, text, truth values |
/// | `$ARROWIMAGES` | an Arrow file of 4 RGB images of 7×5 pixels, and `label` |
/// | `$HALFSAVED` | a folder that was being saved: 2 of its 3 shards are there |
/// | `$DOUBLE`, `$JITTER`, `$EVEN` … | functions on whole numbers in the field `index` |
/// | `$TMP` | an empty folder to write to |
pub struct Fixtures {
    folder: TempDir,
    /// Arrays by their hash.
    pub blobs: Blobs,
    names: Vec<(&'static str, String)>,
    /// Runs the functions of `$DOUBLE` and others, in test binaries that can be started as hosts.
    pub host: Arc<dyn Host>,
    /// Keeps its processes from one run to the next.
    _hold: Box<dyn Any + Send + Sync>,
}

/// The colour at a place of picture `seed`: smooth, with a little texture, different per picture.
fn colour(seed: usize, x: usize, y: usize) -> [u8; 3] {
    let noise = (x * 7 + y * 13 + seed * 5) % 11;
    let red = (x * 6 + seed * 31) % 256;
    let green = (y * 5 + seed * 17 + noise) % 256;
    let blue = ((x + y) * 4 + seed * 53) % 256;
    [red, green, blue].map(|value| value as u8)
}

/// RGB pixels of picture `seed`.
#[must_use]
pub fn pixels(seed: usize, width: usize, height: usize) -> Vec<u8> {
    (0..height).flat_map(|y| (0..width).flat_map(move |x| colour(seed, x, y))).collect()
}

/// Picture `seed` as a JPEG.
///
/// # Panics
///
/// If it cannot be encoded.
#[must_use]
pub fn encode_jpeg(seed: usize, width: usize, height: usize, subsampling: Subsampling) -> Vec<u8> {
    codec::encode_jpeg(&pixels(seed, width, height), width, height, 90, subsampling)
        .expect("a small picture can be encoded")
}

/// Picture `seed` in any format of the `image` crate.
///
/// # Panics
///
/// If it cannot be encoded.
#[must_use]
pub fn encode_with(seed: usize, width: usize, height: usize, format: ImageFormat) -> Vec<u8> {
    let buffer = ImageBuffer::from_raw(width as u32, height as u32, pixels(seed, width, height));
    let picture = DynamicImage::ImageRgb8(buffer.expect("as many bytes as pixels ask for"));
    let mut out = Cursor::new(Vec::new());
    picture.write_to(&mut out, format).expect("a small picture can be encoded");
    out.into_inner()
}

impl Fixtures {
    /// Writes everything into a new temporary folder, which is removed with this value.
    ///
    /// # Panics
    ///
    /// If that fails.
    #[must_use]
    pub fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("feedline-test-").tempdir();
        let folder = folder.expect("a temporary folder can be made");
        let host: Arc<dyn Host> = Arc::new(crate::test_hosts());
        let hold = host.hold(0);
        let mut this = Self { folder, blobs: Blobs::new(), names: Vec::new(), host, _hold: hold };
        this.images();
        this.lists();
        this.arrays();
        this.scans();
        this.lengths();
        this.arrow();
        this.functions();
        std::fs::create_dir(this.path("tmp")).expect("a folder can be made");
        this.names.push(("$TMP", this.text("tmp")));
        // The longest first, so that no name is taken for the beginning of another.
        this.names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        this
    }

    /// A path in the temporary folder.
    #[must_use]
    pub fn path(&self, inside: &str) -> PathBuf {
        self.folder.path().join(inside)
    }

    fn text(&self, inside: &str) -> String {
        self.path(inside).to_str().expect("temporary folders have plain names").to_owned()
    }

    /// Writes a file in the temporary folder, making the folders above it.
    ///
    /// # Panics
    ///
    /// If that fails.
    pub fn write(&self, inside: impl AsRef<Path>, bytes: &[u8]) -> PathBuf {
        let path = self.folder.path().join(inside);
        let parent = path.parent().expect("a file lies in a folder");
        std::fs::create_dir_all(parent).expect("folders can be made");
        std::fs::write(&path, bytes).expect("a file can be written");
        path
    }

    /// Adds an array, and returns the name by which a plan calls it.
    pub fn add(&mut self, tensor: Tensor) -> String {
        // As the package for Python names it.
        let mut named = Vec::new();
        let offsets = (0..).map_while(|index| tensor.offset(index));
        let offsets: Vec<u8> = offsets.flat_map(|at| (at as u64).to_le_bytes()).collect();
        let shape = if offsets.is_empty() { tensor.shape() } else { &[] };
        named.extend(format!("{}{shape:?}", tensor.dtype()).bytes());
        named.extend_from_slice(tensor.data());
        named.extend(offsets);
        let name = Fingerprint::of(&named).to_string()[..32].to_owned();
        self.blobs.insert(name.clone(), tensor);
        name
    }

    /// Adds an array as a field of the `arrays` source: its JSON.
    pub fn field(&mut self, name: &str, tensor: Tensor, layout: Option<&str>) -> String {
        let (dtype, shape) = (tensor.dtype(), tensor.shape().to_vec());
        let blob = self.add(tensor);
        let layout = layout.map_or(String::new(), |layout| format!(r#","layout":"{layout}""#));
        format!(
            r#"{{"name":"{name}","blob":"{blob}","dtype":"{dtype}","shape":{shape:?}{layout}}}"#
        )
    }

    /// Replaces `$NAMES` by what they stand for.
    #[must_use]
    pub fn expand(&self, plan: &str) -> String {
        self.names.iter().fold(plan.to_owned(), |text, (name, value)| text.replace(name, value))
    }

    /// The other way round, so that messages do not name the temporary folder.
    #[must_use]
    pub fn hide(&self, text: &str) -> String {
        let mut values: Vec<_> = self.names.iter().filter(|(_, value)| value.len() > 8).collect();
        values.sort_by_key(|(_, value)| std::cmp::Reverse(value.len()));
        let hidden =
            values.iter().fold(text.to_owned(), |text, (name, value)| text.replace(value, name));
        hidden.replace(self.folder.path().to_str().unwrap_or("\0"), "$ROOT")
    }

    fn functions(&mut self) {
        for (name, line) in [
            ("$DOUBLE", "double index"),
            ("$JITTER", "jitter index"),
            ("$EVEN", "even index"),
            ("$NOTHING", "nothing index"),
            ("$COUNT", "count index"),
            ("$SAME", "same label"),
            ("$FAIL", "fail index"),
            ("$EXIT", "exit index"),
            ("$HANG", "hang index"),
            ("$NOISE", "noise index"),
            ("$HUGE", "huge index"),
            ("$HALF", "half index"),
            ("$OUTSIDE", "outside index"),
            ("$REFUSE", "refuse index"),
        ] {
            let code = self.add(Tensor::bytes(Buffer::from(line.as_bytes())));
            self.names.push((name, code));
        }
    }

    fn images(&mut self) {
        use Subsampling::{Gray, S420, S444};
        let jpegs: [(&str, usize, usize, Subsampling); 9] = [
            ("images/ant/0.jpg", 37, 29, S420),
            ("images/ant/1.jpg", 23, 31, S444),
            ("images/bee/0.jpeg", 33, 21, Gray),
            ("images/cat/2.JPG", 40, 40, S420),
            ("flat/a.jpg", 16, 12, S444),
            ("flat/b.jpg", 12, 16, S420),
            ("flat/c.jpg", 9, 9, Gray),
            ("flat/d.jpg", 31, 8, S420),
            ("bad/0.jpg", 20, 20, S444),
        ];
        for (seed, (path, width, height, subsampling)) in jpegs.into_iter().enumerate() {
            self.write(path, &encode_jpeg(seed, width, height, subsampling));
        }
        let others = [
            ("images/ant/2.png", 17, 19, ImageFormat::Png),
            ("images/bee/deep/1.webp", 16, 16, ImageFormat::WebP),
            ("images/bee/2.BMP", 9, 15, ImageFormat::Bmp),
            ("images/cat/0.gif", 12, 10, ImageFormat::Gif),
            ("images/cat/1.tiff", 21, 11, ImageFormat::Tiff),
        ];
        for (seed, (path, width, height, format)) in others.into_iter().enumerate() {
            self.write(path, &encode_with(seed + 20, width, height, format));
        }
        self.write("images/ant/notes.txt", b"no image");
        let whole = encode_jpeg(40, 20, 20, Subsampling::S444);
        // Header and upper half are there, the lower half is not.
        let cut = encode_jpeg(42, 64, 64, Subsampling::S444);
        self.write("bad/1.jpg", &cut[..cut.len() * 3 / 4]);
        self.write("bad/2.jpg", &whole);
        self.write("bad/3.jpg", b"");
        self.write("bad/4.jpg", b"this is text");
        self.write("bad/5.png", &encode_with(41, 20, 20, ImageFormat::Png));
        for (name, folder) in [("$IMAGES", "images"), ("$FLAT", "flat"), ("$BAD", "bad")] {
            self.names.push((name, self.text(folder)));
        }
    }

    fn lists(&mut self) {
        self.write("list.csv", b"flat/b.jpg\nflat/a.jpg\nflat/b.jpg\n");
        self.write("labelled.csv", b"path,label\nflat/a.jpg,7\nflat/c.jpg,-2\n\"flat/d.jpg\",7\n");
        self.write("named.csv", b"flat/a.jpg,zebra\nflat/b.jpg,ape\nflat/c.jpg,zebra\n");
        for (name, file) in
            [("$LIST", "list.csv"), ("$LABELLED", "labelled.csv"), ("$NAMED", "named.csv")]
        {
            self.names.push((name, self.text(file)));
        }
    }

    fn arrays(&mut self) {
        let tiny: Vec<u8> = (0..4u8).flat_map(|row| (0..6).map(move |at| row * 10 + at)).collect();
        let fields = [
            self.field("image", Tensor::from_slice(&[4, 2, 3, 1], &tiny), Some("HWC")),
            self.field("label", Tensor::from_slice(&[4], &[0i64, 1, 1, 2]), None),
        ];
        self.name("$TINY", &fields);
        let colours: [u8; 18] =
            [255, 0, 0, 0, 255, 0, 0, 0, 255, 255, 255, 255, 128, 128, 128, 10, 200, 90];
        let fields =
            [self.field("image", Tensor::from_slice(&[3, 1, 2, 3], &colours), Some("HWC"))];
        self.name("$COLOURS", &fields);
        let squares: Vec<u8> = (0..6).flat_map(|seed| pixels(seed, 5, 7)).collect();
        let fields = [
            self.field("image", Tensor::from_slice(&[6, 7, 5, 3], &squares), Some("HWC")),
            self.field("label", Tensor::from_slice(&[6], &[0i32, 1, 2, 0, 1, 2]), None),
        ];
        self.name("$SQUARES", &fields);
        let x: Vec<f32> = (0..10u8).map(|at| f32::from(at) * 0.75 - 2.0).collect();
        let fields = [
            self.field("x", Tensor::from_slice(&[5, 2], &x), None),
            self.field("y", Tensor::from_slice(&[5], &[3i64, -1, 0, 300, 2]), None),
            self.field("b", Tensor::from_slice(&[5], &[0u8, 255, 1, 128, 2]), None),
        ];
        self.name("$TABLE", &fields);
        let words = ["one", "", "drei", "ünf"];
        let mut offsets = vec![0u64];
        offsets.extend(words.iter().scan(0, |end, word| {
            *end += word.len() as u64;
            Some(*end)
        }));
        let text = Buffer::from(words.concat().as_bytes());
        let text = Tensor::ragged(DType::Text, text, &offsets).expect("offsets rise");
        let fields =
            [self.field("text", text, None), self.field("n", column(&[1i64, 2, 3, 4]), None)];
        self.name("$TEXTS", &fields);
        let weights = self.add(column(&[0.0f64, 1.0, 0.0, 3.0]));
        self.names.push(("$WEIGHTS", weights));
    }

    fn scans(&mut self) {
        use crate::volumes::{first_fastest, gzip, little, mask, nifti, npy, npz, scan};
        let sizes = [[6, 7, 8], [9, 5, 6], [5, 5, 5], [7, 6, 9], [5, 8, 6]];
        for (seed, size) in sizes.into_iter().enumerate() {
            let shape = [1, size[0], size[1], size[2]];
            let image = npy("<f4", false, &shape, &little(&scan(seed, size)));
            // The third case has nothing to find.
            let found = if seed == 2 { vec![0; 125] } else { mask(seed, size) };
            self.write(format!("scans/case_{seed}_x.npy"), &image);
            self.write(format!("scans/case_{seed}_y.npy"), &npy("|u1", false, &shape, &found));
        }
        self.write("scans/.hidden_x.npy", b"nothing");
        type Kind = (&'static str, &'static str, bool, &'static [usize], &'static [u8]);
        let kinds: [Kind; 9] = [
            ("a_f4", "<f4", false, &[2], &[0, 0, 128, 63, 0, 0, 0, 192]),
            ("b_f4_big", ">f4", false, &[2], &[63, 128, 0, 0, 192, 0, 0, 0]),
            ("c_i2_big", ">i2", false, &[3], &[0, 1, 255, 254, 1, 0]),
            ("d_fortran", "|u1", true, &[2, 3], &[1, 4, 2, 5, 3, 6]),
            ("e_bool", "|b1", false, &[2], &[1, 0]),
            ("f_f2", "<f2", false, &[1], &[0, 60]),
            ("g_empty", "<f8", false, &[0, 3], &[]),
            ("h_one", "<i8", false, &[], &[7, 0, 0, 0, 0, 0, 0, 0]),
            ("i_fortran_big", ">u2", true, &[2, 2], &[0, 1, 0, 3, 0, 2, 0, 4]),
        ];
        for (name, descr, fortran, shape, data) in kinds {
            self.write(format!("arrays/{name}.npy"), &npy(descr, fortran, shape, data));
        }
        for seed in 0..3 {
            let size = [4, 5, 6];
            let members = [
                ("x.npy", npy("<f4", false, &size, &little(&scan(seed, size)))),
                ("y.npy", npy("|i1", seed == 1, &size, &first_fastest(&mask(seed, size), size))),
            ];
            self.write(format!("npz/{seed}.npz"), &npz(&members, seed == 2));
        }
        let rows: Vec<u8> = (0..20u8).collect();
        self.write("rows/a.npy", &npy("|u1", false, &[3, 2, 2], &rows[..12]));
        self.write("rows/b.npy", &npy("|u1", true, &[2, 2, 2], &rows[12..]));
        for (seed, size) in [[4, 5, 6], [5, 4, 3], [6, 6, 2]].into_iter().enumerate() {
            let values = first_fastest(&scan(seed, size), size);
            let whole: Vec<u8> =
                values.iter().flat_map(|value| (*value as i16).to_le_bytes()).collect();
            let found = first_fastest(&mask(seed, size), size);
            let spacing = [1.0 + seed as f32, 0.8, 2.4];
            let image = nifti((4, 16), &size, spacing, (0.5, -10.0), &whole);
            self.write(format!("nifti/{seed}/image.nii.gz"), &gzip(&image));
            let label = nifti((2, 8), &size, spacing, (1.0, 0.0), &found);
            self.write(format!("nifti/{seed}/mask.nii"), &label);
        }
        let size = [6, 6, 6];
        let image = npy("<f4", false, &size, &little(&scan(0, size)));
        let label = npy("|u1", false, &size, &mask(0, size));
        let small = npy("<f4", false, &[3, 6, 6], &little(&scan(1, [3, 6, 6])));
        let narrow = npy("|u1", false, &[3, 6, 6], &mask(1, [3, 6, 6]));
        let odd = scan(3, size).into_iter().enumerate();
        let odd: Vec<f32> = odd.map(|(at, v)| if at % 7 == 0 { f32::NAN } else { v }).collect();
        let cases = [
            (&image, &label),
            (&small, &narrow),
            (&image, &narrow),
            (&npy("<f4", false, &size, &little(&odd)), &label),
        ];
        for (number, (image, label)) in cases.into_iter().enumerate() {
            self.write(format!("badscans/{number}/x.npy"), image);
            self.write(format!("badscans/{number}/y.npy"), label);
        }
        for (name, folder) in [
            ("$SCANS", "scans"),
            ("$ARRAYS", "arrays"),
            ("$NPZ", "npz"),
            ("$ROWS", "rows"),
            ("$NIFTI", "nifti"),
            ("$BADSCANS", "badscans"),
        ] {
            self.names.push((name, self.text(folder)));
        }
    }

    /// Samples of several lengths: tokens, frames of two numbers of other lengths, and a label.
    fn lengths(&mut self) {
        use crate::volumes::{little, npy};
        let lengths = [3, 1, 7, 2, 12, 4, 5, 0, 9, 2, 3, 6, 20, 1, 4, 8, 3, 2, 5, 11, 4, 3, 15];
        for (number, length) in lengths.into_iter().enumerate() {
            let tokens: Vec<u8> =
                (0..length).flat_map(|at| (number as i32 * 100 + at).to_le_bytes()).collect();
            let tokens = npy("<i4", false, &[length as usize], &tokens);
            self.write(format!("lengths/{number:02}_t.npy"), &tokens);
            let frames = 1 + number % 3;
            let values: Vec<f32> = (0..2 * frames).map(|at| at as f32 + 0.5).collect();
            let values = npy("<f4", false, &[frames, 2], &little(&values));
            self.write(format!("lengths/{number:02}_f.npy"), &values);
            let label = npy("<i8", false, &[], &(number as i64 % 6).to_le_bytes());
            self.write(format!("lengths/{number:02}_y.npy"), &label);
        }
        let folder = self.text("lengths");
        self.names.push(("$LENGTHS", folder));
        let fields = r#"{"tokens":"*_t.npy","label":"*_y.npy"}"#;
        self.names.push(("$TOKENS", fields.to_owned()));
    }

    fn arrow(&mut self) {
        let spec = Spec::new(vec![
            Field::new("n", DType::I64, &[]),
            Field::new("x", DType::F32, &[Some(2), Some(2)]),
            Field::new("tokens", DType::U16, &[None]),
            Field::new("map", DType::I8, &[None, Some(2)]),
            Field::new("text", DType::Text, &[]),
            Field::new("data", DType::Bytes, &[]),
            Field::new("flag", DType::Bool, &[]),
            Field::new("mask", DType::Bool, &[Some(3)]),
            Field::new("half", DType::BF16, &[]),
        ]);
        let truth = |shape: &[usize], values: &[u8]| {
            Tensor::new(DType::Bool, shape, Buffer::from(values)).expect("a byte each")
        };
        let row = |n: u8| {
            let x: Vec<f32> = (0..4u8).map(|at| f32::from(n) + f32::from(at) / 4.0).collect();
            let tokens: Vec<u16> = (0..u16::from(n) % 4).map(|at| at * 300).collect();
            let map: Vec<i8> = (0..2 * (n as i8 % 3)).map(|at| at - n as i8).collect();
            vec![
                Tensor::scalar(i64::from(n) * 1_000_000_007),
                Tensor::from_slice(&[2, 2], &x),
                Tensor::from_slice(&[tokens.len()], &tokens),
                Tensor::from_slice(&[map.len() / 2, 2], &map),
                Tensor::text(&"ü".repeat(usize::from(n) % 3)),
                Tensor::bytes(Buffer::from(&[n, 255, 0][..usize::from(n) % 4])),
                truth(&[], &[n % 2]),
                truth(&[3], &[n % 2, 1, n / 2 % 2]),
                Tensor::scalar(half::bf16::from_f32(f32::from(n) / 2.0)),
            ]
        };
        let file = |rows: &[Vec<Tensor>]| {
            let rows: Vec<&[Tensor]> = rows.iter().map(Vec::as_slice).collect();
            arrow_file(&spec, &rows)
        };
        let rows: Vec<Vec<Tensor>> = (0..5).map(row).collect();
        self.write("arrow/a.arrow", &file(&rows[..3]));
        self.write("arrow/b/c.arrow", &file(&rows[3..]));
        self.write("arrow/.hidden.arrow", b"nothing");
        let images = Spec::new(vec![
            Field::image("image", DType::U8, Layout::Hwc, [Some(7), Some(5), Some(3)]),
            Field::new("label", DType::I64, &[]),
        ]);
        let rows: Vec<Vec<Tensor>> = (0..4)
            .map(|seed| {
                let image = Tensor::from_slice(&[7, 5, 3], &pixels(seed, 5, 7));
                vec![image, Tensor::scalar(seed as i64 % 2)]
            })
            .collect();
        let rows: Vec<&[Tensor]> = rows.iter().map(Vec::as_slice).collect();
        self.write("arrowimages/images.arrow", &arrow_file(&images, &rows));
        let table = Table {
            feedline_save: Table::VERSION,
            complete: false,
            shards: 3,
            shard_places: 2,
            batch_places: 1,
            places: 5,
            seed: 0,
            epoch: 0,
            plan: "range count=5".into(),
            fingerprint: String::new(),
            manifest: String::new(),
            rows: None,
            bytes: None,
            skipped: None,
        };
        let table = table.to_json().expect("a table is JSON");
        self.write("halfsaved/feedline.json", table.as_bytes());
        for number in [0, 2] {
            self.write(format!("halfsaved/{}", shard_name(number)), b"");
        }
        for (name, folder) in
            [("$ARROWIMAGES", "arrowimages"), ("$ARROW", "arrow"), ("$HALFSAVED", "halfsaved")]
        {
            self.names.push((name, self.text(folder)));
        }
    }

    fn name(&mut self, name: &'static str, fields: &[String]) {
        self.names.push((name, format!("[{}]", fields.join(","))));
    }
}

/// Rows as an Arrow file, in batches of two.
fn arrow_file(spec: &Spec, rows: &[&[Tensor]]) -> Vec<u8> {
    let mut writer = ArrowWriter::new(Vec::new(), "a file", spec, &[]).expect("memory takes all");
    rows.chunks(2).for_each(|rows| writer.write(rows).expect("memory takes all"));
    writer.finish(&[]).expect("memory takes all")
}

impl Default for Fixtures {
    fn default() -> Self {
        Self::new()
    }
}

fn column<T: Element>(values: &[T]) -> Tensor {
    Tensor::from_slice(&[values.len()], values)
}
