"""How long synchronous training steps take if batches go by length, and if all ranks take them in rounds.

A step takes as long as its longest sample, on whichever rank: no training is needed to count that. The
batches come out of real loaders, one for each rank. Lengths are log-normal (median 128, sigma 1, cut at
2,048), or those of the lines of a text, in words:

    .venv/bin/python bench/bucket.py
    .venv/bin/python bench/bucket.py --text corpus.txt
"""

import argparse
import json
import time
from itertools import zip_longest

import feedline as fl
import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", help="a file with a sample a line, tokens parted by spaces")
    parser.add_argument("--samples", type=int, default=65_536, help="samples, if there is no text")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--size", type=int, default=32, help="samples in a batch of one rank")
    parser.add_argument("--stretch", type=int, default=8_192)
    parser.add_argument("--boundaries", help="lengths, such as 64,128,256; by default 12 equal shares")
    parser.add_argument("--json", help="write the figures to this file as well")
    given = parser.parse_args()

    lengths = of_text(given.text) if given.text else log_normal(given.samples)
    if given.boundaries:
        boundaries = sorted({int(part) for part in given.boundaries.split(",")})
    else:
        shares = np.quantile(lengths, np.arange(1, 12) / 12)
        boundaries = sorted({int(length) for length in shares})
    print(
        f"{len(lengths)} samples of {lengths.min()} to {lengths.max()} tokens (median "
        f"{np.median(lengths):.0f}, mean {lengths.mean():.0f}), {given.ranks} ranks, batches of {given.size}"
    )
    print(f"boundaries {boundaries}, stretches of {given.stretch}\n")

    # A field of bytes has the length of its bytes: what is in them does not matter here.
    samples = fl.arrays(tokens=[bytes(length) for length in lengths.tolist()]).shuffle(seed=0)
    buckets = samples.bucket(boundaries, size=given.size, stretch=given.stretch)
    contestants = {
        "batch": (samples.batch(given.size), False),
        "bucket": (buckets, False),
        "bucket, in rounds": (buckets, True),
    }
    figures = {}
    for name, (dataset, rounds) in contestants.items():
        figures[name] = measure(dataset, rounds, given.ranks, lengths)
    usual = figures["batch"]["step_time"]
    print(f"{'':20}{'steps':>8}{'step time':>14}{'ratio':>8}{'padding':>10}{'own padding':>13}{'seconds':>9}")
    for name, found in figures.items():
        found["ratio"] = usual / found["step_time"]
        print(
            f"{name:20}{found['steps']:8}{found['step_time']:14,}{found['ratio']:7.2f}×"
            f"{found['padding']:10.1%}{found['own_padding']:13.1%}{found['seconds']:9.1f}"
        )
    print(
        "\nstep time: the longest sample of each step, summed up; padding: share of what all ranks compute or"
        "\nwait for that is no token; own padding: that within batches alone; seconds: all loaders together"
    )
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump({"boundaries": boundaries, **vars(given), "figures": figures}, file, indent=2)


def log_normal(count: int) -> np.ndarray:
    random = np.random.default_rng(0)
    drawn = np.exp(random.normal(np.log(128), 1.0, count))
    return np.clip(drawn.round(), 1, 2048).astype(np.int64)


def of_text(path: str) -> np.ndarray:
    with open(path, encoding="utf-8", errors="replace") as file:
        counts = [len(line.split()) for line in file]
    lengths = np.array([count for count in counts if count], dtype=np.int64)
    if not len(lengths):
        raise SystemExit(f"{path} has no line with a word")
    return lengths


def measure(dataset: fl.Dataset, rounds: bool, ranks: int, lengths: np.ndarray) -> dict[str, float]:
    """One epoch on all ranks, step by step."""
    start = time.perf_counter()
    loaders = [
        dataset.loader(rank=rank, world=ranks, rounds=rounds, threads=1, with_index=True)
        for rank in range(ranks)
    ]
    steps, step_time, cells, own_cells = 0, 0, 0, 0
    seen = np.zeros(len(lengths), dtype=np.int64)
    # Each loader's threads end with its epoch: `zip_longest` runs all of them side by side.
    for batches in zip_longest(*loaders):
        own = [batch["index"] for batch in batches if batch is not None]
        longest = [int(lengths[index].max(initial=0)) for index in own]
        steps += 1
        step_time += max(longest)
        rows = [len(index) for index in own]
        cells += max(rows) * max(longest) * ranks
        own_cells += sum(count * length for count, length in zip(rows, longest))
        for index in own:
            seen[index] += 1
    for loader in loaders:
        loader.close()
    assert (seen == 1).all(), "every sample is delivered once"
    real = int(lengths.sum())
    return {
        "steps": steps,
        "step_time": step_time,
        "padding": 1 - real / cells,
        "own_padding": 1 - real / own_cells,
        "seconds": time.perf_counter() - start,
    }


if __name__ == "__main__":
    main()
