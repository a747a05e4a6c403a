"""Vectors that the user brings: every kind of file that can be read, block by block, and what is said of the others."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.corpus import vectors
from dagster_divorder.corpus.vectors import open_vectors, row_hashes
from dagster_divorder.errors import InputError
from tests.conftest import examples

IDS = [f"{number:032x}" for number in range(7)]


def matrix(rows: int = 7, dims: int = 3, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(rows).normal(size=(rows, dims)).astype(dtype)


def lists(values: np.ndarray, kind: str = "list") -> pa.Array:
    of = pa.from_numpy_dtype(values.dtype)
    types = {"list": pa.list_(of), "large": pa.large_list(of), "fixed": pa.list_(of, values.shape[1])}
    return pa.array(list(values), types[kind])


def write(path: Path, **columns: object) -> Path:
    pq.write_table(pa.table(columns), path, row_group_size=4)
    return path


def everything(path: Path) -> tuple[np.ndarray, np.ndarray]:
    blocks = list(open_vectors(path).blocks())
    assert [block.first for block in blocks] == np.cumsum([0, *(len(b.keys) for b in blocks)])[:-1].tolist()
    return np.concatenate([b.keys for b in blocks]), np.concatenate([b.vectors for b in blocks])


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "BLOCK_BYTES", 30)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4", ">f8"])
def test_npy_of_every_float(tmp_path: Path, dtype: str, order: str) -> None:
    path, saved = tmp_path / "v.npy", matrix(dtype=dtype)
    np.save(path, np.asarray(saved, order=order))
    file = open_vectors(path)
    assert (file.rows, file.dims, file.keyed_by) == (7, 3, "row")
    keys, found = everything(path)
    assert keys.tolist() == list(range(7))
    assert (found == saved).all()
    assert found.dtype == saved.dtype.newbyteorder("=")
    for some in ([0, 2, 6], [5, 6], [6, 0], []):
        assert (file.take(np.array(some, np.int64)) == saved[some]).all()


@pytest.mark.parametrize("kind", ["list", "large", "fixed"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_parquet_of_every_kind_of_list(tmp_path: Path, dtype: str, kind: str) -> None:
    saved = matrix(dtype=dtype)
    path = write(tmp_path / "v.parquet", other=list("abcdefg"), embedding=lists(saved, kind), record_id=IDS)
    file = open_vectors(path)
    assert (file.rows, file.dims, file.keyed_by, file.dtype) == (7, 3, "record_id", saved.dtype)
    keys, found = everything(path)
    assert keys.tolist() == [[0, number] for number in range(7)]
    assert (found == saved).all()
    for kept in (np.arange(7), np.array([1, 3, 6]), np.zeros(0, np.int64)):
        copied = file.copy(kept, tmp_path / "copy")
        for some in (np.arange(len(kept))[::-1], np.arange(len(kept))[1:], np.zeros(0, np.int64)):
            assert (copied.take(some) == saved[kept[some]]).all()


@pytest.mark.parametrize(
    "keys",
    [
        pa.array(IDS, pa.large_string()),
        pa.array(IDS).dictionary_encode(),
        [key.upper() for key in IDS],
    ],
)
def test_the_keys_of_a_parquet_file(tmp_path: Path, keys: object) -> None:
    path = write(tmp_path / "v.parquet", record_id=keys, other=lists(matrix(7, 5)), vector=lists(matrix()))
    assert open_vectors(path).keyed_by == "record_id"
    found, _ = everything(path)
    assert found[:, 1].tolist() == list(range(7))


@settings(max_examples=examples(15), deadline=None)
@given(st.integers(0, 9), st.integers(1, 5), st.sampled_from(["float16", "float32", "float64"]))
def test_a_row_s_hash_is_that_of_its_bytes_alone(rows: int, dims: int, dtype: str) -> None:
    values = matrix(rows, dims, dtype)
    hashes = row_hashes(values)
    assert hashes.tolist() == [row_hashes(values[at : at + 1])[0] for at in range(rows)]
    assert len(set(hashes.tolist())) == rows
    assert 0 not in hashes


def refused(path: Path) -> str:
    with pytest.raises(InputError) as error:
        everything(path)
    message = str(error.value)
    assert str(path) in message
    assert re.search(r"expected|promises|damaged|cannot be read|is no", message)
    return message


def saved(path: Path, values: np.ndarray) -> Path:
    np.save(path, values, allow_pickle=True)
    return path


NPY = b"\x93NUMPY\x01\x00\x06\x00{'a':\n"


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("none.npy", None, "there is no file"),
        ("v.npz", b"PK", "ends in '.npz'; expected .npy, saved by numpy.save"),
        *(
            ("v.npy", data, "is not a complete .npy file")
            for data in (b"", NPY[:6], b"not numpy at all", NPY)
        ),
        *(("v.parquet", data, "cannot be read as Parquet") for data in (b"", b"PAR1", b"not parquet at all")),
    ],
)
def test_bytes_that_are_no_vectors(tmp_path: Path, name: str, data: bytes | None, said: str) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    assert said in refused(tmp_path / name)


def test_files_that_are_damaged_inside(tmp_path: Path) -> None:
    path = saved(tmp_path / "v.npy", matrix())
    path.write_bytes(path.read_bytes()[:-13])
    assert "greater than file size. It may be truncated" in refused(path)
    path = write(tmp_path / "v.parquet", record_id=IDS, vector=lists(matrix()))
    data = path.read_bytes()
    path.write_bytes(data[:4] + bytes(56) + data[60:])
    assert "is damaged after row 0" in refused(path)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (np.zeros(7, np.float32), r"has the shape (7,); expected two dimensions"),
        (np.zeros((7, 2), np.int64), "holds int64; expected float16, float32 or float64"),
        (np.array([[1.0], "two"], object), "Python objects, which are never loaded"),
        (np.zeros((0, 2), np.float32), "holds 0 vectors of 2 numbers"),
        (np.zeros((2, 0), np.float32), "holds 2 vectors of 0 numbers"),
    ],
)
def test_arrays_that_are_no_vectors(tmp_path: Path, values: np.ndarray, said: str) -> None:
    assert said in refused(saved(tmp_path / "v.npy", values))


with_a_hole = pa.array([[1.0, 2.0], None, [3.0, 4.0]])
one_too_short = pa.array([[1.0, 2.0], [1.0], [3.0, 4.0]])
part_of_it_null = pa.array([[1.0, 2.0], [3.0, 4.0], [None, 4.0]])


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"record_id": IDS[:3], "vector": with_a_hole}, "the vector of row 1 in 'vector' is null"),
        (
            {"record_id": IDS[:3], "vector": one_too_short},
            "the vector of row 1 in 'vector' has 1 numbers; expected 2",
        ),
        ({"record_id": IDS[:3], "vector": part_of_it_null}, "the vector of row 2 holds a null"),
        ({"record_id": [IDS[0], None, IDS[2]], "vector": lists(matrix(3))}, "'record_id' is null in row 1"),
        (
            {"record_id": [1, 2, 3], "vector": lists(matrix(3))},
            "'record_id' has type int64; expected strings of 32",
        ),
        (
            {"record_id": [*IDS[:2], IDS[2] + " "], "vector": lists(matrix(3))},
            "in row 2; expected 32 hexadecimal",
        ),
        (
            {"id": IDS[:3], "vector": lists(matrix(3))},
            "has the columns id: string, vector: list<element: float>",
        ),
        ({"record_id": IDS[:3], "vector": [[1, 2]] * 3}, "has 0 columns of lists of floats"),
        (
            {"record_id": IDS[:3], "a": lists(matrix(3)), "b": lists(matrix(3))},
            "has 2 columns of lists of floats",
        ),
        ({"record_id": [], "vector": lists(matrix())[:0]}, "holds 0 vectors"),
        (
            {"record_id": IDS[:2], "vector": pa.array([[], []], pa.list_(pa.float32()))},
            "2 vectors of 0 numbers",
        ),
    ],
)
def test_parquet_columns_that_do_not_do(tmp_path: Path, columns: dict[str, object], said: str) -> None:
    if columns.get("record_id") == []:
        columns = {**columns, "record_id": pa.array([], pa.string())}
    assert said in refused(write(tmp_path / "v.parquet", **columns))
