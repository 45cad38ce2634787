"""Pipelines: what they deliver, and what they say of mistakes."""

from __future__ import annotations

import inspect
import pickle
from pathlib import Path

import numpy as np
import pytest

import feedline as fl
from conftest import picture, png
from feedline import _core


def test_a_range_is_delivered_in_batches():
    batches = [batch["index"].tolist() for batch in fl.range(7).batch(3)]
    assert batches == [[0, 1, 2], [3, 4, 5], [6]]


def test_every_epoch_is_a_new_order_of_the_same_samples():
    ds = fl.range(100).shuffle(seed=1).batch(10)
    first, second = ([i for b in ds for i in b["index"].tolist()] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(100))
    assert first != second != list(range(100))


def test_images_have_classes_and_pixels(photos: Path):
    ds = fl.images(photos).decode()
    assert ds.classes == ["cat", "dog"]
    samples = list(ds)
    assert [int(sample["label"]) for sample in samples] == [0] * 12 + [1] * 8
    for number, sample in enumerate(samples):
        np.testing.assert_array_equal(sample["image"], picture(number))
    np.testing.assert_array_equal(ds[5]["image"], picture(5))
    np.testing.assert_array_equal(ds[-1]["image"], picture(19))
    with pytest.raises(IndexError):
        ds[20]


def test_the_whole_image_pipeline_gives_float_batches(photos: Path):
    ds = (
        fl.images(photos)
        .shuffle(seed=0)
        .decode()
        .random_resized_crop(16)
        .flip()
        .normalize([0.5, 0.5, 0.5], [0.25, 0.25, 0.25])
        .layout("CHW")
        .batch(8)
    )
    batches = list(ds.loader(threads=2))
    assert [batch["image"].shape for batch in batches] == [(8, 3, 16, 16)] * 2 + [(4, 3, 16, 16)]
    assert batches[0]["image"].dtype == np.float32
    assert batches[0]["image"].ctypes.data % 64 == 0
    assert -2 <= batches[0]["image"].min() < batches[0]["image"].max() <= 2


def test_normalize_is_scaled_and_cast_is_not(photos: Path):
    decoded = fl.images(photos).decode()
    normalized = decoded.normalize(0.5, 0.25)[0]["image"]
    np.testing.assert_allclose(normalized, (picture(0) / 255 - 0.5) / 0.25, atol=1e-6)
    np.testing.assert_array_equal(decoded.cast("float32")[0]["image"], picture(0))
    scaled = decoded.cast(np.float32, scale=True)[0]["image"]
    np.testing.assert_allclose(scaled, picture(0) / 255, atol=1e-7)


def test_files_with_labels_from_python_and_from_a_list(photos: Path, tmp_path: Path):
    paths = sorted(photos.rglob("*.png"))[:4]
    names = ["b", "a", "b", "c"]
    ds = fl.files(paths, names)
    assert [int(s["label"]) for s in ds] == [1, 0, 1, 2]
    assert ds.classes == ["a", "b", "c"]
    assert ds[0]["data"] == paths[0].read_bytes()
    assert ds.decode()[1]["image"].shape == (24, 32, 3)
    listed = tmp_path / "list.csv"
    listed.write_text("path,label\n" + "".join(f"{p},{n}\n" for p, n in zip(paths, names)))
    from_list = fl.files(listed, labels=True)
    assert [int(s["label"]) for s in from_list] == [1, 0, 1, 2]
    assert fl.files([p for p in paths], [3, 1, 2, 1])[0]["label"] == 3


def test_arrays_are_not_copied():
    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    ds = fl.arrays(x=x, text=list("abcdef"))
    sample = ds[2]
    assert sample["text"] == "c"
    assert np.shares_memory(sample["x"], x)
    assert not sample["x"].flags.writeable
    batch = next(iter(ds.batch(4)))
    assert batch["text"] == ["a", "b", "c", "d"]
    np.testing.assert_array_equal(batch["x"], x[:4])
    batch["x"][:] = 0  # a batch belongs to its consumer
    assert x[0, 1] == 1


def test_arrays_of_images_take_image_steps():
    images = np.stack([picture(n) for n in range(6)])
    ds = fl.arrays(image=images, layout="HWC").center_crop(8).layout("CHW").batch(6)
    batch = next(iter(ds))["image"]
    np.testing.assert_array_equal(batch, images[:, 8:16, 12:20].transpose(0, 3, 1, 2))
    flipped = fl.arrays(image=images, layout="HWC").flip(1.0)
    np.testing.assert_array_equal(flipped[3]["image"], images[3, :, ::-1])


