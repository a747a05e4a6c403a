"""Results beside those of before, where floating-point results differ in their last digits between processors."""

from __future__ import annotations

from typing import Any

import numpy as np
import xxhash

TOLERANCE = 1e-3
"""Of a number, relative to it from one on: what processors differ by lies well below it, a change of a result well
above."""


def digest(array: np.ndarray) -> str:
    """Of an array whose bytes are the same on every processor."""
    return xxhash.xxh3_64_hexdigest(np.ascontiguousarray(array).tobytes())


def signature(vectors: np.ndarray) -> list[float]:
    """A number a column of `vectors` (N, D) or (N,): its product with N fixed normal draws, over the root of N.

    Other vectors have another signature, and so have the same ones in another order or with another sign.
    """
    draws = np.random.default_rng(0).normal(size=len(vectors)) / np.sqrt(max(len(vectors), 1))
    return [round(float(value), 6) for value in np.atleast_1d(draws @ vectors.astype(np.float64))]


def same(found: Any, golden: Any) -> bool:
    """Whether two results as JSON has them are equal, numbers with a fraction within TOLERANCE."""
    if isinstance(golden, dict) and isinstance(found, dict):
        return found.keys() == golden.keys() and all(same(found[name], golden[name]) for name in golden)
    if isinstance(golden, list | tuple) and isinstance(found, list | tuple):
        return len(found) == len(golden) and all(map(same, found, golden))
    if isinstance(golden, float) and isinstance(found, float):
        return bool(np.isclose(found, golden, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True))
    return bool(found == golden)
