"""What both sides of the 3D-UNet comparison share: options and report."""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent / "examples" / "unet3d")]
import measure  # noqa: E402
import timeline  # noqa: E402


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True, help="folder of raw scans")
    parser.add_argument("--accelerators", type=int, required=True)
    parser.add_argument(
        "--threads", type=int, required=True, help="threads or workers of all of them together"
    )
    parser.add_argument("--step-ms", type=float, required=True, help="milliseconds a step")
    parser.add_argument("--steps", type=int, required=True, help="steps of each accelerator")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--order", default="exact")
    parser.set_defaults(cpu=measure.cpu_seconds())  # what imports took does not count
    return parser.parse_args()


def report(sources: Sequence[Iterator], arguments: argparse.Namespace, version: str, **more: object) -> None:
    start = time.perf_counter()
    run = timeline.train("", sources, arguments.steps, arguments.step_ms)
    seconds = time.perf_counter() - start
    samples = arguments.accelerators * arguments.steps * arguments.batch
    report = {
        "version": version,
        "seconds": seconds,
        "busy": 100 * (1 - run.waited),
        "least_busy": 100 * (1 - max(map(timeline.waited, run.lanes))),
        "samples_per_s": samples / seconds,
        "cpu_s_per_1000": (measure.cpu_seconds() - arguments.cpu) / samples * 1000,
        **more,
    }
    print(json.dumps(report), flush=True)
    measure.end()
