"""Samples of documents by rising id."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dagster_divorder.store.sample import first_by_id

# Few first halves, so that some are equal.
ids = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2**64 - 1)), min_size=1, max_size=30, unique=True)


@given(ids=ids, used=st.sets(st.integers(0, 29)), most=st.integers(0, 31), part=st.integers(1, 30))
def test_the_first_by_id_are_the_first_of_all(ids, used, most, part):
    words = np.array(ids, np.uint64)
    rows = [row for row in sorted(used) if row < len(words)]
    parts = [words[first : first + part] for first in range(0, len(words), part)]
    flags = np.isin(np.arange(len(words)), rows)
    by_id = sorted(rows, key=ids.__getitem__)
    assert_array_equal(first_by_id(parts, flags), by_id)
    assert_array_equal(first_by_id(parts, flags, most), by_id[:most])
