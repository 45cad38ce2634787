"""Runs contestants in rounds, A B C A B C …, each run in a process of its own, and sums up their reports.

A slow minute of the machine then hits all of them. A contestant is a command whose last line that is a
JSON object is its report.
"""

import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
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
    environment: dict[str, str] = field(default_factory=dict)
    reports: list[dict] = field(default_factory=list)
    failure: str = ""

    def values(self, key: str) -> list[float]:
        return [report[key] for report in self.reports if report.get(key) is not None]

    def median(self, key: str) -> float | None:
        return best(self.values(key), statistics.median)


def feedline(script: str, *arguments: object) -> list[str]:
    """The command of a script in `peers/` that needs Feedline."""
    here = importlib.util.find_spec("feedline") is not None
    python = sys.executable if here else str(ROOT / ".venv" / "bin" / "python")
    return [python, str(HERE / "peers" / script), *map(str, arguments)]


def peer(environment: str, script: str, *arguments: object) -> list[str]:
    """The command of a script in `peers/` that needs another loader."""
    python = VENVS / environment / "bin" / "python"
    if not python.exists():
        sys.exit(f"the environment of {environment} is missing; make it with: bench/setup.sh {environment}")
    return [str(python), str(HERE / "peers" / script), *map(str, arguments)]


def interleave(contestants: Sequence[Contestant], rounds: int, timeout: float) -> None:
    for number in range(1, rounds + 1):
        for contestant in contestants:
            print(f"round {number} of {rounds}: {contestant.name}", file=sys.stderr, flush=True)
            run(contestant, timeout)


def run(contestant: Contestant, timeout: float) -> None:
    """Runs it once and keeps its report, or why there is none."""
    process = subprocess.Popen(
        contestant.command,
        cwd=ROOT,
        env=os.environ | contestant.environment,
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
            contestant.reports.append(json.loads(line))
            return
    tail = (errors.strip() or output.strip() or "no output").splitlines()[-1]
    contestant.failure = f"exit code {process.returncode}: {tail}"


# ----------------------------------------------------------------------------------------- summing up


def best(values: list[float], pick: Callable[[list[float]], float]) -> float | None:
    return pick(values) if values else None


def number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def spread(values: list[float], digits: int) -> str:
    """The median, and in brackets the least and the most."""
    if not values:
        return "–"
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f}–{max(values):,.{digits}f})"


def times(value: float | None, base: float | None) -> str:
    return "–" if not value or not base else f"{value / base:.2f} ×"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown processor"


def notes(contestants: Sequence[Contestant], settings: str) -> str:
    """What to know before quoting a figure: machine, versions, disturbances, failures."""
    lines = [f"{processor()}, {os.cpu_count()} cores; {settings}"]
    versions = {
        c.name: c.reports[0]["version"] for c in contestants if c.reports and "version" in c.reports[0]
    }
    if versions:
        lines.append(
            "Versions: " + "; ".join(f"{name} {version}" for name, version in versions.items()) + "."
        )
    busy = [c.name for c in contestants if max(c.values("other_cores"), default=0) > QUIET]
    if busy:
        lines.append(
            "**The machine was not quiet** during: "
            + ", ".join(dict.fromkeys(busy))
            + ". Rates are too low and CPU-seconds too high there; "
            "the minimum of the CPU-seconds suffers least."
        )
    lines += [f"{c.name} failed at least once: {c.failure}" for c in contestants if c.failure]
    return "\n\n".join(dict.fromkeys(lines))
