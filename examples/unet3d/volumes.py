"""Volumes shaped like KiTS19's: CT scans of the abdomen with kidneys and tumours marked.

The scans themselves are not ours to hand out, so their intensities are drawn around a mask: a real one
if there is one, else two ellipsoids with a tumour. Sizes follow the real distribution either way.

    mask (real or drawn) ──► intensities ──► raw:           case/imaging.nii.gz, segmentation.nii.gz
                                        └──► preprocessed:  case_x.npy, case_y.npy

The same seed gives the same bytes. Nothing is imported but the standard library and numpy.
"""

import gzip
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

TARGET = (1.6, 1.2, 1.2)  # millimetres between voxels after resampling
LEAST = 128  # voxels along each axis after padding
CLIP = (-79.0, 304.0)
MEAN, DEVIATION = 101.0, 76.9

# Slices, height, width and millimetres along each, at the 0th, 5th, … 100th percentile of the
# preprocessed size of the 210 public cases.
SIZES = (
    (99, 512, 512, 3.0, 0.438, 0.438),
    (76, 512, 512, 3.0, 0.684, 0.684),
    (113, 512, 512, 2.0, 0.742, 0.742),
    (34, 512, 512, 5.0, 0.83, 0.83),
    (612, 512, 512, 0.5, 0.703, 0.703),
    (121, 512, 512, 2.5, 0.742, 0.742),
    (61, 512, 512, 3.0, 0.947, 0.947),
    (602, 512, 512, 0.5, 0.799, 0.799),
    (88, 512, 512, 5.0, 0.691, 0.691),
    (90, 512, 512, 5.0, 0.703, 0.703),
    (738, 512, 512, 0.5, 0.789, 0.789),
    (673, 512, 512, 0.5, 0.855, 0.855),
    (105, 512, 512, 5.0, 0.707, 0.707),
    (98, 512, 512, 5.0, 0.764, 0.764),
    (199, 512, 512, 2.5, 0.789, 0.789),
    (70, 512, 512, 5.0, 0.977, 0.977),
    (389, 512, 512, 1.25, 0.869, 0.869),
    (206, 512, 512, 2.5, 0.879, 0.879),
    (97, 512, 512, 5.0, 0.938, 0.938),
    (102, 512, 512, 5.0, 0.977, 0.977),
    (734, 512, 512, 1.0, 0.971, 0.971),
)


@dataclass(frozen=True)
class Case:
    """One scan to make: its size, and the file of its real mask, if it has one."""

    name: str
    shape: tuple[int, ...]
    spacing: tuple[float, ...]
    mask: Path | None = None

    @property
    def resampled(self) -> tuple[int, ...]:
        """The shape after resampling to `TARGET` and padding to `LEAST`."""
        lengths = zip(self.shape, self.spacing, TARGET)
        return tuple(max(LEAST, int(length * have / want)) for length, have, want in lengths)

    def scaled(self, factor: float) -> "Case":
        """The same field of view in `factor` times fewer voxels."""
        shrink = factor ** (1 / 3)
        shape = tuple(max(8, round(length / shrink)) for length in self.shape)
        spacing = tuple(mm * old / new for mm, old, new in zip(self.spacing, self.shape, shape))
        return replace(self, shape=shape, spacing=spacing)


# ----------------------------------------------------------------------------------- NIfTI-1 files

TYPES = {2: "u1", 4: "<i2", 8: "<i4", 16: "<f4", 64: "<f8", 256: "i1", 512: "<u2"}


def read_header(head: bytes) -> tuple[tuple[int, ...], tuple[float, ...], np.dtype, int]:
    """Shape, spacing, type and offset of the voxels."""
    if struct.unpack_from("<i", head)[0] != 348:
        raise ValueError("not a little-endian NIfTI-1 file")
    axes, *lengths = struct.unpack_from("<8h", head, 40)
    spacing = struct.unpack_from("<8f", head, 76)[1 : axes + 1]
    code = struct.unpack_from("<h", head, 70)[0]
    offset = int(struct.unpack_from("<f", head, 108)[0])
    return tuple(lengths[:axes]), spacing, np.dtype(TYPES[code]), offset


def nifti_size(path: Path) -> tuple[tuple[int, ...], tuple[float, ...]]:
    with gzip.open(path) as file:
        return read_header(file.read(352))[:2]


def read_nifti(path: Path) -> tuple[np.ndarray, tuple[float, ...]]:
    """The voxels, indexed as the header lists its axes, and the millimetres along each axis."""
    data = gzip.decompress(path.read_bytes())
    shape, spacing, dtype, offset = read_header(data)
    voxels = np.frombuffer(data, dtype, math.prod(shape), offset)
    return voxels.reshape(shape, order="F"), spacing


def write_nifti(path: Path, voxels: np.ndarray, spacing: tuple[float, ...]) -> None:
    """Writes `.nii.gz`. The bytes depend on the voxels alone: gzip's clock and name stay empty."""
    codes = {np.dtype(name): code for code, name in TYPES.items()}
    head = bytearray(352)
    struct.pack_into("<i", head, 0, 348)
    struct.pack_into("<8h", head, 40, voxels.ndim, *voxels.shape, *[1] * (7 - voxels.ndim))
    struct.pack_into("<2h", head, 70, codes[voxels.dtype], voxels.dtype.itemsize * 8)
    struct.pack_into("<8f", head, 76, 1.0, *spacing, *[1.0] * (7 - len(spacing)))
    struct.pack_into("<2f", head, 108, 352.0, 1.0)
    struct.pack_into("<b", head, 123, 2)  # millimetres
    head[344:348] = b"n+1\0"
    partial = path.with_suffix(".partial")
    with open(partial, "wb") as file, gzip.GzipFile("", "wb", 1, file, mtime=0) as packed:
        packed.write(head)
        packed.write(voxels.tobytes(order="F"))
    partial.rename(path)


