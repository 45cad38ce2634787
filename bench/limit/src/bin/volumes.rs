//! How long the work on volumes takes on one core, piece by piece. Needs 150 MB of disk:
//! `cargo run --release -p feedline-limit --bin volumes`.

use feedline_core::{
    Address, Context, EpochSeed, Pool, SampleSeed, Seed, StepId, Store, Workspace,
};
use feedline_ops::kernel::Level;
use feedline_ops::kernel::components::largest;
use feedline_ops::kernel::noise::normal_into;
use feedline_ops::{Progress, Task};
use feedline_store::LocalStore;
use feedline_testkit::volumes::{gzip, nifti, npy};
use feedline_testkit::{Fixtures, open};
use std::time::Instant;

const SHAPE: [usize; 3] = [256, 333, 333];

/// Two ellipsoids of class 1 with one of class 2 in the first, as large as kidneys and a tumour.
fn mask() -> Vec<u8> {
    let inside = |at: [usize; 3], centre: [f32; 3], radius: [f32; 3]| {
        (0..3).map(|axis| ((at[axis] as f32 - centre[axis]) / radius[axis]).powi(2)).sum::<f32>()
            < 1.0
    };
    let mut out = Vec::with_capacity(SHAPE.iter().product());
    for z in 0..SHAPE[0] {
        for y in 0..SHAPE[1] {
            for x in 0..SHAPE[2] {
                let at = [z, y, x];
                out.push(if inside(at, [110.0, 170.0, 90.0], [18.0, 15.0, 15.0]) {
                    2
                } else {
                    u8::from(
                        inside(at, [120.0, 180.0, 95.0], [50.0, 28.0, 30.0])
                            || inside(at, [130.0, 180.0, 240.0], [50.0, 28.0, 30.0]),
                    )
                });
            }
        }
    }
    out
}

fn main() {
    volumes_take();
    preparing_takes();
}

