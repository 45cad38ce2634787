"""Makes the golden values of this folder: what torchvision does with small images.

    python make.py            writes cases.json and values.bin
    python make.py --check    compares them with what the installed torchvision does now
    python make.py --files    also writes the encoded files again (needed only for new files)

It needs torch, torchvision, numpy and Pillow: `make test-frameworks` makes an environment that has
them. The images are computed with integers only and the encoded files are kept, so with the
versions named in cases.json this script writes the same bytes again. See README.md for the format.
"""

import argparse
import io
import json
import math
import struct
import sys
import warnings
import zlib
from pathlib import Path

import numpy as np
import PIL
import torch
import torchvision
from PIL import Image
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F

HERE = Path(__file__).resolve().parent
FILES = HERE / "files"

INTERPOLATION = {
    "nearest": InterpolationMode.NEAREST,
    "nearest_exact": InterpolationMode.NEAREST_EXACT,
    "bilinear": InterpolationMode.BILINEAR,
    "bicubic": InterpolationMode.BICUBIC,
}
DTYPES = {"uint8": "u8", "uint16": "u16", "float16": "f16", "float32": "f32"}
MEAN = [0.485, 0.456, 0.406]
STD = [0.229, 0.224, 0.225]


# -------------------------------------------------------------------------------------- the images


