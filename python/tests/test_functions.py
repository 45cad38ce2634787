"""Python functions in a pipeline: what they get and give, how they fail, and what they leave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import feedline as fl

FACTOR = 3


def scaled(sample):
    return {"x": sample["x"] * FACTOR, "label": sample["label"]}


def noisy(sample, rng):
    return {"x": sample["x"] + rng.normal(size=sample["x"].shape).astype("float32")}


def same(sample):
    return sample


def is_even(sample):
    return sample["label"] % 2 == 0


def table(rows: int = 12) -> fl.Dataset:
    x = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
    return fl.arrays(x=x, label=np.arange(rows))


@pytest.fixture(autouse=True, scope="module")
def warm() -> Iterator[None]:
    """One loader keeps processes from one test to the next."""
    loader = table().map(scaled).batch(1).loader(threads=2)
    next(iter(loader))
    yield
    loader.close()


def rows(ds: fl.Dataset, threads: int = 2, **options) -> list[dict[str, np.ndarray]]:
    return list(ds.loader(threads=threads, **options))


def children(of: int) -> list[int]:
    """Processes that a process has started and that are not gone."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(stat[1]) == of:
                found.append(int(entry.name))
    return found


def until(done, seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


# --------------------------------------------------------------------------------- what they give


def test_a_function_makes_another_sample_of_each():
    ds = table().map(scaled)
    assert ds.spec == ["x float32[4]", "label int64[]"]
    batches = rows(ds.batch(5))
    x = np.concatenate([batch["x"] for batch in batches])
    np.testing.assert_array_equal(x, np.arange(48, dtype=np.float32).reshape(12, 4) * 3)
    assert len(ds.batch(5)) == 3
    assert "in a process of its own" in ds.explain()
    np.testing.assert_array_equal(ds[2]["x"], x[2])


def test_every_kind_of_value_goes_in_and_comes_out():
    kinds = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]
    kinds += ["float16", "float32", "float64"]
    fields = {kind: np.arange(6).reshape(2, 3).astype(kind) for kind in kinds}
    ds = fl.arrays({**fields, "one": np.arange(2), "text": ["é", ""], "raw": [b"\0\xff", b""]})

    def check(sample):
        assert isinstance(sample["one"], np.int64) and isinstance(sample["text"], str)
        assert isinstance(sample["raw"], bytes)
        return {**sample, "empty": np.zeros((0, 2)), "strided": np.arange(8)[::2], "yes": True}

    got = [ds.map(check)[index] for index in range(2)]
    for index, sample in enumerate(got):
        for kind in kinds:
            np.testing.assert_array_equal(sample[kind], fields[kind][index])
            assert sample[kind].dtype == kind
        np.testing.assert_array_equal(sample["strided"], [0, 2, 4, 6])
        assert sample["empty"].shape == (0, 2) and bool(sample["yes"])
    assert [sample["text"] for sample in got] == ["é", ""]
    assert [sample["raw"] for sample in got] == [b"\0\xff", b""]


def test_images_stay_images_for_later_steps(photos: Path):
    def inverted(sample):
        return {"image": 255 - sample["image"], "label": sample["label"]}

    ds = fl.images(photos).decode().resize((8, 8)).map(inverted)
    assert ds.spec[0] == "image uint8[8, 8, 3] HWC"
    plain = fl.images(photos).decode().resize((8, 8))
    ends = ds.flip(1.0).layout("CHW").batch(7)
    found = np.concatenate([batch["image"] for batch in rows(ends)])
    wanted = np.stack([255 - sample["image"] for sample in plain])
    np.testing.assert_array_equal(found, wanted[:, :, ::-1].transpose(0, 3, 1, 2))


def test_large_arrays_come_through_as_they_are():
    large = np.random.default_rng(0).integers(0, 255, (6, 500, 700), dtype=np.uint8)
    ds = fl.arrays(x=large, n=np.arange(6))
    grown = ds.map(lambda s: {"x": np.concatenate([s["x"]] * 2), "n": s["n"]})
    for sample, wanted in zip(rows(grown, threads=2), large):
        np.testing.assert_array_equal(sample["x"], np.concatenate([wanted] * 2))
    kept = [sample["x"] for sample in rows(ds.map(same), threads=2)]
    np.testing.assert_array_equal(np.stack(kept), large)


def test_arrays_that_go_in_cannot_be_written():
    def writes(sample):
        sample["x"][0] = 1
        return sample

    with pytest.raises(fl.RecordError, match="read-only"):
        table().map(writes)


# ------------------------------------------------------------------------------------- randomness


