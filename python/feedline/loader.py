"""A loader: epochs of batches, with a state that can be saved."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

from . import _core
from .ranks import detect
from .views import Batch, to_jax, to_numpy, to_torch

if TYPE_CHECKING:
    from os import PathLike
    from types import TracebackType

    from .dataset import Dataset


class Loader:
    """Delivers a pipeline's batches, epoch after epoch.

    `for batch in loader` is one epoch; the next `for` is the next epoch, and is being prepared
    while this one ends. Leaving a loop early gives the rest of that epoch up. The state is a small
    dict of JSON values that names the next batch; it may be loaded by a loader with any number of
    threads or ranks.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        threads: int | None = None,
        memory: int | str | None = None,
        rank: int | None = None,
        world: int | None = None,
        rounds: bool = False,
        seed: int = 0,
        with_index: bool = False,
        ahead: int | None = None,
        reads: int | None = None,
        tune: bool = True,
        order: Literal["exact", "ready"] = "exact",
        max_slip: int | None = None,
        record: str | PathLike[str] | None = None,
        replay: str | PathLike[str] | None = None,
        team: Team | None = None,
    ) -> None:
        if (rank is None) != (world is None):
            raise ValueError("rank and world belong together; give both or none")
        if rank is None or world is None:
            rank, world = detect()
        if not 0 <= rank < world:
            raise ValueError(f"rank {rank} of {world} ranks; ranks count from 0")
        limits = {"threads": threads, "ahead": ahead, "reads": reads, "max_slip": max_slip}
        for name, value in limits.items():
            if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
                raise TypeError(f"{name}={value!r}; it must be a whole number")
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}; it must be at least 1, or None to be chosen")
        self.dataset = dataset
        self.rank = rank
        self.world = world
        self.rounds = rounds
        self.seed = seed
        if max_slip is not None and order != "ready":
            raise ValueError("max_slip goes with order=\"ready\"")
        if replay is not None and order != "exact":
            raise ValueError("a replay has the order of its recording; leave order out")
        self._pipeline = dataset._open
        options: dict[str, Any] = {
            "threads": threads,
            "memory": memory,
            "ahead": ahead,
            "reads": reads,
            "tune": tune,
            "order": order,
            "max_slip": max_slip,
            "record": None if record is None else os.fspath(record),
            "replay": None if replay is None else os.fspath(replay),
        }
        self._options = {name: value for name, value in options.items() if value is not None}
        self._team = team
        self._options |= {"rank": rank, "world": world, "rounds": rounds, "seed": seed}
        if with_index:
            if "index" in self._pipeline.fields and not dataset._index_is_its_own():
                raise _core.PipelineError(
                    "with_index adds a field index, and the pipeline has one; rename it first"
                )
            self._options["with_index"] = True
        self._pipeline.check_options(self._options)
        self._epochs: int | None = None
        self._warns = True
        self._run: _core.Run | None = None
        self._state: str | None = None
        self._epoch = 0
        self._within = False
        self._pass = 0
        self._stats: dict[str, Any] = {}
        self._convert: Callable[[Batch], Batch] = to_numpy

    # ------------------------------------------------------------------------------- iterating

    def __iter__(self) -> Iterator[Batch]:
        if self._within:
            # A loop was left early: the rest of its epoch is given up.
            self._close()
            self._epoch, self._within, self._state = self._epoch + 1, False, None
        self._pass += 1
        return self._batches(self._pass)

    def _batches(self, this_pass: int) -> Iterator[Batch]:
        while True:
            if this_pass != self._pass:
                raise RuntimeError(
                    "this loop is over: another one has begun, or the loader was set to another place"
                )
            run = self._running()
            try:
                raw = run.next()
            except BaseException:
                # An error, or Ctrl-C between two batches: nothing was delivered. The loader stands
                # before the batch that failed, and the next loop goes on from there.
                # Where nothing was delivered at all, it stands where it stood.
                with contextlib.suppress(_core.StateError):
                    self._state = run.state(True)
                self._within = False
                self._close()
                raise
            if raw is None:
                if self._warns and not self._within and self._state is None and self._pipeline.length:
                    warnings.warn(
                        f"epoch {self._epoch} has no batch for rank {self.rank} of {self.world}: there "
                        f"are {self._pipeline.length} samples (is batch larger than that, with "
                        "drop_last, has bucket fewer stretches than there are ranks, or was every "
                        "sample skipped or filtered out?)",
                        stacklevel=2,
                    )
                self._epoch, self._within, self._state = self._epoch + 1, False, None
                if self._epochs is not None:
                    self._close()
                return
            self._within = True
            # A loop that is not gone on with must not keep the threads alive.
            del run
            yield self._convert(raw)

    def _running(self) -> _core.Run:
        run = self._run
        if run is not None and not run.is_here():
            # This process is a fork: threads stayed behind, the place in the epoch came along.
            self._state, run = run.state(False), None
        if run is None:
            options = dict(self._options)
            if self._epochs is not None:
                options["epochs"] = self._epochs
            run = self._run = self._start(options)
        return run

    def _start(self, options: dict[str, Any]) -> _core.Run:
        team = None if self._team is None else self._team._threads(self)
        return _core.Run(self._pipeline, self._state, self._epoch, options, team)

    def __len__(self) -> int:
        """Batches (or samples) of this rank in an epoch."""
        from .dataset import _exact_length

        return _exact_length(self._pipeline.steps(self.rank, self.world, self.rounds))

    def len_bounds(self) -> tuple[int, int | None]:
        """Least and greatest number of batches in an epoch; None if it never ends."""
        least, most = self._pipeline.steps(self.rank, self.world, self.rounds)
        return (0 if most is None else least), most

    # ----------------------------------------------------------------------------------- state

    @property
    def epoch(self) -> int:
        """The epoch that is being delivered, or comes next."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Makes `epoch` the next to be delivered.

        If it is the one that comes next anyway, a loaded state keeps its place in it; a loop that
        is under way or was left early is over, and the epoch begins anew.
        """
        if epoch < 0:
            raise ValueError(f"epoch {epoch}; epochs count from 0")
        if epoch == self._epoch and not self._within:
            return
        self._close()
        self._epoch, self._state, self._within = epoch, None, False
        self._pass += 1

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands after the batches it has delivered: JSON of less than 1 kB."""
        if self._run is None and self._state is not None:
            return json.loads(self._state)
        if self._run is None:
            return json.loads(self._pipeline.start_state(self._epoch, self.seed, self.rank, self.world))
        return json.loads(self._running().state(False))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where `state` was saved: the next loop delivers exactly the rest of that epoch.

        The state may come from any number of threads; from another number of ranks as well, if the
        pipeline's length is known, otherwise after `merge_states`.
        """
        if "checkpoint" in state:
            raise _core.StateError(
                "this state was saved by a distributed loader with order \"any\": merge the states of "
                "all its clients first (merge_states)"
            )
        text = json.dumps(state)
        own, epoch = self._pipeline.adopt_state(text, self.seed, self.rank, self.world)
        self._close()
        self._state, self._epoch, self._within = own, epoch, False
        self._pass += 1

    # --------------------------------------------------------------------------------- looking

    def stats(self) -> dict[str, Any]:
        """What the loader did since it last started, and where the time went."""
        if self._run is None or not self._run.is_here():
            return self._stats
        return json.loads(self._run.stats())

    def explain(self) -> str:
        """What a run does: which steps run together, into which buffers, in which budgets.

        While the loader runs, also what the tuner has made of the budgets by now.
        """
        text = self._pipeline.explain(self._options)[0]
        if not self.stats():
            return text
        tuned = self.tuned()
        return text + (
            f"  tuned    {tuned['threads']} threads at work, {tuned['ahead']} batches ahead, "
            f"{tuned['reads']} reads at once\n"
        )

    def tuned(self) -> dict[str, int]:
        """What the tuner has chosen by now: `threads`, `ahead` and `reads`.

        Given to another loader, `ds.loader(**loader.tuned())`, they stay as they are.
        """
        return dict(self.stats().get("tuned", {}))

    def __repr__(self) -> str:
        return (
            f"<Loader epoch {self._epoch}, rank {self.rank} of {self.world}, {self.dataset.plan}>"
        )

    # --------------------------------------------------------------------------------- formats

    def numpy(self) -> Self:
        """Delivers NumPy arrays (the default)."""
        self._convert = to_numpy
        return self

    def torch(self) -> Self:
        """Delivers PyTorch tensors that share the batches' memory."""
        self._convert = to_torch
        return self

    def jax(self) -> Self:
        """Delivers JAX arrays."""
        self._convert = to_jax
        return self

    # --------------------------------------------------------------------------------- ending

    def _close(self) -> None:
        if self._run is not None and self._run.is_here():
            self._stats = json.loads(self._run.stats())
        self._run = None
        if self._team is not None:
            self._team._leave(self)

    def close(self) -> None:
        """Ends all threads and keeps the place; iterating again goes on from it.

        A thread that waits for a batch gets an error. Threads that several loaders share end with
        the last of them.
        """
        if self._run is not None:
            self._state, self._within = self._run.close(), False
            self._close()

    def __copy__(self) -> Self:
        raise TypeError("a loader cannot be copied; make another one and load its state")

    def __deepcopy__(self, memo: Any) -> Self:
        return self.__copy__()

    def __reduce__(self) -> Any:
        raise TypeError("a loader cannot be pickled; save its state_dict() instead")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Team:
    """Threads that several loaders share: `ds.loaders(4)` makes one."""

    def __init__(self, threads: int | None = None) -> None:
        self._count = threads or 0
        self._started: _core.Team | None = None
        self._users: set[int] = set()
        self._lock = threading.Lock()

    def _threads(self, user: Loader) -> _core.Team:
        with self._lock:
            # Threads do not come along into a forked process: start others there.
            if self._started is None or not self._started.is_here():
                self._started = _core.Team(self._count)
            self._users.add(id(user))
            return self._started

    def _leave(self, user: Loader) -> None:
        with self._lock:
            self._users.discard(id(user))
            if not self._users:
                self._started = None


def merge_states(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One state out of those of all ranks, from which any number of ranks can go on."""
    return json.loads(_core.merge_states([json.dumps(state) for state in states]))
