"""Golden results are told from others by the order of their rows, by signs and by lengths, but not by last digits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.golden import TOLERANCE, same, signature

VECTORS = np.random.default_rng(14).normal(size=(400, 8))


def test_a_signature_notices_what_changes_and_passes_over_last_digits() -> None:
    exchanged = VECTORS[[1, 0, *range(2, len(VECTORS))]]
    for other in (VECTORS[::-1], exchanged, VECTORS[:, ::-1], -VECTORS, VECTORS[:-1], VECTORS * 1.01):
        assert not same(signature(other), signature(VECTORS))
    noise = 1 + TOLERANCE / 100 * np.random.default_rng(0).normal(size=VECTORS.shape)
    assert same(signature(VECTORS * noise), signature(VECTORS))


@pytest.mark.parametrize("other", [["a", 1.0], ["a", 1.0, 3], ["b", 1.0, 2], ["a", 1.01, 2], {"a": 1.0}, "a"])
def test_results_that_differ_are_told_apart(other: Any) -> None:
    assert same({"stage": ["a", 1.0001, 2]}, {"stage": ["a", 1.0, 2]})
    assert not same({"stage": other}, {"stage": ["a", 1.0, 2]})
