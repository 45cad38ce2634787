"""Samples that sleep as long as a list says, in PyTorch's DataLoader."""

import time

import common_speech
import torch
from torch.utils.data import DataLoader, Dataset

options, costs = common_speech.options()


class Sleeps(Dataset):
    def __getitem__(self, index: int) -> int:
        if index >= 0:
            time.sleep(costs[index] / 1000)
        return index


order = [-1] * options.threads * 2 * common_speech.BATCH
loader = DataLoader(
    Sleeps(),
    batch_size=common_speech.BATCH,
    sampler=order,
    num_workers=options.threads,
    prefetch_factor=2,
    persistent_workers=True,
)
for _ in loader:  # starts the workers: their start is not held against the DataLoader
    pass
order[:] = torch.randperm(len(costs), generator=torch.Generator().manual_seed(options.seed)).tolist()
clock = common_speech.Clock()
batches = [batch.numpy() for batch in loader]
clock.report(batches, torch.__version__)