# ------------------------------------------------------------------------------------------- cases


def cases(masks: Path | None, count: int) -> list[Case]:
    """`count` cases at even quantiles of size, smallest first."""
    if masks is None:
        known = [Case("", size[:3], size[3:]) for size in SIZES]
    else:
        files = sorted(masks.glob("case_*/segmentation.nii.gz"))
        if not files:
            raise FileNotFoundError(f"no case_*/segmentation.nii.gz in {masks}")
        known = [Case(file.parent.name, *nifti_size(file), file) for file in files]
        known.sort(key=lambda case: math.prod(case.resampled))
    places = np.linspace(0.02, 0.98, count) * (len(known) - 1)
    chosen = [known[round(place)] for place in places]
    # Small lists repeat when asked for more than they have, so every case gets a number of its own.
    return [replace(case, name=f"case_{number:05}") for number, case in enumerate(chosen)]


def mask_of(case: Case, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """0 where nothing is marked, 1 kidney, 2 tumour: the real mask in this shape, or a drawn one."""
    if case.mask is None:
        return drawn_mask(shape, rng)
    mask, _ = read_nifti(case.mask)
    nearest = [np.arange(new) * old // new for new, old in zip(shape, mask.shape)]
    return np.ascontiguousarray(mask[np.ix_(*nearest)], dtype=np.uint8)


def drawn_mask(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Two ellipsoids beside the spine, and a tumour on one of them."""
    mask = np.zeros(shape, np.uint8)
    middles = [np.array([0.5, 0.55, side]) + rng.normal(0, 0.02, 3) for side in (0.32, 0.68)]
    tumour = middles[rng.integers(2)] + rng.normal(0, 0.04, 3)
    organs = [(middle, np.array([0.16, 0.08, 0.07]), 1) for middle in middles]
    for middle, radius, value in [*organs, (tumour, np.full(3, rng.uniform(0.03, 0.09)), 2)]:
        low = [max(0, int((m - r) * n)) for m, r, n in zip(middle, radius, shape)]
        high = [min(n, int((m + r) * n) + 1) for m, r, n in zip(middle, radius, shape)]
        window = tuple(slice(a, b) for a, b in zip(low, high))
        grid = np.ogrid[window]
        away = sum(((g / n - m) / r) ** 2 for g, n, m, r in zip(grid, shape, middle, radius))
        mask[window][away <= 1] = value
    return mask


def slices(mask: np.ndarray, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """CT numbers around a mask, slice by slice: air, fat, soft tissue, kidneys, tumours, and noise."""
    depth, height, width = mask.shape
    y, x = np.ogrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    noise = rng.normal(0, 12, 1 << 22).astype(np.float32)
    kidney, tumour = rng.uniform(110, 190), rng.uniform(40, 100)
    waves = rng.uniform(3, 9, (3, 3)), rng.uniform(0, 2 * math.pi, 3)
    for z in range(depth):
        breath = 1 + 0.03 * math.sin(3 * z / depth)
        away = (y / (0.66 * breath)) ** 2 + (x / (0.86 * breath)) ** 2
        tissue = 45 + sum(
            8 * np.sin(a * z / depth + b * y + c * x + phase) for (a, b, c), phase in zip(*waves)
        )
        ct = np.select(
            [mask[z] == 2, mask[z] == 1, away > 1, away > 0.82], [tumour, kidney, -1000.0, -95.0], tissue
        )
        start = rng.integers(len(noise))
        grain = np.take(noise, np.arange(start, start + height * width), mode="wrap").reshape(height, width)
        yield np.where(away > 1, -1000 + 0.25 * grain, ct + grain).astype(np.float32)


# -------------------------------------------------------------------------------------- two forms


def make_raw(case: Case, folder: Path, seed: int) -> None:
    """Writes `imaging.nii.gz` (int16) and `segmentation.nii.gz` (uint8) of a case; both may be there."""
    target = folder / case.name
    if (target / "imaging.nii.gz").exists():
        return
    target.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng([seed, int(case.name[-5:])])
    mask = mask_of(case, case.shape, rng)
    write_nifti(target / "segmentation.nii.gz", mask, case.spacing)
    scan = np.empty(case.shape, np.int16, order="F")
    for z, ct in enumerate(slices(mask, rng)):
        scan[z] = np.rint(ct)
    write_nifti(target / "imaging.nii.gz", scan, case.spacing)


def make_preprocessed(case: Case, folder: Path, seed: int, scale: float) -> None:
    """Writes `_x.npy` (float32, clipped and normalised) and `_y.npy` (uint8), each (1, D, H, W)."""
    image_file, label_file = folder / f"{case.name}_x.npy", folder / f"{case.name}_y.npy"
    if image_file.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    shape = replace(case, shape=case.resampled, spacing=TARGET).scaled(scale).shape
    rng = np.random.default_rng([seed, int(case.name[-5:])])
    mask = mask_of(case, shape, rng)
    np.save(label_file, mask[None])
    image = np.empty((1, *shape), np.float32)
    for z, ct in enumerate(slices(mask, rng)):
        image[0, z] = (np.clip(ct, *CLIP) - MEAN) / DEVIATION
    partial = image_file.with_suffix(".partial")
    with open(partial, "wb") as file:
        np.save(file, image)
    partial.rename(image_file)
