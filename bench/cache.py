"""What a cache saves: storage bytes with room for a share of the data, by peers, and by cost.

    .venv/bin/python bench/cache.py --images /path/to/images [--cases share,peers,cost]

`share` goes through epochs with room for 35 % and 65 % of the files, in memory, and counts what is read
from storage in each; beside it a cache that drops what was used longest ago (LRU), on the same orders.
`peers` does so with several processes and a storage of 30 MB/s each, sharing what they keep and not.
`cost` keeps resampled scans shaped like KiTS19's, chosen any which way and by what they save.
"""

import argparse
import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import OrderedDict
from pathlib import Path

import feedline as fl
from rounds import table

HERE = Path(__file__).resolve().parent


def lru_bytes(orders: list[list[int]], sizes: list[int], capacity: float) -> list[int]:
    """Bytes that each epoch reads if what was used longest ago makes room."""
    kept: OrderedDict[int, int] = OrderedDict()
    used, epochs = 0, []
    for order in orders:
        read = 0
        for index in order:
            if index in kept:
                kept.move_to_end(index)
                continue
            read += sizes[index]
            kept[index] = sizes[index]
            used += sizes[index]
            while used > capacity:
                used -= kept.popitem(last=False)[1]
        epochs.append(read)
    return epochs


def files_of(folder: str) -> list[Path]:
    kinds = {".jpg", ".jpeg", ".png", ".webp"}
    files = [file for file in Path(folder).rglob("*") if file.suffix.lower() in kinds]
    return sorted(files, key=lambda file: os.fsencode(file))


def share(given: argparse.Namespace) -> None:
    sizes = [file.stat().st_size for file in files_of(given.images)]
    data = sum(sizes)
    rows = []
    for part in (0.35, 0.65):
        for shuffled in (True, False):
            ds = fl.images(given.images)
            ds = ds.shuffle(seed=0) if shuffled else ds
            ds = ds.cache(ram=int(part * data)).batch(10)
            loader = ds.loader(threads=2, with_index=True, ahead=1)
            read, orders, tenths, before = [], [], [], 0
            for epoch in range(given.epochs):
                order, last, rates = [], loader.stats().get("cache"), []
                for batch in loader:
                    order += [int(index) for index in batch["index"]]
                    if len(order) >= (len(rates) + 1) * len(sizes) / 10:
                        now = loader.stats()["cache"]
                        rates.append(rate(last, now))
                        last = now
                stats = loader.stats()
                read.append(stats["bytes_read"] - before)
                before = stats["bytes_read"]
                orders.append(order)
                if epoch >= 2:
                    tenths.append(rates)
            flat = [sum(rates[at] for rates in tenths) / len(tenths) for at in range(9)]
            settled = sum(read[2:]) / len(read[2:]) / data
            lru = sum(lru_bytes(orders, sizes, part * data)[2:]) / len(orders[2:]) / data
            expected = (1 - part) * (1 - math.log(1 - part)) if shuffled else 1.0
            row = [
                f"{part:.0%}, {'shuffled' if shuffled else 'in order'}",
                f"{settled:.4f}",
                f"{1 - part:.4f}",
                f"{(settled / (1 - part) - 1) * 100:+.2f} %",
                f"{min(flat) * 100:.1f}–{max(flat) * 100:.1f} %",
                f"{lru:.4f}",
                f"{expected:.4f}",
            ]
            rows.append(row)
            loader.close()
    print("\n## Bytes from storage per epoch, as a share of the data\n")
    head = ["room", "read", "(1-c)", "off by", "found, by tenths of the epochs", "LRU", "LRU in theory"]
    print(table(head, rows))


def rate(before: dict | None, after: dict) -> float:
    before = before or {"ram_hits": 0, "misses": 0}
    hits = after["ram_hits"] - before["ram_hits"]
    misses = after["misses"] - before["misses"]
    return hits / max(hits + misses, 1)


# --------------------------------------------------------------------------------------------- peers

RANK = """
import json, sys, time
import feedline as fl

images, rank, world, peers, ram = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4]), int(sys.argv[5])
ds = fl.images(images).shuffle(seed=0).cache(ram=ram, peers=peers).batch(10)
loader = ds.loader(threads=1, rank=rank, world=world)
for line in sys.stdin:
    start = time.perf_counter()
    if line == "epoch\\n":
        for batch in loader:
            pass
    seconds = time.perf_counter() - start
    stats = loader.stats()
    read = stats["bytes_read"] + stats["cache"]["bytes_read_for_peers"]
    print(json.dumps({"read": read, "seconds": seconds}), flush=True)
"""


