"""Loaders: order, state, ranks, and how they end."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import feedline as fl
from conftest import picture, png


def indices(batches) -> list[list[int]]:
    return [batch["index"].tolist() for batch in batches]


def image_pipeline(photos: Path) -> fl.Dataset:
    return fl.images(photos).shuffle(seed=5).decode().random_resized_crop(12).flip().batch(3)


def equal(left: dict, right: dict) -> bool:
    return left.keys() == right.keys() and all(np.array_equal(left[k], right[k]) for k in left)


def test_threads_change_nothing(photos: Path):
    one, many = (list(image_pipeline(photos).loader(threads=n)) for n in (1, 4))
    assert all(equal(a, b) for a, b in zip(one, many, strict=True))


def test_a_second_loop_is_the_next_epoch():
    loader = fl.range(10).shuffle().batch(4).loader()
    first, second = indices(loader), indices(loader)
    assert first != second and loader.epoch == 2
    again = fl.range(10).shuffle().batch(4).loader()
    again.set_epoch(1)
    assert indices(again) == second


def test_leaving_a_loop_gives_the_rest_of_the_epoch_up():
    ds = fl.range(10).shuffle().batch(4)
    loader = ds.loader()
    for _ in loader:
        break
    second = ds.loader()
    second.set_epoch(1)
    assert indices(loader) == indices(second)


def test_a_run_resumes_after_any_batch(photos: Path):
    ds = image_pipeline(photos)
    whole = list(ds.loader(threads=2))
    for stop in range(len(whole) + 1):
        loader = ds.loader(threads=2)
        batches = iter(loader)
        for _ in range(stop):
            next(batches)
        state = json.loads(json.dumps(loader.state_dict()))
        assert len(json.dumps(state)) <= 1024
        resumed = ds.loader(threads=3)
        resumed.load_state_dict(state)
        rest = list(resumed)
        assert len(rest) == len(whole) - stop
        assert all(equal(a, b) for a, b in zip(rest, whole[stop:]))
        assert resumed.epoch == 1


def test_set_epoch_keeps_a_loaded_place():
    ds = fl.range(10).batch(2)
    loader = ds.loader()
    batches = iter(loader)
    next(batches), next(batches)
    resumed = ds.loader()
    resumed.load_state_dict(loader.state_dict())
    resumed.set_epoch(0)
    assert indices(resumed) == [[4, 5], [6, 7], [8, 9]]


def test_ranks_share_the_epoch_and_resume_on_other_ranks():
    ds = fl.range(24).shuffle(seed=2).batch(2)
    loaders = [ds.loader(rank=r, world=2) for r in range(2)]
    seen, states = [], []
    for loader in loaders:
        batches = iter(loader)
        seen += [i for _ in range(3) for i in next(batches)["index"].tolist()]
        states.append(loader.state_dict())
    merged = fl.merge_states(states)
    for rank in range(3):
        resumed = ds.loader(rank=rank, world=3)
        resumed.load_state_dict(merged)
        seen += [i for batch in resumed for i in batch["index"].tolist()]
    assert sorted(seen) == list(range(24))


def test_uncounted_ranks_resume_after_merging(photos: Path):
    for number in (2, 7, 13):
        folder = "cat" if number < 12 else "dog"
        (photos / folder / f"{number:02}.png").write_bytes(b"broken")
    ds = fl.images(photos).shuffle(seed=4).decode().center_crop(8).on_error("skip").batch(2)
    seen, states = [], []
    for rank in range(2):
        loader = ds.loader(rank=rank, world=2, with_index=True)
        batches = iter(loader)
        seen += [i for _ in range(2) for i in next(batches)["index"].tolist()]
        states.append(loader.state_dict())
    with pytest.raises(fl.StateError, match="merge_states"):
        ds.loader(rank=0, world=3).load_state_dict(states[1])
    merged = fl.merge_states(states)
    for rank in range(3):
        resumed = ds.loader(rank=rank, world=3, with_index=True)
        resumed.load_state_dict(merged)
        seen += [i for batch in resumed for i in batch["index"].tolist()]
    assert sorted(seen) == [i for i in range(20) if i not in (2, 7, 13)]


def test_a_state_of_another_pipeline_says_what_differs(photos: Path):
    ds = image_pipeline(photos)
    state = ds.loader().state_dict()
    other = fl.images(photos).shuffle(seed=5).decode().random_resized_crop(16).flip().batch(3)
    with pytest.raises(fl.StateError, match="random_resized_crop.*other arguments"):
        other.loader().load_state_dict(state)
    shorter = fl.images(photos).shuffle(seed=5).decode().center_crop(12).batch(3)
    with pytest.raises(fl.StateError, match="is center_crop and was random_resized_crop"):
        shorter.loader().load_state_dict(state)
    with pytest.raises(fl.StateError, match="seed"):
        ds.loader(seed=1).load_state_dict(state)
    with pytest.raises(fl.StateError, match="no state"):
        ds.loader().load_state_dict({"epoch": 3})
    (photos / "cat" / "new.png").write_bytes(png(picture(99)))
    with pytest.raises(fl.StateError, match="data has changed"):
        image_pipeline(photos).loader().load_state_dict(state)


def test_wrong_options_are_named():
    ds = fl.range(4).batch(2)
    for options, words in [
        ({"threads": 0}, "threads=0"),
        ({"memory": "lots"}, "memory"),
        ({"rank": 2, "world": 2}, "rank 2 of 2"),
        ({"rank": 1}, "belong together"),
    ]:
        with pytest.raises(ValueError, match=words):
            ds.loader(**options)


def test_ranks_are_found_in_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    loader = fl.range(16).batch(2).loader()
    assert (loader.rank, loader.world) == (1, 4)
    assert indices(loader) == [[2, 3], [10, 11]]
    monkeypatch.setenv("RANK", "seven")
    with pytest.raises(ValueError, match="rank= and world="):
        fl.range(16).loader()
    monkeypatch.delenv("RANK")
    monkeypatch.setenv("SLURM_PROCID", "2")
    monkeypatch.setenv("SLURM_NTASKS", "3")
    assert fl.range(16).loader().rank == 2


def test_stats_count_what_was_delivered(photos: Path):
    loader = image_pipeline(photos).loader(threads=2)
    assert loader.stats() == {}
    batches = sum(1 for _ in loader)
    stats = loader.stats()
    assert stats["batches"] == batches == 7 and stats["samples"] == 20 and stats["epochs"] == 1
    names = [step["name"] for step in stats["steps"]]
    assert "decode" in names and "random_resized_crop" in names
    assert 0 <= stats["waited_share"] <= 1


def feedline_threads() -> int:
    count = 0
    for task in Path("/proc/self/task").iterdir():
        try:
            count += (task / "comm").read_text().startswith("feedline")
        except OSError:
            pass
    return count


def ends_with(threads: int) -> bool:
    """A thread that has ended is listed for a moment longer."""
    deadline = time.monotonic() + 5
    while feedline_threads() > threads and time.monotonic() < deadline:
        time.sleep(0.01)
    return feedline_threads() <= threads


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_thread_is_left_behind(photos: Path):
    # Loaders of earlier tests may not be collected yet.
    gc.collect()
    before = feedline_threads()
    loader = image_pipeline(photos).loader(threads=3)
    next(iter(loader))
    assert feedline_threads() > before
    loader.close()
    assert ends_with(before)
    for _ in image_pipeline(photos):
        break
    assert ends_with(before)


def test_closing_keeps_the_place():
    with fl.range(6).batch(2).loader() as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
    assert loader.state_dict() == state


def test_other_python_threads_run_while_rust_waits():
    ticks = []
    stop = threading.Event()

    def tick() -> None:
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    for _ in fl.range(300_000).shuffle().batch(64).loader(threads=1):
        pass
    stop.set()
    thread.join()
    assert len(ticks) > 5


def run(program: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        **options,
    )


def test_leaving_the_interpreter_mid_epoch_ends_at_once(photos: Path):
    result = run(
        f"""
        import feedline as fl
        loader = fl.images({str(photos)!r}).repeat().decode().resize([64, 64]).batch(4).loader(threads=3)
        batches = iter(loader)
        next(batches)
        print("leaving")
        """
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "leaving\n", "")


def test_an_exception_mid_epoch_ends_at_once():
    result = run(
        """
        import feedline as fl
        for batch in fl.range(10).repeat().batch(4).loader(threads=2):
            raise SystemExit(7)
        """
    )
    assert (result.returncode, result.stderr) == (7, "")


def test_ctrl_c_works_while_waiting():
    program = """
    import signal
    import feedline as fl
    # A process started in the background may have been told to ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    print("ready", flush=True)
    try:
        for batch in fl.range(1000).repeat().batch(16).loader(threads=1):
            pass
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert out == "interrupted\n" and process.returncode == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_goes_on_from_the_same_place(photos: Path):
    result = run(
        f"""
        import os, sys
        import feedline as fl
        ds = fl.images({str(photos)!r}).shuffle().decode().center_crop(8).batch(4)
        want = [b["label"].tolist() for b in ds.loader(threads=2)]
        loader = ds.loader(threads=2)
        batches = iter(loader)
        got = [next(batches)["label"].tolist(), next(batches)["label"].tolist()]
        pid = os.fork()
        rest = got + [b["label"].tolist() for b in batches]
        ok = rest == want
        del loader, batches
        if pid == 0:
            os._exit(0 if ok else 3)
        _, status = os.waitpid(pid, 0)
        print(ok, os.waitstatus_to_exitcode(status))
        """
    )
    assert (result.stdout, result.stderr) == ("True 0\n", "")


