"""W1 in Feedline."""

import os
import sys
from collections.abc import Iterator

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import measure  # noqa: E402

import feedline as fl  # noqa: E402

options = measure.options()


def build() -> Iterator:
    dataset = (
        fl.images(options.images)
        .shuffle(seed=0)
        .decode()
        .random_resized_crop(measure.SIZE)
        .flip()
        .normalize(measure.MEAN, measure.STD)
        .layout("CHW")
        .batch(options.batch, drop_last=True)
    )
    loader = dataset.loader(threads=options.threads)
    while True:  # each pass over the loader is the next epoch
        yield from loader


if __name__ == "__main__":
    measure.run("Feedline", options, build, lambda batch: batch["image"], getattr(fl, "__version__", "?"))
