"""What both sides of the accelerator count share: options, the simulated accelerator, the report."""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import measure  # noqa: E402

BATCH = 7


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=Path, required=True, help="folder of .npy files")
    parser.add_argument("--accelerators", type=int, required=True)
    parser.add_argument(
        "--threads", type=int, required=True, help="threads or workers of all of them together"
    )
    parser.add_argument("--compute", type=float, required=True, help="seconds a step")
    parser.add_argument("--steps", type=int, required=True, help="steps that count, after the first")
    parser.set_defaults(cpu=measure.cpu_seconds())  # what imports took does not count
    return parser.parse_args()


def passes(arguments: argparse.Namespace, files: int) -> int:
    """How often to pass over the files so that every accelerator has batches to the end, and one more."""
    return -(-(arguments.steps + 2) * BATCH * arguments.accelerators // files)


def train(batches: Iterable, arguments: argparse.Namespace) -> float:
    """One accelerator: takes a batch, sleeps, and so on. Gives its utilisation in percent."""
    source = iter(batches)
    for step in range(arguments.steps + 1):
        next(source)
        time.sleep(arguments.compute)
        if step == 0:  # the first step waits for everything to start, and does not count
            start = time.perf_counter()
    return 100 * arguments.steps * arguments.compute / (time.perf_counter() - start)


def report(utilisations: list[float], arguments: argparse.Namespace, version: str) -> None:
    samples = len(utilisations) * (arguments.steps + 1) * BATCH
    report = {
        "version": version,
        "utilisation": statistics.mean(utilisations),
        "least": min(utilisations),
        "cpu_s_per_1000": (measure.cpu_seconds() - arguments.cpu) / samples * 1000,
    }
    print(json.dumps(report), flush=True)
    measure.end()
