"""Compares loaders on W4, the online steps of 3D-UNet: balanced crop 128³ → flips → brightness → noise.

    python bench/kits19.py npy VOLUMES --masks KITS19 --count 18
    python bench/w4.py --volumes VOLUMES                   # speed
    python bench/w4.py --volumes VOLUMES --ks              # do crops come from the same distribution?

Every loader runs in a process and an environment of its own, and the rounds are interleaved. README.md
says how to read the figures.
"""

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path

import numpy as np
import rounds
from rounds import ROOT, Contestant, number, spread, times


def field_of(options: argparse.Namespace, threads: int) -> list[Contestant]:
    common = ["--volumes", options.volumes, "--threads", threads]
    common += ["--batches", options.batches, "--warm", options.warm]
    suffix = f", {threads} thread" + "s" * (threads > 1)
    return [
        Contestant("Feedline" + suffix, rounds.feedline("feedline_w4.py", *common)),
        Contestant("DALI" + suffix, rounds.peer("dali", "dali_w4.py", *common)),
        *(
            Contestant(
                f"DataLoader, {variant}" + suffix,
                rounds.peer("torch", "torch_w4.py", *common, "--variant", variant),
            )
            for variant in ("mmap", "full")
        ),
    ]


def table(groups: list[list[Contestant]]) -> str:
    head = ["loader", "samples/s per core, median (least–most)", "CPU-ms per sample, median (least–most)"]
    head += ["Feedline's rate to this one's", "CPU to Feedline's", "first batch, s", "peak memory, MiB"]
    rows = []
    for group in groups:
        feedline = group[0]
        for c in group:
            if not c.reports:
                rows.append([c.name, c.failure, *[""] * 5])
                continue
            # One thread or worker is at most one core.
            rates = [report["samples_per_s"] / report["threads"] for report in c.reports]
            rows.append(
                [
                    c.name,
                    spread(rates, 2),
                    spread(c.values("cpu_s_per_1000"), 1),  # seconds per 1,000 are milliseconds per one
                    times(feedline.median("samples_per_s"), c.median("samples_per_s")),
                    times(c.median("cpu_s_per_1000"), feedline.median("cpu_s_per_1000")),
                    number(c.median("first_batch_s"), 2),
                    number(max(c.values("peak_bytes")) / 2**20, 0),
                ]
            )
    return rounds.table(head, rows)


# --------------------------------------------------------------------------------- where crops begin


def ks_p_value(first: np.ndarray, second: np.ndarray) -> float:
    """The two-sample Kolmogorov–Smirnov test. Ties, as whole numbers have them, only raise the p-value."""
    places = np.union1d(first, second)
    shares = [np.searchsorted(np.sort(side), places, "right") / len(side) for side in (first, second)]
    distance = float(np.abs(shares[0] - shares[1]).max())
    root = math.sqrt(len(first) * len(second) / (len(first) + len(second)))
    x = (root + 0.12 + 0.11 / root) * distance
    if x < 0.2:  # the series below converges slowly there, and its sum is 1
        return 1.0
    return min(1.0, 2 * sum((-1) ** (k - 1) * math.exp(-2 * (k * x) ** 2) for k in range(1, 101)))


def coordinates(volumes: Path, folder: Path, count: int) -> list[Path]:
    """Volumes with the same masks in which the bits of a voxel are its own place: a crop tells its origin."""
    made = []
    for file in sorted(volumes.glob("*_x.npy")):
        shape = np.load(file, mmap_mode="r").shape
        if min(shape[1:]) > 128:  # an axis without choice would test nothing
            places = np.arange(math.prod(shape), dtype=np.int32)
            np.save(folder / file.name, places.view(np.float32).reshape(shape))
            label = file.name.replace("_x.npy", "_y.npy")
            (folder / label).symlink_to(volumes / label)
            made.append(file)
        if len(made) == count:
            return made
    sys.exit(
        f"{volumes} has {len(made)} volumes of more than 128 voxels along every axis; {count} are needed"
    )


def compare_origins(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(dir=ROOT / ".bench") as scratch:
        folder = Path(scratch)
        names = [file.name.removesuffix("_x.npy") for file in coordinates(options.volumes, folder, 3)]
        common = ["--volumes", folder, "--draws", options.draws, "--origins"]
        sides = [
            Contestant("Feedline", rounds.feedline("feedline_w4.py", *common, folder / "feedline.npy")),
            Contestant("reference", rounds.peer("torch", "torch_w4.py", *common, folder / "reference.npy")),
        ]
        rounds.interleave(sides, 1, options.timeout)
        for side in sides:
            if side.failure:
                sys.exit(f"{side.name}: {side.failure}")
        feedline, reference = np.load(folder / "feedline.npy"), np.load(folder / "reference.npy")
    p_values = [
        [ks_p_value(feedline[volume, :, axis], reference[volume, :, axis]) for axis in range(3)]
        for volume in range(len(names))
    ]
    rows = [[name, *(f"{p:.3f}" for p in axes)] for name, axes in zip(names, p_values)]
    print(rounds.table(["p-value of", "depth", "height", "width"], rows))
    least, bar = min(map(min, p_values)), 0.05 / (3 * len(names))
    print(
        f"\n{options.draws:,} origins a side and volume; least p {least:.4f}, bar {bar:.4f} (0.05 over 9 tests)"
    )
    return 0 if least >= bar else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--volumes", type=Path, required=True, help="folder of *_x.npy and *_y.npy")
    parser.add_argument("--threads", default="1,2", help="threads or workers of each loader, by comma")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm", type=int, default=4, help="batches before the clock starts, at least")
    parser.add_argument("--batches", type=int, default=90, help="batches of 2 that are timed")
    parser.add_argument("--timeout", type=float, default=600, help="seconds that one run may take")
    parser.add_argument("--ks", action="store_true", help="compare crop origins instead of speed")
    parser.add_argument("--draws", type=int, default=4000, help="crop origins per side and volume for --ks")
    parser.add_argument("--json", type=Path, help="also write every report here")
    options = parser.parse_args()
    options.volumes = options.volumes.resolve()
    if options.ks:
        return compare_origins(options)

    groups = [field_of(options, int(threads)) for threads in options.threads.split(",")]
    everyone = [c for group in groups for c in group]
    rounds.interleave(everyone, options.rounds, options.timeout)
    print(table(groups) + "\n")
    count = len(list(options.volumes.glob("*_x.npy")))
    settings = f"{count} volumes; {options.rounds} rounds of {options.batches} batches of 2."
    print(rounds.notes(everyone, settings))
    if options.json:
        options.json.write_text(json.dumps({c.name: c.reports for c in everyone}, indent=1) + "\n")
    return 1 if any(c.failure for c in everyone) else 0


if __name__ == "__main__":
    sys.exit(main())
