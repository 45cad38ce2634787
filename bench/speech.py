"""Samples that sleep: how close loaders come to the work bound when some samples are much slower.

    python bench/speech.py                          # Speech-3s and Speech-10s, about 45 minutes
    python bench/speech.py --sets 3s --shares 20 --rounds 5

After the Speech-3s and Speech-10s micro-benchmarks of MinatoLoader (EuroSys 2026), 100 times faster:
every sample sleeps 5 ms, a share of them 30 or 100 ms more; 12 threads or worker processes, batches of
24. The list of costs is made here and handed to every loader, so the work is known exactly.

Bound: (sum of all costs − cost of the sample delivered last) / threads. No loader with that many threads
can begin its last sample earlier. The share of the bound is bound / time from asking for the first batch
to having the last; workers of the DataLoader are up before the clock starts, Feedline's are not.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import rounds
from rounds import Contestant, number, spread, times

SETS = {"3s": 30, "10s": 100}  # milliseconds that slow samples take more
FAST_MS = 5
# The slow share of a batch may vary this much more out of order than in order.
EVENNESS = 1.25


def costs(samples: int, slow_ms: int, share: float, seed: int) -> np.ndarray:
    """Milliseconds of each sample. Exactly this share is slow."""
    slow = np.random.default_rng(seed).permutation(samples) < round(share * samples)
    return FAST_MS + slow_ms * slow.astype(np.int64)


def lasting(ms: float) -> float:
    """Milliseconds that a sleep of `ms` takes on this machine."""
    start = time.perf_counter()
    for _ in range(100):
        time.sleep(ms / 1000)
    return (time.perf_counter() - start) * 1000 / 100


def judge(contestant: Contestant, ms: np.ndarray, threads: int) -> None:
    """Adds to every report the share of the bound and the unevenness of its batches, and checks it."""
    for report in contestant.reports:
        delivered = np.concatenate([np.array(batch) for batch in report["batches"]])
        if not np.array_equal(np.sort(delivered), np.arange(len(ms))):
            sys.exit(f"{contestant.name} did not deliver every sample exactly once")
        bound = (ms.sum() - ms[delivered[-1]]) / 1000 / threads
        report["of_bound"] = 100 * bound / report["seconds"]
        report["cpu_s_per_1000"] = report["cpu_s"] / len(ms) * 1000
        full = [batch for batch in report["batches"] if len(batch) == len(report["batches"][0])]
        report["unevenness"] = statistics.pstdev((ms[batch] > FAST_MS).mean() for batch in full)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", default="3s,10s", help="3s, 10s or both, by comma")
    parser.add_argument("--shares", default="0,5,20,50,100", help="percent of slow samples, by comma")
    parser.add_argument("--samples", type=int, default=5000)
    parser.add_argument("--threads", type=int, default=12, help="threads or worker processes")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()

    rows, everyone, uneven = [], [], []
    for name in options.sets.split(","):
        for percent in map(float, options.shares.split(",")):
            ms = costs(options.samples, SETS[name], percent / 100, seed=0)
            with tempfile.TemporaryDirectory() as scratch:
                file = Path(scratch) / "costs.npy"
                np.save(file, ms)
                common = ["--costs", file, "--threads", options.threads, "--seed", 0, "--variant"]
                group = [
                    Contestant("Feedline, exact", rounds.feedline("feedline_speech.py", *common, "exact")),
                    Contestant("Feedline, ready", rounds.feedline("feedline_speech.py", *common, "ready")),
                    Contestant("DataLoader", rounds.peer("torch", "torch_speech.py", *common, "exact")),
                ]
                print(f"Speech-{name}, {percent:g} % slow", file=sys.stderr)
                rounds.interleave(group, options.rounds, timeout=60 + 4 * ms.sum() / 1000 / options.threads)
            exact = group[0]
            for c in group:
                judge(c, ms, options.threads)
                setting = [f"Speech-{name}, {percent:g} %", c.name]
                if not c.reports:
                    rows.append([*setting, c.failure, *[""] * 5])
                    continue
                ratio = times(c.median("unevenness"), exact.median("unevenness"))
                if c.name == "Feedline, ready" and exact.reports:
                    uneven += [setting[0]] * (c.median("unevenness") > EVENNESS * exact.median("unevenness"))
                rows.append(
                    [
                        *setting,
                        spread(c.values("of_bound"), 1),
                        spread(c.values("seconds"), 2),
                        times(c.median("seconds"), exact.median("seconds")),
                        number(c.median("cpu_s_per_1000"), 2),
                        number(c.median("unevenness"), 4),
                        ratio,
                    ]
                )
            everyone += group

    head = ["slow samples", "loader", "% of the bound, median (least–most)", "seconds, median (least–most)"]
    head += ["time to exact", "CPU-s per 1,000", "slow share of a batch, std", "to exact"]
    print(rounds.table(head, rows) + "\n")
    print(
        rounds.notes(
            everyone,
            f"{options.samples:,} samples, {options.threads} threads or workers, batches of 24, "
            f"{options.rounds} rounds. Every sample came exactly once in every run. A sleep of {FAST_MS} ms takes "
            f"{lasting(FAST_MS):.2f} ms here, which no loader can help.",
        )
    )
    if uneven:
        print(f"\nready mixes slow samples more than {EVENNESS} times less evenly at: {', '.join(uneven)}")
    return 1 if uneven or any(c.failure for c in everyone) else 0


if __name__ == "__main__":
    sys.exit(main())
