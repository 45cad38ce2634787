"""What docs/guarantees.md promises, cell by cell: every sample is counted."""

from __future__ import annotations

import collections
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_chaos import Processes

import feedline as fl

SAMPLES = 240
STREAMS = 3

#: The columns of the table.
MODES: dict[str, dict[str, Any]] = {
    "exact": {"order": "exact"},
    "exactly-once": {"order": "any"},
    "at-most-once": {"order": "any", "visitation": "at-most-once"},
    # Nobody else asks for the same, so nothing is left out.
    "relaxed": {"order": "any", "visitation": "relaxed"},
    "per-worker": {"order": "any", "visitation": "per-worker", "streams": STREAMS},
    "by-index": {"order": "any", "visitation": "by-index", "streams": STREAMS},
    "by-file": {"order": "any", "visitation": "by-file", "streams": STREAMS},
}
every_mode = pytest.mark.parametrize("mode", MODES)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    processes = Processes(tmp_path_factory.mktemp("service") / "journal")
    for _ in range(2):
        processes.add_worker()
    yield processes
    processes.close()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> fl.Dataset:
    folder = tmp_path_factory.mktemp("data") / "numbers"
    fl.range(SAMPLES).save(folder, rows=24, progress=False)
    return fl.arrow(folder).shuffle(seed=4).sleep(ms=1).batch(4)


class Job:
    """The clients of a job, and what their trainers remember."""

    names = iter(range(1_000_000))

    def __init__(self, service: Processes, ds: fl.Dataset, mode: str, clients: int = 2) -> None:
        self.service, self.ds, self.mode = service, ds, mode
        self.name = f"{mode} {next(self.names)}"
        self.loaders = [self.client(consumer, clients) for consumer in range(clients)]
        self.batches = [iter(loader) for loader in self.loaders]
        self.committed: list[list[int]] = [[] for _ in range(clients)]
        #: With what was lost after a checkpoint.
        self.delivered: collections.Counter[int] = collections.Counter()

    def client(self, consumer: int, clients: int) -> fl.Distributed:
        return self.ds.distribute(
            self.service.url,
            job=self.name,
            consumer=consumer,
            consumers=clients,
            window=2,
            timeout=60,
            **MODES[self.mode],
        )

    def take(self, consumer: int, count: int) -> list[int]:
        got = []
        for _ in range(count):
            got += next(self.batches[consumer])["index"].tolist()
        self.delivered.update(got)
        return got

    def rest(self, during: Callable[[], None] | None = None) -> None:
        """All clients go on to the end of the epoch, each at its own speed."""
        errors: list[BaseException] = []

        def go_on(consumer: int) -> None:
            try:
                for batch in self.batches[consumer]:
                    self.committed[consumer] += batch["index"].tolist()
            except BaseException as error:
                errors.append(error)

        threads = [
            threading.Thread(target=go_on, args=(consumer,)) for consumer in range(len(self.loaders))
        ]
        for thread in threads:
            thread.start()
        if during is not None:
            during()
        for thread in threads:
            thread.join(90)
            assert not thread.is_alive(), "it hangs"
        if errors:
            raise errors[0]

    def restart(self, consumer: int, state: dict[str, Any]) -> None:
        self.loaders[consumer].close()
        self.loaders[consumer] = self.client(consumer, len(self.loaders))
        self.loaders[consumer].load_state_dict(state)
        self.batches[consumer] = iter(self.loaders[consumer])

    def close(self) -> None:
        for loader in self.loaders:
            loader.close()

    def check(self) -> None:
        """Every sample as often as the mode says; in order, where it says so."""
        counts = collections.Counter(number for each in self.committed for number in each)
        times = STREAMS if self.mode == "per-worker" else 1
        assert counts == dict.fromkeys(range(SAMPLES), times)
        if self.mode == "exact":
            for consumer, found in enumerate(self.committed):
                local = self.ds.loader(rank=consumer, world=len(self.committed), threads=2)
                assert found == [number for batch in local for number in batch["index"].tolist()]


@pytest.fixture
def job(service: Processes, data: fl.Dataset, mode: str) -> Iterator[Job]:
    job = Job(service, data, mode)
    yield job
    job.close()


@every_mode
def test_a_worker_dies(service: Processes, job: Job) -> None:
    def kill() -> None:
        time.sleep(0.05)
        service.add_worker()
        service.kill_worker(random.Random(1))

    job.rest(kill)
    job.check()


@every_mode
def test_all_workers_die_and_others_come(service: Processes, job: Job) -> None:
    def kill() -> None:
        time.sleep(0.05)
        for _ in range(len(service.workers)):
            service.kill_worker(random.Random(1))
        service.add_worker()
        service.add_worker()

    job.rest(kill)
    job.check()


@every_mode
def test_the_dispatcher_dies_and_is_restarted(service: Processes, job: Job) -> None:
    def kill() -> None:
        time.sleep(0.05)
        service.restart_dispatcher()

    job.rest(kill)
    job.check()


@every_mode
def test_a_client_dies_and_loads_its_state(job: Job) -> None:
    job.committed[0] = job.take(0, 2)
    job.committed[1] = job.take(1, 3)
    state = job.loaders[1].state_dict()
    lost = job.take(1, 2)
    job.restart(1, state)
    job.rest()
    if job.mode == "at-most-once":
        once_or_never(job, lost)
    else:
        job.check()


