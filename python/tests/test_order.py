"""Order as a policy, loaders that share threads, and the tuner."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import feedline as fl


def slow(count: int = 200, batch: int = 4) -> fl.Dataset:
    ms = np.zeros(count, dtype=np.int64)
    ms[::17] = 20
    return fl.arrays(ms=ms).shuffle(seed=3).sleep(field="ms").batch(batch)


def indices(loader: fl.Loader, most: int | None = None) -> list[int]:
    found: list[int] = []
    for number, batch in enumerate(loader, 1):
        found += batch["index"].tolist()
        if number == most:
            break
    return found


def test_closing_lets_a_waiting_thread_go() -> None:
    loader = fl.range(100).sleep(3_600_000).batch(4).loader(threads=2)
    said: list[str] = []

    def wait() -> None:
        try:
            next(iter(loader))
        except RuntimeError as error:
            said.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    while loader._run is None:
        time.sleep(0.01)
    loader.close()
    thread.join(timeout=30)
    assert not thread.is_alive()
    assert said == ["the loader was closed by another thread"]


def test_closing_ends_all_threads_also_within_a_loop() -> None:
    def threads() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    def end_with(count: int) -> bool:
        # A thread that has ended is listed for a moment longer.
        deadline = time.monotonic() + 5
        while threads() > count and time.monotonic() < deadline:
            time.sleep(0.01)
        return threads() <= count

    before = threads()
    loader = fl.range(100).batch(4).loader(threads=3)
    loop = iter(loader)
    first = next(loop)["index"].tolist()
    loader.close()
    assert end_with(before)
    assert next(loop)["index"].tolist() == [index + 4 for index in first]
    loader.close()
    loaders = fl.range(100).batch(4).loaders(2, threads=3)
    loops = [iter(loader) for loader in loaders]
    for loop in loops:
        next(loop)
    for loader in loaders:
        loader.close()
    assert end_with(before)


def test_a_state_saved_right_after_loading_is_that_of_its_rank() -> None:
    dataset = fl.range(60).shuffle(seed=1).batch(4)
    ranks = [dataset.loader(rank=rank, world=2, order="ready") for rank in range(2)]
    seen = [index for loader in ranks for index in indices(loader, 2)]
    merged = fl.merge_states([loader.state_dict() for loader in ranks])
    for loader in ranks:
        loader.close()
    again = [dataset.loader(rank=rank, world=3, order="ready") for rank in range(3)]
    for loader in again:
        loader.load_state_dict(merged)
    seen += indices(again[2], 1)
    merged = fl.merge_states([loader.state_dict() for loader in again])
    for loader in again:
        loader.close()
    last = dataset.loader(rank=0, world=1)
    last.load_state_dict(merged)
    assert sorted(seen + indices(last)) == list(range(60))


def test_threads_that_are_given_stay() -> None:
    loader = fl.range(10_000).batch(4).loader(threads=3, ahead=4)
    for number, _ in enumerate(loader):
        if number == 20:
            break
    assert loader.tuned()["threads"] == 3
    loader.close()


def test_mistakes_in_numbers_are_named() -> None:
    with pytest.raises(TypeError, match="max_slip='4'; it must be a whole number"):
        fl.range(4).batch(2).loader(order="ready", max_slip="4")  # type: ignore[arg-type]
    with pytest.raises(fl.PipelineError, match="1024 at most"):
        fl.range(4).batch(2).loader(threads=5000)
    with pytest.raises(fl.PipelineError, match="sleep: ms=nan is no finite number"):
        fl.range(4).sleep(float("nan"))


def test_ready_delivers_every_sample_once_an_epoch() -> None:
    with slow().loader(order="ready", threads=3, with_index=True) as loader:
        first, second = indices(loader), indices(loader)
    assert sorted(first) == sorted(second) == list(range(200))
    assert len(loader) == 50


@pytest.mark.parametrize("taken", [1, 7, 30, 49])
def test_a_ready_state_owes_exactly_the_rest(taken: int) -> None:
    loader = slow().loader(order="ready", threads=3, with_index=True, max_slip=5)
    before = indices(loader, taken)
    state = json.loads(json.dumps(loader.state_dict()))
    loader.close()
    assert len(json.dumps(state)) <= 1024
    for order in ("ready", "exact"):
        other = slow().loader(order=order, threads=2, with_index=True)
        other.load_state_dict(state)
        assert sorted(before + indices(other)) == list(range(200))
        assert other.epoch == 1
        other.close()


def test_a_recording_repeats_a_run(tmp_path: Path) -> None:
    file = tmp_path / "record.jsonl"
    with slow().loader(order="ready", threads=3, with_index=True, record=file) as loader:
        wanted = [batch["index"].tolist() for batch in loader]
    with slow().loader(replay=file, with_index=True) as loader:
        assert [batch["index"].tolist() for batch in loader] == wanted
    with pytest.raises(fl.StateError, match="another pipeline"):
        next(iter(slow(100).loader(replay=file)))


def test_wrong_orders_are_said() -> None:
    with pytest.raises(ValueError, match="neither"):
        slow().loader(order="any")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="goes with"):
        slow().loader(max_slip=3)
    with pytest.raises(fl.PipelineError, match="max_slip can be 1024 at most"):
        slow().loader(order="ready", max_slip=2000)
    with pytest.raises(fl.UnavailableError, match="nowhere"):
        slow().loader(replay="/nowhere/record.jsonl")
    with pytest.raises(ValueError, match="at least one"):
        slow().loaders(0)


def test_loaders_share_threads_and_part_the_epoch() -> None:
    loaders = slow().loaders(3, threads=2, order="ready", with_index=True)
    found: list[list[int]] = [[], [], []]

    def consume(number: int) -> None:
        found[number] = indices(loaders[number])

    threads = [threading.Thread(target=consume, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert sorted(sum(found, [])) == list(range(200))
    assert [loader.rank for loader in loaders] == [0, 1, 2]
    for loader in loaders:
        loader.close()


def test_loaders_of_a_rank_are_ranks_of_all() -> None:
    loaders = fl.range(80).batch(5).loaders(2, rank=1, world=2, with_index=True)
    assert [(loader.rank, loader.world) for loader in loaders] == [(2, 4), (3, 4)]
    assert indices(loaders[0])[:5] == [10, 11, 12, 13, 14]


def test_what_the_tuner_chose_is_shown_and_can_be_kept() -> None:
    with slow().loader(threads=2) as loader:
        assert loader.tuned() == {}
        iterator = iter(loader)
        next(iterator)
        tuned = loader.tuned()
        assert set(tuned) == {"threads", "ahead", "reads"}
        assert "tuned" in loader.explain()
    with slow().loader(**tuned) as kept:
        next(iter(kept))
        assert kept.tuned() == tuned


def test_samples_beyond_the_whole_budget_are_delivered(tmp_path: Path) -> None:
    for number in range(5):
        np.save(tmp_path / f"{number}.npy", np.full((2, 1000, 1000), number, dtype=np.float32))
    ds = fl.npy(tmp_path).batch(2)
    for order in ("exact", "ready"):
        with ds.loader(threads=3, memory="1MB", order=order, with_index=True) as loader:  # type: ignore[arg-type]
            seen = []
            for batch in loader:
                seen += batch["index"].tolist()
                for index, data in zip(batch["index"], batch["data"], strict=True):
                    assert data.shape == (2, 1000, 1000) and (data == index).all()
            assert sorted(seen) == [0, 1, 2, 3, 4]


def test_a_consumer_that_leaves_midway_leaves_the_others_alone() -> None:
    loaders = slow().loaders(2, threads=2, with_index=True)
    next(iter(loaders[0]))
    loaders[0].close()
    assert len(indices(loaders[1])) == 100
    # The one that left goes on where it was.
    assert len(indices(loaders[0])) == 96
