"""How many simulated accelerators a loader keeps busy: MLPerf Storage's unet3d at 1/20. Scaled, not MLPerf.

    python bench/accelerators.py --samples DIR            # makes the files in DIR first: 1.2 GB

The rule: an accelerator takes a batch of 7 and sleeps the compute time of a step. Its utilisation is
compute time / wall time without the first step, and the score is the largest number of accelerators whose
mean utilisation is at least 90 %. Both sides have the same number of threads or workers in total.

What differs from MLPerf Storage, besides its size: all samples have the mean size, so that they can be
stacked (there, sizes vary and the bytes are thrown away); files are .npy, not zipped .npz, so that nobody
computes checksums; they come from the page cache; and accelerators do not wait for each other. One of
them takes as many bytes a second as at full size, which is much for a small machine: `--slower 4` gives a
finer scale.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import rounds
from rounds import Contestant, number, spread

SCALE = 20
COMPUTE = {"H100": 0.323 / SCALE, "A100": 0.636 / SCALE}
SHAPE = (1, 179, 195, 210)  # 7,330,050 bytes: a twentieth of 146,600,628
FILES = 168
BAR = 90.0


def make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(FILES):
        file = folder / f"sample_{index:03}.npy"
        if not file.exists():
            np.save(file, np.random.default_rng(index).integers(0, 256, SHAPE, np.uint8))
            print(f"\r{index + 1} of {FILES} files", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def warm(folder: Path) -> None:
    for file in folder.glob("*.npy"):
        file.read_bytes()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=Path, required=True, help="folder for the files")
    parser.add_argument("--threads", type=int, default=4, help="threads or workers in total")
    parser.add_argument("--steps", type=int, default=100, help="steps that count, of each accelerator")
    parser.add_argument("--slower", type=float, default=1, help="give every step this many times longer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=300, help="seconds that one run may take")
    options = parser.parse_args()
    options.samples = options.samples.resolve()
    make(options.samples)
    warm(options.samples)

    rows, everyone = [], []
    for model, compute in COMPUTE.items():
        scores = {"Feedline": 0, "DataLoader": 0}
        still, count = list(scores), 0
        while still:  # one more accelerator, for whoever kept all the others busy
            count += 1
            common = ["--samples", options.samples, "--threads", options.threads, "--accelerators", count]
            common += ["--compute", compute * options.slower, "--steps", options.steps]
            commands = {
                "Feedline": rounds.feedline("feedline_accelerators.py", *common),
                "DataLoader": rounds.peer("torch", "torch_accelerators.py", *common),
            }
            group = [Contestant(name, commands[name]) for name in still]
            print(f"{model}, {count} accelerators", file=sys.stderr)
            rounds.interleave(group, options.rounds, options.timeout)
            for c in group:
                reached = c.median("utilisation") or 0.0
                if reached >= BAR:
                    scores[c.name] = count
                else:
                    still.remove(c.name)
                utilisation = spread(c.values("utilisation"), 1) if c.reports else c.failure
                cpu = number(c.median("cpu_s_per_1000"), 2)
                rows.append([model, str(count), c.name, utilisation, cpu, "yes" if reached >= BAR else "no"])
            everyone += group
        for name, score in scores.items():
            rows.append([model, f"**{score}**", name, "**the score**", "", ""])

    head = ["compute time of", "accelerators", "loader", "utilisation, %, median (least–most)"]
    head += ["CPU-s per 1,000 samples", "≥ 90 %"]
    print(rounds.table(head, rows) + "\n")
    settings = (
        f"{options.threads} threads or workers in total, {options.rounds} rounds of {options.steps} steps; "
    )
    settings += f"compute times of a step times {options.slower:g}; " if options.slower != 1 else ""
    print(rounds.notes(everyone, settings + "scaled to 1/20, not MLPerf."))
    return 1 if any(c.failure for c in everyone) else 0


if __name__ == "__main__":
    sys.exit(main())
