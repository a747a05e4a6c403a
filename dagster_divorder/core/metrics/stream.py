"""Documents laid end to end: the checked, gathered arrays that the kernels walk over."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.errors import InputError


def tokens_in_order(order: ArrayLike, tokens: ArrayLike) -> NDArray[np.int64]:
    """Token counts int64 (N,), laid in order. InputError on an index out of range or a negative count."""
    counts = np.asarray(tokens)
    if counts.ndim != 1 or not (np.issubdtype(counts.dtype, np.integer) or counts.size == 0):
        raise InputError(f"tokens is {counts.dtype} {counts.shape}; expected whole numbers (N,)")
    stream = np.ascontiguousarray(counts[indices_in(order, len(counts), "document")], np.int64)
    if stream.size and stream.min() < 0:
        raise InputError(f"tokens holds {stream.min()}; expected counts of 0 or more")
    return stream


def codes_in_order(order: ArrayLike, codes: ArrayLike, n_values: int, documents: int) -> NDArray[np.int32]:
    """Trait values int32 (N,), laid in order. InputError when one is not in [0, n_values)."""
    values = np.asarray(codes)
    if values.shape != (documents,):
        raise InputError(
            f"codes has the shape {values.shape}; expected one trait value a document, ({documents},)"
        )
    if values.size and not np.issubdtype(values.dtype, np.integer):
        raise InputError(f"codes is {values.dtype}; expected whole numbers, one trait value a document")
    stream = values[indices_in(order, documents, "document")]
    if stream.size and (stream.min() < 0 or stream.max() >= n_values):
        raise InputError(
            f"the trait values run from {stream.min()} to {stream.max()}; expected them in [0, {n_values})"
        )
    return np.ascontiguousarray(stream, np.int32)


def n_values_of(codes: ArrayLike) -> int:
    """The smallest J that holds every trait value."""
    values = np.asarray(codes)
    return int(values.max()) + 1 if values.size else 1


def token_shares(tokens: NDArray[np.int64], codes: NDArray[np.int32], n_values: int) -> NDArray[np.float64]:
    """p (J,): the share of all tokens with each trait value; zeros where there is no token at all."""
    from dagster_divorder.core.kernels.windows import window_counts

    total = int(tokens.sum())
    return window_counts(tokens, codes, n_values, max(total, 1)).sum(axis=0) / max(total, 1)


def indices_in(order: ArrayLike, items: int, name: str = "item") -> NDArray[np.int64]:
    """The order as int64 (M,). InputError when it names an item that is not there."""
    indices = np.asarray(order, np.int64)
    if indices.size and (indices.min() < 0 or indices.max() >= items):
        raise InputError(
            f"the order names {name} {indices.min() if indices.min() < 0 else indices.max()}; "
            f"there are {items}, counted from 0"
        )
    return indices
