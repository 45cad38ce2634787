"""Feeds simulated accelerators with CT scans from Feedline: the pipeline of examples/unet3d."""

import os
import tempfile

# What is kept about the masks begins empty in every run.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()

import common_unet3d as common  # noqa: E402
import feedline as fl  # noqa: E402
import train  # noqa: E402

options = common.options()
dataset = train.pipeline(options.data).repeat().batch(options.batch)
loaders = dataset.loaders(options.accelerators, threads=options.threads, order=options.order)
sources = [iter(loader) for loader in loaders]
common.report(sources, options, fl.__version__)