def test_splits_are_disjoint_stable_and_everything(photos: Path):
    train, validation = fl.images(photos).split(0.8)
    indices = lambda ds: {int(i) for b in ds.batch(1).loader(with_index=True) for i in b["index"]}
    assert len(train) == 16 and len(validation) == 4
    assert indices(train) | indices(validation) == set(range(20))
    assert indices(train) == indices(train)
    a, b, c = fl.range(1000).split(0.5, 0.25, 0.25)
    assert [len(part) for part in (a, b, c)] == [500, 250, 250]


def test_weighted_and_balanced_sampling():
    labels = np.array([0] * 90 + [1] * 10)
    ds = fl.arrays(label=labels).sample(2000, balance="label")
    drawn = np.concatenate([batch["label"] for batch in ds.batch(100)])
    assert 0.45 < drawn.mean() < 0.55
    weighted = fl.arrays(label=labels).sample(500, weights=(labels == 1).astype(float))
    assert all(batch["label"].all() for batch in weighted.batch(50))


def test_take_skip_repeat_and_take_of_batches():
    flat = lambda ds: [int(sample["index"]) for sample in ds]
    assert flat(fl.range(10).skip(2).take(3)) == [2, 3, 4]
    assert flat(fl.range(3).repeat(2)) == [0, 1, 2, 0, 1, 2]
    assert [b["index"].tolist() for b in fl.range(10).batch(3).take(2)] == [[0, 1, 2], [3, 4, 5]]
    endless = iter(fl.range(3).repeat().batch(2))
    assert [next(endless)["index"].tolist() for _ in range(4)] == [[0, 1], [2, 0], [1, 2], [0, 1]]


def test_padding_marks_real_rows():
    batches = list(fl.range(5).batch(4, pad=True))
    assert batches[1]["index"].tolist() == [4, 0, 0, 0]
    assert batches[1]["mask"].tolist() == [True, False, False, False]


def test_lengths_are_exact_or_say_why_not(photos: Path):
    assert len(fl.range(10).batch(3)) == 4
    assert len(fl.range(10).batch(3, drop_last=True)) == 3
    assert len(fl.range(10).batch(2).loader(rank=1, world=3)) == 2
    endless = fl.range(10).repeat()
    with pytest.raises(TypeError, match="len_bounds"):
        len(endless)
    assert endless.len_bounds() == (0, None)
    uncounted = fl.images(photos).decode().on_error("skip").resize([8, 8]).batch(3)
    with pytest.raises(TypeError, match="len_bounds"):
        len(uncounted)
    assert uncounted.len_bounds() == (0, 7)


def test_bad_samples_are_raised_or_skipped(photos: Path, tmp_path: Path):
    (photos / "cat" / "03.png").write_bytes(png(picture(3))[:200])
    ds = fl.images(photos).decode().resize([8, 8])
    with pytest.raises(fl.RecordError, match="03.png") as caught:
        list(ds.batch(4))
    assert caught.value.index == 3 and caught.value.step == "decode"
    noted = tmp_path / "bad.jsonl"
    loader = ds.on_error("skip", file=noted).batch(4).loader(with_index=True)
    indices = [i for batch in loader for i in batch["index"].tolist()]
    assert indices == [i for i in range(20) if i != 3]
    assert '"index":3' in noted.read_text() and "03.png" in noted.read_text()
    with pytest.raises(fl.RecordError, match="allows 0"):
        list(ds.on_error("skip", count=0).batch(4))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fl.range(3).batch(0), "at least one"),
        (lambda: fl.range(3).decode(), "no encoded bytes"),
        (lambda: fl.range(3).batch(2).flip(), "before batch"),
        (lambda: fl.images("x").resize(8), "add decode before it"),
        (lambda: fl.images("x").decode().normalize([1, 2], [1, 2]), "2 values for 3 channels"),
        (lambda: fl.images("x").decode().flip(2), "probability"),
        (lambda: fl.images("x").decode().normalize(0, 1).resize(8), "before normalize"),
        (lambda: fl.range(3).select("image"), "there is no field"),
        (lambda: fl.range(3).shuffle(within="3 parsecs"), "512MB"),
        (lambda: fl.arrays(a=[1, 2], b=[1]), "must be equal"),
        (lambda: fl.from_plan("range count=3 | shufle"), "did you mean shuffle"),
        (lambda: fl.from_plan("range count=3 | batch sise=3"), "did you mean size"),
        (lambda: fl.files(["a"], [1, 2]), "one label for each path"),
        (lambda: fl.range(-1), "-1"),
    ],
)
def test_mistakes_are_reported_where_they_are_made(make, words):
    with pytest.raises(fl.PipelineError, match=words):
        make()


