"""Samples that are kept from one epoch to the next."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import feedline as fl


def epochs(ds: fl.Dataset, count: int, **options) -> tuple[list[list[dict]], dict]:
    """Copies of the batches of so many epochs, and what the cache says at the end."""
    loader = ds.loader(threads=2, **options)
    batches = [[{k: np.array(v) for k, v in batch.items()} for batch in loader] for _ in range(count)]
    return batches, loader.stats().get("cache", {})


def same(found: list[list[dict]], wanted: list[list[dict]]) -> bool:
    return all(
        len(a) == len(b) and all(all(np.array_equal(x[k], y[k]) for k in y) for x, y in zip(a, b, strict=True))
        for a, b in zip(found, wanted, strict=True)
    )


def read_by(ds: fl.Dataset) -> int:
    """Bytes that an epoch reads from storage."""
    loader = ds.loader(threads=2)
    list(loader)
    return loader.stats()["bytes_read"]


def pipeline(photos: Path, **cache) -> fl.Dataset:
    ds = fl.images(photos).shuffle(seed=1).decode().resize((16, 16))
    ds = ds.cache(**cache) if cache else ds
    return ds.random_crop((12, 12)).flip().batch(4)


@pytest.mark.parametrize("cache", [{"ram": "1MB"}, {"ram": 9_000}, {"ram": 9_000, "admit": "cost"}])
def test_the_same_comes_out(photos: Path, cache: dict):
    wanted, nothing = epochs(pipeline(photos), 3)
    found, stats = epochs(pipeline(photos, **cache), 3)
    assert same(found, wanted)
    assert not nothing
    assert stats["ram_bytes"] <= stats["ram_limit"]
    if cache["ram"] == "1MB":
        # What is prepared ahead of the third epoch's end was found as well.
        assert stats["ram_hits"] >= 40
        # One may be looked for again before it was kept.
        assert stats["ram_samples"] == 20 and 20 <= stats["misses"] < 40
        assert stats["seconds_saved"] > 0 and stats["bytes_saved"] > 0
    else:
        assert 0 < stats["ram_samples"] < 20


def test_a_later_run_finds_what_is_on_the_disk(photos: Path, tmp_path: Path):
    kept = tmp_path / "kept"
    wanted, _ = epochs(pipeline(photos), 2)
    first, stats = epochs(pipeline(photos, disk="10MB", path=kept), 2)
    assert same(first, wanted) and stats["disk_hits"] >= 20
    loader = pipeline(photos, disk="10MB", path=kept).loader(threads=2)
    found = [[{k: np.array(v) for k, v in batch.items()} for batch in loader] for _ in range(2)]
    stats = loader.stats()
    assert same(found, wanted)
    assert stats["bytes_read"] == 0 and stats["cache"]["disk_hits"] >= 40
    loader.close()
    # Other steps before it are another thing to keep; other steps behind it are not.
    other = fl.images(photos).decode().resize((15, 15)).cache(disk="10MB", path=kept)
    assert read_by(other.batch(4)) > 0
    other = fl.images(photos).decode().resize((16, 16)).cache(disk="10MB", path=kept)
    assert read_by(other.center_crop((4, 4)).batch(3)) == 0


def test_a_state_is_good_with_and_without_a_cache(photos: Path):
    loader = pipeline(photos).loader()
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = [np.array(batch["image"]) for batch in batches]
    cached = pipeline(photos, ram="1MB").loader()
    cached.load_state_dict(state)
    assert all(np.array_equal(a, b["image"]) for a, b in zip(rest, cached, strict=True))


def test_where_it_may_stand():
    ds = fl.range(10)
    with pytest.raises(ValueError, match="cache: is given twice"):
        ds.cache(ram="1MB").cache(ram="1MB").loader()
    with pytest.raises(ValueError, match="put cache before color_jitter"):
        fl.images(".").decode().resize((4, 4)).color_jitter(brightness=0.5).cache(ram="1MB").loader()
    with pytest.raises(ValueError, match="room for nothing"):
        ds.cache(ram=0).loader()
    with pytest.raises(ValueError, match="no number of bytes"):
        ds.cache(ram="much").loader()
    with pytest.raises(ValueError, match="say how many bytes"):
        ds.cache(ram="1MB", path="x").loader()


def test_a_folder_that_cannot_be_made_is_a_clear_error(photos: Path, tmp_path: Path):
    (tmp_path / "file").write_text("x")
    ds = pipeline(photos, disk="1MB", path=tmp_path / "file" / "below")
    with pytest.raises(Exception, match="cannot be used.*give path a folder"):
        next(iter(ds.loader()))


def feedline(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "feedline"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_command_lists_and_removes(photos: Path, tmp_path: Path):
    kept = str(tmp_path / "kept")
    loader = pipeline(photos, disk="10MB", path=kept).loader()
    list(loader)
    held = json.loads(feedline("cache", "ls", "--path", kept, "--json").stdout)["held"]
    assert [row["samples"] for row in held] == [20] and held[0]["in_use"]
    assert "resize" in held[0]["about"]["plan"]
    refused = feedline("cache", "rm", held[0]["identity"], "--path", kept)
    assert refused.returncode != 0 and "in use" in refused.stderr
    loader.close()
    del loader
    text = feedline("cache", "ls", "--path", kept).stdout
    assert held[0]["identity"][:12] in text and "20 of 20" in text
    stat = json.loads(feedline("cache", "stat", "--path", kept, "--json").stdout)
    assert (stat["identities"], stat["samples"], stat["in_use"]) == (1, 20, 0)
    assert feedline("cache", "rm", "abcdef", "--path", kept).returncode != 0
    removed = json.loads(feedline("cache", "rm", held[0]["identity"][:8], "--path", kept, "--json").stdout)
    assert removed["removed"] == [held[0]["identity"]] and removed["bytes"] > 0
    assert "nothing is kept" in feedline("cache", "ls", "--path", kept).stdout


HOST = """
import json, sys
import numpy as np
import feedline as fl

