"""Checks the arguments of an order once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.checks import whole_number, whole_numbers
from dagster_divorder.core.order.problem import Problem
from dagster_divorder.core.order.strategies import STRATEGIES
from dagster_divorder.core.order.strategy import Strategy, one_of
from dagster_divorder.errors import InputError

if TYPE_CHECKING:
    from scipy.sparse import csr_array, csr_matrix

# So that sums of two totals, and their signed differences, stay inside int64.
LARGEST_TOTAL = 2**62
LARGEST_COORDINATE = 1e30
# So that weighted squares of totals stay far inside float64, and none vanishes beside another.
WEIGHTS = (1e-9, 1e9)


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
        InputError: an argument cannot be used; the message names it and what was expected.
    """
    chosen = STRATEGIES[one_of("strategy", strategy, STRATEGIES)].with_options(**options)
    indptr, indices, data = item_rows(counts)
    items = len(indptr) - 1
    group_of = group_numbers(groups, counts.shape[1])
    if items and not len(group_of):
        raise InputError(f"counts has no column for its {items} items; expected at least one trait value")
    problem = Problem(
        indptr=indptr,
        indices=indices,
        data=data,
        groups=group_of,
        weights=_weights(weights, int(group_of.max()) + 1 if group_of.size else 1),
        dense=_coordinates(coordinates, items),
        seed=whole_number("seed", seed, 0),
        sequence_length=None
        if sequence_length is None
        else whole_number("sequence_length", sequence_length, 1),
        batch=whole_number("batch", batch, 1),
    ).recentred()
    return problem.with_norms() if chosen.balances_norms else problem, chosen


def item_rows(counts: Any) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[Any]]:
    """indptr int64 (M+1,), indices int32 and data int32, int64 or float64 (nnz,) of a SciPy CSR matrix, checked.

    Raises:
        InputError: counts is no CSR matrix, or holds numbers that are infinite, NaN, negative or too large to sum.
    """
    from scipy.sparse import csr_array, csr_matrix

    if not isinstance(counts, csr_array | csr_matrix) or counts.ndim != 2:
        raise InputError(
            f"counts is {type(counts).__name__}; expected a SciPy CSR matrix (items x trait values): "
            "scipy.sparse.csr_matrix(counts) makes one"
        )
    if not counts.has_canonical_format:
        counts = counts.copy()
        counts.sum_duplicates()
    data = counts.data
    if data.dtype.kind not in "biuf":
        raise InputError(f"counts holds {data.dtype}; expected whole or real numbers")
    if data.size:
        if data.dtype.kind == "f" and not np.isfinite(data).all():
            raise InputError(
                f"counts holds {data[~np.isfinite(data)][0]}; expected finite numbers of 0 or more"
            )
        if data.dtype.kind != "b" and data.min() < 0:
            raise InputError(
                f"counts holds {data.min()}; expected numbers of 0 or more, these run from {data.min()} to {data.max()}"
            )
        if (total := float(data.sum(dtype=np.float64))) >= LARGEST_TOTAL:
            raise InputError(
                f"counts sums to {total:.3g}; expected less than 2**62: use a coarser unit than tokens"
            )
    if data.dtype not in (np.int32, np.int64, np.float64):
        data = data.astype(np.float64 if data.dtype.kind == "f" else np.int64)
    return counts.indptr.astype(np.int64, copy=False), counts.indices.astype(np.int32, copy=False), data


def group_numbers(groups: ArrayLike, trait_values: int) -> NDArray[np.int32]:
    """The group of each trait value, int32 (J,), checked.

    Raises:
        InputError: a trait value has no group in 0..G-1, or a group has no trait value.
    """
    array = whole_numbers("groups", groups, trait_values, each="column of counts", least=None)
    present = np.unique(array)
    if not np.array_equal(present, np.arange(present.size)):
        raise InputError(
            f"groups holds {present[:10].tolist()}{'...' if present.size > 10 else ''}; "
            "expected every number 0..G-1 at least once: numpy.unique(groups, return_inverse=True)[1] renumbers them"
        )
    return array.astype(np.int32)


def _weights(weights: Sequence[float] | NDArray[Any] | None, groups: int) -> NDArray[np.float64]:
    if weights is None:
        return np.ones(groups)
    array = np.asarray(weights, np.float64)
    if array.shape != (groups,):
        raise InputError(f"weights has shape {array.shape}; expected ({groups},), one weight for each group")
    least, most = WEIGHTS
    if (wrong := np.flatnonzero(~((array >= least) & (array <= most)))).size:
        raise InputError(
            f"the weight of group {wrong[0]} is {array[wrong[0]]}; expected a number from {least:g} to {most:g}: "
            "leave a group's columns out of counts to ignore it"
        )
    return array


def _coordinates(coordinates: ArrayLike | None, items: int) -> NDArray[Any]:
    if coordinates is None:
        return np.zeros((items, 0), np.float32)
    array = np.asarray(coordinates)
    if array.ndim != 2 or len(array) != items or array.dtype.kind not in "biuf":
        raise InputError(
            f"coordinates is {array.dtype} of shape {array.shape}; expected numbers ({items}, D), a row for each item"
        )
    if array.size and not np.abs([array.min(), array.max()]).max() <= LARGEST_COORDINATE:
        raise InputError(
            f"coordinates runs from {array.min()} to {array.max()}; expected finite numbers from "
            f"-{LARGEST_COORDINATE:g} to {LARGEST_COORDINATE:g}"
        )
    return array
