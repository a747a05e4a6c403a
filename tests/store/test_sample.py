"""Samples of documents by rising id."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dagster_divorder.store.sample import rows_by_id
from dagster_divorder.store.view import Fragment, View

# Few first halves, so that some are equal.
ids = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2**64 - 1)), min_size=1, max_size=30, unique=True)


@given(ids=ids, used=st.sets(st.integers(0, 29), min_size=1), most=st.integers(0, 31))
def test_the_first_by_id_are_the_first_of_all(ids, used, most):
    words = np.array(ids, np.uint64)
    rows = np.array([row for row in sorted(used) if row < len(words)] or [0])
    fragment = Fragment("name", "file", len(words))
    view = View("jsonl", (fragment,), (fragment,), rows, rows)
    by_id = sorted(rows.tolist(), key=ids.__getitem__)
    assert_array_equal(rows_by_id(words, view), by_id)
    assert_array_equal(rows_by_id(words, view, most), by_id[:most])
