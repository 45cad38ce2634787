"""Feedline keeps accelerators fed: pipelines of samples, written once, run anywhere.

    import feedline as fl

    ds = fl.images("train/").shuffle(seed=0).decode().random_resized_crop(224).flip()
    ds = ds.normalize(mean, std).layout("CHW").batch(64)
    for batch in ds.loader(threads=8):
        step(batch["image"], batch["label"])
"""

from ._core import (
    PipelineError,
    RecordError,
    ServiceError,
    SourceError,
    StateError,
    UnavailableError,
    __version__,
)
from .dataset import Dataset
from .loader import Loader, merge_states
from .saving import Saved
from .service import Distributed, LocalCluster
from .sources import arrays, arrow, files, from_plan, images, nifti, npy, range

__all__ = [
    "Dataset",
    "Distributed",
    "Loader",
    "LocalCluster",
    "PipelineError",
    "RecordError",
    "Saved",
    "ServiceError",
    "SourceError",
    "StateError",
    "UnavailableError",
    "__version__",
    "arrays",
    "arrow",
    "files",
    "from_plan",
    "images",
    "merge_states",
    "nifti",
    "npy",
    "range",
]
