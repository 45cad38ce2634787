"""Does Feedline slow down when memory is a third of the data? W4's steps, with and without a limit.

    python bench/kits19.py npy VOLUMES --masks KITS19 --count 18
    python bench/memory.py --volumes VOLUMES
    python bench/memory.py --volumes VOLUMES --cgroup /sys/fs/cgroup/bench      # where a group may be made

With a limit, the process runs in a cgroup of its own whose memory, page cache included, is a third of the
size of the files. The group is made in the folder `--cgroup` (version 1 or 2), else in the root of version
2 if that hands out memory; where neither works, the process's own data are limited instead (RLIMIT_DATA),
and the page cache is not. Both sides get a loader whose budget for samples is a quarter of the limit.

The page cache is out of the way for both: files are dropped from it before every run, and
FEEDLINE_READ_MBPS makes Feedline read past it, at the same speed on both sides.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import rounds
from rounds import Contestant, number, spread, times

BAR = 0.9  # the limited run is at least this fast, to the other


def forget(folder: Path) -> None:
    """Drops the files from the page cache."""
    os.sync()
    for file in folder.glob("*.npy"):
        with open(file, "rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def parent_group(chosen: Path | None) -> Path | None:
    """The folder in which groups can be made that limit memory."""
    root = Path("/sys/fs/cgroup")
    handed_out = root / "cgroup.subtree_control"
    if chosen is None and handed_out.exists() and "memory" in handed_out.read_text().split():
        chosen = root
    return chosen if chosen is not None and os.access(chosen, os.W_OK) else None


@contextmanager
def group(parent: Path, limit: int | None) -> Iterator[Path]:
    made = parent / f"feedline-bench-{os.getpid()}"
    made.mkdir()
    try:
        if limit is not None:
            names = [
                made / name for name in ("memory.max", "memory.limit_in_bytes") if (made / name).exists()
            ]
            if not names:
                sys.exit(f"groups in {parent} cannot limit memory")
            names[0].write_text(str(limit))
        yield made
    finally:
        made.rmdir()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--volumes", type=Path, required=True, help="folder of *_x.npy and *_y.npy")
    parser.add_argument("--cgroup", type=Path, help="folder in which a cgroup may be made")
    parser.add_argument("--mbps", type=int, default=200, help="MB a second that both sides may read")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=5, help="passes over the volumes in a run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=600, help="seconds that one run may take")
    options = parser.parse_args()
    options.volumes = options.volumes.resolve()

    total = sum(file.stat().st_size for file in options.volumes.glob("*.npy"))
    limit = total // 3
    parent = parent_group(options.cgroup)
    if options.cgroup and parent is None:
        sys.exit(f"no group can be made in {options.cgroup}")
    common = ["--volumes", options.volumes, "--threads", options.threads, "--budget", limit // 4]
    command = rounds.feedline("feedline_memory.py", *common, "--epochs", options.epochs)
    # numpy's linear algebra would reserve memory for every core, and is not used.
    environment = {"FEEDLINE_READ_MBPS": str(options.mbps), "OPENBLAS_NUM_THREADS": "1"}
    sides = {
        None: Contestant("no limit", command, environment),
        limit: Contestant(f"{limit / 1e6:,.0f} MB", command, environment),
    }
    for round_number in range(1, options.rounds + 1):
        for most, side in sides.items():
            print(f"round {round_number} of {options.rounds}: {side.name}", file=sys.stderr, flush=True)
            forget(options.volumes)
            if parent is not None:
                with group(parent, most) as made:
                    side.command = [*command, "--group", str(made)]
                    rounds.run(side, options.timeout)
            else:
                side.command = [*command, "--limit", str(most)] if most else command
                rounds.run(side, options.timeout)

    free, limited = sides.values()
    ratio = times(limited.median("samples_per_s"), free.median("samples_per_s"))
    rows = [
        [
            side.name,
            spread(side.values("samples_per_s"), 2) if side.reports else side.failure,
            ratio if side is limited else "",
            number(side.median("cpu_s_per_1000"), 1),
            *(
                number(max(side.values(key), default=0) / 1e6, 0)
                for key in ("resident_bytes", "group_bytes", "read_bytes")
            ),
        ]
        for side in sides.values()
    ]
    head = ["memory", "samples/s, median (least–most)", "to no limit", "CPU-ms per sample"]
    head += ["peak resident, MB", "peak of the group, MB", "read, MB"]
    print(rounds.table(head, rows) + "\n")
    way = f"a cgroup in {parent}" if parent else "RLIMIT_DATA (no cgroup could be made: see --cgroup)"
    settings = f"{total / 1e6:,.0f} MB of volumes; limited by {way}; {options.threads} threads, "
    settings += f"{options.mbps} MB/s, {options.rounds} rounds of {options.epochs} epochs."
    print(rounds.notes(list(sides.values()), settings))
    if free.failure or limited.failure:
        return 1
    return 0 if limited.median("samples_per_s") >= BAR * free.median("samples_per_s") else 1


if __name__ == "__main__":
    sys.exit(main())
