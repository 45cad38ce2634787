"""What the contestants of the sleeping samples share: their options, and their report."""

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import measure  # noqa: E402
import numpy as np  # noqa: E402

BATCH = 24


def options() -> tuple[argparse.Namespace, np.ndarray]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--costs", required=True, help="file of the milliseconds that each sample takes")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--variant", default="exact")
    arguments = parser.parse_args()
    return arguments, np.load(arguments.costs)


class Clock:
    """Starts when it is made; `report` stops it."""

    def __init__(self) -> None:
        self.cpu, self.start = measure.cpu_seconds(), time.perf_counter()

    def report(self, batches: list[np.ndarray], version: str) -> None:
        seconds = time.perf_counter() - self.start
        report = {
            "version": version,
            "seconds": seconds,
            "cpu_s": measure.cpu_seconds() - self.cpu,
            "batches": [batch.tolist() for batch in batches],
        }
        print(json.dumps(report), flush=True)
        measure.end()
