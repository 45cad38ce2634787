"""Saving an epoch to Arrow files and reading it back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import feedline as fl


def ids(ds: fl.Dataset) -> list[int]:
    return [int(sample["index"]) for sample in ds]


def test_what_is_saved_reads_back(photos: Path, tmp_path: Path):
    ds = fl.images(photos).shuffle(seed=3).decode().random_resized_crop(12).layout("CHW")
    saved = ds.save(tmp_path / "out", seed=1, epoch=2, rows=6, threads=2)
    assert (saved.rows, saved.shards, saved.written, saved.skipped) == (20, 4, 4, 0)
    assert saved.bytes == sum(path.stat().st_size for path in (tmp_path / "out").glob("*.arrow"))
    loader = ds.loader(seed=1)
    loader.set_epoch(2)
    back = fl.arrow(tmp_path / "out")
    assert back.spec == ["image uint8[3, 12, 12] CHW", "label int64[]"]
    pairs = list(zip(loader, back, strict=True))
    assert len(pairs) == 20
    for wanted, found in pairs:
        assert np.array_equal(wanted["image"], found["image"])
        assert wanted["label"] == found["label"]
    # It is an ordinary source: shuffled, stacked, split among ranks.
    batches = back.shuffle(seed=1).flip().batch(8, drop_last=True)
    assert [batch["image"].shape for batch in batches] == [(8, 3, 12, 12)] * 2
    assert len(back.sample(30, balance="label")) == 30


def test_values_of_every_kind(tmp_path: Path):
    columns = {
        "i": np.array([1, -2, 3], np.int16),
        "f": np.array([[0.5, 1], [2, 3], [4, 5]], np.float16),
        "b": np.array([True, False, True]),
        "m": np.array([[True, False, True]] * 3),
        "t": ["one", "", "dreißig"],
        "d": [b"\0", b"xyz", b""],
    }
    fl.arrays(columns).save(tmp_path / "out", progress=False)
    back = list(fl.arrow(tmp_path / "out"))
    wanted = list(fl.arrays(columns))
    assert len(back) == 3
    for a, b in zip(back, wanted, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            assert np.array_equal(a[name], b[name]), name


def test_saving_goes_on_where_it_ended(tmp_path: Path):
    out, ds = tmp_path / "out", fl.range(30).shuffle(seed=0)
    ds.save(out, rows=5)
    (out / "shard-000003.arrow").unlink()
    with pytest.raises(fl.SourceError, match="1 of its 6 shards are missing"):
        fl.arrow(out)
    again = ds.save(out, rows=5)
    assert (again.written, again.rows) == (1, 30)
    assert sorted(ids(fl.arrow(out))) == list(range(30))
    assert json.loads((out / "feedline.json").read_text())["complete"] is True
    with pytest.raises(fl.SourceError, match="another folder"):
        ds.save(out, seed=1)
    with pytest.raises(fl.SourceError, match="another folder"):
        fl.range(31).shuffle(seed=0).save(out)


def test_bad_samples_are_left_out_and_counted(photos: Path, tmp_path: Path):
    (photos / "cat" / "00.png").write_bytes(b"no picture")
    ds = fl.images(photos).decode().resize((8, 8))
    with pytest.raises(fl.RecordError, match="00.png"):
        ds.save(tmp_path / "one")
    saved = ds.on_error("skip").save(tmp_path / "two")
    assert (saved.rows, saved.skipped) == (19, 1)
    assert len(list(fl.arrow(tmp_path / "two"))) == 19


def test_wrong_arguments_are_named(tmp_path: Path):
    ds = fl.range(3)
    with pytest.raises(ValueError, match="not both"):
        ds.save(tmp_path / "out", rows=3, shard="1MB")
    with pytest.raises(ValueError, match="rows=0"):
        ds.save(tmp_path / "out", rows=0)
    with pytest.raises(TypeError, match="threads"):
        ds.save(tmp_path / "out", threads=1.5)
    with pytest.raises(ValueError, match="shard"):
        ds.save(tmp_path / "out", shard="much")
    with pytest.raises(fl.PipelineError, match="for ever"):
        ds.repeat().save(tmp_path / "out")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(fl.SourceError, match="is a file"):
        ds.save(tmp_path / "file")
    with pytest.raises(fl.SourceError, match="other files"):
        ds.save(tmp_path)
    with pytest.raises(fl.SourceError, match="does not end like an Arrow file"):
        (tmp_path / "x.arrow").write_bytes(b"something else altogether")
        fl.arrow(tmp_path / "x.arrow")


CHILD = """
import signal, sys
import feedline as fl
# Whoever runs the tests may ignore Ctrl-C, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
print("begins", flush=True)
try:
    fl.range(2000).sleep(10).save(sys.argv[1], rows=50, threads=2)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c_stops_cleanly_and_a_second_call_goes_on(tmp_path: Path):
    out = tmp_path / "out"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, os.fspath(out)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdout.readline() == "begins\n"
    deadline = time.monotonic() + 30
    while len(list(out.glob("*.arrow"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=30)[0] == "interrupted\n", f"it ended with {child.returncode}"
    there = sorted(path.name for path in out.iterdir())
    assert 3 <= len(there) < 41 and not [name for name in there if name.endswith(".tmp")], there
    saved = fl.range(2000).sleep(10).save(out, rows=50, threads=64)
    assert saved.written == 40 - (len(there) - 1)
    assert ids(fl.arrow(out)) == list(range(2000))


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_workers_of_a_service_save_the_same_files_though_some_are_killed(tmp_path: Path):
    ds = fl.range(400).shuffle(seed=2).sleep(ms=2).batch(4)
    ds.save(tmp_path / "here", rows=10, progress=False)
    with fl.LocalCluster(workers=3, threads=1) as cluster:
        cluster.wait(3)
        done = threading.Event()

        def kill() -> None:
            for _ in range(4):
                if done.wait(0.15):
                    return
                os.kill(cluster.workers[0], signal.SIGKILL)
                cluster.scale(3)

        killer = threading.Thread(target=kill)
        killer.start()
        saved = ds.save(tmp_path / "there", rows=10, service=cluster.url, progress=False)
        done.set()
        killer.join()
        assert (saved.rows, saved.shards, saved.written) == (400, 40, 40)
        again = ds.save(tmp_path / "there", rows=10, service=cluster.url, progress=False)
        assert (again.rows, again.written) == (400, 0)
    assert contents(tmp_path / "here") == contents(tmp_path / "there")


def test_saving_without_workers_or_without_a_dispatcher_says_so(tmp_path: Path):
    ds = fl.range(10).batch(2)
    with pytest.raises(fl.UnavailableError, match="dispatcher"):
        ds.save(tmp_path / "a", service="feedline://127.0.0.1:9", timeout=0.5, progress=False)
    with fl.LocalCluster(workers=0) as cluster:
        with pytest.raises(fl.UnavailableError, match="worker"):
            ds.save(tmp_path / "b", service=cluster.url, timeout=0.5, progress=False)
        with pytest.raises(ValueError, match="workers have their own"):
            ds.save(tmp_path / "c", service=cluster.url, threads=2)
    with pytest.raises(ValueError, match="timeout"):
        ds.save(tmp_path / "d", timeout=2)
