"""Runs simulated accelerators and draws who waited when: one lane for each, dark while it computes, bright
while it waits for data.

As text for a terminal, as a page (`html`, one SVG and nothing else), and as a picture (`png`, made with
zlib and struct alone). All three show the same lanes on the same clock.
"""

import math
import struct
import time
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from html import escape
from statistics import median

import numpy as np

COMPUTE, WAIT = (38, 110, 130), (240, 160, 60)
INK, FAINT, PAPER = (40, 44, 52), (222, 226, 230), (255, 255, 255)


@dataclass
class Step:
    """Seconds since the run began at which a batch was asked for, was there, and had been computed on."""

    asked: float
    got: float
    done: float


@dataclass
class Run:
    """What one way of loading did: the steps of every accelerator."""

    name: str
    lanes: list[list[Step]]

    @property
    def end(self) -> float:
        return max(lane[-1].done for lane in self.lanes)

    @property
    def waited(self) -> float:
        """The share of waiting, all accelerators together."""
        return sum(map(waited, self.lanes)) / len(self.lanes)


def waited(lane: list[Step]) -> float:
    """The share of an accelerator's time that it waited. The first batch is not held against anyone."""
    return sum(step.got - step.asked for step in lane[1:]) / (lane[-1].done - lane[0].got)


# ------------------------------------------------------------------------------------------- running


def train(name: str, sources: Sequence[Iterator], steps: int, step_ms: float) -> Run:
    """All accelerators at once, each with batches of its own."""
    start = time.perf_counter()
    with ThreadPoolExecutor(len(sources)) as pool:
        return Run(name, list(pool.map(lambda source: accelerate(source, start, steps, step_ms), sources)))


def accelerate(batches: Iterator, start: float, steps: int, step_ms: float) -> list[Step]:
    """One accelerator: asks for a batch, sleeps as long as a step takes, and writes down when."""
    lane = []
    for _ in range(steps):
        asked = time.perf_counter() - start
        next(batches)
        got = time.perf_counter() - start
        time.sleep(step_ms / 1000)
        lane.append(Step(asked, got, time.perf_counter() - start))
    return lane


# -------------------------------------------------------------------------------------------- drawing


def longest(runs: list[Run]) -> float:
    return max(run.end for run in runs)


def label(run: Run) -> str:
    return f"{run.name}: {run.end:.1f} s, waiting {100 * run.waited:.0f} %"


# ---------------------------------------------------------------------------------------------- text


def text(runs: list[Run], width: int = 72) -> str:
    lines = [f"█ computing  ░ waiting  ({longest(runs) / width * 1000:.0f} ms a column)"]
    for run in runs:
        lines += ["", label(run)]
        for number, lane in enumerate(run.lanes):
            waits = [1000 * (step.got - step.asked) for step in lane[1:]] or [0.0]
            lines.append(
                f"  {number} {columns(lane, longest(runs), width)} {100 * waited(lane):3.0f} %, "
                f"a batch came after {median(waits):.0f} ms (median), {max(waits):.0f} ms (longest)"
            )
    return "\n".join(lines)


def columns(lane: list[Step], end: float, width: int) -> str:
    """One character for each stretch of time: what the accelerator mostly did in it."""
    edges = np.linspace(0, end, width + 1)
    waiting = sum(overlap(edges, step.asked, step.got) for step in lane)
    computing = sum(overlap(edges, step.got, step.done) for step in lane)
    half = end / width / 2
    return "".join(" " if w + c < half else "░" if w > c else "█" for w, c in zip(waiting, computing))


def overlap(edges: np.ndarray, start: float, stop: float) -> np.ndarray:
    """How much of each stretch between edges lies between start and stop."""
    return np.clip(np.minimum(edges[1:], stop) - np.maximum(edges[:-1], start), 0, None)


# -------------------------------------------------------------------------------------------- layout


