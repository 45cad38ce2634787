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
    if isinstance(values, (str, bytes)) or np.ma.isMaskedArray(values):
        kind = "masked array" if np.ma.isMaskedArray(values) else "single text"
        raise _core.PipelineError(f"arrays: {name} is a {kind}; give an array with a row a sample")
    if not isinstance(values, np.ndarray):
        if isinstance(values, Sequence) and values and isinstance(values[0], (bytes, str)):
            return _ragged(name, values)
        try:
            values = np.asarray(values)
        except ValueError as error:
            raise _core.PipelineError(f"arrays: {name} is no array: {error}") from None
    if values.ndim == 0:
        raise _core.PipelineError(f"arrays: {name} is one value, without rows")
    if values.dtype.kind in "US":
        return _ragged(name, values.tolist())
    dtype = values.dtype.newbyteorder("=")
    if dtype.char not in _NUMBERS:
        raise _core.PipelineError(
            f"arrays: {name} is of dtype {values.dtype}; numbers, bytes and texts are possible"
        )
    array = np.ascontiguousarray(values, dtype=dtype)
    shape = list(array.shape)
    blob = _core.Blob.array(array, array.ctypes.data, array.nbytes, dtype.name, shape)
    return blob, dtype.name, shape


def _ragged(name: str, values: Sequence[bytes | str]) -> tuple[_core.Blob, str, list[int]]:
    kind = bytes if values and isinstance(values[0], bytes) else str
    if not all(isinstance(value, kind) for value in values):
        raise _core.PipelineError(f"arrays: {name} must be a flat list of texts, or of bytes")
    dtype = "bytes" if kind is bytes else "text"
    parts = [value if isinstance(value, bytes) else value.encode() for value in values]
    offsets = np.cumsum([0, *(len(part) for part in parts)]).tolist()
    return _core.Blob.ragged(dtype, b"".join(parts), offsets), dtype, [len(parts)]


def save_blobs(plan_file: str, blobs: Blobs) -> None:
    """Writes blobs into the folder beside a plan."""
    if not blobs:
        return
    saved = {name: bytes(blob.save()) for name, blob in blobs.items()}
    folder = plan_file + ".blobs"
    os.makedirs(folder, exist_ok=True)
    for name, data in saved.items():
        with open(os.path.join(folder, name), "wb") as file:
            file.write(data)


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
