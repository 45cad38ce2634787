"""W1 in PyTorch's DataLoader with torchvision.

Variants: `tensor` (default; torchvision's own decoder and v2 transforms on tensors) and `pil` (Pillow
and the older transforms, as most training scripts are written). Both resize with antialiasing.
"""

import os
import sys
import warnings
from collections.abc import Iterator

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import measure  # noqa: E402

warnings.simplefilter("ignore")
import torch  # noqa: E402
import torchvision  # noqa: E402
from PIL import Image  # noqa: E402
from torch.utils.data import DataLoader, Dataset, RandomSampler  # noqa: E402
from torchvision import transforms  # noqa: E402
from torchvision.io import ImageReadMode, decode_jpeg, read_file  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

options = measure.options()
variant = options.variant or "tensor"


class Photos(Dataset):
    def __init__(self) -> None:
        self.paths, self.labels = measure.files(options.images)
        if variant == "pil":
            self.transform = transforms.Compose(
                [
                    transforms.RandomResizedCrop(measure.SIZE),
                    transforms.RandomHorizontalFlip(),
                    transforms.ToTensor(),
                    transforms.Normalize(measure.MEAN, measure.STD),
                ]
            )
        else:
            self.transform = v2.Compose(
                [
                    v2.RandomResizedCrop(measure.SIZE, antialias=True),
                    v2.RandomHorizontalFlip(),
                    v2.ToDtype(torch.float32, scale=True),
                    v2.Normalize(measure.MEAN, measure.STD),
                ]
            )

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple:
        if variant == "pil":
            image = Image.open(self.paths[index]).convert("RGB")
        else:
            image = decode_jpeg(read_file(self.paths[index]), mode=ImageReadMode.RGB)
        return self.transform(image), self.labels[index]


def build() -> Iterator:
    photos = Photos()
    # One long epoch: a DataLoader drains its workers at the end of each, which a small folder of
    # images would exaggerate.
    count = (options.warm + options.batches + 8) * options.batch
    loader = DataLoader(
        photos,
        batch_size=options.batch,
        sampler=RandomSampler(photos, replacement=True, num_samples=count),
        num_workers=options.threads,
        drop_last=True,
        prefetch_factor=2,
        worker_init_fn=lambda _: warnings.simplefilter("ignore"),
    )
    return iter(loader)


if __name__ == "__main__":
    torch.set_num_threads(1)
    name = "DataLoader + torchvision" if variant == "tensor" else "DataLoader + Pillow"
    version = f"{torch.__version__}, {torchvision.__version__}"
    measure.run(name, options, build, lambda batch: batch[0].numpy(), version)
