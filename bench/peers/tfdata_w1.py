"""W1 in tf.data.

Variants: `fused` (default; decodes only the crop) and `full` (decodes all, then crops). The resize is
TensorFlow's default, without antialiasing.
"""

import os
import sys
from collections.abc import Iterator

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import measure  # noqa: E402

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf  # noqa: E402

options = measure.options()
variant = options.variant or "fused"
tf.config.threading.set_inter_op_parallelism_threads(options.threads)
tf.config.threading.set_intra_op_parallelism_threads(1)
mean = tf.constant([255 * value for value in measure.MEAN])
deviation = tf.constant([255 * value for value in measure.STD])


def prepare(path, label):
    data = tf.io.read_file(path)
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(data),
        tf.zeros([0, 0, 4]),
        min_object_covered=0.0,
        aspect_ratio_range=[3 / 4, 4 / 3],
        area_range=[0.08, 1.0],
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    top, left, _ = tf.unstack(begin)
    height, width, _ = tf.unstack(size)
    if variant == "full":
        image = tf.slice(tf.io.decode_jpeg(data, channels=3), begin, tf.stack([height, width, 3]))
    else:
        image = tf.io.decode_and_crop_jpeg(data, tf.stack([top, left, height, width]), channels=3)
    image = tf.image.resize(image, [measure.SIZE, measure.SIZE], method="bilinear")
    image = tf.image.random_flip_left_right(image)
    image = (image - mean) / deviation
    return tf.transpose(image, [2, 0, 1]), label


def build() -> Iterator:
    paths, labels = measure.files(options.images)
    dataset = tf.data.Dataset.from_tensor_slices((paths, labels)).shuffle(len(paths)).repeat()
    dataset = dataset.map(prepare, num_parallel_calls=tf.data.AUTOTUNE)
    dataset = dataset.batch(options.batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    settings = tf.data.Options()
    settings.threading.private_threadpool_size = options.threads
    settings.deterministic = False
    return iter(dataset.with_options(settings))


if __name__ == "__main__":
    name = "tf.data" if variant == "fused" else f"tf.data ({variant})"
    measure.run(name, options, build, lambda batch: batch[0].numpy(), tf.__version__)
