"""Arrow files in both directions: pyarrow reads ours, and we read pyarrow's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import feedline as fl

pa = pytest.importorskip("pyarrow")


def table(folder: Path) -> pa.Table:
    tables = [
        pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        for path in sorted(folder.glob("*.arrow"))
    ]
    return pa.concat_tables(tables)


def write(path: Path, *batches: pa.RecordBatch, **options: object) -> Path:
    with pa.ipc.new_file(path, batches[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as file:
        for batch in batches:
            file.write_batch(batch)
    return path


def samples(path: Path) -> list[dict[str, np.ndarray]]:
    return list(fl.arrow(path))


@pytest.mark.parametrize(
    "dtype", ["bool", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8"]
)
def test_pyarrow_reads_what_we_save(dtype: str, tmp_path: Path):
    rng = np.random.default_rng(0)
    scalars = rng.integers(0, 2 if dtype == "bool" else 100, 23).astype(dtype)
    vectors = rng.integers(0, 2 if dtype == "bool" else 100, (23, 5)).astype(dtype)
    images = rng.integers(0, 2 if dtype == "bool" else 100, (23, 2, 3, 5)).astype(dtype)
    fl.arrays(scalar=scalars, vector=vectors, image=images).save(tmp_path / "out", rows=7)
    found = table(tmp_path / "out")
    assert found.num_rows == 23
    found.validate(full=True)
    assert np.array_equal(found.column("scalar").to_numpy(zero_copy_only=False), scalars)
    for name, wanted in {"vector": vectors, "image": images}.items():
        column = found.column(name).combine_chunks()
        assert column.type.extension_name == "arrow.fixed_shape_tensor"
        assert column.type.shape == list(wanted.shape[1:])
        flat = column.storage.flatten().to_numpy(zero_copy_only=False)
        assert np.array_equal(flat.reshape(wanted.shape), wanted)
        if dtype != "bool":
            assert np.array_equal(column.to_numpy_ndarray(), wanted)


def test_pyarrow_reads_bytes_text_and_arrays_of_any_shape(tmp_path: Path):
    texts, blobs = ["one", "", "dreißig"], [b"\0\xff", b"", b"xyz"]
    fl.arrays(text=texts, blob=blobs).save(tmp_path / "out")
    found = table(tmp_path / "out")
    assert found.column("text").to_pylist() == texts
    assert found.column("blob").to_pylist() == blobs
    np.save(tmp_path / "a.npy", np.arange(6, dtype="i4").reshape(2, 3))
    np.save(tmp_path / "b.npy", np.arange(4, dtype="i4").reshape(4, 1))
    fl.npy(tmp_path).save(tmp_path / "arrays")
    found = table(tmp_path / "arrays").column("data").combine_chunks()
    storage = getattr(found, "storage", found)
    assert storage.field("shape").to_pylist() == [[2, 3], [4, 1]]
    assert storage.field("data").to_pylist() == [list(range(6)), list(range(4))]
    assert [sample["data"].shape for sample in fl.arrow(tmp_path / "arrays")] == [(2, 3), (4, 1)]


def test_buffers_are_used_where_they_lie(tmp_path: Path):
    fl.arrays(x=np.arange(3000, dtype="f4").reshape(100, 30)).save(tmp_path / "out")
    path = next((tmp_path / "out").glob("*.arrow"))
    before = pa.total_allocated_bytes()
    batch = pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
    assert pa.total_allocated_bytes() == before
    for buffer in batch.column("x").storage.flatten().buffers():
        assert buffer is None or buffer.address % 64 == 0


def test_we_read_what_pyarrow_writes(tmp_path: Path):
    tensor = pa.fixed_shape_tensor(pa.float32(), (2, 3))
    tensors = np.arange(60, dtype="f4").reshape(10, 2, 3)
    storage = pa.FixedSizeListArray.from_arrays(pa.array(tensors.ravel()), 6)
    lists = [list(range(n % 4)) for n in range(10)]
    columns = {
        "half": pa.array(np.arange(10, dtype="f2")),
        "flag": pa.array([n % 3 == 0 for n in range(10)]),
        "tensor": pa.ExtensionArray.from_storage(tensor, storage),
        "fixed": pa.array([[n, n + 1] for n in range(10)], pa.list_(pa.int8(), 2)),
        "list": pa.array(lists, pa.list_(pa.int64())),
        "large": pa.array(lists, pa.large_list(pa.uint8())),
        "text": pa.array([f"text {n}" * (n % 3) for n in range(10)]),
        "long": pa.array([f"{n}" for n in range(10)], pa.large_string()),
        "blob": pa.array([bytes(range(n)) for n in range(10)], pa.large_binary()),
    }
    batch = pa.record_batch(columns)
    # Sliced, and with an empty batch between.
    path = write(tmp_path / "a.arrow", batch.slice(3, 5), batch.slice(0, 0), batch.slice(0, 2))
    found = samples(path)
    assert len(found) == 7
    for sample, n in zip(found, [3, 4, 5, 6, 7, 0, 1], strict=True):
        assert sample["half"] == np.float16(n) and bool(sample["flag"]) == (n % 3 == 0)
        assert np.array_equal(sample["tensor"], tensors[n])
        assert sample["fixed"].tolist() == [n, n + 1]
        assert sample["list"].tolist() == sample["large"].tolist() == lists[n]
        assert sample["text"] == f"text {n}" * (n % 3) and sample["long"] == f"{n}"
        assert bytes(sample["blob"]) == bytes(range(n))
    # A schema without batches is a file without rows.
    assert samples(write(tmp_path / "b.arrow", batch.slice(0, 0))) == []


def test_feather_files_are_read_unless_compressed(tmp_path: Path):
    from pyarrow import feather

    found = pa.table({"n": np.arange(5)})
    feather.write_feather(found, tmp_path / "a.feather", compression="uncompressed")
    assert [int(sample["n"]) for sample in fl.arrow(tmp_path)] == list(range(5))
    for method in ("lz4", "zstd"):
        # Buffers that would not get smaller are left as they are, in a batch that is compressed.
        feather.write_feather(pa.table({"n": np.zeros(5000)}), tmp_path / "a.feather", compression=method)
        with pytest.raises(fl.SourceError, match=f"compressed by {method}"):
            len(fl.arrow(tmp_path))


def test_nulls_are_bad_records(tmp_path: Path):
    path = write(
        tmp_path / "a.arrow",
        pa.record_batch({
            "n": pa.array([1, None, 3, 4]),
            "l": pa.array([[1], [2], [3, None], []]),
        }),
    )
    with pytest.raises(fl.RecordError, match=r"a.arrow\[1\].*column n has no value"):
        samples(path)
    kept = list(fl.arrow(path).on_error("skip"))
    assert [int(sample["n"]) for sample in kept] == [1, 4]


@pytest.mark.parametrize(
    ("array", "word"),
    [
        (pa.array(["a", "b"]).dictionary_encode(), "dictionary"),
        (pa.array([1, 2], pa.timestamp("s")), "Timestamp"),
        (pa.array([[["a"]]], pa.list_(pa.list_(pa.string()))), "list"),
        (pa.array([{"a": 1}]), "Struct"),
        (pa.array(["a"], pa.string_view()), "Utf8View"),
        (pa.nulls(3), "Null"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_read_is_refused_by_name(array: pa.Array, word: str, tmp_path: Path):
    path = write(tmp_path / "a.arrow", pa.record_batch({"odd": array}))
    with pytest.raises(fl.SourceError, match=f'"odd".*{word}'):
        fl.arrow(path)
