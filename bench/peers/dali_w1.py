"""W1 in NVIDIA DALI, on the CPU alone (no device).

Variants: `fused` (default; decodes only the crop) and `full` (decodes all, then crops). DALI's resize
has antialiasing switched off, which is the faster way; `antialias` is `fused` with it.
"""

import os
import sys
from collections.abc import Iterator

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import measure  # noqa: E402

import numpy as np  # noqa: E402
import nvidia.dali  # noqa: E402
from nvidia.dali import fn, pipeline_def, types  # noqa: E402

options = measure.options()
variant = options.variant or "fused"


@pipeline_def(
    batch_size=options.batch, num_threads=options.threads, device_id=None, seed=1, prefetch_queue_depth=2
)
def pipeline():
    paths, labels = measure.files(options.images)
    data, label = fn.readers.file(
        files=paths, labels=labels, random_shuffle=True, initial_fill=256, name="reader"
    )
    size = [measure.SIZE, measure.SIZE]
    if variant == "full":
        image = fn.decoders.image(data, device="cpu", output_type=types.RGB)
        image = fn.random_resized_crop(image, size=size, interp_type=types.INTERP_LINEAR, antialias=False)
    else:
        image = fn.decoders.image_random_crop(
            data,
            device="cpu",
            output_type=types.RGB,
            random_aspect_ratio=[3 / 4, 4 / 3],
            random_area=[0.08, 1.0],
            num_attempts=10,
        )
        image = fn.resize(image, size=size, interp_type=types.INTERP_LINEAR, antialias=variant == "antialias")
    image = fn.crop_mirror_normalize(
        image,
        dtype=types.FLOAT,
        output_layout="CHW",
        mean=[255 * value for value in measure.MEAN],
        std=[255 * value for value in measure.STD],
        mirror=fn.random.coin_flip(),
    )
    return image, label


def build() -> Iterator:
    made = pipeline()
    made.build()
    while True:
        image, label = made.run()
        yield image.as_tensor(), label


if __name__ == "__main__":
    name = "DALI" if variant == "fused" else f"DALI ({variant})"
    measure.run(name, options, build, lambda batch: np.array(batch[0]), nvidia.dali.__version__)
