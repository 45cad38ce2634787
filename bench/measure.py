"""Measures one loader in one process, the same way for all of them.

A contestant builds an iterator of batches and hands it to `run`, which prints one line of JSON:

    start ──► first batch ──► warm-up ──► timed batches ──► JSON
      └ time to first batch ┘             └ rate, CPU of the process and all its descendants ┘

Nothing is imported but the standard library and numpy, so that it works in every loader's own
environment. It reads /proc and therefore needs Linux.
"""

import argparse
import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

MEAN = [0.485, 0.456, 0.406]
STD = [0.229, 0.224, 0.225]
SIZE = 224
TICKS = os.sysconf("SC_CLK_TCK")


def options() -> argparse.Namespace:
    """What every contestant of W1 understands."""
    parser = common_options()
    parser.add_argument("--images", required=True, help="folder of JPEG files, in class folders")
    return parser.parse_args()


def common_options() -> argparse.ArgumentParser:
    """What every contestant understands."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--threads", type=int, default=2, help="threads, or worker processes, that prepare data"
    )
    parser.add_argument("--batch", type=int, default=64, help="samples in a batch")
    parser.add_argument("--warm", type=int, default=10, help="batches before the clock starts")
    parser.add_argument("--batches", type=int, default=60, help="batches that are timed")
    parser.add_argument(
        "--variant", default="", help="a way of doing the same, where the contestant has several"
    )
    return parser


def files(folder: str) -> tuple[list[str], list[int]]:
    """All JPEG files below a folder, in byte order, and the number of the class folder of each."""
    paths = sorted(str(path) for path in Path(folder).rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    if not paths:
        sys.exit(f"no JPEG files in {folder}")
    classes = sorted({os.path.dirname(path) for path in paths})
    numbers = {name: number for number, name in enumerate(classes)}
    return paths, [numbers[os.path.dirname(path)] for path in paths]


# ------------------------------------------------------------------------------- the process tree


def descendants(pid: int) -> list[int]:
    """The processes below this one that are alive now."""
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as children:
                found += [int(child) for child in children.read().split()]
    except (FileNotFoundError, ProcessLookupError):
        pass  # it ended while we looked
    return found + [below for child in found for below in descendants(child)]


def cpu_seconds() -> float:
    """CPU time of this process, of its ended children, and of its living descendants."""
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    for pid in descendants(os.getpid()):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        # utime, stime, cutime and cstime are fields 14 to 17; the first two were cut off.
        total += sum(map(int, fields[11:15])) / TICKS
    return total


def machine_cpu_seconds() -> float:
    """CPU time that the whole machine has been busy, which shows whether others were at work."""
    user, nice, system, _idle, _wait, irq, softirq, *_ = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq) / TICKS


def pss_bytes(pid: int) -> int:
    """Memory of a process in which a page shared by n processes counts 1/n in each."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return 0


class PeakMemory(threading.Thread):
    """Looks at the memory of the tree a few times a second and keeps the largest sum."""

    def __init__(self, period: float = 0.5) -> None:
        super().__init__(daemon=True)
        self.period = period
        self.peak = 0
        self.over = threading.Event()

    def look(self) -> None:
        me = os.getpid()
        self.peak = max(self.peak, sum(pss_bytes(pid) for pid in [me, *descendants(me)]))

    def run(self) -> None:
        while not self.over.wait(self.period):
            self.look()


# ----------------------------------------------------------------------------------- the measuring


def run(
    name: str,
    arguments: argparse.Namespace,
    build: Callable[[], Iterator],
    array: Callable[[object], object],
    version: str,
) -> None:
    """Measures a loader of W1; `array` gives a batch's images as a numpy array."""

    def check(batch: object) -> dict:
        images = array(batch)
        shape = (arguments.batch, 3, SIZE, SIZE)
        if images.shape != shape or str(images.dtype) != "float32":
            sys.exit(f"{name} made {images.shape} {images.dtype}, not {shape} float32")
        mean, deviation = float(images.mean()), float(images.std())
        if abs(mean) > 1 or not 0.5 < deviation < 2:
            sys.exit(
                f"{name} made values with mean {mean:.3f} and deviation {deviation:.3f}: not normalised images"
            )
        return {"mean": round(mean, 3), "deviation": round(deviation, 3)}

    timed(name, arguments, build, check, version)


def timed(
    name: str,
    arguments: argparse.Namespace,
    build: Callable[[], Iterator],
    check: Callable[[object], dict],
    version: str,
) -> None:
    """Measures the iterator that `build` makes. `check` looks at the first batch and adds to the report.

    Memory is watched until the clock starts and looked at once more when it stops: watching costs
    CPU time, which must not count. The rate is that of a consumer that does nothing with a batch.
    """
    memory = PeakMemory()
    memory.start()
    started = time.perf_counter()
    batches = build()
    batch = next(batches)
    first = time.perf_counter() - started
    found = check(batch)

    for _ in range(arguments.warm - 1):
        batch = next(batches)
    memory.look()
    memory.over.set()
    memory.join()

    machine, cpu, clock = machine_cpu_seconds(), cpu_seconds(), time.perf_counter()
    for _ in range(arguments.batches):
        batch = next(batches)
    seconds = time.perf_counter() - clock
    cpu = cpu_seconds() - cpu
    machine = machine_cpu_seconds() - machine
    memory.look()

    count = arguments.batches * arguments.batch
    report = {
        "name": name,
        "version": version,
        "threads": arguments.threads,
        "samples": count,
        "seconds": round(seconds, 4),
        "samples_per_s": round(count / seconds, 2),
        "cpu_s_per_1000": round(cpu / count * 1000, 4),
        "first_batch_s": round(first, 3),
        "peak_bytes": memory.peak,
        "other_cores": round(max(0.0, machine - cpu) / seconds, 2),
        **found,
    }
    print(json.dumps(report), flush=True)
    end()


def end() -> None:
    """Leaves at once. Some loaders take long to wind down, and workers left behind would disturb the next."""
    for pid in descendants(os.getpid()):
        os.kill(pid, signal.SIGKILL)
    os._exit(0)
