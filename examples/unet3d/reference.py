"""The transforms of MLPerf's 3D-UNet in numpy and torch: what Feedline's pipeline is compared with.

Offline, once a volume:   resample ─► clip ─► normalise ─► pad
Online, every epoch:      balanced crop ─► flips ─► cast ─► brightness ─► noise

Volumes are (1, D, H, W). The slow step is the balanced crop: when it wants foreground it labels the
connected regions of the whole mask, every time anew.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy import ndimage
from volumes import CLIP, DEVIATION, LEAST, MEAN, TARGET, read_nifti

PATCH = 128
FOREGROUND = 0.4  # chance of a crop around a region of the mask

Box = tuple[slice, ...]


# ------------------------------------------------------------------------------------------ offline


def preprocess(
    image: np.ndarray, label: np.ndarray, spacing: tuple[float, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Resamples to `TARGET` (trilinear, the mask to the nearest voxel), clips, normalises and pads."""
    import torch
    from torch.nn.functional import interpolate

    if tuple(spacing) != TARGET:
        shape = [int(n * have / want) for n, have, want in zip(image.shape[1:], spacing, TARGET)]
        volume, mask = torch.from_numpy(image[None]), torch.from_numpy(label[None])
        image = interpolate(volume, shape, mode="trilinear", align_corners=True)[0].numpy()
        label = interpolate(mask, shape, mode="nearest")[0].numpy()
    image = (np.clip(image, *CLIP) - np.float32(MEAN)) / np.float32(DEVIATION)
    missing = [max(0, LEAST - n) for n in image.shape[1:]]
    margins = [(0, 0), *((n // 2, n - n // 2) for n in missing)]
    return np.pad(image, margins, "edge"), np.pad(label, margins, "edge")


# ------------------------------------------------------------------------------------------- online


def below(limit: int) -> int:
    """A number from 0 to `limit` - 1; 0 if there is none."""
    return random.randrange(limit) if limit > 0 else 0


def largest_boxes(label: np.ndarray, value: int) -> list[Box]:
    """The boxes around the regions of one class: the two that hold the most voxels."""
    regions, _ = ndimage.label(label == value)
    boxes = ndimage.find_objects(regions)
    return sorted(boxes, key=lambda box: np.prod([axis.stop - axis.start for axis in box]))[-2:]


def shifted(start: int, stop: int, length: int) -> int:
    """Where a crop begins that contains the box's extent, or lies within it, at a random place."""
    if stop - start <= PATCH:
        low = max(0, start - below(PATCH - (stop - start)))
    else:
        low = start + below(stop - start - PATCH)
    return min(low, length - PATCH)


def uniform_origin(shape: tuple[int, ...]) -> list[int]:
    return [below(length - PATCH) for length in shape[1:]]


def foreground_origin(shape: tuple[int, ...], boxes: list[Box]) -> list[int]:
    """An origin around one of the boxes."""
    if not boxes:
        return uniform_origin(shape)
    box = random.choice(boxes)
    return [shifted(axis.start, axis.stop, length) for axis, length in zip(box[1:], shape[1:])]


def balanced_crop(image: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if random.random() < FOREGROUND:
        value = np.random.choice(np.unique(label[label > 0]))
        origin = foreground_origin(label.shape, largest_boxes(label, value))
    else:
        origin = uniform_origin(label.shape)
    window = (slice(None), *(slice(low, low + PATCH) for low in origin))
    return image[window], label[window]


def augment(image: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All online steps."""
    image, label = balanced_crop(image, label)
    for axis in (1, 2, 3):
        if random.random() < 1 / 3:
            image, label = np.flip(image, axis).copy(), np.flip(label, axis).copy()
    # `astype` copies, so that a crop does not keep its whole volume alive.
    image, label = image.astype(np.float32), label.astype(np.uint8)
    if random.random() < 0.1:
        image *= np.float32(1 + random.uniform(0.7, 1.3))
    if random.random() < 0.1:
        image += np.random.normal(0, random.uniform(0, 0.1), image.shape).astype(np.float32)
    return image, label


# ------------------------------------------------------------------------------------------ loading


class Scans:
    """All steps on the raw scans of a folder, as a data set for torch's DataLoader."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.glob("*/imaging.nii.gz"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple:
        import torch

        image, spacing = read_nifti(self.files[index])
        label, _ = read_nifti(self.files[index].with_name("segmentation.nii.gz"))
        image, label = image.astype("float32", order="C")[None], label.astype("uint8", order="C")[None]
        image, label = augment(*preprocess(image, label, spacing))
        return torch.from_numpy(image), torch.from_numpy(label)


def sources(folder: Path, accelerators: int, workers: int, batch: int, steps: int) -> list[Iterator]:
    """Batches for each accelerator. The workers are dealt out to them."""
    import torch
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    scans, rng = Scans(folder), np.random.default_rng(0)
    needed = accelerators * batch * steps
    order = np.concatenate([rng.permutation(len(scans)) for _ in range(-(-needed // len(scans)))])
    share, rest = divmod(workers, accelerators)
    found = []
    for rank in range(accelerators):
        mine = order[rank::accelerators][: batch * steps].tolist()
        # Never none: with fewer workers than accelerators, the DataLoaders have more in total.
        own = max(1, share + (rank < rest))
        found.append(iter(DataLoader(scans, batch, sampler=mine, num_workers=own)))
    return found
