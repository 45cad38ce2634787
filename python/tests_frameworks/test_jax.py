"""Feedline with JAX itself."""

from __future__ import annotations

import numpy as np
import pytest

import feedline as fl

jax = pytest.importorskip("jax")


def test_batches_arrive_as_jax_arrays():
    x = np.arange(24, dtype=np.float32).reshape(6, 4)
    for number, batch in enumerate(fl.arrays(x=x).batch(3).loader().jax()):
        assert isinstance(batch["x"], jax.Array)
        np.testing.assert_array_equal(batch["x"], x[number * 3 : number * 3 + 3])


def test_arrays_stay_as_they_are_when_their_memory_is_reused():
    # Batch buffers are pooled: an array that JAX still holds must not change under it.
    loader = fl.range(4096).batch(64).loader().jax()
    kept = [batch["index"] for batch in loader]
    np.testing.assert_array_equal(np.concatenate([np.asarray(part) for part in kept]), np.arange(4096))


def test_bfloat16_arrives_as_such():
    x = np.ones((4, 2), np.float32)
    batch = next(iter(fl.arrays(x=x).cast("bfloat16").batch(4).loader().jax()))
    assert batch["x"].dtype == jax.numpy.bfloat16
