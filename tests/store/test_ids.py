"""The id index equals a dict, whatever the batches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_divorder.store import ids as ids_module
from dagster_divorder.store.ids import IdIndex, distinct, hash_all, places, to_bytes, words

# Few distinct words, so that ids collide in one word or both.
ids = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=12)


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids_module, "_PART_IDS", ids_module._PART_IDS)


def as_array(pairs: list[tuple[int, int]]) -> np.ndarray:
    return np.array(pairs, dtype=np.uint64).reshape(-1, 2)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=st.lists(ids, max_size=8), wanted=ids, piece=st.integers(1, 5))
def test_index_finds_the_first_row_of_every_id_and_no_other(
    batches: list[list[tuple[int, int]]], wanted: list[tuple[int, int]], piece: int
) -> None:
    ids_module._PART_IDS = piece
    index = IdIndex()
    twin: dict[tuple[int, int], int] = {}
    for batch in batches:
        # The store adds an id once; a batch of the test keeps to that.
        fresh = [pair for pair in dict.fromkeys(batch) if pair not in twin]
        rows = index.add(as_array(fresh))
        twin |= dict(zip(fresh, rows.tolist(), strict=True))
    assert index.size == len(twin)
    assert index.find(as_array(wanted)).tolist() == [twin.get(pair, -1) for pair in wanted]


def test_words_keep_byte_order_and_round_trip() -> None:
    digests = hash_all([b"a", b"b", b"", b"a"])
    pairs = words(digests)
    assert to_bytes(pairs) == digests
    assert (pairs[0] == pairs[3]).all()
    by_words = np.lexsort((pairs[:, 1], pairs[:, 0])).tolist()
    by_bytes = sorted(range(4), key=lambda at: digests[16 * at : 16 * at + 16])
    assert by_words == by_bytes


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
def test_places_are_those_of_an_index(
    known: list[tuple[int, int]], wanted: list[tuple[int, int]], others: int
) -> None:
    ids = np.array(known, np.uint64).reshape(-1, 2)
    ids = np.concatenate([ids, words(hash_all([b"%d" % number for number in range(others)]))])
    queries = np.concatenate([np.array(wanted, np.uint64).reshape(-1, 2), ids[::-2]])
    index = IdIndex()
    index.add(ids)
    assert np.array_equal(places(queries, ids), index.find(queries))
