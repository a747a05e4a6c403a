"""Near copies of a few texts among many, and groups of near copies, against all pairs of sets of words."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.core.text import near_duplicates
from dagster_divorder.core.text.minhash import shingles, signatures
from dagster_divorder.core.text.near_duplicates import THRESHOLD, Index, candidate_pairs, group
from tests.conftest import examples
from tests.twins import minhash as slow

WORDS = st.lists(
    st.sampled_from(["wave", "tide", "boat", "oven", "bread", "flour", "seed", "root"]),
    min_size=1,
    max_size=40,
)


@st.composite
def corpora(draw: st.DrawFn) -> tuple[list[str], list[str]]:
    """(few texts, many texts of which some are theirs with a few words changed, taken out or added)."""
    few = draw(st.lists(WORDS, min_size=1, max_size=5))
    many = draw(st.lists(WORDS, max_size=5))
    for _ in range(draw(st.integers(0, 6))):
        text = list(draw(st.sampled_from(few)))
        for _ in range(draw(st.integers(0, 3))):
            at = draw(st.integers(0, len(text)))
            text[at : at + draw(st.integers(0, 1))] = draw(st.sampled_from([[], ["tide"], ["loaf"]]))
        many.append(text or ["tide"])
    return [" ".join(text) for text in few], [" ".join(text) for text in many]


@settings(max_examples=examples(60), deadline=None)
@given(corpora(), st.integers(1, 3))
def test_it_finds_what_all_pairs_find(corpus: tuple[list[str], list[str]], step: int) -> None:
    few, many = corpus
    index = Index.of(pa.array(few[first : first + step]) for first in range(0, len(few), step))
    signed = signatures(pa.array(many, pa.string()))
    rows = index.candidates(signed)
    found, similarity = np.full(len(many), -1), np.zeros(len(many))
    found[rows], similarity[rows] = index.nearest(
        pa.array(many, pa.string()).take(pa.array(rows)), signed[rows]
    )
    pairs = np.array([[slow.similarity(text, other) for other in few] for text in many]).reshape(-1, len(few))
    near = pairs.max(axis=1, initial=0) >= THRESHOLD
    assert np.array_equal(found, np.where(near, pairs.argmax(axis=1), -1))
    assert np.array_equal(similarity, np.where(near, pairs.max(axis=1, initial=0), 0))


def test_no_texts_are_near_none() -> None:
    index, signed = Index.of([]), signatures(pa.array(["one two", "three"]))
    assert not len(index.candidates(signed))
    found, similarity = index.nearest(pa.array(["one two", "three"]), signed)
    assert found.tolist() == [-1, -1]
    assert similarity.tolist() == [0, 0]


def groups(texts: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(first, similarity, candidate pairs)."""
    array = pa.array(texts, pa.string())
    pairs = candidate_pairs(signatures(array))
    sets = shingles(array)
    ends = np.cumsum([len(of) for of in sets])
    spans = np.stack([ends - [len(of) for of in sets], ends], axis=1)
    return *group(pairs, np.concatenate(sets), spans), pairs


@settings(max_examples=examples(60), deadline=None)
@given(corpora())
def test_groups_are_those_of_all_pairs(corpus: tuple[list[str], list[str]]) -> None:
    texts = [*corpus[0], *corpus[1]]
    first, similarity, pairs = groups(texts)
    assert first.tolist() == slow.groups(texts, THRESHOLD)
    assert similarity.tolist() == [
        slow.similarity(texts[of], text) for of, text in zip(first, texts, strict=True)
    ]
    assert (np.diff(pairs, axis=1) > 0).all()


def words(rng: np.random.Generator, count: int) -> list[str]:
    return [f"w{number}" for number in rng.integers(0, 1 << 30, count)]


def test_many_texts_of_one_template_are_compared_with_a_few_each() -> None:
    """Alike by 0.6 but not near; some have a near copy, which is found all the same."""
    rng = np.random.default_rng(0)
    template = words(rng, 76)
    texts = [template + words(rng, 24) for _ in range(1500)]
    texts += [[*text[:-2], "changed", "twice"] for text in texts[::50]]
    first, _, pairs = groups([" ".join(text) for text in texts])
    assert first[:1500].tolist() == list(range(1500))
    assert first[1500:].tolist() == list(range(0, 1500, 50))
    # All pairs are a million.
    assert len(pairs) < 60 * len(texts)


def test_many_near_copies_of_one_text_are_one_group() -> None:
    rng = np.random.default_rng(1)
    text = words(rng, 200)
    texts = [" ".join([*text[: at % 200], f"new{at}", *text[at % 200 + 1 :]]) for at in range(2000)]
    first, similarity, pairs = groups(texts)
    assert not first.any()
    assert similarity.min() > 0.9
    assert len(pairs) < 40 * len(texts)


@settings(max_examples=examples(20), deadline=None)
@given(corpora())
def test_with_fewer_texts_that_stand_for_a_bucket_groups_are_parts_of_the_true_ones(
    corpus: tuple[list[str], list[str]],
) -> None:
    texts = [*corpus[0], *corpus[1]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(near_duplicates, "MAX_BUCKET", 1)
        first = groups(texts)[0]
    whole = np.array(slow.groups(texts, THRESHOLD))
    assert (whole[first] == whole).all()


def test_no_texts_and_one_text_are_no_groups() -> None:
    assert candidate_pairs(signatures(pa.array([], pa.string()))).shape == (0, 2)
    assert groups(["one"])[0].tolist() == [0]
