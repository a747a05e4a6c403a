"""The kernel that lays runs of tokens end to end, against its slow version."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.core.kernels.token_runs import copy_runs
from tests.conftest import examples
from tests.twins import token_runs


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
@settings(max_examples=examples(20), deadline=None)
@given(data=st.data())
def test_runs_are_laid_end_to_end(dtype: type, data: st.DataObject) -> None:
    ids = np.arange(100, 100 + data.draw(st.integers(0, 30))).astype(dtype)
    runs = [
        (first, own, own + data.draw(st.integers(0, 2)))
        for first in data.draw(st.lists(st.integers(0, len(ids)), max_size=8))
        for own in [data.draw(st.integers(0, len(ids) - first))]
    ]
    source, own, length = np.array(runs, np.int64).reshape(-1, 3).T.copy()
    out = np.zeros(length.sum(), dtype)
    copy_runs(ids.ctypes.data + source * ids.itemsize, length, own, 7, out)
    assert out.tolist() == token_runs.copy_runs(ids, source, length, own, 7)
