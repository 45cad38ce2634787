"""W4 in PyTorch's DataLoader with numpy and scipy, as MLPerf's reference does it.

Variants: `full` (default; every volume is read whole, as the reference does) and `mmap` (volumes are
mapped, so that a crop reads only itself; the mask is still read whole when its regions are looked for).
"""

import random
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import common_w4 as w4
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "unet3d"))
import reference  # noqa: E402

options = w4.options()
variant = options.variant or "full"


class Volumes(Dataset):
    def __init__(self) -> None:
        self.files = w4.files(options.volumes)
        self.mode = "r" if variant == "mmap" else None

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple:
        image = np.load(self.files[index], mmap_mode=self.mode)
        label = np.load(w4.label_of(self.files[index]), mmap_mode=self.mode)
        image, label = reference.augment(image, label)
        return torch.from_numpy(image), torch.from_numpy(label)


def build() -> Iterator:
    volumes = Volumes()
    # One long epoch, so that draining its workers between short ones is not held against it.
    count = (options.warm + options.batches + 8) * options.batch
    loader = DataLoader(
        volumes,
        batch_size=options.batch,
        sampler=RandomSampler(volumes, replacement=True, num_samples=count),
        num_workers=options.threads,
        drop_last=True,
    )
    return iter(loader)


def origins(file: Path) -> np.ndarray:
    """Crop origins of one volume. Its regions are labelled once: they are the same every time."""
    label = np.load(w4.label_of(file))
    present = np.unique(label[label > 0])
    boxes = cache(lambda value: reference.largest_boxes(label, value))

    def draw() -> list[int]:
        if random.random() < reference.FOREGROUND:
            return reference.foreground_origin(label.shape, boxes(np.random.choice(present)))
        return reference.uniform_origin(label.shape)

    return np.array([draw() for _ in range(options.draws)])


if __name__ == "__main__":
    torch.set_num_threads(1)
    if options.origins:
        random.seed(0)
        np.random.seed(0)
        np.save(options.origins, [origins(file) for file in w4.files(options.volumes)])
        print("{}")
    else:
        name = f"DataLoader, {variant}"
        w4.measure.timed(
            name,
            options,
            build,
            lambda batch: w4.check(name, options, batch[0].numpy(), batch[1].numpy()),
            torch.__version__,
        )
