"""Files that NumPy wrote read back equal, whole and cropped."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

import feedline as fl

DTYPES = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"]


def make(dtype: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).normal(0, 50, size=shape)
    return (values > 0 if dtype == "?" else abs(values)).astype(dtype)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_and_order_reads_back(tmp_path: Path, dtype: str, order: str):
    for number, shape in enumerate([(), (5,), (3, 4), (2, 3, 4), (2, 3, 4, 5), (0, 3)]):
        array = make(dtype, shape).astype(np.dtype(dtype).newbyteorder(order))
        np.save(tmp_path / f"{number}.npy", array)
        np.save(tmp_path / f"{number}f.npy", np.asfortranarray(array))
        for name in (f"{number}.npy", f"{number}f.npy"):
            (sample,) = fl.npy(tmp_path / name)
            assert sample["data"].dtype == np.dtype(dtype)
            np.testing.assert_array_equal(sample["data"], array)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_archives_read_back(tmp_path: Path, save):
    saved = []
    for number in range(3):
        x, y = make("f4", (4, 5, 6), number), make("u1", (4, 5, 6), number)
        save(tmp_path / f"{number}.npz", x=x, y=np.asfortranarray(y), n=np.int64(number))
        saved.append((x, y))
    for (x, y), sample in zip(saved, fl.npy(tmp_path), strict=True):
        np.testing.assert_array_equal(sample["x"], x)
        np.testing.assert_array_equal(sample["y"], y)
    rows = list(fl.npy(tmp_path, {"x": "*.npz"}, rows=True))
    np.testing.assert_array_equal(np.stack([row["x"] for row in rows]), np.concatenate([x for x, _ in saved]))


def test_archives_in_the_form_for_large_ones_read_back(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 10)
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 0)
    wanted = make("float32", (3, 4, 5))
    np.savez(tmp_path / "a.npz", data=wanted)
    assert b"PK\x06\x06" in (tmp_path / "a.npz").read_bytes()
    np.testing.assert_array_equal(next(iter(fl.npy(tmp_path).loader()))["data"], wanted)


def test_whole_numbers_of_several_types_become_one(tmp_path: Path):
    for number, dtype in enumerate(["uint8", "uint16", "uint8"]):
        np.save(tmp_path / f"{number}.npy", np.full((2, 3, 4), number + 250, dtype))
    dataset = fl.npy(tmp_path)
    assert dataset.spec == ["data uint16[2, 3, 4]"]
    assert [sample["data"][0, 0, 0] for sample in dataset] == [250, 251, 252]
    crop = dataset.rename(data="label").random_balanced_crop(2, p=1.0).batch(3)
    assert next(iter(crop))["label"].dtype == "uint16"


def test_a_file_that_was_replaced_is_noticed(tmp_path: Path):
    numbers = np.arange(64, dtype="int32").reshape(4, 4, 4)
    np.save(tmp_path / "a.npy", numbers)
    dataset = fl.npy(tmp_path).batch(1)
    assert len(dataset) == 1
    np.save(tmp_path / "a.npy", np.asfortranarray(numbers))
    with pytest.raises(fl.RecordError, match="changed since"):
        next(iter(dataset))


def test_links_that_lead_nowhere_are_named(tmp_path: Path):
    np.save(tmp_path / "a.npy", np.zeros(3))
    (tmp_path / "b.npy").symlink_to(tmp_path / "gone.npy")
    with pytest.raises(fl.SourceError, match="b.npy"):
        fl.npy(tmp_path).loader()
    assert len(list(fl.npy(tmp_path).on_error("skip").loader())) == 1


def test_one_damaged_file_can_be_left_out(tmp_path: Path):
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", np.full((2, 2), number))
    (tmp_path / "1.npy").write_bytes(b"\x93NUMPY\x01\x00\xff")
    with pytest.raises(fl.SourceError, match="1.npy"):
        fl.npy(tmp_path).loader()
    left = [sample["data"][0, 0] for sample in fl.npy(tmp_path).on_error("skip").loader()]
    assert left == [0, 2]


def test_objects_are_never_unpickled(tmp_path: Path):
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(fl.SourceError, match="never unpickled"):
        fl.npy(tmp_path)
    np.save(tmp_path / "a.npy", np.zeros(3, dtype=[("a", "f4"), ("b", "i4")]))
    with pytest.raises(fl.SourceError, match="several fields"):
        fl.npy(tmp_path)


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    folder = tmp_path / "scans"
    folder.mkdir()
    for number in range(4):
        shape = (1, 20 + number, 24, 22)
        mask = np.zeros(shape, "u1")
        if number != 3:
            mask[0, 3:9, 4:10, 5:20] = 1
            mask[0, 12:14, 4:10, 5:20] = 1
            mask[0, 15:18, 15:20, 2:6] = 2
        np.save(folder / f"{number}_x.npy", make("f4", shape, number))
        np.save(folder / f"{number}_y.npy", mask)
    return folder


FIELDS = {"image": "*_x.npy", "label": "*_y.npy"}


def test_crops_are_parts_of_their_volumes(scans: Path, monkeypatch, tmp_path: Path):
    monkeypatch.setenv("FEEDLINE_CACHE_DIR", str(tmp_path / "cache"))
    ds = fl.npy(scans, FIELDS).random_balanced_crop(16, p=0.7)
    first = [[sample for sample in ds.loader(seed=5)] for _ in range(3)]
    for epoch in first:
        for number, sample in enumerate(epoch):
            whole = np.load(scans / f"{number}_x.npy")[0]
            windows = np.lib.stride_tricks.sliding_window_view(whole, (16, 16, 16))
            places = np.argwhere((windows == sample["image"][0]).all((3, 4, 5)))
            assert len(places) == 1, "the crop lies at one place"
            d, h, w = places[0]
            mask = np.load(scans / f"{number}_y.npy")
            np.testing.assert_array_equal(mask[:, d : d + 16, h : h + 16, w : w + 16], sample["label"])
    kept = list((tmp_path / "cache" / "feedline" / "boxes").iterdir())
    assert len(kept) == 1 and kept[0].read_text().count("index") >= 3
    # What was kept, torn or not, changes nothing.
    kept[0].write_text(kept[0].read_text()[:-9] + '\n{"index": 1}\nnonsense')
    ds = fl.npy(scans, FIELDS).random_balanced_crop(16, p=0.7)
    again = [[sample for sample in ds.loader(seed=5)] for _ in range(3)]
    for one, other in zip(first, again, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a["image"], b["image"])


def test_augmentations_keep_to_their_meaning(scans: Path):
    whole = np.load(scans / "0_x.npy")
    first = fl.npy(scans, FIELDS).take(1)
    (flipped,) = first.random_flip(p=1)
    np.testing.assert_array_equal(flipped["image"], whole[:, ::-1, ::-1, ::-1])
    (bright,) = first.random_brightness(p=1)
    gain = bright["image"] / whole
    assert 1.7 <= gain.min() and gain.max() <= 2.3001 and np.ptp(gain) < 1e-5
    (noisy,) = first.random_noise(0.5, p=1, mean=2)
    noise = noisy["image"] - whole
    assert abs(noise.mean() - 2) < 0.05 and 0 < noise.std() < 0.5
    (clipped,) = first.clip(10, 40).normalize(20, 5)
    np.testing.assert_allclose(clipped["image"], (whole.clip(10, 40) - 20) / 5, rtol=1e-6)
    (cast,) = first.cast("int16", field="image")
    np.testing.assert_array_equal(cast["image"], whole.astype("int16"))


def test_padding_is_numpys_edge_mode(scans: Path):
    (padded,) = fl.npy(scans, FIELDS).take(1).pad_to([21, 25, 30])
    whole = np.load(scans / "0_x.npy")
    np.testing.assert_array_equal(
        padded["image"], np.pad(whole, [(0, 0), (0, 1), (0, 1), (4, 4)], mode="edge")
    )


def test_a_plan_knows_its_types_without_its_files(scans: Path, tmp_path: Path):
    ds = fl.npy(scans, FIELDS).random_balanced_crop([8, 9, 10]).batch(2)
    plan = ds.plan
    scans.rename(tmp_path / "elsewhere")
    assert fl.from_plan(plan).spec == ["image float32[?, 1, 8, 9, 10]", "label uint8[?, 1, 8, 9, 10]"]
    with pytest.raises(fl.SourceError):
        len(fl.from_plan(plan))


def test_mistakes_are_named(scans: Path):
    (scans / "2_y.npy").unlink()
    with pytest.raises(fl.SourceError, match=r"2_x.npy has no counterpart 2_y.npy for field label"):
        fl.npy(scans, FIELDS)
    with pytest.raises(fl.PipelineError, match="pad_to"):
        fl.npy(scans / "0_y.npy").random_balanced_crop(64, label="data")
