"""A billion samples, fully shuffled: how many a second, and how much memory.

usage: python bench/range.py [--samples 100000000] [--threads 2]
"""

import argparse
import json
import resource
import sys
import time

import feedline as fl

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--samples", type=int, default=100_000_000, help="how many of them to take")
parser.add_argument("--threads", type=int, default=2)
options = parser.parse_args()

loader = fl.range(1_000_000_000).shuffle(seed=0).batch(256).loader(threads=options.threads)
start, seen = time.perf_counter(), 0
for batch in loader:
    seen += len(batch["index"])
    if seen >= options.samples:
        break
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print(
    json.dumps(
        {
            "samples": seen,
            "threads": options.threads,
            "million_samples_per_second": round(seen / seconds / 1e6, 2),
            "peak_memory_mb": round(peak / 1e6, 1),
        }
    )
)
