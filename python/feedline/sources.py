"""Where samples come from."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import _core
from .blobs import Blobs, array_blob, read_blobs
from .dataset import Dataset

if TYPE_CHECKING:
    from os import PathLike

    import numpy as np

    Path = str | PathLike[str]


def images(path: Path) -> Dataset:
    """The images below a folder; its subfolders are the classes, numbered in byte order.

    The folder may be a URL: `s3://bucket/train/`, and likewise `gs://` and `az://`.

    Fields: `image` (encoded; add `.decode()`) and `label`. Any mix of JPEG, PNG, WebP, BMP, GIF
    and TIFF, at any depth; files are chosen by extension, hidden ones are left out. `ds.classes`
    has the names of the classes.
    """
    return Dataset._source("images", {"path": os.fspath(path)})


def files(
    paths: Path | Iterable[Path],
    labels: Iterable[int | str] | bool | None = None,
    *,
    field: str = "data",
) -> Dataset:
    """A list of files, in this order.

    `paths` is a list of paths or URLs, or the path of a CSV file with one `path` or `path,label` a line
    (then `labels=True` says that it has labels). A text with braces (`x-{000..127}.bin`), and a URL or
    path that ends in a slash, is no CSV file but stands for files itself, in byte order of their names;
    so does the URL of anything that is not called `.csv` or `.txt`. Labels that are not whole numbers are names of
    classes. Fields: `data` (the bytes; call it otherwise with `field`) and, with labels, `label`.
    """
    args: dict[str, Any] = {}
    if field != "data":
        args["field"] = field
    if isinstance(paths, (str, os.PathLike)):
        if labels is not None and not isinstance(labels, bool):
            raise _core.PipelineError("files: a CSV file brings its own labels; say labels=True")
        if labels:
            args["labels"] = True
        named = os.fspath(paths)
        argument = "path" if _stands_for_files(named) else "list"
        return Dataset._source("files", {argument: named, **args})
    listed = [os.fsencode(path) for path in paths]
    if isinstance(labels, bool):
        raise _core.PipelineError("files: labels=True goes with a CSV file; give a list of labels")
    if labels is None:
        lines = [_quote(path) for path in listed]
    else:
        given = [str(label).encode() for label in labels]
        if len(given) != len(listed):
            raise _core.PipelineError(
                f"files: {len(listed)} paths and {len(given)} labels; one label for each path"
            )
        lines = [_quote(path) + b"," + _quote(label) for path, label in zip(listed, given)]
        args["labels"] = True
    blob = _core.Blob.bytes(b"\n".join(lines))
    return Dataset._source("files", {"blob": blob.hash, **args}, {blob.hash: blob})


def _stands_for_files(name: str) -> bool:
    """Whether a name stands for files, rather than for a list of them."""
    if os.path.isfile(name):
        return False
    listed = name.lower().endswith((".csv", ".txt"))
    return name.endswith("/") or "{" in name or ("://" in name and not listed)


def _quote(cell: bytes) -> bytes:
    return b'"' + cell.replace(b'"', b'""') + b'"'


def arrays(
    fields: Mapping[str, np.ndarray | Sequence[Any]] | None = None,
    /,
    *,
    layout: str | None = None,
    **named: np.ndarray | Sequence[Any],
) -> Dataset:
    """Arrays in memory: row i of each is sample i. NumPy arrays are not copied.

    `fl.arrays(image=x, label=y)`, or a dict. `layout="HWC"` (or `"CHW"`) says that arrays of four
    dimensions hold images, so that image steps work on them. Do not change the arrays while
    loaders use them.
    """
    if layout not in (None, "HWC", "CHW"):
        raise _core.PipelineError(f"arrays: layout={layout!r} is neither HWC nor CHW")
    if fields is not None and not isinstance(fields, Mapping):
        raise _core.PipelineError("arrays: name them: fl.arrays(x=..., y=...), or give a dict")
    described: list[dict[str, Any]] = []
    blobs: Blobs = {}
    for name, values in {**(fields or {}), **named}.items():
        blob, dtype, shape = array_blob(name, values)
        blobs[blob.hash] = blob
        row: dict[str, Any] = {"name": name, "blob": blob.hash, "dtype": dtype, "shape": shape}
        if layout is not None and len(shape) == 4:
            row["layout"] = layout
        described.append(row)
    return Dataset._source("arrays", {"fields": described}, blobs)


def npy(
    path: Path, fields: Mapping[str, str] | None = None, *, rows: bool = False
) -> Dataset:
    """Arrays that NumPy saved: the `.npy` or `.npz` files below a folder, or one of them; or their URL.

    Each file is a sample: with the field `data`, or, if it is an archive (`.npz`), with its arrays.
    `fields={"image": "*_x.npy", "label": "*_y.npy"}` puts files together: the text that `*` stands
    for is the sample's key, and every key needs all files. With `rows=True` samples are the rows of
    the arrays, along their first axis.

    Only headers are read at first. Of an array that is cropped, only the crop is read.
    """
    return Dataset._source("npy", {"path": os.fspath(path), **_fields(fields), "rows": rows})


def arrow(path: Path) -> Dataset:
    """The rows of Arrow files (IPC file format): those of a folder, or one file; or their URL.

    `Dataset.save` writes such folders; `.arrow` and `.feather` files of others are read as well.
    Columns are fields: numbers and truth values, lists and tensors of them, bytes and text.
    Compressed files and dictionaries are not read. A folder that is still being saved is refused.

    Columns of a few bytes a row are held in memory; of others, only what is used is read.
    """
    return Dataset._source("arrow", {"path": os.fspath(path)})


def nifti(
    path: Path, fields: Mapping[str, str] | None = None, *, channel: bool = False
) -> Dataset:
    """Medical scans: the `.nii` or `.nii.gz` files below a folder, or one of them; or their URL.

    Each file is a sample with the field `image`; `fields` puts files together as in `fl.npy`. Axes
    are those that nibabel gives; `channel=True` adds one of length 1 in front. Scans whose header
    says how to scale them are scaled, and become float32. The field `spacing` has the distances
    between voxels.
    """
    args = {"path": os.fspath(path), **_fields(fields), "channel": channel}
    return Dataset._source("nifti", args)


def _fields(fields: Mapping[str, str] | None) -> dict[str, Any]:
    """Patterns in the order in which they were given."""
    if fields is None:
        return {}
    return {"fields": [{"name": name, "files": files} for name, files in fields.items()]}


def range(count: int) -> Dataset:
    """The numbers 0 to `count` - 1, in the field `index`."""
    return Dataset._source("range", {"count": count})


def from_plan(plan: str | Path) -> Dataset:
    """A pipeline from its text form, its JSON form, or a file that `Dataset.save_plan` wrote."""
    text = os.fspath(plan)
    blobs: Blobs = {}
    if "|" not in text and "{" not in text and os.path.exists(text):
        blobs = read_blobs(text)
        with open(text, encoding="utf-8") as file:
            text = file.read()
    return Dataset._from_json(_core.check(text)[0], blobs)
