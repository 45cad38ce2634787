//! The volume steps give what torch, SciPy and nibabel give (values by `golden/make_volumes.py`).

use feedline_core::{Store, Tensor};
use feedline_ops::kernel::components::{Bounds, largest};
use feedline_ops::plain::Part;
use feedline_store::LocalStore;
use feedline_testkit::{Fixtures, open, plain_epoch};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn file(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/volumes")).join(name)
}

/// The fields of the only sample of a plan.
fn sample(plan: &str) -> BTreeMap<&'static str, Tensor> {
    let pipeline = open(plan, &Fixtures::new()).unwrap_or_else(|error| panic!("{plan}: {error}"));
    let store: Arc<dyn Store> = Arc::new(LocalStore);
    let found = plain_epoch(&pipeline, &store, Part::default(), 2);
    assert_eq!((found.error, found.batches.len()), (None, 1), "{plan}");
    let fields = found.batches.into_iter().flat_map(|batch| batch.fields);
    fields.map(|(name, tensor)| (name.as_str(), tensor)).collect()
}

#[test]
fn resampling_is_torchs_interpolation() {
    for number in 0..3 {
        let given = file(&format!("resample_{number}.npz"));
        let found =
            sample(&format!("npy path={} | resample spacing=[1.6,1.2,1.2]", given.display()));
        let wanted = file(&format!("resampled_{number}.npz"));
        let wanted = sample(&format!("npy path={}", wanted.display()));
        assert_eq!(found["label"], wanted["label"], "case {number}");
        assert_eq!(found["image"].shape(), wanted["image"].shape(), "case {number}");
        let values = |tensor: &Tensor| tensor.as_slice::<f32>().expect("floats").to_vec();
        let pairs = values(&found["image"]).into_iter().zip(values(&wanted["image"]));
        for (found, wanted) in pairs {
            assert!((found - wanted).abs() <= 1e-4 * wanted.abs().max(1.0), "{found} {wanted}");
        }
        assert_eq!(values(&found["spacing"]), [1.6, 1.2, 1.2]);
    }
}

#[test]
fn components_are_scipys() {
    let text = std::fs::read_to_string(file("boxes.json")).expect("stored beside this test");
    let all: Vec<BTreeMap<i64, Vec<Bounds>>> = serde_json::from_str(&text).expect("boxes");
    for (number, wanted) in all.into_iter().enumerate() {
        let mask = file(&format!("mask_{number}.npy"));
        let mask = sample(&format!("npy path={}", mask.display()));
        let mask = mask["data"].as_slice::<u8>().expect("bytes").to_vec();
        assert_eq!(largest(&mask, [1, 6, 9, 20], 10), Some(wanted), "case {number}");
    }
}

#[test]
fn scans_are_nibabels() {
    for number in 0..6 {
        let scan = file(&format!("scan_{number}.nii"));
        let found = sample(&format!("nifti path={}", scan.display()));
        let plain = |name: &str| {
            let path = file(&format!("{name}_{number}.npy"));
            sample(&format!("npy path={}", path.display())).remove("data").expect("one field")
        };
        assert_eq!(found["image"], plain("scan"), "case {number}");
        assert_eq!(found["spacing"], plain("spacing"), "case {number}");
    }
}