def test_the_command_is_there():
    result = subprocess.run(
        [sys.executable, "-m", "feedline", "check", "range count=3 | batch size=2"],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0 and "batch size=2" in result.stdout
    wrong = subprocess.run(
        [sys.executable, "-m", "feedline", "check", "range count=3 | bach"],
        capture_output=True,
        text=True,
    )
    assert wrong.returncode != 0 and "did you mean batch" in wrong.stderr


def test_batches_live_as_long_as_they_are_held():
    loader = fl.range(4000).batch(100).loader(threads=2)
    kept = [batch["index"] for batch in loader]
    loader.close()
    del loader
    np.testing.assert_array_equal(np.concatenate(kept), np.arange(4000))


def test_importing_is_light():
    result = run(
        """
        import sys
        import numpy
        before = set(sys.modules)
        import feedline
        new = {name.split(".")[0] for name in set(sys.modules) - before}
        heavy = new & {"torch", "jax", "tensorflow", "pandas", "html", "inspect", "dataclasses", "asyncio"}
        print(sorted(heavy))
        """
    )
    assert result.stdout.strip() == "[]"


def test_ctrl_c_loses_no_batch():
    result = run(
        """
        import os, signal, threading
        import numpy as np
        import feedline as fl

        signal.signal(signal.SIGINT, signal.default_int_handler)
        x = np.zeros((60, 64, 64, 3), np.uint8)
        ds = fl.arrays(image=x, n=np.arange(60), layout="HWC").repeat(10).resize([900, 900]).batch(4)
        loader = ds.loader(threads=1)
        seen = []
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            for batch in loader:
                seen += batch["n"].tolist()
        except KeyboardInterrupt:
            pass
        resumed = ds.loader()
        resumed.load_state_dict(loader.state_dict())
        rest = [i for batch in resumed for i in batch["n"].tolist()]
        print(seen + rest == list(range(60)) * 10)
        """
    )
    assert (result.stdout, result.stderr) == ("True\n", "")


def test_an_error_gives_nothing_up(photos: Path):
    broken = photos / "cat" / "05.png"
    whole = broken.read_bytes()
    broken.write_bytes(b"x" * len(whole))
    loader = fl.images(photos).decode().center_crop(8).batch(4).loader(with_index=True)
    seen = []
    with pytest.raises(fl.RecordError):
        for batch in loader:
            seen += batch["index"].tolist()
    assert loader.state_dict()["tail"] == len(seen) == 4
    stamp = broken.stat()
    broken.write_bytes(whole)
    os.utime(broken, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert indices(loader) == [[4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15], [16, 17, 18, 19]]


def test_a_closed_loader_goes_on_where_it_was():
    with fl.range(8).batch(2).loader() as loader:
        for _ in loader:
            break
    assert loader.stats()["batches"] == 1
    assert indices(loader) == [[2, 3], [4, 5], [6, 7]]


def test_set_epoch_ends_a_loop_that_is_under_way():
    loader = fl.range(6).batch(2).loader()
    batches = iter(loader)
    next(batches)
    loader.set_epoch(3)
    with pytest.raises(RuntimeError, match="this loop is over"):
        next(batches)
    assert loader.state_dict()["epoch"] == 3
    assert len(indices(loader)) == 3 and loader.epoch == 4


def test_loaders_are_not_copied_and_pipelines_need_not_be():
    import copy
    import pickle

    ds = fl.arrays(x=np.arange(4)).batch(2)
    assert copy.deepcopy(ds) is ds
    for copying in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="loader cannot be"):
            copying(ds.loader())


def test_damaged_states_are_refused():
    loader = fl.range(10).batch(2).loader()
    state = loader.state_dict()
    for change in ({"world": 0}, {"rank": 5}, {"stretch": 0}, {"feedline": 2}, {"left_over": [1]}):
        with pytest.raises(fl.StateError):
            loader.load_state_dict({**state, **change})
        with pytest.raises(fl.StateError):
            fl.merge_states([{**state, **change}])


def test_lengths_are_those_of_this_rank(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    ds = fl.range(8).batch(2)
    assert len(ds) == len(list(ds)) == 2


def test_an_epoch_without_batches_is_not_silent():
    with pytest.warns(UserWarning, match="no batch"):
        assert list(fl.range(3).batch(4, drop_last=True)) == []
    assert list(fl.range(3).take(0).batch(4)) == []
