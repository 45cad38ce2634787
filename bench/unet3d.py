"""3D-UNet from the scanner's files to the accelerator: offline and online steps in one pipeline.

    python bench/kits19.py nifti DIR --scale 8 --masks MASKS     # 18 scans
    python bench/unet3d.py --data DIR

First without accelerators to wait for: how long the same number of samples takes, with equal steps and as
many workers as threads. Then with 1, 2, 4 and 8 simulated accelerators whose steps take `--slack` times as
long as Feedline needs for the batches they take, so that the processor suffices: which share of their time
they compute, from the first batch on.

Every round starts anew: what Feedline keeps about masks from one run to the next is not there.
"""

import argparse
import sys
from pathlib import Path

import rounds
from rounds import Contestant, number, spread, times

BATCH = 2


def contestants(
    options: argparse.Namespace, accelerators: int, step_ms: float, steps: int
) -> list[Contestant]:
    common = ["--data", options.data, "--threads", options.threads, "--batch", BATCH]
    common += ["--accelerators", accelerators, "--step-ms", step_ms, "--steps"]
    found = [
        Contestant(
            f"Feedline, {order}", rounds.feedline("feedline_unet3d.py", *common, steps, "--order", order)
        )
        for order in ("exact", "ready")
    ]
    if options.without_peers:
        return found
    # It would take very long; what it reaches does not depend on how often.
    fewer = min(steps, max(2, options.batches // accelerators))
    return [*found, Contestant("DataLoader", rounds.peer("torch", "torch_unet3d.py", *common, fewer))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of case_*/imaging.nii.gz and …")
    parser.add_argument("--threads", type=int, default=2, help="threads or workers in total")
    parser.add_argument("--batches", type=int, default=48, help="batches of 2, without accelerators")
    parser.add_argument("--steps", type=int, default=32, help="steps of each accelerator")
    parser.add_argument("--accelerators", default="1,2,4,8", help="how many there are, by comma")
    parser.add_argument("--slack", type=float, default=1.25, help="how much longer than Feedline steps take")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without-peers", action="store_true")
    parser.add_argument("--timeout", type=float, default=900, help="seconds that one run may take")
    options = parser.parse_args()
    options.data = options.data.resolve()
    for file in options.data.rglob("*.nii.gz"):
        file.read_bytes()

    group = contestants(options, 1, 0, options.batches)
    rounds.interleave(group, options.rounds, options.timeout)
    last = group[-1]
    rows = [
        [
            c.name,
            spread(c.values("seconds"), 1) if c.reports else c.failure,
            times(c.median("seconds"), last.median("seconds")),
            spread(c.values("samples_per_s"), 2),
            number(c.median("cpu_s_per_1000"), 0),
        ]
        for c in group
    ]
    head = ["loader", "seconds, median (least–most)", f"to {last.name}", "samples/s", "CPU-s per 1,000"]
    print(rounds.table(head, rows) + "\n")
    everyone = group

    rows = []
    seconds = [c.median("seconds") for c in group[:2] if c.reports]
    if not seconds:
        sys.exit("Feedline failed: " + group[0].failure)
    a_batch = max(seconds) / options.batches
    for accelerators in map(int, options.accelerators.split(",")):
        step_ms = 1000 * a_batch * options.slack * accelerators
        print(f"{accelerators} accelerators, {step_ms:.0f} ms a step", file=sys.stderr)
        group = contestants(options, accelerators, step_ms, options.steps)
        rounds.interleave(group, options.rounds, options.timeout)
        for c in group:
            rows.append(
                [
                    f"{accelerators} × {step_ms:.0f} ms",
                    c.name,
                    spread(c.values("busy"), 1) if c.reports else c.failure,
                    number(min(c.values("least_busy"), default=None), 1),
                    spread(c.values("seconds"), 1),
                ]
            )
        everyone += group
    head = ["accelerators × step", "loader", "busy, %, median (least–most)", "the least busy of all"]
    print(rounds.table([*head, "seconds"], rows) + "\n")
    scans = len(list(options.data.glob("*/imaging.nii.gz")))
    settings = f"{scans} scans, {options.batches} batches of {BATCH}, {options.steps} steps of each "
    settings += f"accelerator, {options.threads} threads or workers, "
    print(rounds.notes(everyone, settings + f"{options.rounds} rounds, every one with an empty cache folder."))
    return 1 if any(c.failure for c in everyone) else 0


if __name__ == "__main__":
    sys.exit(main())
