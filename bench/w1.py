"""Compares loaders on W1: JPEG files → random resized crop to 224 → flip → normalise → batches of 64.

    python bench/w1.py --images DIR --threads 2 --rounds 3 --peers dali,tf,torch

Every loader runs in a process and an environment of its own, one after the other, and the rounds are
interleaved (A B C A B C …), so that a slow minute of the machine hits all of them. The result is a
Markdown table. `bench/setup.sh` makes the environments; README.md says how to read the figures.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import rounds
from rounds import ROOT, Contestant, best, number, times


def peers() -> dict[str, list[tuple[str, str, list[str]]]]:
    """Environment → what runs in it: a name, a script, its further arguments."""
    return {
        "dali": [("DALI", "dali_w1.py", []), ("DALI (antialias)", "dali_w1.py", ["--variant", "antialias"])],
        "tf": [("tf.data", "tfdata_w1.py", [])],
        "torch": [
            ("DataLoader + torchvision", "torch_w1.py", []),
            ("DataLoader + Pillow", "torch_w1.py", ["--variant", "pil"]),
        ],
    }


def field_of(options: argparse.Namespace) -> list[Contestant]:
    """Everyone who takes part, in the order of a round."""
    common = ["--images", options.images, "--threads", str(options.threads)]
    common += ["--warm", str(options.warm), "--batches", str(options.batches)]
    out = []
    if not options.without_feedline:
        out.append(Contestant("Feedline", rounds.feedline("feedline_w1.py", *common)))
    for name in filter(None, options.peers.split(",")):
        if name not in peers():
            sys.exit(f"unknown peer: {name} (known: {', '.join(peers())})")
        for title, script, further in peers()[name]:
            out.append(Contestant(title, rounds.peer(name, script, *common, *further)))
    if not options.without_limits:
        binary = build_limits()
        for mode, title in (
            ("crop", "limit: all of W1, one bare loop"),
            ("full", "limit: full decode, nothing else"),
        ):
            out.append(Contestant(title, [binary, options.images, "--mode", mode]))
    return out


def build_limits() -> str:
    """Builds the bare loops and gives the path of the program, so that cargo is not timed."""
    command = ["cargo", "build", "--release", "-p", "feedline-limit", "--bin", "limit-w1"]
    if subprocess.run([*command, "--quiet"], cwd=ROOT, check=False).returncode:
        sys.exit("the limits cannot be built (above); --without-limits leaves them out")
    target = Path(os.environ.get("CARGO_TARGET_DIR", "target"))
    return str(ROOT / target / "release" / "limit-w1")


def is_limit(contestant: Contestant) -> bool:
    return contestant.name.startswith("limit: ")


def rates(contestant: Contestant) -> list[float]:
    return contestant.values("images_per_s_median" if is_limit(contestant) else "samples_per_s")


def costs(contestant: Contestant) -> list[float]:
    """CPU seconds per 1,000 images, which is what a limit calls CPU milliseconds per image."""
    return contestant.values("cpu_ms_min" if is_limit(contestant) else "cpu_s_per_1000")


# ----------------------------------------------------------------------------------------- the table


def table(contestants: list[Contestant]) -> str:
    feedline = next((c for c in contestants if c.name == "Feedline"), None)
    base_rate = best(rates(feedline), statistics.median) if feedline else None
    base_cpu = best(costs(feedline), min) if feedline else None
    lines = [
        "| loader | images/s, median (best) | CPU-s per 1,000, min (median) | rate, to Feedline | CPU, to Feedline "
        "| first batch, s | peak memory, MiB | others' cores |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for c in contestants:
        if not c.reports:
            lines.append(f"| {c.name} | {c.failure} | | | | | | |")
            continue
        rate, cpu = rates(c), costs(c)
        memory = best(c.values("peak_bytes"), max)
        # A limit is one bare loop on one core: its rate is no rival, its cost is.
        cells = [
            c.name,
            f"{number(best(rate, statistics.median), 0)} ({number(best(rate, max), 0)})"
            + (" on 1 core" if is_limit(c) else ""),
            f"{number(best(cpu, min), 3)} ({number(best(cpu, statistics.median), 3)})",
            "–" if is_limit(c) else times(best(rate, statistics.median), base_rate),
            times(best(cpu, min), base_cpu),
            number(best(c.values("first_batch_s"), statistics.median), 2),
            number(memory / 2**20 if memory else None, 0),
            number(best(c.values("other_cores"), max), 2),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", required=True, help="folder of JPEG files, in class folders")
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count(), help="threads or workers of each loader"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", default="dali,tf,torch", help="environments to compare with, by comma")
    parser.add_argument("--warm", type=int, default=10, help="batches before the clock starts")
    parser.add_argument("--batches", type=int, default=60, help="batches that are timed")
    parser.add_argument("--timeout", type=float, default=300, help="seconds that one run may take")
    parser.add_argument("--without-feedline", action="store_true")
    parser.add_argument("--without-limits", action="store_true")
    parser.add_argument("--json", type=Path, help="also write every report here")
    options = parser.parse_args()
    options.images = str(Path(options.images).resolve())
    if not Path(options.images).is_dir():
        sys.exit(f"no such folder: {options.images}")

    contestants = field_of(options)
    rounds.interleave(contestants, options.rounds, options.timeout)
    print(table(contestants))
    print()
    print(
        rounds.notes(
            contestants,
            f"{options.threads} threads or workers; {options.rounds} rounds of {options.batches} batches of 64 "
            f"after {options.warm}.",
        )
    )
    if options.json:
        options.json.write_text(json.dumps({c.name: c.reports for c in contestants}, indent=1) + "\n")
    return 1 if any(c.failure for c in contestants) else 0


if __name__ == "__main__":
    sys.exit(main())
