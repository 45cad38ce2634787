"""What both contestants of the service comparison measure, and how they report it."""

import argparse
import json
import time
from collections.abc import Callable, Iterator

import measure

MIB = 1 << 20


def options() -> argparse.Namespace:
    parser = measure.common_options()
    parser.add_argument("--case", required=True, choices=["big", "scalars", "windows", "end", "w1"])
    parser.add_argument("--workers", type=int, default=1, help="worker processes")
    parser.add_argument("--images", help="folder of JPEG files, for w1")
    return parser.parse_args()


def stream(
    name: str, given: argparse.Namespace, batches: Iterator, bytes_each: int, samples: int, version: str
) -> None:
    """Rate and CPU time of a stream of elements, over all processes of the service."""
    for _ in range(given.warm):
        next(batches)
    machine, cpu, clock = measure.machine_cpu_seconds(), measure.cpu_seconds(), time.perf_counter()
    for _ in range(given.batches):
        next(batches)
    seconds = time.perf_counter() - clock
    cpu = measure.cpu_seconds() - cpu
    machine = measure.machine_cpu_seconds() - machine
    mib = given.batches * bytes_each / MIB
    report = {
        "name": name,
        "version": version,
        "elements_per_s": round(given.batches / seconds, 1),
        "gib_per_s": round(mib / 1024 / seconds, 4),
        "cpu_ms_per_mib": round(cpu * 1000 / mib, 4),
        "samples_per_s": round(given.batches * samples / seconds, 1),
        "cpu_s_per_1000": round(cpu / (given.batches * samples) * 1000, 5),
        "other_cores": round(max(0.0, machine - cpu) / seconds, 2),
    }
    print(json.dumps(report), flush=True)
    measure.end()


def end_of_epoch(name: str, epoch: Callable[[], Iterator], version: str) -> None:
    """How long after the last element the end of an epoch is known."""
    waits = []
    for _ in range(5):
        batches = epoch()
        last = time.perf_counter()
        while True:
            try:
                next(batches)
            except StopIteration:
                break
            last = time.perf_counter()
        waits.append(time.perf_counter() - last)
    report = {"name": name, "version": version, "end_ms": round(sorted(waits)[len(waits) // 2] * 1000, 3)}
    report["end_ms_most"] = round(max(waits) * 1000, 3)
    print(json.dumps(report), flush=True)
    measure.end()