def free_addresses(count: int) -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    names = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    for s in sockets:
        s.close()
    return names


def say(hosts: list[subprocess.Popen], what: str) -> list[dict]:
    """Says something to all, and gives what they answer."""
    for host in hosts:
        host.stdin.write(what + "\n")
        host.stdin.flush()
    return [json.loads(host.stdout.readline()) for host in hosts]


def peers(given: argparse.Namespace) -> None:
    sizes = [file.stat().st_size for file in files_of(given.images)]
    data, rows = sum(sizes), []
    for world in (2, 4):
        # Together they have room for all, and a little for how samples fall to them.
        ram = int(data / world * 1.25)
        results = {}
        for coordinated in (True, False):
            names = free_addresses(world) if coordinated else []
            hosts = [
                subprocess.Popen(
                    [sys.executable, "-c", RANK, given.images, str(rank), str(world), json.dumps(names), str(ram)],
                    env=os.environ | {"FEEDLINE_READ_MBPS": "30"},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                for rank in range(world)
            ]
            times, totals = [], [0]
            for _ in range(given.epochs):
                times.append(max(end["seconds"] for end in say(hosts, "epoch")))
                # One that is done may still read for others.
                totals.append(sum(end["read"] for end in say(hosts, "stats")))
            for host in hosts:
                host.stdin.close()
                host.wait()
            read = [after - before for before, after in zip(totals, totals[1:], strict=False)]
            results[coordinated] = (sum(times[2:]) / len(times[2:]), read)
        (together, read), (alone, other) = results[True], results[False]
        rows.append(
            [
                str(world),
                f"{read[0] / data:.3f}",
                f"{sum(read[1:])}",
                f"{sum(other[2:]) / len(other[2:]) / data:.3f}",
                f"{together:.2f} s",
                f"{alone:.2f} s",
                f"{alone / together:.1f} ×",
            ]
        )
    print("\n## Processes that share what they keep, storage of 30 MB/s each\n")
    head = ["processes", "read, 1st epoch", "bytes read after it", "alone", "epoch", "epoch alone", "faster"]
    print(table(head, rows))


# ---------------------------------------------------------------------------------------------- cost


def cost(given: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(HERE / "kits19.py"), "nifti", folder, "--count", "42", "--scale", "40"]
        command += ["--masks", given.masks] if given.masks else []
        subprocess.run(command, check=True)
        def dataset() -> fl.Dataset:
            scans = fl.nifti(folder, fields={"image": "*/imaging.nii.gz"}, channel=True)
            return scans.shuffle(seed=0).cast("float32", field="image").resample((1.6, 1.2, 1.2))

        def epoch_seconds(ds: fl.Dataset) -> tuple[float, dict]:
            loader = ds.loader(threads=2)
            times = []
            for _ in range(6):
                start = time.perf_counter()
                for _ in loader:
                    pass
                times.append(time.perf_counter() - start)
            stats = loader.stats().get("cache", {})
            loader.close()
            return min(times[3:]), stats

        _, everything = epoch_seconds(dataset().cache(ram="8GB"))
        rows = []
        for part in (0.2, 0.35, 0.5):
            ram = int(everything["ram_bytes"] * part)
            saved: dict[str, list[float]] = {"uniform": [], "cost": []}
            for _ in range(given.rounds):
                none, _ = epoch_seconds(dataset())
                for admit in saved:
                    seconds, _ = epoch_seconds(dataset().cache(ram=ram, admit=admit))
                    saved[admit].append((none - seconds) / none)
            uniform, by_cost = (sorted(values)[len(values) // 2] for values in saved.values())
            rows.append([f"{part:.0%}", f"{uniform:.3f}", f"{by_cost:.3f}", f"{(by_cost / uniform - 1) * 100:+.0f} %"])
    print("\n## Time saved of an epoch of resampled scans, by which are kept\n")
    print(table(["room", "any", "by cost", "more"], rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", required=True, help="folder of JPEG files")
    parser.add_argument("--masks", help="KiTS19's folder of masks; without it they are drawn")
    parser.add_argument("--cases", default="share,peers,cost")
    parser.add_argument("--epochs", type=int, default=22)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    for case in given.cases.split(","):
        {"share": share, "peers": peers, "cost": cost}[case](given)


if __name__ == "__main__":
    main()
