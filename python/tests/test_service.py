"""A service: a dispatcher in this process, workers in processes of their own."""

import collections
import os
import signal
import threading
import time

import feedline as fl
import numpy as np
import pytest


@pytest.fixture(scope="module")
def cluster():
    with fl.LocalCluster(workers=2, threads=1) as cluster:
        cluster.wait(2)
        yield cluster


def numbers(count=100, size=4):
    return fl.range(count).shuffle(seed=1).batch(size)


def indices(batches):
    return [batch["index"].tolist() for batch in batches]


def test_a_distributed_loader_delivers_what_a_local_one_does(cluster, photos):
    ds = fl.images(photos).shuffle(seed=3).decode().random_resized_crop(16).flip().batch(3)
    for rank in range(2):
        local = ds.loader(rank=rank, world=2, seed=5, threads=1)
        remote = ds.distribute(
            cluster.url, job=f"photos {rank}", consumer=rank, consumers=2, seed=5
        )
        with local, remote:
            assert len(remote) == len(local)
            for _ in range(2):
                for wanted, found in zip(local, remote, strict=True):
                    assert wanted.keys() == found.keys()
                    for name in wanted:
                        np.testing.assert_array_equal(found[name], wanted[name])
                    assert remote.state_dict() == local.state_dict()


def test_local_and_remote_go_on_where_the_other_was_left(cluster):
    ds = numbers()
    whole = indices(ds.loader(threads=1))
    with ds.distribute(cluster.url, job="left", window=3) as remote:
        batches = iter(remote)
        first = indices(next(batches) for _ in range(7))
        state = remote.state_dict()
    assert len(str(state)) < 1000
    local = ds.loader(threads=1)
    local.load_state_dict(state)
    assert first + indices(local) == whole
    with ds.distribute(cluster.url, job="right", window=5) as remote:
        remote.load_state_dict(state)
        assert first + indices(remote) == whole


def test_any_number_of_clients_share_an_epoch(cluster):
    ds = numbers(count=200)
    seen = collections.Counter()

    def train(consumer):
        with ds.distribute(
            cluster.url, job="shared", order="any", consumer=consumer, consumers=3, window=2
        ) as loader:
            for _ in range(2):
                for batch in loader:
                    seen.update(batch["index"].tolist())

    threads = [threading.Thread(target=train, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert seen == dict.fromkeys(range(200), 2)


def test_merged_states_go_on_anywhere(cluster):
    ds = numbers(count=120)
    loaders = [
        ds.distribute(cluster.url, job="merge", order="any", consumer=one, consumers=2, window=2)
        for one in range(2)
    ]
    seen = collections.Counter()
    for loader in loaders:
        batches = iter(loader)
        for _ in range(6):
            seen.update(next(batches)["index"].tolist())
    states = [loader.state_dict() for loader in loaders]
    for loader in loaders:
        loader.close()
    with pytest.raises(fl.StateError, match="merge"):
        ds.loader(threads=1).load_state_dict(states[0])
    merged = fl.merge_states(states)
    local = ds.loader(threads=1)
    local.load_state_dict(merged)
    here = seen + collections.Counter(n for batch in local for n in batch["index"].tolist())
    assert here == dict.fromkeys(range(120), 1)
    with ds.distribute(cluster.url, job="merge", order="any", window=2) as loader:
        loader.load_state_dict(merged)
        for batch in loader:
            seen.update(batch["index"].tolist())
    assert seen == dict.fromkeys(range(120), 1)


def test_a_killed_worker_costs_no_sample():
    ds = fl.range(600).shuffle(seed=2).sleep(ms=1).batch(4)
    wanted = indices(ds.loader(threads=2))
    with fl.LocalCluster(workers=2, threads=1) as cluster:
        cluster.wait(2)
        with ds.distribute(cluster.url, job="kill") as loader:
            found = []
            for number, batch in enumerate(loader):
                found.append(batch["index"].tolist())
                if number == 20:
                    os.kill(cluster.workers[0], signal.SIGKILL)
    assert found == wanted


def test_a_service_without_workers_says_so():
    with fl.LocalCluster(workers=0) as cluster:
        with numbers().distribute(cluster.url, job="alone", timeout=0.5) as loader:
            with pytest.raises(fl.UnavailableError, match="no batch for"):
                next(iter(loader))


def test_a_bad_sample_is_the_same_error(cluster, tmp_path):
    (tmp_path / "broken.jpg").write_bytes(b"this is no photo")
    ds = fl.images(tmp_path).decode().resize(8).batch(1)
    with pytest.raises(fl.RecordError) as local:
        list(ds.loader(threads=1))
    with ds.distribute(cluster.url, job="broken") as loader, pytest.raises(fl.RecordError) as remote:
        list(loader)
    assert str(remote.value) == str(local.value)
    assert remote.value.origin == local.value.origin


def test_mistakes_are_told(cluster):
    ds = numbers()
    with pytest.raises(ValueError, match="feedline://"):
        list(ds.distribute("http://example.org", job="x"))
    with pytest.raises(ValueError, match="order"):
        list(ds.distribute(cluster.url, job="x", order="ready"))
    with pytest.raises(fl.PipelineError, match="name"):
        list(ds.distribute(cluster.url, job=""))
    with pytest.raises(ValueError, match="window"):
        ds.distribute(cluster.url, job="x", window=0)
    with ds.distribute(cluster.url, job="taken") as loader:
        next(iter(loader))
        with numbers(count=50).distribute(cluster.url, job="taken") as other:
            with pytest.raises((fl.StateError, fl.ServiceError), match="dataset"):
                next(iter(other))


def test_nobody_at_the_address_is_an_error_that_names_it():
    with pytest.raises(fl.UnavailableError, match="127.0.0.1:1"):
        list(numbers().distribute("feedline://127.0.0.1:1", job="x", timeout=1))


def test_a_cluster_leaves_no_process_behind():
    cluster = fl.LocalCluster(workers=2, threads=1)
    pids = cluster.workers
    assert len(pids) == 2
    cluster.scale(1)
    cluster.scale(2)
    pids += cluster.workers
    cluster.close()
    end = time.monotonic() + 10
    while time.monotonic() < end and any(os.path.exists(f"/proc/{pid}") for pid in pids):
        time.sleep(0.05)
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


def test_the_status_tells_of_jobs_and_workers(cluster):
    with numbers(count=4000, size=1).distribute(cluster.url, job="status") as loader:
        batches = iter(loader)
        for _ in range(10):
            next(batches)
        status = cluster.status()
        assert [job["name"] for job in status["jobs"] if job["name"] == "status"]
        assert len(status["workers"]) == 2
        assert status["scale"]["present"] == 2


def test_clients_that_mean_different_things_by_a_job_are_told(cluster):
    settings = {"job": "torn", "order": "any", "consumers": 2}
    with numbers().distribute(cluster.url, visitation="relaxed", consumer=0, **settings) as first:
        next(iter(first))
        with numbers().distribute(cluster.url, consumer=1, **settings) as second:
            with pytest.raises(fl.StateError, match="was created with .* relaxed, and this client"):
                next(iter(second))
