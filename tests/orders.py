"""Orders of plain rows: counts, a group for each column, weights and coordinates as arguments."""

from typing import Any

import numpy as np

from dagster_divorder.core import order as ours
from dagster_divorder.core.order import Items, epochs


def items_of(counts: Any, groups: Any, weights: Any = None, coordinates: Any = None) -> Items:
    """Rows as items; groups weigh the same by default."""
    of_values = np.asarray(groups, np.int32)
    return Items(
        counts,
        of_values,
        np.ones(of_values.max(initial=0) + 1) if weights is None else np.asarray(weights, float),
        None if coordinates is None else np.asarray(coordinates),
    )


def order(
    counts: Any, groups: Any, *, weights: Any = None, coordinates: Any = None, **arguments: Any
) -> np.ndarray:
    return ours.order(items_of(counts, groups, weights, coordinates), **arguments)


def epoch_orders(
    counts: Any, groups: Any, number: int, *, weights: Any = None, coordinates: Any = None, **arguments: Any
) -> np.ndarray:
    return epochs.epoch_orders(items_of(counts, groups, weights, coordinates), number, **arguments)
