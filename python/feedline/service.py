"""A service: preprocessing on workers, for any number of jobs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Any, Literal, Self

from . import _core
from .loader import Loader

if TYPE_CHECKING:
    from types import TracebackType

    from .dataset import Dataset


Visitation = Literal[
    "exactly-once", "at-most-once", "relaxed", "per-worker", "by-index", "by-file"
]

# What the environment may say of other services.
_TRUST = (
    "FEEDLINE_KEY_FILE",
    "FEEDLINE_AUDIENCE",
    "FEEDLINE_TLS_CERTIFICATE",
    "FEEDLINE_TLS_KEY",
    "FEEDLINE_TLS_CLIENTS",
    "FEEDLINE_TOKEN_FILE",
    "FEEDLINE_CA",
    "FEEDLINE_CERTIFICATE",
    "FEEDLINE_CERTIFICATE_KEY",
    "FEEDLINE_SERVER_NAME",
)

# The dispatchers of this process's own clusters, which ask for nothing.
_own: set[str] = set()


def trusted(
    url: str,
    token: str | os.PathLike[str] | None,
    ca: str | os.PathLike[str] | None,
    certificate: tuple[str | os.PathLike[str], str | os.PathLike[str]] | None,
    server_name: str | None,
) -> dict[str, Any]:
    """What is shown to a service and how it is trusted; from the environment where it is not given."""
    if url not in _own:
        given = os.environ.get
        token = token or given("FEEDLINE_TOKEN_FILE")
        ca = ca or given("FEEDLINE_CA")
        pair = (given("FEEDLINE_CERTIFICATE"), given("FEEDLINE_CERTIFICATE_KEY"))
        if certificate is None and pair[0] and pair[1]:
            certificate = (pair[0], pair[1])
        server_name = server_name or given("FEEDLINE_SERVER_NAME")
    if certificate is not None and (isinstance(certificate, (str, bytes)) or len(certificate) != 2):
        raise ValueError("certificate: give two files, the certificate and its private key")
    return {
        "token": token and os.fspath(token),
        "ca": ca and os.fspath(ca),
        "certificate": certificate and tuple(os.fspath(one) for one in certificate),
        "server_name": server_name,
    }


class Distributed(Loader):
    """A loader whose samples are prepared by a service's workers: `ds.distribute(…)`.

    With order "exact" it delivers, bit for bit, what a local loader of the same rank delivers, and
    their states fit each other. With order "any" each batch goes to whichever client asks first.
    """

    def __init__(
        self,
        dataset: Dataset,
        url: str,
        *,
        job: str,
        order: Literal["exact", "any"] = "exact",
        visitation: Visitation = "exactly-once",
        streams: int | None = None,
        consumer: int | None = None,
        consumers: int | None = None,
        seed: int = 0,
        with_index: bool = False,
        memory: int | str | None = None,
        window: int | None = None,
        timeout: float | None = None,
        shared_memory: bool = True,
        local_from: str | None = None,
        rounds: bool = False,
        token: str | os.PathLike[str] | None = None,
        ca: str | os.PathLike[str] | None = None,
        certificate: tuple[str | os.PathLike[str], str | os.PathLike[str]] | None = None,
        server_name: str | None = None,
    ) -> None:
        super().__init__(
            dataset, rank=consumer, world=consumers, seed=seed, with_index=with_index, rounds=rounds
        )
        if window is not None and window < 1:
            raise ValueError(f"window={window}; it must be at least 1 step, or None to be chosen")
        given: dict[str, Any] = {
            "url": url,
            "name": job,
            "order": order,
            "visitation": visitation,
            "streams": streams,
            "memory": memory,
            "window": window,
            "timeout": timeout,
            "shared_memory": shared_memory,
            "local_from": local_from,
            **trusted(url, token, ca, certificate, server_name),
        }
        self.url = url
        self.job = job
        self.order = order
        # Others may have been faster, and used all of an epoch.
        self._warns = order == "exact"
        self._job = {name: value for name, value in given.items() if value is not None}
        self._options.pop("tune", None)
        self._options.pop("order", None)

    def _start(self, options: dict[str, Any]) -> _core.Run:
        return _core.Run.remote(self._pipeline, self._state, self._epoch, options, self._job)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where `state` was saved: by this loader, by a local one, or merged.

        With order "any", the state of one client is for the same client of the job as long as the job
        is there; the merged states of all clients (`fl.merge_states`) are for any number of them,
        also after the service was lost.
        """
        if self.order == "exact":
            super().load_state_dict(state)
            return
        if "checkpoint" in state:
            epoch = int(state["checkpoint"]["cursor"]["epoch"])
        elif "left" in state:
            epoch = int(state["left"][0]["epoch"])
        else:
            _, epoch = self._pipeline.adopt_state(json.dumps(state), self.seed, 0, 1)
        self._close()
        self._state, self._epoch, self._within = json.dumps(state), epoch, False
        self._pass += 1

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands: JSON, to be stored in the trainer's own checkpoint."""
        if self._run is None and self._state is None and self.order == "any":
            start = self._pipeline.start_state(self._epoch, self.seed, 0, 1)
            return json.loads(start)
        return super().state_dict()

    def explain(self) -> str:
        """What runs where."""
        return (
            f"{self.dataset.plan}\n  prepared by the workers of {self.url} for job {self.job!r}, "
            f"order {self.order}; this is consumer {self.rank} of {self.world}\n"
        )

    def tuned(self) -> dict[str, int]:
        """Nothing is tuned here: workers tune themselves."""
        return {}