def noise(height: int, width: int, channels: int, seed: int) -> np.ndarray:
    """Pseudo-random bytes by an integer hash, the same with every version of everything."""
    x = np.arange(height * width * channels, dtype=np.uint64) + np.uint64(seed * 1_000_003)
    x = (x * np.uint64(0x9E3779B97F4A7C15)) ^ (x >> np.uint64(29))
    x = (x ^ (x >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    x = x ^ (x >> np.uint64(33))
    return ((x >> np.uint64(40)) & np.uint64(255)).astype(np.int64).reshape(height, width, channels)


def scene(height: int, width: int, seed: int, channels: int = 3) -> np.ndarray:
    """Something like a photograph: slopes, a disc, stripes, a little noise, and hard edges."""
    y, x = np.mgrid[0:height, 0:width].astype(np.int64)
    out = np.empty((height, width, channels), dtype=np.int64)
    for c in range(channels):
        slope = (x * (200 - 60 * c)) // max(width - 1, 1) + (y * (30 + 50 * c)) // max(height - 1, 1)
        distance = (2 * x - width + 9 * c) ** 2 + (2 * y - height) ** 2
        disc = np.where(distance < (min(height, width) * 7 // 10) ** 2, 110 - 90 * c, 0)
        stripes = np.where((x + 2 * y + 5 * c) // 4 % 3 == 0, 45, 0) * (y > height // 2)
        out[:, :, c] = slope + disc + stripes
    out += noise(height, width, channels, seed) // 8 - 16
    corner = out[: max(height // 6, 1), : max(width // 6, 1)]
    corner[:] = 255
    corner[::2, ::2] = 0
    return np.clip(out, 0, 255).astype(np.uint8)


def colours(height: int, width: int) -> np.ndarray:
    """Many hues, greys, and the corners of the colour cube: what colour arithmetic trips over."""
    image = noise(height, width, 3, 7).astype(np.uint8)
    flat = image.reshape(-1, 3)
    corners = [[r, g, b] for r in (0, 255) for g in (0, 255) for b in (0, 255)]
    flat[: len(corners)] = corners
    greys = np.arange(0, 256, 15, dtype=np.uint8)
    flat[len(corners) : len(corners) + len(greys)] = greys[:, None]
    # Pairs of equal channels, where the choice of the largest one matters.
    flat[40:60, 1] = flat[40:60, 0]
    flat[60:80, 2] = flat[60:80, 1]
    flat[80:100, 2] = flat[80:100, 0]
    return image


def images() -> dict[str, np.ndarray]:
    return {
        "scene": scene(47, 61, 1),
        "tall": scene(90, 37, 2),
        "wide": scene(33, 120, 3),
        "large": scene(150, 200, 4),
        "tiny": scene(5, 7, 5),
        "dot": scene(1, 1, 6),
        "grey": scene(29, 41, 8, channels=1),
        "colours": colours(24, 32),
        "values": np.repeat(np.arange(256, dtype=np.uint8).reshape(16, 16, 1), 3, axis=2),
    }


# ------------------------------------------------------------------------------- the encoded files


def png(
    samples: np.ndarray,
    colour: int,
    depth: int,
    palette: bytes = b"",
    transparency: bytes = b"",
    interlace: bool = False,
    extra: bytes = b"",
) -> bytes:
    """A PNG of any kind. `samples` is height x width x channels; Pillow writes only a few kinds."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    def rows(part: np.ndarray) -> bytes:
        out = bytearray()
        for number, row in enumerate(part):
            flat = row.reshape(-1)
            if depth == 16:
                packed = flat.astype(">u2").tobytes()
            elif depth == 8:
                packed = flat.astype(np.uint8).tobytes()
            else:
                bits = (flat[:, None] >> np.arange(depth - 1, -1, -1)) & 1
                packed = np.packbits(bits.reshape(-1).astype(np.uint8)).tobytes()
            # Every other row is filtered with "sub", so that both kinds occur.
            step = max(1, part.shape[2] * depth // 8)
            if number % 2:
                before = bytes(step) + packed[:-step]
                out += b"\x01" + bytes((a - b) & 255 for a, b in zip(packed, before))
            else:
                out += b"\x00" + packed
        return bytes(out)

    height, width = samples.shape[:2]
    if interlace:
        passes = [
            (0, 0, 8, 8),
            (0, 4, 8, 8),
            (4, 0, 8, 4),
            (0, 2, 4, 4),
            (2, 0, 4, 2),
            (0, 1, 2, 2),
            (1, 0, 2, 1),
        ]
        parts = [samples[top::down, left::right] for top, left, down, right in passes]
        data = b"".join(rows(part) for part in parts if part.size)
    else:
        data = rows(samples)
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, int(interlace))
    out = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra
    if palette:
        out += chunk(b"PLTE", palette)
    if transparency:
        out += chunk(b"tRNS", transparency)
    return out + chunk(b"IDAT", zlib.compress(data, 9)) + chunk(b"IEND", b"")


def png_exif(orientation: int) -> bytes:
    body = exif(orientation)[6:]
    return struct.pack(">I", len(body)) + b"eXIf" + body + struct.pack(">I", zlib.crc32(b"eXIf" + body))


def exif(orientation: int) -> bytes:
    """The smallest EXIF block that says how the camera was held."""
    entry = struct.pack(">HHIHH", 0x0112, 3, 1, orientation, 0)
    return b"Exif\0\0" + b"MM\0*" + struct.pack(">I", 8) + struct.pack(">H", 1) + entry + bytes(4)


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def encoded() -> dict[str, bytes]:
    """Every encoded file, by name."""
    rgb = Image.fromarray(scene(37, 51, 11))
    small = Image.fromarray(scene(18, 26, 12))
    grey = rgb.convert("L")
    rgba = np.dstack([scene(19, 23, 13), noise(19, 23, 1, 14).astype(np.uint8)])
    files = {
        "jpeg-444.jpg": saved(rgb, "JPEG", quality=90, subsampling=0),
        "jpeg-422.jpg": saved(rgb, "JPEG", quality=90, subsampling=1),
        "jpeg-420.jpg": saved(rgb, "JPEG", quality=90, subsampling=2),
        "jpeg-420-low-quality.jpg": saved(rgb, "JPEG", quality=15, subsampling=2),
        "jpeg-420-progressive.jpg": saved(rgb, "JPEG", quality=90, subsampling=2, progressive=True),
        "jpeg-444-progressive.jpg": saved(rgb, "JPEG", quality=90, subsampling=0, progressive=True),
        "jpeg-420-optimised.jpg": saved(rgb, "JPEG", quality=90, subsampling=2, optimize=True),
        "jpeg-420-restarts.jpg": saved(rgb, "JPEG", quality=90, subsampling=2, restart_marker_blocks=2),
        "jpeg-rgb.jpg": saved(rgb, "JPEG", quality=90, keep_rgb=True),
        "jpeg-grey.jpg": saved(grey, "JPEG", quality=90),
        "jpeg-grey-progressive.jpg": saved(grey, "JPEG", quality=90, progressive=True),
        "jpeg-cmyk.jpg": saved(rgb.convert("CMYK"), "JPEG", quality=90),
        "jpeg-one-pixel.jpg": saved(Image.fromarray(scene(1, 1, 15)), "JPEG", quality=90),
        "jpeg-one-column.jpg": saved(Image.fromarray(scene(19, 1, 16)), "JPEG", quality=90),
        "jpeg-one-row.jpg": saved(Image.fromarray(scene(1, 19, 17)), "JPEG", quality=90),
    }
    # The same four planes, declared as YCCK by the transform byte of the Adobe segment.
    cmyk = bytearray(files["jpeg-cmyk.jpg"])
    adobe = cmyk.index(b"Adobe")
    assert cmyk[adobe + 11] == 0
    cmyk[adobe + 11] = 2
    files["jpeg-ycck.jpg"] = bytes(cmyk)
    # And without the Adobe segment.
    files["jpeg-cmyk-plain.jpg"] = bytes(cmyk[: adobe - 4] + cmyk[adobe + 12 :])
    files["jpeg-truncated.jpg"] = files["jpeg-420.jpg"][: len(files["jpeg-420.jpg"]) * 6 // 10]
    for orientation in range(1, 9):
        files[f"jpeg-exif-{orientation}.jpg"] = saved(
            small, "JPEG", quality=90, subsampling=2, exif=exif(orientation)
        )

    ramp16 = (noise(13, 17, 3, 18) * 257 + noise(13, 17, 3, 19) - 128).clip(0, 65535)
    index = noise(15, 21, 1, 20) % 16
    palette = scene(4, 4, 21).reshape(-1, 3).tobytes()
    files |= {
        "png-rgb8.png": png(scene(19, 23, 13), 2, 8),
        "png-rgb8-interlaced.png": png(scene(19, 23, 13), 2, 8, interlace=True),
        "png-rgb8-transparent-colour.png": png(
            scene(19, 23, 13), 2, 8, transparency=struct.pack(">HHH", *scene(19, 23, 13)[9, 9])
        ),
        "png-rgb8-exif-6.png": png(scene(19, 23, 13), 2, 8, extra=png_exif(6)),
        "png-rgba8.png": png(rgba, 6, 8),
        "png-palette8.png": png(index, 3, 8, palette=palette),
        "png-palette4.png": png(index, 3, 4, palette=palette),
        "png-palette4-transparent.png": png(
            index, 3, 4, palette=palette, transparency=bytes(range(0, 256, 17))
        ),
        "png-grey8.png": png(scene(19, 23, 22, channels=1), 0, 8),
        "png-grey8-transparent-level.png": png(
            scene(19, 23, 22, channels=1), 0, 8, transparency=struct.pack(">H", 200)
        ),
        "png-grey-alpha8.png": png(rgba[:, :, 2:4], 4, 8),
        "png-grey1.png": png(noise(15, 21, 1, 23) % 2, 0, 1),
        "png-grey2.png": png(noise(15, 21, 1, 24) % 4, 0, 2),
        "png-grey4.png": png(noise(15, 21, 1, 25) % 16, 0, 4),
        "png-rgb16.png": png(ramp16, 2, 16),
        "png-rgba16.png": png(np.dstack([ramp16, ramp16[:, :, ::-1][:, :, :1]]), 6, 16),
        "png-grey16.png": png(ramp16[:, :, :1], 0, 16),
        "png-grey-alpha16.png": png(ramp16[:, :, :2], 4, 16),
    }

    files |= {
        "webp-lossy.webp": saved(rgb, "WEBP", quality=80),
        "webp-lossless.webp": saved(rgb, "WEBP", lossless=True),
        "webp-lossy-alpha.webp": saved(Image.fromarray(rgba), "WEBP", quality=80),
        "webp-lossless-alpha.webp": saved(Image.fromarray(rgba), "WEBP", lossless=True, exact=True),
        "gif-still.gif": saved(rgb.quantize(32), "GIF"),
        "gif-grey.gif": saved(grey, "GIF"),
        "gif-transparent.gif": saved(small.quantize(16), "GIF", transparency=3),
        "gif-animated.gif": saved(
            small.quantize(16),
            "GIF",
            save_all=True,
            append_images=[small.transpose(Image.Transpose.FLIP_LEFT_RIGHT).quantize(16)],
        ),
        "bmp-rgb.bmp": saved(rgb, "BMP"),
        "bmp-grey.bmp": saved(grey, "BMP"),
        "bmp-palette.bmp": saved(rgb.quantize(16), "BMP"),
        "bmp-one-bit.bmp": saved(grey.convert("1", dither=Image.Dither.NONE), "BMP"),
        "tiff-rgb.tif": saved(rgb, "TIFF"),
        "tiff-rgb-lzw.tif": saved(rgb, "TIFF", compression="tiff_lzw"),
        "tiff-rgb-deflate.tif": saved(rgb, "TIFF", compression="tiff_adobe_deflate"),
        "tiff-grey.tif": saved(grey, "TIFF"),
        "tiff-rgba.tif": saved(Image.fromarray(rgba), "TIFF"),
    }
    return files


# --------------------------------------------------------------------------------------- the cases


class Golden:
    """Collects arrays and cases; arrays go one after the other into values.bin."""

    def __init__(self) -> None:
        self.arrays: dict[str, dict] = {}
        self.cases: list[dict] = []
        self.values = bytearray()

    def array(self, name: str, value: np.ndarray) -> str:
        """Keeps an array; one that is there already, bit for bit, is not kept twice."""
        assert name not in self.arrays, name
        value = np.ascontiguousarray(value)
        data = value.astype(value.dtype.newbyteorder("<")).tobytes()
        offset = self.values.find(data)
        # Elements start at multiples of their size.
        while offset >= 0 and offset % 4:
            offset = self.values.find(data, offset + 1)
        if offset < 0:
            self.values += bytes(-len(self.values) % 4)
            offset = len(self.values)
            self.values += data
        self.arrays[name] = {"dtype": DTYPES[str(value.dtype)], "shape": list(value.shape), "offset": offset}
        return name

    def case(self, name: str, op: str, source: str, output: torch.Tensor, **parameters: object) -> None:
        kept = self.array(name, output.movedim(-3, -1).contiguous().numpy())
        self.cases.append({"name": name, "op": op, "input": source, "parameters": parameters, "output": kept})


def tensor(image: np.ndarray) -> torch.Tensor:
    """Height x width x channels to torchvision's channels x height x width."""
    return torch.from_numpy(image).movedim(-1, 0).contiguous()


def resizes(golden: Golden, inputs: dict[str, torch.Tensor]) -> None:
    def add(
        source: str, size: list[int], interpolation: str, antialias: bool, max_size: int | None = None
    ) -> None:
        name = f"resize-{source}-{'x'.join(map(str, size))}-{interpolation}"
        name += "" if antialias else "-aliased"
        name += "" if max_size is None else f"-max-{max_size}"
        output = F.resize(
            inputs[source], size, INTERPOLATION[interpolation], max_size=max_size, antialias=antialias
        )
        golden.case(
            name,
            "resize",
            source,
            output,
            size=size,
            max_size=max_size,
            interpolation=interpolation,
            antialias=antialias,
        )

    for interpolation, antialias in [
        ("bilinear", True),
        ("bilinear", False),
        ("bicubic", True),
        ("bicubic", False),
        ("nearest", False),
        ("nearest_exact", False),
    ]:
        for size in ([20, 26], [24, 61], [47, 17], [70, 90], [60, 30], [13, 77]):
            add("scene", size, interpolation, antialias)
        add("tiny", [12, 3], interpolation, antialias)
        add("dot", [3, 4], interpolation, antialias)
        add("grey", [17, 50], interpolation, antialias)
    for interpolation in ("bilinear", "bicubic"):
        add("large", [64, 64], interpolation, True)
        add("large", [7, 9], interpolation, True)
        add("tall", [2, 2], interpolation, True)
    # One number is the length of the shorter side.
    for source in ("scene", "tall", "wide"):
        add(source, [24], "bilinear", True)
        add(source, [24], "bilinear", True, max_size=40)
    add("scene", [47], "bilinear", True)


def sizes() -> list[dict]:
    """What one number for the shorter side, or a limit for the longer, makes of the size alone."""
    rows = []
    for height, width in [
        (375, 500),
        (500, 375),
        (333, 500),
        (427, 640),
        (1, 9),
        (100, 100),
        (101, 307),
        (768, 1023),
        (3000, 4000),
    ]:
        empty = torch.empty((1, height, width), dtype=torch.uint8)
        for size, max_size in [
            (224, None),
            (256, None),
            (232, None),
            (1, None),
            (256, 320),
            (256, 257),
            (100, 333),
            (None, 320),
        ]:
            arguments = {"size": None if size is None else [size], "max_size": max_size}
            try:
                output = F.resize(empty, interpolation=InterpolationMode.NEAREST, **arguments)
                shape = list(output.shape[-2:])
            except Exception:  # torch refuses an empty side in its own words
                shape = None
            rows.append({"input": [height, width], "size": size, "max_size": max_size, "output": shape})
    return rows


def crops(golden: Golden, inputs: dict[str, torch.Tensor]) -> None:
    # Half pixels are rounded to the even neighbour: (61 - 24) / 2 = 18.5 becomes 18, 19.5 becomes 20.
    for size in (
        [24, 24],
        [23, 22],
        [10, 24],
        [47, 61],
        [1, 1],
        [46, 60],
        [60, 70],
        [60, 20],
        [20, 75],
        [48, 62],
    ):
        golden.case(
            f"center-crop-{size[0]}x{size[1]}",
            "center_crop",
            "scene",
            F.center_crop(inputs["scene"], size),
            size=size,
        )
    golden.case(
        "center-crop-tiny-8x8", "center_crop", "tiny", F.center_crop(inputs["tiny"], [8, 8]), size=[8, 8]
    )
    golden.case(
        "center-crop-grey-13x20",
        "center_crop",
        "grey",
        F.center_crop(inputs["grey"], [13, 20]),
        size=[13, 20],
    )

    def padded(source: str, padding: list[int], mode: str, fill: object, box: list[int]) -> None:
        image = F.pad(inputs[source], padding, fill=fill, padding_mode=mode)
        top, left, height, width = box
        name = f"crop-{source}-{mode}-{'-'.join(map(str, padding))}-at-{top}-{left}-{height}x{width}"
        name += "" if fill in (0, None) else "-filled"
        golden.case(
            name,
            "crop",
            source,
            F.crop(image, top, left, height, width),
            padding=padding,
            padding_mode=mode,
            fill=fill if mode == "constant" else None,
            box=box,
        )

    for mode in ("constant", "edge", "reflect", "symmetric"):
        padded("tiny", [2, 2, 2, 2], mode, 0, [0, 0, 5, 7])
        padded("tiny", [2, 2, 2, 2], mode, 0, [4, 4, 5, 7])
        padded("tiny", [3, 1, 2, 4], mode, 0, [1, 2, 9, 10])
        padded("grey", [4, 4, 4, 4], mode, 0, [2, 7, 32, 32])
    padded("tiny", [4, 4, 4, 4], "constant", 77, [0, 0, 13, 15])
    padded("tiny", [2, 3, 2, 3], "constant", [10, 20, 30], [0, 0, 11, 11])
    padded("scene", [0, 0, 0, 0], "constant", 0, [11, 13, 20, 30])

    # "pad if needed": what RandomCrop itself decides to add, on both sides, before it draws a place.
    for size in ([8, 7], [5, 10], [9, 12]):
        step = v2.RandomCrop(size, pad_if_needed=True)
        padding = step.make_params([inputs["tiny"]])["padding"]
        padded("tiny", padding, "constant", 0, [1 if padding[1] else 0, 1 if padding[0] else 0, *size])
        golden.cases[-1]["parameters"]["pad_if_needed"] = True

    # A box that leaves the image is filled with zeros.
    for box in ([-2, -3, 9, 12], [3, 4, 6, 7]):
        top, left, height, width = box
        golden.case(
            f"crop-outside-{top}-{left}",
            "crop",
            "tiny",
            F.crop(inputs["tiny"], top, left, height, width),
            padding=[0, 0, 0, 0],
            padding_mode="constant",
            fill=0,
            box=box,
        )


def resized_crops(golden: Golden, inputs: dict[str, torch.Tensor]) -> None:
    def add(
        source: str, box: list[int], size: list[int], interpolation: str = "bilinear", antialias: bool = True
    ) -> None:
        top, left, height, width = box
        output = F.resized_crop(
            inputs[source], top, left, height, width, size, INTERPOLATION[interpolation], antialias=antialias
        )
        name = f"resized-crop-{source}-{top}-{left}-{height}x{width}-to-{size[0]}x{size[1]}-{interpolation}"
        golden.case(
            name + ("" if antialias else "-aliased"),
            "resized_crop",
            source,
            output,
            box=box,
            size=size,
            interpolation=interpolation,
            antialias=antialias,
        )

    large = [
        [0, 0, 150, 200],
        [0, 0, 40, 60],
        [110, 140, 40, 60],
        [0, 140, 40, 60],
        [110, 0, 40, 60],
        [3, 5, 101, 77],
        [17, 31, 32, 32],
        [50, 50, 31, 33],
        [20, 90, 130, 40],
        [70, 10, 20, 180],
        [149, 199, 1, 1],
        [10, 199, 100, 1],
        [149, 10, 1, 100],
        [33, 44, 2, 3],
        [1, 1, 148, 198],
        [25, 60, 64, 128],
        [60, 25, 85, 115],
        [5, 3, 47, 171],
        [12, 100, 90, 99],
        [88, 8, 11, 13],
    ]
    for box in large:
        add("large", box, [32, 32])
    for box in large[:6]:
        add("large", box, [48, 40], "bicubic")
        add("large", box, [24, 40], antialias=False)
        add("large", box, [32, 32], "nearest", antialias=False)
    for box in ([0, 0, 150, 200], [13, 29, 120, 111], [40, 60, 70, 90]):
        add("large", box, [96, 96])
    for box in ([0, 0, 47, 61], [5, 7, 11, 13], [20, 20, 27, 41], [46, 0, 1, 61]):
        add("scene", box, [40, 40])
    for box in ([0, 0, 29, 41], [4, 9, 21, 17]):
        add("grey", box, [16, 16])


def boxes() -> list[dict]:
    """RandomResizedCrop's arithmetic: the size of its box when area and ratio are known, and the box
    in the middle that it takes after ten failed attempts."""
    rows = []
    for height, width in [
        (375, 500),
        (500, 375),
        (47, 61),
        (100, 1000),
        (1000, 100),
        (1, 1),
        (7, 5),
        (3, 64),
    ]:
        image = torch.empty((3, height, width), dtype=torch.uint8)
        for area in (0.08, 0.25, 0.5, 0.9, 1.0):
            for ratio in (3 / 4, 1.0, 1.2, 4 / 3):
                # Between equal bounds nothing is left to chance, but torch draws in float32, and
                # draws the logarithm of the ratio: these are the numbers it goes on with.
                share = torch.tensor([area]).item()
                aspect = torch.exp(torch.log(torch.tensor([ratio]))).item()
                side = int(round(math.sqrt(height * width * share * aspect)))
                other = int(round(math.sqrt(height * width * share / aspect)))
                if not (0 < side <= width and 0 < other <= height):
                    continue  # it falls back to the box in the middle: below
                step = v2.RandomResizedCrop(8, scale=(area, area), ratio=(ratio, ratio))
                params = step.make_params([image])
                assert [params["height"], params["width"]] == [other, side]
                rows.append({"input": [height, width], "area": share, "ratio": aspect, "size": [other, side]})
        for ratio in ((3 / 4, 4 / 3), (1.0, 1.0), (0.5, 2.0)):
            step = v2.RandomResizedCrop(8, scale=(9.0, 9.0), ratio=ratio)
            params = step.make_params([image])
            rows.append(
                {
                    "input": [height, width],
                    "ratios": list(ratio),
                    "fallback": [params["top"], params["left"], params["height"], params["width"]],
                }
            )
    return rows


def colour_steps(golden: Golden, inputs: dict[str, torch.Tensor]) -> None:
    steps = {
        "brightness": (F.adjust_brightness, [0.0, 0.4, 0.875, 1.0, 1.3, 2.5]),
        "contrast": (F.adjust_contrast, [0.0, 0.4, 0.875, 1.0, 1.3, 2.5]),
        "saturation": (F.adjust_saturation, [0.0, 0.4, 0.875, 1.0, 1.3, 2.5]),
        "hue": (F.adjust_hue, [-0.5, -0.3, -0.1, 0.0, 0.05, 0.25, 0.5]),
    }
    for word, (function, factors) in steps.items():
        for factor in factors:
            golden.case(
                f"{word}-{factor}",
                f"adjust_{word}",
                "colours",
                function(inputs["colours"], factor),
                factor=factor,
            )
        factor = factors[-2]
        golden.case(
            f"{word}-grey-{factor}", f"adjust_{word}", "grey", function(inputs["grey"], factor), factor=factor
        )
        golden.case(
            f"{word}-scene-{factor}",
            f"adjust_{word}",
            "scene",
            function(inputs["scene"], factor),
            factor=factor,
        )
    for channels in (1, 3):
        for source in ("colours", "grey"):
            golden.case(
                f"grayscale-{source}-{channels}",
                "rgb_to_grayscale",
                source,
                F.rgb_to_grayscale(inputs[source], channels),
                channels=channels,
            )


def conversions(golden: Golden, inputs: dict[str, torch.Tensor]) -> None:
    for word, dtype in (("float32", torch.float32), ("float16", torch.float16)):
        scaled = F.to_dtype(inputs["values"], dtype, scale=True)
        golden.case(f"to-{word}", "to_dtype", "values", scaled, dtype=word, scale=True)
        golden.case(
            f"to-{word}-unscaled",
            "to_dtype",
            "values",
            F.to_dtype(inputs["values"], dtype),
            dtype=word,
            scale=False,
        )
        for name, mean, std in (("imagenet", MEAN, STD), ("half", [0.5] * 3, [0.5] * 3)):
            golden.case(
                f"normalize-{name}-{word}",
                "to_dtype_normalize",
                "values",
                F.normalize(scaled, mean, std),
                dtype=word,
                mean=mean,
                std=std,
            )
    single = F.to_dtype(inputs["values"], torch.float32, scale=True)
    golden.case(
        "normalize-imagenet-float32-to-float16",
        "to_dtype_normalize_to_dtype",
        "values",
        F.to_dtype(F.normalize(single, MEAN, STD), torch.float16),
        dtype="float16",
        mean=MEAN,
        std=STD,
    )


def flips(golden: Golden, inputs: dict[str, torch.Tensor]) -> None:
    for source in ("tiny", "scene", "grey"):
        golden.case(f"horizontal-flip-{source}", "horizontal_flip", source, F.horizontal_flip(inputs[source]))
        golden.case(f"vertical-flip-{source}", "vertical_flip", source, F.vertical_flip(inputs[source]))


def whole(golden: Golden, inputs: dict[str, torch.Tensor]) -> None:
    """The usual recipe from end to end, with the draws fixed."""
    for box, mirrored in (([13, 29, 120, 111], True), ([40, 60, 70, 90], False)):
        top, left, height, width = box
        image = F.resized_crop(inputs["large"], top, left, height, width, [32, 32], antialias=True)
        image = F.horizontal_flip(image) if mirrored else image
        image = F.normalize(F.to_dtype(image, torch.float32, scale=True), MEAN, STD)
        golden.case(
            f"train-{'mirrored' if mirrored else 'plain'}",
            "train",
            "large",
            image,
            box=box,
            size=[32, 32],
            mirrored=mirrored,
            mean=MEAN,
            std=STD,
        )


def reason(error: RuntimeError) -> str:
    """torchvision's message without the place in its source."""
    return str(error).splitlines()[0].rsplit(", ", 1)[-1]


def decodes(golden: Golden) -> list[dict]:
    rows = []
    for path in sorted(FILES.iterdir()):
        data = path.read_bytes()
        raw = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        by = "pillow" if path.suffix in (".bmp", ".tif") else "torchvision"
        row: dict = {"file": path.name, "by": by}
        rows.append(row)
        if by == "pillow":
            image = Image.open(io.BytesIO(data))
            row["stored"] = image.mode
            for mode, word in (("RGB", "rgb"), ("L", "gray")):
                pixels = np.asarray(image.convert(mode))
                row[word] = golden.array(f"{path.name}:{word}", pixels.reshape(*pixels.shape[:2], -1))
            continue
        try:
            unchanged = decode_image(raw)
        except RuntimeError as error:
            row["error"] = reason(error)
            continue
        row["stored"] = {
            "dtype": DTYPES[str(unchanged.dtype).removeprefix("torch.")],
            "shape": list(unchanged.shape),
        }
        for mode, word in ((ImageReadMode.RGB, "rgb"), (ImageReadMode.GRAY, "gray")):
            if word == "gray" and path.suffix in (".webp", ".gif"):
                # torchvision leaves these in colour, with a warning or without: Pillow's grey instead.
                pixels = np.asarray(Image.open(io.BytesIO(data)).convert("L"))
                row["gray"] = golden.array(f"{path.name}:gray", pixels[:, :, None])
                row["gray_by"] = "pillow"
                continue
            pixels = decode_image(raw, mode)
            row[word] = golden.array(f"{path.name}:{word}", pixels.movedim(-3, -1).contiguous().numpy())
            if pixels.dtype == torch.uint16:
                eight = F.to_dtype(pixels, torch.uint8, scale=True)
                row[word + "_u8"] = golden.array(
                    f"{path.name}:{word}_u8", eight.movedim(-3, -1).contiguous().numpy()
                )
        if "exif" in path.name:
            turned = decode_image(raw, ImageReadMode.RGB, apply_exif_orientation=True)
            row["rgb_upright"] = golden.array(
                f"{path.name}:rgb_upright", turned.movedim(-3, -1).contiguous().numpy()
            )
    return rows


def build() -> tuple[str, bytes]:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", DeprecationWarning)
    golden = Golden()
    arrays = images()
    for name, image in arrays.items():
        golden.array(name, image)
    inputs = {name: tensor(image) for name, image in arrays.items()}
    resizes(golden, inputs)
    crops(golden, inputs)
    resized_crops(golden, inputs)
    flips(golden, inputs)
    colour_steps(golden, inputs)
    conversions(golden, inputs)
    whole(golden, inputs)
    document = {
        "made_with": {
            "torch": torch.__version__,
            "torchvision": torchvision.__version__,
            "pillow": PIL.__version__,
            "cpu": torch.backends.cpu.get_cpu_capability(),
        },
        "decode": decodes(golden),
        "cases": golden.cases,
        "sizes": sizes(),
        "boxes": boxes(),
        "arrays": golden.arrays,
    }
    # One case a line: short enough to read, and a changed case is one changed line.
    out = ["{"]
    for key, value in document.items():
        last = key == "arrays"
        if isinstance(value, list):
            rows = ",\n".join("    " + json.dumps(row) for row in value)
            out.append(f'  "{key}": [\n{rows}\n  ]' + ("" if last else ","))
        else:
            rows = ",\n".join(f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items())
            out.append(f'  "{key}": {{\n{rows}\n  }}' + ("" if last else ","))
    out.append("}\n")
    return "\n".join(out), bytes(golden.values)


def array_bytes(document: dict, values: bytes, name: str) -> tuple[list, bytes]:
    entry = document["arrays"][name]
    size = {"u8": 1, "u16": 2, "f16": 2, "f32": 4}[entry["dtype"]] * math.prod(entry["shape"])
    return [entry["dtype"], entry["shape"]], values[entry["offset"] : entry["offset"] + size]


def check(text: str, values: bytes) -> int:
    """Names every case that differs from what is stored, and by how much."""
    new, old = json.loads(text), json.loads((HERE / "cases.json").read_text())
    stored = (HERE / "values.bin").read_bytes()
    different = [name for name in new["arrays"] if name not in old["arrays"]]
    different += [name for name in old["arrays"] if name not in new["arrays"]]
    for name in new["arrays"].keys() & old["arrays"].keys():
        if array_bytes(new, values, name) != array_bytes(old, stored, name):
            different.append(name)
    different += [key for key in ("decode", "cases", "sizes", "boxes") if new[key] != old[key]]
    for name in sorted(different):
        print(f"differs: {name}")
    if different:
        print(f"stored with {old['made_with']}, compared with {new['made_with']}")
    return len(different)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    parser.add_argument("--files", action="store_true", help="write the encoded files again")
    options = parser.parse_args()
    if options.files or not FILES.exists():
        FILES.mkdir(exist_ok=True)
        for name, data in encoded().items():
            (FILES / name).write_bytes(data)
    text, values = build()
    if options.check:
        return 1 if check(text, values) else 0
    (HERE / "cases.json").write_text(text)
    (HERE / "values.bin").write_bytes(values)
    document = json.loads(text)
    print(f"{len(document['cases'])} cases, {len(document['decode'])} files, {len(values)} bytes of values")
    return 0


if __name__ == "__main__":
    sys.exit(main())