@dataclass
class Layout:
    """Where things are, in pixels: runs below each other, their lanes below their titles."""

    runs: list[Run]
    left: int = 56
    plot: int = 1000
    right: int = 84
    title: int = 46
    lane: int = 24
    top: int = 60
    bottom: int = 44

    @property
    def width(self) -> int:
        return self.left + self.plot + self.right

    @property
    def height(self) -> int:
        return self.lane_y(len(self.runs), 0) - self.title + self.bottom

    def x(self, seconds: float) -> float:
        return self.left + self.plot * seconds / longest(self.runs)

    def lane_y(self, run: int, lane: int) -> int:
        """The upper edge of a lane."""
        above = sum(self.title + self.lane * len(before.lanes) for before in self.runs[:run])
        return self.top + above + self.title + self.lane * lane

    def ticks(self) -> list[float]:
        """Round times, at most twelve of them."""
        rough = longest(self.runs) / 12
        power = 10 ** math.floor(math.log10(rough))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
        return [step * number for number in range(int(longest(self.runs) / step) + 1)]


HEADING = "Who waited when"


# ---------------------------------------------------------------------------------------------- page


def html(runs: list[Run]) -> str:
    """A page with one picture; pointing at a piece of a lane tells how long it took."""
    at = Layout(runs)
    parts = [
        f'<text x="{at.left}" y="30" class="heading">{HEADING}</text>',
        f'<rect x="{at.left + 220}" y="18" width="14" height="14" fill="{css(COMPUTE)}"/>'
        f'<text x="{at.left + 240}" y="30">computing</text>',
        f'<rect x="{at.left + 330}" y="18" width="14" height="14" fill="{css(WAIT)}"/>'
        f'<text x="{at.left + 350}" y="30">waiting for data</text>',
        f'<text x="{at.width - 12}" y="30" text-anchor="end">waited</text>',
    ]
    for seconds in at.ticks():
        x, bottom = at.x(seconds), at.height - at.bottom
        parts.append(f'<path d="M{x:.1f} {at.top}V{bottom + 6}" stroke="{css(FAINT)}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 24}" text-anchor="middle">{seconds:g} s</text>')
    for index, run in enumerate(runs):
        parts.append(
            f'<text x="{at.left}" y="{at.lane_y(index, 0) - 10}" class="run">{escape(label(run))}</text>'
        )
        for number, lane in enumerate(run.lanes):
            y = at.lane_y(index, number)
            parts.append(f'<text x="{at.left - 12}" y="{y + 15}" text-anchor="end">{number}</text>')
            for count, step in enumerate(lane, 1):
                parts.append(piece(at, y, step.asked, step.got, WAIT, f"waited for batch {count}"))
                parts.append(piece(at, y, step.got, step.done, COMPUTE, f"step {count}"))
            share = f"{100 * waited(lane):.0f} %"
            parts.append(f'<text x="{at.width - 12}" y="{y + 15}" text-anchor="end">{share}</text>')
    style = f"text{{font:13px system-ui,sans-serif;fill:{css(INK)}}}"
    style += ".run{font-weight:600}.heading{font-size:20px}"
    return (
        f'<!doctype html><meta charset="utf-8"><title>{HEADING}</title><style>{style}</style>\n'
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {at.width} {at.height}" width="{at.width}">\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def piece(at: Layout, y: int, start: float, stop: float, colour: tuple[int, int, int], what: str) -> str:
    return (
        f'<rect x="{at.x(start):.2f}" y="{y}" width="{at.x(stop) - at.x(start):.2f}" height="{at.lane - 5}" '
        f'fill="{css(colour)}"><title>{what}: {1000 * (stop - start):.0f} ms</title></rect>'
    )


def css(colour: tuple[int, int, int]) -> str:
    return "#%02x%02x%02x" % colour


# ------------------------------------------------------------------------------------------- picture

# Capital letters, digits and a few signs, seven rows of five dots each, the leftmost dot in the highest bit.
FONT = {
    " ": "00 00 00 00 00 00 00", "0": "0e 11 13 15 19 11 0e", "1": "04 0c 04 04 04 04 0e",
    "2": "0e 11 01 02 04 08 1f", "3": "1f 02 04 02 01 11 0e", "4": "02 06 0a 12 1f 02 02",
    "5": "1f 10 1e 01 01 11 0e", "6": "06 08 10 1e 11 11 0e", "7": "1f 01 02 04 08 08 08",
    "8": "0e 11 11 0e 11 11 0e", "9": "0e 11 11 0f 01 02 0c", "A": "0e 11 11 1f 11 11 11",
    "B": "1e 11 11 1e 11 11 1e", "C": "0e 11 10 10 10 11 0e", "D": "1c 12 11 11 11 12 1c",
    "E": "1f 10 10 1e 10 10 1f", "F": "1f 10 10 1e 10 10 10", "G": "0e 11 10 17 11 11 0f",
    "H": "11 11 11 1f 11 11 11", "I": "0e 04 04 04 04 04 0e", "J": "07 02 02 02 02 12 0c",
    "K": "11 12 14 18 14 12 11", "L": "10 10 10 10 10 10 1f", "M": "11 1b 15 15 11 11 11",
    "N": "11 11 19 15 13 11 11", "O": "0e 11 11 11 11 11 0e", "P": "1e 11 11 1e 10 10 10",
    "Q": "0e 11 11 11 15 12 0d", "R": "1e 11 11 1e 14 12 11", "S": "0f 10 10 0e 01 01 1e",
    "T": "1f 04 04 04 04 04 04", "U": "11 11 11 11 11 11 0e", "V": "11 11 11 11 11 0a 04",
    "W": "11 11 11 15 15 15 0a", "X": "11 11 0a 04 0a 11 11", "Y": "11 11 11 0a 04 04 04",
    "Z": "1f 01 02 04 08 10 1f", ".": "00 00 00 00 00 0c 0c", ",": "00 00 00 00 0c 04 08",
    "%": "18 19 02 04 08 13 03", ":": "00 0c 0c 00 0c 0c 00", "-": "00 00 00 1f 00 00 00",
    "/": "00 01 02 04 08 10 00", "(": "02 04 08 08 08 04 02", ")": "08 04 02 02 02 04 08",
}  # fmt: skip


def png(runs: list[Run]) -> bytes:
    at = Layout(runs)
    canvas = np.empty((at.height, at.width, 3), np.float32)
    canvas[:] = PAPER
    write(canvas, at.left, 16, HEADING, size=3)
    paint(canvas, at.left + 330, at.left + 346, 19, 35, COMPUTE)
    write(canvas, at.left + 356, 20, "computing")
    paint(canvas, at.left + 500, at.left + 516, 19, 35, WAIT)
    write(canvas, at.left + 526, 20, "waiting for data")
    write(canvas, at.width - 12 - 12 * len("waited"), 20, "waited")
    bottom = at.height - at.bottom
    for seconds in at.ticks():
        paint(canvas, at.x(seconds), at.x(seconds) + 1, at.top, bottom + 6, FAINT)
        words = f"{seconds:g} s"
        write(canvas, at.x(seconds) - 6 * len(words), bottom + 14, words)
    for index, run in enumerate(runs):
        write(canvas, at.left, at.lane_y(index, 0) - 22, label(run))
        for number, lane in enumerate(run.lanes):
            y = at.lane_y(index, number)
            write(canvas, at.left - 12 - 12 * len(str(number)), y + 3, str(number))
            for step in lane:
                paint(canvas, at.x(step.asked), at.x(step.got), y, y + at.lane - 5, WAIT)
                paint(canvas, at.x(step.got), at.x(step.done), y, y + at.lane - 5, COMPUTE)
            share = f"{100 * waited(lane):.0f} %"
            write(canvas, at.width - 12 - 12 * len(share), y + 3, share)
    rows = np.rint(canvas).astype(np.uint8).reshape(at.height, -1)
    data = np.hstack([np.zeros((at.height, 1), np.uint8), rows]).tobytes()  # 0: a row without a filter
    header = struct.pack(">2I5B", at.width, at.height, 8, 2, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data, 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def paint(
    canvas: np.ndarray, left: float, right: float, top: int, bottom: int, colour: tuple[int, ...]
) -> None:
    """Fills a rectangle; a column that it covers in part is mixed, so that short waits still show."""
    first, last = math.floor(left), min(math.ceil(right), canvas.shape[1])
    share = overlap(np.arange(first, last + 1, dtype=np.float32), left, right)[None, :, None]
    under = canvas[top:bottom, first:last]
    under += share * (np.float32(colour) - under)


def write(canvas: np.ndarray, x: float, y: int, words: str, size: int = 2) -> None:
    """Writes capitals, `size` pixels a dot."""
    for place, character in enumerate(words.upper()):
        rows = [int(row, 16) for row in FONT[character].split()]
        dots = np.array([[row >> bit & 1 for bit in range(4, -1, -1)] for row in rows], bool)
        dots = dots.repeat(size, 0).repeat(size, 1)
        left = int(x) + place * 6 * size
        canvas[y : y + 7 * size, left : left + 5 * size][dots] = INK
