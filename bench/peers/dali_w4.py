"""W4 in NVIDIA DALI, on the CPU alone (no device).

DALI remembers where the organs are (`cache_objects`). Its warm-up asks for foreground every time and
passes over the volumes often enough to have met all of them, so that no search is left in what is timed.
"""

from collections.abc import Iterator

import common_w4 as w4
import numpy as np
import nvidia.dali
from nvidia.dali import fn, pipeline_def, types

options = w4.options()
images = w4.files(options.volumes)
options.warm = max(options.warm, w4.PASSES * len(images) // options.batch)


def chance(batch: int) -> list[np.ndarray]:
    """The chance of foreground for each sample of a batch."""
    return [np.float32(1.0 if batch < options.warm else 0.4)] * options.batch


@pipeline_def(
    batch_size=options.batch,
    num_threads=options.threads,
    device_id=None,
    seed=1,
    prefetch_queue_depth=2,
    enable_conditionals=True,
)
def pipeline():
    # Equal seeds: both readers shuffle alike, so that images and labels stay together.
    settings = dict(random_shuffle=True, initial_fill=8, seed=1, cache_header_information=True)
    image = fn.readers.numpy(files=[str(file) for file in images], **settings)
    label = fn.readers.numpy(files=[str(w4.label_of(file)) for file in images], **settings)
    image, label = fn.reshape(image, layout="CDHW"), fn.reshape(label, layout="CDHW")

    start, end = fn.segmentation.random_object_bbox(
        label,
        format="start_end",
        foreground_prob=fn.external_source(source=chance, dtype=types.FLOAT, batch=True),
        k_largest=2,
        cache_objects=True,
    )
    patch = [w4.PATCH] * 3
    anchor = fn.roi_random_crop(label, roi_start=start, roi_end=end, crop_shape=[1, *patch])
    anchor = fn.cast(fn.slice(anchor, 1, 3, axes=[0]), dtype=types.INT32)
    image, label = fn.slice([image, label], anchor, patch, axis_names="DHW")

    flips = {axis: fn.random.coin_flip(probability=1 / 3) for axis in ("depthwise", "vertical", "horizontal")}
    image, label = fn.flip(image, **flips), fn.flip(label, **flips)
    image, label = fn.cast(image, dtype=types.FLOAT), fn.cast(label, dtype=types.UINT8)
    # Conditions, so that the nine samples in ten that get neither do not pay for them.
    if fn.random.coin_flip(probability=0.1, dtype=types.BOOL):
        image = image * fn.random.uniform(range=(1.7, 2.3))
    if fn.random.coin_flip(probability=0.1, dtype=types.BOOL):
        image = fn.noise.gaussian(image, stddev=fn.random.uniform(range=(0.0, 0.1)))
    return image, label


def build() -> Iterator:
    made = pipeline()
    made.build()
    while True:
        image, label = made.run()
        yield image.as_tensor(), label.as_tensor()


if __name__ == "__main__":
    w4.measure.timed(
        "DALI",
        options,
        build,
        lambda batch: w4.check("DALI", options, np.array(batch[0]), np.array(batch[1])),
        nvidia.dali.__version__,
    )
