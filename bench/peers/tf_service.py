"""tf.data service: dispatcher and workers in processes of their own, on loopback."""

import os
import socket
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf  # noqa: E402

service = tf.data.experimental.service


def serve(kind: str, port: int, dispatcher: int, threads: int) -> None:
    """One process of the service, until it is killed."""
    if kind == "dispatcher":
        folder = tempfile.mkdtemp(prefix="tf-service-")
        config = service.DispatcherConfig(port=port, work_dir=folder, fault_tolerant_mode=True)
        server = service.DispatchServer(config)
    else:
        tf.config.threading.set_inter_op_parallelism_threads(threads)
        tf.config.threading.set_intra_op_parallelism_threads(1)
        server = service.WorkerServer(
            service.WorkerConfig(
                port=port,
                dispatcher_address=f"localhost:{dispatcher}",
                worker_address=f"localhost:{port}",
            )
        )
    print("up", flush=True)
    server.join()


if len(sys.argv) > 1 and sys.argv[1] == "serve":
    serve(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))

import common_service  # noqa: E402
import measure  # noqa: E402

given = common_service.options()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def start(kind: str, dispatcher: int = 0) -> int:
    port = free_port()
    command = [sys.executable, __file__, "serve", kind, str(port), str(dispatcher), str(given.threads)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    process.stdout.readline()
    return port


def w1() -> tf.data.Dataset:
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
        image = tf.io.decode_and_crop_jpeg(data, tf.stack([top, left, height, width]), channels=3)
        image = tf.image.resize(image, [measure.SIZE, measure.SIZE], method="bilinear")
        image = (tf.image.random_flip_left_right(image) - mean) / deviation
        return tf.transpose(image, [2, 0, 1]), label

    paths, labels = measure.files(given.images)
    ds = tf.data.Dataset.from_tensor_slices((paths, labels)).shuffle(len(paths)).repeat()
    ds = ds.map(prepare, num_parallel_calls=tf.data.AUTOTUNE)
    return ds.batch(given.batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def dataset() -> tuple[tf.data.Dataset, int, int]:
    if given.case == "big":
        fill = lambda number: tf.fill([1 << 18], tf.cast(number, tf.float32))  # noqa: E731
        ds = tf.data.Dataset.range(1 << 40).map(fill, num_parallel_calls=tf.data.AUTOTUNE)
        return ds, common_service.MIB, 1
    if given.case in ("scalars", "windows"):
        return tf.data.Dataset.range(1 << 40), 8, 1
    if given.case == "end":
        return tf.data.Dataset.range(200), 8, 1
    return w1(), given.batch * 3 * measure.SIZE**2 * 4, given.batch


def main() -> None:
    ds, bytes_each, samples = dataset()
    if given.variant == "local":
        batches = ds.prefetch(tf.data.AUTOTUNE)
        name = "tf.data, local"
    else:
        dispatcher = start("dispatcher")
        for _ in range(given.workers):
            start("worker", dispatcher)
        dealt = given.case in ("end", "windows")
        mode = service.ShardingPolicy.DYNAMIC if dealt else service.ShardingPolicy.OFF
        distribute = service.distribute(mode, f"grpc://localhost:{dispatcher}", compression=None)
        batches = ds.apply(distribute).prefetch(tf.data.AUTOTUNE)
        name = "tf.data service"
    if given.case == "end":
        common_service.end_of_epoch(name, lambda: iter(batches), tf.__version__)
    common_service.stream(name, given, iter(batches), bytes_each, samples, tf.__version__)


main()
