"""Feeds simulated accelerators with CT scans from PyTorch's DataLoader: the reference of examples/unet3d."""

import common_unet3d as common
import reference
import torch

options = common.options()
sources = reference.sources(
    options.data, options.accelerators, options.threads, options.batch, options.steps
)
common.report(sources, options, torch.__version__)
