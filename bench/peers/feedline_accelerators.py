"""Feeds simulated accelerators from Feedline: one loader and one thread for each, one pool for all."""

from concurrent.futures import ThreadPoolExecutor

import common_accelerators as common
import feedline as fl

options = common.options()
files = len(list(options.samples.glob("*.npy")))
dataset = fl.npy(options.samples, fields={"sample": "*.npy"}).shuffle(seed=0)
dataset = dataset.repeat(common.passes(options, files)).batch(common.BATCH, drop_last=True)
loaders = dataset.loaders(options.accelerators, threads=options.threads)
with ThreadPoolExecutor(options.accelerators) as accelerators:
    utilisations = list(accelerators.map(lambda loader: common.train(loader, options), loaders))
common.report(utilisations, options, fl.__version__)
