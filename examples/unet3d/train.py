"""Feeds simulated accelerators with CT volumes, straight from the scanner's files, and shows who waited.

    python examples/unet3d/train.py                         # makes a small data set first
    python examples/unet3d/train.py --data KITS19 --accelerators 8 --threads 16

KITS19 is a folder with `case_*/imaging.nii.gz` and `segmentation.nii.gz`. The accelerators are threads that
take a batch and sleep. What is usually prepared once and stored (resampling, normalising, padding) runs here
with the random steps, in one pipeline: nothing is written, and nothing has to be made again when it changes.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
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
        .resample(list(volumes.TARGET))
        .clip(*volumes.CLIP, field="image")
        .normalize(volumes.MEAN, volumes.DEVIATION, field="image")
        .pad_to(volumes.LEAST)
    )
    return (
        prepared.random_balanced_crop(128, p=0.4)
        .random_flip(p=1 / 3)
        .cast("float32", field="image")
        .cast("uint8", field="label")
        .random_brightness(0.7, 1.3, p=0.1)
        .random_noise(std=0.1, p=0.1)
    )


def accelerate(batches: Iterator, start: float, steps: int, seconds: float) -> list[timeline.Step]:
    """One accelerator: asks for a batch, sleeps as long as a step takes, and writes down when."""
    lane = []
    for _ in range(steps):
        asked = time.perf_counter() - start
        next(batches)
        got = time.perf_counter() - start
        time.sleep(seconds)
        lane.append(timeline.Step(asked, got, time.perf_counter() - start))
    return lane


def train(name: str, sources: Sequence[Iterator], options: argparse.Namespace) -> timeline.Run:
    """All accelerators at once, each with batches of its own."""
    start = time.perf_counter()
    with ThreadPoolExecutor(len(sources)) as pool:
        lanes = pool.map(
            lambda source: accelerate(source, start, options.steps, options.step_ms / 1000), sources
        )
        return timeline.Run(name, list(lanes))


# ------------------------------------------------------------------------------------- ways of loading


def with_feedline(order: str) -> Callable[[argparse.Namespace], timeline.Run]:
    def run(options: argparse.Namespace) -> timeline.Run:
        dataset = pipeline(options.data).repeat().batch(options.batch)
        loaders = dataset.loaders(options.accelerators, threads=options.threads, order=order)
        try:
            return train(f"Feedline, {order} order", [iter(loader) for loader in loaders], options)
        finally:
            for loader in loaders:
                loader.close()

    return run


def with_torch(options: argparse.Namespace) -> timeline.Run:
    """The same steps in numpy and scipy, in worker processes that are dealt out to the accelerators."""
    import torch
    from reference import augment, preprocess
    from torch.utils.data import DataLoader, Dataset, RandomSampler

    torch.set_num_threads(1)

    class Scans(Dataset):
        def __init__(self) -> None:
            self.files = sorted(options.data.glob("*/imaging.nii.gz"))

        def __len__(self) -> int:
            return len(self.files)

        def __getitem__(self, index: int) -> tuple:
            image, spacing = volumes.read_nifti(self.files[index])
            label, _ = volumes.read_nifti(self.files[index].with_name("segmentation.nii.gz"))
            image, label = image.astype("float32", order="C")[None], label.astype("uint8", order="C")[None]
            image, label = augment(*preprocess(image, label, spacing))
            return torch.from_numpy(image), torch.from_numpy(label)

    share, rest = divmod(options.threads, options.accelerators)
    scans = Scans()
    sources = []
    for rank in range(options.accelerators):
        # Never none: with fewer workers than accelerators, the DataLoaders have more in total.
        workers = max(1, share + (rank < rest))
        sampler = RandomSampler(scans, replacement=True, num_samples=options.steps * options.batch)
        sources.append(iter(DataLoader(scans, options.batch, sampler=sampler, num_workers=workers)))
    return train("torch DataLoader", sources, options)


# -------------------------------------------------------------------------------------------- the data


def small_data(folder: Path, count: int) -> Path:
    """Scans at 0.6 of the real extent and 1/27 of the voxels: enough to see what slow samples do."""
    for done, case in enumerate(volumes.cases(None, count), 1):
        case = replace(case, spacing=tuple(0.6 * mm for mm in case.spacing)).scaled(27)
        volumes.make_raw(case, folder, seed=0)
        print(f"\rmaking data in {folder}: {done} of {count} scans", end="", flush=True)
    print()
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
