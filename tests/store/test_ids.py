"""Ids: order, distinct ones, and their places among others."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dagster_divorder.store.ids import distinct, hash_all, places, to_bytes, words

# Few distinct words, so that ids collide in one word or both.
ids = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=12)


def as_array(pairs: list[tuple[int, int]]) -> np.ndarray:
    return np.array(pairs, dtype=np.uint64).reshape(-1, 2)


def test_words_keep_byte_order_and_round_trip() -> None:
    digests = hash_all([b"a", b"b", b"", b"a"])
    pairs = words(digests)
    assert to_bytes(pairs) == digests
    assert (pairs[0] == pairs[3]).all()
    by_words = np.lexsort((pairs[:, 1], pairs[:, 0])).tolist()
    by_bytes = sorted(range(4), key=lambda at: digests[16 * at : 16 * at + 16])
    assert by_words == by_bytes


@given(pairs=ids)
def test_distinct_ids_come_in_the_order_of_their_first_occurrence(pairs: list[tuple[int, int]]) -> None:
    result = distinct(as_array(pairs))
    assert [pairs[at] for at in result.first] == list(dict.fromkeys(pairs))
    assert result.first.tolist() == sorted(result.first.tolist())
    assert [pairs[result.first[at]] for at in result.inverse] == pairs


HALVES = st.sampled_from([0, 1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])


@given(
    st.lists(st.tuples(HALVES, HALVES), unique=True), st.lists(st.tuples(HALVES, HALVES)), st.integers(0, 99)
)
def test_places_are_those_of_a_dict(
    known: list[tuple[int, int]], wanted: list[tuple[int, int]], others: int
) -> None:
    ids = np.array(known, np.uint64).reshape(-1, 2)
    ids = np.concatenate([ids, words(hash_all([b"%d" % number for number in range(others)]))])
    queries = np.concatenate([np.array(wanted, np.uint64).reshape(-1, 2), ids[::-2]])
    twin = {tuple(pair): at for at, pair in enumerate(ids.tolist())}
    assert places(queries, ids).tolist() == [twin.get(tuple(pair), -1) for pair in queries.tolist()]
