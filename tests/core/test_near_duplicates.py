"""Near copies of a few texts among many, against all pairs of sets of words."""

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.core.minhash import signatures
from dagster_divorder.core.near_duplicates import THRESHOLD, Index
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


@settings(max_examples=150, deadline=None)
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
