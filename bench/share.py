"""What a further client of the same work costs a worker: k = 1, 2, 4, 8 jobs of one pipeline.

    .venv/bin/python bench/share.py --images /path/to/images

Every job is a process of its own and goes through the same batches; a worker with one thread per core
prepares them once. Printed are the CPU time of the worker per image and job, and how much each further
job adds to it; receiving is paid by the clients, and printed beside it.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import feedline as fl
import measure

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_of(process: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def dataset(images: str, batch: int) -> fl.Dataset:
    ds = fl.images(images).shuffle(seed=0).repeat().decode().random_resized_crop(measure.SIZE).flip()
    return ds.normalize(measure.MEAN, measure.STD).layout("CHW").batch(batch, drop_last=True)


def client(given: argparse.Namespace) -> None:
    ds = dataset(given.images, given.batch)
    loader = ds.distribute(given.url, job=f"job {given.client}", shared_memory=not given.tcp)
    batches = iter(loader)
    print("ready", flush=True)
    sys.stdin.readline()
    before = time.process_time()
    for _ in range(given.batches):
        next(batches)
    print(json.dumps({"cpu": time.process_time() - before}), flush=True)
    loader.close()


def run(given: argparse.Namespace, jobs: int) -> tuple[float, float]:
    """CPU seconds of the worker, and of the clients together."""
    with fl.LocalCluster(workers=1, memory="1GB") as cluster:
        cluster.wait(1)
        command = [sys.executable, __file__, "--images", given.images, "--batch", str(given.batch)]
        command += ["--batches", str(given.batches), "--url", cluster.url, *["--tcp"] * given.tcp]
        clients = [
            subprocess.Popen(
                [*command, "--client", str(number)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(jobs)
        ]
        for one in clients:
            one.stdout.readline()
        worker = cluster.workers[0]
        before = cpu_of(worker)
        for one in clients:
            one.stdin.write("go\n")
            one.stdin.flush()
        received = sum(json.loads(one.stdout.readline())["cpu"] for one in clients)
        spent = cpu_of(worker) - before
        for one in clients:
            one.wait()
        return spent, received


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", required=True, help="folder of JPEG files")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--batches", type=int, default=40, help="of each job")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tcp", action="store_true", help="not through shared memory")
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--client", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.url:
        client(given)
        return
    images = given.batch * given.batches
    print("| jobs | worker, CPU-ms per image | each further job adds, ms per image | clients, each |")
    print("|---|---|---|---|")
    first = None
    for jobs in (1, 2, 4, 8):
        spent, received = min(run(given, jobs) for _ in range(given.rounds))
        first = spent if first is None else first
        more = (spent - first) / max(jobs - 1, 1) / images * 1000
        added = f"{more:.3f}" if jobs > 1 else "–"
        print(
            f"| {jobs} | {spent / images * 1000:.2f} | {added} | {received / jobs / images * 1000:.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
