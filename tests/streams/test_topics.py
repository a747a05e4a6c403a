"""Topics for streams: what they find, that one example has what it has among others, files, and what is refused."""

from __future__ import annotations

import doctest
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from safetensors.numpy import save_file
from threadpoolctl import threadpool_limits

import dagster_divorder
from dagster_divorder import Topics, fit_topics
from dagster_divorder.core.vectors.text_vectors import CHARACTERS
from dagster_divorder.errors import InputError, StoreError
from dagster_divorder.streams import topics as module
from tests.conftest import TOPICS, examples, topic_records

TEXTS = [record["text"] for record in topic_records(30)]
LATER = topic_records(50, start=500)
CHINESE = {"sea": "海浪潮汐港口渔船海鸥锚帆", "kitchen": "烤箱面包面粉酵母黄油面团"}


def planted(n: int = 300, dims: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of any length around three directions, float64 (n, D), and which."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 3, n)
    directions = np.eye(dims)[truth] + 0.1 * rng.normal(size=(n, dims))
    return directions * rng.uniform(0.01, 100, (n, 1)), truth


VECTORS, TRUTH = planted()


@pytest.fixture(scope="module")
def of_texts() -> Topics:
    return fit_topics(TEXTS, k=4)


@pytest.fixture(scope="module")
def of_vectors() -> Topics:
    return fit_topics(VECTORS, k=3)


def groups(labels: np.ndarray) -> set[frozenset[int]]:
    """Which examples are of one topic, whatever its number."""
    return {frozenset(np.flatnonzero(labels == label).tolist()) for label in np.unique(labels)}


# What is found -------------------------------------------------------------------------------------------------------


def test_texts_that_the_sample_does_not_hold_are_of_their_topics(of_texts: Topics) -> None:
    labels = of_texts.predict(record["text"] for record in LATER)
    assert (labels.dtype, labels.shape) == (np.int32, (200,))
    assert groups(labels) == groups(np.repeat(np.arange(4), 50))
    for label, name in enumerate(of_texts.names):
        (source,) = {
            record["source"] for record, of in zip(LATER, labels.tolist(), strict=True) if of == label
        }
        assert set(name.split(", ")) <= set(TOPICS[source.removesuffix(".example")].split())


def test_vectors_are_told_apart_by_their_directions(of_vectors: Topics) -> None:
    assert groups(of_vectors.predict(VECTORS)) == groups(TRUTH)
    assert of_vectors.k == 3
    assert of_vectors.names == ()
    assert repr(of_vectors) == "Topics(k=3, of vectors)"


def test_chinese_texts_have_topics() -> None:
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice([*part], 30)) for part in list(CHINESE.values()) * 40]
    topics = fit_topics(texts, k=2)
    assert groups(topics.predict(texts)) == groups(np.arange(80) % 2)
    assert topics(CHINESE["sea"]) != topics(CHINESE["kitchen"])


def test_what_says_nothing_is_of_the_first_topic(of_texts: Topics, of_vectors: Topics) -> None:
    assert of_texts.predict(["", "  ", "12 34", "unheard", "未知"]).tolist() == [0] * 5
    assert of_vectors.predict(np.zeros((2, 8))).tolist() == [0, 0]
    assert of_texts.predict([]).shape == of_vectors.predict([]).shape == (0,)
    assert of_vectors.predict(np.empty((0, 8))).dtype == np.int32


