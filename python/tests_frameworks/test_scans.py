"""Scans that nibabel wrote read back equal, and crops lie where the reference's could lie."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

import feedline as fl

nibabel = pytest.importorskip("nibabel")
ndimage = pytest.importorskip("scipy.ndimage")


@pytest.mark.parametrize("end", [".nii", ".nii.gz"])
@pytest.mark.parametrize("kind", [nibabel.Nifti1Image, nibabel.Nifti2Image])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "int32", "float32", "float64"])
def test_scans_read_back(tmp_path: Path, dtype: str, kind, end: str):
    values = np.random.default_rng(0).integers(0, 200, (5, 6, 7)).astype(dtype)
    image = kind(values, np.diag([0.8, 1.5, 3, 1]))
    path = tmp_path / f"a{end}"
    nibabel.save(image, path)
    read = nibabel.load(path)
    (sample,) = fl.nifti(path)
    np.testing.assert_array_equal(sample["image"], np.asanyarray(read.dataobj))
    np.testing.assert_array_equal(sample["spacing"], np.float32(read.header.get_zooms()))
    (sample,) = fl.nifti(path, channel=True)
    assert sample["image"].shape == (1, 5, 6, 7)


def test_scaled_scans_are_nibabels_in_single_precision(tmp_path: Path):
    image = nibabel.Nifti1Image(np.random.default_rng(0).normal(0, 300, (5, 6, 7)), np.eye(4))
    image.header.set_data_dtype("int16")
    nibabel.save(image, tmp_path / "a.nii.gz")
    (sample,) = fl.nifti(tmp_path)
    wanted = nibabel.load(tmp_path / "a.nii.gz").get_fdata().astype("float32")
    np.testing.assert_array_equal(sample["image"], wanted)


def places(part: slice, size: int, extent: int) -> set[int]:
    """Where the reference's box may begin along an axis, over all its draws."""
    found = set()
    diff = size - (part.stop - part.start)
    sign = -1 if diff < 0 else 1
    for before in range(max(abs(diff), 1)):
        low = max(0, part.start - sign * before)
        high = min(extent, part.stop + sign * (abs(diff) - before))
        short = size - (high - low)
        if short > 0 and low > 0:
            low -= short
        found.add(low)
    return found


def test_balanced_crops_lie_where_the_references_may(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("FEEDLINE_CACHE_DIR", str(tmp_path / "cache"))
    rng = np.random.default_rng(3)
    mask = np.zeros((1, 24, 26, 28), "uint8")
    mask[0, 2:7, 3:20, 4:9] = 1
    mask[0, 15:23, 5:9, 12:20] = 1
    mask[0, 10:12, 10:12, 10:12] = 1
    mask[0, 0:3, 22:26, 24:28] = 2
    image = rng.random(mask.shape).astype("float32")
    (tmp_path / "scans").mkdir()
    np.save(tmp_path / "scans/a_x.npy", image)
    np.save(tmp_path / "scans/a_y.npy", mask)
    size, seen, allowed = (8, 9, 10), {}, {}
    for cl in (1, 2):
        parts = ndimage.find_objects(ndimage.label(mask == cl)[0])
        parts = sorted(parts, key=lambda part: np.prod([s.stop - s.start for s in part]))[-2:]
        for number, part in enumerate(parts):
            axes = [places(part[a + 1], size[a], mask.shape[a + 1]) for a in range(3)]
            allowed[cl, number] = set(product(*axes))
    where = {value: place[1:] for place, value in np.ndenumerate(image)}
    ds = fl.npy(tmp_path / "scans", {"image": "*_x.npy", "label": "*_y.npy"})
    loader = ds.random_balanced_crop(size, p=1).loader(seed=1)
    for _ in range(300):
        for sample in loader:
            start = where[sample["image"][0, 0, 0, 0]]
            box = tuple(slice(at, at + side) for at, side in zip(start, size))
            np.testing.assert_array_equal(sample["label"][0], mask[0][box])
            owners = [owner for owner, starts in allowed.items() if start in starts]
            assert owners, start
            for owner in owners:
                seen[owner] = seen.get(owner, 0) + 1
    # Both classes half of the time, both parts of the first a quarter.
    assert 110 < seen[2, 0] < 190 and 45 < seen[1, 0] < 110 and 45 < seen[1, 1] < 110, seen
