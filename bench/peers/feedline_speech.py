"""Samples that sleep as long as a list says, in Feedline. Variants: `exact` and `ready`."""

import common_speech
import feedline as fl
import numpy as np

options, costs = common_speech.options()
dataset = fl.arrays(ms=costs).shuffle(seed=options.seed).sleep(field="ms").batch(common_speech.BATCH)
order = {"order": "ready", "max_slip": 8} if options.variant == "ready" else {"order": "exact"}
loader = dataset.loader(threads=options.threads, seed=options.seed, with_index=True, **order)
clock = common_speech.Clock()
batches = [np.array(batch["index"]) for batch in loader]
clock.report(batches, fl.__version__)
