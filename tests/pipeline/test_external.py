"""Vectors of the user's own: which document gets which, what an append computes, what a changed file does; files of
every float, read block by block, and what is said of other files."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder import load_results, run_all
from dagster_divorder.core.topics.cluster import DRIFT
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.plan import make_plan
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH
from dagster_divorder.stages.topics import external_embeddings
from dagster_divorder.stages.topics.external_embeddings import VectorFile, open_vectors, row_hashes
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.state import Receipt
from tests.conftest import examples, topic_records, write_jsonl
from tests.pipeline.runs import Make

READ = ("raw_docs", "external_embeddings")
DIMS = 6


def vectors_of(texts: list[str], model: int = 0) -> np.ndarray:
    """What a model would make of texts: the same text, the same vector."""
    rows = [np.random.default_rng([model, *text.encode()]).normal(size=DIMS) for text in texts]
    return np.array(rows, np.float32).reshape(len(texts), DIMS)


class Corpus:
    """An input file, the file of its vectors, and runs on them."""

    def __init__(self, folder: Path, make: Make) -> None:
        self.folder = folder
        self.make = make
        self.path = folder / "vectors.npy"

    def settings(self, **sections: Any) -> Settings:
        return self.make(embedding={"kind": "external", "path": self.path}, **sections)

    def write(self, texts: list[str], model: int = 0) -> None:
        write_jsonl(self.folder / "docs.jsonl", ({"text": text, "at": at} for at, text in enumerate(texts)))
        np.save(self.path, vectors_of(texts, model))

    def run(self, *stages: str, **sections: Any) -> dict[str, Receipt]:
        return run_all(self.settings(**sections), Silent(), stages or None)

    def read(self, **sections: Any) -> dict[str, Any]:
        return self.run(*READ, **sections)["external_embeddings"].figures


@pytest.fixture
def corpus(tmp_path: Path, make_settings: Make) -> Corpus:
    return Corpus(tmp_path, make_settings)


TEXTS = [record["text"] for record in topic_records(15)]


def test_the_whole_pipeline_on_vectors_of_your_own(corpus: Corpus) -> None:
    texts = [*TEXTS, *TEXTS[:4]]
    corpus.write(texts)
    vectors = vectors_of(texts)
    vectors[7] = 0
    vectors[60] += 1
    np.save(corpus.path, vectors.astype(np.float64) * 1e200)
    made = corpus.run()
    report = made["external_embeddings"].figures
    assert (report["dim"], report["dtype"]) == (DIMS, "float64")
    assert report["rows"] == 64
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    expected = vectors / np.where(lengths > 0, lengths, 1)
    expected[60:] = expected[:4]
    found = load_results(corpus.folder / "store").embeddings
    assert np.abs(found - expected).max() < 1e-6
    assert not found[7].any()
    assert made["clusters"].upstream["external_embeddings"] == made["external_embeddings"].version
    assert corpus.read()["read"] == "no: they are stored"


def test_clusters_are_fitted_again_for_documents_that_lie_far_out_and_not_for_a_few_by_chance(
    corpus: Corpus,
) -> None:
    """Of the corpus a quarter lies in no cluster. Of forty new documents a third does, which may be chance; of the next
    hundred, all."""

    def fitted(near: int, far: int) -> tuple[str, float]:
        texts = [f"near {at}" for at in range(near)] + [f"far {at}" for at in range(far)]
        corpus.write(texts)
        vectors = vectors_of(texts)
        vectors[:near] = 0.05 * vectors[:near] + np.eye(DIMS)[np.arange(near) % 2]
        np.save(corpus.path, vectors)
        figures = corpus.run("raw_docs", "external_embeddings", "centroids", "clusters", clusters={"k": 2})
        return figures["clusters"].figures["fitted"], figures["clusters"].figures["mean_distance"]

    _, before = fitted(near=300, far=100)
    kept, after = fitted(near=326, far=114)
    assert kept.startswith("no: kept")
    assert (440 * after - 400 * before) / 40 > DRIFT * before
    again, _ = fitted(near=326, far=214)
    assert again.startswith("new documents lie 0.")


def test_another_vector_of_a_known_document_is_noticed(corpus: Corpus) -> None:
    corpus.write(TEXTS)
    first = corpus.run(*READ)["external_embeddings"]
    vectors, times = vectors_of(TEXTS), corpus.path.stat()
    vectors[20, 1] += 1e-3
    np.save(corpus.path, vectors)
    os.utime(corpus.path, ns=(times.st_atime_ns, times.st_mtime_ns))
    changed = corpus.run(*READ)["external_embeddings"]
    assert changed.figures["read"] == "1 of 60 known documents have another vector now"
    assert (changed.figures["new_documents"], changed.key == first.key) == (60, False)
    np.save(corpus.path, vectors_of(TEXTS))
    back = corpus.run(*READ)["external_embeddings"]
    assert (back.figures["new_documents"], back.key) == (0, first.key)
    corpus.write([*TEXTS, "new"], model=1)
    assert make_plan(GRAPH, corpus.settings(), "external_embeddings").stages[-1].documents == 61
    corpus.write(TEXTS)
    np.save(corpus.path, np.pad(vectors, ((0, 0), (0, 1))))
    assert corpus.read()["read"] == "the vectors have 7 dims now, not 6"


# What is refused ---------------------------------------------------------------------------------------------------


def refused(corpus: Corpus, **sections: Any) -> str:
    with pytest.raises(InputError) as error:
        corpus.run(*READ, **sections)
    assert not LocalStore(corpus.folder / "store").folders("stages/external_embeddings")
    return str(error.value)


def test_another_number_of_rows_is_refused_with_all_numbers(corpus: Corpus) -> None:
    corpus.write([*TEXTS, TEXTS[0]])
    np.save(corpus.path, vectors_of(TEXTS)[:50])
    message = refused(corpus)
    assert "has 50 rows; the input has 61 records (60 distinct texts; 0 more records were refused)" in message
    assert "embed the new records" in message
    with pytest.raises(InputError, match="has 50 rows; the input has 61 records"):
        make_plan(GRAPH, corpus.settings())
    np.save(corpus.path, vectors_of([*TEXTS, "a", "b"]))
    assert "embed the input as it is now" in refused(corpus)
    with (corpus.folder / "docs.jsonl").open("ab") as file:
        file.write(b'{"no": "text"}\n')
    message = refused(corpus, input={"max_reject_share": 0.1})
    assert "leave out the rows of the 1 refused records, whose lines " in message
    assert Path(message.partition("whose lines ")[2].partition(" names")[0]).is_file()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_by_row_and_column(corpus: Corpus, bad: float) -> None:
    corpus.write(TEXTS)
    vectors = vectors_of(TEXTS)
    vectors[33, 2] = bad
    np.save(corpus.path, vectors)
    assert f"row 33 (counted from 0) holds {bad} in column 2; expected finite numbers" in refused(corpus)


def test_a_file_that_changes_while_it_is_read_is_refused(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus.write(TEXTS)
    blocks = VectorFile.blocks

    def change(file: VectorFile) -> Iterator[tuple[int, np.ndarray]]:
        yield from blocks(file)
        np.save(corpus.path, vectors_of(TEXTS, model=1))

    monkeypatch.setattr(VectorFile, "blocks", change)
    with pytest.raises(InputError, match="changed while it was read; run again"):
        corpus.run(*READ)


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


def npy(values: np.ndarray) -> bytes:
    np.save(file := io.BytesIO(), values, allow_pickle=True)
    return file.getvalue()


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
        ("v.npy", npy(matrix())[:-13], "greater than file size. It may be truncated"),
        (
            "v.npy",
            npy(np.zeros(7, np.float32)),
            "holds float32 of shape (7,); expected float16, float32 or float64 of two",
        ),
        ("v.npy", npy(np.zeros((7, 2), np.int64)), "holds int64 of shape (7, 2)"),
        ("v.npy", npy(np.array([[1.0], "two"], object)), "Python objects, which are never loaded"),
        ("v.npy", npy(np.zeros((0, 2), np.float32)), "of shape (0, 2)"),
        ("v.npy", npy(np.zeros((2, 0), np.float32)), "of shape (2, 0)"),
    ],
)
def test_files_that_hold_no_vectors(tmp_path: Path, name: str, data: bytes | None, said: str) -> None:
    path = tmp_path / name
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(InputError) as error:
        everything(path)
    message = str(error.value)
    assert said in message and str(path) in message
    assert re.search(r"expected|promises|damaged|cannot be read|is no", message)