def test_random_numbers_belong_to_the_sample():
    ds = table().shuffle(seed=1).map(noisy).batch(5)
    runs = [[batch["x"] for batch in rows(ds, threads)] for threads in (1, 2, 3)]
    for run in runs[1:]:
        for one, other in zip(run, runs[0], strict=True):
            np.testing.assert_array_equal(one, other)
    loader = table().map(noisy).batch(12).loader(threads=2)
    first, second = (next(iter(loader))["x"] for _ in range(2))
    assert not np.array_equal(first, second), "two epochs drew the same"
    noise = first - np.arange(48, dtype=np.float32).reshape(12, 4)
    assert len(np.unique(noise)) > 40, "samples share their random numbers"


# ----------------------------------------------------------------------------------------- filter


def test_a_filter_keeps_what_it_wants():
    ds = table().filter(is_even).batch(4)
    assert [batch["label"].tolist() for batch in rows(ds)] == [[0, 2, 4, 6], [8, 10]]
    with pytest.raises(TypeError, match="len"):
        len(ds)
    assert ds.len_bounds() == (0, 3)
    with pytest.warns(UserWarning, match="no batch"):
        assert rows(table().filter(lambda sample: False).batch(4)) == []


def test_a_run_with_a_filter_goes_on_where_it_was_saved():
    ds = table(40).shuffle(seed=3).filter(is_even).map(noisy).batch(3)
    whole = [batch["x"] for batch in rows(ds)]
    loader = ds.loader(threads=2)
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    state = loader.state_dict()
    other = ds.loader(threads=1)
    other.load_state_dict(state)
    for found, wanted in zip(other, whole[2:], strict=True):
        np.testing.assert_array_equal(found["x"], wanted)
    loader.close()


def test_a_filter_sees_the_fields_it_asks_for(photos: Path):
    ds = fl.images(photos).decode().resize((4, 4))

    def dogs(sample):
        assert list(sample) == ["label"]
        return bool(sample["label"] == 1)

    found = rows(ds.filter(dogs, fields=["label"]).batch(20))
    assert found[0]["label"].tolist() == [1] * 8
    np.testing.assert_array_equal(found[0]["image"], np.stack([s["image"] for s in ds][12:]))


# ------------------------------------------------------------------------------- what comes out


def test_sides_that_differ_are_learnt_or_said():
    def counted(sample):
        return {"tokens": np.arange(sample["label"] + 1)}

    ds = table().map(counted)
    assert ds.spec == ["tokens int64[?]"]
    (batch,) = rows(ds.batch(12, pad_ragged=True))
    assert batch["tokens_length"].tolist() == list(range(1, 13))
    said = table().map(counted, output={"tokens": ("int64", (None,))})
    assert said.fingerprint == ds.fingerprint
    wrong = table().map(counted, output={"tokens": ("int64", (3,))})
    with pytest.raises(fl.RecordError, match="None in output="):
        rows(wrong)


@pytest.mark.parametrize(
    ("gives", "words"),
    [
        (lambda sample: None, "not a dict"),
        (lambda sample: {}, "without fields"),
        (lambda sample: {1: sample["x"]}, "names are texts"),
        (lambda sample: {"x": object()}, "numbers, truth values, bytes and text"),
        (lambda sample: {"x": np.array(["a", "b"])}, "numbers, truth values, bytes and text"),
    ],
)
def test_nonsense_is_refused(gives, words: str):
    with pytest.raises(fl.RecordError, match=words):
        table().map(gives)


def test_a_filter_has_to_decide():
    with pytest.raises(fl.RecordError, match="not True or False"):
        rows(table().filter(lambda sample: sample["x"]))


# -------------------------------------------------------------------------------------- identity

NAMED = """
    import sys
    import numpy as np
    import feedline as fl

    WORDS = {"b", "a", "c", "d"}

    class Scale:
        def __init__(self, by): self.by = by
        def __call__(self, sample): return {"x": sample["x"] * self.by}

    def scaled(sample, factor=2):
        return {"x": sample["x"] * factor, "n": len(WORDS) if "a" in {"a", "b"} else 0}

    def closed(by):
        return lambda sample: {"x": sample["x"] + by}

    output = {"x": ("float32", (4,)), "n": "int64"}
    x = {"x": ("float32", (4,))}
    ds = fl.arrays(x=np.zeros((2, 4), np.float32))
    print(ds.map(scaled, output=output).fingerprint)
    print(ds.map(closed(np.arange(4)), output=x).fingerprint)
    print(ds.map(closed(np.arange(1, 5)), output=x).fingerprint)
    print(ds.map(Scale(3), output=x).fingerprint)
    print(ds.map(Scale(4), output=x).fingerprint)
"""


def test_a_function_has_the_same_name_in_every_process(tmp_path: Path):
    script = tmp_path / "named.py"
    script.write_text(textwrap.dedent(NAMED))
    runs = []
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        runs.append(done.stdout.split())
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == 5, "functions that differ have the same name"


