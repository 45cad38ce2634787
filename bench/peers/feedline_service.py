"""Feedline's service: a dispatcher here, workers in processes of their own.

Variants: `tcp`, `shared` (memory, the default), `any` (order any), `bytes` (the last steps at the client).
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import common_service  # noqa: E402
import measure  # noqa: E402
import numpy as np  # noqa: E402

import feedline as fl  # noqa: E402

given = common_service.options()
variant = given.variant or "shared"


def dataset() -> tuple[fl.Dataset, int, int]:
    """The pipeline, bytes of an element, and samples in it."""
    if given.case == "big":
        rows = np.random.default_rng(0).random((8, 1 << 18), dtype=np.float32)
        return fl.arrays(x=rows).repeat().batch(1), common_service.MIB, 1
    if given.case in ("scalars", "windows"):
        return fl.range(1 << 40), 8, 1
    if given.case == "end":
        return fl.range(200).batch(1), 8, 1
    ds = fl.images(given.images).shuffle(seed=0).decode().random_resized_crop(measure.SIZE).flip()
    ds = ds.normalize(measure.MEAN, measure.STD).layout("CHW").batch(given.batch, drop_last=True)
    return ds, given.batch * 3 * measure.SIZE**2 * 4, given.batch


def main() -> None:
    ds, bytes_each, samples = dataset()
    name = f"Feedline service ({variant})"
    if variant == "local":
        loader = ds.loader(threads=given.threads)
        name = "Feedline, local"
    else:
        cluster = fl.LocalCluster(workers=given.workers, threads=given.threads)
        settings = {"shared_memory": variant == "shared"}
        if variant == "any":
            # Each window is dealt by the dispatcher, and written down before it is.
            settings |= {"order": "any", "window": 1 if given.case == "windows" else None}
        if variant == "bytes":
            settings |= {"local_from": "normalize"}
        loader = ds.distribute(cluster.url, job="bench", **settings)
    if given.case == "end":
        common_service.end_of_epoch(name, lambda: iter(loader), fl.__version__)

    def forever():
        while True:
            yield from loader

    common_service.stream(name, given, forever(), bytes_each, samples, fl.__version__)


if __name__ == "__main__":
    main()
