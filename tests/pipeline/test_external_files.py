"""Vectors that the user brings: files of every float, read block by block, and what is said of other files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.errors import InputError
from dagster_divorder.stages.topics import external_embeddings
from dagster_divorder.stages.topics.external_embeddings import open_vectors, row_hashes
from tests.conftest import examples


def matrix(rows: int = 7, dims: int = 3, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(rows).normal(size=(rows, dims)).astype(dtype)


def everything(path: Path) -> np.ndarray:
    blocks = list(open_vectors(path).blocks())
    assert [first for first, _ in blocks] == np.cumsum([0, *(len(of) for _, of in blocks)])[:-1].tolist()
    return np.concatenate([of for _, of in blocks])


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_embeddings, "BLOCK_BYTES", 30)


@pytest.mark.parametrize(("dtype", "order"), [("float16", "C"), ("float32", "F"), (">f8", "C")])
def test_npy_of_every_float(tmp_path: Path, dtype: str, order: Literal["C", "F"]) -> None:
    path, saved = tmp_path / "v.npy", matrix(dtype=dtype)
    np.save(path, np.asarray(saved, order=order))
    file = open_vectors(path)
    assert (file.rows, file.dims) == (7, 3)
    found = everything(path)
    assert (found == saved).all()
    assert found.dtype == saved.dtype.newbyteorder("=")
    for some in ([0, 2, 6], [5, 6], [6, 0], []):
        assert (file.take(np.array(some, np.int64)) == saved[some]).all()


@settings(max_examples=examples(15), deadline=None)
@given(st.integers(0, 9), st.integers(1, 5), st.sampled_from(["float16", "float32", "float64"]))
def test_a_row_s_hash_is_that_of_its_bytes_alone(rows: int, dims: int, dtype: str) -> None:
    values = matrix(rows, dims, dtype)
    hashes = row_hashes(values)
    assert hashes.tolist() == [row_hashes(values[at : at + 1])[0] for at in range(rows)]
    assert len(set(hashes.tolist())) == rows


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
        ("v.npz", b"PK", "ends in '.npz'; expected .npy, a row for each accepted record"),
        *(
            ("v.npy", data, "is not a complete .npy file")
            for data in (b"", NPY[:6], b"not numpy at all", NPY)
        ),
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


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (np.zeros(7, np.float32), "holds float32 of shape (7,); expected float16, float32 or float64 of two"),
        (np.zeros((7, 2), np.int64), "holds int64 of shape (7, 2)"),
        (np.array([[1.0], "two"], object), "Python objects, which are never loaded"),
        (np.zeros((0, 2), np.float32), "of shape (0, 2)"),
        (np.zeros((2, 0), np.float32), "of shape (2, 0)"),
    ],
)
def test_arrays_that_are_no_vectors(tmp_path: Path, values: np.ndarray, said: str) -> None:
    assert said in refused(saved(tmp_path / "v.npy", values))