class LocalCluster:
    """A dispatcher in this process and workers in processes of their own, for trying and tests.

    `workers` is their number, or "auto" for as many as the jobs need, at most one per core. With
    `functions` they run those of `map` and `filter`. Closing it ends all of them; so does the end of
    this process, however it comes.
    """

    def __init__(
        self,
        workers: int | Literal["auto"] = 2,
        *,
        threads: int | None = None,
        memory: str | None = None,
        functions: bool = False,
        journal: str | os.PathLike[str] | None = None,
        listen: str = "127.0.0.1:0",
    ) -> None:
        if workers != "auto" and (not isinstance(workers, int) or workers < 0):
            raise ValueError(f"workers={workers!r}; give a number, or \"auto\"")
        self._folder = tempfile.TemporaryDirectory(prefix="feedline-cluster-")
        folder = os.path.join(self._folder.name, "journal") if journal is None else journal
        self._dispatcher = _core.Dispatcher(listen, os.fspath(folder))
        self.url = self._dispatcher.address
        _own.add(self.url)
        self._arguments: list[str] = []
        if threads is not None:
            self._arguments += ["--threads", str(threads)]
        if memory is not None:
            self._arguments += ["--memory", memory]
        if functions:
            self._arguments += ["--functions", f"'{sys.executable}' -m feedline.host"]
        self._processes: list[subprocess.Popen[str]] = []
        # Told to end, and not gone yet.
        self._ending: list[subprocess.Popen[str]] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._scaler: threading.Thread | None = None
        try:
            self.scale(1 if workers == "auto" else workers)
            if workers == "auto":
                self._scaler = threading.Thread(target=self._follow, daemon=True)
                self._scaler.start()
        except BaseException:
            self.close()
            raise

    @property
    def workers(self) -> list[int]:
        """The process numbers of the workers that are alive."""
        with self._lock:
            return [one.pid for one in self._processes if one.poll() is None]

    def status(self) -> dict[str, Any]:
        """How the service stands: jobs, workers, rates, and how many workers are wanted."""
        return json.loads(_core.service_status(self.url))

    def scale(self, workers: int) -> None:
        """Starts or ends workers until there are so many. Those that end finish what they stream."""
        with self._lock:
            self._processes = [one for one in self._processes if one.poll() is None]
            for one in self._processes[workers:]:
                one.terminate()
            self._ending += self._processes[workers:]
            self._ending = [one for one in self._ending if one.poll() is None]
            self._processes = self._processes[:workers]
            started = []
            while len(self._processes) < workers:
                one = self._start()
                self._processes.append(one)
                started.append(one)
        for one in started:
            assert one.stdout is not None
            if not one.stdout.readline():
                code = one.wait()
                raise RuntimeError(f"a worker ended at once, with exit code {code}")

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "feedline", "worker", "--dispatcher", self.url]
        command += ["--with-parent", "--save-to", "/", *self._arguments]
        said = {name: value for name, value in os.environ.items() if name not in _TRUST}
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=said
        )

    def _follow(self) -> None:
        most = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        while not self._closing.wait(1.0):
            try:
                wanted = int(self.status()["scale"]["wanted"])
                self.scale(max(1, min(wanted, most or 1)))
            except (OSError, RuntimeError, ValueError):
                # It is asked again in a second.
                continue

    def wait(self, workers: int, timeout: float = 30.0) -> None:
        """Waits until the dispatcher knows so many workers."""
        end = time.monotonic() + timeout
        while len(self.status()["workers"]) < workers:
            if time.monotonic() > end:
                raise TimeoutError(f"{workers} workers did not come within {timeout} s")
            time.sleep(0.02)

    def close(self) -> None:
        """Ends all workers and the dispatcher."""
        self._closing.set()
        if self._scaler is not None:
            self._scaler.join()
        with self._lock:
            processes, self._processes = self._processes + self._ending, []
        for one in processes:
            one.terminate()
        for one in processes:
            try:
                one.wait(5)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()
            if one.stdout is not None:
                one.stdout.close()
        self._dispatcher.stop()
        _own.discard(self.url)
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<LocalCluster {self.url}, {len(self.workers)} workers>"