def test_a_text_is_known_by_its_beginning(of_texts: Topics) -> None:
    for source in ("sea", "rail"):
        begins = (TOPICS[source] + " ") * (CHARACTERS // len(TOPICS[source]))
        assert of_texts(begins + TOPICS["kitchen"] * 9999) == of_texts(begins)


def test_the_docstrings_examples_run() -> None:
    assert doctest.testmod(module).attempted == 4
    assert doctest.testmod(module).failed == 0


# The same for one as for many, and each time -------------------------------------------------------------------------


@settings(max_examples=examples(20), deadline=None)
@given(
    st.lists(st.sampled_from([*TEXTS, *(record["text"] for record in LATER), "", "oven wave", "salt rain"]))
)
def test_a_text_has_the_topic_that_it_has_among_others(of_texts: Topics, texts: list[str]) -> None:
    assert of_texts.predict(texts).tolist() == [of_texts(text) for text in texts]


def test_blocks_change_nothing(of_texts: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = of_texts.predict(TEXTS)
    monkeypatch.setattr(module, "BLOCK_TEXTS", 7)
    assert_array_equal(of_texts.predict(iter(TEXTS)), whole)


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(0, 1000), st.sampled_from([np.float16, np.float32, np.float64, np.int64]))
def test_a_vector_has_the_topic_that_it_has_among_others(of_vectors: Topics, seed: int, dtype: type) -> None:
    """Halfway between topics, in any layout."""
    vectors = np.random.default_rng(seed).integers(-3, 4, (40, 8)).astype(dtype)
    labels = of_vectors.predict(vectors)
    assert_array_equal(of_vectors.predict(np.asfortranarray(vectors)), labels)
    assert_array_equal(of_vectors.predict(vectors[::-1])[::-1], labels)
    assert labels.tolist() == [of_vectors(vector) for vector in vectors]


def saved(topics: Topics, folder: Path) -> bytes:
    topics.save(folder / "topics.safetensors")
    return (folder / "topics.safetensors").read_bytes()


@pytest.mark.parametrize("sample", [TEXTS, VECTORS], ids=["texts", "vectors"])
def test_the_same_sample_and_seed_give_the_same_bytes_whatever_the_threads(
    sample: Any, tmp_path: Path
) -> None:
    with threadpool_limits(1):
        one = saved(fit_topics(sample, 7, seed=5), tmp_path)
    with threadpool_limits(3):
        assert saved(fit_topics(sample, 7, seed=5), tmp_path) == one
    assert saved(fit_topics(sample, 7, seed=6), tmp_path) != one


FORMS: dict[str, Callable[[list[str]], Any]] = {
    "generator": iter,
    "array": np.array,
    "objects": lambda texts: np.array(texts, object),
    "pandas": lambda texts: pd.Series(texts, index=range(7, 7 + len(texts))),
    "categories": lambda texts: pd.Series(texts, dtype="category"),
    "arrow": pa.array,
    "chunks": lambda texts: pa.chunked_array([texts[:7], texts[7:]]),
    "dictionary": lambda texts: pa.array(texts).dictionary_encode(),
}
VECTOR_FORMS: dict[str, Callable[[np.ndarray], Any]] = {
    "lists": np.ndarray.tolist,
    "generator": iter,
    "fortran": np.asfortranarray,
    "tensor": torch.tensor,
    "tensors": lambda vectors: list(torch.tensor(vectors)),
    "pandas": lambda vectors: pd.Series(list(vectors)),
    "arrow": lambda vectors: pa.FixedSizeListArray.from_arrays(vectors.ravel(), vectors.shape[1]),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_texts_come_in_any_form(of_texts: Topics, form: Callable[[list[str]], Any]) -> None:
    labels = of_texts.predict(TEXTS)
    assert_array_equal(of_texts.predict(form(TEXTS)), labels)
    assert_array_equal(fit_topics(form(TEXTS), 4).predict(TEXTS), labels)


@pytest.mark.parametrize("form", VECTOR_FORMS.values(), ids=VECTOR_FORMS)
def test_vectors_come_in_any_form(of_vectors: Topics, form: Callable[[np.ndarray], Any]) -> None:
    labels = of_vectors.predict(VECTORS)
    assert_array_equal(of_vectors.predict(form(VECTORS)), labels)
    assert_array_equal(fit_topics(form(VECTORS), 3).predict(VECTORS), labels)


@pytest.mark.parametrize("kind", ["texts", "vectors", "array"])
def test_a_long_sample_is_drawn_from_all_of_it(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks, the second topic behind all that would be kept of the first."""
    monkeypatch.setattr(module, "SAMPLE", 1)
    number = 3 * module.most_points(2, "faiss")
    two = ("wave tide salt", "oven bread salt") if kind == "texts" else ([1.0, 0.1], [0.1, 1.0])
    ended = False

    def stream() -> Iterator[Any]:
        nonlocal ended
        for at in range(number):
            yield two[at >= number // 2]
        ended = True

    topics = fit_topics(np.array([*stream()]) if kind == "array" else stream(), k=2)
    assert ended
    assert sorted(topics.predict(two)) == [0, 1]
    assert topics.clusters.sizes.sum() == module.most_points(2, "faiss")
    assert topics.clusters.sizes.min() > 0.3 * topics.clusters.sizes.sum()


# Files ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["of_texts", "of_vectors"])
def test_topics_are_what_they_were_when_they_come_back(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    topics, sample = request.getfixturevalue(name), TEXTS if name == "of_texts" else VECTORS
    topics.save(str(tmp_path / "topics.safetensors"))
    for back in (
        dagster_divorder.Topics.load(tmp_path / "topics.safetensors"),
        pickle.loads(pickle.dumps(topics)),
    ):
        assert_array_equal(back.predict(sample), topics.predict(sample))
        assert (back.k, back.names) == (topics.k, topics.names)
        assert saved(back, tmp_path) == saved(topics, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["topics.safetensors"]


def test_every_damage_is_seen(of_texts: Topics, tmp_path: Path) -> None:
    path = tmp_path / "topics.safetensors"
    whole = saved(of_texts, tmp_path)
    for at in [*range(0, len(whole), max(1, len(whole) // 100)), 0, 8, len(whole) - 1]:
        damaged = bytearray(whole)
        damaged[at] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(StoreError, match=r"copy it again|of version"):
            Topics.load(path)
    for end in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:end])
        with pytest.raises(StoreError, match="copy it again"):
            Topics.load(path)


def test_what_is_no_file_of_topics_is_refused(
    of_vectors: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "other.safetensors"
    save_file({"centroids": np.zeros((3, 8), np.float32)}, path)
    with pytest.raises(StoreError, match=r"other\.safetensors holds no topics"):
        Topics.load(path)
    monkeypatch.setattr(module, "VERSION", 2)
    of_vectors.save(path)
    monkeypatch.undo()
    with pytest.raises(StoreError, match="of version 2 and this package reads version 1; fit them again"):
        Topics.load(path)
    for nothing in (tmp_path / "gone.safetensors", tmp_path):
        with pytest.raises(
            InputError, match=r"cannot be read from .* expected a file that Topics\.save wrote"
        ):
            Topics.load(nothing)


def test_a_file_that_cannot_be_written_leaves_what_was_there(of_vectors: Topics, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot be written to .* No such file"):
        of_vectors.save(tmp_path / "gone/topics.safetensors")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreError, match=r"cannot be written to .* directory"):
        of_vectors.save(tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


# What is refused -----------------------------------------------------------------------------------------------------

ROWS = VECTORS.tolist()
NOT_SEVERAL = {
    "a text": "one text",
    "bytes": b"bytes",
    "None": None,
    "a number": 3,
    "a scalar": np.array(3.0),
    "a dict": {"text": TEXTS},
    "a set": set(TEXTS),
    "pandas": pd.DataFrame({"text": TEXTS}),
    "arrow": pa.table({"text": TEXTS}),
}
BAD_SAMPLES: dict[str, tuple[Any, str]] = {
    "empty": ([], "the sample is empty"),
    "no rows": (np.empty((0, 8)), "the sample has 0 examples"),
    "few texts": (TEXTS[:2], "the sample has 2 examples, .* and k is 3; expected at least k usable ones"),
    "few vectors": (VECTORS[:2], "the sample has 2 examples"),
    "empty texts": (["", "1 2", "?"] * 9, "27 of them texts without a word"),
    "zeros": (np.zeros((9, 4)), "9 of them vectors of zeros"),
    "equal texts": (["wave tide"] * 9, "1 clusters of 3: .* give a larger sample or a smaller k"),
    "equal vectors": (np.ones((9, 4)), "1 clusters of 3: .* give a larger sample or a smaller k"),
    "None": ([*TEXTS, None], "example 120 is None; topics of texts take a str"),
    "null": (pd.Series([*TEXTS, None]), "example 120 is a float, nan; topics of texts take a str"),
    "bytes": ([*TEXTS, b"wave"], "example 120 is a bytes, b'wave'; .* decode bytes"),
    "None first": ([None, *TEXTS], "example 0 is None; expected numbers"),
    "dicts": ([{"text": text} for text in TEXTS], "example 0 is a dict, .*; expected numbers"),
    "a vector among texts": ([*TEXTS, ROWS[0]], "example 120 is a list, "),
    "a text among vectors": ([*ROWS, "wave"], "example 300 is a str, 'wave'; expected numbers"),
    "one vector": (VECTORS[0], "example 0 is a float64, .*; expected numbers"),
    "a stack": (np.zeros((4, 5, 6)), r"example 0 is float64 of shape \(5, 6\); expected numbers"),
    "no dims": (np.empty((9, 0)), r"the array is float64 of shape \(9, 0\)"),
    "lengths": ([*ROWS, [1.0, 2.0]], "example 300 has 2 numbers and example 0 has 8"),
    "nulls": ([[1.0, None]] * 9, "example 0 is a list, .*; expected numbers"),
    "booleans": (VECTORS > 0, r"the array is bool of shape \(300, 8\)"),
    "complex": (VECTORS + 1j, "the array is complex128"),
    "objects": (VECTORS.astype(object), "the array is a ndarray"),
    "NaN": (np.vstack([VECTORS, np.full(8, np.nan)]), "vector 300 holds NaN or infinity"),
    "infinity": ([[1.0, np.inf], *[[1.0, 2.0]] * 9], "vector 0 holds NaN or infinity"),
    "bfloat16": (torch.tensor(VECTORS).bfloat16(), r"a Tensor, .* tensor\.detach\(\)\.float\(\)"),
    "gradients": (torch.tensor(VECTORS, requires_grad=True), r"a Tensor, .* tensor\.detach\(\)\.float\(\)"),
}


@pytest.mark.parametrize("examples_", NOT_SEVERAL.values(), ids=NOT_SEVERAL)
def test_one_example_a_table_or_a_set_is_not_taken_for_several(
    of_texts: Topics, of_vectors: Topics, examples_: Any
) -> None:
    for call in (fit_topics, of_texts.predict, of_vectors.predict):
        with pytest.raises(InputError, match="expected several texts or vectors in an order of their own"):
            call(examples_)


@pytest.mark.parametrize(("sample", "said"), BAD_SAMPLES.values(), ids=BAD_SAMPLES)
def test_a_sample_that_cannot_be_used_is_refused(sample: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        fit_topics(sample, k=3)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"k": 0}, "k is 0; expected a whole number of 1 or more"),
        ({"k": 2.0}, r"k is 2\.0; expected a whole number"),
        ({"k": "30"}, "k is '30'; expected a whole number"),
        ({"seed": -1}, "seed is -1; expected a whole number from 0"),
        ({"k": True}, "k is True; expected a whole number"),
        ({"seed": None}, "seed is None; expected a whole number"),
    ],
)
def test_impossible_arguments_are_refused_before_the_sample_is_read(how: dict[str, Any], said: str) -> None:
    stream = iter(TEXTS)
    with pytest.raises(InputError, match=said):
        fit_topics(stream, **how)
    assert next(stream) == TEXTS[0]


def test_another_kind_of_example_than_the_samples_is_refused(of_texts: Topics, of_vectors: Topics) -> None:
    for bad in (VECTORS, [None], [b"wave"], [TEXTS]):
        with pytest.raises(InputError, match=r"example 0 is .*; topics of texts take a str"):
            of_texts.predict(bad)
        with pytest.raises(InputError, match=r"example 0 is .*; topics of texts take a str"):
            of_texts(bad)
    for bad in (TEXTS[0], None, ROWS, 3.0, VECTORS[:1]):
        with pytest.raises(InputError, match=r"example 0 is .*; expected numbers \(D,\)"):
            of_vectors(bad)
    for bad in (np.ones((2, 7)), [[1.0] * 7], torch.ones(2, 7)):
        with pytest.raises(InputError, match="the vectors have 7 dims and the topics are of vectors with 8"):
            of_vectors.predict(bad)
    with pytest.raises(InputError, match="vector 1 holds NaN or infinity"):
        of_vectors.predict([[1.0] * 8, [np.nan] * 8])


def test_texts_behind_the_first_block_are_named_by_their_place(
    of_texts: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK_TEXTS", 7)
    with pytest.raises(InputError, match="example 120 is None"):
        of_texts.predict([*TEXTS, None])


def test_vectors_of_any_size_keep_their_direction(of_vectors: Topics) -> None:
    for vector in VECTORS[:20]:
        label = of_vectors(vector)
        assert {of_vectors(vector * scale) for scale in (1e-200, 1e-3, 1e200)} == {label}
