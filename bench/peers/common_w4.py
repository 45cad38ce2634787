"""What the contestants of W4 share: their options, the volumes, and what a batch must look like."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import measure  # noqa: E402
import numpy as np  # noqa: E402

PATCH = 128
# Passes over the volumes after which loaders that remember where the organs are have met them all.
PASSES = 8


def options() -> argparse.Namespace:
    parser = measure.common_options()
    parser.add_argument("--volumes", type=Path, required=True, help="folder of *_x.npy and *_y.npy")
    parser.add_argument("--origins", type=Path, help="write this many crop origins here instead of measuring")
    parser.add_argument("--draws", type=int, default=4000, help="origins of each volume")
    parser.set_defaults(batch=2)
    return parser.parse_args()


def files(folder: Path) -> list[Path]:
    found = sorted(folder.glob("*_x.npy"))
    if not found:
        sys.exit(f"no *_x.npy in {folder}; make some with: bench/kits19.py npy {folder}")
    return found


def label_of(image: Path) -> Path:
    return image.with_name(image.name.replace("_x.npy", "_y.npy"))


def check(name: str, arguments: argparse.Namespace, image: np.ndarray, label: np.ndarray) -> dict:
    shape = (arguments.batch, 1, PATCH, PATCH, PATCH)
    for array, dtype in ((image, "float32"), (label, "uint8")):
        if array.shape != shape or str(array.dtype) != dtype:
            sys.exit(f"{name} made {array.shape} {array.dtype}, not {shape} {dtype}")
    return {"mean": round(float(image.mean()), 3), "classes": np.unique(label).tolist()}