def test_a_version_names_a_function_whatever_it_refers_to():
    lock = __import__("threading").Lock()

    def locked(sample):
        with lock:
            return sample

    with pytest.raises(fl.PipelineError, match="version="):
        table().map(locked)
    one, other = (
        table().map(make, version="1", output={"x": "float32"}).fingerprint
        for make in (lambda s: s, lambda s: {"x": s["x"]})
    )
    assert one == other


def test_a_function_that_changed_is_told_by_the_state():
    def one(sample):
        return {"x": sample["x"] + 1}

    state = table().map(one).batch(2).loader(threads=1).state_dict()

    def one(sample):  # noqa: F811
        return {"x": sample["x"] + 2}

    with pytest.raises(fl.StateError, match="map"):
        table().map(one).batch(2).loader(threads=1).load_state_dict(state)


@pytest.mark.parametrize("wrong", [3, "f", None])
def test_what_is_no_function_is_refused(wrong):
    with pytest.raises(fl.PipelineError, match="no function"):
        table().map(wrong)


def test_functions_that_want_something_else_are_refused():
    for wrong in (lambda: 1, lambda a, b, c: a, lambda a, *, key: a):
        with pytest.raises(fl.PipelineError, match="called with a sample"):
            table().filter(wrong)


# ---------------------------------------------------------------------------------------- failing


def test_an_error_names_the_sample_and_carries_the_traceback():
    def picky(sample):
        if sample["label"] == 7:
            raise ValueError("no sevens")
        return sample

    ds = table().map(picky)
    with pytest.raises(fl.RecordError, match="no sevens") as caught:
        rows(ds.batch(4))
    assert caught.value.index == 7 and caught.value.step == "map"
    assert "arrays[7]" in str(caught.value) and 'raise ValueError("no sevens")' in str(caught.value)
    skipped = rows(table().on_error("skip").map(picky).batch(12))
    assert skipped[0]["label"].tolist() == [0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11]


def test_a_function_that_ends_its_process_is_tried_again_and_then_named(tmp_path: Path):
    flag = tmp_path / "flag"

    def dies_once(sample):
        if sample["label"] == 5 and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return sample

    ds = table().map(dies_once, output={"x": ("float32", (4,)), "label": "int64"}).batch(12)
    assert rows(ds)[0]["label"].tolist() == list(range(12))
    assert flag.exists()

    def dies(sample):
        if sample["label"] == 5:
            os._exit(3)
        return sample

    ds = table().map(dies).batch(4)
    with pytest.raises(fl.RecordError, match="exit code 3, 3 times") as caught:
        rows(ds)
    assert caught.value.index == 5


def test_sys_exit_and_interrupts_are_errors_of_the_sample():
    with pytest.raises(fl.RecordError, match="SystemExit"):
        table().map(lambda sample: sys.exit(1))
    with pytest.raises(fl.RecordError, match="KeyboardInterrupt"):
        table().map(lambda sample: (_ for _ in ()).throw(KeyboardInterrupt))


def test_a_function_that_hangs_is_ended():
    def hangs(sample):
        if sample["label"] == 2:
            time.sleep(3600)
        return sample

    ds = table().map(hangs, timeout=0.5).batch(2)
    start = time.monotonic()
    with pytest.raises(fl.RecordError, match=r"no answer within 0.5 s") as caught:
        rows(ds)
    assert caught.value.index == 2 and time.monotonic() - start < 30


def test_a_loader_that_is_closed_does_not_wait_for_a_function():
    def slow(sample):
        time.sleep(60 if sample["label"] > 0 else 0)
        return sample

    fields = {"x": ("float32", (4,)), "label": "int64"}
    loader = table().map(slow, output=fields).batch(1).loader(threads=2)
    next(iter(loader))
    start = time.monotonic()
    loader.close()
    assert time.monotonic() - start < 20


def test_what_functions_print_disturbs_nobody(capfd):
    def chatty(sample):
        print("hello from a function", flush=True)
        return sample

    assert len(rows(table().map(chatty).batch(6))) == 2
    captured = capfd.readouterr()
    assert "hello from a function" in captured.err and captured.out == ""


def test_a_function_that_cannot_be_loaded_says_so():
    class Trap:
        def __reduce__(self):
            return eval, ("__import__('no_such_module_anywhere')",)

        def __call__(self, sample):
            return sample

    with pytest.raises(fl.PipelineError, match="no_such_module_anywhere"):
        table().map(Trap(), version="1")
    with pytest.raises(fl.PipelineError, match="cannot be handed"):
        table().map(lambda sample, lock=__import__("threading").Lock(): sample, version="1")


# --------------------------------------------------------------------------------- what is left

LEAVES = """
    import os, sys, time
    import numpy as np
    import feedline as fl

    def same(sample):
        return sample

    if __name__ == "__main__":
        ds = fl.range(1000).map(same, output={"index": "int64"}).batch(2)
        loader = ds.loader(threads=2)
        next(iter(loader))
        print("ready", flush=True)
        sys.stdin.readline()
        del loader
        print("dropped", flush=True)
        sys.stdin.readline()
"""


