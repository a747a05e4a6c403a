"""Samples of records by rising hash of their texts."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dagster_divorder.corpus import sample
from dagster_divorder.corpus.sample import first_by_id, sample_texts
from dagster_divorder.store.view import Fragment

# Few first halves, so that some are equal, and few ids, so that texts repeat.
ids = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2) | st.just(2**64 - 1)), min_size=1, max_size=60)


@given(ids=ids, used=st.sets(st.integers(0, 59)), most=st.integers(0, 31), part=st.integers(1, 30))
def test_the_first_by_id_are_the_first_of_all(ids, used, most, part):
    words = np.array(ids, np.uint64)
    first = {}
    for row in sorted(used):
        if row < len(ids):
            first.setdefault(ids[row], row)
    parts = [words[begin : begin + part] for begin in range(0, len(words), part)]
    flags = np.isin(np.arange(len(words)), list(used))
    by_id = [first[each] for each in sorted(first)]
    assert_array_equal(first_by_id(parts, flags), by_id)
    assert_array_equal(first_by_id(parts, flags, most), by_id[:most])


def test_only_the_beginning_of_the_last_sample_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[list[int]] = []

    def beginnings(records, view, rows, characters):
        read.append(rows.tolist())
        return pa.array([f"{row} of {view.fragments[0].name}" for row in rows.tolist()])

    monkeypatch.setattr(sample, "beginnings", beginnings)
    records = SimpleNamespace(fragments=SimpleNamespace(column=lambda fragments, name: np.full(9, 100)))
    one, other = (SimpleNamespace(fragments=(Fragment(name, 9),)) for name in "ab")
    for view, rows, max_bytes, texts in (
        (one, [4, 2, 7], 300, ["4 of a", "2 of a", "7 of a"]),
        (one, [4, 2, 8, 1], 200, ["4 of a", "2 of a"]),
        (one, [2, 4], 300, ["2 of a", "4 of a"]),
        (other, [2, 4], 300, ["2 of b", "4 of b"]),
    ):
        assert sample_texts(records, view, np.array(rows), max_bytes) == texts
    assert read == [[4, 2, 7], [2, 4], [2, 4]]
