"""Dense coordinates of items, scaled to a given weight beside the trait rows.

Letters: M items, D dims.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.order.items import Items

VECTOR_SHARE = 0.3
"""Variance of the vectors, all dims together, over the heaviest trait's. A larger share keeps vectors nearer to the
whole's, and traits less near."""


def with_blocks(items: Items, blocks: Iterable[tuple[NDArray[Any], float]]) -> Items:
    """Items (M, J) with coordinates: blocks (M, D) side by side. Each block is scaled so that its variance is its share
    of the heaviest trait's, all values together."""
    variance, scaled = _heaviest_variance(items), []
    for block, share in blocks:
        own = float(block.var(axis=0, dtype=np.float64).sum()) if len(block) else 0.0
        scale = (share * variance / own) ** 0.5 if own else 0.0
        scaled.append(block.astype(np.float32) * np.float32(scale))
    return replace(items, coordinates=np.concatenate(scaled, axis=1))


def _heaviest_variance(items: Items) -> float:
    """The largest weight times variance of any group, all its values together."""
    counts, rows = items.counts, max(1, items.counts.shape[0])
    values = counts.data.astype(np.float64)
    size = len(items.groups)
    square = np.bincount(counts.indices, weights=values * values, minlength=size) / rows
    mean = np.bincount(counts.indices, weights=values, minlength=size) / rows
    return float((np.bincount(items.groups, weights=square - mean * mean) * items.weights).max(initial=0.0))
