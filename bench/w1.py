"""Compares loaders on W1: JPEG files → random resized crop to 224 → flip → normalise → batches of 64.

    python bench/w1.py --images DIR --threads 2 --rounds 3 --peers dali,tf,torch

Every loader runs in a process and an environment of its own, one after the other, and the rounds are
interleaved (A B C A B C …), so that a slow minute of the machine hits all of them. The result is a
Markdown table. `bench/setup.sh` makes the environments; README.md says how to read the figures.
"""

import argparse
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
VENVS = ROOT / ".bench" / "venvs"
# A machine on which others use more than this many cores gives figures that mean little.
QUIET = 0.25


@dataclass
class Contestant:
    """Something to run: its command, and the reports it has printed so far."""

    name: str
    command: list[str]
    is_limit: bool = False
    reports: list[dict] = field(default_factory=list)
    failure: str = ""

    def values(self, key: str) -> list[float]:
        return [report[key] for report in self.reports if report.get(key) is not None]


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
        here = importlib.util.find_spec("feedline") is not None
        python = sys.executable if here else str(ROOT / ".venv" / "bin" / "python")
        out.append(Contestant("Feedline", [python, str(HERE / "peers" / "feedline_w1.py"), *common]))
    for name in filter(None, options.peers.split(",")):
        if name not in peers():
            sys.exit(f"unknown peer: {name} (known: {', '.join(peers())})")
        python = VENVS / name / "bin" / "python"
        if not python.exists():
            sys.exit(f"the environment of {name} is missing; make it with: bench/setup.sh {name}")
        for title, script, further in peers()[name]:
            out.append(Contestant(title, [str(python), str(HERE / "peers" / script), *common, *further]))
    if not options.without_limits:
        binary = build_limits()
        for mode, title in (
            ("crop", "limit: all of W1, one bare loop"),
            ("full", "limit: full decode, nothing else"),
        ):
            out.append(Contestant(title, [binary, options.images, "--mode", mode], is_limit=True))
    return out


def build_limits() -> str:
    """Builds the bare loops and gives the path of the program, so that cargo is not timed."""
    command = ["cargo", "build", "--release", "-p", "feedline-limit", "--bin", "limit-w1"]
    if subprocess.run([*command, "--quiet"], cwd=ROOT, check=False).returncode:
        sys.exit("the limits cannot be built (above); --without-limits leaves them out")
    target = Path(os.environ.get("CARGO_TARGET_DIR", "target"))
    return str(ROOT / target / "release" / "limit-w1")


def run(contestant: Contestant, timeout: float) -> None:
    """Runs it once. Its last line that is a JSON object is its report."""
    process = subprocess.Popen(
        contestant.command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        # The session is its own, so this ends the loader's workers too, and nothing else.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        contestant.failure = f"no result after {timeout:.0f} s"
        return
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            report = json.loads(line)
            if contestant.is_limit:
                # It counts CPU milliseconds per image, which is CPU seconds per 1,000.
                report["cpu_s_per_1000"] = report["cpu_ms_min"]
                report["images_per_s"] = report["images_per_s_median"]
            contestant.reports.append(report)
            return
    tail = (errors.strip() or output.strip() or "no output").splitlines()[-1]
    contestant.failure = f"exit code {process.returncode}: {tail}"


# ----------------------------------------------------------------------------------------- the table


def number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def times(value: float | None, base: float | None) -> str:
    return "–" if not value or not base else f"{value / base:.2f} ×"


def best(values: list[float], pick) -> float | None:
    return pick(values) if values else None


def table(contestants: list[Contestant]) -> str:
    feedline = next((c for c in contestants if c.name == "Feedline"), None)
    base_rate = best(feedline.values("images_per_s"), statistics.median) if feedline else None
    base_cpu = best(feedline.values("cpu_s_per_1000"), min) if feedline else None
    lines = [
        "| loader | images/s, median (best) | CPU-s per 1,000, min (median) | rate, to Feedline | CPU, to Feedline "
        "| first batch, s | peak memory, MiB | others' cores |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for c in contestants:
        if not c.reports:
            lines.append(f"| {c.name} | {c.failure} | | | | | | |")
            continue
        rate, cpu = c.values("images_per_s"), c.values("cpu_s_per_1000")
        memory = best(c.values("peak_bytes"), max)
        # A limit is one bare loop on one core: its rate is no rival, its cost is.
        cells = [
            c.name,
            f"{number(best(rate, statistics.median), 0)} ({number(best(rate, max), 0)})"
            + (" on 1 core" if c.is_limit else ""),
            f"{number(best(cpu, min), 3)} ({number(best(cpu, statistics.median), 3)})",
            "–" if c.is_limit else times(best(rate, statistics.median), base_rate),
            times(best(cpu, min), base_cpu),
            number(best(c.values("first_batch_s"), statistics.median), 2),
            number(memory / 2**20 if memory else None, 0),
            number(best(c.values("other_cores"), max), 2),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown processor"


def notes(contestants: list[Contestant], options: argparse.Namespace) -> str:
    lines = [
        f"{processor()}, {os.cpu_count()} cores; {options.threads} threads or workers; {options.rounds} rounds of "
        f"{options.batches} batches of 64 after {options.warm}."
    ]
    versions = [
        f"{c.name} {c.reports[0]['version']}" for c in contestants if c.reports and "version" in c.reports[0]
    ]
    if versions:
        lines.append("Versions: " + "; ".join(versions) + ".")
    busy = [c.name for c in contestants if max(c.values("other_cores"), default=0) > QUIET]
    if busy:
        lines.append(
            "**The machine was not quiet** during: "
            + ", ".join(busy)
            + ". Rates are too low and CPU-seconds too high there; "
            "the minimum of the CPU-seconds suffers least."
        )
    for c in contestants:
        if c.failure:
            lines.append(f"{c.name} failed at least once: {c.failure}")
    return "\n\n".join(lines)


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
    for round_number in range(options.rounds):
        for contestant in contestants:
            print(
                f"round {round_number + 1} of {options.rounds}: {contestant.name}",
                file=sys.stderr,
                flush=True,
            )
            run(contestant, options.timeout)
    print(table(contestants))
    print()
    print(notes(contestants, options))
    if options.json:
        options.json.write_text(json.dumps({c.name: c.reports for c in contestants}, indent=1) + "\n")
    return 1 if any(c.failure for c in contestants) else 0


if __name__ == "__main__":
    sys.exit(main())
