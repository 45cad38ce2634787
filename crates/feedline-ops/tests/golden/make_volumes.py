"""Makes the golden values of the volume steps: with torch, SciPy and nibabel.

    python make_volumes.py          writes volumes/ anew
    python make_volumes.py --check  makes them anew and compares

Everything is tiny: the values are there to pin down meaning, not to measure.
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import nibabel
import numpy as np
import scipy.ndimage
import torch

FOLDER = Path(__file__).parent / "volumes"


def resampled() -> dict[str, bytes]:
    """A scan and its mask at two spacings, and what torch makes of them."""
    files = {}
    rng = np.random.default_rng(0)
    cases = [
        ((1, 5, 6, 7), (3.0, 0.8, 0.9), (1.6, 1.2, 1.2)),
        ((1, 9, 4, 5), (0.5, 2.5, 1.7), (1.6, 1.2, 1.2)),
        ((4, 3, 2), (1.6, 2.4, 1.2), (1.6, 1.2, 1.2)),
    ]
    for number, (shape, spacing, target) in enumerate(cases):
        image = rng.normal(0, 100, shape).astype("float32")
        label = rng.integers(0, 3, shape).astype("uint8")
        given = np.array(spacing, "float32")
        files[f"resample_{number}.npz"] = npz(image=image, label=label, spacing=given)
        new = (given.astype("float64") / np.array(target) * np.array(shape[-3:])).astype(int).tolist()
        wide = torch.from_numpy(image).reshape(1, 1, *shape[-3:])
        image = torch.nn.functional.interpolate(wide, size=new, mode="trilinear", align_corners=True)
        wide = torch.from_numpy(label).reshape(1, 1, *shape[-3:]).float()
        label = torch.nn.functional.interpolate(wide, size=new, mode="nearest")
        size = (*shape[:-3], *new)
        image, label = image.numpy().reshape(size), label.numpy().astype("uint8").reshape(size)
        files[f"resampled_{number}.npz"] = npz(image=image, label=label)
    return files


def components() -> dict[str, bytes]:
    """Masks, and the boxes of the two largest components of each class."""
    files, boxes = {}, []
    rng = np.random.default_rng(1)
    for number, (share, classes) in enumerate([(0.1, 3), (0.3, 2), (0.5, 1), (0.7, 3)]):
        shape = (1, 6, 9, 20)
        mask = (rng.random(shape) < share) * rng.integers(1, classes + 1, shape)
        mask = mask.astype("uint8")
        found = {}
        for cl in np.unique(mask[mask > 0]):
            parts = scipy.ndimage.find_objects(scipy.ndimage.label(mask == cl)[0])
            volumes = [int(np.prod([s.stop - s.start for s in part])) for part in parts]
            # The later of equal ones counts as larger.
            order = np.argsort(volumes, kind="stable")[-2:]
            found[str(cl)] = [[[s.start, s.stop] for s in parts[at]] for at in order]
        files[f"mask_{number}.npy"] = npy(mask)
        boxes.append(found)
    files["boxes.json"] = (json.dumps(boxes, indent=1) + "\n").encode()
    return files


def scans() -> dict[str, bytes]:
    """Scans that nibabel wrote, and what it reads."""
    files = {}
    rng = np.random.default_rng(2)
    numbers = rng.integers(-100, 100, (3, 4, 5))
    for number, (kind, dtype, scale, order) in enumerate(
        [
            (nibabel.Nifti1Image, "int16", None, "<"),
            (nibabel.Nifti1Image, "int16", (0.25, -3), "<"),
            (nibabel.Nifti1Image, "float32", None, ">"),
            (nibabel.Nifti2Image, "uint8", None, "<"),
            (nibabel.Nifti2Image, "int32", (2, 0.5), ">"),
            (nibabel.Nifti1Image, "float64", None, "<"),
        ]
    ):
        array = numbers.astype(dtype)
        raw = kind.header_class(endianness=order)
        raw.set_data_dtype(dtype)
        raw.set_data_shape(array.shape)
        raw.set_zooms((0.8, 1.2, 2.5))
        raw["vox_offset"] = 352 if kind is nibabel.Nifti1Image else 544
        if scale:
            raw["scl_slope"], raw["scl_inter"] = scale
        data = array.astype(np.dtype(dtype).newbyteorder(order)).tobytes(order="F")
        bytes_ = raw.binaryblock + b"\0\0\0\0" + data
        files[f"scan_{number}.nii"] = bytes_
        read = kind.from_bytes(bytes_)
        values = np.asanyarray(read.dataobj)
        files[f"scan_{number}.npy"] = npy(values.astype("float32") if scale else values.astype(dtype))
        zooms = np.array(read.header.get_zooms(), "float32")
        files[f"spacing_{number}.npy"] = npy(zooms)
    return files


def npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, np.ascontiguousarray(array))
    return out.getvalue()


def npz(**arrays: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def same(name: str, old: bytes, new: bytes) -> bool:
    """Whether two files hold the same, whatever the archive notes about times."""
    if not name.endswith(".npz"):
        return old == new
    old_arrays, new_arrays = np.load(io.BytesIO(old)), np.load(io.BytesIO(new))
    return old_arrays.files == new_arrays.files and all(
        np.allclose(old_arrays[field], new_arrays[field], rtol=1e-6, atol=1e-4)
        for field in old_arrays.files
    )


def main() -> None:
    files = {**resampled(), **components(), **scans()}
    if "--check" in sys.argv:
        wrong = [name for name, data in files.items() if not same(name, (FOLDER / name).read_bytes(), data)]
        if wrong:
            sys.exit(f"these are no longer what they were: {', '.join(wrong)}")
        return
    FOLDER.mkdir(exist_ok=True)
    for name, data in files.items():
        (FOLDER / name).write_bytes(data)


if __name__ == "__main__":
    main()
