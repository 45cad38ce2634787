"""Keeping what a pipeline gives, so that it need not be computed again."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _core

if TYPE_CHECKING:
    from collections.abc import Callable

    from .dataset import Dataset

    Progress = Callable[[int, int, int, int, int], None]


class Saved(NamedTuple):
    """What `Dataset.save` left in a folder."""

    folder: str
    """Where it is."""
    rows: int
    """Rows of all files."""
    bytes: int
    """Bytes of all files."""
    shards: int
    """Number of files."""
    written: int
    """Files that this call wrote; the others were there, or another process wrote them."""
    skipped: int
    """Bad samples that were left out; `feedline.json` in the folder names them."""
    seconds: float
    """How long this call took."""


def save(
    dataset: Dataset,
    folder: str | os.PathLike[str],
    *,
    seed: int,
    epoch: int,
    shard: int | str | None,
    rows: int | None,
    threads: int | None,
    memory: int | str | None,
    progress: bool,
    service: str | None,
    timeout: float | None,
    token: str | os.PathLike[str] | None,
    ca: str | os.PathLike[str] | None,
    certificate: tuple[str | os.PathLike[str], str | os.PathLike[str]] | None,
    server_name: str | None,
) -> Saved:
    for name, value in {"rows": rows, "threads": threads}.items():
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise TypeError(f"{name}={value!r}; it must be a whole number")
        if value is not None and value < 1:
            raise ValueError(f"{name}={value}; it must be at least 1, or None to be chosen")
    if rows is not None and shard is not None:
        raise ValueError("give shard (bytes of a file) or rows (rows of a file), not both")
    if service is None and timeout is not None:
        raise ValueError("timeout goes with service")
    if service is not None and (threads is not None or memory is not None):
        raise ValueError("threads and memory are for saving here; on a service its workers have their own")
    if service is None and (token or ca or certificate or server_name):
        raise ValueError("token, ca, certificate and server_name go with service")
    where: dict[str, Any] | None = None
    if service is not None:
        from .service import trusted

        shown = trusted(service, token, ca, certificate, server_name)
        where = {"url": service, "timeout": timeout, **shown}
        where = {name: value for name, value in where.items() if value is not None}
    options: dict[str, Any] = {"threads": threads, "memory": memory}
    options = {name: value for name, value in options.items() if value is not None}
    name = os.fspath(folder)
    line = _Line() if progress and sys.stderr is not None and sys.stderr.isatty() else None
    try:
        numbers = dataset._open.save(
            dataset._blobs,
            name,
            seed,
            epoch,
            None if shard is None else str(shard),
            rows,
            options,
            where,
            line,
        )
    finally:
        if line is not None:
            line.clear()
    return Saved(name, *numbers)


class _Line:
    """A line on the terminal that says how far it is."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._told = 0.0

    def __call__(self, shards_done: int, shards: int, done: int, places: int, bytes: int) -> None:
        now = time.monotonic()
        if now - self._told < 0.2:
            return
        self._told = now
        share = done / places if places else 1.0
        rate = bytes / 1e6 / max(now - self._began, 1e-9)
        text = f"saving: {share:4.0%}  {shards_done}/{shards} files  {rate:.0f} MB/s"
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()

    def clear(self) -> None:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
