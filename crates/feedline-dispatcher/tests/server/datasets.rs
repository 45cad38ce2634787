//! Datasets and blobs, over the network.

use crate::support::*;
use feedline_core::{Blobs, Buffer, DType, Tensor};
use feedline_rpc::blob;
use feedline_wire::control::{Control, Dataset, DatasetId, Failure};
use feedline_wire::{Refusal, Request};

fn large() -> (Dataset, Blobs) {
    let numbers: Vec<u32> = (0..900_000).collect();
    let texts = Tensor::ragged(DType::Text, Buffer::from(b"onetwo".as_slice()), &[0, 3, 6]);
    let tensors = [Tensor::from_slice(&[900, 1000], &numbers), texts.unwrap()];
    let blobs: Blobs = tensors.into_iter().map(|tensor| (blob::name(&tensor), tensor)).collect();
    let mut names: Vec<String> = blobs.keys().cloned().collect();
    names.sort();
    (Dataset { plan: "{\"x\":1}".into(), manifest: "m".into(), blobs: names }, blobs)
}

#[test]
fn a_dataset_registered_twice_is_one_and_comes_back_whole() {
    let folder = tempfile::tempdir().unwrap();
    let dispatcher = start(folder.path());
    let (dataset, blobs) = large();
    let (control, other) = (remote(&dispatcher), remote(&dispatcher));
    let ids = std::thread::scope(|scope| {
        let one = scope.spawn(|| control.register(&dataset, &blobs).unwrap());
        let two = other.register(&dataset, &blobs).unwrap();
        [one.join().unwrap(), two]
    });
    assert_eq!(ids, [dataset.id(), dataset.id()]);
    assert_eq!(dispatcher.status().datasets.len(), 1);
    drop(dispatcher);
    let dispatcher = start(folder.path());
    let control = remote(&dispatcher);
    // Nothing is sent again: there are no blobs to send.
    assert_eq!(control.register(&dataset, &Blobs::new()), Ok(dataset.id()));
    let (found, tensors) = control.dataset(&dataset.id()).unwrap();
    assert_eq!(found, dataset);
    assert_eq!(tensors.len(), 2);
    for (name, tensor) in &tensors {
        assert_eq!((&blob::name(tensor), tensor.data()), (name, blobs[name].data()));
    }
}

#[test]
fn what_is_missing_or_in_use_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let dispatcher = start(folder.path());
    let control = remote(&dispatcher);
    let (dataset, _) = large();
    let failure = control.register(&dataset, &Blobs::new()).unwrap_err();
    assert!(matches!(&failure, Failure::Invalid(said) if said.contains("was not given")));
    let unknown = DatasetId("0".repeat(32));
    let failure = control.dataset(&unknown).unwrap_err();
    assert!(matches!(&failure, Failure::Invalid(said) if said.contains("no dataset")));
    let reply = control.ask(&open("job", 8, 1, 0, nonce()), PATIENCE).unwrap();
    assert!(matches!(refused(reply), Refusal::Mismatch(said) if said.contains("register")));
    let id = register(&control);
    let trainer = Trainer::join(&control, "job", 8, 1, 0);
    let failure = control.remove_dataset(&id).unwrap_err();
    assert!(matches!(&failure, Failure::Invalid(said) if said.contains("1 jobs")), "{failure}");
    control.ask(&Request::CloseJob { job: trainer.job() }, PATIENCE).unwrap();
    control.remove_dataset(&id).unwrap();
    assert!(control.dataset(&id).is_err());
    assert!(dispatcher.status().datasets.is_empty());
}

#[test]
fn plans_that_are_too_long_or_no_plans_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let dispatcher = start(folder.path());
    let control = remote(&dispatcher);
    for plan in ["\"".to_owned() + &"x".repeat(4 << 20) + "\"", "{".into()] {
        let dataset = Dataset { plan, ..dataset() };
        let failure = control.register(&dataset, &Blobs::new()).unwrap_err();
        assert!(matches!(&failure, Failure::Invalid(said) if said.contains("plan")), "{failure}");
    }
    let plan = "\"".to_owned() + &"x".repeat(8 << 20) + "\"";
    let failure = control.register(&Dataset { plan, ..dataset() }, &Blobs::new()).unwrap_err();
    assert!(matches!(failure, Failure::Invalid(_)), "{failure}");
    let plan = "\"".to_owned() + &"x".repeat((4 << 20) - 2) + "\"";
    control.register(&Dataset { plan, ..dataset() }, &Blobs::new()).unwrap();
}