photos, rank, world, peers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
ds = fl.images(photos).shuffle(seed=1).cache(ram="10MB", peers=peers).decode().resize((16, 16)).batch(2)
loader = ds.loader(threads=2, rank=rank, world=world, with_index=True, ahead=1)
for line in sys.stdin:
    before = loader.stats().get("bytes_read", 0)
    seen = [int(i) for batch in loader for i in batch["index"]]
    stats = loader.stats()
    print(json.dumps({"seen": seen, "read": stats["bytes_read"] - before, "cache": stats["cache"]}), flush=True)
"""


class Host:
    def __init__(self, photos: Path, rank: int, world: int, peers: list[str]) -> None:
        arguments = [str(photos), str(rank), str(world), json.dumps(peers)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOST, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def begin(self) -> None:
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> dict:
        return json.loads(self.process.stdout.readline())


def free_addresses(count: int) -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    names = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    for s in sockets:
        s.close()
    return names


def test_hosts_read_each_sample_once_and_survive_each_other(photos: Path):
    peers = free_addresses(2)
    hosts = [Host(photos, rank, 2, peers) for rank in range(2)]
    size = sum(file.stat().st_size for file in photos.rglob("*.png"))
    try:
        deadline = time.monotonic() + 60
        # Whoever comes first finds nobody at the other's address for a moment.
        quiet = 0
        while quiet < 3:
            for host in hosts:
                host.begin()
            ends = [host.end() for host in hosts]
            assert sorted(ends[0]["seen"] + ends[1]["seen"]) == list(range(20))
            quiet = quiet + 1 if [end["read"] for end in ends] == [0, 0] else 0
            assert time.monotonic() < deadline, "all is kept by one or the other"
        assert sum(end["cache"]["ram_bytes"] for end in ends) >= size
        assert all(end["cache"]["peer_hits"] > 0 for end in ends)
        hosts[1].process.send_signal(signal.SIGKILL)
        hosts[1].process.wait()
        for _ in range(2):
            hosts[0].begin()
            end = hosts[0].end()
            assert len(end["seen"]) == 10
        assert end["cache"]["peer_failures"] > 0
        # One that stands still is no better, and comes back.
        hosts[1] = Host(photos, 1, 2, peers)
        hosts[1].begin()
        hosts[1].end()
        os.kill(hosts[1].process.pid, signal.SIGSTOP)
        start = time.monotonic()
        hosts[0].begin()
        assert len(hosts[0].end()["seen"]) == 10
        assert time.monotonic() - start < 60
        os.kill(hosts[1].process.pid, signal.SIGCONT)
        hosts[1].begin()
        assert len(hosts[1].end()["seen"]) == 10
    finally:
        for host in hosts:
            host.process.kill()
            host.process.wait()


def test_workers_keep_within_what_their_operator_allows(photos: Path, tmp_path: Path):
    ds = pipeline(photos, ram="1MB", disk="1MB", path=tmp_path / "of-the-client")
    wanted, _ = epochs(pipeline(photos), 2)
    with fl.LocalCluster(workers=1) as cluster:
        loader = ds.distribute(cluster.url, job="kept")
        found = [[{k: np.array(v) for k, v in batch.items()} for batch in loader] for _ in range(2)]
        loader.close()
    assert same(found, wanted)
    assert not (tmp_path / "of-the-client").exists()
