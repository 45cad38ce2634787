"""What a Python function in a pipeline costs: each call, and each MiB that is passed through.

Feedline's `map` with processes and shared memory, against the same function in a pool of processes that
pickles (`multiprocessing`), and in workers of a PyTorch DataLoader if there is a Python that has torch.
All have as many processes, and all stack the results.

usage: python bench/functions.py [--processes 2] [--calls 20000] [--rounds 3] [--torch PYTHON]
"""

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

SIZES = {"one number": 8, "64 KiB": 1 << 16, "1 MiB": 1 << 20, "8 MiB": 8 << 20}
BATCH = 16
ROOT = Path(__file__).parents[1]


def same(sample):
    return sample


def calls_of(size: int, calls: int) -> int:
    """So many that each takes about as long."""
    return max(200, min(calls, int(calls * 40_000 / (40_000 + size)))) // BATCH * BATCH


def data(size: int, count: int) -> np.ndarray:
    rows = min(count, 64)
    return np.zeros((rows, size // 8), dtype=np.int64)


def feedline(size: int, count: int, processes: int) -> float:
    import feedline as fl

    rows = data(size, count)
    ds = fl.arrays(x=rows).repeat(-(-count // len(rows))).take(count)
    ds = ds.map(same, output={"x": ("int64", (size // 8,))}).batch(BATCH)
    # Not so far ahead that most of it is done before the clock starts.
    loader = ds.loader(threads=processes, ahead=4)
    batches = iter(loader)
    next(batches)
    start = time.perf_counter()
    for _ in batches:
        pass
    spent = time.perf_counter() - start
    loader.close()
    return spent / (count - BATCH)


def pickling(size: int, count: int, processes: int) -> float:
    rows = data(size, count)
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        samples = ({"x": rows[at % len(rows)]} for at in range(count))
        chunk = max(1, min(64, (1 << 20) // size))
        made = pool.imap(same, samples, chunk)
        for _ in range(BATCH):
            next(made)
        start = time.perf_counter()
        batch = []
        for sample in made:
            batch.append(sample["x"])
            if len(batch) == BATCH:
                np.stack(batch)
                batch = []
        return (time.perf_counter() - start) / (count - BATCH)


def torch(size: int, count: int, processes: int) -> float:
    from torch import from_numpy
    from torch.utils.data import DataLoader, Dataset

    class Rows(Dataset):
        rows = data(size, count)

        def __len__(self):
            return count

        def __getitem__(self, index):
            made = same({"x": self.rows[index % len(self.rows)]})
            return {"x": from_numpy(made["x"])}

    batches = iter(DataLoader(Rows(), batch_size=BATCH, num_workers=processes))
    next(batches)
    start = time.perf_counter()
    for _ in batches:
        pass
    return (time.perf_counter() - start) / (count - BATCH)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--torch", default=str(ROOT / ".bench/venvs/torch/bin/python"))
    parser.add_argument("--only", help=argparse.SUPPRESS)
    args = parser.parse_args()
    contestants = {"feedline": feedline, "pickling": pickling, "torch": torch}
    if args.only:
        name, size, count = args.only.split(",")
        print(json.dumps(contestants[name](int(size), int(count), args.processes)))
        return
    pythons = {"feedline": sys.executable, "pickling": sys.executable}
    if os.path.exists(args.torch):
        pythons["torch"] = args.torch
    else:
        print("torch is left out: bench/setup.sh torch makes its environment")
    for label, size in SIZES.items():
        count = calls_of(size, args.calls)
        times: dict[str, list[float]] = {name: [] for name in pythons}
        for _ in range(args.rounds):
            # One after another in each round, so that whatever else the machine does hits all alike.
            for name, python in pythons.items():
                command = [python, __file__, "--only", f"{name},{size},{count}"]
                command += ["--processes", str(args.processes)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                times[name].append(json.loads(done.stdout))
        medians = {name: statistics.median(found) for name, found in times.items()}
        said = [f"{name} {micros * 1e6:9.1f} µs" for name, micros in medians.items()]
        ratios = [
            f"{medians[name] / medians['feedline']:.2f}× as fast as {name}" for name in medians if name != "feedline"
        ]
        print(f"{label:>10}, {count} calls: {'  '.join(said)}   feedline is {', '.join(ratios)}", flush=True)


if __name__ == "__main__":
    main()
