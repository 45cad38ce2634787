"""Feedline with PyTorch itself."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import feedline as fl

torch = pytest.importorskip("torch")


def test_tensors_share_the_batches_memory():
    ds = fl.arrays(x=np.arange(24, dtype=np.float32).reshape(6, 4), y=np.arange(6)).batch(3)
    for number, batch in enumerate(ds.loader().torch()):
        assert batch["x"].dtype == torch.float32 and batch["y"].dtype == torch.int64
        assert batch["x"].shape == (3, 4)
        assert batch["x"].data_ptr() % 64 == 0
        assert batch["x"][0, 0] == number * 12
        batch["x"].add_(1)  # writable, without a warning


def test_numpy_batches_cross_by_dlpack_without_a_copy():
    batch = next(iter(fl.range(8).batch(8)))
    tensor = torch.from_dlpack(batch["index"])
    assert tensor.data_ptr() == batch["index"].ctypes.data


def test_half_precision_arrives_as_such():
    x = np.random.default_rng(0).random((4, 3), dtype=np.float32)
    for name in ("float16", "bfloat16"):
        batch = next(iter(fl.arrays(x=x).cast(name).batch(4).loader().torch()))
        assert batch["x"].dtype == getattr(torch, name)
        expected = torch.from_numpy(x).to(getattr(torch, name))
        assert torch.equal(batch["x"], expected)


def test_dtypes_of_torch_name_ours():
    ds = fl.arrays(x=np.zeros((2, 2), np.float32)).cast(torch.float16)
    assert "float16" in ds.spec[0]


def test_batches_outlive_their_loader():
    loader = fl.range(64).batch(16).loader().torch()
    kept = [batch["index"] for batch in loader]
    loader.close()
    del loader
    assert torch.equal(torch.cat(kept), torch.arange(64))


def test_training_resumes_exactly():
    x = np.random.default_rng(1).random((60, 5), dtype=np.float32)
    y = x @ np.arange(5, dtype=np.float32)
    ds = fl.arrays(x=x, y=y).shuffle(seed=3).batch(8)

    def train(model, loader, steps):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        done = 0
        while True:
            for batch in loader:
                loss = (model(batch["x"]).squeeze(1) - batch["y"]).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                done += 1
                if done == steps:
                    return

    torch.manual_seed(0)
    whole = torch.nn.Linear(5, 1)
    parts = torch.nn.Linear(5, 1)
    parts.load_state_dict(whole.state_dict())
    train(whole, ds.loader().torch(), 20)
    first = ds.loader().torch()
    train(parts, first, 11)
    second = ds.loader(threads=1).torch()
    second.load_state_dict(first.state_dict())
    train(parts, second, 9)
    assert torch.equal(whole.weight, parts.weight)


def test_ranks_are_found_from_torch_distributed(tmp_path):
    program = """
    import sys
    import torch.distributed as dist
    import feedline as fl

    rank, world, file = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    dist.init_process_group("gloo", init_method="file://" + file, rank=rank, world_size=world)
    loader = fl.range(12).batch(2).loader()
    print(loader.rank, loader.world, [b["index"].tolist() for b in loader])
    dist.destroy_process_group()
    """
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program), str(rank), "2", str(tmp_path / "meet")],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=120)[0].strip() for process in processes]
    assert outputs == [
        "0 2 [[0, 1], [4, 5], [8, 9]]",
        "1 2 [[2, 3], [6, 7], [10, 11]]",
    ]
