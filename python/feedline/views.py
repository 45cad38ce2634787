"""Batches as arrays of NumPy, PyTorch or JAX, over the engine's own memory."""

from __future__ import annotations

from typing import Any

import numpy as np

Batch = dict[str, Any]


class _Dtypes(dict[str, "np.dtype[Any]"]):
    """NumPy's dtypes by name. It has no bfloat16 of its own: ml_dtypes brings it, and without it the
    16 bits are shown as they are."""

    def __missing__(self, name: str) -> np.dtype[Any]:
        dtype: np.dtype[Any]
        if name == "bfloat16":
            try:
                from ml_dtypes import bfloat16

                dtype = np.dtype(bfloat16)
            except ImportError:
                dtype = np.dtype(np.uint16)
        else:
            dtype = np.dtype(name)
        self[name] = dtype
        return dtype


_DTYPES = _Dtypes()


def to_numpy(raw: Batch) -> Batch:
    """Arrays over the memory of the batch; nothing is copied."""
    for name, value in raw.items():
        if type(value) is tuple:
            memory, dtype, shape = value
            raw[name] = np.ndarray(shape, _DTYPES[dtype], memory)
    return raw


def to_torch(raw: Batch) -> Batch:
    """Tensors over the memory of the batch; nothing is copied."""
    import torch

    for name, value in raw.items():
        if type(value) is tuple:
            memory, dtype, shape = value
            kind = getattr(torch, dtype)
            if len(memory) == 0:
                raw[name] = torch.empty(shape, dtype=kind)
            else:
                raw[name] = torch.frombuffer(memory, dtype=kind).reshape(shape)
    return raw


def to_jax(raw: Batch) -> Batch:
    """JAX arrays of the batch; on the CPU they share its memory where JAX can."""
    import jax.numpy as jnp

    batch = to_numpy(raw)
    for name, value in batch.items():
        if isinstance(value, np.ndarray):
            batch[name] = jnp.asarray(value)
    return batch
