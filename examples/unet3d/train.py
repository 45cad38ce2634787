"""Feeds simulated accelerators with CT volumes, straight from the scanner's files, and shows who waited.

    python examples/unet3d/train.py                         # makes a small data set first
    python examples/unet3d/train.py --data KITS19 --accelerators 8 --threads 16

KITS19 is a folder with `case_*/imaging.nii.gz` and `segmentation.nii.gz`. The accelerators are threads that
take a batch and sleep. What is usually prepared once and stored (resampling, normalising, padding) runs here
with the random steps, in one pipeline: nothing is written, and nothing has to be made again when it changes.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import feedline as fl
import timeline
import volumes


def pipeline(folder: Path) -> fl.Dataset:
    """Offline and online steps of MLPerf's 3D-UNet."""
    scans = fl.nifti(
        folder, fields={"image": "*/imaging.nii.gz", "label": "*/segmentation.nii.gz"}, channel=True
    )
    prepared = (
        scans.shuffle(seed=0)
        .cast("float32", field="image")
        .resample(list(volumes.TARGET))
        .clip(*volumes.CLIP, field="image")
        .normalize(volumes.MEAN, volumes.DEVIATION, field="image")
        .pad_to(volumes.LEAST)
    )
    return (
        prepared.random_balanced_crop(128, p=0.4)
        .random_flip(p=1 / 3)
        .cast("uint8", field="label")
        .random_brightness(0.7, 1.3, p=0.1)
        .random_noise(std=0.1, p=0.1)
    )


# ------------------------------------------------------------------------------------- ways of loading


def with_feedline(order: str) -> Callable[[argparse.Namespace], timeline.Run]:
    def run(options: argparse.Namespace) -> timeline.Run:
        dataset = pipeline(options.data).repeat().batch(options.batch)
        loaders = dataset.loaders(options.accelerators, threads=options.threads, order=order)
        try:
            sources = [iter(loader) for loader in loaders]
            return timeline.train(f"Feedline, {order} order", sources, options.steps, options.step_ms)
        finally:
            for loader in loaders:
                loader.close()

    return run


def with_torch(options: argparse.Namespace) -> timeline.Run:
    """The same steps in numpy and scipy, in worker processes that are dealt out to the accelerators."""
    import reference

    sources = reference.sources(
        options.data, options.accelerators, options.threads, options.batch, options.steps
    )
    return timeline.train("torch DataLoader", sources, options.steps, options.step_ms)


# -------------------------------------------------------------------------------------------- the data


def small_data(folder: Path, count: int) -> Path:
    """Scans at 0.6 of the real extent and 1/27 of the voxels: enough to see what slow samples do."""
    for done, case in enumerate(volumes.cases(None, count), 1):
        case = replace(case, spacing=tuple(0.6 * mm for mm in case.spacing)).scaled(27)
        volumes.make_raw(case, folder, seed=0)
        if sys.stdout.isatty() or done == count:
            end = "\n" if done == count else "\r"
            print(f"making data in {folder}: {done} of {count} scans", end=end, flush=True)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of case_*/imaging.nii.gz and segmentation.nii.gz")
    parser.add_argument("--accelerators", type=int, default=4, choices=range(1, 9), metavar="1…8")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads or workers in total")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12, help="steps of each accelerator")
    parser.add_argument("--step-ms", type=float, default=400, help="milliseconds that a step takes")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for timeline.html and timeline.png")
    options = parser.parse_args()
    if options.data is None:
        options.data = small_data(Path(tempfile.gettempdir()) / "feedline-unet3d", count=12)

    runs = []
    for way in (with_feedline("exact"), with_feedline("ready"), with_torch):
        try:
            runs.append(way(options))
        except ModuleNotFoundError as error:
            print(f"without the torch DataLoader, which needs torch and scipy: {error}")
    print(timeline.text(runs))
    (options.out / "timeline.html").write_text(timeline.html(runs))
    (options.out / "timeline.png").write_bytes(timeline.png(runs))
    print(f"\nwritten: {options.out / 'timeline.html'}, {options.out / 'timeline.png'}")


if __name__ == "__main__":
    main()
