"""A pipeline, written step by step."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

from . import _core
from .blobs import Blobs, array_blob, save_blobs
from .ranks import detect
from .views import Batch, to_numpy

if TYPE_CHECKING:
    import numpy as np

    from .loader import Loader
    from .saving import Saved
    from .service import Distributed, Visitation

Size = int | Sequence[int]
Interpolation = Literal["nearest", "bilinear", "bicubic"]


class Dataset:
    """A pipeline as a value: a source and the steps after it.

    Nothing runs until samples are asked for. Every method returns a new pipeline and leaves this
    one as it is; mistakes are reported by the line that makes them.
    """

    __slots__ = ("_blobs", "_json", "_opened", "_passes")

    _json: str
    _blobs: Blobs
    _opened: _core.Pipeline | None
    _passes: int

    def __init__(self) -> None:
        raise TypeError("begin with a source, such as fl.images, fl.arrays or fl.npy")

    @classmethod
    def _from_json(cls, plan: str, blobs: Blobs) -> Self:
        new = object.__new__(cls)
        new._json, new._blobs, new._opened, new._passes = plan, blobs, None, 0
        return new

    @classmethod
    def _source(cls, step: str, args: dict[str, Any], blobs: Blobs | None = None) -> Self:
        given = {name: _plain(value) for name, value in args.items()}
        plan = json.dumps({"feedline": 1, "steps": [{"step": step, **given}]})
        return cls._from_json(_core.check(plan)[0], blobs or {})

    def _then(self, step: str, blobs: Blobs | None = None, /, **args: Any) -> Self:
        plan = json.loads(self._json)
        given = {name: _plain(value) for name, value in args.items() if value is not None}
        for name, value in given.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise _core.PipelineError(f"{step}: {name}={value} is no finite number")
        plan["steps"].append({"step": step, **given})
        checked = _core.check(json.dumps(plan))[0]
        return self._from_json(checked, {**self._blobs, **(blobs or {})})

    # ------------------------------------------------------------------ which sample comes next

    def shuffle(self, seed: int = 0, *, within: int | str | None = None) -> Self:
        """Shuffles the whole epoch, anew every epoch, in constant memory.

        With `within` (`"256MB"`, or a number of samples) blocks of neighbours are shuffled and
        then samples within groups of them, so that reads stay near each other.
        """
        return self._then("shuffle", seed=seed, within=within)

    def sample(
        self,
        count: int | None = None,
        *,
        weights: Sequence[float] | np.ndarray | None = None,
        balance: str | None = None,
        seed: int = 0,
    ) -> Self:
        """Draws `count` samples an epoch with replacement: by `weights`, one for each sample of
        the source, or with every class of the field `balance` equally often."""
        blobs: Blobs = {}
        name = None
        if weights is not None:
            import numpy as np

            blob = array_blob("weights", np.asarray(weights, dtype=np.float64))[0]
            blobs, name = {blob.hash: blob}, blob.hash
        return self._then("sample", blobs, count=count, weights=name, balance=balance, seed=seed)

    def split(self, *shares: float, seed: int = 0) -> tuple[Self, ...]:
        """Parts the data: `train, validation = ds.split(0.9)`.

        Shares that do not add up to 1 leave a last part with the rest. The parts are disjoint,
        together everything, and the same in every epoch and every run.
        """
        if not shares or not all(share > 0 for share in shares) or sum(shares) > 1 + 1e-9:
            raise _core.PipelineError(f"split: shares {shares} must be above 0 and add up to 1 at most")
        bounds = [0.0]
        for count in range(1, len(shares) + 1):
            bounds.append(round(math.fsum(shares[:count]), 9))
        if bounds[-1] < 1:
            bounds.append(1.0)
        parts = zip(bounds, bounds[1:])
        return tuple(self._then("split", start=a, end=b, seed=seed) for a, b in parts)

    def shard(self, index: int, of: int, by: str = "sample") -> Self:
        """Keeps part `index` of `of` equal parts: every `of`-th sample, or, with `by="file"`, every
        `of`-th file with all its samples. All parts together are everything.
        """
        return self._then("shard", index=index, of=of, by=by)

    def take(self, count: int) -> Self:
        """Keeps the first `count` samples of the order."""
        return self._then("take", count=count)

    def skip(self, count: int) -> Self:
        """Leaves out the first `count` samples of the order."""
        return self._then("skip", count=count)

    def repeat(self, count: int | None = None) -> Self:
        """Goes through the order `count` times in one epoch, or for ever."""
        return self._then("repeat", count=count)

    # --------------------------------------------------------------------------- bytes to pixels

    def decode(
        self,
        field: str | None = None,
        *,
        to: str = "image",
        mode: Literal["rgb", "gray"] = "rgb",
        exif: bool = True,
        dct_scale: bool = False,
        max_pixels: int | None = None,
    ) -> Self:
        """Decodes the image in a field to 8-bit pixels, height × width × channels.

        Only the region that later crops leave is decoded. `exif=False` ignores the orientation
        that the camera noted; `dct_scale=True` lets JPEGs that are shrunk a lot be decoded at a
        fraction of their size, which is faster and changes pixels.
        """
        return self._then(
            "decode",
            field=field,
            to=to,
            mode=mode,
            exif=exif,
            dct_scale=dct_scale,
            max_pixels=max_pixels,
        )

    # -------------------------------------------------------------------------- pixels to pixels

    def resize(
        self,
        size: Size,
        *,
        interpolation: Interpolation = "bilinear",
        max_size: int | None = None,
        antialias: bool = True,
        field: str | None = None,
    ) -> Self:
        """Resizes to (height, width); with one number, the shorter side gets that length."""
        return self._then(
            "resize",
            size=size,
            interpolation=interpolation,
            max_size=max_size,
            antialias=antialias,
            field=field,
        )

    def center_crop(self, size: Size, *, field: str | None = None) -> Self:
        """Cuts out the middle; an image that is smaller is padded with zeros."""
        return self._then("center_crop", size=size, field=field)

    def random_crop(
        self,
        size: Size,
        *,
        padding: int | Sequence[int] | None = None,
        pad_if_needed: bool = False,
        fill: int = 0,
        padding_mode: Literal["constant", "edge", "reflect", "symmetric"] = "constant",
        field: str | None = None,
    ) -> Self:
        """Cuts out a rectangle at a random place, after padding if asked to."""
        return self._then(
            "random_crop",
            size=size,
            padding=padding,
            pad_if_needed=pad_if_needed,
            fill=fill,
            padding_mode=padding_mode,
            field=field,
        )

    def random_resized_crop(
        self,
        size: Size,
        *,
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        interpolation: Interpolation = "bilinear",
        antialias: bool = True,
        field: str | None = None,
    ) -> Self:
        """Cuts out a part of random area and aspect ratio and resizes it."""
        return self._then(
            "random_resized_crop",
            size=size,
            scale=scale,
            ratio=ratio,
            interpolation=interpolation,
            antialias=antialias,
            field=field,
        )

    def flip(self, p: float = 0.5, *, field: str | None = None) -> Self:
        """Mirrors left to right with probability `p`: short for `flip_horizontal`."""
        return self.flip_horizontal(p, field=field)

    def flip_horizontal(self, p: float = 0.5, *, field: str | None = None) -> Self:
        """Mirrors left to right with probability `p`."""
        return self._then("flip_horizontal", p=p, field=field)

    def flip_vertical(self, p: float = 0.5, *, field: str | None = None) -> Self:
        """Mirrors top to bottom with probability `p`."""
        return self._then("flip_vertical", p=p, field=field)

    def color_jitter(
        self,
        brightness: float | Sequence[float] = 0,
        contrast: float | Sequence[float] = 0,
        saturation: float | Sequence[float] = 0,
        hue: float | Sequence[float] = 0,
        *,
        field: str | None = None,
    ) -> Self:
        """Changes brightness, contrast, saturation and hue by random factors in random order."""
        return self._then(
            "color_jitter",
            brightness=brightness,
            contrast=contrast,
            saturation=saturation,
            hue=hue,
            field=field,
        )

    def grayscale(self, channels: Literal[1, 3] = 1, *, field: str | None = None) -> Self:
        """Turns colours into brightness, in one channel or in three equal ones."""
        return self._then("grayscale", channels=channels, field=field)

    def normalize(
        self,
        mean: float | Sequence[float],
        std: float | Sequence[float],
        *,
        field: str | None = None,
    ) -> Self:
        """Computes (x - mean) / std, in float32.

        Images take one value for each channel, and integers are scaled to 0…1 first. Other arrays
        take one value and are not scaled.
        """
        return self._then("normalize", mean=_list(mean), std=_list(std), field=field)

    def layout(self, to: Literal["HWC", "CHW"], *, field: str | None = None) -> Self:
        """Lays images out with channels last (HWC) or first (CHW, as PyTorch expects)."""
        return self._then("layout", to=to, field=field)

    # -------------------------------------------------------------------------- voxels to voxels

    def resample(
        self,
        spacing: Sequence[float],
        *,
        fields: Sequence[str] | None = None,
        nearest: Sequence[str] | None = None,
    ) -> Self:
        """Brings volumes from the distances in the field `spacing` to these, and sets the field.

        Voxels are interpolated linearly, in float32: cast scans of whole numbers first. Those of the
        masks that `nearest` names (by default the field `label`, if there is one) are the nearest.
        """
        return self._then("resample", spacing=spacing, fields=fields, nearest=nearest)

    def pad_to(self, size: Size, *, fields: Sequence[str] | None = None) -> Self:
        """Pads axes that are shorter than `size` on both sides, by repeating the outermost voxels."""
        return self._then("pad_to", size=size, fields=fields)

    def random_balanced_crop(
        self,
        size: Size,
        *,
        p: float = 0.4,
        label: str = "label",
        fields: Sequence[str] | None = None,
    ) -> Self:
        """Cuts the same box out of all volumes; with probability `p` around a part of the mask.

        `size` is one number or (depth, height, width); `label` names the mask, whose values above 0
        are classes. A class is chosen, and one of its two largest connected parts. What is found
        out about a mask is kept, so that a crop reads only what it returns.
        """
        return self._then("random_balanced_crop", size=size, p=p, label=label, fields=fields)

    def random_flip(
        self,
        axes: Sequence[int] = (0, 1, 2),
        *,
        p: float = 1 / 3,
        fields: Sequence[str] | None = None,
    ) -> Self:
        """Mirrors all volumes along each axis (0 is depth, 1 height, 2 width) with probability `p`."""
        return self._then("random_flip", axes=axes, p=p, fields=fields)

    def random_brightness(
        self, low: float = 0.7, high: float = 1.3, *, p: float = 0.1, field: str | None = None
    ) -> Self:
        """With probability `p`, multiplies a volume of floats by 1 + u, u between `low` and `high`."""
        return self._then("random_brightness", low=low, high=high, p=p, field=field)

    def random_noise(
        self, std: float = 0.1, *, mean: float = 0.0, p: float = 0.1, field: str | None = None
    ) -> Self:
        """With probability `p`, adds normal noise to a volume of floats.

        Its standard deviation is drawn for each sample between 0 and `std`.
        """
        return self._then("random_noise", mean=mean, std=std, p=p, field=field)

    # ------------------------------------------------------------------------------------ fields

    def clip(
        self, min: float | None = None, max: float | None = None, *, field: str | None = None
    ) -> Self:
        """Keeps the numbers of a field between `min` and `max`; NaN stays NaN."""
        return self._then("clip", min=min, max=max, field=field)

    def cast(self, dtype: Any, *, scale: bool = False, field: str | None = None) -> Self:
        """Gives the image, or a field, another dtype; with `scale`, integers stand for 0…1."""
        name = dtype if isinstance(dtype, str) else _dtype_name(dtype)
        return self._then("cast", dtype=name, scale=scale, field=field)

    def select(self, *fields: str) -> Self:
        """Keeps these fields, in this order."""
        return self._then("select", fields=list(fields))

    def rename(self, **fields: str) -> Self:
        """Gives fields other names: `rename(old="new")`."""
        return self._then("rename", fields=fields)

    def drop(self, *fields: str) -> Self:
        """Leaves these fields out."""
        return self._then("drop", fields=list(fields))

    def one_hot(self, classes: int, *, field: str = "label", dtype: str = "float32") -> Self:
        """Turns a class number into a vector with a single 1."""
        return self._then("one_hot", classes=classes, field=field, dtype=dtype)

    def sleep(
        self,
        ms: float = 0.0,
        *,
        slow_ms: float = 0.0,
        every: int | None = None,
        p: float = 0.0,
        field: str | None = None,
    ) -> Self:
        """Holds every sample up for `ms` milliseconds: a stand-in for work, to measure with.

        Slow samples wait `slow_ms` more: those whose index is a multiple of `every`, and those
        chosen with chance `p`. `field` names whole numbers of milliseconds to wait besides.
        """
        return self._then("sleep", ms=ms, slow_ms=slow_ms, every=every, p=p, field=field)

    # --------------------------------------------------------------------------------- functions

    def map(
        self,
        function: Callable[..., Mapping[str, Any]],
        *,
        output: Mapping[str, Any] | None = None,
        version: str | None = None,
        timeout: float = 60.0,
    ) -> Self:
        """Has a function make another sample of each: a dict of arrays in, a dict of arrays out.

        Functions run in processes of their own, as many as there are threads, and arrays are handed
        over in shared memory: they are read-only, and only there during the call. A number is a NumPy
        scalar; bytes and texts are `bytes` and `str`. A function with a second parameter gets a
        `numpy.random.Generator` that belongs to the sample, the epoch and the step: the same on any
        number of threads, processes and machines.

        What it gives is learnt by trying it on the first, the middle and the last sample, or said
        with `output={"image": ("uint8", (224, 224, 3)), "tokens": ("int64", (None,))}`, where None is a
        side that differs from sample to sample; `("uint8", (224, 224, 3), "HWC")` is an image for later
        steps.

        The plan names it by module, name and a hash of its source and of what it refers to, or by
        `version`. A call that takes longer than `timeout` seconds fails.
        """
        from .functions import described, outputs

        blob, said = described("map", function, version)
        blobs = {blob.hash: blob}
        if output is None:
            name, random = said["function"], said.get("random", False)
            learnt = self._learnt(name, blob, random, timeout)
            fields = json.loads(learnt)
        else:
            fields = outputs(output)
        return self._then("map", blobs, output=fields, timeout=timeout, **said)

    def filter(
        self,
        function: Callable[..., Any],
        *,
        fields: Sequence[str] | None = None,
        version: str | None = None,
        timeout: float = 60.0,
    ) -> Self:
        """Keeps the samples for which a function gives True.

        It is handed what functions of `map` are, or only the `fields` that it looks at: others are
        not computed for it, nor for samples that are left out. How many samples stay is not known
        before, so `len` of the pipeline is not either.
        """
        from .functions import described

        blob, said = described("filter", function, version)
        looked = None if fields is None else list(fields)
        return self._then("filter", {blob.hash: blob}, fields=looked, timeout=timeout, **said)

    def _learnt(self, name: str, blob: _core.Blob, random: bool, timeout: float) -> str:
        """What a function gives, tried on a few samples."""
        from .functions import command

        return self._open.learn(name, blob, random, timeout, command())

    # ----------------------------------------------------------------------- where samples meet

    def batch(
        self,
        size: int,
        *,
        drop_last: bool = False,
        pad: bool = False,
        pad_ragged: bool = False,
        value: float = 0.0,
    ) -> Self:
        """Stacks `size` samples.

        An incomplete last batch is delivered as it is, or dropped (`drop_last`), or filled up with
        zeros (`pad`), with a field `mask` that is true for real rows. With `pad_ragged`, fields
        whose first dimension differs from sample to sample are filled up with `value` to the
        longest of the batch; how long each row of `tokens` was is in the field `tokens_length`.
        """
        return self._then(
            "batch", size=size, drop_last=drop_last, pad=pad, pad_ragged=pad_ragged, value=value
        )

    def bucket(
        self,
        boundaries: Sequence[int],
        size: int | None = None,
        *,
        sizes: Sequence[int] | None = None,
        field: str | None = None,
        stretch: int = 4096,
        pad_to: Literal["longest", "boundary"] = "longest",
        value: float = 0.0,
        drop_last: bool = False,
    ) -> Self:
        """Stacks samples of about the same length, in the place of `batch`.

        Class c holds samples whose `field` is at most `boundaries[c]` long (its first dimension, or
        the bytes of a text), the last class all longer ones. A class that has `size` samples (or its
        own of `sizes`, one more than boundaries) gives a batch. After every `stretch` samples of the
        order what is left is delivered in smaller batches, or dropped (`drop_last`).

        Shorter samples are filled up with `value` to the longest of the batch, or to the class's
        boundary, so that there are few shapes; `tokens_length` has the lengths of `tokens`. Without
        `drop_last` a field `mask` is true for real rows. `loader(rounds=True)` gives all ranks
        batches of one class at each step.
        """
        return self._then(
            "bucket",
            boundaries=list(boundaries),
            size=size,
            sizes=sizes,
            field=field,
            stretch=stretch,
            pad_to=pad_to,
            value=value,
            drop_last=drop_last,
        )

    def on_error(
        self,
        policy: Literal["raise", "skip"],
        *,
        count: int | None = None,
        share: float | None = None,
        file: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Says what happens to samples that cannot be read: `raise` (the default), or `skip`.

        At most `count`, or a `share` of the epoch, may be skipped on each rank, any number without
        them; each is written to `file`, one JSON object a line, if it is given. Comes before
        `batch`.
        """
        name = None if file is None else os.fspath(file)
        return self._then("on_error", policy=policy, count=count, share=share, file=name)

    def cache(
        self,
        *,
        ram: int | str | None = None,
        disk: int | str | None = None,
        path: str | os.PathLike[str] | None = None,
        admit: Literal["uniform", "cost"] = "uniform",
        peers: Sequence[str] = (),
    ) -> Self:
        """Keeps samples as they are at this point, so that the steps before it are done once.

        They are kept in `ram="4GB"`, on a `disk="200GB"` (below the folder `path`, by default in the
        user's cache folder, shared by all processes and later runs), or in both. It admits samples until
        it is full and gives none up. If there is no room for all it keeps any (`admit="uniform"`), or
        those that save most time for each byte (`admit="cost"`).

        Hosts that name each other as `peers=["a:7071", "b:7071"]` share what they keep: each sample is
        kept by one of them, which the others ask. The list is the same everywhere; a process becomes the
        first of these that its host can be and nobody is yet. A peer that is gone costs a read from
        storage.

        What comes out is the same with and without it, so it may stand anywhere before the first step
        that makes random choices: right after the source it keeps files as they are read, after `decode`
        or `resize` what these have made of them. `loader.stats()["cache"]` says what it was good for.
        """
        place = None if path is None else os.fspath(path)
        return self._then("cache", ram=ram, disk=disk, path=place, admit=admit, peers=list(peers) or None)

    # --------------------------------------------------------------------------------- using it

    def loader(
        self,
        *,
        threads: int | None = None,
        memory: int | str | None = None,
        rank: int | None = None,
        world: int | None = None,
        rounds: bool = False,
        seed: int = 0,
        with_index: bool = False,
        ahead: int | None = None,
        reads: int | None = None,
        tune: bool = True,
        order: Literal["exact", "ready"] = "exact",
        max_slip: int | None = None,
        record: str | os.PathLike[str] | None = None,
        replay: str | os.PathLike[str] | None = None,
    ) -> Loader:
        """A loader: iterate over it once an epoch, save its state, ask it how it is doing.

        `threads` is one per core and `memory` 1 GB if they are not given; `rank` and `world` are
        found out from torch.distributed, torchrun, SLURM or JAX. `with_index` adds the field
        `index`, the samples' places in the source. How many `threads` work, how many batches are
        prepared `ahead` (as far as memory allows) and how many `reads` may wait for storage at once
        is tuned while the loader runs, unless it is given, or `tune` is False.

        With `order="ready"` a batch takes the samples that are ready, so that a slow one delays
        only itself: every sample exactly once an epoch, and none more than `max_slip` batches from
        its place (32 if it is not given, or as many as 4,096 samples allow).
        `record` names a file in which each batch's samples are written down, and `replay` such a
        file, whose batches are then delivered again.

        With `rounds=True` and `bucket`, all ranks get batches of one class of lengths at each step,
        and equally many steps, so that none waits for a longer batch than its own. Every rank then
        prepares the samples of all.
        """
        from .loader import Loader

        return Loader(
            self,
            threads=threads,
            memory=memory,
            rank=rank,
            world=world,
            rounds=rounds,
            seed=seed,
            with_index=with_index,
            ahead=ahead,
            reads=reads,
            tune=tune,
            order=order,
            max_slip=max_slip,
            record=record,
            replay=replay,
        )

    def loaders(
        self,
        count: int,
        *,
        threads: int | None = None,
        memory: int | str | None = None,
        rank: int | None = None,
        world: int | None = None,
        **options: Any,
    ) -> list[Loader]:
        """One loader for each of `count` accelerators that this process feeds.

        They share one team of `threads` threads, which serves whichever can wait least, and
        `memory`. Each has its part of the epoch: of all processes' accelerators together, loader i
        is rank `rank * count + i` of `world * count`. Iterate over each in a thread of its own.
        """
        from .loader import Loader, Team

        if count < 1:
            raise ValueError(f"{count} loaders; there must be at least one")
        if (rank is None) != (world is None):
            raise ValueError("rank and world belong together; give both or none")
        if rank is None or world is None:
            rank, world = detect()
        team = Team(threads)
        budget = _core.parse_bytes(str(memory if memory is not None else "1GB")) // count
        return [
            Loader(
                self,
                threads=threads,
                memory=budget,
                rank=rank * count + number,
                world=world * count,
                team=team,
                **options,
            )
            for number in range(count)
        ]

    def distribute(
        self,
        url: str,
        *,
        job: str,
        order: Literal["exact", "any"] = "exact",
        visitation: Visitation = "exactly-once",
        streams: int | None = None,
        consumer: int | None = None,
        consumers: int | None = None,
        seed: int = 0,
        with_index: bool = False,
        memory: int | str | None = None,
        window: int | None = None,
        timeout: float | None = None,
        shared_memory: bool = True,
        local_from: str | None = None,
        rounds: bool = False,
        token: str | os.PathLike[str] | None = None,
        ca: str | os.PathLike[str] | None = None,
        certificate: tuple[str | os.PathLike[str], str | os.PathLike[str]] | None = None,
        server_name: str | None = None,
    ) -> Distributed:
        """A loader whose samples are prepared by the workers of a service.

        `url` names its dispatcher (`feedline://host:7070`), and `job` what all clients of this
        training run have in common. `consumer` and `consumers` are found out as `rank` and `world` of
        a local loader are.

        With `order="exact"` consumer i of n gets, bit for bit, what rank i of n gets locally, and the
        states of both fit each other. With `order="any"` batches go to whoever asks first; each sample
        is seen exactly once an epoch, over what the clients' checkpoints remember, or at most once if
        `visitation` says so. A "relaxed" job shares what workers compute for others and leaves out what
        they no longer have, to keep pace with these; alone it leaves out nothing. "per-worker" goes through all data once for each worker, in an
        order of its own; "by-index" and "by-file" part the samples or the files between the workers,
        each of which prepares its own part while it lives. `streams` is the number of such passes or
        parts; a job of one consumer has as many as there are workers unless it is given.

        `memory` bounds what is received ahead, `window` is the number of steps that are dealt at a
        time, and after `timeout` seconds without a batch an error says what is
        waited for. On the same host batches come through shared memory, unless that is switched off.
        `local_from` names the first step that is taken here and not by workers: the last ones often
        make samples larger, and the results are equal. `rounds` deals the batches of `bucket` to the
        clients of a synchronous job so that in each step all of them have samples of one length class.

        A service that asks for tokens gets the one in the file `token`, which is read again when it
        changes. With `ca`, the authority that its certificates are signed by, everything goes over
        TLS; `certificate` is a pair of files, the client's own certificate and its key, if the service
        asks for one, and `server_name` the name in the servers' certificates if it is not their
        hosts'. What is not given is taken from FEEDLINE_TOKEN_FILE, FEEDLINE_CA, FEEDLINE_CERTIFICATE,
        FEEDLINE_CERTIFICATE_KEY and FEEDLINE_SERVER_NAME.
        """
        from .service import Distributed

        return Distributed(
            self,
            url,
            job=job,
            order=order,
            visitation=visitation,
            streams=streams,
            consumer=consumer,
            consumers=consumers,
            seed=seed,
            with_index=with_index,
            memory=memory,
            window=window,
            timeout=timeout,
            shared_memory=shared_memory,
            local_from=local_from,
            rounds=rounds,
            token=token,
            ca=ca,
            certificate=certificate,
            server_name=server_name,
        )

    def save(
        self,
        folder: str | os.PathLike[str],
        *,
        seed: int = 0,
        epoch: int = 0,
        shard: int | str | None = None,
        rows: int | None = None,
        threads: int | None = None,
        memory: int | str | None = None,
        progress: bool = True,
        service: str | None = None,
        timeout: float | None = None,
        token: str | os.PathLike[str] | None = None,
        ca: str | os.PathLike[str] | None = None,
        certificate: tuple[str | os.PathLike[str], str | os.PathLike[str]] | None = None,
        server_name: str | None = None,
    ) -> Saved:
        """Computes an epoch and keeps its samples in a folder of Arrow files, which `fl.arrow` reads.

        Files have about `shard` bytes (`"256MB"`, the default) or `rows` rows. A call that was
        interrupted, by Ctrl-C or by a crash, is repeated: files that are there are not written again,
        and a file that can be seen is whole. Several processes may save to one folder at once. The
        rows of batches are saved one by one, without those that `drop_last` leaves out and without
        padding. `progress` shows a line if stderr is a terminal.

        `service` is the address of a dispatcher whose workers compute and write the files: the folder
        must be the same place for them, and one that they may write to (`feedline worker --save-to`).
        Workers may be lost and come; the call fails if none has been there for `timeout` seconds.
        `token`, `ca`, `certificate` and `server_name` are those of `distribute`.
        """
        from .saving import save

        return save(
            self,
            folder,
            seed=seed,
            epoch=epoch,
            shard=shard,
            rows=rows,
            threads=threads,
            memory=memory,
            progress=progress,
            service=service,
            timeout=timeout,
            token=token,
            ca=ca,
            certificate=certificate,
            server_name=server_name,
        )

    def __iter__(self) -> Iterator[Batch]:
        """One epoch with default settings; the next time, the next epoch."""
        epoch, self._passes = self._passes, self._passes + 1
        loader = self.loader()
        loader._epochs = 1
        loader.set_epoch(epoch)
        return iter(loader)

    def __len__(self) -> int:
        """Batches (or samples, without `batch`) in an epoch of this process's rank."""
        return _exact_length(self._open.steps(*detect()))

    def len_bounds(self) -> tuple[int, int | None]:
        """Least and greatest number of batches in an epoch; None if it never ends."""
        least, most = self._open.steps(*detect())
        return (0 if most is None else least), most

    def __getitem__(self, index: int) -> Batch:
        """Sample `index` of the source through all steps (as in epoch 0), for looking at."""
        return to_numpy(self._open.sample(index, 0, 0))

    @property
    def _open(self) -> _core.Pipeline:
        if self._opened is None:
            host = None
            if '"code":' in self._json:
                from .functions import command

                host = command()
            self._opened = _core.Pipeline(self._json, self._blobs, host)
        return self._opened

    @property
    def plan(self) -> str:
        """The plan in its one-line text form."""
        return _core.check(self._json)[1]

    @property
    def fingerprint(self) -> str:
        """Names the plan: equal plans have equal fingerprints on every machine."""
        return _core.check(self._json)[2]

    @property
    def spec(self) -> list[str]:
        """What is delivered: each field's name, dtype and shape."""
        return _core.check(self._json)[3]

    @property
    def classes(self) -> list[str] | None:
        """The names of the classes that labels stand for, if the source knows them."""
        return self._open.classes

    def to_json(self) -> str:
        """The plan in its JSON form."""
        return self._json

    def save_plan(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan to a file that `feedline run` and `fl.from_plan` read."""
        name = os.fspath(path)
        save_blobs(name, self._blobs)
        with open(name, "w", encoding="utf-8") as file:
            json.dump(json.loads(self._json), file, indent=2)
            file.write("\n")

    def explain(self, **options: Any) -> str:
        """What a run will do: which steps run together, into which buffers, in which budgets."""
        return self._open.explain(options)[0]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dataset) and self._json == other._json

    def __hash__(self) -> int:
        return hash(self._json)

    def _index_is_its_own(self) -> bool:
        """Whether the field `index` is the samples' own: that of `fl.range`, untouched."""
        steps = [call["step"] for call in json.loads(self._json)["steps"]]
        others = {"shuffle", "sample", "split", "shard", "take", "skip", "repeat", "batch", "on_error"}
        return steps[0] == "range" and others.issuperset(steps[1:])

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def __reduce__(self) -> Any:
        if self._blobs:
            raise TypeError(
                "a pipeline over arrays or lists in memory cannot be pickled; make it in the process "
                "that uses it, or save it with save_plan"
            )
        return Dataset._from_json, (self._json, {})

    def __repr__(self) -> str:
        return f"<Dataset {self.plan}\n         delivers {', '.join(self.spec)}>"

    def _repr_html_(self) -> str:
        from .html import dataset_html

        return dataset_html(self)


def _exact_length(steps: tuple[int, int | None]) -> int:
    least, most = steps
    if most is None:
        raise TypeError("this pipeline repeats for ever, so it has no length; see len_bounds()")
    if least != most:
        raise TypeError(
            "batches go by length (bucket) or bad samples may be left out (on_error), so the length "
            "is not known before the end of the epoch; len_bounds() gives its least and greatest value"
        )
    return most


def _plain(value: Any) -> Any:
    """NumPy numbers, tuples and arrays as JSON knows them."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _list(value: Any) -> list[float]:
    value = _plain(value)
    return value if isinstance(value, list) else [value]


def _dtype_name(dtype: Any) -> str:
    """The name of a NumPy, torch or JAX dtype."""
    name = str(dtype).removeprefix("torch.")
    if "." in name or " " in name:
        import numpy as np

        name = np.dtype(dtype).name
    return name