def test_missing_data_is_named(tmp_path: Path):
    with pytest.raises(fl.SourceError, match="no/such"):
        len(fl.images("no/such"))
    with pytest.raises(OSError, match="it is empty"):
        len(fl.images(tmp_path))
    (tmp_path / "readme.txt").write_text("x")
    with pytest.raises(fl.SourceError, match="none of its 1 files"):
        len(fl.images(tmp_path))


def test_plans_travel(photos: Path, tmp_path: Path):
    ds = fl.images(photos).shuffle(seed=3).decode().center_crop(8).batch(4)
    assert pickle.loads(pickle.dumps(ds)) == ds == fl.from_plan(ds.plan)
    saved = tmp_path / "plan.json"
    ds.save_plan(saved)
    assert fl.from_plan(saved).fingerprint == ds.fingerprint
    x = fl.arrays(x=np.arange(6)).batch(2)
    x.save_plan(saved)
    assert [b["x"].tolist() for b in fl.from_plan(saved)] == [[0, 1], [2, 3], [4, 5]]
    next((tmp_path / "plan.json.blobs").iterdir()).write_bytes(b'{"dtype":"int64","shape":[1]}\n12345678')
    with pytest.raises(fl.SourceError, match="damaged"):
        fl.from_plan(saved)


def test_every_step_has_a_typed_documented_method():
    sources = {"images", "files", "arrays", "npy", "arrow", "nifti", "range"}
    for step in _core.steps():
        owner = fl if step in sources else fl.Dataset
        method = getattr(owner, step, None)
        assert method is not None, f"step {step} has no method"
        assert method.__doc__, f"{step} has no docstring"
        signature = inspect.signature(method)
        assert signature.return_annotation is not inspect.Signature.empty, step
        for parameter in list(signature.parameters.values())[0 if step in sources else 1 :]:
            assert parameter.annotation is not inspect.Parameter.empty, (step, parameter)


def test_pipelines_show_what_they_are(photos: Path):
    ds = fl.images(photos).decode().random_resized_crop(16).batch(4)
    assert "random_resized_crop" in repr(ds) and "uint8[?, 16, 16, 3]" in repr(ds)
    assert "<table" in ds._repr_html_() and "random_resized_crop" in ds._repr_html_()
    text = ds.explain(threads=3)
    assert "fused" in text and "3 threads" in text


def test_thirds_are_three_parts():
    parts = fl.range(90).split(1 / 3, 1 / 3, 1 / 3)
    assert [len(part) for part in parts] == [30, 30, 30]
    assert len(fl.range(70).split(*[1 / 7] * 7)) == 7


def test_numpy_numbers_are_numbers():
    assert len(fl.range(np.int64(6)).batch(np.int32(4))) == 2


@pytest.mark.parametrize(
    "values",
    [
        np.array(3),
        3,
        np.ma.masked_array([1, 2], [0, 1]),
        "abc",
        [["a", "b"]],
        ["a", 1],
        [[1], [1, 2]],
        np.array([object()]),
        np.array(["2020-01-01"], "datetime64[D]"),
    ],
)
def test_what_is_no_array_is_refused(values):
    with pytest.raises(fl.PipelineError, match="arrays: "):
        fl.arrays(x=values)


def test_arrays_need_names():
    with pytest.raises(fl.PipelineError, match="name them"):
        fl.arrays(np.arange(3))
    assert len(fl.arrays(x=np.array([], "U3"))) == 0


def test_an_image_is_no_list_of_files(photos: Path):
    with pytest.raises(fl.SourceError, match="no list of files"):
        len(fl.files(photos / "cat" / "00.png"))


def test_hidden_files_are_left_out(photos: Path):
    (photos / "cat" / "._00.png").write_bytes(b"metadata of another system")
    assert len(fl.images(photos)) == 20


def test_indices_do_not_replace_a_field():
    ds = fl.range(3).one_hot(3, field="index").batch(3)
    with pytest.raises(fl.PipelineError, match="rename it"):
        ds.loader(with_index=True)


def test_steps_run_in_the_order_in_which_they_are_written():
    x = np.stack([picture(1, 16, 16)])

    def images(pixels):
        return fl.arrays(image=pixels, layout="HWC")

    changes = {
        "tone": lambda ds: ds.normalize(0.5, 0.004).cast("uint8"),
        "resize": lambda ds: ds.resize([5, 7]),
        "flip": lambda ds: ds.flip(1.0),
        "crop": lambda ds: ds.center_crop([4, 3]),
        "gray": lambda ds: ds.grayscale(3),
    }
    for first in changes.values():
        for second in changes.values():
            for third in changes.values():
                together = third(second(first(images(x))))[0]["image"]
                between = first(images(x))[0]["image"]
                between = second(images(between[None]))[0]["image"]
                between = third(images(between[None]))[0]["image"]
                np.testing.assert_array_equal(together, between)
