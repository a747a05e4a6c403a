"""The problem and the strategy that the arguments of an order describe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.checks import whole_number
from dagster_divorder.core.order.problem import Problem
from dagster_divorder.core.order.strategies import STRATEGIES
from dagster_divorder.core.order.strategy import Strategy, one_of
from dagster_divorder.errors import InputError

if TYPE_CHECKING:
    from scipy.sparse import csr_array, csr_matrix

# So that sums of two totals, and their signed differences, stay inside int64.
LARGEST_TOTAL = 2**62


def make_problem(
    counts: csr_matrix | csr_array,
    groups: ArrayLike,
    *,
    strategy: str = "balanced",
    weights: Sequence[float] | NDArray[Any] | None = None,
    seed: int = 0,
    sequence_length: int | None = None,
    batch: int = 256,
    coordinates: ArrayLike | None = None,
    **options: Any,
) -> tuple[Problem, Strategy]:
    """(the items to order, the strategy with its options), from the arguments of `order`.

    Raises:
        InputError: the strategy or an option cannot be used, or the counts are too large to sum.
    """
    chosen = STRATEGIES[one_of("strategy", strategy, STRATEGIES)].with_options(**options)
    if not counts.has_canonical_format:
        counts = counts.copy()
        counts.sum_duplicates()
    data = counts.data
    if (total := float(data.sum(dtype=np.float64))) >= LARGEST_TOTAL:
        raise InputError(
            f"counts sums to {total:.3g}; expected less than 2**62: use a coarser unit than tokens"
        )
    if data.dtype not in (np.int32, np.int64, np.float64):
        data = data.astype(np.float64 if data.dtype.kind == "f" else np.int64)
    of_values = np.asarray(groups, np.int32)
    problem = Problem(
        indptr=counts.indptr.astype(np.int64, copy=False),
        indices=counts.indices.astype(np.int32, copy=False),
        data=data,
        groups=of_values,
        weights=np.ones(of_values.max(initial=0) + 1) if weights is None else np.asarray(weights, np.float64),
        dense=np.zeros((counts.shape[0], 0), np.float32) if coordinates is None else np.asarray(coordinates),
        seed=whole_number("seed", seed, 0),
        sequence_length=None
        if sequence_length is None
        else whole_number("sequence_length", sequence_length, 1),
        batch=whole_number("batch", batch, 1),
    ).recentred()
    return problem.with_norms() if chosen.balances_norms else problem, chosen
