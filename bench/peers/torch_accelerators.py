"""Feeds simulated accelerators from PyTorch's DataLoader: one process and one DataLoader for each."""

import multiprocessing
from pathlib import Path

import common_accelerators as common
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

options = common.options()


class Samples(Dataset):
    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(np.load(self.files[index]))


def accelerate(rank: int, results: multiprocessing.SimpleQueue) -> None:
    torch.set_num_threads(1)
    files = sorted(options.samples.glob("*.npy"))
    rng = np.random.default_rng(0)
    order = np.concatenate([rng.permutation(len(files)) for _ in range(common.passes(options, len(files)))])
    # The workers are dealt out; with more accelerators than workers, each has one.
    share, rest = divmod(options.threads, options.accelerators)
    loader = DataLoader(
        Samples(files),
        batch_size=common.BATCH,
        sampler=order[rank :: options.accelerators].tolist(),
        num_workers=max(1, share + (rank < rest)),
        drop_last=True,
    )
    results.put(common.train(loader, options))


if __name__ == "__main__":
    results: multiprocessing.SimpleQueue = multiprocessing.SimpleQueue()
    ranks = [
        multiprocessing.Process(target=accelerate, args=(rank, results))
        for rank in range(options.accelerators)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    common.report([results.get() for _ in ranks], options, torch.__version__)