fn time(what: &str, rounds: usize, mut work: impl FnMut(usize)) {
    work(0);
    let mut times: Vec<f64> = (1..=rounds)
        .map(|round| {
            let start = Instant::now();
            work(round);
            start.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!("{what}: median {:.2} ms, least {:.2} ms", times[times.len() / 2], times[0]);
}

fn volumes_take() {
    let mask = mask();
    let shape = [1, SHAPE[0], SHAPE[1], SHAPE[2]];
    let share = mask.iter().filter(|value| **value > 0).count() as f64 / mask.len() as f64;
    println!("{} voxels, {:.2} % of them marked", mask.len(), share * 100.0);
    time("components of a mask", 15, |_| {
        assert_eq!(largest(&mask, shape, 10).expect("few classes").len(), 2);
    });
    let mut state = 1u32;
    let noisy: Vec<u8> = mask
        .iter()
        .map(|value| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if state >> 24 < 3 { 1 } else { *value }
        })
        .collect();
    time("components of a mask with 1 % specks", 5, |_| {
        assert_eq!(largest(&noisy, shape, 10).expect("few classes").len(), 2);
    });
    let mut out = vec![0f32; 1 << 21];
    for &level in Level::available() {
        time(&format!("2 M numbers of noise, {level:?}"), 15, |round| {
            normal_into(level, [round as u32, 7], 0, &mut out);
        });
    }
    let fixtures = Fixtures::new();
    let image: Vec<u8> =
        (0..mask.len()).flat_map(|at| ((at % 501) as f32 - 100.0).to_le_bytes()).collect();
    fixtures.write("big/a_x.npy", &npy("<f4", false, &shape, &image));
    fixtures.write("big/a_y.npy", &npy("|u1", false, &shape, &mask));
    drop((image, noisy, mask));
    let source = format!(
        r#"npy path={} fields={{"image":"*_x.npy","label":"*_y.npy"}}"#,
        fixtures.path("big").display()
    );
    for steps in [
        "random_balanced_crop size=128 p=0",
        "random_balanced_crop size=128",
        "random_balanced_crop size=128 | random_flip",
        "random_balanced_crop size=128 | random_flip p=1",
        "random_balanced_crop size=128 | random_brightness p=1",
        "random_balanced_crop size=128 | random_noise p=1",
        "random_balanced_crop size=128 | random_flip | random_brightness | random_noise",
    ] {
        let pipeline = open(&format!("{source} | {steps}"), &fixtures).expect("a sound pipeline");
        let mut workspace = pipeline.workspace(Pool::new(1 << 30), false);
        let mut rows = [vec![0u8; 4 << 21], vec![0u8; 1 << 21]];
        for in_place in [false, true] {
            time(&format!("{steps}, in place {in_place}"), 40, |round| {
                sample(&pipeline, round as u64, &mut workspace, &mut rows, in_place);
            });
        }
    }
}

fn preparing_takes() {
    let fixtures = Fixtures::new();
    let shape = [512, 512, 100];
    let values = (0..shape.iter().product::<usize>()).map(|at| (at / 7 % 900) as i16 - 100);
    let bytes: Vec<u8> = values.flat_map(i16::to_le_bytes).collect();
    let scan = nifti((4, 16), &shape, [0.8, 0.8, 3.0], (1.0, 0.0), &bytes);
    let found: Vec<u8> = (0..bytes.len() / 2).map(|at| u8::from(at / 9000 % 40 == 0)).collect();
    let label = nifti((2, 8), &shape, [0.8, 0.8, 3.0], (1.0, 0.0), &found);
    fixtures.write("scans/a/image.nii.gz", &gzip(&scan));
    fixtures.write("scans/a/plain.nii", &scan);
    fixtures.write("scans/a/mask.nii.gz", &gzip(&label));
    drop((scan, label, bytes, found));
    let image = r#"fields={"image":"*/image.nii.gz"}"#;
    let plain = r#"fields={"image":"*/plain.nii"}"#;
    let both = r#"fields={"image":"*/image.nii.gz","label":"*/mask.nii.gz"}"#;
    for (fields, steps) in [
        (plain, ""),
        (image, ""),
        (plain, "| cast field=image dtype=float32"),
        (plain, "| cast field=image dtype=float32 | resample spacing=[1.2,1.2,1.6]"),
        (
            both,
            "| cast field=image dtype=float32 | resample spacing=[1.2,1.2,1.6] | clip min=-79 max=304 field=image | normalize mean=101 std=76.9 field=image | pad_to size=128",
        ),
    ] {
        let path = fixtures.path("scans");
        let plan = format!("nifti path={} {fields} channel=true {steps}", path.display());
        let pipeline = open(&plan, &fixtures).expect("a sound pipeline");
        let mut workspace = pipeline.workspace(Pool::new(1 << 30), false);
        let epoch = EpochSeed { seed: Seed(0), epoch: 0 };
        let seed = SampleSeed { epoch, source: 0, index: 0, visit: 0, output: 0 };
        let address = Address { index: 0, visit: 0 };
        time(&format!("{fields} {steps}"), 3, |_| {
            pipeline.sample(address, seed, &LocalStore, &mut workspace).expect("a sound sample");
        });
    }
}

/// One sample through all steps and into its rows, as the engine does it.
fn sample(
    pipeline: &feedline_ops::Pipeline,
    epoch: u64,
    workspace: &mut Workspace,
    rows: &mut [Vec<u8>; 2],
    in_place: bool,
) {
    let epoch = EpochSeed { seed: Seed(0), epoch };
    let seed = SampleSeed { epoch, source: 0, index: 0, visit: 0, output: 0 };
    let mut task =
        Task::new(pipeline, Address { index: 0, visit: 0 }, None, seed).expect("a sample");
    let pool = workspace.pool.clone();
    let read = |cut: &feedline_core::Cut<'_>| {
        let mut buffer = pool.take(cut.length()).expect("memory");
        LocalStore.read_cut(cut, &mut 0, &mut buffer).expect("the file is there");
        buffer.freeze()
    };
    while let Progress::Reads(field) = task.advance(pipeline, workspace).expect("a sound sample") {
        let bytes = read(&task.wants(field).expect("it is to be read"));
        task.supply(field, bytes);
    }
    let step = StepId::new("finish", 0);
    let slot = pipeline.maps.len();
    let mut context = Context { workspace, seed, step, slot };
    for ((_, mut value), row) in task.into_sample().into_fields().zip(rows) {
        if in_place && value.in_place() {
            let cut = value.wants().expect("it is to be read");
            LocalStore.read_cut(&cut, &mut 0, row).expect("the file is there");
        } else if let Some(bytes) = value.wants().map(|cut| read(&cut)) {
            value.supply(bytes);
        }
        value.write(row, &mut context).expect("room for it");
    }
}
