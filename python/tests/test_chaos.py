"""Real processes, killed at random moments: every epoch is complete and exact all the same."""

from __future__ import annotations

import collections
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import feedline as fl

KILLS = {"worker": 50, "dispatcher": 10, "client": 10}
if os.environ.get("FEEDLINE_KILLS"):
    KILLS = dict(zip(KILLS, map(int, os.environ["FEEDLINE_KILLS"].split(",")), strict=True))


class Processes:
    """Processes of the service. Only what was started here is ever killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = ""
        self.dispatcher = self.start_dispatcher("127.0.0.1:0")
        self.workers: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str) -> tuple[subprocess.Popen[str], str]:
        command = [sys.executable, "-m", "feedline", *arguments]
        one = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert one.stdout is not None
        return one, one.stdout.readline().strip()

    def start_dispatcher(self, listen: str) -> subprocess.Popen[str]:
        for _ in range(50):
            one, said = self.start("dispatcher", "--listen", listen, "--journal", str(self.folder))
            if said:
                self.url = said.rpartition(" ")[2]
                return one
            one.wait()
            time.sleep(0.1)  # the port may be held by connections that are not closed yet
        raise RuntimeError("the dispatcher does not start")

    def add_worker(self) -> None:
        arguments = ["--dispatcher", self.url, "--threads", "1"]
        self.workers.append(self.start("worker", *arguments)[0])

    def kill_worker(self, which: random.Random) -> None:
        one = self.workers.pop(which.randrange(len(self.workers)))
        one.kill()
        one.wait()

    def restart_dispatcher(self) -> None:
        self.dispatcher.kill()
        self.dispatcher.wait()
        self.dispatcher = self.start_dispatcher(self.url.partition("//")[2])

    def close(self) -> None:
        for one in [*self.workers, self.dispatcher]:
            one.kill()
            one.wait()
            if one.stdout is not None:
                one.stdout.close()


@pytest.fixture
def service(tmp_path: Path):
    processes = Processes(tmp_path / "journal")
    for _ in range(3):
        processes.add_worker()
    yield processes
    processes.close()


def numbers(count: int) -> fl.Dataset:
    return fl.range(count).shuffle(seed=4).sleep(ms=1).batch(4)


def test_killed_workers_cost_no_sample_and_little_time(service: Processes) -> None:
    which = random.Random(1)
    done = threading.Event()
    killed = 0

    def kill() -> None:
        nonlocal killed
        while killed < KILLS["worker"] and not done.is_set():
            time.sleep(which.uniform(0.05, 0.4))
            # Another one lives at any time.
            service.add_worker()
            service.kill_worker(which)
            killed += 1

    killer = threading.Thread(target=kill)
    killer.start()
    ds = numbers(600)
    wanted = [batch["index"].tolist() for batch in ds.loader(threads=2)]
    longest, epochs = 0.0, 0
    with ds.distribute(service.url, job="workers") as loader:
        while killer.is_alive() or epochs == 0:
            loader.set_epoch(0)
            found, last = [], time.monotonic()
            for batch in loader:
                longest = max(longest, time.monotonic() - last)
                found.append(batch["index"].tolist())
                last = time.monotonic()
            assert found == wanted, f"epoch {epochs} after {killed} kills"
            epochs += 1
    done.set()
    killer.join()
    print(f"{killed} workers killed in {epochs} epochs; the longest wait was {longest:.2f} s")


def test_killed_dispatchers_change_nothing(service: Processes) -> None:
    ds = numbers(400)
    seen = collections.Counter()
    kills = 0
    with ds.distribute(service.url, job="dispatchers", order="any", window=2) as loader:
        epochs = 0
        while kills < KILLS["dispatcher"]:
            for number, batch in enumerate(loader):
                seen.update(batch["index"].tolist())
                if number % 40 == 10 and kills < KILLS["dispatcher"]:
                    service.restart_dispatcher()
                    kills += 1
            epochs += 1
            assert seen == dict.fromkeys(range(400), epochs), f"epoch {epochs}"


CLIENT = """
import json, os, sys
import feedline as fl

url, folder, order = sys.argv[1:4]
state, log = os.path.join(folder, "state.json"), os.path.join(folder, "log")
ds = fl.range(400).shuffle(seed=4).sleep(ms=1).batch(4)
loader = ds.distribute(url, job="clients " + order, order=order, window=2)
seen = []
if os.path.exists(state):
    saved = json.load(open(state))
    loader.load_state_dict(saved["loader"])
    seen = saved["seen"]
print("begun", flush=True)
for batch in loader:
    seen += batch["index"].tolist()
    # A checkpoint: what was seen, and the loader's state, at once.
    with open(state + ".new", "w") as file:
        json.dump({"loader": loader.state_dict(), "seen": seen}, file)
    os.replace(state + ".new", state)
json.dump(seen, open(os.path.join(folder, "end.json"), "w"))
"""


@pytest.mark.parametrize("order", ["exact", "any"])
def test_killed_clients_go_on_where_their_checkpoint_stands(
    service: Processes, tmp_path: Path, order: str
) -> None:
    which = random.Random(2)
    kills = 0
    while True:
        command = [sys.executable, "-c", CLIENT, service.url, str(tmp_path), order]
        client = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert client.stdout is not None
        client.stdout.readline()
        if kills < KILLS["client"]:
            time.sleep(which.uniform(0.0, 0.06))
            client.send_signal(signal.SIGKILL)
            kills += 1
        code = client.wait(60)
        client.stdout.close()
        if code == 0:
            break
        assert code == -signal.SIGKILL
    seen = json.loads((tmp_path / "end.json").read_text())
    assert sorted(seen) == list(range(400))
    if order == "exact":
        local = numbers(400).loader(threads=2)
        assert seen == [number for batch in local for number in batch["index"].tolist()]
