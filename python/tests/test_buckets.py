"""Samples of several lengths: filled up, in batches by length, in rounds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import feedline as fl

LENGTHS = np.random.default_rng(5).integers(0, 40, 150)
BOUNDARIES = [8, 16, 24]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file for each length; sample i has the tokens i * 100, i * 100 + 1, …"""
    root = tmp_path_factory.mktemp("texts")
    for number, length in enumerate(LENGTHS):
        tokens = np.arange(length, dtype=np.int32) + number * 100
        np.savez(root / f"{number:03}.npz", tokens=tokens, label=np.int64(number))
    return root


def bucket_of(length: int) -> int:
    return int(np.searchsorted(BOUNDARIES, length))


def rows(batch: dict[str, np.ndarray], value: int = 0) -> list[int]:
    """The labels of a batch, after a look at each of its rows."""
    labels = []
    mask = batch.get("mask", np.ones(len(batch["label"]), dtype=bool))
    for row, real in enumerate(mask):
        length, tokens = batch["tokens_length"][row], batch["tokens"][row]
        assert (tokens[length:] == value).all()
        if not real:
            assert length == 0
            continue
        label = int(batch["label"][row])
        assert length == LENGTHS[label]
        assert tokens[:length].tolist() == list(range(label * 100, label * 100 + length))
        labels.append(label)
    return labels


def test_batches_are_filled_up_to_the_longest(texts: Path):
    seen = []
    for batch in fl.npy(texts).shuffle(seed=1).batch(16, pad_ragged=True, value=-1):
        assert batch["tokens"].shape[1] == batch["tokens_length"].max()
        assert batch["tokens_length"].dtype == np.int64
        seen += rows(batch, -1)
    assert sorted(seen) == list(range(150))


def test_without_it_lengths_must_be_equal(texts: Path):
    with pytest.raises(fl.RecordError, match="pad_ragged"):
        next(iter(fl.npy(texts).batch(16)))


def test_a_batch_holds_samples_of_one_class(texts: Path):
    ds = fl.npy(texts).shuffle(seed=1).bucket(BOUNDARIES, size=8, stretch=60)
    seen = []
    for batch in ds:
        labels = rows(batch)
        assert len({bucket_of(LENGTHS[label]) for label in labels}) == 1
        assert len(labels) <= 8
        assert batch["mask"].all()
        seen += labels
    assert sorted(seen) == list(range(150))


def test_few_shapes_with_boundaries_and_full_batches(texts: Path):
    ds = fl.npy(texts).shuffle().bucket(
        BOUNDARIES, sizes=[16, 8, 6, 4], pad_to="boundary", drop_last=True
    )
    shapes = {batch["tokens"].shape for batch in ds if batch["tokens"].shape[1] <= 24}
    assert shapes == {(16, 8), (8, 16), (6, 24)}
    assert all("mask" not in batch for batch in ds)


def test_the_length_of_an_epoch_is_bounded(texts: Path):
    ds = fl.npy(texts).bucket(BOUNDARIES, size=8, stretch=50)
    with pytest.raises(TypeError, match="bucket"):
        len(ds)
    least, most = ds.len_bounds()
    assert most is not None and least <= sum(1 for _ in ds) <= most
    loader = ds.loader(rank=0, world=3, rounds=True)
    least, most = loader.len_bounds()
    assert most is not None and least <= sum(1 for _ in loader) <= most


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world", [1, 2, 4, 7])
def test_ranks_in_rounds_have_equal_steps_of_one_class(texts: Path, world: int, drop_last: bool):
    ds = fl.npy(texts).shuffle(seed=2).bucket(BOUNDARIES, size=4, drop_last=drop_last)
    ranks = [list(ds.loader(rank=rank, world=world, rounds=True)) for rank in range(world)]
    assert len({len(own) for own in ranks}) == 1
    seen, mixed = [], []
    for number, batches in enumerate(zip(*ranks)):
        labels = [rows(batch) for batch in batches]
        classes = {bucket_of(LENGTHS[label]) for own in labels for label in own}
        if len(classes) > 1:
            mixed.append(number)
        counts = {len(own) for own in labels}
        assert max(counts) - min(counts) <= 1
        assert not drop_last or counts == {4}
        seen += [label for own in labels for label in own]
    # Only at the end of the stretch classes come together.
    assert mixed == list(range(len(ranks[0]) - len(mixed), len(ranks[0])))
    assert len(set(seen)) == len(seen)
    if drop_last:
        assert len(seen) > 150 - 4 * world
    else:
        assert sorted(seen) == list(range(150))


