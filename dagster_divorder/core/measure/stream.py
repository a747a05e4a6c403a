"""Documents laid end to end: the checked and gathered arrays that kernels read."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.checks import whole_numbers
from dagster_divorder.errors import InputError


def tokens_in_order(order: ArrayLike, tokens: ArrayLike) -> NDArray[np.int64]:
    """Token counts in order, int64 (N,). InputError if an index is out of range or a count is negative."""
    # Only gathered entries have to be in range: documents that the order leaves out may hold anything.
    counts = whole_numbers("tokens", tokens, each="document", least=None)
    gathered = whole_numbers("tokens", counts[indices_in(order, len(counts), "document")], each="document")
    return np.ascontiguousarray(gathered, np.int64)


def codes_in_order(order: ArrayLike, codes: ArrayLike, n_values: int, documents: int) -> NDArray[np.int32]:
    """Trait values in order, int32 (N,). InputError if one is not in [0, n_values)."""
    values = whole_numbers("codes", codes, documents, each="document", least=None)
    gathered = whole_numbers(
        "codes", values[indices_in(order, documents, "document")], each="document", below=n_values
    )
    return np.ascontiguousarray(gathered, np.int32)


def n_values_of(codes: ArrayLike) -> int:
    """The smallest J that holds every trait value."""
    values = np.asarray(codes)
    return int(values.max()) + 1 if values.size else 1


def token_shares(tokens: NDArray[np.int64], codes: NDArray[np.int32], n_values: int) -> NDArray[np.float64]:
    """p (J,), the share of all tokens that each trait value has; zeros if there are no tokens."""
    from dagster_divorder.core.kernels.windows import window_counts

    total = int(tokens.sum())
    return window_counts(tokens, codes, n_values, max(total, 1)).sum(axis=0) / max(total, 1)


def indices_in(order: ArrayLike, items: int, name: str = "item") -> NDArray[np.int64]:
    """The order as int64 (M,). InputError if it names an item that does not exist."""
    indices = np.asarray(order, np.int64)
    if indices.size and (indices.min() < 0 or indices.max() >= items):
        raise InputError(
            f"the order names {name} {indices.min() if indices.min() < 0 else indices.max()}; "
            f"there are {items}, counted from 0"
        )
    return indices
