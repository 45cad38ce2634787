"""Large arguments of plans: arrays and lists, handed over by reference and named by their hash."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import _core

Blobs = dict[str, "_core.Blob"]

_NUMBERS = "?bBhHiIlLqQefd"


def array_blob(name: str, values: Any) -> tuple[_core.Blob, str, list[int]]:
    """The blob of an array or a list, its dtype and its shape."""
    if not isinstance(values, np.ndarray):
        if isinstance(values, Sequence) and values and isinstance(values[0], (bytes, str)):
            return _ragged(values)
        values = np.asarray(values)
    if values.dtype.kind in "US":
        return _ragged(values.tolist())
    dtype = values.dtype.newbyteorder("=")
    if dtype.char not in _NUMBERS:
        raise _core.PipelineError(
            f"arrays: {name} is of dtype {values.dtype}; numbers, bytes and texts are possible"
        )
    array = np.ascontiguousarray(values, dtype=dtype)
    if array.ndim == 0:
        raise _core.PipelineError(f"arrays: {name} is one number, without rows")
    shape = list(array.shape)
    blob = _core.Blob.array(array, array.ctypes.data, array.nbytes, dtype.name, shape)
    return blob, dtype.name, shape


def _ragged(values: Sequence[bytes | str]) -> tuple[_core.Blob, str, list[int]]:
    dtype = "bytes" if isinstance(values[0], bytes) else "text"
    parts = [value if isinstance(value, bytes) else value.encode() for value in values]
    offsets = np.cumsum([0, *(len(part) for part in parts)]).tolist()
    return _core.Blob.ragged(dtype, b"".join(parts), offsets), dtype, [len(parts)]


def save_blobs(plan_file: str, blobs: Blobs) -> None:
    """Writes blobs into the folder beside a plan."""
    if not blobs:
        return
    folder = plan_file + ".blobs"
    os.makedirs(folder, exist_ok=True)
    for name, blob in blobs.items():
        with open(os.path.join(folder, name), "wb") as file:
            file.write(bytes(blob.save()))


def read_blobs(plan_file: str) -> Blobs:
    """Reads the blobs beside a plan."""
    folder = plan_file + ".blobs"
    blobs: Blobs = {}
    if not os.path.isdir(folder):
        return blobs
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as file:
            header = json.loads(file.readline())
            data = file.read()
        if header["dtype"] in ("bytes", "text"):
            blob = _core.Blob.bytes(data)
        else:
            array = np.frombuffer(data, dtype=header["dtype"]).reshape(header["shape"])
            blob = array_blob(name, array)[0]
        if blob.hash != name:
            raise _core.SourceError(f"{folder}/{name} is damaged: its content has another hash")
        blobs[name] = blob
    return blobs
