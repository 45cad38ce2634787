"""W4 in Feedline."""

from collections.abc import Iterator

import common_w4 as w4
import feedline as fl
import numpy as np

options = w4.options()


def cropped() -> fl.Dataset:
    dataset = fl.npy(options.volumes, fields={"image": "*_x.npy", "label": "*_y.npy"})
    return dataset.shuffle(seed=0).random_balanced_crop(w4.PATCH, p=0.4)


def build() -> Iterator:
    dataset = (
        cropped()
        .random_flip(p=1 / 3)
        .cast("float32", field="image")
        .cast("uint8", field="label")
        .random_brightness(0.7, 1.3, p=0.1)
        .random_noise(std=0.1, p=0.1)
        .batch(options.batch, drop_last=True)
    )
    loader = dataset.loader(threads=options.threads)
    while True:  # each pass over the loader is the next epoch
        yield from loader


def origins() -> list[list[tuple]]:
    """Crop origins of each volume, whose voxels hold their own places in their bits."""
    shapes = [np.load(file, mmap_mode="r").shape[1:] for file in w4.files(options.volumes)]
    found: list[list[tuple]] = [[] for _ in shapes]
    loader = cropped().repeat(options.draws).batch(1).loader(threads=options.threads, with_index=True)
    for batch in loader:
        volume, place = int(batch["index"][0]), batch["image"].view(np.int32).flat[0]
        found[volume].append(np.unravel_index(place, shapes[volume]))
    return found


if __name__ == "__main__":
    if options.origins:
        np.save(options.origins, origins())
        print("{}")
    else:
        # Feedline, too, may remember where the organs are.
        options.warm = max(options.warm, w4.PASSES * len(w4.files(options.volumes)) // options.batch)
        w4.measure.timed(
            "Feedline",
            options,
            build,
            lambda batch: w4.check("Feedline", options, batch["image"], batch["label"]),
            fl.__version__,
        )
