"""What several parts of core ask of their arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dagster_divorder.core.checks import whole_numbers
from dagster_divorder.errors import InputError


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        pytest.param([], np.int64, id="none"),
        pytest.param(np.arange(3, dtype=np.int8), np.int8, id="signed"),
        pytest.param(np.arange(3, dtype=np.uint16), np.int64, id="unsigned"),
    ],
)
def test_whole_numbers_are_signed(values: Any, dtype: type) -> None:
    found = whole_numbers("codes", values)
    assert found.dtype == dtype and found.tolist() == list(values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0.0], r"codes is float64 .* expected whole numbers, one for each item: \(n,\)"),
        ([[0]], r"of shape \(1, 1\); .* \(n,\)"),
        ([3, -1], "codes holds -1; expected numbers of 0 or more"),
    ],
)
def test_other_numbers_are_named(values: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        whole_numbers("codes", values)
