"""Saving to Arrow files and reading them back, against the least it could cost.

Writing: bytes a second of `save` for samples that cost nothing to make, against one `write` and
`fsync` of as many bytes a file. Reading: batches of shuffled and unshuffled rows of `fl.arrow`, against
pyarrow (rows gathered from memory-mapped files), with both copied into batches that can be trained on.

Needs pyarrow. usage: python bench/save.py [--folder DIR] [--samples 4000] [--threads 2] [--rounds 3]
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

import feedline as fl

SHAPE = (3, 112, 112)
BATCH = 64


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def timed(work) -> tuple[float, float]:
    """Seconds and CPU seconds."""
    start, before = time.perf_counter(), cpu()
    work()
    return time.perf_counter() - start, cpu() - before


def plain_write(folder: Path, sizes: list[int], content: bytes) -> None:
    """As many bytes in as many files, written and synced."""
    folder.mkdir()
    for number, size in enumerate(sizes):
        with open(folder / str(number), "wb", buffering=0) as file:
            left = memoryview(content)[:size]
            while left:
                left = left[file.write(left[: 16 << 20]) :]
            os.fsync(file.fileno())


def read_feedline(folder: Path, threads: int, shuffled: bool) -> int:
    ds = fl.arrow(folder)
    ds = (ds.shuffle(seed=0) if shuffled else ds).batch(BATCH)
    total = 0
    for batch in ds.loader(threads=threads):
        total += int(batch["image"][:, 0, 0, 0].sum()) + int(batch["label"].sum())
    return total


def read_pyarrow(folder: Path, shuffled: bool) -> int:
    batches = []
    for path in sorted(folder.glob("*.arrow")):
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            image = batch.column("image").storage.flatten().to_numpy()
            labels = batch.column("label").to_numpy()
            batches.append((image.reshape(-1, *SHAPE), labels))
    places = [(at, row) for at, (_, labels) in enumerate(batches) for row in range(len(labels))]
    if shuffled:
        np.random.default_rng(0).shuffle(places)
    total = 0
    images = np.empty((BATCH, *SHAPE), np.uint8)
    for first in range(0, len(places), BATCH):
        chosen = places[first : first + BATCH]
        for at, (piece, row) in enumerate(chosen):
            images[at] = batches[piece][0][row]
        labels = np.array([batches[piece][1][row] for piece, row in chosen])
        total += int(images[: len(chosen), 0, 0, 0].sum()) + int(labels.sum())
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", default=None, help="where to write [default: a temporary one]")
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        run(root, options)
    finally:
        shutil.rmtree(root)


def run(root: Path, options: argparse.Namespace) -> None:
    rng = np.random.default_rng(0)
    count = options.samples
    images = rng.integers(0, 256, (count, *SHAPE), np.uint8)
    ds = fl.arrays(image=images, label=np.arange(count))
    size = images.nbytes + 8 * count
    gb = size / 1e9
    figures: dict[str, list[tuple[float, float]]] = {}

    def note(name: str, work) -> None:
        figures.setdefault(name, []).append(timed(work))

    content = images.tobytes()
    for number in range(options.rounds):
        saved, plain = root / f"saved{number}", root / f"plain{number}"
        note("save", lambda: ds.save(saved, shard="64MB", threads=options.threads, progress=False))
        sizes = [path.stat().st_size for path in saved.glob("*.arrow")]
        note("write and fsync", lambda: plain_write(plain, sizes, content))
        shutil.rmtree(plain)
        expected = int(images[:, 0, 0, 0].sum()) + count * (count - 1) // 2
        # Once before, so that both find the files in memory.
        read_pyarrow(saved, False)
        for shuffled in (False, True):
            order = "shuffled" if shuffled else "in order"

            def check(total: int) -> None:
                assert total == expected, (total, expected)

            note(
                f"fl.arrow, {order}",
                lambda: check(read_feedline(saved, options.threads, shuffled)),
            )
            note(f"pyarrow mmap, {order}", lambda: check(read_pyarrow(saved, shuffled)))
        shutil.rmtree(saved)

    report: dict[str, object] = {"samples": count, "gigabytes": round(gb, 3), "threads": options.threads}
    median = {}
    for name, rounds in figures.items():
        seconds = statistics.median(wall for wall, _ in rounds)
        used = statistics.median(cpu for _, cpu in rounds)
        median[name] = seconds
        report[name] = {
            "gb_per_second": round(gb / seconds, 2),
            "samples_per_second": round(count / seconds),
            "cpu_seconds_per_gb": round(used / gb, 3),
            "cpu_seconds_per_1000_samples": round(used / count * 1000, 4),
        }
    report["ratios"] = {
        "save / write and fsync": round(median["write and fsync"] / median["save"], 3),
        "fl.arrow / pyarrow, in order": round(
            median["pyarrow mmap, in order"] / median["fl.arrow, in order"], 3
        ),
        "fl.arrow / pyarrow, shuffled": round(
            median["pyarrow mmap, shuffled"] / median["fl.arrow, shuffled"], 3
        ),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
