"""How long a program waits before it can train: importing Feedline, and the first batch.

usage: python bench/startup.py [FOLDER OF IMAGES] [--rounds 7]
"""

import argparse
import json
import statistics
import subprocess
import sys

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("images", nargs="?", help="a folder of images; without it, only the import")
parser.add_argument("--rounds", type=int, default=7)
options = parser.parse_args()

IMPORT = "import time, numpy; t = time.perf_counter(); import feedline; print(time.perf_counter() - t)"
FIRST = f"""
import time; import feedline as fl; t = time.perf_counter()
ds = fl.images({options.images!r}).shuffle().decode().random_resized_crop(224).flip()
ds = ds.normalize((.485, .456, .406), (.229, .224, .225)).layout("CHW").batch(64)
next(iter(ds.loader())); print(time.perf_counter() - t)
"""


def seconds(program: str) -> float:
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return float(run.stdout)


report = {}
programs = {"import_ms_over_numpy": IMPORT} | ({"first_batch_ms": FIRST} if options.images else {})
for name, program in programs.items():
    times = [seconds(program) * 1000 for _ in range(options.rounds)]
    report[name] = {"median": round(statistics.median(times), 1), "best": round(min(times), 1)}
print(json.dumps(report))
