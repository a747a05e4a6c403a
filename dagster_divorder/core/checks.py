"""Checks of arguments that several parts of core share."""

import operator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.errors import InputError


def whole_number(name: str, value: int, smallest: int, largest: int | None = None) -> int:
    """`value`, if it is a whole number from `smallest` to `largest`. None is no bound.

    Raises:
        InputError: it is not.
    """
    try:
        # True and False do not count as numbers.
        number = smallest - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = smallest - 1
    if number < smallest or (largest is not None and number > largest):
        wanted = f"of {smallest} or more" if largest is None else f"from {smallest:,} to {largest:,}"
        raise InputError(f"{name} is {value!r}; expected a whole number {wanted}")
    return number


def whole_numbers(name: str, values: ArrayLike, *, each: str = "item") -> NDArray[np.signedinteger]:
    """`values` (n,), if they are whole numbers of 0 or more; unsigned ones as int64. each: what one number describes,
    for messages.

    Raises:
        InputError: the shape or the dtype is wrong, or a number is negative.
    """
    array = np.asarray(values)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError(
            f"{name} is {array.dtype} of shape {array.shape}; expected whole numbers, one for each {each}: (n,)"
        )
    if array.min(initial=0) < 0:
        raise InputError(f"{name} holds {array.min()}; expected numbers of 0 or more")
    return array if array.dtype.kind == "i" else array.astype(np.int64)


def finite(name: str, vectors: NDArray[np.floating]) -> None:
    """InputError if `vectors` (n, D) hold NaN or infinity."""
    if not np.isfinite(vectors).all():
        raise InputError(
            f"{name} holds NaN or infinity; expected finite numbers: embed those documents again"
        )
