"""Dense coordinates of items, scaled so that they weigh as much as is meant beside the trait rows.

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
"""Variance of the vectors, all dims together, over that of the heaviest trait: vectors are nearer to the whole's as it
rises, and traits further."""


def with_blocks(items: Items, blocks: Iterable[tuple[NDArray[Any], float]]) -> Items:
    """Items (M, J) with coordinates: blocks (M, D) side by side, each scaled to its share of the variance that the
    heaviest trait has, all values together."""
    variance = _heaviest_variance(items)
    coordinates = np.concatenate([_scaled(block, share * variance) for block, share in blocks], axis=1)
    return replace(items, coordinates=coordinates)


def _scaled(block: NDArray[Any], variance: float) -> NDArray[np.float32]:
    own = float(block.var(axis=0, dtype=np.float64).sum()) if len(block) else 0.0
    return block.astype(np.float32) * np.float32((variance / own) ** 0.5 if own else 0.0)


def _heaviest_variance(items: Items) -> float:
    """Largest over the groups of weight times variance of the rows, all values together."""
    counts, rows = items.counts, max(1, items.counts.shape[0])
    values = counts.data.astype(np.float64)
    size = len(items.groups)
    square = np.bincount(counts.indices, weights=values * values, minlength=size) / rows
    mean = np.bincount(counts.indices, weights=values, minlength=size) / rows
    return float((np.bincount(items.groups, weights=square - mean * mean) * items.weights).max(initial=0.0))
