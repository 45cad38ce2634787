"""W4's steps in Feedline within a limit on memory, for `bench/memory.py`.

The limit is taken on before anything else is imported, so that it holds for all there is.
"""

import argparse
import os
import resource
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--volumes", type=Path, required=True, help="folder of *_x.npy and *_y.npy")
parser.add_argument("--threads", type=int, required=True)
parser.add_argument("--budget", type=int, required=True, help="bytes that the loader may use for samples")
parser.add_argument("--epochs", type=int, required=True)
parser.add_argument("--group", type=Path, help="cgroup to enter")
parser.add_argument("--limit", type=int, help="bytes of data that the process may have, without a cgroup")
options = parser.parse_args()
if options.group:
    (options.group / "cgroup.procs").write_text(str(os.getpid()))
elif options.limit:
    # Not the address space, which also counts what is reserved and never used.
    resource.setrlimit(resource.RLIMIT_DATA, (options.limit, options.limit))

import json  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402

import feedline as fl  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import measure  # noqa: E402

dataset = (
    fl.npy(options.volumes, fields={"image": "*_x.npy", "label": "*_y.npy"})
    .shuffle(seed=0)
    .random_balanced_crop(128, p=0.4)
    .random_flip(p=1 / 3)
    .cast("float32", field="image")
    .cast("uint8", field="label")
    .random_brightness(0.7, 1.3, p=0.1)
    .random_noise(std=0.1, p=0.1)
    .repeat(options.epochs)
    .batch(2)
)
loader = dataset.loader(threads=options.threads, memory=options.budget)
cpu, start, samples = measure.cpu_seconds(), time.perf_counter(), 0
for batch in loader:
    samples += len(batch["image"])
seconds = time.perf_counter() - start

status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
report = {
    "version": fl.__version__,
    "samples_per_s": samples / seconds,
    "cpu_s_per_1000": (measure.cpu_seconds() - cpu) / samples * 1000,
    "resident_bytes": int(status["VmHWM"].split()[0]) * 1024,
    "read_bytes": loader.stats()["bytes_read"],
}
for name in ("memory.peak", "memory.max_usage_in_bytes"):  # version 2, version 1
    if options.group and (options.group / name).exists():
        report["group_bytes"] = int((options.group / name).read_text())
print(json.dumps(report), flush=True)
measure.end()