def test_a_rank_without_a_sample_gets_padding(texts: Path):
    ds = fl.npy(texts).take(1).bucket(BOUNDARIES, size=2)
    ranks = [list(ds.loader(rank=rank, world=3, rounds=True, with_index=True)) for rank in range(3)]
    assert [len(own) for own in ranks] == [1, 1, 1]
    masks = [own[0]["mask"].tolist() for own in ranks]
    assert masks == [[True], [False], [False]]
    assert len({own[0]["tokens"].shape for own in ranks}) == 1


@pytest.mark.parametrize("rounds", [False, True])
def test_a_loader_resumes_after_any_batch(texts: Path, rounds: bool):
    ds = fl.npy(texts).shuffle(seed=3).bucket(BOUNDARIES, size=4, stretch=40)
    options = {"rank": 1, "world": 2, "rounds": rounds}
    loader = ds.loader(**options)
    batches, states = [], [loader.state_dict()]
    for batch in loader:
        batches.append(batch["label"].tolist())
        states.append(json.loads(json.dumps(loader.state_dict())))
    for done, state in enumerate(states[:-1]):
        resumed = ds.loader(threads=1 + done % 3, **options)
        resumed.load_state_dict(state)
        assert [batch["label"].tolist() for batch in resumed] == batches[done:]


@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("others", [1, 2, 5])
def test_other_ranks_go_on(texts: Path, rounds: bool, others: int):
    ds = fl.npy(texts).shuffle(seed=4).bucket(BOUNDARIES, size=3, stretch=40)
    seen, states = [], []
    for rank in range(3):
        loader = ds.loader(rank=rank, world=3, rounds=rounds)
        batches = iter(loader)
        for _ in range(5):
            seen += rows(next(batches))
        states.append(loader.state_dict())
    if rounds:
        # All ranks stand at the same place: any one says it.
        assert states[0]["begun"] == states[2]["begun"]
        merged = states[1]
    else:
        merged = fl.merge_states(states)
        with pytest.raises(fl.StateError, match="merge_states"):
            ds.loader(rank=0, world=others + 3).load_state_dict(states[0])
    for rank in range(others):
        loader = ds.loader(rank=rank, world=others, rounds=rounds)
        loader.load_state_dict(merged)
        for batch in loader:
            seen += rows(batch)
    assert sorted(seen) == list(range(150))


def test_states_of_several_rounds_are_no_state(texts: Path):
    ds = fl.npy(texts).bucket(BOUNDARIES, size=3)
    states = []
    for rank in range(2):
        loader = ds.loader(rank=rank, world=2, rounds=True)
        batches = iter(loader)
        for _ in range(2 + rank):
            next(batches)
        states.append(loader.state_dict())
    with pytest.raises(fl.StateError, match="the same round"):
        fl.merge_states(states)


def test_texts_go_by_their_bytes():
    words = ["a" * (number % 11) for number in range(50)]
    seen = []
    for batch in fl.arrays(word=words).bucket([3, 6], size=4):
        lengths = [len(word) for word in batch["word"]]
        assert len({sum(length > bound for bound in (3, 6)) for length in lengths}) == 1
        seen += lengths
    assert sorted(seen) == sorted(len(word) for word in words)


def test_what_does_not_go_together_is_refused(texts: Path):
    ds = fl.npy(texts)
    with pytest.raises(fl.PipelineError, match="boundaries rise"):
        ds.bucket([8, 4], size=2)
    with pytest.raises(fl.PipelineError, match="size is missing"):
        ds.bucket([8])
    with pytest.raises(fl.PipelineError, match="no field"):
        ds.bucket([8], size=2, field="words")
    with pytest.raises(fl.PipelineError, match="before bucket"):
        ds.bucket([8], size=2).take(3)
    buckets = ds.bucket([8], size=2)
    for options in ({"order": "ready"}, {"record": "r.jsonl"}):
        with pytest.raises(fl.PipelineError, match="bucket"):
            buckets.loader(**options)
    with pytest.raises(fl.PipelineError, match="put bucket"):
        ds.batch(2, pad_ragged=True).loader(rounds=True)
    with pytest.raises(fl.PipelineError, match="make stretch longer"):
        ds.bucket([8], size=8, stretch=16).loader(rank=0, world=4, rounds=True)
    state = buckets.loader().state_dict()
    for damage in ({"begun": [[[2, 10**9]]]}, {"at": [0, 10**9]}, {"begun": "x"}):
        with pytest.raises(fl.StateError):
            buckets.loader().load_state_dict({**state, **damage})
