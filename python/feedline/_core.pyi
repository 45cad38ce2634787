from collections.abc import Callable, Sequence
from typing import Any

__version__: str

class PipelineError(ValueError):
    """The pipeline is described wrongly."""

class SourceError(OSError):
    """The data is missing or is not what it was."""

class RecordError(RuntimeError):
    """One sample cannot be used."""

    origin: str
    index: int
    step: str
    reason: str

class UnavailableError(OSError):
    """Storage did not answer; trying again may help."""

class ServiceError(RuntimeError):
    """The service cannot go on by itself: someone has to restore, to release, or to give access."""

class StateError(ValueError):
    """A saved state does not fit this loader."""

HostCommand = tuple[list[str], list[tuple[str, str]]]

class Blob:
    hash: str
    @staticmethod
    def array(
        owner: object, address: int, bytes: int, dtype: str, shape: Sequence[int]
    ) -> Blob: ...
    @staticmethod
    def bytes(data: bytes) -> Blob: ...
    @staticmethod
    def ragged(dtype: str, data: bytes, offsets: Sequence[int]) -> Blob: ...
    def save(self) -> list[int]: ...

class Pipeline:
    source_length: int
    length: int | None
    counted: bool
    classes: list[str] | None
    fields: list[str]
    def __init__(
        self, plan: str, blobs: dict[str, Blob], host: HostCommand | None = None
    ) -> None: ...
    def learn(
        self, name: str, code: Blob, random: bool, timeout: float, host: HostCommand
    ) -> str: ...
    def steps(
        self, rank: int, world: int, rounds: bool = False
    ) -> tuple[int, int | None]: ...
    def check_options(self, given: dict[str, Any]) -> None: ...
    def explain(self, given: dict[str, Any]) -> tuple[str, str]: ...
    def sample(self, index: int, epoch: int, seed: int) -> dict[str, Any]: ...
    def save(
        self,
        blobs: dict[str, Blob],
        folder: str,
        seed: int,
        epoch: int,
        shard: str | None,
        rows: int | None,
        given: dict[str, Any],
        service: dict[str, Any] | None,
        tell: Callable[[int, int, int, int, int], None] | None,
    ) -> tuple[int, int, int, int, int, float]: ...
    def start_state(self, epoch: int, seed: int, rank: int, world: int) -> str: ...
    def check_state(self, state: str, seed: int, rank: int, world: int) -> int: ...

class Run:
    def __init__(
        self,
        pipeline: Pipeline,
        state: str | None,
        epoch: int,
        given: dict[str, Any],
        team: Team | None = None,
    ) -> None: ...
    @staticmethod
    def remote(
        pipeline: Pipeline,
        state: str | None,
        epoch: int,
        given: dict[str, Any],
        job: dict[str, Any],
    ) -> Run: ...
    def is_here(self) -> bool: ...
    def next(self) -> dict[str, Any] | None: ...
    def state(self, before: bool) -> str: ...
    def stats(self) -> str: ...

class Dispatcher:
    address: str
    def __init__(self, address: str, journal: str) -> None: ...
    def stop(self) -> None: ...

class Team:
    def __init__(self, threads: int) -> None: ...
    def is_here(self) -> bool: ...

class Tensor:
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

def check(plan: str) -> tuple[str, str, str, list[str]]: ...
def parse_bytes(text: str) -> int: ...
def steps() -> list[str]: ...
def merge_states(states: list[str]) -> str: ...
def service_status(url: str) -> str: ...
def main(args: list[str]) -> int: ...
