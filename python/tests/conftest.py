"""Tiny data that the tests make for themselves."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest


def png(pixels: np.ndarray) -> bytes:
    """An uncompressed-looking PNG of 8-bit RGB pixels, written by hand: no imaging library needed."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels.astype(np.uint8))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def picture(seed: int, height: int = 24, width: int = 32) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Twenty pictures in two classes; `photos/cat/03.png` is picture(3)."""
    root = tmp_path / "photos"
    for number in range(20):
        folder = root / ("cat" if number < 12 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:02}.png").write_bytes(png(picture(number)))
    return root


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What tests find out about their data stays out of the user's cache folder."""
    monkeypatch.setenv("FEEDLINE_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))
