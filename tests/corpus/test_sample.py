"""Samples of records by rising hash of their texts."""

from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dagster_divorder.corpus.stored import records_by_text

# Few first halves, so that some are equal, and few ids, so that texts repeat.
ids = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2) | st.just(2**64 - 1)), min_size=1, max_size=60)


@given(ids=ids, left_out=st.sets(st.integers(0, 59)), most=st.integers(0, 31))
def test_a_sample_is_the_first_record_of_each_text_by_rising_hash(ids, left_out, most):
    words = np.array(ids, np.uint64)
    first = {}
    for row in range(len(ids)):
        if row not in left_out:
            first.setdefault(ids[row], row)
    view = SimpleNamespace(fragments=(), __len__=lambda: len(ids))
    records = SimpleNamespace(fragments=SimpleNamespace(column=lambda fragments, name: words))
    flags = np.isin(np.arange(len(words)), list(left_out))
    by_id = [first[each] for each in sorted(first)]
    assert_array_equal(records_by_text(records, view, without=flags), by_id)
    assert_array_equal(records_by_text(records, view, most, flags), by_id[:most])