@every_mode
def test_all_clients_die_and_load_their_states(job: Job) -> None:
    states, lost = [], []
    for consumer in range(2):
        job.committed[consumer] = job.take(consumer, 3)
        states.append(job.loaders[consumer].state_dict())
        lost += job.take(consumer, 2)
    for consumer in range(2):
        job.restart(consumer, states[consumer])
    job.rest()
    if job.mode == "at-most-once":
        once_or_never(job, lost)
    else:
        job.check()


def once_or_never(job: Job, lost: list[int]) -> None:
    """Nothing comes again, not even what was lost with a process."""
    counts = collections.Counter(number for each in job.committed for number in each)
    counts.update(lost)
    assert set(counts.values()) == {1}
    # What is missing was in the windows that the clients held: at most a few.
    assert SAMPLES / 2 < len(counts) <= SAMPLES


# With at-most-once, windows that were in hand are not dealt again, and nothing is promised.
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "at-most-once"])
def test_states_of_two_clients_merged_go_on_on_three(service: Processes, job: Job) -> None:
    states, before = [], []
    for consumer in range(2):
        before += job.take(consumer, 3)
        states.append(job.loaders[consumer].state_dict())
        job.take(consumer, 1)
    job.close()
    more = Job(service, job.ds, job.mode, clients=3)
    merged = states[0] if job.mode == "exact" else fl.merge_states(states)
    for consumer in range(3):
        more.restart(consumer, merged)
    more.rest()
    more.close()
    counts = collections.Counter(number for each in more.committed for number in each)
    counts.update(before)
    times = STREAMS if job.mode == "per-worker" else 1
    assert counts == dict.fromkeys(range(SAMPLES), times)


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """A service that gives clients up soon."""

    class Hasty(Processes):
        def start(self, *arguments: str) -> tuple[subprocess.Popen[str], str]:
            soon = ("--client-timeout", "1") if arguments[0] == "dispatcher" else ()
            return super().start(*arguments, *soon)

    processes = Hasty(tmp_path_factory.mktemp("hasty") / "journal")
    processes.add_worker()
    yield processes
    processes.close()


@every_mode
def test_a_client_dies_for_good(hasty: Processes, data: fl.Dataset, mode: str) -> None:
    job = Job(hasty, data, mode)
    lost = job.take(1, 3)
    job.loaders[1].close()
    found: list[int] = []
    times = STREAMS if mode == "per-worker" else 1
    whole = dict.fromkeys(range(SAMPLES), times)
    if mode == "exact":
        found = [number for batch in job.batches[0] for number in batch["index"].tolist()]
        local = data.loader(rank=0, world=2, threads=2)
        assert found == [number for batch in local for number in batch["index"].tolist()]
    elif mode == "at-most-once":
        found = [number for batch in job.batches[0] for number in batch["index"].tolist()]
        counts = collections.Counter(found + lost)
        assert set(counts.values()) == {1} and len(counts) > SAMPLES / 2
    else:
        with pytest.raises(fl.ServiceError, match="consumer 1"):
            for batch in job.batches[0]:
                found += batch["index"].tolist()
        assert len(found) > SAMPLES / 2
        release(hasty, job.name, 1)
        for batch in job.loaders[0]:
            found += batch["index"].tolist()
        # Once, but for what it had and nobody remembers.
        counts = collections.Counter(found)
        assert collections.Counter(whole) - counts <= collections.Counter(lost)
        assert max(counts.values()) <= times
    job.close()


def release(service: Processes, job: str, consumer: int) -> None:
    command = [sys.executable, "-m", "feedline", "job", "release", job, str(consumer)]
    subprocess.run([*command, service.url], check=True, stdout=subprocess.DEVNULL)


def rows(batches: Any) -> list[int]:
    return [int(row[0]) for batch in batches for row in batch["data"]]


@every_mode
def test_a_bad_sample_is_the_local_runs_error(service: Processes, tmp_path: Path, mode: str) -> None:
    for number in range(60):
        np.save(tmp_path / f"{number:03}.npy", np.full(4 if number == 7 else 3, number))
    ds = fl.npy(tmp_path).batch(4)
    with pytest.raises(fl.RecordError, match="one shape"):
        list(ds.loader(threads=2))
    job = Job(service, ds, mode, clients=1)
    with pytest.raises(fl.RecordError, match="one shape"):
        list(job.loaders[0])
    job.close()


@every_mode
def test_bad_samples_that_are_left_out(service: Processes, tmp_path: Path, mode: str) -> None:
    for number in range(60):
        np.save(tmp_path / f"{number:03}.npy", np.full(3, number))
    for number in (7, 30):
        (tmp_path / f"{number:03}.npy").write_bytes(b"\x93NUMPY nothing")
    ds = fl.npy(tmp_path).on_error("skip").batch(4)
    job = Job(service, ds, mode, clients=1)
    found = rows(job.loaders[0])
    job.close()
    if mode == "exact":
        assert found == rows(ds.loader(threads=2))
    times = STREAMS if mode == "per-worker" else 1
    good = set(range(60)) - {7, 30}
    assert collections.Counter(found) == dict.fromkeys(good, times)