def test_no_process_is_left_behind(tmp_path: Path):
    script = tmp_path / "leaves.py"
    script.write_text(textwrap.dedent(LEAVES))

    def start() -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen([sys.executable, str(script)], stdin=pipe, stdout=pipe, text=True)

    with start() as trainer:
        assert trainer.stdout is not None and trainer.stdin is not None
        assert trainer.stdout.readline() == "ready\n"
        hosts = children(trainer.pid)
        assert 1 <= len(hosts) <= 2
        trainer.stdin.write("\n")
        trainer.stdin.flush()
        assert trainer.stdout.readline() == "dropped\n"
        assert children(trainer.pid) == []
        trainer.stdin.close()
        assert trainer.wait(20) == 0
    with start() as trainer:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == "ready\n"
        hosts = children(trainer.pid)
        assert hosts
        trainer.kill()
        trainer.wait(20)
        assert until(lambda: not any(Path(f"/proc/{host}").exists() for host in hosts))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_runs_functions_of_its_own():
    loader = table().map(scaled).batch(3).loader(threads=2)
    first = next(iter(loader))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            ends = [batch["label"].tolist() for batch in table().map(scaled).batch(6).loader(threads=2)]
            code = 0 if ends == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]] else 2
        finally:
            os._exit(code)
    os.close(write)
    os.close(read)
    assert until(lambda: os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT), 60)
    assert os.waitpid(child, 0)[1] == 0
    assert first["label"].tolist() == [0, 1, 2]
    loader.close()


def test_a_host_that_is_started_by_hand_says_what_it_is():
    done = subprocess.run(
        [sys.executable, "-m", "feedline.host"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0 and "started by the engine" in done.stderr


# ----------------------------------------------------------------------------- elsewhere


def test_a_saved_plan_runs_in_a_shell_where_functions_are_allowed(tmp_path: Path):
    plan = str(tmp_path / "plan.json")
    fl.range(6).map(lambda s: {"twice": s["index"] * 2}).filter(
        lambda s: s["twice"] > 2
    ).batch(2).save_plan(plan)
    run = [sys.executable, "-m", "feedline", "run", plan, "--json"]
    refused = subprocess.run(run, capture_output=True, text=True, timeout=60)
    assert refused.returncode != 0 and "--functions" in refused.stderr
    allowed = [*run, "--functions", f"'{sys.executable}' -m feedline.host"]
    done = subprocess.run(allowed, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert '"samples": 4' in done.stdout or '"samples":4' in done.stdout
    again = fl.from_plan(plan)
    assert [batch["twice"].tolist() for batch in again.loader(threads=1)] == [[4, 6], [8, 10]]


def test_workers_run_functions_if_their_operator_allows_it(monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", "secret")

    def seen(sample, rng):
        token = os.environ.get("SOME_TOKEN", "")
        return {"x": sample["x"] + np.float32(rng.random()), "token": token}

    fields = {"x": ("float32", (4,)), "token": "text"}
    ds = table(40).shuffle(seed=2).map(seen, output=fields).filter(lambda s: s["x"][0] > 20)
    local = rows(ds.batch(4))
    with fl.LocalCluster(workers=2, threads=1, functions=True) as cluster:
        loader = ds.batch(4).distribute(cluster.url, job="functions")
        remote = list(loader)
        loader.close()
    assert {word for batch in remote for word in batch["token"]} == {""}
    for found, wanted in zip(remote, local, strict=True):
        np.testing.assert_array_equal(found["x"], wanted["x"])
    with fl.LocalCluster(workers=1, threads=1) as cluster:
        loader = ds.batch(4).distribute(cluster.url, job="refused", timeout=5)
        with pytest.raises(fl.ServiceError, match="its operator can allow them with --functions"):
            list(loader)
        loader.close()


def test_what_a_function_gave_stays_as_it_is_while_others_answer_without_arrays():
    def large(sample):
        return {"x": np.full(100_000, int(sample["index"]) % 251, np.uint8), "i": sample["index"]}

    def odd(sample):
        if int(sample["i"]) == 77:
            raise ValueError("this one")
        return int(sample["i"]) % 2 == 1

    ds = fl.range(400).map(large).filter(odd, fields=["i"]).on_error("skip").batch(3)
    seen, held = [], []
    for batch in ds.loader(threads=2):
        held.append(batch)
        for row, number in zip(batch["x"], batch["i"], strict=True):
            seen.append(int(number))
            assert (row == number % 251).all(), number
    assert seen == [number for number in range(1, 400, 2) if number != 77]
    for batch in held[-20:]:
        assert all((row == number % 251).all() for row, number in zip(batch["x"], batch["i"], strict=True))
